# SPDX-License-Identifier: GPL-2.0-only
"""The ioctls that a kernel is asked by: SEND, FIEMAP, who refers to what, shared data."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_WRITE, _READ, _BOTH = 1, 2, 3


def number(direction: int, nr: int, size: int, of: int = 0x94) -> int:
    """Return the number of an ioctl (``_IOC()``), of btrfs where no other letter is named.

    `direction`: 0 for no argument, 1 for one that the kernel reads, 2 that it writes, 3 for both.
    """
    return direction << 30 | size << 16 | of << 8 | nr


_INO_LOOKUP = struct.Struct("<QQ4080x")
_SEND = struct.Struct("<qQQQQI28x")
_FIEMAP = struct.Struct("<QQIIII")  # start, length, flags, mapped, room, reserved
_EXTENT = struct.Struct("<QQQ16xI12x")  # logical, physical, length, flags
_LAST = _SYNC = 1
_INO_PATHS = struct.Struct("<QQ4QQ")
_LOGICAL_INO = struct.Struct("<QQ3QQQ")
_CONTAINER = struct.Struct("<IIII")  # bytes left, bytes missing, how many, how many missed
_CLONE_RANGE = struct.Struct("<qQQQ")
_FS_INFO = struct.Struct("<36xI4xH2xQ968x")  # sector size, checksum, what is asked for
_CSUM_INFO = 1
_GET_CSUMS = struct.Struct("<QQQQ")  # offset, length, room, flags; then the room
_DEDUPE_HEAD = struct.Struct("<QQHHI")
_DEDUPE_ONE = struct.Struct("<qQQiI")
_INO_LOOKUP_NUMBER = number(_BOTH, 18, 4096)
_SEND_NUMBER = number(_WRITE, 38, _SEND.size)
_FIEMAP_NUMBER = number(_BOTH, 11, _FIEMAP.size, ord("f"))
_INO_PATHS_NUMBER = number(_BOTH, 35, _INO_PATHS.size)
_LOGICAL_INO_V2 = number(_BOTH, 59, _LOGICAL_INO.size)
_FICLONERANGE = number(_WRITE, 13, _CLONE_RANGE.size)
_FS_INFO_NUMBER = number(_READ, 31, _FS_INFO.size)
_GET_CSUMS_NUMBER = number(_BOTH, 66, _GET_CSUMS.size)
_FIDEDUPERANGE = number(_BOTH, 54, _DEDUPE_HEAD.size)
_FIRST_FREE_OBJECTID = 256
_SEND_VERSION = 8

FILEFRAG_EXTENTS = 292
"""How many extents ``filefrag`` has room for in a call."""
INO_PATHS_ROOM = 4096
"""Bytes that the kernel fills with paths at most, whatever room there is."""

Extent = tuple[int, int, int, int]
"""Logical, physical, length, flags."""
Refs = list[list[int]]
"""Inode, offset, root of each reference."""


@contextmanager
def opened(path: Path | str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file or a folder."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def ino_lookup(inode: int) -> tuple[int, bytes]:
    """Return number and argument of the ioctl that looks up the path of an inode."""
    return _INO_LOOKUP_NUMBER, _INO_LOOKUP.pack(0, inode)


def root_id(subvolume: Path) -> int:
    """Return the id of a subvolume (``BTRFS_IOC_INO_LOOKUP``)."""
    number, sent = ino_lookup(_FIRST_FREE_OBJECTID)
    argument = bytearray(sent)
    with opened(subvolume) as fd:
        fcntl.ioctl(fd, number, argument)
    found: int = _INO_LOOKUP.unpack(argument)[0]
    return found


def send(
    subvolume: int, stream: int, parent: int, clones: Sequence[int], flags: int, protocol: int
) -> None:
    """Send an open snapshot into an open file (``BTRFS_IOC_SEND``).

    Parent and clones are ids; a parent of 0 is none. Protocol 1 is that of kernels that know no
    other.
    """
    sources = (ctypes.c_uint64 * max(1, len(clones)))(*clones)
    version = (flags | _SEND_VERSION, protocol) if protocol > 1 else (flags, 0)
    address = ctypes.addressof(sources)
    fcntl.ioctl(subvolume, _SEND_NUMBER, _SEND.pack(stream, len(clones), address, parent, *version))


def fiemap_calls(
    file: int,
    room: int = FILEFRAG_EXTENTS,
    flags: int = 0,
    ioctl: Callable[[int, int, bytearray], object] = fcntl.ioctl,
) -> Iterator[memoryview]:
    """Map an open file by calls with room for some extents; yields what each call filled."""
    buffer = bytearray(_FIEMAP.size + room * _EXTENT.size)
    start, last = 0, 0
    while not last & _LAST:
        _FIEMAP.pack_into(buffer, 0, start, 2**64 - 1 - start, flags, 0, room, 0)
        ioctl(file, _FIEMAP_NUMBER, buffer)
        end = _FIEMAP.size + _FIEMAP.unpack_from(buffer)[3] * _EXTENT.size
        if end == _FIEMAP.size:
            return
        yield memoryview(buffer)[_FIEMAP.size : end]
        logical, _, length, last = _EXTENT.unpack_from(buffer, end - _EXTENT.size)
        start = logical + length


def extents_in(filled: memoryview) -> int:
    """Return how many extents a call of FIEMAP filled in."""
    return len(filled) // _EXTENT.size


def fiemap(
    path: Path, before: Callable[[], None] = lambda: None, *, sync: bool = False
) -> list[Extent]:
    """Map a file as ``filefrag`` does, once something was done just before.

    With `sync` as ``filefrag -s``: data that wait are written first (``FIEMAP_FLAG_SYNC``).
    """
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as file:
        before()
        calls = fiemap_calls(file, flags=_SYNC if sync else 0)
        return [row for filled in calls for row in _EXTENT.iter_unpack(filled)]


def inode_paths(subvolume: Path, ino: int) -> tuple[list[bytes], int]:
    """Return paths of an inode in the kernel's order, and how many had no room (INO_PATHS)."""
    buffer = ctypes.create_string_buffer(INO_PATHS_ROOM)
    argument = _INO_PATHS.pack(ino, len(buffer), 0, 0, 0, 0, ctypes.addressof(buffer))
    with opened(subvolume) as fd:
        fcntl.ioctl(fd, _INO_PATHS_NUMBER, argument)
    _, _, count, missed = _CONTAINER.unpack_from(buffer)
    raw = buffer.raw[_CONTAINER.size :]
    starts = struct.unpack_from(f"<{count}Q", raw)
    return [raw[start : raw.index(b"\0", start)] for start in starts], missed


def logical_ino(folder: Path, logical: int, ignore_offset: bool) -> Refs | int:
    """Return who refers to a byte on disk (LOGICAL_INO_V2), or the errno."""
    room = 1 << 16
    with opened(folder) as fd:
        while True:
            buffer = ctypes.create_string_buffer(room)
            address = ctypes.addressof(buffer)
            argument = _LOGICAL_INO.pack(logical, room, 0, 0, 0, int(ignore_offset), address)
            try:
                fcntl.ioctl(fd, _LOGICAL_INO_V2, argument)
            except OSError as error:
                return error.errno or 0
            _, missing, count, _ = _CONTAINER.unpack_from(buffer)
            if not missing:
                break
            room *= 4
    values = struct.unpack_from(f"<{count}Q", buffer, _CONTAINER.size)
    return [list(values[at : at + 3]) for at in range(0, count, 3)]


def clone_range(source: Path | str, start: int, length: int, target: Path | str, to: int) -> None:
    """Make a file show a part of another (FICLONERANGE); a length of 0 is to the end."""
    with (
        opened(source, os.O_RDONLY | os.O_NONBLOCK) as one,
        opened(target, os.O_RDWR | os.O_NONBLOCK) as other,
    ):
        share_range(one, start, length, other, to)


def share_range(source: int, start: int, length: int, target: int, to: int) -> None:
    """Do as :func:`clone_range` with two open files."""
    fcntl.ioctl(target, _FICLONERANGE, _CLONE_RANGE.pack(source, start, length, to))


def csum_of(file: int) -> tuple[int, int] | None:
    """Return the checksum and the sector size of the btrfs that an open file is on, if it is."""
    argument = bytearray(_FS_INFO.pack(0, 0, _CSUM_INFO))
    try:
        fcntl.ioctl(file, _FS_INFO_NUMBER, argument)
    except OSError:
        return None
    sectorsize, kind, _ = _FS_INFO.unpack(argument)
    return kind, sectorsize


def tells_csums(file: int) -> bool:
    """Whether the system tells the checksums of a file on btrfs (``BTRFS_IOC_GET_CSUMS``)."""
    argument = bytearray(_GET_CSUMS.pack(0, 4096, 4096, 0) + bytes(4096))
    try:
        fcntl.ioctl(file, _GET_CSUMS_NUMBER, argument)
    except OSError as error:
        return error.errno != errno.ENOTTY
    return True


def dedupe_range(source: int, start: int, length: int, target: int, to: int) -> tuple[int, int]:
    """Share what two open files have alike (FIDEDUPERANGE): how many bytes, and the status."""
    head, one = (start, length, 1, 0, 0), (target, to, 0, 0, 0)
    argument = bytearray(_DEDUPE_HEAD.pack(*head) + _DEDUPE_ONE.pack(*one))
    fcntl.ioctl(source, _FIDEDUPERANGE, argument)
    _, _, shared, status, _ = _DEDUPE_ONE.unpack_from(argument, _DEDUPE_HEAD.size)
    return shared, status
