# SPDX-License-Identifier: GPL-2.0-only
"""The work that was done, counted in the kernel's units under the kernel's names.

One array of 64-bit counters serves the C kernels and their Python twins; ``enum bm_counter`` of
``native/work.h`` names its cells. ``with counting() as work:`` collects what is done inside.

Which counters work is counted in belongs to the context (:mod:`contextvars`) that does it, so that
asyncio tasks and threads do not count for each other. A ``threading.Thread`` starts in a context
of its own: what it does inside ``with counting()`` of another thread is not counted there. Who
copies the context (``asyncio.to_thread()``, ``contextvars.copy_context().run()`` in a pool) counts
in it, from as many threads as there are, and nothing is lost.

Where no function of the kernel stands for what is counted, the name says what it is. Of a log that
is ``log_items_copied`` and ``log_bytes_copied``, items that are inserted or written over as a whole
with their headers, and ``log_leaves_written`` and ``log_nodes_written``, the tree blocks that
``btrfs_sync_log()`` writes; the item and the leaf of the tree of the logs are among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from btrfs_model.base.errors import UnknownNameError
from btrfs_model.base.tables import counts_table
from btrfs_model.kernels import ffi, lib

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
    :exc:`KeyError`. Pickles and copies hold the counts alone.

    Parameters
    ----------
    outer : Work, optional
        Counters that count as well whatever is counted in these.

    Attributes
    ----------
    array : numpy.ndarray
        uint64, shape (number of counters,), in the order of :data:`NAMES`.
    raw : struct bm_work[1]
        The same for the C kernels.
    """

    def __init__(self, outer: Work | None = None) -> None:
        memory = np.zeros(ffi.sizeof("struct bm_work") // 8, np.uint64)
        self.array = memory[: len(NAMES)]
        self.raw = ffi.from_buffer("struct bm_work[]", memory, require_writable=True)
        # a field does not keep what it points at alive
        self._outer = outer
        if outer is not None:
            self.raw[0].outer = outer.raw
        self._ended = False

    def __getitem__(self, name: str) -> int:
        return int(self.array[_INDEX[name]])

    def __iter__(self) -> Iterator[str]:
        return (name for name, count in zip(NAMES, self.array, strict=True) if count)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.array))

    def __repr__(self) -> str:
        return f"Work({dict(self)})"

    def _repr_html_(self) -> str:
        return counts_table("function", self)

    def __reduce__(self) -> tuple[object, ...]:
        return _with_counts, (dict(self),)

    def count(self, name: str, times: int = 1) -> None:
        """Count calls of the kernel function `name`."""
        lib.bm_work_add(self.raw, _INDEX[name], times)

    def add(self, other: Work) -> None:
        """Add the counts of `other` to these."""
        for name, times in other.items():
            self.count(name, times)


def _with_counts(counts: Mapping[str, int]) -> Work:
    work = Work()
    for name, times in counts.items():
        work.count(name, times)
    return work


# where nobody asked for the counts
_nobody = Work()
current_context: ContextVar[Work] = ContextVar("work that is counted", default=_nobody)
"""The counters of this context; some of them may have ended, see :func:`current`."""


def current() -> Work:
    """Return the counters that work done now is counted in."""
    work = current_context.get()
    # a generator or a copy of the context may have outlived the block
    while work._ended and work._outer is not None:
        work = work._outer
    return work


@contextmanager
def counting() -> Iterator[Work]:
    """Count the work done inside the ``with`` block; whatever surrounds it counts that as well.

    Only work of the same context is counted; see :mod:`btrfs_model.base.counters` for threads.

    Yields
    ------
    Work
        Counters that start at zero.
    """
    work = Work(current())
    current_context.set(work)
    try:
        yield work
    finally:
        work._ended = True
        current_context.set(current())


@contextmanager
def uncounted() -> Iterator[None]:
    """Count the work done inside the ``with`` block nowhere."""
    before = current()
    apart = Work()
    current_context.set(apart)
    try:
        yield
    finally:
        if current_context.get() is apart:
            current_context.set(before)
