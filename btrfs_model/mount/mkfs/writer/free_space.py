# SPDX-License-Identifier: GPL-2.0-only
"""The free space tree (``free-space-tree.c``)."""

from __future__ import annotations

import struct
from typing import Final

from btrfs_model.mount.mkfs.writer.balance import Path, Root
from btrfs_model.mount.mkfs.writer.block import ITEM_SIZE, Key
from btrfs_model.mount.mkfs.writer.space import Allocator, Group
from btrfs_model.ondisk.keys import U64_MAX, ItemType

_INFO: Final = struct.Struct("<II")
_BITMAPS: Final = 1
_SECTOR: Final = 4096
_BITMAP_BYTES: Final = 256
_BITMAP_RANGE: Final = _BITMAP_BYTES * 8 * _SECTOR
_BEHIND: Final = (255, U64_MAX)
_SLACK: Final = 100


class FreeSpace(Allocator):
    """Trees with a free space tree, where `free_space_root` is one."""

    free_space_root: Root | None

    def _free_root(self) -> Root:
        assert self.free_space_root is not None
        return self.free_space_root

    def space_taken(self, start: int, size: int) -> None:
        """Take a range out of the tree (``remove_from_free_space_tree()``)."""
        if self.free_space_root is None:
            return
        group = self.group_of(start)
        assert group is not None
        if self._uses_bitmaps(group):
            self._change_bitmaps(group, start, size, free=False)
        else:
            self._take_extent(group, start, start + size)

    def space_freed(self, start: int, size: int) -> None:
        """Put a range into the tree (``add_to_free_space_tree()``)."""
        if self.free_space_root is None:
            return
        group = self.group_of(start)
        assert group is not None
        if self._uses_bitmaps(group):
            self._change_bitmaps(group, start, size, free=True)
        else:
            self._free_extent(group, start, start + size)

    def add_group_space(self, group: Group) -> None:
        """Put a new group into the tree (``add_block_group_free_space()``)."""
        if self.free_space_root is not None:
            self.insert(self.free_space_root, self._info_key(group), _INFO.pack(0, 0))
            self.space_freed(group.start, group.length)

    def remove_group_space(self, group: Group) -> None:
        """Take a group out of the tree (``remove_block_group_free_space()``)."""
        if self.free_space_root is not None:
            self._delete_all(group, info=True)

    # ------------------------------------------------------------------------------ extents --

    def _take_extent(self, group: Group, start: int, end: int) -> None:
        root, kind = self._free_root(), int(ItemType.FREE_SPACE_EXTENT)
        path = self.before(root, (start, *_BEHIND), -1, change=True)
        begin, _, length = path.leaf.key(path.slot)
        self.delete(root, path, path.slot)
        count = -1
        for left, right in ((begin, start), (end, begin + length)):
            if left < right:
                self.insert(root, (left, kind, right - left), b"")
                count += 1
        self._count(group, count)

    def _free_extent(self, group: Group, start: int, end: int) -> None:
        root, kind, count = self._free_root(), int(ItemType.FREE_SPACE_EXTENT), 1
        begin, finish = start, end
        if start != group.start:
            path = self.before(root, (start - 1, *_BEHIND), -1, change=True)
            key = path.leaf.key(path.slot)
            if key[1] == kind and key[0] + key[2] == start:
                self.delete(root, path, path.slot)
                begin, count = key[0], count - 1
        if end != group.end:
            path = self.before(root, (end, *_BEHIND), -1, change=True)
            key = path.leaf.key(path.slot)
            if key[1] == kind and key[0] == end:
                self.delete(root, path, path.slot)
                finish, count = end + key[2], count - 1
        self.insert(root, (begin, kind, finish - begin), b"")
        self._count(group, count)

    # ------------------------------------------------------------------------- how it is kept --

    def _info_key(self, group: Group) -> Key:
        return group.start, int(ItemType.FREE_SPACE_INFO), group.length

    def _uses_bitmaps(self, group: Group) -> bool:
        path, _ = self.search(self._free_root(), self._info_key(group))
        _, flags = _INFO.unpack(path.leaf.read(path.slot))
        return bool(flags & _BITMAPS)

    def _count(self, group: Group, change: int) -> None:
        """Count extents; change how they are kept (``update_free_space_extent_count()``)."""
        if not change:
            return
        path, _ = self.search(self._free_root(), self._info_key(group), change=True)
        count, flags = _INFO.unpack(path.leaf.read(path.slot))
        path.leaf.write(path.slot, _INFO.pack(count + change, flags))
        self.mark_dirty(path.leaf)
        bitmaps = -(-group.start // _BITMAP_RANGE)
        high = bitmaps * (ITEM_SIZE + _BITMAP_BYTES) // ITEM_SIZE
        if not flags & _BITMAPS and count + change > high:
            self._convert(group, bitmaps=True)
        elif flags & _BITMAPS and count + change < max(high - _SLACK, 0):
            self._convert(group, bitmaps=False)

    def _convert(self, group: Group, *, bitmaps: bool) -> None:
        """Keep extents as bitmaps, or bitmaps as extents."""
        root, ranges = self._free_root(), self._ranges(group)
        self._delete_all(group, info=False)
        path, _ = self.search(root, self._info_key(group), change=True)
        count, flags = _INFO.unpack(path.leaf.read(path.slot))
        path.leaf.write(path.slot, _INFO.pack(count, flags ^ _BITMAPS))
        self.mark_dirty(path.leaf)
        if not bitmaps:
            for start, end in ranges:
                self.insert(root, (start, int(ItemType.FREE_SPACE_EXTENT), end - start), b"")
            return
        bits = 0
        for start, end in ranges:
            first, last = ((at - group.start) // _SECTOR for at in (start, end))
            bits |= (1 << last) - (1 << first)
        data = bits.to_bytes(-(-group.length // (_SECTOR * 8)), "little")
        for at in range(0, group.length, _BITMAP_RANGE):
            length = min(_BITMAP_RANGE, group.length - at)
            first, size = at // (_SECTOR * 8), -(-length // (_SECTOR * 8))
            key = (group.start + at, int(ItemType.FREE_SPACE_BITMAP), length)
            self.insert(root, key, data[first : first + size])

    def _ranges(self, group: Group) -> list[tuple[int, int]]:
        """Return what is free in a group."""
        found: list[tuple[int, int]] = []
        for key, leaf, slot in self.items_from(self._free_root(), (group.start, 0, 0)):
            if key[0] >= group.end:
                break
            if key[1] == ItemType.FREE_SPACE_EXTENT:
                found.append((key[0], key[0] + key[2]))
            elif key[1] == ItemType.FREE_SPACE_BITMAP:
                bits = int.from_bytes(leaf.read(slot), "little")
                for number in range(key[2] // _SECTOR):
                    if bits >> number & 1:
                        at = key[0] + number * _SECTOR
                        if found and found[-1][1] == at:
                            found[-1] = found[-1][0], at + _SECTOR
                        else:
                            found.append((at, at + _SECTOR))
        return found

    def _delete_all(self, group: Group, *, info: bool) -> None:
        """Delete the items of a group, leaf by leaf from the last one on."""
        root, done = self._free_root(), False
        while not done:
            path = self.before(root, (group.end - 1, *_BEHIND), -1, change=True)
            slot = path.slot + 1
            count = 0
            while slot and not done:
                done = path.leaf.key(slot - 1)[1] == ItemType.FREE_SPACE_INFO
                if info or not done:
                    slot -= 1
                    count += 1
            self.delete(root, path, slot, count)

    # ------------------------------------------------------------------------------ bitmaps --

    def _change_bitmaps(self, group: Group, start: int, size: int, *, free: bool) -> None:
        """Set or clear bits (``modify_free_space_bitmap()``)."""
        root, end = self._free_root(), start + size
        at = start - _SECTOR if start > group.start else start
        path = self.before(root, (at, *_BEHIND), change=True)
        before = start > group.start and self._bit(path, at)
        if start > group.start:
            path = self._bitmap_with(path, start)
        while start < end:
            path = self._bitmap_with(path, start)
            first, _, length = path.leaf.key(path.slot)
            last = min(end, first + length)
            bits = int.from_bytes(path.leaf.read(path.slot), "little")
            mask = (1 << (last - first) // _SECTOR) - (1 << (start - first) // _SECTOR)
            bits = bits | mask if free else bits & ~mask
            path.leaf.write(path.slot, bits.to_bytes(path.leaf.size(path.slot), "little"))
            self.mark_dirty(path.leaf)
            start = last
        after = False
        if end < group.end:
            path = self._bitmap_with(path, end)
            after = self._bit(path, end)
        self._count(group, (1 - before - after) * (1 if free else -1))

    def _bitmap_with(self, path: Path, at: int) -> Path:
        """Go on to the next bitmap where a byte is not in this one."""
        first, _, length = path.leaf.key(path.slot)
        if at < first + length:
            return path
        if path.slot + 1 < path.leaf.nritems:
            path.slots[0] += 1
            return path
        return self.before(self._free_root(), (first + length, *_BEHIND), change=True)

    @staticmethod
    def _bit(path: Path, at: int) -> bool:
        first = path.leaf.key(path.slot)[0]
        number = (at - first) // _SECTOR
        return bool(path.leaf.read(path.slot)[number // 8] >> number % 8 & 1)
