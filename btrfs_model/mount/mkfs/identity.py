# SPDX-License-Identifier: GPL-2.0-only
"""What tells one fresh filesystem from another: uuids and the time."""

from __future__ import annotations

import hashlib
import os
import struct
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from btrfs_model.ondisk.keys import ObjectId

if TYPE_CHECKING:
    from btrfs_model.mount.mkfs.layout import Format

# what a uuid is for, and of which number
_CHUNK_TREE: Final = (0, 0)
_TOP: Final = (1, int(ObjectId.FS_TREE))
_DEVICE: Final = (2, 1)


class Identity(NamedTuple):
    """What tells one fresh filesystem from another.

    `fsid`, `chunk_tree_uuid`, `device_uuid`, `subvolume_uuid`: 16 bytes each.
    `seconds`: when it was made, since 1970.
    """

    fsid: bytes
    chunk_tree_uuid: bytes
    device_uuid: bytes
    subvolume_uuid: bytes
    seconds: int


def choose_identity(options: Format, chance: Sequence[bytes], seconds: int) -> Identity:
    """Return uuids and time of a filesystem that is to be made.

    `chance`: four uuids for those that nobody has chosen.
    `seconds`: now, where ``SOURCE_DATE_EPOCH`` does not say when.

    Raises ValueError: where mkfs.btrfs refuses these variables.
    """
    date = source_date()
    fsid, chunks, device, top = chance
    chosen = Identity(fsid, chunks, device, top, seconds if date is None else date)
    if options.uuid:
        chosen = chosen._replace(fsid=uuid.UUID(options.uuid).bytes)
    if options.release.reproducible and os.environ.get("DETERMINISTIC_SEED") == "1":
        if not options.uuid:
            raise ValueError("DETERMINISTIC_SEED=1 requires -U/--uuid to be specified")
        chosen = chosen._replace(
            chunk_tree_uuid=derived_uuid(chosen.fsid, *_CHUNK_TREE),
            device_uuid=derived_uuid(chosen.fsid, *_DEVICE),
            subvolume_uuid=derived_uuid(chosen.fsid, *_TOP),
        )
    if options.device_uuid:
        chosen = chosen._replace(device_uuid=uuid.UUID(options.device_uuid).bytes)
    return chosen


def source_date() -> int | None:
    """Return what ``SOURCE_DATE_EPOCH`` says.

    Raises ValueError: where it is no number of seconds.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if text and not (text.isascii() and text.isdigit() and int(text) < 1 << 63):
        raise ValueError(f"invalid SOURCE_DATE_EPOCH: '{text}' is not a non-negative integer "
                         "fitting in time_t")  # fmt: skip
    return int(text) if text else None


def derived_uuid(fsid: bytes, kind: int, number: int) -> bytes:
    """Return a uuid that follows from that of the filesystem.

    It is of version 5, named by 12 bytes (``reproducible_uuid_generate()``, btrfs-progs 7.3).
    """
    digest = bytearray(hashlib.sha1(fsid + struct.pack("<IQ", kind, number)).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)
