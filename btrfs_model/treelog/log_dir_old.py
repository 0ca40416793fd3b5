# SPDX-License-Identifier: GPL-2.0-only
"""Entries of directories in a log before Linux 6.1, as 5.10 has it.

Delayed items are run first. Every entry of every leaf of this transaction is copied, old ones too,
and the entries on both sides of such a run of leaves; one range says what the run covers. That is
done for the DIR_ITEM keys and for the DIR_INDEX keys, with ``log-dir-index-only`` for these alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from btrfs_model.ondisk.items import dir_items
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.treelog.log_dir import is_of_this_transaction
from btrfs_model.treelog.state import log_tree_id

if TYPE_CHECKING:
    from btrfs_model.btree.tree import Item, RawKey
    from btrfs_model.filesystem.live_inode import LiveInode
    from btrfs_model.filesystem.writable import WritableFilesystem
    from btrfs_model.treelog.log_inode import LogContext

__all__ = ["ENTRY_KINDS", "entries_to_log", "log_directory_old"]

ENTRY_KINDS: Final = {
    int(ItemType.DIR_ITEM): int(ItemType.DIR_LOG_ITEM),
    int(ItemType.DIR_INDEX): int(ItemType.DIR_LOG_INDEX),
}
"""The types of an entry, and of the range items for them."""

_DIRECTORY: Final = 2
_MAX: Final = 2**64 - 1


def _kinds(fs: WritableFilesystem) -> list[int]:
    return list(ENTRY_KINDS)[int("log-dir-index-only" in fs.behaviour) :]


def log_directory_old(fs: WritableFilesystem, inode: LiveInode, ctx: LogContext) -> None:
    """Log what changed in a directory (``log_directory_changes()``, Linux 5.10)."""
    for kind in _kinds(fs):
        lowest = 0
        while lowest <= _MAX:
            lowest = _log_run(fs, inode, ctx, kind, lowest) + 1


def _log_run(
    fs: WritableFilesystem, inode: LiveInode, ctx: LogContext, kind: int, lowest: int
) -> int:
    """Log a run of leaves; returns the last offset that it covers (``log_dir_items()``)."""
    tree, ino = fs.writer.tree(inode.root), inode.ino
    before: Item | None = None
    batch: list[tuple[RawKey, bytes]] = []
    first, last = lowest, _MAX
    block, changed = 0, False
    for item in tree.items((ino, kind, lowest), (ino, kind, _MAX)):
        if item.block != block:
            block, changed = item.block, is_of_this_transaction(fs, item.block)
            if batch and not changed:
                batch.append((item.key, bytes(item.data)))
                last = item.key.offset
                break
            if changed and not batch:
                before = tree.last((ino, kind, item.key.offset - 1)) if item.key.offset else None
                if before is not None and before.key[:2] == (ino, kind):
                    first = before.key.offset
                    batch.append((before.key, bytes(before.data)))
        if changed:
            batch.append((item.key, bytes(item.data)))
            _look_for_new(fs, ctx, bytes(item.data))
    if not batch:
        before = tree.last((ino, kind, lowest))
        if before is not None and before.key[:2] == (ino, kind):
            first = max(lowest, before.key.offset) + 1
    log = log_tree_id(inode.root)
    # runs share the entries at their borders
    there = {key for key, _ in batch[:1] + batch[-1:] if fs.writer.get(log, key) is not None}
    fs.writer.insert_each(log, [entry for entry in batch if entry[0] not in there])
    key = (ino, ENTRY_KINDS[kind], first)
    if fs.writer.get(log, key) is None:
        fs.writer.insert(log, key, last.to_bytes(8, "little"))
    else:
        fs.writer.update(log, key, 0, last.to_bytes(8, "little"))
    return last


def _look_for_new(fs: WritableFilesystem, ctx: LogContext, payload: bytes) -> None:
    if not ctx.log_new_dentries:
        ctx.log_new_dentries = any(
            (entry.transid == fs.transid or entry.type == _DIRECTORY)
            and entry.location.type != ItemType.ROOT_ITEM
            for entry in dir_items(payload)
        )


def entries_to_log(fs: WritableFilesystem, directory: LiveInode) -> list[tuple[int, int]]:
    """Return the inodes whose entries are new, and the directories, in leaves of this transaction.

    Returns
    -------
    list of (int, int)
        Inode number and type of the entry, in the order in which ``log_new_dir_dentries()`` has
        them.
    """
    kind = _kinds(fs)[0]
    found = []
    block, changed = 0, False
    low, high = ((directory.ino, kind, offset) for offset in (0, _MAX))
    for item in fs.writer.tree(directory.root).items(low, high):
        if item.block != block:
            block, changed = item.block, is_of_this_transaction(fs, item.block)
        if changed:
            found += [
                (entry.location.objectid, entry.type)
                for entry in dir_items(item.data)
                if (entry.transid >= fs.transid or entry.type == _DIRECTORY)
                and entry.location.type == ItemType.INODE_ITEM
            ]
    return found
