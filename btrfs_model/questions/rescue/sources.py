# SPDX-License-Identifier: GPL-2.0-only
"""Where right sectors are looked for: all sectors of streams and files, by their checksum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.native.data import sector_sums
from btrfs_model.ondisk.stream import COMMANDS_BY_NAME, MAGIC
from btrfs_model.questions.rescue.scan import ranges_of
from btrfs_model.stream.index import read_batches
from btrfs_model.stream.reader import command_of

if TYPE_CHECKING:
    from btrfs_model.questions.rescue.faults import Places, Wrong
    from btrfs_model.stream.reader import Command

_STEP: Final = 16 << 20
_WRITES: Final = tuple(COMMANDS_BY_NAME[name].number for name in ("write", "encoded_write"))
_UNSURE: Final = "several sectors have this checksum"


class Wanted:
    """Sectors that are looked for.

    `wrong`: those without right bytes.
    `places`: where in files they are.
    `csum_type`, `sectorsize`: of the filesystem.
    `looked_at` (int): how many sectors were looked at.
    """

    def __init__(self, wrong: list[Wrong], places: Places, csum_type: int, sectorsize: int) -> None:
        self._by_sum: dict[bytes, list[Wrong]] = {}
        for one in wrong:
            self._by_sum.setdefault(one.sum, []).append(one)
        self._places, self._type, self.sectorsize = places, csum_type, sectorsize
        self._heads = np.array(sorted({_head(one) for one in self._by_sum}), np.uint32)
        self._sure: set[int] = set()
        self.looked_at = 0

    def offer(
        self, data: bytes | memoryview, source: Callable[[int], str], path: bytes = b"", at: int = 0
    ) -> None:
        """Look at sectors.

        `data`: a multiple of the sector size.
        `source`: says where a byte of it is from.
        `path`, `at`: of a stream, the file that it is written to, and where.
        """
        if not len(data) or not len(self._heads):
            return
        sums = sector_sums(self._type, data, self.sectorsize)
        self.looked_at += len(sums)
        heads = np.ascontiguousarray(sums[:, :4]).view("<u4")[:, 0]
        row = np.minimum(np.searchsorted(self._heads, heads), len(self._heads) - 1)
        for number in np.flatnonzero(self._heads[row] == heads).tolist():
            start = number * self.sectorsize
            sector = bytes(data[start : start + self.sectorsize])
            for wrong in self._by_sum.get(sums[number].tobytes(), ()):
                here = (path, at + start) in self._places.get(wrong.logical, ())
                self._take(wrong, sector, source(start), is_here=bool(path) and here)

    def _take(self, wrong: Wrong, sector: bytes, source: str, *, is_here: bool) -> None:
        """Take a sector, unless another with this checksum is as good."""
        if is_here and id(wrong) not in self._sure:
            self._sure.add(id(wrong))
            wrong.heal(sector, source, "checksum and place")
        elif id(wrong) in self._sure or wrong.proof == _UNSURE:
            return
        elif wrong.data is None:
            wrong.heal(sector, source, "checksum")
        elif wrong.data != sector:
            wrong.data, wrong.source, wrong.proof = None, "", _UNSURE


def _head(checksum: bytes) -> int:
    return int.from_bytes(checksum[:4], "little")


def is_stream(path: str) -> bool:
    """Whether a file begins as a send stream does."""
    with Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _byte_of(path: str, at: int, start: int) -> str:
    return f"{path}: byte {at + start}"


def look_in_file(path: str, wanted: Wanted) -> None:
    """Look at all sectors of a file or device but holes; the last is filled up with zeros."""
    with Path(path).open("rb") as file:
        for start, end in ranges_of(path, 0, file.seek(0, os.SEEK_END)):
            file.seek(start)
            for at in range(start, end, _STEP):
                data = file.read(min(_STEP, end - at))
                padded = data + bytes(-len(data) % wanted.sectorsize)
                wanted.offer(padded, partial(_byte_of, path, at))


def look_in_stream(path: str, wanted: Wanted) -> None:
    """Look at what a stream writes, also what it writes compressed.

    Raises StreamError: where it is not well formed, after all before it was looked at.
    """
    carried, name, end = b"", b"", -1
    for command in _writes(path):
        data, at = command["data"], command["file_offset"]
        assert isinstance(data, memoryview) and isinstance(at, int)
        file = command["path"]
        assert isinstance(file, bytes)

        def source(start: int, command: Command = command) -> str:
            return f"{path}: command at byte {command.offset}"

        if command.name == "encoded_write":
            # all of the extent, as it lies on disk
            wanted.offer(bytes(data) + bytes(-len(data) % wanted.sectorsize), source)
            continue
        # a sector may come in two commands
        begin = at
        joined: bytes | memoryview = data
        if file == name and at == end and carried:
            joined, begin = carried + bytes(data), at - len(carried)
        skipped = -begin % wanted.sectorsize
        whole = (len(joined) - skipped) // wanted.sectorsize * wanted.sectorsize
        if whole > 0:
            wanted.offer(joined[skipped : skipped + whole], source, file, begin + skipped)
        carried = bytes(joined[skipped + max(whole, 0) :])
        if carried:
            # the last of a file, filled up with zeros
            tail = carried + bytes(-len(carried) % wanted.sectorsize)
            wanted.offer(tail, source, file, begin + skipped + max(whole, 0))
        name, end = file, at + len(data)


def _writes(path: str) -> Iterator[Command]:
    for batch in read_batches(path):
        for row in np.flatnonzero(np.isin(batch.type, _WRITES)).tolist():
            yield command_of(batch, row)
