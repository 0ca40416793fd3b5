# SPDX-License-Identifier: GPL-2.0-only
"""A fresh filesystem with the files of a folder: ``mkfs.btrfs --rootdir`` of btrfs-progs 7.3.

It is the same image, byte by byte, except what chance decides: uuids, and the time at which
mkfs.btrfs makes subvolumes, which it takes from the clock.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from btrfs_model.mount.mkfs.identity import source_date
from btrfs_model.mount.mkfs.layout import Format
from btrfs_model.mount.mkfs.make import fresh
from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.block import Key
from btrfs_model.mount.mkfs.writer.transaction import Transactions
from btrfs_model.mount.mount import random_uuid
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import FileType, InodeFlag
from btrfs_model.ondisk.hashes import extref_hash, name_hash
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.questions.rootdir_compress import UNIT, Compression
from btrfs_model.volume.memory import Memory

SUBVOLUMES: Final = ("rw", "ro", "default", "default-ro")
"""What a folder can become."""

FLAGS: Final = ("nodatacow", "nodatasum")
"""Flags that an inode can be given."""

_SECTOR: Final = 4096
_EXTENT: Final = 1 << 20
"""Bytes of the largest extent that mkfs makes."""
_SECOND: Final = 10**9
_NAMES: Final = 3 * 4096
_CHUNK: Final = 8 << 20
_TOP: Final = 256
"""Number of the uppermost folder, and of the first subvolume."""
_SIZE, _NLINK, _INODE_FLAGS = 16, 40, 64
_INLINE_HEAD: Final = structs.ITEM.size + structs.FILE_EXTENT_HEAD.size
_TRANSID: Final = slice(17, 25)
"""Where a name says in which transaction it came; mkfs.btrfs leaves it as it is in attributes."""
_NOTHING: Final = slice(0, 0)
_NOWHERE: Final = structs.DiskKey(0, 0, 0)
_NO_HOLES: Final = 1 << 9
_DEFAULT_SUBVOL: Final = 1 << 1
_COMPRESSION_FEATURES: Final = {"lzo": 1 << 3, "zstd": 1 << 4}
_KINDS: Final = {
    stat.S_IFREG: FileType.REG_FILE, stat.S_IFDIR: FileType.DIR, stat.S_IFLNK: FileType.SYMLINK,
    stat.S_IFCHR: FileType.CHRDEV, stat.S_IFBLK: FileType.BLKDEV, stat.S_IFIFO: FileType.FIFO,
    stat.S_IFSOCK: FileType.SOCK,
}  # fmt: skip


NewUuid = Callable[[int], bytes]
"""Returns the uuid of a subvolume by its number."""


class _Place(NamedTuple):
    """An inode: its tree and number."""

    root: Root
    number: int

    def key(self, kind: int, offset: int = 0) -> Key:
        return self.number, int(kind), offset


@dataclass(frozen=True)
class Rootdir:
    """What to copy, and how.

    Parameters
    ----------
    folder : str
        Its files are copied.
    subvolumes : mapping of str to str
        Which folders below it become subvolumes: paths, and one of :data:`SUBVOLUMES`.
    flags : mapping of str to str
        Which paths below it have flags: one of :data:`FLAGS`.
    compress : str
        How data are compressed, such as ``zstd:3``.
    """

    folder: str
    subvolumes: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    compress: str = ""

    def check(self) -> None:
        """Refuse what mkfs.btrfs refuses.

        Raises
        ------
        OSError
            Where the folder is none.
        ValueError
            For a path or word that cannot be, with the words of mkfs.btrfs.
        """
        folder = Path(self.folder)
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.folder)
        for path, kind in self.subvolumes.items():
            if kind not in SUBVOLUMES:
                raise ValueError(f"unrecognized subvolume type: '{kind}'")
            full = folder / path
            if not os.path.lexists(full):
                raise ValueError(f"subvolume path does not exist: {path}")
            if full.is_symlink() or not full.is_dir():
                raise ValueError(f"subvolume is not a directory: {path}")
        if sum(kind.startswith("default") for kind in self.subvolumes.values()) > 1:
            raise ValueError("default subvolume can only be specified once")
        Compression.parse(self.compress)
        for path, names in self.flags.items():
            if not names or not set(names.split(",")) <= set(FLAGS):
                raise ValueError(f"unknown inode flag: {names}")
            if not os.path.lexists(folder / path):
                raise ValueError(f"inode path does not exist: {path}")


def smallest_for(folder: str, options: Format) -> int:
    """Return the size of the device that a folder needs (``btrfs_mkfs_size_dir()``), bytes."""
    inodes = data = 0
    seen: set[tuple[int, int]] = set()
    for path, status in _walk(Path(folder)):
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        inodes += 1
        if stat.S_ISREG(status.st_mode):
            data += sum(_up(end) - start for start, end in data_ranges(path, status.st_size))
    metadata = inodes * (_NAMES + _SECTOR) + data // 8
    size = options.smallest
    for needed, profile, least in ((metadata, options.metadata, 32), (data, options.data, 64)):
        copies, first = (2, least << 20) if profile == "dup" else (1, _CHUNK)
        if needed > first:
            size += (-(-needed // first) * first - first) * copies
    return size


def make(source: Rootdir, options: Format, *, seed: int = 0, shrink: bool = False) -> Memory:
    """Make a filesystem with the files of a folder.

    Parameters
    ----------
    source : Rootdir
        What to copy.
    options : Format
        What to make; the device becomes as large as the files need.
    seed : int
        What uuids that nobody has chosen come from.
    shrink : bool
        Whether the device shall end where its last chunk does.

    Raises
    ------
    OSError
        Where a file cannot be read, or has no room.
    ValueError
        For options that mkfs.btrfs refuses.
    """
    source.check()
    options = replace(options, size=max(options.size, smallest_for(source.folder, options)))
    options.check()
    choice = random.Random(f"subvolumes {seed}")

    def fill(trees: Transactions, seconds: int) -> list[Root]:
        copy = Copy(trees, source, seconds, lambda _: random_uuid(choice))
        copy.run()
        return copy.subvolumes

    return fresh(options, seed, fill, shrink=shrink)


class Copy:
    """The files of a folder, as they come into a filesystem (``mkfs/rootdir.c``).

    Parameters
    ----------
    trees : Transactions
        The filesystem, in a transaction.
    source : Rootdir
        What to copy; checked already.
    seconds : int
        When roots of subvolumes are made.
    """

    def __init__(
        self, trees: Transactions, source: Rootdir, seconds: int, new_uuid: NewUuid
    ) -> None:
        self.trees, self.source, self.when = trees, source, seconds
        self.new_uuid = new_uuid
        self.no_holes = bool(trees.raw.incompat_flags & _NO_HOLES)
        self.date = source_date()
        self.compression = Compression.parse(source.compress)
        self.subvolumes: list[Root] = []
        self._kinds = {os.path.normpath(path): kind for path, kind in source.subvolumes.items()}
        self._flags = {os.path.normpath(path): names for path, names in source.flags.items()}
        self._places: dict[str, _Place] = {}
        self._next: dict[_Place, int] = {}
        self._links: dict[tuple[int, int, int], int] = {}
        self._packed = False

    def run(self) -> None:
        """Copy everything."""
        folder, default = Path(self.source.folder), 0
        for path, status in _walk(folder):
            copy = os.path.normpath(path.relative_to(folder))
            if copy == ".":
                self._top(path, copy, _Place(self.trees.fs_root, _TOP), status)
            elif copy in self._kinds:
                root = self._subvolume(path, copy, status)
                if self._kinds[copy].startswith("default"):
                    default = root.number
            else:
                self._file(path, copy, status)
        if default:
            self._set_default(default)
        if self._packed and self.compression:
            self._feature(_COMPRESSION_FEATURES.get(self.compression.kind, 0))

    def _feature(self, bits: int) -> None:
        raw = self.trees.raw
        self.trees.raw = raw._replace(incompat_flags=raw.incompat_flags | bits)

    # ------------------------------------------------------------------------------- inodes --

    def _inode(self, copy: str, status: os.stat_result) -> structs.InodeItem:
        """Return the item of an inode without a name (``stat_to_inode_item()``)."""
        seconds = [int(one // _SECOND) for one in (status.st_atime_ns, status.st_ctime_ns,
                                                   status.st_mtime_ns)]  # fmt: skip
        if self.date is not None:
            seconds = [self.date, self.date, min(seconds[2], self.date)]
        times = [structs.Timespec(one, 0) for one in (*seconds, 0)]
        flags, words = 0, self._flags.get(copy, "").split(",")
        if "nodatacow" in words:
            flags |= InodeFlag.NODATACOW
            if stat.S_ISREG(status.st_mode):
                flags |= InodeFlag.NODATASUM
        if "nodatasum" in words:
            flags |= InodeFlag.NODATASUM
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        return structs.InodeItem(0, 0, size, 0, 0, 0, status.st_uid, status.st_gid, status.st_mode,
                                 0, flags, 0, (0, 0, 0, 0), *times)  # fmt: skip

    def _update(self, place: _Place, inode: structs.InodeItem) -> None:
        self._change(place, structs.INODE_ITEM.pack(inode), 0, room=0)

    def _change(self, place: _Place, data: bytes, at: int, *, room: int = 1) -> None:
        trees = self.trees
        path, _ = trees.search(place.root, place.key(ItemType.INODE_ITEM), room, change=True)
        path.leaf.write(path.slot, data, at)
        trees.mark_dirty(path.leaf)

    def _read(self, place: _Place) -> structs.InodeItem:
        path, _ = self.trees.search(place.root, place.key(ItemType.INODE_ITEM))
        return structs.INODE_ITEM.unpack(path.leaf.read(path.slot))

    def _grow(self, parent: _Place, name: bytes) -> None:
        """Count a name in the size of a folder."""
        inode = self._read(parent)
        self._change(parent, (inode.size + 2 * len(name)).to_bytes(8, "little"), _SIZE)

    def _top(self, path: Path, copy: str, place: _Place, status: os.stat_result) -> None:
        """Make the uppermost folder of a tree what a folder is."""
        self._attributes(path, place)
        self._update(place, self._inode(copy, status)._replace(nlink=1))
        self._enter(copy, place)

    def _enter(self, copy: str, place: _Place) -> None:
        self._places[copy] = place
        self._next[place] = 2

    def _parent(self, copy: str) -> tuple[_Place, bytes]:
        above, _, name = copy.rpartition("/")
        return self._places[above or "."], os.fsencode(name)

    def _index(self, parent: _Place) -> int:
        self._next[parent] += 1
        return self._next[parent] - 1

    def _file(self, path: Path, copy: str, status: os.stat_result) -> None:
        """Copy a file that is no subvolume (``ftw_add_inode()``)."""
        parent, name = self._parent(copy)
        mode, linked = status.st_mode, status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
        first = (parent.root.number, status.st_dev, status.st_ino)
        if linked and first in self._links:
            self._link(_Place(parent.root, self._links[first]), parent, name, mode)
            return
        root = parent.root
        root.last_inode = max(root.last_inode, _TOP) + 1
        place = _Place(root, root.last_inode)
        inode = self._inode(copy, status)
        key = place.key(ItemType.INODE_ITEM)
        self.trees.insert(root, key, structs.INODE_ITEM.pack(inode))
        self._link(place, parent, name, mode)
        if linked:
            self._links[first] = place.number
        inode = self._read(place)
        self._attributes(path, place)
        if stat.S_ISDIR(mode):
            self._enter(copy, place)
        elif stat.S_ISREG(mode):
            self._update(place, self._data(path, place, inode))
        elif stat.S_ISLNK(mode):
            # mkfs.btrfs writes the zero byte behind the target, too
            target = os.fsencode(path.readlink()) + b"\0"
            self._inline(place, target, len(target), 0)
            self._update(place, inode._replace(nbytes=len(target)))

    def _link(self, place: _Place, parent: _Place, name: bytes, mode: int) -> None:
        """Give an inode a name (``btrfs_add_link()``)."""
        index = self._index(parent)
        self._refer(place, parent.number, index, name)
        links = self._read(place).nlink + 1
        self._change(place, links.to_bytes(4, "little"), _NLINK)
        if links == 1:
            self._inherit(place, parent)
        target = structs.DiskKey(*place.key(ItemType.INODE_ITEM))
        self._entry(parent, name, index, target, _KINDS[stat.S_IFMT(mode)])
        self._grow(parent, name)

    def _refer(self, place: _Place, parent: int, index: int, name: bytes) -> None:
        """Add a name to an inode (``btrfs_insert_inode_ref()``)."""
        data = structs.INODE_REF.pack(structs.RawInodeRef(index, len(name))) + name
        try:
            self._append(place.root, place.key(ItemType.INODE_REF, parent), data)
        except OverflowError:
            head = structs.RawInodeExtref(parent, index, len(name))
            key = place.key(ItemType.INODE_EXTREF, extref_hash(parent, name))
            self._append(place.root, key, structs.INODE_EXTREF.pack(head) + name)

    def _append(self, root: Root, key: Key, data: bytes, kept: slice = _NOTHING) -> None:
        """Insert an item, or add to that which is there; some bytes are what lay there."""
        trees = self.trees
        path, found = trees.insert_empty(root, key, len(data))
        before = path.leaf.size(path.slot) if found else 0
        if found:
            trees.extend(path, len(data))
        path.leaf.write(path.slot, data[: kept.start], before)
        path.leaf.write(path.slot, data[kept.stop :], before + kept.stop)
        trees.mark_dirty(path.leaf)

    def _inherit(self, place: _Place, parent: _Place) -> None:
        """Take over flags of the folder (``inherit_inode_flags()``)."""
        above, inode = self._read(parent).flags, self._read(place)
        flags = inode.flags
        if above & InodeFlag.NODATACOW:
            flags |= InodeFlag.NODATACOW
            if stat.S_ISREG(inode.mode):
                flags |= InodeFlag.NODATASUM
        self._change(place, flags.to_bytes(8, "little"), _INODE_FLAGS, room=0)

    def _entry(
        self, parent: _Place, name: bytes, index: int, target: structs.DiskKey, kind: int
    ) -> None:
        """Add a name to a folder (``btrfs_insert_dir_item()``)."""
        head = structs.RawDirItem(target, self.trees.generation, 0, len(name), kind)
        data = structs.DIR_ITEM.pack(head) + name
        self._append(parent.root, parent.key(ItemType.DIR_ITEM, name_hash(name)), data)
        self._append(parent.root, parent.key(ItemType.DIR_INDEX, index), data)

    def _attributes(self, path: Path, place: _Place) -> None:
        try:
            names = os.listxattr(path, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            return
        for name, text in sorted((os.fsencode(one), one) for one in names):
            value = os.getxattr(path, text, follow_symlinks=False)
            head = structs.RawDirItem(_NOWHERE, 0, len(value), len(name), FileType.XATTR)
            key = place.key(ItemType.XATTR_ITEM, name_hash(name))
            self._append(place.root, key, structs.DIR_ITEM.pack(head) + name + value, _TRANSID)

    # --------------------------------------------------------------------------- subvolumes --

    def _subvolume(self, path: Path, copy: str, status: os.stat_result) -> Root:
        """Make a folder a subvolume (``ftw_add_subvol()``)."""
        trees, number = self.trees, _TOP + len(self.subvolumes)
        read_only = self._kinds[copy].endswith("ro")
        root = trees.make_subvolume(number, self.when, self.new_uuid(number), read_only=read_only)
        self.subvolumes.append(root)
        parent, name = self._parent(copy)
        index = self._index(parent)
        target = structs.DiskKey(*root.key)
        self._entry(parent, name, index, target, FileType.DIR)
        self._grow(parent, name)
        head = structs.RawRootRef(parent.number, index, len(name))
        data = structs.ROOT_REF.pack(head) + name
        above = parent.root.number
        trees.insert(trees.tree_root, (number, int(ItemType.ROOT_BACKREF), above), data)
        trees.insert(trees.tree_root, (above, int(ItemType.ROOT_REF), number), data)
        self._top(path, copy, _Place(root, _TOP), status)
        return root

    def _set_default(self, number: int) -> None:
        trees = self.trees
        key = (int(ObjectId.ROOT_TREE_DIR), int(ItemType.DIR_ITEM), name_hash(b"default"))
        path, _ = trees.search(trees.tree_root, key, change=True)
        target = structs.DiskKey(number, ItemType.ROOT_ITEM, 0)
        path.leaf.write(path.slot, structs.DISK_KEY.pack(target))
        trees.mark_dirty(path.leaf)
        self._feature(_DEFAULT_SUBVOL)

    # --------------------------------------------------------------------------------- data --

    def _inline(self, place: _Place, data: bytes, size: int, compression: int) -> None:
        head = structs.FileExtentHead(self.trees.generation, size, compression, 0, 0, 0)
        key = place.key(ItemType.EXTENT_DATA)
        self.trees.insert(place.root, key, structs.FILE_EXTENT_HEAD.pack(head) + data)

    def _data(self, path: Path, place: _Place, inode: structs.InodeItem) -> structs.InodeItem:
        """Copy the data of a file (``add_file_items()``); return its inode item."""
        if not inode.size:
            return inode
        with path.open("rb") as file:
            if inode.size < _SECTOR and inode.size <= self.trees.capacity - _INLINE_HEAD:
                data = file.read()
                packed = self.compression.inline(data) if self.compression else None
                number = self.compression.number if self.compression and packed else 0
                self._inline(place, packed or data, len(data), number)
                return inode._replace(nbytes=len(data))
            at = 0
            for start, end in [*data_ranges(path, inode.size), (_up(inode.size), 0)]:
                self._hole(place, _up(at), start)
                at = start
                while at < end:
                    file.seek(at)
                    data = file.read(min(_EXTENT, end - at))
                    length, inode = self._extent(place, inode, at, data)
                    at += length
        return inode

    def _hole(self, place: _Place, start: int, end: int) -> None:
        """Note a hole, where holes are noted."""
        if self.no_holes or start >= end:
            return
        length = end - start
        item = structs.RawFileExtent(self.trees.generation, length, 0, 0, 0, 1, 0, 0, 0, length)
        key = place.key(ItemType.EXTENT_DATA, start)
        self.trees.insert(place.root, key, structs.FILE_EXTENT_ITEM.pack(item))

    def _extent(
        self, place: _Place, inode: structs.InodeItem, at: int, data: bytes
    ) -> tuple[int, structs.InodeItem]:
        """Write the first of some data as one extent; return how much that is."""
        flags, length, packed = inode.flags, len(data), None
        if self.compression is None or flags & (InodeFlag.NODATASUM | InodeFlag.NOCOMPRESS):
            whole = length // _SECTOR * _SECTOR
            if whole and not flags & InodeFlag.NODATASUM:
                # what is no whole sector comes alone
                length = whole
        elif length > _SECTOR:
            unit = data[:UNIT]
            packed = self.compression.extent(unit, first=not flags & InodeFlag.COMPRESS)
            if packed is not None:
                length, self._packed = len(unit), True
                flags |= InodeFlag.COMPRESS
            elif not flags & InodeFlag.COMPRESS:
                flags |= InodeFlag.NOCOMPRESS
        number = self.compression.number if self.compression and packed is not None else 0
        self._store(place, at, data[:length] if packed is None else packed, (length, number),
                    sums=not flags & InodeFlag.NODATASUM)  # fmt: skip
        return length, inode._replace(flags=flags, nbytes=inode.nbytes + _up(length))

    def _store(
        self, place: _Place, at: int, data: bytes, kept: tuple[int, int], *, sums: bool
    ) -> None:
        """Write an extent; `kept` is how long it is, and how it is compressed."""
        trees, (length, compression) = self.trees, kept
        size, ram = _up(len(data)), _up(length)
        data = data.ljust(size, b"\0")
        start = trees.reserve(place.root, size, data=True)
        trees.write_data(start, data)
        for offset in range(0, size * sums, _SECTOR):
            trees.add_sum(start + offset, data[offset : offset + _SECTOR])
        trees.add_data(start, size)
        item = structs.RawFileExtent(trees.generation, ram, compression, 0, 0, 1, start, size, 0,
                                     ram)  # fmt: skip
        key = place.key(ItemType.EXTENT_DATA, at)
        trees.insert(place.root, key, structs.FILE_EXTENT_ITEM.pack(item))
        trees.refer(start, size, structs.ExtentDataRef(place.root.number, place.number, at, 1))


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield a folder and all below it, each before what is in it, by the bytes of names."""
    todo = [folder]
    while todo:
        path = todo.pop()
        status = path.stat(follow_symlinks=path == folder)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            todo += sorted(path.iterdir(), key=lambda one: os.fsencode(one.name), reverse=True)


def data_ranges(path: Path, size: int) -> list[tuple[int, int]]:
    """Return where a file has data: ranges that begin at a sector, the last up to its end."""
    ranges: list[tuple[int, int]] = []
    with path.open("rb") as file:
        at = 0
        while at < size:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA) // _SECTOR * _SECTOR
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            at = min(_up(os.lseek(file.fileno(), start, os.SEEK_HOLE)), size)
            ranges.append((start, at))
    return ranges


def _up(number: int) -> int:
    return -(-number // _SECTOR) * _SECTOR
