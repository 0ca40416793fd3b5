# SPDX-License-Identifier: GPL-2.0-only
"""Where the bytes of a stream come from: memory, a file, a pipe.

A regular file is mapped into memory and memory is taken as it is, so that a stream of gigabytes is
read without a copy. Everything else is read in blocks: a :class:`Window` holds what was read and
not yet used.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

_BLOCK = 1 << 20


class BinaryReader(Protocol):
    """A file object open for reading bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end."""


Source = str | os.PathLike[str] | bytes | bytearray | memoryview | mmap.mmap | BinaryReader
"""A path, an object with the bytes, or a file object (a pipe, a decompressor)."""


class Window:
    """The bytes of a stream that are in memory.

    `name` (str): of the stream, for errors.
    `data` (memoryview): the bytes at hand. It stays valid for those who hold it when the window
    moves on.
    `base` (int): byte of the stream at which `data` starts.
    `last` (bool): whether the stream ends where `data` ends.
    """

    def __init__(self, name: str, data: memoryview, reader: BinaryReader | None = None) -> None:
        self.name = name
        self.data = data
        self.base = 0
        self.last = reader is None
        self._read = None if reader is None else getattr(reader, "read1", reader.read)

    def advance(self, used: int, wanted: int) -> None:
        """Drop `used` bytes and read on, until `wanted` bytes are there or the stream ends."""
        assert self._read is not None
        pieces = [bytes(self.data[used:])]
        size = len(pieces[0])
        while size < wanted and not self.last:
            piece = self._read(_BLOCK)
            self.last = not piece
            pieces.append(piece)
            size += len(piece)
        self.base += used
        self.data = memoryview(b"".join(pieces))


def name_of(source: Source) -> str:
    """Return the name of a stream in errors: its path, or that of its file object."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<stream>"


@contextmanager
def open_window(source: Source) -> Iterator[Window]:
    """Open a stream for reading.

    `source`: the stream. A file object is read from where it stands and is not closed.
    Yields all of the stream, or its beginning, still empty.
    Raises OSError: when a path cannot be opened.
    """
    if isinstance(source, (str, os.PathLike)):
        with Path(source).open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                yield Window(name_of(source), memoryview(mapped))
            else:
                yield Window(name_of(source), memoryview(b""), file)
    elif isinstance(source, (bytes, bytearray, memoryview, mmap.mmap)):
        yield Window(name_of(source), memoryview(source).cast("B"))
    else:
        yield Window(name_of(source), memoryview(b""), source)
