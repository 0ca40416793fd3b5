# SPDX-License-Identifier: GPL-2.0-only
"""Removing many files of a directory, as one unlink after the other does it.

Empty files with one name, of which the tree says everything, go in one kernel
(``bm_writer_unlink_files()``); any other name is unlinked by itself, in its turn.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.live_inode import EMPTY_SUBVOL_DIR, LiveInode
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import Path, as_bytes, find, is_read_only
from btrfs_model.mount.names.namei import UNLINK_ITEMS
from btrfs_model.native import bulk
from btrfs_model.ondisk.constants import InodeFlag

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem

_CHUNK: Final = 256

_TICKS: Final = 4
"""Times that unlink() takes: of the inode, of the directory, and twice of the root item."""

_OF_DIRECTORY, _OF_ROOT, _OF_ROOT_AGAIN = 1, 2, 3

Inos = npt.NDArray[np.uint64]


def unlink_files(fs: WritableFilesystem, directory: Path, names: Sequence[Path]) -> None:
    """Remove names from a directory, as :meth:`unlink` does one after the other.

    Parameters
    ----------
    fs : WritableFilesystem
        The filesystem.
    directory : str or bytes
        Path of the directory.
    names : sequence of str or bytes
        Names in it, in the order in which they go.

    Raises
    ------
    OSError
        As unlink(2); the names before are gone then.
    """
    parent = find(fs, directory)
    if not parent.is_dir:
        raise fail(errno.ENOTDIR, directory)
    raw, prefix = [as_bytes(name) for name in names], as_bytes(directory) + b"/"
    cached, known = fs.inodes.subvolume(parent.root).inodes, _known(fs, parent.root)
    at = 0
    while at < len(raw):
        if _is_plain(fs, parent):
            count = min(_CHUNK, len(raw) - at)
            count = fs.start_transaction(UNLINK_ITEMS, from_reserve=True, calls=count)
            done = _unlink(fs, parent, raw[at : at + count], known)
            fs.space_info.give_back(UNLINK_ITEMS, count - done)
            at += done
        if at < len(raw):
            before = len(cached)
            fs.unlink(prefix + raw[at])
            at += 1
            # one that has other names is in memory now
            known = _known(fs, parent.root) if len(cached) > before else known


def _known(fs: WritableFilesystem, root: int) -> Inos:
    """Numbers of inodes that are in memory, or for which something waits."""
    inos = [*fs.inodes.subvolume(root).inodes, *fs.delayed.waits_for(root)]
    return np.sort(np.array(inos, np.uint64))


def _is_plain(fs: WritableFilesystem, parent: LiveInode) -> bool:
    """Whether nothing but the tree has to know of the unlinks of a directory."""
    return not (
        parent.item.flags & (InodeFlag.APPEND | InodeFlag.IMMUTABLE)
        or is_read_only(fs, parent.root)
        or parent.ino == EMPTY_SUBVOL_DIR
        or fs.delayed.asynchronous
        or fs.tree_logs.has_log(parent.root)
    )


def _unlink(fs: WritableFilesystem, parent: LiveInode, names: list[bytes], known: Inos) -> int:
    """Unlink names up to one that is not plain; returns how many."""
    root, text = parent.root, b"".join(names)
    sizes = np.fromiter(map(len, names), np.uint32, len(names))
    indexes = bulk.unlink_files(fs.writer, root, parent.ino, text, sizes, known)
    if len(indexes):
        _note(fs, parent, indexes.tolist(), int(sizes[: len(indexes)].sum()))
    return len(indexes)


def _note(fs: WritableFilesystem, parent: LiveInode, indexes: list[int], length: int) -> None:
    """Let the directory, the root item and the clock follow unlinks; names of `length` bytes."""
    start, count = fs.clock, len(indexes)
    tick = fs.now() - start or fs.clock - start
    last = start + (count - 1) * _TICKS * tick
    # looked up at each unlink, and remembered
    fs.tree_logs.is_logged(parent)
    for index in indexes:
        fs.delayed.delete_index(parent, index)
    parent.item.size -= 2 * length
    parent.item.sequence += count
    parent.item.mtime = parent.item.ctime = last + _OF_DIRECTORY * tick
    fs.clock = last + _OF_ROOT * tick
    fs.mark_inode_dirty(parent)
    fs.clock = last + _OF_ROOT_AGAIN * tick
    fs.update_root_times(parent.root)
