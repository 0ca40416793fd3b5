# SPDX-License-Identifier: GPL-2.0-only
"""Sets of bytes as ranges, side by side ones as one (``extent-io-tree.c``)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Ranges:
    """A set of bytes."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add a range."""
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def remove(self, start: int, end: int) -> None:
        """Take a range out."""
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if first >= last:
            return
        left, right = self._starts[first], self._ends[last - 1]
        kept = [(a, b) for a, b in ((left, start), (end, right)) if a < b]
        self._starts[first:last] = [a for a, _ in kept]
        self._ends[first:last] = [b for _, b in kept]

    def first(self, at: int) -> tuple[int, int] | None:
        """Return the first range that ends behind a byte."""
        found = bisect_right(self._ends, at)
        return (self._starts[found], self._ends[found]) if found < len(self._ends) else None

    def touches(self, start: int, end: int) -> bool:
        """Whether any byte of a range is there."""
        found = self.first(start)
        return found is not None and found[0] < end

    def take(self) -> list[tuple[int, int]]:
        """Return all ranges, and forget them."""
        found = list(zip(self._starts, self._ends, strict=True))
        self._starts, self._ends = [], []
        return found
