# SPDX-License-Identifier: GPL-2.0-only
"""The least image that a writer can work on: a superblock, a chunk tree of one leaf, free space."""

import mmap
import struct

from btrfs_model.mount.tree_writer import TreeWriter
from btrfs_model.native.door import ffi, lib
from btrfs_model.ondisk.hashes import csum
from btrfs_model.volume.image import Image

FSID = b"a bare image ..."
CHUNK_UUID = b"its chunk tree.."
METADATA = 16 << 20
TRANSID = 7
_SYSTEM = 1 << 20
_SYSTEM_LENGTH = 4 << 20
_CHUNK_ITEM = lib.BTRFS_CHUNK_ITEM_KEY


def _chunk(logical: int, length: int, kind: int, stripes: list[int]) -> tuple[bytes, bytes]:
    """Key and payload of a chunk item."""
    key = struct.pack("<QBQ", 256, _CHUNK_ITEM, logical)
    data = struct.pack("<QQQQIIIHH", length, 2, 65536, kind, 65536, 65536, 4096, len(stripes), 1)
    return key, data + b"".join(struct.pack("<QQ16s", 1, at, b"the one device..") for at in stripes)


def _seal(block: memoryview) -> None:
    block[:32] = csum(0, block[32:]).ljust(32, b"\0")


def _chunk_leaf(block: memoryview, items: list[tuple[bytes, bytes]]) -> None:
    end = len(block) - 101
    struct.pack_into("<32x16sQQ16sQQIB", block, 0, FSID, _SYSTEM, 1 | 1 << 56, CHUNK_UUID, 1, 3,
                     len(items), 0)  # fmt: skip
    for slot, (key, data) in enumerate(items):
        end -= len(data)
        block[101 + 25 * slot : 126 + 25 * slot] = key + struct.pack("<II", end, len(data))
        block[101 + end : 101 + end + len(data)] = data
    _seal(block)


def image_of(chunks: list[tuple[int, int, int, list[int]]], nodesize: int) -> Image:
    """Return an image with chunks of (address, length, flags, places); nothing is in them."""
    total = max(max(places) + length for _, length, _, places in chunks)
    buffer = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = memoryview(buffer)
    system = _chunk(_SYSTEM, _SYSTEM_LENGTH, 2, [_SYSTEM])
    items = [system, *(_chunk(*chunk) for chunk in chunks)]
    _chunk_leaf(view[_SYSTEM : _SYSTEM + nodesize], items)
    array = b"".join(system)
    raw = ffi.new("struct btrfs_super_block *")
    raw.bytenr, raw.magic, raw.generation = 65536, int.from_bytes(b"_BHRfS_M", "little"), 1
    raw.fsid = raw.dev_item.fsid = FSID
    raw.root = raw.chunk_root = _SYSTEM
    raw.chunk_root_generation = 1
    raw.total_bytes = raw.dev_item.total_bytes = total
    raw.num_devices = raw.dev_item.devid = 1
    raw.sectorsize, raw.nodesize, raw.unused_leafsize = 4096, nodesize, nodesize
    raw.sys_chunk_array_size = len(array)
    ffi.buffer(raw.sys_chunk_array)[: len(array)] = array
    block = view[65536 : 65536 + 4096]
    block[:] = ffi.buffer(raw)
    _seal(block)
    view.release()
    return Image(buffer)


def image(size: int = 64 << 20, nodesize: int = 4096, *, dup: bool = False) -> Image:
    """Return an image with `size` bytes of METADATA at 16 MiB, all free."""
    copies = [METADATA, METADATA + size] if dup else [METADATA]
    return image_of([(METADATA, size, 4 | (32 if dup else 0), copies)], nodesize)


def writer(
    size: int = 64 << 20, nodesize: int = 4096, *, dup: bool = False, transid: int = TRANSID
) -> TreeWriter:
    """Return a writer without trees on a bare image."""
    made = image(size, nodesize, dup=dup)
    result = TreeWriter(made, made.buffer, transid=transid, features=lib.BM_WRITER_SKINNY_METADATA)
    result.add_group(METADATA, size, 4 | (32 if dup else 0))
    return result
