# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem that takes more or less of its device (``btrfs_ioctl_resize()``, Linux 6.18)."""

from __future__ import annotations

import errno
import os
import re

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.block_group import dev_extents
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import DEV_ITEM

_SECTOR = 4096
_SMALLEST = 256 << 20
_SUFFIXES = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)([kKmMgGtTpPeE]?)")


def resize(fs: Mount, amount: str) -> None:
    """Do as the ioctl does with its text.

    `amount`: ``[devid:]max``, ``[devid:][+-]SIZE`` or ``cancel``; a size is read as by
    ``memparse()``, so ``0x`` and a zero before it mean something.
    Raises OSError: ENOTCONN for ``cancel``, as nothing runs; EINVAL for a size below 256 MiB or
    none; ENODEV for another device; ERANGE; EFBIG beyond the end of the device; EROFS when a
    transaction was aborted.
    Raises UnsupportedError: where chunks behind the new end have to be relocated.
    """
    if amount == "cancel":
        raise _fail(fs, errno.ENOTCONN)
    before, colon, text = amount.partition(":")
    text = text if colon else before
    device = fs.raw_super.dev_item
    if colon:
        if not re.fullmatch(r"\+?\d+", before, re.ASCII) or not 0 < int(before) <= U64_MAX:
            raise _fail(fs, errno.EINVAL)
        if int(before) != device.devid:
            raise _fail(fs, errno.ENODEV)
    whole = len(fs.memory.buffer)
    size = whole if text == "max" else _new_size(fs, text, device.total_bytes)
    if size < _SMALLEST:
        raise _fail(fs, errno.EINVAL)
    if size > whole:
        raise _fail(fs, errno.EFBIG)
    size -= size % _SECTOR
    if size != device.total_bytes:
        _set_size(fs, size)


def _fail(fs: Mount, number: int) -> OSError:
    return OSError(number, os.strerror(number), fs.path)


def _new_size(fs: Mount, text: str, size: int) -> int:
    """Return the size that is asked for, where the device has one."""
    sign, text = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    found = _NUMBER.fullmatch(text)
    if not found:
        raise _fail(fs, errno.EINVAL)
    digits = found[1]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    number = int(digits, base) << _SUFFIXES[found[2].lower()] & U64_MAX
    if not number or (sign == "-" and number > size):
        raise _fail(fs, errno.EINVAL)
    if sign == "+" and number > U64_MAX - size:
        raise _fail(fs, errno.ERANGE)
    return size + number if sign == "+" else size - number if sign == "-" else number


def _set_size(fs: Mount, size: int) -> None:
    """Grow or shrink (``btrfs_grow_device()``, ``btrfs_shrink_device()``), and commit."""
    raw = fs.raw_super
    end = max(start + length for start, length in dev_extents(fs))
    if size < end:
        raise UnsupportedError(
            f"{fs.path}: chunks reach up to {end} on the device, behind the new end {size}: "
            "the model relocates none"
        )
    start_transaction(fs)
    device = raw.dev_item._replace(total_bytes=size)
    grown = raw.total_bytes + size - raw.dev_item.total_bytes
    fs.raw_super = raw._replace(dev_item=device, total_bytes=grown - grown % _SECTOR)
    # what was found free of the device before
    fs.reservations.chunks = -1
    key = (1, int(ItemType.DEV_ITEM), device.devid)
    fs.writer.update(ObjectId.CHUNK_TREE, key, 0, DEV_ITEM.pack(device))
    commit(fs)
