# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel is asked by ioctls: where data are, who refers to them, and to share them.

Of Python's library alone: this also runs in guests that have nothing else.
"""

import ctypes
import fcntl
import os
import struct
from pathlib import Path

_CLONE_RANGE = struct.Struct("<qQQQ")
_CLONE_RANGE_NUMBER = 1 << 30 | _CLONE_RANGE.size << 16 | 0x94 << 8 | 13
_DEDUPE = struct.Struct("<QQHHIqQQiI")
_DEDUPE_NUMBER = 3 << 30 | 24 << 16 | 0x94 << 8 | 54
_FIEMAP = struct.Struct("<QQIIII")
_FIEMAP_NUMBER = 3 << 30 | _FIEMAP.size << 16 | ord("f") << 8 | 11
_EXTENT = struct.Struct("<QQQQQIIII")
_EXTENTS = 292
_INO_PATHS = struct.Struct("<QQ4QQ")
_INO_PATHS_NUMBER = 3 << 30 | _INO_PATHS.size << 16 | 0x94 << 8 | 35
_LOGICAL_INO = struct.Struct("<QQ3QQQ")
_LOGICAL_INO_V2 = 3 << 30 | _LOGICAL_INO.size << 16 | 0x94 << 8 | 59
_CONTAINER = struct.Struct("<IIII")
_ROOM = 1 << 20

Row = tuple[int, int, int, int]
Refs = list[list[int]]


def clone_range(source: Path, target: Path, offset: int, length: int, at: int) -> None:
    """Make a file show a part of another (FICLONERANGE); a length of 0 is to the end."""
    with source.open("rb") as one, target.open("r+b") as other:
        argument = _CLONE_RANGE.pack(one.fileno(), offset, length, at)
        fcntl.ioctl(other, _CLONE_RANGE_NUMBER, argument)


def dedupe_range(source: Path, target: Path, offset: int, length: int, at: int) -> int:
    """Share what two files have alike (FIDEDUPERANGE); how many bytes."""
    with source.open("rb") as one, target.open("r+b") as other:
        argument = bytearray(_DEDUPE.pack(offset, length, 1, 0, 0, other.fileno(), at, 0, 0, 0))
        fcntl.ioctl(one, _DEDUPE_NUMBER, argument)
        shared: int = _DEDUPE.unpack(argument)[7]
        return shared


def fiemap(path: Path) -> list[Row]:
    """Extents of a file as ``filefrag`` asks for them: logical, physical, length, flags."""
    found: list[Row] = []
    start, last = 0, False
    with path.open("rb") as file:
        while not last:
            buffer = bytearray(_FIEMAP.size + _EXTENTS * _EXTENT.size)
            _FIEMAP.pack_into(buffer, 0, start, 2**64 - 1, 0, 0, _EXTENTS, 0)
            fcntl.ioctl(file, _FIEMAP_NUMBER, buffer)
            count = _FIEMAP.unpack_from(buffer)[3]
            if not count:
                return found
            for number in range(count):
                logical, physical, length, _, _, flags, *_ = _EXTENT.unpack_from(
                    buffer, _FIEMAP.size + number * _EXTENT.size
                )
                found.append((logical, physical, length, flags))
            start = found[-1][0] + found[-1][2]
            last = bool(found[-1][3] & 1)
    return found


def inode_paths(subvolume: Path, ino: int) -> tuple[list[bytes], int]:
    """Paths of an inode (ioctl INO_PATHS), in the kernel's order, and how many had no room."""
    buffer = ctypes.create_string_buffer(4096)
    folder = os.open(subvolume, os.O_RDONLY)
    try:
        argument = _INO_PATHS.pack(ino, len(buffer), 0, 0, 0, 0, ctypes.addressof(buffer))
        fcntl.ioctl(folder, _INO_PATHS_NUMBER, argument)
    finally:
        os.close(folder)
    _, _, count, missed = _CONTAINER.unpack_from(buffer)
    places = struct.unpack_from(f"<{count}Q", buffer, _CONTAINER.size)
    raw = buffer.raw[_CONTAINER.size :]
    return [raw[place : raw.index(b"\0", place)] for place in places], missed


def logical_ino_v2(directory: int, logical: int, *, ignore_offset: bool) -> Refs:
    """Who refers to a byte on disk, asked in an open directory; rows of inode, offset, root."""
    buffer = ctypes.create_string_buffer(_ROOM)
    address = ctypes.addressof(buffer)
    argument = _LOGICAL_INO.pack(logical, _ROOM, 0, 0, 0, int(ignore_offset), address)
    fcntl.ioctl(directory, _LOGICAL_INO_V2, argument)
    _, missing, count, _ = _CONTAINER.unpack_from(buffer)
    assert not missing
    values = struct.unpack_from(f"<{count}Q", buffer, _CONTAINER.size)
    return [list(values[at : at + 3]) for at in range(0, count, 3)]
