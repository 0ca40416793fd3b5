# SPDX-License-Identifier: GPL-2.0-only
"""Calls on subvolumes, as methods of a filesystem that is being changed (the kernel's ioctls)."""

from __future__ import annotations

import errno
import stat
from collections.abc import Sequence
from functools import partial

from btrfs_model.mount.calls.call_errors import about
from btrfs_model.mount.calls.quotas import Group, new_inherit
from btrfs_model.mount.files.writeback import flush_delalloc
from btrfs_model.mount.inode import open_directory
from btrfs_model.mount.live_inode import EMPTY_SUBVOL_DIR, ROOT_DIR, LiveInode
from btrfs_model.mount.mount import Mount
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
    open_inode,
)
from btrfs_model.mount.names.snapshot import PendingSnapshot, create_pending_snapshot
from btrfs_model.mount.space.quota_reserve import reserve_items
from btrfs_model.mount.space.space_info import reserve_subvolume
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.native.lease import exclusive
from btrfs_model.patches import Patch

_UUID_SIZE = 16


class SubvolumeCalls(Mount):
    """Calls on subvolumes and snapshots: ioctls, on directories that are opened for them.

    Errors are :exc:`OSError` with the errno of the kernel and the path.
    """

    def _check_new_subvolume(self, entry: Entry) -> None:
        """See that a subvolume can be made there (``btrfs_mksubvol()``)."""
        path = entry.path
        if not entry.is_name or entry.inode is not None:
            raise fail(errno.EEXIST, path)
        if entry.directory.ino == EMPTY_SUBVOL_DIR:
            raise fail(errno.EPERM, path)
        may_write(self, entry.directory, path)
        directory = entry.directory
        check_dir_item_collision(self, directory.root, directory.ino, entry.name)

    @about("path")
    def create_subvolume(self, path: Path, qgroups: Sequence[Group] | None = None) -> int:
        """Make an empty subvolume; return its id. Before subvol-create-no-commit this commits.

        With `qgroups` it is put into these quota groups.
        """
        inherit = new_inherit(self, qgroups)
        entry = find_entry(self, path)
        open_directory(self, entry.directory)
        self._check_new_subvolume(entry)
        root = subvolume.create_subvolume(self, entry, inherit).root
        if Patch.SUBVOL_CREATE_NO_COMMIT not in self.behaviour:
            commit(self)
        return root

    @about("path")
    def snapshot(
        self,
        source: Path,
        path: Path,
        read_only: bool = True,
        qgroups: Sequence[Group] | None = None,
    ) -> int:
        """Take a snapshot of a subvolume and commit; return its id.

        With `qgroups` it is put into these quota groups.
        Delayed allocations of the source are written first, also where the name is taken.
        """
        inherit = new_inherit(self, qgroups)
        top, entry = open_inode(self, source), find_entry(self, path)
        open_directory(self, entry.directory)
        _check_is_top(top, source)
        flush_delalloc(self, top.root)
        self._check_new_subvolume(entry)
        pending = PendingSnapshot(top.root, entry.directory, entry.name, read_only, inherit)
        reserve_items(self, entry.directory.root, subvolume.NAME_ITEMS)
        reserve_subvolume(self, subvolume.CREATE_ITEMS)
        start_transaction(self)
        self.pending_snapshots.append(partial(create_pending_snapshot, self, pending))
        commit(self)
        return find(self, path).root

    @about("path")
    def delete_subvolume(self, path: Path) -> None:
        """Delete a subvolume; its blocks are freed by :meth:`clean_subvolumes`."""
        entry = find_entry(self, path)
        open_directory(self, entry.directory)
        if not entry.is_name:
            raise fail(errno.EINVAL if entry.name == b".." else errno.EACCES, path)
        if entry.inode is None:
            raise fail(errno.ENOENT, path)
        may_delete(self, entry, entry.inode, as_directory=True)
        if entry.inode.ino != ROOT_DIR:
            raise fail(errno.EINVAL, path)
        subvolume.delete_subvolume(self, entry, entry.inode)

    @exclusive
    def clean_subvolumes(self) -> list[int]:
        """Free the blocks of the deleted subvolumes, as the cleaner thread does after a commit.

        Returns
        -------
        list of int
            The ids of those that are gone.
        """
        dead = subvolume.dead_subvolumes(self)
        for root in dead:
            subvolume.clean_deleted_subvolume(self, root)
        return dead

    @about("path")
    def set_read_only(self, path: Path, read_only: bool = True) -> None:
        """Make a subvolume read-only or writable, and commit."""
        subvolume.set_read_only(self, self._top_of(path).root, read_only)

    @exclusive
    def set_default_subvolume(self, root: int) -> None:
        """Say by its id which subvolume a mount shows that names none; 0 is the top.

        Raises
        ------
        OSError
            ENOENT where there is no such subvolume.
        """
        subvolume.set_default_subvolume(self, root)

    @exclusive
    def default_subvolume(self) -> int:
        """Return the id of the subvolume that a mount shows which names none."""
        return subvolume.default_subvolume(self)

    @about("path")
    def set_received_subvolume(
        self, path: Path, uuid: bytes, stransid: int, stime_ns: int = 0
    ) -> None:
        """Say from which subvolume one was received (BTRFS_IOC_SET_RECEIVED_SUBVOL), and commit."""
        top = self._top_of(path)
        if is_read_only(self, top.root):
            raise fail(errno.EROFS, path)
        if len(uuid) != _UUID_SIZE:
            raise fail(errno.EINVAL, path)
        subvolume.set_received(self, top.root, uuid, stransid, stime_ns)

    def _top_of(self, path: Path) -> LiveInode:
        """Return the top directory of a subvolume by its path."""
        inode = open_inode(self, path)
        if not (inode.is_dir or stat.S_ISREG(inode.item.mode)):
            raise fail(errno.ENOTTY, path)
        _check_is_top(inode, path)
        return inode


def _check_is_top(inode: LiveInode, path: Path) -> None:
    if inode.ino != ROOT_DIR:
        raise fail(errno.EINVAL, path)
