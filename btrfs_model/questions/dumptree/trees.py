# SPDX-License-Identifier: GPL-2.0-only
"""All trees of an image, in the order in which a dump shows them.

The superblock points at three trees: the root tree, the chunk tree and, after an fsync, the tree of
log roots. The root tree holds a ROOT_ITEM for every other tree, the tree of log roots one for the
log of each subvolume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from btrfs_model.base.errors import SubvolumeNotFoundError
from btrfs_model.ondisk.items import root_item
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree


class TreeRoot(NamedTuple):
    """A tree and the key of its root item.

    Attributes
    ----------
    key : Key
        (id of the tree, ROOT_ITEM, offset). The offset is 0 or the generation of a snapshot; of a
        log, the subvolume that it belongs to. The three trees without a root item have (id,
        ROOT_ITEM, 0).
    tree : Tree
        The tree itself.
    """

    key: Key
    tree: Tree


def _pointed_at(image: Image, objectid: int, address: int, generation: int, level: int) -> TreeRoot:
    key = Key(objectid, ItemType.ROOT_ITEM, 0)
    return TreeRoot(key, Tree(image, objectid, address, generation, level))


def root_tree(image: Image) -> TreeRoot:
    """Return the tree of tree roots."""
    sb = image.superblock
    return _pointed_at(image, ObjectId.ROOT_TREE, sb.root, sb.generation, sb.root_level)


def chunk_tree(image: Image) -> TreeRoot:
    """Return the chunk tree."""
    sb = image.superblock
    return _pointed_at(
        image, ObjectId.CHUNK_TREE, sb.chunk_root, sb.chunk_root_generation, sb.chunk_root_level
    )


def log_root_tree(image: Image) -> TreeRoot | None:
    """Return the tree of log roots, None when nothing was logged since the last commit."""
    sb = image.superblock
    if not sb.log_root:
        return None
    # logs belong to the transaction that was running
    return _pointed_at(image, ObjectId.TREE_LOG, sb.log_root, sb.generation + 1, sb.log_root_level)


def rooted_trees(image: Image, roots: TreeRoot) -> Iterator[TreeRoot]:
    """Yield the trees that have a ROOT_ITEM in `roots`, in key order.

    Raises
    ------
    CorruptImageError
        For a root item that is too short, or a block that is broken.
    """
    for item in roots.tree.items():
        if item.key.type != ItemType.ROOT_ITEM:
            continue
        try:
            root = root_item(item.data)
        except PayloadError as error:
            raise error.at(
                image.path, tree=roots.key.objectid, block=item.block, slot=item.slot
            ) from None
        yield TreeRoot(
            item.key, Tree(image, item.key.objectid, root.bytenr, root.generation, root.level)
        )


def select_trees(image: Image, objectid: int | None = None) -> Iterator[TreeRoot]:
    """Yield all trees of an image, or those of one id.

    The root tree comes first, then the chunk tree, the tree of log roots, the trees of the root
    tree in key order, and the logs. Only logs and relocation trees share an id.

    Parameters
    ----------
    image : Image
        The image.
    objectid : int, optional
        Id of the tree(s).

    Raises
    ------
    SubvolumeNotFoundError
        When there is no tree of that id.
    """
    found = False
    for root in _all_trees(image):
        if objectid is None or root.key.objectid == objectid:
            found = True
            yield root
    if not found:
        raise SubvolumeNotFoundError(f"{image.path}: there is no tree {objectid}")


def _all_trees(image: Image) -> Iterator[TreeRoot]:
    roots = root_tree(image)
    yield roots
    yield chunk_tree(image)
    log_roots = log_root_tree(image)
    if log_roots is not None:
        yield log_roots
    yield from rooted_trees(image, roots)
    if log_roots is not None:
        yield from rooted_trees(image, log_roots)
