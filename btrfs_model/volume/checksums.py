# SPDX-License-Identifier: GPL-2.0-only
"""Checksums of file data: the checksum tree, looked up for whole ranges at once.

An item (EXTENT_CSUM, EXTENT_CSUM, logical) holds the checksums of consecutive sectors from
`logical` on, so a handful of items covers an extent. What preallocated extents, holes and files
without checksums (NODATASUM) have is nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.native.data import sector_sums
from btrfs_model.ondisk.hashes import CSUM_SIZES, csum
from btrfs_model.ondisk.keys import MAX_KEY, ItemType, ObjectId

if TYPE_CHECKING:
    from btrfs_model.volume.image import Image
    from btrfs_model.volume.tree import Tree

Bytes = npt.NDArray[np.uint8]


class DataChecksums:
    """The checksums of an image's data.

    `image`: where the data are.
    `tree`: the checksum tree; without one nothing has checksums.
    `starts`, `ends` (numpy.ndarray): uint64, the logical ranges that the items of the tree cover,
    ascending.
    """

    def __init__(self, image: Image, tree: Tree | None) -> None:
        self.image = image
        self.type = image.superblock.csum_type
        self.size = CSUM_SIZES[self.type]
        if tree is None:
            self.starts = self.ends = self._positions = np.empty(0, np.uint64)
            return
        kind = (ObjectId.EXTENT_CSUM, ItemType.EXTENT_CSUM)
        columns = tree.scan((*kind, 0), (*kind, MAX_KEY.offset))
        self.starts = columns["offset"]
        sectors = columns["size"].astype(np.uint64) // self.size
        self.ends = self.starts + sectors * image.sectorsize
        self._positions = columns["position"]

    def stored(self, logical: int, length: int) -> tuple[Bytes, npt.NDArray[np.bool_]]:
        """Look up the checksums of a range.

        `logical`, `length`: a range of sectors.
        Returns `sums`: uint8, shape (sectors, bytes of a checksum).
        Returns `present`: bool, shape (sectors,): whether there is a checksum.
        """
        sectorsize = self.image.sectorsize
        count = length // sectorsize
        sums = np.zeros((count, self.size), np.uint8)
        present = np.zeros(count, np.bool_)
        row = max(int(np.searchsorted(self.starts, logical, "right")) - 1, 0)
        while row < len(self.starts) and (start := int(self.starts[row])) < logical + length:
            low, high = max(start, logical), min(int(self.ends[row]), logical + length)
            if low < high and (low - start) % sectorsize == 0:
                position = int(self._positions[row]) + (low - start) // sectorsize * self.size
                n = (high - low) // sectorsize
                found = np.frombuffer(self.image.block_bytes, np.uint8, n * self.size, position)
                at = (low - logical) // sectorsize
                sums[at : at + n] = found.reshape(n, self.size)
                present[at : at + n] = True
            row += 1
        return sums, present

    def read(self, logical: int, length: int, *, fault: Fault, verify: bool = True) -> memoryview:
        """Read data and verify them, each sector from the first good copy.

        `logical`, `length`: a range of sectors inside one extent.
        `fault`: names the place (tree, block, slot, offset of the file) in errors.
        `verify`: without it (NODATASUM) the first copy that is there is taken as it is.
        Raises CorruptImageError: when no copy is good, or the range lies outside of its chunk or
        the image.
        """
        data, bad, error = self.best(logical, length, verify=verify)
        if data is not None and not len(bad):
            return data
        chunk = self.image.chunk_at(logical)
        if chunk is not None and chunk.width and length > self.image.sectorsize:
            # pieces lie on different devices, and what is lost of them is made up for one by one
            return self._read_halves(logical, length, fault, verify)
        if data is None:
            assert error is not None
            raise _at(self.image.path, fault, error.fault.code, error.fault)
        start = int(bad[0]) * self.image.sectorsize
        computed = csum(self.type, data[start : start + self.image.sectorsize])
        wanted, _ = self.stored(logical + start, self.image.sectorsize)
        stored, sum_ = (int.from_bytes(c[:8], "little") for c in (wanted.tobytes(), computed))
        raise _at(self.image.path, fault, Code.BAD_DATA_CSUM, Fault(0, found=stored, wanted=sum_))

    def best(
        self, logical: int, length: int, *, verify: bool = True
    ) -> tuple[memoryview | None, npt.NDArray[np.intp], CorruptImageError | None]:
        """Read data, each sector from the first good copy, and tell which sectors have none.

        `logical`, `length`, `verify`: as for :meth:`read`.
        Returns `data`: None when no copy can be read.
        Returns `bad`: intp, numbers of the sectors that differ from their checksum in all copies.
        Returns `error`: of the first copy that cannot be read.
        """
        wanted, present = self.stored(logical, length) if verify else _NO_SUMS
        chunk = self.image.chunk_at(logical)
        good, bad = bytearray(), np.empty(0, np.intp)
        error: CorruptImageError | None = None
        for copy in range(chunk.copies if chunk else 1):
            try:
                data = self.image.data(logical, length, copy)
            except CorruptImageError as missing:
                error = error or missing
                continue
            wrong = self._bad_sectors(data, wanted, present)
            if not len(wrong):
                return data, wrong, error
            if not good:
                good, bad = bytearray(data), wrong
            for sector in np.setdiff1d(bad, wrong).tolist():
                at = slice(sector * self.image.sectorsize, (sector + 1) * self.image.sectorsize)
                good[at] = data[at]
            bad = np.intersect1d(bad, wrong)
            if not len(bad):
                break
        return memoryview(good) if good else None, bad, error

    def _read_halves(self, logical: int, length: int, fault: Fault, verify: bool) -> memoryview:
        half = length // 2 // self.image.sectorsize * self.image.sectorsize
        parts = [(logical, half), (logical + half, length - half)]
        read = [self.read(*part, fault=fault, verify=verify) for part in parts]
        return memoryview(b"".join(read))

    def _bad_sectors(
        self, data: memoryview, wanted: Bytes, present: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.intp]:
        if not present.any():
            return np.empty(0, np.intp)
        found = sector_sums(self.type, data, self.image.sectorsize)
        return np.flatnonzero((found != wanted).any(axis=1) & present)


_NO_SUMS = np.empty((0, 0), np.uint8), np.empty(0, np.bool_)


def _at(path: str, place: Fault, code: int, what: Fault) -> CorruptImageError:
    """Make the error `what` at `place`."""
    return CorruptImageError(
        path,
        Fault(code, place.tree, place.block, place.slot, place.offset, what.found, what.wanted),
    )
