# SPDX-License-Identifier: GPL-2.0-only
"""The data of a file as they are stored: why they are not compressed, by which level they are.

Both follow from the bytes: what a kernel asks before it compresses is asked again, and extents are
compressed again. A trial writes the file into a filesystem of its own, in memory, as a kernel does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.files.compress import COMPRESSION_TYPES, MAX_UNCOMPRESSED, compress
from btrfs_model.mount.files.compress_heuristic import may_compress
from btrfs_model.mount.files.compress_levels import LEVELS, parse_compression
from btrfs_model.mount.files.file_item import align
from btrfs_model.mount.names.properties import COMPRESSION_PROPERTY
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.constants import FileExtentType, InodeFlag
from btrfs_model.volume.data import FileExtent, FileReader
from btrfs_model.volume.image import Image
from btrfs_model.volume.subvolume import Inode, Subvolume

NAMES: Final = {number: name for name, number in COMPRESSION_TYPES.items()}
"""Compressions by number."""
_LOOKED_AT: Final = 4
"""So many extents are compressed again to find the level."""
_STEP: Final = 128 << 20
"""So much waits before it is written: what a kernel writes at once."""
_FORCE: Final = "force:"
_FILE: Final = "file"
_ROOM: Final = "1T"
"""Only what is written takes memory."""


class StoredFile:
    """A regular file.

    `sub`, `inode`: which.
    `kernel`: that compresses.
    `usual`: algorithm and level of a file that has none.
    Raises CorruptImageError: when the tree is damaged.
    """

    def __init__(
        self, sub: Subvolume, inode: Inode, kernel: Behaviour, usual: tuple[str, int]
    ) -> None:
        self.sub, self.inode, self._kernel = sub, inode, kernel
        self.extents = [one for one in sub.extents(inode.ino) if not one.is_hole]
        self._reader = FileReader(sub.fs.image, sub.fs.checksums, sub.id, inode.ino)
        self._sectorsize = sub.fs.image.sectorsize
        self._kind, self._level = self._algorithm(usual)

    def _algorithm(self, usual: tuple[str, int]) -> tuple[str, int]:
        value = self.sub.xattrs(self.inode.ino).get(COMPRESSION_PROPERTY, b"").decode("latin-1")
        used = [one.compression for one in self.extents if one.compression]
        kind = next((name for name in LEVELS if value.startswith(name)), "")
        return (kind or NAMES[used[0]], 0) if kind or used else usual

    def data(self) -> Iterator[tuple[int, bytes]]:
        """Yield the ranges of the file that have data, in pieces, up to its end."""
        size = self.inode.size
        for extent in self.extents:
            for low in range(extent.start, min(extent.end, size), _STEP):
                high = min(low + _STEP, extent.end, size)
                if not extent.is_zero:
                    yield low, bytes(self._reader.extent_data(extent, low, high, self.inode.flags))

    # ------------------------------------------------------------------------ why it is raw ------

    def reasons(self) -> dict[int, tuple[str, int]]:
        """Return why data extents are not compressed, with their bytes on disk, by address."""
        raw = {
            one.disk_bytenr: one for one in self.extents
            if one.type == FileExtentType.REG and not one.compression
        }  # fmt: skip
        return {at: (self._reason(one), one.disk_num_bytes) for at, one in raw.items()}

    def most_reason(self) -> str:
        """Return the reason of most bytes on disk; empty when all are compressed."""
        total: Counter[str] = Counter()
        for reason, size in self.reasons().values():
            total[reason] += size
        return total.most_common(1)[0][0] if total else ""

    def _reason(self, extent: FileExtent) -> str:
        flags = self.inode.flags
        if flags & InodeFlag.NODATACOW:
            return "nodatacow"
        if flags & InodeFlag.NODATASUM:
            return "nodatasum"
        if extent.disk_num_bytes <= self._sectorsize:
            return "small"
        length = min(extent.disk_num_bytes, MAX_UNCOMPRESSED)
        # from the first byte that was written to the extent, shown or not
        whole = extent._replace(start=0, offset=0, length=length)
        data = bytes(self._reader.extent_data(whole, 0, length, flags))
        if not may_compress(data):
            return "heuristic"
        packed = compress(self._kind, self._level, data, self._sectorsize, self._kernel)
        if packed is None or align(len(packed), self._sectorsize) + self._sectorsize > length:
            return "no gain"
        if flags & InodeFlag.NOCOMPRESS:
            return "nocompress"
        return "preallocated" if flags & InodeFlag.PREALLOC else "not tried"

    # -------------------------------------------------------------------------------- levels ------

    def levels(self) -> str:
        """Return the levels that give the bytes of the first compressed extents, with commas."""
        compressed = [one for one in self.extents if one.compression]
        if not compressed or {one.compression for one in compressed} == {COMPRESSION_TYPES["lzo"]}:
            return ""
        first = next(one for one in compressed if one.compression != COMPRESSION_TYPES["lzo"])
        kind = NAMES[first.compression]
        least, most, _ = LEVELS[kind]
        known = [level for level in range(most, least - 1, -1) if level]
        alike = {one.disk_bytenr: one for one in compressed if one.compression == first.compression}
        for extent in list(alike.values())[:_LOOKED_AT]:
            known = [level for level in known if self._is_level(extent, kind, level)]
        return ",".join(map(str, sorted(known)))

    def _on_disk(self, extent: FileExtent) -> bytes:
        size = extent.disk_num_bytes
        plain = extent._replace(start=0, offset=0, length=size, compression=0)
        return bytes(self._reader.extent_data(plain, 0, size, self.inode.flags))

    def _is_level(self, extent: FileExtent, kind: str, level: int) -> bool:
        whole = extent._replace(start=0, offset=0, length=extent.ram_bytes)
        data = bytes(self._reader.extent_data(whole, 0, extent.ram_bytes, self.inode.flags))
        stored = extent.inline or self._on_disk(extent)
        # the last one ends with the file, or with zeros up to the end of its sector
        left = self.inode.size - (extent.start - extent.offset)
        for end in {len(data), min(max(left, 0), len(data))}:
            packed = compress(kind, level, data[:end], self._sectorsize, self._kernel)
            if packed is not None and stored.startswith(packed) and not any(stored[len(packed) :]):
                return True
        return False


class Trial:
    """Another way to compress: files are written in memory, one after the other.

    `text`: as behind ``compress=``; after ``force:`` as behind ``compress-force=``.
    Raises ValueError: for what the kernel refuses there.
    """

    def __init__(self, text: str, kernel: Behaviour, image: Image) -> None:
        self.text = text
        value = text.removeprefix(_FORCE)
        self._option = f"compress{'-force' * (value != text)}={value}"
        try:
            self.kind, self.level = parse_compression(value, kernel)
        except ValueError:
            self.kind = ""
        if not self.kind:
            raise ValueError(
                f"{text!r} is no compression of this kernel: zlib, lzo or zstd, perhaps with a "
                "level (zstd:3) and by force (force:zstd:3)"
            )
        self._kernel, self._image = kernel, image

    @cached_property
    def _fs(self) -> WritableFilesystem:
        fs = WritableFilesystem.mkfs(_ROOM, self._image.nodesize, behaviour=self._kernel)
        fs.set_mount_options(self._option)
        return fs

    def extents(self, file: StoredFile) -> list[FileExtent]:
        """Return the extents of a file that is written anew."""
        fs, waiting = self._fs, 0
        fs.create(_FILE)
        for at, data in file.data():
            fs.write(_FILE, at, data)
            waiting += len(data)
            if waiting >= _STEP:
                fs.sync()
                waiting = 0
        fs.truncate(_FILE, file.inode.size)
        fs.sync()
        extents = fs.subvolume("").extents(_FILE)
        fs.unlink(_FILE)
        fs.sync()
        return extents

    def size(self, file: StoredFile) -> int:
        """Return the bytes that it then takes, those of items among them."""
        return sum(len(one.inline) or one.disk_num_bytes for one in self.extents(file))
