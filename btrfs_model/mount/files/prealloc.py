# SPDX-License-Identifier: GPL-2.0-only
"""Extents that are written to in place: preallocated ones, and those of files with NODATACOW.

A write into a preallocated range goes where it was promised to go, unless somebody else has the
extent as well. Its item is then split in up to three; a part that was written grows together with
a written neighbour of the same extent on disk.
"""

from __future__ import annotations

import errno
import os

from btrfs_model.mount.files.file_item import (
    REGULAR,
    Extent,
    data_ref,
    extent_key,
    extents_between,
    find_extent,
    note_modified,
    set_written,
)
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.items import extent_item
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId


def can_nocow(fs: Mount, inode: LiveInode, extent: Extent) -> bool:
    """Whether a write may go into this extent in place.

    ``can_nocow_file_extent()`` (Linux 6.18): only preallocated extents, unless the file has
    NODATACOW, younger than the last snapshot, and of this inode alone
    (``btrfs_cross_ref_exist()``).
    """
    if extent.is_inline or not extent.disk_bytenr or extent.regular.compression:
        return False
    if not extent.is_prealloc and not inode.item.flags & InodeFlag.NODATACOW:
        return False
    if extent.regular.generation <= fs.writer.tree_state(inode.root).last_snapshot:
        return False
    return not _cross_ref_exists(fs, inode, extent)


def _cross_ref_exists(fs: Mount, inode: LiveInode, extent: Extent) -> bool:
    """Whether others have the extent as well (``btrfs_cross_ref_exist()``).

    A reference in the extent tree counts although it may have been given up in this transaction.
    """
    origin = extent.origin
    key = Key(extent.disk_bytenr, ItemType.EXTENT_ITEM, extent.regular.disk_num_bytes)
    payload = fs.writer.get(int(ObjectId.EXTENT_TREE), key)
    if payload is not None:
        item = extent_item(key, payload)
        mine = (inode.root, inode.ino, origin % 2**64)
        if [(ref.root, ref.objectid, ref.offset) for ref in item.inline_refs] != [mine]:
            return True
        if item.inline_refs[0].count != item.refs:
            return True
    refs, _ = fs.writer.extent_info(extent.disk_bytenr)
    end = origin + extent.regular.disk_num_bytes
    ours = [
        other for other in extents_between(fs, inode, max(origin, 0), end)
        if other.disk_bytenr == extent.disk_bytenr and other.origin == origin
    ]  # fmt: skip
    return bool(refs != len(ours))


def mark_extent_written(fs: Mount, inode: LiveInode, start: int, end: int) -> None:
    """Make [start, end) of a preallocated extent a written one.

    `start`, `end`: whole blocks inside one preallocated file extent.
    Raises OSError: EINVAL, when there is no such extent.

    ``btrfs_mark_extent_written()`` (Linux 6.18).
    """
    found = extents_between(fs, inode, start, end)
    if not (len(found) == 1 and found[0].is_prealloc
            and found[0].start <= start and end <= found[0].end):  # fmt: skip
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), fs.path)
    note_modified(fs, inode, start, end)
    extent = found[0]
    before = _mergeable(fs, inode, extent, _ending_at(fs, inode, start))
    behind = _mergeable(fs, inode, extent, find_extent(fs, inode, end))
    if start == extent.start and end < extent.end and before is not None:
        _move_start(fs, inode, extent, end)
        set_written(fs, inode, before.start, generation=fs.transid, num_bytes=end - before.start)
        return
    if start > extent.start and end == extent.end and behind is not None:
        set_written(fs, inode, extent.start, generation=fs.transid, num_bytes=start - extent.start)
        _move_start(fs, inode, behind, start)
        return
    _split_around(fs, inode, extent, start, end)
    _merge_neighbours(fs, inode, extent, (start, end), (before, behind))


def _ending_at(fs: Mount, inode: LiveInode, end: int) -> Extent | None:
    """Return the extent that ends where this one begins."""
    found = extents_between(fs, inode, end - 1, end) if end else []
    return found[0] if found and found[0].end == end else None


def _mergeable(fs: Mount, inode: LiveInode, extent: Extent, other: Extent | None) -> Extent | None:
    """``extent_mergeable()``: a written part of the same extent on disk, at the same place."""
    if other is None or other.is_inline or other.item.type != REGULAR:
        return None
    same = other.disk_bytenr == extent.disk_bytenr and other.origin == extent.origin
    return other if same and not other.regular.compression else None


def _move_start(fs: Mount, inode: LiveInode, extent: Extent, start: int) -> None:
    fs.writer.set_key(inode.root, extent_key(inode, extent.start), extent_key(inode, start))
    set_written(
        fs, inode, start, generation=fs.transid, num_bytes=extent.end - start,
        offset=start - extent.origin,
    )  # fmt: skip


def _split_around(fs: Mount, inode: LiveInode, extent: Extent, start: int, end: int) -> None:
    """Cut the item at `start` and `end`, in this order, where they lie inside of it."""
    left, right = extent.start, extent.end
    for at in (start, end):
        if not left < at < right:
            continue
        fs.writer.duplicate(inode.root, extent_key(inode, left), extent_key(inode, at))
        set_written(fs, inode, left, generation=fs.transid, num_bytes=at - left)
        set_written(
            fs, inode, at, generation=fs.transid, num_bytes=right - at, offset=at - extent.origin
        )
        fs.writer.inc_data_ref([data_ref(inode, extent)])
        left = at


def _merge_neighbours(
    fs: Mount,
    inode: LiveInode,
    extent: Extent,
    part: tuple[int, int],
    neighbours: tuple[Extent | None, Extent | None],
) -> None:
    """Turn the part into a written extent, together with its written neighbours."""
    (start, end), (before, behind) = part, neighbours
    first = before.start if before else start
    last = behind.end if behind else end
    set_written(fs, inode, first, generation=fs.transid, num_bytes=last - first, kind=REGULAR)
    gone = [at for at, other in ((start, before), (end, behind)) if other is not None]
    if gone:
        fs.writer.drop_data_ref([data_ref(inode, extent)] * len(gone))
        fs.writer.delete_range(inode.root, extent_key(inode, gone[0]), extent_key(inode, gone[-1]))
