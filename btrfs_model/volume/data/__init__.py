# SPDX-License-Identifier: GPL-2.0-only
"""File data: from the file extents of an inode to its bytes, which are checked and decompressed."""
