# SPDX-License-Identifier: GPL-2.0-only
"""The small filesystem that mkfs.btrfs starts with: one chunk with a leaf for each tree."""

from __future__ import annotations

from typing import Final

from btrfs_model.mount.mkfs.identity import Identity
from btrfs_model.mount.mkfs.layout import FIRST_CHUNKS, SECTORSIZE, Format
from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.block import Block, Key, Uuids
from btrfs_model.mount.mkfs.writer.transaction import Transactions
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.chunk_write import CHUNK_OBJECTID, chunk_item, dev_extent
from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_SYSTEM, ExtentFlag
from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.keys import ObjectId as Tree
from btrfs_model.ondisk.superblock_write import Written, empty_superblock

_ROOT_ITEM_INIT: Final = 1 << 31
_TREES: Final = (Tree.ROOT_TREE, Tree.EXTENT_TREE, Tree.CHUNK_TREE, Tree.DEV_TREE, Tree.FS_TREE,
                 Tree.CSUM_TREE, Tree.FREE_SPACE_TREE, Tree.BLOCK_GROUP_TREE)  # fmt: skip
_NO_TIME: Final = structs.Timespec(0, 0)
_NO_ROOT: Final = bytes(structs.ROOT_ITEM.size)


class _First:
    """What the leaves of the first filesystem have in them (``make_btrfs()``)."""

    def __init__(self, options: Format, identity: Identity) -> None:
        self.options, self.identity = options, identity
        start, length = FIRST_CHUNKS[0]
        self.chunk = Chunk(start, length, BTRFS_BLOCK_GROUP_SYSTEM, (start,))
        left_out = set()
        if not options.free_space_tree:
            left_out.add(Tree.FREE_SPACE_TREE)
        if not options.has_block_group_tree:
            left_out.add(Tree.BLOCK_GROUP_TREE)
        trees = [tree for tree in _TREES if tree not in left_out]
        self.places = {int(tree): start + n * options.nodesize for n, tree in enumerate(trees)}
        self.used = len(self.places) * options.nodesize
        self.device = structs.DevItem(
            1, options.total_bytes, length, SECTORSIZE, SECTORSIZE, SECTORSIZE, 0, 0, 0, 0, 0, 0,
            identity.device_uuid, identity.fsid,
        )  # fmt: skip
        self.chunk_item = chunk_item(self.chunk, 1, identity.device_uuid, temporary=True)

    def root_item(self, tree: int) -> bytes:
        """Return the root item of a tree."""
        nodesize, top = self.options.nodesize, tree == Tree.FS_TREE
        flags = _ROOT_ITEM_INIT * (top and self.options.release.rebuilds)
        inode = structs.InodeItem(
            1, 0, 3, nodesize, 0, 1, 0, 0, 0o40755, 0, flags, 0, (0, 0, 0, 0),
            *(_NO_TIME,) * 4,
        )  # fmt: skip
        now = structs.Timespec(self.identity.seconds, 0) if top else _NO_TIME
        item = structs.ROOT_ITEM.unpack(_NO_ROOT)._replace(
            inode=inode, generation=1, bytenr=self.places[tree], bytes_used=nodesize, refs=1,
            uuid=self.identity.subvolume_uuid if top else bytes(16), ctime=now, otime=now,
        )  # fmt: skip
        return structs.ROOT_ITEM.pack(item)

    def items(self, tree: int) -> list[tuple[Key, bytes]]:
        """Return the items of a tree."""
        start, length = self.chunk.logical, self.chunk.length
        item = structs.BlockGroupItem(self.used, CHUNK_OBJECTID, BTRFS_BLOCK_GROUP_SYSTEM)
        key = (start, int(ItemType.BLOCK_GROUP_ITEM), length)
        group = (key, structs.BLOCK_GROUP_ITEM.pack(item))
        if tree == Tree.ROOT_TREE:
            return [((one, int(ItemType.ROOT_ITEM), 0), self.root_item(one)) for one in self.places
                    if one not in (Tree.ROOT_TREE, Tree.CHUNK_TREE)]  # fmt: skip
        if tree == Tree.EXTENT_TREE:
            return self._extents(group)
        if tree == Tree.CHUNK_TREE:
            device = structs.DEV_ITEM.pack(self.device)
            key = (CHUNK_OBJECTID, int(ItemType.CHUNK_ITEM), start)
            return [((1, int(ItemType.DEV_ITEM), 1), device), (key, self.chunk_item)]
        if tree == Tree.DEV_TREE:
            statistics = ((0, int(ItemType.PERSISTENT_ITEM), 1),
                          bytes(structs.DEV_STATS_ITEM.size))  # fmt: skip
            piece = dev_extent(self.chunk, self.identity.chunk_tree_uuid)
            extent = ((1, int(ItemType.DEV_EXTENT), start), piece)
            return [statistics, extent] if self.options.release.rebuilds else [extent]
        if tree == Tree.FREE_SPACE_TREE:
            info = structs.FREE_SPACE_INFO.pack(structs.FreeSpaceInfo(1, 0))
            free = (start + self.used, int(ItemType.FREE_SPACE_EXTENT), length - self.used)
            return [((start, int(ItemType.FREE_SPACE_INFO), length), info), (free, b"")]
        return [group] if tree == Tree.BLOCK_GROUP_TREE else []

    def _extents(self, group: tuple[Key, bytes]) -> list[tuple[Key, bytes]]:
        item = structs.EXTENT_ITEM.pack(structs.RawExtentItem(1, 1, ExtentFlag.TREE_BLOCK))
        found: list[tuple[Key, bytes]] = []
        for tree, start in self.places.items():
            if len(found) == 2 and not self.options.has_block_group_tree:
                found.append(group)
            if self.options.skinny_metadata:
                found.append(((start, int(ItemType.METADATA_ITEM), 0), item))
            else:
                key = (start, int(ItemType.EXTENT_ITEM), self.options.nodesize)
                found.append((key, item + bytes(structs.TREE_BLOCK_INFO.size)))
            found.append(((start, int(ItemType.TREE_BLOCK_REF), tree), b""))
        return found

    def block(self, tree: int, uuids: Uuids) -> Block:
        """Return the leaf of a tree."""
        block = Block(self.places[tree], self.options.nodesize)
        block.begin(uuids, 1, tree, 0)
        block.mark_written()
        end = block.data_end()
        for slot, (key, data) in enumerate(self.items(tree)):
            end -= len(data)
            block.set_key(slot, key)
            block.place(slot, end, len(data))
            block.write(slot, data)
            block.nritems = slot + 1
        digest = csum(self.options.csum_type, bytes(block.data[32:]))
        block.data[: len(digest)] = digest
        return block

    def superblock(self) -> structs.RawSuperBlock:
        """Return the superblock."""
        options = self.options
        # features have the same numbers in all the world: see ondisk/superblock.py
        large = options.release.rebuilds and (
            options.nodesize > SECTORSIZE or options.release.reproducible
        )
        incompat = (1 << 0 | options.mixed << 2 | large << 5 | options.extref << 6
                    | options.skinny_metadata << 8 | options.no_holes << 9)  # fmt: skip
        return empty_superblock()._replace(
            fsid=self.identity.fsid, generation=1, nodesize=options.nodesize,
            unused_leafsize=options.nodesize, incompat_flags=incompat,
            compat_ro_flags=3 * options.free_space_tree | options.has_block_group_tree << 3,
            csum_type=options.csum_type, dev_item=self.device, total_bytes=options.total_bytes,
            label=options.label.encode("utf-8", "surrogateescape"),
            # without a free space tree there may be a cache, of no generation yet
            cache_generation=0 if options.free_space_tree else U64_MAX,
        )  # fmt: skip


def begin(buffer: Written, options: Format, identity: Identity) -> Transactions:
    """Write the first filesystem to a device that is all zero, and open it."""
    first = _First(options, identity)
    uuids = Uuids(identity.fsid, identity.chunk_tree_uuid)
    trees = Transactions(options.nodesize, uuids, skinny=options.skinny_metadata)
    trees.buffer, trees.raw, trees.bytes_used = buffer, first.superblock(), first.used
    roots: dict[int, Root] = {}
    group = trees.add_group(first.chunk, first.used)
    for tree, start in first.places.items():
        block = first.block(tree, uuids)
        trees.blocks[start] = block
        trees.write_data(start, block.data)
        item = _NO_ROOT if tree in (Tree.ROOT_TREE, Tree.CHUNK_TREE) else first.root_item(tree)
        tracked = tree not in (Tree.ROOT_TREE, Tree.CHUNK_TREE)
        roots[tree] = Root(tree, block, item, tracked=tracked)
    trees.tree_root, trees.chunk_root = roots[Tree.ROOT_TREE], roots[Tree.CHUNK_TREE]
    trees.extent_root, trees.dev_root = roots[Tree.EXTENT_TREE], roots[Tree.DEV_TREE]
    trees.fs_root, trees.csum_root = roots[Tree.FS_TREE], roots[Tree.CSUM_TREE]
    trees.free_space_root = roots.get(Tree.FREE_SPACE_TREE)
    trees.groups_root = roots.get(Tree.BLOCK_GROUP_TREE, trees.extent_root)
    trees.forgets = options.release.forgets_first_chunks
    trees.set_up_device(first.device, group, first.chunk_item)
    return trees
