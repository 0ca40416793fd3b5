# SPDX-License-Identifier: GPL-2.0-only
"""Every tree block of every tree, once.

Trees of snapshots share blocks, so the trees together are a forest whose blocks are met in many
ways. The walk goes down level by level from all roots at once and visits each block once, however
many trees it belongs to. That is also how references count: a block has one for each root item and
for each pointer *in a block*, not for each tree that it can be reached from.

Every copy of a block is verified. A block without a good copy is reported and not gone into.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.native.items import Columns, scan_leaves, verify_blocks
from btrfs_model.ondisk.keys import Key, ObjectId
from btrfs_model.ondisk.structs import HEADER, KEY_PTR
from btrfs_model.questions.check.report import Report
from btrfs_model.volume.image import Image
from btrfs_model.volume.roots import is_subvolume_id

_LEAVES_AT_ONCE = 512
# WRITTEN, and references of the kind "mixed" in the top byte
_HEADER_FLAGS = 1 << 0 | 1 << 56
_HEADER_RELOC = 1 << 1


class TreeRoot(NamedTuple):
    """A tree to walk.

    `tree`: its objectid.
    `bytenr`, `generation`, `level`: of the root block.
    `is_log`: whether it is a log: its blocks have no extent items and are of the next transaction.
    `progress`: of a subvolume that is being deleted: everything before has been freed.
    """

    tree: int
    bytenr: int
    generation: int
    level: int
    is_log: bool = False
    progress: Key | None = None


class BlockInfo(NamedTuple):
    """A block of the forest.

    `logical`, `generation`, `owner`, `level`: as in its header.
    `tree`: the tree it was met in first.
    `is_log`: whether it is part of a log.
    """

    logical: int
    generation: int
    owner: int
    level: int
    tree: int
    is_log: bool


@dataclass
class Forest:
    """The blocks of an image.

    `roots`: where the walk began.
    `blocks`: all readable blocks by logical address.
    `pointers`: (child, parent) for each pointer in a node; logical addresses.
    `broken`: whether some tree cannot be read as a whole, so that what follows from all is unknown.
    """

    roots: list[TreeRoot] = field(default_factory=list)
    blocks: dict[int, BlockInfo] = field(default_factory=dict)
    pointers: list[tuple[int, int]] = field(default_factory=list)
    broken: bool = False

    def leaves(self, *, log: bool = False) -> npt.NDArray[np.uint64]:
        """Return the logical addresses of all leaves, ascending; of logs or of all other trees."""
        found = (b.logical for b in self.blocks.values() if not b.level and b.is_log == log)
        return np.array(sorted(found), np.uint64)


class _Pointer(NamedTuple):
    """A block to visit, as its parent or root item describes it."""

    logical: int
    generation: int
    level: int
    tree: int
    is_log: bool
    parent: int
    slot: int
    progress: Key | None


def walk_forest(image: Image, roots: Iterable[TreeRoot], report: Report) -> Forest:
    """Visit every block reachable from `roots`, verify all copies and how blocks fit together."""
    return _Walk(image, report).run(list(roots))


class _Walk:
    def __init__(self, image: Image, report: Report) -> None:
        self.image = image
        self.report = report
        self.forest = Forest()
        self.superblock = image.superblock
        # first key of each block, and for nodes the children with their keys
        self.first: dict[int, Key | None] = {}
        self.last: dict[int, Key | None] = {}
        self.children: dict[int, list[tuple[int, Key]]] = {}

    def run(self, roots: list[TreeRoot]) -> Forest:
        self.forest.roots = roots
        batch = [
            _Pointer(root.bytenr, root.generation, root.level, root.tree, root.is_log, 0, 0,
                     root.progress)
            for root in sorted(roots, key=lambda root: root.progress is not None)
        ]  # fmt: skip
        while batch:
            batch = self._visit(batch)
        self._scan_leaf_keys()
        self._check_keys()
        return self.forest

    def _visit(self, batch: list[_Pointer]) -> list[_Pointer]:
        """Visit the blocks of a batch that are new; return the pointers in them."""
        new: dict[int, _Pointer] = {}
        for pointer in batch:
            if pointer.parent:
                self.forest.pointers.append((pointer.logical, pointer.parent))
            known = self.forest.blocks.get(pointer.logical)
            other = new.get(pointer.logical)
            if known is not None:
                self._compare(pointer, known.generation, known.level)
            elif other is not None:
                self._compare(pointer, other.generation, other.level)
            elif pointer.logical not in self.first:
                new[pointer.logical] = pointer
        pointers: list[_Pointer] = []
        for pointer in self._readable(list(new.values())):
            block = self.image.block(pointer.logical)
            header = HEADER.unpack(block)
            self._check_header(pointer, header.owner, header.generation, header.flags)
            self.forest.blocks[pointer.logical] = BlockInfo(
                pointer.logical,
                header.generation,
                header.owner,
                header.level,
                pointer.tree,
                pointer.is_log,
            )
            if header.level:
                pointers += self._pointers(pointer, block, header.nritems, header.level)
        return pointers

    def _compare(self, pointer: _Pointer, generation: int, level: int) -> None:
        if (pointer.generation, pointer.level) != (generation, level):
            self.forest.broken = True
            self.report.add(
                "pointer says generation {generation}, level {level}, another one {others}",
                tree=pointer.tree,
                block=pointer.parent or pointer.logical,
                slot=pointer.slot,
                generation=pointer.generation,
                level=pointer.level,
                others=f"{generation}, {level}",
            )

    def _readable(self, batch: list[_Pointer]) -> list[_Pointer]:
        """Verify all copies of the blocks; return those that have a good one."""
        rows = [(p.logical, p.generation, p.level, p.tree) for p in batch]
        chunks = [self.image.chunk_at(p.logical) for p in batch]
        good = [False] * len(batch)
        faults: list[tuple[int, int, Any]] = []
        placed = [chunk.placed if chunk else 1 for chunk in chunks]
        copies = [chunk.copies if chunk else 1 for chunk in chunks]
        for copy in range(max(copies, default=0)):
            # what parity makes is looked at where nothing else is good
            there = [
                row
                for row in range(len(batch))
                if copy < placed[row] or (copy < copies[row] and not good[row])
            ]
            # by address, so that blocks beside each other are copied beside each other
            there.sort(key=lambda row: rows[row][0])
            bad = {
                there[number]: fault
                for number, fault in verify_blocks(self.image, [rows[r] for r in there], copy)
            }
            for row in there:
                good[row] |= row not in bad
            faults += [(row, copy, fault) for row, fault in bad.items() if copy < placed[row]]
        for row, copy, fault in sorted(faults, key=lambda fault: fault[:2]):
            if fault.code != Code.NO_DEVICE or not good[row]:
                self.report.add_fault(f"copy {copy} of the block: ", fault)
            if not good[row]:
                self.forest.broken = True
                self.first[batch[row].logical] = None
        return [pointer for row, pointer in enumerate(batch) if good[row]]

    def _check_header(self, pointer: _Pointer, owner: int, generation: int, flags: int) -> None:
        newest = self.superblock.generation + (1 if pointer.is_log else 0)
        place: dict[str, Any] = {"tree": pointer.tree, "block": pointer.logical}
        if generation > newest:
            self.report.add(
                "block of generation {generation}, the superblock is of {newest}",
                **place,
                generation=generation,
                newest=newest,
            )
        if flags & ~_HEADER_RELOC != _HEADER_FLAGS:
            self.report.add(
                "header flags {flags:#x}, wanted {wanted:#x} (WRITTEN, MIXED)",
                **place,
                flags=flags,
                wanted=_HEADER_FLAGS,
            )
        if not _may_own(owner, pointer.tree):
            self.report.add("block is owned by tree {owner}", **place, owner=owner)

    def _pointers(
        self, pointer: _Pointer, block: memoryview, nritems: int, level: int
    ) -> list[_Pointer]:
        rows = np.frombuffer(block, KEY_PTR.dtype, nritems, HEADER.size)
        keys = [Key(*key) for key in rows["key"].tolist()]
        self.first[pointer.logical] = keys[0]
        children = rows["blockptr"].tolist()
        self.children[pointer.logical] = list(zip(children, keys, strict=True))
        # of a half deleted tree, the subtrees before `progress` are gone
        start = 0
        if pointer.progress is not None:
            start = max(sum(key <= pointer.progress for key in keys) - 1, 0)
            self.children[pointer.logical] = self.children[pointer.logical][start:]
        return [
            _Pointer(child, generation, level - 1, pointer.tree, pointer.is_log, pointer.logical,
                     slot, pointer.progress if slot == start else None)
            for slot, (child, generation) in enumerate(
                zip(children, rows["generation"].tolist(), strict=True)
            )
            if slot >= start
        ]  # fmt: skip

    # -------------------------------------------------------------------------------- keys --

    def _scan_leaf_keys(self) -> None:
        for columns in leaf_batches(self.image, self._leaves()):
            blocks, starts = np.unique(columns["block"], return_index=True)
            ends = np.append(starts, len(columns["block"]))[1:] - 1
            for block, first, last in zip(
                blocks.tolist(), _keys(columns, starts), _keys(columns, ends), strict=True
            ):
                self.first[block] = first
                self.last[block] = last

    def _leaves(self) -> npt.NDArray[np.uint64]:
        leaves = (b.logical for b in self.forest.blocks.values() if not b.level)
        return np.array(sorted(leaves), np.uint64)

    def _check_keys(self) -> None:
        """Check that a child begins with its pointer's key and ends before the next pointer's."""
        nodes = sorted(self.children, key=lambda logical: self.forest.blocks[logical].level)
        for node in nodes:
            children = self.children[node]
            info = self.forest.blocks[node]
            for number, (child, key) in enumerate(children):
                if child not in self.forest.blocks:
                    continue
                if self.first.get(child) != key:
                    self.forest.broken = True
                    self.report.add(
                        "first key of block {child} is {first}, the pointer's is {key_in_parent}",
                        tree=info.tree,
                        block=node,
                        slot=number,
                        child=child,
                        first=self.first.get(child),
                        key_in_parent=key,
                    )
                last = self.last.get(child)
                after = children[number + 1][1] if number + 1 < len(children) else None
                if last is not None and after is not None and last >= after:
                    self.forest.broken = True
                    self.report.add(
                        "last key {last} below block {child} is not before the next pointer's",
                        tree=info.tree,
                        block=node,
                        slot=number,
                        child=child,
                        last=last,
                    )
            self.last[node] = self.last.get(children[-1][0]) if children else None


def _may_own(owner: int, tree: int) -> bool:
    """Whether a block of `tree` may have this owner (``btrfs_check_eb_owner()``, Linux 6.12)."""
    if tree == ObjectId.TREE_RELOC or owner == ObjectId.TREE_RELOC:
        return is_subvolume_id(owner) or owner == ObjectId.TREE_RELOC
    if is_subvolume_id(tree):
        return is_subvolume_id(owner)
    return owner == tree


def _keys(columns: Columns, rows: npt.NDArray[np.intp]) -> Iterator[Key]:
    parts = (columns[name][rows].tolist() for name in ("objectid", "type", "offset"))
    return (Key(*key) for key in zip(*parts, strict=True))


def leaf_batches(image: Image, leaves: npt.NDArray[np.uint64]) -> Iterator[Columns]:
    """Scan leaves into columns, some at a time so that memory stays bounded."""
    for at in range(0, len(leaves), _LEAVES_AT_ONCE):
        yield scan_leaves(image, leaves[at : at + _LEAVES_AT_ONCE])
