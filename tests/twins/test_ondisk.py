# SPDX-License-Identifier: GPL-2.0-only
"""The on-disk formats: held to the C structures, to the kernel's header and to real images."""

import hashlib
import re
import shutil
import struct
import subprocess
from collections import defaultdict
from enum import IntEnum
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import NAMES
from btrfs_model.base.errors import (
    BtrfsModelError,
    CorruptImageError,
    NotBtrfsError,
    UnsupportedError,
)
from btrfs_model.native.choice import select
from btrfs_model.native.data import name_hashes, sector_sums
from btrfs_model.native.door import ffi, lib
from btrfs_model.ondisk import constants, hashes, items, structs
from btrfs_model.ondisk.chunks import parse_chunk_item
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import LAYOUTS, SUPER_BLOCK
from btrfs_model.ondisk.superblock import INCOMPAT_FLAGS, SUPER_OFFSETS, read_superblocks
from btrfs_model.questions.dumptree.trees import select_trees
from btrfs_model.volume.blocks import ReadBy
from btrfs_model.volume.compare import Change
from btrfs_model.volume.ctree import Reada
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree

KERNEL_HEADER = Path("/usr/include/linux/btrfs_tree.h")
C_STRUCTS = [name for name in ffi.list_types()[1] if name.startswith("btrfs_")]

# ---------------------------------------------------------------------------------- structures --


def places(dtype: np.dtype[Any]) -> list[tuple[str, int, int]]:
    """Name, offset and size of each field."""
    fields = dtype.fields or {}
    return [(name, int(fields[name][1]), fields[name][0].itemsize) for name in dtype.names or ()]


@pytest.mark.claim("Structures have the same sizes and offsets in C and in Python.")
@pytest.mark.parametrize("name", C_STRUCTS)
def test_layout_equals_c_struct(name: str) -> None:
    c_type = ffi.typeof(f"struct {name}")
    assert LAYOUTS[name].size == ffi.sizeof(c_type)
    assert places(LAYOUTS[name].dtype) == [
        (field, place.offset, ffi.sizeof(place.type)) for field, place in c_type.fields
    ]


@pytest.mark.parametrize(
    ("kind", "c_enum", "prefix"),
    [
        (Code, "bm_code", "BM_"),
        (constants.FileType, "btrfs_file_type", "BTRFS_FT_"),
        (constants.FileExtentType, "btrfs_file_extent_type", "BTRFS_FILE_EXTENT_"),
        (constants.Compression, "btrfs_compression", "BTRFS_COMPRESS_"),
        (constants.CsumType, "btrfs_csum_type", "BTRFS_CSUM_TYPE_"),
        (constants.ExtentFlag, "btrfs_extent_flag", "BTRFS_(?:EXTENT|BLOCK)_FLAG_"),
        (ReadBy, "bm_read_by", "BM_READ_BY_"),
        (Reada, "bm_reada", "BM_READA_"),
        (Change, "bm_change", "BM_CHANGE_"),
    ],
)
def test_numbers_equal_c_enums(kind: type[IntEnum], c_enum: str, prefix: str) -> None:
    names = ffi.typeof(f"enum {c_enum}").elements
    there = {re.sub(f"^{prefix}", "", name): number for number, name in names.items()}
    assert {member.name: member.value for member in kind} == there


def test_counters_equal_c_enum() -> None:
    *there, last = sorted(ffi.typeof("enum bm_counter").elements.items())
    assert [f"BM_WORK_{name}" for name in NAMES] == [name for _, name in there]
    assert last == (len(NAMES), "BM_WORK_COUNT")


def test_sizes_equal_c_enum() -> None:
    for number, name in ffi.typeof("enum btrfs_sizes").elements.items():
        assert getattr(constants, name, number) == number, name


def test_all_c_structs_are_seen() -> None:
    assert len(C_STRUCTS) >= 31


@pytest.mark.claim(
    "Structures have the sizes and offsets of the kernel's header.",
    judge="measured",
)
def test_layouts_equal_kernel_header(tmp_path: Path) -> None:
    """The compiler holds each structure to the header that Linux gives to programs."""
    compiler = shutil.which("cc")
    if compiler is None or not KERNEL_HEADER.exists():
        pytest.skip(f"needs a C compiler and {KERNEL_HEADER} (linux-libc-dev)")
    text = KERNEL_HEADER.read_text()
    there = [n for n in LAYOUTS if re.search(rf"^struct {n} {{", text, re.M)]
    assert len(there) >= 30
    lines = ["#include <stddef.h>", "#include <linux/btrfs.h>", "#include <linux/btrfs_tree.h>"]
    for name in there:
        lines.append(f'_Static_assert(sizeof(struct {name}) == {LAYOUTS[name].size}, "");')
        for field, offset, _ in places(LAYOUTS[name].dtype):
            if not field.startswith("unused"):
                lines.append(f'_Static_assert(offsetof(struct {name}, {field}) == {offset}, "");')
    source = tmp_path / "layouts.c"
    source.write_text("\n".join(lines))
    done = subprocess.run(
        [compiler, "-fsyntax-only", str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_item_types_equal_c_enum() -> None:
    numbers = ffi.typeof("enum btrfs_key_type").relements
    for name, number in numbers.items():
        short = name.removeprefix("BTRFS_").removesuffix("_KEY")
        assert ItemType[short] == number
    assert len(numbers) >= 32


def test_objectids_equal_c_enum() -> None:
    for name, number in ffi.typeof("enum btrfs_objectid").relements.items():
        assert ObjectId[name.removeprefix("BTRFS_").removesuffix("_OBJECTID")] == number


@given(data=st.data(), name=st.sampled_from(sorted(LAYOUTS)))
def test_unpack_equals_numpy_view(data: st.DataObject, name: str) -> None:
    layout = LAYOUTS[name]
    raw = data.draw(st.binary(min_size=layout.size, max_size=layout.size))
    record = layout.view(raw)[0]
    flat: list[Any] = []

    def flatten(value: Any) -> None:
        if value.dtype == np.uint8 and value.shape:
            flat.append(value.tobytes())
        elif value.shape:
            for part in value:
                flatten(part)
        elif value.dtype.names:
            for field in value.dtype.names:
                flatten(value[field])
        else:
            flat.append(int(value))

    flatten(record)
    assert layout.flat(raw) == tuple(flat)

    def of_record(value: Any) -> list[Any]:
        return (
            [x for part in value for x in of_record(part)] if isinstance(value, tuple) else [value]
        )

    assert of_record(layout.unpack(raw)) == flat
    assert layout.pack(layout.unpack(raw)) == raw


def test_pack_refuses_what_does_not_fit() -> None:
    record = structs.TIMESPEC.unpack(bytes(12))
    with pytest.raises(OverflowError, match="btrfs_timespec"):
        structs.TIMESPEC.pack(record._replace(nsec=1 << 32))


@given(data=st.data(), name=st.sampled_from(sorted(LAYOUTS)))
def test_short_structure_is_refused(data: st.DataObject, name: str) -> None:
    layout = LAYOUTS[name]
    raw = bytes(data.draw(st.integers(0, layout.size - 1)))
    for read in (layout.flat, layout.unpack, layout.view):
        with pytest.raises(PayloadError) as error:
            read(raw)
        assert (error.value.found, error.value.wanted) == (len(raw), layout.size)


# --------------------------------------------------------------------------------------- items --

NAMED_TYPES = [0, 1, 3, 172, 250, 254, 255, *ItemType]


@given(
    key_type=st.sampled_from(NAMED_TYPES),
    objectid=st.sampled_from([0, 5, 256, *(2**64 - n for n in range(1, 13))]),
    offset=st.integers(0, 3),
    payload=st.binary(max_size=600),
)
def test_decode_any_bytes(key_type: int, objectid: int, offset: int, payload: bytes) -> None:
    """Whatever a payload holds, it decodes or is refused with what is wrong."""
    try:
        items.decode(Key(objectid, key_type, offset), payload)
    except PayloadError as error:
        assert error.code in {lib.BM_BAD_ITEM_SIZE, lib.BM_BAD_VALUE}
        assert str(error.at("x.img", tree=5, block=4096, slot=3)).startswith(
            "x.img: tree 5, block 4096, slot 3: "
        )


def sample_items(path: Path, each: int = 3) -> list[tuple[Key, bytes]]:
    """Some items of each type of an image."""
    by_type: dict[int, list[tuple[Key, bytes]]] = defaultdict(list)
    for root in select_trees(Image.open(path)):
        for item in root.tree.items():
            if len(by_type[item.key.type]) < each:
                by_type[item.key.type].append((item.key, bytes(item.data)))
    return [pair for pairs in by_type.values() for pair in pairs]


def test_cut_items_are_refused(small_image: Path) -> None:
    """A real payload cut at any byte decodes to something shorter or is refused."""
    samples = sample_items(small_image)
    assert len({key.type for key, _ in samples}) >= 18
    free = {ItemType.EXTENT_CSUM, ItemType.FREE_SPACE_BITMAP}
    for key, payload in samples:
        whole = items.decode(key, payload)
        for size in range(len(payload)):
            try:
                part = items.decode(key, payload[:size])
            except PayloadError:
                continue
            # old root items are shorter, filled up with the zeros that this one ends with
            assert part != whole or key.type == ItemType.ROOT_ITEM
            assert key.type in free or isinstance(part, (list, tuple))


def test_inline_refs() -> None:
    """Every kind of inline reference, also the owner that only simple quotas write."""
    payload = struct.pack("<QQQ", 5, 7, lib.BTRFS_EXTENT_FLAG_DATA)
    payload += struct.pack("<BQ", ItemType.EXTENT_OWNER_REF, 257)
    payload += struct.pack("<BQQQI", ItemType.EXTENT_DATA_REF, 5, 260, 4096, 3)
    payload += struct.pack("<BQI", ItemType.SHARED_DATA_REF, 1 << 30, 2)
    item = items.extent_item(Key(1 << 20, ItemType.EXTENT_ITEM, 4096), payload)
    assert item.inline_refs == [
        items.ExtentRef(ItemType.EXTENT_OWNER_REF, root=257),
        items.ExtentRef(ItemType.EXTENT_DATA_REF, 5, None, 260, 4096, 3),
        items.ExtentRef(ItemType.SHARED_DATA_REF, parent=1 << 30, count=2),
    ]
    with pytest.raises(PayloadError):
        items.extent_item(Key(0, ItemType.EXTENT_ITEM, 0), payload + b"\x01" * 9)


def test_old_root_item() -> None:
    """A root item of Linux before 3.6 ends after the level."""
    full = bytes(range(1, 240)) + bytes(200)
    assert items.root_item(full[:239]) == items.root_item(full)
    with pytest.raises(PayloadError):
        items.root_item(full[:238])


# -------------------------------------------------------------------------------------- hashes --


def test_crc32c_check_value() -> None:
    assert hashes.crc32c(0xFFFFFFFF, b"123456789") ^ 0xFFFFFFFF == 0xE3069283
    assert hashes.csum(0, b"123456789") == bytes.fromhex("839206e3")


@given(names=st.lists(st.binary(max_size=300)))
def test_hashes_of_names_in_c(names: list[bytes]) -> None:
    text, sizes = np.frombuffer(b"".join(names), np.uint8), np.array([*map(len, names)], np.uint32)
    assert name_hashes(text, sizes).tolist() == [*map(hashes.name_hash, names)]


@given(
    data=st.binary(min_size=1, max_size=5000), csum_type=st.sampled_from(sorted(hashes.CSUM_SIZES))
)
def test_checksums_in_c(data: bytes, csum_type: int) -> None:
    wanted = hashes.csum(csum_type, data)
    assert sector_sums(csum_type, data, len(data)).tobytes() == wanted
    assert len(wanted) == hashes.CSUM_SIZES[csum_type]


def test_csum_vectors() -> None:
    assert hashes.csum(lib.BTRFS_CSUM_TYPE_SHA256, b"abc") == hashlib.sha256(b"abc").digest()
    assert hashes.csum(lib.BTRFS_CSUM_TYPE_XXHASH, b"")[::-1].hex() == "ef46db3751d8e999"
    assert hashes.csum(lib.BTRFS_CSUM_TYPE_BLAKE2, b"")[:4].hex() == "0e5751c0"


@pytest.mark.parametrize("choice", ["c", "python"])
def test_hashes_of_real_keys(small_image: Path, choice: Any) -> None:
    """Offsets of keys that kernels wrote are the hashes of what the items hold."""
    seen: dict[int, int] = defaultdict(int)
    with select(choice):
        for root in select_trees(Image.open(small_image)):
            for item in root.tree.items():
                for wanted in key_hashes(item.key, item.data):
                    # a collision of EXTENT_DATA_REF takes the next offset
                    slack = 2 if item.key.type == ItemType.EXTENT_DATA_REF else 0
                    assert 0 <= item.key.offset - wanted <= slack
                    seen[item.key.type] += 1
    assert seen[ItemType.DIR_ITEM] > 100
    assert seen[ItemType.XATTR_ITEM] > 1


def key_hashes(key: Key, data: memoryview) -> list[int]:
    if key.type in {ItemType.DIR_ITEM, ItemType.XATTR_ITEM}:
        return [hashes.name_hash(entry.name) for entry in items.dir_items(data)]
    if key.type == ItemType.INODE_EXTREF:
        return [
            hashes.extref_hash(ref.parent_objectid, ref.name) for ref in items.inode_extrefs(data)
        ]
    if key.type == ItemType.EXTENT_DATA_REF:
        ref = structs.EXTENT_DATA_REF.unpack(data)
        return [hashes.extent_data_ref_hash(ref.root, ref.objectid, ref.offset)]
    return []


def test_extref_and_data_ref_hashes() -> None:
    """Where the corpus has such keys, they follow; here the rules themselves."""
    assert hashes.extref_hash(257 + (1 << 32), b"x") == hashes.extref_hash(257, b"x")
    low = hashes.extent_data_ref_hash(5, 257, 0) ^ hashes.extent_data_ref_hash(5, 258, 0)
    assert low < 1 << 32


# ---------------------------------------------------------------------------------------- keys --

U64 = st.integers(0, 2**64 - 1)
KEYS = st.builds(Key, U64, st.integers(0, 255), U64)


@given(first=KEYS, second=KEYS)
def test_key_order(first: Key, second: Key) -> None:
    def number(key: Key) -> int:
        return key.objectid << 72 | key.type << 64 | key.offset

    assert (first < second) == (number(first) < number(second))


# ---------------------------------------------------------------------------------- superblock --


@pytest.fixture(scope="module")
def head(small_image: Path) -> bytes:
    """The bytes of an image up to the end of the second superblock."""
    with small_image.open("rb") as file:
        return file.read(SUPER_OFFSETS[1] + 4096)


def at(field: str) -> int:
    return int((SUPER_BLOCK.dtype.fields or {})[field][1])


def edit(raw: bytes, copy: int, **values: int) -> bytearray:
    """Change fields of a superblock and give it a checksum that fits."""
    image = bytearray(raw)
    start = SUPER_OFFSETS[copy]
    for field, value in values.items():
        size = (SUPER_BLOCK.dtype.fields or {})[field][0].itemsize
        image[start + at(field) : start + at(field) + size] = value.to_bytes(size, "little")
    return sign(image, copy)


def sign(image: bytearray, copy: int) -> bytearray:
    start = SUPER_OFFSETS[copy]
    digest = hashes.csum(0, bytes(image[start + 32 : start + 4096]))
    image[start : start + 4] = digest
    return image


def test_every_image_opens() -> None:
    """Superblock and chunk map of one image of each family (test_dump_tree opens many more)."""
    names = corpus.images()
    for name in names[:: max(1, len(names) // 12)]:
        with Image.open(corpus.image(name)) as image:
            sb = image.superblock
            assert sb.copies == SUPER_OFFSETS[: len(sb.copies)]
            assert {chunk.logical for chunk in sb.sys_chunks} <= {c.logical for c in image.chunks}


def test_both_copies_are_found(head: bytes) -> None:
    sb = read_superblocks(head, "x")
    assert (sb.offset, sb.copies) == (SUPER_OFFSETS[0], SUPER_OFFSETS[:2])
    assert sb.dev_item.fsid == sb.tree_fsid == sb.fsid


def test_mirror_stands_in(head: bytes) -> None:
    """A zeroed or damaged first copy leaves the second."""
    zeroed = bytearray(head)
    zeroed[SUPER_OFFSETS[0] : SUPER_OFFSETS[0] + 4096] = bytes(4096)
    damaged = bytearray(head)
    damaged[SUPER_OFFSETS[0] + 2000] ^= 1
    for image in (zeroed, damaged):
        sb = read_superblocks(image, "x")
        assert (sb.offset, sb.copies) == (SUPER_OFFSETS[1], (SUPER_OFFSETS[1],))
        assert sb.root == read_superblocks(head, "x").root


def test_newest_copy_wins(head: bytes) -> None:
    generation = read_superblocks(head, "x").generation
    newer = edit(head, 1, generation=generation + 1)
    assert read_superblocks(newer, "x").offset == SUPER_OFFSETS[1]
    older = edit(head, 1, generation=generation - 1)
    assert read_superblocks(older, "x").offset == SUPER_OFFSETS[0]


def test_copies_of_another_filesystem_do_not_count(head: bytes) -> None:
    generation = read_superblocks(head, "x").generation
    other = edit(head, 1, generation=generation + 9, fsid=1)
    assert read_superblocks(other, "x").copies == SUPER_OFFSETS[:1]
    beyond = edit(edit(head, 0, fsid=0), 0)
    start = SUPER_OFFSETS[1] + at("dev_item") + 8
    beyond[start : start + 8] = (1 << 20).to_bytes(8, "little")
    sign(beyond, 1)
    with pytest.raises(CorruptImageError):
        read_superblocks(beyond, "x")


@pytest.mark.parametrize("size", [0, 1, 65536, 65536 + 4095])
def test_truncated_image(head: bytes, size: int) -> None:
    with pytest.raises(NotBtrfsError) as error:
        read_superblocks(head[:size], "cut.img")
    assert str(error.value) == (
        f"cut.img: no btrfs filesystem: it has {size} bytes, its superblock would end at 69632"
    )


def test_no_superblock() -> None:
    with pytest.raises(NotBtrfsError, match="no btrfs filesystem"):
        read_superblocks(bytes(1 << 17), "zero.img")


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"incompat_flags": 1 << 12 | 1}, "ZONED"),
        ({"incompat_flags": 1 << 13 | 1}, "EXTENT_TREE_V2"),
        ({"incompat_flags": 1 << 40 | 1 << 12}, "ZONED, bit 40"),
        ({"flags": 1 << 33}, "METADUMP"),
        ({"flags": 1 << 35 | 1}, "CHANGING_FSID"),
        ({"csum_type": 4}, "checksum type 4"),
    ],
)
def test_unsupported_is_named(head: bytes, values: dict[str, int], word: str) -> None:
    image = edit(head[: 1 << 20], 0, **values)
    with pytest.raises(UnsupportedError, match=word):
        read_superblocks(image, "x")


@pytest.mark.parametrize(
    "values",
    [
        {"sectorsize": 0},
        {"sectorsize": 512},
        {"nodesize": 2048},
        {"nodesize": 12288},
        {"nodesize": 1 << 17},
        {"root_level": 8},
        {"chunk_root": 1},
        {"root": 0},
        {"sys_chunk_array_size": 2049},
        {"sys_chunk_array_size": 0},
        {"sys_chunk_array_size": 98},
        {"num_devices": 0},
        {"fsid": 1},
        {"bytenr": 0},
    ],
)
def test_senseless_superblock(head: bytes, values: dict[str, int]) -> None:
    with pytest.raises(CorruptImageError, match=r"^x: .*offset 6[0-9]{4}"):
        read_superblocks(edit(head[: 1 << 20], 0, **values), "x")


def test_metadata_uuid(head: bytes) -> None:
    """After `btrfstune -m` blocks keep the old fsid, which is then the metadata uuid."""
    sb = read_superblocks(head, "x")
    old = int.from_bytes(sb.fsid, "little")
    changed = edit(head, 0, fsid=7, metadata_uuid=old, incompat_flags=sb.incompat_flags | 1 << 10)
    after = read_superblocks(changed, "x")
    assert after.fsid == (7).to_bytes(16, "little")
    assert after.tree_fsid == sb.fsid
    assert after.has_incompat("METADATA_UUID")
    assert not sb.has_incompat("METADATA_UUID")


@given(
    place=st.integers(32, 4095), value=st.integers(0, 255), size=st.integers(0, 2100) | st.none()
)
def test_any_signed_superblock(head: bytes, place: int, value: int, size: int | None) -> None:
    """A superblock with a good checksum and any wrong byte opens or is refused in one line."""
    image = bytearray(head[: 1 << 17])
    image[SUPER_OFFSETS[0] + place] = value
    if size is not None:
        image = edit(bytes(image), 0, sys_chunk_array_size=size)
    try:
        read_superblocks(sign(image, 0), "x")
    except BtrfsModelError as error:
        assert str(error).startswith("x: ") and "\n" not in str(error)


def test_flag_names_are_single_bits() -> None:
    assert all(bit & (bit - 1) == 0 for bit in INCOMPAT_FLAGS)
    assert len(set(INCOMPAT_FLAGS.values())) == len(INCOMPAT_FLAGS)


# -------------------------------------------------------------------------------------- chunks --


def chunk(flags: int, devids: list[int], length: int = 8 << 20, sub: int = 1) -> bytes:
    head = struct.pack("<QQQQIIIHH", length, 2, 65536, flags, 4096, 4096, 4096, len(devids), sub)
    return head + b"".join(
        struct.pack("<QQ16s", devid, index << 24, bytes(16)) for index, devid in enumerate(devids)
    )


@pytest.mark.parametrize(
    ("flags", "devids", "starts"),
    [
        (1, [1], (0,)),
        (1 | 8, [1], (0,)),
        (4 | 32, [1, 1], (0, 1 << 24)),
        (4 | 16, [1, 1], (0, 1 << 24)),
        (5, [1], (0,)),
    ],
)
def test_chunks(flags: int, devids: list[int], starts: tuple[int, ...]) -> None:
    parsed = parse_chunk_item(1 << 30, chunk(flags, devids), "x")
    assert (parsed.logical, parsed.length, parsed.type) == (1 << 30, 8 << 20, flags)
    assert parsed.stripes == starts
    assert parsed.end == (1 << 30) + (8 << 20)


@pytest.mark.parametrize(
    ("flags", "stripes", "sub", "width", "placed", "copies"),
    [
        (1 | 8, 2, 1, 2, 1, 1),
        (1 | 64, 4, 2, 2, 2, 2),
        (1 | 64, 2, 2, 0, 2, 2),
        (1 | 128, 2, 1, 1, 1, 2),
        (1 | 256, 5, 1, 3, 1, 5),
        (4 | 512, 3, 1, 0, 3, 3),
        (4 | 1024, 4, 1, 0, 4, 4),
        (4 | 16, 2, 1, 0, 2, 2),
    ],
)
def test_chunks_on_several_devices(
    flags: int, stripes: int, sub: int, width: int, placed: int, copies: int
) -> None:
    devids = list(range(1, stripes + 1))
    parsed = parse_chunk_item(0, chunk(flags, devids, sub=sub), "x")
    assert parsed.devids == tuple(devids)
    assert (parsed.width, parsed.placed, parsed.copies) == (width, placed, copies)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        chunk(1, [1])[:-1],
        chunk(1, []),
        chunk(0, [1]),
        chunk(1 | 32, [1]),
        chunk(1 | 8 | 16, [1, 1]),
        chunk(1 | 1 << 30, [1]),
        chunk(1, [1, 1]),
        chunk(1 | 64, [1, 2, 3], sub=2),
        chunk(1 | 64, [1, 2], sub=1),
        chunk(1 | 128, [1]),
        chunk(1 | 256, [1, 2]),
        chunk(4 | 512, [1, 2]),
        chunk(1, [1], length=0),
        chunk(1, [1], length=100),
    ],
)
def test_bad_chunks(payload: bytes) -> None:
    with pytest.raises(CorruptImageError, match="tree 3, block 77824, slot 2"):
        parse_chunk_item(1 << 30, payload, "x", block=77824, slot=2)


def test_tree_from_superblock_alone(small_image: Path) -> None:
    """The superblock is enough to reach every tree."""
    image = Image.open(small_image)
    sb = image.superblock
    tree = Tree(image, ObjectId.ROOT_TREE, sb.root, sb.generation, sb.root_level)
    assert tree.get(Key(ObjectId.FS_TREE, ItemType.ROOT_ITEM, 0)) is not None
