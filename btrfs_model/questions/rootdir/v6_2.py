# SPDX-License-Identifier: GPL-2.0-only
"""The files of a folder as ``mkfs.btrfs --rootdir`` of btrfs-progs 6.2 copies them.

Inodes have the numbers of the source, folder after folder comes in, in the order of its listing,
and holes are written. The uppermost folder stays what it was except for its size.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from btrfs_model.mount.mkfs.writer.transaction import Transactions
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.questions.rootdir.items import EXTENT, KINDS, TOP, Items, Place
from btrfs_model.questions.rootdir.source import attributes, round_up

_SECOND: Final = 10**9


class Seen(NamedTuple):
    """What is asked of a file; times in nanoseconds."""

    mode: int
    size: int
    ino: int
    nlink: int
    uid: int
    gid: int
    atime: int
    mtime: int
    ctime: int


class Source(Protocol):
    """A folder with files, by their paths."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, in the order of readdir."""

    def stat(self, path: str) -> Seen:
        """Return what a file is, or a link."""

    def read(self, path: str) -> bytes:
        """Return the data of a file."""

    def read_link(self, path: str) -> str:
        """Return where a link leads."""

    def attributes(self, path: str) -> list[tuple[bytes, bytes]]:
        """Return the attributes of a file, in the order of its listing."""


class Folder:
    """A :class:`Source`: files of this machine."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder."""
        return [entry.name for entry in Path(path).iterdir()]

    def stat(self, path: str) -> Seen:
        """Return what a file is."""
        seen = Path(path).lstat()
        return Seen(seen.st_mode, seen.st_size, seen.st_ino, seen.st_nlink, seen.st_uid,
                    seen.st_gid, seen.st_atime_ns, seen.st_mtime_ns, seen.st_ctime_ns)  # fmt: skip

    def read(self, path: str) -> bytes:
        """Return the data of a file."""
        return Path(path).read_bytes()

    def read_link(self, path: str) -> str:
        """Return where a link leads."""
        return str(Path(path).readlink())

    def attributes(self, path: str) -> list[tuple[bytes, bytes]]:
        """Return the attributes of a file."""
        return attributes(Path(path), in_order=False)


class CopyOf62:
    """Copies a folder (``traverse_directory()``).

    Parameters
    ----------
    trees : Transactions
        The filesystem, in a transaction.
    source : Source
        Where the files are.
    """

    def __init__(self, trees: Transactions, source: Source) -> None:
        self.items, self.source = Items(trees, dated=False), source
        self.trees = trees
        self.made: set[int] = set()

    def run(self, folder: str) -> None:
        """Copy what is in a folder.

        Raises
        ------
        OSError
            Where a file cannot be read, or has no room. EEXIST where two files have one number,
            as the folder lies on several filesystems.
        """
        top = Place(self.trees.fs_root, TOP)
        self.items.set_size(top, self._folder_size(folder))
        todo = [(folder, top)]
        while todo:
            above, parent = todo.pop(0)
            for index, name in enumerate(self.source.listdir(above), 2):
                path = f"{above.rstrip('/')}/{name}"
                seen = self.source.stat(path)
                place = Place(parent.root, seen.ino + TOP)
                raw = os.fsencode(name)
                target = structs.DiskKey(*place.key(ItemType.INODE_ITEM))
                self.items.add_name(parent, raw, index, target, KINDS[stat.S_IFMT(seen.mode)])
                self.items.refer(place, parent.number, index, raw)
                if self._file(path, place, seen) and stat.S_ISDIR(seen.mode):
                    todo.append((path, place))

    def _folder_size(self, path: str) -> int:
        return 2 * sum(len(os.fsencode(name)) for name in self.source.listdir(path))

    def _file(self, path: str, place: Place, seen: Seen) -> bool:
        """Copy a file but its name; False where it is there already."""
        if place.number in self.made:
            if seen.nlink <= 1:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            # it is found by an attempt to add it, which may split a leaf
            key = place.key(ItemType.INODE_ITEM)
            self.trees.insert_empty(place.root, key, structs.INODE_ITEM.size)
            return False
        self.made.add(place.number)
        self.items.add_inode(place, self._inode(path, seen))
        self.items.add_attributes(place, self.source.attributes(path))
        if stat.S_ISREG(seen.mode):
            self._data(path, place, seen.size)
        elif stat.S_ISLNK(seen.mode):
            target = os.fsencode(self.source.read_link(path)) + b"\0"
            self.items.add_inline(place, target, len(target))
        return True

    def _inode(self, path: str, seen: Seen) -> structs.InodeItem:
        """Return the item of an inode (``fill_inode_item()``)."""
        size, links, nbytes = seen.size, seen.nlink, 0
        if stat.S_ISDIR(seen.mode):
            size, links = self._folder_size(path), 1
        elif stat.S_ISREG(seen.mode):
            nbytes = size if self.items.is_inline(size) else round_up(size)
        elif stat.S_ISLNK(seen.mode):
            nbytes = size + 1
        times = [structs.Timespec(one // _SECOND, 0)
                 for one in (seen.atime, seen.ctime, seen.mtime, 0)]  # fmt: skip
        return structs.InodeItem(self.trees.generation, 0, size, nbytes, 0, links, seen.uid,
                                 seen.gid, seen.mode, 0, 0, 0, (0, 0, 0, 0), *times)  # fmt: skip

    def _data(self, path: str, place: Place, size: int) -> None:
        """Copy the data of a file (``add_file_items()``)."""
        if not size:
            return
        data = self.source.read(path)
        if self.items.is_inline(size):
            self.items.add_inline(place, data, len(data))
            return
        for at in range(0, size, EXTENT):
            part = data[at : at + EXTENT]
            self.items.add_extent(place, at, part, (len(part), 0))
