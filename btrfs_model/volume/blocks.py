# SPDX-License-Identifier: GPL-2.0-only
"""Reading tree blocks. Beside ``native/image/image.c`` and ``native/image/cache.c``.

A block is verified as a whole before anything in it is used: the header (checksum, address,
filesystem), the number of items, the order of keys, and for a leaf that each item's data lies
inside it, packed from the end without gaps or overlaps. What the parent says (level, generation) is
compared at each read. A child is always one level below its parent, so no walk goes in circles.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.limits import Limits
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.ondisk.hashes import csum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from btrfs_model.ondisk.chunks import Chunk
    from btrfs_model.ondisk.superblock import SuperBlock

# the plain structs: what is read here is read very often
HEADER = structs.HEADER.struct
"""csum, fsid, bytenr, flags, chunk_tree_uuid, generation, owner, nritems, level."""
ITEM = structs.ITEM.struct
"""key (objectid, type, offset), offset of the data from byte 101, size of the data."""
KEY_PTR = structs.KEY_PTR.struct
"""key (objectid, type, offset), blockptr, generation."""


class _Fail(Protocol):
    """Makes the error for a block, with its place."""

    def __call__(
        self, code: int, slot: int = 0, found: int = 0, wanted: int = 0
    ) -> CorruptImageError: ...


class LeafChecker(Protocol):
    """Checks the items of a leaf."""

    def check_leaf(self, leaf: memoryview) -> Fault | None:
        """Return what is wrong with them, or None (``btrfs_check_leaf()``)."""


class Device(Protocol):
    """What is asked of the image that blocks are read from.

    It is a :class:`btrfs_model.volume.image.Image`, where all of this is described.
    """

    path: str
    nodesize: int
    sectorsize: int
    superblock: SuperBlock
    checks_items: bool
    verified_by_twin: set[int]
    is_unwritten: Callable[[int], bool]

    @property
    def store(self) -> LeafChecker:
        """The image as C knows it."""

    @property
    def view(self) -> memoryview:
        """All bytes of the device."""

    @property
    def reads(self) -> ReadCache | None:
        """The cold cache that reads go through."""

    def chunk_at(self, logical: int) -> Chunk | None:
        """Return the chunk that holds an address."""

    def map(self, logical: int, copy: int = 0) -> tuple[int, int]:
        """Return where a copy of an address is on the device, and how many bytes follow it."""

    def data(self, logical: int, length: int, copy: int = 0) -> memoryview:
        """Return bytes of a copy, wherever they lie."""

    def byte_of_device(self, place: int) -> tuple[int, int]:
        """Return the devid, 0 where there is but one, and the byte of the device of a place."""

    def own_block(self, physical: int) -> memoryview:
        """Return a block where it can be verified and will stay."""


class Expect(NamedTuple):
    """What the parent says of a block; 0 and -1 stand for anything."""

    tree: int = 0
    generation: int = 0
    level: int = -1


def image_block(image: Device, logical: int, expect: Expect) -> memoryview:
    """Return the first good copy of a tree block; raise the fault of the first copy otherwise."""
    try:
        return read_copy(image, logical, 0, expect)
    except CorruptImageError as first:
        chunk = image.chunk_at(logical)
        for copy in range(1, chunk.copies if chunk else 0):
            try:
                return read_copy(image, logical, copy, expect)
            except CorruptImageError:
                continue
        raise first


def block(
    image: Device, logical: int, *, level: int = -1, generation: int = 0, tree: int = 0
) -> memoryview:
    """Do what :meth:`.Image.block` does."""
    return image_block(image, logical, Expect(tree, generation, level))


def verify_copy(
    image: Device, logical: int, copy: int, *, level: int = -1, generation: int = 0, tree: int = 0
) -> None:
    """Do what :meth:`.Image.verify_copy` does."""
    read_copy(image, logical, copy, Expect(tree, generation, level), again=True)


def read_copy(
    image: Device, logical: int, copy: int, expect: Expect, *, again: bool = False
) -> memoryview:
    """Return one copy of a tree block, verified now if it was not before (or `again`)."""

    def fail(code: int, slot: int = 0, found: int = 0, wanted: int = 0) -> CorruptImageError:
        device, at = image.byte_of_device(physical)
        return CorruptImageError(
            image.path, Fault(code, expect.tree, logical, slot, at, found, wanted, device)
        )

    physical = contiguous = 0
    if logical % image.sectorsize:
        raise fail(Code.UNALIGNED, found=logical)
    chunk = image.chunk_at(logical)
    try:
        if chunk is None or not chunk.width or copy < chunk.placed:
            physical, contiguous = image.map(logical, copy)
        if contiguous < image.nodesize and chunk is not None and chunk.width:
            # it lies in no single place, and is verified each time
            block = image.data(logical, image.nodesize, copy)
            verify_structure(image, block, logical, fail)
            return _expected(block, expect, fail)
    except CorruptImageError as error:
        raise fail(error.fault.code, error.fault.slot, error.fault.found, error.fault.wanted
                   ) from None  # fmt: skip
    if contiguous < image.nodesize:
        raise fail(Code.PAST_END, 0, physical + image.nodesize, physical + contiguous)
    # a block is known as verified by what starts at its sector
    if physical % image.sectorsize:
        raise fail(Code.UNALIGNED, found=physical)
    is_verified = physical in image.verified_by_twin or image.is_unwritten(physical)
    if again and is_verified:
        # what is in the file now, without a change of what is in use
        block = memoryview(bytes(image.view[physical : physical + image.nodesize]))
    else:
        block = image.own_block(physical)
    if again or not is_verified:
        verify_structure(image, block, logical, fail)
        image.verified_by_twin.add(physical)
    return _expected(block, expect, fail)


def _expected(block: memoryview, expect: Expect, fail: _Fail) -> memoryview:
    """Compare a block with what its parent says."""
    _, _, _, _, _, generation, _, _, level = HEADER.unpack_from(block)
    if expect.level >= 0 and level != expect.level:
        raise fail(Code.BAD_LEVEL, found=level, wanted=expect.level)
    if expect.generation and generation != expect.generation:
        raise fail(Code.BAD_GENERATION, found=generation, wanted=expect.generation)
    return block


def verify_structure(image: Device, block: memoryview, logical: int, fail: _Fail) -> None:
    """Check everything about a block that does not depend on who points at it."""
    stored, fsid, bytenr, _, _, _, _, nritems, level = HEADER.unpack_from(block)
    computed = csum(image.superblock.csum_type, block[32:])
    if stored[: len(computed)] != computed:
        raise fail(
            Code.BAD_CSUM,
            found=int.from_bytes(stored[: min(8, len(computed))], "little"),
            wanted=int.from_bytes(computed[:8], "little"),
        )
    if bytenr != logical:
        raise fail(Code.BAD_BYTENR, found=bytenr, wanted=logical)
    if fsid != image.superblock.tree_fsid:
        raise fail(Code.BAD_FSID)
    if level >= BTRFS_MAX_LEVEL:
        raise fail(Code.BAD_LEVEL, found=level, wanted=BTRFS_MAX_LEVEL - 1)
    room = (image.nodesize - HEADER.size) // (KEY_PTR.size if level else ITEM.size)
    if nritems > room or (level and not nritems):
        raise fail(Code.BAD_NRITEMS, found=nritems, wanted=room)
    before = (-1, 0, 0)
    end = image.nodesize - HEADER.size
    for slot in range(nritems):
        if level:
            *key, blockptr, _ = KEY_PTR.unpack_from(block, HEADER.size + slot * KEY_PTR.size)
        else:
            *key, offset, size = ITEM.unpack_from(block, HEADER.size + slot * ITEM.size)
        if tuple(key) <= before:
            raise fail(Code.BAD_KEY_ORDER, slot)
        before = tuple(key)
        if level:
            if not blockptr or blockptr % image.sectorsize:
                raise fail(Code.BAD_BLOCKPTR, slot, blockptr)
        else:
            if offset + size != end or offset < (slot + 1) * ITEM.size:
                raise fail(Code.BAD_ITEM_RANGE, slot, offset + size, end)
            end = offset
    if not level and end < nritems * ITEM.size:
        raise fail(Code.BAD_ITEM_RANGE, nritems - 1, end, nritems * ITEM.size)
    if image.checks_items and not level:
        bad = image.store.check_leaf(block)
        if bad is not None:
            raise fail(bad.code, bad.slot, bad.found, bad.wanted)


class ReadBy(IntEnum):
    """Functions of the kernel that issue reads, those above ``read_block_for_search()``."""

    btrfs_search_slot = 0
    btrfs_next_old_leaf = 1
    reada_for_search = 2
    btrfs_read_node_slot = 3
    tree_move_down = 4
    read_tree_block = 5
    readahead_tree_node_children = 6


class ReadCache:
    """The extent buffers of a cold kernel: which blocks were read so far, and in which order.

    `limits` (Limits): how far is read ahead.
    `held` (set of int): addresses of the blocks that are cached or under way.
    `reads` (dict of int to list): by address, in the order of submission: [generation, level,
    ahead, by, used, used_at].
    `events` (int): reads, and first uses of blocks that were read ahead.
    """

    def __init__(self, cached: Iterable[int], limits: Limits | None = None) -> None:
        self.held = set(cached)
        self.limits = limits or Limits()
        self.reads: dict[int, list[int]] = {}
        self.events = 0

    def cache_reads(self) -> list[tuple[int, ...]]:
        """Return the reads as rows of ``struct bm_read``."""
        return [(logical, *row) for logical, row in self.reads.items()]

    def submit(
        self,
        logical: int,
        generation: int,
        level: int,
        ahead: bool,
        by: ReadBy,
    ) -> None:
        """Read a block unless it is there; from now on it counts as cached.

        Who does not read ahead uses the block.
        """
        if logical not in self.held:
            self.held.add(logical)
            self.events += 1
            used_at = 0 if ahead else self.events
            self.reads[logical] = [generation, level, ahead, by, not ahead, used_at]
            current().count("submit_bio")
        elif not ahead and logical in self.reads and not self.reads[logical][-2]:
            self.events += 1
            self.reads[logical][-2:] = [True, self.events]
