# SPDX-License-Identifier: GPL-2.0-only
"""Transactions: what a commit writes, and the superblock (``transaction.c``, ``disk-io.c``)."""

from __future__ import annotations

from typing import Final

from btrfs_model.mount.mkfs.layout import SECTORSIZE
from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.block import ITEM_SIZE, Block, Uuids
from btrfs_model.mount.mkfs.writer.chunks import Chunks
from btrfs_model.mount.roots.backups import make_backup, store_backup
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.superblock_write import Written, write_superblocks

_GENERATION, _DIRID, _BYTENR, _FLAGS, _LEVEL, _GENERATION_2 = 160, 168, 176, 208, 238, 239
_INODE_FLAGS: Final = 64
_ROOT_ITEM_INIT: Final = 1 << 31
_UUID: Final = slice(247, 263)
_TIMES: Final = (327, 339)
_CSUMS: Final = (1 << 64) - 10
_CELLS: Final = 4
_NO_UUID: Final = bytes(16)


class Transactions(Chunks):
    """Trees that are committed.

    `tree_root`, `fs_root`, `csum_root`: further trees.
    `raw`: the superblock.
    `buffer`: the device.
    """

    tree_root: Root
    fs_root: Root
    csum_root: Root
    raw: structs.RawSuperBlock
    buffer: Written

    def __init__(self, nodesize: int, uuids: Uuids, *, skinny: bool) -> None:
        super().__init__(nodesize, uuids, skinny=skinny)
        self._newest = 0

    def start(self, root: Root) -> None:
        """Start a transaction, on behalf of a tree (``btrfs_start_transaction()``)."""
        self.begin_transaction()
        root.committed = root.node

    # --------------------------------------------------------------------------- root items --

    def _set_root(self, root: Root) -> None:
        item, node = root.item, root.node
        item[_BYTENR : _BYTENR + 8] = node.start.to_bytes(8, "little")
        item[_GENERATION : _GENERATION + 8] = self.generation.to_bytes(8, "little")
        item[_LEVEL] = node.level

    def update_root(self, root: Root) -> None:
        """Write a root item (``btrfs_update_root()``)."""
        item = root.item
        item[_GENERATION_2 : _GENERATION_2 + 8] = item[_GENERATION : _GENERATION + 8]
        path, found = self.search(self.tree_root, root.key, change=True)
        assert found, root.key
        path.leaf.write(path.slot, bytes(item))
        self.mark_dirty(path.leaf)

    def create_tree(self, number: int) -> Root:
        """Make an empty tree (``btrfs_create_tree()``)."""
        root = Root(number, Block(0, self.nodesize), bytes(structs.ROOT_ITEM.size))
        root.shareable, shareable = False, root.shareable
        root.node = self.new_block(root, None, 0)
        root.shareable = shareable
        self.mark_dirty(root.node)
        self._set_root(root)
        self.count_blocks(root, 1)
        root.item[216:220] = (1).to_bytes(4, "little")
        root.item[_GENERATION_2 : _GENERATION_2 + 8] = self.generation.to_bytes(8, "little")
        self.insert(self.tree_root, root.key, bytes(root.item))
        return root

    def make_subvolume(
        self, number: int, seconds: int, uuid: bytes = b"", *, read_only: bool = False
    ) -> Root:
        """Make a tree with an empty folder (``btrfs_make_subvolume()``).

        `uuid`: that of a subvolume, which has times, too.
        """
        root = self.create_tree(number)
        self.make_root_dir(root, int(ObjectId.FIRST_FREE), seconds)
        root.item[_INODE_FLAGS : _INODE_FLAGS + 8] = _ROOT_ITEM_INIT.to_bytes(8, "little")
        root.item[_FLAGS] |= read_only
        if uuid:
            root.item[_UUID] = uuid
            for at in _TIMES:
                root.item[at : at + 8] = seconds.to_bytes(8, "little")
        self.update_root(root)
        return root

    def make_root_dir(self, root: Root, number: int, seconds: int) -> None:
        """Make the uppermost folder of a tree (``btrfs_make_root_dir()``)."""
        self._add_folder(root, number, seconds, structs.Timespec(seconds, 0), nbytes=self.nodesize)
        root.item[_DIRID : _DIRID + 8] = number.to_bytes(8, "little")

    def _add_folder(
        self, root: Root, number: int, seconds: int, otime: structs.Timespec, *, nbytes: int
    ) -> None:
        now = structs.Timespec(seconds, 0)
        inode = structs.InodeItem(self.generation, 0, 0, nbytes, 0, 1, 0, 0, 0o40755, 0, 0, 0,
                                  (0, 0, 0, 0), now, now, now, otime)  # fmt: skip
        self.insert(root, (number, int(ItemType.INODE_ITEM), 0), structs.INODE_ITEM.pack(inode))
        name = structs.INODE_REF.pack(structs.RawInodeRef(0, 2)) + b".."
        self.insert(root, (number, int(ItemType.INODE_REF), number), name)

    def make_old_subvolume(self, number: int, seconds: int) -> None:
        """Make a tree with an empty folder as btrfs-progs 6.2 does."""
        root = self.create_tree(number)
        directory = int(ObjectId.FIRST_FREE)
        root.item[_DIRID : _DIRID + 8] = directory.to_bytes(8, "little")
        self.update_root(root)
        self._add_folder(root, directory, seconds, structs.Timespec(0, 0), nbytes=0)

    @staticmethod
    def uuid_of(root: Root) -> bytes:
        """Return the uuid of a subvolume."""
        return bytes(root.item[_UUID])

    # --------------------------------------------------------------------------------- data --

    def add_sum(self, logical: int, sector: bytes) -> None:
        """Add the checksum of a sector (``btrfs_csum_file_block()``)."""
        digest = csum(self.raw.csum_type, sector)
        root, key = self.csum_root, (_CSUMS, int(ItemType.EXTENT_CSUM), logical)
        path, found = self.search(root, key, change=True)
        assert not found, logical
        most = (self.capacity - 2 * ITEM_SIZE) // len(digest) - 1
        if path.slot and path.leaf.size(path.slot - 1) // len(digest) < most:
            path, _ = self.search(root, key, len(digest), change=True)
            if path.slot:
                path.slots[0] -= 1
                size, first = path.leaf.size(path.slot), path.leaf.key(path.slot)[2]
                place = (logical - first) // SECTORSIZE * len(digest)
                if place == size and size // len(digest) < most:
                    self.extend(path, len(digest))
                    path.leaf.write(path.slot, digest, size)
                    self.mark_dirty(path.leaf)
                    return
        self.insert(root, key, digest)

    # ------------------------------------------------------------------------------- commit --

    def commit(self, root: Root) -> None:
        """Commit (``btrfs_commit_transaction()``)."""
        self.run_references()
        besides = (self.tree_root, self.chunk_root, *self._group_tree())
        if root.committed is not root.node and root not in besides:
            root.committed = None
            self._set_root(root)
            self.update_root(root)
        self.cow(self.tree_root, self.tree_root.node, None, 0)
        self.run_references()
        while self.changed:
            changed = self.changed.pop(0)
            self._update_changed(changed)
            changed.committed = None
        while self.waiting or self.dirty_groups:
            self.write_groups()
            self.run_references()
        self._write_blocks()
        self._write_super()
        self.finish_pinned()
        root.committed = None

    def _group_tree(self) -> list[Root]:
        return [] if self.groups_root is self.extent_root else [self.groups_root]

    def _update_changed(self, root: Root) -> None:
        """Write a root item until it stays right (``update_cowonly_root()``)."""
        while int.from_bytes(root.item[_BYTENR : _BYTENR + 8], "little") != root.node.start:
            self._set_root(root)
            self.update_root(root)
            self.write_groups()

    def write_data(self, logical: int, data: bytes | bytearray) -> None:
        """Write data to all their places."""
        group = self.group_of(logical)
        assert group is not None
        for at in group.copies(logical):
            self.buffer[at : at + len(data)] = data

    def _write_blocks(self) -> None:
        for start in sorted(self.dirty):
            block = self.dirty[start]
            block.mark_written()
            digest = csum(self.raw.csum_type, bytes(block.data[32:]))
            block.data[: len(digest)] = digest
            self.write_data(start, block.data)
        self.dirty.clear()

    def _write_super(self) -> None:
        """Write the superblock, with the places of trees at this commit."""
        system = b"".join(
            structs.DISK_KEY.pack(structs.DiskKey(256, ItemType.CHUNK_ITEM, start)) + item
            for start, item in self.system.items()
        )
        top, chunks = self.tree_root.node, self.chunk_root.node
        self.raw = self.raw._replace(
            generation=self.generation, root=top.start, root_level=top.level,
            chunk_root=chunks.start, chunk_root_level=chunks.level,
            chunk_root_generation=chunks.generation, total_bytes=self.total_bytes,
            bytes_used=self.bytes_used, dev_item=self.device,
            sys_chunk_array_size=len(system), sys_chunk_array=self._system_array(system),
        )  # fmt: skip
        self._back_up()
        write_superblocks(self.buffer, self.raw)

    def _system_array(self, system: bytes) -> bytes:
        """Return the array; behind its end stays what was there."""
        before: bytes = self.raw.sys_chunk_array
        return system + before[len(system) :]

    def _back_up(self) -> None:
        roots = {
            int(tree): (root.node.start, root.node.generation, root.node.level)
            for tree, root in (
                (ObjectId.ROOT_TREE, self.tree_root), (ObjectId.CHUNK_TREE, self.chunk_root),
                (ObjectId.EXTENT_TREE, self.extent_root), (ObjectId.FS_TREE, self.fs_root),
                (ObjectId.DEV_TREE, self.dev_root), (ObjectId.CSUM_TREE, self.csum_root),
            )
        }  # fmt: skip
        generations = [cell.tree_root_gen for cell in self.raw.super_roots]
        newest = self._newest_cell(generations)
        cell = (newest + 1) % _CELLS
        if generations[newest] == self.tree_root.node.generation:
            cell = newest
        self.raw = store_backup(self.raw, cell, make_backup(self.raw, roots))

    def _newest_cell(self, generations: list[int]) -> int:
        """Return the newest cell of another commit than this (``find_best_backup_root()``)."""
        best = newest = 0
        for cell, generation in enumerate(generations):
            if generation != self.raw.generation and generation > newest:
                best, newest = cell, generation
        return best

    def finish(self) -> None:
        """Write the superblock once more, as that of a whole filesystem."""
        self._write_super()
