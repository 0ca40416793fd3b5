# SPDX-License-Identifier: GPL-2.0-only
"""Checksums of blocks and data, and the hashes that stand in keys.

CRC-32C comes in two forms. As a checksum it is the usual one, with all bits inverted before and
after. As a hash it is bare: no inversion, and a start value (the *seed*) of the caller's choice.
The kernel's ``crc32c(seed, data)`` is the bare one.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import xxhash

from btrfs_model.kernels import ffi, lib, use_python
from btrfs_model.ondisk.constants import CsumType
from btrfs_model.ondisk.layout import Payload

CSUM_SIZES: Final[dict[int, int]] = {
    CsumType.CRC32: 4,
    CsumType.XXHASH: 8,
    CsumType.SHA256: 32,
    CsumType.BLAKE2: 32,
}
"""Bytes of a checksum by its type."""

CSUM_NAMES: Final = {
    CsumType.CRC32: "crc32c",
    CsumType.XXHASH: "xxhash64",
    CsumType.SHA256: "sha256",
    CsumType.BLAKE2: "blake2",
}
"""Names of the types, as ``mkfs.btrfs --csum`` takes them."""

_ONES: Final = 0xFFFFFFFF


def crc32c(seed: int, data: Payload) -> int:
    """CRC-32C without inversions, continued from `seed`."""
    if use_python():
        # the library inverts before and after, so both are undone
        return int(google_crc32c.extend(seed ^ _ONES, bytes(data))) ^ _ONES
    return int(lib.bm_crc32c(seed, ffi.from_buffer(data), len(data)))


def csum(csum_type: int, data: Payload) -> bytes:
    """Checksum of a tree block or data sector as it lies on disk.

    Parameters
    ----------
    csum_type : int
        One of ``enum btrfs_csum_type``.
    data : bytes-like
        What is summed; of a tree block or superblock, that is all from byte 32 on.

    Returns
    -------
    bytes
        4, 8 or 32 bytes.

    Raises
    ------
    KeyError
        When there is no such type.
    """
    size = CSUM_SIZES[csum_type]
    if use_python():
        return _python_csum(csum_type, data)
    digest = ffi.new("uint8_t[32]")
    lib.bm_csum(csum_type, ffi.from_buffer(data), len(data), digest)
    return bytes(ffi.buffer(digest, size))


def _python_csum(csum_type: int, data: Payload) -> bytes:
    if csum_type == CsumType.CRC32:
        return struct.pack("<I", google_crc32c.value(bytes(data)))
    if csum_type == CsumType.XXHASH:
        return struct.pack("<Q", xxhash.xxh64_intdigest(data))
    if csum_type == CsumType.SHA256:
        return hashlib.sha256(data).digest()
    return hashlib.blake2b(data, digest_size=32).digest()


def name_hash(name: bytes) -> int:
    """Key offset of the DIR_ITEM or XATTR_ITEM of `name` (``btrfs_name_hash``)."""
    return crc32c(0xFFFFFFFE, name)


def extref_hash(parent: int, name: bytes) -> int:
    """Key offset of the INODE_EXTREF of `name` in directory `parent` (``btrfs_extref_hash``).

    Only the low 32 bits of the inode number of `parent` enter.
    """
    return crc32c(parent & _ONES, name)


def extent_data_ref_hash(root: int, objectid: int, offset: int) -> int:
    """Key offset of an EXTENT_DATA_REF (``hash_extent_data_ref``), less steps for collisions.

    The high part hashes the tree, the low one inode number and offset; 31 bits of shift, not 32,
    let them overlap by a bit.
    """
    high = crc32c(_ONES, struct.pack("<Q", root))
    low = crc32c(_ONES, struct.pack("<QQ", objectid, offset))
    return (high << 31) ^ low


def name_hashes(
    text: npt.NDArray[np.uint8], sizes: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint64]:
    """Return the hashes of names that follow each other."""
    hashes = np.empty(len(sizes), np.uint64)
    flat = np.ascontiguousarray(text)
    lib.bm_name_hashes(
        ffi.from_buffer("uint8_t[]", flat), ffi.from_buffer("uint32_t[]", sizes), len(sizes),
        ffi.from_buffer("uint64_t[]", hashes),
    )  # fmt: skip
    return hashes
