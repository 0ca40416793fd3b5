# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem that takes more or less of its device (``btrfs_ioctl_resize()``, Linux 6.18)."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from btrfs_model.mount.mount import Mount
from btrfs_model.mount.relocation.group import may_alloc_data_chunk, relocate_chunk
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.ondisk.chunks import Chunk
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
    Raises OSError: ENOSPC where the chunks behind the new end have no room before it.
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
    if size < fs.raw_super.dev_item.total_bytes:
        _empty_behind(fs, size)
    start_transaction(fs)
    raw = fs.raw_super
    device = raw.dev_item._replace(total_bytes=size)
    grown = raw.total_bytes + size - raw.dev_item.total_bytes
    fs.raw_super = raw._replace(dev_item=device, total_bytes=grown - grown % _SECTOR)
    # what was found free of the device before
    fs.reservations.chunks = -1
    key = (1, int(ItemType.DEV_ITEM), device.devid)
    fs.writer.update(ObjectId.CHUNK_TREE, key, 0, DEV_ITEM.pack(device))
    commit(fs)


def _empty_behind(fs: Mount, size: int) -> None:
    """Move the chunks that lie behind the new end, those of the device's end first.

    What has no room is tried once more when all others have moved.
    Raises OSError: ENOSPC.
    """
    fs.device_end = size
    try:
        for _ in range(2):
            failed = [chunk for chunk in _behind(fs, size) if not _moves(fs, chunk)]
            if not failed:
                return
        raise _fail(fs, errno.ENOSPC)
    finally:
        fs.device_end = None


def _behind(fs: Mount, size: int) -> Iterator[Chunk]:
    """Go through the chunks with a stripe behind `size`, from the last on the device."""
    stripes = sorted(
        ((at, chunk) for chunk in fs.image.chunks for at in chunk.stripes
         if at + chunk.length > size), key=lambda one: -one[0],
    )  # fmt: skip
    for _, chunk in stripes:
        if chunk in fs.image.chunks:
            yield chunk


def _moves(fs: Mount, chunk: Chunk) -> bool:
    """Move a chunk; whether there was room."""
    try:
        may_alloc_data_chunk(fs, chunk)
        relocate_chunk(fs, chunk.logical)
    except OSError as error:
        if error.errno != errno.ENOSPC or fs.aborted:
            raise
        return False
    return True
