# SPDX-License-Identifier: GPL-2.0-only
"""One call of FIEMAP, and what the two ways of walking a file have in common.

Beside ``native/fiemap/fiemap.c`` and ``native/fiemap/fiemap.h``.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from btrfs_model.base.counters import current
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import RawFileExtent
from btrfs_model.patches import Patch
from btrfs_model.questions.fiemap.file import File, Flag
from btrfs_model.reference.share import ShareContext
from btrfs_model.volume.ctree import Path, block_key, bytenr_of, item_data

if TYPE_CHECKING:
    pass

U64 = 2**64


@dataclass(slots=True)
class Extent:
    """An extent that is reported (``struct fiemap_extent``); places and length in bytes."""

    logical: int
    physical: int
    length: int
    flags: int

    @property
    def end(self) -> int:
        """Byte of the file after it."""
        return (self.logical + self.length) % U64

    def continues(self, before: Extent) -> bool:
        """Whether it follows on another, in the file and on disk."""
        return (
            before.end == self.logical and (before.physical + before.length) % U64 == self.physical
        )


@dataclass(slots=True)
class Call:
    """One call of the ioctl.

    `file`: what is asked about.
    `start`, `end`: the range in bytes, not aligned.
    `extents_max`: as many extents as there is room for.
    `found`: given out by this call.
    `cache`: what was not given out yet, because the next one may continue it.
    """

    file: File
    start: int
    end: int
    extents_max: int
    found: list[Extent] = field(default_factory=list)
    cache: Extent | None = None
    share: ShareContext = field(init=False)

    def __post_init__(self) -> None:
        """Every call has a memory of its own."""
        file = self.file
        self.share = ShareContext(
            file.forest,
            file.tree.objectid,
            file.ino,
            file.last_snapshot,
            file.behaviour,
            file.limits,
        )

    @property
    def restart(self) -> bool:
        """Whether a search starts again after it had to read a block."""
        return Patch.SEARCH_NO_RESTART not in self.file.behaviour

    def fill_next_extent(self, extent: Extent) -> bool:
        """Give an extent out; False when no more are wanted."""
        current().count("fiemap_fill_next_extent")
        if len(self.found) >= self.extents_max:
            return False
        self.found.append(extent)
        return len(self.found) < self.extents_max and not extent.flags & Flag.LAST

    def emit_last_fiemap_cache(self) -> None:
        """Give out what is left."""
        if self.cache is not None:
            self.fill_next_extent(self.cache)
        self.cache = None

    def item(self, path: Path) -> RawFileExtent | InlineExtent | None:
        """Return the file extent item at the path; None when it is another item.

        Raises CorruptImageError: when it is broken.
        """
        leaf, slot = path.leaf, path.slots[0]
        objectid, kind, _ = block_key(leaf, slot)
        if (objectid, kind) != (self.file.ino, ItemType.EXTENT_DATA):
            return None
        try:
            return file_extent(item_data(leaf, slot))
        except PayloadError as error:
            image, tree = self.file.forest.image, self.file.tree.objectid
            raise error.at(image.path, tree=tree, block=bytenr_of(leaf), slot=slot) from None

    def file_extent_end(self, path: Path, item: RawFileExtent | InlineExtent) -> int:
        """Return the byte of the file after a file extent item."""
        start = block_key(path.leaf, path.slots[0])[2]
        if isinstance(item, InlineExtent):
            return self.round_to_sector(start + item.ram_bytes)
        return (start + item.num_bytes) % U64

    def round_to_sector(self, size: int) -> int:
        """Round up to the sector size."""
        sectorsize = self.file.forest.image.sectorsize
        return -(-size // sectorsize) * sectorsize % U64

    def find_delalloc(self, start: int, end: int) -> tuple[int, int] | None:
        """Return what waits first in [start, end) (``btrfs_find_delalloc_in_range()``)."""
        waits = self.file.delalloc
        at = bisect_right(waits, start, key=lambda one: one[1])
        if at == len(waits) or waits[at][0] >= end:
            return None
        return max(waits[at][0], start), min(waits[at][1], end)

    @property
    def first_sector(self) -> int:
        """The start of the range, rounded down to the sector size."""
        return self.start - self.start % self.file.forest.image.sectorsize
