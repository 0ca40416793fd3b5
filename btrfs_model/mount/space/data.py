# SPDX-License-Identifier: GPL-2.0-only
"""Room for data: what a write reserves, and the extent that writeback takes.

Data do not overcommit: what is dirty has room in a chunk.
"""

from __future__ import annotations

import errno
import os

from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.block_group import allocate_chunk
from btrfs_model.mount.space.level import level_of, may_use
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA, BTRFS_BLOCK_GROUP_METADATA
from btrfs_model.patches import Patch


def ensure_data(fs: Mount, nbytes: int) -> None:
    """Reserve `nbytes` beside data that wait for writeback (``btrfs_reserve_data_bytes()``).

    Chunks are added as long as the device has room for them; then what waits is written back, and
    a commit frees what the running transaction has pinned (``data_flush_states``).

    Raises OSError: ENOSPC when that is not enough.
    """
    flushes = iter((lambda: fs.hooks.flush_delalloc(fs), lambda: fs.hooks.commit(fs)))
    while data_room(fs, nbytes) < nbytes:
        flush = None if fs.committing else next(flushes, None)
        if flush is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fs.path)
        flush()


def data_room(fs: Mount, nbytes: int) -> int:
    """Return how many of `nbytes` have room, if need be in chunks that are added for them."""
    while (room := _free(fs)) < nbytes and _may_add_data(fs):
        pass
    return max(0, min(room, nbytes))


def _free(fs: Mount) -> int:
    """Return what is neither taken nor reserved of the groups of data."""
    info = fs.writer.space_info(BTRFS_BLOCK_GROUP_DATA)
    if info.flags & BTRFS_BLOCK_GROUP_METADATA:
        level = level_of(fs, info)
        return info.free - may_use(fs, level)
    return info.free - fs.dirty_bytes.count


def reserve_data(fs: Mount, wanted: int, least: int, hint: int) -> tuple[int, int]:
    """Reserve room for an extent (``btrfs_reserve_extent()``): address and size.

    Where there is none in one piece for `wanted` bytes, for half of it or for what there is, and so
    on down to `least`.

    Raises OSError: ENOSPC.
    """
    size = wanted
    while (bytenr := _find_free_extent(fs, size, hint)) is None:
        largest = fs.writer.max_extent_size
        if size == least or not largest:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fs.path)
        size = max(min(size // 2, largest) // fs.sectorsize * fs.sectorsize, least)
    return bytenr, size


def _find_free_extent(fs: Mount, size: int, hint: int) -> int | None:
    """Find room for all of an extent (``find_free_extent()``).

    A chunk is made before another size class's group is taken (``LOOP_ALLOC_CHUNK``,
    ``LOOP_WRONG_SIZE_CLASS``), but not where a search found out that there is less in one piece.
    """
    writer = fs.writer
    if size > writer.max_extent_size > 0:
        return None
    find = writer.reserve_in_class if Patch.ALLOC_SIZE_CLASS in fs.behaviour else writer.find_data
    bytenr = find(size, hint)
    if bytenr is None and _may_add_data(fs):
        bytenr = find(size, hint)
    if bytenr is None:
        bytenr = writer.find_data(size, hint)
    if bytenr is None:
        writer.remember_largest(size)
    return bytenr


def _may_add_data(fs: Mount) -> bool:
    try:
        allocate_chunk(fs, BTRFS_BLOCK_GROUP_DATA)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True
