# SPDX-License-Identifier: GPL-2.0-only
"""Which tree blocks a kernel has in memory that mounted a filesystem and opened a subvolume.

A send that starts then reads all others. What was read before:

- the root node of each tree;
- in the extent (or block group) tree, the leaves with the block group items, read ahead forward
  (``btrfs_read_block_groups()``);
- in each subvolume, the inode of its top directory, the end of the tree (a writable mount looks for
  orphans there: ``btrfs_orphan_cleanup()``), and, where opening a directory looks for its last
  entry, the leaf with that (``btrfs_opendir()``).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from btrfs_model.blocks import ReadCache
from btrfs_model.btree.search import Path, Reada, search_slot, search_slot_for_read
from btrfs_model.counters import counting
from btrfs_model.errors import CorruptImageError
from btrfs_model.kernels import lib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from btrfs_model.btree import Tree
    from btrfs_model.filesystem import Filesystem, Subvolume
    from btrfs_model.patches import Behaviour

__all__ = ["blocks_after_mount", "open_root"]

_MAX = 2**64 - 1
_ORPHAN_OBJECTID = 2**64 - 5
_LAST_FREE = 2**64 - 256
_TOP = lib.BTRFS_FIRST_FREE_OBJECTID


def blocks_after_mount(
    fs: Filesystem, subvolumes: Iterable[Subvolume], behaviour: Behaviour
) -> set[int]:
    """Return the addresses of the tree blocks that are cached when a send starts.

    Parameters
    ----------
    fs : Filesystem
        Where the subvolumes are.
    subvolumes : iterable of Subvolume
        What has been opened: the snapshot to be sent, and its parent.
    behaviour : Behaviour
        The kernel.

    Returns
    -------
    set of int
        Logical addresses.
    """
    cache = ReadCache(tree.bytenr for tree in fs.trees.values())
    fs.image.reads = cache
    # what happened before the send is not its work
    with counting() as work:
        groups = fs.trees.get(lib.BTRFS_BLOCK_GROUP_TREE_OBJECTID) or fs.tree(
            lib.BTRFS_EXTENT_TREE_OBJECTID
        )
        for chunk in fs.image.chunks:
            _read(groups, (chunk.logical, lib.BTRFS_BLOCK_GROUP_ITEM_KEY, 0), Reada.FORWARD)
        for tree in (subvolume.tree for subvolume in subvolumes):
            _read(tree, (_TOP, lib.BTRFS_INODE_ITEM_KEY, 0))
            _read(tree, (_ORPHAN_OBJECTID, lib.BTRFS_ORPHAN_ITEM_KEY, _MAX), Reada.BACK)
            if "opendir-last-index" in behaviour:
                _read(tree, (_TOP, lib.BTRFS_DIR_INDEX_KEY, _MAX))
        work.array[:] = 0
    fs.image.reads = None
    return cache.held


def open_root(fs: Filesystem, subvolume: Subvolume) -> None:
    """Get the root of a subvolume into memory (``btrfs_get_root_ref()``, 6.12).

    Its root item, its root node, the highest inode number, and whether it is an orphan.
    """
    _read(fs.root_tree, (subvolume.id, lib.BTRFS_ROOT_ITEM_KEY, _MAX))
    _read(subvolume.tree, (_LAST_FREE, 255, _MAX))
    _read(fs.root_tree, (_ORPHAN_OBJECTID, lib.BTRFS_ORPHAN_ITEM_KEY, subvolume.id))


def _read(tree: Tree, key: tuple[int, int, int], reada: Reada = Reada.NONE) -> None:
    path = Path(reada=reada)
    # a block that cannot be read is not cached; the send fails when it comes to it
    with suppress(CorruptImageError):
        if reada == Reada.FORWARD:
            search_slot_for_read(tree, key, path, find_higher=True)
        else:
            search_slot(tree, key, path)
