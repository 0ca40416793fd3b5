# SPDX-License-Identifier: GPL-2.0-only
"""What mkfs.btrfs lays where: three chunks, and in them a leaf for each tree.

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
from typing import Final, NamedTuple

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
from btrfs_model.ondisk.keys import ObjectId

MIN_DEVICE: Final = 114294784
"""``btrfs_min_dev_size()`` of btrfs-progs 6.2 for these profiles, whatever the nodesize."""

MIN_SINGLE: Final = 47185920
"""The same where the metadata are single."""

FIRST_CHUNKS: Final = ((1 << 20, 4 << 20), (5 << 20, 8 << 20))
"""The chunks that mkfs.btrfs starts with; the free space tree keeps their entries in any case."""

_DATA_START: Final = 13 << 20
_SMALL: Final = 8 << 20
_CSUM_TYPES: Final = {name: number for number, name in CSUM_NAMES.items()} | {
    "xxhash": CsumType.XXHASH
}
_SECTORSIZE: Final = 4096


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
    last needs the two before it and a nodesize of at least 8192.
    `uuid`: what users know the filesystem by; one by chance without it.
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
    block_group_tree: bool = False
    uuid: str = ""

    def check(self) -> None:
        """Refuse what mkfs.btrfs refuses.

        Raises ValueError, which names the option.
        """
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
        if self.block_group_tree and self.nodesize == _SECTORSIZE:
            # one root item more than fit into the one leaf that the root tree is here
            raise ValueError("block_group_tree needs a nodesize of 8192 or more")
        if self.uuid and not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
                                          self.uuid):  # fmt: skip
            raise ValueError(f"uuid {self.uuid!r} is none")

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
        return self.size - self.size % _SECTORSIZE


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


class Place(NamedTuple):
    """Where the root block of a tree is, and the transaction of mkfs.btrfs that wrote it."""

    bytenr: int
    generation: int


# Tree, block of the METADATA chunk, generation. The blocks between were freed along the way.
_FIRST = [(ObjectId.EXTENT_TREE, 0, 6), (ObjectId.FS_TREE, 1, 5), (ObjectId.CSUM_TREE, 5, 5)]
_LAST = [(ObjectId.DATA_RELOC_TREE, 5), (ObjectId.UUID_TREE, 5), (ObjectId.DEV_TREE, 6)]


def mkfs_places(options: Format) -> dict[int, Place]:
    """Return where each tree of a fresh filesystem is, by the tree's id."""
    if options.is_single:
        return _single_places(options)
    _, system, metadata = mkfs_chunks(options)
    blocks = list(_FIRST)
    block = 7 if options.free_space_tree else 6
    last = [*_LAST, (ObjectId.FREE_SPACE_TREE, 6)] if options.free_space_tree else _LAST
    for tree, generation in [*last, (ObjectId.ROOT_TREE, 6)]:
        blocks.append((tree, block, generation))
        block += 1
    if options.block_group_tree:
        # btrfs-progs 6.2 cannot make one: it gets the block that is free here
        blocks.append((ObjectId.BLOCK_GROUP_TREE, 6, 6))
    places = {
        int(tree): Place(metadata.logical + block * options.nodesize, generation)
        for tree, block, generation in blocks
    }
    places[int(ObjectId.CHUNK_TREE)] = Place(system.logical + options.nodesize, 6)
    return dict(sorted(places.items()))


# The same where trees need not be moved; first with a free space tree, then without.
_SINGLE = {
    ObjectId.ROOT_TREE: (0, 0, 6),
    ObjectId.EXTENT_TREE: (1, 1, 6),
    ObjectId.FS_TREE: (2, 2, 5),
    ObjectId.DEV_TREE: (4, 6, 5),
    ObjectId.CSUM_TREE: (9, 8, 5),
    ObjectId.DATA_RELOC_TREE: (11, 9, 5),
    ObjectId.UUID_TREE: (12, 10, 5),
}
_SINGLE_FREE_SPACE = 5
_SINGLE_SPARE = 3


def _single_places(options: Format) -> dict[int, Place]:
    system, metadata, _ = mkfs_chunks(options)
    column = 0 if options.free_space_tree else 1
    blocks = {tree: (row[column], row[2]) for tree, row in _SINGLE.items()}
    if options.free_space_tree:
        blocks[ObjectId.FREE_SPACE_TREE] = (_SINGLE_FREE_SPACE, 6)
    if options.block_group_tree:
        blocks[ObjectId.BLOCK_GROUP_TREE] = (_SINGLE_SPARE, 6)
    places = {
        int(tree): Place(metadata.logical + block * options.nodesize, generation)
        for tree, (block, generation) in blocks.items()
    }
    places[int(ObjectId.CHUNK_TREE)] = Place(system.logical + options.nodesize, 5)
    return dict(sorted(places.items()))
