# SPDX-License-Identifier: GPL-2.0-only
"""A fresh filesystem, as mkfs.btrfs of btrfs-progs 6.2 writes it (``mkfs/`` there).

Every tree is one leaf; :mod:`~btrfs_model.mount.mkfs.layout` says where each lies.
"""
