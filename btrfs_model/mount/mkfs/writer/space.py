# SPDX-License-Identifier: GPL-2.0-only
"""Where new extents lie: block groups and the first hole that fits (``extent-tree.c``)."""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from typing import Final

from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.block import Uuids
from btrfs_model.mount.mkfs.writer.btree import Trees
from btrfs_model.mount.mkfs.writer.ranges import Ranges
from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_METADATA,
    BTRFS_BLOCK_GROUP_SYSTEM,
    BTRFS_STRIPE_LEN,
)
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.superblock import SUPER_OFFSETS

KINDS: Final = BTRFS_BLOCK_GROUP_DATA | BTRFS_BLOCK_GROUP_SYSTEM | BTRFS_BLOCK_GROUP_METADATA
"""What a block group can hold."""
_AHEAD: Final = 2 << 20
_FIRST: Final = 64 << 10


class Space:
    """What all block groups of a kind have together (``struct btrfs_space_info``)."""

    def __init__(self, flags: int) -> None:
        self.flags = flags & KINDS
        self.total = self.used = self.pinned = self.reserved = 0
        self.full = False


class Group:
    """A block group (``struct btrfs_block_group``), whose chunk it is, too."""

    def __init__(self, chunk: Chunk, space: Space, used: int) -> None:
        self.chunk, self.space, self.used = chunk, space, used
        self.start, self.length, self.end = chunk.logical, chunk.length, chunk.end
        self.flags = chunk.type
        self.pinned = 0
        self.cached = False

    def copies(self, logical: int) -> list[int]:
        """Return where a byte lies on the device."""
        return [stripe + logical - self.start for stripe in self.chunk.stripes]


class Allocator(Trees):
    """Trees with block groups.

    `groups`: the block groups, by their addresses.
    `extent_root`, `chunk_root`: two of the trees.
    """

    extent_root: Root
    chunk_root: Root

    def __init__(self, nodesize: int, uuids: Uuids) -> None:
        super().__init__(nodesize, uuids)
        self.groups: dict[int, Group] = {}
        self._starts: list[int] = []
        self.spaces: list[Space] = []
        self.profiles = {BTRFS_BLOCK_GROUP_DATA: 0, BTRFS_BLOCK_GROUP_METADATA: 0,
                         BTRFS_BLOCK_GROUP_SYSTEM: 0}  # fmt: skip
        self.holes = Ranges()
        self.pinned = Ranges()
        self.new_in_extent_tree = Ranges()
        self.dirty_groups: list[Group] = []
        self.bytes_used = 0
        self.in_system = False
        self._last: Group | None = None

    @abstractmethod
    def more_space(self, size: int, flags: int) -> None:
        """Make a chunk where little space of a kind is left (``btrfs_try_chunk_alloc()``)."""

    # ---------------------------------------------------------------------------- groups --

    def space(self, flags: int) -> Space:
        """Return what there is of a kind; a new one stands before the others."""
        found = next((one for one in self.spaces if one.flags & flags & KINDS), None)
        if found is None:
            found = Space(flags)
            self.spaces.insert(0, found)
        return found

    def add_group(self, chunk: Chunk, used: int = 0) -> Group:
        """Add a block group (``btrfs_add_block_group()``)."""
        space = self.space(chunk.type)
        space.total += chunk.length
        space.used += used
        group = Group(chunk, space, used)
        self.groups[group.start] = group
        self._starts.insert(bisect_left(self._starts, group.start), group.start)
        for kind in self.profiles:
            if group.flags & kind:
                self.profiles[kind] |= group.flags & ~KINDS
        return group

    def remove_group(self, group: Group) -> None:
        """Forget a block group."""
        if group in self.dirty_groups:
            self.dirty_groups.remove(group)
        group.space.total -= group.length
        del self.groups[group.start]
        self._starts.remove(group.start)

    def group_of(self, bytenr: int) -> Group | None:
        """Return the block group that a byte is in."""
        at = bisect_right(self._starts, bytenr) - 1
        group = self.groups[self._starts[at]] if at >= 0 else None
        return group if group is not None and bytenr < group.end else None

    def _from(self, bytenr: int) -> Group | None:
        """Return the block group that a byte is in, or the next one."""
        found = self.group_of(bytenr)
        if found is None:
            at = bisect_left(self._starts, bytenr)
            found = self.groups[self._starts[at]] if at < len(self._starts) else None
        return found

    def account(self, bytenr: int, size: int, *, alloc: bool, reusable: bool = False) -> None:
        """Count an extent that comes or goes (``update_block_group()``)."""
        group = self.group_of(bytenr)
        assert group is not None
        if group not in self.dirty_groups:
            self.dirty_groups.append(group)
        change = size if alloc else -size
        self.bytes_used += change
        group.used += change
        group.space.used += change
        if reusable:
            self.holes.add(bytenr, bytenr + size)

    def pin(self, bytenr: int, size: int) -> None:
        """Let nobody have an extent before the commit."""
        self.pinned.add(bytenr, bytenr + size)
        self._count_pinned(bytenr, size)

    def _count_pinned(self, bytenr: int, size: int) -> None:
        end, sign = bytenr + abs(size), 1 if size > 0 else -1
        while (group := self._from(bytenr)) is not None and group.start < end:
            length = min(end, group.end) - max(bytenr, group.start)
            group.pinned += sign * length
            group.space.pinned += sign * length
            bytenr = group.end

    def unpin(self, bytenr: int, size: int) -> None:
        """Undo a pin."""
        self.pinned.remove(bytenr, bytenr + size)
        self._count_pinned(bytenr, -size)

    def finish_pinned(self) -> None:
        """Let what is free be found again, after a commit (``btrfs_finish_extent_commit()``)."""
        for start, end in self.pinned.take():
            self._count_pinned(start, start - end)
            self.holes.add(start, end)

    def begin_transaction(self) -> None:
        """Begin one: no group was used yet."""
        self.generation += 1
        self._last = None

    # ----------------------------------------------------------------------------- search --

    def reserve(self, root: Root, size: int, hint: int = 0, *, data: bool = False) -> int:
        """Return the address of a new extent (``btrfs_reserve_extent()``).

        Raises OSError: ENOSPC.
        """
        if data:
            kind = BTRFS_BLOCK_GROUP_DATA
        elif self.in_system or root is self.chunk_root:
            kind = BTRFS_BLOCK_GROUP_SYSTEM
        else:
            kind = BTRFS_BLOCK_GROUP_METADATA
        profile = kind | self.profiles[kind]
        if root.shareable or root.number == ObjectId.CSUM_TREE:
            if kind != BTRFS_BLOCK_GROUP_METADATA:
                self.more_space(size, BTRFS_BLOCK_GROUP_METADATA)
            self.more_space(size + _AHEAD, profile)
        found = self._hole(size, hint, profile)
        self.holes.remove(found, found + size)
        return found

    def _hole(self, size: int, hint: int, profile: int) -> int:
        """Return the first hole that fits (``find_free_extent()``)."""
        at, rounds = 0, 0
        if hint:
            group = self._choose(self._from(hint), hint, profile)
        else:
            group = self._choose(self._last, 0, profile)
        while True:
            group = group or self._from(at) or self._from(0)
            found, at = self._in_groups(group, at, size, profile)
            if found is not None and not self._blocked(at, size):
                if profile & BTRFS_BLOCK_GROUP_DATA:
                    return at
                if not self._crosses(found, at, size):
                    self._last = found
                    return at
                offset = at - found.start + size
                at = found.start + -(-offset // BTRFS_STRIPE_LEN) * BTRFS_STRIPE_LEN
            elif found is not None:
                at += size
            group = self._from(at)
            if group is None:
                at = 0
                rounds += 1
                if rounds > 2:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            group = self._choose(group, at, profile)

    def _blocked(self, start: int, size: int) -> bool:
        return (self.new_in_extent_tree.touches(start, start + size)
                or self.pinned.touches(start, start + size))  # fmt: skip

    @staticmethod
    def _crosses(group: Group, start: int, size: int) -> bool:
        """Whether a block would be in two stripes (``check_crossing_stripes()``)."""
        offset = start - group.start
        return offset // BTRFS_STRIPE_LEN != (offset + size - 1) // BTRFS_STRIPE_LEN

    def _in_groups(
        self, group: Group | None, start: int, size: int, profile: int
    ) -> tuple[Group | None, int]:
        """Return the first hole from a byte on, and its group (``find_search_start()``)."""
        at, wrapped = start, False
        while group is not None:
            self._cache(group)
            at = max(start, group.start)
            hole = self.holes.first(at) if group.flags & profile == profile else None
            while hole is not None:
                begin = max(at, hole[0])
                if hole[1] - begin >= size:
                    if begin + size > group.end:
                        break
                    return group, begin
                at = hole[1]
                hole = self.holes.first(at)
            at = group.end
            group = self._from(at)
            if group is None and not wrapped:
                wrapped, at = True, start
                group = self._from(at)
        return None, at

    def _choose(self, hint: Group | None, start: int, profile: int) -> Group | None:
        """Return a group that is not full (``btrfs_find_block_group()``)."""
        for group in (self.group_of(start) if start else None, hint):
            if group is not None and self._has_room(group, profile):
                return group
        at = start
        if hint is not None:
            fits = hint.flags & profile == profile
            at = hint.end if fits else max(hint.start, start)
        for begin in (at, start):
            group = self._from(begin)
            while group is not None:
                if self._has_room(group, profile):
                    return group
                group = self._from(group.end)
        return None

    @staticmethod
    def _has_room(group: Group, profile: int) -> bool:
        fits = group.flags & profile == profile
        return fits and group.used + group.pinned < group.length

    def _cache(self, group: Group) -> None:
        """Find the holes of a group in the extent tree (``cache_block_group()``)."""
        if group.cached:
            return
        group.cached = True
        last = max(group.start, _FIRST)
        for key, _, _ in self.items_from(self.extent_root, (last, 0, 0)):
            if key[0] >= group.end:
                break
            if key[1] in (ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM):
                if key[0] > last:
                    self.holes.add(last, key[0])
                skinny = key[1] == ItemType.METADATA_ITEM
                last = key[0] + (self.nodesize if skinny else key[2])
        if last < group.end:
            self.holes.add(last, group.end)
        for offset in SUPER_OFFSETS:
            for stripe in group.chunk.stripes:
                if stripe <= offset < stripe + group.length:
                    at = (offset - stripe) // BTRFS_STRIPE_LEN * BTRFS_STRIPE_LEN + group.start
                    self.holes.remove(at, at + BTRFS_STRIPE_LEN)
