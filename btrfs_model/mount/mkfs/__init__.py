# SPDX-License-Identifier: GPL-2.0-only
"""A fresh filesystem, as mkfs.btrfs of btrfs-progs 6.2 writes it."""
