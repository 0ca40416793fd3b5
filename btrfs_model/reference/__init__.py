# SPDX-License-Identifier: GPL-2.0-only
"""The algorithms of the kernel in plain Python, to be read beside the kernel and the C.

``ctree_*`` edit as ``ctree.c`` does; its plain search is :mod:`btrfs_model.volume.ctree`.
``backref*`` and ``share`` follow ``backref.c``; ``fiemap`` and ``send`` are folders. Each has a
twin in ``native/``; tests hold the two to the same bytes and counts. Nothing below needs this
storey.
"""
