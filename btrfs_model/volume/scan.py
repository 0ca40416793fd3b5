# SPDX-License-Identifier: GPL-2.0-only
"""Items in bulk: what :meth:`Tree.scan` found, gathered and unpacked into numpy arrays.

*Columns* are as :meth:`Tree.scan` gives them. Each function calls a kernel of
``native/tree/items.c`` once for a whole run of items; the plain Python beside it is the twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.native.choice import use_python
from btrfs_model.native.door import ffi, lib
from btrfs_model.native.faults import new_fault, raise_fault
from btrfs_model.ondisk.hashes import extent_data_ref_hash, extref_hash, name_hash
from btrfs_model.ondisk.items import (
    DirItem,
    ExtentItem,
    ExtentRef,
    InodeExtref,
    InodeRef,
    decode,
)
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.layout import Layout, PayloadError
from btrfs_model.ondisk.structs import DIR_ITEM, INODE_EXTREF, INODE_REF
from btrfs_model.reference.blocks import HEADER, ITEM
from btrfs_model.volume.tree import COLUMNS, raw_columns

if TYPE_CHECKING:
    from btrfs_model.volume.image import Image

Columns = dict[str, npt.NDArray[Any]]

ENTRY: Final = np.dtype(
    [
        ("parent", "<u8"),
        ("child", "<u8"),
        ("index", "<u8"),
        ("position", "<u8"),
        ("name_xxh64", "<u8"),
        ("location_offset", "<u8"),
        ("name_hash", "<u4"),
        ("item", "<u4"),
        ("name_len", "<u2"),
        ("data_len", "<u2"),
        ("type", "u1"),
        ("location_type", "u1"),
        ("pad", "<u2"),
    ]
)
"""A name, ``struct bm_entry`` of ``native/tree/api.h``."""

REF: Final = np.dtype(
    [
        ("bytenr", "<u8"),
        ("root", "<u8"),
        ("objectid", "<u8"),
        ("offset", "<u8"),
        ("sequence", "<u8"),
        ("count", "<u4"),
        ("item", "<u4"),
        ("type", "u1"),
        ("pad", "u1", 7),
    ]
)
"""A reference to an extent, ``struct bm_ref`` of ``native/tree/api.h``."""


def select(columns: Columns, rows: npt.NDArray[Any] | slice) -> Columns:
    """Take some rows (a mask, indexes or a slice) of all columns."""
    return {name: array[rows] for name, array in columns.items()}


def gather(image: Image, columns: Columns, width: int) -> npt.NDArray[np.uint8]:
    """Copy the first bytes of each payload into one array.

    Parameters
    ----------
    image : Image
        Where the items are.
    columns : dict of numpy.ndarray
        The items.
    width : int
        Bytes taken of each payload; shorter ones are filled up with zeros.

    Returns
    -------
    numpy.ndarray
        uint8, shape (items, width).
    """
    count = len(columns["position"])
    rows = np.zeros((count, width), np.uint8)
    if use_python():
        whole = np.frombuffer(image.block_bytes, np.uint8)
        for row, at, size in zip(rows, columns["position"], columns["size"], strict=True):
            n = min(int(size), width)
            row[:n] = whole[int(at) : int(at) + n]
        return rows
    position = np.ascontiguousarray(columns["position"])
    size = np.ascontiguousarray(columns["size"])
    with image.lease as handle:
        ret = lib.bm_gather(
            handle,
            ffi.from_buffer("uint64_t[]", position),
            ffi.from_buffer("uint32_t[]", size),
            count,
            width,
            ffi.from_buffer("uint8_t[]", rows),
        )
    if ret < 0:
        raise IndexError("items that are not of this image")
    return rows


def records(image: Image, columns: Columns, layout: Layout[Any]) -> npt.NDArray[np.void]:
    """Gather payloads as a structured array of the layout's dtype, shape (items,)."""
    return gather(image, columns, layout.size).view(layout.dtype).reshape(-1)


def scan_leaves(image: Image, leaves: npt.NDArray[np.uint64] | Sequence[int]) -> Columns:
    """Gather all items of some leaves into columns, leaf after leaf.

    Raises
    ------
    CorruptImageError
        When a leaf cannot be read.
    """
    addresses = np.ascontiguousarray(leaves, np.uint64)
    if use_python():
        return _scan_leaves_twin(image, addresses)
    fault = new_fault()
    # leaves rarely hold more items than this; where they do, the kernel says how many
    capacity = len(addresses) * (image.nodesize // 64)
    while True:
        columns = {name: np.empty(capacity, dtype) for name, dtype in COLUMNS}
        with image.lease as handle:
            count = lib.bm_scan_leaves(
                handle,
                ffi.from_buffer("uint64_t[]", addresses),
                len(addresses),
                raw_columns(columns),
                capacity,
                fault,
            )
        if count < 0:
            raise_fault(image.path, fault)
        if count <= capacity:
            return {name: array[:count] for name, array in columns.items()}
        capacity = count


def _scan_leaves_twin(image: Image, leaves: npt.NDArray[np.uint64]) -> Columns:
    whole = np.frombuffer(image.block_bytes, np.uint8).ctypes.data
    rows = []
    for logical in leaves.tolist():
        leaf = image.block(logical, level=0)
        physical = np.frombuffer(leaf, np.uint8).ctypes.data - whole
        count = int.from_bytes(leaf[96:100], "little")
        current().count("leaves_visited")
        current().count("items_visited", count)
        for slot in range(count):
            *key, at, size = ITEM.unpack_from(leaf, HEADER.size + slot * ITEM.size)
            rows.append((*key, logical, slot, physical + HEADER.size + at, size))
    table = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    return {
        name: np.array(column, dtype) for (name, dtype), column in zip(COLUMNS, table, strict=True)
    }


def verify_blocks(
    image: Image, blocks: Sequence[tuple[int, int, int, int]], copy: int
) -> Iterator[tuple[int, Fault]]:
    """Verify one copy of each of many tree blocks.

    Parameters
    ----------
    image : Image
        Where they are.
    blocks : sequence of tuple of int
        (logical address, generation or 0, level or -1, tree) of each.
    copy : int
        Which copy.

    Yields
    ------
    row : int
        Index of a bad one.
    fault : Fault
        What is wrong with it.
    """
    if use_python():
        for row, (logical, generation, level, tree) in enumerate(blocks):
            try:
                image.verify_copy(logical, copy, level=level, generation=generation, tree=tree)
            except CorruptImageError as error:
                yield row, error.fault
        return
    wanted = ffi.new(
        "struct bm_wanted_block[]",
        [
            {"logical": logical, "generation": generation, "tree": tree, "level": level}
            for logical, generation, level, tree in blocks
        ],
    )
    faults = ffi.new("struct bm_fault[]", len(blocks))
    with image.lease as handle:
        bad = lib.bm_verify_blocks(handle, wanted, len(blocks), copy, faults)
    if not bad:
        return
    for row, fault in enumerate(faults):
        if fault.code:
            yield row, Fault(fault.code, fault.tree, fault.block, fault.slot, fault.offset,
                             fault.found, fault.wanted)  # fmt: skip


# ------------------------------------------------------------------------------ names, references


def entries(image: Image, columns: Columns) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int8]]:
    """Unpack the names in INODE_REF, INODE_EXTREF, DIR_ITEM, DIR_INDEX and XATTR_ITEM items.

    Returns
    -------
    rows : numpy.ndarray
        Of :data:`ENTRY`, in order; ``item`` is the row of the columns.
    bad : numpy.ndarray
        int8, shape (items,): 0, or the code of an item that cannot be unpacked and has no rows.
    """
    return _unpack(image, columns, ENTRY, lib.bm_entries, "struct bm_entry *", _entries_twin)


def extent_refs(
    image: Image, columns: Columns
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int8]]:
    """Unpack the references in EXTENT_ITEM, METADATA_ITEM and the five kinds of reference items.

    Returns
    -------
    rows : numpy.ndarray
        Of :data:`REF`, in order; ``root`` of the shared kinds is the parent block.
    bad : numpy.ndarray
        As of :func:`entries`.
    """
    return _unpack(image, columns, REF, lib.bm_extent_refs, "struct bm_ref *", _refs_twin)


def _unpack(
    image: Image,
    columns: Columns,
    dtype: np.dtype[Any],
    kernel: Callable[..., int],
    c_type: str,
    twin: Callable[[Image, Key, int, int], list[tuple[Any, ...]]],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int8]]:
    count = len(columns["position"])
    bad = np.zeros(count, np.int8)
    if use_python():
        return _unpack_twin(image, columns, dtype, twin, bad), bad
    columns = {name: np.ascontiguousarray(array) for name, array in columns.items()}
    capacity = count + count // 8 + 16
    while True:
        rows = np.empty(capacity, dtype)
        with image.lease as handle:
            total = kernel(
                handle,
                raw_columns(columns),
                count,
                ffi.cast(c_type, rows.ctypes.data),
                capacity,
                ffi.cast("int8_t *", bad.ctypes.data),
            )
        if total < 0:
            raise IndexError("items that are not of this image")
        if total <= capacity:
            return rows[:total], bad
        capacity = total


def _unpack_twin(
    image: Image,
    columns: Columns,
    dtype: np.dtype[Any],
    twin: Callable[[Image, Key, int, int], list[tuple[Any, ...]]],
    bad: npt.NDArray[np.int8],
) -> npt.NDArray[np.void]:
    rows = []
    names = ("objectid", "type", "offset", "position", "size")
    items = zip(*(columns[name].tolist() for name in names), strict=True)
    for number, (objectid, kind, offset, position, size) in enumerate(items):
        try:
            for row in twin(image, Key(objectid, kind, offset), position, size):
                named = dict(zip((name for name in dtype.names or ()), row, strict=False))
                rows.append(tuple({**named, "item": number}.values()))
        except PayloadError as error:
            bad[number] = error.code
    return np.array(rows, dtype)


def _entries_twin(image: Image, key: Key, position: int, size: int) -> list[tuple[Any, ...]]:
    rows = []
    at = position
    for entry in decode(key, image.block_bytes[position : position + size]):
        data_len = kind = location_type = location_offset = index = 0
        parent, child, hashed = key.objectid, key.objectid, name_hash(entry.name)
        if isinstance(entry, InodeRef):
            parent, index, head = key.offset, entry.index, INODE_REF.size
        elif isinstance(entry, InodeExtref):
            parent, index, head = entry.parent_objectid, entry.index, INODE_EXTREF.size
            hashed = extref_hash(parent, entry.name)
        else:
            assert isinstance(entry, DirItem)
            child, location_type, location_offset = entry.location
            index = key.offset if key.type == ItemType.DIR_INDEX else 0
            kind, data_len, head = entry.type, len(entry.data), DIR_ITEM.size
        rows.append(
            (parent, child, index, at + head, xxhash.xxh64_intdigest(entry.name), location_offset,
             hashed, 0, len(entry.name), data_len, kind, location_type, 0)
        )  # fmt: skip
        at += head + len(entry.name) + data_len
    return rows


def _refs_twin(image: Image, key: Key, position: int, size: int) -> list[tuple[Any, ...]]:
    decoded = decode(key, image.block_bytes[position : position + size])
    refs: list[ExtentRef] = decoded.inline_refs if isinstance(decoded, ExtentItem) else [decoded]
    rows = []
    for ref in refs:
        root = ref.root if ref.parent is None else ref.parent
        count = ref.count
        if count is None:
            count = 0 if ref.type == ItemType.EXTENT_OWNER_REF else 1
        objectid, offset = ref.objectid or 0, ref.offset or 0
        sequence = root
        if ref.type == ItemType.EXTENT_DATA_REF:
            sequence = extent_data_ref_hash(root or 0, objectid, offset)
        rows.append((key.objectid, root, objectid, offset, sequence, count, 0, ref.type, [0] * 7))
    return rows
