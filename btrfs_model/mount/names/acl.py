# SPDX-License-Identifier: GPL-2.0-only
"""POSIX ACLs: what they do to modes, and what directories hand down.

An ACL is an extended attribute: a version (2) and entries of tag, permissions and id. One that says
no more than a mode does is not stored, it becomes the mode; and the mode's bits are kept equal to
the entries that they stand for::

    owner      USER_OBJ
    group      MASK where there is one, else GROUP_OBJ
    others     OTHER
"""

from __future__ import annotations

import errno
import stat
import struct
from typing import Final, NamedTuple

from btrfs_model.mount.live_inode import ACCESS, DEFAULT, InodeFields, LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.xattr import get_xattr, note_changed, put_xattr

_VERSION: Final = struct.pack("<I", 2)
_ENTRY: Final = struct.Struct("<HHI")
_USER_OBJ: Final = 0x01
_USER: Final = 0x02
_GROUP_OBJ: Final = 0x04
_GROUP: Final = 0x08
_MASK: Final = 0x10
_OTHER: Final = 0x20
NO_ID: Final = 2**32 - 1
"""No user and no group has it."""


class AclEntry(NamedTuple):
    """An entry of an ACL.

    `tag`: whom it is for.
    `perm`: bits 4 (read), 2 (write), 1 (execute).
    `id`: of the user or group, where the tag is one of those.
    """

    tag: int
    perm: int
    id: int


def parse(value: bytes, path: str | bytes) -> list[AclEntry]:
    """Read an ACL (``posix_acl_from_xattr()``); no entries mean no ACL.

    Raises OSError: EOPNOTSUPP for another version, EINVAL for what is no ACL.
    """
    if len(value) < len(_VERSION):
        raise fail(errno.EINVAL, path)
    if not value.startswith(_VERSION):
        raise fail(errno.EOPNOTSUPP, path)
    if (len(value) - len(_VERSION)) % _ENTRY.size:
        raise fail(errno.EINVAL, path)
    entries = []
    for tag, perm, ident in _ENTRY.iter_unpack(value[len(_VERSION) :]):
        named = tag in (_USER, _GROUP)
        entries.append(AclEntry(tag, perm, ident if named else NO_ID))
    if entries and not _is_valid(entries):
        raise fail(errno.EINVAL, path)
    return entries


def _is_valid(entries: list[AclEntry]) -> bool:
    """``posix_acl_valid()``: entries in the order of tags, each but users and groups once."""
    order = (_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER)
    tags = [entry.tag for entry in entries]
    if any(tag not in order for tag in tags) or any(entry.perm & ~7 for entry in entries):
        return False
    places = [order.index(tag) for tag in tags]
    once = all(tags.count(tag) == 1 for tag in (_USER_OBJ, _GROUP_OBJ, _OTHER))
    needs_mask = _USER in tags or _GROUP in tags
    masks = tags.count(_MASK)
    known = all(entry.id != NO_ID for entry in entries if entry.tag in (_USER, _GROUP))
    return (
        places == sorted(places)
        and once
        and known
        and (masks == 1 or (masks == 0 and not needs_mask))
    )


def _pack(entries: list[AclEntry]) -> bytes:
    return _VERSION + b"".join(_ENTRY.pack(*entry) for entry in entries)


def _as_mode(entries: list[AclEntry]) -> tuple[int, bool]:
    """Permissions that an ACL says, and whether they say all (``posix_acl_equiv_mode()``)."""
    perms = {entry.tag: entry.perm for entry in entries}
    group = perms.get(_MASK, perms[_GROUP_OBJ])
    whole = not {_USER, _GROUP, _MASK} & perms.keys()
    return perms[_USER_OBJ] << 6 | group << 3 | perms[_OTHER], whole


def set_acl(fs: Mount, inode: LiveInode, name: bytes, entries: list[AclEntry]) -> None:
    """Set or remove (no entries) an ACL and the mode that it implies (``btrfs_set_acl()``)."""
    item = inode.item
    if name == ACCESS and entries:
        permissions, whole = _as_mode(entries)
        item.mode = item.mode & ~0o777 | permissions
        entries = [] if whole else entries
    if name == DEFAULT and not inode.is_dir:
        return
    put_xattr(fs, inode, name, _pack(entries) if entries else None)
    note_changed(fs, inode)


def change_mode(fs: Mount, inode: LiveInode) -> None:
    """Make the ACL follow a new mode (``posix_acl_chmod()``)."""
    value = get_xattr(fs, inode, ACCESS)
    if value is None:
        return
    mode = inode.item.mode
    entries = parse(value, ACCESS)
    has_mask = any(entry.tag == _MASK for entry in entries)
    new = {
        _USER_OBJ: mode >> 6 & 7,
        _OTHER: mode & 7,
        _MASK if has_mask else _GROUP_OBJ: mode >> 3 & 7,
    }
    set_acl(fs, inode, ACCESS, [entry._replace(perm=new.get(entry.tag, entry.perm))
                                for entry in entries])  # fmt: skip


def inherit(
    fs: Mount, directory: LiveInode, item: InodeFields
) -> tuple[bytes | None, bytes | None]:
    """Access and default ACL of a new inode; its mode is made to follow (``posix_acl_create()``).

    Without a default ACL in the directory the umask takes its part of the mode.
    """
    if stat.S_ISLNK(item.mode):
        return None, None
    default = get_xattr(fs, directory, DEFAULT)
    if default is None:
        item.mode &= ~fs.umask
        return None, None
    entries = parse(default, DEFAULT)
    mode = item.mode
    has_mask = any(entry.tag == _MASK for entry in entries)
    bits = {_USER_OBJ: 6, _MASK if has_mask else _GROUP_OBJ: 3, _OTHER: 0}
    entries = [
        entry._replace(perm=entry.perm & mode >> bits[entry.tag]) if entry.tag in bits else entry
        for entry in entries
    ]
    permissions, whole = _as_mode(entries)
    item.mode = mode & ~0o777 | permissions
    access = None if whole else _pack(entries)
    return access, default if stat.S_ISDIR(mode) else None


def store_inherited(
    fs: Mount, inode: LiveInode, access: bytes | None, default: bytes | None
) -> None:
    """Store the ACLs of a new inode (``btrfs_init_inode_security()``)."""
    if default is not None:
        put_xattr(fs, inode, DEFAULT, default)
    if access is not None:
        put_xattr(fs, inode, ACCESS, access)
