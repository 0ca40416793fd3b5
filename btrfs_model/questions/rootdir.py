# SPDX-License-Identifier: GPL-2.0-only
"""A fresh filesystem with the files of a folder: ``mkfs.btrfs --rootdir`` of btrfs-progs 7.3.

Numbers of inodes, indexes, times, flags and extents are those of mkfs.btrfs, and where data lie,
up to the first 3 MiB of them. The trees are those of a mount that made the files: their blocks lie
elsewhere, and generations are those of the mount's transactions.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.base.counters import uncounted
from btrfs_model.mount.files.encoded import write_encoded
from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.mkfs.identity import source_date
from btrfs_model.mount.mkfs.layout import MIN_DEVICE, MIN_SINGLE
from btrfs_model.mount.names.inode_flags import ChattrFlag
from btrfs_model.mount.names.lookup import find
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.questions.rootdir_compress import UNIT, Compression

if TYPE_CHECKING:
    from btrfs_model.mount.live_inode import LiveInode

SUBVOLUMES: Final = ("rw", "ro", "default", "default-ro")
"""What a folder can become."""

FLAGS: Final = ("nodatacow", "nodatasum")
"""Flags that an inode can be given."""

_KERNEL: Final = "v6.1"
"""Allocates as mkfs does: later kernels keep extents of different sizes apart."""
_SECTOR: Final = 4096
_EXTENT: Final = 1 << 20
"""Bytes of the largest extent that mkfs makes."""
_SECOND: Final = 10**9
_RAM_BYTES: Final = 8
"""Where that field is in a file's extent item."""
_NAMES: Final = 3 * 4096
_DATA_CHUNK: Final = 8 << 20


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


def smallest_for(folder: str, *, single: bool) -> int:
    """Return the size of the device that a folder needs (``btrfs_mkfs_size_dir()``), bytes.

    `single`: whether there is one copy of metadata.
    """
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
    first, copies = (_DATA_CHUNK, 1) if single else (32 << 20, 2)
    size = MIN_SINGLE if single else MIN_DEVICE
    if metadata > first:
        size += (-(-metadata // first) * first - first) * copies
    if data > _DATA_CHUNK:
        size += -(-data // _DATA_CHUNK) * _DATA_CHUNK - _DATA_CHUNK
    return size


def make(source: Rootdir, size: int, **options: Any) -> WritableFilesystem:
    """Make a filesystem with the files of a folder, and commit.

    Parameters
    ----------
    source : Rootdir
        What to copy.
    size : int
        Of the device, bytes.
    **options
        Of :meth:`.WritableFilesystem.mkfs`.

    Raises
    ------
    OSError
        Where a file cannot be read, or has no room.
    ValueError
        For options that mkfs.btrfs refuses.
    """
    source.check()
    fs = WritableFilesystem.mkfs(size, behaviour=_KERNEL, **options)
    with uncounted():
        fs.set_mount_options(f"max_inline={_SECTOR}")
        fs.umask = 0
        _Copy(fs, source).run()
        fs.remount("")
    return fs


class _Copy:
    """A copy that is being made."""

    def __init__(self, fs: WritableFilesystem, source: Rootdir) -> None:
        self.fs, self.source = fs, source
        self.date = source_date()
        self.compression = Compression.parse(source.compress)
        fs.add_compression(self.compression and self.compression.kind)
        self.links: dict[tuple[int, int, int], str] = {}
        self.made: list[tuple[str, os.stat_result]] = []
        self.subvolumes = {os.path.normpath(path): kind for path, kind in source.subvolumes.items()}
        self.flags = {os.path.normpath(path): names for path, names in source.flags.items()}

    def run(self) -> None:
        """Copy everything, then give the inodes what their files have."""
        fs, folder = self.fs, Path(self.source.folder)
        for path, status in _walk(folder):
            copy = str(path.relative_to(folder))
            if copy == ".":
                copy = ""
                self.made.append((copy, status))
                self._attributes(path, copy)
            elif not self._is_link(copy, status):
                self.made.append((copy, status))
                self._make(path, copy, status)
        fs.sync()
        for copy, status in self.made:
            self._finish(copy, status)
        fs.sync()
        for copy, kind in self.subvolumes.items():
            if kind.endswith("ro"):
                fs.set_read_only(copy)
            if kind.startswith("default"):
                fs.set_default_subvolume(find(fs, copy).root)
        fs.sync()

    def _is_link(self, copy: str, status: os.stat_result) -> bool:
        """Link to a file that is there already, in the same subvolume."""
        if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:
            return False
        root = find(self.fs, copy.rpartition("/")[0]).root
        first = self.links.setdefault((root, status.st_dev, status.st_ino), copy)
        if first != copy:
            self.fs.link(first, copy)
        return first != copy

    def _make(self, path: Path, copy: str, status: os.stat_result) -> None:
        fs, mode = self.fs, status.st_mode
        if copy in self.subvolumes:
            fs.create_subvolume(copy)
        elif stat.S_ISDIR(mode):
            fs.mkdir(copy)
            self._set_flags(copy)
        elif stat.S_ISLNK(mode):
            fs.symlink(os.fspath(path.readlink()), copy)
        elif stat.S_ISREG(mode):
            fs.create(copy)
            self._set_flags(copy)
            self._data(path, copy, status.st_size)
        else:
            fs.mknod(copy, mode)
        self._attributes(path, copy)

    def _data(self, path: Path, copy: str, size: int) -> None:
        inode = find(self.fs, copy, follow=False)
        with path.open("rb") as file:
            if size < _SECTOR:
                self._inline(copy, inode, file.read())
                return
            for start, end in data_ranges(path, size):
                at = start
                while at < end:
                    file.seek(at)
                    at += self._extent(copy, inode, at, file.read(min(_EXTENT, end - at)))
        self.fs.truncate(copy, size)

    def _inline(self, copy: str, inode: LiveInode, data: bytes) -> None:
        packed = self.compression.inline(data) if self.compression and data else None
        if packed is None or self.compression is None:
            self._write(copy, 0, data)
        else:
            write_encoded(self.fs, inode, 0, self.compression.encoded(packed, len(data)))

    def _extent(self, copy: str, inode: LiveInode, at: int, data: bytes) -> int:
        """Write the first of some data as one extent; return how much that is."""
        flags = inode.item.flags
        plain = InodeFlag.NODATASUM | InodeFlag.NOCOMPRESS
        if self.compression is None or flags & plain:
            whole = len(data) // _SECTOR * _SECTOR
            if whole and not flags & InodeFlag.NODATASUM:
                # what is no whole sector comes alone
                data = data[:whole]
        elif len(data) > _SECTOR:
            unit = data[:UNIT]
            packed = self.compression.extent(unit, first=not flags & InodeFlag.COMPRESS)
            if packed is not None:
                inode.item.flags |= InodeFlag.COMPRESS
                write_encoded(self.fs, inode, at, self.compression.encoded(packed, len(unit)))
                return len(unit)
            if not flags & InodeFlag.COMPRESS:
                inode.item.flags |= InodeFlag.NOCOMPRESS
        self._write(copy, at, data)
        return len(data)

    def _write(self, copy: str, at: int, data: bytes) -> None:
        self.fs.write(copy, at, data)
        self.fs.sync_file_range(copy, at, len(data))

    def _set_flags(self, copy: str) -> None:
        words = self.flags.get(copy, "").split(",")
        if "nodatacow" in words:
            self.fs.chattr(copy, ChattrFlag.NOCOW)
        elif "nodatasum" in words:
            inode = find(self.fs, copy, follow=False)
            inode.item.flags |= InodeFlag.NODATASUM
            mark_inode_dirty(self.fs, inode)

    def _attributes(self, path: Path, copy: str) -> None:
        try:
            names = os.listxattr(path, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            return
        for name in names:
            value = os.getxattr(path, name, follow_symlinks=False)
            self.fs.setxattr(copy, name, value, follow=False)

    def _finish(self, copy: str, status: os.stat_result) -> None:
        """Make an inode's item what mkfs makes it."""
        inode = find(self.fs, copy, follow=False)
        item, date = inode.item, self.date
        item.mode, item.uid, item.gid = status.st_mode, status.st_uid, status.st_gid
        seconds = [int(one // _SECOND) for one in (status.st_atime_ns, status.st_ctime_ns,
                                                   status.st_mtime_ns)]  # fmt: skip
        if date is not None:
            seconds = [date, date, min(seconds[2], date)]
        item.atime, item.ctime, item.mtime = (one * _SECOND for one in seconds)
        item.otime = item.sequence = item.generation = 0
        if stat.S_ISLNK(status.st_mode):
            # mkfs.btrfs writes the zero byte behind the target, too
            key = (inode.ino, int(ItemType.EXTENT_DATA), 0)
            self.fs.writer.extend(inode.root, key, b"\0")
            item.nbytes += 1
            self.fs.writer.update(inode.root, key, _RAM_BYTES, struct.pack("<Q", item.nbytes))
        if stat.S_ISDIR(status.st_mode):
            item.nbytes = 0
        mark_inode_dirty(self.fs, inode)


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
