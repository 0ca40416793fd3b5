# SPDX-License-Identifier: GPL-2.0-only
"""Names whose hashes collide: four bytes at the end of a name bring its CRC to any value."""

from btrfs_model.ondisk.hashes import crc32c

_MASK = 2**32 - 1
# what a byte does to a CRC of 0, and which byte leaves which top byte behind
_TABLE = [crc32c(0, bytes([byte])) for byte in range(256)]
_BY_TOP = {entry >> 24: byte for byte, entry in enumerate(_TABLE)}


def _tail(state: int, target: int) -> bytes:
    """Four bytes that lead from one CRC to another."""
    steps = []
    for _ in range(4):
        step = _BY_TOP[target >> 24]
        steps.append(step)
        target = (target ^ _TABLE[step]) << 8 & _MASK
    tail = []
    for step in reversed(steps):
        tail.append(state & 255 ^ step)
        state = state >> 8 ^ _TABLE[step]
    return bytes(tail)


def names_of_hash(
    target: int, count: int, prefix: bytes = b"", seed: int = 0xFFFFFFFE
) -> list[str]:
    """Return names with one hash that are ASCII and have no slash, all of one length."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        number += 1
        head = prefix + b"%08d" % number
        name = head + _tail(crc32c(seed, head), target)
        if all(32 < byte < 127 and byte != ord("/") for byte in name[-4:]):
            found.append(name.decode())
    return found
