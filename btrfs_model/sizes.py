# SPDX-License-Identifier: GPL-2.0-only
"""Numbers of bytes, as people write them."""

from __future__ import annotations

from operator import index

__all__ = ["size"]

_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def size(value: str | int) -> int:
    """Read a number of bytes, perhaps with K, M, G or T behind it.

    Raises
    ------
    ValueError
        When it is none, or does not lie in [0, 2**63).
    """
    if not isinstance(value, str):
        number = index(value)
    else:
        unit = _UNITS.get(value[-1:].upper(), 0)
        try:
            number = int(value[:-1] if unit else value, 0) << unit
        except ValueError:
            raise ValueError(
                f"{value!r} is no size: a number of bytes, perhaps with K, M, G or T behind it"
            ) from None
    if not 0 <= number < 2**63:
        raise ValueError(f"a size of {number} bytes is not in [0, 2**63)")
    return number
