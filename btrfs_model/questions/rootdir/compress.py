# SPDX-License-Identifier: GPL-2.0-only
"""How ``mkfs.btrfs --rootdir --compress`` compresses: by zlib and zstd of the machine, by lzo.

The kernel compresses otherwise: by pages, with windows of its own.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, Final, NamedTuple

from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.files.compress import COMPRESSION_TYPES, compress

UNIT: Final = 128 << 10
"""Bytes that become one compressed extent."""

_SECTOR: Final = 4096
_KERNEL: Final = "v6.18"
"""Its lzo is that of the library."""
# algorithm: the highest level, and the usual one, which is also that of 0
_LEVELS: Final = {"zlib": (9, 3), "lzo": (1, 1), "zstd": (15, 3)}


class Compression(NamedTuple):
    """An algorithm with its level."""

    kind: str
    level: int

    @classmethod
    def parse(cls, text: str) -> Compression | None:
        """Read ``ALGO[:LEVEL]``; ``no`` and nothing are no compression.

        Raises ValueError: for what mkfs.btrfs refuses.
        """
        if text in ("", "no"):
            return None
        found = re.fullmatch(r"([a-z]+)(?::(\d+))?", text)
        if not found or found[1] not in _LEVELS:
            raise ValueError(f"compression {text!r} is none of no, lzo, zlib[:LEVEL], zstd[:LEVEL]")
        level, (most, usual) = int(found[2] or 0), _LEVELS[found[1]]
        if level > most:
            raise ValueError(f"compression level {level} out of range [1..{most}]")
        return cls(found[1], level or usual)

    def inline(self, data: bytes) -> bytes | None:
        """Compress a small file; None where that saves nothing."""
        packed = self._pack(data, 0)
        return packed if packed is not None and len(packed) < len(data) else None

    def extent(self, data: bytes, *, first: bool) -> bytes | None:
        """Compress data of an extent; None where that does not save a sector.

        `first`: the file has no compressed extent yet, so the first sector alone decides.
        """
        packed = self._pack(data, _SECTOR if first else 0)
        if packed is None:
            return None
        most = UNIT - 1 if self.kind == "zlib" else len(data)
        return packed if len(packed) <= most - _SECTOR else None

    @property
    def number(self) -> int:
        """Number of the algorithm, as file extents have it."""
        return COMPRESSION_TYPES[self.kind]

    def _pack(self, data: bytes, trial: int) -> bytes | None:
        if self.kind == "lzo":
            return compress("lzo", 0, data, _SECTOR, Behaviour.parse(_KERNEL))
        stream: Any
        if self.kind == "zlib":
            stream = zlib.compressobj(self.level)
            sync = zlib.Z_SYNC_FLUSH
        else:
            import zstandard

            stream = zstandard.ZstdCompressor(level=self.level).compressobj(size=len(data))
            sync = zstandard.COMPRESSOBJ_FLUSH_BLOCK
        packed: bytes = b""
        if trial:
            packed = stream.compress(data[:trial]) + stream.flush(sync)
            if len(packed) > _SECTOR:
                return None
        packed += stream.compress(data[trial:]) + stream.flush()
        return packed
