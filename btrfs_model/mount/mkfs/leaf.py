# SPDX-License-Identifier: GPL-2.0-only
"""Leaves made from scratch, for the trees of a filesystem that is being formatted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.structs import HEADER, ITEM, DiskKey, Header, Item

RawKey = tuple[int, int, int]

_WRITTEN = 1
_MIXED_BACKREF_REV = 1 << 56


class BlockHead(NamedTuple):
    """What stands in the header of a new tree block, besides what its items give."""

    bytenr: int
    generation: int
    owner: int
    fsid: bytes
    chunk_tree_uuid: bytes


def build_leaf(
    nodesize: int, csum_type: int, head: BlockHead, items: Sequence[tuple[RawKey, bytes]]
) -> bytes:
    """Return a leaf with `items`, which ascend by key, checksummed and marked as written.

    Raises ValueError: when the items do not fit.
    """
    headers = bytearray()
    payload = bytearray()
    end = nodesize - HEADER.size
    for key, data in items:
        end -= len(data)
        headers += ITEM.pack(Item(DiskKey(*key), end, len(data)))
        payload[:0] = data
    if len(headers) + len(payload) > nodesize - HEADER.size:
        raise ValueError(f"{len(items)} items do not fit into a leaf of {nodesize} bytes")
    header = Header(bytes(32), head.fsid, head.bytenr, _MIXED_BACKREF_REV | _WRITTEN,
                    head.chunk_tree_uuid, head.generation, head.owner, len(items), 0)  # fmt: skip
    unused = nodesize - HEADER.size - len(headers) - len(payload)
    leaf = HEADER.pack(header) + headers + bytes(unused) + payload
    digest = csum(csum_type, leaf[32:])
    return digest + leaf[len(digest) :]
