# SPDX-License-Identifier: GPL-2.0-only
"""Calls on subvolumes, as methods of a filesystem that is being changed (the kernel's ioctls)."""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING, cast

from btrfs_model.mount.calls.call_errors import about
from btrfs_model.mount.live_inode import EMPTY_SUBVOL_DIR, ROOT_DIR, LiveInode
from btrfs_model.mount.names import subvolume
from btrfs_model.mount.names.dir_item import check_dir_item_collision, fail
from btrfs_model.mount.names.lookup import (
    Entry,
    Path,
    find,
    find_entry,
    is_read_only,
    may_delete,
    may_write,
)
from btrfs_model.mount.names.snapshot import PendingSnapshot, create_pending_snapshot
from btrfs_model.native.lease import exclusive
from btrfs_model.patches import Patch

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem

_UUID_SIZE = 16


class SubvolumeCalls:
    """Mixin of WritableFilesystem: subvolumes and snapshots.

    Errors are :exc:`OSError` with the errno of the kernel and the path.
    """

    @property
    def _live(self) -> WritableFilesystem:
        return cast("WritableFilesystem", self)

    def _check_new_subvolume(self, entry: Entry) -> None:
        """See that a subvolume can be made there (``btrfs_mksubvol()``)."""
        path = entry.path
        if not entry.is_name or entry.inode is not None:
            raise fail(errno.EEXIST, path)
        if entry.directory.ino == EMPTY_SUBVOL_DIR:
            raise fail(errno.EPERM, path)
        may_write(self._live, entry.directory, path)
        directory = entry.directory
        check_dir_item_collision(self._live, directory.root, directory.ino, entry.name)

    @about("path")
    def create_subvolume(self, path: Path) -> int:
        """Make an empty subvolume; return its id. Before subvol-create-no-commit this commits."""
        fs = self._live
        entry = find_entry(fs, path)
        self._check_new_subvolume(entry)
        root = subvolume.create_subvolume(fs, entry).root
        if Patch.SUBVOL_CREATE_NO_COMMIT not in fs.behaviour:
            fs.commit()
        return root

    @about("path")
    def snapshot(self, source: Path, path: Path, read_only: bool = True) -> int:
        """Take a snapshot of a subvolume and commit; return its id.

        Delayed allocations of the source are written first, also where the name is taken.
        """
        fs = self._live
        top, entry = find(fs, source), find_entry(fs, path)
        _check_is_top(top, source)
        fs.flush_delalloc(root=top.root)
        self._check_new_subvolume(entry)
        pending = PendingSnapshot(top.root, entry.directory, entry.name, read_only)
        fs.start_transaction()
        fs.pending_snapshots.append(partial(create_pending_snapshot, fs, pending))
        fs.commit()
        return find(fs, path).root

    @about("path")
    def delete_subvolume(self, path: Path) -> None:
        """Delete a subvolume; its blocks are freed by :meth:`clean_subvolumes`."""
        entry = find_entry(self._live, path)
        if not entry.is_name:
            raise fail(errno.EINVAL if entry.name == b".." else errno.EACCES, path)
        if entry.inode is None:
            raise fail(errno.ENOENT, path)
        may_delete(self._live, entry, entry.inode, as_directory=True)
        if entry.inode.ino != ROOT_DIR:
            raise fail(errno.EINVAL, path)
        subvolume.delete_subvolume(self._live, entry, entry.inode)

    @exclusive
    def clean_subvolumes(self) -> list[int]:
        """Free the blocks of the deleted subvolumes, as the cleaner thread does after a commit.

        Returns
        -------
        list of int
            The ids of those that are gone.
        """
        dead = subvolume.dead_subvolumes(self._live)
        for root in dead:
            subvolume.clean_deleted_subvolume(self._live, root)
        return dead

    @about("path")
    def set_read_only(self, path: Path, read_only: bool = True) -> None:
        """Make a subvolume read-only or writable, and commit."""
        subvolume.set_read_only(self._live, self._top_of(path).root, read_only)

    @about("path")
    def set_received_subvolume(
        self, path: Path, uuid: bytes, stransid: int, stime_ns: int = 0
    ) -> None:
        """Say from which subvolume one was received (BTRFS_IOC_SET_RECEIVED_SUBVOL), and commit."""
        top = self._top_of(path)
        if is_read_only(self._live, top.root):
            raise fail(errno.EROFS, path)
        if len(uuid) != _UUID_SIZE:
            raise fail(errno.EINVAL, path)
        subvolume.set_received(self._live, top.root, uuid, stransid, stime_ns)

    def _top_of(self, path: Path) -> LiveInode:
        """Return the top directory of a subvolume by its path."""
        inode = find(self._live, path)
        _check_is_top(inode, path)
        return inode


def _check_is_top(inode: LiveInode, path: Path) -> None:
    if inode.ino != ROOT_DIR:
        raise fail(errno.EINVAL, path)
