# SPDX-License-Identifier: GPL-2.0-only
"""In which block mkfs.btrfs leaves the root of each tree, and the transaction that wrote it.

The blocks between were freed along the way.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from btrfs_model.mount.mkfs.layout import SECTORSIZE, Format, mkfs_chunks
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_METADATA, BTRFS_BLOCK_GROUP_SYSTEM
from btrfs_model.ondisk.keys import ObjectId as Tree

_LAST: Final = -1
"""Stands for the last transaction."""

_Blocks = dict[Tree, tuple[int, int]]
_Row = tuple[tuple[Tree, int], ...]

# Two copies: the first two chunks are gone, and what was in them has moved.
_MOVED: Final[_Blocks] = {
    Tree.EXTENT_TREE: (0, _LAST),
    Tree.FS_TREE: (1, 5),
    Tree.CSUM_TREE: (5, 5),
}
_MOVED_AFTER: Final[_Row] = ((Tree.DATA_RELOC_TREE, 5), (Tree.UUID_TREE, 5), (Tree.DEV_TREE, _LAST))
_MOVED_AFTER_REBUILD: Final[_Row] = ((Tree.DATA_RELOC_TREE, 5), (Tree.DEV_TREE, _LAST))
_MOVED_GROUPS: Final[_Blocks] = {
    Tree.BLOCK_GROUP_TREE: (0, _LAST),
    Tree.DEV_TREE: (1, _LAST),
    Tree.FS_TREE: (2, 5),
    Tree.UUID_TREE: (3, 7),
    Tree.CSUM_TREE: (7, 5),
    Tree.DATA_RELOC_TREE: (9, 5),
}

# One copy: nothing moves. First with a free space tree, then without.
_KEPT: Final = {
    Tree.ROOT_TREE: (0, 0, _LAST),
    Tree.EXTENT_TREE: (1, 1, _LAST),
    Tree.FS_TREE: (2, 2, 5),
    Tree.DEV_TREE: (4, 6, 5),
    Tree.CSUM_TREE: (9, 8, 5),
    Tree.DATA_RELOC_TREE: (11, 9, 5),
    Tree.UUID_TREE: (12, 10, 5),
}
_KEPT_FREE_SPACE: Final = 5
_KEPT_SPARE: Final = 3
_KEPT_GROUPS: Final[_Blocks] = {
    Tree.ROOT_TREE: (0, _LAST),
    Tree.EXTENT_TREE: (1, _LAST),
    Tree.FREE_SPACE_TREE: (2, _LAST),
    Tree.FS_TREE: (3, 5),
    Tree.UUID_TREE: (4, 7),
    Tree.DEV_TREE: (5, 5),
    Tree.CSUM_TREE: (11, 5),
    Tree.DATA_RELOC_TREE: (13, 5),
}


class Place(NamedTuple):
    """Where the root block of a tree is, and the transaction of mkfs.btrfs that wrote it."""

    bytenr: int
    generation: int


def mkfs_places(options: Format) -> dict[int, Place]:
    """Return where each tree of a fresh filesystem is, by the tree's id."""
    blocks = _kept(options) if options.is_single else _moved(options)
    start, last = _start(options, BTRFS_BLOCK_GROUP_METADATA), options.release.generation
    places = {
        int(tree): Place(start + block * options.nodesize, last if when == _LAST else when)
        for tree, (block, when) in blocks.items()
    }
    chunk_root = _start(options, BTRFS_BLOCK_GROUP_SYSTEM) + options.nodesize
    places[int(Tree.CHUNK_TREE)] = Place(chunk_root, 5 if options.is_single else last)
    return dict(sorted(places.items()))


def mkfs_root_leaves(options: Format) -> tuple[int, ...]:
    """Return where the two leaves of the root tree are, where its root is a node."""
    if not (options.has_block_group_tree and options.nodesize == SECTORSIZE):
        return ()
    start = _start(options, BTRFS_BLOCK_GROUP_METADATA)
    blocks = (9, 6) if options.is_single else (13, 14)
    if not (options.is_single or options.release.forgets_first_chunks):
        blocks = blocks[::-1]
    return tuple(start + block * options.nodesize for block in blocks)


def _start(options: Format, kind: int) -> int:
    return next(chunk.logical for chunk in mkfs_chunks(options) if chunk.type & kind)


def _moved(options: Format) -> _Blocks:
    if options.release.rebuilds and options.has_block_group_tree:
        return _moved_groups(options)
    blocks = dict(_MOVED)
    after = _MOVED_AFTER
    if options.release.rebuilds:
        blocks[Tree.UUID_TREE] = (2, 7)
        after = _MOVED_AFTER_REBUILD
    free = ((Tree.FREE_SPACE_TREE, _LAST),) if options.free_space_tree else ()
    ordered = (*after, *free, (Tree.ROOT_TREE, _LAST))
    first = 7 if options.free_space_tree else 6
    blocks |= {tree: (first + n, when) for n, (tree, when) in enumerate(ordered)}
    if options.has_block_group_tree:
        # btrfs-progs 6.2 cannot make one: it gets the block that is free here
        blocks[Tree.BLOCK_GROUP_TREE] = (6, _LAST)
    return blocks


def _moved_groups(options: Format) -> _Blocks:
    # where the last commit has to take out entries of the free space tree, it begins with that
    pair = (Tree.EXTENT_TREE, Tree.FREE_SPACE_TREE)
    ordered = pair[::-1] if options.release.forgets_first_chunks else pair
    return _MOVED_GROUPS | {
        tree: (10 + n, _LAST) for n, tree in enumerate((*ordered, Tree.ROOT_TREE))
    }


def _kept(options: Format) -> _Blocks:
    if options.release.rebuilds and options.has_block_group_tree:
        groups = 8 if mkfs_root_leaves(options) else 6
        return _KEPT_GROUPS | {Tree.BLOCK_GROUP_TREE: (groups, _LAST)}
    column = 0 if options.free_space_tree else 1
    blocks = {tree: (row[column], row[2]) for tree, row in _KEPT.items()}
    if options.free_space_tree:
        blocks[Tree.FREE_SPACE_TREE] = (_KEPT_FREE_SPACE, _LAST)
    if options.release.rebuilds:
        blocks[Tree.UUID_TREE] = (_KEPT_SPARE, 7)
    elif options.has_block_group_tree:
        blocks[Tree.BLOCK_GROUP_TREE] = (_KEPT_SPARE, _LAST)
    return blocks
