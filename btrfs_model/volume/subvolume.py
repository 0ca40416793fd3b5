# SPDX-License-Identifier: GPL-2.0-only
"""A subvolume: its inodes, directories, names, extended attributes and files.

An entry of a directory is found by the hash of its name (DIR_ITEM); names whose hashes collide
share an item. The same entries stand a second time in the order of their creation (DIR_INDEX),
which is how ``readdir()`` sees them. The way back, from an inode to its names, is INODE_REF, and
INODE_EXTREF when the names in one directory do not fit one item.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault, NoSuchFileError
from btrfs_model.base.tables import html_table
from btrfs_model.ondisk.items import DirItem, dir_items, file_extent, inode_names
from btrfs_model.ondisk.keys import MAX_KEY, ItemType, Key
from btrfs_model.ondisk.layout import Payload
from btrfs_model.ondisk.structs import INODE_ITEM, RootItem
from btrfs_model.volume.data import FileExtent, FileReader
from btrfs_model.volume.roots import Root, timespec_ns
from btrfs_model.volume.tree import Item

if TYPE_CHECKING:
    from btrfs_model.volume.filesystem import Filesystem

T = TypeVar("T")

_MAX = MAX_KEY.offset
_NO_UUID = bytes(16)
# what an Inode has of the numbers of an inode item
_TO_NBYTES = slice(INODE_ITEM.places["nbytes"].stop)
_FROM_NLINK = slice(INODE_ITEM.places["nlink"].start, INODE_ITEM.places["sequence"].stop)
_TIMES = [INODE_ITEM.places[name] for name in ("atime", "ctime", "mtime", "otime")]


class SubvolumeName(NamedTuple):
    """Where a subvolume has its name: an entry of the directory `dirid` of subvolume `parent`."""

    parent: int
    dirid: int
    name: bytes


class Inode(NamedTuple):
    """An inode.

    Attributes
    ----------
    ino : int
        Its number.
    generation, transid : int
        Transactions that created it and that changed it last.
    size, nbytes : int
        Length of the file, and bytes of it that are no hole, as they are unpacked.
    rdev : int
        Of devices: major << 20 | minor.
    atime, ctime, mtime, otime : int
        Nanoseconds since 1970; `otime` is the time of creation.
    """

    ino: int
    generation: int
    transid: int
    size: int
    nbytes: int
    nlink: int
    uid: int
    gid: int
    mode: int
    rdev: int
    flags: int
    sequence: int
    atime: int
    ctime: int
    mtime: int
    otime: int


def device_number(rdev: int) -> int:
    """Return the number of a device (an inode's ``rdev``) as this machine's ``stat()`` has it."""
    return os.makedev(rdev >> 20 & 0xFFF, rdev & 0xFFFFF)


class InodeName(NamedTuple):
    """A name of an inode: entry `name`, number `index`, of the directory `parent`."""

    parent: int
    index: int  # type: ignore[assignment]
    name: bytes


class DirEntry(NamedTuple):
    """An entry of a directory, as ``readdir()`` gives it.

    Attributes
    ----------
    index : int
        Its number in the directory.
    name : bytes
        Without a path.
    location : Key
        Of the inode item; of the root item for subvolumes.
    type : int
        ``enum btrfs_file_type``.
    """

    index: int  # type: ignore[assignment]
    name: bytes
    location: Key
    type: int


def split_path(path: bytes) -> list[bytes]:
    """Names in a path; slashes at its ends and doubled ones do not matter."""
    return [name for name in path.split(b"/") if name not in (b"", b".")]


def join(directory: bytes, name: bytes) -> bytes:
    """Path of an entry of a directory; the top directory's path is empty."""
    return directory + b"/" + name if directory else name


class Subvolume:
    """A subvolume of a filesystem; see :meth:`Filesystem.subvolume`.

    Attributes
    ----------
    fs : Filesystem
        Where it is.
    id : int
        Its number.
    root : Root
        Its root item and where that lies.
    tree : Tree
        Inodes and directories.
    entry : SubvolumeName or None
        Where its name is; None for the top.
    """

    def __init__(self, fs: Filesystem, root: Root, entry: SubvolumeName | None) -> None:
        self.fs = fs
        self.id = root.id
        self.root = root
        self.tree = root.tree(fs.image)
        self.entry = entry

    def __repr__(self) -> str:
        objectid, name, _, read_only = self.shown
        access = ", read-only" if read_only else ""
        return f"Subvolume({objectid}, {name!r}{access}, of {self.fs.path!r})"

    def _repr_html_(self) -> str:
        item = self.item
        values = {"uuid": item.uuid.hex(), "parent_uuid": item.parent_uuid.hex(),
                  "received_uuid": item.received_uuid.hex(), "generation": item.generation,
                  "level": item.level}  # fmt: skip
        return html_table(repr(self), [], values.items())

    @property
    def shown(self) -> tuple[int, str, int, bool]:
        """Id, name, generation and whether it is read-only; no block is read for them."""
        name = b"" if self.entry is None else self.entry.name
        return (
            self.id, name.decode("utf-8", "surrogateescape"), self.item.generation,
            self.is_read_only,
        )  # fmt: skip

    @property
    def item(self) -> RootItem:
        """The root item."""
        return self.root.item

    @property
    def root_dir(self) -> int:
        """Inode number of the top directory."""
        return self.item.root_dirid

    @property
    def path(self) -> str:
        """Path from the top of the filesystem."""
        return self.fs.subvolume_path(self.id)

    @property
    def is_read_only(self) -> bool:
        """Whether it is read-only, as snapshots that can be sent are."""
        return self.root.is_read_only

    @property
    def uuid(self) -> bytes | None:
        """Its UUID, or None."""
        return _uuid(self.item.uuid)

    @property
    def parent_uuid(self) -> bytes | None:
        """UUID of the subvolume that it is a snapshot of, or None."""
        return _uuid(self.item.parent_uuid)

    @property
    def received_uuid(self) -> bytes | None:
        """UUID of the subvolume on the sending side, or None."""
        return _uuid(self.item.received_uuid)

    # ------------------------------------------------------------------------------ inodes --

    def _decode(self, item: Item, decode: Callable[[Payload], T]) -> T:
        """Decode an item; its place goes into the error."""
        return item.decode(decode, self.fs.path, self.id)

    def _items(self, ino: int, kind: int, low: int = 0, high: int = _MAX) -> Iterator[Item]:
        return self.tree.items((ino, kind, low), (ino, kind, high))

    def _missing(self, why: str, file: bytes | int | None = None) -> FileNotFoundError:
        return self.fs.missing(NoSuchFileError, why, self.id, file)

    def inode(self, file: str | bytes | int) -> Inode:
        """Return an inode, by number or path.

        Raises
        ------
        NoSuchFileError
            When there is none.
        NotCommittedError
            When there is one, but not in the last commit.
        """
        ino = file if isinstance(file, int) else self.resolve(file)
        item = self.tree.get((ino, ItemType.INODE_ITEM, 0))
        if item is None:
            raise self._missing(f"there is no inode {ino}", ino)
        flat = self._decode(item, INODE_ITEM.flat)
        times = [timespec_ns(flat[place]) for place in _TIMES]
        return Inode(ino, *flat[_TO_NBYTES], *flat[_FROM_NLINK], *times)

    def names(self, ino: int) -> list[InodeName]:
        """Names of an inode, those in INODE_REF items first, in the order of the tree."""
        first, last = (ino, ItemType.INODE_REF, 0), (ino, ItemType.INODE_EXTREF, _MAX)
        return [
            InodeName(*ref)
            for item in self.tree.items(first, last)
            for ref in self._decode(item, partial(inode_names, item.key))
        ]

    def path_of(self, ino: int) -> bytes:
        """Path of an inode by the first of its names; that of the top directory is empty.

        Raises
        ------
        NoSuchFileError
            When it has no name.
        CorruptImageError
            When directories contain each other.
        """
        parts = []
        seen = set()
        while ino != self.root_dir:
            names = self.names(ino)
            if not names:
                raise self._missing(f"inode {ino} has no name")
            if ino in seen:
                raise CorruptImageError(self.fs.path, Fault(Code.LOOP, self.id, found=ino))
            seen.add(ino)
            parts.append(names[0].name)
            ino = names[0].parent
        return b"/".join(reversed(parts))

    def paths_of(self, ino: int) -> list[bytes]:
        """All paths of an inode, in the kernel's order (ioctl INO_PATHS, ``paths_from_inode()``).

        Each of its names, behind the path of the directory that has it.

        Raises
        ------
        NoSuchFileError
            When it has no name.
        CorruptImageError
            When directories contain each other.
        """
        names = self.names(ino)
        if not names:
            raise self._missing(f"inode {ino} has no name")
        return [join(self.path_of(name.parent), name.name) for name in names]

    # -------------------------------------------------------------------------- directories --

    def lookup(self, directory: int, name: bytes) -> DirItem | None:
        """Return the entry of a directory by its name, or None."""
        return self.tree.lookup(directory, name)

    def resolve(self, path: str | bytes) -> int:
        """Return the inode number of a path inside the subvolume.

        Raises
        ------
        NoSuchFileError
            When there is no such path, or it leads into another subvolume.
        NotCommittedError
            When there is one, but not in the last commit.
        """
        raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
        location = self.tree.lookup_path((self.root_dir, ItemType.INODE_ITEM, 0), raw)
        if location is None or location[1] != ItemType.INODE_ITEM:
            shown = raw.decode("utf-8", "backslashreplace")
            raise self._missing(f"there is no file {shown!r}", raw)
        return location[0]

    def readdir(self, directory: str | bytes | int) -> Iterator[DirEntry]:
        """Iterate over the entries of a directory in the order of their indexes.

        Raises
        ------
        NoSuchFileError
            When there is no such directory.
        """
        ino = directory if isinstance(directory, int) else self.resolve(directory)
        if not stat.S_ISDIR(self.inode(ino).mode):
            raise self._missing(f"inode {ino} is not a directory")
        for item in self._items(ino, ItemType.DIR_INDEX):
            for entry in self._decode(item, dir_items):
                yield DirEntry(item.key.offset, entry.name, entry.location, entry.type)

    def xattrs(self, file: str | bytes | int) -> dict[bytes, bytes]:
        """Return the extended attributes of an inode, in the order of the tree."""
        ino = file if isinstance(file, int) else self.resolve(file)
        return {
            entry.name: entry.data
            for item in self._items(ino, ItemType.XATTR_ITEM)
            for entry in self._decode(item, dir_items)
        }

    # --------------------------------------------------------------------------------- data --

    def extents(self, file: str | bytes | int) -> list[FileExtent]:
        """Return the file extents of an inode, in the order of the file."""
        ino = file if isinstance(file, int) else self.resolve(file)
        return [
            FileExtent.of(item, self._decode(item, file_extent), self.fs.image, self.id)
            for item in self._items(ino, ItemType.EXTENT_DATA)
        ]

    def read_file(
        self, file: str | bytes | int, offset: int = 0, length: int | None = None
    ) -> bytes:
        """Read a file or the target of a symbolic link; data checksums are verified.

        Parameters
        ----------
        file : str, bytes or int
            Path inside the subvolume or inode number.
        offset : int
            First byte.
        length : int, optional
            Bytes wanted, to the end of the file without it. Fewer come back where the file ends.

        Raises
        ------
        NoSuchFileError
            When there is no such file.
        CorruptImageError
            When data are damaged; the file offset is the fault's.
        """
        with self.fs.image.lease:
            inode = self.inode(file)
            reader = FileReader(self.fs.image, self.fs.checksums, self.id, inode.ino)
            end = inode.size if length is None else min(inode.size, offset + length)
            return reader.read(self.extents(inode.ino), offset, end, inode.flags)

    def read_link(self, file: str | bytes | int) -> bytes:
        """Return the target of a symbolic link."""
        return self.read_file(file)


def _uuid(value: bytes) -> bytes | None:
    return None if value == _NO_UUID else value
