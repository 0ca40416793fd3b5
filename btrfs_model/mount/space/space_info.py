# SPDX-License-Identifier: GPL-2.0-only
"""Room for metadata: what calls reserve, and what the kernel does when there is no more.

A call reserves the worst that it may need before it begins: for each item that it changes a path
of new blocks, twice as much for the references to them. What it does not need it gives back when
it ends. What it put off keeps a part: delayed items, references that wait, data that wait for
writeback. All of this has to fit beside what is in use, into the chunks of metadata and an eighth
of the space that no chunk has (*overcommit*). On a device of 256 MiB that is full after some
hundred calls.

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
from typing import TYPE_CHECKING, Final, NamedTuple

from btrfs_model.mount.files.bytes import pages_of
from btrfs_model.mount.files.write import file_ranges
from btrfs_model.mount.space.block_group import allocate_chunk, chunk_sizes, global_reserve
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.ondisk.keys import ObjectId

if TYPE_CHECKING:
    from btrfs_model.mount.files.pages import FilePages
    from btrfs_model.mount.live_inode import LiveInode
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.native.space import SpaceInfo

_DATA, _METADATA, _DUP = 1, 4, 32
_MIB, _GIB = 1 << 20, 1 << 30
_MAX_LEVEL: Final = 8
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


def overcommit(fs: WritableFilesystem, flags: int, share: int = 8) -> int:
    """Return the part of unallocated space, one of `share`, that reservations may count on."""
    device = fs.raw_super.dev_item
    left = device.total_bytes - device.bytes_used
    if flags & _DUP:
        left //= 2
    # room for a chunk of data is kept, since data does not overcommit
    chunk, _ = chunk_sizes(_DATA, device.total_bytes)
    return max(0, left - min(chunk, _GIB)) // share


class _Level(NamedTuple):
    """How full it is, and the part that is kept for commits."""

    info: SpaceInfo
    kept: int

    @property
    def taken(self) -> int:
        """Bytes that are no more to be had in this transaction."""
        return self.info.used + self.info.pinned


class _Delalloc(NamedTuple):
    """What waits for writeback of a file, as it was when it was looked at."""

    pages: FilePages
    changes: int
    cleanings: int
    extents: dict[tuple[int, int], int]
    """How many writeback may make of each dirty range."""
    total: int


class MetadataSpace:
    """The reservations of a filesystem for metadata (``struct btrfs_space_info``, Linux 6.18).

    Parameters
    ----------
    fs : WritableFilesystem
        Whose.

    Notes
    -----
    Nothing is booked call by call: what is reserved follows from what waits. Only the references
    need a memory (`delayed_refs_rsv`): those of data that were written back were not reserved by
    a call, and get what the data had reserved or later calls give back.
    """

    def __init__(self, fs: WritableFilesystem) -> None:
        self._fs = fs
        # btrfs_calc_metadata_size(): an item changed; twice that, an item inserted
        self._path = _MAX_LEVEL * fs.nodesize
        self._item = 2 * self._path
        # a reference that waits (btrfs_calc_delayed_ref_bytes())
        self._ref = self._item * (2 if fs.writer.has_tree(ObjectId.FREE_SPACE_TREE) else 1)
        self._clamp = 1
        self._given_up = 0
        self._refs = 0
        # what calls reserved since the last look, and what was there then
        self._lent = 0
        self._room = 0
        self._chunks = 0
        self._delayed = 0
        self._delalloc = 0
        self._extents: dict[tuple[int, int], _Delalloc] = {}

    # ---------------------------------------------------------------------------- reserving --

    def start_transaction(self, items: int, *, steal: bool = False, calls: int = 1) -> int:
        """Reserve for calls that change so many items each (``start_transaction()``).

        Parameters
        ----------
        items : int
            How many, at most.
        steal : bool
            What frees space may count on more (``BTRFS_RESERVE_FLUSH_ALL_STEAL``).
        calls : int
            How many calls are to be made at once.

        Returns
        -------
        int
            For how many of the calls, at least one, there was no need to look for room again.
        """
        return self._reserve(items * (self._item + self._ref), _HALF if steal else _EIGHTH, calls)

    def reserve_delalloc(self, calls: int = 1) -> int:
        """Reserve for blocks that become dirty (``btrfs_delalloc_reserve_metadata()``).

        Parameters
        ----------
        calls : int
            How many calls do so at once, each for one extent.

        Returns
        -------
        int
            As :meth:`start_transaction`.
        """
        # an extent, a leaf of checksums, the inode
        return self._reserve(2 * self._item + self._path, _EIGHTH, calls)

    def reserve_files(self, files: int) -> bool:
        """Reserve for files that wait for writeback side by side, with one extent each.

        Returns
        -------
        bool
            False where some of them would have to be written back before the others.
        """
        size = files * (2 * self._item + self._path)
        if self._fs.aborted or not self._fits(size, _EIGHTH):
            return self._fs.aborted
        self._lent += size
        return True

    def _reserve(self, size: int, share: int, calls: int) -> int:
        """Reserve `size` bytes, after making room for them (``btrfs_reserve_metadata_bytes()``)."""
        if self._fs.aborted or self._given_up == self._fs.transid:
            return calls
        # no call keeps more than it reserved: as long as all fits there is no need to look
        known = self._chunks == self._fs.raw_super.dev_item.bytes_used
        if not (known and self._lent + size < self._room):
            level = self._look()
            if size < self._left(level, share):
                self._reclaim_early(size, level)
            else:
                self._make_room(size, share)
        # what updates an inode, and nothing else, takes room for that without asking
        lent = max(size, self._path)
        self._lent += lent
        more = min(calls - 1, max(0, -(-(self._room - self._lent - size) // lent)))
        self._lent += more * lent
        return 1 + more

    def give_back(self, items: int, calls: int) -> None:
        """Give back what was reserved for calls that were not made."""
        self._lent -= calls * max(items * (self._item + self._ref), self._path)

    def _fits(self, size: int, share: int, written: LiveInode | None = None) -> bool:
        return size < self._left(self._look(written), share)

    def _look(self, written: LiveInode | None = None) -> _Level:
        """Return what is in use, and remember it until something may have changed."""
        level = self._level(written)
        self._chunks = self._fs.raw_super.dev_item.bytes_used
        self._room = self._left(level, _EIGHTH)
        return level

    # ------------------------------------------------------------------------ what is there --

    def _left(self, level: _Level, share: int) -> int:
        """Return what is neither taken nor reserved (``btrfs_can_overcommit()``)."""
        limit = level.info.total + overcommit(self._fs, level.info.flags, share)
        return limit - level.taken - self._may_use(level)

    def _level(self, written: LiveInode | None = None) -> _Level:
        """Return what is in use, after what is not kept was given back; see :meth:`_settle`."""
        info = self._fs.writer.space_info(_METADATA)
        self._settle(info, written)
        return _Level(info, global_reserve(self._fs, info, _UNLINK_ITEMS))

    def _may_use(self, level: _Level) -> int:
        """Return what is reserved (``bytes_may_use``)."""
        return level.kept + self._delayed + self._delalloc + self._refs

    def _settle(self, info: SpaceInfo, written: LiveInode | None) -> None:
        """Give what was reserved and is not kept to the references that wait, if they lack it.

        (``btrfs_update_delayed_refs_rsv()``, ``block_rsv_release_bytes()``.) Since the last look
        no data but those of `written` began or ceased to wait, if it is given.
        """
        delayed = self._fs.delayed.paths * self._path
        delalloc = self._look_at_delalloc(written)
        left = self._lent + self._delalloc - delalloc + self._delayed - delayed
        self._refs = min(self._wanted_by_refs(info), self._refs + max(0, left))
        self._lent, self._delayed, self._delalloc = 0, delayed, delalloc

    def _look_at_delalloc(self, written: LiveInode | None) -> int:
        """Return what is reserved for data that wait."""
        dirty, extents = self._fs.dirty_files, self._extents
        if written is not None:
            key = (written.root, written.ino)
            less = self._reserved_for(extents.pop(key, None))
            if key in dirty:
                extents[key] = self._extents_of(key, written)
            if len(extents) == len(dirty):
                return self._delalloc - less + self._reserved_for(extents.get(key))
        self._extents = {key: self._extents_of(key, inode) for key, inode in dirty.items()}
        return sum(map(self._reserved_for, self._extents.values()))

    def _reserved_for(self, waits: _Delalloc | None) -> int:
        """Return what is reserved for the data of a file (``inode->block_rsv``)."""
        if waits is None or not waits.total:
            return 0
        return waits.total * self._item + self._item + self._path

    def _wanted_by_refs(self, info: SpaceInfo) -> int:
        """Return what references that wait may need, with checksums and block group items.

        (``btrfs_calc_delayed_ref_csum_bytes()``, ``btrfs_inc_delayed_refs_rsv_bg_updates()``.)
        """
        return info.refs * self._ref + (info.losing + info.stale_groups) * self._path

    def _extents_of(self, key: tuple[int, int], inode: LiveInode) -> _Delalloc:
        """Count the extents that writeback of a file may make.

        With the inode that is what the file keeps reserved
        (``btrfs_calculate_inode_block_rsv_size()``).
        """
        pages, known = pages_of(self._fs, inode), self._extents.get(key)
        counted: dict[tuple[int, int], int] = {}
        if known is not None and known.pages is pages and known.cleanings == pages.cleanings:
            if known.changes == pages.changes:
                return known
            # below what stays dirty nothing changes
            counted = known.extents
        extents = {}
        for part in pages.delalloc_ranges(0, _EVERYTHING):
            count = counted.get(part)
            extents[part] = self._outstanding(inode, *part) if count is None else count
        total = sum(extents.values())
        return _Delalloc(pages, pages.changes, pages.cleanings, extents, total)

    def _outstanding(self, inode: LiveInode, low: int, high: int) -> int:
        """Return how many extents writeback of a dirty range may make (``outstanding_extents``).

        Blocks written into a hole (``EXTENT_DELALLOC_NEW``) are counted apart from others.
        """
        count, last = 0, None
        for _, _, extent in file_ranges(self._fs, inode, low, high):
            inline = extent is not None and isinstance(extent.item, InlineExtent)
            new = extent is None or not (inline or extent.disk_bytenr)
            count += new is not last
            last = new
        return count

    # -------------------------------------------------------------------------- making room --

    def _make_room(self, size: int, share: int) -> None:
        """Do one thing after another until there is room (``flush_space()``)."""
        if self._fs.dirty_bytes.count:
            # maybe_clamp_preempt(): the other worker could not keep up
            self._clamp = min(self._clamp + 1, _MOST_CLAMPED)
        for step in self._steps(size, share):
            if step() is True or self._fits(size, share):
                return
        # nothing helps in this transaction: whether there are blocks is up to ensure_metadata()
        self._given_up = self._fs.transid

    def _steps(self, size: int, share: int) -> list[Callable[[], object]]:
        """``enum btrfs_flush_state``, less those that never help here."""
        fs = self._fs
        return [
            lambda: fs.delayed.run_some(2 * (size // self._item)),
            fs.delayed.run,
            lambda: self._run_refs(size),
            lambda: fs.writer.run_some_refs(fs.writer.waiting_refs()),
            lambda: self._shrink_delalloc(size, share),
            lambda: self._shrink_delalloc(size, share),
            self._alloc_chunk,
            fs.commit,
            lambda: self._alloc_chunk(force=True),
        ]

    def _run_refs(self, size: int) -> None:
        """Carry out as many references as `size` bytes are reserved for."""
        self._fs.writer.run_some_refs(-(-size // self._ref))

    def _alloc_chunk(self, *, force: bool = False) -> None:
        """Add a chunk, by `force` or where four fifths are in use (``should_alloc_chunk()``)."""
        level = self._level()
        if not force and level.taken + 2 * _MIB < level.info.total * 80 // 100:
            return
        try:
            allocate_chunk(self._fs, _METADATA)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def _shrink_delalloc(self, size: int, share: int) -> bool:
        """Write data back; whether there was room for `size` at any time (``shrink_delalloc()``).

        It may be there for a moment only: a file that becomes inline gives back what it reserved,
        an extent keeps it for its references.
        """
        granted = False
        for _ in range(_DELALLOC_LOOPS):
            for inode in self._written_back(size):
                granted = self._fits(size, share, inode) or granted
            if granted or not self._fs.dirty_files:
                break
        return granted

    def _written_back(self, size: int) -> Iterator[LiveInode]:
        """Write files back, the oldest first, until it is enough; iterate over them."""
        fs = self._fs
        wanted = max(size, fs.dirty_bytes.count >> 3)
        for inode in list(fs.dirty_files.values()):
            waiting = fs.dirty_bytes.count
            fs.flush_delalloc(inode)
            yield inode
            wanted -= waiting - fs.dirty_bytes.count
            if wanted <= 0:
                return

    # ------------------------------------------------------------------------------ early on --

    def _until_early(self, level: _Level) -> int:
        """Return how much more may be reserved before it is time for preemptive reclaim.

        (``need_preemptive_reclaim()``.)
        """
        info = level.info
        taken = info.used + level.kept
        if taken >= info.total * _PLAIN_FULL // 100:
            return _EVERYTHING
        reserved = self._may_use(level) - level.kept
        left = overcommit(self._fs, info.flags) + max(0, info.total - taken) >> self._clamp
        counted = info.pinned + reserved - (0 if self._counts_delalloc() else self._delalloc)
        return max(_WORTH_IT + 1 - reserved - info.pinned, left - counted)

    def _counts_delalloc(self) -> bool:
        """Whether a processor has told the others of data that wait."""
        return self._fs.dirty_bytes.count >= _DELALLOC_BATCH * self._fs.sectorsize

    def _reclaim_early(self, size: int, level: _Level) -> None:
        """Make room before a call has to wait (``btrfs_preempt_reclaim_metadata_space()``)."""
        loops, before = 0, None
        while size > self._until_early(level):
            state = (level, self._delayed, self._delalloc, self._refs)
            if state == before:
                break
            self._flush_most(level)
            loops, before, level = loops + 1, state, self._level()
        if loops:
            self._look()
        if loops == 1:
            self._clamp = max(1, self._clamp - 1)

    def _flush_most(self, level: _Level) -> None:
        """Flush a quarter of what takes most."""
        fs, reserved = self._fs, self._delayed + self._refs
        if self._delalloc > reserved:
            for _ in self._written_back(self._delalloc >> 2):
                pass
        elif level.info.pinned > reserved:
            fs.commit()
        elif self._delayed > self._refs:
            fs.delayed.run_some(2 * max(1, (self._delayed >> 2) // self._item))
        else:
            self._run_refs(max(self._refs >> 2, self._item))
