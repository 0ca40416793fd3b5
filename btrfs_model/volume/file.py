# SPDX-License-Identifier: GPL-2.0-only
"""A file, directory or link as an object: ``fs.file("snap/dir/name")``."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

from btrfs_model.base.public import public

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.subvolume import Inode, Subvolume


class FileObject:
    """What a path of a filesystem leads to, as the last commit has it.

    Made by :meth:`Filesystem.file`. The path is looked up by each call, so a file that comes later
    is found. Symbolic links are not followed.

    Parameters
    ----------
    fs : Filesystem
        Where it is.
    path : bytes
        From the top of the filesystem, through subvolumes.
    """

    def __init__(self, fs: Filesystem, path: bytes) -> None:
        self.fs = fs
        self.raw_path = path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, of {self.fs.path!r})"

    def __fspath__(self) -> str:
        return self.path

    @property
    def path(self) -> str:
        """From the top of the filesystem; bytes that are not UTF-8 as surrogates."""
        return os.fsdecode(self.raw_path)

    def _place(self) -> tuple[Subvolume, int]:
        return self.fs.locate(self.raw_path)

    def exists(self) -> bool:
        """Whether there is such a file."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def stat(self) -> Inode:
        """Return the inode.

        Raises
        ------
        FileNotFoundError
            When there is no such file: NoSuchFileError, or NotCommittedError.
        """
        subvolume, ino = self._place()
        return subvolume.inode(ino)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Read the file, or the target of a link; see :meth:`.Subvolume.read_file`."""
        subvolume, ino = self._place()
        return subvolume.read_file(ino, offset, length)

    def open(self) -> BinaryIO:
        """Open the file for reading; it has the size of now."""
        return io.BufferedReader(_Reader(self.read, self.stat().size))

    def xattrs(self) -> dict[bytes, bytes]:
        """Return the extended attributes, in the order of the tree."""
        subvolume, ino = self._place()
        return subvolume.xattrs(ino)

    def names(self) -> list[bytes]:
        """Return the names in a directory, in the order of readdir(3), without "." and ".."."""
        subvolume, ino = self._place()
        return [entry.name for entry in subvolume.readdir(ino)]

    def extents(self) -> pd.DataFrame:
        """Return the file extents of the last commit; see ``bm.extents()``."""
        table: pd.DataFrame = public("extents")(self.fs, *self.fs.locate(self.raw_path))
        return table

    def fiemap(self, **options: Any) -> pd.DataFrame:
        """Return the extents as FIEMAP reports them; `options` are those of ``bm.fiemap()``."""
        table: pd.DataFrame = public("fiemap")(self.fs, *self._place(), **options)
        return table

    def fiemap_text(self, style: str = "filefrag", **options: Any) -> str:
        """Return what :meth:`fiemap` does as a program of the host shows it.

        Parameters
        ----------
        style : str
            ``filefrag`` (``filefrag -v``, without the line of the filesystem's type), ``xfs_io``
            (``xfs_io -c fiemap``) or ``xfs_io -v`` (``xfs_io -c "fiemap -v"``).
        **options
            As for :meth:`fiemap`.

        Raises
        ------
        UnknownNameError
            For another style.
        """
        text: str = public("_fiemap_text")(
            self.fiemap(**options), self.path, self.stat().size, style=style,
            blocksize=self.fs.image.superblock.sectorsize,
        )  # fmt: skip
        return text


class _Reader(io.RawIOBase):
    """A file that is read by a function of an offset and a length."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + (0, self._at, self._size)[whence]
        if at < 0:
            raise ValueError(f"negative place {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any, /) -> int:
        room = memoryview(buffer).cast("B")
        data = self._read(self._at, min(len(room), max(0, self._size - self._at)))
        room[: len(data)] = data
        self._at += len(data)
        return len(data)
