# SPDX-License-Identifier: GPL-2.0-only
"""All trees of a filesystem by their id, for references that name a tree.

The kernel finds a subvolume's root in memory only when the subvolume has been opened since mount; a
backref walk that comes to another one searches the tree of roots and reads the root node, each time
anew (``btrfs_get_fs_root_commit_root()``, 6.12). So a forest knows which subvolumes are *open*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.native import backref as native
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.volume.blocks import HEADER, Expect, ReadBy, image_block
from btrfs_model.volume.ctree import Path, search_slot
from btrfs_model.volume.tree import Tree

if TYPE_CHECKING:
    import numpy.typing as npt

    from btrfs_model.volume.image import Image

_ROOT_TREE = int(ObjectId.ROOT_TREE)
_EXTENT_TREE = int(ObjectId.EXTENT_TREE)
_FIRST_FREE = int(ObjectId.FIRST_FREE)
_ROOT_ITEM = int(ItemType.ROOT_ITEM)


def read_tree_block(
    image: Image, bytenr: int, *, generation: int = 0, level: int = -1, tree: int = 0
) -> memoryview:
    """Read a block that no search came to (``read_tree_block()``)."""
    block = image_block(image, bytenr, Expect(tree, generation, level))
    current().count("read_tree_block")
    if image.reads is not None:
        *_, found_generation, _, _, found_level = HEADER.unpack_from(block)
        image.reads.submit(bytenr, found_generation, found_level, False, ReadBy.read_tree_block)
    return block


class WaitingRef(NamedTuple):
    """A reference that the extent tree has yet to learn of (``struct bm_waiting_ref``).

    `value`: tree, or the block that refers.
    `ino`, `offset`: of an EXTENT_DATA_REF.
    `change`: how many come, negative where they are dropped.
    `level`: of a tree block; -1: data.
    """

    bytenr: int
    value: int
    ino: int
    offset: int
    change: int
    type: int
    level: int


class Forest:
    """The trees that a backref walk may come to.

    `image`: where the blocks are.
    `trees`: by id: the extent tree, the tree of roots, every subvolume; also deleted subvolumes
    that still have a root item, which a walk through commit roots reports.
    `opened`: subvolumes that have been opened since mount. Tree 5 always is.
    `refs`: where the trees are those of a running transaction: references that wait, rows of
    :data:`btrfs_model.native.backref.WAITING`.
    Raises CorruptImageError: when there is no extent tree.
    """

    def __init__(
        self,
        image: Image,
        trees: Mapping[int, Tree],
        opened: Iterable[int] = (),
        refs: npt.NDArray[Any] | None = None,
    ) -> None:
        self.image = image
        self.refs = refs
        self.trees = dict(trees)
        self.opened = frozenset(opened)
        if _EXTENT_TREE not in self.trees:
            fault = Fault(Code.NOT_FOUND, _ROOT_TREE, found=_EXTENT_TREE, wanted=_ROOT_ITEM)
            raise CorruptImageError(image.path, fault)
        self._native: native.Forest | None = None

    @property
    def extent_tree(self) -> Tree:
        """The tree of extents and references."""
        return self.trees[_EXTENT_TREE]

    @property
    def native(self) -> native.Forest:
        """The same for the C kernels."""
        if self._native is None:
            roots = [tree.root for tree in self.trees.values()]
            self._native = native.Forest(self.image.store, roots, self.opened, self.refs)
        return self._native

    @property
    def is_running(self) -> bool:
        """Whether the trees are those of a running transaction."""
        return self.refs is not None

    @cached_property
    def waiting(self) -> dict[int, list[WaitingRef]]:
        """The references that wait, by the address of the extent, in the kernel's order."""
        rows = [] if self.refs is None else [WaitingRef(*row) for row in self.refs.tolist()]
        rows.sort(key=lambda one: (one.bytenr, one.type, one.value, one.ino, one.offset))
        return {bytenr: list(refs) for bytenr, refs in groupby(rows, lambda one: one.bytenr)}

    def get_fs_root_commit_root(self, objectid: int, *, restart: bool) -> Tree | None:
        """Return a tree, or None when there is no such root (``btrfs_get_fs_root_commit_root()``).

        `objectid`: id of the tree.
        `restart`: whether a search starts again after it had to read a block.
        """
        tree = self.trees.get(objectid)
        is_open = tree is not None and (objectid < _FIRST_FREE or objectid in self.opened)
        if not is_open and _ROOT_TREE in self.trees:
            key = (objectid, _ROOT_ITEM, 2**64 - 1)
            search_slot(self.trees[_ROOT_TREE], key, Path(restart=restart))
            if tree is not None:
                read_tree_block(
                    self.image,
                    tree.bytenr,
                    generation=tree.generation,
                    level=tree.level,
                    tree=objectid,
                )
        return tree
