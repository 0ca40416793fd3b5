# SPDX-License-Identifier: GPL-2.0-only
"""Extent items, and references to tree blocks that wait (``extent-tree.c``, ``delayed-ref.c``)."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.block import Block, Key, Uuids
from btrfs_model.mount.mkfs.writer.free_space import FreeSpace
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_METADATA, ExtentFlag
from btrfs_model.ondisk.keys import ItemType, ObjectId

_NO_KEY: Final = (0, 0, 0)
_REFS: Final = structs.EXTENT_ITEM.size


class Head:
    """What waits for one block (``struct btrfs_delayed_ref_head``).

    `references`: by the tree, whether one comes, and the level.
    `reserved`: the block is new.
    """

    __slots__ = ("key", "references", "reserved")

    def __init__(self) -> None:
        self.references: dict[int, tuple[bool, int]] = {}
        self.reserved = False
        self.key: Key = _NO_KEY


class Extents(FreeSpace):
    """Trees with an extent tree.

    Parameters
    ----------
    nodesize : int
        Bytes of a block.
    uuids : Uuids
        Those in all headers.
    skinny : bool
        Whether items of tree blocks have no first key.
    """

    def __init__(self, nodesize: int, uuids: Uuids, *, skinny: bool) -> None:
        super().__init__(nodesize, uuids)
        self.skinny = skinny
        self._heads: dict[int, Head] = {}
        self._order: list[int] = []
        self._next = 0

    # ----------------------------------------------------------------- what has to be done --

    def begin_transaction(self) -> None:
        """Begin one: references run from the first block on."""
        super().begin_transaction()
        self._next = 0

    def reserve_block(self, root: Root, key: Key | None, level: int, hint: int) -> int:
        """Reserve the place of a new block (``alloc_tree_block()``)."""
        start = self.reserve(root, self.nodesize, hint)
        if root is self.extent_root:
            self.new_in_extent_tree.add(start, start + self.nodesize)
        self.space(BTRFS_BLOCK_GROUP_METADATA).reserved += self.nodesize
        head = self._head(start)
        head.reserved, head.key = True, key or _NO_KEY
        self._wait(head, root.number, level, comes=True)
        return start

    def free_block(self, root: Root, block: Block) -> None:
        """Give up a reference to a block (``btrfs_free_extent()``)."""
        self._wait(self._head(block.start), root.number, block.level, comes=False)

    def _head(self, start: int) -> Head:
        if start not in self._heads:
            self._heads[start] = Head()
            insort(self._order, start)
        return self._heads[start]

    @staticmethod
    def _wait(head: Head, owner: int, level: int, *, comes: bool) -> None:
        """Note a reference that comes or goes; both together are none."""
        there = head.references.get(owner)
        if there is None:
            head.references[owner] = comes, level
        elif there[0] != comes:
            del head.references[owner]

    @property
    def waiting(self) -> bool:
        """Whether references wait."""
        return bool(self._order)

    def run_references(self) -> None:
        """Bring what waits into the extent tree (``btrfs_run_delayed_refs()``)."""
        while self._order:
            at = bisect_left(self._order, self._next)
            start = self._order[at if at < len(self._order) else 0]
            self._next = start + self.nodesize
            head = self._heads[start]
            while head.references:
                owner = next((one for one, (comes, _) in head.references.items() if comes),
                             min(head.references))  # fmt: skip
                comes, level = head.references.pop(owner)
                reserved, head.reserved = head.reserved, False
                if comes:
                    assert reserved
                    self._add_block(start, owner, level, head.key)
                else:
                    self._remove_block(start, level)
            del self._heads[start]
            self._order.remove(start)
            if head.reserved:
                self.pin(start, self.nodesize)
                self.space(BTRFS_BLOCK_GROUP_METADATA).reserved -= self.nodesize
        self._next = 0

    # -------------------------------------------------------------------------- tree blocks --

    def _block_key(self, start: int, level: int) -> Key:
        if self.skinny:
            return start, int(ItemType.METADATA_ITEM), level
        return start, int(ItemType.EXTENT_ITEM), self.nodesize

    def _add_block(self, start: int, owner: int, level: int, first: Key) -> None:
        """Insert the item of a new block (``alloc_reserved_tree_block()``)."""
        item = structs.RawExtentItem(1, self.generation, ExtentFlag.TREE_BLOCK)
        data = structs.EXTENT_ITEM.pack(item)
        if not self.skinny:
            info = structs.TreeBlockInfo(structs.DiskKey(*first), level)
            data += structs.TREE_BLOCK_INFO.pack(info)
        reference = structs.RawInlineRef(ItemType.TREE_BLOCK_REF, owner)
        data += structs.EXTENT_INLINE_REF.pack(reference)
        self.insert(self.extent_root, self._block_key(start, level), data)
        self.space_taken(start, self.nodesize)
        self.account(start, self.nodesize, alloc=True)
        self.space(BTRFS_BLOCK_GROUP_METADATA).reserved -= self.nodesize
        if owner == ObjectId.EXTENT_TREE:
            self.new_in_extent_tree.remove(start, start + self.nodesize)

    def _remove_block(self, start: int, level: int) -> None:
        """Delete the item of a block that nobody needs (``__free_extent()``)."""
        root = self.extent_root
        path, found = self.search(root, self._block_key(start, level), -1, change=True)
        assert found, (start, level)
        count = 1
        following = path.slot + 1
        if following < path.leaf.nritems:
            key = path.leaf.key(following)
            count += key[0] == start and key[1] == ItemType.TREE_BLOCK_REF
        block = self.blocks[start]
        reusable = block.generation == self.generation and not block.written
        if reusable:
            self.clean(block)
        else:
            self.pin(start, self.nodesize)
        self.delete(root, path, path.slot, count)
        self.space_freed(start, self.nodesize)
        self.account(start, self.nodesize, alloc=False, reusable=reusable)

    # --------------------------------------------------------------------------------- data --

    def add_data(self, start: int, size: int) -> None:
        """Insert the item of an extent of data, which nobody refers to yet."""
        item = structs.RawExtentItem(0, self.generation, ExtentFlag.DATA)
        key = (start, int(ItemType.EXTENT_ITEM), size)
        self.insert(self.extent_root, key, structs.EXTENT_ITEM.pack(item))
        self.account(start, size, alloc=True)
        self.space_taken(start, size)
        self.run_references()

    def refer(self, start: int, size: int, reference: structs.ExtentDataRef) -> None:
        """Add the first reference to an extent of data (``btrfs_inc_extent_ref()``)."""
        kind = int(ItemType.EXTENT_DATA_REF)
        data = bytes((kind,)) + structs.EXTENT_DATA_REF.pack(reference)
        key = (start, int(ItemType.EXTENT_ITEM), size)
        path, _ = self.search(self.extent_root, key, len(data), change=True)
        self.extend(path, len(data))
        path.leaf.write(path.slot, (1).to_bytes(8, "little"))
        path.leaf.write(path.slot, data, _REFS)
        self.mark_dirty(path.leaf)
