# SPDX-License-Identifier: GPL-2.0-only
"""Chunks, written: their item in the chunk tree, their pieces in the device tree."""

from __future__ import annotations

from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import BTRFS_STRIPE_LEN
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.ondisk.structs import (
    CHUNK_HEAD,
    DEV_EXTENT,
    STRIPE,
    ChunkHead,
    DevExtent,
    Stripe,
)

CHUNK_OBJECTID = 256
"""``BTRFS_FIRST_CHUNK_TREE_OBJECTID``: in the keys of chunks, in device extents, block groups."""

_SECTORSIZE = 4096


def chunk_item(chunk: Chunk, devid: int, device_uuid: bytes, *, temporary: bool = False) -> bytes:
    """Return the payload of the CHUNK_ITEM of a chunk, all on one device.

    Parameters
    ----------
    chunk : Chunk
        The chunk.
    devid : int
        Number of the device.
    device_uuid : bytes
        Its uuid.
    temporary : bool
        Whether it is the chunk that mkfs.btrfs starts with (``make_btrfs()``), which is filled in
        another way.
    """
    unit = _SECTORSIZE if temporary else BTRFS_STRIPE_LEN
    head = ChunkHead(chunk.length, ObjectId.EXTENT_TREE, BTRFS_STRIPE_LEN, chunk.type, unit,
                     unit, _SECTORSIZE, len(chunk.stripes), not temporary)  # fmt: skip
    stripes = [STRIPE.pack(Stripe(devid, offset, device_uuid)) for offset in chunk.stripes]
    return CHUNK_HEAD.pack(head) + b"".join(stripes)


def dev_extent(chunk: Chunk, chunk_tree_uuid: bytes) -> bytes:
    """Return the payload of the DEV_EXTENT of a stripe of a chunk."""
    return DEV_EXTENT.pack(
        DevExtent(ObjectId.CHUNK_TREE, CHUNK_OBJECTID, chunk.logical, chunk.length, chunk_tree_uuid)
    )
