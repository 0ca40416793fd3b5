# SPDX-License-Identifier: GPL-2.0-only
"""Comparison of two trees; :mod:`btrfs_model.reference.compare` tells how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from btrfs_model.native import tree as native
from btrfs_model.native.choice import twin
from btrfs_model.reference.compare import Change, Difference

if TYPE_CHECKING:
    from btrfs_model.volume.tree import Tree


@twin("reference.compare:compare_trees")
def compare_trees(left: Tree, right: Tree) -> Iterator[Difference]:
    """Iterate over the differences of two trees of one image, in key order.

    `left`, `right`: for send: the snapshot sent and its parent.
    Yields differences, SAME ones included, as the kernel reports them to its callback.
    Raises CorruptImageError: when a block of either tree cannot be read.
    """
    for change, key, *places in native.compare_trees(left.root, right.root):
        yield Difference.of(Change(change), key, *places)
