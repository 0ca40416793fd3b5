# SPDX-License-Identifier: GPL-2.0-only
"""random(3) of the GNU C library: the numbers that a seed gives."""

from __future__ import annotations

from collections import deque
from typing import Final

_WORD: Final = 0xFFFFFFFF
_LEHMER: Final = 16807
_PRIME: Final = 2147483647
# r[i] = r[i - 31] + r[i - 3]; the first 310 are thrown away
_DEGREE: Final = 31
_APART: Final = 3
_DISCARDED: Final = 310


class Random:
    """Numbers of 31 bits, as after ``srandom(seed)``."""

    def __init__(self, seed: int) -> None:
        last = seed & _WORD or 1
        state = [last]
        for _ in range(_DEGREE - 1):
            last -= (1 << 32) * (last >> 31)
            # C rounds a quotient to zero: what is left has the sign of the number
            last = last * _LEHMER % _PRIME
            state.append(last)
        self._state = deque(state, _DEGREE)
        # the two sums go through the table one behind the other
        self._state.rotate(-_APART)
        for _ in range(_DISCARDED):
            self.next()

    def next(self) -> int:
        """Return the next number."""
        state = self._state
        value = (state[0] + state[_DEGREE - _APART]) & _WORD
        state.append(value)
        return value >> 1

    def array(self, count: int) -> list[int]:
        """Return so many numbers."""
        return [self.next() for _ in range(count)]
