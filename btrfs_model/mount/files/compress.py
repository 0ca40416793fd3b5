# SPDX-License-Identifier: GPL-2.0-only
"""Compression of file extents, the other direction of :mod:`btrfs_model.volume.compression`.

What a kernel compresses is at most 128 KiB at a time. Each algorithm has its own rule for giving
up: :func:`compress` returns None where the kernel's ``*_compress_folios()`` return ``-E2BIG``.

zlib and lzo are the kernel's own, to the byte, at every level. zstd is so for kernels since 6.15:
see :mod:`btrfs_model.mount.files.zstd`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.files.compress_levels import level_of
from btrfs_model.mount.files.elided import Told
from btrfs_model.mount.files.pages import BLOCKSIZE
from btrfs_model.mount.files.zstd import zstd_compress
from btrfs_model.native.data import lzo1x_compress, zlib_compress
from btrfs_model.ondisk.constants import Compression
from btrfs_model.ondisk.layout import Payload
from btrfs_model.patches import Patch

COMPRESSION_TYPES: Final = {
    "zlib": int(Compression.ZLIB),
    "lzo": int(Compression.LZO),
    "zstd": int(Compression.ZSTD),
}
"""Numbers of the compressions by their name in ``compress=``."""

MAX_UNCOMPRESSED: Final = 128 << 10
"""``BTRFS_MAX_UNCOMPRESSED``: what is compressed at once."""

_LZO_LENGTH: Final = 4


def compress(
    kind: str, level: int, data: Payload, sectorsize: int, behaviour: Behaviour
) -> bytes | None:
    """Compress up to 128 KiB (``btrfs_compress_folios()``, Linux 6.18).

    `kind`: ``zlib``, ``lzo`` or ``zstd``.
    `level`: of the mount; the algorithm takes the nearest that it has, of 0 its default.
    `data`: what lies in the pages, up to the end of the file.
    `sectorsize`: of the filesystem, bytes; lzo depends on it.
    `behaviour`: the kernel that compresses.
    Returns the stream without the padding to whole sectors; None when the kernel gives up.
    """
    return _COMPRESSORS[kind](bytes(data), level_of(kind, level), sectorsize, behaviour)


@lru_cache(maxsize=256)
def compress_told(
    kind: str, level: int, data: Told, sectorsize: int, behaviour: Behaviour
) -> bytes | None:
    """Compress data that a pattern tells, as :func:`compress`."""
    return compress(kind, level, data.sample(data.length), sectorsize, behaviour)


def _zlib(data: bytes, level: int, sectorsize: int, behaviour: Behaviour) -> bytes | None:
    flushes = Patch.ZLIB_FLUSH_BITS in behaviour
    return zlib_compress(data, level, BLOCKSIZE, flushes=flushes)


def _zstd(data: bytes, level: int, sectorsize: int, behaviour: Behaviour) -> bytes | None:
    packed = zstd_compress(data, level, behaviour)
    return packed if len(packed) < len(data) else None


def _lzo(data: bytes, level: int, sectorsize: int, behaviour: Behaviour) -> bytes | None:
    out = bytearray(_LZO_LENGTH)
    room = -(-len(data) // BLOCKSIZE) * BLOCKSIZE
    for at in range(0, len(data), sectorsize):
        segment = lzo1x_compress(data[at : at + sectorsize])
        out += len(segment).to_bytes(_LZO_LENGTH, "little") + segment
        # no length may lie across the end of a sector
        left = -len(out) % sectorsize
        if left < _LZO_LENGTH:
            out += bytes(left)
        taken = min(at + sectorsize, len(data))
        if len(out) > room or sectorsize * 2 < taken < len(out):
            return None
    if Patch.LZO_ANY_SIZE not in behaviour and len(out) >= len(data):
        return None
    out[:_LZO_LENGTH] = len(out).to_bytes(_LZO_LENGTH, "little")
    return bytes(out)


_COMPRESSORS: Final[dict[str, Callable[[bytes, int, int, Behaviour], bytes | None]]] = {
    "zlib": _zlib,
    "lzo": _lzo,
    "zstd": _zstd,
}
