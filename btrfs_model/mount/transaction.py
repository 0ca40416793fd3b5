# SPDX-License-Identifier: GPL-2.0-only
"""The end of a transaction (``btrfs_commit_transaction()``).

What a commit has to do is a knot: writing a root item changes the root tree, a changed block needs
an extent item, which changes the extent tree, whose root item must be written, and every allocation
changes a block group and the free space tree. The kernel pulls at it in a fixed order until nothing
moves any more, since a block that was copied once in a transaction is not copied again::

    run delayed refs            what waits so far; block group items early
    delayed items               names and inodes that wait in memory
    snapshots                   each takes the state of now
    delayed items, delayed refs
    root items of subvolumes
    quota groups
    again:
        root items of the other trees
        delayed refs
        block group items, until no block group changes
    write blocks, then the superblock
    what was freed is free now
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from btrfs_model.mount.delayed_inode import run_delayed_items
from btrfs_model.mount.log.log_tree import free_logs
from btrfs_model.mount.log.trace import tell
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.roots.backups import BACKED_UP, make_backup, next_cell, store_backup
from btrfs_model.mount.roots.load import group_tree
from btrfs_model.mount.roots.reloc_root import update_reloc_root
from btrfs_model.mount.space.block_group import calls_that_fit, ensure_metadata, grow_metadata
from btrfs_model.mount.space.qgroup import account_extents, run_qgroups
from btrfs_model.mount.space.quota_reserve import is_limited
from btrfs_model.mount.space.quota_reserve import reserve_items as reserve_qgroups
from btrfs_model.mount.space.space_info import Granted, Keeps, reserve_items
from btrfs_model.ondisk.chunk_write import CHUNK_OBJECTID
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import BLOCK_GROUP_ITEM, DEV_STATS_ITEM, BlockGroupItem
from btrfs_model.volume.roots import is_subvolume_id

_WRITTEN = 1
# In the root tree themselves or known to the superblock alone.
_NO_TREES = {int(ObjectId.TREE_LOG), int(ObjectId.TREE_RELOC)}
_NO_ROOT_ITEM = {int(ObjectId.ROOT_TREE), int(ObjectId.CHUNK_TREE)}


def _root_of(fs: Mount, tree: int) -> tuple[int, int, int] | None:
    """Where the root block of a tree is, None for one that is gone."""
    return fs.root_place(tree) if fs.writer.has_tree(tree) else None


def _remember_committed(fs: Mount) -> None:
    """Keep what was written: the next commit compares with it.

    Only trees that changed are looked at: there may be many others.
    """
    roots = fs.committed_roots
    for tree in fs.writer.changed_trees():
        place = _root_of(fs, tree)
        if place is None:
            roots.pop(tree, None)
        else:
            roots[tree] = place
    fs.writer.clear_changed()
    fs.forget_asked_roots()


def start_transaction(
    fs: Mount, items: int = 0, *, root: int = 0, from_reserve: bool = False, calls: int = 1,
    keeps: Keeps | None = None,
) -> Granted:  # fmt: skip
    """Begin to change something (``btrfs_start_transaction()``).

    There is then something to commit, also where nothing comes of it.

    `items`: so many items at most are changed; 0 where it is not asked for room.
    `root`: the subvolume that is changed; where it has a limit, calls are made one at a time.
    `from_reserve`: what frees space may take from what is kept for commits
    (``btrfs_start_transaction_fallback_global_rsv()``).
    `calls`: how many calls are to be made at once, each of which changes so many items.
    `keeps`: what they keep reserved, if that is known.
    Returns how many of the calls may be made before this is asked again.
    Raises OSError: ENOSPC when there is no room for metadata, EDQUOT.
    """
    if items and root and fs.quotas.enabled:
        calls = 1 if is_limited(fs, root) else calls
        reserve_qgroups(fs, root, items, enforce=not from_reserve)
    info = ensure_metadata(fs, from_reserve=from_reserve)
    if calls > 1:
        calls = min(calls, calls_that_fit(fs, info))
    granted = reserve_items(fs, items, steal=from_reserve, calls=calls, keeps=keeps, info=info)
    fs.join_transaction()
    return granted


def commit(fs: Mount) -> bool:
    """Commit the running transaction; False where it is empty.

    Raises OSError: ENOSPC when the trees do not fit any more. The image has the state of the last
    commit, and there will not be another: EROFS from then on, as after
    ``btrfs_abort_transaction()``.
    """
    if fs.aborted:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), fs.path)
    _flush_on_commit(fs)
    fs.aborted = fs.committing = True
    try:
        changed = _commit(fs)
        fs.aborted = False
    finally:
        fs.committing = False
    return changed


def _flush_on_commit(fs: Mount) -> None:
    """Write all data back where the mount wants that (``btrfs_start_delalloc_flush()``)."""
    if fs.options.flush_on_commit and fs.dirty_files and not fs.flushing:
        fs.flushing = True
        try:
            fs.hooks.flush_delalloc(fs)
        finally:
            fs.flushing = False


def _commit(fs: Mount) -> bool:
    _run_refs_early(fs)
    run_delayed_items(fs)
    for snapshot in fs.pending_snapshots:
        snapshot()
    fs.pending_snapshots.clear()
    run_delayed_items(fs)
    if not _anything_changed(fs):
        return False
    if fs.traces:
        tell(fs.traces, "transaction_commit", {"generation": fs.transid})
    grow_metadata(fs)
    fs.writer.run_refs()
    free_logs(fs)
    _commit_fs_roots(fs)
    account_extents(fs)
    _commit_cowonly_roots(fs)
    fs.writer.write_blocks()
    _write_supers(fs)
    fs.writer.unpin()
    fs.transid += 1
    fs.writer.set_transid(fs.transid)
    fs.in_transaction = False
    fs.freed_dev_extents.clear()
    _remember_committed(fs)
    fs.reread()
    return True


def account_snapshot(fs: Mount, snapshot: int, count: Callable[[], None]) -> None:
    """Count what there is up to a snapshot, and the snapshot (``qgroup_account_snapshot()``).

    What the snapshot's source had is counted, then the snapshot by `count`. All that is written, so
    that what changes after it is counted by itself; no superblock is.
    """
    fs.writer.run_refs()
    free_logs(fs)
    _commit_fs_roots(fs)
    account_extents(fs, skip=snapshot)
    count()
    _commit_cowonly_roots(fs)
    _remember_committed(fs)
    fs.writer.write_blocks()


def _anything_changed(fs: Mount) -> bool:
    return (
        fs.in_transaction
        or any(_root_of(fs, tree) != fs.committed_roots.get(tree)
               for tree in fs.writer.changed_trees())
        or any(group.used != group.commit_used for group in fs.writer.groups())
        or fs.writer.waiting_refs() > 0
        or any(root.changed for root in fs.live_roots())
    )  # fmt: skip


def _run_refs_early(fs: Mount) -> None:
    """Carry out what waits and bring the block group items up to date a first time."""
    fs.writer.run_refs()
    _write_dirty_block_groups(fs)
    fs.writer.run_refs()


# ------------------------------------------------------------------------------- root items --


def _changed_trees(fs: Mount) -> list[int]:
    """Return the trees that changed, or whose root items may have, ascending."""
    asked = {root.id for root in fs.live_roots()}
    return sorted(
        tree for tree in asked.union(fs.writer.changed_trees()) if fs.writer.has_tree(tree)
    )


def _commit_fs_roots(fs: Mount) -> None:
    """Write the root items of the subvolumes that changed, ascending (``commit_fs_roots()``)."""
    changed = {root.id for root in fs.live_roots() if root.changed}
    for tree in filter(is_subvolume_id, _changed_trees(fs)):
        state = fs.writer.tree_state(tree)
        if state.force_cow:
            fs.writer.change_tree(tree, force_cow=False)
        if tree in changed or _root_of(fs, tree) != fs.committed_roots.get(tree):
            update_reloc_root(fs, tree)
            _update_root(fs, tree)


def _commit_cowonly_roots(fs: Mount) -> None:
    """Write the root items of all other trees (``commit_cowonly_roots()``)."""
    _cow_root_tree(fs)
    _run_dev_stats(fs)
    run_qgroups(fs)
    while True:
        trees = [tree for tree in _cowonly_trees(fs) if _update_root(fs, tree)]
        # references that are run change the extent tree, also where no block group changes
        moving = fs.writer.run_refs() > 0 or bool(trees)
        while _write_dirty_block_groups(fs):
            moving = True
            fs.writer.run_refs()
        if not moving and not _outdated_trees(fs) and not fs.writer.waiting_refs():
            return


def _cowonly_trees(fs: Mount) -> list[int]:
    """Return changed trees that are no subvolumes; the extent tree is last, as in the kernel."""
    trees = [tree for tree in _changed_trees(fs)
             if not is_subvolume_id(tree) and tree not in _NO_ROOT_ITEM
             and fs.writer.tree_state(tree).owner not in _NO_TREES]  # fmt: skip
    return sorted(trees, key=lambda tree: (tree == ObjectId.EXTENT_TREE, tree))


def _outdated_trees(fs: Mount) -> list[int]:
    """Trees that changed again since their root items were written (``dirty_cowonly_roots``)."""
    found = []
    for tree in _cowonly_trees(fs):
        live, state = fs.live_root(tree), fs.writer.tree_state(tree)
        now = (state.bytenr, state.level, state.bytes_used)
        if (live.bytenr, live.level, live.bytes_used) != now:
            found.append(tree)
    return found


def _update_root(fs: Mount, tree: int) -> bool:
    """Write the root item of a tree unless the root tree has it already (``btrfs_update_root``)."""
    live = fs.live_root(tree)
    state = fs.writer.tree_state(tree)
    live.bytenr, live.level, live.bytes_used = state.bytenr, state.level, state.bytes_used
    live.generation = state.generation
    if not live.changed:
        return False
    live.generation_v2 = live.generation
    live.stored = live.pack()
    live.dirty = False
    fs.writer.replace(ObjectId.ROOT_TREE, live.key, live.stored)
    return True


def _cow_root_tree(fs: Mount) -> None:
    """Copy the root tree before anything else, as the kernel does: that decides addresses."""
    first = fs.writer.tree(ObjectId.ROOT_TREE).first()
    assert first is not None  # the extent tree's root item
    fs.writer.update(ObjectId.ROOT_TREE, first.key, 0, bytes(first.data))


def _run_dev_stats(fs: Mount) -> None:
    """Write the error counts of the device (``btrfs_run_dev_stats()``).

    The kernel counts the reading of the item at mount as a change of it, so the first commit after
    a mount writes it, later ones only when there were errors.
    """
    if fs.device_stats_written:
        return
    devid = fs.raw_super.dev_item.devid
    key = (ObjectId.DEV_STATS, ItemType.PERSISTENT_ITEM, devid)
    found = fs.writer.get(ObjectId.DEV_TREE, key)
    if found is None:
        fs.writer.insert(ObjectId.DEV_TREE, key, bytes(DEV_STATS_ITEM.size))
    else:
        fs.writer.update(ObjectId.DEV_TREE, key, 0, found)
    fs.device_stats_written = True


# ----------------------------------------------------------------------------- block groups --


def _write_dirty_block_groups(fs: Mount) -> bool:
    """Bring block group items up to date (``btrfs_write_dirty_block_groups()``).

    Returns whether one was not.
    """
    tree = group_tree(fs.image.superblock)
    changed = False
    for group in fs.writer.groups():
        if group.used != group.commit_used:
            item = BlockGroupItem(group.used, CHUNK_OBJECTID, group.flags)
            key = (group.start, ItemType.BLOCK_GROUP_ITEM, group.length)
            fs.writer.update(tree, key, 0, BLOCK_GROUP_ITEM.pack(item))
            fs.writer.set_commit_used(group.start, group.used)
            changed = True
    return changed


# --------------------------------------------------------------------------- the superblock --


def _write_supers(fs: Mount) -> None:
    """Write the superblock that makes all that was written the filesystem."""
    writer, raw = fs.writer, fs.raw_super
    states = {tree: writer.tree_state(tree) for tree in BACKED_UP if writer.has_tree(tree)}
    root, chunk = states[ObjectId.ROOT_TREE], states[ObjectId.CHUNK_TREE]
    cell = next_cell(raw)
    # the kernel has compared the uuid tree with the subvolumes since the mount, and kept it so
    checked = fs.transid if writer.has_tree(ObjectId.UUID_TREE) else raw.uuid_tree_generation
    raw = raw._replace(
        flags=raw.flags | _WRITTEN,
        generation=fs.transid,
        root=root.bytenr,
        root_level=root.level,
        chunk_root=chunk.bytenr,
        chunk_root_level=chunk.level,
        chunk_root_generation=chunk.generation,
        bytes_used=sum(group.used for group in writer.groups()),
        uuid_tree_generation=checked,
    )
    roots = {tree: (s.bytenr, s.generation, s.level) for tree, s in states.items()}
    fs.raw_super = store_backup(raw, cell, make_backup(raw, roots))
    fs.write_supers(fs.raw_super)
