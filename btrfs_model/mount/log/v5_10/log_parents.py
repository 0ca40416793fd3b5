# SPDX-License-Identifier: GPL-2.0-only
"""An inode and what it depends on into the log, as before Linux 6.1 (5.10).

It commits instead where a directory above lost names to other directories
(``check_parent_dirs_for_sync()``), and where an inode that is logged along the way got or lost
names: its log may not be what it was when that happened. With ``log-parents-unchecked`` only a
directory that is logged whole is asked.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Final

import numpy as np

from btrfs_model.base.counters import repeated
from btrfs_model.mount.bulk.log_new_files import PlainFiles
from btrfs_model.mount.inode import iget
from btrfs_model.mount.live_inode import LiveInode, file_type
from btrfs_model.mount.log.log_inode import get_inode
from btrfs_model.mount.log.log_tree import (
    ForceCommit,
    LogContext,
    is_in_log,
    is_logged,
    needs_full_commit,
    parents,
    refs,
    set_full_commit,
    start_log,
    was_logged,
)
from btrfs_model.mount.log.v5_10.log_dir import entries_to_log
from btrfs_model.mount.log.v5_10.log_inode import log_inode_old
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.lookup import ancestors
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.patches import Patch

_DIRECTORY: Final = file_type(stat.S_IFDIR)
_SYMLINK: Final = file_type(stat.S_IFLNK)
_LOGGED: Final = 4
"""Times that an inode is logged for names of its own, before one more stands for the others."""


def log_new_name_old(
    fs: Mount, inode: LiveInode, old_dir: LiveInode | None, parent: LiveInode
) -> None:
    """Bring the log up to date with a new name of a logged inode (``btrfs_log_new_name()``).

    `inode`: what has the name.
    `old_dir`: for a rename: the directory that it left.
    `parent`: where the new name is.
    """
    inode.log.parent = parent.root, parent.ino
    if old_dir is None:
        inode.log.copy_everything = True
    if not inode.is_dir:
        inode.log.last_unlink_trans = fs.transid
    logged = is_logged if Patch.LOG_NEW_NAME_LOGGED in fs.behaviour else was_logged
    if not logged(fs, inode) and (old_dir is None or not logged(fs, old_dir)):
        return
    try:
        log_inode_parent_old(fs, inode, LogContext(inode, new_name=True), exists=True)
    except ForceCommit:
        # a later fsync commits; what was logged until then stays
        return


def log_inode_parent_old(fs: Mount, inode: LiveInode, ctx: LogContext, *, exists: bool) -> bool:
    """Log an inode and what it depends on (``btrfs_log_inode_parent()``).

    Returns whether there was anything to log.
    Raises ForceCommit: when a commit has to be made instead.
    """
    if not fs.options.tree_log or needs_full_commit(fs) or not fs.live_root(inode.root).refs:
        raise ForceCommit
    _check_parent_dirs(fs, inode)
    if is_in_log(fs, inode) or inode.item.nlink == 0:
        return False
    start_log(fs, inode.root)
    try:
        _log_with_parents(fs, inode, ctx, exists)
    except OSError:
        set_full_commit(fs)
        raise ForceCommit from None
    return True


def _log_with_parents(fs: Mount, inode: LiveInode, ctx: LogContext, exists: bool) -> None:
    log_inode_old(fs, inode, ctx, exists=exists)
    if _is_committed_file(fs, inode):
        return
    dentries = inode.is_dir and ctx.log_new_dentries
    if inode.log.last_unlink_trans >= fs.transid:
        _log_all_parents(fs, inode, ctx)
    _log_all_new_ancestors(fs, inode, ctx)
    if dentries:
        _log_new_dentries(fs, inode, ctx)


def _is_committed_file(fs: Mount, inode: LiveInode) -> bool:
    """Whether it is a file of a former transaction that lost and got no name in this one."""
    return (
        stat.S_ISREG(inode.item.mode)
        and inode.item.generation < fs.transid
        and inode.log.last_unlink_trans < fs.transid
    )


# --------------------------------------------------------------------------- commits instead --


def _must_commit(fs: Mount, inode: LiveInode) -> None:
    """Give up the log where names of an inode, or in it, went (``..._must_commit_transaction()``).

    Raises ForceCommit: in that case.
    """
    if Patch.LOG_PARENTS_UNCHECKED in fs.behaviour:
        return
    if inode.log.last_unlink_trans >= fs.transid:
        set_full_commit(fs)
        raise ForceCommit


def _need_log(fs: Mount, inode: LiveInode) -> bool:
    """Whether an inode is to be logged along with another one (``need_log_inode()``)."""
    if Patch.LOG_PARENTS_UNCHECKED not in fs.behaviour:
        return True
    if inode.is_dir and inode.log.last_trans < fs.transid:
        return False
    return inode.log.copy_everything or not was_logged(fs, inode)


def _check_parent_dirs(fs: Mount, inode: LiveInode) -> None:
    """``check_parent_dirs_for_sync()``; of a directory's parent it knows only at the top."""
    if _is_committed_file(fs, inode):
        return
    parent = _dentry_parent(fs, inode)
    above = [] if parent is None else ancestors(fs, parent)
    if inode.is_dir:
        _must_commit(fs, inode)
        above = above[1:] or above
    for directory in above:
        _must_commit(fs, directory)


def _dentry_parent(fs: Mount, inode: LiveInode) -> LiveInode | None:
    """Return the directory of the name by which an inode is known (``dget_parent()``)."""
    if inode.is_dir:
        above = ancestors(fs, inode)
        return above[1] if len(above) > 1 else inode
    root, ino = inode.log.parent
    return get_inode(fs, root, ino) if ino else None


# -------------------------------------------------------------------------------- who is above --


def _log_all_parents(fs: Mount, inode: LiveInode, ctx: LogContext) -> None:
    """Log the directories that had the inode at the last commit (``btrfs_log_all_parents()``)."""
    every = (parent for item in refs(fs, inode, committed=True) for parent in parents(item))
    for parent, names in groupby(every):
        for _ in _times(names):
            _log_parent(fs, iget(fs, inode.root, parent), ctx)


def _times(names: Iterable[object]) -> Iterator[None]:
    """Yield for each name of an inode, for which it is logged again; with many for the first.

    The last time stands for those that follow: what is logged is in the log.
    """
    left = iter(names)
    for _ in islice(left, _LOGGED):
        yield
    if more := sum(1 for _ in left):
        with repeated(more):
            yield


def _log_parent(fs: Mount, directory: LiveInode, ctx: LogContext) -> None:
    if not _need_log(fs, directory):
        return
    ctx.log_new_dentries = False
    log_inode_old(fs, directory, ctx, exists=False)
    _must_commit(fs, directory)
    if ctx.log_new_dentries:
        _log_new_dentries(fs, directory, ctx)


def _log_all_new_ancestors(fs: Mount, inode: LiveInode, ctx: LogContext) -> None:
    """``log_all_new_ancestors()``."""
    if inode.item.nlink < 2:
        parent = _dentry_parent(fs, inode)
        if parent is not None and parent is not inode:
            _log_new_ancestors(fs, parent, ctx)
        return
    for item in refs(fs, inode, committed=False):
        if item.key.type == ItemType.INODE_EXTREF:
            set_full_commit(fs)
            raise ForceCommit
        _log_new_ancestors(fs, iget(fs, inode.root, item.key.offset), ctx)


def _log_new_ancestors(fs: Mount, parent: LiveInode, ctx: LogContext) -> None:
    """Say that a directory and those above it in the subvolume exist, where they are new."""
    for directory in ancestors(fs, parent):
        if directory.root != parent.root:
            return
        if directory.item.generation >= fs.transid and _need_log(fs, directory):
            log_inode_old(fs, directory, ctx, exists=True)


# --------------------------------------------------------------------------------- new dentries --


def _log_new_dentries(fs: Mount, start: LiveInode, ctx: LogContext) -> None:
    """Log the inodes of a directory's new entries, and of those below (``..._dir_dentries()``)."""
    waiting = [start]
    while waiting:
        waiting += _log_entries(fs, waiting.pop(0), ctx)


def _log_entries(fs: Mount, directory: LiveInode, ctx: LogContext) -> Iterator[LiveInode]:
    """Log the inodes of a directory's entries; yields directories to go on with."""
    entries = entries_to_log(fs, directory)
    files = PlainFiles(fs, directory, entries)
    ends = np.flatnonzero(np.diff(files.mask)) + 1
    for part in np.split(np.arange(len(entries)), ends):
        if len(part) and files.mask[part[0]]:
            ctx.log_new_dentries = False
            files.log(int(part[0]), int(part[-1]) + 1)
            continue
        of_one = zip(entries["child"][part].tolist(), entries["type"][part].tolist(), strict=True)
        for (ino, kind), names in groupby(of_one):
            inode = iget(fs, directory.root, ino)
            for _ in _times(names):
                yield from _log_entry(fs, inode, kind, ctx)


def _log_entry(fs: Mount, inode: LiveInode, kind: int, ctx: LogContext) -> Iterator[LiveInode]:
    if is_in_log(fs, inode) or not _need_log(fs, inode):
        return
    ctx.log_new_dentries = False
    log_inode_old(fs, inode, ctx, exists=kind not in (_DIRECTORY, _SYMLINK))
    _must_commit(fs, inode)
    if ctx.log_new_dentries:
        yield inode
