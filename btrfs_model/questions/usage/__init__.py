# SPDX-License-Identifier: GPL-2.0-only
"""Who uses the space of a filesystem, and what could be saved.

:mod:`~btrfs_model.questions.usage.forest` says which blocks are in which subvolumes,
:mod:`~btrfs_model.questions.usage.items` what the file extents in their leaves refer to,
:mod:`~btrfs_model.questions.usage.references` who keeps what. The questions answer with tables:
``files`` and ``space`` who uses what, ``waste`` what is kept for nothing, ``freed`` what deletions
free, ``compressed`` how files are stored. Nothing here walks back references: each leaf of the
forest is read once, the rest is arithmetic.
"""
