# SPDX-License-Identifier: GPL-2.0-only
"""Paths as the receiver has them at a moment of the stream.

An inode whose number is below ``send_progress`` has its name of the snapshot, another one that of
the parent snapshot. One that is not there yet, whose name was taken by another or whose removal
waits, is in the top directory under its orphan name ``o<ino>-<generation>-<n>``.
"""

from __future__ import annotations

from typing import NamedTuple

from btrfs_model.base.counters import current
from btrfs_model.patches import Patch
from btrfs_model.reference.send.context import (
    TOP,
    SendContext,
    get_waiting_dir_move,
    is_waiting_for_rm,
)
from btrfs_model.reference.send.names import (
    check_depth,
    did_overwrite_ref,
    fs_path_add,
    gen_unique_name,
    get_first_ref,
    is_inode_existent,
)


class CachedName(NamedTuple):
    """An entry of the name cache; `need_later_update`: made before the inode was processed."""

    name: bytes
    parent_ino: int
    parent_gen: int
    is_orphan: bool
    need_later_update: bool


# ---------------------------------------------------------------------------- name cache ----


def name_cache_search(sctx: SendContext, ino: int, gen: int) -> CachedName | None:
    """Return an entry of the name cache."""
    current().count("name_cache_search")
    if Patch.SEND_NAME_CACHE_LRU in sctx:
        current().count("btrfs_lru_cache_lookup")
    entry: CachedName | None = sctx.name_cache.lookup(ino, gen)
    return entry


def name_cache_delete(sctx: SendContext, ino: int, gen: int) -> None:
    """Drop an entry of the name cache, if there is one."""
    if name_cache_search(sctx, ino, gen):
        del sctx.name_cache[ino, gen]


def name_cache_insert(sctx: SendContext, ino: int, gen: int, entry: CachedName) -> None:
    """Add an entry to the name cache."""
    cache = sctx.name_cache
    if Patch.SEND_NAME_CACHE_LRU in sctx:
        current().count("btrfs_lru_cache_store")
        cache.store(ino, gen, entry, sctx.limits.name_cache)
        return
    # name_cache_clean_unused(): a full cache is emptied by half
    cache.store(ino, gen, entry)
    if len(cache) >= sctx.limits.name_cache:
        while len(cache) > sctx.limits.name_cache_kept:
            cache.popitem(last=False)


def get_cur_name_and_parent(sctx: SendContext, ino: int, gen: int) -> CachedName:
    """Return the name that the receiver has for an inode (``__get_cur_name_and_parent()``)."""
    current().count("__get_cur_name_and_parent")
    entry = name_cache_search(sctx, ino, gen)
    processed = ino < sctx.send_progress
    if entry and processed and entry.need_later_update:
        del sctx.name_cache[ino, gen]
        entry = None
    if entry:
        return entry
    parent, parent_gen = 0, 0
    is_orphan = not is_inode_existent(sctx, ino, gen)[0]
    if not is_orphan:
        # without a parent what exists was processed
        tree = sctx.send_root if processed else sctx.parent_tree
        parent, parent_gen, name = get_first_ref(sctx, tree, ino)
        is_orphan = did_overwrite_ref(sctx, parent, parent_gen, ino, gen, name)
    if is_orphan:
        name = gen_unique_name(sctx, ino, gen)
    entry = CachedName(name, parent, parent_gen, is_orphan, not processed)
    name_cache_insert(sctx, ino, gen, entry)
    return entry


# --------------------------------------------------------------------------------- paths ----


def get_cur_path(sctx: SendContext, ino: int, gen: int) -> bytes:
    """Return the path that the receiver has for an inode now; of the top: empty."""
    current().count("get_cur_path")
    is_current = (ino, gen) == (sctx.cur_ino, sctx.cur_inode_gen)
    remember = Patch.SEND_CUR_INODE_PATH in sctx and is_current
    if remember and sctx.cur_inode_path:
        return sctx.cur_inode_path
    path, depth = b"", 0
    while ino != TOP:
        depth = check_depth(sctx, depth, sctx.send_root, ino)
        name, parent = _get_cur_component(sctx, ino, gen)
        path = fs_path_add(sctx, name, path) if path else name
        if parent is None:
            break
        ino, gen = parent
    if remember:
        sctx.cur_inode_path = path
    return path


def _get_cur_component(
    sctx: SendContext, ino: int, gen: int
) -> tuple[bytes, tuple[int, int] | None]:
    """Return the name of an inode and its directory; None for an orphan name."""
    if is_waiting_for_rm(sctx, ino, gen):
        return gen_unique_name(sctx, ino, gen), None
    waiting = get_waiting_dir_move(sctx, ino)
    if waiting and waiting.orphanized:
        return gen_unique_name(sctx, ino, gen), None
    if waiting:
        ref = get_first_ref(sctx, sctx.parent_tree, ino)
        return ref.name, (ref.dir, ref.dir_gen)
    entry = get_cur_name_and_parent(sctx, ino, gen)
    return entry.name, None if entry.is_orphan else (entry.parent_ino, entry.parent_gen)


def get_cur_inode_path(sctx: SendContext) -> bytes:
    """Return the path of the current inode, from memory where it is kept there."""
    current().count("get_cur_inode_path")
    if Patch.SEND_CUR_INODE_PATH in sctx and sctx.cur_inode_path:
        return sctx.cur_inode_path
    return get_cur_path(sctx, sctx.cur_ino, sctx.cur_inode_gen)
