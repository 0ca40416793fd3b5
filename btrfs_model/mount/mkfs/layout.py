# SPDX-License-Identifier: GPL-2.0-only
"""What one asks of mkfs.btrfs: sizes, profiles, features.

mkfs.btrfs starts with one small chunk in which it makes the first trees, then a second, makes the
chunks that stay, and moves the trees over. The first are gone at the end (their place, from 1 MiB
on, is free), but they explain where everything is: each device extent follows the one before.

    1 MiB       free, once the first SYSTEM and METADATA chunk
    13 MiB      DATA, single            8 MiB
    21 MiB      SYSTEM, DUP             2 * 8 MiB
    37 MiB      METADATA, DUP           2 * 32 MiB to 1 GiB, by the size of the device

With ``-m single`` the first two are what is wanted, and stay; then nothing follows DATA:

    1 MiB       SYSTEM, single          4 MiB
    5 MiB       METADATA, single        8 MiB
    13 MiB      DATA, single            8 MiB

On a device of less than 80 MiB the last two have a tenth of it each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from btrfs_model.mount.mkfs.releases import Release, release
from btrfs_model.ondisk.constants import CsumType
from btrfs_model.ondisk.hashes import CSUM_NAMES

FIRST_CHUNKS: Final = ((1 << 20, 4 << 20), (5 << 20, 8 << 20))
"""The chunks that mkfs.btrfs starts with; the free space tree keeps their entries in any case."""

_MIB: Final = 1 << 20
_PROFILES: Final = ("dup", "single")
_CSUM_TYPES: Final = {name: number for number, name in CSUM_NAMES.items()} | {
    "xxhash": CsumType.XXHASH
}
SECTORSIZE: Final = 4096
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Format:
    """What to format a device as: the options of mkfs.btrfs.

    `size`: of the device, in bytes; rounded down to sectors.
    `nodesize`: 4096 to 65536, a power of two.
    `csum`: ``crc32c``, ``xxhash``, ``sha256`` or ``blake2``.
    `label`: at most 255 bytes of UTF-8.
    `metadata`: how SYSTEM and METADATA chunks are kept: ``dup``, or ``single``, which is ``-m
    single -d single``.
    `extref`, `skinny_metadata`, `no_holes`, `free_space_tree`, `block_group_tree`: features; the
    last needs the two before it. Without a word of it, it is there where the release makes one.
    `uuid`: what users know the filesystem by; one by chance without it.
    `device_uuid`: that of the device, likewise.
    `progs`: the release of btrfs-progs whose mkfs.btrfs it is: ``6.2``, ``6.14``, ``6.19`` or
    ``7.3``.
    `data`: how DATA chunks are kept: ``single``, or ``dup``.
    `mixed`: whether chunks have data and metadata, both kept in the same way.
    """

    size: int
    nodesize: int = 16384
    csum: str = "crc32c"
    label: str = ""
    metadata: str = "dup"
    extref: bool = True
    skinny_metadata: bool = True
    no_holes: bool = True
    free_space_tree: bool = True
    block_group_tree: bool | None = None
    uuid: str = ""
    device_uuid: str = ""
    progs: str = "6.2"
    data: str = "single"
    mixed: bool = False

    def check(self) -> None:
        """Refuse what mkfs.btrfs refuses.

        Raises ValueError, which names the option.
        """
        release(self.progs)
        for name, profile in (("metadata", self.metadata), ("data", self.data)):
            if profile not in _PROFILES:
                raise ValueError(f"{name} {profile!r} is none of dup, single")
        if self.mixed and self.metadata != self.data:
            raise ValueError("mixed: data and metadata are kept in the same way")
        if self.mixed and self.nodesize != SECTORSIZE:
            raise ValueError(f"mixed: nodesize {self.nodesize} is not {SECTORSIZE}")
        if self.size < self.smallest:
            raise ValueError(f"size {self.size}: the smallest device has {self.smallest} bytes")
        if self.nodesize not in {4096 << n for n in range(5)}:
            raise ValueError(f"nodesize {self.nodesize} is no power of two from 4096 to 65536")
        if self.csum not in _CSUM_TYPES:
            raise ValueError(f"csum {self.csum!r} is none of {', '.join(sorted(_CSUM_TYPES))}")
        if len(self.label.encode("utf-8", "surrogateescape")) > 255 or "\n" in self.label:
            raise ValueError("a label has at most 255 bytes and no newline")
        if self.block_group_tree and not (self.no_holes and self.free_space_tree):
            raise ValueError("block_group_tree needs no_holes and free_space_tree")
        for name, text in (("uuid", self.uuid), ("device_uuid", self.device_uuid)):
            if text and not _UUID.fullmatch(text):
                raise ValueError(f"{name} {text!r} is none")

    @property
    def release(self) -> Release:
        """What the release of btrfs-progs does."""
        return release(self.progs)

    @property
    def has_block_group_tree(self) -> bool:
        """Whether block groups have a tree of their own."""
        if self.block_group_tree is None:
            return self.release.block_group_tree and self.no_holes and self.free_space_tree
        return self.block_group_tree

    @property
    def smallest(self) -> int:
        """Size of the smallest device, bytes (``btrfs_min_dev_size()``)."""
        if self.mixed:
            return 2 * (4 * _MIB + (self.nodesize << 10))
        metadata = 80 if self.metadata == "dup" else 16
        data = 128 if self.data == "dup" else 8
        return (21 + metadata + data) * _MIB

    @property
    def csum_type(self) -> int:
        """Number of the checksum, as in the superblock."""
        return int(_CSUM_TYPES[self.csum])

    @property
    def total_bytes(self) -> int:
        """Size of the device in the superblock."""
        return self.size - self.size % SECTORSIZE
