# SPDX-License-Identifier: GPL-2.0-only
"""zstd as kernels have it (``lib/zstd``): which bytes, by the release of the library.

Linux has had four: a port of 1.3, from 5.16 on 1.4.10, from 6.2 on 1.5.2, from 6.15 on 1.5.7.
``zstandard`` brings the last, so the bytes are those of kernels since 6.15 at every level. Earlier
ones find other matches. Of 150 files that 6.12 and 6.18 compressed at one level, 1 to 64 had other
bytes (1 at levels 1 and 2, 52 at 3, 12 at 5, 64 at 15), and at most one another size on disk;
between 6.1 and 6.18 it was 13 to 80, and at most seven.

The kernel's libraries search without vectors. For ranges of up to 128 KiB they therefore look along
chains of hashes where others look at rows of them (``useRowMatchFinder``).
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

from btrfs_model.behaviour import Behaviour
from btrfs_model.patches import Patch

_WINDOW_LOG: Final = 17
"""``ZSTD_BTRFS_MAX_WINDOWLOG``."""
_ROW_MATCH_FINDER, _DISABLE = 1011, 2
_SMALL: Final = 16 << 10
_LAZY_LEVELS: Final = range(6, 11)


@cache
def _library() -> Any:
    from zstandard import backend_cffi

    return backend_cffi


@lru_cache(maxsize=64)
def _compressor(level: int, size: int, chain_log: int | None) -> Any:
    library = _library()
    parameters = library.lib.ZSTD_getCParams(level, size, 0)
    changed = {"window_log": min(parameters.windowLog, _WINDOW_LOG)}
    if chain_log is not None:
        changed["chain_log"] = chain_log
    compressor = library.ZstdCompressor(
        compression_params=library.ZstdCompressionParameters.from_level(
            level, source_size=size, **changed
        )
    )
    library.lib.ZSTD_CCtx_setParameter(compressor._cctx, _ROW_MATCH_FINDER, _DISABLE)
    return compressor


def is_exact(behaviour: Behaviour) -> bool:
    """Whether a kernel's bytes are those of :func:`zstd_compress`."""
    return Patch.ZSTD_1_5_7 in behaviour


def zstd_compress(data: bytes, level: int, behaviour: Behaviour) -> bytes:
    """Compress up to 128 KiB (``zstd_compress_folios()``)."""
    longer = Patch.ZSTD_1_5_2 not in behaviour and level in _LAZY_LEVELS and len(data) > _SMALL
    return bytes(_compressor(level, len(data), 17 if longer else None).compress(data))
