# SPDX-License-Identifier: GPL-2.0-only
"""What of an image has a wrong checksum: tree blocks, copies of the superblock, sectors of data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.errors import CorruptImageError
from btrfs_model.native.data import sector_sums
from btrfs_model.native.items import WANTED, gather, select, verify_blocks
from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import FILE_EXTENT_ITEM, SUPER_BLOCK
from btrfs_model.ondisk.superblock import MAGIC, SUPER_OFFSETS, SUPER_SIZE
from btrfs_model.questions.check.copies import parts_in_chunks
from btrfs_model.questions.rescue.files import SavedSubvolume
from btrfs_model.questions.rescue.tree import SalvagedTree
from btrfs_model.volume.blocks import Expect, read_copy
from btrfs_model.volume.tree import Tree

if TYPE_CHECKING:
    from btrfs_model.questions.rescue.image import DamagedImage
    from btrfs_model.questions.rescue.roots import State

_AT_ONCE: Final = 4096


@dataclass(slots=True)
class Wrong:
    """A run of bytes that is wrong, and what there is to put in its place.

    `what`: superblock, tree block or data.
    `place`: byte of the image.
    `logical`, `copy`: its address, and which copy it is.
    `sum`: of data, the checksum that is wanted.
    `path`: a file that it is part of, or its tree.
    `data`: the right bytes, None where they were not found.
    `source`, `proof`: where they are from, and why they are right.
    `was`: SHA-256 of what is there, in hexadecimal.
    """

    what: str
    place: int
    length: int
    logical: int
    copy: int
    sum: bytes = b""
    path: str = ""
    data: bytes | None = None
    source: str = ""
    proof: str = ""
    was: str = ""

    def heal(self, data: bytes | memoryview, source: str, proof: str) -> None:
        """Note the right bytes."""
        self.data, self.source, self.proof = bytes(data), source, proof


def superblocks(image: DamagedImage) -> Iterator[Wrong]:
    """Find copies of the superblock that are not good, and make each of one that is."""
    for member in image.devices:
        sb = member.superblock
        if sb is None or not sb.copies:
            continue
        start = member.start + sb.offset
        good = bytes(image.view[start : start + SUPER_SIZE])
        for offset in SUPER_OFFSETS:
            at = member.start + offset
            if offset + SUPER_SIZE > min(member.size, sb.dev_item.total_bytes):
                break
            there = bytes(image.view[at : at + SUPER_SIZE])
            is_one = SUPER_BLOCK.unpack(there).magic == MAGIC
            # what btrfs-image restores has the first one alone
            if offset in sb.copies or not (is_one or offset == SUPER_OFFSETS[0]):
                continue
            made = good[32:48] + offset.to_bytes(8, "little") + good[56:]
            wrong = Wrong("superblock", at, SUPER_SIZE, 0, 0)
            made = csum(sb.csum_type, made).ljust(32, b"\0") + made
            wrong.heal(made, f"superblock at {sb.offset}", "checksum")
            yield wrong


def tree_blocks(state: State, other: DamagedImage | None) -> Iterator[Wrong]:
    """Find all bad copies of tree blocks, and the right bytes.

    `other`: an image of the same filesystem.
    """
    image = state.image
    sb = image.superblock
    chunk_tree = Tree.pointed_at(image, ObjectId.CHUNK_TREE)
    trees = [chunk_tree, *(root.tree(image) for root in state.roots.values())]
    had: set[int] = set()
    for tree in [state.root_tree, *map(SalvagedTree.at, trees)]:
        pointers = [one for one in tree.pointers if one[0] not in had] if tree else []
        had.update(one[0] for one in pointers)
        rows = np.zeros(len(pointers), WANTED)
        for name, values in zip(("logical", "generation", "level"), zip(*pointers, strict=True),
                                strict=False):  # fmt: skip
            rows[name] = values
        rows["tree"] = tree.objectid if tree else 0
        for copy in range(max((chunk.placed for chunk in image.mapped), default=1)):
            there = [_placed(image, int(one)) > copy for one in rows["logical"]]
            some = rows[np.array(there, np.bool_)]
            for row, _ in verify_blocks(image, some, copy):
                wrong = _bad_block(image, some[row], copy, other)
                if wrong is not None:
                    wrong.length = sb.nodesize
                    yield wrong


def _placed(image: DamagedImage, logical: int) -> int:
    chunk = image.chunk_at(logical)
    return chunk.placed if chunk else 0


def _bad_block(
    image: DamagedImage, row: Any, copy: int, other: DamagedImage | None
) -> Wrong | None:
    logical = int(row["logical"])
    try:
        place, contiguous = image.map(logical, copy)
    except CorruptImageError:
        return None  # no device has it
    if contiguous < image.nodesize:
        return None
    wrong = Wrong("tree block", place, image.nodesize, logical, copy, path=f"tree {row['tree']}")
    expect = Expect(int(row["tree"]), int(row["generation"]), int(row["level"]))
    chunk = image.chunk_at(logical)
    for number in range(chunk.copies if chunk else 0):
        if number != copy and (data := _block(image, logical, number, expect)) is not None:
            wrong.heal(data, f"copy {number}", "checksum, address and generation")
            return wrong
    for number in range(_placed(other, logical) if other else 0):
        assert other is not None
        if (data := _block(other, logical, number, expect)) is not None:
            wrong.heal(data, other.path, "checksum, address and generation")
            break
    return wrong


def _block(image: DamagedImage, logical: int, copy: int, expect: Expect) -> memoryview | None:
    try:
        return read_copy(image, logical, copy, expect)
    except CorruptImageError:
        return None


def data_sectors(state: State) -> Iterator[Wrong]:
    """Find all copies of sectors that differ from their checksum; own copies have the bytes."""
    image, sums = state.image, state.checksums
    sector = image.sectorsize
    for first, last in zip(sums.starts.tolist(), sums.ends.tolist(), strict=True):
        for start, end, placed in parts_in_chunks(image, first, last):
            for at in range(start, end, _AT_ONCE * sector):
                stop = min(end, at + _AT_ONCE * sector)
                for copy in range(placed):
                    yield from _bad_sectors(state, at, stop, copy)


def _bad_sectors(state: State, start: int, end: int, copy: int) -> Iterator[Wrong]:
    image, sums, sector = state.image, state.checksums, state.image.sectorsize
    wanted, present = sums.stored(start, end - start)
    try:
        data = image.data(start, end - start, copy)
    except CorruptImageError:
        if end - start > sector:
            middle = start + (end - start) // 2 // sector * sector
            yield from _bad_sectors(state, start, middle, copy)
            yield from _bad_sectors(state, middle, end, copy)
        return  # no device has it
    bad = (sector_sums(sums.type, data, sector) != wanted).any(axis=1) & present
    for row in np.flatnonzero(bad).tolist():
        logical = start + row * sector
        place, contiguous = image.map(logical, copy)
        if contiguous < sector:
            continue
        wrong = Wrong("data", place, sector, logical, copy, wanted[row].tobytes())
        chunk = image.chunk_at(logical)
        for number in range(chunk.copies if chunk else 0):
            good = _good_copy(image, logical, number, wrong.sum) if number != copy else None
            if good is not None:
                wrong.heal(good, f"copy {number}", "checksum and place")
                break
        yield wrong


def _good_copy(image: DamagedImage, logical: int, copy: int, wanted: bytes) -> memoryview | None:
    try:
        data = image.data(logical, image.sectorsize, copy)
    except CorruptImageError:
        return None
    return data if csum(image.superblock.csum_type, data) == wanted else None


def same_place(other: DamagedImage, wrong: Wrong) -> memoryview | None:
    """Return the right sector where another image of the filesystem has it at the same address."""
    for number in range(_placed(other, wrong.logical)):
        good = _good_copy(other, wrong.logical, number, wrong.sum)
        if good is not None:
            return good
    return None


# ---------------------------------------------------------------------------------------- files --

Places = dict[int, set[tuple[bytes, int]]]
"""Of each sector by its address the files: path in the subvolume, byte of the file."""


def files_of(state: State, logical: npt.NDArray[np.uint64]) -> tuple[Places, dict[int, str]]:
    """Find the files that sectors belong to.

    `logical`: their addresses, ascending.
    Returns `places`: of what is not compressed, where it would be written.
    Returns `paths`: one path of each, from the top of its subvolume, with the subvolume's number.
    """
    places: Places = {}
    paths: dict[int, str] = {}
    for number in state.subvolume_ids if len(logical) else ():
        saved = SavedSubvolume(state, number, lambda *_: None)
        columns = saved.of(ItemType.EXTENT_DATA)
        columns = select(columns, columns["size"] >= FILE_EXTENT_ITEM.size)
        rows = gather(state.image, columns, FILE_EXTENT_ITEM.size).view(FILE_EXTENT_ITEM.dtype)
        rows = rows.reshape(-1)
        ends = rows["disk_bytenr"] + rows["disk_num_bytes"]
        low, high = np.searchsorted(logical, rows["disk_bytenr"]), np.searchsorted(logical, ends)
        hits = np.flatnonzero((rows["type"] == 1) & (low < high))
        if not len(hits):
            continue
        named = {found.ino: found.path for found in saved.walk(saved.root_dir, b"")}
        for hit in hits.tolist():
            row, name = rows[hit], named.get(int(columns["objectid"][hit]))
            if name is None:
                continue
            for address in logical[low[hit] : high[hit]].tolist():
                text = name.decode("utf-8", "surrogateescape")
                paths.setdefault(address, f"subvolume {number}: {text}")
                within = address - int(row["disk_bytenr"]) - int(row["offset"])
                if not row["compression"]:
                    at = int(columns["offset"][hit]) + within
                    places.setdefault(address, set()).add((name, at))
    return places, paths
