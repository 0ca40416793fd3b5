# SPDX-License-Identifier: GPL-2.0-only
"""Flags of inodes as chattr(1) sets them (``FS_IOC_SETFLAGS``, ``btrfs_fileattr_set()``)."""

from __future__ import annotations

import errno
import stat
from enum import IntFlag
from typing import Final

from btrfs_model.mount.live_inode import EMPTY_SUBVOL_DIR, LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import Path, is_read_only
from btrfs_model.mount.names.properties import COMPRESSION_PROPERTY, apply_compression
from btrfs_model.mount.names.xattr import note_changed, put_xattr
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.patches import Patch


class ChattrFlag(IntFlag):
    """Flags that btrfs has of those of ``FS_IOC_GETFLAGS``, named ``FS_..._FL`` there."""

    COMPR = 0x4
    SYNC = 0x8
    IMMUTABLE = 0x10
    APPEND = 0x20
    NODUMP = 0x40
    NOATIME = 0x80
    NOCOMP = 0x400
    DIRSYNC = 0x10000
    NOCOW = 0x800000


_PLAIN: Final = (
    (ChattrFlag.SYNC, InodeFlag.SYNC),
    (ChattrFlag.IMMUTABLE, InodeFlag.IMMUTABLE),
    (ChattrFlag.APPEND, InodeFlag.APPEND),
    (ChattrFlag.NODUMP, InodeFlag.NODUMP),
    (ChattrFlag.NOATIME, InodeFlag.NOATIME),
    (ChattrFlag.DIRSYNC, InodeFlag.DIRSYNC),
)
_SHOWN: Final = (
    *_PLAIN,
    (ChattrFlag.NOCOW, InodeFlag.NODATACOW),
    (ChattrFlag.COMPR, InodeFlag.COMPRESS),
    (ChattrFlag.NOCOMP, InodeFlag.NOCOMPRESS),
)
# the property, its inode, the inode
_ITEMS: Final = 3
_COMPRESSION: Final = ChattrFlag.COMPR | ChattrFlag.NOCOMP
_COMPRESS_FLAGS: Final = InodeFlag.COMPRESS | InodeFlag.NOCOMPRESS
_NOCOW: Final = InodeFlag.NODATACOW | InodeFlag.NODATASUM


def shown_flags(inode: LiveInode) -> ChattrFlag:
    """Return the flags that ``FS_IOC_GETFLAGS`` shows (``btrfs_inode_flags_to_fsflags()``)."""
    flags = inode.item.flags
    shown = ChattrFlag(0)
    for of_chattr, of_inode in _SHOWN:
        if flags & of_inode:
            shown |= of_chattr
    # what is not compressed since it did not get smaller is still to be compressed
    return shown & ~ChattrFlag.COMPR if shown & ChattrFlag.NOCOMP else shown


def chattr(fs: Mount, inode: LiveInode, add: int, remove: int, path: Path) -> None:
    """Add flags to those of an inode and remove others.

    Raises OSError: ENOTTY for a FIFO; EROFS; EOPNOTSUPP for a flag that btrfs does not have; EINVAL
    for compression without copy on write.
    """
    has_flags = inode.is_dir or stat.S_ISREG(inode.item.mode)
    if not has_flags or inode.ino == EMPTY_SUBVOL_DIR:
        raise fail(errno.ENOTTY, path)
    if is_read_only(fs, inode.root):
        raise fail(errno.EROFS, path)
    old = shown_flags(inode)
    new = int(old) & ~remove | add
    if not inode.is_dir:
        new &= ~ChattrFlag.DIRSYNC
    _check(old, new, path)
    flags = _inode_flags(fs, inode, new)
    start_transaction(fs, _ITEMS, root=inode.root)
    kind = b""
    if new & ChattrFlag.COMPR and not new & ChattrFlag.NOCOMP:
        kind = (fs.options.compress or "zlib").encode()
    put_xattr(fs, inode, COMPRESSION_PROPERTY, kind or None)
    apply_compression(fs, inode, kind)
    inode.item.flags = flags
    note_changed(fs, inode)


def _check(old: int, new: int, path: Path) -> None:
    """``check_fsflags()``."""
    if new & ~sum(flag for flag, _ in _SHOWN):
        raise fail(errno.EOPNOTSUPP, path)
    both = new & _COMPRESSION == _COMPRESSION
    late = old & ChattrFlag.NOCOW and new & _COMPRESSION
    if both or late or (new & ChattrFlag.NOCOW and old & _COMPRESSION):
        raise fail(errno.EINVAL, path)
    if new & ChattrFlag.NOCOW and new & _COMPRESSION:
        raise fail(errno.EINVAL, path)


def _inode_flags(fs: Mount, inode: LiveInode, new: int) -> int:
    """Return the flags of the inode after a change."""
    flags = inode.item.flags
    for of_chattr, of_inode in _PLAIN:
        flags = flags | of_inode if new & of_chattr else flags & ~of_inode
    nocow = _NOCOW if stat.S_ISREG(inode.item.mode) else InodeFlag.NODATACOW
    # a file that has data keeps what it has: checksums cannot come or go
    if not stat.S_ISREG(inode.item.mode) or inode.i_size == 0:
        keeps = Patch.CHATTR_KEEPS_NODATASUM in fs.behaviour and not fs.options.data_sum
        none = nocow & ~InodeFlag.NODATASUM if keeps else nocow
        flags = flags | nocow if new & ChattrFlag.NOCOW else flags & ~none
    flags &= ~_COMPRESS_FLAGS
    if new & ChattrFlag.NOCOMP:
        flags |= InodeFlag.NOCOMPRESS
    elif new & ChattrFlag.COMPR:
        flags |= InodeFlag.COMPRESS
    return int(flags)
