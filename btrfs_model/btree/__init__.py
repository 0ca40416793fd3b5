# SPDX-License-Identifier: GPL-2.0-only
"""B-trees: search, iterate, scan into columns, walk blocks, compare."""

from btrfs_model.btree.compare import Change, Difference, compare_trees
from btrfs_model.btree.tree import Block, Item, Reada, Tree

__all__ = ["Block", "Change", "Difference", "Item", "Reada", "Tree", "compare_trees"]
