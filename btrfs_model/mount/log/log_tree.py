# SPDX-License-Identifier: GPL-2.0-only
"""The logs of a filesystem that is being changed (tree-log.c of Linux 6.18 and of 5.10).

An fsync copies what changed of an inode into a tree beside the subvolume's, its *log*, and writes
that tree alone; after a crash it is replayed onto the last commit. Here is what the modules beside
share: which logs there are, and what calls on names leave for a later fsync.

Logs of Linux 6.1 to 6.18 are in :mod:`.log_inode`, :mod:`.log_dir` and :mod:`.sync_log`; those of
5.10 (``log-conflict-list`` not in the ``behaviour`` of the filesystem) in :mod:`.v5_10`. When a
kernel's threads run delayed items, or finish an extent, decides on what is logged, too
(:class:`.Machine`). Where room for metadata or data is short, calls before an fsync run delayed
items, or commit, as :mod:`.space_info` has it; a chunk that is added makes of every fsync of that
transaction a commit (:func:`set_full_commit`).
"""

from __future__ import annotations

import errno
from collections import deque
from typing import Final

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.state import LOG_ROOT_TREE, RootLog, log_tree_id
from btrfs_model.mount.log.trace import tell
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import delete_inode_ref, delete_one_dir_name, dir_item_key
from btrfs_model.ondisk.items import dir_items, inode_names
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.patches import Patch
from btrfs_model.volume.tree import Item, RawKey

TREE_LOG: Final = int(ObjectId.TREE_LOG) % 2**64
"""``BTRFS_TREE_LOG_OBJECTID``, without sign."""


class ForceCommit(Exception):  # noqa: N818 - not an error: a way to go on
    """The log cannot say what has to be said: a commit must (``BTRFS_LOG_FORCE_COMMIT``).

    `is_error`: whether it marks the log, so that whoever syncs it makes a commit.
    """

    def __init__(self, *, is_error: bool = True) -> None:
        super().__init__()
        self.is_error = is_error


class LogContext:
    """One fsync, or one new name (``struct btrfs_log_ctx``).

    `inode`: what it is about.
    `new_name`: whether a link or rename is what brings it on.
    """

    def __init__(self, inode: LiveInode, *, new_name: bool = False) -> None:
        self.inode = inode
        self.new_name = new_name
        self.log_new_dentries = False
        self.logging_new_delayed_dentries = False
        self.logging_conflict_inodes = False
        self.logged_before = False
        self.conflicts: deque[tuple[int, int]] = deque()
        self.conflict_count = 0


def _is_old(fs: Mount) -> bool:
    """Whether it is a kernel before 6.1."""
    return Patch.LOG_CONFLICT_LIST not in fs.behaviour


# -------------------------------------------------------------------------- the trees --


def has_log(fs: Mount, root: int) -> bool:
    """Whether the running transaction has a log for a subvolume."""
    return root in fs.tree_logs.logs


def start_log(fs: Mount, root: int) -> None:
    """Begin a log, unless there is one (``start_log_trans()``).

    Raises ForceCommit: when there is one that may not be synced any more.
    """
    if root in fs.tree_logs.logs:
        if needs_full_commit(fs):
            raise ForceCommit
        return
    if not fs.tree_logs.logs:
        fs.writer.new_tree(LOG_ROOT_TREE, owner=TREE_LOG)
    fs.writer.new_tree(log_tree_id(root), owner=TREE_LOG)
    fs.tree_logs.logs.add(root)
    fs.tree_logs.roots[root] = RootLog()


def free_logs(fs: Mount) -> None:
    """Drop all logs, as a commit does (``btrfs_free_log()``, ``btrfs_free_log_root_tree()``).

    Their blocks can be allocated again once the commit is written.
    """
    if fs.tree_logs.logs:
        for root in sorted(fs.tree_logs.logs):
            fs.writer.drop_tree(log_tree_id(root))
        fs.writer.drop_tree(LOG_ROOT_TREE)
        fs.tree_logs.logs.clear()


def set_full_commit(fs: Mount) -> None:
    """``btrfs_set_log_full_commit()``."""
    fs.tree_logs.full_commit = fs.transid


def needs_full_commit(fs: Mount) -> bool:
    """``btrfs_need_log_full_commit()``."""
    return fs.tree_logs.full_commit == fs.transid


# ------------------------------------------------------------------------- the inodes --


def is_logged(fs: Mount, inode: LiveInode) -> bool:
    """Whether an inode was logged in this transaction (``inode_logged()``)."""
    state, transid = inode.log, fs.transid
    if _is_old(fs):
        return was_logged(fs, inode) or (state.full_sync and state.last_trans == transid)
    if state.logged_trans:
        return state.logged_trans == transid
    there = has_log(fs, inode.root) and get_logged(fs, inode.root, inode.key) is not None
    # of one that was evicted since, what is remembered begins anew
    state.logged_trans = transid if there else transid - 1
    return there


def was_logged(fs: Mount, inode: LiveInode) -> bool:
    """Whether an inode that is in memory is known to have been logged in this transaction."""
    return inode.log.logged_trans == fs.transid


def is_in_log(fs: Mount, inode: LiveInode) -> bool:
    """Whether a synced log has the inode as it is (``btrfs_inode_in_log()``)."""
    state, root = inode.log, fs.tree_logs.root(inode.root)
    if _is_old(fs) and state.modified:
        return False
    return (
        state.logged_trans == fs.transid
        and state.last_sub_trans <= state.last_log_commit
        and state.last_sub_trans <= root.last_log_commit
    )


def note_change(fs: Mount, inode: LiveInode) -> None:
    """Note that an inode item changes (``btrfs_set_inode_last_trans()``)."""
    state, root = inode.log, fs.tree_logs.root(inode.root)
    fs.in_transaction = True
    state.last_trans = fs.transid
    state.last_sub_trans = root.log_transid
    state.last_log_commit = state.last_sub_trans - 1
    if Patch.LOG_SUB_TRANS not in fs.behaviour:
        state.last_log_commit = root.last_log_commit


def need_full_sync(fs: Mount, inode: LiveInode) -> None:
    """Let the next fsync log an inode whose item was updated as a whole.

    As the last fsync may have forgotten a clone of this transaction, there is one again
    (``btrfs_set_inode_full_sync()``).
    """
    inode.log.full_sync = True
    if not _is_old(fs):
        inode.log.last_reflink_trans = fs.transid


def parents(item: Item) -> list[int]:
    """Return the directories of the names in an INODE_REF or INODE_EXTREF item."""
    if item.key.type == ItemType.INODE_REF:
        # all its names are in one directory
        return [item.key.offset]
    return [ref.parent_objectid for ref in inode_names(item.key, item.data)]


def refs(fs: Mount, inode: LiveInode, *, committed: bool) -> list[Item]:
    """Return the items with the names of an inode, now or at the last commit."""
    tree = fs.tree(inode.root) if committed else fs.writer.tree(inode.root)
    low, high = (inode.ino, ItemType.INODE_REF, 0), (inode.ino, ItemType.INODE_EXTREF, U64_MAX)
    return list(tree.items(low, high))


def get_logged(fs: Mount, root: int, key: RawKey) -> bytes | None:
    """Return an item of a log."""
    return fs.writer.get(log_tree_id(root), key)


# -------------------------------------------------------------------------- the names --


def record_unlink(fs: Mount, directory: LiveInode, inode: LiveInode, *, for_rename: bool) -> None:
    """Note that a name goes, for good or for another one (``btrfs_record_unlink_dir()``)."""
    if fs.traces:
        known = {"root_objectid": inode.root, "ino": inode.ino, "transid": fs.transid}
        tell(fs.traces, "record_unlink_dir",
             {**known, "dir": directory.ino, "for_rename": int(for_rename)})  # fmt: skip
    inode.log.last_unlink_trans = fs.transid
    logged = was_logged if _is_old(fs) else is_logged
    if for_rename and not logged(fs, directory) and not logged(fs, inode):
        directory.log.last_unlink_trans = fs.transid


def record_subvolume(fs: Mount, directory: LiveInode) -> None:
    """Note that a subvolume comes or goes (``btrfs_record_new_subvolume()``)."""
    directory.log.last_unlink_trans = fs.transid


def delete_name(fs: Mount, directory: LiveInode, inode: LiveInode, name: bytes, index: int) -> None:
    """Take a name out of the log that is removed.

    ``btrfs_del_inode_ref_in_log()``, ``btrfs_del_dir_entries_in_log()``.
    """
    if _is_old(fs) and not has_log(fs, directory.root):
        return
    if is_logged(fs, inode):
        try:
            tree = log_tree_id(directory.root)
            delete_inode_ref(fs, tree, name, inode.ino, directory.ino)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
    if not is_logged(fs, directory):
        return
    if _is_old(fs):
        _delete_entries(fs, directory, index, name)
    else:
        delete_entry(fs, directory, index, name)


def _delete_entries(fs: Mount, directory: LiveInode, index: int, name: bytes) -> None:
    """Take both entries of a name out of the log, and their length off the directory's size."""
    length = 0
    tree, key = log_tree_id(directory.root), dir_item_key(directory.ino, name)
    payload = get_logged(fs, directory.root, key)
    if payload is not None and any(entry.name == name for entry in dir_items(payload)):
        delete_one_dir_name(fs, tree, key, name)
        length += len(name)
    if delete_entry(fs, directory, index, name):
        length += len(name)
    item = get_logged(fs, directory.root, directory.key)
    if length and item is not None:
        fields = INODE_ITEM.unpack(item)
        smaller = fields._replace(size=max(fields.size - length, 0))
        fs.writer.update(tree, directory.key, 0, INODE_ITEM.pack(smaller))


def delete_entry(fs: Mount, directory: LiveInode, index: int, name: bytes) -> bool:
    """Take an entry of a directory out of the log (``del_logged_dentry()``)."""
    key = (directory.ino, int(ItemType.DIR_INDEX), index)
    payload = get_logged(fs, directory.root, key)
    if payload is None or dir_items(payload)[0].name != name:
        return False
    fs.writer.delete(log_tree_id(directory.root), key)
    return True
