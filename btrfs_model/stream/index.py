# SPDX-License-Identifier: GPL-2.0-only
"""Finding the commands of a stream: many at once, as columns.

:func:`read_batches` is the way to read a stream of any size at full speed;
:func:`btrfs_model.stream.reader.read_stream` makes Python objects of what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import Fault, StreamError
from btrfs_model.native.stream import BrokenStreamError, Position, index_commands
from btrfs_model.ondisk.stream import (
    ATTRIBUTES,
    COMMAND_HEADER,
    COMMANDS,
    END,
    MAX_VERSION,
    STREAM_HEADER,
)
from btrfs_model.stream.source import Source, Window, open_window

BATCH_COMMANDS = 16384
"""Commands of a batch at most: its columns stay in the processor's cache."""
BATCH_ATTRIBUTES = 8 * BATCH_COMMANDS
_LARGE = 1 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """Commands that follow each other in a stream, verified, as columns.

    With n commands and m attributes. Positions count from the start of `data`.

    Attributes
    ----------
    data : memoryview
        Bytes of the stream.
    base : int
        Byte of the stream at which `data` starts.
    offset : numpy.ndarray
        uint64, shape (n,): where the command's header starts.
    length : numpy.ndarray
        uint32, shape (n,): bytes of its attributes together.
    type : numpy.ndarray
        uint16, shape (n,): number of the command in :data:`btrfs_model.ondisk.stream.COMMANDS`.
    version : numpy.ndarray
        uint16, shape (n,): of the stream.
    first : numpy.ndarray
        uint64, shape (n + 1,): the attributes of command i are the rows first[i] to first[i + 1].
    attribute_type : numpy.ndarray
        uint16, shape (m,): number of the attribute.
    attribute_offset : numpy.ndarray
        uint64, shape (m,): where its value starts.
    attribute_length : numpy.ndarray
        uint32, shape (m,): bytes of its value.
    """

    data: memoryview
    base: int
    offset: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint32]
    type: npt.NDArray[np.uint16]
    version: npt.NDArray[np.uint16]
    first: npt.NDArray[np.uint64]
    attribute_type: npt.NDArray[np.uint16]
    attribute_offset: npt.NDArray[np.uint64]
    attribute_length: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.offset)

    def __repr__(self) -> str:
        return f"Batch({len(self):,} commands at byte {self.base})"

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[2:]}

    @property
    def ends(self) -> bool:
        """Whether the last command is ``end``."""
        return len(self) > 0 and int(self.type[-1]) == END


def read_batches(source: Source, *, header: bool = True, version: int = 1) -> Iterator[Batch]:
    """Read and verify the commands of a stream, batch by batch.

    Parameters
    ----------
    source : path, bytes-like or file object
        One or more streams, each with its header.
    header : bool
        With False the stream may start with a command, as the ioctl writes it with
        ``BTRFS_SEND_FLAG_OMIT_STREAM_HEADER``.
    version : int
        Of such a stream, 1 to 3.

    Yields
    ------
    Batch
        At least one command.

    Raises
    ------
    StreamError
        For the first thing that is wrong, after all commands before it were yielded.
    OSError
        When the source cannot be read.
    """
    if not 1 <= version <= MAX_VERSION:
        raise ValueError(f"stream version {version} is not 1 to {MAX_VERSION}")
    position = Position(version=0 if header else version)
    with open_window(source) as window:
        batches = _batches(window, position)
        # nobody waits for a thread that waits for a pipe
        yield from _ahead(batches) if window.last and len(window.data) > _LARGE else batches


def _batches(window: Window, position: Position) -> Iterator[Batch]:
    while True:
        try:
            batch = _next_batch(window, position)
        except BrokenStreamError as error:
            raise stream_error(window.name, window.data, window.base, error.fault) from None
        if len(batch):
            yield batch
        elif window.last:
            return
        else:
            window.advance(position.offset, position.wanted)
            position.offset = 0


def _ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches; a thread finds the next one while one is in use, nearly all of it in C."""
    from concurrent.futures import ThreadPoolExecutor  # small streams do without

    with ThreadPoolExecutor(1) as pool:
        batch = next(batches, None)
        while batch is not None:
            coming = pool.submit(next, batches, None)
            yield batch
            batch = coming.result()


def _allocate(data: memoryview, base: int, commands: int, attributes: int) -> Batch:
    return Batch(
        data,
        base,
        offset=np.empty(commands, np.uint64),
        length=np.empty(commands, np.uint32),
        type=np.empty(commands, np.uint16),
        version=np.empty(commands, np.uint16),
        first=np.zeros(commands + 1, np.uint64),
        attribute_type=np.empty(attributes, np.uint16),
        attribute_offset=np.empty(attributes, np.uint64),
        attribute_length=np.empty(attributes, np.uint32),
    )


def _cut(batch: Batch, commands: int) -> Batch:
    """Drop the rows that were not filled."""
    attributes = int(batch.first[commands])
    return Batch(
        batch.data,
        batch.base,
        offset=batch.offset[:commands],
        length=batch.length[:commands],
        type=batch.type[:commands],
        version=batch.version[:commands],
        first=batch.first[: commands + 1],
        attribute_type=batch.attribute_type[:attributes],
        attribute_offset=batch.attribute_offset[:attributes],
        attribute_length=batch.attribute_length[:attributes],
    )


def _next_batch(window: Window, position: Position) -> Batch:
    """Read on from `position`; no command when the window has no whole one left."""
    left = len(window.data) - position.offset
    commands = min(BATCH_COMMANDS, left // COMMAND_HEADER.size + 1)
    attributes = min(BATCH_ATTRIBUTES, left // 2 + len(ATTRIBUTES))
    batch = _allocate(window.data, window.base, commands, attributes)
    return _cut(batch, index_commands(window.data, window.last, position, batch.columns))


_MESSAGES: dict[int, str] = {
    Code.STREAM_TRUNCATED: "cut short: {what} has {wanted} bytes, {found} are there",
    Code.STREAM_BAD_MAGIC: "no stream header: it would start with 'btrfs-stream'",
    Code.STREAM_BAD_VERSION: "version {found} of the stream is not supported (1 to {wanted} are)",
    Code.STREAM_BAD_CRC: "{what}: bad crc: found {found:#010x}, computed {wanted:#010x}",
    Code.STREAM_BAD_COMMAND: "{what} does not exist in version {wanted}",
    Code.STREAM_BAD_ATTRIBUTE: "{what}: no attribute {attribute} in version {wanted}",
    Code.STREAM_BAD_LENGTH: "{what}: {attribute} needs {wanted} bytes, {found} are left",
    Code.STREAM_BAD_SIZE: "{what}: attribute {attribute} has {found} bytes instead of {wanted}",
    Code.STREAM_MISSING: "{what}: attribute {attribute} is missing",
    Code.STREAM_TWICE: "{what}: attribute {attribute} is there twice",
    Code.STREAM_LONG_PATH: "{what}: {attribute} is too long: {found} of {wanted} bytes",
    Code.STREAM_BAD_TIME: "{what}: {attribute} of {found} seconds has no date",
}


def _what(data: memoryview, fault: Fault) -> str:
    """Name of what starts at the place of a fault."""
    if fault.code == Code.STREAM_TRUNCATED and fault.wanted == STREAM_HEADER.size:
        return "the stream header"
    if len(data) - fault.offset < COMMAND_HEADER.size:
        return "a command header"
    number = COMMAND_HEADER.unpack_from(data, fault.offset)[1]
    return f"command {COMMANDS[number].name if number in COMMANDS else number}"


def stream_error(name: str, data: memoryview, base: int, fault: Fault) -> StreamError:
    """Make the exception for a fault at ``fault.offset`` of `data`."""
    attribute = ATTRIBUTES[fault.slot].name if fault.slot in ATTRIBUTES else str(fault.slot)
    text = _MESSAGES[fault.code].format(
        what=_what(data, fault), attribute=attribute, found=fault.found, wanted=fault.wanted
    )
    return StreamError(name, base + fault.offset, text)
