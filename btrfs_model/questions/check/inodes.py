# SPDX-License-Identifier: GPL-2.0-only
"""Inodes of a subvolume: names, links, directories and the extents of files agree.

Each name is in the tree three times::

    (dir DIR_ITEM hash)        dir, name -> inode, type
    (dir DIR_INDEX index)      dir, index, name -> inode, type
    (inode INODE_REF dir)      inode, dir, index, name            (or INODE_EXTREF)

C reduces the items of each inode to a row and tells whether the three agree. Only where they do not
the names are unpacked into arrays, and the three tables compared as sets. So that memory does not
grow with the number of files, this is done for one range of inode numbers after the other: with the
items of these inodes, and the entries that lead to them, wherever their directories are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from btrfs_model.native.items import (
    ENTRY,
    InodeReducer,
    KnownLeaves,
    entries,
    find_rows,
    is_among,
    is_one_of,
    scan_leaves,
    select,
)
from btrfs_model.ondisk.constants import FileExtentType, FileType
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.questions.check.report import Report
from btrfs_model.questions.check.space import Coverage
from btrfs_model.questions.check.walk import LEAVES_AT_ONCE
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
_REFS: Final = (_T.INODE_REF, _T.INODE_EXTREF)
_NAMES: Final = (*_REFS, _T.DIR_ITEM, _T.DIR_INDEX)

Rows = npt.NDArray[np.void]
"""Structured arrays."""

_IMMUTABLE, _APPEND = 1 << 6, 1 << 7
_DIRECTORY: Final = np.dtype([("ino", "u8"), ("parent", "u8"), ("is_linked", "?")])
_WINDOW: Final = 128 << 20
"""Bytes of leaves whose inodes are checked at once."""


class _Leaves:
    """The leaves of a tree, and which inodes are where.

    `logical`, `first`, `nritems` (numpy.ndarray): address, objectid of the first item, and number
    of items of each leaf.
    """

    def __init__(self, fs: Filesystem, tree: Tree) -> None:
        blocks = tree.root.blocks(0)
        leaves = blocks[blocks["level"] == 0]
        self.fs = fs
        self.logical = np.ascontiguousarray(leaves["logical"])
        self.first = np.ascontiguousarray(leaves["first"]["objectid"])
        self.nritems = leaves["nritems"]

    def windows(self) -> list[tuple[int, int]]:
        """Return ranges (first, last) of inode numbers that cover all."""
        step = max(1, _WINDOW // self.fs.image.nodesize)
        starts = [0, *sorted(set(self.first[step::step].tolist()))]
        starts = [start for at, start in enumerate(starts) if not at or start]
        return [(start, following - 1) for start, following in pairwise([*starts, _END + 1])]

    def reduce(
        self, reducer: InodeReducer, low: int, high: int, known: KnownLeaves | None = None
    ) -> tuple[Rows, Rows, Rows]:
        """Reduce the leaves that may have items of these inodes."""
        last = np.append(self.first[1:], _U64(_END))
        own = (self.first <= _U64(high)) & (last >= _U64(low))
        return reducer.reduce(self.logical[own], int(self.nritems[own].sum()), low, high, known)

    def names(self, low: int, high: int) -> dict[int, Rows]:
        """Unpack the names of these inodes, and the entries that lead to them; by type of item.

        Their ``location_type`` becomes 1 for subvolumes, 0 for all others.
        """
        parts: dict[int, list[Rows]] = {int(kind): [np.empty(0, ENTRY)] for kind in _NAMES}
        for at in range(0, len(self.logical), LEAVES_AT_ONCE):
            columns = scan_leaves(self.fs.image, self.logical[at : at + LEAVES_AT_ONCE])
            items = select(columns, is_one_of(columns["type"], _NAMES))
            rows, _ = entries(self.fs.image, items)
            rows = rows[(rows["child"] >= _U64(low)) & (rows["child"] <= _U64(high))]
            rows["location_type"] = rows["location_type"] == _T.ROOT_ITEM
            kinds = items["type"][rows["item"]]
            for kind, part in parts.items():
                part.append(rows[kinds == kind])
        return {kind: np.concatenate(part) for kind, part in parts.items()}


def check_inodes(
    fs: Filesystem, tree: Tree, root_dir: int, report: Report, known: KnownLeaves | None = None
) -> Rows:
    """Check the inodes of a subvolume.

    `known`: of all leaves, where trees share some; these are looked at in one of them, if all is
    right there.
    Returns its entries that are subvolumes: ``parent`` (the directory), ``child``, ``index``.
    """
    first, last = ((ObjectId.ORPHAN, _T.ORPHAN_ITEM, offset) for offset in (0, _END))
    orphans = np.array([item.key.offset for item in tree.items(first, last)], _U64)
    sums = fs.checksums
    coverage = Coverage(sums.starts, sums.ends)
    leaves, reducer = _Leaves(fs, tree), InodeReducer(fs.image, root_dir)
    windows, before = leaves.windows(), report.count
    roots, directories = [np.empty(0, ENTRY)], [np.empty(0, _DIRECTORY)]
    for low, high in windows:
        inodes, extents, inside = leaves.reduce(reducer, low, high, known)
        checker = _InodeChecker(fs, tree.objectid, inodes, report)
        checker.check_links(orphans)
        if high == _END and not reducer.names_agree:
            for window in windows:
                part, *_ = leaves.reduce(reducer, *window)
                again = _InodeChecker(fs, tree.objectid, part, report)
                again.check_entries(leaves.names(*window), root_dir, orphans)
        checker.check_directories()
        checker.check_files(extents, coverage)
        directories.append(checker.directories())
        roots.append(inside)
    _check_reached(np.concatenate(directories), tree.objectid, root_dir, report)
    if known is not None:
        known.judge(good=report.count == before)
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
    """Checks some inodes of a subvolume, as they were reduced."""

    def __init__(self, fs: Filesystem, tree: int, inodes: Rows, report: Report) -> None:
        self.fs = fs
        self.tree = tree
        self.report = report
        self.inodes = inodes
        self.ino = inodes["ino"]
        self.exists = inodes["exists"] != 0
        self.kind = inodes["mode"] & _S_IFMT

    def _bad(self, text: str, mask: npt.NDArray[np.bool_], **values: npt.NDArray[Any]) -> None:
        """Report inodes."""
        for row in np.flatnonzero(mask & self.exists).tolist():
            self.report.add(
                text,
                tree=self.tree,
                key=Key(int(self.ino[row]), int(_T.INODE_ITEM), 0),
                **{name: array[row] for name, array in values.items()},
            )

    # ------------------------------------------------------------------------------- names --

    def check_links(self, orphans: npt.NDArray[np.uint64]) -> None:
        """Check that items have an inode, and inodes as many names as links."""
        for ino in self.ino[~self.exists].tolist():
            self.report.add("items of inode {ino}, which does not exist", tree=self.tree, ino=ino)
        links, nlink = self.inodes["links"], self.inodes["nlink"]
        # where the option inode_cache kept free inode numbers has no name
        named = self.ino != _U64(ObjectId.FREE_INO)
        wrong = named & (links != nlink)
        self._bad("{nlink} links, but {names} names", wrong, nlink=nlink, names=links)
        orphan = is_among(self.ino, orphans)
        self._bad("no links, but no orphan item", (nlink == 0) & ~orphan)
        directory = self.kind == _S_IFDIR
        self._bad("directory with {names} names", directory & (links > 1), names=links)

    def check_entries(
        self, names: dict[int, Rows], root_dir: int, orphans: npt.NDArray[np.uint64]
    ) -> None:
        """Check that the three tables of names are the same.

        Except for directories that are deleted, whose entries go one by one.
        """
        names = {kind: rows[~is_among(rows["parent"], orphans)] for kind, rows in names.items()}
        items, indexes = names[_T.DIR_ITEM], names[_T.DIR_INDEX]
        refs = np.concatenate([names[kind] for kind in _REFS])
        # the top directory has a name that is no entry
        is_top = refs["child"] == refs["parent"]
        top, refs = refs[is_top], refs[~is_top]
        odd = (top["name_xxh64"] != _DOTS) | (top["index"] != 0) | (top["child"] != root_dir)
        self._entries("the top directory's name is not '..'", top[odd])
        fields: tuple[str, ...] = ("parent", "child", "name_xxh64", "type", "location_type")
        self._same(items, indexes, fields, "entry in DIR_ITEM only")
        self._same(indexes, items, fields, "entry in DIR_INDEX only")
        is_root = indexes["location_type"] == 1
        inside, roots = indexes[~is_root], indexes[is_root]
        fields = ("parent", "child", "index", "name_xxh64")
        self._same(inside, refs, fields, "entry without INODE_REF")
        self._same(refs, inside, fields, "INODE_REF without entry")
        known = np.flatnonzero(self.exists)
        row = find_rows(self.ino[known], inside["child"])
        inside, row = inside[row >= 0], known[row[row >= 0]]
        wrong = _MODE_OF_TYPE[inside["type"]] != self.kind[row]
        self._entries("entry of type {type} leads to an inode of another", inside[wrong])
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
        size, total = self.inodes["size"], self.inodes["name_bytes"]
        self._bad(
            "directory of size {size}, its names have {total} bytes",
            directory & (size != total) & (self.inodes["nlink"] != 0),
            size=size,
            total=total,
        )

    def directories(self) -> Rows:
        """Return the directories, each with the one that it is in (the last, were it in more)."""
        directories = self.inodes[self.exists & (self.kind == _S_IFDIR)]
        found = np.empty(len(directories), _DIRECTORY)
        found["ino"], found["parent"] = directories["ino"], directories["parent"]
        found["is_linked"] = directories["nlink"] != 0
        return found

    # ------------------------------------------------------------------------------- files --

    def check_files(self, extents: Rows, coverage: Coverage) -> None:
        """Check how the extents of files follow each other, their sum and their checksums."""
        nbytes, total = self.inodes["nbytes"], self.inodes["extent_bytes"]
        with_data = (self.kind == _S_IFREG) | (self.kind == _S_IFLNK)
        self._bad(
            "inode says {nbytes} bytes, its extents have {total}",
            # the rest of the extents of what is being deleted may be gone before that is counted
            with_data & (nbytes != total) & (self.inodes["nlink"] != 0),
            nbytes=nbytes,
            total=total,
        )
        row = extents["row"]
        misplaced = (self.exists & ~with_data)[row]
        self._extents("file extent of an inode that has no data", extents[misplaced])
        same = row[1:] == row[:-1]
        end = extents["start"] + extents["length"]
        over = same & (extents["start"][1:] < end[:-1])
        self._extents("file extent begins inside the one before", extents[1:][over])
        if not self.fs.image.superblock.has_incompat("NO_HOLES"):
            self._check_gaps(extents, end, same)
        self._check_links_of_data()
        if self.tree != ObjectId.DATA_RELOC_TREE:  # where data are that may have had none before
            self._check_sums(extents, coverage)

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
        size, row = self.inodes["size"], extents["row"]
        before = np.concatenate([[_U64(0)], np.where(same, ends[:-1], _U64(0))])[: len(extents)]
        within = ~self.exists[row] | (before < size[row])
        self._extents("gap before a file extent", extents[within & (extents["start"] > before)])
        last = np.zeros(len(size), _U64)
        np.maximum.at(last, row, ends)
        regular = (self.kind == _S_IFREG) & (self.inodes["nlink"] != 0)
        self._bad(
            "file of {size} bytes has extents up to {last} only",
            regular & (size > last),
            size=size,
            last=last,
        )

    def _check_links_of_data(self) -> None:
        """Check that a symbolic link has its target inline.

        mkfs and btrfs-convert store the NUL at its end too, which is not part of its size.
        """
        link = self.kind == _S_IFLNK
        size, length = self.inodes["size"], self.inodes["inline_bytes"]
        with_nul = (length == size + _U64(1)) & (self.inodes["nul_ends"] == 1)
        wrong = link & (length != size) & ~with_nul & (self.inodes["nlink"] != 0)
        self._bad("symbolic link of {size} bytes has {length}", wrong, size=size, length=length)
        flags = self.inodes["flags"]
        odd = link & (flags & _U64(_IMMUTABLE | _APPEND) != 0)
        self._bad("symbolic link with inode flags {flags:#x}", odd, flags=flags)

    def _check_sums(self, extents: Rows, coverage: Coverage) -> None:
        """Check that data have checksums unless the inode does without, compressed ones always.

        What is not as it was written cannot be decompressed safely; kernels before 5.2 wrote it.
        """
        with_sums = self.exists & (self.inodes["flags"] & _U64(_NODATASUM) == 0)
        regular = (extents["type"] == FileExtentType.REG) & (extents["disk_length"] != 0)
        without = (self.exists & ~with_sums)[extents["row"]]
        compressed = extents["compression"] != 0
        self._extents("compressed data of an inode without checksums",
                      extents[regular & without & compressed])  # fmt: skip
        rows = extents[regular & with_sums[extents["row"]]]
        covered = coverage.of(rows["disk_start"], rows["disk_length"])
        self._extents("data without checksums", rows[covered < rows["disk_length"]])


def _numbers(rows: Rows, fields: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """One number for each row: equal in all fields, equal number."""
    mixed = np.zeros(len(rows), _U64)
    for field in fields:
        mixed = (mixed ^ rows[field].astype(_U64)) * _U64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> _U64(31)
    return mixed
