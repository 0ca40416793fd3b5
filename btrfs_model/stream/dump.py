# SPDX-License-Identifier: GPL-2.0-only
"""Streams for reading by people and programs: ``dump-stream``."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from btrfs_model.base.errors import StreamError
from btrfs_model.native.stream import BrokenStreamError, TextLines
from btrfs_model.ondisk.hashes import crc32c
from btrfs_model.ondisk.stream import ATTRIBUTES_BY_NAME, COMMAND_HEADER, END, STREAM_HEADER, Kind
from btrfs_model.stream.index import Batch, read_batches, stream_error
from btrfs_model.stream.reader import Command, Value, commands_of
from btrfs_model.stream.source import Source, name_of


def dump_text(
    source: Source,
    out: BinaryIO,
    *,
    header: bool = True,
    version: int = 1,
    all_streams: bool = False,
    escape_all: bool = False,
) -> None:
    """Write a stream as text, equal to that of ``btrfs receive --dump``.

    It is equal in what goes wrong, too: all commands before the place are written. A stream without
    ``end`` is written to its last command and then is an error, unless it was asked for as a
    fragment by ``header=False``. Times are in the time zone of ``TZ``.

    `source`: the stream.
    `out`: gets the text; btrfs-progs before 6.9.1 writes xattrs as they are, so it is not always
    text in any encoding.
    `header`, `version`: as for :func:`btrfs_model.stream.reader.read_stream`.
    `all_streams`: go on after ``end``, where ``btrfs receive --dump`` stops although more may
    follow.
    `escape_all`: write as btrfs-progs 6.9.1 and later do, otherwise as the versions before.
    Raises StreamError: when the stream is broken, has no ``end``, or has a path or time that
    btrfs-progs refuses.
    Raises OSError: when it cannot be read or the text not be written.
    """
    time.tzset()
    lines = TextLines(escape_all)
    for batch in _whole_stream(source, header, version):
        count = len(batch)
        ends = np.flatnonzero(batch.type == END)
        if not all_streams and len(ends):
            count = int(ends[0])
        try:
            lines.write(batch.data, batch.columns, count, out)
        except BrokenStreamError as error:
            raise stream_error(name_of(source), batch.data, batch.base, error.fault) from None
        if count < len(batch):
            return


def _whole_stream(source: Source, header: bool, version: int) -> Iterator[Batch]:
    """Read a stream that has to stop with ``end``, unless it was asked for as a fragment."""
    offset, ends = STREAM_HEADER.size, False
    for batch in read_batches(source, header=header, version=version):
        yield batch
        offset = batch.base + int(batch.offset[-1]) + COMMAND_HEADER.size + int(batch.length[-1])
        ends = batch.ends
    if header and not ends:
        raise StreamError(name_of(source), offset, "the stream stops without the command end")


def dump_json(
    source: Source,
    out: BinaryIO,
    *,
    header: bool = True,
    version: int = 1,
    data: bool = False,
) -> None:
    r"""Write a stream as JSON, one object a line, with all streams that follow each other.

    ::

        {"command": "rename", "offset": 92, "version": 1,
         "attributes": {"path": "o257-7-0", "path_to": "A"}}

    Attributes are in the order of the stream. Numbers are numbers; paths, names and link targets
    are strings, in which a byte that is not UTF-8 is a lone surrogate (0xff is ``"\udcff"``), so
    that ``json.loads(line)["attributes"]["path"].encode("utf-8", "surrogateescape")`` gives the
    bytes back; a UUID is a string in the usual form; a time is ``{"sec": .., "nsec": ..}``; a
    value of bytes is ``{"length": .., "base64": ..}``. Of ``data`` there is
    ``{"length": .., "crc32c": "8 hex digits"}``, the usual CRC-32C, unless it is asked for.

    `source`: the stream.
    `out`: gets the lines, plain ASCII.
    `header`, `version`: as for :func:`btrfs_model.stream.reader.read_stream`.
    `data`: write the content of ``data`` as base64, too.
    Raises StreamError: when the stream is broken or has no ``end``, after all commands before that
    place.
    Raises OSError: when it cannot be read or the lines not be written.
    """
    encode = json.JSONEncoder().encode
    for batch in _whole_stream(source, header, version):
        for command in commands_of(batch):
            line = {
                "command": command.name,
                "offset": command.offset,
                "version": command.version,
                "attributes": dict(_json_attributes(command, data)),
            }
            out.write(encode(line).encode() + b"\n")


def _json_attributes(command: Command, data: bool) -> Iterator[tuple[str, Any]]:
    for name, value in command.attributes.items():
        if name == "data":
            assert isinstance(value, memoryview)
            yield name, _json_data(value, data)
        else:
            yield name, _JSON[ATTRIBUTES_BY_NAME[name].kind](value)


def _json_data(value: memoryview, content: bool) -> dict[str, Any]:
    crc = crc32c(0xFFFFFFFF, value) ^ 0xFFFFFFFF
    described: dict[str, Any] = {"length": len(value), "crc32c": f"{crc:08x}"}
    if content:
        described["base64"] = base64.b64encode(value).decode()
    return described


def json_name(value: bytes) -> str:
    """Return what stands for a name in JSON; see :func:`dump_json`."""
    return value.decode("utf-8", "surrogateescape")


def json_bytes(value: bytes) -> dict[str, Any]:
    """Return what stands for a value of bytes in JSON; see :func:`dump_json`."""
    return {"length": len(value), "base64": base64.b64encode(value).decode()}


def _number(value: Any) -> Any:
    return value


_JSON: dict[Kind, Callable[[Any], Value | str | dict[str, Any]]] = {
    Kind.U8: _number,
    Kind.U32: _number,
    Kind.U64: _number,
    Kind.UUID: lambda value: str(uuid.UUID(bytes=value)),
    Kind.TIMESPEC: lambda value: {"sec": value[0], "nsec": value[1]},
    Kind.STRING: json_name,
    Kind.BINARY: json_bytes,
}
