# SPDX-License-Identifier: GPL-2.0-only
"""Bytes of names and files: hashes and checksums of many at once, lzo, and the kernel's zlib."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from btrfs_model.native.door import ffi, lib, raw
from btrfs_model.ondisk.hashes import CSUM_SIZES


def name_hashes(
    text: npt.NDArray[np.uint8], sizes: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint64]:
    """Return the hashes of names that follow each other."""
    hashes = np.empty(len(sizes), np.uint64)
    flat = np.ascontiguousarray(text)
    lib.bm_name_hashes(raw(flat), raw(sizes), len(sizes), raw(hashes))
    return hashes


def sector_sums(csum_type: int, data: Any, sectorsize: int) -> npt.NDArray[np.uint8]:
    """Checksums of all whole sectors of `data`.

    `csum_type`: ``enum btrfs_csum_type``.
    `data`: a multiple of the sector size.
    `sectorsize`: bytes.
    Returns uint8, shape (sectors, bytes of a checksum).
    """
    count = len(data) // sectorsize
    sums = np.empty((count, CSUM_SIZES[csum_type]), np.uint8)
    lib.bm_csum_sectors(csum_type, ffi.from_buffer(data), sectorsize, count, raw(sums))
    return sums


def lzo1x_worst_compress(size: int) -> int:
    """Most bytes that lzo1x makes of `size`."""
    return size + size // 16 + 64 + 3


def lzo1x_compress(data: bytes) -> bytes:
    """Compress as ``lzo1x_1_compress()`` does."""
    out = ffi.new("uint8_t[]", lzo1x_worst_compress(len(data)))
    return bytes(ffi.buffer(out, lib.bm_lzo1x_compress(data, len(data), out)))


def lzo1x_decompress(data: Any, most: int) -> bytes | None:
    """Decompress a stream of at most `most` bytes; None for what is none."""
    out = ffi.new("uint8_t[]", most)
    size = lib.bm_lzo1x_decompress(ffi.from_buffer(data), len(data), out, most)
    return None if size < 0 else bytes(ffi.buffer(out, size))


def zlib_compress(data: bytes, level: int, page: int, *, flushes: bool) -> bytes | None:
    """Compress as ``zlib_compress_folios()`` does; None where it gives up.

    `level`: 1 to 9.
    `page`: bytes of what is taken and given at once.
    `flushes`: whether a flush lets out whole bytes of the bits that are held too.
    Raises MemoryError.
    """
    room = 2 * len(data) + page
    out = ffi.new("uint8_t[]", room)
    size = lib.bm_zlib_compress(data, len(data), level, flushes, page, out, room)
    if size < 0:
        raise MemoryError
    return bytes(ffi.buffer(out, size)) or None
