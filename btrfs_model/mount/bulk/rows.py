# SPDX-License-Identifier: GPL-2.0-only
"""The same call on many names: what it does to the trees, without the calls.

The trees, the inodes and the clock end up as they would after one call for each name, in the order
given. What the calls change in the trees is carried out by one kernel (``bm_writer_new_files()``).
Where a directory hands something down to new files (an ACL, flags, a
property, a group), there is a call for each name after all.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Sequence
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.delayed_inode import balance_delayed_items, calls_until_worker
from btrfs_model.mount.inode import (
    last_index,
    live_subvolume,
    mark_inode_dirty,
    new_range,
    remember_range,
)
from btrfs_model.mount.live_inode import DEFAULT, InodeFields, LiveInode, NewRange
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import NAME_LEN, d_drop_all, fail
from btrfs_model.mount.names.lookup import Path, as_bytes, find, lookup, may_change_names
from btrfs_model.mount.names.namei import HANDED_DOWN, new_items
from btrfs_model.mount.names.xattr import get_xattr
from btrfs_model.mount.space.space_info import give_back, keeps_delayed
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.native.bulk import Clones, new_files
from btrfs_model.native.data import name_hashes
from btrfs_model.native.tree import KEY
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import DIR_ITEM

_CHUNK: Final = 2048
TICKS: Final = 4
"""Times that create() takes: of the inode, of the root item, of the directory, of the root item."""

_DIRECTORY, _ROOT = 2, 3


def create_files(
    fs: Mount,
    directory: Path,
    names: Sequence[Path],
    mode: int,
    create: Callable[[bytes, int], int],
) -> npt.NDArray[np.uint64]:
    """Make empty files in a directory, as ``create()`` does one after the other.

    `directory`: path of the directory.
    `names`: names in it, in the order of creation.
    `mode`: permissions before the umask.
    `create`: open(O_CREAT | O_EXCL), for a directory that hands something down.
    Returns their inode numbers.
    Raises OSError: ENOENT, ENOTDIR, EROFS ... of the directory; EEXIST for a name that is there or
    comes twice, EINVAL or ENAMETOOLONG for what is no name. Nothing is made then.
    """
    parent, raw = new_names(fs, directory, names)
    if hands_down(fs, parent):
        start = as_bytes(directory) + b"/"
        return np.array([create(start + name, mode) for name in raw], np.uint64)
    item = new_item(fs, mode)
    inos = [np.zeros(0, np.uint64)]
    done, pace, changes = 0, _CHUNK, new_items(parent, item.mode)
    keeps = keeps_delayed(fs, each=0, directories=1)
    while done < len(raw):
        # not many more than found room the last time
        count = min(_CHUNK, 2 * pace, len(raw) - done, calls_until_worker(fs, 1, parent))
        granted = start_transaction(fs, changes, root=parent.root, calls=count, keeps=keeps)
        made = _create(fs, parent, raw[done : done + granted.most], item, granted.sure)
        give_back(fs, changes, granted.most - len(made))
        inos.append(made)
        balance_delayed_items(fs)
        pace = len(made)
        done += pace
    return np.concatenate(inos)


def new_names(fs: Mount, directory: Path, names: Sequence[Path]) -> tuple[LiveInode, list[bytes]]:
    """Return a directory, and names that can be made there; OSError as :func:`create_files`."""
    parent = find(fs, directory)
    may_change_names(fs, parent, directory)
    raw = _as_bytes(names)
    _check_names(fs, parent, raw)
    return parent, raw


def new_item(fs: Mount, mode: int) -> InodeFields:
    """Return the inode item of a new file; its times are not in it yet."""
    return InodeFields(mode=stat.S_IFREG | mode & 0o7777 & ~fs.umask, uid=fs.uid, gid=fs.gid)


def _as_bytes(names: Sequence[Path]) -> list[bytes]:
    """Return names as bytes, all at once where that can be."""
    if all(isinstance(name, str) for name in names):
        raw = as_bytes("\0".join(cast("Sequence[str]", names))).split(b"\0")
        if len(raw) == len(names):
            return raw
    return [as_bytes(name) for name in names]


def _check_names(fs: Mount, parent: LiveInode, names: list[bytes]) -> None:
    distinct, text = set(names), b"".join(names)
    if (
        len(distinct) < len(names)
        or not distinct.isdisjoint((b"", b".", b".."))
        or b"/" in text
        or b"\0" in text
        or max(map(len, names), default=0) > NAME_LEN
    ):
        _refuse(names)
    if parent.item.size and names:
        keys = np.zeros(len(names), KEY)
        keys["objectid"], keys["type"] = parent.ino, int(ItemType.DIR_ITEM)
        keys["offset"] = name_hashes(np.frombuffer(text, np.uint8), _sizes(names))
        # in the order of the tree, which lies in memory like that
        order = np.argsort(keys["offset"])
        taken = order[fs.writer.tree(parent.root).has_keys(keys[order])]
        for at in np.sort(taken).tolist():
            if lookup(fs, parent, names[at], names[at]) is not None:
                raise fail(errno.EEXIST, names[at])


def _refuse(names: list[bytes]) -> None:
    """Fail for the first of the names that cannot be made."""
    seen: set[bytes] = set()
    for name in names:
        if name in seen:
            raise fail(errno.EEXIST, name)
        seen.add(name)
        if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
            raise fail(errno.EINVAL, name)
        if len(name) > NAME_LEN:
            raise fail(errno.ENAMETOOLONG, name)


def _sizes(names: list[bytes]) -> npt.NDArray[np.uint32]:
    return np.fromiter(map(len, names), np.uint32, len(names))


def hands_down(fs: Mount, parent: LiveInode) -> bool:
    """Whether new files get anything from their directory."""
    return bool(
        parent.item.flags & HANDED_DOWN
        or not fs.options.data_sum
        or parent.item.mode & stat.S_ISGID
        or parent.prop_compress
        or get_xattr(fs, parent, DEFAULT) is not None
    )


def _create(
    fs: Mount, parent: LiveInode, names: list[bytes], item: InodeFields, sure: int
) -> npt.NDArray[np.uint64]:
    start, each = fs.clock, TICKS * tick(fs)
    times = np.arange(start, start + len(names) * each, each, dtype=np.uint64)[: len(names)]
    inos = insert_files(fs, parent, names, item, times, sure)
    fs.clock = start + len(inos) * each
    note_entries(fs, parent, start + (len(inos) - 1) * each)
    return inos


def tick(fs: Mount) -> int:
    """Return by how much the clock goes on when it is read."""
    before = fs.clock
    fs.now()
    step, fs.clock = fs.clock - before, before
    return step


def insert_files(
    fs: Mount, parent: LiveInode, names: list[bytes], item: InodeFields,
    times: npt.NDArray[np.uint64], sure: int, clones: Clones | None = None,
) -> npt.NDArray[np.uint64]:  # fmt: skip
    """Insert the items of files, and let their entries wait; return the numbers of those made.

    `times`: when each is made, nanoseconds.
    `sure`, `clones`: as for :func:`.bulk.new_files`.
    """
    root = parent.root
    ino, index = live_subvolume(fs, root).next_ino, last_index(fs, parent) + 1
    sizes, text = _sizes(names), b"".join(names)
    entries = np.empty(DIR_ITEM.size * len(names) + len(text), np.uint8)
    item.generation = item.transid = fs.transid
    first = {"tree": root, "directory": parent.ino, "ino": ino, "index": index, "sure": sure}
    count = new_files(fs.writer, first, times, item.pack(), text, sizes, entries, clones)
    inos = new_range(fs, root, count)
    d_drop_all(fs, parent)
    parent.index_cnt = index + count
    remember_range(fs, root, NewRange(ino, count, index, fs.transid if clones else 0))
    sizes = sizes[:count]
    length = int(sizes.sum())
    made = entries[: DIR_ITEM.size * count + length].tobytes()
    fs.delayed.insert_indexes(parent, index, sizes + np.uint32(DIR_ITEM.size), made)
    parent.item.size += 2 * length
    parent.item.sequence += count
    return inos


def note_entries(fs: Mount, parent: LiveInode, last: int) -> None:
    """Let the item of a directory follow its new entries; `last`: when the last was begun."""
    step, end = tick(fs), fs.clock
    parent.item.mtime = parent.item.ctime = last + _DIRECTORY * step
    fs.clock = last + _ROOT * step
    mark_inode_dirty(fs, parent)
    fs.clock = end
