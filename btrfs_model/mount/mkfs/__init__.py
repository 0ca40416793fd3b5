# SPDX-License-Identifier: GPL-2.0-only
"""A fresh filesystem, as mkfs.btrfs of a release of btrfs-progs writes it (``mkfs/`` there).

:mod:`~btrfs_model.mount.mkfs.make` has its steps,
:mod:`~btrfs_model.mount.mkfs.writer` what they do to trees.
"""
