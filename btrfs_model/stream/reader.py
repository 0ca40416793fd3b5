# SPDX-License-Identifier: GPL-2.0-only
"""Reading a stream as Python objects, one for each command."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import repeat

from btrfs_model.base.arguments import checked
from btrfs_model.base.tables import html_table
from btrfs_model.ondisk.stream import ATTRIBUTES, COMMAND_HEADER, COMMANDS, DATA, Kind
from btrfs_model.stream.index import Batch, read_batches
from btrfs_model.stream.source import Source

Value = int | bytes | memoryview | tuple[int, int]
"""Value of an attribute: a number; a path, name or UUID; data; (seconds, nanoseconds)."""


_LONG = 4096  # of a path, at most


class _Rows:
    """The columns of a batch as lists, made when a first command of it is looked at."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    @cached_property
    def commands(self) -> list[tuple[int, int, int, int, int]]:
        """Of each command: number, offset, version, first attribute and the one after the last."""
        batch = self.batch
        first = batch.first.tolist()
        columns = (batch.type.tolist(), batch.offset.tolist(), batch.version.tolist())
        return list(zip(*columns, first[:-1], first[1:], strict=True))

    @cached_property
    def attributes(self) -> list[tuple[int, int, int]]:
        """Of each attribute: number, offset and size of its value."""
        batch = self.batch
        offsets, sizes = batch.attribute_offset.tolist(), batch.attribute_length.tolist()
        return list(zip(batch.attribute_type.tolist(), offsets, sizes, strict=True))


class Command:
    """One command of a stream.

    It is a row of a :class:`btrfs_model.stream.index.Batch`, which it keeps in memory; values are
    decoded when they are asked for, so that passing over commands costs little.
    """

    __slots__ = ("_attributes", "_row", "_rows")

    def __init__(self, rows: _Rows, row: int) -> None:
        self._rows = rows
        self._row = row

    @property
    def name(self) -> str:
        """As in :data:`btrfs_model.ondisk.stream.COMMANDS_BY_NAME`: ``"rename"``."""
        return COMMANDS[self._rows.commands[self._row][0]].name

    @property
    def offset(self) -> int:
        """Byte of the stream at which the command starts."""
        return self._rows.batch.base + self._rows.commands[self._row][1]

    @property
    def version(self) -> int:
        """Of the stream."""
        return self._rows.commands[self._row][2]

    @property
    def attributes(self) -> dict[str, Value]:
        """Values by name, in the order of the stream.

        Integers are int, strings, UUIDs (16 bytes) and other short values bytes, times (seconds,
        nanoseconds); ``data`` is a memoryview.
        """
        try:
            return self._attributes
        except AttributeError:
            pass
        rows = self._rows
        _, _, _, start, end = rows.commands[self._row]
        found = {}
        for number, offset, size in rows.attributes[start:end]:
            name, decode = _DECODERS[number]
            found[name] = decode(rows.batch.data, offset, size)
        self._attributes: dict[str, Value] = found
        return found

    def __getitem__(self, attribute: str) -> Value:
        return self.attributes[attribute]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return self._identity() == other._identity()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        # alone: the batch has all the others, too
        batch = self._rows.batch
        start = int(batch.offset[self._row])
        end = start + COMMAND_HEADER.size + int(batch.length[self._row])
        return _alone, (bytes(batch.data[start:end]), self.offset, self.version)

    def _identity(self) -> tuple[str, int, int, dict[str, Value]]:
        return self.name, self.offset, self.version, self.attributes

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={_shown(value)}" for name, value in self.attributes.items())
        return f"<{self.name} at {self.offset}: {values}>"

    def _repr_html_(self) -> str:
        rows = [(name, _shown(value)) for name, value in self.attributes.items()]
        return html_table(f"{self.name} at {self.offset}", ["attribute", "value"], rows)


def _alone(data: bytes, offset: int, version: int) -> Command:
    [batch] = read_batches(data, header=False, version=version)
    return Command(_Rows(replace(batch, base=offset)), 0)


def _shown(value: Value) -> str:
    if isinstance(value, memoryview) or (isinstance(value, bytes) and len(value) > _LONG):
        return f"<{len(value)} bytes>"
    return repr(value)


@checked
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
    """Return the commands of a batch."""
    return map(Command, repeat(_Rows(batch)), range(len(batch)))


def command_of(batch: Batch, row: int) -> Command:
    """Return one command of a batch, without a look at the others."""
    start, end = batch.first[row : row + 2].tolist()
    alone = Batch(
        batch.data, batch.base, batch.offset[row : row + 1], batch.length[row : row + 1],
        batch.type[row : row + 1], batch.version[row : row + 1], batch.first[row : row + 2] - start,
        batch.attribute_type[start:end], batch.attribute_offset[start:end],
        batch.attribute_length[start:end],
    )  # fmt: skip
    return Command(_Rows(alone), 0)


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
