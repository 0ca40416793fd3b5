# SPDX-License-Identifier: GPL-2.0-only
"""Dumps of trees: text to the byte as btrfs-progs has it, JSON and Parquet with the same items.

Dumps that btrfs-progs 6.2 made are part of the corpus, so comparing needs no btrfs-progs. Where
that very release is installed, it also judges options and leaves made of all kinds of items.
"""

import io
import json
import os
import re
import shutil
import struct
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from progs import dumped, without_senseless_times

from btrfs_model.base.errors import (
    BtrfsModelError,
    CorruptImageError,
    SubvolumeNotFoundError,
)
from btrfs_model.native.choice import select
from btrfs_model.ondisk import hashes, structs
from btrfs_model.ondisk.keys import MAX_KEY, MIN_KEY, ItemType, Key, ObjectId
from btrfs_model.questions.dumptree import templates
from btrfs_model.questions.dumptree.json_lines import dump_tree_json
from btrfs_model.questions.dumptree.table import dump_tree_parquet
from btrfs_model.questions.dumptree.text import dump_blocks_text, dump_tree_text
from btrfs_model.questions.dumptree.trees import select_trees
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree


@pytest.fixture(autouse=True, scope="module")
def utc() -> Iterator[None]:
    """Times are shown as local; those of the corpus were in UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def text_of(image: Image, tree: int | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    dump_tree_text(image, out, tree, **options)
    return out.getvalue()


def blocks_of(image: Image, *addresses: int, **options: Any) -> bytes:
    out = io.BytesIO()
    dump_blocks_text(image, out, addresses, **options)
    return out.getvalue()


# ----------------------------------------------------------------------------- recorded dumps --


def recorded() -> list[str]:
    """Dumps in the corpus, at most 60 of them."""
    names = [f"log/{name}" for name in corpus.files("log", "*.txt.zst") if "cross_" not in name]
    return names[:: max(1, len(names) // 60)]


@pytest.mark.claim(
    "`dump-tree` prints what `btrfs inspect-internal dump-tree` of btrfs-progs 6.2 prints, "
    "byte for byte.",
    judge="progs",
)
@pytest.mark.parametrize("name", recorded())
def test_recorded_dump(name: str) -> None:
    """Each section of the file is a run of dump-tree, below a line with its options."""
    folder, _, file = name.rpartition("/")
    image = Image.open(corpus.image(f"{folder}/{file.split('.')[0]}.img.zst"))
    sections = re.split(rb"^# dump-tree (.*)\n", corpus.data(folder, file), flags=re.M)
    assert not sections[0] and len(sections) >= 3
    for options, wanted in zip(sections[1::2], sections[2::2], strict=True):
        match options.decode().split():
            case ["-t", tree]:
                shown = text_of(image, int(tree))
            case ["-b", block]:
                shown = blocks_of(image, int(block))
            case ["-b", block, "--follow"]:
                shown = blocks_of(image, int(block), follow=True)
            case _:
                pytest.fail(f"unknown options {options!r}")
        version, _, wanted = wanted.partition(b"\n")
        assert version == b"btrfs-progs v6.2"
        assert without_senseless_times(shown) == without_senseless_times(wanted)


# -------------------------------------------------------------------- beside btrfs-progs itself --


def progs_version() -> str:
    if shutil.which("btrfs") is None:
        return "none"
    return subprocess.run(["btrfs", "--version"], capture_output=True, text=True).stdout.split()[1]


needs_progs = pytest.mark.skipif(
    progs_version() != "v6.2", reason=f"needs btrfs-progs v6.2, there is {progs_version()}"
)


# btrfs-progs 6.2 do not open them
NEWER_THAN_PROGS = {"features/simple-quota"}


def whole_images() -> list[str]:
    """Images of all families, a few of each, none that takes long."""
    by_family: dict[str, list[str]] = defaultdict(list)
    for name in corpus.images():
        folder, file = (name.rpartition("/")[::2]) if name.endswith(".zst") else (name, "image.zst")
        is_small = corpus.path(folder, file).stat().st_size < 300_000
        if is_small and devices(name) == 1 and name not in NEWER_THAN_PROGS:
            by_family["/".join(name.split("/")[:2])].append(name)
    return [name for names in by_family.values() for name in names[:: max(1, len(names) // 5)]]


def devices(name: str) -> int:
    """Devices of the filesystem that an image is one of."""
    return 1 if name.endswith(".zst") else int(corpus.case(name).get("devices", 1))


@needs_progs
@pytest.mark.parametrize("name", whole_images())
def test_whole_image(name: str) -> None:
    path = corpus.image(name)
    shown = text_of(Image.open(path))
    assert without_senseless_times(shown) == without_senseless_times(dumped(path))


OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    (["-e"], {"extents": True}),
    (["-d"], {"devices": True}),
    (["-u"], {"uuids": True}),
    (["-r"], {"roots": True}),
    (["-R"], {"roots": True, "backups": True}),
    (["-e", "-d"], {"extents": True, "devices": True}),
    (["-d", "-u"], {"devices": True, "uuids": True}),
    (["-r", "-e"], {"roots": True, "extents": True}),
    (["-r", "-t", "5"], {"roots": True, "tree": 5}),
    (["-d", "-t", "4"], {"devices": True, "tree": 4}),
    (["-d", "-t", "5"], {"devices": True, "tree": 5}),
    (["--dfs"], {"depth_first": True}),
    (["--hide-names"], {"hide_names": True}),
    (["--csum-headers"], {"csum_headers": True}),
    (["--csum-items", "-t", "csum"], {"csum_items": True, "tree": 7}),
    (["-t", "root"], {"tree": 1}),
    (["-t", "chunk"], {"tree": 3}),
    (["-t", "extent"], {"tree": 2}),
    (["-t", "data_reloc"], {"tree": 2**64 - 9}),
]


@needs_progs
@pytest.mark.parametrize(("options", "keywords"), OPTIONS, ids=lambda value: str(value))
def test_options(small_image: Path, options: list[str], keywords: dict[str, Any]) -> None:
    assert text_of(Image.open(small_image), **keywords) == dumped(small_image, *options)


@needs_progs
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("depth_first", [False, True])
def test_blocks(small_image: Path, *, follow: bool, depth_first: bool) -> None:
    image = Image.open(small_image)
    trees = [root.tree for root in select_trees(image)]
    deepest = max(trees, key=lambda tree: tree.level)
    addresses = list({tree.bytenr for tree in (*trees[:4], deepest)})
    options = ["--follow"] * follow + ["--dfs"] * depth_first
    for address in addresses:
        options += ["-b", str(address)]
    shown = blocks_of(image, *addresses, follow=follow, depth_first=depth_first)
    assert shown == dumped(small_image, *options)


# ------------------------------------------------------------------------ leaves of our making --

U8, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
NAMES = st.binary(max_size=80)
BLOCK_GROUP_FLAGS = st.builds(
    int.__or__, st.sampled_from([1, 2, 4, 5]), st.sampled_from([0, *(1 << n for n in range(3, 11))])
)


def fixed(layout: structs.Layout[Any]) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=layout.size, max_size=layout.size)


def repeated(one: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(one, min_size=1, max_size=3).map(b"".join)


def disk_key(objectid: int, kind: int, offset: int) -> bytes:
    return struct.pack("<QBQ", objectid, kind, offset)


# The tree and the items that 6.2 has no names for are left out.
OBJECTIDS = st.sampled_from(
    [*range(12), 13, 256, 257, 2**64 - 255, *(2**64 - n for n in range(1, 13))]
)
DISK_KEYS = st.builds(disk_key, OBJECTIDS, st.sampled_from([*ItemType, 0, 7]), OBJECTIDS | U64)
DIR_ITEMS = repeated(
    st.builds(
        lambda key, transid, kind, name, data: (
            key + struct.pack("<QHHB", transid, len(data), len(name), kind) + name + data
        ),
        DISK_KEYS,
        U64,
        st.integers(0, 9),
        NAMES,
        st.binary(max_size=300),
    )
)
INLINE_REFS = st.one_of(
    st.builds(struct.pack, st.just("<BQ"), st.sampled_from([176, 182]), OBJECTIDS | U64),
    st.builds(struct.pack, st.just("<BQQQI"), st.just(178), OBJECTIDS, U64, U64, U32),
    st.builds(struct.pack, st.just("<BQI"), st.just(184), U64, U32),
)
EXTENTS = st.builds(
    lambda refs, flags, key, level, inline: (
        struct.pack("<QQQ", refs, 7, flags)
        + (key + bytes([level]) if flags & 2 else b"")
        + b"".join(inline)
    ),
    U64,
    st.sampled_from([0, 1, 2, 3, 256, 257, 258]),
    DISK_KEYS,
    U8,
    st.lists(INLINE_REFS, max_size=4),
)
SKINNY = st.builds(
    lambda refs, inline: struct.pack("<QQQ", refs, 7, 2) + b"".join(inline),
    U64,
    st.lists(INLINE_REFS, max_size=4),
)
FILE_EXTENTS = st.builds(
    lambda head, kind, rest, data: head + bytes([kind]) + (rest if kind else data),
    st.binary(min_size=20, max_size=20),
    st.integers(0, 3),
    st.binary(min_size=32, max_size=32),
    st.binary(max_size=60),
)
ROOT_ITEMS = st.builds(
    lambda raw, same, short: (
        raw[:239] if short else raw[:239] + (raw[160:168] if same else b"") + raw[247:]
    ).ljust(239 if short else 439, b"\1"),
    fixed(structs.ROOT_ITEM),
    st.booleans(),
    st.booleans(),
)
CHUNKS = st.builds(
    lambda head, flags, stripes: (
        head[:24]
        + struct.pack("<Q", flags)
        + head[32:44]
        + bytes([len(stripes), 0])
        + head[46:]
        + b"".join(stripes)
    ),
    fixed(structs.CHUNK_HEAD),
    BLOCK_GROUP_FLAGS,
    st.lists(fixed(structs.STRIPE), min_size=1, max_size=3),
)
ROOT_REFS = st.builds(
    lambda dirid, sequence, name: struct.pack("<QQH", dirid, sequence, len(name)) + name,
    U64,
    U64,
    NAMES,
)
PAYLOADS: dict[int, st.SearchStrategy[bytes]] = {
    ItemType.INODE_ITEM: fixed(structs.INODE_ITEM),
    ItemType.INODE_REF: repeated(
        st.builds(lambda index, name: struct.pack("<QH", index, len(name)) + name, U64, NAMES)
    ),
    ItemType.INODE_EXTREF: repeated(
        st.builds(
            lambda dirid, index, name: struct.pack("<QQH", dirid, index, len(name)) + name,
            U64,
            U64,
            NAMES,
        )
    ),
    ItemType.XATTR_ITEM: DIR_ITEMS,
    ItemType.VERITY_DESC_ITEM: fixed(structs.VERITY_DESCRIPTOR_ITEM),
    ItemType.VERITY_MERKLE_ITEM: NAMES,
    ItemType.ORPHAN_ITEM: st.just(b""),
    ItemType.DIR_LOG_ITEM: fixed(structs.DIR_LOG_ITEM),
    ItemType.DIR_LOG_INDEX: fixed(structs.DIR_LOG_ITEM),
    ItemType.DIR_ITEM: DIR_ITEMS,
    ItemType.DIR_INDEX: DIR_ITEMS,
    ItemType.EXTENT_DATA: FILE_EXTENTS,
    ItemType.CSUM_ITEM: NAMES,
    ItemType.EXTENT_CSUM: st.lists(st.binary(min_size=4, max_size=4), max_size=9).map(b"".join),
    ItemType.ROOT_ITEM: ROOT_ITEMS,
    ItemType.ROOT_BACKREF: ROOT_REFS,
    ItemType.ROOT_REF: ROOT_REFS,
    ItemType.EXTENT_ITEM: EXTENTS,
    ItemType.METADATA_ITEM: SKINNY,
    ItemType.TREE_BLOCK_REF: st.just(b""),
    ItemType.EXTENT_DATA_REF: fixed(structs.EXTENT_DATA_REF),
    ItemType.EXTENT_REF_V0: NAMES,
    ItemType.SHARED_BLOCK_REF: st.just(b""),
    ItemType.SHARED_DATA_REF: fixed(structs.SHARED_DATA_REF),
    ItemType.BLOCK_GROUP_ITEM: st.builds(struct.pack, st.just("<QQQ"), U64, U64, BLOCK_GROUP_FLAGS),
    ItemType.FREE_SPACE_INFO: fixed(structs.FREE_SPACE_INFO),
    ItemType.FREE_SPACE_EXTENT: st.just(b""),
    ItemType.FREE_SPACE_BITMAP: st.binary(min_size=256, max_size=256),
    ItemType.DEV_EXTENT: fixed(structs.DEV_EXTENT),
    ItemType.DEV_ITEM: fixed(structs.DEV_ITEM),
    ItemType.CHUNK_ITEM: CHUNKS,
    ItemType.QGROUP_STATUS: fixed(structs.QGROUP_STATUS_ITEM),
    ItemType.QGROUP_INFO: fixed(structs.QGROUP_INFO_ITEM),
    ItemType.QGROUP_LIMIT: fixed(structs.QGROUP_LIMIT_ITEM),
    ItemType.QGROUP_RELATION: st.just(b""),
    ItemType.TEMPORARY_ITEM: fixed(structs.BALANCE_ITEM),
    ItemType.PERSISTENT_ITEM: fixed(structs.DEV_STATS_ITEM),
    ItemType.DEV_REPLACE: fixed(structs.DEV_REPLACE_ITEM),
    ItemType.UUID_KEY_SUBVOL: repeated(st.binary(min_size=8, max_size=8)),
    ItemType.UUID_KEY_RECEIVED_SUBVOL: repeated(st.binary(min_size=8, max_size=8)),
    ItemType.STRING_ITEM: NAMES,
    7: NAMES,
}
LEAF_ITEMS = st.lists(
    st.one_of(
        st.sampled_from(sorted(PAYLOADS)).flatmap(
            lambda kind: st.tuples(
                st.builds(Key, OBJECTIDS | U64, st.just(kind), OBJECTIDS | U64), PAYLOADS[kind]
            )
        ),
        st.tuples(
            st.builds(Key, st.just(int(ObjectId.FREE_SPACE)), st.just(0), U64),
            fixed(structs.FREE_SPACE_HEADER),
        ),
        st.tuples(
            st.builds(Key, st.just(int(ObjectId.BALANCE)), st.just(248), U64),
            fixed(structs.BALANCE_ITEM),
        ),
        st.tuples(st.builds(Key, st.just(0), st.just(249), U64), fixed(structs.DEV_STATS_ITEM)),
    ),
    max_size=10,
    unique_by=lambda item: item[0],
).map(sorted)


# Names that btrfs-progs 6.2 does not know yet, and what it shows in their place.
NEW_NAMES = {
    b"RAID_STRIPE_TREE": b"12",
    b" RAID_STRIPE ": b" UNKNOWN.230 ",
    b" EXTENT_OWNER_REF ": b" UNKNOWN.172 ",
}


class Leaf:
    """A leaf of an image that may be written over: the root of the data relocation tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with Image.open(path) as image:
            (root,) = select_trees(image, ObjectId.DATA_RELOC_TREE)
            self.address = root.tree.bytenr
            assert root.tree.level == 0
            self.places = [
                chunk.stripes[copy] + self.address - chunk.logical
                for chunk in [image.chunk_at(self.address)]
                if chunk is not None
                for copy in range(len(chunk.stripes))
            ]
            self.nodesize = image.nodesize
            self.before = bytes(image.block(self.address))

    def write(self, items: list[tuple[Key, bytes]]) -> None:
        """Fill the leaf with items, as many as fit."""
        heads, data = b"", b""
        count = 0
        room = self.nodesize - structs.HEADER.size
        for key, payload in items:
            if len(heads) + 25 + len(data) + len(payload) > room:
                break
            data = payload + data
            heads += disk_key(*key) + struct.pack("<II", room - len(data), len(payload))
            count += 1
        head = self.before[32:96] + struct.pack("<IB", count, 0)
        self.put(head + heads + bytes(room - len(heads) - len(data)) + data)

    def put(self, body: bytes) -> None:
        """Write all of the block but the checksum, which is made to fit."""
        block = hashes.csum(0, body).ljust(32, b"\0") + body
        assert len(block) == self.nodesize
        with self.path.open("r+b") as file:
            for place in self.places:
                file.seek(place)
                file.write(block)


@pytest.fixture(scope="module")
def leaf(tmp_path_factory: pytest.TempPathFactory) -> Leaf:
    path = tmp_path_factory.mktemp("leaf") / "leaf.img"
    return Leaf(corpus.scratch_copy("send/random/seed-003", path))


def is_sensible(key: Key) -> bool:
    """Whether btrfs-progs shows the numbers of a key as they are."""
    if key.type == ItemType.METADATA_ITEM:
        return key.offset < 8  # the level
    # a checksum tree under construction, which never became part of the format
    return (key.objectid, key.type) != (13, ItemType.TEMPORARY_ITEM)


@needs_progs
@settings(max_examples=60)
@given(items=LEAF_ITEMS)
def test_every_kind_of_item(leaf: Leaf, items: list[tuple[Key, bytes]]) -> None:
    """Items of every type, whatever their fields hold, look as btrfs-progs shows them."""
    leaf.write([(key, data) for key, data in items if is_sensible(key)])
    shown = blocks_of(Image.open(leaf.path), leaf.address)
    for name, number in NEW_NAMES.items():
        shown = shown.replace(name, number)
    wanted = dumped(leaf.path, "-b", str(leaf.address))
    assert without_senseless_times(shown) == without_senseless_times(wanted)


@settings(max_examples=60)
@given(items=LEAF_ITEMS, data=st.data())
def test_broken_payloads(leaf: Leaf, items: list[tuple[Key, bytes]], data: st.DataObject) -> None:
    """A payload that is cut or has wrong bytes is shown or refused, by its place."""
    broken = [
        (key, payload[: data.draw(st.integers(0, len(payload)))] + data.draw(st.binary(max_size=9)))
        for key, payload in items
    ]
    leaf.write(broken)
    image = Image.open(leaf.path)
    for dump in (
        lambda: text_of(image, ObjectId.DATA_RELOC_TREE),
        lambda: dump_tree_json(image, io.BytesIO(), ObjectId.DATA_RELOC_TREE),
        lambda: dump_tree_parquet(
            image, leaf.path.with_suffix(".parquet"), ObjectId.DATA_RELOC_TREE
        ),
    ):
        try:
            dump()
        except CorruptImageError as error:
            place = f"{leaf.path}: tree -9, block {leaf.address}, slot "
            assert str(error).startswith(place) and "\n" not in str(error)


@settings(max_examples=100)
@given(place=st.integers(32, 4095), value=st.integers(0, 255))
def test_broken_leaves(leaf: Leaf, place: int, value: int) -> None:
    """Any wrong byte below a good checksum: shown or refused in one line."""
    body = bytearray(leaf.before[32:])
    body[place - 32] = value
    leaf.put(bytes(body))
    try:
        text_of(Image.open(leaf.path), ObjectId.DATA_RELOC_TREE)
    except BtrfsModelError as error:
        assert str(error).startswith(f"{leaf.path}: ") and "\n" not in str(error)


# ------------------------------------------------------------------------- filters, twins, forms --

ITEM_LINE = re.compile(r"^\titem (\d+) (key \(.*\)) itemoff (\d+) itemsize (\d+)$", re.M)


def item_lines(text: bytes) -> list[tuple[str, ...]]:
    return ITEM_LINE.findall(text.decode("latin-1"))


def all_items(image: Image, tree: int | None = None) -> list[tuple[int, Key, bytes]]:
    return [
        (root.key.objectid, item.key, bytes(item.data))
        for root in select_trees(image, tree)
        for item in root.tree.items()
    ]


def test_python_twins_show_the_same(small_image: Path) -> None:
    with select("c"):
        wanted = text_of(Image.open(small_image))
    with select("python"):
        assert text_of(Image.open(small_image)) == wanted


def test_filter_by_objectid(small_image: Path) -> None:
    image = Image.open(small_image)
    shown = item_lines(text_of(image, 5, objectid=256))
    wanted = [key for _, key, _ in all_items(image, 5) if key.objectid == 256]
    assert [line[1] for line in shown] == [templates.key(*key) for key in wanted]
    assert len(shown) > 3


def test_filter_by_key_range(small_image: Path) -> None:
    image = Image.open(small_image)
    items = [key for tree, key, _ in all_items(image) if tree == 2]
    low, high = items[len(items) // 3], items[len(items) // 2]
    shown = item_lines(text_of(image, 2, min_key=low, max_key=high))
    assert [line[1] for line in shown] == [
        templates.key(*key) for key in items if low <= key <= high
    ]


def test_filter_shows_items_as_without(small_image: Path) -> None:
    """Every line of a filtered dump is one of the whole dump."""
    image = Image.open(small_image)
    whole = set(text_of(image).split(b"\n"))
    some = text_of(image, objectid=257)
    assert set(some.split(b"\n")) <= whole
    assert not text_of(image, objectid=123456789).startswith(b"root tree")


def test_full_range_is_no_filter(small_image: Path) -> None:
    image = Image.open(small_image)
    assert text_of(image, min_key=MIN_KEY, max_key=MAX_KEY) == text_of(image)


def test_no_such_tree(small_image: Path) -> None:
    image = Image.open(small_image)
    for dump in (text_of, lambda i, t: dump_tree_json(i, io.BytesIO(), t)):
        with pytest.raises(SubvolumeNotFoundError, match="no tree 999"):
            dump(image, 999)


def test_json_has_every_item(small_image: Path) -> None:
    image = Image.open(small_image)
    out = io.BytesIO()
    dump_tree_json(image, out)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [
        (r["tree"], r["key"]["objectid"], r["key"]["type"], r["key"]["offset"], r["size"])
        for r in records
    ] == [(tree, *key, len(data)) for tree, key, data in all_items(image)]
    by_type = Counter(record["key"]["type_name"] for record in records)
    assert by_type["INODE_ITEM"] > 10
    for record in records:
        if record["key"]["type_name"] == "INODE_REF":
            size = sum(
                10 + len(r["name"].encode("utf-8", "surrogateescape")) for r in record["item"]
            )
            assert size == record["size"]


def test_json_of_one_directory(small_image: Path) -> None:
    """Names lead to inodes that are there."""
    image = Image.open(small_image)
    out = io.BytesIO()
    dump_tree_json(image, out, 5)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    inodes = {r["key"]["objectid"] for r in records if r["key"]["type_name"] == "INODE_ITEM"}
    entries = [e for r in records if r["key"]["type_name"] == "DIR_INDEX" for e in r["item"]]
    assert entries
    for entry in entries:
        if entry["location"]["type_name"] == "INODE_ITEM":
            assert entry["location"]["objectid"] in inodes


def test_parquet_has_every_item(small_image: Path, tmp_path: Path) -> None:
    image = Image.open(small_image)
    wanted = all_items(image)
    path = tmp_path / "items.parquet"
    assert dump_tree_parquet(image, path, payload=True) == len(wanted)
    table = pq.read_table(path)
    columns = [
        table[name].to_pylist() for name in ("tree", "objectid", "type", "offset", "payload")
    ]
    assert list(zip(*columns, strict=True)) == [(tree, *key, data) for tree, key, data in wanted]


def test_parquet_columns(small_image: Path, tmp_path: Path) -> None:
    """Decoded columns hold what decoding each item by itself gives."""
    image = Image.open(small_image)
    path = tmp_path / "items.parquet"
    dump_tree_parquet(image, path)
    for row, (_, key, data) in zip(pq.read_table(path).to_pylist(), all_items(image), strict=True):
        inode = key.type == ItemType.INODE_ITEM
        assert (row["inode_size"] is not None) == inode
        if inode:
            item = structs.INODE_ITEM.unpack(data)
            assert (row["inode_size"], row["inode_mode"]) == (item.size, item.mode)
            assert (row["inode_mtime_sec"], row["inode_mtime_nsec"]) == item.mtime
        if key.type == ItemType.EXTENT_DATA:
            kind = data[20]
            assert row["file_extent_type"] == kind
            extent = structs.FILE_EXTENT_ITEM.unpack(data) if kind else None
            assert row["file_extent_disk_bytenr"] == (extent and extent.disk_bytenr)
            assert row["file_extent_num_bytes"] == (extent and extent.num_bytes)
        if key.type == ItemType.DIR_INDEX:
            size = int.from_bytes(data[27:29], "little")
            assert row["name"] == data[30 : 30 + size]
            assert row["dir_location_objectid"] == int.from_bytes(data[:8], "little")
        if key.type in {ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM}:
            assert row["extent_refs"] == int.from_bytes(data[:8], "little")
        assert (row["name"] is None) == (key.type not in {12, 13, 24, 84, 96, 144, 156})


def test_parquet_filter(small_image: Path, tmp_path: Path) -> None:
    image = Image.open(small_image)
    path = tmp_path / "items.parquet"
    dump_tree_parquet(image, path, 5, objectid=257)
    table = pq.read_table(path)
    assert set(table["tree"].to_pylist()) == {5}
    assert set(table["objectid"].to_pylist()) == {257}


def test_parquet_of_a_deep_tree(tmp_path: Path) -> None:
    """A tree is scanned piece by piece; nothing is lost or doubled at the seams."""
    image = Image.open(corpus.image("send/send-readahead/n5000"))
    deep = max((root.tree for root in select_trees(image)), key=lambda tree: tree.level)
    assert deep.level >= 1
    path = tmp_path / "items.parquet"
    rows = dump_tree_parquet(image, path, deep.objectid)
    assert rows == sum(1 for _ in deep.items())
    table = pq.read_table(path)
    keys = list(zip(*(table[n].to_pylist() for n in ("objectid", "type", "offset")), strict=True))
    assert keys == sorted(set(keys))


def test_failed_parquet_leaves_no_file(leaf: Leaf, tmp_path: Path) -> None:
    leaf.write([(Key(256, ItemType.INODE_ITEM, 0), b"short")])
    path = tmp_path / "items.parquet"
    with pytest.raises(CorruptImageError, match="item of 5 bytes, at least 160 wanted"):
        dump_tree_parquet(Image.open(leaf.path), path)
    assert not path.exists()


def test_blocks_are_shown_once(small_image: Path) -> None:
    image = Image.open(small_image)
    address = image.superblock.root
    assert blocks_of(image, address, address) == blocks_of(image, address)
    tree = Tree(image, 1, address, image.superblock.generation, image.superblock.root_level)
    assert blocks_of(image, address).count(b"backref revision") == 1
    assert blocks_of(image, address, follow=True).count(b"backref revision") == len(tree.blocks())


def test_block_that_is_none(small_image: Path) -> None:
    with pytest.raises(CorruptImageError, match="no chunk maps logical address 4096"):
        blocks_of(Image.open(small_image), 4096)
