# SPDX-License-Identifier: GPL-2.0-only
"""Trees as btrfs-progs changes them, with an allocator and transactions of its own.

The classes stand on each other: blocks, balance, splits, trees, space, free space, extents, chunks,
transactions. Bytes of a block that no item uses are kept, as they are in the memory of mkfs.btrfs.
"""
