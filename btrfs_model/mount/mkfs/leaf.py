# SPDX-License-Identifier: GPL-2.0-only
"""Leaves and nodes made from scratch, for the trees of a filesystem that is being formatted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.structs import HEADER, ITEM, KEY_PTR, DiskKey, Header, Item, KeyPtr

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
    unused = nodesize - HEADER.size - len(headers) - len(payload)
    body = bytes(headers) + bytes(unused) + bytes(payload)
    return _block(csum_type, head, body, len(items), 0)


def build_node(
    nodesize: int, csum_type: int, head: BlockHead, children: Sequence[tuple[RawKey, int, int]]
) -> bytes:
    """Return a node of level 1 with `children`: first key, address and generation of each."""
    pointers = b"".join(
        KEY_PTR.pack(KeyPtr(DiskKey(*key), bytenr, generation))
        for key, bytenr, generation in children
    )
    body = pointers.ljust(nodesize - HEADER.size, b"\0")
    return _block(csum_type, head, body, len(children), 1)


def _block(csum_type: int, head: BlockHead, body: bytes, items: int, level: int) -> bytes:
    header = Header(bytes(32), head.fsid, head.bytenr, _MIXED_BACKREF_REV | _WRITTEN,
                    head.chunk_tree_uuid, head.generation, head.owner, items, level)  # fmt: skip
    block = HEADER.pack(header) + body
    digest = csum(csum_type, block[32:])
    return digest + block[len(digest) :]
