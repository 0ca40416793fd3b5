# SPDX-License-Identifier: GPL-2.0-only
"""File data: from the file extents of an inode to its bytes.

::

    file     0        8K             24K      32K          i_size
             | inline |   regular    |  hole  |  prealloc  |
                          |
    extent           | disk_bytenr ... disk_num_bytes (compressed or not) |
                         | offset .. offset + num_bytes |        of its ram_bytes

A regular file extent shows a part of an extent on disk (a *bookend* when it is not all of it).
Compressed extents are decompressed as a whole first. Holes (explicit, with ``disk_bytenr`` 0, or
just a gap in the keys with the feature no-holes) and preallocated extents read as zeros.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from btrfs_model.base.errors import Fault
from btrfs_model.ondisk.constants import Compression, FileExtentType, InodeFlag
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import RawFileExtent
from btrfs_model.volume.compression import decompress
from btrfs_model.volume.tree import Item

if TYPE_CHECKING:
    from btrfs_model.volume.checksums import DataChecksums
    from btrfs_model.volume.image import Image


class FileExtent(NamedTuple):
    """A file extent item.

    Attributes
    ----------
    start, length : int
        The range of the file, bytes.
    type : int
        ``enum btrfs_file_extent_type``.
    compression : int
        ``enum btrfs_compression``.
    disk_bytenr, disk_num_bytes : int
        The extent on disk; 0 for a hole and for inline data.
    offset : int
        Where in the (uncompressed) extent `start` lies.
    ram_bytes : int
        Uncompressed size of the extent.
    generation : int
        Transaction that wrote it.
    inline : bytes
        The data of an inline extent as stored.
    block, slot : int
        The leaf that holds the item.
    """

    start: int
    length: int
    type: int
    compression: int
    disk_bytenr: int
    disk_num_bytes: int
    offset: int
    ram_bytes: int
    generation: int
    inline: bytes
    block: int
    slot: int

    @property
    def end(self) -> int:
        """First byte of the file after it."""
        return self.start + self.length

    @property
    def is_hole(self) -> bool:
        """Whether it has no extent on disk."""
        return self.type == FileExtentType.REG and not self.disk_bytenr

    @property
    def is_zero(self) -> bool:
        """Whether it reads as zeros: a hole or preallocated."""
        return self.type == FileExtentType.PREALLOC or self.is_hole

    @classmethod
    def of(
        cls, item: Item, extent: RawFileExtent | InlineExtent, image: Image, tree: int
    ) -> FileExtent:
        """Make one of its item, checked as far as reading relies on it.

        Raises CorruptImageError: for unknown types, encodings and sizes that do not fit each other.
        """
        start = item.key.offset
        if isinstance(extent, InlineExtent):
            made = cls(start, extent.ram_bytes, extent.type, extent.compression, 0, 0, 0,
                       extent.ram_bytes, extent.generation, extent.data, item.block,
                       item.slot)  # fmt: skip
        else:
            made = cls(start, extent.num_bytes, extent.type, extent.compression,
                       extent.disk_bytenr, extent.disk_num_bytes, extent.offset, extent.ram_bytes,
                       extent.generation, b"", item.block, item.slot)  # fmt: skip
        bad = made._impossible(image.sectorsize, image.nodesize)
        if extent.encryption or extent.other_encoding:
            bad = extent.encryption or extent.other_encoding
        if bad is not None:
            raise PayloadError.bad_value(bad).at(
                image.path, tree=tree, block=item.block, slot=item.slot, offset=start
            )
        return made

    def _impossible(self, sectorsize: int, nodesize: int) -> int | None:
        """Find a value that no kernel writes (``check_extent_data_item()``, Linux 6.12)."""
        if self.type > FileExtentType.PREALLOC:
            return self.type
        if self.compression > Compression.ZSTD:
            return self.compression
        if self.type == FileExtentType.INLINE:
            stored = len(self.inline)
            fits = self.compression or stored == self.ram_bytes
            return None if fits and self.ram_bytes <= max(sectorsize, nodesize) else self.ram_bytes
        aligned = (self.start, self.length, self.disk_bytenr, self.disk_num_bytes, self.offset,
                   self.ram_bytes)  # fmt: skip
        for value in aligned:
            if value % sectorsize:
                return value
        if self.end > 1 << 64:
            return self.length
        if self.is_hole:
            return None
        if not self.compression and self.offset + self.length > self.disk_num_bytes:
            return self.offset + self.length
        if self.compression:
            if max(self.ram_bytes, self.disk_num_bytes) > _MAX_COMPRESSED:
                return max(self.ram_bytes, self.disk_num_bytes)
            if self.offset + self.length > self.ram_bytes:
                return self.offset + self.length
        return None


# BTRFS_MAX_COMPRESSED and BTRFS_MAX_UNCOMPRESSED: what one compressed extent may hold
_MAX_COMPRESSED = 128 << 10


class FileReader:
    """Reads ranges of a file.

    `image`: where the data are.
    `checksums`: of that image.
    `tree`, `ino`: the subvolume and the inode, for errors.
    """

    def __init__(self, image: Image, checksums: DataChecksums, tree: int, ino: int) -> None:
        self.image = image
        self.checksums = checksums
        self.tree = tree
        self.ino = ino

    def read(self, extents: Iterable[FileExtent], start: int, end: int, flags: int = 0) -> bytes:
        """Return the bytes [start, end) of the file that has these extents.

        `extents`: at least those that touch the range.
        `start`, `end`: byte range; `end` is not more than the file's size.
        `flags`: the inode's; with NODATASUM checksums are not looked for.
        Raises CorruptImageError: when data are damaged.
        Raises OSError: ENOMEM, when the range does not fit into memory.
        """
        if end <= start:
            return b""
        try:
            data = bytearray(end - start)
        except (MemoryError, OverflowError):
            raise OSError(
                errno.ENOMEM, os.strerror(errno.ENOMEM), f"{self.image.path}: inode {self.ino}"
            ) from None
        for extent in extents:
            low, high = max(start, extent.start), min(end, extent.end)
            if low < high and not extent.is_zero:
                data[low - start : high - start] = self.extent_data(extent, low, high, flags)
        return bytes(data)

    def extent_data(
        self, extent: FileExtent, low: int, high: int, flags: int = 0
    ) -> bytes | memoryview:
        """Return the bytes [low, high) of the file, which lie in `extent`; see :meth:`read`.

        Raises CorruptImageError: when they are damaged.
        """
        verify = not flags & InodeFlag.NODATASUM
        within = low - extent.start + extent.offset
        length = high - low
        place = Fault(0, self.tree, extent.block, extent.slot, low)
        if extent.type == FileExtentType.INLINE:
            plain = self._decompress(extent, extent.inline, place)
            return plain[within : within + length]
        if extent.compression:
            stored = self.checksums.read(
                extent.disk_bytenr, extent.disk_num_bytes, fault=place, verify=verify
            )
            return self._decompress(extent, stored, place)[within : within + length]
        # checksums are of whole sectors
        sectorsize = self.image.sectorsize
        first = within // sectorsize * sectorsize
        last = -(-(within + length) // sectorsize) * sectorsize
        data = self.checksums.read(
            extent.disk_bytenr + first, last - first, fault=place, verify=verify
        )
        return data[within - first : within - first + length]

    def _decompress(self, extent: FileExtent, stored: bytes | memoryview, place: Fault) -> bytes:
        if not extent.compression:
            return bytes(stored)
        try:
            return decompress(extent.compression, stored, extent.ram_bytes, self.image.sectorsize)
        except PayloadError as error:
            raise error.at(
                self.image.path, tree=place.tree, block=place.block, slot=place.slot,
                offset=place.offset,
            ) from None  # fmt: skip
