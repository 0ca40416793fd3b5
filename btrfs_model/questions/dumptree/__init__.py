# SPDX-License-Identifier: GPL-2.0-only
"""Trees for people and programs to read: as text, as lines of JSON, as a table in Parquet.

The text is that of ``btrfs inspect-internal dump-tree`` (btrfs-progs 6.2).
"""
