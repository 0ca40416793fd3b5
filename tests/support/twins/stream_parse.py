# SPDX-License-Identifier: GPL-2.0-only
"""Reading a stream in plain Python: the twin of ``native/stream/stream.c``."""

from __future__ import annotations

from collections.abc import Iterator

import google_crc32c

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import Fault
from btrfs_model.native.stream import BrokenStreamError, Columns, Position
from btrfs_model.ondisk.stream import (
    ATTRIBUTES,
    ATTRIBUTES_BY_NAME,
    COMMAND_HEADER,
    COMMANDS,
    DATA,
    END,
    MAGIC,
    MAX_VERSION,
    STREAM_HEADER,
)

_NO_CRC = bytes(4)


def broken(code: int, offset: int, slot: int = 0, found: int = 0, wanted: int = 0) -> Exception:
    """Make the error for a fault of a stream."""
    return BrokenStreamError(Fault(code, slot=slot, offset=offset, found=found, wanted=wanted))


class _Incomplete(Exception):  # noqa: N818
    """The rest of a command has not been read yet."""


def index_commands(data: memoryview, last: bool, position: Position, columns: Columns) -> int:
    """Do what :func:`btrfs_model.native.stream.index_commands` does.

    Returns
    -------
    int
        How many commands there are.

    Raises
    ------
    BrokenStreamError
        When the first command, or the header before it, is broken.
    """
    count = 0
    most = len(ATTRIBUTES)
    while (
        count < len(columns["offset"])
        and len(columns["attribute_type"]) - int(columns["first"][count]) >= most
    ):
        if position.offset == len(data) and (position.version or position.ended):
            position.wanted = 1
            break
        try:
            if not position.version or bytes(data[position.offset :][: len(MAGIC)]) == MAGIC:
                _read_header(data, last, position)
            else:
                _read_command(data, last, position, columns, count)
                count += 1
        except _Incomplete:
            break
        except BrokenStreamError:
            if count:
                break
            raise
    return count


def _have(data: memoryview, last: bool, position: Position, wanted: int) -> None:
    left = len(data) - position.offset
    if left >= wanted:
        return
    position.wanted = wanted
    if not last:
        raise _Incomplete
    raise broken(Code.STREAM_TRUNCATED, position.offset, 0, left, wanted)


def _read_header(data: memoryview, last: bool, position: Position) -> None:
    start = bytes(data[position.offset :][: len(MAGIC)])
    if not MAGIC.startswith(start):
        raise broken(Code.STREAM_BAD_MAGIC, position.offset)
    _have(data, last, position, STREAM_HEADER.size)
    _, version = STREAM_HEADER.unpack_from(data, position.offset)
    if not 1 <= version <= MAX_VERSION:
        raise broken(Code.STREAM_BAD_VERSION, position.offset, 0, version, MAX_VERSION)
    position.version = version
    position.ended = False
    position.offset += STREAM_HEADER.size


def _read_command(
    data: memoryview, last: bool, position: Position, columns: Columns, row: int
) -> None:
    start, version = position.offset, position.version
    _have(data, last, position, COMMAND_HEADER.size)
    length, number, crc = COMMAND_HEADER.unpack_from(data, start)
    _have(data, last, position, COMMAND_HEADER.size + length)
    end = start + COMMAND_HEADER.size + length
    computed = _crc32c(data[start : start + 6], data[start + COMMAND_HEADER.size : end])
    if crc != computed:
        raise broken(Code.STREAM_BAD_CRC, start, 0, crc, computed)
    if number not in COMMANDS or COMMANDS[number].version > version:
        raise broken(Code.STREAM_BAD_COMMAND, start, 0, number, version)
    attributes = list(_attributes(data, start, end, version))
    _check_mandatory(start, number, {attribute for attribute, _, _ in attributes})

    first = int(columns["first"][row])
    columns["offset"][row], columns["length"][row] = start, length
    columns["type"][row], columns["version"][row] = number, version
    columns["first"][row + 1] = first + len(attributes)
    for index, (attribute, offset, size) in enumerate(attributes, first):
        columns["attribute_type"][index] = attribute
        columns["attribute_offset"][index] = offset
        columns["attribute_length"][index] = size
    position.offset = end
    if number == END:
        position.version, position.ended = 0, True


def _crc32c(start: memoryview, attributes: memoryview) -> int:
    """CRC of a command, whose field for the CRC counts as zero, without any inversion."""
    header = bytes(start) + _NO_CRC
    # the library inverts before and after, so both are undone
    return int(google_crc32c.extend(0xFFFFFFFF, header + bytes(attributes))) ^ 0xFFFFFFFF


def _attributes(
    data: memoryview, start: int, end: int, version: int
) -> Iterator[tuple[int, int, int]]:
    """Yield number, offset and size of each attribute of the command at `start`."""
    offset = start + COMMAND_HEADER.size
    seen = set()
    while offset < end:
        left = end - offset
        if left < 2:
            raise broken(Code.STREAM_BAD_LENGTH, start, 0, left, 2)
        number = int.from_bytes(data[offset : offset + 2], "little")
        if number not in ATTRIBUTES or ATTRIBUTES[number].version > version:
            raise broken(Code.STREAM_BAD_ATTRIBUTE, start, number, number, version)
        if number in seen:
            raise broken(Code.STREAM_TWICE, start, number)
        seen.add(number)
        header = 2 if number == DATA and version >= 2 else 4
        if left < header:
            raise broken(Code.STREAM_BAD_LENGTH, start, number, left, header)
        size = int.from_bytes(data[offset + 2 : offset + 4], "little") if header == 4 else left - 2
        if header + size > left:
            raise broken(Code.STREAM_BAD_LENGTH, start, number, left, header + size)
        if ATTRIBUTES[number].kind.size not in (-1, size):
            raise broken(Code.STREAM_BAD_SIZE, start, number, size, ATTRIBUTES[number].kind.size)
        yield number, offset + header, size
        offset += header + size


def _check_mandatory(start: int, number: int, present: set[int]) -> None:
    mandatory = {ATTRIBUTES_BY_NAME[name].number for name in COMMANDS[number].mandatory}
    missing = mandatory - present
    if missing:
        raise broken(Code.STREAM_MISSING, start, min(missing))
