# SPDX-License-Identifier: GPL-2.0-only
"""An image that is opened whatever is wrong with it, as long as there is a tree block in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.base.errors import BtrfsModelError, CorruptImageError
from btrfs_model.ondisk.chunks import DUP, PROFILES, TYPES, Chunk, parse_chunk_item
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import BLOCK_GROUP_ITEM, DEV_EXTENT
from btrfs_model.ondisk.superblock import SuperBlock, read_superblocks
from btrfs_model.questions.rescue.scan import (
    Blocks,
    guess_superblock,
    items_of,
    ranges_of,
    scan_blocks,
)
from btrfs_model.questions.rescue.tree import SalvagedTree
from btrfs_model.volume.device.devices import with_missing
from btrfs_model.volume.image import Image

if TYPE_CHECKING:
    from btrfs_model.native.items import Columns

_SINGLE: Final = 0
_DATA, _SYSTEM = 1, 2


def superblock_of(view: memoryview, name: str) -> SuperBlock:
    """Return the newest good superblock of a device, or one that its tree blocks tell of.

    Raises NotBtrfsError: when it has neither.
    Raises UnsupportedError: as :func:`.read_superblocks`.
    """
    try:
        return read_superblocks(view, name, any_flags=True)
    except CorruptImageError as error:
        return guess_superblock(view, name, error)


class DamagedImage(Image):
    """The devices of a filesystem, whatever is wrong with them; see :class:`.Image`.

    Devices may be cut off or missing. Chunks come from the chunk tree and the superblock; where
    the tree has lost blocks, from the leaves of it, and of the tree of devices, that a scan finds.

    Attributes
    ----------
    notes : list of tuple
        What was made do without: kind, problem, where.
    """

    _superblock_of = staticmethod(superblock_of)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.notes: list[tuple[str, str, str]] = []
        super().__init__(*args, **kwargs)
        if not self.superblock.copies:
            what = "no copy of the superblock is good: what it says is made of tree blocks"
            self.notes.append(("superblock", what, self.path))
        for member in self.devices:
            if member.superblock and not member.superblock.copies and self.has_several:
                raise BtrfsModelError(
                    f"{member.path}: one device of several, and no superblock says which"
                )
            if member.superblock is None:
                self.notes.append(("device", "the device is missing", f"device {member.devid}"))
            elif member.size < (whole := member.superblock.dev_item.total_bytes):
                what = f"the device is cut off: it has {member.size} of {whole} bytes"
                self.notes.append(("device", what, member.path))

    @cached_property
    def found(self) -> Blocks:
        """All tree blocks that a scan of the devices finds."""
        ranges = [one for member in self.devices if member.path
                  for one in ranges_of(member.path, member.start, member.size)]  # fmt: skip
        return scan_blocks(self.view, self.superblock, ranges)

    def _set_chunks(self, chunks: Iterable[Chunk], strides: Iterable[Chunk] = ()) -> None:
        # of chunks that lie over each other, the first counts
        kept: list[Chunk] = []
        for chunk in sorted(chunks, key=lambda one: one.logical):
            if not kept or kept[-1].end <= chunk.logical:
                kept.append(chunk)
        super()._set_chunks(kept, strides)

    def _read_chunk_tree(self, *, degraded: bool) -> None:
        """Read chunks as far as that goes."""
        sb = self.superblock
        chunks = {chunk.logical: chunk for chunk in sb.sys_chunks}
        place = (sb.chunk_root, sb.chunk_root_generation, sb.chunk_root_level)
        is_whole = False
        if sb.sys_chunks:
            tree = SalvagedTree(self, ObjectId.CHUNK_TREE, *place)
            chunks |= self._in_tree(tree.scan())
            is_whole = tree.is_whole and any(not chunk.type & _SYSTEM for chunk in chunks.values())
        if not is_whole:
            self._add_found(chunks)
        tree_fsid = self.superblock.tree_fsid
        self.devices = with_missing(self.path, tree_fsid, self.devices, [], chunks.values())
        self._set_chunks(chunks.values())
        if self.superblock.has_incompat("RAID_STRIPE_TREE"):
            try:
                self._read_stripe_tree()
            except CorruptImageError as error:
                self.notes.append(("tree", "the raid-stripe-tree cannot be read: data that it "
                                   "places are lost", str(error.strerror)))  # fmt: skip

    def _in_tree(self, columns: Columns) -> dict[int, Chunk]:
        chunks: dict[int, Chunk] = {}
        rows = zip(*(columns[name].tolist() for name in ("objectid", "type", "offset", "position",
                                                         "size")), strict=True)  # fmt: skip
        for _, kind, offset, position, size in rows:
            if kind == ItemType.CHUNK_ITEM:
                self._parse(chunks, offset, self.block_bytes[position : position + size])
        return chunks

    def _parse(self, chunks: dict[int, Chunk], logical: int, payload: memoryview) -> None:
        try:
            chunks[logical] = parse_chunk_item(logical, payload, self.path)
        except CorruptImageError as error:
            self.notes.append(("chunk", str(error.strerror), f"chunk {logical}"))

    def _add_found(self, chunks: dict[int, Chunk]) -> None:
        """Add the chunks of leaves that a scan finds, and what device extents tell."""
        sb, before = self.superblock, len(chunks)
        for item in items_of(self.view, sb, self.found, ObjectId.CHUNK_TREE, ItemType.CHUNK_ITEM):
            if item.key.offset not in chunks:
                self._parse(chunks, item.key.offset, item.data)
        by_items = len(chunks) - before
        groups: dict[int, int] = {}
        for owner in (ObjectId.EXTENT_TREE, ObjectId.BLOCK_GROUP_TREE):
            for item in items_of(self.view, sb, self.found, owner, ItemType.BLOCK_GROUP_ITEM):
                with suppress(PayloadError):
                    groups[item.key.objectid] = BLOCK_GROUP_ITEM.unpack(item.data).flags
        by_extents = self._of_extents(chunks, groups)
        self.notes.append(("chunk tree", f"the chunk tree is damaged: {by_items} chunks are from "
                           f"leaves of it that a scan found, {by_extents} were made of device "
                           "extents", f"block {sb.chunk_root}"))  # fmt: skip

    def _of_extents(self, chunks: dict[int, Chunk], groups: dict[int, int]) -> int:
        """Make chunks of device extents, where these tell enough; return how many."""
        extents: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        taken: list[tuple[int, int, int]] = []
        kind = ItemType.DEV_EXTENT
        found = items_of(self.view, self.superblock, self.found, ObjectId.DEV_TREE, kind)
        for item in sorted(found, key=lambda one: -one.generation):
            try:
                extent = DEV_EXTENT.unpack(item.data)
            except PayloadError:
                continue
            devid, start = item.key.objectid, item.key.offset
            end = start + extent.length
            # an older one lies where another chunk is now
            if all(one != devid or end <= low or high <= start for one, low, high in taken):
                taken.append((devid, start, end))
                extents[extent.chunk_offset].append((devid, start, extent.length))
        before = len(chunks)
        for logical, stripes in extents.items():
            profile = _profile(stripes, groups.get(logical))
            odd = logical % 4096 or any(_is_odd(logical, *one[1:]) for one in stripes)
            if logical in chunks or profile is None or odd:
                continue
            if profile == _SINGLE:
                stripes = stripes[:1]
            devids, starts, lengths = zip(*stripes, strict=True)
            flags = profile | (groups.get(logical, _DATA) & TYPES or _DATA)
            chunks[logical] = Chunk(logical, min(lengths), flags, starts, devids,
                                    uuids=(bytes(16),) * len(starts))  # fmt: skip
        return len(chunks) - before


def _is_odd(logical: int, start: int, length: int) -> bool:
    """Whether no kernel has such a chunk (``btrfs_check_chunk_valid()``)."""
    return not length or max(logical, start) + length >= 1 << 64


def _profile(stripes: list[tuple[int, int, int]], flags: int | None) -> int | None:
    """Return the profile of a chunk that has these stripes; None where their order is unknown."""
    count = len(stripes)
    if flags is None:
        same = len({devid for devid, _, _ in stripes}) == 1
        return _SINGLE if count == 1 else DUP if count == 2 and same else None
    bit = flags & ~TYPES
    profile = PROFILES.get(bit)
    if profile is None:
        return None
    if not profile.is_striped:
        # of copies some may be unknown
        return bit if count == profile.copies else _SINGLE
    return _SINGLE if count == 1 and not profile.parity else None
