# SPDX-License-Identifier: GPL-2.0-only
"""Attributes of inodes: permissions, owners, times (``btrfs_setattr()``)."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from btrfs_model.filesystem import acl
from btrfs_model.filesystem.dir_entries import fail
from btrfs_model.filesystem.live_inode import InodeFlag, LiveInode
from btrfs_model.filesystem.lookup import Path, is_read_only
from btrfs_model.filesystem.xattrs import get_xattr, set_xattr

if TYPE_CHECKING:
    from btrfs_model.filesystem.writable import WritableFilesystem

__all__ = ["chmod", "chown", "drop_capabilities", "kill_privileges", "set_flags", "utimes"]

_CAPABILITY = b"security.capability"
_PERMISSIONS = 0o7777


def _check(fs: WritableFilesystem, inode: LiveInode, path: Path) -> None:
    if inode.item.flags & (InodeFlag.IMMUTABLE | InodeFlag.APPEND):
        raise fail(errno.EPERM, path)
    if is_read_only(fs, inode.root):
        raise fail(errno.EROFS, path)
    fs.start_transaction()


def _set(fs: WritableFilesystem, inode: LiveInode, mode: int | None = None) -> None:
    """Count the change; where the mode changes, an ACL follows it."""
    inode.item.sequence += 1
    inode.item.ctime = fs.now()
    if mode is not None:
        inode.item.mode = mode
    fs.mark_inode_dirty(inode)
    if mode is not None:
        acl.change_mode(fs, inode)


def chmod(fs: WritableFilesystem, inode: LiveInode, mode: int, path: Path) -> None:
    """Set permissions.

    Raises
    ------
    OSError
        EOPNOTSUPP for symbolic links, EPERM, EROFS.
    """
    _check(fs, inode, path)
    if inode.is_symlink:
        raise fail(errno.EOPNOTSUPP, path)
    _set(fs, inode, inode.item.mode & ~_PERMISSIONS | mode & _PERMISSIONS)


def chown(fs: WritableFilesystem, inode: LiveInode, uid: int, gid: int, path: Path) -> None:
    """Set owners, -1 for one that stays; programs lose what they gained from the old ones.

    Raises
    ------
    OSError
        EPERM, EROFS.
    """
    _check(fs, inode, path)
    mode = None if inode.is_dir else kill_privileges(fs, inode)
    inode.item.uid = inode.item.uid if uid == -1 else uid
    inode.item.gid = inode.item.gid if gid == -1 else gid
    _set(fs, inode, mode)


def kill_privileges(fs: WritableFilesystem, inode: LiveInode) -> int | None:
    """Remove capabilities and return the mode without set-id bits, None when it has none.

    (``ATTR_KILL_PRIV``, ``ATTR_KILL_SUID``, ``setattr_should_drop_sgid()`` for a privileged user;
    changes of owners and of data do it.)
    """
    drop_capabilities(fs, inode)
    mode = inode.item.mode
    kept = mode & ~stat.S_ISUID
    if mode & stat.S_ISGID and mode & stat.S_IXGRP:
        kept &= ~stat.S_ISGID
    return None if kept == mode else kept


def drop_capabilities(fs: WritableFilesystem, inode: LiveInode) -> None:
    """Remove the capabilities of a program, as every change of its data does.

    (``file_remove_privs()`` for a privileged user, who keeps the set-id bits.)
    """
    if get_xattr(fs, inode, _CAPABILITY) is not None:
        set_xattr(fs, inode, _CAPABILITY, None)


def utimes(fs: WritableFilesystem, inode: LiveInode, atime: int, mtime: int, path: Path) -> None:
    """Set the times of access and change of content, in nanoseconds since 1970.

    Raises
    ------
    OSError
        EPERM, EROFS.
    """
    _check(fs, inode, path)
    inode.item.atime = atime
    inode.item.mtime = mtime
    _set(fs, inode)


# FS_*_FL of chattr that btrfs lets a caller change, and the flags of an inode that they become
_CHANGEABLE = {
    0x00000008: InodeFlag.SYNC,
    0x00000010: InodeFlag.IMMUTABLE,
    0x00000020: InodeFlag.APPEND,
    0x00000040: InodeFlag.NODUMP,
    0x00000080: InodeFlag.NOATIME,
    0x00010000: InodeFlag.DIRSYNC,
}
_COMPR, _NOCOMP, _NOCOW = 0x00000004, 0x00000400, 0x00800000
_PROPERTY = b"btrfs.compression"


def set_flags(fs: WritableFilesystem, inode: LiveInode, flags: int, path: Path) -> None:
    """Set the flags that ``chattr`` shows (``btrfs_fileattr_set()``).

    Parameters
    ----------
    fs : WritableFilesystem
        The filesystem.
    inode : LiveInode
        A file or directory.
    flags : int
        ``FS_*_FL``; what is not in it is cleared.
    path : str or bytes
        For errors.

    Raises
    ------
    OSError
        EOPNOTSUPP for flags that btrfs does not have, EINVAL for some together, EROFS.
    """
    if is_read_only(fs, inode.root):
        raise fail(errno.EROFS, path)
    if flags & ~(sum(_CHANGEABLE) | _COMPR | _NOCOMP | _NOCOW):
        raise fail(errno.EOPNOTSUPP, path)
    if flags & _COMPR and flags & (_NOCOMP | _NOCOW):
        raise fail(errno.EINVAL, path)
    fs.ensure_metadata()
    wanted = inode.item.flags
    for shown, flag in _CHANGEABLE.items():
        wanted = wanted | flag if flags & shown else wanted & ~flag
    wanted = _without_cow(fs, inode, wanted, bool(flags & _NOCOW))
    wanted &= ~(InodeFlag.COMPRESS | InodeFlag.NOCOMPRESS)
    if flags & _NOCOMP:
        wanted |= InodeFlag.NOCOMPRESS
    elif flags & _COMPR:
        wanted |= InodeFlag.COMPRESS
    kind = (fs.compress or "zlib").encode() if flags & _COMPR else b""
    if kind:
        set_xattr(fs, inode, _PROPERTY, kind)
    elif inode.prop_compress:
        set_xattr(fs, inode, _PROPERTY, None)
    inode.prop_compress = kind
    inode.item.flags = int(wanted)
    inode.item.sequence += 1
    inode.item.ctime = fs.now()
    fs.mark_inode_dirty(inode)


def _without_cow(fs: WritableFilesystem, inode: LiveInode, flags: int, nocow: bool) -> int:
    """Set or clear NODATACOW; of a file that has data it stays as it is."""
    if not stat.S_ISREG(inode.item.mode):
        return flags | InodeFlag.NODATACOW if nocow else flags & ~InodeFlag.NODATACOW
    if inode.item.size:
        return flags
    both = InodeFlag.NODATACOW | InodeFlag.NODATASUM
    return flags | both if nocow else flags & ~both
