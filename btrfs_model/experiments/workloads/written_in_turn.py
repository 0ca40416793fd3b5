# SPDX-License-Identifier: GPL-2.0-only
"""How many small files may wait for writeback before the kernel wants its reservations back.

Data that waits for writeback (delayed allocation) holds metadata space for the items that it may
need, many times what it will take (:mod:`.space_info`). So the size of the device decides how
many files have their inode items side by side before the first of them gets its extent. Workloads
that make all files of a run at once, and write to them then, divide the files into such runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from btrfs_model.mount.delayed_inode import run_delayed_items
from btrfs_model.mount.files.writeback import inline_limit
from btrfs_model.mount.names.lookup import Path
from btrfs_model.mount.space.block_group import global_reserve
from btrfs_model.mount.space.level import overcommit
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_METADATA, BTRFS_MAX_LEVEL

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem

_CREATE_ITEMS: Final = 13
"""Items that must be free for the next file to be made, what others hold meanwhile taken off. The
kernel asks for 15; 13 is fitted to where it ran out of room on seven devices."""


def files_before_flush(fs: WritableFilesystem) -> int:
    """Return how many new files of one small extent each wait before they are written back.

    Parameters
    ----------
    fs : WritableFilesystem
        Where they are made; nothing waits yet.

    Notes
    -----
    ``btrfs_calculate_inode_block_rsv_size()``, ``calc_available_free_space()`` (Linux 6.18). Where
    the device is so large that thousands of files fit, preemptive reclaim comes before this.
    """
    path = BTRFS_MAX_LEVEL * fs.nodesize
    # an extent item and checksums are inserted, the inode item is changed
    each = 2 * (2 * path) + path
    info = fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA)
    room = info.free + overcommit(fs, info.flags) - global_reserve(fs, info)
    return max(1, 1 + (room - _CREATE_ITEMS * 2 * path) // each)


def run_before_delalloc(fs: WritableFilesystem) -> None:
    """Run what the kernel runs before it turns to data (``flush_space()``): delayed items, refs."""
    run_delayed_items(fs)
    fs.writer.run_refs()


def write_files_in_turn(
    fs: WritableFilesystem, directory: Path, names: Sequence[Path], data: bytes
) -> None:
    """Make small files of the same contents, as one process does on a small device.

    Whenever there is no more room for reservations, what waits is written back. Where the data get
    extents of their own, the references of those hold as much again, and it takes a commit.

    Parameters
    ----------
    fs : WritableFilesystem
        Where; nothing waits yet.
    directory : str or bytes
        Path of the directory.
    names : sequence of str or bytes
        Names in it, in the order of creation.
    data : bytes
        What each of them holds.
    """
    done = 0
    while done < len(names):
        part = names[done : done + files_before_flush(fs)]
        inos = fs.create_files(directory, part)
        run_before_delalloc(fs)
        fs.fill_files(directory, inos, data)
        if len(data) > inline_limit(fs):
            fs.commit()
        done += len(part)
