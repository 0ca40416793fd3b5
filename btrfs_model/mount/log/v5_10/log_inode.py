# SPDX-License-Identifier: GPL-2.0-only
"""One inode into the log as before Linux 6.1 (``btrfs_log_inode()``, Linux 5.10).

A full sync copies every extent item in the leaves of this transaction, old ones too. What the log
has of the inode is dropped each time, except in a fast fsync: that logs all attributes once more,
and where the log has them already it ends in a commit. An inode that had one of the names at the
last commit is logged at once, before the items that follow the name.

It is told apart by ``log-conflict-list``, which stands for most that changed from 5.10 to 6.1. What
stable kernels took over has toggles of its own (``log-prealloc-full``, ``log-symlinks-full``,
``log-sub-trans``, ``log-new-name-logged``), and so has when a commit is made instead
(``log-parents-unchecked``). The logs of kernels in between were not compared.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from btrfs_model.base.counters import function
from btrfs_model.mount.delayed_inode import run_inode, run_node
from btrfs_model.mount.files.file_item import Extent
from btrfs_model.mount.inode import iget
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log import log_extents
from btrfs_model.mount.log.log_inode import Copied, InodeLogger, get_inode, overridden
from btrfs_model.mount.log.log_tree import ForceCommit, LogContext, get_logged, set_full_commit
from btrfs_model.mount.log.v5_10.log_dir import log_directory_changes
from btrfs_model.mount.mount import Mount
from btrfs_model.ondisk.items import file_extent
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.patches import Patch

_INODE_ITEM: Final = int(ItemType.INODE_ITEM)
_REFS: Final = (int(ItemType.INODE_REF), int(ItemType.INODE_EXTREF))
_XATTR: Final = int(ItemType.XATTR_ITEM)
_DIR_LOG_INDEX: Final = int(ItemType.DIR_LOG_INDEX)
_EXTENT_DATA: Final = int(ItemType.EXTENT_DATA)
_ANY: Final = 255


def log_inode_old(
    fs: Mount, inode: LiveInode, ctx: LogContext, *, exists: bool, recursive: bool = False
) -> None:
    """Log an inode.

    `ctx`: what it is part of.
    `exists`: ``LOG_INODE_EXISTS``: only that there is such an inode, with these names.
    `recursive`: ``LOG_OTHER_INODE``: it is logged for the names of another one; those that had its
    own names are not looked for.
    Raises ForceCommit: when a commit has to be made instead.
    Raises OSError: the same, and the log is not whole any more.
    """
    with function("btrfs_log_inode"):
        _log_inode(fs, inode, ctx, exists, recursive)


def _log_inode(
    fs: Mount, inode: LiveInode, ctx: LogContext, exists: bool, recursive: bool
) -> None:  # fmt: skip
    node = fs.delayed.node(inode.root, inode.ino)
    if node is not None and inode.is_dir:
        run_node(fs, node)
    elif node is not None and inode.log.full_sync:
        run_inode(fs, node)
    if inode.is_symlink and Patch.LOG_SYMLINKS_FULL in fs.behaviour:
        exists = False
    full_dir = inode.is_dir and not exists
    if Patch.LOG_PARENTS_UNCHECKED in fs.behaviour and full_dir:
        _refuse_unlinked(fs, inode)
    _OldInodeLogger(fs, inode, ctx, exists, recursive).run()
    if full_dir:
        log_directory_changes(fs, inode, ctx)
    if inode.is_dir and ctx.new_name and inode is not ctx.inode:
        # as if it were not, so that an fsync of it syncs the log
        return
    inode.log.logged_trans = fs.transid
    if not exists or not inode.log.full_sync:
        inode.log.last_log_commit = inode.log.last_sub_trans


def _refuse_unlinked(fs: Mount, directory: LiveInode) -> None:
    """Commit instead of logging a directory whole that lost names to others."""
    if directory.log.last_unlink_trans >= fs.transid:
        set_full_commit(fs)
        raise ForceCommit


class _OldInodeLogger(InodeLogger):
    """The items of an inode that are no entries of a directory."""

    def __init__(
        self, fs: Mount, inode: LiveInode, ctx: LogContext, exists: bool, recursive: bool
    ) -> None:
        super().__init__(fs, inode, ctx, exists)
        self._recursive = recursive
        self._fast = False

    def run(self) -> None:
        """Log them."""
        highest = self._drop_logged()
        if highest is not None:
            self.copy_inode_items(highest, prealloc=Patch.LOG_PREALLOC_FULL in self.fs.behaviour)
            self.log_xattrs()
        if highest == _ANY:
            log_extents.log_holes(self.fs, self.inode)
        if self.need_inode_item:
            self._put_inode_item()
            if highest is None:
                self.log_xattrs()
        if self._fast:
            log_extents.log_changed_extents(self.fs, self.inode, logged_before=True)
        elif not self.exists:
            self.inode.log.modified.clear()

    def _drop_logged(self) -> int | None:
        """Drop what the log has and say up to which type to copy; None: extents alone."""
        state = self.inode.log
        if self.inode.is_dir:
            self.drop(_XATTR if self.exists else _DIR_LOG_INDEX)
            return _XATTR
        if self.exists:
            self.logged_size = min(self._size_in_log(), self.inode.i_size)
        if state.full_sync and not self.exists:
            state.full_sync = state.copy_everything = False
            self.drop(_ANY)
            return _ANY
        if not state.full_sync:
            self._fast = not self.exists
            if self._fast and not state.copy_everything:
                return None
            state.copy_everything = False
        self.drop(_XATTR)
        return _XATTR

    def _size_in_log(self) -> int:
        """``logged_inode_size()``."""
        there = get_logged(self.fs, self.inode.root, self.inode.key)
        return 0 if there is None else INODE_ITEM.unpack(there).size

    def _put_inode_item(self) -> None:
        """``log_inode_item()``: whole, also of an inode that was to be logged as existing alone."""
        exists, self.exists = self.exists, False
        if get_logged(self.fs, self.inode.root, self.inode.key) is None:
            self.fs.writer.insert(self.log, self.inode.key, self.packed())
        else:
            self.fs.writer.update(self.log, self.inode.key, 0, self.packed())
        self.exists = exists

    def conflict(self, item: Copied) -> tuple[int, int] | None:
        """Who had one of the names at the last commit, and where."""
        if self.inode.item.generation != self.fs.transid or self._recursive:
            return None
        other = overridden(self.fs, self.inode, item)
        return None if other is None or other[0] == self.ctx.inode.ino else other

    def log_conflict(self, ino: int, parent: int) -> None:
        """Log it at once, before the items that follow."""
        _log_conflicting_inodes(self.fs, self.inode.root, self.ctx, ino, parent)

    def copy(self, batch: list[Copied]) -> None:
        """``copy_items()``: the checksums of new extents follow the items."""
        if not batch:
            return
        items = [
            (item.key, self.packed() if item.key[1] == _INODE_ITEM else item.data)
            for item in batch
        ]  # fmt: skip
        self.fs.writer.insert_many(self.log, items)
        for item in batch:
            if item.key[1] == _EXTENT_DATA:
                extent = Extent(item.key[2], file_extent(item.data))
                log_extents.log_new_csums(self.fs, self.inode, extent)


def _log_conflicting_inodes(fs: Mount, root: int, ctx: LogContext, ino: int, parent: int) -> None:
    """Log an inode that had a name, and those that had its names (``..._conflicting_inodes()``)."""
    waiting = deque([(ino, parent)])
    while waiting:
        ino, parent = waiting.popleft()
        inode = get_inode(fs, root, ino)
        if inode is None:
            # it is gone: its directory says so
            log_inode_old(fs, iget(fs, root, parent), ctx, exists=False, recursive=True)
            continue
        if inode.log.logged_trans == fs.transid:
            continue
        log_inode_old(fs, inode, ctx, exists=True, recursive=True)
        low, high = (ino, _REFS[0], 0), (ino, _REFS[1], U64_MAX)
        for item in list(fs.writer.tree(root).items(low, high)):
            name = Copied(item.key, bytes(item.data), item.block)
            other = overridden(fs, inode, name)
            if other is not None:
                waiting.append(other)
