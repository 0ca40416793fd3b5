# SPDX-License-Identifier: GPL-2.0-only
"""Stored streams without an image: what they hold, and whether a receive would take them.

They are received, one after the other, into a filesystem in memory. So what a receive refuses is
refused here, at the same command, and what is asked of the files is asked of that filesystem.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError, ReceiveError, StreamError
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.stream import COMMAND_HEADER, END
from btrfs_model.questions.receive.api import receive
from btrfs_model.questions.receive.search import find_subvolume
from btrfs_model.stream.index import read_batches
from btrfs_model.stream.reader import command_of
from btrfs_model.stream.source import Source, name_of, open_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from btrfs_model.stream.reader import Command

_ROOM: Final = 1 << 44
"""Bytes of the device on which streams are received; only what is written takes memory."""
_COLUMNS: Final = {
    "file": "object", "offset": "int64", "bytes": "int64", "commands": "int64", "version": "int64",
    "snapshot": "object", "uuid": "object", "ctransid": "int64", "parent": "object",
    "parent_uuid": "object", "parent_ctransid": "UInt64", "complete": "bool", "problem": "object",
}  # fmt: skip


@dataclass(frozen=True)
class _Stream:
    """A stream of a file: its bytes, how many commands, the first of them, where it breaks off."""

    file: str
    offset: int
    data: memoryview
    commands: int
    first: Command | None
    broken: StreamError | None
    complete: bool


class StoredStreams(AbstractContextManager["StoredStreams"]):
    """Streams that were received into memory; see :func:`stored_streams`.

    Attributes
    ----------
    fs : WritableFilesystem
        What they were received into.
    subvolumes : list of str
        Paths in `fs` of what was received, the parts of broken streams too.
    """

    def __init__(self, target: WritableFilesystem | None) -> None:
        self._is_own = target is None
        self.fs = WritableFilesystem.mkfs(_ROOM) if target is None else target
        self.subvolumes: list[str] = []
        self._rows: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"StoredStreams({len(self._rows)} streams, {len(self.subvolumes)} subvolumes)"

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back; a target stays open."""
        if self._is_own:
            self.fs.close()

    @property
    def table(self) -> pd.DataFrame:
        """A row for each stream, in order.

        ``file``, ``offset`` and ``bytes`` (where in it the stream is), ``commands``, ``version``;
        ``snapshot``, ``uuid`` and ``ctransid`` of what was sent (UUIDs hexadecimal); ``parent``
        (path of the subvolume that a receive takes as the parent, empty without one),
        ``parent_uuid`` and ``parent_ctransid`` (as the stream has them; NA of a full one);
        ``complete`` (whether it has its ``end``); ``problem`` (what is wrong with it, or at which
        command a receive ends; empty where nothing is).
        """
        import pandas as pd

        columns = {name: pd.Series([row[name] for row in self._rows], dtype=dtype)
                   for name, dtype in _COLUMNS.items()}  # fmt: skip
        return pd.DataFrame(columns)

    @property
    def problems(self) -> list[str]:
        """What is wrong, a line for each stream with a problem."""
        return [f"{row['file']}: {row['problem']}" for row in self._rows if row["problem"]]

    def _receive(self, stream: _Stream) -> None:
        """Receive a stream as far as that goes, and note how it went."""
        row = _described(stream)
        problems = []
        if stream.broken is not None:
            problems.append(f"byte {stream.broken.offset}: {stream.broken.message}")
        elif not stream.complete:
            problems.append("the stream stops without the command end")
        if stream.first is not None and "clone_uuid" in stream.first.attributes:
            row["parent"], remark = self._parent(stream.first)
            problems += remark
        before = set(self.fs.subvolume_ids)
        try:
            receive(self.fs, stream.data)
        except ReceiveError as error:
            problems.append(f"byte {stream.offset + error.offset}: {error.message}")
        except StreamError:
            pass  # it is `broken`
        new = [number for number in self.fs.subvolume_ids if number not in before]
        self.subvolumes += [self.fs.subvolume_path(number) for number in new]
        row["problem"] = "; ".join(problems)
        self._rows.append(row)

    def _parent(self, first: Command) -> tuple[str, list[str]]:
        """Find the parent of a stream as a receive does; say where its transaction is another."""
        wanted = first["clone_uuid"]
        assert isinstance(wanted, bytes)
        path = find_subvolume(self.fs, wanted, received_only=False)
        if path is None:
            return "", []  # the receive says so
        item = self.fs.subvolume(path).item
        there = item.stransid if item.received_uuid == wanted else item.ctransid
        sent, shown = first["clone_ctransid"], path.decode("utf-8", "surrogateescape")
        assert isinstance(sent, int)
        if there == sent:
            return shown, []
        return shown, [f"the parent was sent at transaction {sent}, {shown} is of {there}"]


def _described(stream: _Stream) -> dict[str, Any]:
    import pandas as pd

    values: dict[str, Any] = {} if stream.first is None else stream.first.attributes
    return {
        "file": stream.file,
        "offset": stream.offset,
        "bytes": len(stream.data),
        "commands": stream.commands,
        "version": stream.first.version if stream.first else 0,
        "snapshot": values.get("path", b"").decode("utf-8", "surrogateescape"),
        "uuid": _shown(values.get("uuid")),
        "ctransid": values.get("ctransid", 0),
        "parent": "",
        "parent_uuid": _shown(values.get("clone_uuid")),
        "parent_ctransid": values.get("clone_ctransid", pd.NA),
        "complete": stream.complete,
    }


def _shown(value: bytes | None) -> str:
    return "" if value is None else value.hex()


@checked
def stored_streams(*streams: Source, target: WritableFilesystem | None = None) -> StoredStreams:
    """Look at stored streams, without an image or a mount.

    Each is received into memory as far as it goes: a stream that is cut off gives what was there
    before. What is written takes memory.

    Parameters
    ----------
    *streams : path, bytes-like or file object
        In the order in which they would be received. Each may hold several, one behind the other.
    target : WritableFilesystem, optional
        What the receiver has, with the parents of the first streams. They are received into it.

    Returns
    -------
    StoredStreams
        A table of the streams with what is wrong, and the filesystem.

    Raises
    ------
    BtrfsModelError
        Without a stream.
    OSError
        When one cannot be read.
    """
    if not streams:
        raise BtrfsModelError("no stream was named")
    with ExitStack() as stack:
        stored = stack.enter_context(StoredStreams(target))
        for source in streams:
            for stream in _split(source):
                stored._receive(stream)
        stack.pop_all()
    return stored


def _split(source: Source) -> Iterator[_Stream]:
    """Find the streams of a file, in order; the last one may be broken off."""
    name = name_of(source)
    with open_window(source) as window:
        while not window.last:
            window.advance(0, len(window.data) + (1 << 30))
        data = window.data
    begin, commands, first, broken = 0, 0, None, None
    offset = 0
    try:
        for batch in read_batches(data):
            at = 0
            for end in [*np.flatnonzero(batch.type == END).tolist(), None]:
                if first is None and at < len(batch):
                    first = command_of(batch, at)
                stop = len(batch) if end is None else end + 1
                commands += stop - at
                at = stop
                if end is not None:
                    offset = batch.base + int(batch.offset[end]) + COMMAND_HEADER.size
                    offset += int(batch.length[end])
                    part = data[begin:offset]
                    yield _Stream(name, begin, part, commands, first, None, True)
                    begin, commands, first = offset, 0, None
    except StreamError as error:
        broken = error
    if broken or begin < len(data) or not begin:
        yield _Stream(name, begin, data[begin:], commands, first, broken, False)
