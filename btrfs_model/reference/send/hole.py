# SPDX-License-Identifier: GPL-2.0-only
"""Extents and holes of a file that the parent snapshot has too.

An extent that both have is not sent. A hole has to be sent where the parent has data: as zeros, or
in version 2 of the stream as a hole. Where the snapshot keeps holes by not having items, they are
found as gaps between the extents that the walk meets; ``cur_inode_last_extent`` is the end of the
last one.
"""

from __future__ import annotations

import stat

from btrfs_model.base.counters import current
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.keys import U64_MAX, ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.questions.send.causes import Item
from btrfs_model.reference.send.command import send_cmd, send_update_extent
from btrfs_model.reference.send.context import (
    NOT_DATA,
    SendContext,
    alloc_path_for_send,
    because,
    because_inode,
)
from btrfs_model.reference.send.data import Extent, parse_file_extent
from btrfs_model.reference.send.paths import get_cur_inode_path
from btrfs_model.volume import ctree
from btrfs_model.volume.blocks import HEADER, ITEM

_PAGE = 4096
# FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_PUNCH_HOLE = 3
# where disk_bytenr is in a file extent item; in inline data its first bytes
_DISK_BYTENR = 21
_DATA = ItemType.EXTENT_DATA


# ------------------------------------------------------------------------------- extents ----


def is_extent_unchanged(sctx: SendContext, left: Extent) -> bool:
    """Whether the parent snapshot has the same data where an extent is."""
    current().count("is_extent_unchanged")
    if left.type != FileExtentType.REG:
        return False
    tree, path = sctx.parent_tree, alloc_path_for_send(sctx)
    wanted = (sctx.cur_ino, _DATA)
    if not ctree.search_slot_for_read(tree, (*wanted, left.start), path, find_higher=False):
        return False
    *found, start = ctree.block_key(path.leaf, path.slots[0])
    if tuple(found) != wanted:
        # nothing there is the same as a hole
        return not left.disk_bytenr
    left_end = left.start + left.num_bytes
    while start < left_end:
        right = parse_file_extent(sctx, path, tree)
        if right.type == FileExtentType.PREALLOC:
            return False
        size = -(-right.ram_bytes // _PAGE) * _PAGE if right.is_inline else right.num_bytes
        end = start + size
        if end <= left.start:
            return not left.disk_bytenr
        if right.is_inline or not _same_data(left, right):
            return False
        current().count("btrfs_next_old_item")
        path.slots[0] += 1
        more = path.slots[0] < ctree.nritems(path.leaf) or ctree.next_leaf(tree, path)
        *found, start = ctree.block_key(path.leaf, path.slots[0]) if more else (0, 0, 0)
        if tuple(found) != wanted:
            return end >= left_end
        if start != end:
            return False
    return start >= left_end


def _same_data(left: Extent, right: Extent) -> bool:
    """Whether both have the same bytes of the same extent where they overlap."""
    start = max(left.start, right.start)
    return (
        left.disk_bytenr == right.disk_bytenr
        and left.generation == right.generation
        and (left.offset + start - left.start) & U64_MAX
        == (right.offset + start - right.start) & U64_MAX
    )


def has_only_moved(sctx: SendContext) -> bool:
    """Whether the two file extent items of the walk differ in nothing but where the data lie."""
    left = bytes(ctree.item_data(sctx.left_path.leaf, sctx.left_path.slots[0]))
    right = bytes(ctree.item_data(sctx.right_path.leaf, sctx.right_path.slots[0]))
    behind = _DISK_BYTENR + 8
    same_around = left[:_DISK_BYTENR] == right[:_DISK_BYTENR] and left[behind:] == right[behind:]
    return same_around and left != right


# --------------------------------------------------------------------------------- holes ----


def need_send_hole(sctx: SendContext) -> bool:
    """Whether the current inode is a file that the receiver has already."""
    return (
        sctx.parent_root is not None
        and not (sctx.cur_inode_new or sctx.cur_inode_new_gen or sctx.cur_inode_deleted)
        and stat.S_ISREG(sctx.cur_inode.mode)
    )


def get_last_extent(sctx: SendContext, offset: int) -> int:
    """Set ``cur_inode_last_extent`` to the end of the last extent up to `offset`."""
    current().count("get_last_extent")
    path = alloc_path_for_send(sctx)
    sctx.cur_inode_last_extent = 0
    key = (sctx.cur_ino, _DATA, offset & U64_MAX)
    if (
        ctree.search_slot_for_read(sctx.send_root, key, path, find_higher=False)
        and ctree.block_key(path.leaf, path.slots[0])[:2] == key[:2]
    ):
        sctx.cur_inode_last_extent = parse_file_extent(sctx, path, sctx.send_root).end
    return sctx.cur_inode_last_extent


def range_is_hole_in_parent(sctx: SendContext, start: int, end: int) -> bool:
    """Whether the parent snapshot has no data in a range of the current file."""
    current().count("range_is_hole_in_parent")
    tree, path = sctx.parent_tree, alloc_path_for_send(sctx)
    if not ctree.search_slot(tree, (sctx.cur_ino, _DATA, start), path) and path.slots[0] > 0:
        path.slots[0] -= 1
    reached = start
    while reached < end:
        if path.slots[0] >= ctree.nritems(path.leaf):
            if not ctree.next_leaf(tree, path):
                break
            continue
        ino, kind, offset = ctree.block_key(path.leaf, path.slots[0])
        if ino >= sctx.cur_ino and kind >= _DATA:
            if ino > sctx.cur_ino or kind > _DATA or offset >= end:
                break
            right = parse_file_extent(sctx, path, tree)
            if right.end > start:
                if not _is_hole(sctx, right, path):
                    return False
                reached = right.end
        path.slots[0] += 1
    return True


def _is_hole(sctx: SendContext, right: Extent, path: ctree.Path) -> bool:
    if not right.is_inline:
        return not right.disk_bytenr
    # without it the data themselves are taken for the address of an extent
    if Patch.SEND_INLINE_NOT_HOLE in sctx:
        return False
    return not any(_bytes_at(path, _DISK_BYTENR, 8))


def _bytes_at(path: ctree.Path, offset: int, size: int) -> bytes:
    """Return bytes of a leaf from `offset` in an item on, even those behind the item."""
    *_, start, _ = ITEM.unpack_from(path.leaf, HEADER.size + path.slots[0] * ITEM.size)
    at = HEADER.size + start + offset
    return bytes(path.leaf[at : at + size])


def maybe_send_hole(sctx: SendContext) -> None:
    """Send the hole before the file extent item of ``left_path``, if there is a new one."""
    path = sctx.left_path
    key = Key(*ctree.block_key(path.leaf, path.slots[0]))
    if key.objectid != sctx.cur_ino or not need_send_hole(sctx):
        return
    last = sctx.cur_inode_last_extent
    # before the first item of a leaf, leaves may have been skipped as shared that hold only
    # extents of this file
    if last is None or (path.slots[0] == 0 and last < key.offset):
        last = get_last_extent(sctx, key.offset - 1)
    if last < key.offset:
        because(sctx, "hole", sctx.cur_ino, Item(key, sctx.result))
        if not range_is_hole_in_parent(sctx, last, key.offset):
            send_hole(sctx, last, key.offset)
    sctx.cur_inode_last_extent = parse_file_extent(sctx, path, sctx.send_root).end


def send_trailing_hole(sctx: SendContext) -> None:
    """Send the hole at the end of the current file, if there is a new one."""
    size, last = sctx.cur_inode.size, sctx.cur_inode_last_extent
    if not need_send_hole(sctx):
        return
    if last is None or last < size:
        last = get_last_extent(sctx, U64_MAX)
    if last >= size:
        return
    # not where it was a hole before
    if Patch.SEND_TRAILING_HOLE in sctx and range_is_hole_in_parent(sctx, last, size):
        return
    because_inode(sctx, "hole-at-end")
    send_hole(sctx, last, size)


def send_hole(sctx: SendContext, offset: int, end: int) -> None:
    """Make a hole: punched (version 2 of the stream) or written as zeros."""
    if sctx.request.proto >= 2 and Patch.SEND_PUNCH_HOLE in sctx:
        send_fallocate(sctx, _PUNCH_HOLE, offset, end - offset)
        return
    # beyond the size there may be preallocated extents
    if Patch.SEND_NO_HOLE_BEHIND_EOF in sctx:
        if offset >= sctx.cur_inode.size:
            return
        if Patch.SEND_HOLE_TO_EOF in sctx:
            end = min(end, sctx.cur_inode.size)
    if sctx.request.no_file_data:
        send_update_extent(sctx, offset, end - offset)
        return
    path = get_cur_inode_path(sctx)
    read_size = sctx.send_max_size - NOT_DATA
    for start in range(offset, end, read_size):
        zeros = bytes(min(read_size, end - start))
        send_cmd(sctx, "write", path=path, file_offset=start, data=zeros)
    sctx.cur_inode_next_write_offset = end


def send_fallocate(sctx: SendContext, mode: int, offset: int, size: int) -> None:
    """Send FALLOCATE."""
    path = get_cur_inode_path(sctx)
    send_cmd(sctx, "fallocate", path=path, fallocate_mode=mode, file_offset=offset, size=size)
