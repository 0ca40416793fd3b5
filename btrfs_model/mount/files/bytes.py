# SPDX-License-Identifier: GPL-2.0-only
"""The bytes of extents on their way to disk, and their checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from btrfs_model.mount.files.elided import punch
from btrfs_model.mount.files.file_item import Fs
from btrfs_model.mount.files.pages import FilePages
from btrfs_model.native.hashes import sector_sums
from btrfs_model.ondisk.constants import InodeFlag

if TYPE_CHECKING:
    from btrfs_model.mount.live_inode import LiveInode


def pages_of(fs: Fs, inode: LiveInode) -> FilePages:
    """Return the dirty pages of an inode."""
    if inode.data is None:
        inode.data = FilePages(fs.sectorsize, inode.item.size, fs.dirty_bytes)
    pages: FilePages = inode.data
    return pages


def store_bytes(fs: Fs, bytenr: int, data: bytes) -> None:
    """Write data of an extent to every copy of its chunk."""
    chunk = fs.image.chunk_at(bytenr)
    for copy in range(len(chunk.stripes)):
        physical, _ = fs.image.map(bytenr, copy)
        fs.image.view[physical : physical + len(data)] = data


def store(fs: Fs, inode: LiveInode, bytenr: int, start: int, end: int) -> None:
    """Write dirty blocks of a file to disk as they are; of elided ones a hole."""
    pages = pages_of(fs, inode)
    for part in pages.ranges(start, end):
        at = bytenr + part.start - start
        if part.pattern is None:
            store_bytes(fs, at, pages.read(part.start, part.end))
        else:
            punch(fs.image, at, part.end - part.start)


def add_csums(fs: Fs, inode: LiveInode, bytenr: int, start: int, end: int) -> None:
    """Add the checksums of uncompressed data (``add_pending_csums()``)."""
    pages = pages_of(fs, inode)
    sums = []
    for part in pages.ranges(start, end):
        if part.pattern is None:
            data = pages.read(part.start, part.end)
            sums.append(sector_sums(fs.csum_type, data, fs.sectorsize).tobytes())
        else:
            sums.append(zero_sums(fs, (part.end - part.start) // fs.sectorsize))
    insert_csums(fs, inode, bytenr, b"".join(sums))


def insert_csums(fs: Fs, inode: LiveInode, bytenr: int, sums: bytes) -> None:
    """Put checksums of consecutive sectors into the tree, unless the file has none."""
    if not inode.item.flags & InodeFlag.NODATASUM:
        fs.writer.insert_csums(bytenr, sums, len(sums) // fs.csum_size)


def zero_sums(fs: Fs, sectors: int) -> bytes:
    """Checksums of sectors of zeros."""
    one = sector_sums(fs.csum_type, bytes(fs.sectorsize), fs.sectorsize)
    return bytes(np.repeat(one, sectors, axis=0).tobytes())
