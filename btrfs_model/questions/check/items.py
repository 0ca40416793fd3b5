# SPDX-License-Identifier: GPL-2.0-only
"""Items one by one: does each make sense by itself, as the kernel's ``tree-checker.c`` asks.

All rules work on whole arrays: payloads of one type are gathered, and a rule is a mask of those
that break it. What items say of each other is for :mod:`btrfs_model.questions.check.extents` and
:mod:`btrfs_model.questions.check.inodes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from string import Formatter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.native.items import (
    Columns,
    entries,
    extent_refs,
    is_among,
    is_one_of,
    records,
    screen_leaves,
    select,
)
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import Compression, FileExtentType, FileType
from btrfs_model.ondisk.keys import MAX_KEY, ItemType, ObjectId
from btrfs_model.ondisk.layout import Layout
from btrfs_model.questions.check.report import Report
from btrfs_model.volume.image import Image
from btrfs_model.volume.roots import is_subvolume_id, may_be_relocated

Mask = npt.NDArray[np.bool_]

_T = ItemType

# The least and the largest payload of each type; None: what fits into a leaf.
_SIZES: Final[dict[int, tuple[int, int | None]]] = {
    _T.INODE_ITEM: (160, 160),
    _T.INODE_REF: (11, None),
    _T.INODE_EXTREF: (19, None),
    _T.XATTR_ITEM: (31, None),
    _T.VERITY_DESC_ITEM: (1, None),
    _T.VERITY_MERKLE_ITEM: (1, None),
    _T.ORPHAN_ITEM: (0, 0),
    _T.DIR_LOG_ITEM: (8, 8),
    _T.DIR_LOG_INDEX: (8, 8),
    _T.DIR_ITEM: (31, None),
    _T.DIR_INDEX: (31, None),
    _T.EXTENT_DATA: (21, None),
    _T.EXTENT_CSUM: (1, None),
    _T.ROOT_ITEM: (239, 439),
    _T.ROOT_BACKREF: (19, None),
    _T.ROOT_REF: (19, None),
    _T.EXTENT_ITEM: (24, None),
    _T.METADATA_ITEM: (24, None),
    _T.TREE_BLOCK_REF: (0, 0),
    _T.EXTENT_DATA_REF: (28, 28),
    _T.SHARED_BLOCK_REF: (0, 0),
    _T.SHARED_DATA_REF: (4, 4),
    _T.BLOCK_GROUP_ITEM: (24, 24),
    _T.FREE_SPACE_INFO: (8, 8),
    _T.FREE_SPACE_EXTENT: (0, 0),
    _T.FREE_SPACE_BITMAP: (1, None),
    _T.RAID_STRIPE: (16, 64),
    _T.DEV_EXTENT: (48, 48),
    _T.DEV_ITEM: (98, 98),
    _T.CHUNK_ITEM: (80, None),
    _T.QGROUP_STATUS: (32, 40),
    _T.QGROUP_INFO: (40, 40),
    _T.QGROUP_LIMIT: (40, 40),
    _T.QGROUP_RELATION: (0, 0),
    _T.TEMPORARY_ITEM: (0, None),
    _T.PERSISTENT_ITEM: (0, None),
    _T.DEV_REPLACE: (72, 80),
    _T.UUID_KEY_SUBVOL: (8, None),
    _T.UUID_KEY_RECEIVED_SUBVOL: (8, None),
    _T.STRING_ITEM: (0, None),
}

_LEAST: Final = np.zeros(256, np.uint32)
_MOST: Final = np.full(256, 2**32 - 1, np.uint32)
for _number, (_low, _high) in _SIZES.items():
    _LEAST[_number], _MOST[_number] = _low, 2**32 - 1 if _high is None else _high

_OF_NAMES: Final = (_T.INODE_REF, _T.INODE_EXTREF, _T.XATTR_ITEM, _T.DIR_ITEM, _T.DIR_INDEX)
_OF_INODES: Final = {
    *_OF_NAMES, _T.INODE_ITEM, _T.VERITY_DESC_ITEM, _T.VERITY_MERKLE_ITEM, _T.ORPHAN_ITEM,
    _T.EXTENT_DATA,
}  # fmt: skip
_OF_REFS: Final = (
    _T.TREE_BLOCK_REF, _T.EXTENT_DATA_REF, _T.SHARED_BLOCK_REF, _T.SHARED_DATA_REF,
)  # fmt: skip
_OF_EXTENTS: Final = {*_OF_REFS, _T.EXTENT_ITEM, _T.METADATA_ITEM, _T.BLOCK_GROUP_ITEM}
# Which types belong into which tree.
_TREES: Final[dict[int, set[ItemType]]] = {
    # 0 stands for FREE_SPACE headers, which have no type of their own
    ObjectId.ROOT_TREE: _OF_INODES
    | {_T.ROOT_ITEM, _T.ROOT_REF, _T.ROOT_BACKREF, _T.TEMPORARY_ITEM, _T.PERSISTENT_ITEM},
    ObjectId.EXTENT_TREE: _OF_EXTENTS,
    ObjectId.CHUNK_TREE: {_T.DEV_ITEM, _T.CHUNK_ITEM},
    ObjectId.DEV_TREE: {_T.DEV_EXTENT, _T.PERSISTENT_ITEM, _T.DEV_REPLACE},
    ObjectId.CSUM_TREE: {_T.EXTENT_CSUM},
    ObjectId.QUOTA_TREE: {
        _T.QGROUP_STATUS, _T.QGROUP_INFO, _T.QGROUP_LIMIT, _T.QGROUP_RELATION,
    },
    # btrfs-progs of 4.16 and later left a top directory in it
    ObjectId.UUID_TREE: {
        _T.UUID_KEY_SUBVOL, _T.UUID_KEY_RECEIVED_SUBVOL, _T.INODE_ITEM, _T.INODE_REF,
    },
    ObjectId.FREE_SPACE_TREE: {_T.FREE_SPACE_INFO, _T.FREE_SPACE_EXTENT, _T.FREE_SPACE_BITMAP},
    ObjectId.BLOCK_GROUP_TREE: {_T.BLOCK_GROUP_ITEM},
    ObjectId.RAID_STRIPE_TREE: {_T.RAID_STRIPE},
    ObjectId.DATA_RELOC_TREE: _OF_INODES,
    ObjectId.TREE_LOG: _OF_INODES
    | {_T.DIR_LOG_ITEM, _T.DIR_LOG_INDEX, _T.EXTENT_CSUM, _T.ROOT_ITEM},
}  # fmt: skip

# Roots that a kernel looks up by the whole key. It takes the last one of the other trees: mkfs and
# btrfs-convert give the relocation of data another offset.
_ROOTS_AT_0: Final = (
    ObjectId.EXTENT_TREE, ObjectId.DEV_TREE, ObjectId.CSUM_TREE, ObjectId.QUOTA_TREE,
    ObjectId.UUID_TREE, ObjectId.FREE_SPACE_TREE, ObjectId.BLOCK_GROUP_TREE,
)  # fmt: skip

_S_IFMT, _S_IFDIR = 0o170000, 0o040000
_IS_MODE: Final = is_among(np.arange(16), (0o01, 0o02, 0o04, 0o06, 0o10, 0o12, 0o14))
_INODE_FLAGS: Final = (1 << 12) - 1 | 1 << 31 | 1 << 32
_ROOT_FLAGS: Final = 1 << 0 | 1 << 48
_NAME_MAX: Final = 255
_MAX_LEVEL: Final = 8


# Types whose rules ``native/tree/screen.c`` knows.
_SCREENED: Final = {
    _T.INODE_ITEM, _T.INODE_REF, _T.DIR_ITEM, _T.DIR_INDEX, _T.XATTR_ITEM, _T.EXTENT_DATA,
    _T.EXTENT_CSUM, _T.EXTENT_ITEM, _T.METADATA_ITEM,
}  # fmt: skip


class _Rows(Columns):
    """Some rows of columns, each column taken when it is asked for."""

    def __init__(self, columns: Columns, rows: npt.NDArray[Any]) -> None:
        self._columns, self._rows = columns, rows

    def __missing__(self, name: str) -> npt.NDArray[Any]:
        taken: npt.NDArray[Any] = self._columns[name][self._rows]
        self[name] = taken
        return taken


def _newest(image: Image) -> int:
    # of what the log of an fsync brought, the transaction is not committed yet
    return image.superblock.generation + 1


class Batch:
    """Items of some types, looked at together.

    `image`: where they are.
    `report`: for what is wrong.
    `columns`: the items.
    `tree`: the tree of each.
    `rows`: a structure for each, whose fields messages name.
    """

    def __init__(
        self, image: Image, report: Report, columns: Columns, tree: Any, rows: Any = None
    ) -> None:
        self.image, self.report = image, report
        self.columns, self.tree, self.rows = columns, tree, rows
        self.sectorsize = np.uint64(image.sectorsize)
        self.newest = _newest(image)

    def part(self, which: npt.NDArray[Any], rows: Any = None) -> Batch:
        """Return some of the items, or one again and again for several structures in it."""
        columns = _Rows(self.columns, which)
        return Batch(self.image, self.report, columns, self.tree[which], rows)

    def bad(self, text: str, mask: Mask, **values: Any) -> None:
        """Report items; `values` has what the text names and is no field of the structures."""
        if not mask.any():
            return
        for _, name, *_ in Formatter().parse(text):
            if name and name not in values:
                values[name] = self.rows[name]
        self.report.rows(text, self.columns, mask, self.tree, **values)


def screen(
    image: Image, blocks: npt.NDArray[np.void], tree: npt.NDArray[np.uint64]
) -> tuple[Mask, npt.NDArray[np.void]]:
    """Tell by a quick look in which leaves no item breaks a rule, and gather file extents of all.

    `tree`: that of each leaf.
    """
    trees, tables = np.unique(tree, return_inverse=True)
    kinds = [ObjectId.FS_TREE if is_subvolume_id(one) else one for one in trees.tolist()]
    passes = np.stack([_passes(kind) for kind in kinds])
    return screen_leaves(
        image, blocks, tables.astype(np.uint16), passes, least=_LEAST.tolist(),
        most=_MOST.tolist(), newest=min(_newest(image), MAX_KEY.offset),
    )  # fmt: skip


@cache
def _passes(tree: int) -> npt.NDArray[np.uint8]:
    """Return for each type whether items of it are right in a tree where C finds nothing odd."""
    allowed = _allowed(tree)
    ruled = {number for types, _, _ in _RULES for number in types}
    return np.array(
        [(allowed is None or number in allowed) and (number not in ruled or number in _SCREENED)
         for number in range(256)], np.uint8,
    )  # fmt: skip


def check_items(
    image: Image, report: Report, columns: Columns, tree: npt.NDArray[np.uint64]
) -> None:
    """Check items of which each is in a tree of `tree`."""
    items = Batch(image, report, columns, tree)
    kind = columns["type"]
    counts = np.bincount(kind, minlength=256)
    _types(items, set(np.flatnonzero(counts).tolist()))
    fitting = _sizes(items)
    # the items of each type, which follow each other there
    order, ends = np.argsort(kind, kind="stable"), np.cumsum(counts)
    if not fitting.all():
        order, ends = order[fitting[order]], np.cumsum(np.bincount(kind[fitting], minlength=256))
    starts = ends - np.diff(ends, prepend=0)
    for types, layout, rule in _RULES:
        which = np.concatenate([order[starts[number] : ends[number]] for number in types])
        if len(which):
            some = items.part(np.sort(which) if len(types) > 1 else which)
            some.rows = None if layout is None else records(image, some.columns, layout)
            rule(some)


def _allowed(tree: int) -> set[ItemType] | None:
    """Return the types that a tree may have; None: any."""
    return _OF_INODES if is_subvolume_id(tree) else _TREES.get(tree)


def _types(items: Batch, there: set[int]) -> None:
    """Report items whose type the tree does not have; `there`: the types of all."""
    tree, kind = items.tree, items.columns["type"]
    follows = np.append(tree[1:] == tree[:-1], [False])
    for objectid in sorted(set(tree[~follows].tolist())):
        allowed = _allowed(objectid)
        if allowed is None or there <= allowed:
            continue
        bad = (tree == objectid) & ~is_one_of(kind, [int(number) for number in allowed])
        # free space headers and their inodes have no type
        bad &= ~((kind == 0) & (items.columns["objectid"] == ObjectId.FREE_SPACE))
        known = is_one_of(kind, list(_SIZES))
        items.bad("type does not belong into this tree", bad & known)
        items.bad("unknown item type {type}", bad & ~known, type=kind)


def _sizes(items: Batch) -> Mask:
    """Report payloads of impossible size; return which are possible."""
    size, kind = items.columns["size"], items.columns["type"]
    bad: Mask = (size < _LEAST[kind]) | (size > _MOST[kind])
    items.bad("payload of {size} bytes", bad, size=size)
    return ~bad


# -------------------------------------------------------------------------------------- inodes --


def _inode_items(items: Batch) -> None:
    rows = items.rows
    mode, flags = rows["mode"], rows["flags"]
    items.bad("key offset of an inode is not 0", items.columns["offset"] != 0)
    unknown = (mode >> 16 != 0) | ~_IS_MODE[mode >> 12 & 15]
    items.bad("mode {mode:o} has no file type or unknown bits", unknown)
    for field in ("generation", "transid"):
        newer = rows[field] > items.newest
        items.bad(f"inode {field} {{{field}}} is newer than the filesystem", newer)
    several = (mode & _S_IFMT == _S_IFDIR) & (rows["nlink"] > 1)
    items.bad("directory with {nlink} links", several)
    unknown = flags & np.uint64(MAX_KEY.offset - _INODE_FLAGS) != 0
    items.bad("inode flags {flags:#x} have unknown bits", unknown)


def _names(items: Batch) -> None:
    rows, bad = entries(items.image, items.columns)
    items.bad("names do not fit their item", bad != 0)
    item, length = rows["item"], rows["name_len"]
    names = items.part(item, rows)
    kind = names.columns["type"]
    names.bad("name of {name_len} bytes", (length > _NAME_MAX) | (length == 0))
    hashed = is_one_of(kind, (_T.DIR_ITEM, _T.XATTR_ITEM, _T.INODE_EXTREF))
    wrong = hashed & (rows["name_hash"] != names.columns["offset"])
    names.bad("hash of the name is {name_hash}", wrong)
    together = np.bincount(item, minlength=len(bad))[item]
    names.bad("several entries in a DIR_INDEX", (kind == _T.DIR_INDEX) & (together > 1))
    by_name = np.stack([item.astype(np.uint64), rows["name_xxh64"]])
    twice = np.ones(len(item), np.bool_)
    twice[np.unique(by_name, axis=1, return_index=True)[1]] = False
    names.bad("two entries of one name", twice & (kind == _T.DIR_ITEM))
    _dir_entries(names)


def _dir_entries(names: Batch) -> None:
    rows, kind = names.rows, names.columns["type"]
    entry = is_one_of(kind, (_T.DIR_ITEM, _T.DIR_INDEX, _T.XATTR_ITEM))
    xattr = kind == _T.XATTR_ITEM
    is_xattr = rows["type"] == FileType.XATTR
    wrong = entry & ((rows["type"] > FileType.XATTR) | (xattr != is_xattr))
    names.bad("entry of type {type}", wrong)
    names.bad("entry with {data_len} bytes of data", entry & ~xattr & (rows["data_len"] != 0))
    location = rows["location_type"]
    leads = is_one_of(location, (_T.INODE_ITEM, _T.ROOT_ITEM))
    # an attribute leads nowhere
    leads = np.where(xattr, (location == 0) & (rows["child"] == 0), leads)
    names.bad("entry leads to a key of type {location_type}", entry & ~leads)


# ---------------------------------------------------------------------------------------- data --


def _file_extents(items: Batch) -> None:
    rows, columns, bad = items.rows, items.columns, items.bad
    kind, size, sector = rows["type"], columns["size"], items.sectorsize
    inline = kind == FileExtentType.INLINE
    bad("file extent of type {type}", kind > FileExtentType.PREALLOC)
    bad("compression {compression}", rows["compression"] > Compression.ZSTD)
    bad("encryption {encryption}", rows["encryption"] != 0)
    bad("file extent of generation {generation}", rows["generation"] > items.newest)
    bad("file position is not aligned", columns["offset"] % sector != 0)
    bad("inline extent beyond position 0", inline & (columns["offset"] != 0))
    other = inline & (rows["compression"] == 0) & (rows["ram_bytes"] + 21 != size)
    bad("inline extent of {ram_bytes} bytes has other data", other)
    wrong_size = ~inline & (size != structs.FILE_EXTENT_ITEM.size)
    bad("file extent item of {size} bytes", wrong_size, size=size)
    whole = ~inline & ~wrong_size
    for field in ("ram_bytes", "disk_bytenr", "disk_num_bytes", "offset", "num_bytes"):
        bad(f"{field} {{{field}}} is not aligned", whole & (rows[field] % sector != 0))
    bad("file extent of no bytes", whole & (rows["num_bytes"] == 0))
    ends = columns["offset"] + rows["num_bytes"]
    bad("file extent ends beyond 2^64", whole & (ends < columns["offset"]))
    # it shows a part of what its extent on disk holds
    holds = np.where(rows["compression"] != 0, rows["ram_bytes"], rows["disk_num_bytes"])
    end = rows["offset"] + rows["num_bytes"]
    beyond = whole & (rows["disk_bytenr"] != 0) & ((end > holds) | (end < rows["offset"]))
    bad("file extent shows bytes up to {end} of an extent of {holds}", beyond, end=end,
        holds=holds)  # fmt: skip


def _checksums(items: Batch) -> None:
    columns = items.columns
    items.bad("checksums with another objectid", columns["objectid"] != ObjectId.EXTENT_CSUM)
    unaligned = columns["offset"] % items.sectorsize != 0
    items.bad("checksums of an address that is not aligned", unaligned)
    ragged = columns["size"] % items.image.superblock.csum_size != 0
    items.bad("size is no multiple of a checksum's", ragged)


# --------------------------------------------------------------------------------------- roots --


def _root_items(items: Batch) -> None:
    rows, bad = items.rows, items.bad
    size, objectid, offset = (items.columns[name] for name in ("size", "objectid", "offset"))
    bad("root item of {size} bytes", ~is_among(size, (239, structs.ROOT_ITEM.size)), size=size)
    by_offset = (items.tree != ObjectId.TREE_LOG) & is_among(objectid, _ROOTS_AT_0)
    bad("key offset of a root is not 0", by_offset & (offset != 0))
    foreign = ~np.array([may_be_relocated(number) for number in offset.tolist()], np.bool_)
    foreign &= objectid == ObjectId.TREE_RELOC
    bad("relocation tree of tree {of}, which is no subvolume", foreign, of=offset)
    for field in ("generation", "generation_v2", "last_snapshot"):
        newer = rows[field] > items.newest
        bad(f"root {field} {{{field}}} is newer than the filesystem", newer)
    bad("root at {bytenr} is not aligned", rows["bytenr"] % items.sectorsize != 0)
    for field in ("level", "drop_level"):
        bad(f"root {field} {{{field}}}", rows[field] >= _MAX_LEVEL)
    unknown = rows["flags"] & np.uint64(MAX_KEY.offset - _ROOT_FLAGS) != 0
    bad("root flags {flags:#x} have unknown bits", unknown)


def _root_refs(items: Batch) -> None:
    length = items.rows["name_len"].astype(np.uint32)
    items.bad("name does not fit its item", length + structs.ROOT_REF.size != items.columns["size"])


# ------------------------------------------------------------------------------------- extents --


def _extent_items(items: Batch) -> None:
    columns, bad, sector = items.columns, items.bad, items.sectorsize
    flags = items.rows["flags"]
    metadata = columns["type"] == _T.METADATA_ITEM
    bad("extent address is not aligned", columns["objectid"] % sector != 0)
    level = columns["offset"]
    bad("tree block of level {level}", metadata & (level >= _MAX_LEVEL), level=level)
    unaligned = ~metadata & ((level % sector != 0) | (level == 0))
    bad("extent of {length} bytes", unaligned, length=level)
    data, block = flags & 1 != 0, flags & 2 != 0
    known = flags & np.uint64(MAX_KEY.offset - 0x103) == 0
    bad("extent flags {flags:#x}", (data == block) | ~known | (metadata & data))
    bad("extent of generation {generation}", items.rows["generation"] > items.newest)
    bad("extent without references", items.rows["refs"] == 0)
    _ref_order(items)


def _ref_order(items: Batch) -> None:
    """Check that inline references ascend by type and descend by sequence within one."""
    refs, unfit = extent_refs(items.image, items.columns)
    items.bad("inline references do not fit their item", unfit != 0)
    if len(refs) < 2:
        return
    before, after = refs[:-1], refs[1:]
    same = before["item"] == after["item"]
    falls = before["type"] > after["type"]
    rises = (before["type"] == after["type"]) & (before["sequence"] < after["sequence"])
    disorder = np.zeros(len(unfit), np.bool_)
    disorder[after["item"][same & (falls | rises)]] = True
    items.bad("inline references are out of order", disorder)


def _keyed_refs(items: Batch) -> None:
    rows, unfit = extent_refs(items.image, items.columns)
    items.bad("reference does not fit its item", unfit != 0)
    refs = items.part(rows["item"], rows)
    unaligned = refs.columns["objectid"] % items.sectorsize != 0
    refs.bad("extent address is not aligned", unaligned)
    refs.bad("reference counts 0", rows["count"] == 0)


def _block_groups(items: Batch) -> None:
    length, used = items.columns["offset"], items.rows["used"]
    items.bad("block group of {length} bytes has {used} used", used > length, length=length)
    # FIRST_CHUNK_TREE, under which chunk items stand
    wrong = items.rows["chunk_objectid"] != ObjectId.FIRST_FREE
    items.bad("chunk objectid {chunk_objectid}", wrong)


def _chunks(items: Batch) -> None:
    """Check what opening the image did not need of chunks."""
    rows, superblock = items.rows, items.image.superblock
    items.bad("chunk is owned by tree {owner}", rows["owner"] != ObjectId.EXTENT_TREE)
    items.bad("chunk of sector size {sector_size}", rows["sector_size"] != superblock.sectorsize)
    uuids = {device.devid: device.uuid for device in items.image.devices}
    for stripe in range(int(rows["num_stripes"].max(initial=0))):
        there = np.flatnonzero(rows["num_stripes"] > stripe)
        # further stripes follow the structure with the first
        at = structs.CHUNK.size - structs.STRIPE.size + stripe * structs.STRIPE.size
        columns = select(items.columns, there)
        part = dict(columns, position=columns["position"] + np.uint64(at))
        found = records(items.image, part, structs.STRIPE)
        other = np.zeros(len(rows), np.bool_)
        other[there] = [
            uuids.get(devid) != uuid.tobytes()
            for devid, uuid in zip(found["devid"].tolist(), found["dev_uuid"], strict=True)
        ]
        items.bad("stripe lies on an unknown device", other)


def _devices(items: Batch) -> None:
    rows = items.rows
    known = np.zeros(len(rows), np.bool_)
    for device in items.image.devices:
        mine = rows["devid"] == device.devid
        known |= mine
        if device.superblock is None:
            continue
        item = device.superblock.dev_item
        for field in ("total_bytes", "sector_size"):
            wanted = getattr(item, field)
            text = f"device item has {field} {{{field}}}, the superblock {wanted}"
            items.bad(text, mine & (rows[field] != wanted))
        for field in ("uuid", "fsid"):
            wrong = (rows[field] != np.frombuffer(getattr(item, field), np.uint8)).any(axis=1)
            items.bad(f"device item has another {field} than the superblock", mine & wrong)
    items.bad("device item of unknown device {devid}", ~known)


def _dev_extents(items: Batch) -> None:
    foreign = ~is_among(items.columns["objectid"], [one.devid for one in items.image.devices])
    items.bad("device extent of an unknown device", foreign)
    wrong = items.rows["chunk_tree"] != ObjectId.CHUNK_TREE
    items.bad("device extent of another chunk tree", wrong)
    unaligned = (items.columns["offset"] | items.rows["length"]) % items.sectorsize != 0
    items.bad("device extent is not aligned", unaligned)


# Types, the structure that their payloads begin with, and what must hold of them.
_RULES: Final[list[tuple[tuple[int, ...], Layout[Any] | None, Callable[[Batch], None]]]] = [
    ((_T.INODE_ITEM,), structs.INODE_ITEM, _inode_items),
    (_OF_NAMES, None, _names),
    ((_T.EXTENT_DATA,), structs.FILE_EXTENT_ITEM, _file_extents),
    ((_T.EXTENT_CSUM,), None, _checksums),
    ((_T.ROOT_ITEM,), structs.ROOT_ITEM, _root_items),
    ((_T.ROOT_REF, _T.ROOT_BACKREF), structs.ROOT_REF, _root_refs),
    ((_T.EXTENT_ITEM, _T.METADATA_ITEM), structs.EXTENT_ITEM, _extent_items),
    (_OF_REFS, None, _keyed_refs),
    ((_T.BLOCK_GROUP_ITEM,), structs.BLOCK_GROUP_ITEM, _block_groups),
    ((_T.DEV_EXTENT,), structs.DEV_EXTENT, _dev_extents),
    ((_T.CHUNK_ITEM,), structs.CHUNK, _chunks),
    ((_T.DEV_ITEM,), structs.DEV_ITEM, _devices),
]
