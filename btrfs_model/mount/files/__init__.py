# SPDX-License-Identifier: GPL-2.0-only
"""File data: pages, extents, writeback.

Follows ``file.c``, ``reflink.c``, ``compression.c``, the truncation in ``inode-item.c``, and of
``inode.c`` the writeback, from ``btrfs_run_delalloc_range()`` on.
"""
