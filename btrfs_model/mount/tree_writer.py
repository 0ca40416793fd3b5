# SPDX-License-Identifier: GPL-2.0-only
"""The trees of an image while they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from btrfs_model.native.writer import Feature, Writer
from btrfs_model.ondisk.structs import HEADER, ITEM
from btrfs_model.patches import Patch
from btrfs_model.volume.ctree import nritems
from btrfs_model.volume.tree import Tree

if TYPE_CHECKING:
    from btrfs_model.behaviour import Behaviour
    from btrfs_model.native.tree import RawKey
    from btrfs_model.volume.image import Image


class TreeWriter(Writer):
    """Trees of an image that are being changed, which can be read meanwhile.

    `image`: whose buffer must be writable memory.
    `base`, `transid`, `features`, `ssd`: see :class:`~btrfs_model.native.writer.Writer`.
    `log_leaf` (int): address of the leaf of a log that the last insertion went to, where Python
    inserts; `log_cache` (dict): of those that a cache has, by its counter and their place in it.
    """

    def __init__(
        self, image: Image, base: Any, *, transid: int, features: Feature, ssd: bool = False
    ) -> None:
        superblock = image.superblock
        root = image.block(superblock.chunk_root, level=superblock.chunk_root_level)
        super().__init__(
            image.store,
            base,
            transid=transid,
            features=features,
            ssd=ssd,
            fsid=superblock.tree_fsid,
            chunk_tree_uuid=bytes(root[64:80]),
            csum_size=superblock.csum_size,
        )
        self.image = image
        self.balances_lazily = True
        self.log_leaf = 0
        self.log_cache: dict[tuple[str, int], int] = {}
        image.is_unwritten = self.unwritten()

    def close(self) -> None:
        """Give the memory of the writer back; the image stays."""
        self.image.is_unwritten = lambda physical: False
        super().close()

    def set_behaviour(self, behaviour: Behaviour) -> None:
        """Change trees as a kernel does, where kernels differ."""
        self.set_toggles(behaviour.bits)
        self.balances_lazily = Patch.LEAF_BALANCE_LAZY in behaviour

    def tree(self, tree_id: int) -> Tree:
        """Return a tree for reading as it is now; valid until its next change."""
        return Tree.of(self.image, self.root(tree_id))

    def leaf_free(self, tree_id: int, key: RawKey) -> int:
        """Return the free bytes of the leaf that holds an item (``btrfs_leaf_free_space()``)."""
        item = self.tree(tree_id).get(key)
        assert item is not None
        leaf = self.image.block(item.block, level=0)
        count = nritems(leaf)
        *_, lowest, _ = ITEM.flat(leaf, HEADER.size + (count - 1) * ITEM.size)
        return int(lowest) - count * ITEM.size

    def replace(self, tree_id: int, key: RawKey, data: bytes) -> None:
        """Give an item a new payload of any size: it grows or shrinks and is overwritten."""
        item = self.tree(tree_id).get(key)
        size = len(data) if item is None else len(item.data)
        if len(data) > size:
            self.extend(tree_id, key, bytes(len(data) - size))
        elif len(data) < size:
            self.truncate(tree_id, key, len(data))
        self.update(tree_id, key, 0, data)

    def write_blocks(self) -> int:
        """Checksum and write all changed blocks to all their copies; returns how many."""
        self.image.verified_by_twin.clear()
        return super().write_blocks()
