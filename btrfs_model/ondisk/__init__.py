# SPDX-License-Identifier: GPL-2.0-only
"""The on-disk formats: keys, structures, items, superblock, chunks, hashes, send streams."""
