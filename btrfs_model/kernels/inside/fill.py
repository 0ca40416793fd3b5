# SPDX-License-Identifier: GPL-2.0-only
"""What a ``write`` of a scenario writes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any


def _text(choice: random.Random, length: int) -> bytes:
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    sizes = [choice.randint(1, 10) for _ in range(300)]
    weights = [1 / (rank + 1) for rank in range(len(sizes))]
    words = ["".join(choice.choices(letters, weights[: len(letters)], k=size)) for size in sizes]
    some = choice.choices(words, weights, k=length // 2 + 1)
    lines = (" ".join(some[at : at + 12]) for at in range(0, len(some), 12))
    return "\n".join(lines).encode()[:length]


def _mixed(choice: random.Random, length: int) -> bytes:
    made = bytearray()
    while len(made) < length:
        size = choice.randint(1, 1 << choice.randint(3, 15))
        kind = choice.randrange(6)
        if kind == 0:
            made += choice.randbytes(size)
        elif kind == 1:
            made += bytes(size)
        elif kind == 2:
            made += _text(choice, size)
        elif kind == 3:
            made += (choice.randbytes(choice.randint(1, 40)) * size)[:size]
        elif kind == 4:
            made += bytes(choice.choices(b"0123456789abcdef", k=size))
        else:
            start = choice.randrange(len(made) + 1)
            made += made[start : start + size]
    return bytes(made[:length])


_MAKERS: dict[str, Callable[[random.Random, int], bytes]] = {
    "rnd": random.Random.randbytes,
    "text": _text,
    "mix": _mixed,
}


def data_of(fill: Any, offset: int, length: int) -> bytes:
    """Return the bytes that a ``write`` writes.

    Parameters
    ----------
    fill : int or tuple
        A number n: byte p of the file is ``(n + p) & 255``. ``("zero",)``: zeros. ``("pat", tag)``:
        the first 16 bytes of SHA-256 of the tag, over and over. ``("rnd", tag)``: what
        ``random.Random(tag)`` gives. ``("text", tag)``: lines of made up words. ``("mix", tag)``:
        pieces of very different kinds, some of which can be compressed.
    offset, length : int
        The range of the file, in bytes.
    """
    if isinstance(fill, int):
        cycle = bytes((fill + offset + i) & 255 for i in range(256))
        return (cycle * (length // 256 + 1))[:length]
    if fill[0] == "zero":
        return bytes(length)
    if fill[0] in _MAKERS:
        return _MAKERS[fill[0]](random.Random(fill[1]), length)
    pattern = hashlib.sha256(fill[1].encode()).digest()[:16]
    return (pattern * (length // 16 + 1))[:length]
