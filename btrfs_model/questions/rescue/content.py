# SPDX-License-Identifier: GPL-2.0-only
"""The bytes of a file that can be read: no byte that differs from a checksum is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from btrfs_model.base.errors import CorruptImageError
from btrfs_model.ondisk.constants import FileExtentType, InodeFlag
from btrfs_model.volume.data import FileReader

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from btrfs_model.questions.rescue.roots import State
    from btrfs_model.volume.data import FileExtent

_STEP: Final = 16 << 20
_SHOWN: Final = 8
_GIVEN_UP: Final = 1 << 16
"""Reads that fail one after the other before a range is given up; no extent has so many sectors."""

Part = tuple[int, bytes | memoryview]


class Content:
    """What can be read of a file; it is read piece by piece.

    `state`: of which filesystem.
    `subvolume`, `ino`: whose.
    `extents`: of the file, in order.
    `size`, `flags`: of the inode.
    `lost` (list of (int, int)): first byte of each range that could not be read, and that behind
    it; known once all was read.
    `why` (str): what was wrong first.
    `given` (int): bytes that were read.
    `unchecked` (int): those of them whose checksums may be lost with their tree.
    """

    def __init__(
        self, state: State, subvolume: int, ino: int, extents: list[FileExtent], size: int,
        flags: int, lost: list[tuple[int, int]],
    ) -> None:  # fmt: skip
        self._state, self._flags = state, flags
        self._reader = FileReader(state.image, state.checksums, subvolume, ino)
        self.size = size
        self.lost = lost
        self.why = "its extents are lost" if lost else ""
        self.given = self.unchecked = self._failed = 0
        self._stops = [(one, self._stop(one)) for one in extents
                       if not one.is_zero and one.start < size]  # fmt: skip

    def _stop(self, extent: FileExtent) -> int:
        """Return up to which byte of the file an extent may be read: what no device has is lost."""
        end = min(extent.end, self.size)
        image = self._state.image
        if extent.type == FileExtentType.INLINE or extent.compression:
            # a kernel compresses less at once
            return end if end - extent.start <= _STEP else extent.start
        at = extent.disk_bytenr + extent.offset
        chunk = image.chunk_at(at)
        if chunk is None:
            return extent.start
        room = len(image.view) if chunk.width else 0
        for copy in range(0 if chunk.width else chunk.placed):
            with suppress(CorruptImageError):
                room = max(room, image.map(at, copy)[1])
        # no extent goes over the end of its chunk
        return min(end, extent.start + min(room, chunk.end - at))

    @property
    def ranges(self) -> list[tuple[FileExtent, int]]:
        """The extents of which there is something, each with the byte at which that ends."""
        return [(extent, stop) for extent, stop in self._stops if stop > extent.start]

    def parts(self) -> Iterator[Part]:
        """Yield what can be read: where in the file it starts, and the bytes."""
        for extent, stop in self._stops:
            self._failed = 0
            for low in range(extent.start, stop, _STEP):
                for start, data in self._read(extent, low, min(low + _STEP, stop)):
                    self.given += len(data)
                    yield start, data
            self._lose(stop, min(extent.end, self.size))

    def _lose(self, low: int, high: int, why: str = "no chunk has it") -> None:
        if low >= high:
            return
        self.why = self.why or why
        if self.lost and self.lost[-1][1] == low:
            low = self.lost.pop()[0]
        self.lost.append((low, high))

    def _read(self, extent: FileExtent, low: int, high: int) -> Iterator[Part]:
        """Read a range of an extent: of what is not compressed each sector for itself."""
        if extent.type != FileExtentType.INLINE and not extent.compression:
            yield from self._read_plain(extent, low, high)
            return
        try:
            data = self._reader.extent_data(extent, low, high, self._flags)
        except CorruptImageError as error:
            self._lose(low, high, str(error.strerror))
            return
        self._note_unchecked(extent, low, high)
        yield low, data

    def _read_plain(self, extent: FileExtent, low: int, high: int) -> Iterator[Part]:
        sector = self._state.image.sectorsize
        checks = not self._flags & InodeFlag.NODATASUM
        stack = [(low, high)]
        while stack:
            low, high = stack.pop()
            if self._failed > _GIVEN_UP:
                self._lose(low, high)
                continue
            logical = extent.disk_bytenr + extent.offset + low - extent.start
            length = -(-(high - low) // sector) * sector
            chunk = self._state.image.chunk_at(logical)
            data, bad, error = self._state.checksums.best(logical, length, verify=checks)
            if (data is None or len(bad)) and length > sector and chunk and chunk.width:
                # each piece is on another device, and parity makes up for one
                self._failed += 1
                middle = low + length // 2 // sector * sector
                stack += [(middle, high), (low, middle)]
                continue
            if data is None:
                self._failed += 1
                self._lose(low, high, str(error.strerror) if error else "no copy can be read")
                continue
            self._failed = 0
            yield from self._good(low, data[: high - low], bad)
            self._note_unchecked(extent, low, high)

    def _good(self, low: int, data: memoryview, bad: npt.NDArray[np.intp]) -> Iterator[Part]:
        """Yield what is between sectors that are bad."""
        sector, at = self._state.image.sectorsize, 0
        for start in (bad * sector).tolist():
            if start > at:
                yield low + at, data[at:start]
            at = min(start + sector, len(data))
            self._lose(low + start, low + at, "it differs from its checksum")
        if at < len(data):
            yield low + at, data[at:]

    def _note_unchecked(self, extent: FileExtent, low: int, high: int) -> None:
        if extent.type == FileExtentType.INLINE or self._flags & InodeFlag.NODATASUM:
            return
        sector = self._state.image.sectorsize
        first, length = extent.disk_bytenr, extent.disk_num_bytes
        if not extent.compression:
            within = low - extent.start + extent.offset
            first += within // sector * sector
            length = -(-(within + high - low) // sector) * sector - within // sector * sector
        if self._state.is_unknown(first, length):
            self.unchecked += high - low

    @property
    def lost_ranges(self) -> str:
        """The first of the ranges that are lost, in words."""
        shown = ", ".join(f"{low}-{high - 1}" for low, high in self.lost[:_SHOWN])
        more = len(self.lost) - _SHOWN
        return f"bytes {shown}{f' and {more} ranges more' if more > 0 else ''}"
