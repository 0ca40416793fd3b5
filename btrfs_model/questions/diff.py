# SPDX-License-Identifier: GPL-2.0-only
"""What changed between two subvolumes, as people mean it: by path, and by content.

A send says which ranges were written; whether other bytes stand there now is another question. So
contents are compared, but only where the two files do not share the same part of an extent.
"""

from __future__ import annotations

import stat
from bisect import bisect_right
from collections import defaultdict
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from btrfs_model.base.arguments import checked
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.items import dir_items
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume.compare import Change, compare_trees, side_by_side
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.listing import to_fs_flags
from btrfs_model.volume.subvolume import join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pandas as pd

    from btrfs_model.ondisk.keys import Key
    from btrfs_model.volume.data import FileExtent
    from btrfs_model.volume.subvolume import Inode, Subvolume

_PIECE: Final = 4 << 20
_TYPES: Final = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip
_SUBVOLUME: Final = "subvolume"
_COLUMNS: Final = {
    "change": "object", "path": "object", "was": "object", "type": "object",
    "size_before": "Int64", "size": "Int64", "content": "bool", "attributes": "object",
}  # fmt: skip
_INLINE: Final = 0, 0
"""Where bytes lie that are in the tree: no two files share these."""
Link = tuple[int, bytes]
"""Directory and name."""


@checked
@opening
@exclusive
def diff(
    fs: Filesystem,
    before: str | bytes | int | Subvolume,
    after: str | bytes | int | Subvolume,
    *,
    content_only: bool = False,
    times: bool = False,
) -> pd.DataFrame:
    """List what changed from one subvolume to another, by path.

    Of snapshots of one subvolume a file is known by its inode, so it may be renamed; what has only
    another name because its directory has one is not listed. Where a file was replaced by another
    one of the same name and type, and of all other subvolumes, a file is known by its path. Files
    that were written again with the same bytes, or deduplicated, have not changed.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        Where both are, or the files it is in.
    before, after : str, bytes, int or Subvolume
        Paths from the top of the filesystem, or ids.
    content_only : bool
        Leave out what changed in attributes alone.
    times : bool
        Tell other times of modification, too.

    Returns
    -------
    pandas.DataFrame
        A row for each change, by path: ``change`` (``added``, ``removed``, ``renamed``,
        ``changed``; ``linked`` and ``unlinked`` where a file that stays gets or loses a name),
        ``path``, ``was`` (path before, where it was another one), ``type`` (``file``,
        ``directory``, ``symlink``, ``fifo``, ``socket``, ``device``, ``subvolume``),
        ``size_before`` and ``size`` (bytes, NA where there is no such file), ``content`` (whether
        other bytes are in it, or the target is another), ``attributes`` (of ``mode``, ``owner``,
        ``time``, ``xattrs``, ``flags``, ``device``, ``links`` those that changed, with commas).
        Subvolumes inside are entries and not entered.

    Raises
    ------
    SubvolumeNotFoundError
        When there is no such subvolume.
    CorruptImageError
        When a tree, or data that have to be compared, are damaged.
    """
    table = changes(fs.subvolume(before), fs.subvolume(after), times=times)
    if content_only:
        table = table[table["content"] | (table["change"] != "changed")].reset_index(drop=True)
    return table


def changes(
    before: Subvolume, after: Subvolume, *, times: bool = False, apart: bool = False
) -> pd.DataFrame:
    """As :func:`diff`; one may be in a copy of the other's filesystem that went on from there.

    `apart`: the two are of different filesystems: what has one address in both is not one thing.
    """
    import pandas as pd

    rows = [*_Diff(_Side(before), _Side(after), times, apart).rows()]
    rows.sort(key=lambda row: (row["path"], row["change"]))
    return pd.DataFrame({
        name: pd.Series([_text(row[name]) for row in rows], dtype=dtype)
        for name, dtype in _COLUMNS.items()
    })  # fmt: skip


def _text(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


class _Side:
    """A subvolume, whose directories are asked for their paths again and again."""

    def __init__(self, subvolume: Subvolume) -> None:
        self.subvolume = subvolume
        self._paths = {subvolume.root_dir: b""}
        self._named = subvolume.fs.path, subvolume.id

    def inode(self, ino: int) -> Inode | None:
        """Return an inode that has names, or None."""
        try:
            inode = self.subvolume.inode(ino)
        except FileNotFoundError:
            return None
        return inode if inode.nlink else None

    def links(self, ino: int) -> set[Link]:
        """Return where an inode has its names."""
        return {(name.parent, name.name) for name in self.subvolume.names(ino)
                if ino != self.subvolume.root_dir}  # fmt: skip

    def directory(self, ino: int) -> bytes:
        """Return the path of a directory."""
        if ino not in self._paths:
            self._paths[ino] = self.subvolume.path_of(ino)
        return self._paths[ino]

    def path(self, link: Link) -> bytes:
        """Return the path of a name."""
        return join(self.directory(link[0]), link[1])

    def subvolumes(self, keys: Iterable[Key]) -> Iterator[tuple[Link, int]]:
        """Yield the entries of subvolumes among some of directories, with their ids."""
        for key in keys:
            item = self.subvolume.tree.get(key)
            for entry in item.decode(dir_items, *self._named) if item is not None else ():
                if entry.location.type == ItemType.ROOT_ITEM:
                    yield (key.objectid, entry.name), entry.location.objectid


class _Pair(NamedTuple):
    """A file before and after."""

    before: Inode
    after: Inode


class _Diff:
    """The changes from one subvolume to another."""

    def __init__(self, before: _Side, after: _Side, times: bool, apart: bool) -> None:
        self.before, self.after, self.times, self.apart = before, after, times, apart
        # a snapshot has the top directory of what it was taken of
        tops = [side.inode(side.subvolume.root_dir) for side in (before, after)]
        self.related = _is_same(*tops)
        self._contents: dict[tuple[int, int], bool] = {}
        self._staying: dict[int, _Pair | None] = {}

    @cached_property
    def differences(self) -> list[Key]:
        """Keys of items that are not the same on both sides; of other subvolumes all."""
        trees = self.after.subvolume.tree, self.before.subvolume.tree
        if not self.apart:
            return [one.key for one in compare_trees(*trees)
                    if one.change != Change.SAME or not self.related]  # fmt: skip
        return [
            item.key
            for here, there in side_by_side(*trees)
            if (item := here or there) is not None
            # equal items say nothing of the bytes that they lead to
            and (not self.related or item.key.type == ItemType.EXTENT_DATA
                 or here is None or there is None or here.data != there.data)
        ]  # fmt: skip

    @cached_property
    def kinds(self) -> dict[int, set[int]]:
        """Types of the items that are not the same on both sides, by inode."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for key in self.differences:
            found[key.objectid].add(key.type)
        return found

    def may_differ(self, pair: _Pair, kind: int) -> bool:
        """Whether any item of a type is not that of the same file before."""
        return pair.before.ino != pair.after.ino or kind in self.kinds[pair.after.ino]

    def stays(self, ino: int) -> _Pair | None:
        """Return an inode that is the same file on both sides."""
        if ino not in self._staying:
            self._staying[ino] = self._find_staying(ino)
        return self._staying[ino]

    def _find_staying(self, ino: int) -> _Pair | None:
        before, after = self.before.inode(ino), self.after.inode(ino)
        if before is None or after is None:
            return None
        if ino == self.before.subvolume.root_dir == self.after.subvolume.root_dir:
            return _Pair(before, after)
        return _Pair(before, after) if self.related and _is_same(before, after) else None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Make a row for each change."""
        # by path now, and whether the directory stays: one may come to the place of another
        removed: dict[tuple[bytes, bool], tuple[bytes, Inode]] = {}
        added: dict[tuple[bytes, bool], Inode] = {}
        for ino in sorted(self.kinds):
            pair = self.stays(ino)
            if pair is not None:
                yield from self._of_staying(ino, pair)
                continue
            before, after = self.before.inode(ino), self.after.inode(ino)
            if before is not None:
                for link in self.before.links(ino):
                    place = self._path_now(link), self.stays(link[0]) is not None
                    removed[place] = self.before.path(link), before
            if after is not None:
                for link in self.after.links(ino):
                    added[self.after.path(link), self.stays(link[0]) is not None] = after
        yield from self._subvolumes()
        for place in removed.keys() & added.keys():
            (was, old), new = removed[place], added[place]
            if _type(old) == _type(new):
                del removed[place], added[place]
                yield from self._changes(_Pair(old, new), place[0], was)
        for was, inode in removed.values():
            yield _row("removed", was, before=inode)
        for (path, _), inode in added.items():
            yield _row("added", path, after=inode)

    def _path_now(self, link: Link) -> bytes:
        """Return the path that a name of before would have after: its directory may have moved."""
        directory, name = link
        if directory == self.before.subvolume.root_dir:
            return name
        if self.stays(directory) is not None:
            return join(self.after.directory(directory), name)
        (above,) = self.before.links(directory)
        return join(self._path_now(above), name)

    def _of_staying(self, ino: int, pair: _Pair) -> Iterator[dict[str, Any]]:
        """Tell new names and other contents of a file that is there before and after."""
        before, after = self.before.links(ino), self.after.links(ino)
        gone = sorted(self.before.path(link) for link in before - after)
        new = sorted(self.after.path(link) for link in after - before)
        for was, path in zip(gone, new, strict=False):
            yield self._renamed(pair, path, was)
        for path in new[len(gone) :]:
            yield _row("linked", path, after=pair.after)
        for was in gone[len(new) :]:
            yield _row("unlinked", was, before=pair.before)
        kept = sorted(before & after)
        if kept or not (gone or new):
            # under one of its names, and the top has none
            path = self.after.path(kept[0]) if kept else b""
            yield from self._changes(pair, path, self.before.path(kept[0]) if kept else b"")

    def _renamed(self, pair: _Pair, path: bytes, was: bytes) -> dict[str, Any]:
        content, attributes = self._compare(pair)
        return _row("renamed", path, was, pair.before, pair.after, content, attributes)

    def _changes(self, pair: _Pair, path: bytes, was: bytes) -> Iterator[dict[str, Any]]:
        content, attributes = self._compare(pair)
        if pair.before.ino != pair.after.ino and pair.before.nlink != pair.after.nlink and (
            _type(pair.after) != "directory"
        ):  # fmt: skip
            attributes.append("links")
        if content or attributes:
            shown = was if was != path else b""
            yield _row("changed", path, shown, pair.before, pair.after, content, attributes)

    def _compare(self, pair: _Pair) -> tuple[bool, list[str]]:
        """Return whether contents differ, and which attributes do."""
        before, after = pair
        differ = {
            "mode": before.mode != after.mode,
            "owner": (before.uid, before.gid) != (after.uid, after.gid),
            "time": self.times and before.mtime != after.mtime,
            "xattrs": self.may_differ(pair, ItemType.XATTR_ITEM)
            and self.before.subvolume.xattrs(before.ino) != self.after.subvolume.xattrs(after.ino),
            "flags": to_fs_flags(before.flags) != to_fs_flags(after.flags),
            "device": _type(after) == "device" and before.rdev != after.rdev,
        }
        return self._contents_differ(pair), [name for name, is_so in differ.items() if is_so]

    def _contents_differ(self, pair: _Pair) -> bool:
        before, after = pair
        if _type(after) not in ("file", "symlink"):
            return False
        if before.size != after.size:
            return True
        if not self.may_differ(pair, ItemType.EXTENT_DATA):
            return False
        numbers = before.ino, after.ino
        if numbers not in self._contents:
            self._contents[numbers] = any(
                self.before.subvolume.read_file(before.ino, start, end - start)
                != self.after.subvolume.read_file(after.ino, start, end - start)
                for start, end in self._apart(pair)
            )
        return self._contents[numbers]

    def _apart(self, pair: _Pair) -> Iterator[tuple[int, int]]:
        """Yield the ranges, a few MiB each, in which two files of a size share no extent."""
        size = pair.after.size
        sides = [_places(side.subvolume.extents(inode.ino), size)
                 for side, inode in zip((self.before, self.after), pair, strict=True)]  # fmt: skip
        edges = sorted({0, size, *(edge for side in sides for part in side for edge in part[:2])})
        begin = None
        for start, end in [*pairwise(edges), (size, size)]:
            before, after = (_place(side, start) for side in sides)
            differ = start < end and (
                before != after or before == _INLINE or (self.apart and before is not None)
            )
            if differ and begin is None:
                begin = start
            if not differ and begin is not None:
                for low in range(begin, start, _PIECE):
                    yield low, min(low + _PIECE, start)
                begin = None

    def _subvolumes(self) -> Iterator[dict[str, Any]]:
        """Tell entries of subvolumes that came and went."""
        keys = [key for key in self.differences if key.type == ItemType.DIR_INDEX]
        before = {(self._path_now(link), number): self.before.path(link)
                  for link, number in self.before.subvolumes(keys)}  # fmt: skip
        after = {(self.after.path(link), number) for link, number in self.after.subvolumes(keys)}
        gone = {number: was for (path, number), was in before.items()
                if (path, number) not in after}  # fmt: skip
        for path, number in sorted(after - before.keys()):
            was = gone.pop(number, None)
            yield _row("added" if was is None else "renamed", path, was or b"", kind=_SUBVOLUME)
        for was in gone.values():
            yield _row("removed", was, kind=_SUBVOLUME)


def _is_same(before: Inode | None, after: Inode | None) -> bool:
    """Whether inodes of one number are one file: made in one transaction, at one time."""
    if before is None or after is None:
        return False
    made = [(one.generation, one.otime, _type(one)) for one in (before, after)]
    return made[0] == made[1]


def _type(inode: Inode) -> str:
    return _TYPES.get(stat.S_IFMT(inode.mode), "file")


def _places(extents: Iterable[FileExtent], size: int) -> list[tuple[int, int, int, int]]:
    """Return what of a file is no hole: first byte, end; the extent, and which byte of it."""
    return [(one.start, min(one.end, size), one.disk_bytenr, one.offset)
            for one in extents if not one.is_zero and one.start < size]  # fmt: skip


def _place(parts: Sequence[tuple[int, int, int, int]], start: int) -> tuple[int, int] | None:
    """Return in which extent a byte of a file lies, and where; None for a hole."""
    at = bisect_right(parts, start, key=itemgetter(0)) - 1
    if at < 0 or parts[at][1] <= start:
        return None
    first, _, extent, offset = parts[at]
    return (extent, offset + start - first) if extent else _INLINE


def _row(
    change: str,
    path: bytes,
    was: bytes = b"",
    before: Inode | None = None,
    after: Inode | None = None,
    content: bool = False,
    attributes: Iterable[str] = (),
    *,
    kind: str = "",
) -> dict[str, Any]:
    inode = after or before
    return {
        "change": change,
        "path": path,
        "was": was,
        "type": kind or (_type(inode) if inode is not None else ""),
        "size_before": None if before is None else before.size,
        "size": None if after is None else after.size,
        "content": content,
        "attributes": ",".join(attributes),
    }
