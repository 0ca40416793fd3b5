# SPDX-License-Identifier: GPL-2.0-only
"""One tree block in memory: its header, items and pointers, and the bytes that nobody uses.

Items are moved as btrfs-progs moves them, so what lies between them is the same, too.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np

from btrfs_model.ondisk.structs import HEADER, ITEM, KEY_PTR

Key = tuple[int, int, int]
"""Number, type and offset of an item."""

START: Final = HEADER.size
"""Where items, pointers and the space that offsets of items count from begin."""
ITEM_SIZE: Final = ITEM.size
POINTER_SIZE: Final = KEY_PTR.size

_KEY: Final = struct.Struct("<QBQ")
_POINTER: Final = struct.Struct("<QQ")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_PLACE: Final = struct.Struct("<II")
_ITEMS: Final = np.dtype([("key", "V17"), ("at", "<u4"), ("size", "<u4")])
_BYTENR, _FLAGS, _GENERATION, _OWNER, _NRITEMS, _LEVEL = 48, 56, 80, 88, 96, 100
_WRITTEN: Final = 1
_MIXED_BACKREF_REV: Final = 1 << 56


class Uuids(NamedTuple):
    """What stands in the header of each block: `fsid`, `chunk_tree_uuid`."""

    fsid: bytes
    chunk_tree_uuid: bytes


class Block:
    """A tree block.

    Parameters
    ----------
    start : int
        Its address.
    size : int
        Bytes.
    """

    __slots__ = ("_at", "_size", "data", "start")

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.data = bytearray(size)
        items: Any = np.frombuffer(self.data, _ITEMS, (size - START) // ITEM_SIZE, START)
        self._at: Any = items["at"]
        self._size: Any = items["size"]

    # --------------------------------------------------------------------------- the header --

    def begin(self, uuids: Uuids, generation: int, owner: int, level: int) -> None:
        """Write a header; what lies behind it stays."""
        self.data[:START] = bytes(START)
        self.data[32:48] = uuids.fsid
        self.data[64:80] = uuids.chunk_tree_uuid
        self.own(uuids, generation, owner)
        self.level = level

    def own(self, uuids: Uuids, generation: int, owner: int) -> None:
        """Make the header of a copy that of a block of its own."""
        _U64.pack_into(self.data, _BYTENR, self.start)
        _U64.pack_into(self.data, _FLAGS, _MIXED_BACKREF_REV)
        _U64.pack_into(self.data, _GENERATION, generation)
        _U64.pack_into(self.data, _OWNER, owner)
        self.data[32:48] = uuids.fsid

    @property
    def nritems(self) -> int:
        """Number of items or pointers."""
        found: int = _U32.unpack_from(self.data, _NRITEMS)[0]
        return found

    @nritems.setter
    def nritems(self, number: int) -> None:
        _U32.pack_into(self.data, _NRITEMS, number)

    @property
    def level(self) -> int:
        """Level in its tree; a leaf has 0."""
        return self.data[_LEVEL]

    @level.setter
    def level(self, level: int) -> None:
        self.data[_LEVEL] = level

    @property
    def generation(self) -> int:
        """Transaction that it was made in."""
        found: int = _U64.unpack_from(self.data, _GENERATION)[0]
        return found

    @property
    def written(self) -> bool:
        """Whether it is on the device."""
        return bool(self.data[_FLAGS] & _WRITTEN)

    def mark_written(self) -> None:
        """Say in the header that it is on the device."""
        self.data[_FLAGS] |= _WRITTEN

    # ---------------------------------------------------------------------- items, pointers --

    def key(self, slot: int) -> Key:
        """Return the key of an item or pointer; behind the last one what lies there."""
        unit = POINTER_SIZE if self.level else ITEM_SIZE
        number, kind, offset = _KEY.unpack_from(self.data, START + slot * unit)
        return number, kind, offset

    def set_key(self, slot: int, key: Key) -> None:
        """Set the key of an item or pointer."""
        unit = POINTER_SIZE if self.level else ITEM_SIZE
        _KEY.pack_into(self.data, START + slot * unit, *key)

    def find(self, key: Key) -> tuple[bool, int]:
        """Return whether a key is there, and its slot or that of the next one."""
        low, high = 0, self.nritems
        while low < high:
            middle = (low + high) // 2
            found = self.key(middle)
            if found == key:
                return True, middle
            if found < key:
                low = middle + 1
            else:
                high = middle
        return False, low

    def move(self, to: int, start: int, length: int) -> None:
        """Move bytes; places count from the end of the header."""
        self.copy(self, to, start, length)

    def copy(self, source: Block, to: int, start: int, length: int) -> None:
        """Copy bytes of a block; places count from the end of the header."""
        to, start = START + to, START + start
        self.data[to : to + length] = source.data[start : start + length]

    # ------------------------------------------------------------------------------ a leaf --

    def at(self, slot: int) -> int:
        """Return where the data of an item begin, from the end of the header."""
        return int(self._at[slot])

    def size(self, slot: int) -> int:
        """Return how many bytes of data an item has."""
        return int(self._size[slot])

    def end(self, slot: int) -> int:
        """Return where the data of an item end."""
        return self.at(slot) + self.size(slot)

    def data_end(self) -> int:
        """Return where the data of the last item begin: all before is free."""
        count = self.nritems
        return self.at(count - 1) if count else len(self.data) - START

    def place(self, slot: int, at: int, size: int) -> None:
        """Set where the data of an item are."""
        _PLACE.pack_into(self.data, START + slot * ITEM_SIZE + _KEY.size, at, size)

    def shift(self, first: int, last: int, amount: int) -> None:
        """Say of items that their data lie further on."""
        if first < last:
            self._at[first:last] += np.uint32(amount & 0xFFFFFFFF)

    def arrange(self) -> None:
        """Say of all items that their data lie side by side at the end."""
        count = self.nritems
        ends = len(self.data) - START - np.cumsum(self._size[:count], dtype=np.int64)
        self._at[:count] = ends.astype(np.uint32)

    def used(self, start: int, count: int) -> int:
        """Return how much some items take (``leaf_space_used()``)."""
        if not count:
            return 0
        last = min(self.nritems, start + count) - 1
        return self.end(start) - self.at(last) + count * ITEM_SIZE

    def free(self) -> int:
        """Return how much is free in a leaf (``btrfs_leaf_free_space()``)."""
        return len(self.data) - START - self.used(0, self.nritems)

    def read(self, slot: int) -> bytes:
        """Return the data of an item."""
        at = START + self.at(slot)
        return bytes(self.data[at : at + self.size(slot)])

    def write(self, slot: int, data: bytes, at: int = 0) -> None:
        """Write data of an item, from a byte of it on."""
        at += START + self.at(slot)
        self.data[at : at + len(data)] = data

    # ------------------------------------------------------------------------------ a node --

    def pointer(self, slot: int) -> int:
        """Return the address that a pointer leads to."""
        found: int = _U64.unpack_from(self.data, START + slot * POINTER_SIZE + _KEY.size)[0]
        return found

    def set_pointer(self, slot: int, bytenr: int, generation: int) -> None:
        """Set where a pointer leads to."""
        _POINTER.pack_into(self.data, START + slot * POINTER_SIZE + _KEY.size, bytenr, generation)
