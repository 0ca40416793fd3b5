# SPDX-License-Identifier: GPL-2.0-only
"""The work that was done, counted in the kernel's units under the kernel's names.

C kernels and Python count the same; the names are those of ``enum bm_counter`` of
``native/base/work.h``. ``with counting() as work:`` collects what is done inside.

Which counters work is counted in belongs to the context (:mod:`contextvars`) that does it, so that
asyncio tasks and threads do not count for each other. A ``threading.Thread`` starts in a context
of its own: what it does inside ``with counting()`` of another thread is not counted there. Who
copies the context (``asyncio.to_thread()``, ``contextvars.copy_context().run()`` in a pool) counts
in it, from as many threads as there are, and nothing is lost.

Where no function of the kernel stands for what is counted, the name says what it is:

- ``data_reads``: calls of ``submit_bio`` that read file data; its other calls read tree blocks.
- ``log_items_copied``, ``log_bytes_copied``: items inserted into a log or written over as a whole,
  and their bytes with headers.
- ``log_leaves_entered``: leaves of a directory that is logged, and insertions into another leaf of
  the log than the one before.
- ``log_leaves_uncached``: such insertions into a leaf that a cache of 192 leaves, each at the place
  of its address, has not; ``log_leaves_uncached_16m``, ``log_leaves_uncached_8m``: of 96, of 48.
- ``log_entries_visited``: entries in the leaves of a directory that is logged, old ones too.
- ``log_dentries_got``: inodes of new entries that ``log_new_dir_dentries()`` and
  ``log_new_delayed_dentries()`` get (``btrfs_iget()``), to see whether they have to be logged.
- ``copy_extent_buffer``: copies of entries of a directory from a leaf of the subvolume into one of
  the log.
- ``btrfs_search_forward``: its calls in ``log_new_dir_dentries()``.
- ``log_leaves_written``, ``log_nodes_written``: tree blocks that ``btrfs_sync_log()`` writes, with
  the leaf of the tree of the logs and its item.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Final

import numpy as np

from btrfs_model.base.errors import UnknownNameError
from btrfs_model.base.tables import counts_table

NAMES: Final = (
    "btrfs_search_slot", "btrfs_search_old_slot", "btrfs_search_slot_for_read",
    "btrfs_search_forward", "btrfs_next_old_leaf", "btrfs_next_old_item", "read_block_for_search",
    "reada_for_search",
    "setup_items_for_insert",
    "btrfs_readahead_node_child", "read_tree_block", "submit_bio", "data_reads",
    "iterate_extent_inodes",
    "extent_from_logical", "btrfs_previous_extent_item", "btrfs_find_all_leafs",
    "btrfs_find_all_roots_safe", "find_parent_nodes", "add_prelim_ref", "prelim_ref_insert",
    "prelim_ref_compare", "is_shared_data_backref", "check_extent_in_eb", "ulist_add",
    "ulist_add_merge", "btrfs_is_data_extent_shared", "lookup_backref_shared_cache",
    "store_backref_shared_cache", "btrfs_fiemap", "emit_fiemap_extent", "fiemap_fill_next_extent",
    "fiemap_process_hole", "btrfs_get_extent", "changed_cb", "finish_inode_if_needed",
    "process_recorded_refs",
    "send_create_inode", "did_create_dir", "will_overwrite_ref", "did_overwrite_ref",
    "get_inode_info", "get_inode_gen", "get_cur_inode_state", "is_inode_existent", "get_first_ref",
    "get_cur_path", "get_cur_inode_path", "__get_cur_name_and_parent", "name_cache_search",
    "btrfs_lru_cache_lookup", "btrfs_lru_cache_store", "get_orphan_dir_info",
    "get_waiting_dir_move", "btrfs_lookup_dir_item", "btrfs_lookup_xattr",
    "btrfs_lookup_file_extent", "tree_advance", "can_rmdir", "add_orphan_dir_info",
    "is_extent_unchanged", "get_last_extent", "range_is_hole_in_parent",
    "btrfs_get_next_valid_item", "cache_dir_utimes", "send_utimes", "send_cmd", "process_extent",
    "find_extent_clone", "send_extent_data", "btrfs_log_inode", "btrfs_sync_log",
    "log_items_copied", "log_bytes_copied", "log_leaves_entered", "log_leaves_uncached",
    "log_leaves_uncached_16m", "log_leaves_uncached_8m",
    "log_entries_visited", "log_dentries_got", "copy_extent_buffer",
    "log_leaves_written", "log_nodes_written",
    "leaves_visited", "nodes_visited", "items_visited", "subtrees_skipped",
)  # fmt: skip
"""Names of the counters: ``enum bm_counter``, held to it by a test."""


class _Index(dict[str, int]):
    """Places in the array by name."""

    def __missing__(self, name: str) -> int:
        raise UnknownNameError("counter", name, NAMES)


_INDEX = _Index((name, index) for index, name in enumerate(NAMES))


# a handler of a signal may count, too
_lock = threading.RLock()
# who would let it go in a process that is forked is another thread, which is not there
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


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
    memory : numpy.ndarray
        What C counts, a ``struct bm_work``: int64 for each of :data:`NAMES`, and the address of the
        outer one's.
    raw : object
        The same as C takes it; None until C counts in it.
    """

    def __init__(self, outer: Work | None = None) -> None:
        self.memory = np.zeros(len(NAMES) + 1, np.int64)
        self.raw: Any = None
        self._counts = [0] * len(NAMES)
        # C adds to its memory from threads that do not hold Python's lock
        self._outer = outer
        if outer is not None:
            self.memory[-1] = outer._address
        self._ended = False

    @cached_property
    def _address(self) -> int:
        return self.memory.ctypes.data

    def __getitem__(self, name: str) -> int:
        index = _INDEX[name]
        return self._counts[index] + int(self.memory[index])

    def __iter__(self) -> Iterator[str]:
        counted = zip(NAMES, self._counts, self.memory.tolist(), strict=False)
        return (name for name, ours, in_c in counted if ours or in_c)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Work({dict(self)})"

    def _repr_html_(self) -> str:
        return counts_table("function", self)

    def __reduce__(self) -> tuple[object, ...]:
        return _with_counts, (dict(self),)

    def count(self, name: str, times: int = 1) -> None:
        """Count calls of the kernel function `name`."""
        index = _INDEX[name]
        work: Work | None = self
        with _lock:
            while work is not None:
                work._counts[index] += times
                work = work._outer

    def add(self, other: Mapping[str, int], times: int = 1) -> None:
        """Add the counts of `other` to these, so many times."""
        for name, count in other.items():
            self.count(name, count * times)


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


class counting:  # noqa: N801 (it is called as a function)
    """Count the work done inside the ``with`` block; whatever surrounds it counts that as well.

    ``with counting() as work`` gives a :class:`Work` that starts at zero. Only work of the same
    context is counted; see :mod:`btrfs_model.base.counters` for threads.
    """

    __slots__ = ("_work",)

    def __enter__(self) -> Work:
        self._work = Work(current())
        current_context.set(self._work)
        return self._work

    def __exit__(self, *_: object) -> None:
        self._work._ended = True
        current_context.set(current())


class uncounted:  # noqa: N801 (it stands beside counting())
    """Count the work done inside the ``with`` block nowhere."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = current()
        current_context.set(_nobody)

    def __exit__(self, *_: object) -> None:
        if current_context.get() is _nobody:
            current_context.set(self._before)


_apart: ContextVar[dict[str, Work] | None] = ContextVar("functions counted apart", default=None)


class apart:  # noqa: N801 (it stands beside counting())
    """Count by function too what is done inside the ``with`` block, see :class:`function`.

    ``with apart() as found`` gives a dict of :class:`Work` by the names of the functions.
    """

    __slots__ = ("_token",)

    def __enter__(self) -> dict[str, Work]:
        found: dict[str, Work] = {}
        self._token = _apart.set(found)
        return found

    def __exit__(self, *_: object) -> None:
        _apart.reset(self._token)


@contextmanager
def repeated(times: int) -> Iterator[None]:
    """Count the work done inside the ``with`` block as done so many times, also where it is apart.

    Parameters
    ----------
    times : int
        1 or more.
    """
    apart = _apart.get() or {}
    before = {name: dict(work) for name, work in apart.items()}
    with counting() as work:
        yield
    current().add(dict(work), times - 1)
    for name, done in apart.items():
        known = before.get(name, {})
        new = {one: count - known.get(one, 0) for one, count in done.items()}
        done.add(new, times - 1)


class function:  # noqa: N801 (it stands beside counting())
    """Count calls of a kernel function, and what it does where somebody counts that apart.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.
    calls : int
        How many calls the ``with`` block stands for.
    """

    __slots__ = ("_calls", "_counting", "_found", "_name", "_work")

    def __init__(self, name: str, calls: int = 1) -> None:
        self._name, self._calls = name, calls

    def __enter__(self) -> None:
        self._found = _apart.get()
        if self._found is not None:
            _apart.set(None)  # a call inside is a part of it
            self._counting = counting()
            self._work = self._counting.__enter__()
        current().count(self._name, self._calls)

    def __exit__(self, *_: object) -> None:
        if self._found is not None:
            self._counting.__exit__()
            _apart.set(self._found)
            self._found.setdefault(self._name, Work()).add(self._work)
