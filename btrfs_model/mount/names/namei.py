# SPDX-License-Identifier: GPL-2.0-only
"""Making and removing names: create, mkdir, mknod, symlink, link, unlink, rmdir.

Each function is a kernel's (inode.c) and does its steps in the kernel's order, since that order
decides where items come to lie. What the VFS checks before is in
:mod:`btrfs_model.mount.calls.names`.
"""

from __future__ import annotations

import errno
import stat
from typing import Final

from btrfs_model.mount.delayed_inode import balance_delayed_items
from btrfs_model.mount.inode import (
    iput,
    mark_inode_dirty,
    new_inode,
    next_index,
    orphan_add,
    orphan_delete,
    update_root_times,
)
from btrfs_model.mount.live_inode import (
    EMPTY_SUBVOL_DIR,
    ROOT_DIR,
    InodeFields,
    LiveInode,
    file_type,
)
from btrfs_model.mount.log.log_tree import delete_name, record_subvolume, record_unlink
from btrfs_model.mount.log.sync_log import log_new_name
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names import acl
from btrfs_model.mount.names.dir_item import (
    LINK_MAX,
    check_dir_item_collision,
    d_drop,
    delete_inode_ref,
    delete_one_dir_name,
    dir_item_key,
    fail,
    insert_dir_item,
    insert_inode_ref,
    pack_inode_ref,
)
from btrfs_model.mount.names.lookup import Entry
from btrfs_model.mount.names.xattr import inherit_properties
from btrfs_model.mount.roots.root_tree import add_root_ref, delete_root_ref
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.structs import FILE_EXTENT_HEAD
from btrfs_model.patches import Patch

# item and index of the directory, its inode; the inode and its name
_LINK_ITEMS: Final = 5
# item and index of the directory, its inode
_NAME_ITEMS: Final = 3
# BTRFS_UNLINK_METADATA_UNITS: the same, and an orphan item
UNLINK_ITEMS: Final = 6
HANDED_DOWN: Final = int(InodeFlag.NOCOMPRESS | InodeFlag.COMPRESS | InodeFlag.NODATACOW)
"""Flags that a directory hands down to new inodes."""


def touch(fs: Mount, directory: LiveInode) -> None:
    """Count on the version of a directory and set the times of its change."""
    item = directory.item
    item.sequence += 1
    item.mtime = item.ctime = fs.now()


# -------------------------------------------------------------------------------------- making --


def create_inode(fs: Mount, entry: Entry, mode: int, *, rdev: int = 0, size: int = 0) -> LiveInode:
    """Make an inode under a name (``btrfs_create_new_inode()``).

    `entry`: directory and name; nothing has the name.
    `mode`: type and permissions as the caller asks for them, before the umask.
    `rdev`: of a device: major << 20 | minor.
    `size`: of a symbolic link: the length of its target.
    """
    directory = entry.directory
    check_dir_item_collision(fs, directory.root, directory.ino, entry.name)
    start_transaction(fs, new_items(entry.directory, mode), root=directory.root)
    item = _new_item(fs, directory, mode, rdev, size)
    access, default = acl.inherit(fs, directory, item)
    inode = new_inode(fs, directory.root, item)
    inode.dir_index = next_index(fs, directory)
    _inherit_flags(fs, inode, directory)
    insert_new_inode(fs, inode, directory.ino, entry.name)
    inherit_properties(fs, inode, directory)
    acl.store_inherited(fs, inode, access, default)
    update_root_times(fs, inode.root)
    add_link(fs, directory, inode, entry.name, inode.dir_index)
    return inode


def create_tmpfile(fs: Mount, directory: LiveInode, mode: int) -> LiveInode:
    """Make a file without a name, which is an orphan from the start (``btrfs_tmpfile()``).

    `directory`, `mode`: as in :func:`create_inode`.
    """
    start_transaction(fs, new_items(directory, mode) - _NAME_ITEMS + 1, root=directory.root)
    item = _new_item(fs, directory, mode, 0, 0)
    item.nlink = 0
    access, default = acl.inherit(fs, directory, item)
    inode = new_inode(fs, directory.root, item)
    _inherit_flags(fs, inode, directory)
    fs.writer.insert(inode.root, inode.key, inode.item.pack())
    inherit_properties(fs, inode, directory)
    acl.store_inherited(fs, inode, access, default)
    update_root_times(fs, inode.root)
    orphan_add(fs, inode)
    return inode


def new_items(directory: LiveInode, mode: int) -> int:
    """How many items a new inode changes, on a kernel with a security module.

    (``btrfs_new_inode_prepare()``, ``btrfs_symlink()``.)
    """
    return 5 + stat.S_ISLNK(mode) + bool(directory.prop_compress)


def _new_item(fs: Mount, directory: LiveInode, mode: int, rdev: int, size: int) -> InodeFields:
    """``inode_init_owner()``: owners, and what a set-group-id directory hands down."""
    gid = fs.gid
    if directory.item.mode & stat.S_ISGID:
        gid = directory.item.gid
        if stat.S_ISDIR(mode):
            mode |= stat.S_ISGID
    now = fs.now()
    return InodeFields(
        generation=fs.transid, transid=fs.transid, size=size, nbytes=size, nlink=1, uid=fs.uid,
        gid=gid, mode=mode, rdev=rdev, atime=now, ctime=now, mtime=now, otime=now,
    )  # fmt: skip


def _inherit_flags(fs: Mount, inode: LiveInode, directory: LiveInode) -> None:
    """Set what comes from the directory (``btrfs_inherit_iflags()``) and from the mount."""
    flags, is_file = directory.item.flags & HANDED_DOWN, stat.S_ISREG(inode.item.mode)
    if flags & InodeFlag.NOCOMPRESS:
        flags &= ~InodeFlag.COMPRESS
    if is_file and not fs.options.data_cow:
        flags |= InodeFlag.NODATACOW
    if is_file and (flags & InodeFlag.NODATACOW or not fs.options.data_sum):
        flags |= InodeFlag.NODATASUM
    inode.item.flags |= flags


def insert_new_inode(
    fs: Mount, inode: LiveInode, parent: int, name: bytes, index: int | None = None
) -> None:
    """Insert the items of a new inode: itself and its name, in one go."""
    ref = pack_inode_ref(inode.dir_index if index is None else index, name)
    items = [(inode.key, inode.item.pack()), ((inode.ino, ItemType.INODE_REF, parent), ref)]
    fs.writer.insert_many(inode.root, items)


def add_link(
    fs: Mount,
    directory: LiveInode,
    inode: LiveInode,
    name: bytes,
    index: int,
    *,
    add_backref: bool = False,
) -> None:
    """Add an entry to a directory (``btrfs_add_link()``).

    Raises OSError: EMLINK or EEXIST from the name of the inode (`add_backref`); then nothing is
    changed.
    """
    location = inode.key
    if inode.ino == ROOT_DIR:
        location = fs.live_root(inode.root).key
        add_root_ref(fs, inode.root, directory.root, directory.ino, index, name)
    elif add_backref:
        insert_inode_ref(fs, directory.root, name, inode.ino, directory.ino, index)
    insert_dir_item(fs, directory, name, location, file_type(inode.item.mode), index)
    directory.dentries[name] = inode
    directory.item.size += 2 * len(name)
    touch(fs, directory)
    mark_inode_dirty(fs, directory)


def create_symlink(fs: Mount, entry: Entry, target: bytes) -> LiveInode:
    """``btrfs_symlink()``: the target is an inline extent, inserted after the entry."""
    mode = stat.S_IFLNK | 0o777
    inode = create_inode(fs, entry, mode, size=len(target))
    head = FILE_EXTENT_HEAD.struct.pack(fs.transid, len(target), 0, 0, 0, 0)
    fs.writer.insert(inode.root, (inode.ino, ItemType.EXTENT_DATA, 0), head + target)
    return inode


def link_inode(fs: Mount, entry: Entry, inode: LiveInode) -> None:
    """Give an inode one more name (``btrfs_link()``).

    Raises OSError: EXDEV, EMLINK or EOVERFLOW.
    """
    directory = entry.directory
    if directory.root != inode.root:
        raise fail(errno.EXDEV, entry.path)
    if inode.item.nlink >= LINK_MAX:
        raise fail(errno.EMLINK, entry.path)
    check_dir_item_collision(fs, directory.root, directory.ino, entry.name)
    start_transaction(fs, _LINK_ITEMS + (not inode.item.nlink), root=inode.root)
    index = next_index(fs, directory)
    inode.dir_index = 0
    # these change in memory also where there is no room for the name
    inode.item.sequence += 1
    inode.item.ctime = fs.now()
    add_link(fs, directory, inode, entry.name, index, add_backref=True)
    inode.item.nlink += 1
    mark_inode_dirty(fs, inode)
    if inode.item.nlink == 1:
        orphan_delete(fs, inode)
    log_new_name(fs, inode, directory)


# ------------------------------------------------------------------------------------ removing --


def unlink_name(
    fs: Mount, directory: LiveInode, inode: LiveInode, name: bytes, *, for_rename: bool = False
) -> int:
    """Remove an entry and the name that it gives (``__btrfs_unlink_inode()``).

    Returns its index in the directory. For a rename the log is left as it is, since Linux 5.18.
    """
    delete_one_dir_name(fs, directory.root, dir_item_key(directory.ino, name), name)
    d_drop(fs, directory, name)
    if inode.dir_index:
        fs.delayed.delete_inode_ref(inode)
        index = inode.dir_index
    else:
        index = delete_inode_ref(fs, directory.root, name, inode.ino, directory.ino)
    fs.delayed.delete_index(directory, index)
    if not for_rename or Patch.LOG_CONFLICT_LIST not in fs.behaviour:
        delete_name(fs, directory, inode, name, index)
    directory.item.size -= 2 * len(name)
    inode.item.sequence += 1
    inode.item.ctime = fs.now()
    touch(fs, directory)
    mark_inode_dirty(fs, directory)
    return index


def unlink_inode(fs: Mount, directory: LiveInode, inode: LiveInode, name: bytes) -> None:
    """Remove an entry; the inode has one name less (``btrfs_unlink_inode()``)."""
    unlink_name(fs, directory, inode, name)
    inode.item.nlink -= 1
    mark_inode_dirty(fs, inode)


def unlink(fs: Mount, entry: Entry, inode: LiveInode) -> None:
    """``btrfs_unlink()``: the inode goes with its last name, unless it is open."""
    start_transaction(fs, UNLINK_ITEMS, root=inode.root, from_reserve=True)
    record_unlink(fs, entry.directory, inode, for_rename=False)
    unlink_inode(fs, entry.directory, inode, entry.name)
    if inode.item.nlink == 0:
        orphan_add(fs, inode)
    balance_delayed_items(fs)
    iput(fs, inode)


def rmdir(fs: Mount, entry: Entry, inode: LiveInode) -> None:
    """Remove an empty directory (``btrfs_rmdir()``, without subvolumes).

    Raises OSError: ENOTEMPTY.
    """
    if inode.item.size:
        raise fail(errno.ENOTEMPTY, entry.path)
    start_transaction(fs, UNLINK_ITEMS, root=entry.directory.root, from_reserve=True)
    if inode.ino == EMPTY_SUBVOL_DIR:
        record_subvolume(fs, entry.directory)
        unlink_subvolume_name(fs, entry.directory, inode, entry.name)
        return
    orphan_add(fs, inode)
    if Patch.LOG_RMDIR_COMMITS in fs.behaviour:
        inode.log.last_unlink_trans = fs.transid
    if inode.log.last_unlink_trans >= fs.transid:
        entry.directory.log.last_unlink_trans = inode.log.last_unlink_trans
    if Patch.LOG_RMDIR_MARK in fs.behaviour:
        inode.log.last_unlink_trans = fs.transid
    unlink_inode(fs, entry.directory, inode, entry.name)
    balance_delayed_items(fs)
    iput(fs, inode)


def unlink_subvolume_name(fs: Mount, directory: LiveInode, inode: LiveInode, name: bytes) -> None:
    """Remove the entry of a subvolume (``btrfs_unlink_subvol()``), of one that is not here too."""
    delete_one_dir_name(fs, directory.root, dir_item_key(directory.ino, name), name)
    d_drop(fs, directory, name)
    if inode.ino == EMPTY_SUBVOL_DIR:
        index = _search_dir_index(fs, directory, name)
    else:
        index = delete_root_ref(fs, inode.root, directory.root, directory.ino, name)
    fs.delayed.delete_index(directory, index)
    directory.item.size -= 2 * len(name)
    touch(fs, directory)
    mark_inode_dirty(fs, directory)


def _search_dir_index(fs: Mount, directory: LiveInode, name: bytes) -> int:
    """Index of an entry, by going through them (``btrfs_search_dir_index_item()``)."""
    low, high = ((directory.ino, ItemType.DIR_INDEX, offset) for offset in (0, U64_MAX))
    for item in fs.writer.tree(directory.root).items(low, high):
        if bytes(item.data[30:]) == name:
            return item.key.offset
    raise fail(errno.ENOENT, name)
