# SPDX-License-Identifier: GPL-2.0-only
"""Root items, the names and UUIDs of subvolumes, and the backup roots of the superblock.

Follows ``root-tree.c``, ``uuid-tree.c`` and ``backup_super_roots()`` of ``disk-io.c``.
"""
