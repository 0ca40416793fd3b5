# SPDX-License-Identifier: GPL-2.0-only
"""Inodes of a subvolume: names, links, directories and the extents of files agree.

Each name is in the tree three times::

    (dir DIR_ITEM hash)        dir, name -> inode, type
    (dir DIR_INDEX index)      dir, index, name -> inode, type
    (inode INODE_REF dir)      inode, dir, index, name            (or INODE_EXTREF)

The names are unpacked into arrays, and the three tables compared as sets. So that memory does not
grow with the number of files, this is done for one range of inode numbers after the other: with the
items of these inodes, and the entries that lead to them, wherever their directories are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from btrfs_model.native.items import Columns, entries, find_rows, gather, is_one_of, records, select
from btrfs_model.ondisk.constants import FileExtentType, FileType
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.structs import FILE_EXTENT_ITEM, INODE_ITEM
from btrfs_model.questions.check.report import Report
from btrfs_model.questions.check.space import Coverage
from btrfs_model.questions.check.walk import leaf_batches
from btrfs_model.volume.tree import Tree

if TYPE_CHECKING:
    from btrfs_model.volume.filesystem import Filesystem

_U64 = np.uint64
_END: Final = 2**64 - 1
_T = ItemType
_S_IFMT: Final = 0o170000
_S_IFDIR: Final = 0o040000
_S_IFREG: Final = 0o100000
_S_IFLNK: Final = 0o120000
_NODATASUM: Final = 1 << 0
_DOTS: Final = xxhash.xxh64_intdigest(b"..")
_DIR: Final = int(FileType.DIR)
_MODE_OF_TYPE: Final = np.zeros(256, np.uint32)
_MODE_OF_TYPE[[
    FileType.REG_FILE, FileType.DIR, FileType.CHRDEV, FileType.BLKDEV,
    FileType.FIFO, FileType.SOCK, FileType.SYMLINK,
]] = (0o100000, 0o040000, 0o020000, 0o060000, 0o010000, 0o140000, 0o120000)  # fmt: skip

_OF_AN_INODE: Final = (
    _T.INODE_ITEM, _T.INODE_REF, _T.INODE_EXTREF, _T.XATTR_ITEM, _T.DIR_ITEM, _T.DIR_INDEX,
    _T.EXTENT_DATA,
)  # fmt: skip

_INODE: Final = np.dtype(
    [
        ("ino", "u8"),
        ("size", "u8"),
        ("nbytes", "u8"),
        ("flags", "u8"),
        ("nlink", "u4"),
        ("mode", "u4"),
    ]
)
_EXTENT: Final = np.dtype(
    [
        ("ino", "u8"),
        ("start", "u8"),
        ("length", "u8"),
        ("disk_start", "u8"),
        ("disk_length", "u8"),
        ("type", "u1"),
        ("compression", "u1"),
        ("ends_in_nul", "?"),  # of inline data that are not compressed
    ]
)
_NAME: Final = np.dtype(
    [
        ("parent", "u8"),
        ("child", "u8"),
        ("index", "u8"),
        ("name", "u8"),
        ("length", "u2"),
        ("type", "u1"),
        ("is_root", "?"),
    ]
)

Rows = npt.NDArray[np.void]
"""Structured arrays."""


_DIRECTORY: Final = np.dtype([("ino", "u8"), ("parent", "u8"), ("is_linked", "?")])
_TOTAL: Final = np.dtype([("ino", "u8"), ("bytes", "u8")])
_PARTS: Final[dict[str, Any]] = {
    "inodes": _INODE, "extents": _EXTENT, "refs": _NAME, "items": _NAME, "indexes": _NAME,
    "totals": _TOTAL, "objectids": _U64,
}  # fmt: skip
_WINDOW: Final = 128 << 20
"""Bytes of leaves whose inodes are checked at once."""


class _Leaves:
    """The leaves of a tree, and which inodes are where.

    `logical`, `first` (numpy.ndarray): uint64, address and objectid of the first item of each leaf.
    `has_entries` (numpy.ndarray): bool, whether a leaf has entries of directories; all True until
    the first scan.
    """

    def __init__(self, fs: Filesystem, tree: Tree) -> None:
        blocks = tree.root.blocks(0)
        leaves = blocks[blocks["level"] == 0]
        self.fs = fs
        self.logical = np.ascontiguousarray(leaves["logical"])
        self.first = np.ascontiguousarray(leaves["first"]["objectid"])
        self.has_entries = np.ones(len(leaves), np.bool_)
        self._scanned = False

    def windows(self) -> list[tuple[int, int]]:
        """Return ranges (first, last) of inode numbers that cover all."""
        step = max(1, _WINDOW // self.fs.image.nodesize)
        starts = [0, *np.unique(self.first[step::step]).tolist()]
        starts = [start for at, start in enumerate(starts) if not at or start]
        return [(start, following - 1) for start, following in pairwise([*starts, _END + 1])]

    def batches(self, low: int, high: int) -> Iterator[Columns]:
        """Scan the leaves that may have items of these inodes or lead to them."""
        last = np.append(self.first[1:], _U64(_END))
        own = (self.first <= _U64(high)) & (last >= _U64(low))
        leaves = self.logical[own | self.has_entries]
        if self._scanned:
            yield from leaf_batches(self.fs.image, leaves)
            return
        self.has_entries[:] = False
        for columns in leaf_batches(self.fs.image, leaves):
            entry = is_one_of(columns["type"], (_T.DIR_ITEM, _T.DIR_INDEX))
            self.has_entries |= np.isin(self.logical, _changes(columns["block"][entry]))
            yield columns
        self._scanned = True


class _Names:
    """The items of a range of inodes and the entries that lead to them, as far as compared.

    `inodes`, `extents`, `refs` (numpy.ndarray): INODE_ITEM, EXTENT_DATA, INODE_REF with
    INODE_EXTREF of these inodes.
    `items`, `indexes` (numpy.ndarray): DIR_ITEM and DIR_INDEX that lead to them.
    `totals` (numpy.ndarray): bytes of names in the DIR_ITEM and DIR_INDEX items of these inodes;
    some rows for each.
    `orphans` (numpy.ndarray): uint64, the inodes that have an ORPHAN_ITEM.
    `objectids` (numpy.ndarray): uint64, every objectid of an item that belongs to one of the
    inodes.
    """

    def __init__(self, leaves: _Leaves, orphans: npt.NDArray[np.uint64], low: int, high: int):
        parts: dict[str, list[Any]] = {name: [] for name in _PARTS}
        for columns in leaves.batches(low, high):
            for name, part in _reduce(leaves.fs, columns, low, high).items():
                parts[name].append(part)
        joined = {
            # popped, so that no more than one kind is in memory twice
            name: np.concatenate([np.empty(0, dtype), *parts.pop(name)])
            for name, dtype in _PARTS.items()
        }
        self.inodes: Rows = joined["inodes"]
        self.extents: Rows = joined["extents"]
        self.refs: Rows = joined["refs"]
        self.items: Rows = joined["items"]
        self.indexes: Rows = joined["indexes"]
        self.totals: Rows = joined["totals"]
        self.orphans = orphans
        self.objectids: npt.NDArray[np.uint64] = _changes(joined["objectids"])


def _reduce(fs: Filesystem, columns: Columns, low: int, high: int) -> dict[str, npt.NDArray[Any]]:
    kind = columns["type"]
    own = _within(columns["objectid"], low, high)
    is_entry = is_one_of(kind, (_T.DIR_ITEM, _T.DIR_INDEX))
    is_ref = is_one_of(kind, (_T.INODE_REF, _T.INODE_EXTREF)) & own
    names = select(columns, is_entry | is_ref)
    rows, _ = entries(fs.image, names)
    of = names["type"][rows["item"]]
    is_ref = is_one_of(of, (_T.INODE_REF, _T.INODE_EXTREF))
    leads_here = is_ref | _within(rows["child"], low, high)
    of_here = ~is_ref & _within(rows["parent"], low, high)
    totals = _totals(rows["parent"][of_here], rows["name_len"][of_here])
    rows, of = rows[leads_here], of[leads_here]
    short = np.empty(len(rows), _NAME)
    for field, source in (("parent", "parent"), ("child", "child"), ("index", "index"),
                          ("name", "name_xxh64"), ("length", "name_len"),
                          ("type", "type")):  # fmt: skip
        short[field] = rows[source]
    short["is_root"] = rows["location_type"] == _T.ROOT_ITEM
    mine = select(columns, own)
    return {
        "inodes": _reduce_inodes(fs, mine),
        "extents": _reduce_extents(fs, mine),
        "refs": short[is_one_of(of, (_T.INODE_REF, _T.INODE_EXTREF))],
        "items": short[of == _T.DIR_ITEM],
        "indexes": short[of == _T.DIR_INDEX],
        "totals": totals,
        "objectids": _changes(mine["objectid"][is_one_of(mine["type"], _OF_AN_INODE)]),
    }


def _within(numbers: npt.NDArray[np.uint64], low: int, high: int) -> npt.NDArray[np.bool_]:
    return (numbers >= _U64(low)) & (numbers <= _U64(high))


def _totals(ino: npt.NDArray[np.uint64], lengths: npt.NDArray[Any]) -> Rows:
    """Add up lengths by inode; the inodes ascend."""
    first = np.flatnonzero(np.concatenate([[True], ino[1:] != ino[:-1]])[: len(ino)])
    totals = np.empty(len(first), _TOTAL)
    totals["ino"] = ino[first]
    if len(first):
        totals["bytes"] = np.add.reduceat(lengths.astype(_U64), first)
    return totals


def _changes(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return each number of an array once, of those that follow each other."""
    is_first = np.concatenate([[True], numbers[1:] != numbers[:-1]])[: len(numbers)]
    once: npt.NDArray[np.uint64] = numbers[is_first]
    return once


def _reduce_inodes(fs: Filesystem, columns: Columns) -> Rows:
    items = select(
        columns, (columns["type"] == _T.INODE_ITEM) & (columns["size"] == INODE_ITEM.size)
    )
    rows = records(fs.image, items, INODE_ITEM)
    inodes = np.empty(len(rows), _INODE)
    inodes["ino"] = items["objectid"]
    for field in ("size", "nbytes", "flags", "nlink", "mode"):
        inodes[field] = rows[field]
    return inodes


def _reduce_extents(fs: Filesystem, columns: Columns) -> Rows:
    items = select(columns, (columns["type"] == _T.EXTENT_DATA) & (columns["size"] >= 21))
    rows = records(fs.image, items, FILE_EXTENT_ITEM)
    inline = rows["type"] == FileExtentType.INLINE
    extents = np.empty(len(rows), _EXTENT)
    extents["ino"] = items["objectid"]
    extents["start"] = items["offset"]
    extents["length"] = np.where(inline, rows["ram_bytes"], rows["num_bytes"])
    compressed = rows["compression"] != 0
    # the sectors that must have checksums: of a compressed extent all
    within = np.where(compressed, _U64(0), rows["offset"])
    there = ~inline & (rows["disk_bytenr"] != 0)
    extents["disk_start"] = np.where(there, rows["disk_bytenr"] + within, _U64(0))
    extents["disk_length"] = np.where(
        there, np.where(compressed, rows["disk_num_bytes"], rows["num_bytes"]), _U64(0)
    )
    extents["type"] = rows["type"]
    extents["compression"] = rows["compression"]
    plain = inline & ~compressed
    last = select(items, plain)
    last["position"] = last["position"] + last["size"] - _U64(1)
    last["size"] = np.ones_like(last["size"])
    extents["ends_in_nul"] = False
    extents["ends_in_nul"][plain] = gather(fs.image, last, 1)[:, 0] == 0
    return extents


def check_inodes(fs: Filesystem, tree: Tree, root_dir: int, report: Report) -> Rows:
    """Check the inodes of a subvolume.

    Returns its entries that are subvolumes: ``parent`` (the directory), ``child``, ``index``.
    """
    first, last = ((ObjectId.ORPHAN, _T.ORPHAN_ITEM, offset) for offset in (0, _END))
    orphans = np.array([item.key.offset for item in tree.items(first, last)], _U64)
    sums = fs.checksums
    coverage = Coverage(sums.starts, sums.ends)
    leaves = _Leaves(fs, tree)
    roots, directories = [np.empty(0, _NAME)], [np.empty(0, _DIRECTORY)]
    for low, high in leaves.windows():
        names = _Names(leaves, orphans, low, high)
        checker = _InodeChecker(fs, tree.objectid, root_dir, names, report)
        checker.check_links()
        checker.check_entries()
        checker.check_directories()
        checker.check_files(coverage)
        directories.append(checker.directories())
        roots.append(names.indexes[names.indexes["is_root"]])
    _check_reached(np.concatenate(directories), tree.objectid, root_dir, report)
    return np.concatenate(roots)


def _check_reached(directories: Rows, tree: int, root_dir: int, report: Report) -> None:
    """Follow all directories upwards at once, doubling the distance each time."""
    ino = directories["ino"]
    top = np.flatnonzero(ino == _U64(root_dir))
    if not len(top):
        report.add("there is no top directory {ino}", tree=tree, ino=root_dir)
        return
    row = np.minimum(np.searchsorted(ino, directories["parent"]), len(ino) - 1)
    above = np.where(ino[row] == directories["parent"], row, np.arange(len(ino)))
    above[top] = top
    for _ in range(len(ino).bit_length()):
        above = above[above]
    for lost in ino[(above != top[0]) & directories["is_linked"]].tolist():
        report.add(
            "directory cannot be reached from the top",
            tree=tree,
            key=Key(lost, int(_T.INODE_ITEM), 0),
        )


class _InodeChecker:
    def __init__(
        self, fs: Filesystem, tree: int, root_dir: int, names: _Names, report: Report
    ) -> None:
        self.fs = fs
        self.tree = tree
        self.root_dir = root_dir
        self.names = names
        self.report = report
        self.inodes = names.inodes
        self.ino = names.inodes["ino"]
        self.kind = names.inodes["mode"] & _S_IFMT

    def _bad(self, text: str, mask: npt.NDArray[np.bool_], **values: npt.NDArray[Any]) -> None:
        """Report inodes."""
        for row in np.flatnonzero(mask).tolist():
            self.report.add(
                text,
                tree=self.tree,
                key=Key(int(self.ino[row]), int(_T.INODE_ITEM), 0),
                **{name: array[row] for name, array in values.items()},
            )

    def _find(self, ino: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Return the row of each inode, -1 where there is none."""
        return find_rows(self.ino, ino)

    def _sum(self, ino: npt.NDArray[np.uint64], values: Any) -> npt.NDArray[np.uint64]:
        """Add up values by inode."""
        row = self._find(ino)
        there = row >= 0
        total = np.zeros(len(self.ino), _U64)
        np.add.at(total, row[there], np.broadcast_to(values, row.shape)[there].astype(_U64))
        return total

    # ------------------------------------------------------------------------------- names --

    def check_links(self) -> None:
        """Check that items have an inode, and inodes as many names as links."""
        lost = self.names.objectids[~np.isin(self.names.objectids, self.ino)]
        for ino in lost.tolist():
            self.report.add("items of inode {ino}, which does not exist", tree=self.tree, ino=ino)
        links = self._sum(self.names.refs["child"], 1)
        nlink = self.inodes["nlink"]
        self._bad("{nlink} links, but {names} names", links != nlink, nlink=nlink, names=links)
        orphan = np.isin(self.ino, self.names.orphans)
        self._bad("no links, but no orphan item", (nlink == 0) & ~orphan)
        directory = self.kind == _S_IFDIR
        self._bad("directory with {names} names", directory & (links > 1), names=links)

    def check_entries(self) -> None:
        """Check that the three tables of names are the same."""
        items, indexes, refs = self.names.items, self.names.indexes, self.names.refs
        # the top directory has a name that is no entry
        is_top = refs["child"] == refs["parent"]
        top, refs = refs[is_top], refs[~is_top]
        odd = (top["name"] != _DOTS) | (top["index"] != 0) | (top["child"] != self.root_dir)
        self._entries("the top directory's name is not '..'", top[odd])
        fields: tuple[str, ...] = ("parent", "child", "name", "type", "is_root")
        self._same(items, indexes, fields, "entry in DIR_ITEM only")
        self._same(indexes, items, fields, "entry in DIR_INDEX only")
        inside = indexes[~indexes["is_root"]]
        fields = ("parent", "child", "index", "name")
        self._same(inside, refs, fields, "entry without INODE_REF")
        self._same(refs, inside, fields, "INODE_REF without entry")
        row = self._find(inside["child"])
        there = row >= 0
        kind = self.kind[row[there]] if len(self.ino) else np.empty(0, np.uint32)
        wrong = _MODE_OF_TYPE[inside["type"][there]] != kind
        self._entries("entry of type {type} leads to an inode of another", inside[there][wrong])
        roots = indexes[indexes["is_root"]]
        self._entries("subvolume as an entry of type {type}", roots[roots["type"] != _DIR])

    def _same(self, left: Rows, right: Rows, fields: tuple[str, ...], text: str) -> None:
        """Report the rows of `left` that `right` does not have as often."""
        numbers, other = _numbers(left, fields), _numbers(right, fields)
        if np.array_equal(np.sort(numbers), np.sort(other)):
            return
        known, counts = np.unique(other, return_counts=True)
        mine, first, times = np.unique(numbers, return_index=True, return_counts=True)
        place = np.minimum(np.searchsorted(known, mine), max(len(known) - 1, 0))
        found = np.where(known[place] == mine, counts[place], 0) if len(known) else 0 * times
        self._entries(text, left[first[found < times]])

    def _entries(self, text: str, rows: Rows) -> None:
        for row in rows:
            self.report.add(
                f"{text}: directory {{parent}}, inode {{child}}, index {{index}}",
                tree=self.tree,
                parent=row["parent"],
                child=row["child"],
                index=row["index"],
                type=row["type"],
            )

    def check_directories(self) -> None:
        """Check that the size of a directory is twice the length of its names."""
        directory = self.kind == _S_IFDIR
        size = self.inodes["size"]
        total = self._sum(self.names.totals["ino"], self.names.totals["bytes"])
        self._bad(
            "directory of size {size}, its names have {total} bytes",
            directory & (size != total),
            size=size,
            total=total,
        )

    def directories(self) -> Rows:
        """Return the directories, each with the one that it is in (the last, were it in more)."""
        refs = self.names.refs
        row = self._find(refs["child"])
        parent = np.zeros(len(self.ino), _U64)
        parent[row[row >= 0]] = refs["parent"][row >= 0]
        is_directory = self.kind == _S_IFDIR
        found = np.empty(np.count_nonzero(is_directory), _DIRECTORY)
        found["ino"] = self.ino[is_directory]
        found["parent"] = parent[is_directory]
        found["is_linked"] = self.inodes["nlink"][is_directory] != 0
        return found

    # ------------------------------------------------------------------------------- files --

    def check_files(self, coverage: Coverage) -> None:
        """Check how the extents of files follow each other, their sum and their checksums."""
        extents = self.names.extents
        allocated = np.where(
            (extents["type"] == FileExtentType.INLINE) | (extents["disk_length"] != 0),
            extents["length"],
            _U64(0),
        )
        total = self._sum(extents["ino"], allocated)
        nbytes = self.inodes["nbytes"]
        with_data = np.isin(self.kind, (_S_IFREG, _S_IFLNK))
        self._bad(
            "inode says {nbytes} bytes, its extents have {total}",
            with_data & (nbytes != total),
            nbytes=nbytes,
            total=total,
        )
        row = self._find(extents["ino"])
        if not len(self.ino):
            return
        self._extents(
            "file extent of an inode that has no data",
            extents[(row >= 0) & ~with_data[row]],
        )
        same = extents["ino"][1:] == extents["ino"][:-1]
        end = extents["start"] + extents["length"]
        over = same & (extents["start"][1:] < end[:-1])
        self._extents("file extent begins inside the one before", extents[1:][over])
        if not self.fs.image.superblock.has_incompat("NO_HOLES"):
            self._check_gaps(extents, end, same)
        self._check_links_of_data(extents)
        if self.tree != ObjectId.DATA_RELOC_TREE:  # where data are that may have had none before
            self._check_sums(extents, row, coverage)

    def _extents(self, text: str, rows: Rows) -> None:
        for row in rows:
            self.report.add(
                text,
                tree=self.tree,
                key=Key(int(row["ino"]), int(_T.EXTENT_DATA), int(row["start"])),
            )

    def _check_gaps(self, extents: Rows, end: Any, same: npt.NDArray[np.bool_]) -> None:
        """Check that files have no gaps, where the feature NO_HOLES does not allow them.

        A gap that begins behind the end of a file is none: there a hole has no item.
        """
        sector = _U64(self.fs.image.sectorsize)
        ends = (end + sector - _U64(1)) // sector * sector
        size = self.inodes["size"]
        row = self._find(extents["ino"])
        there = row >= 0
        before = np.concatenate([[_U64(0)], np.where(same, ends[:-1], _U64(0))])[: len(extents)]
        within = ~there | (before < size[row])
        self._extents("gap before a file extent", extents[within & (extents["start"] > before)])
        last = self._sum(extents["ino"], 0)
        np.maximum.at(last, row[there], ends[there])
        regular = (self.kind == _S_IFREG) & (self.inodes["nlink"] != 0)
        self._bad(
            "file of {size} bytes has extents up to {last} only",
            regular & (size > last),
            size=size,
            last=last,
        )

    def _check_links_of_data(self, extents: Rows) -> None:
        """Check that a symbolic link has its target inline.

        mkfs and btrfs-convert store the NUL at its end too, which is not part of its size.
        """
        link = self.kind == _S_IFLNK
        inline = extents[extents["type"] == FileExtentType.INLINE]
        length = self._sum(inline["ino"], inline["length"])
        ends = self._sum(inline["ino"], inline["ends_in_nul"])
        size = self.inodes["size"]
        right = (length == size) | ((length == size + _U64(1)) & (ends == 1))
        wrong = link & ~right & (self.inodes["nlink"] != 0)
        self._bad("symbolic link of {size} bytes has {length}", wrong, size=size, length=length)

    def _check_sums(self, extents: Rows, row: npt.NDArray[np.intp], coverage: Coverage) -> None:
        """Check that data have checksums unless the inode does without."""
        regular = (extents["type"] == FileExtentType.REG) & (extents["disk_length"] != 0)
        regular &= (row >= 0) & (self.inodes["flags"][row] & _U64(_NODATASUM) == 0)
        rows = extents[regular]
        covered = coverage.of(rows["disk_start"], rows["disk_length"])
        self._extents("data without checksums", rows[covered < rows["disk_length"]])


def _numbers(rows: Rows, fields: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """One number for each row: equal in all fields, equal number."""
    mixed = np.zeros(len(rows), _U64)
    for field in fields:
        mixed = (mixed ^ rows[field].astype(_U64)) * _U64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> _U64(31)
    return mixed
