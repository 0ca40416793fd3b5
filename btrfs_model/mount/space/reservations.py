# SPDX-License-Identifier: GPL-2.0-only
"""What :mod:`.space_info` remembers between two looks for room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from btrfs_model.mount.files.pages import FilePages
from btrfs_model.mount.tree_writer import TreeWriter
from btrfs_model.native.space import SpaceInfo
from btrfs_model.ondisk.constants import BTRFS_HEADER_SIZE, BTRFS_ITEM_SIZE, BTRFS_MAX_LEVEL
from btrfs_model.ondisk.keys import ObjectId


class Delalloc(NamedTuple):
    """What waits for writeback of a file, as it was when it was looked at."""

    pages: FilePages
    cleanings: int
    extents: dict[tuple[int, int], int]
    """How many writeback may make of each dirty range."""
    reserved: int
    """Bytes; see :meth:`Reservations.of_file`."""


class Alike(Protocol):
    """Files that wait for writeback with one extent each, and are no inodes in memory.

    There are such while :func:`.fill_files` runs; no other file waits then.
    """

    count: int
    """How many wait."""
    length: int
    """Bytes of the blocks of each."""

    @property
    def reserved(self) -> int:
        """Bytes that are reserved for those that wait."""

    def write(self, most: int, *, together: bool = False) -> Iterator[SpaceInfo | None]:
        """Write files back, the oldest first.

        Yields after each how full metadata is, None where that has to be looked up.

        `together`: nobody looks how full it is after each.
        """


class Reservations:
    """The reservations of a filesystem for metadata.

    What is reserved follows from what waits. Only the references need a memory (`refs`,
    ``delayed_refs_rsv``): those of data that were written back were not reserved by a call, and
    get what the data had reserved or later calls give back.

    Attributes
    ----------
    path, item, ref : int
        Bytes for an item that is changed (``btrfs_calc_metadata_size()``), one that is inserted,
        and a reference that waits (``btrfs_calc_delayed_ref_bytes()``).
    summed : int
        Bytes of data whose checksums one leaf has room for (``csums_per_leaf``).
    clamp : int
        How early the other worker begins.
    stolen : int
        What is missing of what is kept for commits: calls took it that free space.
    lent, room, chunks : int
        What calls reserved since the last look; what was there then, and how much chunks had of
        the device.
    delayed, delalloc, refs : int
        What is reserved for delayed items, data that wait, and references.
    extents : dict
        What waits of each file, by subvolume and inode number.
    alike : Alike or None
        What waits without inodes in memory.
    counted : int
        How much of `delalloc` is theirs.
    """

    __slots__ = ("alike", "chunks", "clamp", "counted", "delalloc", "delayed", "extents",
                 "item", "lent", "path", "ref", "refs", "room", "stolen",
                 "summed")  # fmt: skip

    def __init__(self, writer: TreeWriter) -> None:
        self.path = BTRFS_MAX_LEVEL * writer.image.nodesize
        self.item = 2 * self.path
        self.ref = self.item * (2 if writer.has_tree(ObjectId.FREE_SPACE_TREE) else 1)
        largest = writer.image.nodesize - BTRFS_HEADER_SIZE - BTRFS_ITEM_SIZE
        self.summed = largest // writer.csum_size * writer.image.sectorsize
        self.clamp = 1
        self.stolen = self.refs = self.lent = self.room = 0
        self.chunks = self.delayed = self.delalloc = 0
        self.extents: dict[tuple[int, int], Delalloc] = {}
        self.alike: Alike | None = None
        self.counted = 0

    def of_file(self, extents: int, summed: int) -> int:
        """Return what is reserved for data of a file that wait, bytes.

        (``btrfs_calculate_inode_block_rsv_size()``: the extents, their checksums, the inode.)

        `extents`: how many writeback may make of them.
        `summed`: bytes that get checksums.
        """
        items = extents + -(-summed // self.summed)
        return items * self.item + self.path * (extents > 0)
