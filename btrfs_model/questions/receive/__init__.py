# SPDX-License-Identifier: GPL-2.0-only
"""Receive: the commands of a send stream, carried out on a filesystem.

:func:`receive` does what ``btrfs receive`` of btrfs-progs 6.2 does with each command: the system
call that belongs to it, on the model's filesystem. Which calls those are, and how many, is counted
in :mod:`btrfs_model.cost.receiver`.
"""
