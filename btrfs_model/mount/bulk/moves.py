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
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.bulk.no_gc import no_gc
from btrfs_model.mount.delayed_inode import balance_delayed_items, calls_until_worker
from btrfs_model.mount.inode import last_index, live_subvolume, mark_inode_dirty
from btrfs_model.mount.live_inode import InodeFields, LiveInode, file_type
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import d_drop_all, pack_dir_item, pack_inode_ref
from btrfs_model.mount.names.lookup import Path, as_bytes, find, may_change_names
from btrfs_model.mount.names.rename import RENAME_ITEMS
from btrfs_model.mount.space.space_info import give_back, keeps_delayed
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.native.bulk import CHANGE, Kind, apply
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
    """Move files to another directory, as ``rename()`` does one after the other.

    `source`, `target`: paths of the directories.
    `names`: names in the first, in the order of the moves; they stay the same.
    `rename`: rename(2), for files that are not plain.
    Raises OSError: as rename(2); the files before are moved then.
    """
    old, new = find(fs, source), find(fs, target)
    for directory, path in ((old, source), (new, target)):
        may_change_names(fs, directory, path, of_subvolume=errno.EPERM)
    raw = [as_bytes(name) for name in names]
    known = {} if _waits(fs, old, new) else _plain_files(fs, old, new)
    prefixes = as_bytes(source) + b"/", as_bytes(target) + b"/"
    # a name that comes twice is not there any more the second time
    left = dict(known)
    for plain, group in itertools.groupby(raw, lambda name: left.pop(name, None) is not None):
        if not plain:
            for name in group:
                rename(prefixes[0] + name, prefixes[1] + name)
            continue
        run = [known[name] for name in group]
        for at in range(0, len(run), _CHUNK):
            _move_all(fs, old, new, run[at : at + _CHUNK])


def _waits(fs: Mount, old: LiveInode, new: LiveInode) -> bool:
    """Whether the entries in the trees are not all of them."""
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


def _move_all(fs: Mount, old: LiveInode, new: LiveInode, files: list[_Moved]) -> None:
    """Move files, as many at once as find room."""
    # an entry that goes keeps two paths, the inode item one
    keeps = keeps_delayed(fs, each=3, directories=2)
    done, changes = 0, None
    while done < len(files):
        count = min(len(files) - done, calls_until_worker(fs, _ITEMS, old, new))
        granted = start_transaction(fs, RENAME_ITEMS + 1, root=old.root, calls=count, keeps=keeps)
        if changes is None or changes.transid != fs.transid:
            files, done = files[done:], 0
            changes = _changes(fs, old, new, files)
        end = done + granted.most
        data = changes.data[changes.at[done] : changes.at[end]]
        rows = changes.rows[done:end]
        moved = apply(fs.writer, old.root, rows, data, granted.most, granted.sure)
        give_back(fs, RENAME_ITEMS + 1, granted.most - moved)
        part = slice(done, done + moved)
        _finish(fs, old, new, files[part], changes.entries[part])
        balance_delayed_items(fs)
        done += moved


class _Changes(NamedTuple):
    """What renames of files in a transaction change in the trees; a row of changes for each."""

    transid: int
    rows: npt.NDArray[Any]
    data: memoryview
    """Their payloads, those of file n from ``at[n]`` to ``at[n + 1]``."""
    at: list[int]
    entries: list[bytes]
    """The entries in the new directory."""


def _changes(fs: Mount, old: LiveInode, new: LiveInode, files: list[_Moved]) -> _Changes:
    """Take the new name, leave the entry and the name, make the entry: file by file."""
    ref, item = int(ItemType.INODE_REF), int(ItemType.DIR_ITEM)
    insert, delete = Kind.INSERT_ENTRY, Kind.DELETE_ENTRY
    rows: list[tuple[int, ...]] = []
    data: list[bytes] = []
    entries: list[bytes] = []
    for index, file in enumerate(files, last_index(fs, new) + 1):
        name, new_ref = file.name, pack_inode_ref(index, file.name)
        location = file.ino, int(ItemType.INODE_ITEM), 0
        entry = pack_dir_item(location, fs.transid, file_type(file.item.mode), name)
        offset, size = name_hash(name), len(name)
        rows += (
            (file.ino, new.ino, ref, len(new_ref), insert, 0),
            (old.ino, offset, item, size, delete, 0),
            (file.ino, old.ino, ref, size, delete, 0),
            (new.ino, offset, item, len(entry), insert, 0),
        )
        data.append(new_ref + name + name + entry)
        entries.append(entry)
    at = list(itertools.accumulate(map(len, data), initial=0))
    joined = memoryview(b"".join(data))
    return _Changes(fs.transid, np.array(rows, CHANGE).reshape(len(files), -1), joined, at, entries)


def _finish(
    fs: Mount, old: LiveInode, new: LiveInode, files: list[_Moved], entries: list[bytes]
) -> None:
    """Do with inodes, delayed items and the clock what renames of these files do."""
    root, count = old.root, len(files)
    start = fs.clock
    tick = fs.now() - start or fs.clock - start
    index = last_index(fs, new) + 1
    new.index_cnt = index + count
    length = 2 * sum(len(file.name) for file in files)
    last = start + (count - 1) * _TICKS * tick
    inodes = live_subvolume(fs, root).inodes
    fs.delayed.delete_index(old, *(file.place for file in files))
    fs.delayed.update_inode(old)
    for at, file in enumerate(files):
        file.item.sequence += 2
        file.item.transid = fs.transid
        file.item.ctime = start + (at * _TICKS + _OF_INODE) * tick
        inodes[file.ino] = LiveInode(root, file.ino, file.item, index + at, dirty=fs.dirty_bytes)
        fs.delayed.update_items(root, (file.ino,), (file.item.pack(),))
        if not at:
            sizes = np.fromiter(map(len, entries), np.uint32, count)
            fs.delayed.insert_indexes(new, index, sizes, b"".join(entries))
    old.item.size -= length
    new.item.size += length
    for directory, offset in ((old, _OF_SOURCE), (new, _OF_TARGET)):
        d_drop_all(fs, directory)
        directory.item.sequence += 2 * count
        directory.item.mtime = directory.item.ctime = last + offset * tick
        fs.clock = last + _OF_ROOT * tick
        mark_inode_dirty(fs, directory)
