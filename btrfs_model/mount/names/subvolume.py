# SPDX-License-Identifier: GPL-2.0-only
"""Subvolumes: making and deleting them, and the cleaner that frees the deleted ones.

A deleted subvolume loses its name and its references at once; an orphan item in the root tree says
that its blocks are still there, until the cleaner has dropped them (``btrfs_drop_snapshot()``),
which kernels do in the background, after a commit.
"""

from __future__ import annotations

import errno
import stat
from contextlib import suppress
from typing import Final

from btrfs_model.mount.inode import (
    discard_pages,
    iget,
    new_inode,
    next_index,
    orphan_key,
    update_root_times,
)
from btrfs_model.mount.live_inode import ROOT_DIR, InodeFields, LiveInode, split_ns
from btrfs_model.mount.log.log_tree import record_subvolume
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names import acl
from btrfs_model.mount.names.dir_item import (
    check_dir_item_collision,
    fail,
    lookup_dir_item,
    pack_dir_item,
)
from btrfs_model.mount.names.lookup import RDONLY, Entry
from btrfs_model.mount.names.namei import add_link, insert_new_inode, unlink_subvolume_name
from btrfs_model.mount.names.xattr import inherit_properties
from btrfs_model.mount.roots.root_tree import NO_UUID, uuid_tree_add, uuid_tree_remove
from btrfs_model.mount.space.qgroup import inherit_qgroups, remove_qgroup
from btrfs_model.mount.space.quota_reserve import reserve_items as reserve_qgroups
from btrfs_model.mount.space.space_info import reserve_subvolume
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import DiskKey, InodeItem, RootItem, Timespec
from btrfs_model.patches import Patch
from btrfs_model.volume.quotas import Inherit
from btrfs_model.volume.roots import is_subvolume_id

_ROOT_TREE: Final = int(ObjectId.ROOT_TREE)
# btrfs_subvolume_reserve_metadata(): the inode of the directory, two entries
NAME_ITEMS: Final = 3
# create_subvol_num_items(): a block, the root item, two references, a uuid, a quota group's two
# items; with the names
CREATE_ITEMS: Final = 7 + NAME_ITEMS
# btrfs_delete_subvolume()
_DELETE_ITEMS: Final = 5
_NO_TIME: Final = Timespec(0, 0)
_DEFAULT: Final = b"default"
# BTRFS_FEATURE_INCOMPAT_DEFAULT_SUBVOL
_DEFAULT_SUBVOL: Final = 1 << 1
# btrfs_name_hash("default"), where the root tree names the default subvolume
_DEFAULT_KEY: Final = (int(ObjectId.ROOT_TREE_DIR), int(ItemType.DIR_ITEM), 2378154706)


def timespec(time: int) -> Timespec:
    """Return a time in nanoseconds as it is on disk."""
    return Timespec(*split_ns(time))


def create_subvolume(fs: Mount, entry: Entry, inherit: Inherit | None = None) -> LiveInode:
    """Make an empty subvolume (``create_subvol()``); return its top directory.

    `inherit`: what is said of quota groups.
    Raises OSError: EOVERFLOW.
    """
    directory = entry.directory
    check_dir_item_collision(fs, directory.root, directory.ino, entry.name)
    root = fs.next_root_id()
    reserve_qgroups(fs, directory.root, NAME_ITEMS)
    reserve_subvolume(fs, CREATE_ITEMS)
    start_transaction(fs)
    inherit_qgroups(fs, 0, root, directory.root, inherit)
    fs.writer.new_tree(root, shareable=True)
    item = _new_root_item(fs, root)
    fs.add_root(root, item)
    uuid_tree_add(fs, item.uuid, ItemType.UUID_KEY_SUBVOL, root)
    inode = _new_top_directory(fs, root, directory)
    index = next_index(fs, directory)
    inode.dir_index = index
    # its own name is ".." in itself, and its index there 0
    insert_new_inode(fs, inode, ROOT_DIR, b"..", 0)
    inherit_properties(fs, inode, iget(fs, directory.root, ROOT_DIR))
    update_root_times(fs, root)
    if Patch.LOG_CONFLICT_LIST in fs.behaviour:
        record_subvolume(fs, directory)
    add_link(fs, directory, inode, entry.name, index)
    return inode


def _new_root_item(fs: Mount, root: int) -> RootItem:
    state = fs.writer.tree_state(root)
    now = timespec(fs.now())
    inode = InodeItem(
        generation=1, transid=0, size=3, nbytes=fs.nodesize, block_group=0, nlink=1, uid=0, gid=0,
        mode=stat.S_IFDIR | 0o755, rdev=0, flags=int(InodeFlag.ROOT_ITEM_INIT), sequence=0,
        reserved=(0,) * 4, atime=_NO_TIME, ctime=_NO_TIME, mtime=_NO_TIME, otime=_NO_TIME,
    )  # fmt: skip
    return RootItem(
        inode=inode, generation=fs.transid, root_dirid=ROOT_DIR, bytenr=state.bytenr, byte_limit=0,
        bytes_used=fs.nodesize, last_snapshot=0, flags=0, refs=1, drop_progress=DiskKey(0, 0, 0),
        drop_level=0, level=0, generation_v2=fs.transid, uuid=fs.new_uuid(), parent_uuid=NO_UUID,
        received_uuid=NO_UUID, ctransid=fs.transid, otransid=fs.transid, stransid=0, rtransid=0,
        ctime=now, otime=now, stime=_NO_TIME, rtime=_NO_TIME, reserved=(0,) * 8,
    )  # fmt: skip


def _new_top_directory(fs: Mount, root: int, directory: LiveInode) -> LiveInode:
    """``btrfs_new_subvol_inode()``: a default ACL of the directory shapes the mode, no more."""
    now = fs.now()
    item = InodeFields(
        generation=fs.transid, transid=fs.transid, uid=fs.uid, gid=fs.gid,
        mode=stat.S_IFDIR | 0o777 & ~fs.umask, atime=now, ctime=now, mtime=now, otime=now,
    )  # fmt: skip
    acl.inherit(fs, directory, item)
    return new_inode(fs, root, item)


# ------------------------------------------------------------------------------------ deleting --


def delete_subvolume(fs: Mount, entry: Entry, inode: LiveInode) -> None:
    """Delete a subvolume (``btrfs_delete_subvolume()``).

    Raises OSError: EPERM for the default subvolume, ENOTEMPTY when subvolumes are in it.
    """
    root = inode.root
    _may_destroy(fs, root, entry)
    reserve_qgroups(fs, entry.directory.root, NAME_ITEMS)
    reserve_subvolume(fs, _DELETE_ITEMS, steal=True)
    start_transaction(fs, from_reserve=True)
    record_subvolume(fs, entry.directory)
    unlink_subvolume_name(fs, entry.directory, inode, entry.name)
    live = fs.live_root(root)
    live.drop_progress = DiskKey(0, 0, 0)
    live.drop_level = 0
    live.refs = 0
    live.dirty = True
    fs.writer.insert(_ROOT_TREE, orphan_key(root), b"")
    uuid_tree_remove(fs, live.uuid, ItemType.UUID_KEY_SUBVOL, root)
    if live.received_uuid != NO_UUID:
        uuid_tree_remove(fs, live.received_uuid, ItemType.UUID_KEY_RECEIVED_SUBVOL, root)
    for waiting in list(fs.dirty_files.values()):
        if waiting.root == root:
            discard_pages(fs, waiting)


def default_subvolume(fs: Mount) -> int:
    """Return the id of the subvolume that a mount shows which names none."""
    found = lookup_dir_item(fs, _ROOT_TREE, _DEFAULT_KEY, _DEFAULT)
    return found.location.objectid if found is not None else int(ObjectId.FS_TREE)


def set_default_subvolume(fs: Mount, root: int) -> None:
    """``btrfs_ioctl_default_subvol()``.

    Raises OSError: ENOENT where there is no such subvolume.
    """
    root = root or int(ObjectId.FS_TREE)
    missing = fail(errno.ENOENT, f"subvolume {root}")
    entry = lookup_dir_item(fs, _ROOT_TREE, _DEFAULT_KEY, _DEFAULT)
    if not is_subvolume_id(root) or entry is None:
        raise missing
    try:
        live = fs.live_root(root)
    except FileNotFoundError:
        raise missing from None
    if not live.refs:
        raise missing
    start_transaction(fs)
    target = (root, int(ItemType.ROOT_ITEM), live.offset)
    payload = pack_dir_item(target, entry.transid, entry.type, _DEFAULT)
    fs.writer.replace(_ROOT_TREE, _DEFAULT_KEY, payload)
    fs.add_incompat(_DEFAULT_SUBVOL)


def _may_destroy(fs: Mount, root: int, entry: Entry) -> None:
    """``may_destroy_subvol()``."""
    if root == default_subvolume(fs):
        raise fail(errno.EPERM, entry.path)
    ref = fs.writer.tree(_ROOT_TREE).first((root, ItemType.ROOT_REF, 0))
    if ref is not None and ref.key[:2] == (root, ItemType.ROOT_REF):
        raise fail(errno.ENOTEMPTY, entry.path)


def dead_subvolumes(fs: Mount) -> list[int]:
    """Ids of the deleted subvolumes whose blocks are not freed yet, ascending."""
    items = fs.writer.tree(_ROOT_TREE).items(orphan_key(0), orphan_key(U64_MAX))
    return [item.key.offset for item in items]


def clean_deleted_subvolume(fs: Mount, root: int) -> None:
    """Free the blocks of a deleted subvolume (``btrfs_clean_one_deleted_snapshot()``)."""
    fs.delayed.kill_all(root)
    fs.live_subvolumes.pop(root, None)
    start_transaction(fs, from_reserve=True)
    fs.writer.drop_tree(root)
    fs.forget_root(root)
    fs.writer.delete(_ROOT_TREE, orphan_key(root))
    _remove_qgroup(fs, root)


def _remove_qgroup(fs: Mount, root: int) -> None:
    """Commit and delete the quota group (``btrfs_qgroup_cleanup_dropped_subvolume()``)."""
    if fs.writer.quota_inconsistent():
        fs.quotas.mark_inconsistent()
    if not fs.quotas.enabled or Patch.QGROUP_AUTO_REMOVE not in fs.behaviour:
        return
    commit(fs)
    start_transaction(fs)
    with suppress(FileNotFoundError):
        try:
            remove_qgroup(fs, root)
        except OSError as error:
            # what it allocated is still somewhere
            if error.errno != errno.EBUSY:
                raise


# ------------------------------------------------------------------------------------- changing --


def set_read_only(fs: Mount, root: int, read_only: bool) -> None:
    """Make a subvolume read-only or writable (``btrfs_ioctl_subvol_setflags()``); commits."""
    live = fs.live_root(root)
    if bool(live.flags & RDONLY) == read_only:
        return
    reserve_qgroups(fs, root, 1)
    start_transaction(fs)
    live.flags = live.flags | RDONLY if read_only else live.flags & ~RDONLY
    live.dirty = True
    commit(fs)


def set_received(fs: Mount, root: int, uuid: bytes, stransid: int, stime: int) -> None:
    """Say what a subvolume was received from (``_btrfs_ioctl_set_received_subvol()``); commits."""
    reserve_qgroups(fs, root, 3)
    start_transaction(fs)
    live = fs.live_root(root)
    kind = ItemType.UUID_KEY_RECEIVED_SUBVOL
    changed = live.received_uuid != uuid
    if changed and live.received_uuid != NO_UUID:
        uuid_tree_remove(fs, live.received_uuid, kind, root)
    live.received_uuid = uuid
    live.stransid, live.rtransid = stransid, fs.transid
    live.stime, live.rtime = timespec(stime), timespec(fs.now())
    live.dirty = True
    if changed and uuid != NO_UUID:
        uuid_tree_add(fs, uuid, kind, root)
    commit(fs)
