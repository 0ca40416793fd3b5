# SPDX-License-Identifier: GPL-2.0-only
"""Nothing is wrong with what kernels wrote, and each kind of damage is found and named."""

import os
import struct
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
from damage import NAME, Broken, item_head, node_ptr
from google_crc32c import value as crc32c_value
from hypothesis import settings

import btrfs_model as bm
from btrfs_model.base.errors import BtrfsModelError, CorruptImageError, UnsupportedError
from btrfs_model.native.choice import select
from btrfs_model.native.items import InodeReducer, KnownLeaves
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.structs import FILE_EXTENT_ITEM, INODE_ITEM, ROOT_ITEM
from btrfs_model.questions.check import check
from btrfs_model.questions.check.items import screen
from btrfs_model.questions.check.report import Report
from btrfs_model.questions.check.space import Coverage
from btrfs_model.questions.dumptree.statistics import tree_stats
from btrfs_model.volume.blocks import HEADER, ITEM
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Item

T = ItemType
ROUNDS = 60 if settings.default.max_examples <= 100 else 2000
# crash images checked by `make test`; `make test-long` takes all
ENOUGH = 120 if settings.default.max_examples <= 100 else 1 << 30
WHOLE = [
    name
    for name in corpus.images()
    if not name.endswith(".img.zst") and name not in corpus.SEVERAL_DEVICES
]
CRASHES = [name for name in corpus.images("log") if name.endswith(".img.zst")]


@pytest.mark.claim("`check` finds nothing wrong with any image of a kernel.")
@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_wrong_with_images_of_kernels(name: str) -> None:
    try:
        fs = Filesystem.open(corpus.image(name))
    except UnsupportedError as error:
        assert "devices" in str(error)
        return
    with fs:
        assert check(fs, verify_data=True) == []


def test_nothing_is_wrong_with_crash_images(tmp_path: Path) -> None:
    """Before and after replay, with and without logs."""
    assert CRASHES
    for name in CRASHES[:: len(CRASHES) // ENOUGH + 1]:
        folder, _, file = name.rpartition("/")
        target = tmp_path / "crash.img"
        corpus.restore(corpus.path(folder, file), target)
        assert check(target, verify_data=True) == [], name


@pytest.mark.parametrize("name", ["features/csum-sha256", "features/dup", "features/quota"])
def test_check_in_python_is_that_in_c(name: str) -> None:
    with select("python"):
        assert check(corpus.image(name), verify_data=True) == []


# -------------------------------------------------------------------------------- damage


@pytest.fixture(params=[1, 48 << 20], ids=["one leaf", "all leaves"])
def broken(
    small_image: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Broken:
    # inodes of how many bytes of leaves are checked at once
    monkeypatch.setattr(sys.modules["btrfs_model.questions.check.inodes"], "_WINDOW", request.param)
    return Broken(small_image)


@pytest.fixture
def deep() -> Broken:
    """An image whose trees have nodes."""
    return Broken(corpus.image("send/random/seed-000"))


@pytest.fixture
def dup() -> Broken:
    return Broken(corpus.image("features/dup"))


def texts(broken: Broken, *, verify_data: bool = False) -> list[str]:
    found = check(broken.image(), verify_data=verify_data)
    assert all("\n" not in str(finding) for finding in found)
    return [str(finding) for finding in found]


def find(broken: Broken, tree: int, kind: int, which: Callable[[Item], bool] | None = None) -> Item:
    """The first item of a type in a tree that fulfils a condition."""
    for item in broken.fs().tree(tree).items():
        if item.key.type == kind and (which is None or which(item)):
            return item
    raise LookupError(f"no item of type {kind} in tree {tree}")


def subvolume(broken: Broken) -> int:
    """A subvolume that has files."""
    return broken.fs().subvolume_ids[-1]


def bump(broken: Broken, item: Item, offset: int, code: str = "<Q", by: int = 1) -> None:
    """Add to a number of a payload."""
    (number,) = struct.unpack_from(code, item.data, offset)
    broken.write_item(item, offset, struct.pack(code, number + by))


def at(layout: object, field: str) -> int:
    return int(layout.dtype.fields[field][1])  # type: ignore[attr-defined]


def is_regular(item: Item) -> bool:
    return len(item.data) == 53 and any(item.data[21:29]) and item.data[20] == 1


def expect(broken: Broken, *parts: str) -> None:
    """All parts stand in one finding."""
    found = texts(broken)
    assert any(all(part in text for part in parts) for text in found), found


def test_bad_checksum_of_one_copy(dup: Broken) -> None:
    root = dup.fs().tree(5)
    first, second = dup.copies(root.bytenr)
    dup.map[second + 200] ^= 1
    expect(dup, "tree 5", f"block {root.bytenr}", "copy 1", "bad checksum")
    dup.map[second + 200] ^= 1
    dup.map[first + 200] ^= 1
    expect(dup, "tree 5", f"block {root.bytenr}", "copy 0", "bad checksum")


def test_bad_checksum_of_all_copies(dup: Broken) -> None:
    leaf = dup.fs().tree(5).blocks()[-1]
    dup.write(leaf.logical, 200, b"\xaa" * 9, seal=False)
    found = texts(dup)
    assert len(found) == 2
    assert all("bad checksum" in text and f"block {leaf.logical}" in text for text in found)


def test_superblock_copy(broken: Broken) -> None:
    broken.map[(64 << 20) + 100] ^= 1
    expect(broken, f"superblock at {64 << 20}")


@pytest.mark.claim("`check` names damage of each kind.", judge="unit")
@pytest.mark.parametrize(
    ("name", "damage", "parts"),
    [
        ("owner", lambda b, leaf: b.write(leaf, 88, struct.pack("<Q", 7)), ("owned by tree 7",)),
        ("flags", lambda b, leaf: b.write(leaf, 56, bytes(8)), ("WRITTEN",)),
        ("level", lambda b, leaf: b.write(leaf, 100, b"\1"), ("slot",)),
        ("nritems", lambda b, leaf: b.write(leaf, 96, b"\xff\xff\xff\x7f"), ("items",)),
        ("fsid", lambda b, leaf: b.write(leaf, 32, bytes(16)), ("fsid",)),
        ("bytenr", lambda b, leaf: b.write(leaf, 48, bytes(8)), ("address 0",)),
        ("generation", lambda b, leaf: b.write(leaf, 80, struct.pack("<Q", 1 << 40)),
         ("generation",)),
        ("order", lambda b, leaf: b.write(leaf, item_head(1), bytes(17)),
         ("slot 1", "not greater")),
        ("range", lambda b, leaf: b.write(leaf, item_head(2) + 17, b"\xff" * 4),
         ("slot 2", "item data")),
    ],
)  # fmt: skip
def test_damaged_leaf(
    broken: Broken, name: str, damage: Callable[[Broken, int], None], parts: tuple[str, ...]
) -> None:
    tree = subvolume(broken)
    leaf = next(block for block in broken.fs().tree(tree).blocks() if not block.level)
    damage(broken, leaf.logical)
    expect(broken, f"block {leaf.logical}", *parts)


def node_of(broken: Broken) -> tuple[int, int]:
    for tree in reversed(broken.fs().subvolume_ids):
        block = broken.fs().tree(tree).blocks()[0]
        if block.level and block.nritems > 2:
            return tree, block.logical
    raise LookupError("no node")


def test_loop_in_a_tree(deep: Broken) -> None:
    tree, node = node_of(deep)
    deep.write(node, node_ptr(1) + 17, struct.pack("<Q", node))
    found = texts(deep)
    assert any(f"block {node}" in text and ("level" in text or "says" in text) for text in found)
    with pytest.raises(CorruptImageError):
        list(deep.fs().tree(tree).items())


def test_pointer_with_another_key_than_its_child(deep: Broken) -> None:
    _, node = node_of(deep)
    key = deep.read(node, node_ptr(1), 17)
    bumped = key[:9] + struct.pack("<Q", struct.unpack("<Q", key[9:])[0] + 1)
    deep.write(node, node_ptr(1), bumped)
    expect(deep, f"block {node}, slot 1", "first key of block")


def test_pointer_generation(deep: Broken) -> None:
    _, node = node_of(deep)
    deep.write(node, node_ptr(1) + 25, struct.pack("<Q", 1))
    expect(deep, "slot 1", "generation 1,")


def test_unknown_item_type(broken: Broken) -> None:
    tree = subvolume(broken)
    leaf = next(block for block in broken.fs().tree(tree).blocks() if not block.level)
    last = item_head(leaf.nritems - 1)
    broken.write(leaf.logical, last + 8, b"\xf1")
    expect(broken, f"block {leaf.logical}, slot {leaf.nritems - 1}", "unknown item type 241")


@pytest.mark.parametrize(
    ("field", "code", "by", "parts"),
    [
        ("mode", "<I", 0o170000, ("no file type",)),
        ("generation", "<Q", 1 << 40, ("newer than the filesystem",)),
        ("transid", "<Q", 1 << 40, ("newer than the filesystem",)),
        ("nlink", "<I", 1, ("links, but",)),
        ("nbytes", "<Q", 4096, ("its extents have",)),
        ("flags", "<Q", 1 << 40, ("unknown bits",)),
    ],
)
def test_damaged_inode(
    broken: Broken, field: str, code: str, by: int, parts: tuple[str, ...]
) -> None:
    tree = subvolume(broken)
    data = find(broken, tree, T.EXTENT_DATA, is_regular)
    inode = find(broken, tree, T.INODE_ITEM, lambda i: i.key.objectid == data.key.objectid)
    at_field = at(INODE_ITEM, field)
    if field == "mode":
        broken.write_item(inode, at_field, struct.pack(code, by))
    else:
        bump(broken, inode, at_field, code, by)
    expect(broken, f"tree {tree}", f"({inode.key.objectid} INODE_ITEM 0)", *parts)


def test_directory_size(broken: Broken) -> None:
    tree = subvolume(broken)
    bump(broken, find(broken, tree, T.INODE_ITEM), at(INODE_ITEM, "size"), by=2)
    expect(broken, f"tree {tree}", "directory of size")


@pytest.mark.parametrize(
    ("field", "value", "parts"),
    [
        ("type", 3, ("file extent of type 3",)),
        ("compression", 9, ("compression 9",)),
        ("encryption", 1, ("encryption 1",)),
        ("disk_bytenr", 4097, ("not aligned",)),
        ("disk_bytenr", 1 << 50, ("where there is no extent",)),
        ("disk_num_bytes", 1 << 30, ("the extent has",)),
        ("offset", 1 << 40, ("shows bytes up to",)),
        ("num_bytes", 0, ("no bytes",)),
        ("generation", 1 << 40, ("file extent of generation",)),
    ],
)
def test_damaged_file_extent(
    broken: Broken, field: str, value: int, parts: tuple[str, ...]
) -> None:
    tree = subvolume(broken)
    item = find(broken, tree, T.EXTENT_DATA, is_regular)
    size = FILE_EXTENT_ITEM.dtype[field].itemsize
    broken.write_item(item, at(FILE_EXTENT_ITEM, field), value.to_bytes(size, "little"))
    expect(broken, *parts)


@pytest.mark.parametrize("kind", [T.DIR_ITEM, T.DIR_INDEX, T.INODE_REF])
def test_entry_that_is_in_one_place_only(broken: Broken, kind: int) -> None:
    """A name changed in one of the three places where it stands."""
    tree = subvolume(broken)
    ino = broken.fs().subvolume(tree).root_dir
    item = find(broken, tree, kind, lambda i: i.key.objectid != ino or kind != T.INODE_REF)
    broken.write_item(item, len(item.data) - 1, bytes([item.data[-1] ^ 1]))
    found = texts(broken)
    assert any("INODE_REF" in text or "entry in DIR" in text for text in found), found
    if kind == T.DIR_ITEM:
        assert any("hash of the name" in text for text in found)


def test_entry_of_another_type(broken: Broken) -> None:
    tree = subvolume(broken)
    item = find(broken, tree, T.DIR_INDEX)
    broken.write_item(item, 29, b"\6")
    expect(broken, f"tree {tree}", "entry in DIR_INDEX only")
    expect(broken, f"tree {tree}", "leads to an inode of another")


def test_name_longer_than_its_item(broken: Broken) -> None:
    tree = subvolume(broken)
    item = find(broken, tree, T.DIR_INDEX)
    broken.write_item(item, 27, b"\xff\xff")
    expect(broken, f"tree {tree}", f"block {item.block}, slot {item.slot}", "do not fit")
    with pytest.raises(CorruptImageError) as caught:
        list(broken.fs().subvolume(tree).readdir(item.key.objectid))
    fault = caught.value.fault
    assert (fault.tree, fault.block, fault.slot) == (tree, item.block, item.slot)


def test_extent_references(broken: Broken) -> None:
    item = find(broken, 2, T.EXTENT_ITEM)
    bump(broken, item, 0)
    expect(broken, "tree 2", f"block {item.block}, slot {item.slot}", "references, there are")


def test_reference_of_another_tree(broken: Broken) -> None:
    """The inline reference of a tree block names a tree that does not have it."""
    item = find(broken, 2, T.METADATA_ITEM, lambda i: i.data[24] == T.TREE_BLOCK_REF)
    broken.write_item(item, 25, struct.pack("<Q", 4321))
    expect(broken, "tree 2", "lacks", f"of {item.key.objectid}")
    expect(broken, "tree 2", "TREE_BLOCK_REF 4321")


def test_data_reference_of_another_inode(broken: Broken) -> None:
    item = find(broken, 2, T.EXTENT_ITEM, lambda i: i.data[24] == T.EXTENT_DATA_REF)
    broken.write_item(item, 33, struct.pack("<Q", 999999))
    expect(broken, "tree 2", "EXTENT_DATA_REF", "inode 999999")


def test_unknown_inline_reference(broken: Broken) -> None:
    item = find(broken, 2, T.EXTENT_ITEM)
    broken.write_item(item, 24, b"\1")
    expect(broken, "tree 2", f"slot {item.slot}", "inline references do not fit")


def test_level_in_the_extent_tree(broken: Broken) -> None:
    item = find(broken, 2, T.METADATA_ITEM)
    head = item_head(item.slot)
    broken.write(item.block, head + 9, struct.pack("<Q", item.key.offset + 1))
    expect(broken, f"block {item.key.objectid}", "its extent item says level")


def test_used_bytes_of_a_block_group(broken: Broken) -> None:
    item = find(broken, 2, T.BLOCK_GROUP_ITEM)
    bump(broken, item, 0, by=4096)
    expect(broken, "tree 2", f"slot {item.slot}", "its extents have")


def test_used_bytes_of_the_superblock(broken: Broken) -> None:
    for offset in (64 << 10, 64 << 20):
        broken.map[offset + 120 : offset + 128] = struct.pack("<Q", 4096)
    broken.seal_super()
    expect(broken, "superblock says 4096 bytes are used")


def test_free_space(deep: Broken) -> None:
    item = find(deep, 10, T.FREE_SPACE_EXTENT)
    head = item_head(item.slot)
    deep.write(item.block, head + 9, struct.pack("<Q", item.key.offset - 4096))
    expect(deep, "tree 10", "free space", "only")


def test_count_of_free_space(deep: Broken) -> None:
    bump(deep, find(deep, 10, T.FREE_SPACE_INFO, lambda i: any(i.data)), 0, "<I")
    expect(deep, "tree 10", "free space info says")


def test_device_extent(broken: Broken) -> None:
    item = find(broken, 4, T.DEV_EXTENT)
    bump(broken, item, 16, by=1 << 20)
    expect(broken, "tree 4", "no stripe of a chunk")
    expect(broken, "tree 3", "is no device extent")


@pytest.mark.claim("Compressed data of an inode that does without checksums are found.")
def test_compressed_data_without_checksums() -> None:
    with bm.create("128M") as fs:
        fs.set_mount_options("compress=zstd")
        fs.create("f")
        fs.write("f", 0, b"a" * 100_000)
        fs.sync()
        assert not check(fs)
        inode = fs.hold("f")
        inode.item.flags |= InodeFlag.NODATASUM
        fs.chmod("f", 0o600)
        fs.sync()
        (found,) = check(fs)
        assert "compressed data of an inode without checksums" in str(found)


def test_checksums_of_no_data(broken: Broken) -> None:
    item = find(broken, 7, T.EXTENT_CSUM)
    head = item_head(item.slot)
    broken.write(item.block, head + 9, struct.pack("<Q", item.key.offset - (1 << 20)))
    expect(broken, "tree 7", "in no extent of data")
    expect(broken, "data without checksums")


def test_damaged_data(broken: Broken) -> None:
    start = int(broken.fs().checksums.starts[0])
    broken.map[broken.copies(start)[0] + 50] ^= 1
    assert texts(broken) == []
    (text,) = texts(broken, verify_data=True)
    assert "tree 7" in text and f"data at {start}" in text


def test_root_item_of_the_next_century(broken: Broken) -> None:
    item = find(broken, 1, T.ROOT_ITEM, lambda i: i.key.objectid == subvolume(broken))
    broken.write_item(item, at(ROOT_ITEM, "last_snapshot"), struct.pack("<Q", 1 << 40))
    expect(broken, "tree 1", f"slot {item.slot}", "last_snapshot")


def test_root_reference(broken: Broken) -> None:
    item = find(broken, 1, T.ROOT_REF)
    bump(broken, item, 8)
    expect(broken, "tree 1", "ROOT_REF and ROOT_BACKREF differ")


def test_uuid_tree(broken: Broken) -> None:
    item = find(broken, 9, T.UUID_KEY_SUBVOL)
    bump(broken, item, 0, by=77)
    expect(broken, "tree 9", "UUID_KEY_SUBVOL", "only in the UUID tree")
    expect(broken, "tree 9", "not in the UUID tree")


def test_root_that_cannot_be_read_leaves_the_rest_checked(broken: Broken) -> None:
    item = find(broken, 1, T.ROOT_ITEM, lambda i: i.key.objectid == subvolume(broken))
    broken.write_item(item, at(ROOT_ITEM, "bytenr"), struct.pack("<Q", 1 << 50))
    expect(broken, f"tree {subvolume(broken)}", "no chunk maps")


@pytest.mark.parametrize(
    "name", ["send/random/seed-003", "send/random/seed-000", "features/quota", "features/dup"]
)
def test_what_is_passed_over_has_no_finding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same findings as when each item of each leaf of each tree is looked at."""
    broken, rng = Broken(corpus.image(name)), np.random.default_rng(7)
    fs = broken.fs()
    leaves = sorted({
        block.logical for number, tree in fs.trees.items() if number != ObjectId.CHUNK_TREE
        for block in tree.blocks() if not block.level
    })  # fmt: skip
    package = sys.modules["btrfs_model.questions.check"]
    passed = found_any = 0

    def look_at_all(image: Image, blocks: Any, tree: Any) -> Any:
        none, extents = screen(image, blocks, tree)
        nonlocal passed
        passed += int(none.sum())
        return np.zeros_like(none), extents

    for _ in range(ROUNDS):
        leaf = int(rng.choice(leaves))
        with broken.restored(*((at, broken.nodesize) for at in broken.copies(leaf))):
            for _ in range(rng.integers(1, 4)):
                damage_item(broken, leaf, rng)
            quick = texts(broken)
            with monkeypatch.context() as patch:
                patch.setattr(package, "screen", look_at_all)
                patch.setattr(KnownLeaves, "judge", lambda *_, **__: None)
                assert texts(broken) == quick
        found_any += bool(quick)
    # most leaves need no second look, and the damage is felt
    assert passed > ROUNDS * len(leaves) // 2
    assert found_any > ROUNDS // 2


def damage_item(broken: Broken, leaf: int, rng: np.random.Generator) -> None:
    """Change a number somewhere in a payload, or the end of a key."""
    items = broken.items(leaf)
    if not items:
        return
    slot = int(rng.integers(len(items)))
    *_, at, size = ITEM.unpack_from(broken.read(leaf, item_head(slot), ITEM.size))
    value = [bytes(1), b"\xff", rng.bytes(1), bytes(8), b"\xff" * 8, rng.bytes(4)]
    data = value[rng.integers(len(value))]
    if rng.random() < 0.1 or size < len(data):
        broken.write(leaf, item_head(slot) + 9, data[:1])
    else:
        # what tells what follows stands at the start
        end = min(size, 60) if rng.random() < 0.7 else size
        where = int(rng.integers(max(end - len(data), 0) + 1))
        broken.write(leaf, HEADER.size + at + where, data)


def test_a_leaf_of_many_trees_is_looked_at_once() -> None:
    """Where nothing is wrong in one tree."""
    with Filesystem.open(corpus.image("send/random/seed-000")) as fs:
        assert len(fs.subvolume_ids) > 2
        logical = np.unique(np.concatenate([
            fs.tree(one).root.blocks(0)["logical"] for one in fs.subvolume_ids
        ]))  # fmt: skip
        known, rows = KnownLeaves(logical), []
        for _ in range(2):
            for one in fs.subvolume_ids:
                tree, top = fs.tree(one), fs.roots[one].item.root_dirid
                leaves = tree.root.blocks(0)
                leaves = np.ascontiguousarray(leaves["logical"][leaves["level"] == 0])
                reducer = InodeReducer(fs.image, top)
                inodes, extents, _ = reducer.reduce(leaves, 10**6, 0, 2**64 - 1, known)
                rows.append((len(inodes), len(extents)))
                assert reducer.names_agree
            known.judge(good=True)
        first, second = np.split(np.array(rows), 2)
        assert (second <= first).all()
        assert (second.sum(axis=0) < first.sum(axis=0) / 2).all()


def test_many_findings_of_a_kind_are_counted(deep: Broken) -> None:
    fs = deep.fs()
    tree = fs.subvolume_ids[-1]
    for item in list(fs.tree(tree).items()):
        if item.key.type == T.XATTR_ITEM:
            deep.write_item(item, 29, b"\1")
    found = check(deep.image(), limit=3)
    assert any("more like this" in str(finding) for finding in found)
    assert len(found) < 40


# ------------------------------------------------------------------------------ whole files


def test_truncated_image(small_image: Path, tmp_path: Path) -> None:
    size = small_image.stat().st_size
    for length in (0, 1, 65536, 65536 + 4095, 65536 + 4096, size // 2, size - 1):
        target = tmp_path / "short.img"
        with small_image.open("rb") as source:
            target.write_bytes(source.read(min(length, 1 << 20)))
        os.truncate(target, length)
        with pytest.raises(CorruptImageError) as caught:
            check(target)
        assert str(target) in str(caught.value) and "\n" not in str(caught.value)


def test_zeroed_superblocks(broken: Broken) -> None:
    broken.map[65536 : 65536 + 4096] = bytes(4096)
    expect(broken, "superblock at 65536")
    broken.map[(64 << 20) : (64 << 20) + 4096] = bytes(4096)
    with pytest.raises(CorruptImageError) as caught:
        broken.image()
    assert NAME in str(caught.value) and "no superblock at byte 65536" in str(caught.value)


def test_every_bad_block_is_named_by_a_walk(deep: Broken) -> None:
    """Of each tree the first and last block, and some between, with a bad checksum."""
    fs = deep.fs()
    for objectid, tree in fs.trees.items():
        blocks = tree.blocks()
        for block in {blocks[0], blocks[-1], blocks[len(blocks) // 2]}:
            (start,) = deep.copies(block.logical)
            with deep.restored((start + 300, 1)):
                deep.map[start + 300] ^= 0x55
                with pytest.raises(BtrfsModelError) as caught:
                    list(deep.fs().tree(objectid).items())
                    raise AssertionError("read a bad block")
                assert f"block {block.logical}" in str(caught.value)


# -------------------------------------------------------------------------- names, statistics


def forge(target: int, prefix: bytes) -> bytes:
    """A name that begins with `prefix` and has the hash `target`: four more bytes do it."""
    base = name_hash(prefix + bytes(4))
    rows = [(name_hash(prefix + (1 << bit).to_bytes(4, "little")) ^ base, 1 << bit)
            for bit in range(32)]  # fmt: skip
    wanted, suffix = base ^ target, 0
    # the hash is linear in the bits of the suffix: Gauss' elimination
    for bit in reversed(range(32)):
        pivot = next((row for row in rows if row[0] >> bit & 1), None)
        if pivot is None:
            continue
        rows = [(row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> bit & 1 else row
                for row in rows if row is not pivot]  # fmt: skip
        if wanted >> bit & 1:
            wanted, suffix = wanted ^ pivot[0], suffix ^ pivot[1]
    return prefix + suffix.to_bytes(4, "little")


def test_names_with_the_same_hash_share_an_item() -> None:
    """No corpus has a collision, so one is made inside the item of a long name."""
    broken = Broken(corpus.image("send/random/seed-000"))
    tree = subvolume(broken)
    item = find(broken, tree, T.DIR_ITEM, lambda i: len(i.data) > 30 + 50)
    rest = len(item.data) - 60
    first = forge(item.key.offset, b"a" * 6)
    second = forge(item.key.offset, b"b" * (rest - len(first) - 4))
    assert first != second and crc32c_value(first) != crc32c_value(b"")
    payload = b""
    for number, name in ((1001, first), (1002, second)):
        payload += struct.pack("<QBQQHHB", number, 1, 0, 1, 0, len(name), 1) + name
    assert len(payload) == len(item.data)
    broken.write_item(item, 0, payload)
    for choice in ("c", "python"):
        with select(choice):
            found = broken.fs().subvolume(tree)
            one = found.lookup(item.key.objectid, first)
            two = found.lookup(item.key.objectid, second)
            assert one is not None and one.location == Key(1001, 1, 0)
            assert two is not None and two.location == Key(1002, 1, 0)
            assert found.lookup(item.key.objectid, forge(item.key.offset, b"c")) is None


@pytest.mark.parametrize("name", ["send/random/seed-000", "features/dup"])
def test_statistics_are_those_of_the_blocks(name: str) -> None:
    with Filesystem.open(corpus.image(name)) as fs:
        table = tree_stats(fs).set_index("tree")
        assert list(table.index) == list(fs.trees)
        total = 0
        for objectid, tree in fs.trees.items():
            row, blocks = table.loc[objectid], tree.blocks()
            total += len(blocks)
            assert row["leaves"] == sum(block.level == 0 for block in blocks)
            assert row["items"] == len(tree.scan()["type"])
            assert row["bytes"] == len(blocks) * fs.image.nodesize
            assert 0 <= row["fill_min"] <= row["fill_mean"] <= 1
        assert total == table["nodes"].sum() + table["leaves"].sum()
        # the extent tree has each block once
        columns = fs.tree(2).scan()
        unique = {block.logical for tree in fs.trees.values() for block in tree.blocks()}
        assert len(unique) == (columns["type"] == T.METADATA_ITEM).sum()


def test_coverage() -> None:
    ranges = Coverage(np.array([10, 30, 50], np.uint64), np.array([20, 40, 60], np.uint64))
    starts = np.array([0, 10, 15, 5, 20, 35, 0, 60], np.uint64)
    lengths = np.array([10, 10, 20, 60, 10, 100, 9, 1], np.uint64)
    assert ranges.of(starts, lengths).tolist() == [0, 10, 10, 30, 0, 15, 0, 0]
    empty = Coverage(np.empty(0, np.uint64), np.empty(0, np.uint64))
    assert empty.of(starts, lengths).tolist() == [0] * 8


def test_report_counts_what_it_leaves_out() -> None:
    report = Report(limit=2)
    for number in range(5):
        report.add("thing {number} is odd", tree=7, number=number)
    lines = [str(finding) for finding in report.result()]
    assert lines == ["tree 7: thing 0 is odd", "tree 7: thing 1 is odd",
                     "tree 7: 3 more like this: thing  is odd"]  # fmt: skip


# ------------------------------------------------------ healthy, though not as the kernel writes


@pytest.fixture
def moved() -> Broken:
    """An image whose nodes were moved by a balance, and the leaves below not."""
    return Broken(corpus.image("balance/moved-nodes"))


@pytest.mark.claim(
    "Nodes that a balance moved, roots and links of mkfs and btrfs-convert, and checksums "
    "that go on in the next chunk are healthy.",
    judge="progs",
)
def test_a_leaf_whose_node_was_moved(moved: Broken) -> None:
    """Its owner's tree has it, but refers to it by the address of the node."""
    assert texts(moved) == []
    by_node = find(moved, 2, T.METADATA_ITEM, lambda i: i.data[24] == T.SHARED_BLOCK_REF
                   and i.key.offset == 0 and not i.data[16 + 1] & 1)  # fmt: skip
    # a snapshot has the same leaf; a tree that has not is no owner
    moved.write(by_node.key.objectid, 88, struct.pack("<Q", 5))
    expect(moved, f"block {by_node.key.objectid}", "owned by tree 5, which does not refer to it")


def test_symbolic_link_with_its_nul(broken: Broken) -> None:
    """mkfs --rootdir and btrfs-convert count the NUL of a target to its data, not to its size."""
    tree = subvolume(broken)
    inode = find(broken, tree, T.INODE_ITEM, lambda i: i.data[52:56] == b"\xff\xa1\0\0")
    target = broken.fs().tree(tree).get((inode.key.objectid, int(T.EXTENT_DATA), 0))
    assert target is not None
    bump(broken, inode, at(INODE_ITEM, "size"), by=-1)
    expect(broken, f"({inode.key.objectid} INODE_ITEM 0)", "symbolic link of")
    broken.write_item(target, len(target.data) - 1, b"\0")
    assert texts(broken) == []
    bump(broken, inode, at(INODE_ITEM, "size"), by=-2)
    expect(broken, f"({inode.key.objectid} INODE_ITEM 0)", "symbolic link of")


@pytest.mark.parametrize(
    ("objectid", "offset", "parts"),
    [
        (2**64 - 9, 2, ()),
        (5, 3, ()),
        (7, 2, ("(CSUM_TREE ROOT_ITEM 2)", "key offset of a root is not 0")),
    ],
)
def test_offset_of_a_root(
    broken: Broken, objectid: int, offset: int, parts: tuple[str, ...]
) -> None:
    """btrfs-convert writes (DATA_RELOC_TREE ROOT_ITEM 2); a kernel takes the last one there is."""
    root = find(broken, 1, T.ROOT_ITEM, lambda i: i.key.objectid == objectid)
    broken.write(root.block, item_head(root.slot) + 9, struct.pack("<Q", offset))
    if parts:
        expect(broken, *parts)
    else:
        assert texts(broken) == []


def test_relocation_tree_of_no_subvolume() -> None:
    broken = Broken(corpus.image("balance/relocation"))
    root = find(broken, 1, T.ROOT_ITEM, lambda i: i.key.objectid == 2**64 - 8)
    assert root.key.offset == 5
    broken.write(root.block, item_head(root.slot) + 9, struct.pack("<Q", 4))
    expect(
        broken,
        "(TREE_RELOC ROOT_ITEM DEV_TREE)",
        "relocation tree of tree 4, which is no subvolume",
    )


def test_checksums_that_go_on_in_the_next_chunk(tmp_path: Path) -> None:
    path = tmp_path / "two.img"
    with bm.create(256 << 20) as fs:
        for number in range(12):
            fs.create(f"f{number}", 0o644)
            fs.write(f"f{number}", 0, bytes(4 << 20))
        fs.save(path)
    two = Broken(path)
    fs = two.fs()
    data = [chunk for chunk in fs.image.chunks if chunk.type & 1]
    sums = fs.checksums
    # neighbours in addresses
    first, second = next(
        (a, b)
        for a, b in pairwise(data)
        if a.logical + a.length == b.logical
        and ((sums.starts < b.logical) & (b.logical < sums.ends)).any()
    )
    assert texts(two, verify_data=True) == []
    for chunk, logical in ((first, second.logical - 1), (second, second.logical)):
        (where,) = two.copies(logical)
        with two.restored((where, 1)):
            two.map[where] ^= 1
            found = texts(two, verify_data=True)
            sector = logical // 4096 * 4096
            assert any(f"data at {sector} has another checksum" in text for text in found), chunk
