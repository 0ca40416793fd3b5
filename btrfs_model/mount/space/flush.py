# SPDX-License-Identifier: GPL-2.0-only
"""Making room for metadata (``flush_space()`` and who calls it).

The worker that a call waits for does one thing after another until there is room: delayed items,
references, data, another chunk where four fifths of all are in use, and at last a commit. Where all
of that did not help it begins again, and takes more: all data, a chunk by force. After the third
time the call fails. What frees space may take a part of what is kept for commits instead.

Another worker comes before that on a large device; see :func:`reclaim_early`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Final

from btrfs_model.mount.delayed_inode import run_delayed_items, run_delayed_items_nr
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.block_group import allocate_chunk
from btrfs_model.mount.space.level import (
    EIGHTH,
    Level,
    left_over,
    level_of,
    look,
    may_use,
    overcommit,
)
from btrfs_model.native.space import SpaceInfo
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_METADATA

_MIB = 1 << 20
_DELALLOC_LOOPS: Final = 3
_EVERYTHING: Final = 2**64
# Cycles of all that makes room, after which a call fails (do_async_reclaim_metadata_space()).
_CYCLES: Final = 3
# need_preemptive_reclaim(): with less than that reserved there is nothing to do, nor where more
# than so many per cent are in use
_WORTH_IT: Final = 128 * _MIB
_PLAIN_FULL: Final = 90
_MOST_CLAMPED: Final = 8
# The counter of dirty bytes is one of each processor, and tells the others every so many blocks
# (percpu_counter_read_positive() of a machine with two).
_DELALLOC_BATCH: Final = 1024


def fits(fs: Mount, size: int, share: int, info: SpaceInfo | None = None) -> bool:
    """Whether `size` bytes may be reserved now."""
    level = look(fs, info)
    return size < (fs.reservations.room if share == EIGHTH else left_over(fs, level, share))


def make_room(fs: Mount, size: int, *, steal: bool) -> Level:
    """Do one thing after another until there is room for a ticket; how full it is then.

    (``do_async_reclaim_metadata_space()``, ``btrfs_try_granting_tickets()``.)

    `size`: bytes of the ticket.
    `steal`: whether it may take them from what is kept for commits (``steal_from_global_rsv()``).
    Raises OSError: ENOSPC when nothing helps.
    """
    rsv = fs.reservations
    if fs.dirty_bytes.count:
        # maybe_clamp_preempt(): the other worker could not keep up
        rsv.clamp = min(rsv.clamp + 1, _MOST_CLAMPED)
    for cycle in range(_CYCLES):
        for step in _steps(fs, size, cycle):
            granted = step() is True
            level = look(fs)
            if granted or size < rsv.room:
                return level
    if not steal or not take_kept(fs, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fs.path)
    return look(fs)


def take_kept(fs: Mount, size: int) -> bool:
    """Take from what is kept for commits, which keeps a tenth (``steal_from_global_rsv()``)."""
    rsv, kept = fs.reservations, level_of(fs).kept
    if kept < (kept + rsv.stolen) // 10 + size:
        return False
    rsv.stolen += size
    return True


def _steps(fs: Mount, size: int, cycle: int) -> list[Callable[[], object]]:
    """``enum btrfs_flush_state``, less those that never help here.

    `cycle`: how often all of them did not help (``commit_cycles``).
    """
    rsv = fs.reservations
    steps: list[Callable[[], object]] = [
        lambda: run_delayed_items_nr(fs, 2 * max(1, _reclaimed(fs, size) // rsv.item)),
        lambda: run_delayed_items(fs),
        lambda: _run_refs(fs, _reclaimed(fs, size)),
        lambda: fs.writer.run_some_refs(fs.writer.waiting_refs()),
        lambda: _shrink_delalloc(fs, size, _reclaimed(fs, size)),
        lambda: _shrink_delalloc(fs, size, _reclaimed(fs, size)),
    ]
    if cycle:
        steps.append(lambda: _shrink_delalloc(fs, size, _EVERYTHING))
    steps.append(lambda: _alloc_chunk(fs, force=False))
    if cycle:
        steps.append(lambda: _alloc_chunk(fs, force=True))
    return [*steps, lambda: _commit(fs)]


def _commit(fs: Mount) -> None:
    fs.hooks.commit(fs)


def _reclaimed(fs: Mount, size: int) -> int:
    """Return how much the worker wants to free (``btrfs_calc_reclaim_metadata_size()``).

    That is also what was reserved and, since there was more room then, is too much now.
    """
    return size + max(0, -left_over(fs, level_of(fs), EIGHTH))


def _run_refs(fs: Mount, size: int) -> None:
    """Carry out as many references as `size` bytes are reserved for."""
    rsv = fs.reservations
    fs.writer.run_some_refs(-(-size // rsv.ref))


def _alloc_chunk(fs: Mount, *, force: bool) -> None:
    """Add a chunk, by `force` or where four fifths are in use (``should_alloc_chunk()``)."""
    level = level_of(fs)
    if not force and level.taken + 2 * _MIB < level.info.total * 80 // 100:
        return
    try:
        allocate_chunk(fs, BTRFS_BLOCK_GROUP_METADATA)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _shrink_delalloc(fs: Mount, size: int, wanted: int) -> bool:
    """Write data back; whether there was room for `size` at any time (``shrink_delalloc()``).

    It may be there for a moment only: a file that becomes inline gives back what it reserved,
    an extent keeps it for its references.

    `wanted`: bytes that are to be freed.
    """
    granted = False
    for _ in range(_DELALLOC_LOOPS):
        for info in _written_back(fs, wanted):
            granted = fits(fs, size, EIGHTH, info) or granted
        if granted:
            break
    return granted


def _written_back(fs: Mount, size: int, *, together: bool = False) -> Iterator[SpaceInfo | None]:
    """Write files back, the oldest first, until it is enough.

    Yields after each how full it is, None where that has to be looked up.

    `together`: nobody looks how full it is after each.
    """
    wanted = max(size, fs.dirty_bytes.count >> 3)
    alike = fs.reservations.alike
    if alike and alike.count:
        yield from alike.write(-(-wanted // alike.length))
        return
    files: list[LiveInode] = []
    for inode in fs.dirty_files.values():
        files.append(inode)
        wanted -= inode.pages.dirty_bytes
        if wanted <= 0:
            break
    for part in [files] if together else [[inode] for inode in files]:
        fs.hooks.writeback(fs, part)
        yield None


# ------------------------------------------------------------------------------ early on --


def until_early(fs: Mount, level: Level) -> int:
    """Return how much more may be reserved before it is time for preemptive reclaim.

    (``need_preemptive_reclaim()``.)
    """
    rsv = fs.reservations
    info = level.info
    taken = info.used + level.kept
    if taken >= info.total * _PLAIN_FULL // 100:
        return _EVERYTHING
    reserved = may_use(fs, level) - level.kept
    left = overcommit(fs, info.flags) + max(0, info.total - taken) >> rsv.clamp
    counted = info.pinned + reserved - (0 if _counts_delalloc(fs) else rsv.delalloc)
    return max(_WORTH_IT + 1 - reserved - info.pinned, left - counted)


def _counts_delalloc(fs: Mount) -> bool:
    """Whether a processor has told the others of data that wait."""
    return fs.dirty_bytes.count >= _DELALLOC_BATCH * fs.sectorsize


def reclaim_early(fs: Mount, size: int, level: Level) -> Level:
    """Make room before a call has to wait (``btrfs_preempt_reclaim_metadata_space()``).

    Returns how full it is then.
    """
    rsv = fs.reservations
    loops, before = 0, None
    while size > until_early(fs, level):
        state = (level, rsv.delayed, rsv.delalloc, rsv.refs)
        if state == before:
            break
        _flush_most(fs, level)
        loops, before, level = loops + 1, state, level_of(fs)
    if loops == 1:
        rsv.clamp = max(1, rsv.clamp - 1)
    return look(fs) if loops else level


def _flush_most(fs: Mount, level: Level) -> None:
    """Flush a quarter of what takes most."""
    rsv = fs.reservations
    fs, reserved = fs, rsv.delayed + rsv.refs
    if rsv.delalloc > reserved:
        for _ in _written_back(fs, rsv.delalloc >> 2, together=True):
            pass
    elif level.info.pinned > reserved:
        fs.hooks.commit(fs)
    elif rsv.delayed > rsv.refs:
        run_delayed_items_nr(fs, 2 * max(1, (rsv.delayed >> 2) // rsv.item))
    else:
        _run_refs(fs, max(rsv.refs >> 2, rsv.item))
