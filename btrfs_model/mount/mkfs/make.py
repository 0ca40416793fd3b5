# SPDX-License-Identifier: GPL-2.0-only
"""What mkfs.btrfs does, step by step (``mkfs/main.c``)."""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from btrfs_model.mount.mkfs.identity import Identity, choose_identity
from btrfs_model.mount.mkfs.layout import Format
from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.first import begin
from btrfs_model.mount.mkfs.writer.space import KINDS
from btrfs_model.mount.mkfs.writer.transaction import Transactions
from btrfs_model.mount.mount import START, random_uuid
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_DUP,
    BTRFS_BLOCK_GROUP_METADATA,
    BTRFS_BLOCK_GROUP_SYSTEM,
    FileType,
)
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.superblock_write import Written
from btrfs_model.volume.device.memory import Memory

_NAME: Final = b"default"
_MIXED: Final = BTRFS_BLOCK_GROUP_METADATA | BTRFS_BLOCK_GROUP_DATA


Fill = Callable[[Transactions, int], list[Root]]
"""Copies files, in a transaction that has begun, with the time; the subvolumes that it made."""


def fresh(
    options: Format, seed: int = 0, fill: Fill | None = None, *, shrink: bool = False,
    device_size: int = 0,
) -> Memory:  # fmt: skip
    """Make a filesystem in memory.

    Parameters
    ----------
    options : Format
        Checked already.
    seed : int
        What uuids that nobody has chosen come from.
    fill : callable or None
        What brings files in.
    shrink : bool
        Whether the device shall end where its last chunk does.
    device_size : int
        Bytes of a device that is larger than the filesystem.

    Raises
    ------
    OSError
        Where files cannot be read, or have no room.
    ValueError
        Where mkfs.btrfs refuses variables.
    """
    choice = random.Random(f"mkfs {seed}")
    chance = [random_uuid(choice) for _ in range(4)]
    identity = choose_identity(options, chance, START // 10**9)
    pieces, size = _empty(options, identity), options.size
    if fill is not None:
        pieces = _Pieces()
        size = _make(pieces, options, identity, fill, shrink=shrink)
    memory = Memory(max(size, device_size))
    pieces.write(memory.buffer)
    return memory


def format_device(buffer: mmap.mmap | bytearray, options: Format, identity: Identity) -> None:
    """Make an empty filesystem in memory that is all zero.

    `buffer`: the device, of ``options.size`` bytes.
    `options`: checked already.
    `identity`: uuids and time.
    """
    _empty(options, identity).write(buffer)


class _Pieces(dict[int, bytes]):
    """What is written to a device, by the place."""

    def __setitem__(self, place: Any, data: bytes | bytearray) -> None:
        # what is written later lies above what is there, also at places of chunks that are gone
        self.pop(place.start, None)
        super().__setitem__(place.start, bytes(data))

    def write(self, buffer: mmap.mmap | bytearray) -> None:
        """Write it to memory, as far as that goes."""
        for at, data in self.items():
            if at < len(buffer):
                buffer[at : at + len(data)] = data


@lru_cache(maxsize=16)
def _empty(options: Format, identity: Identity) -> _Pieces:
    """Return what is written for an empty filesystem; the same is asked for again and again."""
    pieces = _Pieces()
    _make(pieces, options, identity)
    return pieces


def _make(
    buffer: Written, options: Format, identity: Identity, fill: Fill | None = None,
    *, shrink: bool = False,
) -> int:  # fmt: skip
    """Make a filesystem; return how large the device is then."""
    maker, subvolumes = _Maker(buffer, options, identity), list[Root]()
    trees = maker.trees
    maker.make()
    if not options.release.fills_first:
        maker.clean_up()
    if fill is not None:
        trees.start(trees.fs_root)
        subvolumes = fill(trees, identity.seconds)
        trees.commit(trees.fs_root)
        if shrink:
            maker.shrink()
    if options.release.rebuilds:
        maker.rebuild_uuids(subvolumes)
    if options.release.fills_first:
        maker.clean_up()
    trees.finish()
    return options.size if not shrink else trees.total_bytes


class _Maker:
    """A filesystem that is being made."""

    def __init__(self, buffer: Written, options: Format, identity: Identity) -> None:
        self.options, self.seconds = options, identity.seconds
        self.trees = begin(buffer, options, identity)
        self.metadata = BTRFS_BLOCK_GROUP_DUP * (options.metadata == "dup")
        self.data = BTRFS_BLOCK_GROUP_DUP * (options.data == "dup")

    def make(self) -> None:
        """Make the filesystem with its chunks and trees, up to where files come in."""
        self._first_groups()
        self._first_folders()
        self._groups()
        self._move()

    def _first_groups(self) -> None:
        trees = self.trees
        kind = _MIXED if self.options.mixed else BTRFS_BLOCK_GROUP_METADATA
        trees.space(kind)
        trees.start(trees.fs_root)
        trees.in_system = True
        trees.make_group(kind)
        trees.in_system = False
        trees.commit(trees.fs_root)

    def _first_folders(self) -> None:
        trees, directory = self.trees, int(ObjectId.ROOT_TREE_DIR)
        trees.start(trees.fs_root)
        if not self.options.mixed:
            trees.space(BTRFS_BLOCK_GROUP_DATA)
            trees.make_group(BTRFS_BLOCK_GROUP_DATA)
        trees.make_root_dir(trees.tree_root, directory, self.seconds)
        trees.make_root_dir(trees.fs_root, int(ObjectId.FIRST_FREE), self.seconds)
        target = structs.DiskKey(ObjectId.FS_TREE, ItemType.ROOT_ITEM, U64_MAX)
        transid = trees.generation if self.options.release.rebuilds else 0
        entry = structs.RawDirItem(target, transid, 0, len(_NAME), FileType.DIR)
        key = (directory, int(ItemType.DIR_ITEM), name_hash(_NAME))
        trees.insert(trees.tree_root, key, structs.DIR_ITEM.pack(entry) + _NAME)
        name = structs.INODE_REF.pack(structs.RawInodeRef(0, len(_NAME))) + _NAME
        key = (int(ObjectId.FS_TREE), int(ItemType.INODE_REF), directory)
        trees.insert(trees.tree_root, key, name)
        trees.commit(trees.fs_root)

    def _groups(self) -> None:
        """Make the chunks that are asked for (``create_raid_groups()``)."""
        trees = self.trees
        trees.start(trees.fs_root)
        if self.metadata:
            trees.make_group(BTRFS_BLOCK_GROUP_SYSTEM | self.metadata)
            kind = _MIXED if self.options.mixed else BTRFS_BLOCK_GROUP_METADATA
            trees.make_group(kind | self.metadata)
        if self.data and not self.options.mixed:
            trees.make_group(BTRFS_BLOCK_GROUP_DATA | self.data)
        trees.commit(trees.fs_root)

    def _move(self) -> None:
        """Copy all trees into these chunks (``recow_roots()``); make the tree of relocation."""
        trees = self.trees
        trees.start(trees.fs_root)
        groups = [trees.groups_root] if self.options.has_block_group_tree else []
        free = [trees.free_space_root] if trees.free_space_root else []
        for root in (trees.fs_root, trees.tree_root, trees.chunk_root, trees.dev_root, *groups,
                     trees.extent_root, trees.csum_root, *free):  # fmt: skip
            self._copy(root)
        if self.options.release.rebuilds:
            trees.make_subvolume(int(ObjectId.DATA_RELOC_TREE), self.seconds)
        else:
            trees.make_old_subvolume(int(ObjectId.DATA_RELOC_TREE), self.seconds)
            self._add_uuids(self._uuid_tree(), [])
        trees.commit(trees.fs_root)

    def _copy(self, root: Root) -> None:
        path, _ = self.trees.search(root, (0, 0, 0))
        while True:
            if path.leaf.generation != self.trees.generation:
                path, _ = self.trees.search(root, path.leaf.key(0), change=True)
            if not self.trees.next_leaf(path):
                return

    # ------------------------------------------------------------------------------- the end --

    def shrink(self) -> None:
        """Let the device end where its last chunk does (``btrfs_mkfs_shrink_fs()``)."""
        trees = self.trees
        end = max(start + length for start, length in trees.stripes)
        trees.start(trees.chunk_root)
        trees.resize(end)
        trees.commit(trees.chunk_root)

    def rebuild_uuids(self, subvolumes: list[Root]) -> None:
        """Make the tree of uuids (``btrfs_rebuild_uuid_tree()``)."""
        trees = self.trees
        trees.start(trees.tree_root)
        uuids = self._uuid_tree()
        trees.commit(trees.tree_root)
        trees.start(uuids)
        self._add_uuids(uuids, subvolumes)
        trees.commit(uuids)

    def _uuid_tree(self) -> Root:
        uuids = self.trees.create_tree(int(ObjectId.UUID_TREE))
        self.trees.follow(uuids)
        return uuids

    def _add_uuids(self, uuids: Root, subvolumes: list[Root]) -> None:
        trees = self.trees
        for root in (*reversed(subvolumes), trees.fs_root):
            low, high = struct.unpack("<QQ", trees.uuid_of(root))
            key = (low, int(ItemType.UUID_KEY_SUBVOL), high)
            trees.insert(uuids, key, root.number.to_bytes(8, "little"))

    def clean_up(self) -> None:
        """Remove the chunks that are empty and of another profile (``cleanup_temp_chunks()``)."""
        trees = self.trees
        trees.start(trees.groups_root)
        for group in [trees.groups[start] for start in sorted(trees.groups)]:
            wanted = self.data if group.flags & BTRFS_BLOCK_GROUP_DATA else self.metadata
            if not group.used and group.flags & ~KINDS != wanted:
                trees.remove_chunk(group)
        trees.commit(trees.groups_root)
