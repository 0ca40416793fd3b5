# SPDX-License-Identifier: GPL-2.0-only
"""What the functions of a log tell who traces them: see :mod:`.trace`.

Fields of a kernel's threads (who waits, who writes) and of the file handle (``parent``,
``datasync``) are left out: here there is one thread, and an fsync is of an inode.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.log_tree import ForceCommit, LogContext
from btrfs_model.mount.log.trace import (
    FORCE_COMMIT,
    LOG_INODE_ALL,
    LOG_INODE_EXISTS,
    tell,
)
from btrfs_model.mount.mount import Mount

Fields = dict[str, int]
_TELLS_FAILURES: Final = "sync_log"
"""Of this one Linux 7.2 does not tell that it is left, where all went well."""


class Silent:
    """A function that nobody traces.

    `ret`: what it returns; an exception says so itself.
    """

    ret = 0

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


_SILENT: Final = Silent()


class _Span(Silent):
    """A function that is traced, from where it is entered to where it is left."""

    def __init__(
        self, fs: Mount, name: str, entered: Fields, left: Callable[[], Fields] | None = None
    ) -> None:
        self.fs, self.name = fs, name
        self.entered = entered
        self.left = left or (lambda: entered)

    def __enter__(self) -> Silent:
        tell(self.fs.traces, f"{self.name}_enter", self.entered)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ForceCommit):
            self.ret = FORCE_COMMIT
        elif isinstance(error, OSError):
            self.ret = -(error.errno or 0)
        if self.ret or self.name != _TELLS_FAILURES:
            tell(self.fs.traces, f"{self.name}_exit", {**self.left(), "ret": self.ret})


def of_inode(fs: Mount, name: str, inode: LiveInode) -> Silent:
    """Trace a function that has to do with an inode, and tells no more of it."""
    return _Span(fs, name, _identity(fs, inode)) if fs.traces else _SILENT


def sync_file(fs: Mount, inode: LiveInode) -> Silent:
    """``btrfs_sync_file()``."""
    if not fs.traces:
        return _SILENT
    known = {"ino": inode.ino, "root_objectid": inode.root}
    return _Span(fs, "sync_file", {**known, "mode": inode.item.mode}, lambda: known)


def log_inode_parent(fs: Mount, inode: LiveInode) -> Silent:
    """``btrfs_log_inode_parent()``."""
    if not fs.traces:
        return _SILENT
    state = inode.log
    known = _identity(fs, inode)
    entered = {
        **known, "mode": inode.item.mode, "generation": inode.item.generation,
        "logged_trans": state.logged_trans, "last_unlink_trans": state.last_unlink_trans,
        "last_sub_trans": state.last_sub_trans, "inode_last_log_commit": state.last_log_commit,
        "root_last_log_commit": fs.tree_logs.root(inode.root).last_log_commit,
    }  # fmt: skip
    return _Span(fs, "log_inode_parent", entered, lambda: known)


def log_inode(fs: Mount, inode: LiveInode, ctx: LogContext, *, exists: bool) -> Silent:
    """``btrfs_log_inode()``."""
    if not fs.traces:
        return _SILENT
    state = inode.log
    known = _identity(fs, inode)

    def logged() -> Fields:
        return {
            "logged_trans": state.logged_trans, "last_reflink_trans": state.last_reflink_trans,
            "last_sub_trans": state.last_sub_trans, "last_log_commit": state.last_log_commit,
        }  # fmt: skip

    entered = {
        **known, "mode": inode.item.mode, "generation": inode.item.generation, **logged(),
        "last_unlink_trans": state.last_unlink_trans, "logging_new_name": int(ctx.new_name),
        "logging_new_delayed_dentries": int(ctx.logging_new_delayed_dentries),
        "is_conflict_inode": int(ctx.logging_conflict_inodes), "full_sync": int(state.full_sync),
        "copy_everything": int(state.copy_everything), "no_xattrs": int(state.no_xattrs),
        "log_mode": LOG_INODE_EXISTS if exists else LOG_INODE_ALL,
    }  # fmt: skip
    return _Span(fs, "log_inode", entered, lambda: {**known, **logged()})


def log_all_new_ancestors(fs: Mount, inode: LiveInode) -> Silent:
    """``log_all_new_ancestors()``."""
    if not fs.traces:
        return _SILENT
    known = _identity(fs, inode)
    return _Span(fs, "log_all_new_ancestors", {**known, "nlink": inode.item.nlink}, lambda: known)


def add_conflicting_inode(fs: Mount, ctx: LogContext, ino: int, parent: int) -> Silent:
    """``add_conflicting_inode()``: who had a name, in which directory."""
    if not fs.traces:
        return _SILENT
    known = {**_context(fs, ctx), "conflict_ino": ino, "conflict_ino_parent": parent}
    return _Span(fs, "add_conflicting_inode", known)


def log_conflicting_inodes(fs: Mount, ctx: LogContext) -> Silent:
    """``log_conflicting_inodes()``."""
    return _Span(fs, "log_conflicting_inodes", _context(fs, ctx)) if fs.traces else _SILENT


def log_new_name(fs: Mount, inode: LiveInode, old_dir: LiveInode | None, index: int) -> Silent:
    """``btrfs_log_new_name()``: for a rename the directory that was left, and the index there."""
    if not fs.traces:
        return _SILENT
    known = {**_identity(fs, inode), "old_dir_ino": 0 if old_dir is None else old_dir.ino}
    entered = {**known, "mode": inode.item.mode, "old_dir_index": index}
    return _Span(fs, "log_new_name", entered, lambda: known)


def sync_log(fs: Mount, root: int) -> Silent:
    """``btrfs_sync_log()``."""
    if not fs.traces:
        return _SILENT
    state = fs.tree_logs.root(root)
    known = {"root_objectid": root, "transid": fs.transid, "ctx_log_transid": state.log_transid}
    return _Span(fs, "sync_log", {**known, "root_log_transid": state.log_transid},
                 lambda: {**known, "root_log_transid": state.log_transid})  # fmt: skip


def _identity(fs: Mount, inode: LiveInode) -> Fields:
    return {"root_objectid": inode.root, "ino": inode.ino, "transid": fs.transid}


def _context(fs: Mount, ctx: LogContext) -> Fields:
    return {"root_objectid": ctx.inode.root, "transid": fs.transid, "ctx_ino": ctx.inode.ino}
