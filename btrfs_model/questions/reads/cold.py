# SPDX-License-Identifier: GPL-2.0-only
"""Which tree blocks are in memory after a mount and after opening a subvolume.

A send, a listing or a FIEMAP that starts then reads all others. The mount has read, in this order
(``open_ctree()``, Linux 6.18):

- the chunk tree, the children of a node ahead, and the root node of each tree that is no
  subvolume, with the leaves of the root tree that name them;
- the leaves of the device tree with the extents of devices (``btrfs_verify_dev_extents()``);
- in the extent (or block group) tree, the leaves in which block group items were looked for
  (``btrfs_read_block_groups()``);
- on the path to a subvolume from the top of the filesystem, the entries and inodes of directories;
- in each subvolume on that path, the root node, the end of the tree (the highest inode number; a
  writable mount looks for orphans there too: ``btrfs_orphan_cleanup()``) and the inode of its top
  directory, and, where opening a directory looks for its last entry, the leaf with that
  (``btrfs_opendir()``).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from btrfs_model.base.counters import uncounted
from btrfs_model.base.errors import BtrfsModelError, CorruptImageError, SubvolumeNotFoundError
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.patches import Patch
from btrfs_model.volume import ctree
from btrfs_model.volume.blocks import ReadBy, ReadCache
from btrfs_model.volume.subvolume import split_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from btrfs_model.behaviour import Behaviour
    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.subvolume import Subvolume
    from btrfs_model.volume.tree import Tree

RawKey = tuple[int, int, int]
_MAX = 2**64 - 1
_ORPHAN_OBJECTID = 2**64 - 5
_FS_TREE = int(ObjectId.FS_TREE)
# as btrfs_read_roots() gets them
_ROOTS = (
    ObjectId.EXTENT_TREE, ObjectId.CSUM_TREE, ObjectId.FREE_SPACE_TREE, ObjectId.BLOCK_GROUP_TREE,
    ObjectId.DEV_TREE, ObjectId.DATA_RELOC_TREE, ObjectId.QUOTA_TREE, ObjectId.UUID_TREE,
    ObjectId.RAID_STRIPE_TREE,
)  # fmt: skip
_LAST_FREE = 2**64 - 256
_TOP = ObjectId.FIRST_FREE
_XATTR = int(ItemType.XATTR_ITEM)
_SCANNED = 8


def blocks_after_mount(
    fs: Filesystem,
    subvolumes: Iterable[Subvolume],
    behaviour: Behaviour,
    *,
    writable: bool = True,
) -> set[int]:
    """Return the addresses of the tree blocks that are cached after a mount.

    `fs`: where the subvolumes are.
    `subvolumes`: what has been opened, e.g. the snapshot to be sent and its parent.
    `behaviour`: the kernel.
    `writable`: whether the mount was.
    Returns logical addresses.
    """
    # what happened before the send is not its work
    with fs.image.lease, uncounted():
        chunks: list[int] = []
        with suppress(CorruptImageError):
            chunks = [block.logical for block in fs.chunk_tree.blocks()]
        # whatever the model itself looks up stays out of the cache
        ways = [_way(fs, subvolume) for subvolume in subvolumes]
        cache = fs.image.reads = ReadCache(chunks)
        try:
            _mount(fs, writable=writable)
            for way in ways:
                for subvolume, keys in way:
                    _open_top(fs, subvolume, writable=writable)
                    for key in keys:
                        _read(subvolume.tree, key)
                if Patch.OPENDIR_LAST_INDEX in behaviour:
                    _read(way[-1][0].tree, (_TOP, ItemType.DIR_INDEX, _MAX))
        finally:
            fs.image.reads = None
    return cache.held


def reads_of_mount(
    fs: Filesystem, *, writable: bool = True, groups: Callable[[ReadCache], None] | None = None
) -> ReadCache:
    """Mount the top of a filesystem, of which nothing is in memory; return what was read.

    A log is not replayed, and a balance does not go on.
    `writable`: whether the mount is.
    `groups`: looks for the block groups where they are not; without it they are where they are.
    """
    with fs.image.lease, uncounted():
        cache = fs.image.reads = ReadCache(())
        try:
            _chunks(fs, cache)
            _mount(fs, writable=writable, groups=None if groups is None else partial(groups, cache))
        finally:
            fs.image.reads = None
    return cache


def _chunks(fs: Filesystem, cache: ReadCache) -> None:
    """Read the chunk tree (``btrfs_read_chunk_tree()``); the children of a node are read ahead."""
    tree = fs.chunk_tree
    path, node = ctree.Path(), None
    with suppress(CorruptImageError):
        found = ctree.search_slot_for_read(tree, (0, 0, 0), path, find_higher=True)
        while found:
            above = path.nodes[1]
            if above is not None and above is not node:
                node = above
                for slot in range(ctree.nritems(above)):
                    child = ctree.node_ptr(above, slot)
                    cache.submit(*child, 0, True, ReadBy.readahead_tree_node_children)
            found = ctree.next_leaf(tree, path)


def _mount(fs: Filesystem, *, writable: bool, groups: Callable[[], None] | None = None) -> None:
    """Mount the top of the filesystem (``open_ctree()``)."""
    _read(fs.root_tree, (_LAST_FREE, 255, _MAX))
    trees = fs.trees
    for objectid in _ROOTS:
        if groups is not None and objectid == ObjectId.BLOCK_GROUP_TREE:
            continue
        _read(fs.root_tree, (objectid, ItemType.ROOT_ITEM, 0))
        if objectid in trees:
            _read_root(trees[objectid])
        if objectid == ObjectId.DATA_RELOC_TREE:  # the one that is got as a subvolume is
            _read(fs.root_tree, (_ORPHAN_OBJECTID, ItemType.ORPHAN_ITEM, objectid))
    with suppress(CorruptImageError):
        devices, path = fs.tree(ObjectId.DEV_TREE), ctree.Path(reada=ctree.Reada.FORWARD)
        found = ctree.search_slot_for_read(
            devices, (1, ItemType.DEV_EXTENT, 0), path, find_higher=True
        )
        while found:
            found = ctree.next_leaf(devices, path)
    if groups is not None:
        groups()
    else:
        _look_for_block_groups(
            fs, trees.get(ObjectId.BLOCK_GROUP_TREE) or fs.tree(ObjectId.EXTENT_TREE)
        )
    with suppress(SubvolumeNotFoundError):
        _open_top(fs, fs.subvolume(_FS_TREE), writable=writable)


def _look_for_block_groups(fs: Filesystem, tree: Tree) -> None:
    """Search for each block group, and once for none (``btrfs_read_block_groups()``)."""
    ends = [chunk.logical + chunk.length for chunk in fs.image.chunks]
    for start in [0, *ends]:
        path = ctree.Path()
        with suppress(CorruptImageError):
            found = ctree.search_slot_for_read(
                tree, (start, ItemType.BLOCK_GROUP_ITEM, 0), path, find_higher=True
            )
            while (
                found and ctree.block_key(path.leaf, path.slots[0])[1] != ItemType.BLOCK_GROUP_ITEM
            ):
                path.slots[0] += 1
                found = path.slots[0] < ctree.nritems(path.leaf) or ctree.next_leaf(tree, path)


def _way(fs: Filesystem, subvolume: Subvolume) -> list[tuple[Subvolume, list[RawKey]]]:
    """Return the subvolumes on the path to one, each with what is searched in it on the way on."""
    way: list[tuple[Subvolume, list[RawKey]]] = [(subvolume, [])]
    # on a damaged path the kernel gets as far as it can
    with suppress(BtrfsModelError):
        fs.subvolume_path(subvolume.id)
        while (entry := way[0][0].entry) is not None:
            parent, keys = fs.subvolume(entry.parent), []
            at = parent.root_dir
            for name in [*split_path(parent.path_of(entry.dirid)), entry.name]:
                keys.append((at, int(ItemType.DIR_ITEM), name_hash(name)))
                found = parent.lookup(at, name)
                if found is not None and found.location.type == ItemType.INODE_ITEM:
                    at = found.location.objectid
                    keys.append((at, int(ItemType.INODE_ITEM), 0))
            way.insert(0, (parent, keys))
    return way


def _open_top(fs: Filesystem, subvolume: Subvolume, *, writable: bool) -> None:
    """Get a root and its top directory; a writable mount looks for orphans as well."""
    open_root(fs, subvolume)
    _read(subvolume.tree, (_TOP, ItemType.INODE_ITEM, 0))
    if writable:
        _read(subvolume.tree, (_ORPHAN_OBJECTID, ItemType.ORPHAN_ITEM, _MAX), ctree.Reada.BACK)


def _read_root(tree: Tree) -> None:
    """Read the root node of a tree."""
    _read(tree, (0, 0, 0), lowest_level=tree.level)


def open_root(fs: Filesystem, subvolume: Subvolume) -> None:
    """Get the root of a subvolume into memory (``btrfs_get_root_ref()``, 6.12).

    Its root item, its root node, the highest inode number, and whether it is an orphan.
    """
    _read(fs.root_tree, (subvolume.id, ItemType.ROOT_ITEM, _MAX))
    _read(subvolume.tree, (_LAST_FREE, 255, _MAX))
    _read(fs.root_tree, (_ORPHAN_OBJECTID, ItemType.ORPHAN_ITEM, subvolume.id))


def _read(
    tree: Tree, key: RawKey, reada: ctree.Reada = ctree.Reada.NONE, lowest_level: int = 0
) -> None:
    # a block that cannot be read is not cached; the send fails when it comes to it
    with suppress(CorruptImageError):
        path = ctree.Path(reada=reada, lowest_level=lowest_level)
        if ctree.search_slot(tree, key, path) and key[1] == ItemType.INODE_ITEM:
            _load_props(tree, path, key[0])


def _load_props(tree: Tree, path: ctree.Path, ino: int) -> None:
    """Go through the xattrs of an inode that is read (``acls_after_inode_item()``).

    Where they are not seen to be missing, ``btrfs_load_inode_props()`` looks into the next leaf.
    """
    at, count = path.slots[0] + 1, ctree.nritems(path.leaf)
    end = min(count, at + _SCANNED)
    keys = ((slot, ctree.block_key(path.leaf, slot)) for slot in range(at, end))
    slot, key = next(
        (one for one in keys if one[1][0] != ino or one[1][1] >= _XATTR), (end, (ino, _XATTR, 0))
    )
    path.slots[0] = slot
    while key[0] == ino and key[1] <= _XATTR:
        if path.slots[0] >= ctree.nritems(path.leaf) and not ctree.next_leaf(tree, path):
            return
        key = ctree.block_key(path.leaf, path.slots[0])
        path.slots[0] += 1
