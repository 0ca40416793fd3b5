# SPDX-License-Identifier: GPL-2.0-only
"""System calls on names and attributes, as methods of a filesystem that is being changed.

What the VFS checks before it asks btrfs is here; what btrfs does is in the modules beside. The
caller is root, with the umask :attr:`.Mount.umask`. An error is an :exc:`OSError` with the
errno of the kernel and the path, and nothing was changed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.arguments import warn_renamed
from btrfs_model.mount.bulk import moves, rows, unlinks
from btrfs_model.mount.calls.call_errors import about
from btrfs_model.mount.delayed_inode import balance_delayed_items
from btrfs_model.mount.inode import iget
from btrfs_model.mount.live_inode import ROOT_DIR, LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names import attr, inode_flags, namei, rename, subvolume, xattr_checks
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import (
    PATH_MAX,
    Entry,
    Path,
    ancestors,
    as_bytes,
    find,
    find_entry,
    find_parent,
    look_up,
    may_change_names,
    may_delete,
    may_write,
    open_inode,
)
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.constants import InodeFlag

RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
RENAME_WHITEOUT: Final = 4

_RENAME_FLAGS: Final = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT

_MKNOD: Final = (stat.S_IFREG, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)
_DEVICES: Final = (stat.S_IFCHR, stat.S_IFBLK)


class NamespaceCalls(Mount):
    """Calls on inodes, names and attributes."""

    # ------------------------------------------------------------------------------ inodes --

    def inode(self, root: int, ino: int) -> LiveInode:
        """Return an inode of a subvolume.

        Raises
        ------
        OSError
            ENOENT.
        """
        return iget(self, root, ino)

    @about("path")
    def hold(self, path: Path) -> LiveInode:
        """Open an inode: it stays, also without names, until :meth:`.FileCalls.release`."""
        inode = open_inode(self, path)
        inode.holders += 1
        return inode

    @about("path")
    def tmpfile(self, path: Path, mode: int) -> str:
        """Open a file in a directory without a name for it (O_TMPFILE).

        Returns a path that calls take for it, until :meth:`.FileCalls.release`.
        """
        directory = find(self, path)
        may_change_names(self, directory, path)
        inode = namei.create_tmpfile(self, directory, stat.S_IFREG | mode & 0o7777)
        inode.holders += 1
        name = b"#%d" % inode.ino
        while look_up(self, Entry(directory, name, None, path, False)).inode is not None:
            name += b"#"
        told = b"/".join([*filter(None, [as_bytes(path).strip(b"/")]), name])
        self.opened[told] = inode
        balance_delayed_items(self)
        return os.fsdecode(told)

    @exclusive
    def resolve(self, path: Path, follow: bool = True) -> tuple[int, int]:
        """Return subvolume and inode number of a path from the top of the filesystem.

        Raises
        ------
        OSError
            ENOENT, ENOTDIR, ELOOP or ENAMETOOLONG.
        """
        inode = find(self, path, follow=follow)
        return inode.root, inode.ino

    # ------------------------------------------------------------------------------ making --

    def _new_entry(self, path: Path, *, directory: bool = False) -> Entry:
        """Check an entry that is to be made (``filename_create()``, ``may_create()``)."""
        entry = find_entry(self, path)
        if not entry.is_name or entry.inode is not None:
            raise fail(errno.EEXIST, path)
        if entry.slash and not directory:
            raise fail(errno.ENOENT, path)
        self._may_create(entry)
        return entry

    def _may_create(self, entry: Entry) -> None:
        may_change_names(self, entry.directory, entry.path, of_subvolume=errno.EPERM)

    @about("path")
    def create(self, path: Path, mode: int = 0o666) -> int:
        """Make an empty file, as open(O_CREAT | O_EXCL) does; return its inode number."""
        entry = find_entry(self, path)
        if entry.slash:
            raise fail(errno.EISDIR, path)
        if not entry.is_name or entry.inode is not None:
            raise fail(errno.EEXIST, path)
        may_change_names(self, entry.directory, path)
        return self._done(namei.create_inode(self, entry, stat.S_IFREG | mode & 0o7777))

    @about("directory")
    def create_files(
        self, directory: Path, names: Sequence[Path], mode: int = 0o666
    ) -> npt.NDArray[np.uint64]:
        """Make many empty files; see :func:`btrfs_model.mount.bulk.rows.create_files`."""
        return rows.create_files(self, directory, names, mode, self.create)

    @about("target")
    def move_files(self, source: Path, target: Path, names: Sequence[Path]) -> None:
        """Move many files; see :func:`btrfs_model.mount.bulk.moves.move_files`."""
        moves.move_files(self, source, target, names, self.rename)

    @about("path")
    def mkdir(self, path: Path, mode: int = 0o777) -> int:
        """Make a directory; return its inode number."""
        entry = self._new_entry(path, directory=True)
        return self._done(namei.create_inode(self, entry, stat.S_IFDIR | mode & 0o1777))

    @about("path")
    def mknod(self, path: Path, mode: int, device: int = 0) -> int:
        """Make a fifo, socket, device (``os.makedev()``) or empty file; return its inode number."""
        if not 0 <= device < 2**32:
            raise fail(errno.EINVAL, path)
        kind = stat.S_IFMT(mode) or stat.S_IFREG
        if kind not in _MKNOD:
            raise fail(errno.EPERM if kind == stat.S_IFDIR else errno.EINVAL, path)
        entry = self._new_entry(path)
        rdev = os.major(device) << 20 | os.minor(device) if kind in _DEVICES else 0
        new_mode = kind | mode & 0o7777
        return self._done(namei.create_inode(self, entry, new_mode, rdev=rdev))

    @about("path")
    def symlink(self, target: Path, path: Path) -> int:
        """Make a symbolic link; return its inode number."""
        to = as_bytes(target)
        if not to:
            raise fail(errno.ENOENT, path)
        if len(to) >= PATH_MAX:
            raise fail(errno.ENAMETOOLONG, path)
        entry = self._new_entry(path)
        if len(to) >= self.sectorsize or len(to) > self.inline_room:
            raise fail(errno.ENAMETOOLONG, path)
        return self._done(namei.create_symlink(self, entry, to))

    @about("path")
    def link(self, existing: Path, path: Path) -> None:
        """Give a file one more name; a symbolic link is not followed."""
        inode = find(self, existing, follow=False)
        entry = self._new_entry(path)
        if inode.item.flags & (InodeFlag.APPEND | InodeFlag.IMMUTABLE) or inode.is_dir:
            raise fail(errno.EPERM, path)
        namei.link_inode(self, entry, inode)
        balance_delayed_items(self)

    # ---------------------------------------------------------------------------- removing --

    @about("path")
    def unlink(self, path: Path) -> None:
        """Remove a name that is not of a directory."""
        entry = find_entry(self, path)
        if not entry.is_name:
            raise fail(errno.EISDIR, path)
        if entry.inode is None:
            raise fail(errno.ENOENT, path)
        if entry.slash:
            raise fail(errno.EISDIR if entry.inode.is_dir else errno.ENOTDIR, path)
        may_delete(self, entry, entry.inode, as_directory=False)
        namei.unlink(self, entry, entry.inode)

    @about("directory")
    def unlink_files(self, directory: Path, names: Sequence[Path]) -> None:
        """Remove many names; see :func:`btrfs_model.mount.bulk.unlinks.unlink_files`."""
        unlinks.unlink_files(self, directory, names, self.unlink)

    @about("path")
    def rmdir(self, path: Path) -> None:
        """Remove an empty directory, or an empty subvolume."""
        entry = find_entry(self, path)
        if not entry.is_name:
            number = {b".": errno.EINVAL, b"..": errno.ENOTEMPTY}.get(entry.name, errno.EBUSY)
            raise fail(number, path)
        inode = entry.inode
        if inode is None:
            raise fail(errno.ENOENT, path)
        may_delete(self, entry, inode, as_directory=True)
        if inode.ino == ROOT_DIR and not inode.item.size:
            subvolume.delete_subvolume(self, entry, inode)
        else:
            namei.rmdir(self, entry, inode)

    @about("old")
    def rename(self, old: Path, new: Path, flags: int = 0) -> None:
        """Rename, with the flags of renameat2(2)."""
        if flags & ~_RENAME_FLAGS or (flags & RENAME_EXCHANGE and flags != RENAME_EXCHANGE):
            raise fail(errno.EINVAL, new)
        source, target = find_parent(self, old), find_parent(self, new)
        _check_last_names(source, target, flags)
        source = look_up(self, source)
        if source.inode is None:
            raise fail(errno.ENOENT, old)
        target, inode = look_up(self, target), source.inode
        self._check_rename_path(source, target, inode, flags)
        if inode is target.inode:
            return
        self._check_rename(source, target, inode, flags)
        if flags & RENAME_EXCHANGE and target.inode is not None:
            rename.exchange(self, source, target, inode, target.inode)
        else:
            whiteout = bool(flags & RENAME_WHITEOUT)
            rename.rename(self, source, target, inode, whiteout=whiteout)

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
        return top in ancestors(self, directory)

    def _check_rename(self, source: Entry, target: Entry, inode: LiveInode, flags: int) -> None:
        """``vfs_rename()``."""
        may_delete(self, source, inode, as_directory=inode.is_dir)
        if target.inode is None:
            self._may_create(target)
        else:
            swapped = bool(flags & RENAME_EXCHANGE)
            as_directory = target.inode.is_dir if swapped else inode.is_dir
            may_delete(self, target, target.inode, as_directory=as_directory)
        if source.directory is not target.directory:
            if inode.is_dir:
                may_write(self, inode, source.path)
            if flags & RENAME_EXCHANGE and target.inode is not None and target.inode.is_dir:
                may_write(self, target.inode, target.path)

    # -------------------------------------------------------------------------- attributes --

    @about("path")
    def chmod(self, path: Path, mode: int, *, follow: bool = True) -> None:
        """Set the permissions of a file."""
        inode = find(self, path, follow=follow)
        attr.chmod(self, inode, mode, path)
        balance_delayed_items(self)

    @about("path")
    def chown(self, path: Path, uid: int, gid: int, *, follow: bool = True) -> None:
        """Set the owners of a file, -1 for one that stays."""
        inode = find(self, path, follow=follow)
        attr.chown(self, inode, uid, gid, path)
        balance_delayed_items(self)

    @about("path")
    def utimes(self, path: Path, atime_ns: int, mtime_ns: int, *, follow: bool = True) -> None:
        """Set the times of a file, in nanoseconds since 1970."""
        inode = find(self, path, follow=follow)
        attr.utimes(self, inode, atime_ns, mtime_ns, path)
        balance_delayed_items(self)

    @about("path")
    def chattr(self, path: Path, add: int, remove: int = 0) -> None:
        """Add and remove flags of an inode, those of chattr(1) as ``FS_IOC_SETFLAGS`` has them."""
        inode = open_inode(self, path)
        inode_flags.chattr(self, inode, add, remove, path)
        balance_delayed_items(self)

    @about("path")
    def setxattr(
        self, path: Path, name: Path, value: bytes, flags: int = 0, *, follow: bool = True
    ) -> None:
        """Set an extended attribute; see :func:`btrfs_model.mount.names.xattr_checks.setxattr`."""
        xattr_checks.setxattr(self, path, name, value, flags, follow=follow)

    @about("path")
    def removexattr(self, path: Path, name: Path, *, follow: bool = True) -> None:
        """Remove an extended attribute."""
        xattr_checks.removexattr(self, path, name, follow=follow)

    def _done(self, inode: LiveInode) -> int:
        balance_delayed_items(self)
        number = _Number(inode.ino)
        number.inode = inode
        return number


class _Number(int):
    """A new inode's number; for one release also what it was before, the inode in memory."""

    inode: LiveInode

    def __getattr__(self, name: str) -> object:
        if name.startswith("_") or not hasattr(LiveInode, name):
            raise AttributeError(f"'int' object has no attribute {name!r}")
        warn_renamed(f".{name} of what makes a file, which returns the inode number,",
                     "an attribute of fs.file(path).stat()")  # fmt: skip
        return getattr(self.inode, name)


def _check_last_names(source: Entry, target: Entry, flags: int) -> None:
    if not source.is_name:
        raise fail(errno.EBUSY, source.path)
    if not target.is_name:
        raise fail(errno.EEXIST if flags & RENAME_NOREPLACE else errno.EBUSY, target.path)
