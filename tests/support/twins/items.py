# SPDX-License-Identifier: GPL-2.0-only
"""Scans and walks of trees, and items in bulk: ``native/tree`` again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.native.items import COLUMNS, ENTRY, REF, Columns
from btrfs_model.native.tree import RawKey
from btrfs_model.ondisk.constants import FileExtentType
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
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import DIR_ITEM, FILE_EXTENT_ITEM, INODE_EXTREF, INODE_REF
from btrfs_model.volume import ctree
from btrfs_model.volume.blocks import HEADER, ITEM, KEY_PTR, Expect, image_block
from btrfs_model.volume.ctree import Path
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import MAX_KEY, MIN_KEY, Block, Tree


def _position(image: Image, block: memoryview) -> int:
    """Return the byte of the image at which a block lies that was read from it."""
    whole = np.frombuffer(image.block_bytes, np.uint8)
    return int(np.frombuffer(block, np.uint8).ctypes.data - whole.ctypes.data)


def scan(tree: Tree, min_key: RawKey = MIN_KEY, max_key: RawKey = MAX_KEY) -> Columns:
    """Do what :meth:`.Tree.scan` does."""
    rows = []
    work = current()
    path = Path()
    more = ctree.search_slot(tree, min_key, path) or path.slots[0] < ctree.nritems(path.leaf)
    more = more or ctree.next_leaf(tree, path)
    # the bound that the C kernel computes beforehand is a walk of its own
    while more:
        work.count("leaves_visited")
        leaf = path.leaf
        bytenr = int.from_bytes(leaf[48:56], "little")
        physical = _position(tree.image, leaf)
        for slot in range(path.slots[0], ctree.nritems(leaf)):
            objectid, kind, offset, at, size = ITEM.unpack_from(
                leaf, HEADER.size + slot * ITEM.size
            )
            if (objectid, kind, offset) > max_key:
                more = False
                break
            rows.append((objectid, kind, offset, bytenr, slot, physical + HEADER.size + at, size))
        more = more and ctree.next_leaf(tree, path)
    work.count("items_visited", len(rows))
    table = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    columns = zip(COLUMNS.items(), table, strict=True)
    return {name: np.array(column, dtype) for (name, dtype), column in columns}


def blocks(tree: Tree, min_level: int = 0) -> Iterator[Block]:
    """Do what :meth:`.Tree.blocks` does."""
    path = Path()
    path.nodes[tree.level] = image_block(
        tree.image, tree.bytenr, Expect(tree.objectid, tree.generation, tree.level)
    )
    at = tree.level
    while min_level <= at <= tree.level:
        block = path.nodes[at]
        assert block is not None
        above = path.nodes[at + 1] if at < tree.level else None
        parent = ctree.bytenr_of(above) if above is not None else 0
        parent_slot = path.slots[at + 1] if above is not None else 0
        _, _, bytenr, flags, _, generation, owner, count, level = HEADER.unpack_from(block)
        current().count("nodes_visited" if level else "leaves_visited")
        used = count * (KEY_PTR.size if level else ITEM.size)
        if count and not level:
            *_, last, _ = ITEM.unpack_from(block, HEADER.size + (count - 1) * ITEM.size)
            used += tree.image.nodesize - HEADER.size - last
        first = Key(*ctree.block_key(block, 0)) if count else Key(0, 0, 0)
        yield Block(
            bytenr, generation, owner, flags, level, count, parent, parent_slot, first, used
        )
        path.slots[at] = 0
        if at == min_level:
            at = _up(tree, path, at)
        if at <= tree.level:
            at = _down(tree, path, at)


def _up(tree: Tree, path: Path, level: int) -> int:
    """Go to the next pointer; return its level, which is above the root at the end."""
    level += 1
    while level <= tree.level:
        node = path.nodes[level]
        assert node is not None
        path.slots[level] += 1
        if path.slots[level] < ctree.nritems(node):
            break
        level += 1
    return level


def _down(tree: Tree, path: Path, level: int) -> int:
    """Go to the child that a path's slot points at; return its level."""
    node = path.nodes[level]
    assert node is not None
    child = ctree.block_of_child(tree, node, path.slots[level])
    ctree.check_last_key(tree, path, child)
    path.nodes[level - 1] = child
    return level - 1


def gather(image: Image, columns: Columns, width: int) -> npt.NDArray[np.uint8]:
    """Do what :func:`btrfs_model.native.items.gather` does."""
    rows = np.zeros((len(columns["position"]), width), np.uint8)
    whole = np.frombuffer(image.block_bytes, np.uint8)
    for row, at, size in zip(rows, columns["position"], columns["size"], strict=True):
        n = min(int(size), width)
        row[:n] = whole[int(at) : int(at) + n]
    return rows


def scan_leaves(image: Image, leaves: Sequence[int]) -> Columns:
    """Do what :func:`btrfs_model.native.items.scan_leaves` does."""
    rows = []
    for logical in leaves:
        leaf = image.block(logical, level=0)
        physical = _position(image, leaf)
        count = int.from_bytes(leaf[96:100], "little")
        current().count("leaves_visited")
        current().count("items_visited", count)
        for slot in range(count):
            *key, at, size = ITEM.unpack_from(leaf, HEADER.size + slot * ITEM.size)
            rows.append((*key, logical, slot, physical + HEADER.size + at, size))
    table = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    columns = zip(COLUMNS.items(), table, strict=True)
    return {name: np.array(column, dtype) for (name, dtype), column in columns}


def verify_blocks(
    image: Image, wanted: npt.NDArray[np.void], copy: int
) -> Iterator[tuple[int, Fault]]:
    """Do what :func:`btrfs_model.native.items.verify_blocks` does."""
    for row, (logical, generation, tree, level, _) in enumerate(wanted.tolist()):
        try:
            image.verify_copy(logical, copy, level=level, generation=generation, tree=tree)
        except CorruptImageError as error:
            yield row, error.fault


def inode_sums(tree: Tree) -> dict[int, Counter[str]]:
    """Add up by inode what :class:`btrfs_model.native.items.InodeReducer` reduces."""
    rows: dict[int, Counter[str]] = defaultdict(Counter)
    for item in tree.items():
        ino, kind = item.key.objectid, item.key.type
        found: Any = decode(item.key, item.data)
        if kind == ItemType.INODE_ITEM:
            fields = ("size", "nbytes", "flags", "nlink", "mode")
            rows[ino].update({name: getattr(found, name) for name in fields}, exists=1)
        elif kind in (ItemType.DIR_ITEM, ItemType.DIR_INDEX):
            rows[ino].update(name_bytes=sum(len(entry.name) for entry in found))
        elif kind == ItemType.INODE_REF:
            rows[ino].update(links=len(found), parent=item.key.offset - rows[ino]["parent"])
        elif kind == ItemType.INODE_EXTREF:
            parent = found[-1].parent_objectid
            rows[ino].update(links=len(found), parent=parent - rows[ino]["parent"])
        elif kind == ItemType.EXTENT_DATA:
            head = FILE_EXTENT_ITEM.unpack(bytes(item.data[:53]).ljust(53, b"\0"))
            inline = head.type == FileExtentType.INLINE
            length = head.ram_bytes if inline else head.num_bytes
            rows[ino].update(
                extent_bytes=length if inline or head.disk_bytenr else 0,
                inline_bytes=length if inline else 0,
                nul_ends=inline and not head.compression and item.data[-1] == 0,
            )
        elif kind == ItemType.XATTR_ITEM:
            rows[ino].update()
    return rows


def entries(image: Image, columns: Columns) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int8]]:
    """Do what :func:`btrfs_model.native.items.entries` does."""
    return _unpack(image, columns, ENTRY, _entries)


def extent_refs(
    image: Image, columns: Columns
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int8]]:
    """Do what :func:`btrfs_model.native.items.extent_refs` does."""
    return _unpack(image, columns, REF, _refs)


def _unpack(
    image: Image,
    columns: Columns,
    dtype: np.dtype[Any],
    twin: Callable[[Image, Key, int, int], list[tuple[Any, ...]]],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int8]]:
    rows = []
    bad = np.zeros(len(columns["position"]), np.int8)
    names = ("objectid", "type", "offset", "position", "size")
    items = zip(*(columns[name].tolist() for name in names), strict=True)
    for number, (objectid, kind, offset, position, size) in enumerate(items):
        try:
            for row in twin(image, Key(objectid, kind, offset), position, size):
                named = dict(zip((name for name in dtype.names or ()), row, strict=False))
                rows.append(tuple({**named, "item": number}.values()))
        except PayloadError as error:
            bad[number] = error.code
    return np.array(rows, dtype), bad


def _entries(image: Image, key: Key, position: int, size: int) -> list[tuple[Any, ...]]:
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


def _refs(image: Image, key: Key, position: int, size: int) -> list[tuple[Any, ...]]:
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
