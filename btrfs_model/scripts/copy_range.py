# SPDX-License-Identifier: GPL-2.0-only
"""copy_file_range(2): extents are shared where blocks match, the rest is copied."""

from __future__ import annotations

import errno
import os
from typing import Final

from btrfs_model.mount.names.lookup import Path, find
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.scripts.files import fail

_BLOCK: Final = 4096


def copy_file_range(
    fs: WritableFilesystem, source: Path, target: Path, first: int, second: int, length: int
) -> int:
    """Copy a range as those do who call until nothing is left (``vfs_copy_file_range()``).

    Each call shares whole blocks (``REMAP_FILE_CAN_SHORTEN``); where that is nothing, or refused,
    data go through a pipe.

    Parameters
    ----------
    fs : WritableFilesystem
        Both files are on it.
    source, target : str or bytes
        Paths of files; they may be the same.
    first, second, length : int
        Where they are read, where they are written, bytes.

    Returns
    -------
    int
        How many bytes went through a pipe.

    Raises
    ------
    OSError
        EINVAL where the ranges of one file overlap, and what a write is refused with.
    """
    size = find(fs, source).i_size
    length = max(0, min(length, size - first))
    if fs.resolve(source) == fs.resolve(target) and abs(first - second) < length:
        raise fail(errno.EINVAL, os.fsdecode(target))
    shared = _shared(fs, source, target, first, second, length) if length else 0
    if shared == length:
        return 0
    rest = fs.read(source, first + shared, length - shared)
    return fs.write(target, second + shared, rest)


def _shared(
    fs: WritableFilesystem, source: Path, target: Path, first: int, second: int, length: int
) -> int:
    """Share what can be shared; return how much it was (``generic_remap_file_range_prep()``)."""
    count = length
    if first + length != find(fs, source).i_size or second + length < find(fs, target).i_size:
        count -= count % _BLOCK
    if not count:
        return 0
    try:
        fs.clone_range(source, target, first, second, count)
    except OSError:
        return 0
    return count
