# SPDX-License-Identifier: GPL-2.0-only
"""Blocks of trees: copies of them, and nodes whose pointers move to the side (``ctree.c``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from btrfs_model.mount.mkfs.writer.block import POINTER_SIZE, START, Block, Key, Uuids

_LEVELS: Final = 8
_LEAST: Final = 8
_GIB: Final = 1 << 30
_NO_KEY: Final = (0, 0, 0)


class Root:
    """A tree: what is in memory of it.

    `item`: its root item, as bytes.
    `tracked`: whether a commit looks after its root item.
    `shareable`: whether files are in it.
    """

    def __init__(self, number: int, node: Block, item: bytes, *, tracked: bool = True) -> None:
        self.number, self.node, self.tracked = number, node, tracked
        self.item = bytearray(item)
        self.shareable = number == 5 or 256 <= number < 1 << 63
        self.committed: Block | None = None
        self.last_inode = 0
        self.key: Key = (number, 132, 0)


class Path:
    """The way to an item: a block and a slot of each level."""

    __slots__ = ("nodes", "slots")

    def __init__(self) -> None:
        self.nodes: list[Block | None] = [None] * (_LEVELS + 1)
        self.slots = [0] * (_LEVELS + 1)

    def at(self, level: int) -> Block:
        """Return the block of a level, which has one."""
        block = self.nodes[level]
        assert block is not None
        return block

    @property
    def leaf(self) -> Block:
        """The leaf."""
        return self.at(0)

    @property
    def slot(self) -> int:
        """The slot in the leaf."""
        return self.slots[0]


class Balance(ABC):
    """Blocks and nodes.

    Parameters
    ----------
    nodesize : int
        Bytes of a block.
    uuids : Uuids
        Those in all headers.
    """

    def __init__(self, nodesize: int, uuids: Uuids) -> None:
        self.nodesize, self.uuids = nodesize, uuids
        self.capacity = nodesize - START
        self.pointers = self.capacity // POINTER_SIZE
        self.blocks: dict[int, Block] = {}
        self.dirty: dict[int, Block] = {}
        self.generation = 1
        self.changed: list[Root] = []

    @abstractmethod
    def reserve_block(self, root: Root, key: Key | None, level: int, hint: int) -> int:
        """Reserve the place of a new block."""

    @abstractmethod
    def free_block(self, root: Root, block: Block) -> None:
        """Give up a reference to a block."""

    def block(self, start: int) -> Block:
        """Return a block in memory, one that begins with zeros where there was none."""
        if start not in self.blocks:
            self.blocks[start] = Block(start, self.nodesize)
        return self.blocks[start]

    def mark_dirty(self, *blocks: Block) -> None:
        """Let the next commit write blocks."""
        for block in blocks:
            self.dirty[block.start] = block

    def clean(self, block: Block) -> None:
        """Let no commit write a block."""
        self.dirty.pop(block.start, None)

    def follow(self, root: Root) -> None:
        """Let the next commit look after a root item (``add_root_to_dirty_list()``)."""
        if root.tracked and root not in self.changed:
            self.changed.insert(0, root)

    def new_block(self, root: Root, key: Key | None, level: int, hint: int = 0) -> Block:
        """Make a block of a tree (``btrfs_alloc_tree_block()``)."""
        block = self.block(self.reserve_block(root, key, level, hint))
        block.begin(self.uuids, self.generation, root.number, level)
        return block

    def cow(self, root: Root, block: Block, parent: Block | None, slot: int) -> Block:
        """Copy a block that is on the device (``btrfs_cow_block()``); return what to change."""
        if block.generation == self.generation and not block.written:
            return block
        copy = self.new_block(root, block.key(0), block.level, block.start // _GIB * _GIB)
        copy.data[:] = block.data
        copy.own(self.uuids, self.generation, root.number)
        self.clean(block)
        if block is root.node:
            root.node = copy
            self.free_block(root, block)
            self.follow(root)
        else:
            assert parent is not None
            parent.set_pointer(slot, copy.start, self.generation)
            self.mark_dirty(parent)
            self.free_block(root, block)
        self.mark_dirty(copy)
        return copy

    def child(self, node: Block, slot: int) -> Block | None:
        """Return the block that a pointer leads to."""
        if not 0 <= slot < node.nritems:
            return None
        return self.blocks[node.pointer(slot)]

    def fix_low_keys(self, path: Path, key: Key, level: int) -> None:
        """Say the first key of a block to those above it (``fixup_low_keys()``)."""
        while (node := path.nodes[level]) is not None:
            node.set_key(path.slots[level], key)
            self.mark_dirty(node)
            if path.slots[level]:
                break
            level += 1

    def push_node_left(self, left: Block, node: Block, *, empty: bool) -> bool:
        """Push pointers of a node into that on its left; whether some went."""
        count, there = node.nritems, left.nritems
        push = self.pointers - there
        if (not empty and count <= _LEAST) or push <= 0:
            return False
        if empty:
            push = min(count, push)
            if push < count and count - push < _LEAST:
                if push <= _LEAST:
                    return False
                push -= _LEAST
        else:
            push = min(count - _LEAST, push)
        left.copy(node, there * POINTER_SIZE, 0, push * POINTER_SIZE)
        if push < count:
            node.move(0, push * POINTER_SIZE, (count - push) * POINTER_SIZE)
        node.nritems, left.nritems = count - push, there + push
        self.mark_dirty(node, left)
        return True

    def push_node_right(self, right: Block, node: Block) -> bool:
        """Push half of a node into that on its right (``balance_node_right()``)."""
        count, there = node.nritems, right.nritems
        push, most = self.pointers - there, count // 2 + 1
        if push <= 0 or count < 4 or most >= count:
            return False
        push = min(push, most)
        right.move(push * POINTER_SIZE, 0, there * POINTER_SIZE)
        right.copy(node, 0, (count - push) * POINTER_SIZE, push * POINTER_SIZE)
        node.nritems, right.nritems = count - push, there + push
        self.mark_dirty(node, right)
        return True

    def delete_pointer(self, root: Root, path: Path, level: int, slot: int) -> None:
        """Delete a pointer of a node (``btrfs_del_ptr()``)."""
        node = path.at(level)
        count = node.nritems
        if slot < count - 1:
            rest = (count - slot - 1) * POINTER_SIZE
            node.move(slot * POINTER_SIZE, (slot + 1) * POINTER_SIZE, rest)
        node.nritems = count - 1
        if count == 1 and node is root.node:
            node.level = 0
        elif slot == 0:
            self.fix_low_keys(path, node.key(0), level + 1)
        self.mark_dirty(node)

    def drop(self, root: Root, block: Block) -> None:
        """Take an empty block out of the count of a tree, and give it up."""
        self.count_blocks(root, -1)
        self.free_block(root, block)

    def count_blocks(self, root: Root, number: int) -> None:
        """Count blocks of a tree in its root item."""
        used = int.from_bytes(root.item[192:200], "little") + number * self.nodesize
        root.item[192:200] = used.to_bytes(8, "little")

    # -------------------------------------------------------------------- nodes on the way --

    def balance_level(self, root: Root, path: Path, level: int) -> None:
        """Merge a node with those beside it where it is nearly empty (``balance_level()``)."""
        middle = path.at(level)
        parent = path.nodes[level + 1]
        if parent is None:
            self._lower_root(root, path, level)
            return
        if middle.nritems > self.pointers // 4:
            return
        slot, at = path.slots[level], path.slots[level + 1]
        left = self.child(parent, at - 1)
        if left is not None:
            left = self.cow(root, left, parent, at - 1)
        right = self.child(parent, at + 1)
        if right is not None:
            right = self.cow(root, right, parent, at + 1)
        if left is not None:
            slot += left.nritems
            self.push_node_left(left, middle, empty=True)
        if right is not None:
            self.push_node_left(middle, right, empty=True)
            self._settle(root, path, right, level, at + 1)
        if middle.nritems == 1:
            assert left is not None
            if not self.push_node_right(middle, left):
                self.push_node_left(left, middle, empty=True)
        self._settle(root, path, middle, level, at)
        if left is not None:
            if left.nritems > slot:
                path.nodes[level] = left
                path.slots[level + 1] -= 1
            else:
                slot -= left.nritems
            path.slots[level] = slot

    def _lower_root(self, root: Root, path: Path, level: int) -> None:
        """Make the only child of a root the root."""
        middle = path.at(level)
        if middle.nritems != 1:
            return
        child = self.child(middle, 0)
        assert child is not None
        root.node = self.cow(root, child, middle, 0)
        self.follow(root)
        path.nodes[level] = None
        self.clean(middle)
        self.drop(root, middle)

    def _settle(self, root: Root, path: Path, node: Block, level: int, slot: int) -> None:
        """Take a node that is empty out of its parent, else say its first key there."""
        if node.nritems == 0:
            self.clean(node)
            self.delete_pointer(root, path, level + 1, slot)
            self.drop(root, node)
        else:
            parent = path.at(level + 1)
            parent.set_key(slot, node.key(0))
            self.mark_dirty(parent)

    def make_room(self, root: Root, path: Path, level: int) -> bool:
        """Push pointers of a full node to the side (``push_nodes_for_insert()``)."""
        middle, parent = path.at(level), path.nodes[level + 1]
        if parent is None:
            return False
        slot, at = path.slots[level], path.slots[level + 1]
        left = self.child(parent, at - 1)
        if left is not None and left.nritems < self.pointers - 1:
            before = left.nritems
            left = self.cow(root, left, parent, at - 1)
            if self.push_node_left(left, middle, empty=False):
                slot += before
                parent.set_key(at, middle.key(0))
                self.mark_dirty(parent)
                if left.nritems > slot:
                    path.nodes[level] = left
                    path.slots[level + 1] -= 1
                else:
                    slot -= left.nritems
                path.slots[level] = slot
                return True
        right = self.child(parent, at + 1)
        if right is not None and right.nritems < self.pointers - 1:
            right = self.cow(root, right, parent, at + 1)
            if self.push_node_right(right, middle):
                parent.set_key(at + 1, right.key(0))
                self.mark_dirty(parent)
                if middle.nritems <= slot:
                    path.nodes[level] = right
                    path.slots[level + 1] += 1
                    path.slots[level] = slot - middle.nritems
                return True
        return False
