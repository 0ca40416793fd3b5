# SPDX-License-Identifier: GPL-2.0-only
"""What a ``write`` of a scenario writes."""

from __future__ import annotations

import hashlib
import random
from typing import Any


def data_of(fill: Any, offset: int, length: int) -> bytes:
    """Return the bytes that a ``write`` writes.

    Parameters
    ----------
    fill : int or tuple
        A number n: byte p of the file is ``(n + p) & 255``. ``("zero",)``: zeros. ``("pat", tag)``:
        the first 16 bytes of SHA-256 of the tag, over and over. ``("rnd", tag)``: what
        ``random.Random(tag)`` gives.
    offset, length : int
        The range of the file, in bytes.
    """
    if isinstance(fill, int):
        cycle = bytes((fill + offset + i) & 255 for i in range(256))
        return (cycle * (length // 256 + 1))[:length]
    if fill[0] == "zero":
        return bytes(length)
    if fill[0] == "rnd":
        return random.Random(fill[1]).randbytes(length)
    pattern = hashlib.sha256(fill[1].encode()).digest()[:16]
    return (pattern * (length // 16 + 1))[:length]
