# SPDX-License-Identifier: GPL-2.0-only
"""The walk of a send.

Without a parent the tree of the snapshot is walked item by item in key order, and every item is
NEW. With a parent both trees are compared, and only items that differ are looked at. All items of
an inode stand together, so the walk meets, inode by inode::

    INODE_ITEM         create it under its orphan name
    INODE_REF, EXTREF  record its names; they are made when the first other item comes
    XATTR_ITEM         SET_XATTR, REMOVE_XATTR
    EXTENT_DATA        WRITE or CLONE
    the next inode     finish it: size, owner, mode, capabilities, times
"""

from __future__ import annotations

import errno
import stat
from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np

from btrfs_model.base.counters import current
from btrfs_model.ondisk.items import root_ref
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.stream import COMMANDS
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.patches import Patch
from btrfs_model.questions.send.causes import CAUSES_BY_NAME, NO_ITEM, PLACE, ROW, VERDICTS_BY_NAME
from btrfs_model.reference.compare import Side, compare_sides
from btrfs_model.reference.send.command import (
    send_chmod,
    send_chown,
    send_cmd,
    send_fileattr,
    send_truncate,
)
from btrfs_model.reference.send.context import (
    REFS,
    TOP,
    SendContext,
    alloc_path_for_send,
    because,
    because_inode,
    decode_item,
    is_waiting_for_move,
    send_errno,
)
from btrfs_model.reference.send.extent import process_all_extents, process_extent
from btrfs_model.reference.send.hole import (
    has_only_moved,
    maybe_send_hole,
    send_trailing_hole,
)
from btrfs_model.reference.send.inode import (
    cache_dir_utimes,
    flush_dir_utimes,
    send_create_inode_if_needed,
    send_utimes,
    trim_dir_utimes_cache,
)
from btrfs_model.reference.send.moves import apply_children_dir_moves
from btrfs_model.reference.send.names import get_inode_info
from btrfs_model.reference.send.record import btrfs_unlink_all_paths, changed_ref, compare_refs
from btrfs_model.reference.send.refs import process_all_refs, process_recorded_refs
from btrfs_model.reference.send.xattr import (
    changed_xattr,
    process_all_new_xattrs,
    process_verity,
    send_capabilities,
)
from btrfs_model.volume.compare import Change
from btrfs_model.volume.ctree import Reada, block_key, next_leaf, nritems, search_slot_for_read

if TYPE_CHECKING:
    from btrfs_model.ondisk.structs import InodeItem
    from btrfs_model.questions.send.request import SendRequest
    from btrfs_model.volume.subvolume import Subvolume

# objectids that are not inodes: the v1 free space and inode caches
_NOT_INODES = (ObjectId.FREE_SPACE, ObjectId.FREE_INO)


def send(request: SendRequest) -> dict[str, int]:
    """Send; return the number of commands by name.

    Raises OSError, CorruptImageError: see :func:`btrfs_model.questions.send.ioctl.send`.
    """
    sctx = SendContext(request)
    if not request.omit_header:
        request.write(sctx.writer.header())
    send_subvol_begin(sctx)
    if sctx.parent_root:
        btrfs_compare_trees(sctx)
    else:
        full_send_tree(sctx)
    finish_inode_if_needed(sctx, at_end=True)
    flush_dir_utimes(sctx)
    if not request.omit_end:
        because(sctx, "stream-end", 0, NO_ITEM)
        send_cmd(sctx, "end")
    if request.explanation is not None:
        rows = np.zeros(len(sctx.explained), ROW)
        for row, (cause, ino, (key, change)) in zip(rows, sctx.explained, strict=True):
            row["inode"], row["cause"], row["change"] = ino, CAUSES_BY_NAME[cause], change
            row["objectid"], row["type"], row["offset"] = key
        request.explanation.rows = rows
        request.explanation.places = np.array([
            (*astuple(place)[:-1], VERDICTS_BY_NAME[place.verdict]) for place in sctx.places
        ], PLACE)  # fmt: skip
    names = [command.name for command in COMMANDS.values()]
    return {name: sctx.commands[name] for name in names if sctx.commands[name]}


def send_subvol_begin(sctx: SendContext) -> None:
    """Send SUBVOL or SNAPSHOT, with the name under which the tree of roots has it."""
    path, roots = alloc_path_for_send(sctx), sctx.request.fs.root_tree
    wanted = (sctx.send_root.objectid, ItemType.ROOT_BACKREF)
    found = search_slot_for_read(roots, (*wanted, 0), path, find_higher=True)
    if not found or block_key(path.leaf, path.slots[0])[:2] != wanted:
        raise send_errno(sctx, errno.ENOENT)
    snapshot, parent = sctx.request.snapshot, sctx.request.parent
    name = decode_item(sctx, path, roots, root_ref).name
    because(sctx, "subvol-begin", TOP, NO_ITEM)
    identity = {"uuid": _uuid(snapshot), "ctransid": snapshot.item.ctransid}
    if parent is None:
        send_cmd(sctx, "subvol", path=name, **identity)
    else:
        identity |= {"clone_uuid": _uuid(parent), "clone_ctransid": parent.item.ctransid}
        send_cmd(sctx, "snapshot", path=name, **identity)


def _uuid(subvolume: Subvolume) -> bytes:
    item = subvolume.item
    return item.received_uuid if any(item.received_uuid) else item.uuid


# ---------------------------------------------------------------------------------- walk ----


def full_send_tree(sctx: SendContext) -> None:
    """Walk the tree of the snapshot."""
    reada = Reada.NONE
    if Patch.SEND_READA_ALWAYS in sctx:
        reada = Reada.FORWARD_ALWAYS
    elif Patch.SEND_READA in sctx:
        reada = Reada.FORWARD
    path = alloc_path_for_send(sctx, reada)
    first = (TOP, ItemType.INODE_ITEM, 0)
    more = search_slot_for_read(sctx.send_root, first, path, find_higher=True)
    while more:
        sctx.left_path, sctx.cmp_key = path, Key(*block_key(path.leaf, path.slots[0]))
        sctx.result = Change.NEW
        changed_cb(sctx)
        current().count("btrfs_next_old_item")
        path.slots[0] += 1
        more = path.slots[0] < nritems(path.leaf) or next_leaf(sctx.send_root, path)


def btrfs_compare_trees(sctx: SendContext) -> None:
    """Walk the trees of the snapshot and its parent."""
    parent_root = sctx.parent_tree
    # what is newer than the parent is not shared and will be needed
    newer_than = parent_root.generation if Patch.SEND_READA_COMPARE in sctx else None
    left, right = Side(sctx.send_root, newer_than), Side(parent_root, newer_than)
    for change, key in compare_sides(left, right):
        sctx.left_path, sctx.right_path = left.path, right.path
        sctx.cmp_key, sctx.result = Key(*key), change
        changed_cb(sctx)


def changed_cb(sctx: SendContext) -> None:
    """Act on the item that the walk stands on."""
    current().count("changed_cb")
    kind = sctx.cmp_key.type
    if sctx.result == Change.SAME:
        if kind == ItemType.EXTENT_DATA:
            maybe_send_hole(sctx)
        # the same name in another directory of the same number
        if kind not in REFS or not compare_refs(sctx):
            return
        sctx.result = Change.CHANGED
    finish_inode_if_needed(sctx, at_end=False)
    if sctx.cmp_key.objectid in _NOT_INODES:
        return
    if kind == ItemType.INODE_ITEM:
        changed_inode(sctx)
    elif sctx.ignore_cur_inode:
        pass
    elif kind in REFS:
        changed_ref(sctx)
    elif kind == ItemType.XATTR_ITEM:
        changed_xattr(sctx)
    elif kind == ItemType.EXTENT_DATA:
        changed_extent(sctx)
    elif kind == ItemType.VERITY_DESC_ITEM and not sctx.cmp_key.offset:
        changed_verity(sctx)


def changed_extent(sctx: SendContext) -> None:
    """Send a file extent."""
    if sctx.cmp_key.objectid != sctx.cur_ino and Patch.SEND_EXTENT_ALONE not in sctx:
        # after a relocation the inode is the same, and so are the data
        if sctx.result != Change.CHANGED or not has_only_moved(sctx):
            raise send_errno(sctx, errno.EIO)
        return
    skip = sctx.cur_inode_new_gen or sctx.cur_inode_deleted
    if sctx.cmp_key.objectid == sctx.cur_ino and not skip and sctx.result != Change.DELETED:
        process_extent(sctx)


def changed_verity(sctx: SendContext) -> None:
    """Note that a file has fs-verity enabled."""
    skip = sctx.cur_inode_new_gen or sctx.cur_inode_deleted
    if not skip and sctx.result == Change.NEW:
        sctx.cur_inode_needs_verity = True


# ----------------------------------------------------------------------------- finishing ----


def process_recorded_refs_if_needed(sctx: SendContext, *, at_end: bool) -> bool:
    """Make the recorded names when they are complete; return whether a move has to wait."""
    # that is with the first item that is none
    if not at_end and sctx.cmp_key.objectid == sctx.cur_ino and sctx.cmp_key.type <= REFS[-1]:
        return False
    if not sctx.new_refs and not sctx.deleted_refs:
        return False
    if process_recorded_refs(sctx):
        return True
    sctx.send_progress = sctx.cur_ino + 1
    return False


def finish_inode_if_needed(sctx: SendContext, *, at_end: bool) -> None:
    """Make the names of the current inode, and finish it, when their time has come."""
    current().count("finish_inode_if_needed")
    if sctx.ignore_cur_inode:
        return
    if sctx.cur_ino:
        # until it is moved, a directory that waits has its old path
        process_recorded_refs_if_needed(sctx, at_end=at_end)
        next_inode = at_end or sctx.cmp_key.objectid != sctx.cur_ino
        if next_inode and not sctx.cur_inode_deleted:
            _finish_inode(sctx)
    trim_dir_utimes_cache(sctx)


def _finish_inode(sctx: SendContext) -> None:
    """Send everything of the current inode that comes after its items."""
    _finish_attributes(sctx)
    if sctx.request.proto >= 3 and sctx.cur_inode_needs_verity:
        process_verity(sctx)
    send_capabilities(sctx)
    # a directory that waits gets its times when it has been moved
    if is_waiting_for_move(sctx, sctx.cur_ino):
        return
    apply_children_dir_moves(sctx)
    sctx.send_progress = sctx.cur_ino + 1
    because_inode(sctx, "times-inode")
    # more names may still come into a directory; an empty one is done
    is_full_dir = stat.S_ISDIR(sctx.cur_inode.mode) and sctx.cur_inode.size > 0
    if is_full_dir and Patch.SEND_UTIMES_CACHE in sctx:
        cache_dir_utimes(sctx, sctx.cur_ino, sctx.cur_inode_gen)
    else:
        send_utimes(sctx, sctx.cur_ino, sctx.cur_inode_gen)


def _finish_attributes(sctx: SendContext) -> None:
    """Send size, owner, mode and flags of the current inode, where the receiver has others."""
    mode, size = sctx.cur_inode.mode, sctx.cur_inode.size
    item = get_inode_info(sctx, sctx.send_root, sctx.cur_ino)
    has_its_size = sctx.cur_inode_next_write_offset == size
    is_new = sctx.parent_root is None or sctx.cur_inode_new
    need_truncate, need_chown, need_chmod, need_fileattr = not has_its_size, True, True, False
    if not is_new:
        old = get_inode_info(sctx, sctx.parent_tree, sctx.cur_ino)
        need_chown = (item.uid, item.gid) != (old.uid, old.gid)
        need_chmod = item.mode != old.mode
        need_fileattr = item.flags != old.flags
        need_truncate = old.size != size and (size < old.size or not has_its_size)
    if stat.S_ISREG(mode):
        send_trailing_hole(sctx)
        because_inode(sctx, "truncate-size" if need_truncate else "truncate-always")
        # without it every regular file is truncated to its size
        if need_truncate or Patch.SEND_SKIP_TRUNCATE not in sctx:
            send_truncate(sctx, size)
    if need_chown:
        because_inode(sctx, "owner-new" if is_new else "owner-changed")
        send_chown(sctx, item.uid, item.gid)
    if stat.S_ISLNK(mode):
        return
    if need_chmod:
        because_inode(sctx, "mode-new" if is_new else "mode-changed")
        send_chmod(sctx, item.mode)
    if need_fileattr:
        because_inode(sctx, "flags-changed")
        send_fileattr(sctx, item.flags)


# -------------------------------------------------------------------------------- inodes ----


def changed_inode(sctx: SendContext) -> None:
    """Start with the inode that the walk stands on."""
    left: InodeItem | None = None
    right: InodeItem | None = None
    if sctx.result != Change.DELETED:
        left = decode_item(sctx, sctx.left_path, sctx.send_root, INODE_ITEM.unpack)
    if sctx.result != Change.NEW:
        right = decode_item(sctx, sctx.right_path, sctx.parent_tree, INODE_ITEM.unpack)
    sctx.cur_ino = sctx.send_progress = sctx.cmp_key.objectid
    sctx.inode_change = sctx.result
    sctx.cur_inode_new_gen = False
    sctx.cur_inode_last_extent = None
    sctx.cur_inode_next_write_offset = 0
    sctx.cur_inode_path = b""
    sctx.cur_inode_open = False
    sctx.cur_inode_needs_verity = False
    sctx.ignore_cur_inode = False
    if left and right:
        _changed_in_both(sctx, left, right)
    elif left is None:
        assert right is not None
        _set_cur_inode(sctx, right, deleted=True)
    elif not left.nlink and Patch.SEND_NO_LINKS in sctx:
        # unlinked but open when the snapshot was taken
        sctx.ignore_cur_inode = True
    else:
        _set_cur_inode(sctx, left, new=True)
        if sctx.cur_ino != TOP:
            because_inode(sctx, "inode-new")
            send_create_inode_if_needed(sctx)


def _set_cur_inode(
    sctx: SendContext, item: InodeItem, *, new: bool = False, deleted: bool = False
) -> None:
    """Take an inode for the current one: as new, as deleted, or (neither) as changed."""
    sctx.cur_inode, sctx.cur_inode_gen = item, item.generation
    sctx.cur_inode_new, sctx.cur_inode_deleted = new, deleted


def _changed_in_both(sctx: SendContext, left: InodeItem, right: InodeItem) -> None:
    """Start with an inode of a number that both trees have."""
    other_inode = left.generation != right.generation and sctx.cur_ino != TOP
    if Patch.SEND_NLINK_ZERO not in sctx:
        if not left.nlink and Patch.SEND_NO_LINKS in sctx:
            sctx.ignore_cur_inode = True
            btrfs_unlink_all_paths(sctx)
            return
    elif not left.nlink and not right.nlink:
        sctx.ignore_cur_inode = True
        return
    elif not left.nlink or not right.nlink:
        # it lost or got its first link
        other_inode = True
    if other_inode:
        _replace_inode(sctx, left, right)
    else:
        _set_cur_inode(sctx, left)


def _replace_inode(sctx: SendContext, left: InodeItem, right: InodeItem) -> None:
    """Delete an inode and create another one under its number."""
    sctx.cur_inode_new_gen = True
    if right.nlink or Patch.SEND_NLINK_ZERO not in sctx:
        _set_cur_inode(sctx, right, deleted=True)
        process_all_refs(sctx, Change.DELETED)
    if not left.nlink and Patch.SEND_NO_LINKS in sctx:
        return
    _set_cur_inode(sctx, left, new=True)
    because_inode(sctx, "inode-replaced")
    send_create_inode_if_needed(sctx)
    process_all_refs(sctx, Change.NEW)
    sctx.send_progress = sctx.cur_ino + 1
    process_all_extents(sctx)
    process_all_new_xattrs(sctx)
