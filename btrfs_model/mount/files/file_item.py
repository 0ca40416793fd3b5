# SPDX-License-Identifier: GPL-2.0-only
"""EXTENT_DATA items of a file that is being changed: look, drop, insert, truncate.

The ways in which the kernel edits them (``file.c``, ``file-item.c``, ``inode-item.c``; Linux 6.18),
each with the references of the extents and the bytes that the inode gains or loses.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple, TypeVarTuple

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.log_tree import need_full_sync
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import cow_leaf
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.structs import FILE_EXTENT_HEAD, FILE_EXTENT_ITEM, RawFileExtent
from btrfs_model.volume.tree import RawKey

INLINE: Final = int(FileExtentType.INLINE)
REGULAR: Final = int(FileExtentType.REG)
PREALLOC: Final = int(FileExtentType.PREALLOC)

_EXTENT_DATA: Final = int(ItemType.EXTENT_DATA)
_INLINE_HEAD: Final = FILE_EXTENT_HEAD.size
# offsets inside of a regular file extent item
_GENERATION: Final = 0
_OFFSET: Final = 37

_Rest = TypeVarTuple("_Rest")


def align(value: int, size: int) -> int:
    """Round up to a multiple of `size`."""
    return -(-value // size) * size


class Extent(NamedTuple):
    """A file extent item and where it stands.

    Attributes
    ----------
    start : int
        Offset in the file (the key's).
    item : RawFileExtent or InlineExtent
        Its payload.
    """

    start: int
    item: RawFileExtent | InlineExtent

    @property
    def is_inline(self) -> bool:
        """Whether the data lie in the item."""
        return isinstance(self.item, InlineExtent)

    @property
    def length(self) -> int:
        """Bytes of the file that it covers; of an inline extent without rounding."""
        if isinstance(self.item, InlineExtent):
            return self.item.ram_bytes
        return self.item.num_bytes

    @property
    def end(self) -> int:
        """First byte of the file after it."""
        return self.start + self.length

    @property
    def disk_bytenr(self) -> int:
        """The extent on disk; 0 for holes and inline data."""
        return 0 if isinstance(self.item, InlineExtent) else self.item.disk_bytenr

    @property
    def is_prealloc(self) -> bool:
        """Whether it is preallocated."""
        return self.item.type == PREALLOC

    @property
    def regular(self) -> RawFileExtent:
        """The item of an extent that is not inline."""
        assert isinstance(self.item, RawFileExtent)
        return self.item

    @property
    def origin(self) -> int:
        """Where in the file the first byte of the extent on disk would lie."""
        return self.start - self.regular.offset


def extent_key(inode: LiveInode, start: int) -> RawKey:
    """Key of the file extent at `start`."""
    return (inode.ino, _EXTENT_DATA, start)


def pack_regular(
    generation: int, kind: int, bytenr: int, disk_num_bytes: int, num_bytes: int, *,
    ram_bytes: int | None = None, offset: int = 0, compression: int = 0,
) -> bytes:  # fmt: skip
    """Return the payload of a regular or preallocated extent, or of a hole (`bytenr` 0)."""
    return FILE_EXTENT_ITEM.struct.pack(
        generation, num_bytes if ram_bytes is None else ram_bytes, compression, 0, 0, kind,
        bytenr, disk_num_bytes, offset, num_bytes,
    )  # fmt: skip


def pack_inline(generation: int, ram_bytes: int, data: bytes, compression: int) -> bytes:
    """Return the payload of an inline extent."""
    head = FILE_EXTENT_HEAD.struct.pack(generation, ram_bytes, compression, 0, 0, INLINE)
    return head + data


# ---------------------------------------------------------------------------------- look ------


def has_nothing(fs: Mount, inode: LiveInode) -> bool:
    """Whether a file was made since the mount and surely has no extent on disk.

    Holes that are items count in neither size.
    """
    item = inode.item
    made = item.generation >= fs.first_transid and fs.no_holes
    return made and not (item.size or item.nbytes)


def extents_between(fs: Mount, inode: LiveInode, start: int, end: int) -> list[Extent]:
    """Return the extents that touch [start, end), ascending, as the tree is now."""
    if has_nothing(fs, inode):
        return []
    tree = fs.writer.tree(inode.root)
    first = tree.last(extent_key(inode, start))
    low = start
    if first is not None and first.key[:2] == (inode.ino, _EXTENT_DATA):
        low = first.key.offset
    found = [
        Extent(item.key.offset, file_extent(item.data))
        for item in tree.items(extent_key(inode, low), extent_key(inode, min(end, U64_MAX)))
        if item.key.offset < end
    ]
    return [extent for extent in found if extent.end > start or extent.start >= start]


def file_ranges(
    fs: Mount, inode: LiveInode, start: int, end: int
) -> Iterator[tuple[int, int, Extent | None]]:
    """Iterate over [start, end) as ``btrfs_get_extent()`` sees it: extents, and None for gaps."""
    at = start
    for extent in extents_between(fs, inode, start, end):
        if extent.start > at:
            yield at, extent.start, None
            at = extent.start
        stop = min(align(extent.end, fs.sectorsize), end)
        if at < stop:
            yield at, stop, extent
            at = stop
    if at < end:
        yield at, end, None


def find_extent(fs: Mount, inode: LiveInode, start: int) -> Extent | None:
    """Return the extent whose item stands exactly at `start`, or None."""
    item = fs.writer.tree(inode.root).get(extent_key(inode, start))
    return None if item is None else Extent(start, file_extent(item.data))


def data_ref(inode: LiveInode, extent: Extent) -> tuple[int, int, int, int, int, int]:
    """Return the reference of a file extent, as the writer takes it."""
    item = extent.regular
    # the origin of a cloned part may lie before the file: the kernel lets the offset wrap
    origin = extent.origin % 2**64
    return (item.disk_bytenr, item.disk_num_bytes, 0, inode.root, inode.ino, origin)


def note_modified(
    fs: Mount, inode: LiveInode, start: int, end: int, generation: int | None = None
) -> None:
    """Remember for fsync that a range changed (``btrfs_replace_extent_map_range()``).

    It changed in the transaction `generation`, or in the running one when that is None. Its map is
    not joined with those beside it (``try_merge_map()``), as it waits for an fsync.
    """
    inode.log.modified.append((generation or fs.transid, start, end))


def forget_modified(inode: LiveInode, start: int, end: int) -> None:
    """Let fsync know nothing of a range any more (``btrfs_drop_extent_map_range()``)."""
    inode.log.modified = [
        (transid, *part)
        for transid, first, last in inode.log.modified
        for part in _outside(first, last, start, end)
    ]


def modified_maps(inode: LiveInode) -> list[tuple[int, int, int]]:
    """Return the maps that wait for an fsync, ascending: start, end, transaction.

    Of what was replaced the parts around it are left.
    """
    noted = [(start, end, transid) for transid, start, end in inode.log.modified]
    ascending = sorted(noted)
    if all(one[1] <= other[0] for one, other in pairwise(ascending)):
        return ascending
    maps: list[tuple[int, int, int]] = []
    for one in noted:
        _replace(maps, one)
    return maps


def add_hole_map(inode: LiveInode, start: int, end: int) -> None:
    """Have the map of a hole in memory, in place of what was there.

    It waits for an fsync, and so it is not joined with the hole beside it (``try_merge_map()``).
    """
    _replace(inode.hole_maps, (start, end))


def _replace(maps: list[tuple[int, int, *_Rest]], new: tuple[int, int, *_Rest]) -> None:
    """Put a map in its place among others, which are disjoint and ascending."""
    start, end, *_ = new
    first, last = bisect_left(maps, (start,)), bisect_left(maps, (end,))
    if first and maps[first - 1][1] > start:
        first -= 1
    kept = [(*part, *one[2:]) for one in maps[first:last]
            for part in _outside(one[0], one[1], start, end)]  # fmt: skip
    maps[first:last] = sorted([*kept, new])


def forget_hole_maps(inode: LiveInode, start: int, end: int) -> None:
    """Have no map of a hole in a range in memory any more (``btrfs_drop_extent_map_range()``)."""
    inode.hole_maps = [part for one in inode.hole_maps for part in _outside(*one, start, end)]


def look_up_hole(inode: LiveInode, start: int, end: int) -> tuple[int, int]:
    """Have the map of a hole behind the end of a file in memory, which nobody made yet.

    It waits for nothing, so it is joined with those beside it. Returns what it is then.
    """
    maps = inode.hole_maps
    first, last = bisect_left(maps, (start,)), bisect_left(maps, (end + 1,))
    if first and maps[first - 1][1] == start and maps[first - 1][0] >= inode.pages.i_size:
        first -= 1
    together = [(start, end), *maps[first:last]]
    joined = min(low for low, _ in together), max(high for _, high in together)
    maps[first:last] = [joined]
    return joined


def _outside(first: int, last: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [first, last) that lie outside of [start, end)."""
    parts = (first, min(last, start)), (max(first, end), last)
    return [(low, high) for low, high in parts if low < high]


# ---------------------------------------------------------------------------------- drop ------


def drop_extents(fs: Mount, inode: LiveInode, start: int, end: int) -> int:
    """Make [start, end) free of extents: split, trim or delete what lies there.

    `inode`: its ``nbytes`` is the caller's to change.
    `start`, `end`: whole blocks.
    Returns bytes that were found there (``drop_args.bytes_found``).
    Raises OSError: EOPNOTSUPP, when an inline extent lies across a border of the range.

    ``btrfs_drop_extents()`` (Linux 6.18).
    """
    found, covered = _cut_extents(fs, inode, start, end)
    if covered:
        fs.writer.delete_range(
            inode.root, extent_key(inode, covered[0].start), extent_key(inode, covered[-1].start)
        )
    return found


def _cut_extents(fs: Mount, inode: LiveInode, start: int, end: int) -> tuple[int, list[Extent]]:
    """Do that except for the items that lie inside: their extents are given back, they stay."""
    found = 0
    covered: list[Extent] = []
    for extent in extents_between(fs, inode, start, end):
        if extent.start >= start and extent.end <= end:
            covered.append(extent)
            found += extent.length if extent.is_inline or extent.disk_bytenr else 0
            continue
        if extent.is_inline:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), fs.path)
        if extent.start < start and extent.end > end:
            extent = _split(fs, inode, extent, start)
        if extent.start >= start:
            _trim_front(fs, inode, extent, end)
            found += (end - extent.start) if extent.disk_bytenr else 0
        else:
            _update(fs, inode, extent.start, num_bytes=start - extent.start)
            found += (extent.end - start) if extent.disk_bytenr else 0
    if covered:
        fs.writer.drop_data_ref(data_ref(inode, e) for e in covered if e.disk_bytenr)
    return found, covered


def _replace_extents(fs: Mount, inode: LiveInode, start: int, end: int, payload: bytes) -> int:
    """Drop what is in a range and put an extent there at once; see :func:`drop_extents`."""
    found, covered = _cut_extents(fs, inode, start, end)
    last = extent_key(inode, covered[-1].start) if covered else None
    fs.writer.insert_extent(inode.root, extent_key(inode, start), payload, last)
    return found


def _split(fs: Mount, inode: LiveInode, extent: Extent, at: int) -> Extent:
    """Cut an extent in two at `at`; returns the right part, which has a reference of its own."""
    fs.writer.duplicate(inode.root, extent_key(inode, extent.start), extent_key(inode, at))
    _update(fs, inode, extent.start, num_bytes=at - extent.start)
    offset = extent.regular.offset + at - extent.start
    right = Extent(at, extent.regular._replace(offset=offset, num_bytes=extent.end - at))
    _update(fs, inode, at, offset=offset, num_bytes=extent.end - at)
    if extent.disk_bytenr:
        fs.writer.inc_data_ref([data_ref(inode, right)])
    return right


def _trim_front(fs: Mount, inode: LiveInode, extent: Extent, end: int) -> None:
    fs.writer.set_key(inode.root, extent_key(inode, extent.start), extent_key(inode, end))
    offset = extent.regular.offset + end - extent.start
    _update(fs, inode, end, offset=offset, num_bytes=extent.end - end)


def _update(
    fs: Mount, inode: LiveInode, start: int, *, num_bytes: int, offset: int | None = None
) -> None:
    key = extent_key(inode, start)
    if offset is None:
        fs.writer.update(inode.root, key, _OFFSET + 8, num_bytes.to_bytes(8, "little"))
    else:
        both = offset.to_bytes(8, "little") + num_bytes.to_bytes(8, "little")
        fs.writer.update(inode.root, key, _OFFSET, both)


# -------------------------------------------------------------------------------- insert ------


def insert_regular(fs: Mount, inode: LiveInode, start: int, payload: bytes, *, new: bool) -> None:
    """Put an extent in the place of what is there; it takes a reference of its extent on disk.

    `start`: where in the file.
    `payload`: its item (:func:`pack_regular`).
    `new`: whether the extent on disk is new: reserved, without a reference so far.

    ``insert_reserved_file_extent()``, and ``btrfs_insert_replace_extent()`` for clones.
    """
    item = FILE_EXTENT_ITEM.unpack(payload)
    note_modified(fs, inode, start, start + item.num_bytes)
    end = start + item.num_bytes
    if new:
        found = _replace_extents(fs, inode, start, end, payload)
    else:
        found = drop_extents(fs, inode, start, end)
        fs.writer.insert(inode.root, extent_key(inode, start), payload)
    if not item.disk_bytenr:
        inode.item.nbytes -= found
        return
    inode.item.nbytes += item.num_bytes - found
    ref = data_ref(inode, Extent(start, item))
    if new:
        fs.writer.alloc_data_ref([ref])
    else:
        fs.writer.inc_data_ref([ref])


def insert_inline(fs: Mount, inode: LiveInode, payload: bytes, drop_end: int) -> None:
    """Put an inline extent at 0, in the place of what lies before `drop_end`."""
    need_full_sync(fs, inode)
    found = _replace_extents(fs, inode, 0, drop_end, payload)
    inode.item.nbytes += FILE_EXTENT_HEAD.unpack(payload).ram_bytes - found


def insert_hole(fs: Mount, inode: LiveInode, start: int, length: int) -> None:
    """Insert an explicit hole (``btrfs_insert_hole_extent()``); nothing may be there."""
    payload = pack_regular(fs.transid, REGULAR, 0, 0, length)
    fs.writer.insert(inode.root, extent_key(inode, start), payload)


# ------------------------------------------------------------------------------ truncate ------


def truncate_inode_items(
    fs: Mount, inode: LiveInode, new_size: int, min_type: int = _EXTENT_DATA
) -> bool:
    """Take away what lies beyond `new_size`, from the last item to the first.

    `new_size`: bytes that stay. The extent across it is cut after the block that holds the last
    byte.
    `min_type`: items of higher types go whatever they are; 0 with `new_size` 0: all items of the
    inode.
    Returns ``BTRFS_NEED_TRUNCATE_BLOCK``: a compressed inline extent lies across `new_size`, the
    caller has to truncate its block.

    ``btrfs_truncate_inode_items()`` (Linux 6.18).
    """
    blocksize = fs.sectorsize
    size_end = align(new_size, blocksize)
    forget_hole_maps(inode, size_end, U64_MAX)
    gone = extents_between(fs, inode, new_size, U64_MAX)
    across = None
    if gone and gone[0].start < new_size:
        across = gone.pop(0)
    if gone or (across is not None and across.end > new_size):
        inode.log.full_sync = True
        # what stays is logged then, although it is old
        inode.log.last_reflink_trans = fs.transid
    else:
        # the search for the last item is for writing
        cow_leaf(fs, inode.root, (inode.ino, 255, U64_MAX))
    fs.writer.drop_data_ref(data_ref(inode, e) for e in reversed(gone) if e.disk_bytenr)
    inode.item.nbytes -= sum(
        e.end - new_size if e.is_inline else e.length
        for e in gone if e.is_inline or e.disk_bytenr
    )  # fmt: skip
    if min_type < _EXTENT_DATA:
        fs.writer.delete_range(
            inode.root, (inode.ino, min_type, 0), (inode.ino, 255, U64_MAX), backward=True
        )
    elif gone:
        low, high = extent_key(inode, gone[0].start), extent_key(inode, gone[-1].start)
        fs.writer.delete_range(inode.root, low, high, backward=True)
    if across is None or across.end <= new_size:
        return False
    if across.is_inline:
        if across.item.compression:
            return True
        _truncate_inline(fs, inode, across, new_size)
    else:
        length = align(new_size - across.start, blocksize)
        _update(fs, inode, across.start, num_bytes=length)
        inode.item.nbytes -= across.length - length if across.disk_bytenr else 0
    return False


def _truncate_inline(fs: Mount, inode: LiveInode, extent: Extent, new_size: int) -> None:
    key = extent_key(inode, extent.start)
    fs.writer.update(inode.root, key, 8, new_size.to_bytes(8, "little"))
    fs.writer.truncate(inode.root, key, _INLINE_HEAD + new_size)
    inode.item.nbytes -= extent.end - new_size


def set_written(
    fs: Mount, inode: LiveInode, start: int, *, generation: int, num_bytes: int,
    offset: int | None = None, kind: int | None = None,
) -> None:  # fmt: skip
    """Change the fields of an item that ``btrfs_mark_extent_written()`` changes."""
    key = extent_key(inode, start)
    fs.writer.update(inode.root, key, _GENERATION, generation.to_bytes(8, "little"))
    if kind is not None:
        fs.writer.update(inode.root, key, _INLINE_HEAD - 1, bytes([kind]))
    _update(fs, inode, start, num_bytes=num_bytes, offset=offset)
