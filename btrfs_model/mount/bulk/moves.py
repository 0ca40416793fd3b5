# SPDX-License-Identifier: GPL-2.0-only
"""Moving many files from one directory to another, as one rename after the other does it.

What :func:`btrfs_model.mount.names.rename.rename` does to the trees is put together for a run of
files and carried out at once. A run has only files that are in the trees as they are (nothing of
them waits), have one name, and replace nothing; any other file is renamed by itself, in its turn.
"""

from __future__ import annotations

import errno
import itertools
import stat
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from btrfs_model.mount.bulk.no_gc import no_gc
from btrfs_model.mount.delayed_inode import balance_delayed_items, calls_until_worker
from btrfs_model.mount.inode import last_index, live_subvolume, mark_inode_dirty, next_indexes
from btrfs_model.mount.live_inode import EMPTY_SUBVOL_DIR, InodeFields, LiveInode, file_type
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import fail, pack_dir_item, pack_inode_ref
from btrfs_model.mount.names.lookup import Path, as_bytes, find, may_write
from btrfs_model.mount.names.rename import RENAME_ITEMS
from btrfs_model.mount.space.space_info import give_back, keeps_delayed
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.native.bulk import CHANGE, Kind, apply_calls
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import dir_items, inode_refs
from btrfs_model.ondisk.keys import U64_MAX, ItemType

_CHUNK: Final = 4096

_ITEMS: Final = 3
"""Delayed items of a rename: an entry that goes, one that comes, the inode item."""

_TICKS: Final = 9
"""Times that rename() takes, of which these last:"""
_OF_INODE, _OF_SOURCE, _OF_TARGET, _OF_ROOT = 3, 4, 7, 8


class _Moved(NamedTuple):
    """A file that can be moved in a run; `place` is its index in the directory."""

    name: bytes
    ino: int
    place: int
    item: InodeFields


@no_gc()
def move_files(
    fs: Mount,
    source: Path,
    target: Path,
    names: Sequence[Path],
    rename: Callable[[bytes, bytes], None],
) -> None:
    """Move files to another directory, as :meth:`rename` does one after the other.

    `source`, `target`: paths of the directories.
    `names`: names in the first, in the order of the moves; they stay the same.
    `rename`: rename(2), for files that are not plain.
    Raises OSError: as rename(2); the files before are moved then.
    """
    old, new = find(fs, source), find(fs, target)
    for directory, path in ((old, source), (new, target)):
        if not directory.is_dir:
            raise fail(errno.ENOTDIR, path)
        if directory.ino == EMPTY_SUBVOL_DIR:
            raise fail(errno.EPERM, path)
        may_write(fs, directory, path)
    raw = [as_bytes(name) for name in names]
    known = {} if _waits(fs, old, new) else _plain_files(fs, old, new)
    # an entry that goes keeps two paths, the inode item one
    keeps = keeps_delayed(fs, each=3, directories=2)
    prefixes = as_bytes(source) + b"/", as_bytes(target) + b"/"
    # a name that comes twice is not there any more the second time
    left = dict(known)
    for plain, group in itertools.groupby(raw, lambda name: left.pop(name, None) is not None):
        if not plain:
            for name in group:
                rename(prefixes[0] + name, prefixes[1] + name)
            continue
        run, done, pace = [known[name] for name in group], 0, _CHUNK
        while done < len(run):
            # not many more than found room the last time
            count = min(2 * pace, len(run) - done, calls_until_worker(fs, _ITEMS, old, new), _CHUNK)
            granted = start_transaction(fs, RENAME_ITEMS + 1, calls=count, keeps=keeps)
            pace = _move(fs, old, new, run[done : done + granted.most], granted.sure)
            give_back(fs, RENAME_ITEMS + 1, granted.most - pace)
            balance_delayed_items(fs)
            done += pace


def _waits(fs: Mount, old: LiveInode, new: LiveInode) -> bool:
    """Whether the entries in the trees are not all that there are."""
    node = fs.delayed.node(old.root, old.ino)
    changed = node is not None and bool(node.insertions or node.deletions)
    return changed or old.root != new.root or old.ino == new.ino


def _plain_files(fs: Mount, old: LiveInode, new: LiveInode) -> dict[bytes, _Moved]:
    """Files of a directory that are in the trees alone and whose names the other one lacks."""
    tree = fs.writer.tree(old.root)
    found: dict[int, tuple[bytes, int]] = {}
    for item in tree.items(
        (old.ino, ItemType.DIR_INDEX, 0), (old.ino, ItemType.DIR_INDEX, U64_MAX)
    ):
        entry = dir_items(item.data)[0]
        if entry.location.type == ItemType.INODE_ITEM:
            found[entry.location.objectid] = (entry.name, item.key.offset)
    if not found:
        return {}
    taken = _names(fs, new)
    cached = live_subvolume(fs, old.root).inodes
    files: dict[bytes, _Moved] = {}
    # one pass over the inodes from the lowest to the highest number
    low, high = (min(found), ItemType.INODE_ITEM, 0), (max(found), ItemType.INODE_REF, U64_MAX)
    inode = None
    for item in tree.items(low, high):
        ino = item.key.objectid
        if item.key.type == ItemType.INODE_ITEM:
            inode = item
        if item.key[1:] != (ItemType.INODE_REF, old.ino) or ino not in found:
            continue
        name, index = found[ino]
        if name in taken or ino in cached or fs.delayed.node(old.root, ino) is not None:
            continue
        if inode is None or inode.key.objectid != ino or len(inode_refs(item.data)) != 1:
            continue
        fields = InodeFields.unpack(inode.data)
        if fields.nlink == 1 and not stat.S_ISDIR(fields.mode):
            files[name] = _Moved(name, ino, index, fields)
    return files


def _names(fs: Mount, directory: LiveInode) -> set[bytes]:
    """All names in a directory, those that wait included."""
    low, high = ((directory.ino, ItemType.DIR_INDEX, offset) for offset in (0, U64_MAX))
    payloads = [bytes(item.data) for item in fs.writer.tree(directory.root).items(low, high)]
    node = fs.delayed.node(directory.root, directory.ino)
    if node is not None:
        payloads += node.insertions.values()
    return {entry.name for data in payloads for entry in dir_items(data)}


def _move(fs: Mount, old: LiveInode, new: LiveInode, files: list[_Moved], sure: int) -> int:
    """Move files while there is room, `sure` of them in any case; returns how many."""
    root = old.root
    start = fs.clock
    tick = fs.now() - start or fs.clock - start
    index = last_index(fs, new) + 1
    entries = [
        pack_dir_item((file.ino, int(ItemType.INODE_ITEM), 0), fs.transid,
                      file_type(file.item.mode), file.name)
        for file in files
    ]  # fmt: skip
    count = _change_trees(fs, old, new, files, index, entries, sure)
    next_indexes(fs, new, count)
    moved = list(zip(files[:count], entries, strict=False))
    length = 2 * sum(len(file.name) for file, _ in moved)
    last = start + (count - 1) * _TICKS * tick
    inodes = live_subvolume(fs, root).inodes
    for at, (file, entry) in enumerate(moved):
        fs.delayed.delete_index(old, file.place)
        if not at:
            fs.delayed.update_inode(old)
        file.item.sequence += 2
        file.item.transid = fs.transid
        file.item.ctime = start + (at * _TICKS + _OF_INODE) * tick
        inode = LiveInode(root, file.ino, file.item, index + at, dirty=fs.dirty_bytes)
        fs.delayed.update_inode(inode)
        inodes[file.ino] = inode
        fs.delayed.insert_index(new, index + at, entry)
    old.item.size -= length
    new.item.size += length
    for directory, offset in ((old, _OF_SOURCE), (new, _OF_TARGET)):
        directory.item.sequence += 2 * count
        directory.item.mtime = directory.item.ctime = last + offset * tick
        fs.clock = last + _OF_ROOT * tick
        mark_inode_dirty(fs, directory)
    return count


def _change_trees(
    fs: Mount,
    old: LiveInode,
    new: LiveInode,
    files: list[_Moved],
    first: int,
    entries: list[bytes],
    sure: int,
) -> int:
    """Take the new name, leave the entry and the name, make the entry: file by file.

    `first`: the index of the first of them. Returns how many were moved, as :func:`_move`.
    """
    ref, item = int(ItemType.INODE_REF), int(ItemType.DIR_ITEM)
    insert, delete = Kind.INSERT_ENTRY, Kind.DELETE_ENTRY
    rows: list[tuple[int, ...]] = []
    data: list[bytes] = []
    for index, (file, entry) in enumerate(zip(files, entries, strict=True), first):
        name, new_ref = file.name, pack_inode_ref(index, file.name)
        at, size = name_hash(name), len(name)
        rows += (
            (file.ino, new.ino, ref, len(new_ref), insert, 0),
            (old.ino, at, item, size, delete, 0),
            (file.ino, old.ino, ref, size, delete, 0),
            (new.ino, at, item, len(entry), insert, 0),
        )
        data += (new_ref, name, name, entry)
    changes = np.array(rows, CHANGE)
    return apply_calls(fs.writer, old.root, changes, b"".join(data), len(files), sure)
