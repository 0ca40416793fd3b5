# SPDX-License-Identifier: GPL-2.0-only
"""Room for metadata: what calls reserve, and what the kernel does when there is no more.

A call reserves the worst that it may need before it begins: for each item that it changes a path
of new blocks, twice as much for the references to them. What it does not need it gives back when
it ends. What it put off keeps a part: delayed items, references that wait, data that wait for
writeback. All of this has to fit beside what is in use, into the chunks of metadata and an eighth
of the space that no chunk has (*overcommit*). On a device of 256 MiB that is full after some
hundred calls.

Nothing is booked call by call: what is reserved follows from what waits (:class:`.Reservations`).

Then the call waits until a worker has made room, step by step, each only if those before it were
not enough: delayed items, references, data, another chunk where four fifths of all are in use, and
at last a commit that nobody asked for. The worker works while the call waits, so which call it is,
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
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from btrfs_model.mount.delayed_inode import run_delayed_items, run_delayed_items_nr
from btrfs_model.mount.files.file_item import file_ranges, has_nothing
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import NAME_LEN
from btrfs_model.mount.space.block_group import allocate_chunk, chunk_sizes, global_reserve
from btrfs_model.mount.space.reservations import Delalloc
from btrfs_model.native.space import SpaceInfo
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_DUP,
    BTRFS_BLOCK_GROUP_METADATA,
    BTRFS_HEADER_SIZE,
    BTRFS_ITEM_SIZE,
)
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.ondisk.structs import DIR_ITEM

_MIB, _GIB = 1 << 20, 1 << 30
_DELALLOC_LOOPS: Final = 3
# BTRFS_UNLINK_METADATA_UNITS of Linux 6.18
_UNLINK_ITEMS: Final = 6
# calc_available_free_space()
_EIGHTH: Final = 8
_HALF: Final = 2
_EVERYTHING: Final = 2**64
# need_preemptive_reclaim(): with less than that reserved there is nothing to do, nor where more
# than so many per cent are in use
_WORTH_IT: Final = 128 * _MIB
_PLAIN_FULL: Final = 90
_MOST_CLAMPED: Final = 8
# The counter of dirty bytes is one of each processor, and tells the others every so many blocks
# (percpu_counter_read_positive() of a machine with two).
_DELALLOC_BATCH: Final = 1024


def overcommit(fs: Mount, flags: int, share: int = 8) -> int:
    """Return the part of unallocated space, one of `share`, that reservations may count on."""
    device = fs.raw_super.dev_item
    left = device.total_bytes - device.bytes_used
    if flags & BTRFS_BLOCK_GROUP_DUP:
        left //= 2
    # room for a chunk of data is kept, since data does not overcommit
    chunk, _ = chunk_sizes(BTRFS_BLOCK_GROUP_DATA, device.total_bytes)
    return max(0, left - min(chunk, _GIB)) // share


class _Level(NamedTuple):
    """How full it is, and the part that is kept for commits."""

    info: SpaceInfo
    kept: int

    @property
    def taken(self) -> int:
        """Bytes that are no more to be had in this transaction."""
        return self.info.used + self.info.pinned


# ---------------------------------------------------------------------------- reserving --


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
    share = _HALF if steal else _EIGHTH
    return _reserve(fs, items * (rsv.item + rsv.ref), share, calls, keeps, info)


def reserve_delalloc(fs: Mount, calls: int = 1) -> int:
    """Reserve for blocks that become dirty (``btrfs_delalloc_reserve_metadata()``).

    `calls`: how many calls do so at once, each for one extent.
    Returns for how many of the calls, at least one, there was no need to look for room again.
    """
    rsv = fs.reservations
    # an extent, a leaf of checksums, the inode
    return _reserve(fs, 2 * rsv.item + rsv.path, _EIGHTH, calls).sure


def reserve_files(fs: Mount, files: int) -> bool:
    """Reserve for files that wait for writeback side by side, with one extent each.

    False where some of them would have to be written back before the others.
    """
    rsv = fs.reservations
    size = files * (2 * rsv.item + rsv.path)
    if fs.aborted or not _fits(fs, size, _EIGHTH):
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
    level = _look(fs)
    if size < rsv.room and size <= _until_early(fs, level):
        return True
    # the call looks once more, and finds the same
    rsv.room = 0
    return False


def _reserve(
    fs: Mount, size: int, share: int, calls: int, keeps: Keeps | None = None,
    info: SpaceInfo | None = None,
) -> Granted:  # fmt: skip
    """Reserve `size` bytes, after making room for them (``btrfs_reserve_metadata_bytes()``)."""
    rsv = fs.reservations
    if fs.writer.aborted or rsv.given_up == fs.transid:
        return Granted(calls, calls)
    # no call keeps more than it reserved: as long as all fits there is no need to look
    known = rsv.chunks == fs.raw_super.dev_item.bytes_used
    more = 0
    if known and rsv.lent + size < rsv.room:
        if calls == 1:
            rsv.lent += max(size, rsv.path)
            return _ONE
    else:
        level = _look(fs, info)
        if size < _left(fs, level, share):
            level = _reclaim_early(fs, size, level)
        else:
            level = _make_room(fs, size, share)
        more = _more_calls(fs, size, level, keeps) if keeps and calls > 1 else 0
    # what updates an inode, and nothing else, takes room for that without asking
    lent = max(size, rsv.path)
    rsv.lent += lent
    sure = 1 + min(calls - 1, max(0, -(-(rsv.room - rsv.lent - size) // lent)))
    most = max(sure, min(calls, 1 + more))
    rsv.lent += (most - 1) * lent
    return Granted(sure, most)


def _more_calls(fs: Mount, size: int, level: _Level, keeps: Keeps) -> int:
    """Return how many calls more would find room, and find it early enough, after a look."""
    room = min(fs.reservations.room - 1, _until_early(fs, level))
    return max(0, room - size - keeps.once) // keeps.each


def give_back(fs: Mount, items: int, calls: int) -> None:
    """Give back what was reserved for calls that were not made."""
    rsv = fs.reservations
    rsv.lent -= calls * max(items * (rsv.item + rsv.ref), rsv.path)


def _fits(fs: Mount, size: int, share: int, info: SpaceInfo | None = None) -> bool:
    level = _look(fs, info)
    return size < (fs.reservations.room if share == _EIGHTH else _left(fs, level, share))


def _look(fs: Mount, info: SpaceInfo | None = None) -> _Level:
    """Return what is in use, and remember it until something may have changed."""
    rsv = fs.reservations
    level = _level(fs, info)
    rsv.chunks = fs.raw_super.dev_item.bytes_used
    rsv.room = _left(fs, level, _EIGHTH)
    return level


# ------------------------------------------------------------------------ what is there --


def _left(fs: Mount, level: _Level, share: int) -> int:
    """Return what is neither taken nor reserved (``btrfs_can_overcommit()``)."""
    limit = level.info.total + overcommit(fs, level.info.flags, share)
    return limit - level.taken - _may_use(fs, level)


def _level(fs: Mount, info: SpaceInfo | None = None) -> _Level:
    """Return what is in use, after what is not kept was given back; see :func:`_settle`."""
    info = info or fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA)
    _settle(fs, info)
    return _Level(info, global_reserve(fs, info, _UNLINK_ITEMS))


def _may_use(fs: Mount, level: _Level) -> int:
    """Return what is reserved (``bytes_may_use``)."""
    rsv = fs.reservations
    return level.kept + rsv.delayed + rsv.delalloc + rsv.refs


def _settle(fs: Mount, info: SpaceInfo) -> None:
    """Give what was reserved and is not kept to the references that wait, if they lack it.

    (``btrfs_update_delayed_refs_rsv()``, ``block_rsv_release_bytes()``.)
    """
    rsv = fs.reservations
    delayed = fs.delayed.paths * rsv.path
    delalloc = _look_at_delalloc(fs)
    left = rsv.lent + rsv.delalloc - delalloc + rsv.delayed - delayed
    rsv.refs = min(_wanted_by_refs(fs, info), rsv.refs + max(0, left))
    rsv.lent, rsv.delayed, rsv.delalloc = 0, delayed, delalloc


def _look_at_delalloc(fs: Mount) -> int:
    """Return what is reserved for data that wait, after a look at the files that changed."""
    rsv = fs.reservations
    reserved, touched = rsv.delalloc, fs.dirty_bytes.touched
    for key in touched:
        inode, known = fs.dirty_files.get(key), rsv.extents.pop(key, None)
        reserved -= _of_file(fs, known.total if known else 0)
        if inode is not None:
            rsv.extents[key] = now = _extents_of(fs, inode, known)
            reserved += _of_file(fs, now.total)
    touched.clear()
    waits = rsv.alike.count if rsv.alike else 0
    reserved += (waits - rsv.counted) * _of_file(fs, 1)
    rsv.counted = waits
    return reserved


def _of_file(fs: Mount, extents: int) -> int:
    """Return what is reserved for the data of a file (``inode->block_rsv``)."""
    rsv = fs.reservations
    return extents * rsv.item + rsv.item + rsv.path if extents else 0


def _wanted_by_refs(fs: Mount, info: SpaceInfo) -> int:
    """Return what references that wait may need, with checksums and block group items.

    (``btrfs_calc_delayed_ref_csum_bytes()``, ``btrfs_inc_delayed_refs_rsv_bg_updates()``.)
    """
    rsv = fs.reservations
    return info.refs * rsv.ref + (info.losing + info.stale_groups) * rsv.path


def _extents_of(fs: Mount, inode: LiveInode, known: Delalloc | None) -> Delalloc:
    """Count the extents that writeback of a file may make; `known` is the last count.

    With the inode that is what the file keeps reserved
    (``btrfs_calculate_inode_block_rsv_size()``).
    """
    pages, counted = inode.pages, {}
    if known is not None and known.pages is pages and known.cleanings == pages.cleanings:
        # below what stays dirty nothing changes
        counted = known.extents
    if not counted and has_nothing(fs, inode):
        # holes all through
        extents = dict.fromkeys(pages.delalloc_ranges(0, _EVERYTHING), 1)
        return Delalloc(pages, pages.cleanings, extents, len(extents))
    extents = {}
    for part in pages.delalloc_ranges(0, _EVERYTHING):
        count = counted.get(part)
        extents[part] = _outstanding(fs, inode, *part) if count is None else count
    return Delalloc(pages, pages.cleanings, extents, sum(extents.values()))


def _outstanding(fs: Mount, inode: LiveInode, low: int, high: int) -> int:
    """Return how many extents writeback of a dirty range may make (``outstanding_extents``).

    Blocks written into a hole (``EXTENT_DELALLOC_NEW``) are counted apart from others.
    """
    count, last = 0, None
    for _, _, extent in file_ranges(fs, inode, low, high):
        inline = extent is not None and isinstance(extent.item, InlineExtent)
        new = extent is None or not (inline or extent.disk_bytenr)
        count += new is not last
        last = new
    return count


# -------------------------------------------------------------------------- making room --


def _make_room(fs: Mount, size: int, share: int) -> _Level:
    """Do one thing after another until there is room; how full it is then (``flush_space()``)."""
    rsv = fs.reservations
    if fs.dirty_bytes.count:
        # maybe_clamp_preempt(): the other worker could not keep up
        rsv.clamp = min(rsv.clamp + 1, _MOST_CLAMPED)
    for step in _steps(fs, size, share):
        granted = step() is True
        level = _look(fs)
        if granted or size < _left(fs, level, share):
            return level
    # nothing helps in this transaction: whether there are blocks is up to ensure_metadata()
    rsv.given_up = fs.transid
    return level


def _steps(fs: Mount, size: int, share: int) -> list[Callable[[], object]]:
    """``enum btrfs_flush_state``, less those that never help here."""
    rsv = fs.reservations
    return [
        lambda: run_delayed_items_nr(fs, 2 * (size // rsv.item)),
        lambda: run_delayed_items(fs),
        lambda: _run_refs(fs, size),
        lambda: fs.writer.run_some_refs(fs.writer.waiting_refs()),
        lambda: _shrink_delalloc(fs, size, share),
        lambda: _shrink_delalloc(fs, size, share),
        lambda: _alloc_chunk(fs),
        lambda: fs.hooks.commit(fs),
        lambda: _alloc_chunk(fs, force=True),
    ]


def _run_refs(fs: Mount, size: int) -> None:
    """Carry out as many references as `size` bytes are reserved for."""
    rsv = fs.reservations
    fs.writer.run_some_refs(-(-size // rsv.ref))


def _alloc_chunk(fs: Mount, *, force: bool = False) -> None:
    """Add a chunk, by `force` or where four fifths are in use (``should_alloc_chunk()``)."""
    level = _level(fs)
    if not force and level.taken + 2 * _MIB < level.info.total * 80 // 100:
        return
    try:
        allocate_chunk(fs, BTRFS_BLOCK_GROUP_METADATA)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _shrink_delalloc(fs: Mount, size: int, share: int) -> bool:
    """Write data back; whether there was room for `size` at any time (``shrink_delalloc()``).

    It may be there for a moment only: a file that becomes inline gives back what it reserved,
    an extent keeps it for its references.
    """
    granted = False
    for _ in range(_DELALLOC_LOOPS):
        for info in _written_back(fs, size):
            granted = _fits(fs, size, share, info) or granted
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


def _until_early(fs: Mount, level: _Level) -> int:
    """Return how much more may be reserved before it is time for preemptive reclaim.

    (``need_preemptive_reclaim()``.)
    """
    rsv = fs.reservations
    info = level.info
    taken = info.used + level.kept
    if taken >= info.total * _PLAIN_FULL // 100:
        return _EVERYTHING
    reserved = _may_use(fs, level) - level.kept
    left = overcommit(fs, info.flags) + max(0, info.total - taken) >> rsv.clamp
    counted = info.pinned + reserved - (0 if _counts_delalloc(fs) else rsv.delalloc)
    return max(_WORTH_IT + 1 - reserved - info.pinned, left - counted)


def _counts_delalloc(fs: Mount) -> bool:
    """Whether a processor has told the others of data that wait."""
    return fs.dirty_bytes.count >= _DELALLOC_BATCH * fs.sectorsize


def _reclaim_early(fs: Mount, size: int, level: _Level) -> _Level:
    """Make room before a call has to wait (``btrfs_preempt_reclaim_metadata_space()``).

    Returns how full it is then.
    """
    rsv = fs.reservations
    loops, before = 0, None
    while size > _until_early(fs, level):
        state = (level, rsv.delayed, rsv.delalloc, rsv.refs)
        if state == before:
            break
        _flush_most(fs, level)
        loops, before, level = loops + 1, state, _level(fs)
    if loops == 1:
        rsv.clamp = max(1, rsv.clamp - 1)
    return _look(fs) if loops else level


def _flush_most(fs: Mount, level: _Level) -> None:
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
