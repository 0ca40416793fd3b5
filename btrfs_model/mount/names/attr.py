# SPDX-License-Identifier: GPL-2.0-only
"""Attributes of inodes: permissions, owners, times (``btrfs_setattr()``)."""

from __future__ import annotations

import errno
import stat
from typing import Final

from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.live_inode import CAPABILITY, EMPTY_SUBVOL_DIR, LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names import acl
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import Path, is_read_only, may_write
from btrfs_model.mount.names.xattr import get_xattr, set_xattr
from btrfs_model.mount.space.quota_reserve import reserve_inode
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.ondisk.constants import InodeFlag

_PROTECTED: Final = int(InodeFlag.IMMUTABLE | InodeFlag.APPEND)
_PERMISSIONS: Final = 0o7777
_TIMES: Final = range(-(2**63) * 10**9, 2**63 * 10**9)


def _check(fs: Mount, inode: LiveInode, path: Path, *, protected: bool = True) -> None:
    """``may_setattr()`` and the start of ``btrfs_setattr()``.

    What stands for a subvolume that is not there is in memory alone (``simple_setattr()``).
    """
    if inode.ino == EMPTY_SUBVOL_DIR:
        return
    if protected and inode.item.flags & _PROTECTED:
        raise fail(errno.EPERM, path)
    if is_read_only(fs, inode.root):
        raise fail(errno.EROFS, path)
    start_transaction(fs)


def _set(fs: Mount, inode: LiveInode, mode: int | None = None) -> None:
    """Count the change; where the mode changes, an ACL follows it."""
    if inode.ino == EMPTY_SUBVOL_DIR:
        return
    if mode is not None:
        inode.item.mode = mode
    inode.item.sequence += 1
    inode.item.ctime = fs.now()
    reserve_inode(fs, inode)
    mark_inode_dirty(fs, inode)
    if mode is not None:
        acl.change_mode(fs, inode)


def chmod(fs: Mount, inode: LiveInode, mode: int, path: Path) -> None:
    """Set permissions.

    Raises OSError: EOPNOTSUPP for symbolic links, EPERM, EROFS.
    """
    if inode.is_symlink:
        raise fail(errno.EOPNOTSUPP, path)
    _check(fs, inode, path)
    _set(fs, inode, inode.item.mode & ~_PERMISSIONS | mode & _PERMISSIONS)


def chown(fs: Mount, inode: LiveInode, uid: int, gid: int, path: Path) -> None:
    """Set owners, -1 for one that stays; programs lose what they gained from the old ones.

    Raises OSError: EINVAL for what is no id, EPERM, EROFS.
    """
    if not (-1 <= uid <= acl.NO_ID and -1 <= gid <= acl.NO_ID):
        raise fail(errno.EINVAL, path)
    uid, gid = (-1 if number == acl.NO_ID else number for number in (uid, gid))
    # even an immutable inode may be given the owners that it has by naming none
    _check(fs, inode, path, protected=(uid, gid) != (-1, -1))
    mode = None if inode.is_dir else _kill_privileges(fs, inode)
    inode.item.uid = inode.item.uid if uid == -1 else uid
    inode.item.gid = inode.item.gid if gid == -1 else gid
    _set(fs, inode, mode)


def may_change_data(fs: Mount, inode: LiveInode, path: Path) -> None:
    """See that a file may be opened for writing, not for appending.

    Raises OSError: EPERM, EROFS.
    """
    may_write(fs, inode, path)
    if inode.item.flags & _PROTECTED:
        raise fail(errno.EPERM, path)


def remove_capability(fs: Mount, inode: LiveInode) -> None:
    """Remove what makes a file a privileged program: its data change (``file_remove_privs()``).

    The set-id bits stay, as root changes them.
    """
    if get_xattr(fs, inode, CAPABILITY) is not None:
        set_xattr(fs, inode, CAPABILITY, None)


def _kill_privileges(fs: Mount, inode: LiveInode) -> int | None:
    """Remove capabilities and return the mode without set-id bits, None when it has none.

    (``ATTR_KILL_PRIV``, ``ATTR_KILL_SUID``, ``setattr_should_drop_sgid()`` for a privileged user.)
    """
    remove_capability(fs, inode)
    mode = inode.item.mode
    kept = mode & ~stat.S_ISUID
    if mode & stat.S_ISGID and mode & stat.S_IXGRP:
        kept &= ~stat.S_ISGID
    return None if kept == mode else kept


def utimes(fs: Mount, inode: LiveInode, atime: int, mtime: int, path: Path) -> None:
    """Set the times of access and change of content, in nanoseconds since 1970.

    Raises OSError: EINVAL for seconds that do not fit 64 bits, EPERM, EROFS.
    """
    if atime not in _TIMES or mtime not in _TIMES:
        raise fail(errno.EINVAL, path)
    _check(fs, inode, path)
    inode.item.atime = atime
    inode.item.mtime = mtime
    _set(fs, inode)
