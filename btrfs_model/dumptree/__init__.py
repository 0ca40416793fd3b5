# SPDX-License-Identifier: GPL-2.0-only
"""Trees for people and programs to read: as text, as lines of JSON, as a table in Parquet."""

from btrfs_model.dumptree.json_lines import dump_tree_json
from btrfs_model.dumptree.table import dump_tree_parquet
from btrfs_model.dumptree.text import dump_blocks_text, dump_tree_text

__all__ = ["dump_blocks_text", "dump_tree_json", "dump_tree_parquet", "dump_tree_text"]
