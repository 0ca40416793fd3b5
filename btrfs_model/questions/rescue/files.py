# SPDX-License-Identifier: GPL-2.0-only
"""The files of a subvolume of which tree blocks may be lost.

A name stands in three items: DIR_INDEX and DIR_ITEM of the directory, INODE_REF of the file. One of
them is enough to find the file. An inode that no name leads to is kept under another name.
"""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from btrfs_model.base.errors import CorruptImageError
from btrfs_model.native.items import entries, gather, select
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.items import file_extent
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.questions.rescue.names import Taken
from btrfs_model.volume.data import FileExtent
from btrfs_model.volume.roots import timespec_ns
from btrfs_model.volume.tree import Item

if TYPE_CHECKING:
    from btrfs_model.native.items import Columns
    from btrfs_model.questions.rescue.roots import State

_MODES: Final = {
    FileType.REG_FILE: stat.S_IFREG | 0o600, FileType.DIR: stat.S_IFDIR | 0o700,
    FileType.SYMLINK: stat.S_IFLNK | 0o777, FileType.FIFO: stat.S_IFIFO | 0o600,
}  # fmt: skip
"""Of a file whose inode is lost, by what its directory says that it is."""
_FIELDS: Final = [(name, INODE_ITEM.places[name].start) for name in (
    "mode", "nlink", "uid", "gid", "rdev", "size", "flags", "nbytes")]  # fmt: skip
_TIMES: Final = [(name, INODE_ITEM.places[name]) for name in ("atime", "mtime")]
_FIRST, _LAST = 256, 2**64 - 256
_KNOWN: Final = frozenset(map(stat.S_IFMT, (
    stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK,
    stat.S_IFSOCK)))  # fmt: skip

Problem = Callable[[bytes, str, str, str], None]


class Name(NamedTuple):
    """A name in a directory: its bytes, the inode or subvolume, and what the directory says."""

    name: bytes
    child: int
    location_type: int
    type: int


class Found(NamedTuple):
    """A file where it will be: path (names that a host takes), inode number, type."""

    path: bytes
    ino: int
    mode: int
    subvolume: int = 0


@dataclass
class SavedSubvolume:
    """What can be read of a subvolume.

    `state`: of which filesystem.
    `id`: of the subvolume.
    `problem`: is told what is wrong: path, kind, problem, where.
    """

    state: State
    id: int
    problem: Problem
    seen: set[int] = field(default_factory=set)
    paths: dict[int, bytes] = field(default_factory=dict)
    taken: dict[bytes, Taken] = field(default_factory=lambda: defaultdict(Taken))

    def __post_init__(self) -> None:
        self.image = self.state.image
        self.root_dir = self.state.roots[self.id].item.root_dirid
        # it is asked for several times
        self._last: tuple[int, dict[str, Any] | None] = (0, None)
        self._columns = self.state.trees[self.id].scan()
        columns = self.of(ItemType.INODE_ITEM)
        columns = select(columns, columns["size"] >= INODE_ITEM.size)
        self._inos = columns["objectid"]
        self._inodes = gather(self.image, columns, INODE_ITEM.size)
        self._extents = self._places(self.of(ItemType.EXTENT_DATA))
        self._refs = self.of(ItemType.INODE_REF, ItemType.INODE_EXTREF)
        self.xattrs = self._xattrs()
        names = [self._entries(ItemType.DIR_INDEX)]
        if not self.state.trees[self.id].is_whole:
            names.append(self._entries(ItemType.DIR_ITEM))
        rows = np.concatenate(names)
        self._names = rows[np.argsort(rows["parent"], kind="stable")]

    # ------------------------------------------------------------------------------- items --

    def of(self, *types: int) -> Columns:
        """Return the items of some types."""
        return select(self._columns, np.isin(self._columns["type"], types))

    @staticmethod
    def _places(columns: Columns) -> tuple[Columns, dict[int, slice]]:
        inos, starts = np.unique(columns["objectid"], return_index=True)
        ends = np.append(starts, len(columns["objectid"]))[1:]
        return columns, {
            ino: slice(start, end)
            for ino, start, end in zip(inos.tolist(), starts.tolist(), ends.tolist(), strict=True)
        }

    def _entries(self, *types: int) -> Any:
        columns = self.of(*types)
        rows, bad = entries(self.image, columns)
        for row in np.flatnonzero(bad).tolist():
            key = Key(*(int(columns[name][row]) for name in ("objectid", "type", "offset")))
            self.problem(self.paths.get(key.objectid, b""), "item", "it cannot be unpacked",
                         f"tree {self.id}, block {columns['block'][row]}: {key}")  # fmt: skip
        return rows

    def _bytes(self, position: int, size: int) -> bytes:
        return bytes(self.image.block_bytes[position : position + size])

    def _xattrs(self) -> dict[int, dict[bytes, bytes]]:
        found: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        for row in self._entries(ItemType.XATTR_ITEM):
            at, size = int(row["position"]), int(row["name_len"])
            value = self._bytes(at + size, int(row["data_len"]))
            found[int(row["parent"])][self._bytes(at, size)] = value
        return found

    def row(self, ino: int) -> dict[str, Any] | None:
        """Return an inode as a listing has it, None where its item is lost."""
        if self._last[0] != ino:
            self._last = ino, self._row(ino)
        return self._last[1]

    def _row(self, ino: int) -> dict[str, Any] | None:
        at = int(self._inos.searchsorted(np.uint64(ino)))
        if at == len(self._inos) or self._inos[at] != ino:
            return None
        flat = INODE_ITEM.flat(self._inodes[at].tobytes())
        row: dict[str, Any] = {name: flat[place] for name, place in _FIELDS}
        for name, place in _TIMES:
            row[name] = timespec_ns(flat[place])
        return row

    def described(self, found: Found) -> dict[str, Any]:
        """Return a row for a file, made up where its inode is lost."""
        row = self.row(found.ino)
        if row is None:
            ends = [one.end for one in self.extents(found.ino)]
            row = {"mode": found.mode, "nlink": 1, "uid": 0, "gid": 0, "rdev": 0, "flags": 0,
                   "nbytes": 0, "size": max(ends, default=0), "atime": 0, "mtime": 0}  # fmt: skip
        return row | {"ino": found.ino, "xattrs": self.xattrs.get(found.ino, {}), "target": None}

    def extents(self, ino: int, path: bytes | None = None) -> list[FileExtent]:
        """Return the file extents of an inode that make sense, in order and none over another.

        `path`: under which it is told what does not.
        """

        def tell(what: str, where: str) -> None:
            if path is not None:
                self.problem(path, "file", what, where)

        columns, places = self._extents
        part = places.get(ino, slice(0, 0))
        kept: list[FileExtent] = []
        names = ("position", "size", "offset", "block", "slot")
        for position, size, offset, block, slot in zip(
            *(columns[name][part].tolist() for name in names), strict=True
        ):
            data = self.image.block_bytes[position : position + size]
            item = Item(Key(ino, ItemType.EXTENT_DATA, offset), data, block, slot)
            try:
                decoded = item.decode(file_extent, self.image.path, self.id)
                extent = FileExtent.of(item, decoded, self.image, self.id)
            except CorruptImageError as error:
                tell("an extent makes no sense", str(error.strerror))
                continue
            if kept and kept[-1].end > extent.start:
                tell("an extent lies over the one before it", f"byte {extent.start}")
                continue
            kept.append(extent)
        return kept

    def lost_ranges(self, ino: int, size: int, nbytes: int) -> list[tuple[int, int]]:
        """Return the ranges of a file whose extents were in blocks that are lost.

        `size`, `nbytes`: of the inode: where extents have as many bytes, none is lost.
        """
        tree = self.state.trees[self.id]
        if tree.is_whole:
            return []
        extents = self.extents(ino)
        if sum(one.length for one in extents if not one.is_hole) >= nbytes:
            return []
        found = []
        for lost in tree.lost:
            first, last = (ino, ItemType.EXTENT_DATA, 0), (ino, ItemType.EXTENT_DATA + 1, 0)
            if lost.is_taken or lost.low >= last or lost.high <= first:
                continue
            low, high = max(lost.low, first)[2], lost.high[2] if lost.high < last else size
            ends = [one.end for one in extents if one.start <= low]
            found.append((min(max([low, *ends]), size), min(high, size)))
        return [(low, high) for low, high in found if low < high]

    # ------------------------------------------------------------------------------- names --

    def _children(self, ino: int) -> Iterator[Name]:
        parents = self._names["parent"]
        first, last = (int(np.searchsorted(parents, np.uint64(ino), side))
                       for side in ("left", "right"))  # fmt: skip
        had: set[tuple[bytes, int]] = set()
        for row in self._names[first:last]:
            name = self._bytes(int(row["position"]), int(row["name_len"]))
            child = int(row["child"])
            if (name, child) not in had:
                had.add((name, child))
                yield Name(name, child, int(row["location_type"]), int(row["type"]))

    def _mode(self, ino: int, said: int) -> int:
        """Return the type of an inode, by its item, or by what else there is of it."""
        row = self.row(ino)
        if row is not None and row["mode"] < 1 << 16 and stat.S_IFMT(row["mode"]) in _KNOWN:
            return int(row["mode"])
        if said in _MODES:
            return _MODES[FileType(said)]
        if ino in self._extents[1]:
            return _MODES[FileType.REG_FILE]
        return _MODES[FileType.DIR] if next(self._children(ino), None) else 0

    def walk(self, ino: int, path: bytes) -> Iterator[Found]:
        """Go through a directory that is at a path, and all below it."""
        stack = [(ino, path)]
        self.seen.add(ino)
        self.paths[ino] = path
        while stack:
            directory, prefix = stack.pop()
            for one in self._children(directory):
                found = self._place(one, prefix)
                if found is None:
                    continue
                yield found
                if stat.S_ISDIR(found.mode) and not found.subvolume:
                    stack.append((found.ino, found.path))

    def _place(self, one: Name, prefix: bytes) -> Found | None:
        """Find out what a name leads to, and how it will be called."""
        name = self.taken[prefix].take(one.name)
        path = prefix + b"/" + name if prefix else name
        if name != one.name:
            self.problem(path, "name", "it has another name here", f"its name is {one.name!r}")
        if one.location_type == ItemType.ROOT_ITEM:
            return Found(path, 0, stat.S_IFDIR | 0o755, one.child)
        mode = self._mode(one.child, one.type)
        if not mode or (self.row(one.child) is None and not self._has_any(one.child)):
            self.problem(path, "file", "its inode is lost", f"tree {self.id}, inode {one.child}")
            return None
        if stat.S_ISDIR(mode):
            if one.child in self.seen:
                self.problem(path, "directory", "it is in two places, and is left out here",
                             f"tree {self.id}, inode {one.child}")  # fmt: skip
                return None
            self.paths[one.child] = path
        self.seen.add(one.child)
        if self.row(one.child) is None:
            self.problem(path, "inode", "its inode is lost: owner, permissions, times and size "
                         "are made up", f"tree {self.id}, inode {one.child}")  # fmt: skip
        return Found(path, one.child, mode)

    def _has_any(self, ino: int) -> bool:
        return ino in self._extents[1] or next(self._children(ino), None) is not None

    # ------------------------------------------------------------------- what no name leads to --

    def strays(self, top: bytes) -> Iterator[Found]:
        """Go through what no directory leads to; call it after :meth:`walk`.

        What says itself in which directory it is goes there, where that was found. Else it goes
        into a folder of the lost one, or is one itself.

        `top`: path of the folder for such folders, with what their names begin with.
        """
        known = np.unique(np.concatenate([
            self._inos, self._extents[0]["objectid"], self._names["parent"],
        ])).tolist()  # fmt: skip
        left = [ino for ino in known if _FIRST <= ino < _LAST and ino not in self.seen
                and self._is_linked(ino)]  # fmt: skip
        if not left:
            return
        refs: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        by_parent: dict[int, list[Name]] = defaultdict(list)
        wanted = select(self._refs, np.isin(self._refs["objectid"], np.array(left, np.uint64)))
        for row in entries(self.image, wanted)[0]:
            ino, parent = int(row["child"]), int(row["parent"])
            name = self._bytes(int(row["position"]), int(row["name_len"]))
            refs[ino].append((parent, name))
            by_parent[parent].append(Name(name, ino, ItemType.INODE_ITEM, 0))
        inside = set(left)
        outer = [parent for parent in sorted(by_parent) if parent not in inside]
        for parent in outer:
            there = self.paths.get(parent)
            if there is None:
                there = b"%s-inode-%d" % (top, parent)
                self.problem(there, "directory", "the directory is lost; what was in it is here",
                             f"tree {self.id}, inode {parent}")  # fmt: skip
                yield Found(there, 0, stat.S_IFDIR | 0o700)
                self.paths[parent] = there
            for one in by_parent[parent]:
                yield from self._stray(one, there)
        for ino in left:
            if ino not in self.seen:
                yield from self._unnamed(ino, top, by_parent)

    def _is_linked(self, ino: int) -> bool:
        row = self.row(ino)
        # what has no link waits to be deleted
        return row is None or row["nlink"] > 0

    def _stray(self, one: Name, prefix: bytes) -> Iterator[Found]:
        if one.child in self.seen and stat.S_ISDIR(self._mode(one.child, 0)):
            return
        found = self._place(one, prefix)
        if found is None:
            return
        yield found
        self.problem(found.path, "name", "its entry in the directory is lost; the name is that "
                     "of the inode", f"tree {self.id}, inode {found.ino}")  # fmt: skip
        if stat.S_ISDIR(found.mode):
            yield from self.walk(found.ino, found.path)

    def _unnamed(self, ino: int, top: bytes, by_parent: dict[int, list[Name]]) -> Iterator[Found]:
        """Keep an inode that has no name, or is a directory in a circle of them."""
        mode = self._mode(ino, 0)
        path = b"%s-inode-%d" % (top, ino)
        self.problem(path, "name", "its name is lost", f"tree {self.id}, inode {ino}")
        if not mode:
            return
        self.seen.add(ino)
        yield Found(path, ino, mode)
        if stat.S_ISDIR(mode):
            yield from self.walk(ino, path)
            for one in by_parent.get(ino, ()):
                if one.child not in self.seen:
                    yield from self._stray(one, path)
