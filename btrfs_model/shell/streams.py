# SPDX-License-Identifier: GPL-2.0-only
"""Open files of a shell."""

from __future__ import annotations

import errno
import os
from typing import Final

_LIMIT: Final = 1 << 30
"""Bytes that a pipe or an output holds at most."""


class Stream:
    """An open file; several numbers of a shell and its subshells share it, and its place."""

    endless = False
    """Whether it has no end."""

    def read(self, size: int = -1) -> bytes:
        """Read up to so many bytes, or all; none at the end."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

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


class Null(Stream):
    """``/dev/null``."""

    def read(self, size: int = -1) -> bytes:
        """Read nothing."""
        return b""

    def write(self, data: bytes) -> None:
        """Forget it."""
