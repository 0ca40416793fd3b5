# SPDX-License-Identifier: GPL-2.0-only
"""All that can still be read of an image, and where it goes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError, SubvolumeNotFoundError
from btrfs_model.base.whole_file import whole_file
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.questions.rescue.content import Content
from btrfs_model.questions.rescue.files import Found, SavedSubvolume
from btrfs_model.questions.rescue.image import DamagedImage
from btrfs_model.questions.rescue.roots import State, choose, roots_table
from btrfs_model.questions.rescue.sinks import Archive, Folder, Nowhere, Refusal, Sink
from btrfs_model.volume.device.devices import Paths

if TYPE_CHECKING:
    import pandas as pd

_TOP: Final = int(ObjectId.FS_TREE)
_LOST: Final = b"lost+found"
_COLUMNS: Final = ("path", "kind", "problem", "where")
_MOST_TARGET: Final = 4095
_NEEDS: Final = "a path that ends in .tar, or of a folder"


@dataclass
class Rescued:
    """What a rescue found.

    Attributes
    ----------
    root : str
        The root that was taken: its generation, and what told of it.
    files, links, directories : int
        How many there are: inodes other than directories, further names of these, directories.
    size : int
        Bytes of regular files, as far as they could be read.
    """

    root: str = ""
    files: int = 0
    links: int = 0
    directories: int = 0
    size: int = 0
    _rows: list[tuple[bytes, str, str, str]] = field(default_factory=list, repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost and nothing is doubtful; attributes are not looked at."""
        return all(kind == "attribute" for _, kind, _, _ in self._rows)

    @property
    def table(self) -> pd.DataFrame:
        """What was lost or is doubtful, a row for each.

        ``path`` (in what was written; empty for what has none), ``kind`` (superblock, device, root,
        tree block, file, name, ...), ``problem``, ``where`` (block, keys, bytes of the file).
        """
        import pandas as pd

        rows = [(os.fsdecode(path), *rest) for path, *rest in self._rows]
        return pd.DataFrame(rows, columns=list(_COLUMNS), dtype="object")

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False))

    def _tell(self, path: bytes, kind: str, problem: str, where: str) -> None:
        self._rows.append((path, kind, problem, where))


@checked
def rescue_roots(image: Paths, *, mounted: bool = False) -> pd.DataFrame:
    """List the states of a damaged filesystem that are within reach.

    Parameters
    ----------
    image : str, os.PathLike or sequence of them
        File or block device; of a filesystem of several devices those that there are.
    mounted : bool
        Read a block device also while it is in use, as :meth:`.Filesystem.open` does.

    Returns
    -------
    pandas.DataFrame
        A row for each root of a tree of roots, the newest first, behind the copies of the
        superblock that are not good: ``generation``, ``bytenr``, ``level``, ``source`` (the copy of
        the superblock, its backup, or a scan of the devices), ``state`` (whether all of the trees
        of roots, files and checksums can be read, or how many blocks are lost).

    Raises
    ------
    NotBtrfsError
        When there is neither a superblock nor a tree block.
    OSError
        When the file cannot be read.
    """
    with DamagedImage.open(image, mounted=mounted) as opened:
        return roots_table(opened)


@checked
def rescue(
    image: Paths,
    to: str | os.PathLike[str] | BinaryIO | None = None,
    *,
    subvolume: str | int | None = None,
    root: int | None = None,
    mounted: bool = False,
) -> Rescued:
    """Read all that can still be read of an image, damaged or sound.

    Where a checksum exists, no byte that differs from it is given: such a sector comes from another
    copy, or is lost. What is lost is a hole of the file (in an archive zeros) and a row of the
    table. What no directory leads to is in ``lost+found``: ``subvolume-256-inode-300`` is inode 300
    of subvolume 256, or holds what was in it; ``subvolume-257`` is a subvolume without a place.
    The log of what was fsynced after the last commit is not replayed.

    Parameters
    ----------
    image : str, os.PathLike or sequence of them
        File or block device; of a filesystem of several devices those that there are. It stays as
        it is.
    to : str, os.PathLike or file object, optional
        A folder, new or empty; or a tar archive: a name in ``.tar``, or a file. Without it all is
        read and nothing written.
    subvolume : str or int, optional
        Path or id of the one that is wanted; without it all, each in its place.
    root : int, optional
        Generation or address of the root to be taken. Without it it is the newest whose tree of
        roots reads whole, and which has files; or where there is none the newest with any. Older
        copies of lost blocks are not mixed in; the table names an older root that reads whole.
    mounted : bool
        Read a block device also while it is in use, as :meth:`.Filesystem.open` does.

    Returns
    -------
    Rescued
        What there is, and the table of what is lost or doubtful.

    Raises
    ------
    NotBtrfsError
        When there is neither a superblock nor a tree block.
    SubvolumeNotFoundError
        When there is no such subvolume.
    BtrfsModelError
        When there is no such root, or the folder is not empty.
    OSError
        When something cannot be read or written.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(DamagedImage.open(image, mounted=mounted))
        work = _Rescue(choose(opened, root))
        wanted = work.wanted(subvolume)
        work.run(_sink(to, stack), wanted)
        return work.result


def _sink(to: str | os.PathLike[str] | BinaryIO | None, stack: ExitStack) -> Sink:
    if to is None:
        return Nowhere()
    if not isinstance(to, str | os.PathLike):
        return Archive(to, stack)
    suffixes = Path(to).suffixes
    if suffixes and suffixes[-1] == ".tar":
        return Archive(stack.enter_context(whole_file(to, special=True)), stack)
    if ".tar" in suffixes or (suffixes and suffixes[-1] in (".tgz", ".zip")):
        raise BtrfsModelError(f"{os.fspath(to)}: what is written is {_NEEDS}")
    return Folder(to)


class _Rescue:
    def __init__(self, state: State) -> None:
        self.state = state
        self.result = Rescued()
        place = state.place
        self.result.root = f"generation {place.generation}, {place.source}" if place else (
            "no root: the trees that a scan found")  # fmt: skip
        self._first: dict[tuple[int, int], bytes] = {}
        self._done: set[int] = set()
        self._place: bytes = _LOST
        self._has_lost = False

    def wanted(self, subvolume: str | int | None) -> int | None:
        """Return the id of a subvolume by its path or id."""
        state = self.state
        if subvolume is None:
            return None
        number = subvolume if isinstance(subvolume, int) else None
        if number is None:
            number = next(
                (one for one in state.subvolume_ids if self._path(one) == subvolume), None
            )
        if number is None and isinstance(subvolume, str) and subvolume.isdigit():
            number = int(subvolume)
        if number not in state.subvolume_ids:
            have = ", ".join(map(str, state.subvolume_ids)) or "none"
            raise SubvolumeNotFoundError(
                f"{state.image.path}: no subvolume {subvolume!r} can be read; ids: {have}"
            )
        return number

    def _path(self, number: int) -> str | None:
        """Return the path of a subvolume, None where a name on the way is lost."""
        parts: list[bytes] = []
        seen = set()
        while number != _TOP:
            name = self.state.names.get(number)
            if name is None or number in seen or name.parent not in self.state.trees:
                return None
            seen.add(number)
            parent = SavedSubvolume(self.state, name.parent, lambda *_: None)
            for _ in parent.walk(parent.root_dir, b""):
                pass
            if name.dirid not in parent.paths:
                return None
            parts += [name.name, parent.paths[name.dirid]]
            number = name.parent
        return os.fsdecode(b"/".join(filter(None, reversed(parts))))

    # ------------------------------------------------------------------------------ all of it --

    def run(self, sink: Sink, wanted: int | None) -> None:
        """Send all files, or those of a subvolume, to a sink."""
        state, tell = self.state, self.result._tell
        for kind, problem, where in state.image.notes:
            tell(b"", kind, problem, where)
        ids = state.subvolume_ids if wanted is None else [wanted]
        for _, kind, problem, where in state.problems:
            tell(b"", kind, problem, where)
        if not ids:
            tell(b"", "tree", "no tree of files can be read", state.image.path)
        self._tell_trees()
        top = wanted if wanted is not None else _TOP
        if top in state.trees:
            self._subvolume(sink, top, b"", enters=wanted is None)
        else:
            sink.add(_made(b"", stat.S_IFDIR | 0o755), None)
        for number in ids:
            if number not in self._done:
                path = self._place_lost(sink) + b"/subvolume-%d" % number
                tell(path, "subvolume", "no directory leads to it", f"tree {number}")
                self._subvolume(sink, number, path, enters=wanted is None)
        sink.end()

    def _tell_trees(self) -> None:
        """List the tree blocks that are lost, of the trees that all files need."""
        state = self.state
        shared = {"the tree of roots": state.root_tree,
                  "the tree of checksums": state.trees.get(int(ObjectId.CSUM_TREE))}  # fmt: skip
        for name, tree in shared.items():
            for lost in tree.lost if tree else ():
                what = f"{name}: {lost.problem}{_TAKEN if lost.is_taken else ''}"
                self.result._tell(b"", "tree block", what, lost.where)
        if shared["the tree of checksums"] is None:
            self.result._tell(b"", "tree", "there is no tree of checksums: no data are checked",
                              "tree 7")  # fmt: skip

    def _place_lost(self, sink: Sink) -> bytes:
        """Return the folder of what has lost its place, made when it is needed first."""
        if not self._has_lost:
            self._has_lost = True
            sink.add(_made(self._place, stat.S_IFDIR | 0o700), None)
        return self._place

    def _subvolume(self, sink: Sink, number: int, path: bytes, *, enters: bool) -> None:
        """Send a subvolume, and those in it, to a sink."""
        stack = [(number, path)]
        while stack:
            number, path = stack.pop()
            self._done.add(number)
            for lost in self.state.trees[number].lost:
                what = f"{lost.problem}{_TAKEN if lost.is_taken else ''}"
                self.result._tell(path, "tree block", what, f"tree {number}, {lost.where}")
            saved = SavedSubvolume(self.state, number, self.result._tell)
            for found in self._files(sink, saved, path):
                if not found.subvolume:
                    self._file(sink, saved, found)
                    continue
                name = self.state.names.get(found.subvolume)
                is_own = name is None or name.parent == number
                if enters and is_own and self._is_new(found.subvolume):
                    self._done.add(found.subvolume)
                    stack.append((found.subvolume, found.path))
                else:
                    sink.add(_made(found.path, found.mode), None)
                    self.result.directories += 1

    def _is_new(self, number: int) -> bool:
        return number in self.state.trees and number not in self._done

    def _files(self, sink: Sink, saved: SavedSubvolume, path: bytes) -> Iterator[Found]:
        top = saved.row(saved.root_dir)
        mode = top["mode"] if top and stat.S_ISDIR(top["mode"]) else stat.S_IFDIR | 0o755
        yield Found(path, saved.root_dir, mode)
        yield from saved.walk(saved.root_dir, path)
        if not path:
            self._place = saved.taken[b""].beside(_LOST)
        for found in saved.strays(self._place + b"/subvolume-%d" % saved.id):
            if found.path.startswith(self._place + b"/"):
                self._place_lost(sink)
            yield found

    def _file(self, sink: Sink, saved: SavedSubvolume, found: Found) -> None:
        result, tell = self.result, partial(self.result._tell, found.path)
        row = saved.described(found) | {"path": found.path, "mode": found.mode}
        row["rdev"] &= 0xFFFFFFFF
        if stat.S_ISDIR(found.mode):
            result.directories += 1
            said = sink.add(row, None)
            if said:
                tell(*said, f"tree {saved.id}, inode {found.ino}")
            return
        key = (saved.id, found.ino)
        if key in self._first:
            said = sink.link(row, self._first[key])
            result.links += 1
        else:
            said = self._new_file(sink, saved, row)
            if said is None or said[0] != "file":
                self._first[key] = found.path
                result.files += 1
        if said:
            tell(*said, f"tree {saved.id}, inode {found.ino}")

    def _new_file(self, sink: Sink, saved: SavedSubvolume, row: dict[str, Any]) -> Refusal:
        """Send a file to a sink; return what of it could not be made."""
        path, ino, mode, size = row["path"], row["ino"], row["mode"], row["size"]
        content = None
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            extents = saved.extents(ino, path)
            lost = saved.lost_ranges(ino, size, row["nbytes"])
            content = Content(self.state, saved.id, ino, extents, size, row["flags"], lost)
        if content is not None and stat.S_ISLNK(mode):
            parts = list(content.parts()) if 0 < size <= _MOST_TARGET else []
            row["target"] = b"".join(bytes(data) for _, data in parts)
            if len(row["target"]) != size or not size or b"\0" in row["target"]:
                return "file", "where the link leads is lost"
            content = None
        said = sink.add(row, content)
        if content is not None:
            self._tell_content(path, content)
            self.result.size += content.given
        return said

    def _tell_content(self, path: bytes, content: Content) -> None:
        lost = sum(high - low for low, high in content.lost)
        if lost:
            what = f"{lost} bytes are lost: {content.why}"
            self.result._tell(path, "file", what, content.lost_ranges)
        if content.unchecked:
            what = f"{content.unchecked} bytes could not be checked: their checksums are lost"
            self.result._tell(path, "file", what, "")


_TAKEN: Final = "; what is there was taken, and may be of another time"


def _made(path: bytes, mode: int) -> dict[str, Any]:
    """Return a row for a directory that has no inode."""
    return {"path": path, "ino": 0, "mode": mode, "uid": 0, "gid": 0, "rdev": 0, "size": 0,
            "flags": 0, "atime": 0, "mtime": 0, "xattrs": {}, "target": None}  # fmt: skip
