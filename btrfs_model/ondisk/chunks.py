# SPDX-License-Identifier: GPL-2.0-only
"""Chunk items: where logical addresses lie on the device.

All addresses in trees are *logical*. A chunk says where a run of them is *physically*: its stripes
name a device and an offset. With one device that is simple:

    profile   stripes   logical address L of a chunk at C
    SINGLE    1         stripe[0].offset + (L - C)
    DUP       2         both stripe[0].offset + (L - C) and stripe[1].offset + (L - C)
    RAID1     2         the same, when both stripes are on the one device
    RAID0     1         as SINGLE (Linux 5.15 and newer make such chunks on one device)

The chunk items are themselves in a tree, whose blocks have logical addresses: the superblock brings
copies of the chunk items of SYSTEM chunks, in which the chunk tree lies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.ondisk.constants import BTRFS_STRIPE_LEN
from btrfs_model.ondisk.layout import Payload, PayloadError
from btrfs_model.ondisk.structs import CHUNK_HEAD, STRIPE, ChunkHead, Stripe

BLOCK_GROUP_FLAGS: Final = {
    1 << 0: "DATA",
    1 << 1: "SYSTEM",
    1 << 2: "METADATA",
    1 << 3: "RAID0",
    1 << 4: "RAID1",
    1 << 5: "DUP",
    1 << 6: "RAID10",
    1 << 7: "RAID5",
    1 << 8: "RAID6",
    1 << 9: "RAID1C3",
    1 << 10: "RAID1C4",
}
"""Names of the bits of block group flags (the type of a chunk)."""

_TYPES: Final = 0x7
# stripes of each profile that can lie on one device
_STRIPES: Final = {0: 1, 1 << 3: 1, 1 << 4: 2, 1 << 5: 2}


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` bytes from `logical` on lie at each of the stripes.

    `logical`, `length`: in bytes.
    `type`: block group flags, see :data:`BLOCK_GROUP_FLAGS`.
    `stripes`: 1 or 2 bytes of the device: where each copy starts.
    """

    logical: int
    length: int
    type: int
    stripes: tuple[int, ...]

    @property
    def end(self) -> int:
        """First logical address after the chunk."""
        return self.logical + self.length


def decode_chunk(payload: Payload, offset: int = 0) -> tuple[ChunkHead, tuple[Stripe, ...]]:
    """Take a chunk item apart, whatever its profile.

    Raises PayloadError: when the payload is too short or the chunk has no stripes.
    """
    head = CHUNK_HEAD.unpack(payload, offset)
    if not head.num_stripes:
        raise PayloadError.bad_value(0)
    at = offset + CHUNK_HEAD.size
    wanted = at + head.num_stripes * STRIPE.size
    if len(payload) < wanted:
        raise PayloadError.too_short(len(payload), wanted)
    return head, tuple(STRIPE.unpack(payload, place) for place in range(at, wanted, STRIPE.size))


def _check_profile(head: ChunkHead, path: str | os.PathLike[str]) -> None:
    profile = head.type & ~_TYPES
    unknown = profile & ~sum(BLOCK_GROUP_FLAGS)
    # at most one profile, and at least one kind of content
    if unknown or profile & (profile - 1) or not head.type & _TYPES:
        raise PayloadError.bad_value(head.type)
    wanted = _STRIPES.get(profile)
    if wanted is None or (profile == 1 << 3 and head.num_stripes > 1):
        name = BLOCK_GROUP_FLAGS[profile]
        raise UnsupportedError(
            f"{os.fspath(path)}: chunks of profile {name} on {head.num_stripes} devices are not "
            "supported"
        )
    if head.num_stripes != wanted:
        raise PayloadError.bad_value(head.num_stripes)


def parse_chunk_item(
    key_offset: int,
    payload: Payload,
    path: str | os.PathLike[str],
    *,
    block: int = 0,
    slot: int = 0,
    offset: int = 0,
    devid: int | None = None,
) -> Chunk:
    """Make a chunk of the payload of its item.

    `key_offset`: offset of the item's key: the logical address.
    `payload`: the item.
    `path`: the image, for errors.
    `block`, `slot`, `offset`: where the item lies (a leaf of the chunk tree, or a byte of the
    image), for errors.
    `devid`: the device that the image is; every stripe must lie on it.
    Raises CorruptImageError: when it breaks the rules that the kernel holds a chunk to
    (``btrfs_check_chunk_valid()``, Linux 6.12).
    Raises UnsupportedError: for profiles that need several devices, or a stripe on another device.
    """
    try:
        head, stripes = decode_chunk(payload)
        _check_profile(head, path)
        for value in (key_offset, head.length):
            if value % 4096:
                raise PayloadError.bad_value(value)
        if not head.length or key_offset + head.length >= 1 << 64:
            raise PayloadError.bad_value(head.length)
        if head.stripe_len != BTRFS_STRIPE_LEN:
            raise PayloadError.bad_value(head.stripe_len)
        for stripe in stripes:
            if stripe.offset + head.length >= 1 << 64:
                raise PayloadError.bad_value(stripe.offset)
    except PayloadError as error:
        raise error.at(path, tree=3, block=block, slot=slot, offset=offset) from None
    other = [s.devid for s in stripes if devid is not None and s.devid != devid]
    if other:
        raise UnsupportedError(
            f"{os.fspath(path)}: chunk {key_offset} lies on device {other[0]}, but the image is "
            f"device {devid}; several devices are not supported"
        )
    return Chunk(key_offset, head.length, head.type, tuple(s.offset for s in stripes))
