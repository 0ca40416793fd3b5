# SPDX-License-Identifier: GPL-2.0-only
"""Extents and holes of a file that the parent snapshot has too.

An extent that both have is not sent. A hole has to be sent where the parent has data: as zeros, or
in version 2 of the stream as a hole. Where the snapshot keeps holes by not having items, they are
found as gaps between the extents that the walk meets; ``cur_inode_last_extent`` is the end of the
last one.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from btrfs_model.base.counters import current
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.reference.ctree import (
    key_at,
    next_leaf,
    nritems,
    search_slot,
    search_slot_for_read,
)
from btrfs_model.reference.send.data import Extent, parse_file_extent
from btrfs_model.reference.send.explain import Item
from btrfs_model.volume.blocks import HEADER, ITEM

if TYPE_CHECKING:
    from btrfs_model.reference.ctree import Path
    from btrfs_model.reference.send.context import SendContext
    from btrfs_model.reference.send.names import Names
    from btrfs_model.volume.tree import Tree

_MAX = 2**64 - 1
_PAGE = 4096
# the part of the command buffer that is not file data
_NOT_DATA = 16384
# FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_PUNCH_HOLE = 3
# where disk_bytenr is in a file extent item; in inline data its first bytes
_DISK_BYTENR = 21
_DATA = ItemType.EXTENT_DATA


class Holes:
    """Compares the extents of a file with those that the parent snapshot has.

    Parameters
    ----------
    sctx : SendContext
        The send.
    names : Names
        Its paths.
    """

    def __init__(self, sctx: SendContext, names: Names) -> None:
        self.sctx = sctx
        self.names = names

    # ------------------------------------------------------------------------- extents ------

    def is_extent_unchanged(self, tree: Tree, left: Extent) -> bool:
        """Whether the parent snapshot has the same data where an extent is."""
        current().count("is_extent_unchanged")
        if left.type != FileExtentType.REG:
            return False
        sctx, path = self.sctx, self.sctx.search_path()
        wanted = (sctx.cur_ino, _DATA)
        if not search_slot_for_read(tree, (*wanted, left.start), path, find_higher=False):
            return False
        *found, start = key_at(path.leaf, path.slots[0])
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
            if right.is_inline or not self._same_data(left, right):
                return False
            current().count("btrfs_next_old_item")
            path.slots[0] += 1
            more = path.slots[0] < nritems(path.leaf) or next_leaf(tree, path)
            *found, start = key_at(path.leaf, path.slots[0]) if more else (0, 0, 0)
            if tuple(found) != wanted:
                return end >= left_end
            if start != end:
                return False
        return start >= left_end

    @staticmethod
    def _same_data(left: Extent, right: Extent) -> bool:
        """Whether both have the same bytes of the same extent where they overlap."""
        start = max(left.start, right.start)
        return (
            left.disk_bytenr == right.disk_bytenr
            and left.generation == right.generation
            and (left.offset + start - left.start) & _MAX
            == (right.offset + start - right.start) & _MAX
        )

    # --------------------------------------------------------------------------- holes ------

    def need_send_hole(self) -> bool:
        """Whether the current inode is a file that the receiver has already."""
        sctx = self.sctx
        return (
            sctx.parent_root is not None
            and not (sctx.cur_inode_new or sctx.cur_inode_new_gen or sctx.cur_inode_deleted)
            and stat.S_ISREG(sctx.cur_inode.mode)
        )

    def maybe_send_hole(self, path: Path, extent: Extent | None = None) -> None:
        """Send the hole before a file extent item of the snapshot, if there is a new one."""
        sctx = self.sctx
        ino, _, start = key_at(path.leaf, path.slots[0])
        if ino != sctx.cur_ino or not self.need_send_hole():
            return
        known = sctx.cur_inode_last_extent
        # before the first item of a leaf, leaves may have been skipped as shared that hold only
        # extents of this file
        if known is None or (path.slots[0] == 0 and known < start):
            self.get_last_extent(start - 1)
        key = Key(*key_at(path.leaf, path.slots[0]))
        sctx.because("hole", item=Item(key, sctx.change))
        if self._last_extent < start and not self.range_is_hole_in_parent(self._last_extent, start):
            self.send_hole(start)
        if extent is None:
            extent = parse_file_extent(sctx, path, sctx.root)
        sctx.cur_inode_last_extent = extent.end

    @property
    def _last_extent(self) -> int:
        end = self.sctx.cur_inode_last_extent
        assert end is not None
        return end

    def get_last_extent(self, offset: int) -> None:
        """Set ``cur_inode_last_extent`` to the end of the last extent up to `offset`."""
        current().count("get_last_extent")
        sctx, path = self.sctx, self.sctx.search_path()
        sctx.cur_inode_last_extent = 0
        key = (sctx.cur_ino, _DATA, offset & _MAX)
        if (
            search_slot_for_read(sctx.root, key, path, find_higher=False)
            and key_at(path.leaf, path.slots[0])[:2] == key[:2]
        ):
            sctx.cur_inode_last_extent = parse_file_extent(sctx, path, sctx.root).end

    def range_is_hole_in_parent(self, start: int, end: int) -> bool:
        """Whether the parent snapshot has no data in a range of the current file."""
        current().count("range_is_hole_in_parent")
        sctx, tree, path = self.sctx, self.sctx.parent_tree, self.sctx.search_path()
        if not search_slot(tree, (sctx.cur_ino, _DATA, start), path) and path.slots[0] > 0:
            path.slots[0] -= 1
        reached = start
        while reached < end:
            if path.slots[0] >= nritems(path.leaf):
                if not next_leaf(tree, path):
                    break
                continue
            ino, kind, offset = key_at(path.leaf, path.slots[0])
            if ino >= sctx.cur_ino and kind >= _DATA:
                if ino > sctx.cur_ino or kind > _DATA or offset >= end:
                    break
                right = parse_file_extent(sctx, path, tree)
                if right.end > start:
                    if not self._is_hole(right, path):
                        return False
                    reached = right.end
            path.slots[0] += 1
        return True

    def _is_hole(self, right: Extent, path: Path) -> bool:
        if not right.is_inline:
            return not right.disk_bytenr
        # without it the data themselves are taken for the address of an extent
        if Patch.SEND_INLINE_NOT_HOLE in self.sctx:
            return False
        return not any(_bytes_at(path, _DISK_BYTENR, 8))

    def finish_holes(self) -> None:
        """Send the hole at the end of the current file, if there is a new one."""
        sctx, size = self.sctx, self.sctx.cur_inode.size
        if not self.need_send_hole():
            return
        if sctx.cur_inode_last_extent is None or sctx.cur_inode_last_extent < size:
            self.get_last_extent(_MAX)
        if self._last_extent >= size:
            return
        # not where it was a hole before
        if Patch.SEND_TRAILING_HOLE in sctx and self.range_is_hole_in_parent(
            self._last_extent, size
        ):
            return
        sctx.because("hole-at-end")
        self.send_hole(size)

    def send_hole(self, end: int) -> None:
        """Make a hole from ``cur_inode_last_extent`` on."""
        sctx, offset = self.sctx, self._last_extent
        if sctx.request.proto >= 2 and Patch.SEND_PUNCH_HOLE in sctx:
            path = self.names.get_cur_inode_path()
            sctx.send_cmd("fallocate", path=path, fallocate_mode=_PUNCH_HOLE, file_offset=offset,
                          size=end - offset)  # fmt: skip
            return
        if offset >= sctx.cur_inode.size:
            return
        # beyond the size there may be preallocated extents
        end = min(end, sctx.cur_inode.size)
        path = self.names.get_cur_inode_path()
        if sctx.request.no_file_data:
            sctx.send_cmd("update_extent", path=path, file_offset=offset, size=end - offset)
            return
        read_size = sctx.max_size - _NOT_DATA
        for start in range(offset, end, read_size):
            zeros = bytes(min(read_size, end - start))
            sctx.send_cmd("write", path=path, file_offset=start, data=zeros)
        sctx.cur_inode_next_write_offset = end


def _bytes_at(path: Path, offset: int, size: int) -> bytes:
    """Return bytes of a leaf from `offset` in an item on, even those behind the item."""
    *_, start, _ = ITEM.unpack_from(path.leaf, HEADER.size + path.slots[0] * ITEM.size)
    at = HEADER.size + start + offset
    return bytes(path.leaf[at : at + size])
