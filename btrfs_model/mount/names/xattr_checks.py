# SPDX-License-Identifier: GPL-2.0-only
"""setxattr(2) and removexattr(2): what the VFS checks before an attribute reaches btrfs.

Which namespace an attribute has decides what is asked, and in what order: ``user`` and ``btrfs``
need an inode that may be written to; for ``trusted``, ``security`` and ``system`` it is btrfs that
says whether it may. The caller is root.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from typing import Final

from btrfs_model.mount.delayed_inode import balance_delayed_items
from btrfs_model.mount.live_inode import ACCESS, CAPABILITY, DEFAULT, EMPTY_SUBVOL_DIR, LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names import acl, xattr
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import Path, as_bytes, find, is_read_only, may_write
from btrfs_model.mount.space.quota_reserve import reserve_items
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.patches import Patch

_NAME_MAX: Final = 255
_SIZE_MAX: Final = 65536
_FLAGS: Final = os.XATTR_CREATE | os.XATTR_REPLACE

_CAPS_MAGIC: Final = struct.Struct("<I")
# by VFS_CAP_REVISION_MASK: struct vfs_cap_data, struct vfs_ns_cap_data
_CAPS_SIZES: Final = {0x02000000: 20, 0x03000000: 24}
_CAPS_EFFECTIVE: Final = 1
_NO_ID: Final = b"\xff" * 4


def setxattr(fs: Mount, path: Path, name: Path, value: bytes, flags: int, *, follow: bool) -> None:
    """Set an extended attribute (``path_setxattrat()``, ``vfs_setxattr()``).

    `path`: of the inode.
    `name`: with the namespace.
    `value`: what it shall be.
    `flags`: ``os.XATTR_CREATE``: it must not exist; ``os.XATTR_REPLACE``: it must.
    `follow`: whether a symbolic link at the end of the path is followed.
    Raises OSError: EINVAL, ERANGE or E2BIG for the arguments; EPERM, EROFS; EOPNOTSUPP for a
    namespace that does not exist; ENODATA, EEXIST; ENOSPC where a leaf has no room for it.
    """
    if flags & ~_FLAGS:
        raise fail(errno.EINVAL, path)
    raw = _checked_name(name, path)
    if len(value) > _SIZE_MAX:
        raise fail(errno.E2BIG, path)
    inode = find(fs, path, follow=follow)
    if raw in (ACCESS, DEFAULT):
        _change_acl(fs, inode, raw, value, path)
        return
    if raw == CAPABILITY and value:
        _check_capability(value, path)
    _change(fs, inode, raw, value, flags, path)


def removexattr(fs: Mount, path: Path, name: Path, *, follow: bool) -> None:
    """Remove an extended attribute (``vfs_removexattr()``).

    Raises OSError: as :func:`setxattr`.
    """
    raw = _checked_name(name, path)
    inode = find(fs, path, follow=follow)
    if raw in (ACCESS, DEFAULT):
        _change_acl(fs, inode, raw, None, path)
    else:
        _change(fs, inode, raw, None, os.XATTR_REPLACE, path)


def _checked_name(name: Path, path: Path) -> bytes:
    raw = as_bytes(name)
    if not 0 < len(raw) <= _NAME_MAX:
        raise fail(errno.ERANGE, path)
    return raw


def _check_capability(value: bytes, path: Path) -> None:
    """See that capabilities of a file are well-formed (``cap_convert_nscap()``)."""
    magic = _CAPS_MAGIC.unpack_from(value)[0] if len(value) >= _CAPS_MAGIC.size else 0
    size = _CAPS_SIZES.get(magic & ~_CAPS_EFFECTIVE)
    with_root_id = size == max(_CAPS_SIZES.values())
    if len(value) != size or (with_root_id and value.endswith(_NO_ID)):
        raise fail(errno.EINVAL, path)


def _change(
    fs: Mount, inode: LiveInode, name: bytes, value: bytes | None, flags: int, path: Path
) -> None:
    """``xattr_permission()``, then the handler of the namespace (``xattr_resolve_name()``)."""
    _check_changeable(inode, path)
    if not name.startswith((b"trusted.", b"security.", b"system.")):
        if name.startswith(b"user.") and not _may_have_user_xattrs(fs, inode):
            raise fail(errno.EPERM, path)
        may_write(fs, inode, path)
    prefix, dot, rest = name.partition(b".")
    if not dot or prefix not in (b"user", b"trusted", b"security", b"btrfs"):
        raise fail(errno.EOPNOTSUPP, path)
    if not rest:
        raise fail(errno.EINVAL, path)
    if prefix == b"btrfs":
        xattr.set_property(fs, inode, name, value, flags)
    else:
        if is_read_only(fs, inode.root):
            raise fail(errno.EROFS, path)
        xattr.set_xattr(fs, inode, name, value, flags)
    balance_delayed_items(fs)


def _may_have_user_xattrs(fs: Mount, inode: LiveInode) -> bool:
    mode = inode.item.mode
    if stat.S_ISSOCK(mode):
        return Patch.SOCKET_XATTRS in fs.behaviour
    return bool(inode.is_dir or stat.S_ISREG(mode))


def _check_changeable(inode: LiveInode, path: Path) -> None:
    if inode.ino == EMPTY_SUBVOL_DIR:
        raise fail(errno.EOPNOTSUPP, path)
    if inode.item.flags & (InodeFlag.IMMUTABLE | InodeFlag.APPEND):
        raise fail(errno.EPERM, path)


def _change_acl(fs: Mount, inode: LiveInode, name: bytes, value: bytes | None, path: Path) -> None:
    """``vfs_set_acl()``; a read-only subvolume does not stop a kernel."""
    entries = acl.parse(value, path) if value else []
    _check_changeable(inode, path)
    if inode.is_symlink:
        raise fail(errno.EOPNOTSUPP, path)
    if name == DEFAULT and not inode.is_dir:
        if entries:
            raise fail(errno.EACCES, path)
        return
    reserve_items(fs, inode.root, xattr.XATTR_ITEMS)
    start_transaction(fs)
    acl.set_acl(fs, inode, name, entries)
    balance_delayed_items(fs)
