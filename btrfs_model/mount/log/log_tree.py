# SPDX-License-Identifier: GPL-2.0-only
"""The logs of a filesystem that is being changed (tree-log.c of Linux 6.18 and of 5.10).

An fsync copies what changed of an inode into a tree beside the subvolume's, its *log*, and writes
that tree alone; after a crash it is replayed onto the last commit. :class:`TreeLogs` has what the
modules beside share: which logs there are, and what calls on names leave for a later fsync.

Logs of Linux 6.1 to 6.18 are in :mod:`.log_inode`, :mod:`.log_dir` and :mod:`.sync_log`; those of
5.10 (``log-conflict-list`` not in the ``behaviour`` of the filesystem) in :mod:`.v5_10`. When a
kernel's threads run delayed items, or finish an extent, decides on what is logged, too: see
:attr:`.DelayedItems.asynchronous` and :attr:`TreeLogs.late_extents`. Where room for metadata or
data is short, calls before an fsync run delayed items, or commit, as :mod:`.space_info` has it; a
chunk that is added makes of every fsync of that transaction a commit
(:meth:`TreeLogs.set_full_commit`).
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from btrfs_model.mount.log.state import LOG_ROOT_TREE, RootLog, log_tree_id
from btrfs_model.mount.names.dir_item import (
    delete_inode_ref,
    delete_one_dir_name,
    dir_item_key,
)
from btrfs_model.ondisk.items import dir_items
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.patches import Patch

if TYPE_CHECKING:
    from btrfs_model.mount.live_inode import LiveInode
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.volume.tree import RawKey

_TREE_LOG: Final = int(ObjectId.TREE_LOG) % 2**64


class ForceCommit(Exception):  # noqa: N818 - not an error: a way to go on
    """The log cannot say what has to be said: a commit must (``BTRFS_LOG_FORCE_COMMIT``)."""


class TreeLogs:
    """The logs of a filesystem.

    Parameters
    ----------
    fs : WritableFilesystem
        Whose.

    Attributes
    ----------
    full_commit : int
        In this transaction no log can be synced (``last_trans_log_full_commit``).
    late_extents : bool
        Finish the extents that a fast fsync wrote (``btrfs_finish_ordered_io()``) when the log is
        synced, and not before that. It is a race of two threads in a kernel; by default the extents
        are first. When they are not, the next fsync logs the file once more.
    """

    def __init__(self, fs: WritableFilesystem) -> None:
        self._fs = fs
        self._roots: dict[int, RootLog] = {}
        self._logs: set[int] = set()
        self.full_commit = 0
        self.late_extents = False

    @property
    def _is_old(self) -> bool:
        """Whether it is a kernel before 6.1."""
        return Patch.LOG_CONFLICT_LIST not in self._fs.behaviour

    # -------------------------------------------------------------------------- the trees --

    def root(self, root: int) -> RootLog:
        """Return what is remembered of a subvolume's log."""
        return self._roots.setdefault(root, RootLog())

    def has_log(self, root: int) -> bool:
        """Whether the running transaction has a log for a subvolume."""
        return root in self._logs

    def start(self, root: int) -> None:
        """Begin a log, unless there is one (``start_log_trans()``).

        Raises
        ------
        ForceCommit
            When there is one that may not be synced any more.
        """
        if root in self._logs:
            if self.needs_full_commit():
                raise ForceCommit
            return
        if not self._logs:
            self._fs.writer.new_tree(LOG_ROOT_TREE, owner=_TREE_LOG)
        self._fs.writer.new_tree(log_tree_id(root), owner=_TREE_LOG)
        self._logs.add(root)
        self._roots[root] = RootLog()

    def roots(self) -> list[int]:
        """Return the subvolumes that have a log, ascending."""
        return sorted(self._logs)

    def free(self) -> None:
        """Drop all logs, as a commit does (``btrfs_free_log()``, ``btrfs_free_log_root_tree()``).

        Their blocks can be allocated again once the commit is written.
        """
        if self._logs:
            for root in self.roots():
                self._fs.writer.drop_tree(log_tree_id(root))
            self._fs.writer.drop_tree(LOG_ROOT_TREE)
            self._logs.clear()

    def forget(self) -> None:
        """Forget what a mount knew; there is no log any more."""
        self._roots.clear()

    def set_full_commit(self) -> None:
        """``btrfs_set_log_full_commit()``."""
        self.full_commit = self._fs.transid

    def needs_full_commit(self) -> bool:
        """``btrfs_need_log_full_commit()``."""
        return self.full_commit == self._fs.transid

    # ------------------------------------------------------------------------- the inodes --

    def is_logged(self, inode: LiveInode) -> bool:
        """Whether an inode was logged in this transaction (``inode_logged()``)."""
        state, transid = inode.log, self._fs.transid
        if self._is_old:
            return self.was_logged(inode) or (state.full_sync and state.last_trans == transid)
        if state.logged_trans:
            return state.logged_trans == transid
        there = self.has_log(inode.root) and self.get(inode.root, inode.key) is not None
        # of one that was evicted since, what is remembered begins anew
        state.logged_trans = transid if there else transid - 1
        return there

    def was_logged(self, inode: LiveInode) -> bool:
        """Whether an inode that is in memory is known to have been logged in this transaction."""
        return inode.log.logged_trans == self._fs.transid

    def is_in_log(self, inode: LiveInode) -> bool:
        """Whether a synced log has the inode as it is (``btrfs_inode_in_log()``)."""
        state, root = inode.log, self.root(inode.root)
        if self._is_old and state.modified:
            return False
        return (
            state.logged_trans == self._fs.transid
            and state.last_sub_trans <= state.last_log_commit
            and state.last_sub_trans <= root.last_log_commit
        )

    def note_change(self, inode: LiveInode) -> None:
        """Note that an inode item changes (``btrfs_set_inode_last_trans()``)."""
        state = inode.log
        self._fs.in_transaction = True
        state.last_trans = self._fs.transid
        state.last_sub_trans = self.root(inode.root).log_transid
        state.last_log_commit = state.last_sub_trans - 1
        if Patch.LOG_SUB_TRANS not in self._fs.behaviour:
            state.last_log_commit = self.root(inode.root).last_log_commit

    def get(self, root: int, key: RawKey) -> bytes | None:
        """Return an item of a log."""
        return self._fs.writer.get(log_tree_id(root), key)

    # -------------------------------------------------------------------------- the names --

    def record_unlink(self, directory: LiveInode, inode: LiveInode, *, for_rename: bool) -> None:
        """Note that a name goes, for good or for another one (``btrfs_record_unlink_dir()``)."""
        inode.log.last_unlink_trans = self._fs.transid
        logged = self.was_logged if self._is_old else self.is_logged
        if for_rename and not logged(directory) and not logged(inode):
            directory.log.last_unlink_trans = self._fs.transid

    def record_subvolume(self, directory: LiveInode) -> None:
        """Note that a subvolume comes or goes (``btrfs_record_new_subvolume()``)."""
        directory.log.last_unlink_trans = self._fs.transid

    def delete_name(self, directory: LiveInode, inode: LiveInode, name: bytes, index: int) -> None:
        """Take a name out of the log that is removed.

        ``btrfs_del_inode_ref_in_log()``, ``btrfs_del_dir_entries_in_log()``.
        """
        if self._is_old and not self.has_log(directory.root):
            return
        if self.is_logged(inode):
            try:
                tree = log_tree_id(directory.root)
                delete_inode_ref(self._fs, tree, name, inode.ino, directory.ino)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
        if not self.is_logged(directory):
            return
        if self._is_old:
            self._delete_entries(directory, index, name)
        else:
            self.delete_entry(directory, index, name)

    def _delete_entries(self, directory: LiveInode, index: int, name: bytes) -> None:
        """Take both entries of a name out of the log, and their length off the directory's size."""
        length = 0
        tree, key = log_tree_id(directory.root), dir_item_key(directory.ino, name)
        payload = self.get(directory.root, key)
        if payload is not None and any(entry.name == name for entry in dir_items(payload)):
            delete_one_dir_name(self._fs, tree, key, name)
            length += len(name)
        if self.delete_entry(directory, index, name):
            length += len(name)
        item = self.get(directory.root, directory.key)
        if length and item is not None:
            fields = INODE_ITEM.unpack(item)
            smaller = fields._replace(size=max(fields.size - length, 0))
            self._fs.writer.update(tree, directory.key, 0, INODE_ITEM.pack(smaller))

    def delete_entry(self, directory: LiveInode, index: int, name: bytes) -> bool:
        """Take an entry of a directory out of the log (``del_logged_dentry()``)."""
        key = (directory.ino, int(ItemType.DIR_INDEX), index)
        payload = self.get(directory.root, key)
        if payload is None or dir_items(payload)[0].name != name:
            return False
        self._fs.writer.delete(log_tree_id(directory.root), key)
        return True
