# SPDX-License-Identifier: GPL-2.0-only
"""Data that are told by a pattern: those that are not stored, and one byte again and again.

:class:`Repeated` data are data like any other; only what a call of many gigabytes takes is small.

A workload of 100 GB needs the trees that 100 GB make, not the bytes. What an :class:`Elided` range
leaves behind:

- *uncompressed*: the sectors on disk are zeros and so are their checksums' input. The file reads as
  zeros, here and in a kernel, and every check passes; the pattern is lost.
- *compressed* (mount option or property): the size on disk is what the pattern compresses to, the
  sectors are zeros with the checksums of zeros. Checks of structure and checksums pass.
  Nothing can be decompressed from them: reading fails (``CorruptImageError`` with ``BM_BAD_DATA``
  here, EIO in a kernel) and never gives wrong bytes.
- *inline*: never; a file that small is stored.
"""

from __future__ import annotations

from typing import NamedTuple


class Elided(NamedTuple):
    """Data for a write that are not to be stored.

    Attributes
    ----------
    length : int
        Bytes.
    pattern : bytes
        What they would be, again and again; it decides how far they compress, and whether.
    """

    length: int
    pattern: bytes = b"\0"

    @property
    def stored(self) -> bool:
        """Whether the bytes are on disk then."""
        return False

    def sample(self, size: int) -> bytes:
        """Return the first `size` bytes."""
        return (self.pattern * (size // len(self.pattern) + 1))[:size]


class Repeated(NamedTuple):
    """Data for a write that are one byte, again and again.

    Attributes
    ----------
    length : int
        Bytes.
    pattern : bytes
        The byte.
    """

    length: int
    pattern: bytes = b"\0"

    @property
    def stored(self) -> bool:
        """Whether the bytes are on disk then."""
        return True

    def sample(self, size: int) -> bytes:
        """Return the first `size` bytes."""
        return self.pattern * size


Told = Elided | Repeated
"""Data that are told by a pattern."""
