# SPDX-License-Identifier: GPL-2.0-only
"""Blocks that are full: items move to the side, or the block is split (``ctree.c``)."""

from __future__ import annotations

from typing import Final

from btrfs_model.mount.mkfs.writer.balance import Balance, Path, Root
from btrfs_model.mount.mkfs.writer.block import ITEM_SIZE, POINTER_SIZE, Block, Key
from btrfs_model.ondisk.keys import ItemType

_SPARE: Final = 3
"""Pointers that a node has room for while one walks down."""


class Split(Balance):
    """Nodes and leaves that make room."""

    def _new_root(self, root: Root, path: Path, level: int) -> None:
        """Put a node above the root (``insert_new_root()``)."""
        lower = path.at(level - 1)
        node = self.new_block(root, lower.key(0), level, root.node.start)
        node.nritems = 1
        self.count_blocks(root, 1)
        node.set_key(0, lower.key(0))
        node.set_pointer(0, lower.start, lower.generation)
        self.mark_dirty(node)
        root.node = node
        self.follow(root)
        path.nodes[level], path.slots[level] = node, 0

    def _insert_pointer(self, path: Path, key: Key, block: Block, slot: int, level: int) -> None:
        """Insert a pointer into a node that has room (``insert_ptr()``)."""
        node = path.at(level)
        count = node.nritems
        if slot < count:
            rest = (count - slot) * POINTER_SIZE
            node.move((slot + 1) * POINTER_SIZE, slot * POINTER_SIZE, rest)
        node.set_key(slot, key)
        node.set_pointer(slot, block.start, self.generation)
        node.nritems = count + 1
        self.mark_dirty(node)

    def split_node(self, root: Root, path: Path, level: int) -> None:
        """Make room in a node, by a new one where it has to be (``split_node()``)."""
        node = path.at(level)
        if node is root.node:
            self._new_root(root, path, level + 1)
        else:
            pushed = self.make_room(root, path, level)
            node = path.at(level)
            if pushed and node.nritems < self.pointers - _SPARE:
                return
        count = node.nritems
        middle = (count + 1) // 2
        key = node.key(middle)
        split = self.new_block(root, key, level, node.start)
        self.count_blocks(root, 1)
        split.copy(node, 0, middle * POINTER_SIZE, (count - middle) * POINTER_SIZE)
        split.nritems, node.nritems = count - middle, middle
        self.mark_dirty(node, split)
        self._insert_pointer(path, key, split, path.slots[level + 1] + 1, level + 1)
        if path.slots[level] >= middle:
            path.slots[level] -= middle
            path.nodes[level] = split
            path.slots[level + 1] += 1

    # ------------------------------------------------------------------------- leaf to leaf --

    def push_leaf_right(self, root: Root, path: Path, size: int, *, empty: bool) -> bool:
        """Push items into the leaf on the right (``push_leaf_right()``); whether some went."""
        left, upper, slot = path.leaf, path.nodes[1], path.slots[1]
        if upper is None or slot >= upper.nritems - 1:
            return False
        right = self.child(upper, slot + 1)
        assert right is not None
        if right.free() < size:
            return False
        right = self.cow(root, right, upper, slot + 1)
        free, count = right.free(), left.nritems
        push = taken = 0
        for item in range(count - 1, -1 if empty else 0, -1):
            if path.slot == item:
                taken += size + ITEM_SIZE
            if left.size(item) + ITEM_SIZE + taken > free:
                break
            push += 1
            taken += left.size(item) + ITEM_SIZE
        if not push:
            return False
        there = right.nritems
        bytes_ = left.end(count - push) - left.data_end()
        end = right.data_end()
        right.move(end - bytes_, end, self.capacity - end)
        right.copy(left, self.capacity - bytes_, left.data_end(), bytes_)
        right.move(push * ITEM_SIZE, 0, there * ITEM_SIZE)
        right.copy(left, 0, (count - push) * ITEM_SIZE, push * ITEM_SIZE)
        right.nritems = there + push
        right.arrange()
        left.nritems = count = count - push
        if count:
            self.mark_dirty(left)
        self.mark_dirty(right, upper)
        upper.set_key(slot + 1, right.key(0))
        if path.slots[0] >= count:
            path.slots[0] -= count
            path.nodes[0] = right
            path.slots[1] += 1
        return True

    def push_leaf_left(self, root: Root, path: Path, size: int, *, empty: bool) -> bool:
        """Push items into the leaf on the left (``push_leaf_left()``); whether some went."""
        right, upper, slot = path.leaf, path.nodes[1], path.slots[1]
        count = right.nritems
        if slot == 0 or upper is None or count == 0:
            return False
        left = self.child(upper, slot - 1)
        assert left is not None
        if left.free() < size:
            return False
        left = self.cow(root, left, upper, slot - 1)
        free = left.free()
        push = taken = 0
        for item in range(count if empty else count - 1):
            if path.slot == item:
                taken += size + ITEM_SIZE
            if right.size(item) + ITEM_SIZE + taken > free:
                break
            push += 1
            taken += right.size(item) + ITEM_SIZE
        if not push:
            return False
        there, at = left.nritems, right.at(push - 1)
        left.copy(right, there * ITEM_SIZE, 0, push * ITEM_SIZE)
        bytes_ = self.capacity - at
        left.copy(right, left.data_end() - bytes_, at, bytes_)
        left.shift(there, there + push, left.at(there - 1) - self.capacity)
        left.nritems = there + push
        if push < count:
            bytes_ = at - right.data_end()
            right.move(self.capacity - bytes_, right.data_end(), bytes_)
            right.move(0, push * ITEM_SIZE, (count - push) * ITEM_SIZE)
        right.nritems = count - push
        right.arrange()
        self.mark_dirty(left)
        if count - push:
            self.mark_dirty(right)
        self.fix_low_keys(path, right.key(0), 1)
        if path.slots[0] < push:
            path.slots[0] += there
            path.nodes[0] = left
            path.slots[1] -= 1
        else:
            path.slots[0] -= push
        return True

    # ------------------------------------------------------------------------- two leaves --

    def split_leaf(self, root: Root, key: Key, path: Path, size: int, *, extend: bool) -> None:
        """Make room in a leaf, by a new one where it has to be (``split_leaf()``).

        Raises OverflowError: for an item that becomes larger than a leaf.
        """
        if extend and size + path.leaf.size(path.slot) + ITEM_SIZE > self.capacity:
            raise OverflowError
        if key[1] != ItemType.DIR_ITEM:
            if not self.push_leaf_right(root, path, size, empty=False):
                self.push_leaf_left(root, path, size, empty=False)
            if path.leaf.free() >= size:
                return
        if path.nodes[1] is None:
            self._new_root(root, path, 1)
        while True:
            leaf, slot = path.leaf, path.slot
            middle, split = self._where(leaf, slot, size, extend=extend)
            first = key if split == 0 else leaf.key(middle)
            right = self.new_block(root, first, 0, leaf.start)
            self.count_blocks(root, 1)
            if split == 0:
                self._beside(path, first, right, after=middle <= slot)
                return
            self._copy_half(path, leaf, right, middle)
            if split == 1:
                return

    def _where(self, leaf: Block, slot: int, size: int, *, extend: bool) -> tuple[int, int]:
        """Return where to split a leaf, and into how many more: 0 where the new one is empty."""
        count = leaf.nritems
        middle = (count + 1) // 2
        if middle <= slot:
            if count > 1 and leaf.used(middle, count - middle) + size <= self.capacity:
                return middle, 1
            if slot >= count:
                return middle, 0
        else:
            if leaf.used(0, middle) + size <= self.capacity:
                return middle, 1
            if slot == 0:
                return (1, 1) if extend else (middle, 0)
        full = slot != count and leaf.used(slot, count - slot) + size > self.capacity
        return slot, 2 if full else 1

    def _beside(self, path: Path, key: Key, right: Block, *, after: bool) -> None:
        """Let an empty leaf follow that of a path, or come before it."""
        self._insert_pointer(path, key, right, path.slots[1] + after, 1)
        path.nodes[0], path.slots[0] = right, 0
        if after:
            path.slots[1] += 1
        elif path.slots[1] == 0:
            self.fix_low_keys(path, key, 1)
        self.mark_dirty(right)

    def _copy_half(self, path: Path, leaf: Block, right: Block, middle: int) -> None:
        """Move items from a slot on into a new leaf (``copy_for_split()``)."""
        count = leaf.nritems - middle
        right.nritems = count
        end, bytes_ = leaf.data_end(), leaf.end(middle) - leaf.data_end()
        right.copy(leaf, 0, middle * ITEM_SIZE, count * ITEM_SIZE)
        right.copy(leaf, self.capacity - bytes_, end, bytes_)
        right.shift(0, count, self.capacity - leaf.end(middle))
        leaf.nritems = middle
        self._insert_pointer(path, right.key(0), right, path.slots[1] + 1, 1)
        self.mark_dirty(right, leaf)
        if middle <= path.slots[0]:
            path.nodes[0] = right
            path.slots[0] -= middle
            path.slots[1] += 1
