# SPDX-License-Identifier: GPL-2.0-only
"""Toggles of directory logs: each by itself, and what has no meaning together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import corpus
import pytest
from live import beside_the_kernel, mounted
from log_beside import Beside, in_the_model

import btrfs_model as bm
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.behaviour import Behaviour
from btrfs_model.cli import run as run_cli
from btrfs_model.mount.live_inode import InodeFields
from btrfs_model.mount.log import log_inode
from btrfs_model.mount.log.state import log_tree_id
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.native.choice import Choice, select
from btrfs_model.ondisk import items
from btrfs_model.ondisk.items import InodeExtref
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.layout import Payload
from btrfs_model.patches import Patch
from btrfs_model.volume.filesystem import Filesystem

CHAIN = (
    "v5.16 - log-bulk-insert",
    "v5.16",
    "v5.16 + log-dir-index-only",
    "v5.17 + log-no-boundary-keys",
    "v5.17 + log-no-boundary-keys + log-skip-old-dir-items",
    "v6.1 - log-delayed-items",
    "v6.1",
    "v6.1 + log-first-index",
    "v6.1 + log-first-index + log-new-dentries",
    "v6.18 - log-bulk-insert",
    "v6.18",
)
"""Kernels from before the first of these commits to after the last, one commit after the other."""

SOME = CHAIN if corpus.LONG else CHAIN[::3]
OLD, NEW = 2000, 150


def changed(behaviour: str) -> WritableFilesystem:
    """A directory of several leaves in which names came and went, in the log."""
    fs = WritableFilesystem.mkfs(256 << 20, metadata="dup", seed=5)
    fs.behaviour = Behaviour.parse(behaviour)
    fs.mkdir("d")
    fs.create_files("d", [f"old_{i}" for i in range(OLD)])
    fs.sync()
    for i in (*range(0, 40, 3), *range(1000, 1020), 1990):
        fs.unlink(f"d/old_{i}")
    fs.create_files("d", [f"new_{i}" for i in range(NEW)])
    fs.mkdir("d/sub")
    fs.create("d/sub/below")
    fs.link("d/old_7", "d/once more")
    assert fs.fsync("d") == "log"
    fs.create_files("d", [f"later_{i}" for i in range(9)])
    fs.unlink("d/new_3")
    fs.unlink("d/old_8")
    assert fs.fsync("d") == "log"
    return fs


def names() -> set[str]:
    old = set(range(OLD)) - {*range(0, 40, 3), *range(1000, 1020), 1990, 8}
    found = {f"d/old_{i}" for i in old} | {f"d/new_{i}" for i in range(NEW) if i != 3}
    return found | {f"d/later_{i}" for i in range(9)} | {"d", "d/sub", "d/sub/below", "d/once more"}


def log_items(fs: WritableFilesystem) -> list[tuple[tuple[int, int, int], bytes, int]]:
    tree = fs.writer.tree(log_tree_id(5))
    return [(tuple(item.key), bytes(item.data), item.block) for item in tree.items()]


@pytest.mark.parametrize("behaviour", SOME)
def test_every_log_brings_the_same_names_back(behaviour: str) -> None:
    fs = changed(behaviour)
    with bm.replay_log(fs, behaviour="v6.18") as after:
        assert set(after.listing(5)["path"]) - {""} == names()
        assert bm.check(after) == []
    fs.close()


@pytest.mark.parametrize("behaviour", ["v5.16", "v6.18.44"])
def test_the_twin_writes_the_same_log(behaviour: str) -> None:
    """Trees are written by C or by Python: the same items in the same leaves."""
    logs = []
    for kernels in ("c", "python"):
        with select(kernels):  # type: ignore[arg-type]
            fs = changed(behaviour)
            logs.append(log_items(fs))
            fs.close()
    assert logs[0] == logs[1]


@pytest.mark.claim(
    "The running kernel replays the log of each of these toggles to the same names.",
    judge="live",
)
@beside_the_kernel
@pytest.mark.parametrize("behaviour", SOME)
def test_the_running_kernel_replays_every_log(behaviour: str, tmp_path: Path) -> None:
    fs = changed(behaviour)
    fs.save_crash(tmp_path / "crash.img")
    fs.close()
    with mounted(tmp_path / "crash.img", "noatime") as place:
        assert {str(path.relative_to(place)) for path in place.rglob("*")} == names()


@pytest.mark.claim(
    "Each commit that changed the logs of directories from 5.16 to 6.18 is a toggle of its "
    "own; the logs along the chain hold what the commits say."
)
def test_what_each_commit_takes_out() -> None:
    """Items of directories by type, along the chain."""
    kinds = {}
    for behaviour in CHAIN:
        fs = changed(behaviour)
        kinds[behaviour] = Counter(
            ItemType(key[1]).name for key, _, _ in log_items(fs) if key[0] == 257
        )
        fs.close()
    one_by_one, bulk, index_only, no_boundary, skip_old, *later = (kinds[one] for one in CHAIN)
    assert one_by_one == bulk
    assert bulk["DIR_ITEM"] > NEW
    assert index_only == {
        kind: count for kind, count in bulk.items() if kind not in ("DIR_ITEM", "DIR_LOG_ITEM")
    }
    # the untouched leaves in the middle had a key of theirs logged on both sides of each run
    assert index_only["DIR_INDEX"] - no_boundary["DIR_INDEX"] > 0
    assert no_boundary["DIR_LOG_INDEX"] == index_only["DIR_LOG_INDEX"]
    entries = NEW + 9 - 1 + 2
    assert skip_old["DIR_INDEX"] == entries < no_boundary["DIR_INDEX"]
    assert skip_old["DIR_LOG_INDEX"] > no_boundary["DIR_LOG_INDEX"]
    assert all(one["DIR_INDEX"] == entries for one in later)
    assert not any(one["DIR_ITEM"] or one["DIR_LOG_ITEM"] for one in later)


def test_bulk_insertion_fills_leaves_otherwise() -> None:
    items, leaves = [], []
    for behaviour in ("v5.16 - log-bulk-insert", "v5.16"):
        fs = changed(behaviour)
        found = log_items(fs)
        items.append([item[:2] for item in found])
        blocks = dict.fromkeys(block for _, _, block in found)
        leaves.append([sum(item[2] == block for item in found) for block in blocks])
        fs.close()
    assert items[0] == items[1]
    assert leaves[0] != leaves[1]


def test_a_scenario_is_run_as_any_kernel(tmp_path: Path) -> None:
    """The command: its logs are those of the kernel that was asked for, and it names no other."""
    scenario, image = tmp_path / "scenario.json", tmp_path / "disk.img"
    scenario.write_text('{"ops": [["mkdir", "d"], ["create", "d/f"], ["fsync", "d"], ["crash"]]}')
    kinds = {}
    for behaviour in ("v5.10", "v5.10 + log-dir-index-only", "v6.18"):
        command = ["run", str(scenario), "-o", str(image), "--behaviour", behaviour]
        assert run_cli(command) == 0
        with bm.open(f"{image}.crash1") as crashed:
            kinds[behaviour] = {item.key.type for item in crashed.log_trees[5].items()}
    old, index_only, new = kinds.values()
    assert old - index_only == {ItemType.DIR_ITEM, ItemType.DIR_LOG_ITEM}
    assert index_only == new
    image.unlink()
    assert run_cli(["run", str(scenario), "-o", str(image), "--behaviour", "v1.0"]) != 0
    assert not image.exists()


@pytest.mark.claim("A set of toggles whose log no kernel could write is refused.", judge="unit")
@pytest.mark.parametrize(
    ("slug", "needed"), [(patch, other) for patch in Patch for other in patch.needs]
)
def test_what_no_kernel_writes_is_refused(slug: str, needed: str) -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        fs.mkdir("d")
        fs.behaviour = Behaviour.parse(f"v6.18.44 - {needed}")
        with pytest.raises(BtrfsModelError, match=r"no logs are written with .* needs "):
            fs.fsync("d")
        fs.behaviour = Behaviour.parse("v6.18.44")
        assert fs.fsync("d") == "log"
    assert slug != needed


@pytest.mark.parametrize("behaviour", ["v5.10", "v6.1", "v6.8", "v6.12.101", "v6.18.44"])
def test_a_directory_that_lost_a_directory_is_logged(behaviour: str) -> None:
    assert _fsync_after_rmdir(behaviour) == "log"


@pytest.mark.parametrize("behaviour", ["v6.1.176", "v6.12 + log-rmdir-commits"])
def test_one_stable_kernel_commits_instead(behaviour: str) -> None:
    assert _fsync_after_rmdir(behaviour) == "commit"


def _fsync_after_rmdir(behaviour: str) -> str:
    with bm.create(128 << 20) as fs:
        fs.behaviour = Behaviour.parse(behaviour)
        fs.mkdir("d")
        fs.mkdir("d/gone")
        fs.sync()
        fs.rmdir("d/gone")
        return fs.fsync("d")


NEW_NAMES: dict[str, list[list[object]]] = {
    "a name in a new directory": [
        ["mkdir", "n"], ["write", "f", 0, 9, 1], ["fsync", "f"], ["link", "f", "n/g"],
        ["fsync", ""],
    ],
    "moved out of an old directory": [
        ["write", "a/f", 0, 9, 1], ["fsync", "a/f"], ["rename", "a/f", "b/f"], ["fsync", "b"],
        ["fsync", "a"],
    ],
    "renamed beside what came after": [
        ["chown", "a/f", 0, 5], ["fsync", "a/f"], ["rename", "a/f", "a/o"], ["create", "g"],
        ["fsync", ""], ["fsync", "a"],
    ],
}  # fmt: skip


@pytest.mark.claim(
    "With log-new-name-unsynced an fsync of a directory that a new name had logged syncs the log, "
    "and without it does nothing; every stable preset from 6.1.176 on has it."
)
@pytest.mark.parametrize(
    ("behaviour", "there"),
    [
        ("v6.1", False), ("v6.12", False), ("v6.17", False),
        ("v6.18 - log-new-name-unsynced", False),
        ("v6.1.176", True), ("v6.1.192", True), ("v6.12.101", True), ("v6.18", True),
        ("v6.18.44", True), ("v6.12 + log-new-name-unsynced", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("case", NEW_NAMES)
def test_an_fsync_after_a_new_name(case: str, behaviour: str, there: bool, tmp_path: Path) -> None:
    """What the names of a logged inode bring into the log is not synced with it."""
    before = [["mkdir", "a"], ["mkdir", "b"], ["create", "f"], ["create", "a/f"], ["sync"]]
    scenario = Beside([*before, *NEW_NAMES[case], ["crash"]]).scenario
    ran = in_the_model(scenario, tmp_path / "crash", behaviour, size=128 << 20)
    assert (ran.synced[-1] == "log") is there
    with bm.open(tmp_path / "crash") as crashed, bm.replay_log(crashed) as after:
        paths = set(after.listing(5)["path"])
        assert not there or {"n", "n/g"} <= paths or "a/o" in paths or "b/f" in paths
        assert bm.check(after) == []


@pytest.mark.claim(
    "A logged inode has a time of creation with log-otime, and none without it: in the recorded "
    "logs of 6.1.176, 6.12.101, 6.18.44 and 5.10.46, and in those of the model."
)
@pytest.mark.parametrize(
    ("behaviour", "folder"),
    [("v5.10.46", "5.10"), ("v6.1.176", "6.1"), ("v6.12.101", "6.12"), ("v6.18.44", "6.18")],
)
@pytest.mark.parametrize("kernels", ["c", "python"])
def test_times_of_creation_in_logs(
    behaviour: str, folder: str, kernels: Choice, tmp_path: Path
) -> None:
    with Filesystem.open(corpus.image(f"log/nd/nd_20_5/{folder}/crash1.img.zst")) as fs:
        kernel = times_of_creation(fs)
    with select(kernels), bm.create(128 << 20) as fs:
        fs.behaviour = Behaviour.parse(behaviour)
        fs.create_files("", [f"f{i}" for i in range(9)])
        fs.mkdir("d")
        fs.write("f3", 0, b"x" * 9000)
        fs.sync()
        fs.create_files("d", [f"n{i}" for i in range(9)])
        fs.write("f3", 0, b"y" * 5000)
        assert [fs.fsync("d"), fs.fsync("f3")] == ["log"] * 2
        fs.save_crash(tmp_path / "crash")
    with Filesystem.open(tmp_path / "crash") as fs:
        assert len(times_of_creation(fs)) == 1 + 9 + 1
        assert {bool(one) for one in times_of_creation(fs)} == {bool(one) for one in kernel}
        assert set(kernel) == {0} or 0 not in kernel


def times_of_creation(fs: Filesystem) -> list[int]:
    return [
        InodeFields.unpack(item.data).otime
        for item in fs.log_trees[5].items()
        if item.key.type == ItemType.INODE_ITEM
    ]


@pytest.mark.parametrize("committed", [True, False])
def test_names_are_looked_at_once_in_an_fsync(
    committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is logged for each of its new names in a directory, with all names each time."""
    count = 200
    looked_at: list[bytes] = []

    def each(key: tuple[int, int, int], payload: Payload) -> Iterator[InodeExtref]:
        for ref in items.each_inode_name(key, payload):
            looked_at.append(ref.name)
            yield ref

    monkeypatch.setattr(log_inode, "each_inode_name", each)
    with bm.create(128 << 20) as fs, bm.counting() as work:
        fs.create("g")
        if committed:
            fs.create("base")
        fs.sync()
        if not committed:
            fs.create("base")
        for i in range(count):
            fs.link("base", f"l{i}")
        fs.link("g", "g2")
        logged = work["btrfs_log_inode"]
        assert fs.fsync("g") == "log"
        assert work["btrfs_log_inode"] - logged > count
        assert len(looked_at) < 2 * count
