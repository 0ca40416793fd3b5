# SPDX-License-Identifier: GPL-2.0-only
"""Compression of file extents, the other direction of :mod:`btrfs_model.volume.compression`.

What a kernel compresses is at most 128 KiB at a time. Each algorithm has its own rule for giving
up: :func:`compress` returns None where the kernel's ``*_compress_folios()`` return ``-E2BIG``.

zlib and zstd are the kernel's at level 3. zlib flushes after each page, as the kernel's does; now
and then a stream is some bytes longer, since the kernel leaves a flush out where a page of output
is full just then. lzo is not the kernel's ``lzo1x_1_compress()`` but another compressor of the same
format: its segments have other bytes and mostly other sizes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import lzallright
import zstandard

from btrfs_model.ondisk.constants import Compression
from btrfs_model.ondisk.layout import Payload

COMPRESSION_TYPES: Final = {
    "zlib": int(Compression.ZLIB),
    "lzo": int(Compression.LZO),
    "zstd": int(Compression.ZSTD),
}
"""Numbers of the compressions by their name in ``compress=``."""

MAX_UNCOMPRESSED: Final = 128 << 10
"""``BTRFS_MAX_UNCOMPRESSED``: what is compressed at once."""

_LEVEL: Final = 3
_PAGE: Final = 4096
_LZO_LENGTH: Final = 4
_ZSTD_WINDOW_LOG: Final = 17


def compress(kind: int, data: Payload, sectorsize: int) -> bytes | None:
    """Compress up to 128 KiB (``btrfs_compress_folios()``, Linux 6.18).

    `kind`: one of ``enum btrfs_compression``.
    `data`: what lies in the pages, up to the end of the file.
    `sectorsize`: of the filesystem, bytes; lzo depends on it.
    Returns the stream without the padding to whole sectors; None when it would not be smaller.
    """
    return _COMPRESSORS[kind](bytes(data), sectorsize)


@lru_cache(maxsize=256)
def compressed_size(kind: int, pattern: bytes, length: int, sectorsize: int) -> int | None:
    """Bytes that `length` bytes of a repeated pattern compress to, None as :func:`compress`."""
    data = (pattern * (length // len(pattern) + 1))[:length]
    packed = compress(kind, data, sectorsize)
    return None if packed is None else len(packed)


def _zlib(data: bytes, sectorsize: int) -> bytes | None:
    stream = zlib.compressobj(_LEVEL)
    out = bytearray()
    room = _PAGE
    for at in range(0, len(data), _PAGE):
        out += stream.compress(data[at : at + _PAGE]) + stream.flush(zlib.Z_SYNC_FLUSH)
        # a page of output at a time: what does not fit waits, and does not count as too large yet
        taken, given = min(at + _PAGE, len(data)), min(len(out), room)
        if 8192 < taken < given:
            return None
        room += _PAGE if given == room else 0
    out += stream.flush(zlib.Z_FINISH)
    return bytes(out) if len(out) < len(data) else None


def _zstd(data: bytes, sectorsize: int) -> bytes | None:
    level = zstandard.ZstdCompressionParameters.from_level(_LEVEL, source_size=len(data))
    window = min(level.window_log, _ZSTD_WINDOW_LOG)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, source_size=len(data), window_log=window
    )
    packed = zstandard.ZstdCompressor(compression_params=parameters).compress(data)
    return packed if len(packed) < len(data) else None


def _lzo(data: bytes, sectorsize: int) -> bytes | None:
    compressor = lzallright.LZOCompressor()
    out = bytearray(_LZO_LENGTH)
    for at in range(0, len(data), sectorsize):
        segment = compressor.compress(data[at : at + sectorsize])
        out += len(segment).to_bytes(_LZO_LENGTH, "little") + segment
        # no length may lie across the end of a sector
        left = -len(out) % sectorsize
        if left < _LZO_LENGTH:
            out += bytes(left)
        if len(out) > MAX_UNCOMPRESSED or sectorsize * 2 < at + sectorsize < len(out):
            return None
    out[:_LZO_LENGTH] = len(out).to_bytes(_LZO_LENGTH, "little")
    return bytes(out)


_COMPRESSORS: Final[dict[int, Callable[[bytes, int], bytes | None]]] = {
    COMPRESSION_TYPES["zlib"]: _zlib,
    COMPRESSION_TYPES["lzo"]: _lzo,
    COMPRESSION_TYPES["zstd"]: _zstd,
}
