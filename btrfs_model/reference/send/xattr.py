# SPDX-License-Identifier: GPL-2.0-only
"""Extended attributes, capabilities, and the descriptors of fs-verity."""

from __future__ import annotations

import errno
import struct

from btrfs_model.base.codes import EUCLEAN
from btrfs_model.base.counters import current
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import DirItem
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.questions.send.causes import Item
from btrfs_model.reference.send.command import send_cmd
from btrfs_model.reference.send.context import (
    SendContext,
    alloc_path_for_send,
    because,
    because_inode,
    send_errno,
    walk_item,
)
from btrfs_model.reference.send.names import btrfs_for_each_slot, iterate_dir_item, lookup_name
from btrfs_model.reference.send.paths import get_cur_inode_path
from btrfs_model.volume.compare import Change
from btrfs_model.volume.ctree import block_key, item_data, next_leaf, nritems, search_slot

_CAPS = b"security.capability"
_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
# posix_acl_xattr_header of version 2: what stands for an empty acl
_EMPTY_ACL = (2).to_bytes(4, "little")
# struct fsverity_descriptor: version, hash_algorithm, log_blocksize, salt_size, sig_size,
# data_size, root_hash, salt, reserved; the signature follows
_DESCRIPTOR = struct.Struct("<xBBBIQ64s32s144x")
_MAX_DESCRIPTOR = 16384


def send_set_xattr(sctx: SendContext, name: bytes, value: bytes) -> None:
    """Send SET_XATTR."""
    path = get_cur_inode_path(sctx)
    send_cmd(sctx, "set_xattr", path=path, xattr_name=name, xattr_data=value)


def send_remove_xattr(sctx: SendContext, name: bytes) -> None:
    """Send REMOVE_XATTR."""
    send_cmd(sctx, "remove_xattr", path=get_cur_inode_path(sctx), xattr_name=name)


def process_new_xattr(sctx: SendContext, entry: DirItem) -> None:
    """Send an attribute that is new or has a new value (``__process_new_xattr()``)."""
    # sent last, because a chown would drop it; the kernel compares by strncmp()
    if Patch.SEND_CAPS_LAST in sctx and _CAPS.startswith(entry.name):
        return
    value = entry.data
    # an empty acl is stored as nothing, which receivers refuse
    if not value and any(acl.startswith(entry.name) for acl in _ACLS):
        value = _EMPTY_ACL
    send_set_xattr(sctx, entry.name, value)


def changed_xattr(sctx: SendContext) -> None:
    """Send what differs in an xattr item: in one item are all names with the same hash."""
    if sctx.cmp_key.objectid != sctx.cur_ino:
        # "inconsistent snapshot": an item without its inode
        raise send_errno(sctx, errno.EIO)
    if sctx.cur_inode_new_gen or sctx.cur_inode_deleted:
        return
    left: list[DirItem] = []
    right: list[DirItem] = []
    if sctx.result != Change.DELETED:
        left = iterate_dir_item(sctx, sctx.left_path, sctx.send_root)
    if sctx.result != Change.NEW:
        right = iterate_dir_item(sctx, sctx.right_path, sctx.parent_tree)
    because(sctx, "xattr-set", sctx.cur_ino, walk_item(sctx))
    values = {entry.name: entry.data for entry in right}
    for entry in left:
        if values.get(entry.name) != entry.data:
            process_new_xattr(sctx, entry)
    because(sctx, "xattr-removed", sctx.cur_ino, walk_item(sctx))
    kept = {entry.name for entry in left}
    for entry in right:
        if entry.name not in kept:
            send_remove_xattr(sctx, entry.name)


def process_all_new_xattrs(sctx: SendContext) -> None:
    """Send all attributes of the current inode, which took the number of another one."""
    path, wanted = alloc_path_for_send(sctx), (sctx.cur_ino, ItemType.XATTR_ITEM)
    for key in btrfs_for_each_slot(sctx.send_root, Key(*wanted, 0), path):
        if key[:2] != wanted:
            break
        because(sctx, "xattr-set", sctx.cur_ino, Item(key, Change.NEW))
        for entry in iterate_dir_item(sctx, path, sctx.send_root):
            process_new_xattr(sctx, entry)


def send_capabilities(sctx: SendContext) -> None:
    """Send security.capability, if the inode has it."""
    if Patch.SEND_CAPS_LAST not in sctx:
        return
    current().count("btrfs_lookup_xattr")
    key = Key(sctx.cur_ino, ItemType.XATTR_ITEM, name_hash(_CAPS))
    entry = lookup_name(sctx, sctx.send_root, key, _CAPS)
    if entry is not None:
        because_inode(sctx, "capabilities")
        send_set_xattr(sctx, _CAPS, entry.data)


# ------------------------------------------------------------------------------- verity ----


def _read_descriptor(sctx: SendContext) -> bytes:
    """Return the descriptor, gathered from the items behind the one that holds its size."""
    path, descriptor = alloc_path_for_send(sctx), b""
    kind = (sctx.cur_ino, ItemType.VERITY_DESC_ITEM)
    search_slot(sctx.send_root, (*kind, 1), path)
    while path.slots[0] < nritems(path.leaf) or next_leaf(sctx.send_root, path):
        if block_key(path.leaf, path.slots[0])[:2] != kind:
            break
        descriptor += item_data(path.leaf, path.slots[0])
        path.slots[0] += 1
    if len(descriptor) > _MAX_DESCRIPTOR:
        raise send_errno(sctx, errno.EMSGSIZE)
    return descriptor


def process_verity(sctx: SendContext) -> None:
    """Send ENABLE_VERITY; EMSGSIZE or EUCLEAN for a descriptor that no kernel writes."""
    descriptor = _read_descriptor(sctx)
    if len(descriptor) < _DESCRIPTOR.size:
        raise send_errno(sctx, EUCLEAN)
    algorithm, log_blocksize, salt_size, sig_size, *_, salt = _DESCRIPTOR.unpack_from(descriptor)
    signature = descriptor[_DESCRIPTOR.size :]
    if sig_size > len(signature) or salt_size > len(salt) or log_blocksize > 31:
        raise send_errno(sctx, EUCLEAN)
    key = Key(sctx.cur_ino, ItemType.VERITY_DESC_ITEM, 0)
    because(sctx, "verity", sctx.cur_ino, Item(key, Change.NEW))
    send_cmd(
        sctx,
        "enable_verity",
        path=get_cur_inode_path(sctx),
        verity_algorithm=algorithm,
        verity_block_size=1 << log_blocksize,
        verity_salt_data=salt[:salt_size],
        verity_sig_data=signature[:sig_size],
    )
