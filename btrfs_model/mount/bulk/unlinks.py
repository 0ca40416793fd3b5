# SPDX-License-Identifier: GPL-2.0-only
"""Removing many files of a directory, as one unlink after the other does it.

Empty files with one name, of which the tree says everything, go in one kernel
(``bm_writer_unlink_files()``); any other name is unlinked by itself, in its turn.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.inode import live_subvolume, mark_inode_dirty, update_root_times
from btrfs_model.mount.live_inode import EMPTY_SUBVOL_DIR, LiveInode
from btrfs_model.mount.log.log_tree import has_log, is_logged
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import d_drop_all, fail
from btrfs_model.mount.names.lookup import Path, as_bytes, find, is_read_only
from btrfs_model.mount.names.namei import UNLINK_ITEMS
from btrfs_model.mount.space.space_info import give_back
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.native import bulk
from btrfs_model.ondisk.constants import InodeFlag

_CHUNK: Final = 256

_TICKS: Final = 4
"""Times that unlink() takes: of the inode, of the directory, and twice of the root item."""

_OF_DIRECTORY, _OF_ROOT, _OF_ROOT_AGAIN = 1, 2, 3

Inos = npt.NDArray[np.uint64]


def unlink_files(
    fs: Mount, directory: Path, names: Sequence[Path], unlink: Callable[[bytes], None]
) -> None:
    """Remove names from a directory, as ``unlink()`` does one after the other.

    `directory`: path of the directory.
    `names`: names in it, in the order in which they go.
    `unlink`: unlink(2), for names that are not plain.
    Raises OSError: as unlink(2); the names before are gone then.
    """
    parent = find(fs, directory)
    if not parent.is_dir:
        raise fail(errno.ENOTDIR, directory)
    raw, prefix = [as_bytes(name) for name in names], as_bytes(directory) + b"/"
    cached, known = live_subvolume(fs, parent.root).inodes, _known(fs, parent.root)
    at = 0
    while at < len(raw):
        if _is_plain(fs, parent):
            count = min(_CHUNK, len(raw) - at)
            count = start_transaction(
                fs, UNLINK_ITEMS, root=parent.root, from_reserve=True, calls=count
            ).sure
            done = _unlink(fs, parent, raw[at : at + count], known)
            give_back(fs, UNLINK_ITEMS, count - done)
            at += done
        if at < len(raw):
            before = len(cached)
            unlink(prefix + raw[at])
            at += 1
            # one that has other names is in memory now
            known = _known(fs, parent.root) if len(cached) > before else known


def _known(fs: Mount, root: int) -> Inos:
    """Numbers of inodes that are in memory, or for which something waits."""
    inos = [*live_subvolume(fs, root).inodes, *fs.delayed.waits_for(root)]
    return np.sort(np.array(inos, np.uint64))


def _is_plain(fs: Mount, parent: LiveInode) -> bool:
    """Whether nothing but the tree has to know of the unlinks of a directory."""
    return not (
        parent.item.flags & (InodeFlag.APPEND | InodeFlag.IMMUTABLE)
        or is_read_only(fs, parent.root)
        or parent.ino == EMPTY_SUBVOL_DIR
        or fs.machine.asynchronous
        or has_log(fs, parent.root)
    )


def _unlink(fs: Mount, parent: LiveInode, names: list[bytes], known: Inos) -> int:
    """Unlink names up to one that is not plain; returns how many."""
    root, text = parent.root, b"".join(names)
    sizes = np.fromiter(map(len, names), np.uint32, len(names))
    indexes = bulk.unlink_files(fs.writer, root, parent.ino, text, sizes, known)
    if len(indexes):
        _note(fs, parent, indexes.tolist(), int(sizes[: len(indexes)].sum()))
    return len(indexes)


def _note(fs: Mount, parent: LiveInode, indexes: list[int], length: int) -> None:
    """Let the directory, the root item and the clock follow unlinks; names of `length` bytes."""
    start, count = fs.clock, len(indexes)
    tick = fs.now() - start or fs.clock - start
    last = start + (count - 1) * _TICKS * tick
    # looked up at each unlink, and remembered
    is_logged(fs, parent)
    for index in indexes:
        fs.delayed.delete_index(parent, index)
    d_drop_all(fs, parent)
    parent.item.size -= 2 * length
    parent.item.sequence += count
    parent.item.mtime = parent.item.ctime = last + _OF_DIRECTORY * tick
    fs.clock = last + _OF_ROOT * tick
    mark_inode_dirty(fs, parent)
    fs.clock = last + _OF_ROOT_AGAIN * tick
    update_root_times(fs, parent.root)
