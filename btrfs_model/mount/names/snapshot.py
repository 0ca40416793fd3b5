# SPDX-License-Identifier: GPL-2.0-only
"""Snapshots: taken within a commit, after the delayed items are in the trees.

The source's root block is copied, so that both trees share everything below it; the entry of the
snapshot is made after that, and so a snapshot of the subvolume that it lies in has no entry of
itself.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import NamedTuple

from btrfs_model.mount.delayed_inode import run_delayed_items
from btrfs_model.mount.inode import mark_inode_dirty, next_index
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import dir_item_key, fail, insert_dir_item, lookup_dir_item
from btrfs_model.mount.names.lookup import RDONLY
from btrfs_model.mount.names.subvolume import timespec
from btrfs_model.mount.roots.root_tree import NO_UUID, add_root_ref, uuid_tree_add
from btrfs_model.mount.space.qgroup import create_qgroup, inherit_qgroups
from btrfs_model.mount.transaction import account_snapshot
from btrfs_model.native.space import QuotaMode
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.structs import RootItem, Timespec
from btrfs_model.volume.quotas import Inherit


class PendingSnapshot(NamedTuple):
    """A snapshot that the next commit takes (``struct btrfs_pending_snapshot``).

    `source`: subvolume.
    `directory`: where it gets its name.
    `name`: the name.
    `read_only`: whether it is.
    `inherit`: what the call says of quota groups.
    """

    source: int
    directory: LiveInode
    name: bytes
    read_only: bool
    inherit: Inherit | None = None


def create_pending_snapshot(fs: Mount, pending: PendingSnapshot) -> None:
    """Take a snapshot (``create_pending_snapshot()``).

    Raises OSError: EEXIST when the name was taken meanwhile.
    """
    directory, name = pending.directory, pending.name
    root = fs.next_root_id()
    index = next_index(fs, directory)
    now = fs.now()
    key = dir_item_key(directory.ino, name)
    if lookup_dir_item(fs, directory.root, key, name) is not None:
        raise fail(errno.EEXIST, name)
    if fs.quotas.has_tree and root not in fs.quotas.by_id:
        create_qgroup(fs, root)
    run_delayed_items(fs)
    item = _snapshot_item(fs, pending, now)
    fs.writer.copy_root(pending.source, root)
    state = fs.writer.tree_state(root)
    item = item._replace(bytenr=state.bytenr, level=state.level, generation=fs.transid,
                         generation_v2=fs.transid)  # fmt: skip
    fs.add_root(root, item, offset=fs.transid)
    add_root_ref(fs, root, directory.root, directory.ino, index, name)
    _count(fs, pending, root)
    location = (root, ItemType.ROOT_ITEM, U64_MAX)
    insert_dir_item(fs, directory, name, location, int(FileType.DIR), index)
    # unlike other new entries it does not count on the version of the directory
    directory.item.size += 2 * len(name)
    directory.item.mtime = directory.item.ctime = fs.now()
    mark_inode_dirty(fs, directory)
    uuid_tree_add(fs, item.uuid, ItemType.UUID_KEY_SUBVOL, root)
    if item.received_uuid != NO_UUID:
        uuid_tree_add(fs, item.received_uuid, ItemType.UUID_KEY_RECEIVED_SUBVOL, root)


def _count(fs: Mount, pending: PendingSnapshot, root: int) -> None:
    """Make the quota group of a snapshot."""
    inherit = partial(
        inherit_qgroups, fs, pending.source, root, pending.directory.root, pending.inherit
    )
    if fs.quotas.mode is QuotaMode.FULL:
        account_snapshot(fs, root, inherit)
    elif fs.quotas.mode is QuotaMode.SIMPLE:
        inherit()


def _snapshot_item(fs: Mount, pending: PendingSnapshot, now: int) -> RootItem:
    """Root item of a snapshot: the source's, with an identity of its own."""
    source = fs.live_root(pending.source)
    source.last_snapshot = fs.transid
    source.dirty = True
    item = source.item
    flags = item.flags | RDONLY if pending.read_only else item.flags & ~RDONLY
    item = item._replace(flags=flags, uuid=fs.new_uuid(), parent_uuid=item.uuid,
                         otime=timespec(now), otransid=fs.transid)  # fmt: skip
    if pending.read_only:
        return item
    no_time = Timespec(0, 0)
    return item._replace(received_uuid=NO_UUID, stime=no_time, rtime=no_time, stransid=0,
                         rtransid=0)  # fmt: skip
