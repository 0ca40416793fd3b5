# SPDX-License-Identifier: GPL-2.0-only
"""Writes into the pages of a file, and what zeroes parts of its blocks.

Nothing here goes to disk but what must before it can go on: writeback does the rest
(:mod:`btrfs_model.mount.files.writeback`).
"""

from __future__ import annotations

import errno

from btrfs_model.mount.files.elided import Elided
from btrfs_model.mount.files.file_item import (
    Extent,
    align,
    drop_extents,
    extents_between,
    file_ranges,
    insert_hole,
    note_modified,
)
from btrfs_model.mount.files.writeback import update_disk_size, writeback
from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.attr import remove_capability
from btrfs_model.mount.space.block_group import ensure_data
from btrfs_model.mount.space.quota_reserve import is_limited, reserve_write
from btrfs_model.mount.space.space_info import reserve_delalloc
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.volume.checksums import DataChecksums
from btrfs_model.volume.data import FileExtent, FileReader


def touch(fs: Mount, inode: LiveInode) -> None:
    """Set mtime and ctime to now and count a change (``file_modified()``).

    It is no privileged program any more.
    """
    fs.in_transaction = True
    _set_times(fs, inode)


def _set_times(fs: Mount, inode: LiveInode) -> None:
    """Do that without a transaction, as before writes (``btrfs_write_check()``).

    The item of the inode follows when what is written is.
    """
    remove_capability(fs, inode)
    inode.item.mtime = inode.item.ctime = fs.now()
    inode.item.sequence += 1


def set_i_size(fs: Mount, inode: LiveInode, size: int) -> None:
    """Change the size in memory and, as far as it is safe, the one in the item."""
    inode.pages.i_size = size
    update_disk_size(fs, inode)


# --------------------------------------------------------------------------------- write ------


def buffered_write(fs: Mount, inode: LiveInode, offset: int, data: bytes | Elided) -> int:
    """Write into the pages (``btrfs_buffered_write()``, Linux 6.18).

    `offset`: where in the file, bytes.
    `data`: what.
    Returns bytes written, which may be less where quotas stop it.
    Raises OSError: ENOSPC, when there is no room for the data, EDQUOT.
    """
    length = data.length if isinstance(data, Elided) else len(data)
    if not length:
        return 0
    if offset % fs.sectorsize + length > fs.sectorsize and is_limited(fs, inode.root):
        return _write_by_blocks(fs, inode, offset, data, length)
    pages = inode.pages
    end = offset + length
    _set_times(fs, inode)
    if offset > pages.i_size:
        cont_expand(fs, inode, pages.i_size, align(end, fs.sectorsize), fs.generation)
    _dirty(fs, inode, offset, end)
    if isinstance(data, Elided):
        _write_elided(fs, inode, offset, data)
    else:
        pages.write(offset, memoryview(data), lambda at: _read_block(fs, inode, at))
    pages.i_size = max(pages.i_size, end)
    return length


def _write_by_blocks(
    fs: Mount, inode: LiveInode, offset: int, data: bytes | Elided, length: int
) -> int:
    """Write as a kernel does where each block may exceed a limit; what fits stays written."""
    blocksize, done = fs.sectorsize, 0
    while done < length:
        count = min(length - done, blocksize - (offset + done) % blocksize)
        if isinstance(data, Elided):
            part: bytes | Elided = Elided(count, data.pattern)
        else:
            part = data[done : done + count]
        try:
            buffered_write(fs, inode, offset + done, part)
        except OSError as error:
            if error.errno != errno.EDQUOT or not done:
                raise
            break
        done += count
    return done


def _dirty(fs: Mount, inode: LiveInode, start: int, end: int) -> None:
    """Reserve room for what becomes dirty; the file joins those that wait, behind the others."""
    blocksize = fs.sectorsize
    reserve_write(fs, inode, start // blocksize * blocksize, align(end, blocksize))
    ensure_data(fs, align(end, blocksize) - start // blocksize * blocksize)
    reserve_delalloc(fs)
    fs.dirty_files.setdefault((inode.root, inode.ino), inode)


def _write_elided(fs: Mount, inode: LiveInode, offset: int, data: Elided) -> None:
    """Whole blocks are elided, parts of blocks at both ends written as what they would be."""
    pages, blocksize = inode.pages, fs.sectorsize
    end = offset + data.length
    low = min(align(offset, blocksize), end)
    high = max(end // blocksize * blocksize, low)
    for start, stop in ((offset, low), (high, end)):
        if start < stop:
            pages.write(start, bytes(stop - start), lambda at: _read_block(fs, inode, at))
    if low < high:
        pages.elide(low, high, data.pattern)


# ---------------------------------------------------------------------------------- zero ------


def truncate_block(
    fs: Mount, inode: LiveInode, start: int, length: int = 0, *, front: bool = False
) -> None:
    """Zero a part of the block that holds `start` and make the block dirty.

    From `start` on, for `length` bytes or to the end of the block; with `front` from the beginning
    of the block to `start`. At a border of blocks there is nothing to do
    (``btrfs_truncate_block()``, Linux 6.12).
    """
    blocksize = fs.sectorsize
    within = start % blocksize
    if not within and not length % blocksize:
        return
    block = start - within
    low, high = start, (start + length if length else block + blocksize)
    if front:
        low, high = block, start
    _dirty(fs, inode, block, block + blocksize)
    inode.pages.write(low, bytes(high - low), lambda at: _read_block(fs, inode, at))


def cont_expand(
    fs: Mount, inode: LiveInode, old_size: int, size: int, generation: int | None = None
) -> None:
    """Make room for a larger size: zero the old last block, hole items where they are in use.

    ``btrfs_cont_expand()`` (Linux 6.18). Holes are of the transaction `generation`; to insert items
    for them a transaction is started.
    """
    blocksize = fs.sectorsize
    hole_start, block_end = align(old_size, blocksize), align(size, blocksize)
    truncate_block(fs, inode, old_size)
    if size <= hole_start:
        return
    writeback(fs, inode, hole_start, block_end)
    for start, end, extent in list(file_ranges(fs, inode, hole_start, block_end)):
        if extent is None or not extent.is_prealloc:
            note_modified(fs, inode, start, end, generation if fs.no_holes else None)
            inode.hole_maps.append((start, end))
    if fs.no_holes:
        return
    for start, end, extent in list(file_ranges(fs, inode, hole_start, block_end)):
        if extent is None or not extent.is_prealloc:
            found = drop_extents(fs, inode, start, end)
            insert_hole(fs, inode, start, end - start)
            inode.item.nbytes -= found
            mark_inode_dirty(fs, inode)


# ---------------------------------------------------------------------------------- read ------


def read_live(
    fs: Mount, inode: LiveInode, start: int, end: int, checksums: DataChecksums | None = None
) -> bytes:
    """Return bytes of a file as they are now: pages that wait, and data on disk below them.

    `start`, `end`: byte range; the file may end before it.
    `checksums`: by which data on disk are verified.
    Raises CorruptImageError: when data are damaged, or were compressed and elided.
    """
    pages = inode.pages
    end = min(end, pages.i_size)
    if end <= start:
        return b""
    extents = [_file_extent(extent) for extent in extents_between(fs, inode, start, end)]
    sums = checksums or DataChecksums(fs.image, None)
    reader = FileReader(fs.image, sums, inode.root, inode.ino)
    data = bytearray(reader.read(extents, start, end, inode.item.flags))
    blocksize = fs.sectorsize
    for part in pages.ranges(start // blocksize * blocksize, align(end, blocksize)):
        low, high = max(part.start, start), min(part.end, end)
        block = low // blocksize * blocksize
        data[low - start : high - start] = pages.read(block, part.end)[low - block : high - block]
    return bytes(data)


def _read_block(fs: Mount, inode: LiveInode, start: int) -> bytes:
    """Return a block for writing into it; what lies beyond the end of the file is zeros."""
    return read_live(fs, inode, start, start + fs.sectorsize).ljust(fs.sectorsize, b"\0")


def _file_extent(extent: Extent) -> FileExtent:
    item = extent.item
    if isinstance(item, InlineExtent):
        return FileExtent(
            extent.start, extent.length, item.type, item.compression, 0, 0, 0, item.ram_bytes,
            item.generation, item.data, 0, 0,
        )  # fmt: skip
    return FileExtent(
        extent.start, extent.length, item.type, item.compression, item.disk_bytenr,
        item.disk_num_bytes, item.offset, item.ram_bytes, item.generation, b"", 0, 0,
    )  # fmt: skip
