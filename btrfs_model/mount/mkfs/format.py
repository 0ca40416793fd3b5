# SPDX-License-Identifier: GPL-2.0-only
"""A fresh filesystem, as mkfs.btrfs of btrfs-progs 6.2 writes it.

Every tree is one leaf; :mod:`.layout` says which leaf lies where. The superblock is that of
the sixth transaction.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import NamedTuple

from btrfs_model.mount.mkfs.layout import FIRST_CHUNKS, Format, Place, mkfs_chunks, mkfs_places
from btrfs_model.mount.mkfs.leaf import BlockHead, build_leaf
from btrfs_model.mount.roots.backups import make_backup, store_backup
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.chunk_write import chunk_item, dev_extent
from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_SYSTEM, ExtentFlag, FileType
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.superblock_write import empty_superblock, write_superblocks

Items = list[tuple[tuple[int, int, int], bytes]]

_GENERATION = 6
_DIR_MODE = 0o40755
_NO_TIME = structs.Timespec(0, 0)
_ROOT_DIR = 256
_NAME = b"default"
# First keys of tree blocks when they were made, as extent items that are not skinny have them: some
# trees were empty, others had items of the first chunks.
_FIRST_KEYS: dict[int, tuple[int, int, int]] = {
    ObjectId.ROOT_TREE: (ObjectId.EXTENT_TREE, ItemType.ROOT_ITEM, 0),
    ObjectId.EXTENT_TREE: (FIRST_CHUNKS[0][0], ItemType.BLOCK_GROUP_ITEM, FIRST_CHUNKS[0][1]),
    ObjectId.CHUNK_TREE: (1, ItemType.DEV_ITEM, 1),
    ObjectId.DEV_TREE: (1, ItemType.DEV_EXTENT, FIRST_CHUNKS[0][0]),
    ObjectId.FS_TREE: (_ROOT_DIR, ItemType.INODE_ITEM, 0),
    ObjectId.FREE_SPACE_TREE: (FIRST_CHUNKS[0][0], ItemType.FREE_SPACE_INFO, FIRST_CHUNKS[0][1]),
}


class Identity(NamedTuple):
    """What tells one fresh filesystem from another.

    `fsid`, `chunk_tree_uuid`, `device_uuid`, `subvolume_uuid`: 16 bytes each.
    `seconds`: when it was made, since 1970.
    """

    fsid: bytes
    chunk_tree_uuid: bytes
    device_uuid: bytes
    subvolume_uuid: bytes
    seconds: int


def format_device(buffer: mmap.mmap | bytearray, options: Format, identity: Identity) -> None:
    """Make a filesystem in memory that is all zero.

    `buffer`: the device, of ``options.size`` bytes.
    `options`: checked already.
    `identity`: uuids and time.
    """
    fresh = _Fresh(options, identity)
    for tree, place in fresh.places.items():
        head = BlockHead(place.bytenr, place.generation, tree, identity.fsid,
                         identity.chunk_tree_uuid)  # fmt: skip
        leaf = build_leaf(options.nodesize, options.csum_type, head, fresh.items_of(tree))
        chunk = next(c for c in fresh.chunks if c.logical <= place.bytenr < c.end)
        for stripe in chunk.stripes:
            at = stripe + place.bytenr - chunk.logical
            buffer[at : at + len(leaf)] = leaf
    write_superblocks(buffer, fresh.superblock())


class _Fresh:
    """The trees of a fresh filesystem, as lists of items."""

    def __init__(self, options: Format, identity: Identity) -> None:
        self.options = options
        self.identity = identity
        self.chunks = mkfs_chunks(options)
        self.places: dict[int, Place] = mkfs_places(options)
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
        entry = structs.RawDirItem(target, 0, 0, len(_NAME), FileType.DIR)
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
        return [
            ((1, ItemType.DEV_EXTENT, stripe), dev_extent(chunk, self.identity.chunk_tree_uuid))
            for chunk in self.chunks
            for stripe in chunk.stripes
        ]

    # ---------------------------------------------------------------------------- the space --

    def used_blocks(self, chunk: Chunk) -> list[int]:
        """Addresses of the tree blocks in a chunk, ascending."""
        places = [place.bytenr for place in self.places.values()]
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
        items = [] if self.options.block_group_tree else self.block_groups()
        for tree, place in self.places.items():
            extent = structs.RawExtentItem(1, place.generation, ExtentFlag.TREE_BLOCK)
            data = structs.EXTENT_ITEM.pack(extent)
            reference = structs.RawInlineRef(ItemType.TREE_BLOCK_REF, tree)
            key = (place.bytenr, int(ItemType.METADATA_ITEM), 0)
            if not self.options.skinny_metadata:
                key = (place.bytenr, ItemType.EXTENT_ITEM, self.options.nodesize)
                data += structs.TREE_BLOCK_INFO.pack(
                    structs.TreeBlockInfo(structs.DiskKey(*_FIRST_KEYS.get(tree, (0, 0, 0))), 0)
                )
            items.append((key, data + structs.EXTENT_INLINE_REF.pack(reference)))
        return items

    def free_space_tree(self) -> Items:
        """Return what is free; mkfs.btrfs leaves what it wrote of the chunks it started with."""
        items: Items = []
        if not self.options.is_single:
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
        incompat = (1 << 0 | options.extref << 6 | options.skinny_metadata << 8
                    | options.no_holes << 9)  # fmt: skip
        compat_ro = 3 * options.free_space_tree | options.block_group_tree << 3
        root, chunk_root = places[ObjectId.ROOT_TREE], places[ObjectId.CHUNK_TREE]
        raw = empty_superblock()._replace(
            fsid=identity.fsid, generation=_GENERATION, root=root.bytenr,
            chunk_root=chunk_root.bytenr, chunk_root_generation=chunk_root.generation,
            total_bytes=options.total_bytes, bytes_used=len(places) * options.nodesize,
            nodesize=options.nodesize, unused_leafsize=options.nodesize,
            incompat_flags=incompat, compat_ro_flags=compat_ro, csum_type=options.csum_type,
            dev_item=self.device(), label=options.label.encode("utf-8", "surrogateescape"),
            # without a free space tree there may be a cache, of no generation yet
            cache_generation=0 if options.free_space_tree else U64_MAX,
            sys_chunk_array=array, sys_chunk_array_size=len(array),
        )  # fmt: skip
        roots = {tree: (place.bytenr, place.generation, 0) for tree, place in places.items()}
        # the second cell of four: transactions 3 to 5 had the others, their trees are gone
        return store_backup(raw, 1, make_backup(raw, roots))


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
