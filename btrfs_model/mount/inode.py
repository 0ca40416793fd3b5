# SPDX-License-Identifier: GPL-2.0-only
"""Inodes: into memory, marked dirty, and gone with their last name (``inode.c``).

An inode that lost its last name gets an ORPHAN_ITEM in the same transaction, and is deleted when
nobody has it open any more (``btrfs_evict_inode()``): its items from the highest key down, the
orphan item last. After a crash, who first looks into the subvolume deletes the orphans.
"""

from __future__ import annotations

import errno
import stat
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.counters import uncounted
from btrfs_model.mount.delayed_inode import run_inode
from btrfs_model.mount.files.file_item import truncate_inode_items
from btrfs_model.mount.live_inode import (
    DIR_START_INDEX,
    EMPTY_SUBVOL_DIR,
    NO_XATTRS,
    InodeFields,
    LiveInode,
    LiveSubvolume,
    NewRange,
    split_ns,
)
from btrfs_model.mount.log.log_tree import get_logged, has_log, note_change
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.properties import COMPRESSION_PROPERTY, apply_compression
from btrfs_model.ondisk.items import dir_items, inode_refs
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import Timespec
from btrfs_model.patches import Patch
from btrfs_model.volume.tree import Item, RawKey

_SCANNED: Final = 8


def live_subvolume(fs: Mount, root: int) -> LiveSubvolume:
    """Return what is in memory of a subvolume; orphans in it are cleaned up at first."""
    found = fs.live_subvolumes.get(root)
    if found is None:
        found = fs.live_subvolumes[root] = LiveSubvolume(fs.highest_objectid(root) + 1)
        orphan_cleanup(fs, root)
    return found


def iget(fs: Mount, root: int, ino: int) -> LiveInode:
    """Return an inode (``btrfs_iget()``).

    Raises OSError: ENOENT when there is none.
    """
    inodes = live_subvolume(fs, root).inodes
    inode = inodes.get(ino)
    if inode is None:
        inode = inodes[ino] = _read(fs, root, ino)
    return inode


def new_inode(fs: Mount, root: int, item: InodeFields) -> LiveInode:
    """Make an inode with the next free number; it has no items yet."""
    subvolume = live_subvolume(fs, root)
    inode = LiveInode(root, subvolume.next_ino, item, dirty=fs.dirty_bytes, xattrs=NO_XATTRS)
    inode.log.full_sync = True
    note_change(fs, inode)
    subvolume.next_ino += 1
    subvolume.inodes[inode.ino] = inode
    if inode.is_dir:
        inode.index_cnt = DIR_START_INDEX
    return inode


def new_range(fs: Mount, root: int, count: int) -> npt.NDArray[np.uint64]:
    """Take so many numbers at once; :func:`remember_range` makes the inodes known."""
    subvolume = live_subvolume(fs, root)
    first = subvolume.next_ino
    subvolume.next_ino += count
    return np.arange(first, first + count, dtype=np.uint64)


def remember_range(fs: Mount, root: int, made: NewRange) -> None:
    """Inodes that are in the trees as they were made."""
    live_subvolume(fs, root).ranges.append(made)


def _read(fs: Mount, root: int, ino: int) -> LiveInode:
    """``btrfs_read_locked_inode()``."""
    low, high = (ino, ItemType.INODE_ITEM, 0), (ino, ItemType.XATTR_ITEM, U64_MAX)
    items = list(fs.writer.tree(root).items(low, high))
    if not items or items[0].key != low:
        raise fail(errno.ENOENT, f"subvolume {root}, inode {ino}")
    node = fs.delayed.node(root, ino)
    waits = None if node is None else node.inode_item
    fields = InodeFields.unpack(items[0].data if waits is None else waits)
    inode = LiveInode(root, ino, fields, dirty=fs.dirty_bytes)
    if inode.item.nlink == 1:
        inode.dir_index = _only_index(items) or _index_in_range(fs, root, ino)
    if compression := _property(items):
        apply_compression(fs, inode, compression)
    _recall_log(fs, inode)
    return inode


def _recall_log(fs: Mount, inode: LiveInode) -> None:
    """Assume of an inode that was not in memory what makes an fsync do enough.

    One made since the mount is in a kernel's memory, as new as it was.
    """
    state = inode.log
    state.last_trans = inode.item.transid
    made = _range_of(fs, inode.root, inode.ino)
    state.full_sync = made is not None or state.last_trans == fs.generation
    if made is None:
        state.last_unlink_trans = state.last_reflink_trans = state.last_trans
        return
    state.last_reflink_trans = made.cloned
    if _is_in_log(fs, inode):
        state.logged_trans, state.last_sub_trans = fs.transid, 1


def _is_in_log(fs: Mount, inode: LiveInode) -> bool:
    """Whether the log has an inode; that a kernel does not search for, as it is in memory."""
    if not has_log(fs, inode.root):
        return False
    with uncounted():
        return get_logged(fs, inode.root, inode.key) is not None


def were_made_at_once(fs: Mount, root: int, inos: npt.NDArray[np.uint64]) -> bool:
    """Whether all inodes were made since the mount and have their first names yet."""
    ranges = np.array([found[:2] for found in live_subvolume(fs, root).ranges], np.uint64)
    at = np.searchsorted(ranges[:, 0], inos, "right") - 1 if len(ranges) else np.array([-1])
    return bool((at >= 0).all() and (inos - ranges[at, 0] < ranges[at, 1]).all())


def _index_in_range(fs: Mount, root: int, ino: int) -> int:
    """Directory index of an inode made since the mount, which has its first name yet."""
    made = _range_of(fs, root, ino)
    return 0 if made is None else made.entry + ino - made.first


def _range_of(fs: Mount, root: int, ino: int) -> NewRange | None:
    """Return what an inode was made with at once, since the mount."""
    ranges = live_subvolume(fs, root).ranges
    at = bisect_right(ranges, ino, key=lambda made: made.first) - 1
    return ranges[at] if at >= 0 and ino < ranges[at].first + ranges[at].many else None


def _only_index(items: Sequence[Item]) -> int:
    """Directory index of the only name of an inode, where it lies in the leaf of its item."""
    first, *others = items[:2]
    if not others or others[0].block != first.block or others[0].key.type > ItemType.INODE_REF:
        return 0
    return inode_refs(others[0].data)[0].index


def _property(items: Sequence[Item]) -> bytes:
    """Compression property, where ``btrfs_load_inode_props()`` comes upon it.

    It starts at the first attribute that ``acls_after_inode_item()`` sees within eight items of
    the leaf of the inode item, or where these end, and stops at what is no attribute: when the
    inode item is the last of its leaf, the name that follows it hides the property.
    """
    first, *others = items
    start = 0
    while start < min(len(others), _SCANNED):
        item = others[start]
        if item.block != first.block or item.key.type == ItemType.XATTR_ITEM:
            break
        start += 1
    for item in others[start:]:
        if item.key.type != ItemType.XATTR_ITEM:
            break
        for entry in dir_items(item.data):
            if entry.name == COMPRESSION_PROPERTY:
                return entry.data
    return b""


def last_index(fs: Mount, directory: LiveInode) -> int:
    """Return the highest index so far (``btrfs_get_dir_last_index()``)."""
    if directory.index_cnt is None:
        directory.index_cnt = _index_count(fs, directory)
    return directory.index_cnt - 1


def open_directory(fs: Mount, directory: LiveInode) -> None:
    """Do what open(2) does with a directory (``btrfs_opendir()``).

    From then on new entries count on from the index that was the last, also when that one goes.
    """
    if Patch.OPENDIR_LAST_INDEX in fs.behaviour and directory.ino != EMPTY_SUBVOL_DIR:
        last_index(fs, directory)


def next_index(fs: Mount, directory: LiveInode) -> int:
    """Return the index of a new entry and count on (``btrfs_set_inode_index()``)."""
    index = directory.index_cnt = last_index(fs, directory) + 1
    directory.index_cnt += 1
    return index


def _index_count(fs: Mount, directory: LiveInode) -> int:
    """One above the highest index in use (``btrfs_set_inode_index_count()``)."""
    node = fs.delayed.node(directory.root, directory.ino)
    if node is not None and node.insertions:
        return max(node.insertions) + 1
    first = (directory.ino, ItemType.DIR_INDEX, 0)
    last = fs.writer.tree(directory.root).last((directory.ino, ItemType.DIR_INDEX, U64_MAX))
    if last is None or last.key < first:
        return DIR_START_INDEX
    return last.key.offset + 1


# --------------------------------------------------------------------------------- changes --


def mark_inode_dirty(fs: Mount, inode: LiveInode) -> None:
    """Let the item of an inode follow what it is now (``btrfs_update_inode()``)."""
    inode.item.transid = fs.transid
    update_root_times(fs, inode.root)
    fs.delayed.update_inode(inode)
    note_change(fs, inode)


def mark_inodes_dirty(fs: Mount, root: int, inodes: Iterable[LiveInode], changes: int) -> None:
    """Do as :func:`mark_inode_dirty` after so many changes of inodes, the last one's last."""
    for _ in range(changes - 1):
        fs.now()
    if changes:
        update_root_times(fs, root)
    for inode in inodes:
        inode.item.transid = fs.transid
        fs.delayed.update_inode(inode)
        note_change(fs, inode)


def update_root_times(fs: Mount, root: int) -> None:
    """Say in the root item that a subvolume changes now (``btrfs_update_root_times()``)."""
    live = fs.live_root(root)
    live.ctransid = fs.transid
    live.ctime = Timespec._make(split_ns(fs.now()))
    live.dirty = True


# --------------------------------------------------------------------------------- orphans --


def orphan_key(objectid: int) -> RawKey:
    """Key of the ORPHAN_ITEM of an inode, or in the root tree of a subvolume."""
    return (int(ObjectId.ORPHAN), int(ItemType.ORPHAN_ITEM), objectid)


def orphan_add(fs: Mount, inode: LiveInode) -> None:
    """``btrfs_orphan_add()``."""
    fs.writer.insert(inode.root, orphan_key(inode.ino), b"")


def orphan_delete(fs: Mount, inode: LiveInode) -> None:
    """``btrfs_orphan_del()``."""
    fs.writer.delete(inode.root, orphan_key(inode.ino))


def iput(fs: Mount, inode: LiveInode) -> None:
    """Let go of an inode: without names and not open, it is deleted."""
    if inode.item.nlink == 0 and inode.holders == 0:
        evict(fs, inode)


def evict(fs: Mount, inode: LiveInode) -> None:
    """Delete an inode (``btrfs_evict_inode()``)."""
    node = fs.delayed.node(inode.root, inode.ino)
    if node is not None:
        run_inode(fs, node)
        fs.delayed.kill(inode.root, inode.ino)
    if stat.S_ISREG(inode.item.mode):
        discard_pages(fs, inode)
        truncate_inode_items(fs, inode, 0)
    lowest, highest = (inode.ino, 0, 0), (inode.ino, 255, U64_MAX)
    fs.writer.delete_range(inode.root, lowest, highest, backward=True)
    orphan_delete(fs, inode)
    live_subvolume(fs, inode.root).inodes.pop(inode.ino, None)


def discard_pages(fs: Mount, inode: LiveInode) -> None:
    """Drop what waits for writeback (``truncate_inode_pages_final()``)."""
    inode.pages.clean(0, 2**64)
    fs.dirty_files.pop((inode.root, inode.ino), None)


def orphan_cleanup(fs: Mount, root: int) -> None:
    """Delete the inodes that a crash left without names (``btrfs_orphan_cleanup()``)."""
    lowest, highest = orphan_key(0), orphan_key(U64_MAX)
    items = fs.writer.tree(root).items(lowest, highest)
    for ino in sorted((item.key.offset for item in items), reverse=True):
        inode = iget(fs, root, ino)
        if inode.item.nlink:
            orphan_delete(fs, inode)
        else:
            evict(fs, inode)
