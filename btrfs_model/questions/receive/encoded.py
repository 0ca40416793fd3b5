# SPDX-License-Identifier: GPL-2.0-only
"""Data that come compressed: ENCODED_WRITE."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from btrfs_model.mount.files.encoded import Encoded
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.ondisk.constants import Compression
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.volume.compression import decompress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.stream.reader import Value

    Values = Mapping[str, Value]
    """Attributes of a command, by name."""

_PAGE: Final = 4096
# BTRFS_ENCODED_IO_COMPRESSION_*
_ZLIB, _ZSTD, _LZO_4K, _LZO_64K = 1, 2, 3, 7
_MAX_UNENCODED: Final = 1 << 20
_FALL_BACK: Final = (errno.ENOSPC, errno.ENOTTY, errno.EINVAL)


def encoded_write(fs: WritableFilesystem, path: bytes, values: Values) -> None:
    """BTRFS_IOC_ENCODED_WRITE; where the kernel refuses, decompress and write.

    ``process_encoded_write()``, ``decompress_and_write()``

    Raises OSError: EOPNOTSUPP for a compression that does not exist, EIO for data that do not
    decompress.
    """
    names = ("file_offset", "unencoded_file_len", "unencoded_len", "unencoded_offset")
    offset, file_len, length, start = (int(values[name]) for name in names)  # type: ignore[arg-type]
    encoding = values.get("compression", 0)
    assert isinstance(encoding, int)
    kind, sectorsize = _compression(encoding)
    if kind is None:
        raise fail(errno.EOPNOTSUPP, path)
    if length > _MAX_UNENCODED or start + file_len > length:
        raise fail(errno.EINVAL, path)
    data = values["data"]
    assert isinstance(data, memoryview)
    encoded = Encoded(kind, sectorsize or fs.sectorsize, length, start, file_len, bytes(data))
    try:
        fs.encoded_write(path, offset, encoded)
    except OSError as error:
        if error.errno not in _FALL_BACK:
            raise
    else:
        return
    try:
        plain = decompress(kind, data, length, sectorsize or _PAGE)
    except PayloadError:
        raise fail(errno.EIO, path) from None
    fs.write(path, offset, plain[start : start + file_len])


def _compression(encoding: int) -> tuple[int | None, int]:
    """Return compression and sector size of an encoding, 0 where that does not matter."""
    if _LZO_4K <= encoding <= _LZO_64K:
        return Compression.LZO, _PAGE << encoding - _LZO_4K
    known = {_ZLIB: Compression.ZLIB, _ZSTD: Compression.ZSTD}
    return known.get(encoding), 0
