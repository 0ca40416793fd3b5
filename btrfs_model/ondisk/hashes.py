# SPDX-License-Identifier: GPL-2.0-only
"""Checksums of blocks and data, and the hashes that stand in keys.

CRC-32C comes in two forms. As a checksum it is the usual one, with all bits inverted before and
after. As a hash it is bare: no inversion, and a start value (the *seed*) of the caller's choice.
The kernel's ``crc32c(seed, data)`` is the bare one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import google_crc32c
import xxhash

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
    # the library inverts before and after, so both are undone
    return int(google_crc32c.extend(seed ^ _ONES, bytes(data))) ^ _ONES


def csum(csum_type: int, data: Payload) -> bytes:
    """Checksum of a tree block or data sector as it lies on disk.

    `csum_type`: one of ``enum btrfs_csum_type``.
    `data`: what is summed; of a tree block or superblock, that is all from byte 32 on.
    Returns 4, 8 or 32 bytes.
    Raises KeyError: when there is no such type.
    """
    return _SUMS[csum_type](data)


def _sha256(data: Payload) -> bytes:
    import hashlib  # few images need it, and it takes long

    return hashlib.sha256(data).digest()


def _blake2(data: Payload) -> bytes:
    import hashlib

    return hashlib.blake2b(data, digest_size=32).digest()


_SUMS: Final[dict[int, Callable[[Payload], bytes]]] = {
    CsumType.CRC32: lambda data: struct.pack("<I", google_crc32c.value(bytes(data))),
    CsumType.XXHASH: lambda data: struct.pack("<Q", xxhash.xxh64_intdigest(data)),
    CsumType.SHA256: _sha256,
    CsumType.BLAKE2: _blake2,
}


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
