# SPDX-License-Identifier: GPL-2.0-only
"""What is on disk, read only: images, verified blocks, trees, subvolumes, directories, file data.

The kernel's side: ``disk-io.c`` and ``extent_io.c`` (blocks), ``ctree.c`` as far as it reads,
``root-tree.c``, ``dir-item.c``, ``file-item.c``, and the comparison of trees in ``send.c``. The
loops are in ``native/image`` and ``native/tree``.
"""
