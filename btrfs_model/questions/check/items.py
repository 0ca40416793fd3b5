# SPDX-License-Identifier: GPL-2.0-only
"""Items one by one: does each make sense by itself, as the kernel's ``tree-checker.c`` asks.

All rules work on whole arrays: payloads of one type are gathered, and a rule is a mask of those
that break it. What items say of each other is for :mod:`btrfs_model.questions.check.extents` and
:mod:`btrfs_model.questions.check.inodes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.native.items import Columns, entries, extent_refs, records, select
from btrfs_model.ondisk.constants import Compression, FileExtentType, FileType
from btrfs_model.ondisk.keys import MAX_KEY, ItemType, ObjectId
from btrfs_model.ondisk.structs import (
    BLOCK_GROUP_ITEM,
    CHUNK,
    DEV_EXTENT,
    DEV_ITEM,
    EXTENT_ITEM,
    FILE_EXTENT_ITEM,
    INODE_ITEM,
    ROOT_ITEM,
    ROOT_REF,
    STRIPE,
)
from btrfs_model.questions.check.report import Report
from btrfs_model.volume.image import Image
from btrfs_model.volume.roots import is_subvolume_id

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

_OF_INODES: Final = {
    _T.INODE_ITEM, _T.INODE_REF, _T.INODE_EXTREF, _T.XATTR_ITEM, _T.VERITY_DESC_ITEM,
    _T.VERITY_MERKLE_ITEM, _T.ORPHAN_ITEM, _T.DIR_ITEM, _T.DIR_INDEX, _T.EXTENT_DATA,
}  # fmt: skip
_OF_EXTENTS: Final = {
    _T.EXTENT_ITEM, _T.METADATA_ITEM, _T.TREE_BLOCK_REF, _T.EXTENT_DATA_REF, _T.SHARED_BLOCK_REF,
    _T.SHARED_DATA_REF, _T.BLOCK_GROUP_ITEM,
}  # fmt: skip
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
    ObjectId.UUID_TREE: {_T.UUID_KEY_SUBVOL, _T.UUID_KEY_RECEIVED_SUBVOL},
    ObjectId.FREE_SPACE_TREE: {_T.FREE_SPACE_INFO, _T.FREE_SPACE_EXTENT, _T.FREE_SPACE_BITMAP},
    ObjectId.BLOCK_GROUP_TREE: {_T.BLOCK_GROUP_ITEM},
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

_S_IFMT: Final = 0o170000
_S_IFDIR: Final = 0o040000
_PERMISSIONS: Final = 0o7777
_MODES: Final = (0o010000, 0o020000, 0o040000, 0o060000, 0o100000, 0o120000, 0o140000)
_INODE_FLAGS: Final = (1 << 12) - 1 | 1 << 31 | 1 << 32
_ROOT_FLAGS: Final = 1 << 0 | 1 << 48
_NAME_MAX: Final = 255
_MAX_LEVEL: Final = 8


class ItemChecker:
    """Checks the items of some trees, batch by batch.

    Parameters
    ----------
    image : Image
        Where they are.
    report : Report
        For what is wrong.
    """

    def __init__(self, image: Image, report: Report) -> None:
        self.image = image
        self.report = report
        self.sectorsize = np.uint64(image.sectorsize)
        # of what the log of an fsync brought, the transaction is not committed yet
        self.newest = image.superblock.generation + 1

    def check(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        """Check items; `tree` is the tree of each."""
        self._types(columns, tree)
        fitting = self._sizes(columns, tree)
        for types, rule in _RULES:
            rows = np.flatnonzero(np.isin(columns["type"], types) & fitting)
            if len(rows):
                rule(self, select(columns, rows), tree[rows])

    def _bad(self, kind: str, columns: Columns, mask: Mask, tree: Any, **values: Any) -> None:
        if mask.any():
            self.report.rows(kind, columns, mask, tree, **values)

    def _types(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        for objectid in np.unique(tree).tolist():
            allowed = _OF_INODES if is_subvolume_id(objectid) else _TREES.get(objectid)
            if allowed is None:
                continue
            bad = (tree == objectid) & ~np.isin(columns["type"], [int(kind) for kind in allowed])
            # free space headers and their inodes have no type
            bad &= ~((columns["type"] == 0) & (columns["objectid"] == ObjectId.FREE_SPACE))
            known = np.isin(columns["type"], list(_SIZES))
            self._bad("type does not belong into this tree", columns, bad & known, objectid)
            self._bad(
                "unknown item type {type}",
                columns,
                bad & ~known,
                objectid,
                type=columns["type"],
            )

    def _sizes(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> Mask:
        """Report payloads of impossible size; return which are possible."""
        least = np.zeros(256, np.uint32)
        most = np.full(256, 2**32 - 1, np.uint32)
        for number, (low, high) in _SIZES.items():
            least[number] = low
            if high is not None:
                most[number] = high
        size, kind = columns["size"], columns["type"]
        bad: Mask = (size < least[kind]) | (size > most[kind])
        self._bad("payload of {size} bytes", columns, bad, tree, size=size)
        return ~bad

    # ------------------------------------------------------------------------------ inodes --

    def _inode_items(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        rows = records(self.image, columns, INODE_ITEM)
        mode = rows["mode"]
        self._bad("key offset of an inode is not 0", columns, columns["offset"] != 0, tree)
        self._bad(
            "mode {mode:o} has no file type or unknown bits",
            columns,
            ~np.isin(mode & ~np.uint32(_PERMISSIONS), _MODES),
            tree,
            mode=mode,
        )
        for field in ("generation", "transid"):
            self._bad(
                f"inode {field} {{value}} is newer than the filesystem",
                columns,
                rows[field] > self.newest,
                tree,
                value=rows[field],
            )
        self._bad(
            "directory with {nlink} links",
            columns,
            (mode & _S_IFMT == _S_IFDIR) & (rows["nlink"] > 1),
            tree,
            nlink=rows["nlink"],
        )
        self._bad(
            "inode flags {flags:#x} have unknown bits",
            columns,
            rows["flags"] & np.uint64(MAX_KEY.offset - _INODE_FLAGS) != 0,
            tree,
            flags=rows["flags"],
        )

    def _names(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        rows, bad = entries(self.image, columns)
        self._bad("names do not fit their item", columns, bad != 0, tree)
        item = rows["item"]
        kind = columns["type"][item]
        of_entry = select(columns, item)
        trees = tree[item]
        length = rows["name_len"]
        too_long = (length > _NAME_MAX) | (length == 0)
        self._bad("name of {length} bytes", of_entry, too_long, trees, length=length)
        hashed = np.isin(kind, (_T.DIR_ITEM, _T.XATTR_ITEM, _T.INODE_EXTREF))
        wrong = hashed & (rows["name_hash"] != of_entry["offset"])
        self._bad("hash of the name is {found}", of_entry, wrong, trees, found=rows["name_hash"])
        together = np.bincount(item, minlength=len(columns["type"]))[item]
        several = (kind == _T.DIR_INDEX) & (together > 1)
        self._bad("several entries in a DIR_INDEX", of_entry, several, trees)
        self._dir_entries(of_entry, rows, kind, trees)

    def _dir_entries(
        self, columns: Columns, rows: npt.NDArray[np.void], kind: Any, tree: Any
    ) -> None:
        entry = np.isin(kind, (_T.DIR_ITEM, _T.DIR_INDEX, _T.XATTR_ITEM))
        xattr = kind == _T.XATTR_ITEM
        is_xattr = rows["type"] == FileType.XATTR
        wrong = entry & ((rows["type"] > FileType.XATTR) | (xattr != is_xattr))
        self._bad("entry of type {type}", columns, wrong, tree, type=rows["type"])
        self._bad(
            "entry with {length} bytes of data",
            columns,
            entry & ~xattr & (rows["data_len"] != 0),
            tree,
            length=rows["data_len"],
        )
        location = rows["location_type"]
        leads = np.isin(location, (_T.INODE_ITEM, _T.ROOT_ITEM))
        # an attribute leads nowhere
        leads = np.where(xattr, (location == 0) & (rows["child"] == 0), leads)
        self._bad(
            "entry leads to a key of type {type}", columns, entry & ~leads, tree, type=location
        )

    # -------------------------------------------------------------------------------- data --

    def _file_extents(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        rows = records(self.image, columns, FILE_EXTENT_ITEM)
        kind, size = rows["type"], columns["size"]
        sector = self.sectorsize
        inline = kind == FileExtentType.INLINE

        def bad(text: str, mask: Mask, **values: Any) -> None:
            self._bad(text, columns, mask, tree, **values)

        bad("file extent of type {type}", kind > FileExtentType.PREALLOC, type=kind)
        bad(
            "compression {number}",
            rows["compression"] > Compression.ZSTD,
            number=rows["compression"],
        )
        bad("encryption {number}", rows["encryption"] != 0, number=rows["encryption"])
        newer = rows["generation"] > self.newest
        bad("file extent of generation {value}", newer, value=rows["generation"])
        bad("file position is not aligned", columns["offset"] % sector != 0)
        bad("inline extent beyond position 0", inline & (columns["offset"] != 0))
        plain = inline & (rows["compression"] == 0)
        bad(
            "inline extent of {ram} bytes has other data",
            plain & (rows["ram_bytes"] + 21 != size),
            ram=rows["ram_bytes"],
        )
        wrong_size = ~inline & (size != FILE_EXTENT_ITEM.size)
        bad("file extent item of {size} bytes", wrong_size, size=size)
        whole = ~inline & ~wrong_size
        for field in ("ram_bytes", "disk_bytenr", "disk_num_bytes", "offset", "num_bytes"):
            value = rows[field]
            bad(f"{field} {{value}} is not aligned", whole & (value % sector != 0), value=value)
        bad("file extent of no bytes", whole & (rows["num_bytes"] == 0))
        ends = columns["offset"] + rows["num_bytes"]
        bad("file extent ends beyond 2^64", whole & (ends < columns["offset"]))
        self._extent_part(columns, rows, whole & (rows["disk_bytenr"] != 0), tree)

    def _extent_part(self, columns: Columns, rows: Any, there: Mask, tree: Any) -> None:
        """Check that a file extent shows a part of what its extent on disk holds."""
        compressed = rows["compression"] != 0
        holds = np.where(compressed, rows["ram_bytes"], rows["disk_num_bytes"])
        end = rows["offset"] + rows["num_bytes"]
        self._bad(
            "file extent shows bytes up to {end} of an extent of {holds}",
            columns,
            there & ((end > holds) | (end < rows["offset"])),
            tree,
            end=end,
            holds=holds,
        )

    def _checksums(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        size = self.image.superblock.csum_size
        wrong = columns["objectid"] != ObjectId.EXTENT_CSUM
        self._bad("checksums with another objectid", columns, wrong, tree)
        unaligned = columns["offset"] % self.sectorsize != 0
        self._bad("checksums of an address that is not aligned", columns, unaligned, tree)
        ragged = columns["size"] % size != 0
        self._bad("size is no multiple of a checksum's", columns, ragged, tree)

    # ------------------------------------------------------------------------------- roots --

    def _root_items(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        rows = records(self.image, columns, ROOT_ITEM)

        def bad(text: str, mask: Mask, **values: Any) -> None:
            self._bad(text, columns, mask, tree, **values)

        size = columns["size"]
        odd = ~np.isin(size, (239, ROOT_ITEM.size))
        bad("root item of {size} bytes", odd, size=size)
        objectid, offset = columns["objectid"], columns["offset"]
        by_offset = (tree != ObjectId.TREE_LOG) & np.isin(objectid, _ROOTS_AT_0)
        bad("key offset of a root is not 0", by_offset & (offset != 0))
        bad(
            "relocation tree of tree {of}, which is no subvolume",
            (objectid == ObjectId.TREE_RELOC)
            & ~np.array([is_subvolume_id(number) for number in offset.tolist()], np.bool_),
            of=offset,
        )
        for field in ("generation", "generation_v2", "last_snapshot"):
            value = rows[field]
            bad(f"root {field} {{value}} is newer than the filesystem", value > self.newest,
                value=value)  # fmt: skip
        bytenr = rows["bytenr"]
        bad("root at {bytenr} is not aligned", bytenr % self.sectorsize != 0, bytenr=bytenr)
        for field in ("level", "drop_level"):
            value = rows[field]
            bad(f"root {field} {{value}}", value >= _MAX_LEVEL, value=value)
        flags = rows["flags"]
        bad("root flags {flags:#x} have unknown bits",
            flags & np.uint64(MAX_KEY.offset - _ROOT_FLAGS) != 0, flags=flags)  # fmt: skip

    def _root_refs(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        head = records(self.image, columns, ROOT_REF)
        wrong = head["name_len"].astype(np.uint32) + ROOT_REF.size != columns["size"]
        self._bad("name does not fit its item", columns, wrong, tree)

    # ----------------------------------------------------------------------------- extents --

    def _extent_items(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        rows = records(self.image, columns, EXTENT_ITEM)
        flags, sector = rows["flags"], self.sectorsize

        def bad(text: str, mask: Mask, **values: Any) -> None:
            self._bad(text, columns, mask, tree, **values)

        metadata = columns["type"] == _T.METADATA_ITEM
        bad("extent address is not aligned", columns["objectid"] % sector != 0)
        level = columns["offset"]
        bad("tree block of level {level}", metadata & (level >= _MAX_LEVEL), level=level)
        unaligned = ~metadata & ((level % sector != 0) | (level == 0))
        bad("extent of {length} bytes", unaligned, length=level)
        data, block = flags & 1 != 0, flags & 2 != 0
        known = flags & np.uint64(MAX_KEY.offset - 0x103) == 0
        bad("extent flags {flags:#x}", (data == block) | ~known | (metadata & data), flags=flags)
        newer = rows["generation"] > self.newest
        bad("extent of generation {value}", newer, value=rows["generation"])
        bad("extent without references", rows["refs"] == 0)
        self._ref_order(columns, tree)

    def _ref_order(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        """Check that inline references ascend by type and descend by sequence within one."""
        refs, unfit = extent_refs(self.image, columns)
        self._bad("inline references do not fit their item", columns, unfit != 0, tree)
        if len(refs) < 2:
            return
        before, after = refs[:-1], refs[1:]
        same = before["item"] == after["item"]
        falls = before["type"] > after["type"]
        rises = (before["type"] == after["type"]) & (before["sequence"] < after["sequence"])
        rows = np.unique(after["item"][same & (falls | rises)])
        if len(rows):
            self.report.rows("inline references are out of order", columns, rows, tree)

    def _keyed_refs(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        refs, unfit = extent_refs(self.image, columns)
        self._bad("reference does not fit its item", columns, unfit != 0, tree)
        of_ref = select(columns, refs["item"])
        unaligned = of_ref["objectid"] % self.sectorsize != 0
        self._bad("extent address is not aligned", of_ref, unaligned, tree[refs["item"]])
        self._bad("reference counts 0", of_ref, refs["count"] == 0, tree[refs["item"]])

    def _block_groups(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        rows = records(self.image, columns, BLOCK_GROUP_ITEM)
        self._bad(
            "block group of {length} bytes has {used} used",
            columns,
            rows["used"] > columns["offset"],
            tree,
            length=columns["offset"],
            used=rows["used"],
        )
        # FIRST_CHUNK_TREE, under which chunk items stand
        wrong = rows["chunk_objectid"] != ObjectId.FIRST_FREE
        self._bad("chunk objectid {value}", columns, wrong, tree, value=rows["chunk_objectid"])

    def _chunks(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        """Check what opening the image did not need of chunks."""
        rows = records(self.image, columns, CHUNK)
        superblock = self.image.superblock

        def bad(text: str, mask: Mask, **values: Any) -> None:
            self._bad(text, columns, mask, tree, **values)

        owner, sector_size = rows["owner"], rows["sector_size"]
        bad("chunk is owned by tree {owner}", owner != ObjectId.EXTENT_TREE, owner=owner)
        wrong = sector_size != superblock.sectorsize
        bad("chunk of sector size {size}", wrong, size=sector_size)
        uuid = np.frombuffer(superblock.dev_item.uuid, np.uint8)
        for stripe in range(2):
            # the second stripe follows the structure with the first
            at = CHUNK.size - STRIPE.size + stripe * STRIPE.size
            part = dict(columns, position=columns["position"] + np.uint64(at))
            other = (records(self.image, part, STRIPE)["dev_uuid"] != uuid).any(axis=1)
            bad("stripe lies on an unknown device", (rows["num_stripes"] > stripe) & other)

    def _devices(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        rows = records(self.image, columns, DEV_ITEM)
        item = self.image.superblock.dev_item
        for field in ("devid", "total_bytes", "sector_size"):
            value, wanted = rows[field], getattr(item, field)
            self._bad(
                f"device item has {field} {{value}}, the superblock {wanted}",
                columns,
                value != wanted,
                tree,
                value=value,
            )
        for field in ("uuid", "fsid"):
            wrong = (rows[field] != np.frombuffer(getattr(item, field), np.uint8)).any(axis=1)
            self._bad(f"device item has another {field} than the superblock", columns, wrong, tree)

    def _dev_extents(self, columns: Columns, tree: npt.NDArray[np.uint64]) -> None:
        rows = records(self.image, columns, DEV_EXTENT)
        foreign = columns["objectid"] != self.image.superblock.dev_item.devid
        self._bad("device extent of an unknown device", columns, foreign, tree)
        wrong = rows["chunk_tree"] != ObjectId.CHUNK_TREE
        self._bad("device extent of another chunk tree", columns, wrong, tree)
        unaligned = (columns["offset"] | rows["length"]) % self.sectorsize != 0
        self._bad("device extent is not aligned", columns, unaligned, tree)


_Rule = Callable[[ItemChecker, Columns, npt.NDArray[np.uint64]], None]
_RULES: Final[list[tuple[tuple[int, ...], _Rule]]] = [
    ((_T.INODE_ITEM,), ItemChecker._inode_items),
    (
        (_T.INODE_REF, _T.INODE_EXTREF, _T.XATTR_ITEM, _T.DIR_ITEM, _T.DIR_INDEX),
        ItemChecker._names,
    ),
    ((_T.EXTENT_DATA,), ItemChecker._file_extents),
    ((_T.EXTENT_CSUM,), ItemChecker._checksums),
    ((_T.ROOT_ITEM,), ItemChecker._root_items),
    ((_T.ROOT_REF, _T.ROOT_BACKREF), ItemChecker._root_refs),
    ((_T.EXTENT_ITEM, _T.METADATA_ITEM), ItemChecker._extent_items),
    (
        (_T.TREE_BLOCK_REF, _T.EXTENT_DATA_REF, _T.SHARED_BLOCK_REF, _T.SHARED_DATA_REF),
        ItemChecker._keyed_refs,
    ),
    ((_T.BLOCK_GROUP_ITEM,), ItemChecker._block_groups),
    ((_T.DEV_EXTENT,), ItemChecker._dev_extents),
    ((_T.CHUNK_ITEM,), ItemChecker._chunks),
    ((_T.DEV_ITEM,), ItemChecker._devices),
]
