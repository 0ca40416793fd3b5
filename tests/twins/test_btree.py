# SPDX-License-Identifier: GPL-2.0-only
"""Trees: searching, iterating, scanning, walking and comparing; C and plain Python are the same."""

import functools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
from dag import dag
from damage import Broken, item_head
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import items

from btrfs_model.base.counters import counting
from btrfs_model.base.errors import CorruptImageError
from btrfs_model.native.choice import Choice, select
from btrfs_model.native.door import ffi, lib
from btrfs_model.native.items import (
    WANTED,
    InodeReducer,
    entries,
    extent_refs,
    gather,
    scan_leaves,
    verify_blocks,
)
from btrfs_model.native.items import select as take
from btrfs_model.native.tree import KEY
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.volume.compare import Change, compare_trees
from btrfs_model.volume.ctree import Reada
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.tree import Tree

IMAGES = ["send/random/seed-000", "send/random/seed-003", "features/dup", "features/nodesize-65536",
          "features/extended-refs", "log/nd/nd_20_5/5.10/crash1.img.zst",
          "fiemap-random/s04"]  # fmt: skip
DEEP = "send/random/seed-000"

_open: dict[str, Filesystem] = {}


def filesystem(name: str) -> Filesystem:
    if name not in _open:
        _open[name] = Filesystem.open(corpus.image(name))
    return _open[name]


def trees(name: str) -> Iterator[Tree]:
    fs = filesystem(name)
    yield from fs.trees.values()
    yield from fs.log_trees.values()


def same_columns(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for field in left:
        assert left[field].dtype == right[field].dtype
        assert np.array_equal(left[field], right[field]), field


@pytest.mark.claim("Searches, scans, walks and comparisons of trees give the same in C and Python.")
@pytest.mark.parametrize("name", IMAGES)
def test_scans_and_walks_of_c_and_python_are_the_same(name: str) -> None:
    for tree in trees(name):
        columns, blocks = tree.scan(), tree.blocks()
        with select("python"):
            same_columns(columns, items.scan(tree))
            assert blocks == list(items.blocks(tree))
            assert [b for b in blocks if b.level] == list(items.blocks(tree, 1))
        assert [b for b in blocks if b.level] == tree.blocks(min_level=1)
        assert len(columns["type"]) == sum(b.nritems for b in blocks if not b.level)


@pytest.mark.parametrize("name", IMAGES)
def test_iteration_is_the_scan_in_both_directions(name: str) -> None:
    for tree in trees(name):
        columns = tree.scan()
        keys = list(zip(columns["objectid"].tolist(), columns["type"].tolist(),
                        columns["offset"].tolist(), strict=True))  # fmt: skip
        assert keys == sorted(set(keys))
        for choice in ("c", "python"):
            with select(choice):
                items = list(tree.items())
                assert [item.key for item in items] == keys
                assert [item.slot for item in items] == columns["slot"].tolist()
                assert [item.block for item in items] == columns["block"].tolist()
                assert [len(item.data) for item in items] == columns["size"].tolist()
                back = list(tree.items(reverse=True))
                assert back == items[::-1]


@functools.cache
def keys_of(tree: Tree) -> list[Key]:
    return [item.key for item in tree.items()]


def keys_near(tree: Tree) -> st.SearchStrategy[Key]:
    """Keys of the tree, the ones beside them, and any others."""
    known = keys_of(tree)
    field = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 600))
    anything = st.builds(Key, field, st.integers(0, 255), field)
    if not known:
        return anything
    step = st.sampled_from([0, 1, -1])

    def beside(key: Key, objectid: int, kind: int, offset: int) -> Key:
        return Key(
            min(max(key.objectid + objectid, 0), 2**64 - 1),
            min(max(key.type + kind, 0), 255),
            min(max(key.offset + offset, 0), 2**64 - 1),
        )

    near = st.builds(beside, st.sampled_from(known), step, step, step)
    return st.one_of(st.sampled_from(known), near, anything)


@functools.cache
def deep_tree() -> Tree:
    fs = filesystem(DEEP)
    return max(fs.trees.values(), key=lambda tree: (tree.level, tree.objectid))


@settings(max_examples=60)
@given(st.data())
def test_searches_of_any_key(data: st.DataObject) -> None:
    tree = deep_tree()
    assert tree.level == 2
    known = keys_of(tree)
    low, high = data.draw(keys_near(tree)), data.draw(keys_near(tree))
    inside = [key for key in known if low <= key <= high]
    counts = []
    for choice in ("c", "python"):
        with select(choice), counting() as work:
            found = tree.get(low)
            assert (found is not None) == (low in known)
            assert found is None or found.key == low
            first, last = tree.first(low), tree.last(low)
            assert (first and first.key) == next((key for key in known if key >= low), None)
            assert (last and last.key) == next((key for key in reversed(known) if key <= low), None)
            assert [item.key for item in tree.items(low, high)] == inside
            assert [item.key for item in tree.items(low, high, reverse=True)] == inside[::-1]
        counts.append(dict(work))
        with select(choice):
            columns = tree.scan(low, high) if choice == "c" else items.scan(tree, low, high)
        assert columns["offset"].tolist() == [key.offset for key in inside]
        assert columns["objectid"].tolist() == [key.objectid for key in inside]
    # the work is counted alike
    assert counts[0] == counts[1]


def by_definition(left: Tree, right: Tree) -> dict[Key, Change]:
    """What differs, from all items of both."""
    ours = {item.key: bytes(item.data) for item in left.items()}
    theirs = {item.key: bytes(item.data) for item in right.items()}
    changes = {}
    for key in ours.keys() | theirs.keys():
        if key not in theirs:
            changes[key] = Change.NEW
        elif key not in ours:
            changes[key] = Change.DELETED
        elif ours[key] != theirs[key]:
            changes[key] = Change.CHANGED
    return changes


@pytest.mark.parametrize("name", ["send/random/seed-000", "send/random/seed-003",
                                  "fiemap-random/s04"])  # fmt: skip
def test_comparison_finds_what_differs(name: str) -> None:
    fs = filesystem(name)
    chosen = [fs.tree(objectid) for objectid in fs.subvolume_ids]
    for left in chosen:
        for right in chosen[::5]:
            results = []
            for choice in ("c", "python"):
                with select(choice), counting() as work:
                    results.append((list(compare_trees(left, right)), dict(work)))
            assert results[0] == results[1]
            differences = results[0][0]
            assert [d.key for d in differences] == sorted(d.key for d in differences)
            changed = {d.key: d.change for d in differences if d.change != Change.SAME}
            assert changed == by_definition(left, right)
            for difference in differences:
                _check_places(fs, difference)


def _check_places(fs: Filesystem, difference: Any) -> None:
    """The places of a difference hold its key."""
    for place in (difference.left, difference.right):
        if place is not None:
            block, slot = place
            columns = scan_leaves(fs.image, [block])
            key = tuple(int(columns[name][slot]) for name in ("objectid", "type", "offset"))
            assert key == difference.key


def test_shared_subtrees_are_skipped() -> None:
    fs = filesystem("send/random/seed-000")
    tree = deep_tree()
    with counting() as work:
        assert list(compare_trees(tree, tree)) == []
    assert work["subtrees_skipped"] == tree.blocks()[0].nritems
    others = [fs.tree(objectid) for objectid in fs.subvolume_ids]
    with counting() as work:
        for other in others:
            list(compare_trees(tree, other))
    assert work["subtrees_skipped"] > 0


# ------------------------------------------------------------------------------------- bulk


@pytest.mark.parametrize("name", IMAGES)
def test_items_in_bulk_in_c_and_python_are_the_same(name: str) -> None:
    for tree in trees(name):
        image = tree.image
        leaves = [block.logical for block in tree.blocks() if not block.level]
        columns = scan_leaves(image, leaves)
        same_columns(columns, tree.scan())
        kind = columns["type"]
        named = take(columns, np.isin(kind, (12, 13, 24, 84, 96)))
        referring = take(columns, np.isin(kind, (168, 169, 176, 178, 182, 184)))
        with select("python"):
            same_columns(columns, items.scan_leaves(image, leaves))
        python = [items.gather(image, columns, width) for width in (0, 1, 24, 160)]
        names, bad_names = items.entries(image, named)
        refs, bad_refs = items.extent_refs(image, referring)
        for width, rows in zip((0, 1, 24, 160), python, strict=True):
            assert np.array_equal(gather(image, columns, width), rows)
        for left, right in zip((*entries(image, named), *extent_refs(image, referring)),
                               (names, bad_names, refs, bad_refs), strict=True):  # fmt: skip
            assert np.array_equal(left, right)
        assert not bad_names.any() and not bad_refs.any()


@pytest.mark.parametrize("name", IMAGES)
def test_inodes_reduced_in_c_and_added_up_in_python_are_the_same(name: str) -> None:
    fs = filesystem(name)
    for number in fs.subvolume_ids:
        tree = fs.tree(number)
        leaves = [block for block in tree.blocks() if not block.level]
        count = sum(leaf.nritems for leaf in leaves)
        reducer = InodeReducer(tree.image, fs.roots[number].item.root_dirid)
        logical = np.array([leaf.logical for leaf in leaves], np.uint64)
        rows, extents, roots = reducer.reduce(logical, count, 0, 2**64 - 1)
        assert reducer.names_agree
        wanted = items.inode_sums(tree)
        assert rows["ino"].tolist() == sorted(wanted)
        for row in rows:
            for field in set(rows.dtype.names) - {"ino", "pad"}:
                assert row[field] == wanted[row["ino"]][field], (row, field)
        keys = [item.key for item in tree.items()]
        data = [(key.objectid, key.offset) for key in keys if key.type == ItemType.EXTENT_DATA]
        assert list(zip(extents["ino"].tolist(), extents["start"].tolist(), strict=True)) == data
        assert (rows["ino"][extents["row"]] == extents["ino"]).all()
        assert set(roots["child"].tolist()) <= set(fs.trees)


@pytest.mark.parametrize("unpack", [entries, items.entries])
def test_items_that_do_not_unpack_are_marked(unpack: Any) -> None:
    """A payload cut short is bad; the others are unpacked as before."""
    tree = deep_tree()
    columns = tree.scan()
    columns = take(columns, np.isin(columns["type"], (ItemType.DIR_INDEX, ItemType.INODE_REF)))
    whole, _ = unpack(tree.image, columns)
    for cut in (0, 1, 9, 29):
        short = dict(columns, size=columns["size"].copy())
        short["size"][5] = cut
        rows, bad = unpack(tree.image, short)
        assert bad[5] == lib.BM_BAD_ITEM_SIZE and np.count_nonzero(bad) == 1
        assert np.array_equal(rows, whole[whole["item"] != 5])


@pytest.mark.parametrize("choice", ["c", "python"])
def test_blocks_that_are_not_as_wanted_are_listed(choice: Any) -> None:
    tree = deep_tree()
    blocks = tree.blocks()
    rows = np.array([(b.logical, b.generation, tree.objectid, b.level, 0) for b in blocks], WANTED)
    verify = verify_blocks if choice == "c" else items.verify_blocks
    with select(choice):
        assert list(verify(tree.image, rows, 0)) == []
        rows["level"][3] += 1
        rows["generation"][5] = 1
        found = dict(verify(tree.image, rows, 0))
    assert {row: fault.code for row, fault in found.items()} == {
        3: lib.BM_BAD_LEVEL,
        5: lib.BM_BAD_GENERATION,
    }
    assert found[3].block == rows["logical"][3] and found[3].tree == tree.objectid


# -------------------------------------------------------------------------------- damaged order


@pytest.fixture(scope="module")
def several_parents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 850 blocks with 10**11 ways from the root to a leaf."""
    image = tmp_path_factory.mktemp("dag") / "dag.img"
    dag(image, 121, 7)
    return image


WALKS: dict[str, Callable[[Tree, Tree], object]] = {
    "scan": lambda tree, _: tree.scan(),
    "blocks": lambda tree, _: tree.blocks(),
    "nodes": lambda tree, _: tree.blocks(1),
    "items": lambda tree, _: list(tree.items()),
    "reverse": lambda tree, _: list(tree.items(reverse=True)),
    "leaves": lambda tree, _: tree.visit_leaves((0, 0, 0), (2**64 - 1, 255, 0), Reada.FORWARD),
    "compare": lambda tree, other: list(compare_trees(other, tree)),
}


@pytest.mark.claim(
    "A walk visits no block of a tree twice, whatever the block points at, so that the image "
    "bounds its time and memory.",
    judge="unit",
)
@pytest.mark.parametrize("walk", WALKS)
def test_blocks_with_several_parents(several_parents: Path, walk: str) -> None:
    """Keys must ascend from block to block, so a walk comes to no block twice."""
    faults = []
    for kernels in ("c", "python"):
        with select(kernels), Filesystem.open(several_parents) as fs:
            tree, other = fs.tree(5), fs.tree(7)
            with pytest.raises(
                CorruptImageError, match="not less than the next pointer's"
            ) as error:
                WALKS[walk](tree, other)
            faults.append(error.value.fault)
    assert faults[0] == faults[1]
    assert faults[0].code == lib.BM_BAD_LAST_KEY
    assert faults[0].tree == 5


@pytest.mark.parametrize(
    "command",
    [["check"], ["tree-stats"], ["dump-tree", "-t", "5"], ["ls"], ["du"]],
    ids=lambda command: command[0],
)
def test_commands_end_at_blocks_with_several_parents(
    several_parents: Path, command: list[str]
) -> None:
    """They end, in one line (check in some), with memory for the image and not for its paths."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30));"
        "from btrfs_model.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    name, *options = command
    subvolume = ["5"] if name == "ls" else []
    done = subprocess.run(
        [sys.executable, "-c", code, name, str(several_parents), *options, *subvolume],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    wanted = "next pointer's"
    if name == "check":
        assert wanted in done.stdout
        assert len(done.stdout.splitlines()) < 200
    else:
        assert wanted in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("kernels", ["c", "python"])
def test_a_leaf_that_reaches_into_the_next(kernels: Choice) -> None:
    """The last key of a leaf is that of the next leaf, or greater."""
    broken = Broken(corpus.image(DEEP))
    tree = next(tree for tree in trees(DEEP) if tree.level and tree.objectid >= 256)
    leaf, after = [block for block in tree.blocks() if not block.level][:2]
    last = item_head(leaf.nritems - 1)
    broken.write(leaf.logical, last, ffi.buffer(_disk_key(after.first))[:])
    with select(kernels):
        damaged = broken.fs().trees[tree.objectid]
        for walk in (damaged.scan, damaged.blocks, lambda: list(damaged.items(reverse=True))):
            with pytest.raises(CorruptImageError, match=f"in block {leaf.logical}") as error:
                walk()
            assert error.value.fault.block == leaf.parent
            assert error.value.fault.slot == leaf.parent_slot


def _disk_key(key: Key) -> Any:
    return ffi.new("struct btrfs_disk_key *", (key.objectid, key.type, key.offset))


# ----------------------------------------------------------------------------------- signals


class StopError(Exception):
    """What the handler of a signal raises here."""


@pytest.mark.claim("Handlers of signals run while C code runs.", judge="unit")
def test_signals_end_a_long_kernel() -> None:
    """The handler runs while the kernel does, and what it raises comes out of the call."""
    tree = filesystem(DEEP).tree(2)
    keys = np.zeros(30_000_000, KEY)

    def stop(*_: object) -> None:
        raise StopError

    before = signal.signal(signal.SIGUSR1, stop)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(StopError) as caught:
            tree.has_keys(keys)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    # not after the kernel has come to its end
    assert "bm_python_poll" in [entry.name for entry in caught.traceback]
    assert not tree.has_keys(keys[:10]).any()
