# SPDX-License-Identifier: GPL-2.0-only
"""Entries of directories in a log before Linux 6.1, as 5.10 has it.

Delayed items are run first. Every entry of every leaf of this transaction is copied, old ones too,
and the entries on both sides of such a run of leaves; one range says what the run covers. Under
which keys, :func:`log_directory_changes` says.

Entries are looked at and copied as arrays: a directory may have a million of them. Into the log
they go one by one and in the kernel's order, so that its leaves split where they do there.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.counters import current
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.log_dir import (
    TRANSID,
    DelayedEntries,
    is_of_this_transaction,
    log_directory,
)
from btrfs_model.mount.log.log_tree import LogContext
from btrfs_model.mount.log.state import log_tree_id
from btrfs_model.mount.mount import Mount
from btrfs_model.native.bulk import copy_each, insert_beside
from btrfs_model.native.items import Columns, entries, gather, select
from btrfs_model.native.tree import KEY
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.items import dir_items
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.structs import DIR_ITEM
from btrfs_model.patches import Patch

_DIR_ITEM: Final = int(ItemType.DIR_ITEM)
_DIR_INDEX: Final = int(ItemType.DIR_INDEX)
_CHUNK: Final = 1 << 16

Mask = npt.NDArray[np.bool_]


def _entries_of(fs: Mount, inode: LiveInode, kind: int) -> tuple[Columns, Mask]:
    """Return the entries of a directory, and which are in leaves of this transaction."""
    tree = fs.writer.tree(inode.root)
    columns = tree.scan((inode.ino, kind, 0), (inode.ino, kind, U64_MAX))
    blocks = columns["block"]
    first = np.flatnonzero(np.diff(blocks, prepend=np.uint64(0)))
    changed = [is_of_this_transaction(fs, block) for block in blocks[first].tolist()]
    current().count("log_leaves_entered", sum(changed))
    counts = np.diff(first, append=len(blocks))
    in_changed = np.repeat(np.array(changed, bool), counts)
    current().count("log_entries_visited", int(in_changed.sum()))
    return columns, in_changed


def log_directory_changes(fs: Mount, inode: LiveInode, ctx: LogContext) -> None:
    """Log what changed in a directory nothing of which is delayed.

    The tree has each entry twice, with the same data: under a DIR_ITEM key, the hash of its name,
    and under a DIR_INDEX key, its place in a listing. Before log-dir-index-only both are logged,
    first all DIR_ITEMs; since then DIR_INDEX items alone, which say all that a replay needs.
    """
    if Patch.LOG_SKIP_OLD_DIR_ITEMS in fs.behaviour:
        return log_directory(fs, inode, DelayedEntries(None), ctx)
    kinds = [_DIR_INDEX] if Patch.LOG_DIR_INDEX_ONLY in fs.behaviour else [_DIR_ITEM, _DIR_INDEX]
    for kind in kinds:
        columns, changed = _entries_of(fs, inode, kind)
        if not ctx.log_new_dentries:
            ctx.log_new_dentries = _has_new_entries(fs, select(columns, changed))
        runs = _Runs(columns["offset"], changed)
        lowest = 0
        while lowest <= U64_MAX:
            lowest = log_dir_items(fs, inode, kind, columns, runs, lowest) + 1


class _Runs:
    """Where entries in leaves of this transaction begin and end."""

    def __init__(self, offsets: npt.NDArray[np.uint64], changed: Mask) -> None:
        self.offsets = offsets
        self._changed = np.flatnonzero(changed)
        self._others = np.flatnonzero(~changed)

    def next(self, lowest: int) -> tuple[int, int] | None:
        """Return the next run from an offset on: its first row, and the one behind it."""
        row = int(np.searchsorted(self.offsets, np.uint64(lowest)))
        at = int(np.searchsorted(self._changed, row))
        if at == len(self._changed):
            return None
        start = int(self._changed[at])
        after = int(np.searchsorted(self._others, start))
        end = int(self._others[after]) if after < len(self._others) else len(self.offsets)
        return start, end


def log_dir_items(
    fs: Mount, inode: LiveInode, kind: int, columns: Columns, runs: _Runs, lowest: int
) -> int:
    """Log a run of leaves; returns the last offset that it covers."""
    first, last = lowest, U64_MAX
    log = log_tree_id(inode.root)
    run = runs.next(lowest)
    if run is None:
        if len(runs.offsets):
            first = max(lowest, int(runs.offsets[-1])) + 1
    else:
        start, end = run
        # the keys on both sides, or what is between them and the run
        beside = int(Patch.LOG_NO_BOUNDARY_KEYS not in fs.behaviour)
        if start:
            first = int(runs.offsets[start - 1]) + 1 - beside
            start -= beside
        if end < len(runs.offsets):
            last = int(runs.offsets[end]) - 1 + beside
            end += beside
        _overwrite(fs, log, select(columns, slice(start, end)))
    # each kind of entry has its own ranges
    ranges = ItemType.DIR_LOG_ITEM if kind == _DIR_ITEM else ItemType.DIR_LOG_INDEX
    key = (inode.ino, int(ranges), first)
    if fs.writer.get(log, key) is None:
        fs.writer.insert(log, key, last.to_bytes(8, "little"))
    else:
        fs.writer.update(log, key, 0, last.to_bytes(8, "little"))
    return last


def _overwrite(fs: Mount, log: int, columns: Columns) -> None:
    """Copy entries into the log, over those that it has already (``overwrite_item()``)."""
    low, high = (
        (int(columns["objectid"][row]), int(columns["type"][row]), int(columns["offset"][row]))
        for row in (0, -1)
    )
    tree = fs.writer.tree(log)
    there = np.isin(columns["offset"], tree.scan(low, high)["offset"])
    if Patch.LOG_BULK_INSERT not in fs.behaviour:
        current().count("btrfs_search_slot", len(there))
        current().count("read_block_for_search", len(there) * tree.level)
    for row in np.flatnonzero(there).tolist():
        key = (*low[:2], int(columns["offset"][row]))
        at, size = int(columns["position"][row]), int(columns["size"][row])
        payload = bytes(fs.image.block_bytes[at : at + size])
        if fs.writer.get(log, key) != payload:
            fs.writer.replace(log, key, payload)
    if there.all():
        return
    new = np.flatnonzero(~there)
    if Patch.LOG_BULK_INSERT in fs.behaviour:
        _copy_leaves(fs, log, select(columns, new), np.diff(new) == 1)
    else:
        current().count("copy_extent_buffer", len(new))
        copy_each(fs.writer, log, select(columns, new))


def _copy_leaves(fs: Mount, log: int, columns: Columns, beside: Mask) -> None:
    """Insert items into the log, those of a leaf side by side (``flush_dir_items_batch()``)."""
    keys = np.zeros(len(columns["size"]), KEY)
    for name in ("objectid", "type", "offset"):
        keys[name] = columns[name]
    beside &= np.diff(columns["block"]) == 0
    runs = 1 + int(np.count_nonzero(~beside))
    bulk = Patch.LOG_BULK_COPY in fs.behaviour
    current().count("copy_extent_buffer", runs if bulk else len(keys))
    starts = [0, *(np.flatnonzero(~beside) + 1).tolist(), len(keys)]
    for start, end in itertools.pairwise(starts):
        part = select(columns, slice(start, end))
        text = gather(fs.image, part, int(part["size"].max()))
        used = np.arange(text.shape[1]) < part["size"][:, None]
        insert_beside(fs.writer, log, keys[start:end], part["size"], text[used].tobytes())


def _new_entries(fs: Mount, columns: Columns) -> npt.NDArray[Any]:
    """Return the entries (rows of ``ENTRY``) whose inodes may have to be logged.

    Those of this transaction, and all directories; no subvolumes.
    """
    rows, bad = entries(fs.image, columns)
    for item in np.flatnonzero(bad).tolist():
        at, size = int(columns["position"][item]), int(columns["size"][item])
        dir_items(fs.image.block_bytes[at : at + size])
    place = {
        "position": rows["position"] - (DIR_ITEM.size - TRANSID),
        "size": np.full(len(rows), 8, np.uint32),
    }
    transid = gather(fs.image, place, 8).view("<u8").reshape(-1)
    new = (transid >= fs.transid) | (rows["type"] == FileType.DIR)
    return np.compress(new & (rows["location_type"] == int(ItemType.INODE_ITEM)), rows)


def _has_new_entries(fs: Mount, columns: Columns) -> bool:
    parts = range(0, len(columns["size"]), _CHUNK)
    return any(len(_new_entries(fs, select(columns, slice(at, at + _CHUNK)))) for at in parts)


def entries_to_log(fs: Mount, directory: LiveInode) -> npt.NDArray[Any]:
    """Return the entries in the log that are new, and the directories.

    Returns rows of :data:`~btrfs_model.native.items.ENTRY`, in the order in which
    ``log_new_dir_dentries()`` has them: it searches for the next one behind each.
    """
    # both kinds were logged before log-dir-index-only, and one is enough to find the inodes
    kind = _DIR_INDEX if Patch.LOG_DIR_INDEX_ONLY in fs.behaviour else _DIR_ITEM
    log = fs.writer.tree(log_tree_id(directory.root))
    there = log.scan((directory.ino, kind, 0), (directory.ino, kind, U64_MAX))
    found = _new_entries(fs, there)
    work, searches = current(), len(found) + 1
    work.count("btrfs_search_forward", searches)
    work.count("read_block_for_search", searches * log.level)
    work.count("log_entries_visited", len(there["size"]))
    work.count("log_dentries_got", len(found))
    return found
