# SPDX-License-Identifier: GPL-2.0-only
"""statfs(2) of a mounted filesystem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from btrfs_model.mount.space.block_group import global_reserve
from btrfs_model.mount.space.level import UNLINK_METADATA_UNITS
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_DUP,
    BTRFS_BLOCK_GROUP_METADATA,
)

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem

BLOCK: Final = 4096
"""Bytes of a block of its numbers."""
_STRIPE: Final = 64 << 10
_KEPT_OF_DEVICE: Final = 1 << 20


class StatFs(NamedTuple):
    """What statfs(2) says, blocks of 4 KiB."""

    blocks: int
    free: int
    available: int


def statfs(fs: WritableFilesystem) -> StatFs:
    """Return what a filesystem on one device has (``btrfs_statfs()``, Linux 6.18)."""
    used = data_free = metadata_free = 0
    factor = 1
    for group in fs.writer.groups():
        copies = 2 if group.flags & BTRFS_BLOCK_GROUP_DUP else 1
        used += group.used * copies
        if group.flags & BTRFS_BLOCK_GROUP_DATA:
            factor = copies
            data_free += group.length - group.used
        if group.flags & BTRFS_BLOCK_GROUP_METADATA:
            metadata_free += group.length - group.used
    reserve = global_reserve(
        fs, fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA), UNLINK_METADATA_UNITS
    )
    blocks = fs.image.superblock.total_bytes // factor // BLOCK
    free = blocks - used // factor // BLOCK
    free -= min(free, reserve // BLOCK)
    unallocated = int(fs.devices()["unallocated"].sum())
    room = max(0, unallocated - unallocated % _STRIPE - _KEPT_OF_DEVICE)
    available = (data_free + room // factor) // BLOCK
    if metadata_free < reserve + (4 << 20) and room < 4 << 20:
        available = 0
    return StatFs(blocks, free, available)
