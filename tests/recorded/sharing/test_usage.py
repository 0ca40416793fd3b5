# SPDX-License-Identifier: GPL-2.0-only
"""Extents, space and paths, judged by what kernels answered to FIEMAP and LOGICAL_INO."""

import json
import struct
from collections import defaultdict
from functools import lru_cache
from typing import Any

import corpus
import numpy as np
import pandas as pd
import pytest
from damage import Broken
from hypothesis import given
from hypothesis import strategies as st
from logical_ino import CASES

import btrfs_model as bm
from btrfs_model.backref.api import logical_ino
from btrfs_model.cli import run
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import EXTENT_ITEM, FILE_EXTENT_ITEM, ROOT_ITEM
from btrfs_model.questions.check import check
from btrfs_model.questions.usage.forest import MANY, FileForest, single_label
from btrfs_model.questions.usage.items import covered
from btrfs_model.volume.tree import Item

_here = {name for name in CASES if (corpus.KERNEL_DATA / name).is_dir()}
RANDOM = [name for name in CASES if corpus.LONG or name in _here]
# all files are recorded, and no tree of a relocation shares what subvolumes have
AT_REST = [name for name in RANDOM if name.startswith("fiemap-random/")]
F100 = "fiemap/f100"
SHARED, INLINE = 0x2000, 0x200


@lru_cache(maxsize=2)
def opened(name: str) -> bm.Filesystem:
    return bm.open(corpus.image(name))


def answers(name: str) -> list[dict[str, Any]]:
    """The files of a case, as 6.18 answered to FIEMAP."""
    answer = json.loads(corpus.data(name, "fiemap.6.18.json.zst"))
    return list(answer["files"].values())


# ------------------------------------------------------------------ beside the kernels' answers --


def shared_ranges(table: pd.DataFrame) -> list[tuple[int, int, bool]]:
    """(start, end, shared) of the data of a file, neighbours joined as FIEMAP joins them."""
    found: list[tuple[int, int, bool]] = []
    on_disk = table[table["disk_bytenr"] != 0]
    columns = (on_disk[name].tolist() for name in ("start", "length", "shared"))
    for start, length, shared in zip(*columns, strict=True):
        if found and found[-1][1] == start and found[-1][2] == shared:
            found[-1] = (found[-1][0], start + length, shared)
        else:
            found.append((start, start + length, shared))
    return found


@pytest.mark.claim("`extents` and `du` call shared what kernels' FIEMAP and LOGICAL_INO do.")
@pytest.mark.parametrize("name", [*RANDOM, F100])
def test_what_is_shared_is_what_kernels_call_shared(name: str) -> None:
    fs = opened(name)
    files = answers(name) if name in RANDOM else [{"root": 5, "inode": "foobar"}]
    for file in files[:: max(1, len(files) // 40)]:
        recorded = bm.fiemap(fs, file["root"], file["inode"])
        kernel = pd.DataFrame(
            {
                "start": recorded["logical"],
                "length": recorded["length"],
                "disk_bytenr": (recorded["flags"] & INLINE == 0).astype("uint64"),
                "shared": recorded["flags"] & SHARED != 0,
            }
        )
        table = bm.extents(fs, file["root"], file["inode"])
        assert shared_ranges(table) == shared_ranges(kernel), file["inode"]


def by_kernel(name: str) -> dict[tuple[int, int], list[list[int]]]:
    """(disk_bytenr, root): total and shared ... of each file, as the kernel's answers add up."""
    total: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for file in answers(name):
        for row in file["extents"]:
            if not row[3] & INLINE:
                total[file["root"], file["inode"]].append(row)
    return total


def union(ranges: list[tuple[int, int]]) -> int:
    count = reach = 0
    for begin, end in sorted(ranges):
        count += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return count


@pytest.mark.claim("The space of subvolumes adds up to the extents of the kernel.")
@pytest.mark.parametrize("name", AT_REST)
def test_space_adds_up_to_the_kernels_extents(name: str) -> None:
    table = bm.du(opened(name)).set_index("id")
    by_root: dict[int, list[list[int]]] = defaultdict(list)
    for (root, _), rows in by_kernel(name).items():
        by_root[root] += rows
    for root, rows in by_root.items():
        shared = [(row[1], row[1] + row[2]) for row in rows if row[3] & SHARED]
        total = sum(row[2] for row in rows)
        found = table.loc[root]
        assert found["total"] == total
        assert found["exclusive"] == total - sum(end - begin for begin, end in shared)
        assert found["set_shared"] == union(shared)


@pytest.mark.parametrize("name", RANDOM)
def test_references_are_those_of_the_walk(name: str) -> None:
    """The same as LOGICAL_INO finds by walking back, each file and offset."""
    fs = opened(name)
    forest = fs.forest()
    asked = 0
    for file in answers(name)[:12]:
        table = bm.extents(fs, file["root"], file["inode"])
        references = bm.extent_references(fs, file["root"], file["inode"])
        for bytenr, group in list(references.groupby("disk_bytenr"))[:60]:
            walked = logical_ino(forest, int(bytenr), ignore_offset=True)
            wanted = sorted(zip(walked["root"], walked["inum"], walked["offset"], strict=True))
            found = zip(group["root"], group["inode"], group["offset"], strict=True)
            assert sorted(found) == wanted
            extent = table[table["disk_bytenr"] == bytenr].iloc[0]
            assert extent["references"] == len(wanted)
            assert extent["items"] == extent["refs"]
            asked += 1
    assert asked


@pytest.mark.parametrize("name", [*RANDOM, F100])
def test_what_nobody_shows(name: str) -> None:
    """`shown` and `bookend` are those of a map of the extent, byte by byte (sector by sector)."""
    fs = opened(name)
    for root, inode in (
        [(f["root"], f["inode"]) for f in answers(name)[:8]] if name in RANDOM else [(5, 257)]
    ):
        table = bm.extents(fs, root, inode)
        references = bm.extent_references(fs, root, inode)
        maps: dict[int, set[int]] = defaultdict(set)
        mine: dict[int, set[int]] = defaultdict(set)
        for row in references.head(3000).to_dict("records"):
            begin = row["extent_offset"] // 4096
            sectors = range(begin, begin + row["length"] // 4096)
            maps[row["disk_bytenr"]].update(sectors)
            if (row["root"], row["inode"]) == (root, inode):
                mine[row["disk_bytenr"]].update(sectors)
        complete = set(list(maps)[:-1]) if len(references) > 3000 else set(maps)
        for row in table[table["disk_bytenr"].isin(complete)].to_dict("records"):
            seen = maps[row["disk_bytenr"]]
            assert row["shown"] == 4096 * len(seen)
            assert row["shown_here"] == 4096 * len(mine[row["disk_bytenr"]])
            assert row["bookend"] == row["ram_bytes"] - row["shown"]


def test_bookends_are_found() -> None:
    """Files of the corpus keep what nobody shows, and have leaves that are shared."""
    tables = [
        bm.extents(opened(name), file["root"], file["inode"])
        for name in RANDOM
        for file in answers(name)[:20]
    ]
    assert sum(int((table["bookend"] > 0).any()) for table in tables) > 10
    assert sum(int((table["references"] > table["items"]).any()) for table in tables) > 10


def test_exclusive_space_of_all_subvolumes_is_what_the_extent_tree_has() -> None:
    """Subvolumes that contain all others have everything for themselves."""
    for name in AT_REST:
        fs = opened(name)
        (row,) = bm.du(fs, 5, nested=True).to_dict("records")
        items = fs.tree(2).scan()
        data = items["offset"][items["type"] == ItemType.EXTENT_ITEM]
        assert row["extent_bytes"] == row["extent_exclusive"]
        assert row["tree_bytes"] == row["tree_exclusive"]
        assert row["extent_bytes"] <= data.sum()


# -------------------------------------------------------------------------------------- parts ----


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60), st.integers(0, 30)), max_size=40))
def test_covered(ranges: list[tuple[int, int, int]]) -> None:
    group = np.array([row[0] for row in ranges], np.intp)
    begin = np.array([row[1] for row in ranges], np.uint64)
    end = begin + np.array([row[2] for row in ranges], np.uint64)
    wanted = [
        len({byte for g, at, size in ranges if g == number for byte in range(at, at + size)})
        for number in range(5)
    ]
    assert covered(group, begin, end, 5).tolist() == wanted


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=20))
def test_single_label(rows: list[tuple[int, int]]) -> None:
    group = np.array([row[0] for row in rows], np.intp)
    found = single_label(group, np.array([row[1] for row in rows], np.int64), 5)
    for number in range(5):
        labels = {label for at, label in rows if at == number}
        if labels:
            assert found[number] == (labels.pop() if len(labels) == 1 else MANY)


@pytest.mark.parametrize("name", RANDOM[:4])
def test_the_forest_has_the_blocks_of_its_trees(name: str) -> None:
    fs = opened(name)
    forest = FileForest(fs)
    leaf, root = forest.owners(forest.leaves)
    found: dict[int, set[int]] = defaultdict(set)
    for number, row in zip(leaf.tolist(), root.tolist(), strict=True):
        found[forest.roots[row].id].add(int(forest.leaves[number]))
    for objectid in fs.subvolume_ids:
        blocks = fs.tree(objectid).blocks()
        leaves = {block.logical for block in blocks if not block.level}
        assert found[objectid] == leaves
        reached = forest.reached({objectid})
        assert set(forest.leaves[reached[0]].tolist()) == leaves
        assert sum(int(mask.sum()) for mask in reached) == len({b.logical for b in blocks})


@pytest.mark.parametrize("name", ["fiemap-random/s13", "send/random/seed-003"])
def test_python_and_c_are_equal(name: str) -> None:
    found = []
    for kernels in ("c", "python"):
        with bm.use_code(kernels):
            fs = opened(name)
            root = fs.subvolume_ids[-1]
            inode = next(i for i in range(257, 400) if len(bm.extents(fs, root, i)))
            found.append((bm.du(fs), bm.extents(fs, root, inode)))
    for one, other in zip(*found, strict=True):
        pd.testing.assert_frame_equal(one, other)


# -------------------------------------------------------------------------------------- paths ----


def test_paths_of_an_inode() -> None:
    """All names of all inodes, of those with several links too."""
    for name in ("send/random/seed-003", "send/random/seed-000"):
        sub = opened(name).subvolume(opened(name).subvolume_ids[-1])
        by_inode: dict[int, set[str]] = defaultdict(set)
        listing = sub.fs.listing(sub, content=False)
        for ino, path in zip(listing["ino"].tolist(), listing["path"], strict=True):
            by_inode[ino].add(path)
        assert max(map(len, by_inode.values())) > 1
        for ino, paths in by_inode.items():
            if ino > sub.root_dir:
                found = [path.decode("utf-8", "surrogateescape") for path in sub.paths_of(ino)]
                assert len(found) == len(paths)
                assert set(found) == paths
    with pytest.raises(bm.BtrfsModelError, match="no name"):
        sub.paths_of(10**9)


# ------------------------------------------------------------------------------------- damage ----


@pytest.fixture
def broken() -> Broken:
    return Broken(corpus.image("fiemap-random/s13"))


def shared_file(broken: Broken) -> tuple[int, Item]:
    """A subvolume and a file extent item with data on disk in it."""
    fs = broken.fs()
    for root in reversed(fs.subvolume_ids):
        for item in fs.tree(root).items():
            regular = item.key.type == ItemType.EXTENT_DATA and len(item.data) == 53
            if regular and any(item.data[21:29]):
                return root, item
    raise LookupError


def at(layout: Any, field: str) -> int:
    return int(layout.dtype.fields[field][1])


def extent_item(broken: Broken, bytenr: int) -> Item:
    item = broken.fs().tree(2).first((bytenr, int(ItemType.EXTENT_ITEM), 0))
    assert item is not None
    assert item.key.objectid == bytenr
    return item


def test_reference_to_no_extent(broken: Broken) -> None:
    root, item = shared_file(broken)
    nowhere = 7 * 4096
    place = at(FILE_EXTENT_ITEM, "disk_bytenr")
    broken.write_item(item, place, struct.pack("<Q", nowhere))
    for ask in (lambda fs: bm.extents(fs, root, item.key.objectid), bm.du):
        place = f"block {item.block}.*slot {item.slot}.*{nowhere}"
        with pytest.raises(bm.errors.CorruptImageError, match=place):
            ask(broken.fs())
    wanted = f"file extent names {nowhere}, where there is no extent"
    assert any(wanted in str(found) for found in check(broken.image()))


def test_count_that_is_not_that_of_the_references(broken: Broken) -> None:
    """The extent is named with both numbers; the walk goes by the references."""
    root, item = shared_file(broken)
    (bytenr,) = struct.unpack_from("<Q", item.data, at(FILE_EXTENT_ITEM, "disk_bytenr"))
    before = bm.extents(broken.fs(), root, item.key.objectid)
    extent = extent_item(broken, bytenr)
    (refs,) = struct.unpack_from("<Q", extent.data, at(EXTENT_ITEM, "refs"))
    broken.write_item(extent, at(EXTENT_ITEM, "refs"), struct.pack("<Q", refs + 7))
    after = bm.extents(broken.fs(), root, item.key.objectid)
    bad = after["disk_bytenr"] == bytenr
    assert (after["refs"][bad] == refs + 7).all()
    assert (after["items"][bad] == refs).all()
    pd.testing.assert_frame_equal(after.drop(columns="refs"), before.drop(columns="refs"))
    wanted = f"extent says {refs + 7} references, there are {refs}"
    place = f"block {extent.block}, slot {extent.slot}"
    assert any(wanted in str(f) and place in str(f) for f in check(broken.image()))


def test_extent_without_a_file(broken: Broken) -> None:
    """What lost its last file extent is in no table; check names it and the reference."""
    root, item = shared_file(broken)
    place = at(FILE_EXTENT_ITEM, "disk_bytenr")
    (bytenr,) = struct.unpack_from("<Q", item.data, place)
    references = bm.extent_references(broken.fs(), root, item.key.objectid)
    leaves = references[references["disk_bytenr"] == bytenr]
    before = bm.du(broken.fs(), 5, nested=True)
    length = struct.unpack_from("<Q", item.data, at(FILE_EXTENT_ITEM, "disk_num_bytes"))[0]
    for objectid in broken.fs().subvolume_ids:
        for known in list(broken.fs().tree(objectid).items()):
            if known.key.type == ItemType.EXTENT_DATA and len(known.data) == 53:
                (named,) = struct.unpack_from("<Q", known.data, place)
                if named == bytenr:
                    broken.write_item(known, place, bytes(16))
    assert len(leaves)
    after = bm.du(broken.fs(), 5, nested=True)
    assert before["extent_bytes"][0] - after["extent_bytes"][0] == length
    found = [str(finding) for finding in check(broken.image())]
    assert any("extent tree has" in text and f"of {bytenr}" in text for text in found)
    assert logical_ino(broken.fs(), bytenr, ignore_offset=True).empty


def test_pointer_back_to_a_shared_block(broken: Broken) -> None:
    """A block below itself is an error with its place, for all who go down the trees."""
    forest = FileForest(broken.fs())
    root = next(root for root in forest.roots if root.level)
    # the first pointer of the root block leads to the root block
    broken.write(root.bytenr, 101 + 17, struct.pack("<QQ", root.bytenr, root.generation))
    for ask in (bm.du, lambda fs: bm.extents(fs, root.id, 257)):
        with pytest.raises(bm.errors.CorruptImageError, match=f"block {root.bytenr}.*level"):
            ask(broken.fs())
    assert any("level" in str(found) and str(root.bytenr) in str(found)
               for found in check(broken.image()))  # fmt: skip


def test_blocks_that_are_below_a_node_many_times(broken: Broken) -> None:
    """A node whose pointers all lead to one leaf: each is gone through once."""
    forest = FileForest(broken.fs())
    root = next(root for root in forest.roots if root.level)
    count = struct.unpack("<I", broken.read(root.bytenr, 96, 4))[0]
    pointer = broken.read(root.bytenr, 101 + 17, 16)
    for slot in range(count):
        broken.write(root.bytenr, 101 + 33 * slot + 17, pointer)
    damaged = FileForest(broken.fs())
    leaf, row = damaged.owners(damaged.leaves)
    assert len(np.unique(np.stack([leaf, row]), axis=1).T) == len(leaf)
    assert check(broken.image())


def test_subvolume_that_is_half_freed(broken: Broken) -> None:
    """What lies before the key to which the freeing has come is gone; the rest still counts."""
    fs = broken.fs()
    forest = FileForest(fs)
    root = next(root for root in forest.roots if root.id >= 256 and root.level == 1)
    children = [block for block in fs.tree(root.id).blocks() if not block.level]
    assert len(children) > 2
    assert [known.bytenr for known in forest.roots].count(root.bytenr) == 1
    cut = children[2].first
    item = fs.root_tree.first((root.id, int(ItemType.ROOT_ITEM), 0))
    assert item is not None
    broken.write_item(item, at(ROOT_ITEM, "refs"), bytes(4))
    progress = struct.pack("<QBQ", *cut)
    broken.write_item(item, at(ROOT_ITEM, "drop_progress"), progress)
    after = FileForest(broken.fs())
    leaves = after.leaves[after.reached({root.id})[0]].tolist()
    owner, of_root = after.owners(after.leaves)
    assert set(leaves) == {block.logical for block in children[2:]}
    row = next(r for r, known in enumerate(after.roots) if known.id == root.id)
    assert set(after.leaves[owner[of_root == row]].tolist()) == set(leaves)


EDITS = st.lists(
    st.tuples(
        st.sampled_from([name for name, *_ in FILE_EXTENT_ITEM.dtype.descr]),
        st.sampled_from([b"\0", b"\1", b"\xff", b"\xff" * 8, b"\0" * 8, b"\x80"]),
        st.integers(0, 7),
        st.integers(0, 400),
    ),
    min_size=1,
    max_size=3,
)


@given(EDITS)
def test_damaged_file_extents(edits: list[tuple[str, bytes, int, int]]) -> None:
    """An answer or an error that says where, for any damage of file extents."""
    damaged = Broken(corpus.image("fiemap-random/s13"))
    root, _ = shared_file(damaged)
    items = [
        item for item in damaged.fs().tree(root).items() if item.key.type == ItemType.EXTENT_DATA
    ]
    inode = items[0].key.objectid
    for field, value, byte, number in edits:
        item = items[number % len(items)]
        place = at(FILE_EXTENT_ITEM, field) + byte
        if place + len(value) <= len(item.data):
            damaged.write_item(item, place, value)
            inode = item.key.objectid
    for ask in (bm.du, lambda fs: bm.extents(fs, root, inode)):
        try:
            ask(damaged.fs())
        except bm.errors.CorruptImageError as error:
            assert error.fault.block


# ------------------------------------------------------------------------------- command line ----


def lines(capsysbinary: pytest.CaptureFixture[bytes], *arguments: object) -> list[str]:
    assert run([str(argument) for argument in arguments]) == 0
    return capsysbinary.readouterr().out.decode().splitlines()


def test_commands(capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Any) -> None:
    image, out = corpus.image(F100), tmp_path / "table.parquet"
    fs = opened(F100)
    found = [
        json.loads(line) for line in lines(capsysbinary, "extents", image, 5, "foobar", "--json")
    ]
    assert len(found) == 3200
    assert [(r["root"], r["path"]) for r in found[0]["references"]] == [
        (5, "foobar"), (256, "snap1/foobar"),
    ]  # fmt: skip
    header, first, *_ = lines(capsysbinary, "extents", image, 5, "foobar", "--references")
    assert header.split("\t")[:4] == ["disk_bytenr", "root", "inode", "offset"]
    assert first.split("\t")[1] == "5"
    lines(capsysbinary, "extents", image, 5, "foobar", "--out", out)
    pd.testing.assert_frame_equal(
        pd.read_parquet(out), bm.extents(fs, 5, "foobar"), check_dtype=False
    )
    lines(capsysbinary, "du", image, "--out", out)
    pd.testing.assert_frame_equal(pd.read_parquet(out), bm.du(fs), check_dtype=False)
    header, *rows = lines(capsysbinary, "du", image, "snap1")
    assert header.split("\t")[:3] == ["id", "path", "files"]
    assert len(rows) == 1
    assert lines(capsysbinary, "inode-resolve", image, "snap1", 257) == ["foobar"]
    assert run(["du", str(image), "--json", "--out", str(out)]) == 2
    assert run(["du", str(image), "no such subvolume"]) == 1
    assert run(["inode-resolve", str(image), "5", "999"]) == 1
