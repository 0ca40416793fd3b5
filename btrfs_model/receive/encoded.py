# SPDX-License-Identifier: GPL-2.0-only
"""Data that come compressed: ENCODED_WRITE."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from btrfs_model.filesystem.compression import decompress
from btrfs_model.kernels import lib
from btrfs_model.ondisk.structs import PayloadError

if TYPE_CHECKING:
    from btrfs_model.filesystem.writable import WritableFilesystem
    from btrfs_model.stream import Command

__all__ = ["encoded_write"]

_PAGE: Final = 4096
# BTRFS_ENCODED_IO_COMPRESSION_*
_ZLIB, _ZSTD, _LZO_4K, _LZO_64K = 1, 2, 3, 7
_MAX_UNENCODED: Final = 1 << 20


def encoded_write(fs: WritableFilesystem, path: bytes, command: Command) -> None:
    """Decompress and write (``decompress_and_write()``).

    Raises
    ------
    OSError
        EOPNOTSUPP for a compression that there is not, EIO for data that do not decompress.
    """
    names = ("file_offset", "unencoded_file_len", "unencoded_len", "unencoded_offset")
    offset, file_len, length, start = (int(command[name]) for name in names)  # type: ignore[arg-type]
    encoding = command.attributes.get("compression", 0)
    assert isinstance(encoding, int)
    kind, sectorsize = _compression(encoding)
    if kind is None:
        raise _fail(errno.EOPNOTSUPP, path)
    if length > _MAX_UNENCODED or start + file_len > length:
        raise _fail(errno.EINVAL, path)
    data = command["data"]
    assert isinstance(data, memoryview)
    try:
        plain = decompress(kind, data, length, sectorsize)
    except PayloadError:
        raise _fail(errno.EIO, path) from None
    fs.write(path, offset, plain[start : start + file_len])


def _compression(encoding: int) -> tuple[int | None, int]:
    """Return compression and sector size of an encoding."""
    if _LZO_4K <= encoding <= _LZO_64K:
        return lib.BTRFS_COMPRESS_LZO, _PAGE << encoding - _LZO_4K
    known = {_ZLIB: lib.BTRFS_COMPRESS_ZLIB, _ZSTD: lib.BTRFS_COMPRESS_ZSTD}
    return known.get(encoding), _PAGE


def _fail(number: int, path: bytes) -> OSError:
    return OSError(number, os.strerror(number), os.fsdecode(path))
