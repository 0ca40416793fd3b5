# SPDX-License-Identifier: GPL-2.0-only
"""Many extents of a file at once, for workloads with hundreds of thousands of them.

The result is that of a loop which writes a block and waits for it::

    for offset in offsets:
        fs.write(path, offset, block)
        flush_delalloc(fs)

with the same items in the same leaves, the same addresses and references. What loops is C
(``native/bulk/file.c``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.files.compress import (
    COMPRESSION_TYPES,
    MAX_UNCOMPRESSED,
    compress,
    compress_told,
)
from btrfs_model.mount.files.elided import Elided
from btrfs_model.mount.files.file_item import align
from btrfs_model.mount.files.pages import MAX_EXTENT_SIZE
from btrfs_model.mount.files.run import Block, fills_holes, pass_time, write_run
from btrfs_model.mount.files.write import buffered_write, set_i_size
from btrfs_model.mount.files.writeback import compression_of, need_compress, writeback
from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.block_group import ensure_metadata
from btrfs_model.mount.space.space_info import reserve_delalloc
from btrfs_model.ondisk.constants import InodeFlag

# so many at most before room for metadata is looked for again
_BATCH = 1 << 16

U64 = npt.NDArray[np.uint64]


def write_file_extents(
    fs: Mount, inode: LiveInode, offsets: Sequence[int] | U64, block: bytes | Elided
) -> None:
    """Write the same block at many places of a file, each written back before the next.

    `offsets`: where, in the order in which they are written; whole blocks.
    `block`: what is written at each of them.
    Raises OSError: ENOSPC, when there is no room; what was written before stays. EINVAL for a place
    that is no multiple of the sector size.
    """
    places = np.ascontiguousarray(offsets, dtype=np.uint64)
    if (places % np.uint64(fs.sectorsize)).any():
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), fs.path)
    writeback(fs, inode)
    # what a file has before the first write decides whether that becomes an inline extent
    done = min(1, len(places))
    for place in places[:done].tolist():
        _write_one(fs, inode, place, block)
    while done < len(places):
        shape = _shape(fs, inode, block)
        rest = places[done : done + _BATCH]
        ensure_metadata(fs)
        written = 0
        if shape is not None and _is_plain(fs, inode, rest, shape.length):
            rest = rest[: reserve_delalloc(fs, len(rest))]
            written = write_run(fs, inode, rest, shape)
            _finish(fs, inode, rest[:written], shape.length)
        if not written:
            # there is no room, or something that only one at a time gets right
            for place in rest[:1].tolist():
                _write_one(fs, inode, place, block)
            written = 1
        done += written


def _write_one(fs: Mount, inode: LiveInode, offset: int, block: bytes | Elided) -> None:
    buffered_write(fs, inode, offset, block)
    writeback(fs, inode)


def _shape(fs: Mount, inode: LiveInode, block: bytes | Elided) -> Block | None:
    """Say what a block becomes; None where that is not one extent, always the same."""
    length = block.length if isinstance(block, Elided) else len(block)
    if length % fs.sectorsize or inode.item.flags & (InodeFlag.PREALLOC | InodeFlag.NODATACOW):
        return None
    if not length or length > MAX_EXTENT_SIZE:
        return None
    if length <= fs.sectorsize or not _wants_compression(fs, inode, block):
        return Block(length, length, 0, None if isinstance(block, Elided) else bytes(block))
    if length > MAX_UNCOMPRESSED:
        return None
    kind, level = compression_of(fs, inode), fs.options.compress_level
    if isinstance(block, Elided):
        packed = compress_told(kind, level, block, fs.sectorsize, fs.behaviour)
    else:
        packed = compress(kind, level, block, fs.sectorsize, fs.behaviour)
    if packed is None:
        return None
    on_disk = align(len(packed), fs.sectorsize)
    if on_disk + fs.sectorsize > length:
        return None
    stored = None if isinstance(block, Elided) else packed.ljust(on_disk, b"\0")
    return Block(length, on_disk, COMPRESSION_TYPES[kind], stored)


def _wants_compression(fs: Mount, inode: LiveInode, block: bytes | Elided) -> bool:
    def data() -> bytes:
        if isinstance(block, Elided):
            return block.sample(min(block.length, MAX_UNCOMPRESSED))
        return bytes(block[:MAX_UNCOMPRESSED])

    return need_compress(fs, inode, data)


def _is_plain(fs: Mount, inode: LiveInode, places: U64, length: int) -> bool:
    """Whether the blocks only fill holes: nothing is overwritten, nothing done for a gap."""
    if not fs.no_holes or inode.pages.i_size % fs.sectorsize:
        return False
    return fills_holes(fs, inode, places, length)


def _finish(fs: Mount, inode: LiveInode, places: U64, length: int) -> None:
    """Set size, times and clock to what they are after that many writes."""
    item, count = inode.item, len(places)
    if not count:
        return
    # each write asks for the time twice: for the inode, and for the subvolume
    pass_time(fs, 2 * (count - 1))
    item.mtime = item.ctime = fs.now()
    item.sequence += count
    end = int(places.max()) + length
    if end > inode.pages.i_size:
        set_i_size(fs, inode, end)
    mark_inode_dirty(fs, inode)
