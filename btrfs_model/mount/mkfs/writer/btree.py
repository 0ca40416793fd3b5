# SPDX-License-Identifier: GPL-2.0-only
"""Trees: items are looked for, inserted, made longer, deleted (``ctree.c``)."""

from __future__ import annotations

from collections.abc import Iterator

from btrfs_model.mount.mkfs.writer.balance import Path, Root
from btrfs_model.mount.mkfs.writer.block import ITEM_SIZE, Block, Key
from btrfs_model.mount.mkfs.writer.split import Split


class Trees(Split):
    """Trees of items."""

    def search(
        self, root: Root, key: Key, room: int = 0, *, change: bool = False
    ) -> tuple[Path, bool]:
        """Look for a key (``btrfs_search_slot()``).

        Parameters
        ----------
        root : Root
            The tree.
        key : tuple of int
            The key.
        room : int
            Bytes that shall be free in the leaf; -1: nodes that are nearly empty are merged.
        change : bool
            Whether the blocks on the way are going to be changed.

        Returns
        -------
        path : Path
            To the item, or to where it would be inserted.
        found : bool
            Whether it is there.
        """
        while True:
            path, block = Path(), root.node
            while True:
                level = block.level
                if change:
                    above = path.slots[level + 1]
                    block = self.cow(root, block, path.nodes[level + 1], above)
                path.nodes[level] = block
                found, slot = block.find(key)
                if level == 0:
                    path.slots[0] = slot
                    if room > 0 and room > block.free():
                        self.split_leaf(root, key, path, room, extend=found)
                    return path, found
                path.slots[level] = slot - (not found and slot > 0)
                if room > 0 and block.nritems >= self.pointers - 3:
                    self.split_node(root, path, level)
                elif room < 0:
                    self.balance_level(root, path, level)
                node = path.nodes[level]
                if node is None:
                    break
                child = self.child(node, path.slots[level])
                assert child is not None
                block = child

    def before(self, root: Root, key: Key, room: int = 0, *, change: bool = False) -> Path:
        """Look for the last item before a key that is not there."""
        path, _ = self.search(root, key, room, change=change)
        path.slots[0] -= 1
        return path

    def next_leaf(self, path: Path) -> bool:
        """Go on to the next leaf; whether there is one."""
        level = 1
        while (node := path.nodes[level]) is not None and path.slots[level] + 1 >= node.nritems:
            level += 1
        if node is None:
            return False
        path.slots[level] += 1
        while level:
            child = self.child(path.at(level), path.slots[level])
            assert child is not None
            level -= 1
            path.nodes[level], path.slots[level] = child, 0
        return True

    def leaves(self, root: Root) -> Iterator[Block]:
        """Yield the leaves of a tree that is not changed meanwhile."""
        path, _ = self.search(root, (0, 0, 0))
        yield path.leaf
        while self.next_leaf(path):
            yield path.leaf

    def items_from(self, root: Root, key: Key) -> Iterator[tuple[Key, Block, int]]:
        """Yield key, leaf and slot of the items from a key on."""
        path, _ = self.search(root, key)
        while True:
            leaf = path.leaf
            for slot in range(path.slot, leaf.nritems):
                yield leaf.key(slot), leaf, slot
            if not self.next_leaf(path):
                return

    def insert(self, root: Root, key: Key, data: bytes) -> None:
        """Insert an item that is not there."""
        path, found = self.insert_empty(root, key, len(data))
        assert not found, key
        path.leaf.write(path.slot, data)

    def insert_empty(self, root: Root, key: Key, size: int) -> tuple[Path, bool]:
        """Insert an item whose data are what lies there (``btrfs_insert_empty_items()``).

        Returns the path to it, and whether it was there already, with room for more.
        """
        path, found = self.search(root, key, size + ITEM_SIZE, change=True)
        if found:
            return path, True
        leaf, slot = path.leaf, path.slot
        count, end = leaf.nritems, leaf.data_end()
        if slot < count:
            old = leaf.end(slot)
            leaf.shift(slot, count, -size)
            rest = (count - slot) * ITEM_SIZE
            leaf.move((slot + 1) * ITEM_SIZE, slot * ITEM_SIZE, rest)
            leaf.move(end - size, end, old - end)
            end = old
        leaf.set_key(slot, key)
        leaf.place(slot, end - size, size)
        leaf.nritems = count + 1
        self.mark_dirty(leaf)
        if slot == 0:
            self.fix_low_keys(path, key, 1)
        return path, False

    def extend(self, path: Path, size: int) -> None:
        """Make room behind the data of an item (``btrfs_extend_item()``)."""
        leaf, slot = path.leaf, path.slot
        end, old, before = leaf.data_end(), leaf.end(slot), leaf.size(slot)
        leaf.shift(slot, leaf.nritems, -size)
        leaf.move(end - size, end, old - end)
        leaf.place(slot, leaf.at(slot), before + size)
        self.mark_dirty(leaf)

    def delete(self, root: Root, path: Path, slot: int, count: int = 1) -> None:
        """Delete items of a leaf (``btrfs_del_items()``)."""
        leaf = path.leaf
        there = leaf.nritems
        last = leaf.at(slot + count - 1)
        size = sum(leaf.size(slot + one) for one in range(count))
        if slot + count != there:
            end = leaf.data_end()
            leaf.move(end + size, end, last - end)
            leaf.shift(slot + count, there, size)
            rest = (there - slot - count) * ITEM_SIZE
            leaf.move(slot * ITEM_SIZE, (slot + count) * ITEM_SIZE, rest)
        leaf.nritems = there - count
        if there == count:
            if leaf is root.node:
                leaf.level = 0
            else:
                self._delete_leaf(root, path, leaf)
            return
        if slot == 0:
            self.fix_low_keys(path, leaf.key(0), 1)
        if leaf.used(0, leaf.nritems) < self.capacity // 4:
            at = path.slots[1]
            self.push_leaf_left(root, path, 1, empty=True)
            if path.leaf is leaf and leaf.nritems:
                self.push_leaf_right(root, path, 1, empty=True)
            if leaf.nritems == 0:
                path.slots[1] = at
                self._delete_leaf(root, path, leaf)
                return
        self.mark_dirty(leaf)

    def _delete_leaf(self, root: Root, path: Path, leaf: Block) -> None:
        self.clean(leaf)
        self.delete_pointer(root, path, 1, path.slots[1])
        self.drop(root, leaf)
