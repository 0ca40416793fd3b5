# SPDX-License-Identifier: GPL-2.0-only
"""Chunk items: where logical addresses lie on the device.

All addresses in trees are *logical*. A chunk says where a run of them is *physically*: its stripes
name a device and an offset. Some profiles have a stripe for each copy of the whole chunk (SINGLE
one, DUP and RAID1 two, RAID1C3 three, RAID1C4 four). Others deal out pieces of 64 KiB, row by row::

             stripes      row 0      row 1      row 2
    RAID0    a b c        0 1 2      3 4 5      6 7 8
    RAID10   aa bb        00 11      22 33      44 55      (sub_stripes copies of each piece)
    RAID5    a b c        0 1 P      P 2 3      5 P 4      (a row begins one stripe further on)
    RAID6    a b c d      0 1 P Q    Q 2 3 P    P Q 4 5

P is the XOR of the row's data, Q a sum by which a second one can be made again (``native/image/
chunks.c``): so RAID5 has a second copy of each piece, and RAID6 as many as it has stripes, one for
each stripe that may be bad besides.

The chunk items are themselves in a tree, whose blocks have logical addresses: the superblock brings
copies of the chunk items of SYSTEM chunks, in which the chunk tree lies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final, NamedTuple

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


def flag_names(flags: int) -> str:
    """Return the names of the bits of block group flags, such as ``DATA|RAID1``."""
    return "|".join(name for bit, name in BLOCK_GROUP_FLAGS.items() if flags & bit)


TYPES: Final = 0x7
"""The bits that say what is in a chunk; those above are its profile."""
_RAID0, _RAID1, DUP, _RAID10, _RAID5, _RAID6, _RAID1C3, _RAID1C4 = (
    1 << bit for bit in range(3, 11)
)


class Profile(NamedTuple):
    """How stripes hold a chunk (``btrfs_raid_array``).

    `name`: of the profile.
    `least`, `most`: number of stripes.
    `copies`: that lie somewhere, in each column of stripes.
    `parity`: stripes of each row that hold parity.
    `tolerated`: devices that may be missing.
    """

    name: str
    least: int
    most: int
    copies: int
    parity: int
    tolerated: int

    @property
    def is_striped(self) -> bool:
        """Whether pieces lie side by side."""
        return self.most == _MANY


# a number of 16 bits
_MANY: Final = 0xFFFF
# more would have the same factor in Q
_MOST_RAID6: Final = 257
PROFILES: Final = {
    0: Profile("SINGLE", 1, 1, 1, 0, 0),
    DUP: Profile("DUP", 2, 2, 2, 0, 0),
    _RAID0: Profile("RAID0", 1, _MANY, 1, 0, 0),
    _RAID1: Profile("RAID1", 2, 2, 2, 0, 1),
    _RAID1C3: Profile("RAID1C3", 3, 3, 3, 0, 2),
    _RAID1C4: Profile("RAID1C4", 4, 4, 4, 0, 3),
    _RAID10: Profile("RAID10", 2, _MANY, 2, 0, 1),
    _RAID5: Profile("RAID5", 2, _MANY, 1, 1, 1),
    _RAID6: Profile("RAID6", 3, _MANY, 1, 2, 2),
}
"""The profiles, by their bit of block group flags."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` bytes from `logical` on, and the stripes that they lie on.

    `logical`, `length`: in bytes.
    `type`: block group flags, see :data:`BLOCK_GROUP_FLAGS`.
    `stripes`: the byte of its device at which each starts.
    `devids`: the device of each; empty when there is but one.
    `sub_stripes`: copies of each piece of RAID10.
    `uuids`: those of the devices.
    `width`: pieces of a row, without parity; 0 when each stripe has all of the chunk.
    `placed`: copies of each byte that lie somewhere.
    `copies`: the same with those that parity makes.
    """

    logical: int
    length: int
    type: int
    stripes: tuple[int, ...]
    devids: tuple[int, ...] = ()
    sub_stripes: int = 1
    uuids: tuple[bytes, ...] = ()
    width: int = field(init=False, default=0)
    placed: int = field(init=False, default=1)
    copies: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        profile, count = self.profile, len(self.stripes)
        width = (count - profile.parity) // profile.copies if profile.is_striped else 0
        copies = (1, 2, count)[profile.parity] if profile.parity else profile.copies
        # one stripe, or one pair, needs no dealing out
        object.__setattr__(self, "width", width if width > 1 or profile.parity else 0)
        object.__setattr__(self, "placed", profile.copies)
        object.__setattr__(self, "copies", copies)

    @property
    def profile(self) -> Profile:
        """How the stripes hold the chunk."""
        return PROFILES[self.type & ~TYPES]

    @property
    def stripe_length(self) -> int:
        """Bytes of the chunk on each stripe (``btrfs_calc_stripe_length()``)."""
        return self.length // (self.width or 1)

    def locate(self, within: int, copy: int) -> tuple[int, int, int]:
        """Find where a copy of a byte lies (``btrfs_map_block()``, Linux 6.12).

        `within`: byte of the chunk.
        `copy`: less than `placed`.
        Returns `stripe`: its number.
        Returns `offset`: byte of the stripe.
        Returns `contiguous`: bytes that follow there.
        """
        if not self.width:
            return copy, within, self.length - within
        number, offset = divmod(within, BTRFS_STRIPE_LEN)
        row, column = divmod(number, self.width)
        stripe = column * self.placed + copy
        if self.profile.parity:
            stripe = (row + column) % len(self.stripes)
        left = min(BTRFS_STRIPE_LEN - offset, self.length - within)
        return stripe, row * BTRFS_STRIPE_LEN + offset, left

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


def _check_profile(head: ChunkHead) -> None:
    profile = PROFILES.get(head.type & ~TYPES)
    # one known profile at most, and at least one kind of content
    if profile is None or not head.type & TYPES:
        raise PayloadError.bad_value(head.type)
    most = _MOST_RAID6 if profile.parity == 2 else profile.most
    if not profile.least <= head.num_stripes <= most or head.num_stripes % profile.copies:
        raise PayloadError.bad_value(head.num_stripes)
    if profile.name == "RAID10" and head.sub_stripes != profile.copies:
        raise PayloadError.bad_value(head.sub_stripes)


def parse_chunk_item(
    key_offset: int,
    payload: Payload,
    path: str | os.PathLike[str],
    *,
    block: int = 0,
    slot: int = 0,
    offset: int = 0,
) -> Chunk:
    """Make a chunk of the payload of its item.

    `key_offset`: offset of the item's key: the logical address.
    `payload`: the item.
    `path`: the image, for errors.
    `block`, `slot`, `offset`: where the item lies (a leaf of the chunk tree, or a byte of the
    image), for errors.
    Raises CorruptImageError: when it breaks the rules that the kernel holds a chunk to
    (``btrfs_check_chunk_valid()``, Linux 6.12).
    """
    try:
        head, stripes = decode_chunk(payload)
        _check_profile(head)
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
    return Chunk(
        key_offset,
        head.length,
        head.type,
        tuple(stripe.offset for stripe in stripes),
        tuple(stripe.devid for stripe in stripes),
        head.sub_stripes,
        tuple(stripe.dev_uuid for stripe in stripes),
    )
