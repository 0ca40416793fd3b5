# SPDX-License-Identifier: GPL-2.0-only
"""``native/stream``: commands of a stream as columns, and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.errors import Fault
from btrfs_model.native.door import fault_of, ffi, lib, new_fault

Columns = Mapping[str, npt.NDArray[Any]]
"""The arrays of a :class:`btrfs_model.stream.index.Batch` by name."""

_BUFFER: Final = 4 << 20
"""Bytes of text at a time; the line of any command fits."""


class BrokenStreamError(Exception):
    """A fault whose offset counts from the start of the bytes at hand; never leaves the package."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault


@dataclass(slots=True)
class Position:
    """How far a stream has been read: ``struct bm_stream_position``.

    `offset`: byte of the next header or command.
    `wanted`: bytes from there on that are needed to go on.
    `version`: of the stream; 0: a stream header has to come next.
    `ended`: whether the last command was ``end``.
    """

    offset: int = 0
    wanted: int = 0
    version: int = 0
    ended: bool = False


def index_commands(data: memoryview, last: bool, position: Position, columns: Columns) -> int:
    """Fill columns from `position` on; `last`: the stream ends with `data`.

    A command is looked at in this order, and the first thing that is wrong is what is reported: is
    all of it there, is its CRC right, is it a command of this version; then each attribute: does it
    exist, is it there for the first time, does it lie inside the command, has it the size of its
    type; at last: is no mandatory attribute missing.

    Returns how many commands there are.
    Raises BrokenStreamError: when the first command, or the header before it, is broken.
    """
    raw, fault = _raw_columns(columns), new_fault()
    place = ffi.new(
        "struct bm_stream_position *",
        (position.offset, position.wanted, position.version, position.ended),
    )
    count = int(lib.bm_stream_index(ffi.from_buffer(data), len(data), last, place, raw, fault))
    position.offset, position.wanted = int(place.offset), int(place.wanted)
    position.version, position.ended = int(place.version), bool(place.ended)
    if count < 0:
        raise BrokenStreamError(fault_of(fault))
    return count


SPAN: Final = np.dtype([("at", "<u8"), ("size", "<u8")])
"""``struct bm_span``: bytes of a buffer."""

_TIME: Final = np.dtype([("seconds", "<i8"), ("nanoseconds", "<u8")])

NEW_INODE: Final = np.dtype(
    [
        ("command", "<u8"), ("commands", "<u4"), ("writes", "<u4"), ("type", "<u4"),
        ("has", "<u4"), ("uid", "<u4"), ("gid", "<u4"), ("mode", "<u8"), ("atime", _TIME),
        ("mtime", _TIME), ("made", SPAN), ("path", SPAN), ("target", SPAN), ("made_name", "<u8"),
        ("name", "<u8"), ("start", "<u8"), ("size", "<u8"), ("piece", "<u8"), ("more", "<u8"),
        ("first", "<u8"),
    ]
)  # fmt: skip
"""``struct bm_stream_inode``: commands that make an inode, name it and say what it is."""


class NewInode(NamedTuple):
    """A new inode as the stream describes it (:data:`NEW_INODE`)."""

    command: int
    commands: int
    writes: int
    type: int
    has: int
    uid: int
    gid: int
    mode: int
    atime: tuple[int, int]
    mtime: tuple[int, int]
    made: tuple[int, int]
    path: tuple[int, int]
    target: tuple[int, int]
    made_name: int
    name: int
    start: int
    size: int
    piece: int
    more: int
    first: int

    @property
    def head(self) -> int:
        """How many commands come before the writes; 0 where they came before all of the rows."""
        return 2 if self.made[1] else 0

    @property
    def end(self) -> int:
        """The command behind those that say what it is."""
        return self.command + self.commands


NEW_TIMES: Final = np.dtype([("path", SPAN), ("atime", _TIME), ("mtime", _TIME)])
"""``struct bm_stream_times``: times of something else, which follow those of a new inode."""


OWNERS, MODE, TIMES = lib.BM_STREAM_OWNERS, lib.BM_STREAM_MODE, lib.BM_STREAM_TIMES
"""Which commands come at the end (``enum bm_stream_has``)."""


def find_inodes(
    data: memoryview, columns: Columns, most: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Find runs of commands that make an inode, name it and say what it is, as full sends do.

    `data`, `columns`: of a batch.
    `most`: bytes of a path.
    Returns rows of :data:`NEW_INODE`, as :data:`SPAN` the pieces of what they write, and rows of
    :data:`NEW_TIMES`.
    """
    count = len(columns["offset"])
    inodes, pieces = np.empty(count // 2 + 1, NEW_INODE), np.empty(count, SPAN)
    times = np.empty(count, NEW_TIMES)
    found = lib.bm_stream_inodes(
        ffi.from_buffer(data), _raw_columns(columns), count, max(most, 0),
        ffi.from_buffer("struct bm_stream_inode[]", inodes),
        ffi.from_buffer("struct bm_span[]", pieces),
        ffi.from_buffer("struct bm_stream_times[]", times),
    )  # fmt: skip
    rows = inodes[:found]
    return rows, pieces[: int(rows["writes"].sum())], times[: int(rows["more"].sum())]


class TextLines:
    """The lines of one stream from its start: paths belong to the subvolume that came last.

    `escape_all`: whether to write as btrfs-progs 6.9.1 and later.
    """

    def __init__(self, escape_all: bool) -> None:
        self._text = ffi.gc(lib.bm_stream_text_create(escape_all), lib.bm_stream_text_destroy)
        if self._text == ffi.NULL:
            raise MemoryError("out of memory in a C kernel")
        self._buffer = bytearray(_BUFFER)

    def write(self, data: memoryview, columns: Columns, count: int, out: BinaryIO) -> None:
        """Write the lines of the first commands of some columns.

        Raises BrokenStreamError: for a path that is too long and a time that has no date.
        """
        raw, source, target = (
            _raw_columns(columns), ffi.from_buffer(data), ffi.from_buffer("uint8_t[]", self._buffer)
        )  # fmt: skip
        view, used, fault = memoryview(self._buffer), ffi.new("uint64_t *"), new_fault()
        done = 0
        while done < count:
            lines = lib.bm_stream_text_lines(
                self._text, source, raw, done, count, target, len(view), used, fault
            )
            out.write(view[: used[0]])
            if lines < 0:
                raise BrokenStreamError(fault_of(fault))
            done += int(lines)


def _raw_columns(columns: Columns) -> ffi.CData:
    """Return a ``struct bm_stream_columns *``; `columns` has to live as long as it."""
    raw = ffi.new("struct bm_stream_columns *")
    for name, array in columns.items():
        setattr(raw, name, ffi.from_buffer(f"{array.dtype}_t[]", array))
    raw.capacity = len(columns["offset"])
    raw.attribute_capacity = len(columns["attribute_type"])
    return raw
