# SPDX-License-Identifier: GPL-2.0-only
"""Root items: where the trees of a filesystem are.

The root tree (its address stands in the superblock) has a ROOT_ITEM for each other tree; those of
subvolumes also say whose snapshot they are, whether they are read-only, when they were received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.items import OLD_ROOT_ITEM_SIZE, root_item
from btrfs_model.ondisk.keys import Key, ObjectId, objectid_name
from btrfs_model.ondisk.layout import Payload
from btrfs_model.ondisk.structs import RootItem, Timespec
from btrfs_model.volume.tree import Item, Tree

if TYPE_CHECKING:
    from btrfs_model.volume.image import Image

_ROOT_SUBVOL_RDONLY: Final = 1 << 0
# the upper 16 bits of an id are the level of a quota group
_SUBVOLUME_IDS_END: Final = 1 << 48


def is_subvolume_id(objectid: int) -> bool:
    """Whether trees of this id are subvolumes (``is_fstree()``)."""
    fs_tree = int(ObjectId.FS_TREE)
    return objectid == fs_tree or ObjectId.FIRST_FREE <= objectid < _SUBVOLUME_IDS_END


def tree_name(objectid: int) -> str:
    """Return what a tree is called."""
    if is_subvolume_id(objectid) and objectid != ObjectId.FS_TREE:
        return f"subvolume {objectid}"
    return objectid_name(objectid).lower().replace("_", " ")


def may_be_relocated(objectid: int) -> bool:
    """Whether a balance makes relocation trees of it (BTRFS_ROOT_SHAREABLE)."""
    return is_subvolume_id(objectid) or objectid == ObjectId.DATA_RELOC_TREE


def timespec_ns(time: Timespec | tuple[int, int]) -> int:
    """Nanoseconds since 1970; seconds are signed."""
    seconds, nsec = time
    return (seconds - 2**64 if seconds >> 63 else seconds) * 10**9 + nsec


def read_root_item(payload: Payload) -> RootItem:
    """Take a root item apart as ``btrfs_read_root_item()`` does (Linux 6.12).

    An older kernel (before 3.6) that wrote over a newer item left `generation_v2` behind: the
    fields that it did not know are then stale and read as zero.

    Raises PayloadError: when it is too short.
    """
    item = root_item(payload)
    if item.generation == item.generation_v2:
        return item
    return root_item(payload[:OLD_ROOT_ITEM_SIZE])


def _init_root_item(item: RootItem) -> RootItem:
    """Return the root item of a subvolume as a mount has it (``btrfs_check_and_init_root_item()``).

    Flags and limit count where the inode in the item says that they were initialized. mkfs.btrfs
    does not say so of the top level; a kernel does when it writes the item.
    """
    if item.inode.flags & InodeFlag.ROOT_ITEM_INIT:
        return item
    inode = item.inode._replace(flags=item.inode.flags | int(InodeFlag.ROOT_ITEM_INIT))
    return item._replace(inode=inode, flags=0, byte_limit=0)


@dataclass(frozen=True, slots=True)
class Root:
    """A root item and where it lies.

    `key`: (tree id, ROOT_ITEM, 0 or the transaction that made the snapshot).
    `item`: as a mounted kernel has it.
    `block`, `slot`: the leaf of the root tree that holds it.
    """

    key: Key
    item: RootItem
    block: int
    slot: int

    @classmethod
    def of(cls, item: Item, path: str, tree: int) -> Root:
        """Read the root item `item` of the tree `tree` of an image."""
        root = item.decode(read_root_item, path, tree)
        if is_subvolume_id(item.key.objectid):
            root = _init_root_item(root)
        return cls(item.key, root, item.block, item.slot)

    @property
    def id(self) -> int:
        """The tree's objectid."""
        return self.key.objectid

    @property
    def is_dead(self) -> bool:
        """Whether the subvolume was deleted and only waits for its blocks to be freed.

        Other trees have root items of no references too: mkfs.btrfs makes such a quota tree.
        """
        return self.item.refs == 0 and is_subvolume_id(self.id)

    @property
    def progress(self) -> Key | None:
        """Of a subvolume that is being freed: everything before that key has gone."""
        key = Key(*self.item.drop_progress)
        return key if self.item.refs == 0 and key.objectid else None

    @property
    def is_read_only(self) -> bool:
        """Whether it is a read-only subvolume."""
        return bool(self.item.flags & _ROOT_SUBVOL_RDONLY)

    def tree(self, image: Image, objectid: int | None = None) -> Tree:
        """Return the tree, under another id than the key's where given (logs)."""
        return Tree(
            image,
            self.id if objectid is None else objectid,
            self.item.bytenr,
            self.item.generation,
            self.item.level,
        )
