# SPDX-License-Identifier: GPL-2.0-only
"""Open files of a shell."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Self, TypeAlias

_LIMIT: Final = 1 << 30
"""Bytes that a pipe or an output holds at most."""
_PIECE: Final = 1 << 20
_ENDLESS: Final = 1 << 26
"""Bytes of a program that does not seem to end."""


class Stream:
    """An open file; several numbers of a shell and its subshells share it, and its place.

    It stays open as long as a number, or a ``with`` block, has it.
    """

    endless = False
    """Whether it has no end."""
    mode = "r+"
    """How it was opened, as for ``open()``."""
    _holders = 0

    def may_read(self) -> None:
        """See that it was opened to be read; OSError EBADF."""
        if self.mode in ("w", "a"):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def may_write(self) -> None:
        """See that it was opened to be written to; OSError EBADF."""
        if self.mode == "r":
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def hold(self) -> Self:
        """Keep it open, until :meth:`release`."""
        self._holders += 1
        if self._holders == 1:
            self._opened()
        return self

    def release(self) -> None:
        """Let go of it; it is closed when nobody has it."""
        self._holders -= 1
        if not self._holders:
            self._closed()

    __enter__ = hold

    def __exit__(self, *_: object) -> None:
        self.release()

    def _opened(self) -> None:
        """Do what an open file needs."""

    def _closed(self) -> None:
        """Do what the last close(2) does."""

    def read(self, size: int = -1) -> bytes:
        """Read up to so many bytes, or all; none at the end."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def pieces(self) -> Iterator[bytes]:
        """Yield all that is left; UnknownError where that has no end."""
        while piece := self.read(-1 if self.endless else _PIECE):
            yield piece

    def read_line(self, end: int = 10) -> bytes:
        """Read up to a byte and with it; less at the end."""
        found = bytearray()
        while one := self.read(1):
            found += one
            if one[0] == end:
                break
        return bytes(found)

    def write(self, data: bytes) -> None:
        """Write all."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class Source(Stream):
    """Bytes to be read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def read(self, size: int = -1) -> bytes:
        """Read from the place on."""
        end = len(self.data) if size < 0 else self.at + size
        found = self.data[self.at : end]
        self.at += len(found)
        return found

    def read_line(self, end: int = 10) -> bytes:
        """Read up to a byte."""
        at = self.data.find(end, self.at)
        return self.read(-1 if at < 0 else at + 1 - self.at)


class Sink(Stream):
    """Bytes that are written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        """Append."""
        if len(self.data) + len(data) > _LIMIT:
            raise OSError(errno.ENOSPC, f"more than {_LIMIT} bytes of output")
        self.data += data


class Pipe(Sink):
    """What a program writes for the next one."""

    rest: Endless | None = None

    def hand_over(self, rest: Endless) -> int:
        """Let the next program read what comes from here on; return the status of this one.

        A program that writes without an end gives what it writes so: the next one reads as much as
        it needs, and then the first dies of a signal.
        """
        if self.rest is None:
            rest.begin_with(bytes(self.data))
            self.rest = rest
        return KILLED

    def write(self, data: bytes) -> None:
        """Append, where somebody reads it still."""
        if self.rest is None:
            super().write(data)

    def reader(self) -> Stream:
        """Return what the next program reads."""
        return self.rest or Source(bytes(self.data))


KILLED: Final = 128 + 13
"""The status of a program that wrote to a pipe that nobody reads (SIGPIPE)."""


class Endless(Stream):
    """What a program writes without an end, made piece by piece as it is read.

    `status`: what the program ended with.
    """

    endless = True
    status = KILLED

    def __init__(self, name: str, make: Callable[[], bytes]) -> None:
        self.name, self._make = name, make
        self._piece, self._at = b"", 0

    def begin_with(self, data: bytes) -> None:
        """Let some bytes come first."""
        self._piece = data

    def _more(self) -> bool:
        """Add a piece to what is left; return whether there is one."""
        piece = self._make()
        self._piece, self._at = self._piece[self._at :] + piece, 0
        return bool(piece)

    def _left(self) -> int:
        return len(self._piece) - self._at

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes; all of them where the program ends by itself."""
        while (size < 0 or self._left() < size) and self._more():
            if size < 0 and self._left() > _ENDLESS:
                from btrfs_model.shell.state import UnknownError

                raise UnknownError(f"{self.name} has no end: read a part of it (head -c, dd)")
        end = len(self._piece) if size < 0 else self._at + size
        found = self._piece[self._at : end]
        self._at += len(found)
        return found

    def read_line(self, end: int = 10) -> bytes:
        """Read up to a byte and with it."""
        while (found := self._piece.find(end, self._at)) < 0 and self._more():
            pass
        return self.read(self._left() if found < 0 else found + 1 - self._at)

    def close(self) -> bytes:
        """Let the program end; return what it said of errors."""
        return b""


class Null(Stream):
    """``/dev/null``."""

    def read(self, size: int = -1) -> bytes:
        """Read nothing."""
        return b""

    def write(self, data: bytes) -> None:
        """Forget it."""


Replaced: TypeAlias = "dict[int, Stream | None]"
"""What numbers had before redirections of a command."""


class Files(dict[int, Stream]):
    """The open files of a shell, by number."""

    def __init__(self, files: Mapping[int, Stream]) -> None:
        super().__init__(files)
        for one in self.values():
            one.hold()

    def put(self, number: int, stream: Stream | None, replaced: Replaced | None = None) -> None:
        """Give a number a file, or close it; what it had goes to `replaced`, or is let go."""
        if stream is not None:
            stream.hold()
        old = self.pop(number, None)
        if stream is not None:
            self[number] = stream
        if replaced is not None and number not in replaced:
            replaced[number] = old
        elif old is not None:
            old.release()

    def restore(self, replaced: Replaced) -> None:
        """Give numbers back what they had."""
        for number, old in replaced.items():
            self.put(number, old)
        self.forget(replaced)

    def forget(self, replaced: Replaced) -> None:
        """Let go of what numbers had."""
        for old in replaced.values():
            if old is not None:
                old.release()

    def close(self) -> None:
        """Close all."""
        for number in list(self):
            self.put(number, None)
