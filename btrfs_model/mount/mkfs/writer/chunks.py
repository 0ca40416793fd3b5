# SPDX-License-Identifier: GPL-2.0-only
"""Chunks that are made and removed (``volumes.c``, ``extent-tree.c``)."""

from __future__ import annotations

import errno
import os
from typing import Final

from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.block import Key
from btrfs_model.mount.mkfs.writer.extents import Extents
from btrfs_model.mount.mkfs.writer.space import Group
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.chunk_write import CHUNK_OBJECTID, chunk_item, dev_extent
from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_DUP,
    BTRFS_BLOCK_GROUP_SYSTEM,
    BTRFS_STRIPE_LEN,
)
from btrfs_model.ondisk.keys import ItemType

_MIB: Final = 1 << 20
_LARGE: Final = 50 << 30
DEVICE_KEY: Final = (1, int(ItemType.DEV_ITEM), 1)


class Chunks(Extents):
    """Trees on one device.

    `device`: its item.
    `stripes`: what is taken of it: start and length, ascending.
    `system`: the chunks in the superblock, as bytes.
    `forgets`: whether the free space tree forgets chunks that are removed.
    `groups_root`: the tree that block groups are in.
    """

    groups_root: Root
    dev_root: Root
    device: structs.DevItem
    total_bytes: int
    forgets: bool

    def set_up_device(self, device: structs.DevItem, first: Group, item: bytes) -> None:
        """Take over the device with its first chunk."""
        self.device = device
        self.total_bytes = device.total_bytes
        self.stripes = [(first.start, first.length)]
        self.system = {first.start: item}
        self._making = False

    # -------------------------------------------------------------------------------- sizes --

    def _sizes(self, kind: int) -> tuple[int, int, int]:
        """Return stripe, smallest stripe and largest chunk (``init_alloc_chunk_ctl()``)."""
        stripe, least, most = 8 * _MIB, _MIB, 32 * _MIB
        if kind & BTRFS_BLOCK_GROUP_DUP:
            if kind & BTRFS_BLOCK_GROUP_SYSTEM:
                most = 16 * _MIB
            elif kind & BTRFS_BLOCK_GROUP_DATA:
                stripe, least, most = 1024 * _MIB, 64 * _MIB, 10240 * _MIB
            else:
                stripe = most = 1024 * _MIB if self.total_bytes > _LARGE else 256 * _MIB
                least = 32 * _MIB
        return stripe, least, min(most, self.total_bytes // 10)

    def _available(self) -> int:
        free, at = 0, _MIB
        for start, length in self.stripes:
            free += max(start - at, 0)
            at = max(at, start + length)
        return free + max(self.device.total_bytes - at, 0)

    def _free_stripe(self, size: int) -> int:
        """Return where a stripe fits on the device (``find_free_dev_extent()``).

        Raises OSError: ENOSPC.
        """
        at = _MIB
        for start, length in self.stripes:
            if start - at >= size:
                return at
            at = max(at, start + length)
        if self.device.total_bytes - at < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return at

    def _stripe_size(self, kind: int, copies: int) -> int:
        """Return how long the stripes of a new chunk are.

        Raises OSError: ENOSPC.
        """
        stripe, least, most = self._sizes(kind)
        for _ in range(2):
            if stripe > most:
                stripe = most // copies // BTRFS_STRIPE_LEN * BTRFS_STRIPE_LEN
            stripe = max(stripe, least) // BTRFS_STRIPE_LEN * BTRFS_STRIPE_LEN
            available = self._available()
            if available >= stripe * copies:
                return stripe
            stripe = available // copies
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # ------------------------------------------------------------------------------- chunks --

    def make_group(self, kind: int) -> Group:
        """Make a chunk and its block group (``btrfs_alloc_chunk()``, ``btrfs_make_block_group()``).

        Raises OSError: ENOSPC.
        """
        copies = 2 if kind & BTRFS_BLOCK_GROUP_DUP else 1
        size = self._stripe_size(kind, copies)
        logical = max(group.end for group in self.groups.values())
        places = []
        for _ in range(copies):
            start = self._free_stripe(size)
            places.append(start)
            self.stripes = sorted([*self.stripes, (start, size)])
            piece = dev_extent(Chunk(logical, size, kind, ()), self.uuids.chunk_tree_uuid)
            self.insert(self.dev_root, (1, int(ItemType.DEV_EXTENT), start), piece)
            self._use(size)
        chunk = Chunk(logical, size, kind, tuple(places))
        item = chunk_item(chunk, 1, self.device.uuid)
        self.insert(self.chunk_root, (CHUNK_OBJECTID, int(ItemType.CHUNK_ITEM), logical), item)
        if kind & BTRFS_BLOCK_GROUP_SYSTEM:
            self.system[logical] = item
        group = self.add_group(chunk)
        self.insert(self.groups_root, self._group_key(group), self._group_item(group))
        self.add_group_space(group)
        return group

    def _use(self, size: int) -> None:
        """Count bytes of the device in its item (``btrfs_update_device()``)."""
        self._write_device(self.device._replace(bytes_used=self.device.bytes_used + size))

    def resize(self, size: int) -> None:
        """Set the size of the device."""
        self.total_bytes = size
        self._write_device(self.device._replace(total_bytes=size))

    def _write_device(self, device: structs.DevItem) -> None:
        self.device = device
        path, _ = self.search(self.chunk_root, DEVICE_KEY, change=True)
        path.leaf.write(path.slot, structs.DEV_ITEM.pack(self.device))
        self.mark_dirty(path.leaf)

    def more_space(self, size: int, flags: int) -> None:
        """Make a chunk where little space of a kind is left (``btrfs_try_chunk_alloc()``)."""
        space = self.space(flags)
        taken = space.used + space.pinned + space.reserved + size
        if space.full or taken < space.total * 7 // 10 or self._making:
            return
        self._making = True
        try:
            self.make_group(flags | space.flags)
        except OSError:
            space.full = True
        finally:
            self._making = False

    def remove_chunk(self, group: Group) -> None:
        """Remove an empty chunk (``btrfs_remove_block_group()``)."""
        self.pin(group.start, group.length)
        self._delete_one(self.groups_root, self._group_key(group))
        for stripe in group.chunk.stripes:
            self._delete_one(self.dev_root, (1, int(ItemType.DEV_EXTENT), stripe))
            self.stripes.remove((stripe, group.length))
        key = (CHUNK_OBJECTID, int(ItemType.CHUNK_ITEM), group.start)
        self._delete_one(self.chunk_root, key)
        self.system.pop(group.start, None)
        if self.forgets:
            self.remove_group_space(group)
        self.remove_group(group)
        for _ in group.chunk.stripes:
            self._use(-group.length)
        self.unpin(group.start, group.length)

    def _delete_one(self, root: Root, key: Key) -> None:
        path, found = self.search(root, key, -1, change=True)
        assert found, key
        self.delete(root, path, path.slot)

    # ------------------------------------------------------------------------- block groups --

    @staticmethod
    def _group_key(group: Group) -> Key:
        return group.start, int(ItemType.BLOCK_GROUP_ITEM), group.length

    @staticmethod
    def _group_item(group: Group) -> bytes:
        item = structs.BlockGroupItem(group.used, CHUNK_OBJECTID, group.flags)
        return structs.BLOCK_GROUP_ITEM.pack(item)

    def write_groups(self) -> None:
        """Say in the items of groups what changed (``btrfs_write_dirty_block_groups()``)."""
        while self.dirty_groups:
            group = self.dirty_groups.pop(0)
            path, _ = self.search(self.groups_root, self._group_key(group), change=True)
            path.leaf.write(path.slot, self._group_item(group))
            self.mark_dirty(path.leaf)
