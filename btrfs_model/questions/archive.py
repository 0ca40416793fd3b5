# SPDX-License-Identifier: GPL-2.0-only
"""A subvolume as a tar archive: names, owners, times, xattrs, links and holes."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.whole_file import whole_file
from btrfs_model.native.lease import exclusive
from btrfs_model.volume.data import FileReader
from btrfs_model.volume.filesystem import Filesystem, opening

if TYPE_CHECKING:
    from btrfs_model.volume.data import FileExtent
    from btrfs_model.volume.subvolume import Subvolume

_SECOND: Final = 10**9
_RECORD: Final = tarfile.BLOCKSIZE
_STEP: Final = 16 << 20
_OUTSIDE: Final = frozenset({"", ".", ".."})
_TYPES: Final = {
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


@checked
@opening
@exclusive
def write_tar(
    fs: Filesystem,
    subvolume: str | bytes | int | Subvolume,
    to: str | os.PathLike[str] | BinaryIO,
) -> list[str]:
    """Write all that a subvolume holds as a tar archive.

    The format is that of POSIX (pax). Times have nanoseconds; xattrs are ``SCHILY.xattr``, as GNU
    tar and libarchive read them; files with holes are of GNU's sparse format 1.0. A second name of
    a file is a link. Members are in the order of their names, each directory with all that it
    holds, so the same subvolume gives the same bytes.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        Where it is, or the files it is in.
    subvolume : str, bytes, int or Subvolume
        Its path from the top of the filesystem, or its id. Subvolumes inside it are empty
        directories.
    to : str, os.PathLike or file object
        Where the archive goes. A path is there as a whole or not at all.

    Returns
    -------
    list of str
        Paths of sockets, which no tar archive can hold.

    Raises
    ------
    SubvolumeNotFoundError
        When there is no such subvolume.
    CorruptImageError
        When the tree or data are damaged.
    BtrfsModelError
        When a name leads out of the subvolume, as none that a kernel made.
    OSError
        When the archive cannot be written.
    """
    archived = fs.subvolume(subvolume)
    with ExitStack() as stack:
        if isinstance(to, str | os.PathLike):
            out = stack.enter_context(whole_file(to, special=True))
        else:
            out = to
        return _write(archived, out)


def _write(subvolume: Subvolume, out: BinaryIO) -> list[str]:
    listing = subvolume.fs.listing(subvolume, content=False)
    rows = cast("list[dict[str, Any]]", listing.to_dict("records"))
    # what reads it sets the times of a directory when it leaves that
    rows.sort(key=lambda row: row["path"].split("/"))
    first: dict[int, str] = {}
    sockets = []
    with tarfile.open(
        fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8",
        errors="surrogateescape",
    ) as archive:  # fmt: skip
        for row in rows:
            mode, ino, path = row["mode"], row["ino"], row["path"]
            if not _OUTSIDE.isdisjoint(path.split("/")) and path:
                # who unpacks the archive would write elsewhere
                raise BtrfsModelError(f"{subvolume.fs.path}: no file can have the name {path!r}")
            if stat.S_ISSOCK(mode):
                sockets.append(path)
                continue
            info = member(row)
            if ino in first and not stat.S_ISDIR(mode):
                info.type, info.linkname = tarfile.LNKTYPE, first[ino]
            elif stat.S_ISREG(mode):
                first[ino] = info.name
                _add(archive, info, subvolume, row)
                continue
            else:
                first[ino] = info.name
            archive.addfile(info)
    return sockets


def member(row: dict[str, Any]) -> tarfile.TarInfo:
    """Describe an entry of a listing; a regular file has no size yet."""
    mode = row["mode"]
    info = tarfile.TarInfo(f"./{row['path']}" if row["path"] else ".")
    info.type = _TYPES[stat.S_IFMT(mode)]
    info.mode, info.uid, info.gid = stat.S_IMODE(mode), row["uid"], row["gid"]
    info.mtime = row["mtime"] // _SECOND
    info.devmajor, info.devminor = row["rdev"] >> 20, row["rdev"] & 0xFFFFF
    if row["target"] is not None:
        info.linkname = _text(row["target"])
    info.pax_headers = {name: _decimal(row[name]) for name in ("mtime", "atime")}
    for name, value in row["xattrs"].items():
        # what separates name and value is written as GNU tar does
        keyword = _text(name).replace("%", "%25").replace("=", "%3D")
        info.pax_headers[f"SCHILY.xattr.{keyword}"] = _text(value)
    return info


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _decimal(time: int) -> str:
    """Nanoseconds as seconds, as pax has them."""
    seconds, rest = divmod(abs(time), _SECOND)
    return f"{'-' if time < 0 else ''}{seconds}.{rest:09d}"


def _add(
    archive: tarfile.TarFile, info: tarfile.TarInfo, subvolume: Subvolume, row: dict[str, Any]
) -> None:
    size, ino = row["size"], row["ino"]
    extents = [one for one in subvolume.extents(ino) if not one.is_zero and one.start < size]
    reader = FileReader(subvolume.fs.image, subvolume.fs.checksums, subvolume.id, ino)
    pieces = _pieces(reader, extents, size, subvolume.inode(ino).flags)
    spans = [(one.start, min(one.end, size)) for one in extents]
    add_file(archive, info, ino, size, spans, pieces)


def add_file(
    archive: tarfile.TarFile,
    info: tarfile.TarInfo,
    ino: int,
    size: int,
    spans: list[tuple[int, int]],
    pieces: Iterator[bytes | memoryview],
) -> None:
    """Add a regular file, with its holes.

    `info`: all of the member but its size.
    `ino`: the inode's number.
    `spans`: first byte, and that behind the last, of what is no hole, in order.
    `pieces`: the bytes of these, one behind the other.
    """
    ranges = _ranges(spans)
    head = b""
    if sum(length for _, length in ranges) < size:
        head = _sparse_map(ranges, size)
        info.pax_headers = {
            **info.pax_headers,
            "GNU.sparse.major": "1", "GNU.sparse.minor": "0",
            "GNU.sparse.name": info.name, "GNU.sparse.realsize": str(size),
        }  # fmt: skip
        # a name that needs no record of its own, which readers would take for the file's
        info.name = f"GNUSparseFile.0/{ino}"
    info.size = len(head) + sum(length for _, length in ranges)
    archive.addfile(info, cast("BinaryIO", _Pieces(chain([head], pieces))))


def _ranges(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what of a file is no hole: first bytes and lengths, those side by side as one."""
    ranges: list[tuple[int, int]] = []
    for start, end in spans:
        length = end - start
        if ranges and sum(ranges[-1]) == start:
            start, before = ranges.pop()
            ranges.append((start, before + length))
        else:
            ranges.append((start, length))
    return ranges


def _sparse_map(ranges: list[tuple[int, int]], size: int) -> bytes:
    """Write where the data of a file with holes lie: GNU's sparse format 1.0."""
    if not ranges or sum(ranges[-1]) < size:
        # the end of the file is told by an empty range
        ranges = [*ranges, (size, 0)]
    numbers = [len(ranges), *(number for pair in ranges for number in pair)]
    text = "".join(f"{number}\n" for number in numbers).encode()
    return text + bytes(-len(text) % _RECORD)


def _pieces(
    reader: FileReader, extents: list[FileExtent], size: int, flags: int
) -> Iterator[bytes | memoryview]:
    for extent in extents:
        end = min(extent.end, size)
        for low in range(extent.start, end, _STEP):
            yield reader.extent_data(extent, low, min(low + _STEP, end), flags)


class _Pieces:
    """A file object over pieces that follow each other."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer at the end."""
        found = []
        while size:
            if not len(self._left):
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._left = memoryview(piece)
                continue
            part, self._left = self._left[:size], self._left[size:]
            size -= len(part)
            found.append(part)
        return b"".join(found)
