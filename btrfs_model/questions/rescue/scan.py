# SPDX-License-Identifier: GPL-2.0-only
"""Tree blocks that are found without a tree: every sector of the devices is looked at.

A block is one whose checksum is good and whose header has the fsid and an address. What is found
this way may be of any commit: nothing points at most of it any more.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.errors import BtrfsModelError, NotBtrfsError
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.ondisk.hashes import CSUM_SIZES, csum
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import DEV_ITEM, HEADER, ITEM, KEY_PTR, DevItem
from btrfs_model.ondisk.superblock import SuperBlock

FOUND: Final = np.dtype([
    ("place", "u8"), ("bytenr", "u8"), ("generation", "u8"), ("owner", "u8"), ("nritems", "u4"),
    ("level", "u1"),
])  # fmt: skip
"""A block that was found; `place` is a byte of the image."""

Blocks = npt.NDArray[np.void]
_STEP: Final = 64 << 20
_SECTOR: Final = 4096
_NODESIZES: Final = tuple(4096 << shift for shift in range(5))
_ENOUGH: Final = 64
# MIXED_BACKREF_REV, WRITTEN; RELOC may be there too
_FLAGS: Final = np.uint64(1 << 56 | 1)
_ANY_FLAGS: Final = np.uint64(2**64 - 1 - 2)


Ranges = list[tuple[int, int]]
"""First byte, and that behind the last, of what of an image is no hole."""


def ranges_of(path: str, start: int, size: int) -> Ranges:
    """Return where a file that is in an image has data; all of what has no holes, as a device.

    `start`, `size`: where in the image it is.
    """
    found: Ranges = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at = 0
        while at < size:
            at = os.lseek(fd, at, os.SEEK_DATA)
            end = min(os.lseek(fd, at, os.SEEK_HOLE), size)
            found.append((start + at // _SECTOR * _SECTOR, start + end))
            at = end
    except OSError as error:
        # ENXIO: the rest is a hole
        if error.errno != errno.ENXIO:
            return [(start, start + size)]
    finally:
        os.close(fd)
    return found


def _columns(view: memoryview, ranges: Ranges) -> Iterator[tuple[int, Any]]:
    """Yield pieces of the image: the byte at which each starts, and a reader of header fields."""
    for first, last in ranges:
        for base in range(first, last, _STEP):
            count = (min(base + _STEP, last) - base) // _SECTOR

            def field(at: int, kind: str, base: int = base, count: int = count) -> npt.NDArray[Any]:
                return np.ndarray((count,), kind, view, base + at, (_SECTOR,))

            if count:
                yield base, field


def scan_blocks(view: memoryview, sb: SuperBlock, ranges: Ranges) -> Blocks:
    """Find all tree blocks of a filesystem.

    `view`: all bytes of its devices.
    `ranges`: what of them is looked at.
    `sb`: whose fsid, node size and checksum type count.
    Returns rows of :data:`FOUND`, by `place`. Their items were not looked at.
    """
    low, high = np.frombuffer(sb.tree_fsid, "<u8")
    rows = []
    for base, field in _columns(view, ranges):
        hits = np.flatnonzero((field(32, "<u8") == low) & (field(40, "<u8") == high))
        for place in (base + hits * _SECTOR).tolist():
            block = view[place : place + sb.nodesize]
            if len(block) < sb.nodesize:
                continue
            stored, _, bytenr, _, _, generation, owner, nritems, level = HEADER.struct.unpack_from(
                block
            )
            good = level < BTRFS_MAX_LEVEL and not bytenr % sb.sectorsize
            computed = csum(sb.csum_type, block[32:]) if good else b"\xff"
            if stored[: len(computed)] == computed:
                rows.append((place, bytenr, generation, owner, nritems, level))
    return np.array(rows, FOUND)


class FoundItem(NamedTuple):
    """An item of a leaf that was found, and the generation of that leaf."""

    key: Key
    data: memoryview
    generation: int


def items_of(
    view: memoryview, sb: SuperBlock, blocks: Blocks, owner: int, kind: int
) -> list[FoundItem]:
    """Return the items of a type in the leaves of a tree, the newest of each key, by key."""
    mine = blocks[(blocks["owner"] == owner) & (blocks["level"] == 0)]
    newest: dict[Key, FoundItem] = {}
    for row in np.sort(mine, order="generation", kind="stable"):
        place, room = int(row["place"]), (sb.nodesize - HEADER.size) // ITEM.size
        block = view[place : place + sb.nodesize]
        for slot in range(min(int(row["nritems"]), room)):
            *key, at, size = ITEM.struct.unpack_from(block, HEADER.size + slot * ITEM.size)
            start = HEADER.size + at
            if key[1] == kind and start + size <= sb.nodesize:
                data = block[start : start + size]
                newest[Key(*key)] = FoundItem(Key(*key), data, int(row["generation"]))
    return [newest[key] for key in sorted(newest)]


def tops(
    view: memoryview, sb: SuperBlock, blocks: Blocks, owner: int
) -> list[tuple[int, int, int]]:
    """Return the roots that a tree had: address, generation and level, the newest first.

    A commit writes each block between what changed and the root anew. So of the blocks of one
    generation the root is the one that no other points at; of several the highest is taken.
    """
    mine = blocks[blocks["owner"] == owner]
    below: set[tuple[int, int]] = set()
    for row in mine[mine["level"] > 0]:
        place, room = int(row["place"]), (sb.nodesize - HEADER.size) // KEY_PTR.size
        count = min(int(row["nritems"]), room)
        pointers = np.frombuffer(view, KEY_PTR.dtype, count, place + HEADER.size)
        below.update(zip(pointers["blockptr"].tolist(), pointers["generation"].tolist(),
                         strict=True))  # fmt: skip
    best: dict[int, tuple[int, int, int]] = {}
    for row in mine:
        top = int(row["bytenr"]), int(row["generation"]), int(row["level"])
        if top[:2] not in below and top[2] >= best.get(top[1], (0, 0, -1))[2]:
            best[top[1]] = top
    return [best[generation] for generation in sorted(best, reverse=True)]


# ---------------------------------------------------------------------------- no superblock ----


def guess_superblock(view: memoryview, path: str, why: NotBtrfsError | Exception) -> SuperBlock:
    """Make a superblock of what the tree blocks of a device say.

    Node size and kind of checksum are those by which most blocks are good.

    `view`: the device.
    `why`: what is wrong with its superblocks.
    Raises NotBtrfsError: when there are no tree blocks either.
    Raises BtrfsModelError: for a device of several.
    """
    ranges = ranges_of(path, 0, len(view))
    votes = _votes(view, ranges)
    if not votes:
        raise NotBtrfsError(path, f"there is no tree block in it, and {_text(why)}") from None
    (fsid, nodesize, kind), _ = votes.most_common(1)[0]
    made = SuperBlock(
        offset=0, copies=(), fsid=fsid, tree_fsid=fsid, metadata_uuid=fsid, flags=1, generation=0,
        root=0, root_level=0, chunk_root=0, chunk_root_level=0, chunk_root_generation=0,
        log_root=0, log_root_level=0, total_bytes=len(view), bytes_used=0, num_devices=1,
        stripesize=_SECTOR, sectorsize=_SECTOR, nodesize=nodesize, compat_flags=0,
        compat_ro_flags=0, incompat_flags=0, csum_type=kind, dev_item=DEV_ITEM.unpack(
            bytes(DEV_ITEM.size)), label="", cache_generation=0, uuid_tree_generation=0,
        sys_chunks=(), backups=(),
    )  # fmt: skip
    blocks = scan_blocks(view, made, ranges)
    fields: dict[str, Any] = {"dev_item": _device(view, made, blocks, path)}
    for owner, name in ((ObjectId.ROOT_TREE, "root"), (ObjectId.CHUNK_TREE, "chunk_root")):
        newest = tops(view, made, blocks, owner)
        if newest:
            fields |= {name: newest[0][0], f"{name}_level": newest[0][2]}
            key = "generation" if name == "root" else "chunk_root_generation"
            fields[key] = newest[0][1]
    if (blocks["owner"] == ObjectId.RAID_STRIPE_TREE).any():
        fields["incompat_flags"] = 1 << 14
    return replace(made, **fields)


def _text(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _device(view: memoryview, sb: SuperBlock, blocks: Blocks, path: str) -> DevItem:
    """Return the device item of the sole device, as the chunk tree has it, or an empty one."""
    found = []
    for item in items_of(view, sb, blocks, ObjectId.CHUNK_TREE, ItemType.DEV_ITEM):
        with suppress(PayloadError):
            found.append(DEV_ITEM.unpack(item.data))
    if len(found) > 1:
        raise BtrfsModelError(f"{path}: one device of several, and no superblock says which")
    return found[0] if found else sb.dev_item._replace(devid=1, total_bytes=len(view))


def _votes(view: memoryview, ranges: Ranges) -> Counter[tuple[bytes, int, int]]:
    """Count for which fsid, node size and kind of checksum blocks are good."""
    votes: Counter[tuple[bytes, int, int]] = Counter()
    for base, field in _columns(view, ranges):
        flags, bytenr = field(56, "<u8"), field(48, "<u8")
        hits = (flags & _ANY_FLAGS == _FLAGS) & (bytenr % np.uint64(_SECTOR) == 0)
        hits &= field(100, "u1") < BTRFS_MAX_LEVEL
        for place in (base + np.flatnonzero(hits) * _SECTOR).tolist():
            for nodesize in _NODESIZES:
                block = view[place : place + nodesize]
                if len(block) < nodesize:
                    break
                for kind, size in CSUM_SIZES.items():
                    if csum(kind, block[32:]) == bytes(block[:size]):
                        votes[bytes(block[32:48]), nodesize, kind] += 1
            if votes.total() >= _ENOUGH:
                return votes
    return votes
