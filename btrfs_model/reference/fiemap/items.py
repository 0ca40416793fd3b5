# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP since 6.1: the walk over file extent items. Beside ``native/fiemap/fiemap.c``.

Each item is checked for sharing; what continues the extent before it is merged with that; since 6.9
up to 128 extents are gathered, then they are copied out and the search starts anew behind them::

    items -> cache -> gathered -> the caller's array
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import RawFileExtent
from btrfs_model.patches import Patch
from btrfs_model.questions.fiemap.file import Flag
from btrfs_model.reference.fiemap.call import U64, Call, Extent
from btrfs_model.volume import ctree

_EXTENT_DATA = int(ItemType.EXTENT_DATA)


class _FlushError(Exception):
    """The gathered extents have to be copied out first (``BTRFS_FIEMAP_FLUSH_CACHE``)."""


class _FullError(Exception):
    """No more extents are wanted."""


@dataclass(slots=True)
class Gathered:
    """Entries of one round, between a search and the next."""

    entries: list[Extent] = field(default_factory=list)
    mapped: int = 0  # of this call, gathered or given out

    def flush_fiemap_cache(self, call: Call) -> None:
        """Copy out; that the last one fills the array was seen when it was gathered."""
        for entry in self.entries:
            call.fill_next_extent(entry)
        self.entries.clear()


def fiemap_by_items(call: Call) -> None:
    """Report the extents of a call's range (``extent_fiemap()``, 6.1 and 6.12)."""
    path = ctree.Path(restart=call.restart)
    gathered = Gathered()
    while True:
        try:
            walk_range(call, gathered, path)
            break
        except _FlushError:
            last = gathered.entries[-1]
            gathered.flush_fiemap_cache(call)
            # an extent that wraps around: the kernel would not come to an end
            if last.end <= call.start:
                fault = Fault(Code.LOOP, call.file.tree.objectid, found=last.end)
                raise CorruptImageError(call.file.forest.image.path, fault) from None
            call.start = last.end
    gathered.flush_fiemap_cache(call)
    call.emit_last_fiemap_cache()


def walk_range(call: Call, gathered: Gathered, path: ctree.Path) -> None:
    """From the start of the range on: one search and the items after it."""
    last_extent_end = find_last_extent_offset(call, path)
    path.reada = ctree.Reada.FORWARD
    at, stopped, range_end = call.first_sector, False, call.round_to_sector(call.end)
    with suppress(_FullError):
        if fiemap_search_slot(call, path):
            at, stopped = walk_items(call, gathered, path)
        if not stopped and at < range_end:
            process_hole(call, gathered, at, range_end, None)
            at = range_end
    cache = call.cache
    if (
        cache is not None
        and cache.end >= last_extent_end
        and call.find_delalloc(at, call.file.isize) is None
    ):
        cache.flags |= Flag.LAST


def find_last_extent_offset(call: Call, path: ctree.Path) -> int:
    """Return where the last extent that is no hole ends."""
    ctree.search_slot(call.file.tree, (call.file.ino, _EXTENT_DATA, U64 - 1), path)
    if path.slots[0] == 0:
        return 0
    path.slots[0] -= 1
    item = call.item(path)
    while item is not None and not isinstance(item, InlineExtent) and not item.disk_bytenr:
        if not previous_item(call, path):
            return 0
        item = call.item(path)
    return 0 if item is None else call.file_extent_end(path, item)


def previous_item(call: Call, path: ctree.Path) -> bool:
    """Go to the file extent item before the path."""
    while True:
        if path.slots[0] > 0:
            path.slots[0] -= 1
        elif not ctree.prev_leaf(call.file.tree, path):
            return False
        objectid, kind, _ = ctree.block_key(path.leaf, path.slots[0])
        if objectid != call.file.ino or kind < _EXTENT_DATA:
            return False
        if kind == _EXTENT_DATA:
            return True


def fiemap_search_slot(call: Call, path: ctree.Path) -> bool:
    """Go to the file extent item at the start, or the one before."""
    key = (call.file.ino, _EXTENT_DATA, call.first_sector)
    if (
        not ctree.search_slot(call.file.tree, key, path)
        and path.slots[0] > 0
        and ctree.block_key(path.leaf, path.slots[0] - 1)[:2] == key[:2]
    ):
        path.slots[0] -= 1
    return path.slots[0] < ctree.nritems(path.leaf) or ctree.next_leaf(call.file.tree, path)


def walk_items(call: Call, gathered: Gathered, path: ctree.Path) -> tuple[int, bool]:
    """Report the items from the path on.

    Returns where the last of them ends, and whether one begins behind the range.
    Raises _FullError: when no more extents are wanted.
    """
    range_start, range_end = call.first_sector, call.round_to_sector(call.end)
    prev_extent_end = range_start
    while prev_extent_end < range_end:
        item = call.item(path)
        if item is None:
            break
        start = ctree.block_key(path.leaf, path.slots[0])[2]
        end = call.file_extent_end(path, item)
        if end > range_start:
            call.share.curr_leaf_bytenr = ctree.bytenr_of(path.leaf)
            if prev_extent_end < start:
                process_hole(call, gathered, prev_extent_end, min(start, range_end), None)
                if start >= range_end:
                    return prev_extent_end, True
            process_item(call, gathered, start, end, item)
            prev_extent_end = end
        path.slots[0] += 1
        if path.slots[0] >= ctree.nritems(path.leaf) and not ctree.next_leaf(call.file.tree, path):
            break
    return prev_extent_end, False


def process_item(
    call: Call, gathered: Gathered, start: int, end: int, item: RawFileExtent | InlineExtent
) -> None:
    """Report one item."""
    encoded, length = Flag.ENCODED if item.compression else Flag(0), (end - start) % U64
    if isinstance(item, InlineExtent):
        flags = Flag.DATA_INLINE | Flag.NOT_ALIGNED | encoded
        emit_fiemap_extent(call, gathered, Extent(start, 0, length, flags))
        return
    if not item.disk_bytenr or item.type == FileExtentType.PREALLOC:
        process_hole(call, gathered, start, end, item if item.disk_bytenr else None)
        return
    flags = encoded | check_shared(call, item)
    emit_fiemap_extent(call, gathered, Extent(start, first_byte(item), length, flags))


def first_byte(item: RawFileExtent) -> int:
    """Return where what an item shows begins; of a compressed extent where it begins itself."""
    return (item.disk_bytenr + (0 if item.compression else item.offset)) % U64


def check_shared(call: Call, item: RawFileExtent) -> Flag:
    """Return SHARED where it is."""
    is_shared = call.share.is_data_extent_shared(item.disk_bytenr, item.generation)
    return Flag.SHARED if is_shared else Flag(0)


def process_hole(
    call: Call, gathered: Gathered, start: int, end: int, item: RawFileExtent | None
) -> None:
    """Report what waits to be written where nothing is yet, and of preallocated space the rest.

    ``fiemap_process_hole()``; `item`: of the preallocated space.
    """
    current().count("fiemap_process_hole")
    at, flags = start, Flag(0)
    while at < end:
        waits = call.find_delalloc(at, end) if at < call.file.isize else None
        low = waits[0] if waits else end
        if item is not None and at < low:
            flags = flags or Flag.UNWRITTEN | check_shared(call, item)
            physical = (first_byte(item) + at - start) % U64
            emit_fiemap_extent(call, gathered, Extent(at, physical, low - at, flags))
        if waits is None:
            return
        at = waits[1]
        flagged = Flag.DELALLOC | Flag.UNKNOWN
        emit_fiemap_extent(call, gathered, Extent(low, 0, at - low, flagged))


def emit_fiemap_extent(call: Call, gathered: Gathered, extent: Extent) -> None:
    """Put an extent into the cache, or merge it into the one there.

    Items of a committed tree do not overlap unless the tree is broken; then they are cut as the
    kernel cuts those that changed under it.
    """
    current().count("emit_fiemap_extent")
    cache = call.cache
    if cache is None:
        call.cache = extent
        return
    if cache.end > extent.logical:
        if extent.logical == cache.logical:
            call.cache = extent
            return
        if extent.logical > cache.logical:
            cache.length = extent.logical - cache.logical
        else:
            if extent.end <= cache.end:
                return
            if not extent.flags & (Flag.ENCODED | Flag.DELALLOC):
                extent.physical = (extent.physical + cache.end - extent.logical) % U64
            extent.length = extent.end - cache.end
            extent.logical = cache.end
    elif extent.continues(cache) and extent.flags == cache.flags:
        cache.length = (cache.length + extent.length) % U64
        return
    emit_cached(call, gathered, cache)
    call.cache = extent


def emit_cached(call: Call, gathered: Gathered, cache: Extent) -> None:
    """Pass on what is in the cache: nothing continues it."""
    call.cache = None
    if Patch.FIEMAP_NO_DEADLOCK not in call.file.behaviour:
        if not call.fill_next_extent(cache):
            raise _FullError
        return
    if len(gathered.entries) == call.file.limits.fiemap_entries:
        raise _FlushError
    gathered.entries.append(cache)
    gathered.mapped += 1
    if gathered.mapped == call.extents_max:
        raise _FullError
