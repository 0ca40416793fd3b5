# SPDX-License-Identifier: GPL-2.0-only
"""What the file extents of all subvolumes refer to.

::

    file extents of a leaf    start           length
                              |---------------------------|
    the data extent    |------+---------------------------+----|
                       0      offset                           size (uncompressed)

A file extent shows a part of a data extent; what no file extent shows stays allocated all the same
as long as one shows the rest (a *bookend*). Compressed extents are counted in bytes of the file,
for `length` and `offset` are; `disk_num_bytes` is what lies on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.native.items import Columns, extent_refs, find_rows, records, scan_leaves, select
from btrfs_model.ondisk.constants import Compression, FileExtentType
from btrfs_model.ondisk.keys import MAX_KEY, ItemType, ObjectId
from btrfs_model.ondisk.structs import EXTENT_ITEM, FILE_EXTENT_HEAD, FILE_EXTENT_ITEM, INODE_ITEM
from btrfs_model.questions.usage.forest import MANY, NOBODY, FileForest, single_label
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree

_LEAVES_AT_ONCE: Final = 1024
# BTRFS_MAX_UNCOMPRESSED
_MAX_COMPRESSED: Final = 128 << 10
_WITH_REFS: Final = (ItemType.EXTENT_ITEM, ItemType.EXTENT_DATA_REF, ItemType.SHARED_DATA_REF)
_REGULAR_MODE: Final = 0o100000
_FORMAT: Final = 0o170000

U64 = npt.NDArray[np.uint64]

FILE_EXTENT: Final = np.dtype(
    [
        ("leaf", "u8"),
        ("slot", "u2"),
        ("inode", "u8"),
        ("start", "u8"),
        ("length", "u8"),
        ("type", "u1"),
        ("compression", "u1"),
        ("disk_bytenr", "u8"),
        ("disk_num_bytes", "u8"),
        ("offset", "u8"),
        ("size", "u8"),
        ("generation", "u8"),
    ]
)
"""A file extent; `size` is that of its data extent, uncompressed. Holes and inline data have
`disk_bytenr` 0."""


@dataclass
class FileItems:
    """Items of the leaves of the forest, each leaf once, leaf by leaf.

    `extents`: of :data:`FILE_EXTENT`: those that have an extent on disk.
    `inode_leaf`, `inode`: the leaf and number of each inode that is a regular file with a name.
    """

    extents: npt.NDArray[np.void]
    inode_leaf: U64
    inode: U64


def read_items(image: Image, leaves: U64) -> FileItems:
    """Read the file extents and inodes of leaves.

    Raises CorruptImageError: for a file extent that no kernel writes, and blocks that cannot be
    read.
    """
    parts: list[tuple[npt.NDArray[np.void], U64, U64]] = []
    for at in range(0, len(leaves), _LEAVES_AT_ONCE):
        columns = scan_leaves(image, leaves[at : at + _LEAVES_AT_ONCE])
        extents = file_extents(image, select(columns, columns["type"] == ItemType.EXTENT_DATA))
        inodes = select(columns, columns["type"] == ItemType.INODE_ITEM)
        raw = records(image, inodes, INODE_ITEM)
        files = (raw["mode"] & _FORMAT == _REGULAR_MODE) & (raw["nlink"] > 0)
        parts.append(
            (extents[extents["disk_bytenr"] != 0], inodes["block"][files],
             inodes["objectid"][files])
        )  # fmt: skip
    if not parts:
        empty = np.empty(0, np.uint64)
        return FileItems(np.empty(0, FILE_EXTENT), empty, empty)
    return FileItems(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def file_extents(image: Image, columns: Columns, tree: int = 0) -> npt.NDArray[np.void]:
    """Unpack EXTENT_DATA items into rows of :data:`FILE_EXTENT`.

    Raises CorruptImageError: for one that no kernel writes (``check_extent_data_item()``, Linux
    6.12), with its place.
    """
    raw = records(image, columns, FILE_EXTENT_ITEM)
    inline = raw["type"] == FileExtentType.INLINE
    rows = np.zeros(len(raw), FILE_EXTENT)
    for name, source in (("leaf", "block"), ("slot", "slot"), ("inode", "objectid"),
                         ("start", "offset")):  # fmt: skip
        rows[name] = columns[source]
    for name in ("type", "compression", "generation"):
        rows[name] = raw[name]
    rows["length"] = np.where(inline, raw["ram_bytes"], raw["num_bytes"])
    for name in ("disk_bytenr", "disk_num_bytes", "offset"):
        rows[name] = np.where(inline, 0, raw[name])
    size = np.where(raw["compression"] != 0, raw["ram_bytes"], raw["disk_num_bytes"])
    rows["size"] = np.where(inline, raw["ram_bytes"], size)
    short = columns["size"] < np.where(inline, FILE_EXTENT_HEAD.size, FILE_EXTENT_ITEM.size)
    _refuse(image, columns, tree, short, Code.BAD_ITEM_SIZE, columns["size"])
    on_disk = ~inline & (raw["disk_bytenr"] != 0)
    _refuse(image, columns, tree, raw["type"] > FileExtentType.PREALLOC,
            Code.BAD_VALUE, raw["type"])  # fmt: skip
    _refuse(image, columns, tree, raw["compression"] > Compression.ZSTD,
            Code.BAD_VALUE, raw["compression"])  # fmt: skip
    too_large = (raw["compression"] != 0) & (raw["ram_bytes"] > _MAX_COMPRESSED)
    _refuse(image, columns, tree, on_disk & too_large, Code.BAD_VALUE, raw["ram_bytes"])
    # without the sum, which may be beyond 64 bits
    outside = (raw["offset"] > rows["size"]) | (
        raw["num_bytes"] > rows["size"] - np.minimum(raw["offset"], rows["size"])
    )
    _refuse(image, columns, tree, on_disk & outside, Code.BAD_VALUE, raw["num_bytes"])
    return rows


def _refuse(
    image: Image,
    columns: Columns,
    tree: int,
    bad: npt.NDArray[np.bool_],
    code: int,
    found: npt.NDArray[Any],
) -> None:
    """Raise the fault of the first bad item."""
    if not bad.any():
        return
    row = int(np.argmax(bad))
    wanted = FILE_EXTENT_ITEM.size if code == Code.BAD_ITEM_SIZE else 0
    raise CorruptImageError(
        image.path,
        Fault(code, tree, int(columns["block"][row]), int(columns["slot"][row]),
              int(columns["offset"][row]), int(found[row]), wanted),
    )  # fmt: skip


class DataExtents:
    """The data extents that file extents refer to, ascending by address.

    `image`: where they are.
    `tree`: the extent tree.
    `rows`: file extents, of :data:`FILE_EXTENT`.
    `start`, `length`, `refs` (numpy.ndarray): of each (uint64): address, bytes on disk, the count
    of references in its item.
    `row` (numpy.ndarray): the extent of each file extent.
    Raises CorruptImageError: for a file extent that refers to what is no extent, with its place.
    """

    def __init__(self, image: Image, tree: Tree, rows: npt.NDArray[np.void]) -> None:
        self.start, self.row = np.unique(rows["disk_bytenr"], return_inverse=True)
        low, high = (self.start[0], self.start[-1]) if len(self.start) else (1, 0)
        columns = tree.scan((int(low), 0, 0), (int(high), 255, MAX_KEY.offset))
        items = select(columns, columns["type"] == ItemType.EXTENT_ITEM)
        at = find_rows(items["objectid"], self.start)
        there = at >= 0
        self.length = np.zeros(len(at), np.uint64)
        self.length[there] = items["offset"][at[there]]
        bad = ~there[self.row] | (self.length[self.row] != rows["disk_num_bytes"])
        if bad.any():
            row = rows[int(np.argmax(bad))]
            raise CorruptImageError(
                image.path,
                Fault(Code.NOT_FOUND, 0, int(row["leaf"]), int(row["slot"]), int(row["start"]),
                      int(row["disk_bytenr"]), int(ItemType.EXTENT_ITEM)),
            )  # fmt: skip
        self.refs: U64 = records(image, select(items, at), EXTENT_ITEM)["refs"]
        references, _ = extent_refs(image, select(columns, np.isin(columns["type"], _WITH_REFS)))
        references = references[np.isin(references["type"], _WITH_REFS)]
        of = find_rows(self.start, references["bytenr"])
        there = of >= 0
        self._backrefs = np.bincount(of[there], minlength=len(self.start))
        copies = there & (references["type"] == ItemType.EXTENT_DATA_REF)
        copies &= references["root"] == ObjectId.DATA_RELOC_TREE
        self._copied_to = np.zeros(len(self.start), np.uint64)
        self._copied_to[of[copies]] = references["objectid"][copies]

    def shared(self, forest: FileForest, rows: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Tell which extents FIEMAP reports as shared (Linux 6.1 to 6.18).

        An extent is shared when it has several references in the extent tree, or when a leaf that
        refers to it is in several trees. Two places of one file are two references, so FIEMAP
        reports what was cloned within a file as shared. The file extents of a leaf that has lost
        its owner (FULL_BACKREF) are one reference, so FIEMAP does not report as shared what two
        files of such a leaf share.

        `forest`: which leaves are in which trees.
        `rows`: the file extents that the extents were made of.
        """
        labels = np.arange(len(forest.roots), dtype=np.int64)
        ids = np.array([root.id for root in forest.roots], np.uint64)
        labels[ids == ObjectId.TREE_RELOC] = NOBODY
        owner = forest.single(labels)[0][np.searchsorted(forest.leaves, rows["leaf"])]
        own_copy = self._copied_to[self.row] == rows["inode"]
        owner[own_copy & np.isin(owner, labels[ids == ObjectId.DATA_RELOC_TREE])] = NOBODY
        count = len(self.start)
        in_many = single_label(self.row, owner, count) == MANY
        others = np.bincount(self.row[~own_copy], minlength=count)
        passed_over = (self._copied_to != 0) & (others == 0)
        shared: npt.NDArray[np.bool_] = in_many | (self._backrefs - passed_over > 1)
        return shared


def covered(
    group: npt.NDArray[np.intp], begin: U64, end: U64, count: int
) -> npt.NDArray[np.uint64]:
    """Bytes of the union of the ranges of each of `count` groups."""
    order = np.lexsort((begin, group))
    group, begin, end = group[order], begin[order], end[order]
    # ranges of different groups must not meet: set each group behind the one before
    stride = np.uint64(int(end.max(initial=0)) + 1)
    shift = group.astype(np.uint64) * stride
    reach = np.maximum.accumulate(end + shift)
    before = np.concatenate([np.zeros(min(1, len(reach)), np.uint64), reach[:-1]])
    first = np.maximum(begin + shift, before)
    new = np.where(end + shift > first, end + shift - first, 0).astype(np.uint64)
    total = np.zeros(count, np.uint64)
    np.add.at(total, group, new)
    return total
