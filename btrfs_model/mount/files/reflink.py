# SPDX-License-Identifier: GPL-2.0-only
"""FICLONERANGE, FIDEDUPERANGE: a range of one file becomes that of another without copying data.

``btrfs_remap_file_range()`` and ``btrfs_clone()`` (Linux 6.18), with the checks of the VFS.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from btrfs_model.mount.files.fallocate import replace_with_hole
from btrfs_model.mount.files.file_item import (
    Extent,
    align,
    drop_extents,
    extent_key,
    extents_between,
    forget_hole_maps,
    insert_regular,
    pack_inline,
)
from btrfs_model.mount.files.pages import MAX_SIZE
from btrfs_model.mount.files.write import cont_expand, read_live, set_i_size, touch
from btrfs_model.mount.files.writeback import writeback
from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.data import ensure_data
from btrfs_model.mount.space.quota_reserve import reserve_blocks, reserve_extent
from btrfs_model.mount.space.space_info import reserve_items
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.ondisk.keys import U64_MAX
from btrfs_model.ondisk.structs import FILE_EXTENT_ITEM
from btrfs_model.volume.compression import decompress

# an extent that is split and one that is put in, the inode
_ITEMS: Final = 3
# of a call of FIDEDUPERANGE, and of what btrfs shares at a time (BTRFS_MAX_DEDUPE_LEN)
_MAX_DEDUPE: Final = 1 << 30
_DEDUPE_LEN: Final = 16 << 20


def clone_range(
    fs: Mount, source: LiveInode, target: LiveInode, offset: int, target_offset: int, length: int
) -> None:
    """Clone a range.

    `source`, `target`: regular files, possibly one and the same.
    `offset`, `target_offset`: where the range starts in both, whole blocks.
    `length`: bytes, whole blocks or up to the end of the source; 0: all that is left of it.
    Raises OSError: EINVAL where the kernel says so, EISDIR for directories.
    """
    _check_files(fs, source, target)
    _verify_area(fs, offset, length)
    _verify_area(fs, target_offset, length)
    blocksize = fs.sectorsize
    writeback(fs, source)
    left = source.pages.i_size - offset // blocksize * blocksize
    # beyond the source's end this wraps around: everything there is
    waiting = align(length or left % 2**64, blocksize)
    # and of nothing at 0 the last byte is -1, which is everything too
    writeback(fs, target, target_offset, target_offset + waiting or U64_MAX)
    length = _check_range(fs, source, target, offset, target_offset, length)
    if not length:
        return
    whole = align(length, blocksize)
    target_size = target.pages.i_size
    touch(fs, target)  # file_modified() of the VFS
    mark_inode_dirty(fs, target)
    if target_offset > target_size:
        cont_expand(fs, target, target_size, target_offset)
        writeback(fs, target, target_size // blocksize * blocksize, target_offset)
    _Clone(fs, source, target, offset, target_offset, length).run()
    writeback(fs, target, target_offset, target_offset + whole)


def dedupe_range(
    fs: Mount, source: LiveInode, target: LiveInode, offset: int, target_offset: int, length: int
) -> bool:
    """Share a range where both files hold the same (``btrfs_extent_same()``).

    Neither size nor times of the target change.

    Returns whether the ranges are the same.
    Raises OSError: EINVAL where the kernel says so, EISDIR for directories.
    """
    _check_dedupe(fs, source, target, offset, target_offset, length)
    length = min(length, _MAX_DEDUPE)
    if not length:
        return True
    _check_files(fs, source, target)
    writeback(fs, source)
    writeback(fs, target, target_offset, target_offset + align(length, fs.sectorsize))
    if target.item.flags & InodeFlag.IMMUTABLE:
        raise _error(fs, errno.EPERM)
    length = _dedupe_length(fs, source, target, offset, target_offset, length)
    ranges = ((source, offset), (target, target_offset))
    held = [read_live(fs, inode, start, start + length) for inode, start in ranges]
    if held[0] != held[1]:
        return False
    for done in range(0, length, _DEDUPE_LEN):
        part = min(_DEDUPE_LEN, length - done)
        _Clone(
            fs, source, target, offset + done, target_offset + done, part, sets_times=False
        ).run()
    return True


def _check_dedupe(
    fs: Mount, source: LiveInode, target: LiveInode, offset: int, target_offset: int, length: int
) -> None:
    """``vfs_dedupe_file_range()``: what is asked before btrfs is, of the source first."""
    if source.is_dir:
        raise _error(fs, errno.EISDIR)
    if not stat.S_ISREG(source.item.mode):
        raise _error(fs, errno.EINVAL)
    _verify_area(fs, offset, length)
    if offset + length > source.pages.i_size:
        raise _error(fs, errno.EINVAL)
    _verify_area(fs, target_offset, min(length, _MAX_DEDUPE))
    if target.is_dir:
        raise _error(fs, errno.EISDIR)
    if not stat.S_ISREG(target.item.mode):
        raise _error(fs, errno.EINVAL)


def _dedupe_length(
    fs: Mount, source: LiveInode, target: LiveInode, offset: int, target_offset: int, length: int
) -> int:
    """``generic_remap_checks()`` for FIDEDUPERANGE: how much of the range is shared.

    A block that is the last of one file, but not of the other, is left out.
    """
    blocksize = fs.sectorsize
    size, target_size = (inode.pages.i_size for inode in (source, target))
    if offset % blocksize or target_offset % blocksize:
        raise _error(fs, errno.EINVAL)
    end, target_end = offset + length, target_offset + length
    if offset >= size or end > size or target_offset >= target_size or target_end > target_size:
        raise _error(fs, errno.EINVAL)
    if (end, target_end) != (size, target_size):
        length -= length % blocksize
    _check_overlap(fs, source, target, offset, target_offset, length)
    return length


def _verify_area(fs: Mount, offset: int, length: int) -> None:
    """``remap_verify_area()``."""
    if min(offset, length) < 0 or offset + length > MAX_SIZE:
        raise _error(fs, errno.EINVAL)


def _check_overlap(
    fs: Mount, source: LiveInode, target: LiveInode, offset: int, target_offset: int, length: int
) -> None:
    """See that ranges of one file, both from the border of a block, have nothing in common."""
    if source is target and abs(target_offset - offset) < length:
        raise _error(fs, errno.EINVAL)


def _check_files(fs: Mount, source: LiveInode, target: LiveInode) -> None:
    """``vfs_clone_file_range()``, and what btrfs asks before it writes dirty data back."""
    if source.is_dir or target.is_dir:
        raise _error(fs, errno.EISDIR)
    if not (stat.S_ISREG(source.item.mode) and stat.S_ISREG(target.item.mode)):
        raise _error(fs, errno.EINVAL)
    if (source.item.flags ^ target.item.flags) & InodeFlag.NODATASUM:
        raise _error(fs, errno.EINVAL)


def _check_range(
    fs: Mount, source: LiveInode, target: LiveInode, offset: int, target_offset: int, length: int
) -> int:
    """``generic_remap_file_range_prep()``; returns the length that is meant."""
    blocksize = fs.sectorsize
    size = source.pages.i_size
    if not length:
        if offset == size:
            return 0
        length = size - offset
    if offset % blocksize or target_offset % blocksize:
        raise _error(fs, errno.EINVAL)
    if length <= 0 or offset + length > size or target_offset + length > MAX_SIZE:
        raise _error(fs, errno.EINVAL)
    if offset + length == size:
        # the last block goes along as a whole, but not into the middle of a file
        past_target = target_offset + length >= target.pages.i_size
        if length % blocksize and not past_target:
            raise _error(fs, errno.EINVAL)
    elif length % blocksize:
        raise _error(fs, errno.EINVAL)
    _check_overlap(fs, source, target, offset, target_offset, length)
    return length


def _error(fs: Mount, number: int) -> OSError:
    return OSError(number, os.strerror(number), fs.path)


class _Clone:
    """One call of ``btrfs_clone()``."""

    def __init__(
        self, fs: Mount, source: LiveInode, target: LiveInode, offset: int, target_offset: int,
        length: int, *, sets_times: bool = True,
    ) -> None:  # fmt: skip
        self.fs = fs
        self.source = source
        self.target = target
        self.offset = offset
        self.target_offset = target_offset
        self.length = length
        self.sets_times = sets_times
        self.end = offset + align(length, fs.sectorsize)
        self.done = target_offset  # of the target, up to here

    def run(self) -> None:
        """Clone extent by extent; what holes are in between becomes holes."""
        for extent in extents_between(self.fs, self.source, self.offset, self.end):
            if extent.end <= self.offset:
                continue
            reserve_items(self.fs, _ITEMS)
            at = max(extent.start, self.offset) + self.target_offset - self.offset
            if isinstance(extent.item, InlineExtent):
                self._inline(at, extent.item)
                length = extent.length
            else:
                length = min(extent.end, self.end) - max(extent.start, self.offset)
                self._regular(at, length, extent)
            self._note_shared(extent)
            self.done = align(at + length, self.fs.sectorsize)
            self._finish(self.done)
        stop = self.target_offset + self.end - self.offset
        if self.done < stop:
            if self.done >= self.target.pages.i_size:
                # no range of the file changes there, of which a fast fsync could know
                self.target.log.full_sync = True
            replace_with_hole(self.fs, self.target, self.done, stop)
            self._finish(stop)

    def _note_shared(self, extent: Extent) -> None:
        """Let the next fsyncs log old extents of the target, and checksums of new ones but once."""
        self.target.log.last_reflink_trans = self.fs.transid
        if extent.disk_bytenr and extent.item.generation == self.fs.transid:
            self.source.log.last_reflink_trans = self.fs.transid

    def _finish(self, end: int) -> None:
        """``clone_finish_inode_update()``."""
        if self.sets_times:
            touch(self.fs, self.target)
        else:
            self.target.item.sequence += 1
        end = min(end, self.target_offset + self.length)
        if end > self.target.pages.i_size:
            set_i_size(self.fs, self.target, end)
        mark_inode_dirty(self.fs, self.target)

    def _regular(self, at: int, length: int, extent: Extent) -> None:
        if self.done < at:
            self.target.item.nbytes -= drop_extents(self.fs, self.target, self.done, at)
        item = extent.regular
        payload = FILE_EXTENT_ITEM.struct.pack(
            *item._replace(
                offset=item.offset + max(self.offset - extent.start, 0), num_bytes=length
            )
        )
        insert_regular(self.fs, self.target, at, payload, new=False)
        forget_hole_maps(self.target, self.done, at + length)
        self.target.log.full_sync = True

    def _inline(self, at: int, item: InlineExtent) -> None:
        """``clone_copy_inline_extent()``: as an item where it may be one, else as data."""
        fs, target = self.fs, self.target
        size = item.ram_bytes
        first = extents_between(fs, target, 0, U64_MAX)[:1]
        copy = at > 0 or target.pages.i_size > size
        if first and not copy:
            copy = first[0].start > 0 or not first[0].is_inline
        if copy:
            self._copy_to_page(at, item)
            return
        found = drop_extents(fs, target, min(self.done, at), align(at + size, fs.sectorsize))
        payload = pack_inline(item.generation, size, item.data, item.compression)
        fs.writer.insert(target.root, extent_key(target, 0), payload)
        target.item.nbytes += size - found
        target.log.full_sync = True

    def _copy_to_page(self, at: int, item: InlineExtent) -> None:
        fs, target = self.fs, self.target
        plain = item.data[: item.ram_bytes]
        if item.compression:
            plain = decompress(item.compression, item.data, item.ram_bytes, fs.sectorsize)
        block = plain.ljust(fs.sectorsize, b"\0")
        reserve_extent(fs, target, reserve_blocks(fs, target, at, at + fs.sectorsize))
        ensure_data(fs, fs.sectorsize)
        fs.dirty_files.setdefault((target.root, target.ino), target)
        # the size is what the clone makes it, whatever is in the page
        target.pages.write(at, block, lambda _: block)
