# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP on a file as long as a program has it open."""

from __future__ import annotations

from itertools import count

from btrfs_model.base.counters import current
from btrfs_model.patches import Patch
from btrfs_model.questions.fiemap.file import File, Flag
from btrfs_model.reference.fiemap.call import Call
from btrfs_model.reference.fiemap.items import fiemap_by_items
from btrfs_model.reference.fiemap.maps import ExtentMaps, fiemap_by_maps

_FILE_SIZE_MAX = 2**63 - 1


class OpenFile:
    """A file whose extents are asked for; kernels before 6.1 remember what they have found."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._maps = ExtentMaps()

    def run(self, start: int, length: int, extents_per_call: int) -> list[tuple[int, ...]]:
        """Return logical, physical, length, flags and call of each extent of a range of bytes."""
        by_items = Patch.FIEMAP_FILE_EXTENTS in self._file.behaviour
        end = min(start + length, _FILE_SIZE_MAX)
        rows: list[tuple[int, ...]] = []
        for number in count():
            if start >= end:
                break
            call = Call(self._file, start, end, extents_per_call)
            current().count("btrfs_fiemap")
            if by_items:
                fiemap_by_items(call)
            else:
                fiemap_by_maps(call, self._maps)
            rows += [
                (one.logical, one.physical, one.length, one.flags, number) for one in call.found
            ]
            if not call.found or call.found[-1].flags & Flag.LAST or call.found[-1].end <= start:
                break
            start = call.found[-1].end
        return rows
