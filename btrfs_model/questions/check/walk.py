# SPDX-License-Identifier: GPL-2.0-only
"""Every tree block of every tree, once.

Trees of snapshots share blocks, so the trees together are a forest whose blocks are met in many
ways. The walk goes down level by level from all roots at once and visits each block once, however
many trees it belongs to. That is also how references count: a block has one for each root item and
for each pointer *in a block*, not for each tree that it can be reached from.

Every copy of a block is verified. A block without a good copy is reported and not gone into.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import Fault
from btrfs_model.native.items import (
    BLOCK,
    WANTED,
    describe_blocks,
    find_rows,
    good_copies,
    is_among,
    verify_blocks,
)
from btrfs_model.ondisk.keys import Key, ObjectId
from btrfs_model.ondisk.structs import HEADER, KEY_PTR
from btrfs_model.questions.check.report import Report
from btrfs_model.volume.image import Image
from btrfs_model.volume.roots import is_subvolume_id, may_be_relocated

LEAVES_AT_ONCE: Final = 512
_ALONE: Final = 64
"""Blocks for which no thread is started."""
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


@dataclass
class Forest:
    """The blocks of an image.

    `roots`: where the walk began.
    `blocks` (numpy.ndarray): all readable blocks, rows of :data:`btrfs_model.native.items.BLOCK`,
    in the order in which they were met.
    `tree` (numpy.ndarray): uint64, the tree that each was met in first.
    `is_log` (numpy.ndarray): bool, whether it is part of a log.
    `pointers` (numpy.ndarray): uint64, shape (pointers, 2): child and parent, logical addresses.
    `broken`: whether some tree cannot be read as a whole, so that what follows from all is unknown.
    """

    roots: list[TreeRoot]
    blocks: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, BLOCK))
    tree: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    is_log: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    pointers: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    broken: bool = False

    def add(self, pointers: Rows, blocks: Rows) -> None:
        """Add blocks, with the pointers by which they were met."""
        self.blocks = np.concatenate([self.blocks, blocks])
        self.tree = np.concatenate([self.tree, pointers["tree"]])
        self.is_log = np.concatenate([self.is_log, pointers["is_log"]])
        order = np.argsort(self.blocks["logical"])
        self._order, self._sorted = order, self.blocks["logical"][order]

    def find(self, logical: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Return the row of each block, -1 for none."""
        if not len(self.blocks):
            return np.full(len(logical), -1)
        row = find_rows(self._sorted, logical)
        return np.where(row < 0, -1, self._order[row])

    def leaves(self, *, log: bool = False) -> npt.NDArray[np.intp]:
        """Return the rows of all leaves by address; of logs or of all other trees."""
        wanted = (self.blocks["level"] == 0) & (self.is_log == log)
        rows: npt.NDArray[np.intp] = self._order[wanted[self._order]]
        return rows


Rows = npt.NDArray[np.void]

# A block to visit, as its parent or root item describes it; `progress` is a row of those, or -1.
_POINTER = np.dtype([
    ("logical", "u8"), ("generation", "u8"), ("tree", "u8"), ("level", "i4"), ("is_log", "?"),
    ("parent", "u8"), ("slot", "u4"), ("progress", "i4"),
])  # fmt: skip
_CHILD = np.dtype(
    [("node", "i8"), ("number", "u4"), ("logical", "u8"), ("key", KEY_PTR.dtype["key"])]
)


def walk_forest(image: Image, roots: Iterable[TreeRoot], report: Report) -> Forest:
    """Visit every block reachable from `roots`, verify all copies and how blocks fit together."""
    return _Walk(image, report, list(roots)).run()


class _Walk:
    def __init__(self, image: Image, report: Report, roots: list[TreeRoot]) -> None:
        self.image = image
        self.report = report
        self.forest = Forest(roots)
        self.newest = image.superblock.generation
        # of subvolumes that are being deleted, everything before has been freed
        self.progress = [root.progress for root in roots]
        self.bad = np.empty(0, np.uint64)
        self.children: list[Rows] = []
        self.map = np.array(
            [(chunk.logical, chunk.end, chunk.placed, chunk.copies) for chunk in image.mapped],
            [("start", "u8"), ("end", "u8"), ("placed", "i4"), ("copies", "i4")],
        )

    def run(self) -> Forest:
        batch = np.array(
            [
                (root.bytenr, root.generation, root.tree, root.level, root.is_log, 0, 0,
                 -1 if root.progress is None else number)
                for number, root in enumerate(self.forest.roots)
            ],
            _POINTER,
        )  # fmt: skip
        batch = batch[np.argsort(batch["progress"] >= 0, kind="stable")]
        while len(batch):
            batch = self._visit(batch)
        self._check_keys()
        return self.forest

    def _visit(self, batch: Rows) -> Rows:
        """Visit the blocks of a batch that are new; return the pointers in them."""
        forest = self.forest
        pairs = np.stack([batch["logical"], batch["parent"]], axis=1)
        forest.pointers = np.concatenate([forest.pointers, pairs[batch["parent"] != 0]])
        known = forest.find(batch["logical"])
        _, first, inverse = np.unique(batch["logical"], return_index=True, return_inverse=True)
        others = batch[first[inverse]][["generation", "level"]]
        for name in ("generation", "level"):
            others[name][known >= 0] = forest.blocks[name][known[known >= 0]]
        is_new = ~is_among(batch["logical"], self.bad)
        self._compare(batch[is_new], others[is_new])
        is_new &= known < 0
        is_new[is_new] = (first[inverse] == np.arange(len(batch)))[is_new]
        todo = batch[is_new]
        pointers = todo[self._readable(todo)]
        blocks = describe_blocks(self.image, np.ascontiguousarray(pointers["logical"]))
        self._check_headers(pointers, blocks)
        before = len(forest.blocks)
        forest.add(pointers, blocks)
        nodes = np.flatnonzero(blocks["level"]).tolist()
        found = [self._pointers(pointers[row], blocks[row], before + row) for row in nodes]
        return np.concatenate([np.empty(0, _POINTER), *found])

    def _compare(self, batch: Rows, others: Rows) -> None:
        differ = batch["generation"] != others["generation"]
        differ |= batch["level"] != others["level"]
        for pointer, other in zip(batch[differ], others[differ], strict=True):
            self.forest.broken = True
            self.report.add(
                "pointer says generation {generation}, level {level}, another one {others}",
                tree=int(pointer["tree"]),
                block=int(pointer["parent"] or pointer["logical"]),
                slot=int(pointer["slot"]),
                generation=pointer["generation"],
                level=pointer["level"],
                others=f"{other['generation']}, {other['level']}",
            )

    def _readable(self, batch: Rows) -> npt.NDArray[np.bool_]:
        """Verify all copies of the blocks; return which have a good one."""
        wanted = np.zeros(len(batch), WANTED)
        for name in ("logical", "generation", "tree", "level"):
            wanted[name] = batch[name]
        row = np.searchsorted(self.map["start"], wanted["logical"], "right") - 1
        outside = (row < 0) | (wanted["logical"] >= self.map["end"][row])
        placed, copies = (
            np.where(outside, 1, self.map[name][row]) for name in ("placed", "copies")
        )
        good = np.zeros(len(batch), np.bool_)
        faults: list[tuple[int, int, Fault]] = []
        # by address, so that blocks beside each other are copied beside each other
        order = np.argsort(wanted["logical"], kind="stable")
        others = _OtherCopies(self.image, wanted[order], int(placed.max(initial=0)))
        for copy in range(int(copies.max(initial=0))):
            # what parity makes is looked at where nothing else is good
            exists = (copy < placed) | ((copy < copies) & ~good)
            known = others.good(copy)
            good[order[known]] = True
            there = order[exists[order] & ~known]
            bad = {
                int(there[number]): fault
                for number, fault in verify_blocks(self.image, wanted[there], copy)
            }
            good[there] |= ~is_among(there, list(bad))
            faults += [(row, copy, fault) for row, fault in bad.items() if copy < placed[row]]
        for number, copy, fault in sorted(faults, key=lambda fault: fault[:2]):
            if fault.code != Code.NO_DEVICE or not good[number]:
                self.report.add_fault(f"copy {copy} of the block: ", fault)
        if not good.all():
            self.forest.broken = True
            self.bad = np.concatenate([self.bad, batch["logical"][~good]])
        return good

    def _check_headers(self, pointers: Rows, blocks: Rows) -> None:
        newest = np.full(len(blocks), self.newest, np.uint64)
        newest[pointers["is_log"] & (newest < np.uint64(2**64 - 1))] += np.uint64(1)
        newer = blocks["generation"] > newest
        odd = blocks["flags"] & np.uint64(2**64 - 1 - _HEADER_RELOC) != _HEADER_FLAGS
        pairs, inverse = np.unique(
            np.stack([blocks["owner"], pointers["tree"]], axis=1), axis=0, return_inverse=True
        )
        foreign = np.array([not _may_own(*pair) for pair in pairs.tolist()], np.bool_)
        foreign = foreign[inverse.reshape(-1)]
        for row in np.flatnonzero(newer | odd | foreign).tolist():
            place: dict[str, Any] = {
                "tree": int(pointers["tree"][row]), "block": int(pointers["logical"][row]),
            }  # fmt: skip
            if newer[row]:
                self.report.add(
                    "block of generation {generation}, the superblock is of {newest}",
                    **place,
                    generation=blocks["generation"][row],
                    newest=newest[row],
                )
            if odd[row]:
                self.report.add(
                    "header flags {flags:#x}, wanted {wanted:#x} (WRITTEN, MIXED)",
                    **place,
                    flags=int(blocks["flags"][row]),
                    wanted=_HEADER_FLAGS,
                )
            if foreign[row]:
                self.report.add(
                    "block is owned by tree {owner}", **place, owner=blocks["owner"][row]
                )

    def _pointers(self, pointer: Any, node: Any, number: int) -> Rows:
        """Return the pointers in a node, which has this number in the forest."""
        block = self.image.block(int(pointer["logical"]))
        rows = np.frombuffer(block, KEY_PTR.dtype, int(node["nritems"]), HEADER.size)
        # of a half deleted tree, the subtrees before `progress` are gone
        start = 0
        if pointer["progress"] >= 0:
            progress = self.progress[pointer["progress"]]
            keys = [Key(*key) for key in rows["key"].tolist()]
            start = max(sum(key <= progress for key in keys) - 1, 0)
        children, found = np.empty(len(rows), _CHILD), np.zeros(len(rows), _POINTER)
        children["node"], children["number"] = number, np.arange(len(rows)) - start
        children["logical"] = found["logical"] = rows["blockptr"]
        children["key"] = rows["key"]
        self.children.append(children[start:])
        for name in ("tree", "is_log"):
            found[name] = pointer[name]
        found["generation"], found["level"] = rows["generation"], node["level"] - 1
        found["parent"], found["slot"] = pointer["logical"], np.arange(len(rows))
        found["progress"] = -1
        found["progress"][start] = pointer["progress"]
        return found[start:]

    # -------------------------------------------------------------------------------- keys --

    def _check_keys(self) -> None:
        """Check that a child begins with its pointer's key and ends before the next pointer's."""
        blocks = self.forest.blocks
        has_first = blocks["nritems"] > 0
        has_last, last = has_first.copy(), blocks["last"].copy()
        children = np.concatenate([np.empty(0, _CHILD), *self.children])
        levels = blocks["level"][children["node"]]
        for level in np.flatnonzero(np.bincount(levels)).tolist():
            here = children[levels == level]
            row = self.forest.find(here["logical"])
            there = row >= 0
            is_last = np.append(here["node"][1:] != here["node"][:-1], True)
            begins = has_first[row] & _same_keys(blocks["first"][row], here["key"])
            ends = is_last | ~has_last[row] | _keys_before(last[row], np.roll(here["key"], -1))
            for number in np.flatnonzero(there & ~(begins & ends)).tolist():
                self._report_keys(here[number], row[number], begins[number], last, ends[number])
            # a node ends where its last child does
            node, of = here["node"][is_last], row[is_last]
            has_last[node] = has_last[of] & there[is_last]
            last[node] = last[of]

    def _report_keys(self, child: Any, row: int, begins: bool, last: Rows, ends: bool) -> None:
        blocks = self.forest.blocks
        place: dict[str, Any] = {
            "tree": int(self.forest.tree[child["node"]]),
            "block": int(blocks["logical"][child["node"]]),
            "slot": int(child["number"]),
            "child": child["logical"],
        }
        self.forest.broken = True
        if not begins:
            self.report.add(
                "first key of block {child} is {first}, the pointer's is {key_in_parent}",
                **place,
                first=_key(blocks["first"][row]) if blocks["nritems"][row] else None,
                key_in_parent=_key(child["key"]),
            )
        if not ends:
            self.report.add(
                "last key {last} below block {child} is not before the next pointer's",
                **place,
                last=_key(last[row]),
            )


class _OtherCopies:
    """Copies of blocks beyond the first; of many each is verified by a thread of its own."""

    def __init__(self, image: Image, wanted: Rows, copies: int) -> None:
        self._good = np.zeros((copies, len(wanted)), np.uint8)
        if len(wanted) < _ALONE:
            for copy in range(1, copies):
                good_copies(image, wanted, copy, self._good[copy])
            copies = 0
        self._threads = [
            threading.Thread(target=good_copies, args=(image, wanted, copy, self._good[copy]))
            for copy in range(1, copies)
        ]
        for thread in self._threads:
            thread.start()

    def good(self, copy: int) -> npt.NDArray[np.bool_]:
        """Return which blocks have this copy, and it is good; they need no second look."""
        if not 0 < copy < len(self._good):
            return np.zeros(self._good.shape[1], np.bool_)
        for thread in self._threads[copy - 1 : copy]:
            thread.join()
        good: npt.NDArray[np.bool_] = self._good[copy] != 0
        return good


def _key(row: Any) -> Key:
    return Key(int(row["objectid"]), int(row["type"]), int(row["offset"]))


def _same_keys(left: Rows, right: Rows) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = left["objectid"] == right["objectid"]
    for name in ("type", "offset"):
        same &= left[name] == right[name]
    return same


def _keys_before(left: Rows, right: Rows) -> npt.NDArray[np.bool_]:
    before = np.zeros(len(left), np.bool_)
    for name in ("offset", "type", "objectid"):
        before &= left[name] == right[name]
        before |= left[name] < right[name]
    return before


def _may_own(owner: int, tree: int) -> bool:
    """Whether a block of `tree` may have this owner (``btrfs_check_eb_owner()``, Linux 6.12)."""
    if tree == ObjectId.TREE_RELOC or owner == ObjectId.TREE_RELOC:
        return may_be_relocated(owner) or owner == ObjectId.TREE_RELOC
    if is_subvolume_id(tree):
        return is_subvolume_id(owner)
    return owner == tree
