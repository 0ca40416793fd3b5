# SPDX-License-Identifier: GPL-2.0-only
"""Truncation: a file becomes shorter, or longer by a hole (``btrfs_setsize()``, Linux 6.18)."""

from __future__ import annotations

from typing import Final

from btrfs_model.mount.files.file_item import align, forget_modified, truncate_inode_items
from btrfs_model.mount.files.write import cont_expand, set_i_size, touch, truncate_block
from btrfs_model.mount.files.writeback import update_disk_size, writeback
from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.quota_reserve import reserve_items as reserve_qgroups
from btrfs_model.mount.space.space_info import reserve_items
from btrfs_model.ondisk.keys import U64_MAX
from btrfs_model.patches import Patch

# the inode, and the size beyond which all goes (btrfs_truncate())
_ITEMS: Final = 2


def set_size(fs: Mount, inode: LiveInode, size: int) -> None:
    """Set the size of a file, as truncate(2) does.

    A size that does not change leaves the times alone, but takes away what was preallocated beyond
    the end.

    `size`: bytes.
    """
    pages = inode.pages
    old_size = pages.i_size
    generation = fs.generation
    if size != old_size:
        touch(fs, inode)
    if size > old_size:
        # no transaction was started for this yet
        cont_expand(fs, inode, old_size, size, generation)
        reserve_qgroups(fs, inode.root, 1)
        set_i_size(fs, inode, size)
    else:
        try:
            _shrink(fs, inode, size, old_size)
        except OSError:
            pages.i_size = inode.item.size
            raise
    inode.item.sequence += 1  # btrfs_setattr() counts once more
    mark_inode_dirty(fs, inode)


def _shrink(fs: Mount, inode: LiveInode, size: int, old_size: int) -> None:
    """``btrfs_truncate()``: pages first, then, with the last block written back, the items."""
    pages, blocksize = inode.pages, fs.sectorsize
    block_end = align(size, blocksize)
    if not size and (old_size or Patch.TRUNCATE_EMPTY not in fs.behaviour):
        pages.flush_on_close = True
    pages.clean(block_end, 2**64)
    pages.zero(size, block_end)
    pages.i_size = size
    if size != old_size:
        writeback(fs, inode, size // blocksize * blocksize)
    if not pages.is_dirty:
        fs.dirty_files.pop((inode.root, inode.ino), None)
    if Patch.LOG_CONFLICT_LIST not in fs.behaviour:
        # whatever is truncated
        inode.log.full_sync = True
    reserve_qgroups(fs, inode.root, _ITEMS)
    reserve_items(fs, _ITEMS)
    forget_modified(inode, block_end, U64_MAX)
    need_block = truncate_inode_items(fs, inode, size)
    if need_block:
        truncate_block(fs, inode, size)
        reserve_qgroups(fs, inode.root, 1)
    update_disk_size(fs, inode)
