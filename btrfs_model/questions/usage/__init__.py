# SPDX-License-Identifier: GPL-2.0-only
"""Who uses the space of a filesystem: the extents of a file, the space of subvolumes.

:mod:`~btrfs_model.questions.usage.forest` says which blocks are in which subvolumes,
:mod:`~btrfs_model.questions.usage.items` what the file extents in their leaves refer to,
:mod:`~btrfs_model.questions.usage.files` and :mod:`~btrfs_model.questions.usage.space` answer with
tables. Nothing here walks back references: each leaf of the forest is read once, the rest is
arithmetic.
"""
