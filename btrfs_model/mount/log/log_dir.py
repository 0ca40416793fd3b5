# SPDX-License-Identifier: GPL-2.0-only
"""Entries of directories in a log (Linux 6.1 and later: ``log_directory_changes()`` and around it).

Only DIR_INDEX items of this transaction are copied. Ranges (DIR_LOG_INDEX items) say what was
deleted: the replay deletes each index that lies in a range and is not in the log. Entries that are
still delayed go into the log from memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.counters import current
from btrfs_model.mount.delayed_node import DelayedNode
from btrfs_model.mount.live_inode import DIR_START_INDEX, LiveInode
from btrfs_model.mount.log.log_tree import ForceCommit, LogContext
from btrfs_model.mount.log.state import log_tree_id
from btrfs_model.mount.mount import Mount
from btrfs_model.ondisk.constants import BTRFS_HEADER_SIZE, BTRFS_ITEM_SIZE
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.patches import Patch

_DIR_INDEX: Final = int(ItemType.DIR_INDEX)
_DIR_LOG_INDEX: Final = int(ItemType.DIR_LOG_INDEX)
_BATCH: Final = 195
_GENERATION: Final = 80
_LOCATION_TYPE: Final = 8
TRANSID: Final = 17
"""Place of transid inside of a directory item; before, of the type of its location's key."""

Entry = tuple[int, bytes]
"""Index and payload of a DIR_INDEX item."""


_ENTRY: Final = np.dtype(
    [("child", "<u8"), ("location_type", "u1"), ("offset", "<u8"), ("transid", "<u8"),
     ("data_len", "<u2"), ("name_len", "<u2"), ("type", "u1")]
)  # fmt: skip
"""``struct btrfs_dir_item``, as :data:`~btrfs_model.native.items.ENTRY` calls its fields."""


def entries_of(entries: list[Entry]) -> npt.NDArray[Any]:
    """Return what entries lead to: child, type, location_type and transid of each."""
    head = b"".join(payload[: _ENTRY.itemsize] for _, payload in entries)
    return np.frombuffer(head, _ENTRY)


class DelayedEntries:
    """Entries of a directory that wait in memory (``btrfs_log_get_delayed_items()``).

    They count as logged from now on.

    `insertions` (list of tuple): index and payload, ascending.
    `deletions` (list of int): indexes, ascending.
    """

    def __init__(self, node: DelayedNode | None) -> None:
        self.insertions: list[Entry] = []
        self.deletions: list[int] = []
        if node is not None:
            self.insertions = sorted(e for e in node.insertions.items() if e[0] not in node.logged)
            self.deletions = sorted(node.deletions - node.logged)
            node.logged.update(node.insertions, node.deletions)


def is_of_this_transaction(fs: Mount, block: int) -> bool:
    """Whether a block was written to since the last commit (``btrfs_header_generation()``)."""
    physical, _ = fs.image.map(block)
    at = physical + _GENERATION
    return int.from_bytes(fs.image.block_bytes[at : at + 8], "little") == fs.transid


def insert_range(fs: Mount, root: int, ino: int, first: int, last: int) -> None:
    """Say that the log knows of all indexes in a range (``insert_dir_log_key()``)."""
    tree, key = log_tree_id(root), (ino, _DIR_LOG_INDEX, first)
    try:
        fs.writer.insert(tree, key, last.to_bytes(8, "little"))
        return
    except FileExistsError:
        there = fs.writer.get(tree, key) or b""
    end = max(last, int.from_bytes(there, "little"))
    fs.writer.update(tree, key, 0, end.to_bytes(8, "little"))


def log_directory(fs: Mount, inode: LiveInode, delayed: DelayedEntries, ctx: LogContext) -> None:
    """Log what changed in a directory: entries in the tree, then those that are delayed.

    An entry in the tree whose deletion is delayed is logged, and stays in the log where the
    directory was not logged before (``log_delayed_deletions_full()``): a replay brings it back.

    Raises ForceCommit: when the entries do not come in the order of their indexes.
    """
    _find_last_index(fs, inode, ctx)
    lowest = DIR_START_INDEX
    while True:
        last = log_dir_items(fs, inode, ctx, lowest)
        if last == U64_MAX:
            break
        lowest = last + 1
    _log_insertions(fs, inode, delayed)
    if ctx.logged_before:
        _log_deletions_incremental(fs, inode, delayed.deletions)
    else:
        for first, last in _runs(delayed.deletions):
            insert_range(fs, inode.root, inode.ino, first, last)


def _find_last_index(fs: Mount, inode: LiveInode, ctx: LogContext) -> None:
    """``update_last_dir_index_offset()``."""
    if inode.log.last_dir_index_offset:
        return
    inode.log.last_dir_index_offset = DIR_START_INDEX - 1
    if ctx.logged_before:
        last = fs.writer.tree(log_tree_id(inode.root)).last((inode.ino, _DIR_INDEX, U64_MAX))
        if last is not None and last.key[:2] == (inode.ino, _DIR_INDEX):
            inode.log.last_dir_index_offset = last.key.offset


# ------------------------------------------------------------------------- what is in the tree --


def _leaves(fs: Mount, inode: LiveInode, lowest: int) -> Iterator[tuple[int, list[Entry]]]:
    """Yield the leaves with entries from an index on: address, and the entries."""
    tree = fs.writer.tree(inode.root)
    block = 0
    entries: list[Entry] = []
    for item in tree.items((inode.ino, _DIR_INDEX, lowest), (inode.ino, _DIR_INDEX, U64_MAX)):
        if item.block != block:
            if entries:
                yield block, entries
            block, entries = item.block, []
        entries.append((item.key.offset, bytes(item.data)))
    if entries:
        yield block, entries


def log_dir_items(fs: Mount, inode: LiveInode, ctx: LogContext, lowest: int) -> int:
    """Log a run of leaves of this transaction; returns the last index that is settled then."""
    last_old, last = lowest - 1, U64_MAX
    found = False
    before: list[Entry] = []
    for block, entries in _leaves(fs, inode, lowest):
        if not is_of_this_transaction(fs, block):
            if found:
                last = entries[0][0] - 1
                break
            before = entries
            continue
        current().count("log_leaves_entered")
        current().count("log_entries_visited", len(entries))
        if not found:
            found = True
            previous = before[-1][0] if before else _index_before(fs, inode, entries[0][0])
            last_old = last_old if previous is None else previous
        last_old = process_dir_items_leaf(fs, inode, ctx, entries, last_old)
    if not found:
        previous = _index_before(fs, inode, U64_MAX)
        last_old = last_old if previous is None else previous
    if last_old < last:
        insert_range(fs, inode.root, inode.ino, last_old + 1, last)
    return last


def _index_before(fs: Mount, inode: LiveInode, index: int) -> int | None:
    item = fs.writer.tree(inode.root).last((inode.ino, _DIR_INDEX, index - 1))
    if item is None or item.key[:2] != (inode.ino, _DIR_INDEX):
        return None
    return item.key.offset


def process_dir_items_leaf(
    fs: Mount, inode: LiveInode, ctx: LogContext, entries: list[Entry], last_old: int
) -> int:
    """Log the entries of a leaf; returns the last old index."""
    batch: list[Entry] = []
    for index, payload in entries:
        if int.from_bytes(payload[TRANSID : TRANSID + 8], "little") < fs.transid:
            if index > last_old + 1:
                insert_range(fs, inode.root, inode.ino, last_old + 1, index - 1)
            last_old = index
            continue
        if index <= inode.log.last_dir_index_offset:
            continue
        if payload[_LOCATION_TYPE] != ItemType.ROOT_ITEM:
            ctx.log_new_dentries = True
        batch.append((index, payload))
    if batch:
        bulk = Patch.LOG_BULK_INSERT in fs.behaviour
        one = bulk and Patch.LOG_BULK_COPY in fs.behaviour
        current().count("copy_extent_buffer", 1 if one else len(batch))
        _insert_entries(fs, inode, batch, bulk=bulk)
        if batch[-1][0] <= inode.log.last_dir_index_offset:
            raise ForceCommit
        inode.log.last_dir_index_offset = batch[-1][0]
        if not inode.log.first_dir_index_to_log:
            inode.log.first_dir_index_to_log = batch[0][0]
    return last_old


def _insert_entries(fs: Mount, inode: LiveInode, batch: list[Entry], *, bulk: bool = True) -> None:
    items = [((inode.ino, _DIR_INDEX, index), payload) for index, payload in batch]
    insert = fs.writer.insert_many if bulk else fs.writer.insert_each
    insert(log_tree_id(inode.root), items)


# ---------------------------------------------------------------------------- what is delayed --


def _log_insertions(fs: Mount, inode: LiveInode, delayed: DelayedEntries) -> None:
    """``log_delayed_insertion_items()``."""
    entries = delayed.insertions
    start = bisect_right(entries, inode.log.last_dir_index_offset, key=lambda entry: entry[0])
    if start == len(entries):
        return
    room = fs.nodesize - BTRFS_HEADER_SIZE
    batch: list[Entry] = []
    size = 0
    for entry in entries[start:]:
        taken = len(entry[1]) + BTRFS_ITEM_SIZE
        if size + taken > room or len(batch) == _BATCH:
            _insert_entries(fs, inode, batch)
            batch, size = [], 0
        batch.append(entry)
        size += taken
    _insert_entries(fs, inode, batch)
    inode.log.last_dir_index_offset = entries[-1][0]


def _runs(indexes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of consecutive indexes: first and last."""
    first = last = -1
    for index in indexes:
        if index != last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first = index
        last = index
    if first >= 0:
        yield first, last


def _log_deletions_incremental(fs: Mount, inode: LiveInode, deletions: list[int]) -> None:
    """``log_delayed_deletions_incremental()``: what is in the log is deleted there instead."""
    tree = log_tree_id(inode.root)
    start = end = 0
    for index in deletions:
        if fs.writer.delete_range(
            tree, (inode.ino, _DIR_INDEX, index), (inode.ino, _DIR_INDEX, index)
        ):
            continue
        start = start if end and index == end + 1 else index
        end = index
        insert_range(fs, inode.root, inode.ino, start, end)
