# SPDX-License-Identifier: GPL-2.0-only
"""Decompression of file extents: zlib, lzo and zstd as btrfs lays them out.

zlib and zstd extents are one ordinary stream, padded with zeros to a multiple of the sector size.
lzo has a frame of its own, since lzo1x knows no length::

    offset  size  field
    0          4  bytes of all that follows and of this field
    4          4  bytes of segment 0
    8          n  segment 0: at most one sector when decompressed
    8+n        4  bytes of segment 1 ...

where the 4 bytes of a segment's length never lie across the end of a sector: when fewer than 4 are
left in it, they are padding, and the length starts the next sector.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import zstandard

from btrfs_model.base.codes import Code
from btrfs_model.native.data import lzo1x_decompress, lzo1x_worst_compress
from btrfs_model.ondisk.constants import Compression
from btrfs_model.ondisk.layout import Payload, PayloadError

_LZO_LENGTH: Final = 4
# the largest window that the kernel allows (ZSTD_BTRFS_MAX_WINDOWLOG)
_ZSTD_WINDOW: Final = 1 << 17


def decompress(kind: int, data: Payload, length: int, sectorsize: int) -> bytes:
    """Decompress an extent.

    `kind`: one of ``enum btrfs_compression``.
    `data`: the extent as it lies on disk, padding included.
    `length`: uncompressed bytes wanted (``ram_bytes``). What a stream gives beyond is left out,
    what it lacks is zeros, as ``btrfs_decompress_bio()`` has it (Linux 6.12).
    `sectorsize`: of the filesystem, bytes; lzo depends on it.
    Returns `length` bytes.
    Raises PayloadError: when the bytes do not decompress (``BM_BAD_DATA``).
    """
    decompressor = _DECOMPRESSORS.get(kind)
    if decompressor is None:
        raise PayloadError.bad_value(kind)
    try:
        plain = decompressor(data, length, sectorsize)
    except (zlib.error, zstandard.ZstdError, _TruncatedError):
        raise PayloadError(Code.BAD_DATA, len(data), length) from None
    return plain if len(plain) == length else plain[:length].ljust(length, b"\0")


class _TruncatedError(Exception):
    """The compressed bytes end before their stream, or are none."""


def _none(data: Payload, length: int, sectorsize: int) -> bytes:
    return bytes(data[:length])


def _zlib(data: Payload, length: int, sectorsize: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(data, length) if length else b""
    if len(plain) < length and not stream.eof:
        raise _TruncatedError
    return plain


def _zstd(data: Payload, length: int, sectorsize: int) -> bytes:
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    with context.stream_reader(data, read_across_frames=False) as stream:
        plain = stream.read(length)
    if len(plain) < length and not _is_whole_frame(data):
        raise _TruncatedError
    return plain


def _is_whole_frame(data: Payload) -> bool:
    """Whether the zstd frame ended, and not just its input."""
    stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
    stream.decompress(data)
    return bool(stream.eof)


def _lzo(data: Payload, length: int, sectorsize: int) -> bytes:
    if len(data) < _LZO_LENGTH:
        raise _TruncatedError
    total = int.from_bytes(data[:_LZO_LENGTH], "little")
    # the last sector is not all padding (lzo_decompress_bio())
    if total > len(data) or total + sectorsize <= len(data):
        raise _TruncatedError
    plain = bytearray()
    at = _LZO_LENGTH
    while len(plain) < length and at < total:
        left = sectorsize - at % sectorsize
        if left < _LZO_LENGTH:
            at += left
        size = int.from_bytes(data[at : at + _LZO_LENGTH], "little")
        at += _LZO_LENGTH
        if not size or size > lzo1x_worst_compress(sectorsize) or at + size > total:
            raise _TruncatedError
        segment = lzo1x_decompress(data[at : at + size], sectorsize)
        if segment is None:
            raise _TruncatedError
        plain += segment
        at += size
    return bytes(plain)


_DECOMPRESSORS: Final[dict[int, Callable[..., bytes]]] = {
    Compression.NONE: _none,
    Compression.ZLIB: _zlib,
    Compression.LZO: _lzo,
    Compression.ZSTD: _zstd,
}
