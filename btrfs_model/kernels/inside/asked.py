# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel answers about an image that it mounts to read: streams, extents, references.

A question that fails has the errno for an answer.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from btrfs_model.kernels.inside.listing import Listing, kernel_listing
from btrfs_model.kernels.inside.mounts import Place, mounted
from btrfs_model.kernels.inside.send import kernel_send, root_id
from btrfs_model.kernels.inside.steps import device_of
from btrfs_model.kernels.inside.timed import Sent

_FIEMAP = struct.Struct("<QQIIII")
_FIEMAP_NUMBER = 3 << 30 | _FIEMAP.size << 16 | ord("f") << 8 | 11
_EXTENT = struct.Struct("<QQQ16xI12x")  # logical, physical, length, flags
_EXTENTS = 292
_LAST = 1
_INO_PATHS = struct.Struct("<QQ4QQ")
_INO_PATHS_NUMBER = 3 << 30 | _INO_PATHS.size << 16 | 0x94 << 8 | 35
_LOGICAL_INO = struct.Struct("<QQ3QQQ")
_LOGICAL_INO_NUMBER = 3 << 30 | _LOGICAL_INO.size << 16 | 0x94 << 8 | 59
_CONTAINER = struct.Struct("<IIII")  # bytes left, bytes missing, how many, how many missed
_ROOM = 1 << 16
_PAGE = 4096
_SECTOR = 512

Extent = tuple[int, int, int, int]
"""Logical, physical, length, flags."""


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def _id(folder: Path, subvolume: str) -> int:
    with _opened(folder / subvolume) as fd:
        return root_id(fd)


def send_into(
    folder: Path, what: Sent, stream: int, before: Callable[[], None] = lambda: None
) -> int:
    """Send into an open file, once something was done just before; the errno."""
    parent = _id(folder, what["parent"]) if what["parent"] is not None else 0
    clones = [_id(folder, name) for name in what["clones"]]
    with _opened(folder / what["snapshot"]) as fd:
        before()
        try:
            kernel_send(fd, stream, parent, clones, what["flags"], what["protocol"])
        except OSError as error:
            return error.errno or 0
    return 0


def streams(place: Place, plans: Sequence[Sent], targets: Sequence[str]) -> list[int]:
    """Send into files; the errno of each, 0 for none."""
    ended = []
    with mounted(**place) as folder:
        for what, target in zip(plans, targets, strict=True):
            with open(target, "wb") as file:  # noqa: PTH123
                ended.append(send_into(folder, what, file.fileno()))
    return ended


def cold_reads(place: Place, what: Sent) -> int:
    """Send right after a mount; bytes that the device read for it."""
    with mounted(**place) as folder, _opened(folder / what["snapshot"]):
        stream = os.memfd_create("stream")
        try:
            before = _sectors_read(folder)
            send_into(folder, what, stream)
            return (_sectors_read(folder) - before) * _SECTOR
        finally:
            os.close(stream)


def _sectors_read(folder: Path) -> int:
    device = Path(device_of(folder)).name
    return int(Path(f"/sys/block/{device}/stat").read_text().split()[2])


class Shared(TypedDict):
    """Extents of files, all paths of inodes, who refers to addresses: inode, offset, root."""

    extents: list[list[Extent]]
    paths: list[list[bytes]]
    references: list[list[list[int]] | int]


def sharing(
    place: Place,
    files: Sequence[str],
    inodes: Sequence[tuple[str, int]],
    addresses: Sequence[tuple[int, bool]],
) -> Shared:
    """Map files as filefrag does; ask for the paths of inodes, and for references.

    An inode has the path of its subvolume with it, an address whether the place in the extent is
    ignored. ``FS_IOC_FIEMAP``, ``BTRFS_IOC_INO_PATHS``, ``BTRFS_IOC_LOGICAL_INO_V2``.
    """
    with mounted(**place) as folder:
        return Shared(
            extents=[map_file(folder / path) for path in files],
            paths=[_paths(folder / subvolume, ino) for subvolume, ino in inodes],
            references=[_references(folder, *address) for address in addresses],
        )


def map_file(path: Path, before: Callable[[], None] = lambda: None) -> list[Extent]:
    """Map a file, once something was done just before."""
    found: list[Extent] = []
    start, last = 0, 0
    buffer = bytearray(_FIEMAP.size + _EXTENTS * _EXTENT.size)
    with _opened(path) as fd:
        before()
        while not last & _LAST:
            _FIEMAP.pack_into(buffer, 0, start, 2**64 - 1, 0, 0, _EXTENTS, 0)
            fcntl.ioctl(fd, _FIEMAP_NUMBER, buffer)
            count = _FIEMAP.unpack_from(buffer)[3]
            if not count:
                break
            rows = _EXTENT.iter_unpack(buffer[_FIEMAP.size :][: count * _EXTENT.size])
            found += rows
            logical, _, length, last = found[-1]
            start = logical + length
    return found


def _references(folder: Path, logical: int, ignore: bool) -> list[list[int]] | int:
    def argument(room: int, at: int) -> bytes:
        return _LOGICAL_INO.pack(logical, room, 0, 0, 0, int(ignore), at)

    try:
        values, _ = _asked(folder, _LOGICAL_INO_NUMBER, argument)
    except OSError as error:
        return error.errno or 0
    return [list(values[at : at + 3]) for at in range(0, len(values), 3)]


def _paths(subvolume: Path, ino: int) -> list[bytes]:
    starts, raw = _asked(subvolume, _INO_PATHS_NUMBER, lambda room, at:
                         _INO_PATHS.pack(ino, room, 0, 0, 0, 0, at), _PAGE)  # fmt: skip
    return [raw[start : raw.index(b"\0", start)] for start in starts]


def _asked(
    folder: Path, number: int, argument: Callable[[int, int], bytes], most: int = 1 << 32
) -> tuple[tuple[int, ...], bytes]:
    """Ask for values that a container takes: them, and what is behind its head.

    `most`: bytes that a kernel fills.
    """
    room = min(_ROOM, most)
    with _opened(folder) as fd:
        while True:
            buffer = ctypes.create_string_buffer(room)
            fcntl.ioctl(fd, number, argument(room, ctypes.addressof(buffer)))
            _, missing, count, missed = _CONTAINER.unpack_from(buffer)
            if room >= most or not missing + missed:
                values = struct.unpack_from(f"<{count}Q", buffer, _CONTAINER.size)
                return values, buffer.raw[_CONTAINER.size :]
            room *= 4


def listing(place: Place, subvolumes: list[str]) -> Listing:
    """List subvolumes."""
    with mounted(**place) as folder:
        return kernel_listing(folder, subvolumes)
