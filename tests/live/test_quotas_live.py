# SPDX-License-Identifier: GPL-2.0-only
"""Quota groups: the same calls on the model and on the running kernel, and each on what is left."""

import random
import shutil
import subprocess
from pathlib import Path

import calls
import judges
import pytest
from call_job import run_calls
from calls import Call
from corpus import LONG
from live import beside_the_kernel, mounted
from progs import btrfs_check
from quota_calls import FIRST, HIGH, ONE, TWO, quota_items, random_calls

import btrfs_model as bm
from btrfs_model.kernels.inside.calls import KernelCalls
from btrfs_model.kernels.timings import make_filesystem
from btrfs_model.kernels.uml import Uml
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.quotas import StatusFlag

KIB = 1 << 10
SYNC: Call = ("sync",)


def make(image: Path, nodesize: int) -> None:
    """Make an empty filesystem."""
    make_filesystem(image, 128 << 20, ["-n", str(nodesize)])


def fresh(image: Path, first: list[Call], nodesize: int = 4096) -> None:
    """Make a filesystem with the first calls of a sequence."""
    make(image, nodesize)
    with mounted(image, "noatime") as top:
        assert not any(calls.run(KernelCalls(top), call) for call in first)


def beside(tmp_path: Path, first: list[Call], sequence: list[Call], nodesize: int = 4096) -> None:
    """Make calls on a mounted filesystem and on the model; both give and leave the same."""
    theirs, ours = tmp_path / "theirs.img", tmp_path / "ours.img"
    fresh(theirs, first, nodesize)
    model = WritableFilesystem.load(theirs)
    with mounted(theirs, "noatime,commit=9999") as top:
        kernel = KernelCalls(top)
        wanted = [calls.run(kernel, call) for call in sequence]
    mine = calls.ModelCalls(model)
    found = [calls.run(mine, call) for call in sequence]
    answers = enumerate(zip(sequence, wanted, found, strict=True))
    assert not [(at, *row) for at, row in answers if row[1] != row[2]]
    model.save(ours)
    assert quota_items(ours) == quota_items(theirs)
    assert bm.check(theirs) == []
    assert bm.check(ours) == []
    with Filesystem.open(theirs) as left, Filesystem.open(ours) as right:
        assert right.subvolume_ids == left.subvolume_ids
        for tree in left.subvolume_ids:
            keys = [[item.key for item in fs.tree(tree).items()] for fs in (left, right)]
            assert keys[0] == keys[1]
            assert len(left.tree(tree).blocks()) == len(right.tree(tree).blocks())


@pytest.mark.claim(
    "Random calls with quotas, full and simple, give the errno, the generations and every item of "
    "the quota tree of the running kernel; what they leave passes the model's check."
)
@beside_the_kernel
@pytest.mark.parametrize("seed", range(100 if LONG else 4))
@pytest.mark.parametrize("kind", ["full", "limits", "simple"])
def test_random_calls(kind: str, seed: int, tmp_path: Path) -> None:
    choice = random.Random(f"quotas-{kind}-{seed}")
    first = [*FIRST, ("quota_enable", kind == "simple")]
    sequence = random_calls(choice, 120, limits=kind == "limits")
    beside(tmp_path, first, sequence, choice.choice([4096, 16384]))


@pytest.mark.claim("Random calls give the quota tree of Linux 6.1 as well, in a guest.")
@judges.MARKS["uml"]
@pytest.mark.flaky(reruns=2)
def test_random_calls_of_an_older_kernel() -> None:
    with Uml(judges.UML) as guest:
        for seed in range(20 if LONG else 4):
            choice = random.Random(f"quotas-6.1-{seed}")
            image = guest.folder / f"theirs{seed}.img"
            make(image, 4096)
            first = [*FIRST, ("quota_enable",)]
            assert not any(guest.call(run_calls, str(image), first))
            with WritableFilesystem.load(image, behaviour="v6.1.176") as model:
                sequence = random_calls(choice, 100, limits=False)
                wanted = guest.call(run_calls, str(image), sequence)
                mine = calls.ModelCalls(model)
                assert [calls.run(mine, call) for call in sequence] == wanted
                model.remount()
                assert quota_items(model) == quota_items(image)


WRITES: list[Call] = [("write", "sub/x", 0, b"x" * 200 * KIB), SYNC,
                      ("write", "sub/y", 0, b"x" * 200 * KIB),
                      ("write", "sub/x", 0, b"z" * 10 * KIB), SYNC]  # fmt: skip
LIMITED: dict[str, list[Call]] = {
    "data": [("qgroup_limit", 256, 100 * KIB, None), *WRITES],
    "many names": [("qgroup_limit", 256, 100 * KIB, None),
                   *[("create", f"sub/f{number}") for number in range(40)], SYNC,
                   ("create", "sub/z"), SYNC],
    "nothing more": [
        ("qgroup_limit", 256, 8 * KIB, None), ("create", "sub/f"), ("create", "sub/g"),
        ("chmod", "sub/x", 0o600), ("write", "sub/x", 0, b"1"), ("unlink", "sub/x"), SYNC,
        ("create_subvolume", "sub/n"), ("mkdir", "sub/d"), ("setxattr", "sub", "user.a", b"1"),
        ("snapshot", "sub", "snap"), ("create", "snap/q"), ("truncate", "sub/x", 9),
    ],
    "of a group": [("qgroup_create", ONE), ("qgroup_assign", 256, ONE),
                   ("qgroup_limit", ONE, 100 * KIB, None), *WRITES],
    "exclusive": [("qgroup_limit", 256, None, 100 * KIB), ("write", "sub/x", 0, b"x" * 60 * KIB),
                  ("snapshot", "sub", "snap", False), *WRITES],
    "taken away": [("qgroup_limit", 256, 50 * KIB, 60 * KIB), *WRITES,
                   ("qgroup_limit", 256, -1, None), *WRITES, ("qgroup_limit", 256, None, -1),
                   *WRITES],
}  # fmt: skip


@pytest.mark.claim("EDQUOT comes where it comes from the running kernel, as do commits for room.")
@beside_the_kernel
@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("case", LIMITED)
def test_limits(case: str, simple: bool, tmp_path: Path) -> None:
    first: list[Call] = [("quota_enable", simple), ("create_subvolume", "sub"),
                         ("create", "sub/x"), SYNC]  # fmt: skip
    beside(tmp_path, first, LIMITED[case], 16384)


@beside_the_kernel
@pytest.mark.parametrize("simple", [False, True])
def test_on_and_off(simple: bool, tmp_path: Path) -> None:
    on: Call = ("quota_enable", simple)
    sequence: list[Call] = [
        ("quota_rescan",), ("qgroup_create", ONE), ("qgroup_limit", 5, 1 << 30, None), on, SYNC,
        ("write", "sub/a/b", 0, b"x" * 9000), ("qgroup_create", ONE), ("quota_rescan",), on,
        ("qgroup_assign", 256, ONE), ("quota_disable",), ("quota_disable",), SYNC,
        ("qgroup_destroy", ONE), ("write", "sub/a/b", 0, b"y" * 9000), SYNC, ("quota_enable",),
        ("snapshot", "sub", "q1"), SYNC,
    ]  # fmt: skip
    beside(tmp_path, FIRST, sequence)


@beside_the_kernel
def test_nested_groups(tmp_path: Path) -> None:
    """Groups of groups: what a snapshot is put into, and when that needs a rescan."""
    sequence: list[Call] = [
        ("qgroup_create", ONE), ("qgroup_create", TWO), ("qgroup_create", HIGH),
        ("qgroup_assign", ONE, HIGH), ("qgroup_assign", HIGH, ONE), ("qgroup_assign", 258, ONE),
        ("create_subvolume", "own", [ONE]), ("write", "own/f", 0, b"f" * 50_000), SYNC,
        ("snapshot", "own", "own2", False, [ONE]), ("write", "own2/f", 0, b"g" * 5000), SYNC,
        ("qgroup_destroy", ONE), ("qgroup_destroy", 258), ("delete_subvolume", "own"), SYNC,
        ("snapshot", "own2", "own3", True, [TWO]), SYNC, ("quota_rescan",),
        ("qgroup_remove", 259, ONE), ("qgroup_remove", 259, ONE), SYNC,
        ("snapshot", "own2", "own4", True, [7]), ("snapshot", "own2", "own4", True, [ONE | 99]),
    ]  # fmt: skip
    beside(tmp_path, [*FIRST, ("quota_enable",)], sequence)


@beside_the_kernel
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_high_tree_is_dropped(level: int, tmp_path: Path) -> None:
    """What is shared below a certain height is looked at, above it quotas are inconsistent."""
    names = [f"sub/{'n' * 180}{number}" for number in range(600)]
    # not so many that a thread of the kernel's carries them out
    creates: list[Call] = [("create", name) for name in names]
    for at in range(560, 0, -40):
        creates.insert(at, SYNC)
    sequence: list[Call] = [
        *creates, ("snapshot", "sub", "q1", False), SYNC,
        ("snapshot", "q1", "q2", False), ("create", "q1/x"), ("unlink", "q1" + names[7][3:]), SYNC,
        ("set_drop_subtree_threshold", level), ("delete_subvolume", "q1"), SYNC,
        ("set_drop_subtree_threshold", 9), ("create", "sub/y"), SYNC, ("quota_rescan",),
    ]  # fmt: skip
    beside(tmp_path, [*FIRST, ("quota_enable",)], sequence)


SHARED = [*[("create", f"f{number}") for number in range(60)], ("sync", "")]
SCRIPTS = {
    "commits": [step for file in SHARED[:20] for step in (file, ("sync", ""))],
    "snapshots": [*SHARED[:20], ("sync", ""), ("subvolume", "v"), ("snapshot", "s1"),
                  ("create", "x"), ("snapshot", "s2"), ("create", "y"), ("sync", ""),
                  *SHARED[20:], ("snapshot", "s3")],
}  # fmt: skip


@pytest.mark.claim(
    "With quotas, too, every tree block is at the running kernel's address after runs with "
    "snapshots."
)
@beside_the_kernel
@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("nodesize", [4096, 16384])
@pytest.mark.parametrize("script", SCRIPTS)
def test_all_blocks_are_the_kernels(
    script: str, nodesize: int, simple: bool, tmp_path: Path
) -> None:
    image = tmp_path / "theirs.img"
    fresh(image, [("quota_enable", simple)], nodesize)
    model = WritableFilesystem.load(image)
    steps = {"create": model.create, "subvolume": model.create_subvolume,
             "snapshot": lambda path: model.snapshot("", path),
             "sync": lambda _: model.sync()}  # fmt: skip
    with mounted(image, "nossd,noatime,commit=900") as top:
        for step, name in SCRIPTS[script]:
            path = str(top / name)
            arguments = {"sync": ["filesystem", "sync", path],
                         "subvolume": ["subvolume", "create", path],
                         "snapshot": ["subvolume", "snapshot", "-r", str(top), path]}  # fmt: skip
            if step == "create":
                Path(path).touch()
            else:
                subprocess.run(["btrfs", "-q", *arguments[step]], check=True, capture_output=True)
    for step, name in SCRIPTS[script]:
        steps[step](name)
    model.commit()
    with Filesystem.open(image) as theirs:
        places = [
            {tree: [(block.logical, block.nritems, block.used) for block in fs.tree(tree).blocks()]
             for tree in fs.trees}
            for fs in (theirs, model)
        ]  # fmt: skip
    assert places[0] == places[1]


@pytest.mark.claim("The running kernel rescans what the model wrote and is left with its numbers.")
@beside_the_kernel
@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_rescans_to_the_same(seed: int, tmp_path: Path) -> None:
    image = tmp_path / "ours.img"
    with bm.create(256 << 20, 4096, seed=seed) as fs:
        fs.quota_enable()
        mine = calls.ModelCalls(fs)
        for call in [*FIRST, *random_calls(random.Random(seed), 300, limits=False)]:
            calls.run(mine, call)
        fs.quota_rescan()
        fs.save(image)
    assert btrfs_check(image, data=False) == ""
    groups = [row for row in quota_items(image) if row[0][1] != 240]
    with mounted(image, "noatime") as top:
        KernelCalls(top).quota_rescan()
    # the generation of each changes
    again = [row for row in quota_items(image) if row[0][1] != 240]
    assert [(key, numbers[1:]) for key, numbers in again] == [
        (key, numbers[1:]) for key, numbers in groups
    ]


@beside_the_kernel
@pytest.mark.parametrize("reached", [0, 1 << 24, 13_754_368])
def test_a_rescan_goes_on(reached: int, tmp_path: Path) -> None:
    """A crash in the middle of a rescan: the next mount goes on where it was."""
    crashed, theirs, ours = (tmp_path / f"{name}.img" for name in ("crashed", "theirs", "ours"))
    with bm.create(256 << 20, 4096, seed=1) as fs:
        fs.quota_enable()
        for number in range(30):
            fs.create(f"f{number}")
            fs.write(f"f{number}", 0, b"y" * 20_000)
        fs.sync()
        for group in fs.quotas.by_id.values():
            group.add(-group.rfer, -group.excl, -group.rfer_cmpr, -group.excl_cmpr)
            fs.quotas.touch(group)
        fs.quotas.flags |= StatusFlag.RESCAN | StatusFlag.INCONSISTENT
        fs.quotas.rescan = reached
        fs.create("z")
        fs.sync()
        fs.save_crash(crashed)
    shutil.copy(crashed, theirs)
    with mounted(theirs, "noatime") as top:
        subprocess.run(["btrfs", "quota", "rescan", "-W", str(top)], check=True)
        KernelCalls(top).sync()
    with WritableFilesystem.load(crashed) as model:
        model.save(ours)
    assert quota_items(ours) == quota_items(theirs)


@beside_the_kernel
@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_ids_after_a_mount(last: bool, simple: bool, tmp_path: Path) -> None:
    """Which ids are not used again because a group is left of their subvolume."""
    image = tmp_path / "theirs.img"
    fresh(image, [("quota_enable", simple), ("create_subvolume", "s")])
    first: list[Call] = [("create_subvolume", "t"), ("create", "t/f"),
                         ("write", "t/f", 0, b"x" * 50_000), ("snapshot", "t", "u", False),
                         ("delete_subvolume", "t")]  # fmt: skip
    first += [("delete_subvolume", "u")] if last else []
    with WritableFilesystem.load(image) as model:
        mine = calls.ModelCalls(model)
        for sequence in (first, [("create_subvolume", "v"), SYNC]):
            with mounted(image, "noatime,commit=9999") as top:
                kernel = KernelCalls(top)
                wanted = [calls.run(kernel, call) for call in sequence]
            assert [calls.run(mine, call) for call in sequence] == wanted
            model.remount()
        assert quota_items(model) == quota_items(image)


@pytest.mark.claim("With quotas a log is replayed to the groups of the running kernel's replay.")
@beside_the_kernel
@pytest.mark.parametrize("simple", [False, True])
def test_replay_of_a_log(simple: bool, tmp_path: Path) -> None:
    crashed, theirs = tmp_path / "crashed.img", tmp_path / "theirs.img"
    with bm.create(256 << 20, seed=1) as fs:
        fs.quota_enable(simple)
        fs.create_subvolume("sub")
        fs.create("sub/f")
        fs.write("sub/f", 0, b"f" * 300 * KIB)
        fs.sync()
        fs.snapshot("sub", "snap")
        fs.write("sub/f", 100 * KIB, b"g" * 70 * KIB)
        fs.create("sub/new")
        fs.write("sub/new", 0, b"n" * 40 * KIB)
        fs.fsync("sub/f")
        fs.fsync("sub/new")
        fs.save_crash(crashed)
    shutil.copy(crashed, theirs)
    with mounted(theirs, "noatime"):
        pass
    with bm.open(crashed) as before, bm.replay_log(before, behaviour="v6.18.44") as after:
        after.save(tmp_path / "ours.img")
    found, wanted = quota_items(tmp_path / "ours.img"), quota_items(theirs)
    assert [(key, numbers[1:]) for key, numbers in found if key[1] != 240] == [
        (key, numbers[1:]) for key, numbers in wanted if key[1] != 240
    ]
    assert bm.check(tmp_path / "ours.img") == []
