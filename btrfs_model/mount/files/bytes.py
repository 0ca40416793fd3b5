# SPDX-License-Identifier: GPL-2.0-only
"""The bytes of extents on their way to disk, and their checksums."""

from __future__ import annotations

import mmap

import numpy as np

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.native.data import sector_sums
from btrfs_model.ondisk.constants import InodeFlag


def store_bytes(fs: Mount, bytenr: int, data: bytes) -> None:
    """Write data of an extent to every copy of its chunk."""
    for physical in fs.image.copies(bytenr):
        fs.image.view[physical : physical + len(data)] = data


def punch(fs: Mount, logical: int, length: int) -> None:
    """Make a range of the image zeros without storing them, in every copy.

    `fs`: the filesystem.
    `logical`, `length`: a range of whole sectors inside one chunk.
    """
    view = fs.image.view
    for physical in fs.image.copies(logical):
        whole = -physical % mmap.PAGESIZE
        start = min(physical + whole, physical + length)
        end = max((physical + length) // mmap.PAGESIZE * mmap.PAGESIZE, start)
        view[physical:start] = bytes(start - physical)
        if start < end:
            fs.memory.drop(start, end)
        view[end : physical + length] = bytes(physical + length - end)


def store(fs: Mount, inode: LiveInode, bytenr: int, start: int, end: int) -> bytes:
    """Write dirty blocks of a file to disk as they are, of elided ones a hole; their checksums."""
    pages = inode.pages
    sums = []
    for part in pages.ranges(start, end):
        at = bytenr + part.start - start
        if part.stored or part.pattern is None:
            data = pages.read(part.start, part.end)
            store_bytes(fs, at, data)
            sums.append(sector_sums(fs.csum_type, data, fs.sectorsize).tobytes())
        else:
            punch(fs, at, part.end - part.start)
            sums.append(zero_sums(fs, (part.end - part.start) // fs.sectorsize))
    return b"".join(sums)


def insert_csums(fs: Mount, inode: LiveInode, bytenr: int, sums: bytes) -> None:
    """Put checksums of consecutive sectors into the tree, unless the file has none."""
    if not inode.item.flags & InodeFlag.NODATASUM:
        fs.writer.insert_csums(bytenr, sums, len(sums) // fs.csum_size)


def zero_sums(fs: Mount, sectors: int) -> bytes:
    """Checksums of sectors of zeros."""
    one = sector_sums(fs.csum_type, bytes(fs.sectorsize), fs.sectorsize)
    return bytes(np.repeat(one, sectors, axis=0).tobytes())
