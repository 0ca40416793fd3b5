# SPDX-License-Identifier: GPL-2.0-only
"""Numbers of the on-disk format that are neither keys nor structures (``btrfs_tree.h``).

``native/ondisk.h`` says the same to the C kernels; ``tests/twins/test_ondisk.py`` holds the two
together.
"""

from __future__ import annotations

import stat
from enum import IntEnum, IntFlag
from typing import Final

BTRFS_CSUM_SIZE: Final = 32
BTRFS_HEADER_SIZE: Final = 101
BTRFS_ITEM_SIZE: Final = 25
BTRFS_KEY_PTR_SIZE: Final = 33
BTRFS_MAX_LEVEL: Final = 8
BTRFS_FILE_EXTENT_INLINE_DATA_START: Final = 21
BTRFS_STRIPE_LEN: Final = 1 << 16
BTRFS_BLOCK_GROUP_DATA: Final = 1 << 0
BTRFS_BLOCK_GROUP_SYSTEM: Final = 1 << 1
BTRFS_BLOCK_GROUP_METADATA: Final = 1 << 2
BTRFS_BLOCK_GROUP_RAID1: Final = 1 << 4
BTRFS_BLOCK_GROUP_DUP: Final = 1 << 5


class FileType(IntEnum):
    """What an entry of a directory is (``BTRFS_FT_...``)."""

    UNKNOWN = 0
    REG_FILE = 1
    DIR = 2
    CHRDEV = 3
    BLKDEV = 4
    FIFO = 5
    SOCK = 6
    SYMLINK = 7
    XATTR = 8


class FileExtentType(IntEnum):
    """What a file extent is (``BTRFS_FILE_EXTENT_...``)."""

    INLINE = 0
    REG = 1
    PREALLOC = 2


class Compression(IntEnum):
    """How a file extent is compressed (``BTRFS_COMPRESS_...``)."""

    NONE = 0
    ZLIB = 1
    LZO = 2
    ZSTD = 3


class CsumType(IntEnum):
    """Which checksum a filesystem has (``BTRFS_CSUM_TYPE_...``)."""

    CRC32 = 0
    XXHASH = 1
    SHA256 = 2
    BLAKE2 = 3


class ExtentFlag(IntFlag):
    """Flags of an extent item (``BTRFS_EXTENT_FLAG_...``, ``BTRFS_BLOCK_FLAG_FULL_BACKREF``)."""

    DATA = 1
    TREE_BLOCK = 2
    FULL_BACKREF = 256


class InodeFlag(IntFlag):
    """``inode_item.flags``, as the kernel names them less ``BTRFS_INODE_``."""

    # calls ask for flags all the time: a field of an inode stays a number
    __rand__ = int.__rand__  # type: ignore[assignment]

    NODATASUM = 1 << 0
    NODATACOW = 1 << 1
    READONLY = 1 << 2
    NOCOMPRESS = 1 << 3
    PREALLOC = 1 << 4
    SYNC = 1 << 5
    IMMUTABLE = 1 << 6
    APPEND = 1 << 7
    NODUMP = 1 << 8
    NOATIME = 1 << 9
    DIRSYNC = 1 << 10
    COMPRESS = 1 << 11
    ROOT_ITEM_INIT = 1 << 31


class OfMode:
    """What has the mode of an inode."""

    __slots__ = ()
    mode: int

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.mode)
