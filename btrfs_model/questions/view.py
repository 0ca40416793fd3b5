# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem of an image as a folder of this machine, read only, by FUSE.

It needs no driver of btrfs, no root and no loop device: the files are read as the model reads them,
with their owners, times and extended attributes. Subvolumes and snapshots are folders.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError, CorruptImageError
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.subvolume import device_number

if TYPE_CHECKING:
    from btrfs_model.volume.subvolume import Inode, Subvolume

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_SECTOR = 512
_SHIFT = 40
_EMPTY = {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 1, "st_ino": 2, "st_size": 0}
"""A subvolume that a snapshot has the name of alone (``btrfs_new_simple_dir()``)."""


@checked
@opening
def mount(fs: Filesystem, folder: str | os.PathLike[str]) -> None:
    """Show a filesystem in a folder until that is unmounted (``fusermount -u``).

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        The filesystem, or the files it is in. Nothing is written to them.
    folder : str or os.PathLike
        An empty folder.

    Raises
    ------
    BtrfsModelError
        When the folder cannot be used, mfusepy or the library of FUSE is not installed, or FUSE
        refuses.
    """
    where = Path(folder)
    if not where.is_dir() or any(where.iterdir()):
        raise BtrfsModelError(f"{where} is not an empty folder")
    try:
        import mfusepy
    except (ImportError, OSError) as error:
        wanted = "pip install 'btrfs_model[fuse]', and Debian's libfuse3-3 or libfuse2"
        raise BtrfsModelError(f"{error}: {wanted}") from None
    try:
        mfusepy.FUSE(
            _View(fs), str(where), foreground=True, nothreads=True, ro=True, use_ino=True,
            fsname=str(fs.path), subtype="btrfs_model", default_permissions=True,
        )  # fmt: skip
    except RuntimeError as error:
        raise BtrfsModelError(f"{where}: FUSE ended with status {error}") from None


@contextmanager
def _as_kernel() -> Iterator[None]:
    """Tell a damaged block as the kernel does."""
    try:
        yield
    except CorruptImageError as error:
        raise OSError(errno.EIO, str(error)) from error


def _told(call: F) -> F:
    @wraps(call)
    def answer(*args: Any) -> Any:
        with _as_kernel():
            return call(*args)

    return answer  # type: ignore[return-value]


class _View:
    """The calls of FUSE; each gets a path from the top."""

    use_ns = True

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs

    def _place(self, path: str) -> tuple[Subvolume, int] | None:
        """Return what a path leads to; None for a subvolume that is there by name alone.

        Raises FileNotFoundError: when it leads nowhere.
        """
        raw = os.fsencode(path).strip(b"/")
        try:
            return self._fs.locate(raw)
        except FileNotFoundError:
            above, _, name = raw.rpartition(b"/")
            subvolume, directory = self._fs.locate(above)
            entry = subvolume.lookup(directory, name)
            if entry is None or entry.location.type != ItemType.ROOT_ITEM:
                raise
            return None

    @_told
    def getattr(self, path: str, _: int | None = None) -> dict[str, int]:
        """Return what stat(2) shows."""
        place = self._place(path)
        return _EMPTY if place is None else _stat(place[0], place[0].inode(place[1]))

    @_told
    def readdir(self, path: str, _: int) -> list[tuple[str, dict[str, int], int]]:
        """Return the names in a directory, with inode numbers; programs skip those without one."""
        place = self._place(path)
        if place is None:
            return [(name, {"st_ino": _EMPTY["st_ino"]}, 0) for name in (".", "..")]
        subvolume, ino = place
        names = {".": ino, "..": ino}
        names |= {os.fsdecode(one.name): one.location.objectid for one in subvolume.readdir(ino)}
        return [(name, {"st_ino": _number(subvolume.id, number)}, 0)
                for name, number in names.items()]  # fmt: skip

    @_told
    def read(self, path: str, size: int, offset: int, _: int) -> bytes:
        """Return bytes of a file."""
        return self._of(path, lambda subvolume, ino: subvolume.read_file(ino, offset, size), b"")

    @_told
    def readlink(self, path: str) -> str:
        """Return the target of a link."""
        return os.fsdecode(self._of(path, lambda subvolume, ino: subvolume.read_file(ino), b""))

    @_told
    def listxattr(self, path: str) -> list[str]:
        """Return the names of the extended attributes."""
        return [*map(os.fsdecode, self._xattrs(path))]

    @_told
    def getxattr(self, path: str, name: str, _: int = 0) -> bytes:
        """Return the value of an extended attribute."""
        value = self._xattrs(path).get(os.fsencode(name))
        if value is None:
            raise OSError(errno.ENODATA, name)
        return value

    def _xattrs(self, path: str) -> dict[bytes, bytes]:
        return self._of(path, lambda subvolume, ino: subvolume.xattrs(ino), {})

    def _of(self, path: str, ask: Callable[[Subvolume, int], T], empty: T) -> T:
        place = self._place(path)
        return empty if place is None else ask(*place)

    def statfs(self, _: str) -> dict[str, int]:
        """Return what statvfs(3) shows of the devices: nothing is free to those who only read."""
        superblock = self._fs.image.superblock
        size = superblock.sectorsize
        return {"f_bsize": size, "f_frsize": size, "f_blocks": superblock.total_bytes // size,
                "f_bfree": 0, "f_bavail": 0, "f_namemax": 255}  # fmt: skip


def _number(subvolume: int, ino: int) -> int:
    """Return an inode number that no other subvolume has: find(1) takes equal ones for a loop."""
    return ino if subvolume == ObjectId.FS_TREE else subvolume << _SHIFT | ino


def _stat(subvolume: Subvolume, inode: Inode) -> dict[str, int]:
    size = subvolume.fs.image.superblock.sectorsize
    return {
        "st_mode": inode.mode, "st_ino": _number(subvolume.id, inode.ino), "st_nlink": inode.nlink,
        "st_uid": inode.uid, "st_gid": inode.gid, "st_size": inode.size,
        "st_blocks": -(-inode.nbytes // size) * size // _SECTOR, "st_blksize": size,
        "st_rdev": device_number(inode.rdev),
        "st_atime": inode.atime, "st_mtime": inode.mtime, "st_ctime": inode.ctime,
    }  # fmt: skip
