# SPDX-License-Identifier: GPL-2.0-only
"""The property that says how data of an inode are compressed: ``btrfs.compression``."""

from __future__ import annotations

from typing import Final

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.patches import Patch

COMPRESSION_PROPERTY: Final = b"btrfs.compression"
NO_COMPRESSION: Final = (b"no", b"none")
"""Values that forbid compression."""

_COMPRESSION: Final = (b"zlib", b"lzo", b"zstd")
_NEVER_COMPRESSED: Final = InodeFlag.NODATACOW | InodeFlag.NODATASUM


def compression_of(value: bytes) -> bytes:
    """Return the algorithm that a property names, empty for none; it alone is handed down.

    What comes after the name, such as a level, is kept in the attribute and means nothing.
    """
    return next((name for name in _COMPRESSION if value.startswith(name)), b"")


def may_have(fs: Mount, inode: LiveInode, value: bytes | None) -> bool:
    """Whether an inode may have a value of the property (``prop_compression_validate()``)."""
    if not value:
        return True
    if value in NO_COMPRESSION:
        known = Patch.PROP_EMPTY_RESETS in fs.behaviour
    else:
        known = bool(compression_of(value))
    return known and not inode.item.flags & _NEVER_COMPRESSED


def apply_compression(fs: Mount, inode: LiveInode, value: bytes) -> None:
    """Let an inode, and the features of the filesystem, follow (``prop_compression_apply()``).

    `inode`: whose property it is.
    `value`: of the property, empty where it is removed; one that does not exist changes nothing.
    """
    kind = compression_of(value)
    flags = inode.item.flags & ~(InodeFlag.COMPRESS | InodeFlag.NOCOMPRESS)
    resets = Patch.PROP_EMPTY_RESETS in fs.behaviour
    if kind:
        flags |= InodeFlag.COMPRESS
    elif value in NO_COMPRESSION if resets else not value:
        flags |= InodeFlag.NOCOMPRESS
    elif value:
        return
    inode.item.flags = int(flags)
    inode.prop_compress = kind
    fs.add_compression(kind.decode())
