# SPDX-License-Identifier: GPL-2.0-only
"""Numbers of bytes, as people write them."""

from __future__ import annotations

from contextlib import suppress
from operator import index

_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def size(value: str | int) -> int:
    """Read a number of bytes, perhaps with K, M, G or T behind it.

    Raises ValueError: when it is none, or does not lie in [0, 2**63).
    """
    number = -1
    if not isinstance(value, str):
        number = index(value)
    else:
        unit = _UNITS.get(value[-1:].upper(), 0)
        with suppress(ValueError):
            number = int(value[:-1] if unit else value, 0) << unit
    if not 0 <= number < 2**63:
        raise ValueError(
            f"{value!r} is no size: a number of bytes, perhaps with K, M, G or T behind it"
        )
    return number
