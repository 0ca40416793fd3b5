# SPDX-License-Identifier: GPL-2.0-only
"""A fresh filesystem with the files of a folder: ``mkfs.btrfs --rootdir`` of btrfs-progs 7.3.

It is the same image, byte by byte, except what chance decides: uuids, and the time at which
mkfs.btrfs makes subvolumes, which it takes from the clock.
"""
