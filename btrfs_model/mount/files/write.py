# SPDX-License-Identifier: GPL-2.0-only
"""Writes into the pages of a file, and what zeroes parts of its blocks.

Nothing here goes to disk but what must before it can go on: writeback does the rest
(:mod:`btrfs_model.mount.files.writeback`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import pairwise

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.mount.files.elided import Told
from btrfs_model.mount.files.file_item import (
    Extent,
    add_hole_map,
    align,
    drop_extents,
    extents_between,
    file_ranges,
    insert_hole,
    note_modified,
)
from btrfs_model.mount.files.prealloc import can_nocow
from btrfs_model.mount.files.writeback import update_disk_size, writeback
from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.attr import remove_capability
from btrfs_model.mount.space.data import data_room, ensure_data
from btrfs_model.mount.space.quota_reserve import is_limited, reserve_blocks, reserve_extent
from btrfs_model.mount.space.space_info import reserve_delalloc
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.patches import Patch
from btrfs_model.volume.checksums import DataChecksums
from btrfs_model.volume.data import FileExtent, FileReader

# of which btrfs_buffered_write() has pointers in one page, before it went page by page
_PAGES_AT_ONCE = 512


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


def buffered_write(fs: Mount, inode: LiveInode, offset: int, data: bytes | Told) -> int:
    """Write into the pages (``btrfs_buffered_write()``, Linux 6.18).

    `offset`: where in the file, bytes.
    `data`: what.
    Returns bytes written, which are fewer where the rest has no room or quotas stop it.
    Raises OSError: ENOSPC, when there is no room for the first block, EDQUOT.
    """
    length = data.length if isinstance(data, Told) else len(data)
    if not length:
        return 0
    blocksize = fs.sectorsize
    _set_times(fs, inode)
    if offset > inode.pages.i_size:
        end = align(offset + length, blocksize)
        cont_expand(fs, inode, inode.pages.i_size, end, fs.generation)
    if offset % blocksize + length > blocksize:
        first, wanted = _whole_blocks(fs, offset, offset + length)
        if is_limited(fs, inode.root) or data_room(fs, wanted - first) < wanted - first:
            return _write_in_parts(fs, inode, offset, data, length)
    _write_part(fs, inode, offset, data, length)
    return length


def make_dirty(fs: Mount, inode: LiveInode, offset: int, data: bytes) -> None:
    """Have data that a file has already wait to be written again; nothing else changes."""
    if data:
        _dirty(fs, inode, offset, offset + len(data))
        inode.pages.write(offset, memoryview(data), lambda at: _read_block(fs, inode, at))


def _write_part(fs: Mount, inode: LiveInode, offset: int, data: bytes | Told, length: int) -> None:
    """Reserve for bytes together, and write them."""
    pages, end = inode.pages, offset + length
    _dirty(fs, inode, offset, end)
    if isinstance(data, Told):
        _write_told(fs, inode, offset, data)
    else:
        pages.write(offset, memoryview(data), lambda at: _read_block(fs, inode, at))
    pages.i_size = max(pages.i_size, end)


def _write_in_parts(
    fs: Mount, inode: LiveInode, offset: int, data: bytes | Told, length: int
) -> int:
    """Write as a kernel does where there may be no room for a block; what fits stays written.

    The kernel reserves for each page by itself; before 6.13 for as many as the process may make
    dirty until it has to wait, 8 to 512. So it is done here where quotas are limited, by the most;
    else for as many of these together as have room before something is written back.
    """
    at_once = fs.sectorsize * (1 if Patch.WRITE_BY_PAGE in fs.behaviour else _PAGES_AT_ONCE)
    done = 0
    while done < length:
        at = offset + done
        first, end = _whole_blocks(fs, at, offset + length)
        room = 0 if is_limited(fs, inode.root) else data_room(fs, end - first)
        count = min(length - done, max(room // at_once, 1) * at_once - at % fs.sectorsize)
        if isinstance(data, Told):
            part: bytes | Told = data._replace(length=count)
        else:
            part = data[done : done + count]
        try:
            _write_part(fs, inode, at, part, count)
        except OSError as error:
            if error.errno not in (errno.EDQUOT, errno.ENOSPC) or not done:
                raise
            break
        done += count
    return done


def _whole_blocks(fs: Mount, start: int, end: int) -> tuple[int, int]:
    return start // fs.sectorsize * fs.sectorsize, align(end, fs.sectorsize)


def _dirty(fs: Mount, inode: LiveInode, start: int, end: int) -> None:
    """Reserve room for what becomes dirty; the file joins those that wait, behind the others."""
    first, last = _whole_blocks(fs, start, end)
    new = 0
    try:
        new = reserve_blocks(fs, inode, first, last)
        ensure_data(fs, last - first)
    except OSError as error:
        no_room = error.errno in (errno.EDQUOT, errno.ENOSPC)
        if not no_room or not _goes_in_place(fs, inode, first, last):
            raise
    reserve_extent(fs, inode, new)
    reserve_delalloc(fs, summed=0 if inode.item.flags & InodeFlag.NODATASUM else fs.sectorsize)
    fs.dirty_files.setdefault((inode.root, inode.ino), inode)


def _goes_in_place(fs: Mount, inode: LiveInode, start: int, end: int) -> bool:
    """Whether what is written there needs no room for data (``btrfs_check_nocow_lock()``)."""
    if not inode.item.flags & (InodeFlag.NODATACOW | InodeFlag.PREALLOC):
        return False
    return all(
        extent is not None and can_nocow(fs, inode, extent)
        for _, _, extent in file_ranges(fs, inode, start, end)
    )


def check_nowait(fs: Mount, inode: LiveInode, start: int, end: int, *, direct: bool) -> None:
    """See that a write of [start, end) would wait for nothing (``RWF_NOWAIT``, Linux 6.18).

    A direct one may only go into one extent, in place, and not where a page of it is in memory:
    clean pages are not known here.
    Raises OSError: EAGAIN.
    Raises UnsupportedError: where it depends on clean pages.
    """
    wait = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    if not inode.item.flags & (InodeFlag.NODATACOW | InodeFlag.PREALLOC):
        raise wait
    if not direct:
        return
    if not inode.item.flags & InodeFlag.NODATASUM or list(inode.pages.delalloc_ranges(start, end)):
        raise wait
    ranges = list(file_ranges(fs, inode, start, end))
    extent = ranges[0][2] if len(ranges) == 1 else None
    if extent is None or not can_nocow(fs, inode, extent):
        raise wait
    if not extent.is_prealloc:
        raise UnsupportedError(f"{fs.path}: a direct write that may not wait, into written data: "
                               "it is refused where their pages are in memory")  # fmt: skip


def _write_told(fs: Mount, inode: LiveInode, offset: int, data: Told) -> None:
    """Let a pattern tell whole blocks; write parts of blocks at both ends, elided ones as zeros."""
    pages, blocksize = inode.pages, fs.sectorsize
    end = offset + data.length
    low = min(align(offset, blocksize), end)
    high = max(end // blocksize * blocksize, low)
    for start, stop in ((offset, low), (high, end)):
        if start < stop:
            part = data.sample(stop - start) if data.stored else bytes(stop - start)
            pages.write(start, part, lambda at: _read_block(fs, inode, at))
    if low < high:
        pages.tell(low, high, data)


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
    ranges = list(_ranges_to_expand(fs, inode, hole_start, block_end))
    for start, end, extent in ranges:
        if extent is None or not extent.is_prealloc:
            note_modified(fs, inode, start, end, generation if fs.no_holes else None)
            add_hole_map(inode, start, end)
    if fs.no_holes:
        return
    for start, end, extent in ranges:
        if extent is None or not extent.is_prealloc:
            found = drop_extents(fs, inode, start, end)
            insert_hole(fs, inode, start, end - start)
            inode.item.nbytes -= found
            mark_inode_dirty(fs, inode)


def _ranges_to_expand(
    fs: Mount, inode: LiveInode, start: int, end: int
) -> Iterator[tuple[int, int, Extent | None]]:
    """Yield what a file has behind its end; what is nothing ends where a map of a hole does."""
    for low, high, extent in file_ranges(fs, inode, start, end):
        stops = [stop for _, stop in inode.hole_maps if extent is None and low < stop < high]
        for first, last in pairwise((low, *stops, high)):
            yield first, last, extent


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
        dirty = pages.read(block, align(high, blocksize))
        data[low - start : high - start] = dirty[low - block : high - block]
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
