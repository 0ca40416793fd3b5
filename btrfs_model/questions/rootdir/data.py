# SPDX-License-Identifier: GPL-2.0-only
"""Data of a folder, as ``mkfs.btrfs --rootdir`` of btrfs-progs 7.3 makes extents of them."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.kernels.inside.ioctls import csum_of, share_range, tells_csums
from btrfs_model.mount.mkfs.layout import SECTORSIZE
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.questions.rootdir.compress import UNIT
from btrfs_model.questions.rootdir.items import EXTENT, Items, Place
from btrfs_model.questions.rootdir.source import Rootdir, data_ranges, round_up

_NO_HOLES: Final = 1 << 9


class Clone(NamedTuple):
    """Data that an image shares with a file: where in the file, and where on the device."""

    path: Path
    at: int
    length: int
    places: list[int]

    def make(self, image: int, name: str) -> None:
        """Let an open image share them (``do_reflink_write()``).

        Raises BtrfsModelError: where the system refuses it, with the words of mkfs.btrfs.
        """
        with self.path.open("rb") as file:
            for place in self.places:
                try:
                    share_range(file.fileno(), self.at, self.length, image, place)
                except OSError as error:
                    why = f"cannot clone range of {self.path}: {error.strerror}"
                    raise BtrfsModelError(f"{name}: {why}") from None


class Data:
    """Copies data into a filesystem.

    Parameters
    ----------
    items : Items
        Writes to the filesystem.
    source : Rootdir
        How to copy; checked already.
    """

    def __init__(self, items: Items, source: Rootdir) -> None:
        self.items, self.trees = items, items.trees
        self.reflink, self.compression = source.reflink, source.compression
        self.no_holes = bool(self.trees.raw.incompat_flags & _NO_HOLES)
        self.clones: list[Clone] = []
        self.is_packed = False
        self._tells_sums = True

    def copy(self, path: Path, place: Place, inode: structs.InodeItem) -> structs.InodeItem:
        """Copy the data of a file (``add_file_items()``); return its inode item."""
        if not inode.size:
            return inode
        with path.open("rb") as file:
            if self.items.is_inline(inode.size):
                data = file.read()
                packed = self.compression.inline(data) if self.compression else None
                number = self.compression.number if self.compression and packed else 0
                self.items.add_inline(place, packed or data, len(data), number)
                return inode._replace(nbytes=len(data))
            at = 0
            for start, end in [*data_ranges(path, inode.size), (round_up(inode.size), 0)]:
                if not self.no_holes and (hole := round_up(at)) < start:
                    self.items.add_hole(place, hole, start - hole)
                at = start
                while at < end:
                    length, inode = self._extent(place, inode, file, (at, end))
                    at += length
        return inode

    def _extent(
        self, place: Place, inode: structs.InodeItem, file: BinaryIO, left: tuple[int, int]
    ) -> tuple[int, structs.InodeItem]:
        """Write the first of some data as one extent; return how much that is."""
        (at, end), flags, packed = left, inode.flags, None
        file.seek(at)
        data = file.read(min(EXTENT, end - at))
        length, compression = len(data), None if self.reflink else self.compression
        sums = not flags & InodeFlag.NODATASUM
        if compression is None or not sums or flags & InodeFlag.NOCOMPRESS:
            length = self._whole(file, length, sums=sums)
        elif length > SECTORSIZE:
            unit = data[:UNIT]
            packed = compression.extent(unit, first=not flags & InodeFlag.COMPRESS)
            if packed is not None:
                length, self.is_packed = len(unit), True
                flags |= InodeFlag.COMPRESS
            elif not flags & InodeFlag.COMPRESS:
                flags |= InodeFlag.NOCOMPRESS
        number = compression.number if compression and packed is not None else 0
        start = self.items.add_extent(place, at, data[:length] if packed is None else packed,
                                      (length, number), sums=sums)  # fmt: skip
        if self.reflink and length >= SECTORSIZE:
            group = self.trees.group_of(start)
            assert group is not None
            self.clones.append(Clone(Path(file.name), at, length, group.copies(start)))
        return length, inode._replace(flags=flags, nbytes=inode.nbytes + round_up(length))

    def _whole(self, file: BinaryIO, length: int, *, sums: bool) -> int:
        """Return how much of data is one extent (``add_file_item_extent()``).

        What is no whole sector comes alone where data are cloned, and where mkfs.btrfs asks the
        system for checksums. It does so until a btrfs says that it does not tell them.
        """
        whole = length // SECTORSIZE * SECTORSIZE
        asks = sums and self._tells_sums
        if not whole or not (self.reflink or asks):
            return length
        if asks and csum_of(file.fileno()) == (self.trees.raw.csum_type, SECTORSIZE):
            self._tells_sums = tells_csums(file.fileno())
        return whole
