# SPDX-License-Identifier: GPL-2.0-only
"""How full metadata is: what is used, pinned and reserved, and what may be reserved beyond.

What is reserved follows from what waits (:class:`.Reservations`); :func:`look` brings it up to
date.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from btrfs_model.mount.files.file_item import file_ranges, has_nothing
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.block_group import chunk_sizes, device_end, global_reserve
from btrfs_model.mount.space.reservations import Delalloc
from btrfs_model.native.space import SpaceInfo
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_DUP,
    BTRFS_BLOCK_GROUP_METADATA,
    InodeFlag,
)
from btrfs_model.ondisk.items import InlineExtent

_GIB = 1 << 30
# calc_available_free_space(): of a call that can wait, and of one that may steal or must not wait
EIGHTH: Final = 8
HALF: Final = 2
_EVERYTHING: Final = 2**64
# BTRFS_UNLINK_METADATA_UNITS of Linux 6.18
UNLINK_METADATA_UNITS: Final = 6


def overcommit(fs: Mount, flags: int, share: int = EIGHTH) -> int:
    """Return the part of unallocated space that reservations may count on, one of `share`.

    (``calc_available_free_space()``; ``btrfs_can_overcommit()`` refuses groups that mix.)
    """
    if flags & BTRFS_BLOCK_GROUP_DATA:
        return 0
    device = fs.raw_super.dev_item
    left = max(0, device_end(fs) - device.bytes_used)
    if flags & BTRFS_BLOCK_GROUP_DUP:
        left //= 2
    # room for a chunk of data is kept, since data does not overcommit
    chunk, _ = chunk_sizes(BTRFS_BLOCK_GROUP_DATA, device.total_bytes)
    return max(0, left - min(chunk, _GIB)) // share


class Level(NamedTuple):
    """How full it is, and the part that is kept for commits."""

    info: SpaceInfo
    kept: int

    @property
    def taken(self) -> int:
        """Bytes that are no more to be had in this transaction."""
        return self.info.used + self.info.pinned


def look(fs: Mount, info: SpaceInfo | None = None) -> Level:
    """Return what is in use, and remember it until something may have changed."""
    rsv = fs.reservations
    level = level_of(fs, info)
    rsv.chunks = fs.raw_super.dev_item.bytes_used
    rsv.room = left_over(fs, level, EIGHTH)
    return level


def left_over(fs: Mount, level: Level, share: int) -> int:
    """Return what is neither taken nor reserved: smaller reservations fit (``reserve_bytes()``).

    One that takes all there is does too, unless it counts on space that no chunk has.
    """
    more = overcommit(fs, level.info.flags, share)
    return level.info.total + (more or 1) - level.taken - may_use(fs, level)


def level_of(fs: Mount, info: SpaceInfo | None = None) -> Level:
    """Return what is in use, after what is not kept was given back; see :func:`_settle`."""
    info = info or fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA)
    _settle(fs, info)
    return Level(info, global_reserve(fs, info, UNLINK_METADATA_UNITS) - fs.reservations.stolen)


def may_use(fs: Mount, level: Level) -> int:
    """Return what is reserved (``bytes_may_use``), in groups that mix with that of data."""
    rsv = fs.reservations
    data = fs.dirty_bytes.count if level.info.flags & BTRFS_BLOCK_GROUP_DATA else 0
    return level.kept + rsv.delayed + rsv.delalloc + rsv.refs + data


def _settle(fs: Mount, info: SpaceInfo) -> None:
    """Give what was reserved and is not kept to the references that wait, if they lack it.

    (``btrfs_update_delayed_refs_rsv()``, ``block_rsv_release_bytes()``.)
    """
    rsv = fs.reservations
    delayed = fs.delayed.paths * rsv.path
    delalloc = _look_at_delalloc(fs)
    left = rsv.lent + rsv.delalloc - delalloc + rsv.delayed - delayed
    before = rsv.refs
    rsv.refs = min(_wanted_by_refs(fs, info), before + max(0, left))
    # the rest goes first to what is kept for commits (btrfs_block_rsv_release())
    rsv.stolen = max(0, rsv.stolen - max(0, before + left - rsv.refs))
    rsv.lent, rsv.delayed, rsv.delalloc = 0, delayed, delalloc


def _look_at_delalloc(fs: Mount) -> int:
    """Return what is reserved for data that wait, after a look at the files that changed."""
    rsv = fs.reservations
    reserved, touched = rsv.delalloc, fs.dirty_bytes.touched
    for key in touched:
        inode, known = fs.dirty_files.get(key), rsv.extents.pop(key, None)
        reserved -= known.reserved if known else 0
        if inode is not None:
            rsv.extents[key] = now = _extents_of(fs, inode, known)
            reserved += now.reserved
    touched.clear()
    waits = rsv.alike.reserved if rsv.alike else 0
    reserved, rsv.counted = reserved + waits - rsv.counted, waits
    return reserved


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
    else:
        extents = {}
        for part in pages.delalloc_ranges(0, _EVERYTHING):
            count = counted.get(part)
            extents[part] = _outstanding(fs, inode, *part) if count is None else count
    summed = 0 if inode.item.flags & InodeFlag.NODATASUM else pages.dirty_bytes
    reserved = fs.reservations.of_file(sum(extents.values()), summed)
    return Delalloc(pages, pages.cleanings, extents, reserved)


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
