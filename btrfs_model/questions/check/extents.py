# SPDX-License-Identifier: GPL-2.0-only
"""References: does the extent tree say of each extent what the other trees do with it.

Each block of the forest makes references by being there (:mod:`btrfs_model.questions.check.walk`):
a node to its children, a leaf of file extents to their data. Of whom they are is decided by the
block alone:

    block P without FULL_BACKREF   TREE_BLOCK_REF (owner of P)   EXTENT_DATA_REF (owner of P, ...)
    block P with FULL_BACKREF      SHARED_BLOCK_REF (P)          SHARED_DATA_REF (P)

and the root of a tree has a TREE_BLOCK_REF of that tree. Both sides are brought into one form, a
row (bytenr, type, root or parent, objectid, offset) with a count, and compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.errors import CorruptImageError
from btrfs_model.native.items import (
    Columns,
    extent_refs,
    find_rows,
    is_among,
    is_one_of,
    records,
    select,
)
from btrfs_model.ondisk.constants import ExtentFlag
from btrfs_model.ondisk.keys import ItemType, ObjectId, item_type_name
from btrfs_model.ondisk.structs import EXTENT_ITEM, TREE_BLOCK_INFO
from btrfs_model.questions.check.report import Report
from btrfs_model.questions.check.walk import Forest
from btrfs_model.volume.ctree import block_key, nritems
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree

Mask = npt.NDArray[np.bool_]

_U64 = np.uint64
_EXTENT_TYPES: Final = (ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM)
_REF_TYPES: Final = (
    ItemType.TREE_BLOCK_REF,
    ItemType.EXTENT_DATA_REF,
    ItemType.SHARED_BLOCK_REF,
    ItemType.SHARED_DATA_REF,
)
_REF_FIELDS: Final = ("bytenr", "type", "root", "objectid", "offset")


Numbers = npt.NDArray[np.uint64]
Table = Sequence[Numbers]
"""Columns, each of them contiguous; of file extents on disk the fields of
:data:`btrfs_model.native.items.DATA_EXTENT`."""


@dataclass
class Extents:
    """The extent tree in arrays, ascending by address.

    `columns`: the EXTENT_ITEM and METADATA_ITEM items.
    `start`, `length`, `refs`, `generation`, `flags`, `level`: of each; `length` in bytes, `level`
    of tree blocks only.
    `references`: all references, inline and keyed, as of
    :func:`btrfs_model.native.items.extent_refs`.
    `reference_columns`: the items that the references are in.
    """

    columns: Columns
    start: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint64]
    refs: npt.NDArray[np.uint64]
    generation: npt.NDArray[np.uint64]
    flags: npt.NDArray[np.uint64]
    level: npt.NDArray[np.uint64]
    references: npt.NDArray[np.void]
    reference_columns: Columns

    @property
    def end(self) -> npt.NDArray[np.uint64]:
        """First address after each."""
        return self.start + self.length

    @property
    def is_data(self) -> npt.NDArray[np.bool_]:
        """Which hold data; the others are tree blocks."""
        mask: Mask = self.flags & _U64(ExtentFlag.DATA) != 0
        return mask

    def find(self, bytenr: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Return the row of the extent that starts at each address, -1 for none."""
        return find_rows(self.start, bytenr)


def read_extents(image: Image, tree: Tree) -> Extents:
    """Read the extent tree."""
    all_columns = tree.scan()
    with_refs = select(all_columns, is_one_of(all_columns["type"], (*_EXTENT_TYPES, *_REF_TYPES)))
    references, _ = extent_refs(image, with_refs)
    is_extent = is_one_of(with_refs["type"], _EXTENT_TYPES) & (
        with_refs["size"] >= EXTENT_ITEM.size
    )
    columns = select(with_refs, is_extent)
    rows = records(image, columns, EXTENT_ITEM)
    metadata = columns["type"] == ItemType.METADATA_ITEM
    level = np.where(metadata, columns["offset"], _U64(0))
    full = ~metadata & (rows["flags"] & _U64(ExtentFlag.TREE_BLOCK) != 0)
    if full.any():
        # an EXTENT_ITEM of a tree block has the level behind its first key
        behind = select(columns, full)
        behind["position"] = behind["position"] + _U64(EXTENT_ITEM.size)
        behind["size"] = behind["size"] - np.minimum(behind["size"], EXTENT_ITEM.size)
        level[full] = records(image, behind, TREE_BLOCK_INFO)["level"]
    return Extents(
        columns,
        columns["objectid"],
        np.where(metadata, _U64(image.nodesize), columns["offset"]),
        rows["refs"],
        rows["generation"],
        rows["flags"],
        level,
        references,
        with_refs,
    )


def check_extents(
    image: Image, extents: Extents, forest: Forest, data: Table, report: Report
) -> None:
    """Compare the extent tree with what the blocks of the forest refer to."""
    _check_counts(extents, report)
    _check_overlap(extents, forest, image.nodesize, report)
    _check_blocks(image, extents, forest, report)
    _check_data(extents, data, report)
    expected = _Expected(extents, forest)
    expected.add_roots()
    expected.add_pointers()
    expected.add_data(data)
    _compare(extents, expected.table(), report)


def _check_counts(extents: Extents, report: Report) -> None:
    """Check that the references of an extent are as many as its item says."""
    row = extents.find(extents.references["bytenr"])
    lost = row < 0
    if lost.any():
        items = np.unique(extents.references["item"][lost])
        tree = int(ObjectId.EXTENT_TREE)
        report.rows("reference of no extent", extents.reference_columns, items, tree)
    total = np.bincount(
        row[~lost], extents.references["count"][~lost], minlength=len(extents.start)
    ).astype(_U64)
    report.rows(
        "extent says {says} references, there are {found}",
        extents.columns,
        total != extents.refs,
        int(ObjectId.EXTENT_TREE),
        says=extents.refs,
        found=total,
    )


def _check_overlap(extents: Extents, forest: Forest, nodesize: int, report: Report) -> None:
    """Check that extents do not overlap, nor blocks of logs with them."""
    over = np.flatnonzero(extents.start[1:] < extents.end[:-1]) + 1
    tree = int(ObjectId.EXTENT_TREE)
    report.rows("extent begins inside the one before", extents.columns, over, tree)
    if not len(extents.start):
        return
    for row in np.flatnonzero(forest.is_log).tolist():
        logical = int(forest.blocks["logical"][row])
        before = int(np.searchsorted(extents.start, _U64(logical + nodesize))) - 1
        if before >= 0 and int(extents.end[before]) > logical:
            report.add(
                "block of a log lies in the extent at {start}",
                tree=int(forest.tree[row]),
                block=logical,
                start=int(extents.start[before]),
            )


def _check_blocks(image: Image, extents: Extents, forest: Forest, report: Report) -> None:
    """Check that each tree block has an extent item of its level and generation."""
    blocks, trees = forest.blocks[~forest.is_log], forest.tree[~forest.is_log]
    rows = extents.find(blocks["logical"])
    if not len(extents.start):
        report.add("there are no extents", tree=int(ObjectId.EXTENT_TREE))
        return
    levels, generations = extents.level[rows], extents.generation[rows]
    is_data = extents.is_data[rows]
    wrong = (levels != blocks["level"].astype(_U64)) | (generations != blocks["generation"])
    for number in np.flatnonzero((rows < 0) | wrong | is_data).tolist():
        block = blocks[number]
        place: dict[str, Any] = {"tree": int(trees[number]), "block": int(block["logical"])}
        if rows[number] < 0:
            report.add("block has no extent item", **place)
            continue
        found = f"level {levels[number]}, generation {generations[number]}"
        report.add(
            "block of level {level}, generation {generation}; its extent item says {found}",
            **place,
            level=block["level"],
            generation=block["generation"],
            found="data" if is_data[number] else found,
        )
    _check_owners(image, extents, forest, rows, report)
    if forest.broken:
        return
    unused = ~extents.is_data & ~is_among(extents.start, blocks["logical"])
    tree = int(ObjectId.EXTENT_TREE)
    report.rows("extent of a tree block that no tree has", extents.columns, unused, tree)


def _check_owners(
    image: Image,
    extents: Extents,
    forest: Forest,
    rows: npt.NDArray[np.intp],
    report: Report,
) -> None:
    """Check that the owner of a block has it, unless the block lost its owner (FULL_BACKREF).

    A reference by the tree says so, or the tree itself: once a balance has moved the node above,
    that node refers to the block by its own address.
    """
    references = extents.references
    by_root = references[references["type"] == ItemType.TREE_BLOCK_REF]
    pairs = [by_root["bytenr"], by_root["root"]]
    blocks, trees = forest.blocks[~forest.is_log], forest.tree[~forest.is_log]
    owners = [blocks["logical"], blocks["owner"]]
    full = extents.flags[rows] & _U64(ExtentFlag.FULL_BACKREF) != 0
    foreign = (rows >= 0) & ~full & ~is_among(_mix(owners), _mix(pairs))
    by_id = {
        root.tree: Tree(image, root.tree, root.bytenr, root.generation, root.level)
        for root in forest.roots
        if not root.is_log
    }
    for number in np.flatnonzero(foreign).tolist():
        logical, owner = int(blocks["logical"][number]), int(blocks["owner"][number])
        if _leads_to(image, by_id.get(owner), logical, int(blocks["level"][number])):
            continue
        report.add(
            "block is owned by tree {owner}, which does not refer to it",
            tree=int(trees[number]),
            block=logical,
            owner=owner,
        )


def _leads_to(image: Image, tree: Tree | None, logical: int, level: int) -> bool:
    """Whether a search for the first key of a block in a tree comes to it."""
    if tree is None or tree.level <= level:
        return False
    data = image.block(logical)
    if not nritems(data):
        return False
    try:
        return tree.child_at(block_key(data, 0), level) == logical
    except CorruptImageError:
        # what a tree that is being freed still points at may be gone
        return True


def _check_data(extents: Extents, data: Table, report: Report) -> None:
    """Check that file extents name whole extents of data."""
    block, inode, offset, bytenr, length = data
    row = extents.find(bytenr)
    columns: Columns = {
        "block": block,
        "slot": np.zeros(len(block), np.uint16),
        "objectid": inode,
        "type": np.full(len(block), ItemType.EXTENT_DATA, np.uint8),
        "offset": offset,
    }
    missing = row < 0
    report.rows(
        "file extent names {bytenr}, where there is no extent", columns, missing, 0, bytenr=bytenr
    )
    if not len(extents.start):
        return
    other = ~missing & ((extents.length[row] != length) | ~extents.is_data[row])
    report.rows(
        "file extent names {length} bytes at {bytenr}, the extent has {found}",
        columns,
        other,
        0,
        length=length,
        bytenr=bytenr,
        found=extents.length[row],
    )


class _Expected:
    """The references that the blocks of the forest make."""

    def __init__(self, extents: Extents, forest: Forest) -> None:
        self.extents = extents
        self.forest = forest
        self._parts: list[Table] = []

    def _shared(self, blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Whether each block's references are by its address."""
        row = self.extents.find(blocks)
        flags = self.extents.flags[row] if len(self.extents.flags) else np.zeros(len(row), _U64)
        shared: Mask = (row >= 0) & (flags & _U64(ExtentFlag.FULL_BACKREF) != 0)
        return shared

    def _owners(self, blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        owners: npt.NDArray[np.uint64] = self.forest.blocks["owner"][self.forest.find(blocks)]
        return owners

    def _add(self, *parts: Any) -> None:
        """Add rows of bytenr, type, root, objectid and offset."""
        # each by itself: signed and unsigned together would become floating point
        self._parts.append(np.broadcast_arrays(*(np.asarray(part).astype(_U64) for part in parts)))

    def add_roots(self) -> None:
        """Each root item refers to its root block."""
        for root in self.forest.roots:
            if root.is_log or self.forest.find(np.array([root.bytenr], _U64))[0] < 0:
                continue
            if root.tree == ObjectId.TREE_RELOC:
                # the parent of the root of a relocation tree is that root itself
                kind, of = ItemType.SHARED_BLOCK_REF, root.bytenr
            else:
                kind, of = ItemType.TREE_BLOCK_REF, root.tree
            self._add([root.bytenr], kind, of, 0, 0)

    def add_pointers(self) -> None:
        """Nodes refer to their children."""
        child, parent = self.forest.pointers.T
        of_trees = ~self.forest.is_log[self.forest.find(parent)]
        child, parent = child[of_trees], parent[of_trees]
        shared = self._shared(parent)
        self._add(
            child,
            np.where(shared, ItemType.SHARED_BLOCK_REF, ItemType.TREE_BLOCK_REF),
            np.where(shared, parent, self._owners(parent)),
            0,
            0,
        )

    def add_data(self, data: Table) -> None:
        """Leaves refer to the data of their files."""
        block, inode, offset, bytenr, _ = data
        shared = self._shared(block)
        self._add(
            bytenr,
            np.where(shared, ItemType.SHARED_DATA_REF, ItemType.EXTENT_DATA_REF),
            np.where(shared, block, self._owners(block)),
            np.where(shared, 0, inode),
            np.where(shared, 0, offset),
        )

    def table(self) -> Table:
        """All rows so far."""
        return [np.concatenate(column) for column in zip(*self._parts, strict=True)]


def _mix(table: Table) -> Numbers:
    """One number for each row: equal rows have equal numbers, others differ (as good as)."""
    mixed = np.zeros(len(table[0]), _U64)
    for column in table:
        mixed ^= column
        mixed *= _U64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> _U64(29)
        mixed *= _U64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> _U64(32)
    return mixed


def _sums(
    table: Table, counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    """Return the different rows' numbers, their counts, and where each row is first."""
    numbers, first, inverse = np.unique(_mix(table), return_index=True, return_inverse=True)
    total = np.bincount(inverse, counts, minlength=len(numbers)).astype(np.int64)
    return numbers, total, first


def _compare(extents: Extents, expected: Table, report: Report) -> None:
    """Report references that the extent tree has and the forest does not make, and the reverse."""
    references = extents.references[is_one_of(extents.references["type"], _REF_TYPES)]
    found = [references[field].astype(_U64) for field in _REF_FIELDS]
    # the same rows as often, if their numbers add up to the same
    if (_mix(found) * references["count"]).sum() == _mix(expected).sum():
        return
    has = _sums(found, references["count"].astype(np.int64))
    makes = _sums(expected, np.ones(len(expected[0]), np.int64))
    _report_missing(has, makes, found, report, "extent tree has {n} references {ref}, not {other}")
    # those that both know were compared from the other side
    only = ~is_among(makes[0], has[0])
    for row, count in zip(makes[2][only].tolist(), makes[1][only].tolist(), strict=True):
        report.add(
            "extent tree lacks {n} references {ref}",
            tree=int(ObjectId.EXTENT_TREE),
            n=count,
            ref=_describe(expected, row),
        )


def _report_missing(
    has: tuple[Any, ...],
    makes: tuple[Any, ...],
    table: Table,
    report: Report,
    text: str,
) -> None:
    """Report the references in `has` whose count in `makes` differs."""
    place = np.searchsorted(makes[0], has[0])
    inside = np.minimum(place, max(len(makes[0]) - 1, 0))
    same = makes[0][inside] == has[0] if len(makes[0]) else np.zeros(len(has[0]), np.bool_)
    other = np.where(same, makes[1][inside] if len(makes[0]) else 0, 0)
    for row in np.flatnonzero(other != has[1]).tolist():
        report.add(
            text,
            tree=int(ObjectId.EXTENT_TREE),
            n=int(has[1][row]),
            ref=_describe(table, has[2][row]),
            other=int(other[row]),
        )


def _describe(table: Table, row: int) -> str:
    bytenr, kind, root, objectid, offset = (int(column[row]) for column in table)
    name = item_type_name(kind)
    if kind == ItemType.EXTENT_DATA_REF:
        return f"{name} root {root} inode {objectid} offset {offset} of {bytenr}"
    return f"{name} {root} of {bytenr}"
