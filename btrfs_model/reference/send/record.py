# SPDX-License-Identifier: GPL-2.0-only
"""Recording names: which the current inode gets, and which it loses.

New names have to be made before old ones are removed, but the walk meets them mixed. So they are
recorded first, with the paths that their directories have at that moment.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.questions.send.causes import Item
from btrfs_model.reference.send.command import send_unlink
from btrfs_model.reference.send.context import (
    REFS,
    TOP,
    RecordedRef,
    SendContext,
    alloc_path_for_send,
    because_inode,
    send_errno,
    walk_item,
)
from btrfs_model.reference.send.names import (
    Name,
    btrfs_for_each_slot,
    fs_path_add,
    get_inode_gen,
    get_inode_path,
    iterate_inode_ref,
)
from btrfs_model.reference.send.paths import get_cur_path
from btrfs_model.volume.compare import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from btrfs_model.volume.tree import Tree


def update_ref_path(sctx: SendContext, ref: RecordedRef) -> None:
    """Compute the path of a name again (``update_ref_path()``, ``refresh_ref_path()``)."""
    ref.full_path = fs_path_add(sctx, get_cur_path(sctx, ref.dir, ref.dir_gen), ref.name)


def record_new_ref_if_needed(sctx: SendContext, name: Name, item: Item) -> None:
    """Record a name that the snapshot has."""
    gen = get_inode_gen(sctx, sctx.send_root, name[0])
    _record_ref(sctx, sctx.new_refs, sctx.deleted_refs, (name[0], gen, name[1]), item)


def record_deleted_ref_if_needed(sctx: SendContext, name: Name, item: Item) -> None:
    """Record a name that the parent snapshot has."""
    gen = get_inode_gen(sctx, sctx.parent_tree, name[0])
    _record_ref(sctx, sctx.deleted_refs, sctx.new_refs, (name[0], gen, name[1]), item)


def _record_ref(
    sctx: SendContext,
    refs: dict[tuple[int, int, bytes], RecordedRef],
    others: dict[tuple[int, int, bytes], RecordedRef],
    key: tuple[int, int, bytes],
    item: Item,
) -> None:
    # what is new and deleted stays as it is
    if Patch.SEND_REFS_RBTREE in sctx and key in others:
        del others[key]
        return
    directory, gen, name = key
    path = fs_path_add(sctx, get_cur_path(sctx, directory, gen), name)
    refs[key] = RecordedRef(directory, gen, name, path, item)


def find_iref(sctx: SendContext, tree: Tree, name: Name, other: Tree, others: list[Name]) -> bool:
    """Whether a name is among `others` too, in the same directory."""
    gen = get_inode_gen(sctx, tree, name[0])
    return name in others and get_inode_gen(sctx, other, name[0]) == gen


def changed_ref(sctx: SendContext) -> None:
    """Record what differs in an item of names."""
    if sctx.cmp_key.objectid != sctx.cur_ino:
        # "inconsistent snapshot": an item without its inode
        raise send_errno(sctx, errno.EIO)
    if sctx.cur_inode_new_gen or sctx.cur_ino == TOP:
        return
    change, new, deleted = sctx.result, [], []
    if change != Change.DELETED:
        new = iterate_inode_ref(sctx, sctx.left_path, sctx.send_root)
    if change != Change.NEW:
        deleted = iterate_inode_ref(sctx, sctx.right_path, sctx.parent_tree)
    item = walk_item(sctx)
    # before v6.0 the names of both items were compared with each other
    alone = change != Change.CHANGED or Patch.SEND_REFS_RBTREE in sctx
    for name in new:
        if alone or not find_iref(sctx, sctx.send_root, name, sctx.parent_tree, deleted):
            record_new_ref_if_needed(sctx, name, item)
    for name in deleted:
        if alone or not find_iref(sctx, sctx.parent_tree, name, sctx.send_root, new):
            record_deleted_ref_if_needed(sctx, name, item)


def record_all_refs(sctx: SendContext, change: Change) -> None:
    """Record all names of the current inode in the snapshot or, DELETED, in its parent."""
    is_new = change == Change.NEW
    record = record_new_ref_if_needed if is_new else record_deleted_ref_if_needed
    for key, name in _all_names(sctx, sctx.send_root if is_new else sctx.parent_tree):
        record(sctx, name, Item(key, change))


def _all_names(sctx: SendContext, tree: Tree) -> Iterator[tuple[Key, Name]]:
    path = alloc_path_for_send(sctx)
    first = Key(sctx.cur_ino, ItemType.INODE_REF, 0)
    for key in btrfs_for_each_slot(tree, first, path):
        if key.objectid != sctx.cur_ino or key.type not in REFS:
            break
        for name in iterate_inode_ref(sctx, path, tree):
            yield key, name


def btrfs_unlink_all_paths(sctx: SendContext) -> None:
    """Remove all names of an inode that lost its last one.

    Before v6.1. The kernel puts the whole path in the parent snapshot behind that of the
    directory.
    """
    tree, paths = sctx.parent_tree, []
    for _, (directory, name) in _all_names(sctx, tree):
        whole = fs_path_add(sctx, get_inode_path(sctx, tree, directory), name)
        gen = get_inode_gen(sctx, tree, directory)
        paths.append(fs_path_add(sctx, get_cur_path(sctx, directory, gen), whole))
    because_inode(sctx, "links-gone")
    for whole in paths:
        send_unlink(sctx, whole)


# ----------------------------------------------------------------------------- comparing ----


def dir_changed(sctx: SendContext, ino: int) -> bool:
    """Whether a directory has another generation in the parent snapshot."""
    new = get_inode_gen(sctx, sctx.send_root, ino)
    return new != get_inode_gen(sctx, sctx.parent_tree, ino)


def compare_refs(sctx: SendContext) -> bool:
    """Whether a directory was made again under the same number, where the names are equal."""
    if sctx.cmp_key.type == ItemType.INODE_REF:
        return dir_changed(sctx, sctx.cmp_key.offset)
    last = 0
    for directory, _ in iterate_inode_ref(sctx, sctx.left_path, sctx.send_root):
        if directory != last and dir_changed(sctx, directory):
            return True
        last = directory
    return False
