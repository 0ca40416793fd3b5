# SPDX-License-Identifier: GPL-2.0-only
"""All trees of an image, in the order in which a dump shows them.

The superblock points at three trees: the root tree, the chunk tree and, after an fsync, the tree of
log roots. The root tree holds a ROOT_ITEM for every other tree, the tree of log roots one for the
log of each subvolume.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from btrfs_model.base.errors import SubvolumeNotFoundError
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.volume.image import Image
from btrfs_model.volume.roots import Root
from btrfs_model.volume.tree import Tree


class TreeRoot(NamedTuple):
    """A tree and the key of its root item.

    `key`: (id of the tree, ROOT_ITEM, offset). The offset is 0 or the generation of a snapshot; of
    a log, the subvolume that it belongs to. The three trees without a root item have (id,
    ROOT_ITEM, 0).
    `tree`: the tree itself.
    """

    key: Key
    tree: Tree


def tree_number(name: str) -> int:
    """Return the id of a tree that is told by its name (``fs``, ``CSUM_TREE``) or as a number.

    Raises ValueError: when it is neither.
    """
    short = name.upper().removesuffix("_TREE")
    for candidate in (f"{short}_TREE", short):
        if candidate in ObjectId.__members__:
            return int(ObjectId[candidate])
    return int(name, 0) % 2**64


def pointed_at(image: Image) -> list[TreeRoot]:
    """Return the trees that the superblock points at, that of log roots only if there is one."""
    ids = [ObjectId.ROOT_TREE, ObjectId.CHUNK_TREE]
    if image.superblock.log_root:
        ids.append(ObjectId.TREE_LOG)
    return [TreeRoot(Key(one, ItemType.ROOT_ITEM, 0), Tree.pointed_at(image, one)) for one in ids]


def rooted_trees(image: Image) -> Iterator[TreeRoot]:
    """Yield the trees that have a root item, in key order; those of the logs come last.

    Raises CorruptImageError: for a root item that is too short, or a block that is broken.
    """
    for holder in pointed_at(image):
        if holder.key.objectid == ObjectId.CHUNK_TREE:
            continue
        for item in holder.tree.items():
            if item.key.type == ItemType.ROOT_ITEM:
                root = Root.of(item, image.path, holder.key.objectid)
                yield TreeRoot(item.key, root.tree(image))


def select_trees(image: Image, objectid: int | None = None) -> Iterator[TreeRoot]:
    """Yield all trees of an image, or those of one id.

    The root tree comes first, then the chunk tree, the tree of log roots, the trees of the root
    tree in key order, and the logs. Only logs and relocation trees share an id.

    `image`: the image.
    `objectid`: id of the tree(s).
    Raises SubvolumeNotFoundError: when there is no tree of that id.
    """
    found = False
    for root in chain(pointed_at(image), rooted_trees(image)):
        if objectid is None or root.key.objectid == objectid:
            found = True
            yield root
    if not found:
        raise SubvolumeNotFoundError(f"{image.path}: there is no tree {objectid}")
