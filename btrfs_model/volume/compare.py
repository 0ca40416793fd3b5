# SPDX-License-Identifier: GPL-2.0-only
"""Comparison of two trees; :mod:`btrfs_model.reference.compare` tells how."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Self

from btrfs_model.native import tree as native
from btrfs_model.native.choice import twin
from btrfs_model.ondisk.keys import Key

if TYPE_CHECKING:
    from btrfs_model.volume.tree import Item, Tree

Place = tuple[int, int]


class Change(IntEnum):
    """What a comparison says of a key; SAME where equal items lie in leaves that are not shared."""

    NEW = 0
    DELETED = 1
    CHANGED = 2
    SAME = 3


class Difference(NamedTuple):
    """A key that one tree or both have outside of shared subtrees.

    `change`: NEW: only the left tree has it; DELETED: only the right.
    `key`: objectid, type, offset.
    `left`, `right`: address of the leaf and slot in it, on each side.
    """

    change: Change
    key: Key
    left: Place | None
    right: Place | None

    @classmethod
    def of(cls, change: Change, key: tuple[int, int, int], left: Place, right: Place) -> Self:
        """Leave out the side that does not have the key."""
        return cls(
            change,
            Key(*key),
            None if change == Change.DELETED else left,
            None if change == Change.NEW else right,
        )


@twin("reference.compare:compare_trees")
def compare_trees(left: Tree, right: Tree) -> Iterator[Difference]:
    """Iterate over the differences of two trees of one image, in key order.

    `left`, `right`: for send: the snapshot sent and its parent.
    Yields differences, SAME ones included, as the kernel reports them to its callback.
    Raises CorruptImageError: when a block of either tree cannot be read.
    """
    for change, key, *places in native.compare_trees(left.root, right.root):
        yield Difference.of(Change(change), key, *places)


def side_by_side(left: Tree, right: Tree) -> Iterator[tuple[Item | None, Item | None]]:
    """Yield the items of two trees of any images in key order, those of one key together.

    Raises CorruptImageError: when a block of either tree cannot be read.
    """
    ours, theirs = iter(left.items()), iter(right.items())
    here, there = next(ours, None), next(theirs, None)
    while here is not None or there is not None:
        if there is None or (here is not None and here.key < there.key):
            yield here, None
            here = next(ours, None)
        elif here is None or there.key < here.key:
            yield None, there
            there = next(theirs, None)
        else:
            yield here, there
            here, there = next(ours, None), next(theirs, None)
