# SPDX-License-Identifier: GPL-2.0-only
"""The work that was done, counted in the kernel's units under the kernel's names.

One array of 64-bit counters serves the C kernels and their Python twins; ``enum bm_counter`` of
``native/kernels.h`` names its cells. ``with counting() as work:`` collects what is done inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from btrfs_model._native import ffi, lib
from btrfs_model.errors import UnknownNameError
from btrfs_model.tables import counts_table

__all__ = ["NAMES", "Work", "counting", "current", "uncounted"]

NAMES: tuple[str, ...] = tuple(
    name.removeprefix("BM_WORK_")
    for _, name in sorted(ffi.typeof("enum bm_counter").elements.items())
)[: lib.BM_WORK_COUNT]
"""Names of the counters, in the order of the array."""


class _Index(dict[str, int]):
    """Places in the array by name."""

    def __missing__(self, name: str) -> int:
        raise UnknownNameError("counter", name, NAMES)


_INDEX = _Index((name, index) for index, name in enumerate(NAMES))


class Work(Mapping[str, int]):
    """Counters by name; as a mapping it holds those that are not zero.

    ``work[name]`` of a function that was never called is 0; a name that is not counted at all is a
    :exc:`KeyError`.

    Attributes
    ----------
    array : numpy.ndarray
        uint64, shape (number of counters,), in the order of :data:`NAMES`.
    """

    def __init__(self) -> None:
        self.array = np.zeros(len(NAMES), np.uint64)
        self.pointer = ffi.from_buffer("uint64_t[]", self.array, require_writable=True)

    def __getitem__(self, name: str) -> int:
        return int(self.pointer[_INDEX[name]])

    def __iter__(self) -> Iterator[str]:
        return (name for name, count in zip(NAMES, self.array, strict=True) if count)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.array))

    def __repr__(self) -> str:
        return f"Work({dict(self)})"

    def _repr_html_(self) -> str:
        return counts_table("function", self)

    def count(self, name: str, times: int = 1) -> None:
        """Count calls of the kernel function `name`."""
        self.pointer[_INDEX[name]] += times

    def add(self, other: Work) -> None:
        """Add the counts of `other` to these."""
        self.array += other.array


_stack: list[Work] = [Work()]


def current() -> Work:
    """Return the counters that work done now is counted in."""
    return _stack[-1]


@contextmanager
def counting() -> Iterator[Work]:
    """Count the work done inside the ``with`` block, and add it to the surrounding one after it.

    Yields
    ------
    Work
        Counters that start at zero.
    """
    work = Work()
    _stack.append(work)
    try:
        yield work
    finally:
        # by identity: two with the same counts are equal
        del _stack[[entry is work for entry in _stack].index(True)]
        _stack[-1].add(work)


@contextmanager
def uncounted() -> Iterator[None]:
    """Count the work done inside the ``with`` block nowhere."""
    with counting() as apart:
        try:
            yield
        finally:
            apart.array[:] = 0
