# SPDX-License-Identifier: GPL-2.0-only
"""Directories that cannot be moved or removed yet.

Inodes are sent in the order of their numbers, but a directory may have moved below one with a
higher number, which itself moves later::

    parent    257  a/          snapshot    258  b/
              258  a/b/                    257  b/a/

When 257 has its turn, its new path does not exist yet: its move waits for 258
(``waiting_dir_moves``, by inode) and is made when 258 is finished (``pending_dir_moves``, by the
inode that is waited for). In the same way a deleted directory has to wait until all that was in it
is gone (``orphan_dirs``); until then it has its orphan name.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from btrfs_model.base.codes import EUCLEAN
from btrfs_model.base.counters import current
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.keys import U64_MAX, ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.questions.send.causes import Item
from btrfs_model.reference.send.command import send_rename, send_rmdir
from btrfs_model.reference.send.context import (
    REFS,
    TOP,
    OrphanDirInfo,
    PendingDirMove,
    RecordedRef,
    SendContext,
    WaitingDirMove,
    add_orphan_dir_info,
    alloc_path_for_send,
    because,
    free_orphan_dir_info,
    get_orphan_dir_info,
    get_waiting_dir_move,
    is_waiting_for_move,
    is_waiting_for_rm,
    send_errno,
)
from btrfs_model.reference.send.inode import cache_dir_utimes
from btrfs_model.reference.send.names import (
    btrfs_for_each_slot,
    check_depth,
    find_first_ref,
    find_inode_gen,
    find_inode_info,
    fs_path_add,
    gen_unique_name,
    get_first_ref,
    get_inode_gen,
    iterate_dir_item,
    iterate_inode_ref,
    lookup_name,
)
from btrfs_model.reference.send.paths import get_cur_name_and_parent, get_cur_path
from btrfs_model.volume.ctree import block_key, search_slot

if TYPE_CHECKING:
    from collections.abc import Iterator


# ------------------------------------------------------------------------------- removal ----


def can_rmdir(sctx: SendContext, ino: int, gen: int) -> bool:
    """Whether a deleted directory is empty by now: all that was in it has been processed."""
    current().count("can_rmdir")
    if ino == TOP:
        return False
    if Patch.SEND_RMDIR_RESUME not in sctx:
        return _can_rmdir_from_start(sctx, ino, gen)
    info = get_orphan_dir_info(sctx, ino, gen)
    high = last_offset = 0
    # the last entry is very likely the highest inode in the directory
    if Patch.SEND_RMDIR_LAST_ENTRY in sctx:
        if info and sctx.cur_ino < info.dir_high_seq_ino:
            return False
        if not info:
            last = _last_entry(sctx, ino)
            if last is None:
                return True
            high = last
            if sctx.cur_ino < high:
                _not_yet(sctx, ino, gen, info, last_offset, high)
                return False
    start = info.last_dir_index_offset if info else 0
    for last_offset, entry in _entries(sctx, ino, start):
        high = max(high, entry)
        waiting = get_waiting_dir_move(sctx, entry)
        if waiting:
            waiting.rmdir = (ino, gen)
        if waiting or entry > sctx.cur_ino:
            _not_yet(sctx, ino, gen, info, last_offset, high)
            return False
    if info:
        free_orphan_dir_info(sctx, ino, gen)
    return True


def _can_rmdir_from_start(sctx: SendContext, ino: int, gen: int) -> bool:
    """Look at all entries each time; only one that waits for its move is remembered."""
    for _, entry in _entries(sctx, ino, 0):
        waiting = get_waiting_dir_move(sctx, entry)
        if waiting:
            add_orphan_dir_info(sctx, ino, gen)
            waiting.rmdir = (ino, gen)
            return False
        if entry > sctx.cur_ino:
            if get_orphan_dir_info(sctx, ino, gen):
                free_orphan_dir_info(sctx, ino, gen)
            return False
    return True


def _entries(sctx: SendContext, directory: int, start: int) -> Iterator[tuple[int, int]]:
    """Iterate over (index, inode) of a directory of the parent snapshot."""
    path, wanted = alloc_path_for_send(sctx), (directory, ItemType.DIR_INDEX)
    for key in btrfs_for_each_slot(sctx.parent_tree, Key(*wanted, start), path):
        if key[:2] != wanted:
            break
        entry = iterate_dir_item(sctx, path, sctx.parent_tree)[0]
        # the id of a subvolume counts as if it were an inode
        yield key.offset, entry.location.objectid


def _last_entry(sctx: SendContext, directory: int) -> int | None:
    """Return the inode of the last entry of a directory of the parent snapshot."""
    path, wanted = alloc_path_for_send(sctx), (directory, ItemType.DIR_INDEX)
    if not search_slot(sctx.parent_tree, (*wanted, U64_MAX), path):
        # the inode item of the directory comes before its entries
        if not path.slots[0]:
            raise send_errno(sctx, EUCLEAN)
        path.slots[0] -= 1
    if block_key(path.leaf, path.slots[0])[:2] != wanted:
        return None
    return iterate_dir_item(sctx, path, sctx.parent_tree)[0].location.objectid


def _not_yet(
    sctx: SendContext, ino: int, gen: int, info: OrphanDirInfo | None, last_offset: int, high: int
) -> None:
    """Remember how far the entries of a directory were looked at."""
    # no second descent for one that was found
    if info is None or Patch.SEND_RMDIR_ONE_DESCENT not in sctx:
        info = add_orphan_dir_info(sctx, ino, gen)
    info.last_dir_index_offset = last_offset
    info.dir_high_seq_ino = max(info.dir_high_seq_ino, high)


def rmdir_if_possible(sctx: SendContext, ino: int, gen: int, cause: str, item: Item) -> bool:
    """Remove a directory, if it can be removed now."""
    if not can_rmdir(sctx, ino, gen):
        return False
    path = get_cur_path(sctx, ino, gen)
    because(sctx, cause, ino, item)
    send_rmdir(sctx, path)
    return True


# ------------------------------------------------------------------------- pending moves ----


def add_waiting_dir_move(sctx: SendContext, ino: int, *, orphanized: bool) -> None:
    """Remember that the move of a directory waits; EEXIST when it does already."""
    if ino in sctx.waiting_dir_moves:
        raise send_errno(sctx, errno.EEXIST)
    sctx.waiting_dir_moves[ino] = WaitingDirMove(orphanized)


def add_pending_dir_move(
    sctx: SendContext, move: PendingDirMove, parent_ino: int, *, is_orphan: bool
) -> None:
    """Let a move wait for that of `parent_ino`."""
    add_waiting_dir_move(sctx, move.ino, orphanized=is_orphan)
    sctx.pending_dir_moves.setdefault(parent_ino, []).append(move)


def _wait_for(sctx: SendContext, ref: RecordedRef, parent_ino: int, *, is_orphan: bool) -> None:
    """Let the move of the current directory wait for that of `parent_ino`."""
    refs = (*sctx.deleted_refs.values(), *sctx.new_refs.values())
    update_refs = [old.directory for old in refs]
    move = PendingDirMove(sctx.cur_ino, sctx.cur_inode_gen, ref.item, update_refs)
    add_pending_dir_move(sctx, move, parent_ino, is_orphan=is_orphan)


# ------------------------------------------------------------------------------- waiting ----


def wait_for_dest_dir_move(sctx: SendContext, ref: RecordedRef, *, is_orphan: bool) -> bool:
    """Let the move of the current directory wait for one that still has the new name."""
    if not sctx.waiting_dir_moves:
        return False
    tree = sctx.parent_tree
    key = Key(ref.dir, ItemType.DIR_ITEM, name_hash(ref.name))
    entry = lookup_name(sctx, tree, key, ref.name)
    if entry is None or entry.location.type != ItemType.INODE_ITEM:
        return False
    ino = entry.location.objectid
    gen = get_inode_gen(sctx, tree, ino)
    if find_inode_gen(sctx, sctx.send_root, ino) != gen:
        return False
    waiting = get_waiting_dir_move(sctx, ino)
    if waiting is None or waiting.orphanized:
        return False
    _wait_for(sctx, ref, ino, is_orphan=is_orphan)
    return True


def check_ino_in_path(sctx: SendContext, ino1: int, gen1: int, ino2: int, gen2: int) -> bool:
    """Whether `ino1` is `ino2` or above it by first names in the parent snapshot."""
    if ino1 == ino2:
        return gen1 == gen2
    tree, depth = sctx.parent_tree, 0
    while ino2 > TOP:
        depth = check_depth(sctx, depth, tree, ino2)
        ref = get_first_ref(sctx, tree, ino2)
        if ref.dir == ino1:
            return ref.dir_gen == gen1
        ino2 = ref.dir
    return False


def is_ancestor(sctx: SendContext, ino1: int, gen1: int, ino2: int) -> bool:
    """Whether `ino1` is above `ino2` in the parent snapshot, by any name of `ino2`."""
    tree, path = sctx.parent_tree, alloc_path_for_send(sctx)
    for key in btrfs_for_each_slot(tree, Key(ino2, ItemType.INODE_REF, 0), path):
        if key.objectid != ino2 or key.type not in REFS:
            break
        # all names of an INODE_REF are in one directory
        parents = [key.offset]
        if key.type == ItemType.INODE_EXTREF:
            parents = [parent for parent, _ in iterate_inode_ref(sctx, path, tree)]
        for parent in parents:
            gen = get_inode_gen(sctx, tree, parent)
            if check_ino_in_path(sctx, ino1, gen1, parent, gen):
                return True
    return False


def wait_for_parent_move(sctx: SendContext, ref: RecordedRef, *, is_orphan: bool) -> bool:
    """Let the move of the current directory wait for one above its new place."""
    ino, gen, depth = ref.dir, ref.dir_gen, 0
    while ino > TOP:
        depth = check_depth(sctx, depth, sctx.send_root, ino)
        if is_waiting_for_move(sctx, ino) and is_ancestor(
            sctx, sctx.cur_ino, sctx.cur_inode_gen, ino
        ):
            break
        after = get_first_ref(sctx, sctx.send_root, ino)
        current().count("get_first_ref")
        before = find_first_ref(sctx, sctx.parent_tree, ino)
        if before is None:
            return False
        moves = ino > sctx.cur_ino and before != (after.dir, after.name)
        if moves and get_inode_gen(sctx, sctx.parent_tree, ino) == gen:
            break
        ino, gen = after.dir, after.dir_gen
    else:
        return False
    _wait_for(sctx, ref, ino, is_orphan=is_orphan)
    return True


# -------------------------------------------------------------------------------- moving ----


def path_loop(sctx: SendContext, start: int, gen: int) -> int | None:
    """Return the directory to wait for, when a path would lead back to where it started."""
    ino, ancestor, depth = start, None, 0
    while ino != TOP:
        depth = check_depth(sctx, depth, sctx.send_root, ino)
        if is_waiting_for_rm(sctx, ino, gen):
            return None
        if is_waiting_for_move(sctx, ino):
            ancestor = ancestor or ino
            parent, parent_gen, _ = get_first_ref(sctx, sctx.parent_tree, ino)
        else:
            entry = get_cur_name_and_parent(sctx, ino, gen)
            if entry.is_orphan:
                return None
            parent, parent_gen = entry.parent_ino, entry.parent_gen
        if parent == start:
            return ancestor or ino
        ino, gen = parent, parent_gen
    return None


def _path_before_move(sctx: SendContext, move: PendingDirMove, *, is_orphan: bool) -> bytes:
    """Return the path that a directory has had so far."""
    if is_orphan:
        return gen_unique_name(sctx, move.ino, move.gen)
    ref = get_first_ref(sctx, sctx.parent_tree, move.ino)
    return fs_path_add(sctx, get_cur_path(sctx, ref.dir, ref.dir_gen), ref.name)


def apply_dir_move(sctx: SendContext, move: PendingDirMove) -> None:
    """Make a move that waited, or let it wait for another directory."""
    waiting = get_waiting_dir_move(sctx, move.ino)
    if waiting is None:
        raise send_errno(sctx, errno.ENOENT)
    del sctx.waiting_dir_moves[move.ino]
    from_path = _path_before_move(sctx, move, is_orphan=waiting.orphanized)
    sctx.send_progress = sctx.cur_ino + 1
    ancestor = path_loop(sctx, move.ino, move.gen)
    if ancestor is not None:
        add_pending_dir_move(sctx, move, ancestor, is_orphan=waiting.orphanized)
        if waiting.rmdir:
            again = get_waiting_dir_move(sctx, move.ino)
            assert again is not None
            again.rmdir = waiting.rmdir
        return
    to_path = get_cur_path(sctx, move.ino, move.gen)
    because(sctx, "dir-moved-later", move.ino, move.item)
    send_rename(sctx, from_path, to_path)
    # the directory that only waited for this one to leave it
    info = get_orphan_dir_info(sctx, *waiting.rmdir) if waiting.rmdir else None
    if (
        waiting.rmdir
        and info
        and rmdir_if_possible(sctx, waiting.rmdir[0], info.gen, "dir-left", move.item)
        and Patch.SEND_RMDIR_RESUME not in sctx
    ):
        free_orphan_dir_info(sctx, *waiting.rmdir)
    because(sctx, "times-move", move.ino, move.item)
    cache_dir_utimes(sctx, move.ino, move.gen)
    for ino, gen, item in move.update_refs:
        because(sctx, "times-move", ino, item)
        # a directory may be gone in the snapshot
        if find_inode_info(sctx, sctx.send_root, ino) is not None:
            cache_dir_utimes(sctx, ino, gen)


def apply_children_dir_moves(sctx: SendContext) -> None:
    """Make the moves that waited for the current inode, and those that waited for them."""
    pending, progress = sctx.pending_dir_moves, sctx.send_progress
    queue = pending.pop(sctx.cur_ino, [])
    while queue:
        move = queue.pop(0)
        apply_dir_move(sctx, move)
        sctx.send_progress = progress
        queue += pending.pop(move.ino, [])
