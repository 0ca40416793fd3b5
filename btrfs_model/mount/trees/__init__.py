# SPDX-License-Identifier: GPL-2.0-only
"""Trees that change: the Python face of ``native/writer``.

The rules of ``ctree.c`` are in ``native/writer/btree`` and, to be read, in
:mod:`btrfs_model.reference.ctree_edit`. Extents, references, checksums and free space
(``extent-tree.c``, ``delayed-ref.c``, ``file-item.c``, ``free-space-tree.c``) are in
``native/writer/space``.
"""
