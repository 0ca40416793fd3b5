# SPDX-License-Identifier: GPL-2.0-only
"""All file extents of a filesystem, the data extents that they refer to, and who has them."""

from __future__ import annotations

import numpy as np

from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.questions.usage.forest import FileForest, Words, any_bit, one_bit
from btrfs_model.questions.usage.items import DataExtents, read_items
from btrfs_model.volume.filesystem import Filesystem


class References:
    """What refers to data extents, each leaf read once.

    `forest` (FileForest): who has which leaf.
    `rows` (numpy.ndarray): all file extents, of
    :data:`~btrfs_model.questions.usage.items.FILE_EXTENT`.
    `leaf` (numpy.ndarray): the leaf of each, as a row of the forest's.
    `extents` (DataExtents): what they refer to.
    `inode`, `inode_leaf` (numpy.ndarray): regular files with a name, and the leaf of each.
    Raises CorruptImageError: when a block cannot be read, or a file extent is impossible or refers
    to no extent.
    """

    def __init__(self, fs: Filesystem) -> None:
        self.forest = FileForest(fs)
        items = read_items(fs.image, self.forest.leaves)
        self.rows = items.extents
        self.leaf = np.searchsorted(self.forest.leaves, self.rows["leaf"])
        self.inode = items.inode
        self.inode_leaf = np.searchsorted(self.forest.leaves, items.inode_leaf)
        self.extents = DataExtents(fs.image, fs.tree(int(ObjectId.EXTENT_TREE)), self.rows)


class Keepers:
    """Which subvolumes keep each block and each data extent, as a bit of each.

    Deleted subvolumes and trees of a relocation keep nothing: what they have goes by itself.

    `references`: of all of the filesystem.
    `ids` (list of int): the subvolume of each bit, ascending: from the oldest to the youngest.
    `blocks` (list of numpy.ndarray): by level from the leaves up, shape (blocks, words).
    `extents` (numpy.ndarray): shape (extents, words).
    """

    def __init__(self, references: References) -> None:
        roots = references.forest.roots
        self.ids = sorted({root.id for root in roots if root.stays})
        self.words = len(self.ids) // 64 + 1
        bit = {number: at for at, number in enumerate(self.ids)}
        numbers = [bit[root.id] if root.stays else -1 for root in roots]
        self.blocks = references.forest.bits(np.array(numbers, np.int64), self.words)
        count = len(references.extents.start)
        self.extents = any_bit(references.extents.row, self.blocks[0][references.leaf], count)

    def set_of(self, ids: list[int]) -> Words:
        """Return the set of some subvolumes, shape (words,)."""
        numbers = np.searchsorted(self.ids, np.array(ids, np.int64)).astype(np.int64)
        together: Words = np.bitwise_or.reduce(one_bit(numbers, self.words), axis=0)
        return together
