# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP before 6.1: the walk over extent maps. Beside ``native/fiemap/maps.c``.

An extent map is what the kernel remembers of a file extent item (``extent_io.c``, ``inode.c`` and
``extent_map.c`` of 5.10). The search for an item puts its map beside those that are there already,
and neighbours that follow on each other in the file and on disk become one. So an answer may depend
on what was asked before: sharing is checked for the extent at which the merged map begins, and a
map that began before the range of a call is reported whole.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from btrfs_model.base.counters import current
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import RawFileExtent
from btrfs_model.questions.fiemap.file import Flag
from btrfs_model.reference.fiemap.call import U64, Call, Extent
from btrfs_model.volume.ctree import Path, Reada, block_key, next_leaf, nritems, search_slot

_EXTENT_DATA = int(ItemType.EXTENT_DATA)
_NEVER = U64 - 1


@dataclass(frozen=True, slots=True)
class ExtentMap:
    """A map; `block_start` is None for a hole and for inline data."""

    start: int
    length: int
    orig_start: int  # where the extent on disk would begin in the file
    block_start: int | None = None
    inline: bool = False
    compressed: bool = False
    prealloc: bool = False

    @property
    def end(self) -> int:
        """Byte of the file after it."""
        return min(self.start + self.length, U64 - 1)

    @property
    def is_hole(self) -> bool:
        """Whether it is neither an extent nor inline data."""
        return self.block_start is None and not self.inline

    def mergable_maps(self, after: ExtentMap) -> bool:
        """Whether the next map becomes part of this one."""
        if self.compressed or self.end != after.start:
            return False
        if (self.compressed, self.prealloc) != (after.compressed, after.prealloc):
            return False
        if self.block_start is None or after.block_start is None:
            return self.block_start == after.block_start
        return after.block_start == self.block_start + self.length


class ExtentMaps:
    """The maps of an inode in memory, ascending and without overlap."""

    def __init__(self) -> None:
        self._maps: list[ExtentMap] = []

    def find_map(self, offset: int) -> int:
        """Index of the first map that ends after the offset."""
        return bisect_right(self._maps, offset, key=lambda one: one.end)

    def lookup(self, offset: int) -> ExtentMap | None:
        """Return the map that holds a byte of the file."""
        at = self.find_map(offset)
        holds = at < len(self._maps) and self._maps[at].start <= offset
        return self._maps[at] if holds else None

    def add_extent_mapping(self, one: ExtentMap, start: int) -> ExtentMap:
        """Add a map, cut to fit; return what it is part of."""
        at = self.find_map(start)
        begin, end = one.start, one.end
        if at > 0:
            begin = max(begin, self._maps[at - 1].end)
        if at < len(self._maps):
            end = min(end, self._maps[at].start)
        block_start = one.block_start
        if block_start is not None and not one.compressed:
            block_start += begin - one.start
        one = replace(one, start=begin, length=end - begin, block_start=block_start)
        self._maps.insert(at, one)
        return self.try_merge_map(at)

    def try_merge_map(self, at: int) -> ExtentMap:
        """Merge a map with its neighbours."""
        maps = self._maps
        if at > 0 and maps[at - 1].mergable_maps(maps[at]):
            at -= 1
            self._absorb(at)
        if at + 1 < len(maps) and maps[at].mergable_maps(maps[at + 1]):
            self._absorb(at)
        return maps[at]

    def _absorb(self, at: int) -> None:
        after = self._maps.pop(at + 1)
        self._maps[at] = replace(self._maps[at], length=self._maps[at].length + after.length)


# ---------------------------------------------------------------------- from items to maps -----


def extent_item_to_extent_map(
    call: Call, path: Path, item: RawFileExtent | InlineExtent
) -> ExtentMap:
    """Describe an item."""
    start = block_key(path.leaf, path.slots[0])[2]
    length = (call.file_extent_end(path, item) - start) % U64
    if isinstance(item, InlineExtent):
        return ExtentMap(start, length, start, inline=True)
    orig_start = (start - item.offset) % U64
    if not item.disk_bytenr:
        return ExtentMap(start, length, orig_start)
    if item.compression:
        return ExtentMap(start, length, orig_start, item.disk_bytenr, compressed=True)
    prealloc = item.type == FileExtentType.PREALLOC
    return ExtentMap(start, length, orig_start, item.disk_bytenr + item.offset, prealloc=prealloc)


def map_from_items(call: Call, start: int, length: int, path: Path) -> ExtentMap:
    """Search the item that holds `start`, or else the hole up to the next one."""
    tree = call.file.tree
    hole = ExtentMap(start, length, start)
    if not search_slot(tree, (call.file.ino, _EXTENT_DATA, start), path):
        if path.slots[0] == 0:
            return hole
        path.slots[0] -= 1
    item = call.item(path)
    while item is None or call.file_extent_end(path, item) <= start:
        path.slots[0] += 1
        if path.slots[0] >= nritems(path.leaf) and not next_leaf(tree, path):
            return hole
        item = call.item(path)
        if item is None:
            return hole
        following = block_key(path.leaf, path.slots[0])[2]
        if (start + length) % U64 <= following:
            return hole
        if start < following:
            return replace(hole, length=following - start)
    return extent_item_to_extent_map(call, path, item)


def get_extent(call: Call, maps: ExtentMaps, start: int, length: int) -> ExtentMap:
    """Return the map of a byte, from memory or from the tree."""
    current().count("btrfs_get_extent")
    held = maps.lookup(start)
    if held is not None:
        return held
    path = Path(reada=Reada.FORWARD, restart=call.restart)
    found = map_from_items(call, start, length, path)
    return found if found.inline else maps.add_extent_mapping(found, start)


def get_extent_skip_holes(call: Call, maps: ExtentMaps, offset: int, last: int) -> ExtentMap | None:
    """Return the next map that is no hole."""
    while offset < last:
        found = get_extent(call, maps, offset, call.round_to_sector(last - offset))
        if not found.is_hole:
            return found
        # a file of nearly 2^64 bytes: its length wraps around
        if found.end <= offset:
            return None
        offset = found.end
    return None


# ------------------------------------------------------------------------------- the report -----


def fiemap_by_maps(call: Call, maps: ExtentMaps) -> None:
    """Report the extents of a call's range (``extent_fiemap()``, 5.10)."""
    last, until = find_last(call)
    one = get_extent_skip_holes(call, maps, call.first_sector, until)
    offset = 0
    is_end = one is None
    while not is_end and one is not None:
        start = max(one.start, offset)
        if one.start >= call.end or one.end < offset:
            break
        offset = one.end
        is_end = offset >= call.end
        extent = map_to_extent(call, one, start)
        if start >= last or (last == _NEVER and call.file.isize <= offset):
            extent.flags |= Flag.LAST
            is_end = True
        one = get_extent_skip_holes(call, maps, offset, until)
        if one is None:
            extent.flags |= Flag.LAST
        if not emit_fiemap_extent(call, extent):
            break
    call.emit_last_fiemap_cache()


def find_last(call: Call) -> tuple[int, int]:
    """Return where the last item begins, and up to where extents are looked for."""
    path = Path(restart=call.restart)
    search_slot(call.file.tree, (call.file.ino, _EXTENT_DATA, U64 - 1), path)
    item = None
    if path.slots[0] > 0:
        path.slots[0] -= 1
        item = call.item(path)
    if item is None:
        return _NEVER, call.file.isize
    last = block_key(path.leaf, path.slots[0])[2]
    return (_NEVER, call.file.isize) if last < call.file.isize else (last, last + 1)


def map_to_extent(call: Call, one: ExtentMap, start: int) -> Extent:
    """Say of a map what is to be reported from `start` on."""
    extent = Extent(start, 0, one.end - start, 0)
    if one.block_start is None:
        extent.flags = Flag.DATA_INLINE | Flag.NOT_ALIGNED
        return extent
    extent.physical = one.block_start + (0 if one.compressed else start - one.start)
    # of a compressed extent that is the wrong address, unless the item shows its beginning
    bytenr = (one.block_start - (one.start - one.orig_start)) % U64
    if call.share.is_data_extent_shared(bytenr, 0):
        extent.flags |= Flag.SHARED
    if one.compressed:
        extent.flags |= Flag.ENCODED
    if one.prealloc:
        extent.flags |= Flag.UNWRITTEN
    return extent


def emit_fiemap_extent(call: Call, extent: Extent) -> bool:
    """Merge or keep an extent; False when no more are wanted."""
    current().count("emit_fiemap_extent")
    cache = call.cache
    if (
        cache is not None
        and extent.continues(cache)
        and not (cache.flags ^ extent.flags) & ~Flag.LAST
    ):
        cache.length += extent.length
        cache.flags |= extent.flags
    else:
        call.cache = None
        if cache is not None and not call.fill_next_extent(cache):
            return False
        call.cache = cache = extent
    if cache.flags & Flag.LAST:
        call.cache = None
        return call.fill_next_extent(cache)
    return True
