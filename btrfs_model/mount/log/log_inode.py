# SPDX-License-Identifier: GPL-2.0-only
"""One inode into the log (``btrfs_log_inode()``, Linux 6.18).

What this transaction changed of an inode is copied from the leaves that it wrote to, a leaf at a
time; the inode item itself is as it is in memory. ``LOG_INODE_EXISTS`` is for inodes that the
replay has to know of, ``LOG_INODE_ALL`` for those whose content matters.
"""

from __future__ import annotations

import errno
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.counters import counting, current, function, uncounted
from btrfs_model.mount.bulk.log_new_files import PlainFiles
from btrfs_model.mount.delayed_inode import run_inode, run_node
from btrfs_model.mount.inode import iget
from btrfs_model.mount.live_inode import LiveInode, file_type
from btrfs_model.mount.log import events, log_extents
from btrfs_model.mount.log.log_dir import (
    DelayedEntries,
    entries_of,
    is_of_this_transaction,
    log_directory,
)
from btrfs_model.mount.log.log_tree import (
    ForceCommit,
    LogContext,
    get_logged,
    is_logged,
)
from btrfs_model.mount.log.state import Overridden, log_tree_id
from btrfs_model.mount.log.v5_10.log_dir import log_directory_changes
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import dir_item_key
from btrfs_model.ondisk.items import InodeExtref, dir_items, each_inode_name
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.layout import Payload
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.patches import Patch
from btrfs_model.volume.tree import RawKey, Tree

_INODE_ITEM: Final = int(ItemType.INODE_ITEM)
_REFS: Final = (int(ItemType.INODE_REF), int(ItemType.INODE_EXTREF))
_XATTR: Final = int(ItemType.XATTR_ITEM)
_DIR_LOG_INDEX: Final = int(ItemType.DIR_LOG_INDEX)
_DIR_INDEX: Final = int(ItemType.DIR_INDEX)
_EXTENT_DATA: Final = int(ItemType.EXTENT_DATA)
_ANY: Final = 255
_MAX_CONFLICTS: Final = 10
_DIRECTORY: Final = file_type(stat.S_IFDIR)


class Copied(NamedTuple):
    """An item of the subvolume on its way into the log."""

    key: RawKey
    data: bytes
    block: int


def need_log_inode(fs: Mount, inode: LiveInode) -> bool:
    """Whether an inode is to be logged along with another one (``need_log_inode()``)."""
    if inode.is_dir and inode.log.last_trans < fs.transid:
        return False
    return not is_logged(fs, inode) or inode.log.copy_everything


def log_inode(fs: Mount, inode: LiveInode, ctx: LogContext, *, exists: bool) -> None:
    """Log an inode.

    `ctx`: what it is part of.
    `exists`: ``LOG_INODE_EXISTS``: only that there is such an inode, with these names.
    Raises ForceCommit: when a commit has to be made instead.
    Raises OSError: the same, and the log is not whole any more.
    """
    with function("btrfs_log_inode"), events.log_inode(fs, inode, ctx, exists=exists):
        _log_inode(fs, inode, ctx, exists)


def _log_inode(fs: Mount, inode: LiveInode, ctx: LogContext, exists: bool) -> None:
    full_dir = inode.is_dir and not exists
    delays = Patch.LOG_DELAYED_ITEMS in fs.behaviour and not ctx.logging_new_delayed_dentries
    if (full_dir and not delays) or (inode.is_dir and Patch.LOG_DELAYED_ITEMS not in fs.behaviour):
        node = fs.delayed.node(inode.root, inode.ino)
        if node is not None:
            run_node(fs, node)
    exists = exists and not inode.is_symlink
    ctx.logged_before = is_logged(fs, inode)
    if full_dir and inode.log.last_unlink_trans >= fs.transid:
        raise ForceCommit
    delayed = DelayedEntries(None)
    if full_dir and delays:
        delayed = DelayedEntries(fs.delayed.node(inode.root, inode.ino))
    InodeLogger(fs, inode, ctx, exists).run()
    if full_dir and Patch.LOG_DELAYED_ITEMS in fs.behaviour:
        log_directory(fs, inode, delayed, ctx)
    elif full_dir:
        log_directory_changes(fs, inode, ctx)
    inode.log.logged_trans = fs.transid
    if not exists:
        # the log that a new name changes is not synced
        if not (ctx.new_name and Patch.LOG_NEW_NAME_UNSYNCED in fs.behaviour):
            inode.log.last_log_commit = inode.log.last_sub_trans
        inode.log.last_reflink_trans = 0
    _log_conflicting_inodes(fs, inode.root, ctx)
    if full_dir and delays:
        _log_new_delayed_dentries(fs, inode, delayed, ctx)


class InodeLogger:
    """The items of an inode that are no entries of a directory."""

    def __init__(self, fs: Mount, inode: LiveInode, ctx: LogContext, exists: bool) -> None:
        self.fs = fs
        self.inode = inode
        self.ctx = ctx
        self.exists = exists
        self.log = log_tree_id(inode.root)
        self.logged_size = 0
        self.need_inode_item = True

    def run(self) -> None:
        """Log them."""
        fast = self._drop_old()
        if fast is None:
            self._log_inode_item()
            if self.inode.log.logged_trans < self.fs.transid:
                self.log_xattrs()
            log_extents.log_changed_extents(self.fs, self.inode, self.ctx.logged_before)
            return
        search_all = fast == _ANY
        if self.inode.item.nlink == 0 and Patch.LOG_NO_LINKS in self.fs.behaviour:
            node = self.fs.delayed.node(self.inode.root, self.inode.ino)
            if node is not None:
                run_inode(self.fs, node)
        self.copy_inode_items(fast)
        self.log_xattrs()
        if search_all:
            log_extents.log_holes(self.fs, self.inode)
        if self.need_inode_item:
            self.insert_inode_item()
        if not self.exists and not self.inode.is_dir:
            if search_all:
                self.inode.log.modified.clear()
            else:
                log_extents.log_changed_extents(self.fs, self.inode, self.ctx.logged_before)

    def _drop_old(self) -> int | None:
        """Drop what the log has and say up to which type to copy; None: extents alone."""
        state, before = self.inode.log, self.ctx.logged_before
        if self.inode.is_dir:
            state.copy_everything = False
            if before:
                ranges = not self.exists and Patch.LOG_DELAYED_ITEMS not in self.fs.behaviour
                self.drop(_DIR_LOG_INDEX if ranges else _XATTR)
            return _XATTR
        if self.exists:
            self.logged_size = min(self._known_size(), self.inode.i_size)
        if state.full_sync:
            if self.exists:
                if before:
                    self.drop(_XATTR)
                return _XATTR
            state.full_sync = state.copy_everything = False
            if before:
                self.drop(_ANY)
            return _ANY
        if state.copy_everything or self.exists:
            state.copy_everything = False
            if before:
                self.drop(_XATTR)
            return _XATTR
        return None

    def _known_size(self) -> int:
        """Size in the log or, where the kernel asks for that, at the last commit."""
        there: Payload | None = None
        if self.ctx.logged_before:
            there = get_logged(self.fs, self.inode.root, self.inode.key)
        elif (
            Patch.LOG_EXISTS_SIZE in self.fs.behaviour
            and self.inode.item.generation < self.fs.transid
        ):
            found = self.fs.tree(self.inode.root).get(self.inode.key)
            there = found.data if found is not None else None
        return 0 if there is None else INODE_ITEM.unpack(there).size

    def drop(self, highest: int) -> None:
        """``drop_inode_items()``, ``truncate_inode_items()``."""
        ino = self.inode.ino
        self.fs.writer.delete_range(self.log, (ino, 0, 0), (ino, highest, U64_MAX))

    # ------------------------------------------------------------------------ inode item --

    def packed(self) -> bytes:
        """Return the inode item for the log (``fill_inode_item()``)."""
        item = self.inode.item
        generation, size = item.generation, self.inode.i_size
        if self.exists:
            size = self.logged_size
            # with its generation the size is replayed, which must be one that was logged
            if not self.ctx.logged_before or Patch.LOG_EXISTS_SIZE not in self.fs.behaviour:
                generation = 0
        otime = item.otime if Patch.LOG_OTIME in self.fs.behaviour else 0
        return replace(
            item, generation=generation, size=size, transid=self.fs.transid, nbytes=0,
            block_group=0, otime=otime,
        ).pack()  # fmt: skip

    def _log_inode_item(self) -> None:
        """Write the inode item of a fast fsync, over the one that the log may have."""
        if self.inode.log.logged_trans == self.fs.transid:
            self.fs.writer.update(self.log, self.inode.key, 0, self.packed())
        else:
            self.insert_inode_item()

    def insert_inode_item(self) -> None:
        """Insert the inode item, whole also of an inode that is logged as existing alone."""
        self.exists, exists = False, self.exists
        self.fs.writer.insert(self.log, self.inode.key, self.packed())
        self.exists = exists

    # ------------------------------------------------------------------------------ items --

    def copy_inode_items(self, highest: int, *, prealloc: bool = True) -> None:
        """``copy_inode_items_to_log()``; `prealloc`: what lies beyond the end is logged apart."""
        batch: list[Copied] = []
        end = self.inode.i_size if prealloc else U64_MAX
        for item in self.changed(highest):
            kind = item.key[1]
            if batch and batch[-1].block != item.block:
                self.copy(batch)
                batch = []
            if kind == _EXTENT_DATA and item.key[2] >= end:
                break
            if kind == _XATTR:
                self.copy(batch)
                batch = []
                continue
            if kind == _INODE_ITEM:
                self.need_inode_item = False
            batch.append(item)
            other = self.conflict(item) if kind in _REFS else None
            if other is not None:
                self.copy(batch)
                batch = []
                self.log_conflict(*other)
        self.copy(batch)
        if prealloc and not self.exists and stat.S_ISREG(self.inode.item.mode):
            log_extents.log_prealloc(self.fs, self.inode)

    def changed(self, highest: int) -> Iterator[Copied]:
        """Yield the items in leaves of this transaction (``btrfs_search_forward()``)."""
        ino = self.inode.ino
        tree = self.fs.writer.tree(self.inode.root)
        block, changed = 0, False
        found = []
        for item in tree.items((ino, _INODE_ITEM, 0), (ino, highest, U64_MAX)):
            if item.block != block:
                block, changed = item.block, is_of_this_transaction(self.fs, item.block)
            if changed:
                found.append(Copied(item.key, bytes(item.data), block))
        return iter(found)

    def copy(self, batch: list[Copied]) -> None:
        """``copy_items()``."""
        items = []
        for item in batch:
            if item.key[1] == _EXTENT_DATA and not log_extents.is_copied(
                self.fs, self.inode, item.key[2], item.data
            ):
                continue
            data = self.packed() if item.key[1] == _INODE_ITEM else item.data
            items.append((item.key, data))
        if items:
            self.fs.writer.insert_many(self.log, items)

    def log_xattrs(self) -> None:
        """``btrfs_log_all_xattrs()``."""
        state = self.inode.log
        if state.no_xattrs:
            return
        tree, ino = self.fs.writer.tree(self.inode.root), self.inode.ino
        state.no_xattrs = True
        items = tree.items((ino, _XATTR, 0), (ino, _XATTR, U64_MAX))
        for block, batch in groupby(items, lambda item: item.block):
            state.no_xattrs = False
            self.copy([Copied(item.key, bytes(item.data), block) for item in batch])

    def conflict(self, item: Copied) -> tuple[int, int] | None:
        """Who had one of the names at the last commit, and where."""
        new = self.inode.item.generation == self.fs.transid or self.ctx.logging_conflict_inodes
        if not new and Patch.LOG_OLD_CONFLICTS not in self.fs.behaviour:
            return None
        other = overridden(self.fs, self.inode, item)
        return None if other is None or other[0] == self.ctx.inode.ino else other

    def log_conflict(self, ino: int, parent: int) -> None:
        """See to it that whoever had a name is logged too."""
        _add_conflicting_inode(self.fs, self.inode.root, ino, parent, self.ctx)


def overridden(fs: Mount, inode: LiveInode, item: Copied) -> tuple[int, int] | None:
    """Find who had a name of an inode at the last commit (``btrfs_check_ref_name_override()``).

    `item`: an INODE_REF or INODE_EXTREF of the inode.
    Returns inode number and directory, where it was another inode.
    Raises OSError: EAGAIN when it was a subvolume.
    """
    committed, searched = fs.tree(inode.root), fs.tree_logs.root(inode.root).overridden
    known = searched.get(item.key)
    # an inode with many new names may be logged for each of them, and the kernel searches each time
    if known is None or not item.data.startswith(known.data):
        known = Overridden(b"", None, {})
    with counting() as work:
        current().add(known.work)
        owner = known.owner
        more = item.data[len(known.data) :]
        if owner is None and more:
            owner = _search_overridden(fs, committed, each_inode_name(item.key, more))
    searched[item.key] = Overridden(bytes(item.data), owner, dict(work))
    return None if owner is None or owner[0] == inode.ino else owner


def _search_overridden(
    fs: Mount, committed: Tree, names: Iterable[InodeExtref]
) -> tuple[int, int] | None:
    """Return the first inode that had one of some names, and its directory; None: there is none."""
    for parent, _, name in names:
        found = committed.get(dir_item_key(parent, name))
        entries = dir_items(found.data) if found is not None else []
        entry = next((entry for entry in entries if entry.name == name), None)
        if entry is None:
            continue
        if entry.location.type != _INODE_ITEM:
            raise OSError(errno.EAGAIN, "a subvolume had the name", fs.path)
        return entry.location.objectid, parent
    return None


# ------------------------------------------------------------------------- conflicting inodes --


def _add_conflicting_inode(fs: Mount, root: int, ino: int, parent: int, ctx: LogContext) -> None:
    """``add_conflicting_inode()``."""
    with events.add_conflicting_inode(fs, ctx, ino, parent):
        _check_conflicting_inode(fs, root, ino, parent, ctx)


def _check_conflicting_inode(fs: Mount, root: int, ino: int, parent: int, ctx: LogContext) -> None:
    if ctx.conflict_count >= _MAX_CONFLICTS:
        raise ForceCommit
    inode = get_inode(fs, root, ino)
    if inode is None:
        item = fs.tree(root).get((ino, _INODE_ITEM, 0))
        if item is None:
            raise OSError(errno.ENOENT, "the other inode is not there", fs.path)
        if not stat.S_ISDIR(INODE_ITEM.unpack(item.data).mode):
            return
    elif not need_log_inode(fs, inode):
        return
    else:
        _check_moved(fs, inode)
    ctx.conflicts.append((ino, parent))
    ctx.conflict_count += 1


def _check_moved(fs: Mount, inode: LiveInode) -> None:
    """Force a commit where a directory lost its name, or names in it went to others.

    A replay could give a directory two names (``can_log_conflicting_inode()``).
    """
    moved = inode.is_dir and inode.log.last_unlink_trans >= fs.transid
    if moved and Patch.LOG_MOVED_CONFLICTS in fs.behaviour:
        raise ForceCommit(is_error=Patch.LOG_COMMIT_ERROR in fs.behaviour)


def get_inode(fs: Mount, root: int, ino: int) -> LiveInode | None:
    """Return an inode, None where it is gone."""
    try:
        return iget(fs, root, ino)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return None


def _log_conflicting_inodes(fs: Mount, root: int, ctx: LogContext) -> None:
    """``log_conflicting_inodes()``."""
    if ctx.logging_conflict_inodes or not ctx.conflicts:
        return
    ctx.logging_conflict_inodes = True
    with events.log_conflicting_inodes(fs, ctx):
        _log_conflicts(fs, root, ctx)
    ctx.logging_conflict_inodes = False


def _log_conflicts(fs: Mount, root: int, ctx: LogContext) -> None:
    dentries = ctx.log_new_dentries
    while ctx.conflicts:
        ino, parent = ctx.conflicts.popleft()
        inode = get_inode(fs, root, ino)
        if inode is not None:
            if need_log_inode(fs, inode):
                log_inode(fs, inode, ctx, exists=True)
            continue
        directory = iget(fs, root, parent)
        if Patch.LOG_CONFLICT_DENTRIES not in fs.behaviour:
            log_inode(fs, directory, ctx, exists=False)
            dentries = ctx.log_new_dentries
            continue
        _check_moved(fs, directory)
        ctx.log_new_dentries = False
        log_inode(fs, directory, ctx, exists=False)
        if ctx.log_new_dentries:
            log_new_dentries(fs, directory, ctx)
    ctx.log_new_dentries = dentries


# ------------------------------------------------------------------------------- new dentries --


def _log_new_delayed_dentries(
    fs: Mount, inode: LiveInode, delayed: DelayedEntries, ctx: LogContext
) -> None:
    """Log the inodes of delayed entries (``log_new_delayed_dentries()``)."""
    if not delayed.insertions:
        return
    before = ctx.log_new_dentries
    with events.of_inode(fs, "log_new_delayed_dentries", inode):
        ctx.logging_new_delayed_dentries = True
        for other in _log_entries(fs, inode, entries_of(delayed.insertions), ctx):
            log_new_dentries(fs, other, ctx)
    ctx.log_new_dentries = before
    ctx.logging_new_delayed_dentries = False


def log_new_dentries(fs: Mount, start: LiveInode, ctx: LogContext) -> None:
    """Log the inodes of a directory's new entries, and of those below (``..._dir_dentries()``)."""
    if ctx.new_name and Patch.LOG_NEW_NAME_DENTRIES not in fs.behaviour:
        return
    with events.of_inode(fs, "log_new_dir_dentries", start):
        _walk_new_dentries(fs, start, ctx)


def _walk_new_dentries(fs: Mount, start: LiveInode, ctx: LogContext) -> None:
    waiting: deque[LiveInode] = deque([start])
    while waiting:
        directory = waiting.popleft()
        first = Patch.LOG_FIRST_INDEX in fs.behaviour
        at = directory.log.first_dir_index_to_log if first else 0
        low, high = ((directory.ino, _DIR_INDEX, offset) for offset in (at, U64_MAX))
        new = Patch.LOG_NEW_DENTRIES in fs.behaviour
        tree = fs.writer.tree(log_tree_id(start.root) if new else start.root)
        # what is found may be logged in between, which changes the tree that is walked
        found = [(item.key.offset, bytes(item.data)) for item in tree.items(low, high)]
        waiting.extend(_log_entries(fs, directory, entries_of(found), ctx))
        _count_walk(fs, directory.root, entries_of(found))
        if found and first:
            directory.log.first_dir_index_to_log = found[-1][0] + 1


def _count_walk(fs: Mount, root: int, entries: npt.NDArray[Any]) -> None:
    """Count how entries of a directory are gone through: a search behind each that is new.

    By ``btrfs_for_each_slot()`` in the log; before, by ``btrfs_search_forward()`` in the subvolume.
    """
    work, searches = current(), len(_new_entries(fs, entries)) + 1
    if Patch.LOG_NEW_DENTRIES in fs.behaviour:
        root = log_tree_id(root)
        work.count("btrfs_search_slot", searches)
        work.count("btrfs_get_next_valid_item", len(entries) + 1)
    else:
        work.count("btrfs_search_forward", searches)
        work.count("log_entries_visited", len(entries))
    work.count("read_block_for_search", searches * fs.writer.tree(root).level)


def _new_entries(fs: Mount, entries: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the entries of this transaction that lead to inodes."""
    new = (entries["transid"] >= fs.transid) & (entries["location_type"] == _INODE_ITEM)
    return np.compress(new, entries)


def _log_entries(
    fs: Mount, directory: LiveInode, entries: npt.NDArray[Any], ctx: LogContext
) -> Iterator[LiveInode]:
    """Log the inodes of the new ones of some entries; yields directories to go on with."""
    entries = _new_entries(fs, entries)
    current().count("log_dentries_got", len(entries))
    files = PlainFiles(fs, directory, entries, loaded=True)
    ends = np.flatnonzero(np.diff(files.mask)) + 1
    for part in np.split(np.arange(len(entries)), ends):
        if len(part) and files.mask[part[0]]:
            files.log(int(part[0]), int(part[-1]) + 1)
            continue
        for ino, kind in entries[["child", "type"]][part].tolist():
            # whoever got a name in this transaction is in the kernel's memory
            with uncounted():
                inode = iget(fs, directory.root, ino)
            if not need_log_inode(fs, inode):
                continue
            ctx.log_new_dentries = False
            log_inode(fs, inode, ctx, exists=kind != _DIRECTORY)
            if ctx.log_new_dentries:
                yield inode
