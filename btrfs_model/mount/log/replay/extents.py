# SPDX-License-Identifier: GPL-2.0-only
"""File extents of a log: into the file, the extent tree and the csum tree."""

from __future__ import annotations

import os

from btrfs_model.base.codes import EUCLEAN
from btrfs_model.mount.files.file_item import Extent, align, data_ref, drop_extents
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.replay.control import WalkControl
from btrfs_model.mount.log.replay.inodes import must_read_inode, overwrite_item, update_inode
from btrfs_model.mount.log.replay.logged import LogItem
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import RawFileExtent

_CSUM = (int(ObjectId.EXTENT_CSUM), int(ItemType.EXTENT_CSUM))


def replay_one_extent(control: WalkControl, item: LogItem) -> None:
    """Put an extent of the log in the place of what the file has there (``replay_one_extent()``).

    `item`: an EXTENT_DATA item. The extent on disk may be new: then it is allocated by this.
    """
    extent = file_extent(item.data)
    inode = must_read_inode(control, item.key[0])
    start = item.key[2]
    if isinstance(extent, InlineExtent):
        end = align(start + extent.ram_bytes, control.fs.sectorsize)
        inode.item.nbytes -= drop_extents(control.fs, inode, start, end)
        overwrite_item(control, item.key, item.data)
        inode.item.nbytes += extent.ram_bytes
    elif control.fs.writer.get(control.root, item.key) == item.data:
        return
    else:
        _replay_regular(control, inode, item, extent)
    update_inode(control, inode)


def _replay_regular(
    control: WalkControl, inode: LiveInode, item: LogItem, extent: RawFileExtent
) -> None:
    """Replay what is not inline; a hole may stand for no item at all."""
    fs, start = control.fs, item.key[2]
    found = drop_extents(fs, inode, start, start + extent.num_bytes)
    inode.item.nbytes -= found
    if not extent.disk_bytenr and fs.image.superblock.has_incompat("NO_HOLES"):
        return
    fs.writer.insert(control.root, item.key, item.data)
    if not extent.disk_bytenr:
        return
    _reference(control, inode, Extent(start, extent))
    _replay_csums(control, extent)
    inode.item.nbytes += extent.num_bytes


def _reference(control: WalkControl, inode: LiveInode, extent: Extent) -> None:
    """Add a reference to an extent on disk, the first one where only the log knew of it."""
    place = (extent.regular.disk_bytenr, extent.regular.disk_num_bytes)
    ref = data_ref(inode, extent)
    if place in control.excluded:
        # btrfs_alloc_logged_file_extent()
        control.excluded.remove(place)
        control.fs.writer.alloc_data_ref([ref])
    else:
        control.fs.writer.inc_data_ref([ref])


def _replay_csums(control: WalkControl, extent: RawFileExtent) -> None:
    """Bring the checksums that were logged for an extent into the csum tree.

    Those that are there go first: items of the csum tree must not overlap, and another part of the
    extent may have been replayed before.
    """
    fs = control.fs
    size = fs.image.superblock.csum_size
    start, end = _csum_range(extent)
    low = control.log.last((*_CSUM, start))
    first = low.key[2] if low is not None and low.key[:2] == _CSUM else start
    for item in control.log.between((*_CSUM, first), (*_CSUM, end - 1)):
        if len(item.data) % size:
            raise OSError(EUCLEAN, os.strerror(EUCLEAN), fs.path)
        at = item.key[2]
        begin = max(at, start)
        stop = min(at + len(item.data) // size * fs.sectorsize, end)
        if begin >= stop:
            continue
        sectors = (stop - begin) // fs.sectorsize
        skip = (begin - at) // fs.sectorsize * size
        fs.writer.delete_csums(begin, stop - begin)
        fs.writer.insert_csums(begin, item.data[skip : skip + sectors * size], sectors)


def _csum_range(extent: RawFileExtent) -> tuple[int, int]:
    """Return the part of the extent on disk whose checksums belong to a file extent."""
    if extent.compression:
        return extent.disk_bytenr, extent.disk_bytenr + extent.disk_num_bytes
    start = extent.disk_bytenr + extent.offset
    return start, start + extent.num_bytes
