# SPDX-License-Identifier: GPL-2.0-only
"""Reading a stream as Python objects, one for each command."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from btrfs_model.ondisk.stream import ATTRIBUTES, COMMANDS, DATA, Kind
from btrfs_model.stream.index import Batch, read_batches
from btrfs_model.stream.source import Source

__all__ = ["Command", "Value", "commands_of", "read_stream"]

Value = int | bytes | memoryview | tuple[int, int]
"""Value of an attribute: a number; a path, name or UUID; data; (seconds, nanoseconds)."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a stream.

    Attributes
    ----------
    name : str
        As in :data:`btrfs_model.ondisk.stream.COMMANDS_BY_NAME`: ``"rename"``.
    offset : int
        Byte of the stream at which it starts.
    version : int
        Of the stream.
    attributes : dict
        Values by name, in the order of the stream. Integers are int, strings, UUIDs (16 bytes)
        and other short values bytes, times (seconds, nanoseconds), ``data`` is a memoryview.
    """

    name: str
    offset: int
    version: int
    attributes: dict[str, Value]

    def __getitem__(self, attribute: str) -> Value:
        return self.attributes[attribute]


def read_stream(source: Source, *, header: bool = True, version: int = 1) -> Iterator[Command]:
    """Read the commands of a stream, or of several one after the other.

    A stream without ``end`` is taken as it is; one that ends inside a command is an error.

    Parameters
    ----------
    source : path, bytes-like or file object
        The stream; a file object is read to its end and not closed.
    header : bool
        With False the stream may start with a command, as the ioctl writes it with
        ``BTRFS_SEND_FLAG_OMIT_STREAM_HEADER``.
    version : int
        Of such a stream, 1 to 3.

    Yields
    ------
    Command
        In the order of the stream.

    Raises
    ------
    StreamError
        When the stream is broken, after the commands before that place; it names the source, the
        byte and the command.
    OSError
        When the source cannot be read.
    """
    for batch in read_batches(source, header=header, version=version):
        yield from commands_of(batch)


def commands_of(batch: Batch) -> Iterator[Command]:
    """Yield the commands of a batch."""
    data, base = batch.data, batch.base
    numbers = batch.attribute_type.tolist()
    offsets = batch.attribute_offset.tolist()
    sizes = batch.attribute_length.tolist()
    first = batch.first.tolist()
    rows = zip(
        batch.type.tolist(), batch.offset.tolist(), batch.version.tolist(), first, first[1:],
        strict=False,
    )  # fmt: skip
    for number, offset, version, start, end in rows:
        attributes = {}
        for row in range(start, end):
            name, decode = _DECODERS[numbers[row]]
            attributes[name] = decode(data, offsets[row], sizes[row])
        yield Command(COMMANDS[number].name, base + offset, version, attributes)


_Decoder = Callable[[memoryview, int, int], Value]


def _integer(layout: str) -> _Decoder:
    unpack = struct.Struct(layout).unpack_from
    return lambda data, offset, size: int(unpack(data, offset)[0])


def _timespec(data: memoryview, offset: int, size: int) -> tuple[int, int]:
    # the kernel's time is signed, though the format says u64
    seconds, nanoseconds = struct.unpack_from("<qI", data, offset)
    return int(seconds), int(nanoseconds)


def _bytes(data: memoryview, offset: int, size: int) -> bytes:
    return bytes(data[offset : offset + size])


def _view(data: memoryview, offset: int, size: int) -> memoryview:
    return data[offset : offset + size]


_BY_KIND: dict[Kind, _Decoder] = {
    Kind.U8: _integer("<B"),
    Kind.U32: _integer("<I"),
    Kind.U64: _integer("<Q"),
    Kind.TIMESPEC: _timespec,
    Kind.UUID: _bytes,
    Kind.STRING: _bytes,
    Kind.BINARY: _bytes,
}

_DECODERS: dict[int, tuple[str, _Decoder]] = {
    number: (attribute.name, _view if number == DATA else _BY_KIND[attribute.kind])
    for number, attribute in ATTRIBUTES.items()
}
