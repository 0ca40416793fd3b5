# SPDX-License-Identifier: GPL-2.0-only
"""System calls on names and attributes, as methods of a filesystem that is being changed.

What the VFS checks before it asks btrfs is here; what btrfs does is in the modules beside. The
caller is root, with the umask :attr:`NamespaceCalls.umask`. An error is an :exc:`OSError` with the
errno of the kernel and the path, and nothing was changed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from btrfs_model.mount.bulk import moves, rows, unlinks
from btrfs_model.mount.calls.call_errors import about
from btrfs_model.mount.delayed_inode import DelayedItems
from btrfs_model.mount.inode_cache import InodeCache
from btrfs_model.mount.live_inode import EMPTY_SUBVOL_DIR, ROOT_DIR, LiveInode, split_ns
from btrfs_model.mount.log.log_tree import TreeLogs
from btrfs_model.mount.names import attr, inode_flags, namei, rename, xattr_checks
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import (
    Entry,
    Path,
    ancestors,
    as_bytes,
    find,
    find_entry,
    find_parent,
    look_up,
    may_delete,
    may_write,
)
from btrfs_model.mount.names.orphan import iput, orphan_cleanup
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.structs import Timespec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from btrfs_model.mount.writable import WritableFilesystem

RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
RENAME_WHITEOUT: Final = 4

_RENAME_FLAGS: Final = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT

_PATH_MAX: Final = 4096
_MKNOD: Final = (stat.S_IFREG, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)
_DEVICES: Final = (stat.S_IFCHR, stat.S_IFBLK)


class NamespaceCalls:
    """Mixin of WritableFilesystem: inodes, names, attributes.

    Attributes
    ----------
    inodes : InodeCache
        The inodes in memory.
    delayed : DelayedItems
        What reaches the trees with the next commit.
    tree_logs : TreeLogs
        What fsync writes instead of a commit.
    umask, uid, gid : int
        Of the calling process.
    """

    inodes: InodeCache
    delayed: DelayedItems
    tree_logs: TreeLogs
    umask: int
    uid: int
    gid: int

    def start_namespace(self) -> None:
        """Set up what a mount has in memory; the filesystem's constructor calls it."""
        self.inodes = InodeCache(self._fs)
        self.delayed = DelayedItems(self._fs)
        self.tree_logs = TreeLogs(self._fs)
        self.umask = 0o022
        self.uid = self.gid = 0

    @property
    def _fs(self) -> WritableFilesystem:
        return cast("WritableFilesystem", self)

    # ------------------------------------------------------------------------------ inodes --

    def inode(self, root: int, ino: int) -> LiveInode:
        """Return an inode of a subvolume.

        Raises
        ------
        OSError
            ENOENT.
        """
        return self.inodes.get(root, ino)

    def mark_inode_dirty(self, inode: LiveInode) -> None:
        """Let the item of an inode follow what it is now (``btrfs_update_inode()``)."""
        inode.item.transid = self._fs.transid
        self.update_root_times(inode.root)
        self.delayed.update_inode(inode)
        self.tree_logs.note_change(inode)

    def update_root_times(self, root: int) -> None:
        """Say in the root item that a subvolume changes now (``btrfs_update_root_times()``)."""
        live = self._fs.live_root(root)
        live.ctransid = self._fs.transid
        live.ctime = Timespec(*split_ns(self._fs.now()))
        live.dirty = True

    def run_delayed_items(self, root: int | None = None) -> None:
        """Bring all delayed items (or those of a subvolume) into the trees."""
        self.delayed.run(root)

    def orphan_cleanup(self, root: int) -> None:
        """Delete the inodes of a subvolume that have no names."""
        orphan_cleanup(self._fs, root)

    @about("path")
    def hold(self, path: Path) -> LiveInode:
        """Open an inode: it stays, also without names, until :meth:`release`."""
        inode = find(self._fs, path)
        inode.holders += 1
        if inode.is_dir:
            self.inodes.last_index(inode)
        return inode

    @exclusive
    def release(self, inode: LiveInode) -> None:
        """Close an inode that :meth:`hold` returned."""
        inode.holders -= 1
        iput(self._fs, inode)
        self.delayed.balance()

    @exclusive
    def resolve(self, path: Path, follow: bool = True) -> tuple[int, int]:
        """Return subvolume and inode number of a path from the top of the filesystem.

        Raises
        ------
        OSError
            ENOENT, ENOTDIR, ELOOP or ENAMETOOLONG.
        """
        inode = find(self._fs, path, follow=follow)
        return inode.root, inode.ino

    # ------------------------------------------------------------------------------ making --

    def _new_entry(self, path: Path, *, directory: bool = False) -> Entry:
        """Check an entry that is to be made (``filename_create()``, ``may_create()``)."""
        entry = find_entry(self._fs, path)
        if not entry.is_name or entry.inode is not None:
            raise fail(errno.EEXIST, path)
        if entry.slash and not directory:
            raise fail(errno.ENOENT, path)
        self._may_create(entry)
        return entry

    def _may_create(self, entry: Entry) -> None:
        if entry.directory.ino == EMPTY_SUBVOL_DIR:
            raise fail(errno.EPERM, entry.path)
        may_write(self._fs, entry.directory, entry.path)

    @about("path")
    def create(self, path: Path, mode: int = 0o666) -> LiveInode:
        """Make an empty file, as open(O_CREAT | O_EXCL) does."""
        entry = find_entry(self._fs, path)
        if entry.slash:
            raise fail(errno.EISDIR, path)
        if not entry.is_name or entry.inode is not None:
            raise fail(errno.EEXIST, path)
        if entry.directory.ino == EMPTY_SUBVOL_DIR:
            raise fail(errno.EACCES, path)
        may_write(self._fs, entry.directory, path)
        return self._done(namei.create_inode(self._fs, entry, stat.S_IFREG | mode & 0o7777))

    @about("directory")
    def create_files(
        self, directory: Path, names: Sequence[Path], mode: int = 0o666
    ) -> npt.NDArray[np.uint64]:
        """Make many empty files; see :func:`btrfs_model.mount.bulk.rows.create_files`."""
        return rows.create_files(self._fs, directory, names, mode)

    @about("target")
    def move_files(self, source: Path, target: Path, names: Sequence[Path]) -> None:
        """Move many files; see :func:`btrfs_model.mount.bulk.moves.move_files`."""
        moves.move_files(self._fs, source, target, names)

    @about("path")
    def mkdir(self, path: Path, mode: int = 0o777) -> LiveInode:
        """Make a directory."""
        entry = self._new_entry(path, directory=True)
        return self._done(namei.create_inode(self._fs, entry, stat.S_IFDIR | mode & 0o1777))

    @about("path")
    def mknod(self, path: Path, mode: int, device: int = 0) -> LiveInode:
        """Make a fifo, socket, device (``os.makedev()``) or empty file."""
        if not 0 <= device < 2**32:
            raise fail(errno.EINVAL, path)
        kind = stat.S_IFMT(mode) or stat.S_IFREG
        if kind not in _MKNOD:
            raise fail(errno.EPERM if kind == stat.S_IFDIR else errno.EINVAL, path)
        entry = self._new_entry(path)
        rdev = os.major(device) << 20 | os.minor(device) if kind in _DEVICES else 0
        new_mode = kind | mode & 0o7777
        return self._done(namei.create_inode(self._fs, entry, new_mode, rdev=rdev))

    @about("path")
    def symlink(self, target: Path, path: Path) -> LiveInode:
        """Make a symbolic link."""
        to = as_bytes(target)
        if not to:
            raise fail(errno.ENOENT, path)
        if len(to) >= _PATH_MAX:
            raise fail(errno.ENAMETOOLONG, path)
        entry = self._new_entry(path)
        if len(to) >= self._fs.sectorsize or len(to) > self._fs.nodesize - 101 - 25 - 21:
            raise fail(errno.ENAMETOOLONG, path)
        return self._done(namei.create_symlink(self._fs, entry, to))

    @about("path")
    def link(self, existing: Path, path: Path) -> None:
        """Give a file one more name; a symbolic link is not followed."""
        inode = find(self._fs, existing, follow=False)
        entry = self._new_entry(path)
        if inode.item.flags & (InodeFlag.APPEND | InodeFlag.IMMUTABLE) or inode.is_dir:
            raise fail(errno.EPERM, path)
        namei.link_inode(self._fs, entry, inode)
        self.delayed.balance()

    # ---------------------------------------------------------------------------- removing --

    @about("path")
    def unlink(self, path: Path) -> None:
        """Remove a name that is not of a directory."""
        entry = find_entry(self._fs, path)
        if not entry.is_name:
            raise fail(errno.EISDIR, path)
        if entry.inode is None:
            raise fail(errno.ENOENT, path)
        if entry.slash:
            raise fail(errno.EISDIR if entry.inode.is_dir else errno.ENOTDIR, path)
        may_delete(self._fs, entry, entry.inode, as_directory=False)
        namei.unlink(self._fs, entry, entry.inode)

    @about("directory")
    def unlink_files(self, directory: Path, names: Sequence[Path]) -> None:
        """Remove many names; see :func:`btrfs_model.mount.bulk.unlinks.unlink_files`."""
        unlinks.unlink_files(self._fs, directory, names)

    @about("path")
    def rmdir(self, path: Path) -> None:
        """Remove an empty directory, or an empty subvolume."""
        entry = find_entry(self._fs, path)
        if not entry.is_name:
            number = {b".": errno.EINVAL, b"..": errno.ENOTEMPTY}.get(entry.name, errno.EBUSY)
            raise fail(number, path)
        inode = entry.inode
        if inode is None:
            raise fail(errno.ENOENT, path)
        may_delete(self._fs, entry, inode, as_directory=True)
        if inode.ino == ROOT_DIR and not inode.item.size:
            self._fs.delete_subvolume(path)
        else:
            namei.rmdir(self._fs, entry, inode)

    @about("old")
    def rename(self, old: Path, new: Path, flags: int = 0) -> None:
        """Rename, with the flags of renameat2(2)."""
        if flags & ~_RENAME_FLAGS or (flags & RENAME_EXCHANGE and flags != RENAME_EXCHANGE):
            raise fail(errno.EINVAL, new)
        source, target = find_parent(self._fs, old), find_parent(self._fs, new)
        _check_last_names(source, target, flags)
        source = look_up(self._fs, source)
        if source.inode is None:
            raise fail(errno.ENOENT, old)
        target, inode = look_up(self._fs, target), source.inode
        self._check_rename_path(source, target, inode, flags)
        if inode is target.inode:
            return
        self._check_rename(source, target, inode, flags)
        if flags & RENAME_EXCHANGE and target.inode is not None:
            rename.exchange(self._fs, source, target, inode, target.inode)
        else:
            whiteout = bool(flags & RENAME_WHITEOUT)
            rename.rename(self._fs, source, target, inode, whiteout=whiteout)

    def _check_rename_path(
        self, source: Entry, target: Entry, inode: LiveInode, flags: int
    ) -> None:
        """``do_renameat2()``."""
        if flags & RENAME_NOREPLACE and target.inode is not None:
            raise fail(errno.EEXIST, target.path)
        if flags & RENAME_EXCHANGE:
            if target.inode is None:
                raise fail(errno.ENOENT, target.path)
            if target.slash and not target.inode.is_dir:
                raise fail(errno.ENOTDIR, target.path)
        if not inode.is_dir and (source.slash or (not flags & RENAME_EXCHANGE and target.slash)):
            raise fail(errno.ENOTDIR, source.path)
        if inode.is_dir and self._is_within(target.directory, inode):
            raise fail(errno.EINVAL, target.path)
        over = target.inode
        if over is not None and over.is_dir and self._is_within(source.directory, over):
            raise fail(errno.EINVAL if flags & RENAME_EXCHANGE else errno.ENOTEMPTY, target.path)

    def _is_within(self, directory: LiveInode, top: LiveInode) -> bool:
        """Whether `top` is `directory` or above it."""
        return top in ancestors(self._fs, directory)

    def _check_rename(self, source: Entry, target: Entry, inode: LiveInode, flags: int) -> None:
        """``vfs_rename()``."""
        fs = self._fs
        may_delete(fs, source, inode, as_directory=inode.is_dir)
        if target.inode is None:
            self._may_create(target)
        else:
            swapped = bool(flags & RENAME_EXCHANGE)
            as_directory = target.inode.is_dir if swapped else inode.is_dir
            may_delete(fs, target, target.inode, as_directory=as_directory)
        if source.directory is not target.directory:
            if inode.is_dir:
                may_write(fs, inode, source.path)
            if flags & RENAME_EXCHANGE and target.inode is not None and target.inode.is_dir:
                may_write(fs, target.inode, target.path)

    # -------------------------------------------------------------------------- attributes --

    @about("path")
    def chmod(self, path: Path, mode: int, *, follow: bool = True) -> None:
        """Set the permissions of a file."""
        inode = find(self._fs, path, follow=follow)
        attr.chmod(self._fs, inode, mode, path)
        self.delayed.balance()

    @about("path")
    def chown(self, path: Path, uid: int, gid: int, *, follow: bool = True) -> None:
        """Set the owners of a file, -1 for one that stays."""
        inode = find(self._fs, path, follow=follow)
        attr.chown(self._fs, inode, uid, gid, path)
        self.delayed.balance()

    @about("path")
    def utimes(self, path: Path, atime_ns: int, mtime_ns: int, *, follow: bool = True) -> None:
        """Set the times of a file, in nanoseconds since 1970."""
        inode = find(self._fs, path, follow=follow)
        attr.utimes(self._fs, inode, atime_ns, mtime_ns, path)
        self.delayed.balance()

    @about("path")
    def chattr(self, path: Path, add: int, remove: int = 0) -> None:
        """Add and remove flags of an inode, those of chattr(1) as ``FS_IOC_SETFLAGS`` has them."""
        inode_flags.chattr(self._fs, find(self._fs, path), add, remove, path)
        self.delayed.balance()

    @about("path")
    def setxattr(
        self, path: Path, name: Path, value: bytes, flags: int = 0, *, follow: bool = True
    ) -> None:
        """Set an extended attribute; see :func:`btrfs_model.mount.names.xattr_checks.setxattr`."""
        xattr_checks.setxattr(self._fs, path, name, value, flags, follow=follow)

    @about("path")
    def removexattr(self, path: Path, name: Path, *, follow: bool = True) -> None:
        """Remove an extended attribute."""
        xattr_checks.removexattr(self._fs, path, name, follow=follow)

    def _done(self, inode: LiveInode) -> LiveInode:
        self.delayed.balance()
        return inode


def _check_last_names(source: Entry, target: Entry, flags: int) -> None:
    if not source.is_name:
        raise fail(errno.EBUSY, source.path)
    if not target.is_name:
        raise fail(errno.EEXIST if flags & RENAME_NOREPLACE else errno.EBUSY, target.path)
