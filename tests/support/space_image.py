# SPDX-License-Identifier: GPL-2.0-only
"""A writer on an image of nothing but block groups, and what its extent tree must say.

The judge is a walk of all trees: a block refers to what it points at by its owner's id, or by its
own address once its extent item says FULL_BACKREF; a tree refers to its root block.
"""

import struct
from collections import Counter
from itertools import pairwise

from bare import image_of

from btrfs_model.mount.tree_writer import TreeWriter
from btrfs_model.native.door import lib
from btrfs_model.ondisk.hashes import crc32c
from btrfs_model.volume.image import Image

TRANSID = 7
SECTOR = 4096
METADATA = 16 << 20
ROOT_TREE, EXTENT, CSUM = 1, 2, 7

DATA_REF, SHARED_DATA = lib.BTRFS_EXTENT_DATA_REF_KEY, lib.BTRFS_SHARED_DATA_REF_KEY
BLOCK_REF, SHARED_BLOCK = lib.BTRFS_TREE_BLOCK_REF_KEY, lib.BTRFS_SHARED_BLOCK_REF_KEY
EXTENT_ITEM, METADATA_ITEM = lib.BTRFS_EXTENT_ITEM_KEY, lib.BTRFS_METADATA_ITEM_KEY
EXTENT_DATA = lib.BTRFS_EXTENT_DATA_KEY
FULL_BACKREF = lib.BTRFS_BLOCK_FLAG_FULL_BACKREF

Ref = tuple[int, ...]


def image(groups: list[tuple[int, int, int]], nodesize: int) -> Image:
    """Return an image with chunks of (start, length, flags); nothing is in them."""
    return image_of([(*group, [group[0]]) for group in groups], nodesize)


def writer(
    metadata: int = 32 << 20,
    data: int = 32 << 20,
    *,
    nodesize: int = 4096,
    features: int = lib.BM_WRITER_SKINNY_METADATA,
    ssd: bool = False,
    trees: tuple[int, ...] = (EXTENT, CSUM),
) -> TreeWriter:
    """Return a writer with a group of METADATA, then one of DATA, and empty trees."""
    groups = [(METADATA, metadata, 4), (METADATA + metadata, data, 1)]
    made = image(groups, nodesize)
    result = TreeWriter(made, made.buffer, transid=TRANSID, features=features, ssd=ssd)
    for group in groups:
        result.add_group(*group)
    for tree in trees:
        result.new_tree(tree)
    return result


def inline_refs(data: bytes, at: int) -> list[tuple[Ref, int]]:
    """Inline references from byte `at` of a payload on, and their counts."""
    refs = []
    while at < len(data):
        kind = data[at]
        if kind == DATA_REF:
            *fields, count = struct.unpack_from("<QQQI", data, at + 1)
            refs.append(((kind, *fields), count))
            at += 29
        elif kind == SHARED_DATA:
            parent, count = struct.unpack_from("<QI", data, at + 1)
            refs.append(((kind, parent), count))
            at += 13
        else:
            assert kind in (BLOCK_REF, SHARED_BLOCK), kind
            refs.append(((kind, *struct.unpack_from("<Q", data, at + 1)), 1))
            at += 9
    assert at == len(data)
    return refs


def _crc32c(seed: int, value: int) -> int:
    return crc32c(seed, struct.pack("<Q", value))


def data_ref_hash(root: int, ino: int, offset: int) -> int:
    """``hash_extent_data_ref()``."""
    low = _crc32c(_crc32c(0xFFFFFFFF, ino), offset)
    return _crc32c(0xFFFFFFFF, root) << 31 ^ low


def _order(ref: Ref) -> tuple[int, int]:
    value = data_ref_hash(*ref[1:]) if ref[0] == DATA_REF else ref[1]
    return ref[0], -value


class Extents:
    """The extent tree, decoded; `refs` maps (bytenr, type, ...) to counts."""

    def __init__(self, writer: TreeWriter) -> None:
        self.refs: Counter[Ref] = Counter()
        self.sizes: dict[int, int] = {}
        self.flags: dict[int, int] = {}
        self.heads: dict[int, tuple[int, int | None]] = {}
        self.keyed = 0
        nodesize = writer.image.nodesize
        self.limit = (nodesize - 101) // 16 - 25
        totals = {}
        for item in writer.tree(EXTENT).items():
            bytenr, kind, offset = item.key
            data = bytes(item.data)
            if kind in (EXTENT_ITEM, METADATA_ITEM):
                totals[bytenr] = self._item(bytenr, kind, offset, data, nodesize)
                continue
            if kind == lib.BTRFS_BLOCK_GROUP_ITEM_KEY:
                continue
            self.keyed += 1
            assert bytenr in self.flags
            if kind == DATA_REF:
                *fields, count = struct.unpack("<QQQI", data)
                assert 0 <= offset - data_ref_hash(*fields) < 3
                self.refs[(bytenr, kind, *fields)] += count
            elif kind == SHARED_DATA:
                self.refs[bytenr, kind, offset] += struct.unpack("<I", data)[0]
            else:
                assert kind in (BLOCK_REF, SHARED_BLOCK) and not data
                self.refs[bytenr, kind, offset] += 1
        counted: Counter[int] = Counter()
        for ref, count in self.refs.items():
            assert count > 0
            counted[ref[0]] += count
        assert counted == totals

    def _item(self, bytenr: int, kind: int, offset: int, data: bytes, nodesize: int) -> int:
        refs, generation, flags = struct.unpack_from("<QQQ", data)
        start, level = 24, None
        is_block = flags & 3 == 2
        if kind == METADATA_ITEM:
            assert is_block
            level = offset
        elif is_block:
            assert offset == nodesize
            level, start = data[41], 42
        assert len(data) < max(self.limit, start + 30)
        inline = inline_refs(data, start)
        assert [ref for ref, _ in inline] == sorted((ref for ref, _ in inline), key=_order)
        for ref, count in inline:
            self.refs[(bytenr, *ref)] += count
        self.sizes[bytenr] = nodesize if is_block else offset
        self.flags[bytenr] = flags
        self.heads[bytenr] = generation, level
        return int(refs)


def check(writer: TreeWriter, *, reserved: int = 0) -> Extents:
    """Compare the extent tree and the block groups with a walk of all trees, none waiting."""
    assert writer.waiting_refs() == 0
    extents = Extents(writer)
    wanted: Counter[Ref] = Counter()
    heads = {}
    seen = set()
    nodesize = writer.image.nodesize

    def visit(bytenr: int, generation: int, level: int, has_data: bool) -> None:
        if bytenr in seen:
            return
        seen.add(bytenr)
        block = bytes(writer.image.block(bytenr, level=level, generation=generation))
        owner, count = struct.unpack_from("<QI", block, 88)
        heads[bytenr] = generation, level
        full = extents.flags[bytenr] & FULL_BACKREF
        for slot in range(count):
            if level:
                child, child_generation = struct.unpack_from("<QQ", block, 101 + 33 * slot + 17)
                kind = (SHARED_BLOCK, bytenr) if full else (BLOCK_REF, owner)
                wanted[(child, *kind)] += 1
                visit(child, child_generation, level - 1, has_data)
                continue
            ino, kind, offset, at, size = struct.unpack_from("<QBQII", block, 101 + 25 * slot)
            if kind != EXTENT_DATA or not has_data:
                continue
            data = block[101 + at : 101 + at + size]
            if data[20] == lib.BTRFS_FILE_EXTENT_INLINE:
                continue
            disk, _, extent_offset = struct.unpack_from("<QQQ", data, 21)
            if not disk:
                continue
            offset = (offset - extent_offset) % 2**64
            wanted[
                (disk, SHARED_DATA, bytenr) if full else (disk, DATA_REF, owner, ino, offset)
            ] += 1

    for tree in writer.tree_ids():
        state = writer.tree_state(tree)
        wanted[state.bytenr, BLOCK_REF, state.owner] += 1
        # of the trees that cannot be shared the root tree has data: the free space cache
        has_data = state.shareable or tree == ROOT_TREE
        visit(state.bytenr, state.generation, state.level, has_data)
    assert extents.refs == wanted, (extents.refs - wanted, wanted - extents.refs)
    blocks = {bytenr for bytenr, flags in extents.flags.items() if flags & 3 == 2}
    assert blocks == seen
    assert {bytenr: extents.heads[bytenr] for bytenr in blocks} == heads
    used = sum(extents.sizes.values())
    assert used == sum(group.used for group in writer.groups())
    assert dict.fromkeys(blocks, nodesize).items() <= extents.sizes.items()
    ends = sorted((start, start + size) for start, size in extents.sizes.items())
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    return extents


def commit(writer: TreeWriter) -> None:
    """End the transaction, as far as trees and space go."""
    writer.run_refs()
    writer.write_blocks()
    writer.unpin()
    for tree in writer.tree_ids():
        writer.change_tree(tree, force_cow=False)
    writer.set_transid(writer.transid + 1)
