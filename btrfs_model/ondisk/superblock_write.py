# SPDX-License-Identifier: GPL-2.0-only
"""Superblocks, written: the copies of one superblock, each with its address and checksum."""

from __future__ import annotations

from typing import Protocol

from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.structs import SUPER_BLOCK, RawSuperBlock
from btrfs_model.ondisk.superblock import MAGIC, SUPER_OFFSETS, SUPER_SIZE

_WRITTEN = 1
_ROOT_TREE_DIR = 6
_SECTORSIZE = 4096


class Written(Protocol):
    """A device that is written to, such as a bytearray."""

    def __setitem__(self, place: slice, data: bytes | bytearray, /) -> None:
        """Write bytes to a place."""


def empty_superblock() -> RawSuperBlock:
    """Return a superblock with the fields that are the same in each of one device, others 0."""
    return SUPER_BLOCK.unpack(bytes(SUPER_SIZE))._replace(
        flags=_WRITTEN,
        magic=MAGIC,
        root_dir_objectid=_ROOT_TREE_DIR,
        num_devices=1,
        sectorsize=_SECTORSIZE,
        stripesize=_SECTORSIZE,
    )


def super_offsets(device_size: int) -> list[int]:
    """Bytes at which a device of that size has superblocks (``write_dev_supers()``)."""
    return [offset for offset in SUPER_OFFSETS if offset + SUPER_SIZE < device_size]


def write_superblocks(buffer: Written, raw: RawSuperBlock, most: int | None = None) -> None:
    """Write the copies of a superblock that fit the device.

    `buffer`: the device.
    `raw`: what it says; `bytenr` and `csum` are those of each copy.
    `most`: of the copies, the first ones; all without it.
    """
    for offset in super_offsets(raw.dev_item.total_bytes)[:most]:
        block = SUPER_BLOCK.pack(raw._replace(bytenr=offset))
        digest = csum(raw.csum_type, block[32:])
        buffer[offset : offset + SUPER_SIZE] = digest.ljust(32, b"\0") + block[32:]
