# SPDX-License-Identifier: GPL-2.0-only
"""fsync: an inode and what it depends on into the log, and the log to disk (Linux 6.18).

::

    btrfs_sync_file()
        btrfs_log_inode_parent()   the inode, parents that lost names, new ancestors, new entries
        btrfs_sync_log()           log tree, tree of the logs, superblock
        or a commit

What is logged along with an inode is that of Linux 6.1 and later; :mod:`.v5_10` has it as
it was before.
"""

from __future__ import annotations

import errno
import stat
from typing import Final

from btrfs_model.base.counters import current
from btrfs_model.mount.inode import iget
from btrfs_model.mount.live_inode import ROOT_DIR, LiveInode
from btrfs_model.mount.log import events
from btrfs_model.mount.log.log_dir import insert_range
from btrfs_model.mount.log.log_inode import log_inode, log_new_dentries, need_log_inode
from btrfs_model.mount.log.log_tree import (
    TREE_LOG,
    ForceCommit,
    LogContext,
    delete_entry,
    is_in_log,
    is_logged,
    needs_full_commit,
    note_change,
    parents,
    refs,
    set_full_commit,
    start_log,
)
from btrfs_model.mount.log.requires import check_behaviour
from btrfs_model.mount.log.state import LOG_ROOT_TREE, log_tree_id
from btrfs_model.mount.log.trace import NO_LOG_SYNC
from btrfs_model.mount.log.v5_10.log_parents import log_inode_parent_old, log_new_name_old
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import ROOT_ITEM
from btrfs_model.patches import Patch

_INODE_REF: Final = int(ItemType.INODE_REF)


def sync_file(fs: Mount, inode: LiveInode, *, wrote: bool = False) -> str:
    """Make an inode last (``btrfs_sync_file()``); its data were written back.

    `wrote`: whether there were data to write back.
    Returns ``none``: it was so already; ``log``: by the log; ``commit``: by a commit.
    """
    check_behaviour(fs.behaviour)
    with events.sync_file(fs, inode):
        return _sync_file(fs, inode, wrote)


def _sync_file(fs: Mount, inode: LiveInode, wrote: bool) -> str:
    if is_in_log(fs, inode) or inode.log.last_trans < fs.transid:
        inode.log.full_sync = False
        return "none"
    late = wrote and fs.machine.late_extents and not inode.log.full_sync
    start_transaction(fs)
    try:
        if not _log_inode_parent(fs, inode, LogContext(inode), exists=False):
            return "none"
        with events.sync_log(fs, inode.root):
            _sync_log(fs, inode.root)
    except ForceCommit:
        commit(fs)
        return "commit"
    if late:
        note_change(fs, inode)
    return "log"


def log_new_name(
    fs: Mount, inode: LiveInode, parent: LiveInode,
    old_dir: LiveInode | None = None, name: bytes = b"", index: int = 0,
) -> None:  # fmt: skip
    """Bring the log up to date with a new name of a logged inode (``btrfs_log_new_name()``).

    `inode`: what has the name.
    `parent`: the directory where the name is.
    `old_dir`: for a rename: the directory that it left.
    `name`, `index`: for a rename: the old name, and its index there.
    """
    if Patch.LOG_CONFLICT_LIST not in fs.behaviour:
        log_new_name_old(fs, inode, old_dir, parent)
        return
    with events.log_new_name(fs, inode, old_dir, index):
        _log_new_name(fs, inode, old_dir, name, index)


def _log_new_name(
    fs: Mount, inode: LiveInode, old_dir: LiveInode | None, name: bytes, index: int
) -> None:
    if old_dir is None or Patch.LOG_NEW_NAME_REFS in fs.behaviour:
        inode.log.copy_everything = True
    if not inode.is_dir:
        inode.log.last_unlink_trans = fs.transid
    if not is_logged(fs, inode) and (old_dir is None or not is_logged(fs, old_dir)):
        return
    try:
        left = old_dir is not None and old_dir.log.logged_trans == fs.transid
        if old_dir is not None and left and not delete_entry(fs, old_dir, index, name):
            insert_range(fs, old_dir.root, old_dir.ino, index, index)
        _log_inode_parent(fs, inode, LogContext(inode, new_name=True), exists=True)
    except ForceCommit:
        # the log stays as it is; a later fsync of the directory commits
        return


def _log_inode_parent(fs: Mount, inode: LiveInode, ctx: LogContext, *, exists: bool) -> bool:
    """Log an inode and what it depends on (``btrfs_log_inode_parent()``).

    Returns whether there was anything to log.
    """
    if Patch.LOG_CONFLICT_LIST not in fs.behaviour:
        return log_inode_parent_old(fs, inode, ctx, exists=exists)
    with events.log_inode_parent(fs, inode) as traced:
        root = fs.live_root(inode.root)
        if not fs.options.tree_log or not root.refs or root.generation == fs.transid:
            raise ForceCommit
        unlinked = inode.item.nlink == 0 and Patch.LOG_NO_LINKS not in fs.behaviour
        if is_in_log(fs, inode) or unlinked:
            traced.ret = NO_LOG_SYNC
            return False
        start_log(fs, inode.root)
        try:
            _log_with_parents(fs, inode, ctx, exists)
        except ForceCommit as forced:
            if forced.is_error:
                set_full_commit(fs)
            raise
        except OSError:
            set_full_commit(fs)
            raise ForceCommit from None
    return True


def _log_with_parents(fs: Mount, inode: LiveInode, ctx: LogContext, exists: bool) -> None:
    parent = _first_parent(fs, inode)
    log_inode(fs, inode, ctx, exists=exists)
    state, transid = inode.log, fs.transid
    old = inode.item.generation < transid and state.last_unlink_trans < transid
    if stat.S_ISREG(inode.item.mode) and old:
        return
    dentries = ctx.log_new_dentries
    if state.last_unlink_trans >= transid:
        with events.of_inode(fs, "log_all_parents", inode):
            _log_all_parents(fs, inode, ctx)
    with events.log_all_new_ancestors(fs, inode):
        _log_all_new_ancestors(fs, inode, parent, ctx)
    if dentries:
        log_new_dentries(fs, inode, ctx)


# --------------------------------------------------------------------------------- who is above --


def _first_parent(fs: Mount, inode: LiveInode) -> int | None:
    """Directory of the only name of an inode; None at the top of a subvolume."""
    if inode.ino == ROOT_DIR:
        return None
    item = fs.writer.tree(inode.root).first((inode.ino, _INODE_REF, 0))
    if item is None or item.key[:2] != (inode.ino, _INODE_REF):
        return None
    return item.key.offset


def _log_all_parents(fs: Mount, inode: LiveInode, ctx: LogContext) -> None:
    """Log the directories that had the inode at the last commit (``btrfs_log_all_parents()``)."""
    for item in refs(fs, inode, committed=True):
        for parent in parents(item):
            directory = iget(fs, inode.root, parent)
            if not need_log_inode(fs, directory):
                continue
            ctx.log_new_dentries = False
            log_inode(fs, directory, ctx, exists=False)
            if ctx.log_new_dentries:
                log_new_dentries(fs, directory, ctx)


def _log_all_new_ancestors(
    fs: Mount, inode: LiveInode, parent: int | None, ctx: LogContext
) -> None:
    """``log_all_new_ancestors()``."""
    if inode.item.nlink < 2:
        _log_new_ancestors(fs, inode.root, parent, ctx)
        return
    for item in refs(fs, inode, committed=False):
        if item.key.type == ItemType.INODE_EXTREF:
            raise OSError(errno.EMLINK, "a log does without so many names", fs.path)
        _log_new_ancestors(fs, inode.root, item.key.offset, ctx)


def _log_new_ancestors(fs: Mount, root: int, parent: int | None, ctx: LogContext) -> None:
    """Say that a directory and those above it exist, where they are new."""
    while parent is not None:
        directory = iget(fs, root, parent)
        if directory.item.generation >= fs.transid and need_log_inode(fs, directory):
            log_inode(fs, directory, ctx, exists=True)
        parent = _first_parent(fs, directory)


# ---------------------------------------------------------------------------------- to the disk --


def _sync_log(fs: Mount, root: int) -> None:
    """Write a log, and the superblock that names it (``btrfs_sync_log()``)."""
    if needs_full_commit(fs):
        raise ForceCommit
    state = fs.tree_logs.root(root)
    synced = state.log_transid
    state.log_transid += 1
    _update_log_root(fs, root)
    fs.writer.write_log()
    top = fs.writer.tree_state(LOG_ROOT_TREE)
    raw = fs.raw_super._replace(log_root=top.bytenr, log_root_level=top.level)
    # the copies of the superblock know no log
    fs.write_supers(raw, most=1)
    state.last_log_commit = synced
    current().count("btrfs_sync_log")


def _update_log_root(fs: Mount, root: int) -> None:
    """Say in the tree of the logs where a log is (``update_log_root()``)."""
    state = fs.writer.tree_state(log_tree_id(root))
    item = ROOT_ITEM.unpack(bytes(ROOT_ITEM.size))._replace(
        generation=state.generation, bytenr=state.bytenr, level=state.level,
        generation_v2=fs.transid,
    )  # fmt: skip
    key, payload = (TREE_LOG, int(ItemType.ROOT_ITEM), root), ROOT_ITEM.pack(item)
    if fs.writer.get(LOG_ROOT_TREE, key) is None:
        fs.writer.insert(LOG_ROOT_TREE, key, payload)
    else:
        fs.writer.update(LOG_ROOT_TREE, key, 0, payload)
