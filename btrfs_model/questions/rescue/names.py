# SPDX-License-Identifier: GPL-2.0-only
"""Names as a host takes them: none leads out of its folder, and none is there twice."""

from __future__ import annotations

from typing import Final

_MOST: Final = 255
_OUTSIDE: Final = {b"": b"%", b".": b"%2E", b"..": b"%2E%2E"}


def safe_name(name: bytes) -> bytes:
    """Return a name that can be that of a file; what cannot stand in one is ``%`` and its number.

    Kernels write no name that needs it.
    """
    name = _OUTSIDE.get(name, name).replace(b"/", b"%2F").replace(b"\0", b"%00")
    return name[:_MOST]


class Taken:
    """The names of one folder."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()

    def take(self, name: bytes) -> bytes:
        """Return a name for a file that is called so, which no other has."""
        name = safe_name(name)
        number, free = 1, name
        while free in self._names:
            number += 1
            tail = b"~%d" % number
            free = name[: _MOST - len(tail)] + tail
        self._names.add(free)
        return free

    def beside(self, name: bytes) -> bytes:
        """Return the name that a file called so would get; it is not taken yet."""
        names = set(self._names)
        try:
            return self.take(name)
        finally:
            self._names = names
