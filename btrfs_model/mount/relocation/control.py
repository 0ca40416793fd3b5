# SPDX-License-Identifier: GPL-2.0-only
"""The state of a relocation (``struct reloc_control``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from btrfs_model.mount.roots.reloc_root import RelocRoot
from btrfs_model.native.space import GroupState


@dataclass(slots=True, eq=False)
class Node:
    """A tree block that is to move, or one above it (``struct btrfs_backref_node``).

    `bytenr`, `level`: where it was in the last commit.
    `upper`: the nodes that point at it.
    `root`: of the root of a tree, the subvolume, or its tree of relocation.
    `copy`: the block that takes its place, while not all who refer to it know of that; 0: none.
    `pending`: whether such remain.
    `processed`: whether all is done.
    """

    bytenr: int
    level: int
    upper: list[Node] = field(default_factory=list)
    root: int | RelocRoot | None = None
    copy: int = 0
    pending: bool = False
    processed: bool = False


@dataclass(slots=True)
class Control:
    """What a relocation knows.

    `group`: the block group.
    `ino`: the inode that the data move into, in the tree of data relocation.
    `moved`: new addresses and sizes of data extents, by the old addresses.
    `updating`: whether file extent items are told of these (stage UPDATE_DATA_PTRS).
    `at`: where the search for the next extent goes on.
    `nodes`: by address; `transid`: the transaction that they are of.
    `path`: by level, the nodes from the one that moves up to its root.
    `pending`: by level, those whose copy not all know of.
    `done`: addresses of blocks that are dealt with.
    """

    group: GroupState
    ino: int
    moved: dict[int, tuple[int, int]] = field(default_factory=dict)
    updating: bool = False
    at: int = 0
    nodes: dict[int, Node] = field(default_factory=dict)
    transid: int = 0
    path: dict[int, Node] = field(default_factory=dict)
    pending: dict[int, list[Node]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def holds(self, bytenr: int) -> bool:
        """Whether an address is in the block group."""
        return 0 <= bytenr - self.group.start < self.group.length

    def mark_processed(self, node: Node) -> None:
        """Say that a block is dealt with (``mark_block_processed()``)."""
        if node.level == 0 or self.holds(node.bytenr):
            self.done.add(node.bytenr)
        node.processed = True
