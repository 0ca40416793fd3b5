# SPDX-License-Identifier: GPL-2.0-only
"""BTRFS_IOC_ENCODED_WRITE: compressed data become an extent as they are.

``btrfs_do_encoded_write()`` (Linux 6.12).
"""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple

from btrfs_model.mount.files.bytes import insert_csums, store_bytes
from btrfs_model.mount.files.compress import MAX_UNCOMPRESSED
from btrfs_model.mount.files.file_item import (
    REGULAR,
    align,
    insert_inline,
    insert_regular,
    pack_inline,
    pack_regular,
)
from btrfs_model.mount.files.write import cont_expand, set_i_size, touch
from btrfs_model.mount.files.writeback import can_be_inline, writeback
from btrfs_model.mount.inode import mark_inode_dirty
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.data import ensure_data, reserve_data
from btrfs_model.native.data import sector_sums
from btrfs_model.ondisk.constants import InodeFlag

_MAX_COMPRESSED: Final = 128 << 10


class Encoded(NamedTuple):
    """What is written.

    Attributes
    ----------
    compression : int
        ``enum btrfs_compression``.
    sectorsize : int
        That of the filesystem which compressed the data; lzo depends on it.
    unencoded_len : int
        Bytes that come out of decompressing the data.
    unencoded_offset, length : int
        The range of them that the file gets.
    data : bytes
        The compressed data.
    """

    compression: int
    sectorsize: int
    unencoded_len: int
    unencoded_offset: int
    length: int
    data: bytes


def encoded_write(fs: Mount, inode: LiveInode, start: int, encoded: Encoded) -> None:
    """Write compressed data at `start`.

    Raises OSError: EINVAL where the kernel takes the data only decompressed, ENOSPC.
    """
    if not _is_possible(fs, inode, start, encoded):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), fs.path)
    write_encoded(fs, inode, start, encoded)


def write_encoded(fs: Mount, inode: LiveInode, start: int, encoded: Encoded) -> None:
    """Write compressed data at `start`, whatever they are.

    Raises OSError: ENOSPC.
    """
    pages, end, blocksize = inode.pages, start + encoded.length, fs.sectorsize
    on_disk = align(len(encoded.data), blocksize)
    ensure_data(fs, on_disk)
    touch(fs, inode)
    if start > pages.i_size:
        cont_expand(fs, inode, pages.i_size, align(end, blocksize))
    # what waits there is written back, and then replaced
    writeback(fs, inode, start, align(end, blocksize))
    whole = not start and not encoded.unencoded_offset and encoded.unencoded_len == encoded.length
    if whole and can_be_inline(fs, inode, encoded.length, len(encoded.data)):
        payload = pack_inline(fs.transid, encoded.length, encoded.data, encoded.compression)
        insert_inline(fs, inode, payload, blocksize)
    else:
        _write_extent(fs, inode, start, encoded)
    set_i_size(fs, inode, max(pages.i_size, end))
    mark_inode_dirty(fs, inode)


def _is_possible(fs: Mount, inode: LiveInode, start: int, encoded: Encoded) -> bool:
    blocksize, end = fs.sectorsize, start + encoded.length
    return (
        not inode.item.flags & InodeFlag.NODATASUM
        and encoded.sectorsize == blocksize
        and 0 < len(encoded.data) < min(encoded.unencoded_len, _MAX_COMPRESSED + 1)
        and encoded.unencoded_len <= MAX_UNCOMPRESSED
        and 0 < encoded.length <= encoded.unencoded_len - encoded.unencoded_offset
        and start % blocksize == 0
        and (end % blocksize == 0 or end >= inode.pages.i_size)
        and encoded.unencoded_offset % blocksize == 0
    )


def _write_extent(fs: Mount, inode: LiveInode, start: int, encoded: Encoded) -> None:
    blocksize = fs.sectorsize
    data = encoded.data.ljust(align(len(encoded.data), blocksize), b"\0")
    bytenr, _ = reserve_data(fs, len(data), len(data), 0)
    payload = pack_regular(
        fs.transid, REGULAR, bytenr, len(data), align(encoded.length, blocksize),
        ram_bytes=align(encoded.unencoded_len, blocksize), offset=encoded.unencoded_offset,
        compression=encoded.compression,
    )  # fmt: skip
    store_bytes(fs, bytenr, data)
    insert_regular(fs, inode, start, payload, new=True)
    insert_csums(fs, inode, bytenr, sector_sums(fs.csum_type, data, blocksize).tobytes())
