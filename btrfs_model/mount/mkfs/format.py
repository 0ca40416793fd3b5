# SPDX-License-Identifier: GPL-2.0-only
"""A fresh filesystem, as mkfs.btrfs of a release of btrfs-progs writes it.

Every tree is one leaf, except the root tree where nodes are smallest; :mod:`.places` says which
lies where. The superblock is that of the last transaction.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

from btrfs_model.mount.mkfs.first_keys import first_keys
from btrfs_model.mount.mkfs.identity import Identity
from btrfs_model.mount.mkfs.layout import FIRST_CHUNKS, SECTORSIZE, Format, mkfs_chunks
from btrfs_model.mount.mkfs.leaf import BlockHead, build_leaf, build_node
from btrfs_model.mount.mkfs.places import Place, mkfs_places, mkfs_root_leaves
from btrfs_model.mount.roots.backups import make_backup, store_backup
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.chunk_write import chunk_item, dev_extent
from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_SYSTEM, ExtentFlag, FileType
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.superblock_write import empty_superblock, write_superblocks

Items = list[tuple[tuple[int, int, int], bytes]]

_DIR_MODE = 0o40755
_NO_TIME = structs.Timespec(0, 0)
_ROOT_DIR = 256
_NAME = b"default"
# BTRFS_INODE_ROOT_ITEM_INIT: flags and limits of the root item mean something
_ROOT_ITEM_INIT = 1 << 31


def format_device(buffer: mmap.mmap | bytearray, options: Format, identity: Identity) -> None:
    """Make a filesystem in memory that is all zero.

    `buffer`: the device, of ``options.size`` bytes.
    `options`: checked already.
    `identity`: uuids and time.
    """
    fresh = _Fresh(options, identity)
    for tree in fresh.places:
        for bytenr, block in fresh.blocks_of(tree):
            chunk = next(c for c in fresh.chunks if c.logical <= bytenr < c.end)
            for stripe in chunk.stripes:
                at = stripe + bytenr - chunk.logical
                buffer[at : at + len(block)] = block
    write_superblocks(buffer, fresh.superblock())


class _Fresh:
    """The trees of a fresh filesystem, as lists of items."""

    def __init__(self, options: Format, identity: Identity) -> None:
        self.options = options
        self.identity = identity
        self.chunks = mkfs_chunks(options)
        self.places: dict[int, Place] = mkfs_places(options)
        self.root_leaves = mkfs_root_leaves(options)
        self.first_keys = first_keys(options)
        self.time = structs.Timespec(identity.seconds, 0)

    def items_of(self, tree: int) -> Items:
        """Items of a tree, ascending."""
        makers: dict[int, Callable[[], Items]] = {
            ObjectId.ROOT_TREE: self.root_tree,
            ObjectId.EXTENT_TREE: self.extent_tree,
            ObjectId.CHUNK_TREE: self.chunk_tree,
            ObjectId.DEV_TREE: self.dev_tree,
            ObjectId.FS_TREE: self.fs_tree,
            ObjectId.CSUM_TREE: list,
            ObjectId.UUID_TREE: self.uuid_tree,
            ObjectId.FREE_SPACE_TREE: self.free_space_tree,
            ObjectId.BLOCK_GROUP_TREE: self.block_groups,
            ObjectId.DATA_RELOC_TREE: self.data_reloc_tree,
        }
        return sorted(makers[tree]())

    def blocks_of(self, tree: int) -> list[tuple[int, bytes]]:
        """Return address and bytes of each block of a tree."""
        nodesize, csum_type = self.options.nodesize, self.options.csum_type
        place, items = self.places[tree], self.items_of(tree)
        top = BlockHead(place.bytenr, place.generation, tree, self.identity.fsid,
                        self.identity.chunk_tree_uuid)  # fmt: skip
        if tree != ObjectId.ROOT_TREE or not self.root_leaves:
            return [(place.bytenr, build_leaf(nodesize, csum_type, top, items))]
        # the item that had no room came behind all others, and took half of them along
        parts = items[: len(items) // 2], items[len(items) // 2 :]
        children = [
            (part[0][0], bytenr, place.generation)
            for part, bytenr in zip(parts, self.root_leaves, strict=True)
        ]
        return [
            (place.bytenr, build_node(nodesize, csum_type, top, children)),
            *(
                (bytenr, build_leaf(nodesize, csum_type, top._replace(bytenr=bytenr), part))
                for part, bytenr in zip(parts, self.root_leaves, strict=True)
            ),
        ]

    # ------------------------------------------------------------------------ the root tree --

    def root_tree(self) -> Items:
        """Root items, and the directory that names the default subvolume."""
        items: Items = [
            ((tree, ItemType.ROOT_ITEM, 0), self.root_item(tree))
            for tree in self.places
            if tree not in {ObjectId.ROOT_TREE, ObjectId.CHUNK_TREE}
        ]
        top, directory = ObjectId.FS_TREE, ObjectId.ROOT_TREE_DIR
        target = structs.DiskKey(top, ItemType.ROOT_ITEM, U64_MAX)
        transid = 3 if self.options.release.rebuilds else 0
        entry = structs.RawDirItem(target, transid, 0, len(_NAME), FileType.DIR)
        return [
            *items,
            ((top, ItemType.INODE_REF, directory), _inode_ref(_NAME)),
            ((directory, ItemType.INODE_ITEM, 0), self.directory(3, self.options.nodesize)),
            ((directory, ItemType.INODE_REF, directory), _inode_ref(b"..")),
            ((directory, ItemType.DIR_ITEM, name_hash(_NAME)),
             structs.DIR_ITEM.pack(entry) + _NAME),
        ]  # fmt: skip

    def root_item(self, tree: int) -> bytes:
        """Return the root item of a tree; the top-level subvolume's has a uuid and times."""
        place, nodesize = self.places[tree], self.options.nodesize
        made_late = tree in {ObjectId.UUID_TREE, ObjectId.DATA_RELOC_TREE}
        # what mkfs.btrfs fills in where it makes a tree by its older function
        inode = _inode() if made_late else _inode(generation=1, size=3, nbytes=nodesize, nlink=1,
                                                  mode=_DIR_MODE)  # fmt: skip
        top = tree == ObjectId.FS_TREE
        has_directory = top or tree == ObjectId.DATA_RELOC_TREE
        if has_directory and self.options.release.rebuilds:
            inode = inode._replace(flags=_ROOT_ITEM_INIT)
        none, time = bytes(16), self.time if top else _NO_TIME
        return structs.ROOT_ITEM.pack(structs.RootItem(
            inode=inode, generation=place.generation, root_dirid=_ROOT_DIR if has_directory else 0,
            bytenr=place.bytenr, byte_limit=0, bytes_used=nodesize, last_snapshot=0, flags=0,
            refs=1, drop_progress=structs.DiskKey(0, 0, 0), drop_level=0, level=0,
            generation_v2=place.generation, uuid=self.identity.subvolume_uuid if top else none,
            parent_uuid=none, received_uuid=none, ctransid=0, otransid=0, stransid=0, rtransid=0,
            ctime=time, otime=time, stime=_NO_TIME, rtime=_NO_TIME, reserved=(0,) * 8,
        ))  # fmt: skip

    # ---------------------------------------------------------------------- the small trees --

    def fs_tree(self) -> Items:
        """Return the root directory of the top-level subvolume."""
        return self.root_directory(self.directory(3, self.options.nodesize))

    def data_reloc_tree(self) -> Items:
        """Return the root directory of the tree that relocation works in."""
        if self.options.release.rebuilds:
            return self.root_directory(self.directory(5, self.options.nodesize))
        return self.root_directory(self.directory(5, 0, otime=_NO_TIME))

    def root_directory(self, inode: bytes) -> Items:
        """Return the directory 256, which contains itself."""
        return [
            ((_ROOT_DIR, ItemType.INODE_ITEM, 0), inode),
            ((_ROOT_DIR, ItemType.INODE_REF, _ROOT_DIR), _inode_ref(b"..")),
        ]

    def directory(
        self, generation: int, nbytes: int, otime: structs.Timespec | None = None
    ) -> bytes:
        """Return the inode item of an empty directory."""
        time = self.time
        return structs.INODE_ITEM.pack(
            _inode(generation, 0, nbytes, 1, _DIR_MODE, (time, time, time, otime or time))
        )

    def uuid_tree(self) -> Items:
        """Return the uuid of the top-level subvolume."""
        low, high = struct.unpack("<QQ", self.identity.subvolume_uuid)
        return [((low, ItemType.UUID_KEY_SUBVOL, high), struct.pack("<Q", ObjectId.FS_TREE))]

    # ---------------------------------------------------------------------- chunks, devices --

    def chunk_tree(self) -> Items:
        """Return the device and the chunks."""
        chunks: Items = [
            ((256, ItemType.CHUNK_ITEM, chunk.logical), self.chunk_item(chunk))
            for chunk in self.chunks
        ]
        return [((1, ItemType.DEV_ITEM, 1), structs.DEV_ITEM.pack(self.device())), *chunks]

    def chunk_item(self, chunk: Chunk) -> bytes:
        """Return the chunk item of a chunk."""
        temporary = chunk.logical == FIRST_CHUNKS[0][0]
        return chunk_item(chunk, 1, self.identity.device_uuid, temporary=temporary)

    def device(self) -> structs.DevItem:
        """Return the device item."""
        used = sum(chunk.length * len(chunk.stripes) for chunk in self.chunks)
        return structs.DevItem(1, self.options.total_bytes, used, 4096, 4096, 4096, 0, 0, 0, 0, 0,
                               0, self.identity.device_uuid, self.identity.fsid)  # fmt: skip

    def dev_tree(self) -> Items:
        """Return where each stripe lies on the device."""
        statistics = ((ObjectId.DEV_STATS, ItemType.PERSISTENT_ITEM, 1),
                      bytes(structs.DEV_STATS_ITEM.size))  # fmt: skip
        return [statistics] * self.options.release.rebuilds + [
            ((1, ItemType.DEV_EXTENT, stripe), dev_extent(chunk, self.identity.chunk_tree_uuid))
            for chunk in self.chunks
            for stripe in chunk.stripes
        ]

    # ---------------------------------------------------------------------------- the space --

    def used_blocks(self, chunk: Chunk) -> list[int]:
        """Addresses of the tree blocks in a chunk, ascending."""
        places = [*(place.bytenr for place in self.places.values()), *self.root_leaves]
        return sorted(at for at in places if chunk.logical <= at < chunk.end)

    def block_groups(self) -> Items:
        """Return the block group items."""
        items: Items = []
        for chunk in self.chunks:
            used = len(self.used_blocks(chunk)) * self.options.nodesize
            item = structs.BlockGroupItem(used, 256, chunk.type)
            key = (chunk.logical, ItemType.BLOCK_GROUP_ITEM, chunk.length)
            items.append((key, structs.BLOCK_GROUP_ITEM.pack(item)))
        return items

    def extent_tree(self) -> Items:
        """Return the extents of all tree blocks."""
        items = [] if self.options.has_block_group_tree else self.block_groups()
        level = 1 if self.root_leaves else 0
        for tree, place in self.places.items():
            items.append(self.tree_block(tree, place, level * (tree == ObjectId.ROOT_TREE)))
        root = self.places[ObjectId.ROOT_TREE]
        for bytenr in self.root_leaves:
            items.append(self.tree_block(ObjectId.ROOT_TREE, root._replace(bytenr=bytenr), 0))
        return items

    def tree_block(self, tree: int, place: Place, level: int) -> tuple[tuple[int, int, int], bytes]:
        """Return the extent of one tree block."""
        extent = structs.RawExtentItem(1, place.generation, ExtentFlag.TREE_BLOCK)
        data = structs.EXTENT_ITEM.pack(extent)
        reference = structs.RawInlineRef(ItemType.TREE_BLOCK_REF, tree)
        key = (place.bytenr, int(ItemType.METADATA_ITEM), level)
        if not self.options.skinny_metadata:
            key = (place.bytenr, ItemType.EXTENT_ITEM, self.options.nodesize)
            first = self.first_keys.get(tree, (0, 0, 0))
            if self.root_leaves and place.bytenr == self.root_leaves[1]:
                items = self.root_tree()
                first = sorted(items)[len(items) // 2][0]
            data += structs.TREE_BLOCK_INFO.pack(
                structs.TreeBlockInfo(structs.DiskKey(*first), level)
            )
        return key, data + structs.EXTENT_INLINE_REF.pack(reference)

    def free_space_tree(self) -> Items:
        """Return what is free; mkfs.btrfs leaves what it wrote of the chunks it started with."""
        items: Items = []
        if not (self.options.is_single or self.options.release.forgets_first_chunks):
            for start, length in FIRST_CHUNKS:
                items += _free_space(start, length, [(start, length)])
        for chunk in self.chunks:
            free, at = [], chunk.logical
            for block in [*self.used_blocks(chunk), chunk.end]:
                if at < block:
                    free.append((at, block - at))
                at = block + self.options.nodesize
            items += _free_space(chunk.logical, chunk.length, free)
        return items

    # ----------------------------------------------------------------------- the superblock --

    def superblock(self) -> structs.RawSuperBlock:
        """Return the superblock."""
        options, identity, places = self.options, self.identity, self.places
        array = b"".join(
            structs.DISK_KEY.pack(structs.DiskKey(256, ItemType.CHUNK_ITEM, chunk.logical))
            + self.chunk_item(chunk)
            for chunk in self.chunks
            if chunk.type & BTRFS_BLOCK_GROUP_SYSTEM
        )
        # features have the same numbers in all the world: see ondisk/superblock.py
        large = options.release.rebuilds and (
            options.nodesize > SECTORSIZE or options.release.reproducible
        )
        incompat = (1 << 0 | large << 5 | options.extref << 6 | options.skinny_metadata << 8
                    | options.no_holes << 9)  # fmt: skip
        compat_ro = 3 * options.free_space_tree | options.has_block_group_tree << 3
        root, chunk_root = places[ObjectId.ROOT_TREE], places[ObjectId.CHUNK_TREE]
        raw = empty_superblock()._replace(
            fsid=identity.fsid, generation=options.release.generation, root=root.bytenr,
            root_level=1 if self.root_leaves else 0,
            chunk_root=chunk_root.bytenr, chunk_root_generation=chunk_root.generation,
            total_bytes=options.total_bytes,
            bytes_used=(len(places) + len(self.root_leaves)) * options.nodesize,
            nodesize=options.nodesize, unused_leafsize=options.nodesize,
            incompat_flags=incompat, compat_ro_flags=compat_ro, csum_type=options.csum_type,
            dev_item=self.device(), label=options.label.encode("utf-8", "surrogateescape"),
            # without a free space tree there may be a cache, of no generation yet
            cache_generation=0 if options.free_space_tree else U64_MAX,
            sys_chunk_array=array, sys_chunk_array_size=len(array),
        )  # fmt: skip
        roots = {tree: (place.bytenr, place.generation, 0) for tree, place in places.items()}
        roots[ObjectId.ROOT_TREE] = (root.bytenr, root.generation, raw.root_level)
        # one cell of four: earlier transactions had the others, their trees are gone
        return store_backup(raw, (raw.generation - 1) % 4, make_backup(raw, roots))


def _inode(generation: int = 0, size: int = 0, nbytes: int = 0, nlink: int = 0, mode: int = 0,
           times: tuple[structs.Timespec, ...] = (_NO_TIME,) * 4) -> structs.InodeItem:  # fmt: skip
    return structs.InodeItem(generation, 0, size, nbytes, 0, nlink, 0, 0, mode, 0, 0, 0,
                             (0, 0, 0, 0), *times)  # fmt: skip


def _inode_ref(name: bytes) -> bytes:
    return structs.INODE_REF.pack(structs.RawInodeRef(0, len(name))) + name


def _free_space(start: int, length: int, free: list[tuple[int, int]]) -> Items:
    info = structs.FREE_SPACE_INFO.pack(structs.FreeSpaceInfo(len(free), 0))
    extents: Items = [((at, ItemType.FREE_SPACE_EXTENT, size), b"") for at, size in free]
    return [((start, ItemType.FREE_SPACE_INFO, length), info), *extents]
