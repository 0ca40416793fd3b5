# SPDX-License-Identifier: GPL-2.0-only
"""The folder that ``mkfs.btrfs --rootdir`` copies, and what it asks the system of its files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from btrfs_model.mount.mkfs.layout import SECTORSIZE, Format
from btrfs_model.questions.rootdir.compress import Compression

SUBVOLUMES: Final = ("rw", "ro", "default", "default-ro")
"""What a folder can become."""

FLAGS: Final = ("nodatacow", "nodatasum")
"""Flags that an inode can be given."""

_NAMES: Final = 3 * 4096
_CHUNK: Final = 8 << 20


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
    reflink : bool
        Whether the image shares data with the files. What is shared is not compressed.
    """

    folder: str
    subvolumes: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    compress: str = ""
    reflink: bool = False

    @property
    def compression(self) -> Compression | None:
        """The algorithm with its level.

        Raises ValueError: for what mkfs.btrfs refuses.
        """
        return Compression.parse(self.compress)

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
        _ = self.compression
        for path, names in self.flags.items():
            if not names or not set(names.split(",")) <= set(FLAGS):
                raise ValueError(f"unknown inode flag: {names}")
            if not os.path.lexists(folder / path):
                raise ValueError(f"inode path does not exist: {path}")


def smallest_for(folder: str, options: Format) -> int:
    """Return the size of the device that a folder needs (``btrfs_mkfs_size_dir()``), bytes."""
    inodes = data = 0
    seen: set[tuple[int, int]] = set()
    for path, status in walk(Path(folder)):
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        inodes += 1
        if stat.S_ISREG(status.st_mode):
            data += sum(round_up(end) - start for start, end in data_ranges(path, status.st_size))
    metadata = inodes * (_NAMES + SECTORSIZE) + data // 8
    size = options.smallest
    for needed, profile, least in ((metadata, options.metadata, 32), (data, options.data, 64)):
        copies, first = (2, least << 20) if profile == "dup" else (1, _CHUNK)
        if needed > first:
            size += (-(-needed // first) * first - first) * copies
    return size


def walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield a folder and all below it, each before what is in it, by the bytes of names."""
    todo = [folder]
    while todo:
        path = todo.pop()
        status = path.stat(follow_symlinks=path == folder)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            todo += sorted(path.iterdir(), key=lambda one: os.fsencode(one.name), reverse=True)


def attributes(path: Path, *, in_order: bool = True) -> list[tuple[bytes, bytes]]:
    """Return the attributes of a file, by the bytes of their names or as they are listed."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return []
    return [(os.fsencode(name), os.getxattr(path, name, follow_symlinks=False))
            for name in (sorted(names, key=os.fsencode) if in_order else names)]  # fmt: skip


def data_ranges(path: Path, size: int) -> list[tuple[int, int]]:
    """Return where a file has data: ranges that begin at a sector, the last up to its end."""
    ranges: list[tuple[int, int]] = []
    with path.open("rb") as file:
        at = 0
        while at < size:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA) // SECTORSIZE * SECTORSIZE
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            at = min(round_up(os.lseek(file.fileno(), start, os.SEEK_HOLE)), size)
            ranges.append((start, at))
    return ranges


def round_up(number: int) -> int:
    """Return a number of bytes in whole sectors."""
    return -(-number // SECTORSIZE) * SECTORSIZE
