# SPDX-License-Identifier: GPL-2.0-only
"""What mkfs.btrfs lays where: three chunks; :mod:`.places` has what lies in them.

mkfs.btrfs starts with two small chunks in which it makes the first trees, makes the three chunks
that stay, and moves the trees over. The first two are gone at the end (their place, from 1 MiB on,
is free), but they explain where everything is: each device extent follows the one before.

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
from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_DUP,
    BTRFS_BLOCK_GROUP_METADATA,
    BTRFS_BLOCK_GROUP_SYSTEM,
    BTRFS_STRIPE_LEN,
    CsumType,
)
from btrfs_model.ondisk.hashes import CSUM_NAMES

MIN_DEVICE: Final = 114294784
"""``btrfs_min_dev_size()`` of btrfs-progs 6.2 to 7.3 for these profiles, whatever the nodesize."""

MIN_SINGLE: Final = 47185920
"""The same where the metadata are single."""

FIRST_CHUNKS: Final = ((1 << 20, 4 << 20), (5 << 20, 8 << 20))
"""The chunks that mkfs.btrfs starts with; the free space tree keeps their entries in any case."""

_DATA_START: Final = 13 << 20
_SMALL: Final = 8 << 20
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

    def check(self) -> None:
        """Refuse what mkfs.btrfs refuses.

        Raises ValueError, which names the option.
        """
        release(self.progs)
        if self.metadata not in ("dup", "single"):
            raise ValueError(f"metadata {self.metadata!r} is none of dup, single")
        smallest = MIN_SINGLE if self.is_single else MIN_DEVICE
        if self.size < smallest:
            raise ValueError(f"size {self.size}: the smallest device has {smallest} bytes")
        if self.nodesize not in {4096 << n for n in range(5)}:
            raise ValueError(f"nodesize {self.nodesize} is no power of two from 4096 to 65536")
        if self.csum not in _CSUM_TYPES:
            raise ValueError(f"csum {self.csum!r} is none of {', '.join(sorted(_CSUM_TYPES))}")
        if len(self.label.encode("utf-8", "surrogateescape")) > 255 or "\n" in self.label:
            raise ValueError("a label has at most 255 bytes and no newline")
        if self.block_group_tree and not (self.no_holes and self.free_space_tree):
            raise ValueError("block_group_tree needs no_holes and free_space_tree")
        if self.block_group_tree and self.nodesize == SECTORSIZE and not self.release.rebuilds:
            # one root item more than fit into the one leaf that the root tree is here
            raise ValueError("block_group_tree needs a nodesize of 8192 or more")
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
    def is_single(self) -> bool:
        """Whether there is one copy of metadata."""
        return self.metadata == "single"

    @property
    def csum_type(self) -> int:
        """Number of the checksum, as in the superblock."""
        return int(_CSUM_TYPES[self.csum])

    @property
    def total_bytes(self) -> int:
        """Size of the device in the superblock."""
        return self.size - self.size % SECTORSIZE


def metadata_stripe(total_bytes: int) -> int:
    """Length of the METADATA chunk (``init_alloc_chunk_ctl()`` of btrfs-progs 6.2)."""
    largest = 1 << 30 if total_bytes > 50 << 30 else 256 << 20
    # no chunk is larger than a tenth of the device; both copies count
    most = min(total_bytes // 10, largest)
    stripe = largest
    if stripe > most:
        stripe = most // 2 // BTRFS_STRIPE_LEN * BTRFS_STRIPE_LEN
    return max(stripe, 32 << 20)


def mkfs_chunks(options: Format) -> tuple[Chunk, Chunk, Chunk]:
    """Return the chunks of a fresh filesystem, ascending.

    They are DATA, SYSTEM and METADATA, or SYSTEM, METADATA and DATA where metadata are single.
    """
    if options.is_single:
        (system_at, system_size), (metadata_at, _) = FIRST_CHUNKS
        # no chunk is larger than a tenth of the device
        size = min(_SMALL, options.total_bytes // 10 // BTRFS_STRIPE_LEN * BTRFS_STRIPE_LEN)
        data_at = metadata_at + size
        return (
            Chunk(system_at, system_size, BTRFS_BLOCK_GROUP_SYSTEM, (system_at,)),
            Chunk(metadata_at, size, BTRFS_BLOCK_GROUP_METADATA, (metadata_at,)),
            Chunk(data_at, size, BTRFS_BLOCK_GROUP_DATA, (data_at,)),
        )
    stripe = metadata_stripe(options.total_bytes)
    data = Chunk(_DATA_START, _SMALL, BTRFS_BLOCK_GROUP_DATA, (_DATA_START,))
    system_at = data.stripes[0] + _SMALL
    system = Chunk(
        data.end,
        _SMALL,
        BTRFS_BLOCK_GROUP_SYSTEM | BTRFS_BLOCK_GROUP_DUP,
        (system_at, system_at + _SMALL),
    )
    metadata_at = system_at + 2 * _SMALL
    metadata = Chunk(
        system.end,
        stripe,
        BTRFS_BLOCK_GROUP_METADATA | BTRFS_BLOCK_GROUP_DUP,
        (metadata_at, metadata_at + stripe),
    )
    return data, system, metadata
