# SPDX-License-Identifier: GPL-2.0-only
"""Room for metadata: what calls reserve, and what the kernel does when there is no more.

A call reserves the worst that it may need before it begins: for each item that it changes a path
of new blocks, twice as much for the references to them. What it does not need it gives back when
it ends. What it put off keeps a part: delayed items, references that wait, data that wait for
writeback. All of this has to fit beside what is in use, into the chunks of metadata and an eighth
of the space that no chunk has (*overcommit*). On a device of 256 MiB that is full after some
hundred calls.

Nothing is booked call by call: what is reserved follows from what waits (:class:`.Reservations`).

Then the call waits until a worker has made room (:mod:`.flush`), step by step, each only if those
before it were not enough, or fails. The worker works while the call waits, so which call it is,
and which step, is nearly always the same. What is left to chance are moments: a call may go on as
soon as there is room, while the worker is still busy with the step, and data are written by several
threads. Here the step is done when the call goes on, and each file is written, with its extents
finished, before the next.

On a large device another worker comes before that: where more than 128 MiB are reserved or pinned,
and as much as half of what is left or less, it makes room of whatever takes most (*preemptive
reclaim*), and where that is what the transaction has pinned, by a commit. No call waits for it.
A kernel comes to it some hundred calls later or not; here it is done when a call looks for room.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import NAME_LEN
from btrfs_model.mount.space.flush import (
    fits,
    make_room,
    reclaim_early,
    take_kept,
    until_early,
)
from btrfs_model.mount.space.level import EIGHTH, HALF, Level, left_over, look
from btrfs_model.native.space import SpaceInfo
from btrfs_model.ondisk.constants import BTRFS_HEADER_SIZE, BTRFS_ITEM_SIZE
from btrfs_model.ondisk.structs import DIR_ITEM


class Keeps(NamedTuple):
    """What calls keep reserved that make no tree block, bytes: all of them once, and each."""

    once: int
    each: int


class Granted(NamedTuple):
    """For how many calls there is room without another look: at least one.

    The first `sure` of them may do what they like. The others, `most` with those, may be made as
    long as none before made or copied a tree block.
    """

    sure: int
    most: int


_ONE: Final = Granted(1, 1)


def keeps_delayed(fs: Mount, *, each: int, directories: int) -> Keeps:
    """Return what calls keep that put an entry into an index.

    `each`: paths of blocks that a call keeps for other delayed items.
    `directories`: whose inode items the first of them adds.
    """
    path, leaf = fs.reservations.path, fs.nodesize - BTRFS_HEADER_SIZE
    entry = BTRFS_ITEM_SIZE + DIR_ITEM.size + NAME_LEN
    return Keeps((2 + directories) * path, each * path + 2 * path * entry // leaf + 1)


def reserve_items(
    fs: Mount, items: int, *, steal: bool = False, calls: int = 1, keeps: Keeps | None = None,
    info: SpaceInfo | None = None,
) -> Granted:  # fmt: skip
    """Reserve for calls that change so many items each (``start_transaction()``).

    `items`: how many, at most.
    `steal`: what frees space may count on more (``BTRFS_RESERVE_FLUSH_ALL_STEAL``).
    `calls`: how many calls are to be made at once.
    `keeps`: what they keep, if that is known.
    `info`: how full it is, if that was just looked up.
    """
    rsv = fs.reservations
    size = items * (rsv.item + rsv.ref)
    if not steal:
        return _reserve(fs, size, calls, keeps, info)
    try:
        return _reserve(fs, size, calls, keeps, info, steal=True)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    # btrfs_reserve_trans_metadata(): the references may take from what is kept, then
    return _reserve(fs, items * rsv.item, 1, steal=True)


def reserve_subvolume(fs: Mount, items: int, *, steal: bool = False) -> None:
    """Reserve for a subvolume that comes or goes (``btrfs_subvolume_reserve_metadata()``).

    `items`: how many items are inserted.
    `steal`: without room they may come out of what is kept for commits.
    Raises OSError: ENOSPC.
    """
    size = items * fs.reservations.item
    try:
        _reserve(fs, size, 1)
    except OSError as error:
        if not steal or error.errno != errno.ENOSPC or not take_kept(fs, size):
            raise
        fs.reservations.lent += size


def reserve_delalloc(fs: Mount, calls: int = 1, *, summed: int = 1) -> int:
    """Reserve for blocks that become dirty (``btrfs_delalloc_reserve_metadata()``).

    `calls`: how many calls do so at once, each for one extent.
    `summed`: bytes of each that get checksums; a kernel asks block by block.
    Returns for how many of the calls, at least one, there was no need to look for room again.
    """
    return _reserve(fs, fs.reservations.of_file(1, summed), calls).sure


def reserve_files(fs: Mount, files: int, length: int) -> bool:
    """Reserve for files that wait for writeback side by side, with one extent each.

    `length`: bytes of each.
    False where some of them would have to be written back before the others.
    """
    rsv = fs.reservations
    size = files * rsv.of_file(1, length)
    if fs.aborted or not fits(fs, size, EIGHTH):
        return fs.aborted
    rsv.lent += size
    return True


def look_ahead(fs: Mount, size: int) -> bool:
    """Look for room as the next call will, which reserves so many bytes.

    True where that is all that the call would do for room, or not even that.
    """
    rsv = fs.reservations
    if rsv.chunks == fs.raw_super.dev_item.bytes_used and rsv.lent + size < rsv.room:
        return True
    level = look(fs)
    if size < rsv.room and size <= until_early(fs, level):
        return True
    # the call looks once more, and finds the same
    rsv.room = 0
    return False


def _reserve(
    fs: Mount, size: int, calls: int, keeps: Keeps | None = None, info: SpaceInfo | None = None,
    *, steal: bool = False,
) -> Granted:  # fmt: skip
    """Reserve `size` bytes, after making room for them (``btrfs_reserve_metadata_bytes()``).

    Raises OSError: ENOSPC when there is none.
    """
    rsv = fs.reservations
    if fs.writer.aborted:
        return Granted(calls, calls)
    # no call keeps more than it reserved: as long as all fits there is no need to look
    known = rsv.chunks == fs.raw_super.dev_item.bytes_used
    more = 0
    if known and rsv.lent + size < rsv.room:
        if calls == 1:
            rsv.lent += max(size, rsv.path)
            return _ONE
    else:
        level = look(fs, info)
        if size < left_over(fs, level, HALF if steal else EIGHTH) or not size:
            level = reclaim_early(fs, size, level)
        else:
            level = make_room(fs, size, steal=steal)
        more = _more_calls(fs, size, level, keeps) if keeps and calls > 1 else 0
    # what updates an inode, and nothing else, takes room for that without asking
    lent = max(size, rsv.path)
    rsv.lent += lent
    sure = 1 + min(calls - 1, max(0, -(-(rsv.room - rsv.lent - size) // lent)))
    most = max(sure, min(calls, 1 + more))
    rsv.lent += (most - 1) * lent
    return Granted(sure, most)


def _more_calls(fs: Mount, size: int, level: Level, keeps: Keeps) -> int:
    """Return how many calls more would find room, and find it early enough, after a look."""
    room = min(fs.reservations.room - 1, until_early(fs, level))
    return max(0, room - size - keeps.once) // keeps.each


def give_back(fs: Mount, items: int, calls: int) -> None:
    """Give back what was reserved for calls that were not made."""
    rsv = fs.reservations
    rsv.lent -= calls * max(items * (rsv.item + rsv.ref), rsv.path)
