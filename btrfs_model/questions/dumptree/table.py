# SPDX-License-Identifier: GPL-2.0-only
"""Trees as a table in Parquet: a row an item.

Every row has where the item is (tree, leaf, slot), its key and size; the columns after these hold
what is most asked for of some types, and are null for all others:

    inode_*         INODE_ITEM
    file_extent_*   EXTENT_DATA; the four that place it on disk are null for inline data
    extent_*        EXTENT_ITEM and METADATA_ITEM
    dir_*           the first entry of DIR_ITEM, DIR_INDEX and XATTR_ITEM
    name            the first name in these, INODE_REF, INODE_EXTREF and ROOT_(BACK)REF
    root_*          ROOT_ITEM
    block_group_*   BLOCK_GROUP_ITEM
    payload         the bytes of the item, when asked for

Items are gathered and decoded by the thousand with numpy and written in row groups, so memory stays
the same however large the trees are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from btrfs_model.base.whole_file import whole_file
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.items import OLD_ROOT_ITEM_SIZE
from btrfs_model.ondisk.keys import ItemType, Key, item_type_name
from btrfs_model.ondisk.layout import Layout, PayloadError
from btrfs_model.questions.dumptree.filters import KeyRange, key_range
from btrfs_model.questions.dumptree.trees import TreeRoot, select_trees
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree

_ROW_GROUP: Final = 1 << 16
# far more than the largest item has
_BATCH_BYTES: Final = 16 << 20

Array = npt.NDArray[Any]
Columns = dict[str, Array]


class _Decoded(NamedTuple):
    """Columns out of a structure that items of some types begin with."""

    prefix: str
    types: tuple[int, ...]
    layout: Layout[Any]
    fields: tuple[str, ...]
    # bytes that must be there, when it is less than the whole structure
    size: int | None = None
    # file extents only: leave inline ones out
    on_disk: bool = False


_DECODED: Final = (
    _Decoded(
        "inode",
        (ItemType.INODE_ITEM,),
        structs.INODE_ITEM,
        (
            *("generation", "transid", "size", "nbytes", "nlink", "uid", "gid", "mode", "rdev"),
            *("flags", "sequence", "atime.sec", "atime.nsec", "ctime.sec", "ctime.nsec"),
            *("mtime.sec", "mtime.nsec", "otime.sec", "otime.nsec"),
        ),
    ),
    _Decoded(
        "file_extent",
        (ItemType.EXTENT_DATA,),
        structs.FILE_EXTENT_HEAD,
        ("generation", "type", "compression", "ram_bytes"),
    ),
    _Decoded(
        "file_extent",
        (ItemType.EXTENT_DATA,),
        structs.FILE_EXTENT_ITEM,
        ("disk_bytenr", "disk_num_bytes", "offset", "num_bytes"),
        on_disk=True,
    ),
    _Decoded(
        "extent",
        (ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM),
        structs.EXTENT_ITEM,
        ("refs", "generation", "flags"),
    ),
    _Decoded(
        "dir",
        (ItemType.DIR_ITEM, ItemType.DIR_INDEX, ItemType.XATTR_ITEM),
        structs.DIR_ITEM,
        ("location.objectid", "location.type", "location.offset", "transid", "type", "data_len"),
    ),
    _Decoded(
        "root",
        (ItemType.ROOT_ITEM,),
        structs.ROOT_ITEM,
        ("generation", "bytenr", "level", "refs", "flags", "last_snapshot"),
        OLD_ROOT_ITEM_SIZE,
    ),
    _Decoded(
        "block_group",
        (ItemType.BLOCK_GROUP_ITEM,),
        structs.BLOCK_GROUP_ITEM,
        ("used", "flags"),
    ),
)
# Structures that names follow, with the field that has the length.
_NAMED: Final[dict[int, Layout[Any]]] = {
    ItemType.INODE_REF: structs.INODE_REF,
    ItemType.INODE_EXTREF: structs.INODE_EXTREF,
    ItemType.DIR_ITEM: structs.DIR_ITEM,
    ItemType.DIR_INDEX: structs.DIR_ITEM,
    ItemType.XATTR_ITEM: structs.DIR_ITEM,
    ItemType.ROOT_REF: structs.ROOT_REF,
    ItemType.ROOT_BACKREF: structs.ROOT_REF,
}
_PLACE: Final = {
    "tree": pa.uint64(),
    "tree_offset": pa.uint64(),
    "leaf": pa.uint64(),
    "slot": pa.uint16(),
    "objectid": pa.uint64(),
    "type": pa.uint8(),
    "type_name": pa.dictionary(pa.int16(), pa.string()),
    "offset": pa.uint64(),
    "size": pa.uint32(),
    "generation": pa.uint64(),
    "owner": pa.uint64(),
}
_TYPE_NAMES: Final = pa.array([item_type_name(number) for number in range(256)])


def _column_name(decoded: _Decoded, field: str) -> str:
    return f"{decoded.prefix}_{field.replace('.', '_')}"


def _field_dtype(layout: Layout[Any], field: str) -> np.dtype[Any]:
    dtype = layout.dtype
    for part in field.split("."):
        dtype = dtype[part]
    # seconds since 1970 are signed in fact
    return np.dtype(np.int64) if field.endswith(".sec") else dtype


def _schema(*, payload: bool) -> pa.Schema:
    fields = list(_PLACE.items())
    for decoded in _DECODED:
        fields += [
            (_column_name(decoded, field), pa.from_numpy_dtype(_field_dtype(decoded.layout, field)))
            for field in decoded.fields
        ]
    fields.append(("name", pa.large_binary()))
    if payload:
        fields.append(("payload", pa.large_binary()))
    return pa.schema(fields)


def dump_tree_parquet(
    image: Image,
    path: str | os.PathLike[str],
    tree: int | None = None,
    *,
    min_key: Key | None = None,
    max_key: Key | None = None,
    objectid: int | None = None,
    payload: bool = False,
) -> int:
    """Write the items of trees as a table.

    `image`: the image.
    `path`: file to write; when something fails, what was there before is still there.
    `tree`: id of the only tree to write.
    `min_key`, `max_key`: first and last key of the items to write.
    `objectid`: write only items of this objectid.
    `payload`: add the bytes of each item.
    Returns number of rows.
    Raises CorruptImageError: for a broken block or item.
    Raises SubvolumeNotFoundError: when there is no tree of that id.
    """
    keys = key_range(min_key, max_key, objectid)
    schema = _schema(payload=payload)
    rows = 0
    with (
        whole_file(path, special=True) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for root in select_trees(image, tree):
            for columns in _batches(root.tree, keys):
                batch = _Batch(image, root, columns)
                writer.write_table(batch.table(schema), row_group_size=_ROW_GROUP)
                rows += batch.count
    return rows


def _batches(tree: Tree, keys: KeyRange) -> Iterator[Columns]:
    """Scan a tree in pieces of bounded length and payload."""
    for low, high in _spans(tree, keys):
        columns = tree.scan(low, high)
        bytes_to = np.cumsum(columns["size"], dtype=np.int64)
        start = 0
        while start < len(bytes_to):
            limit = _BATCH_BYTES + (bytes_to[start - 1] if start else 0)
            end = min(start + _ROW_GROUP, int(np.searchsorted(bytes_to, limit, "right")))
            yield {name: array[start:end] for name, array in columns.items()}
            start = end


def _spans(tree: Tree, keys: KeyRange) -> Iterator[KeyRange]:
    """Cut a range of keys where the nodes of level 1 begin, so that a scan is of bounded size."""
    starts = [block.first for block in tree.blocks(1) if block.level == 1][1:]
    cuts = [keys.min, *(start for start in starts if keys.min < start <= keys.max)]
    for low, after in pairwise(cuts):
        yield KeyRange(low, _before(after))
    if cuts[-1] <= keys.max:
        yield KeyRange(cuts[-1], keys.max)


def _before(key: Key) -> Key:
    """Return the greatest key less than `key`, which is not the least of all."""
    number = (key.objectid << 72 | key.type << 64 | key.offset) - 1
    return Key(number >> 72, number >> 64 & 0xFF, number & 2**64 - 1)


class _Batch:
    """Items of one tree that are decoded and written together."""

    def __init__(self, image: Image, root: TreeRoot, columns: Columns) -> None:
        self.image = image
        self.root = root
        self.columns = columns
        self.count = len(columns["slot"])
        self._bytes = np.frombuffer(image.block_bytes, np.uint8)

    def table(self, schema: pa.Schema) -> pa.Table:
        """Make the table of all columns of `schema`."""
        arrays = self._place()
        for decoded in _DECODED:
            rows = self._rows(decoded.types)
            arrays |= self._decode(decoded, self._on_disk(rows) if decoded.on_disk else rows)
        arrays["name"] = self._names()
        if "payload" in schema.names:
            arrays["payload"] = self._payloads()
        return pa.table([arrays[name] for name in schema.names], schema=schema)

    def _place(self) -> dict[str, Any]:
        columns, key = self.columns, self.root.key
        generation, owner = self._headers()
        types = columns["type"].astype(np.int16)
        return {
            "tree": pa.array(np.full(self.count, key.objectid, np.uint64)),
            "tree_offset": pa.array(np.full(self.count, key.offset, np.uint64)),
            "leaf": pa.array(columns["block"]),
            "type_name": pa.DictionaryArray.from_arrays(types, _TYPE_NAMES),
            "generation": pa.array(generation),
            "owner": pa.array(owner),
        } | {
            name: pa.array(columns[name]) for name in ("slot", "objectid", "type", "offset", "size")
        }

    def _headers(self) -> tuple[Array, Array]:
        """Return generation and owner of each item's leaf."""
        leaves, which = np.unique(self.columns["block"], return_inverse=True)
        headers = [structs.HEADER.unpack(self.image.block(leaf)) for leaf in leaves.tolist()]
        generations = np.array([header.generation for header in headers], np.uint64)
        owners = np.array([header.owner for header in headers], np.uint64)
        return generations[which], owners[which]

    def _rows(self, types: tuple[int, ...]) -> Array:
        return np.flatnonzero(np.isin(self.columns["type"], types))

    def _gather(self, rows: Array, layout: Layout[Any], size: int | None = None) -> Array:
        """View the structures that some items begin with as one array."""
        sizes = self.columns["size"][rows]
        wanted = layout.size if size is None else size
        short = np.flatnonzero(sizes < wanted)
        if len(short):
            raise self._too_short(rows[short[0]], wanted)
        places = self.columns["position"][rows].astype(np.int64)
        whole = self._bytes[places[:, None] + np.arange(wanted)]
        if wanted < layout.size:
            whole = np.pad(whole, ((0, 0), (0, layout.size - wanted)))
        records: Array = whole.view(layout.dtype).reshape(len(rows))
        return records

    def _too_short(self, row: int, wanted: int) -> Exception:
        columns = self.columns
        return PayloadError.too_short(int(columns["size"][row]), wanted).at(
            self.image.path,
            tree=self.root.key.objectid,
            block=int(columns["block"][row]),
            slot=int(columns["slot"][row]),
        )

    def _decode(self, decoded: _Decoded, rows: Array) -> dict[str, Any]:
        records = self._gather(rows, decoded.layout, decoded.size)
        null = np.ones(self.count, bool)
        null[rows] = False
        arrays = {}
        for field in decoded.fields:
            values = records
            for part in field.split("."):
                values = values[part]
            column = np.zeros(self.count, _field_dtype(decoded.layout, field))
            column[rows] = values
            arrays[_column_name(decoded, field)] = pa.array(column, mask=null)
        return arrays

    def _on_disk(self, rows: Array) -> Array:
        """Leave inline file extents out."""
        heads = self._gather(rows, structs.FILE_EXTENT_HEAD)
        kept: Array = rows[heads["type"] != FileExtentType.INLINE]
        return kept

    def _names(self) -> Any:
        starts = np.zeros(self.count, np.int64)
        lengths = np.zeros(self.count, np.int64)
        null = np.ones(self.count, bool)
        for item_type, layout in _NAMED.items():
            rows = self._rows((item_type,))
            lengths[rows] = self._gather(rows, layout)["name_len"]
            starts[rows] = self.columns["position"][rows].astype(np.int64) + layout.size
            null[rows] = False
            ends = lengths[rows] + layout.size
            short = np.flatnonzero(self.columns["size"][rows] < ends)
            if len(short):
                raise self._too_short(rows[short[0]], int(ends[short[0]]))
        return self._binary(starts, lengths, null)

    def _payloads(self) -> Any:
        starts = self.columns["position"].astype(np.int64)
        lengths = self.columns["size"].astype(np.int64)
        return self._binary(starts, lengths, np.zeros(self.count, bool))

    def _binary(self, starts: Array, lengths: Array, null: Array) -> Any:
        """Make an array of byte strings that lie anywhere in the image."""
        view = self.image.block_bytes
        places = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        offsets = np.zeros(self.count + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        validity = np.packbits(~null, bitorder="little")
        data = b"".join([view[start:end] for start, end in places])
        buffers: list[pa.Buffer | None] = [
            pa.py_buffer(part) for part in (validity.data, offsets.data, data)
        ]
        return pa.Array.from_buffers(pa.large_binary(), self.count, buffers)
