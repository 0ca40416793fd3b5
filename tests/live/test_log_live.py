# SPDX-License-Identifier: GPL-2.0-only
"""fsync beside the running kernel: what it logs, and when it commits instead."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import corpus
import pytest
from live import beside_the_kernel
from log_beside import (
    KERNEL,
    KNOWN,
    Beside,
    Operation,
    in_the_kernel,
    in_the_model,
)

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.verify.logs import comparable_logs, logs_of
from btrfs_model.experiments.verify.random.logs import NOCOW, random_log
from btrfs_model.ondisk.structs import RawFileExtent
from btrfs_model.volume.filesystem import Filesystem

RECORDED = corpus.TEST_DATA / "log_live.json"

TWO = [["mkdir", "d"], ["create", "d/a"], ["create", "d/b"]]
CASES: dict[str, list[Operation]] = {
    "swapped, the directory": [
        *TWO, ["sync"], ["rename", "d/a", "d/t"], ["rename", "d/b", "d/a"],
        ["rename", "d/t", "d/b"], ["fsync", "d"],
    ],
    "swapped, a file": [*TWO, ["sync"], ["exchange", "d/a", "d/b"], ["fsync", "d/a"]],
    "swapped, not changed since the mount": [
        *TWO, ["remount"], ["create", "x"], ["sync"], ["exchange", "d/a", "d/b"], ["fsync", "d/a"],
    ],
    "renamed first after a mount": [*TWO, ["remount"], ["rename", "d/a", "d/t"], ["fsync", "d/t"]],
    "a name that was another's": [
        *TWO, ["sync"], ["rename", "d/a", "d/t"], ["rename", "d/b", "d/a"], ["fsync", "d"],
    ],
    "a commit is asked for by a rename": [
        *TWO, ["mkdir", "e"], ["sync"], ["create", "e/n"], ["fsync", "e/n"],
        ["exchange", "e/n", "d/a"], ["chmod", "d/b", 0o600], ["fsync", "d/b"],
    ],
    "enlarged first in a transaction": [
        *TWO, ["remount"], ["create", "x"], ["sync"], ["truncate", "d/a", 10000], ["fsync", "d/a"],
    ],
    "enlarged later in a transaction": [
        *TWO, ["remount"], ["create", "x"], ["sync"], ["create", "y"], ["truncate", "d/a", 10000],
        ["fsync", "d/a"],
    ],
    "a removed directory that is open": [
        ["mkdir", "d"], ["mkdir", "d/o"], ["sync"], ["open", "d/o", "x"], ["rmdir", "d/o"],
        ["fsyncfd", "x"],
    ],
    "a new file where a directory was": [
        ["mkdir", "foo"], ["sync"], ["rmdir", "foo"], ["mkdir", "dir1"], ["mkdir", "dir2"],
        ["create", "foo"], ["link", "foo", "dir2/link"], ["fsync", "dir2"],
    ],
    "swapped directories": [
        ["mkdir", "d1"], ["mkdir", "d2"], ["create", "d1/c"], ["sync"], ["rename", "d1/c", "d1/k"],
        ["exchange", "d1", "d2"], ["fsync", "d2/k"],
    ],
    "a clone from an old file": [
        *TWO, ["write", "d/a", 0, 70000, 5], ["sync"],
        ["clone_range", "d/a", 0, 4096, "d/b", 8192], ["link", "d/a", "x"], ["fsync", "d/a"],
    ],
    "a clone of nothing": [
        *TWO, ["truncate", "d/a", 20000], ["write", "d/b", 0, 20000, 5], ["sync"], ["fsync", "d/b"],
        ["clone_range", "d/a", 0, 8192, "d/b", 4096], ["fsync", "d/b"],
    ],
    "written before and in a transaction": [
        *TWO, ["write", "d/a", 0, 5000, 0], ["remount"], ["write", "d/b", 20480, 4096, 7],
        ["write", "d/a", 0, 50, 3], ["fsync", "d/a"],
    ],
    "twice after a mount": [
        *TWO, ["fsync", "d"], ["remount"], ["write", "d/a", 0, 4096, 1], ["fsync", "d/a"],
        ["fsync", "d/a"],
    ],
    "cut to what it was": [*TWO, ["sync"], ["truncate", "d/a", 0], ["fdatasync", "d/a"]],
    "a hole in the log is split": [
        *TWO, ["write", "d/a", 124880, 4096, 7], ["fsync", "d/a"], ["write", "d/a", 0, 5000, 3],
        ["fsync", "d/a"],
    ],
    "a snapshot with a name that is taken": [
        *TWO, ["subvol_create", "s"], ["write", "d/a", 0, 9, 1], ["snapshot", "", "d/a", True],
        ["snapshot", "s", "t", False], ["fsync", "d/a"],
    ],
    "no flag of a directory changed": [
        ["mkdir", "d"], ["remount"], ["chattr", "d", 0, NOCOW], ["fsync", "d"],
    ],
    "written in place": [
        *TWO, ["chattr", "d/a", NOCOW], ["write", "d/a", 0, 20000, 1], ["sync"],
        ["write", "d/a", 4096, 4096, 2], ["fsync", "d/a"],
    ],
    "written in place after a snapshot": [
        ["subvol_create", "s"], ["create", "s/a"], ["chattr", "s/a", NOCOW],
        ["write", "s/a", 0, 20000, 1], ["sync"], ["snapshot", "s", "t", True], ["sync"],
        ["write", "s/a", 4096, 4096, 2], ["fsync", "s/a"],
    ],
    "cut at the end of an extent": [
        *TWO, ["write", "d/a", 0, 16384, 7], ["fsync", "d/a"], ["write", "d/a", 16384, 4096, 7],
        ["sync"], ["truncate", "d/a", 16384], ["fsync", "d/a"],
    ],
    "cut in a hole": [
        *TWO, ["write", "d/a", 0, 12288, 7], ["write", "d/a", 32768, 4096, 7], ["sync"],
        ["truncate", "d/a", 20480], ["fsync", "d/a"],
    ],
    "enlarged and cut again after a mount": [
        *TWO, ["remount"], ["write", "d/b", 0, 4096, 1], ["fdatasync", "d/b"],
        ["truncate", "d/a", 67536], ["truncate", "d/a", 0], ["fsync", "d/a"],
    ],
    "a name taken by no subvolume goes": [
        ["subvol_create", "s"], ["mkdir", "s/e"], ["create", "s/e/f"], ["remount"],
        ["subvol_create", "s/e/f"], ["unlink", "s/e/f"], ["snapshot", "s", "k", True],
        ["create", "s/e/g"], ["fsync", "s/e"],
    ],
    "a logged file gets a name in a new directory, the directory above": [
        ["create", "f"], ["sync"], ["mkdir", "n"], ["write", "f", 0, 100, 1], ["fsync", "f"],
        ["link", "f", "n/g"], ["fsync", ""],
    ],
    "a logged file is moved, the new directory and the old one": [
        *TWO, ["mkdir", "e"], ["sync"], ["write", "d/a", 0, 10, 3], ["fsync", "d/a"],
        ["rename", "d/a", "e/a"], ["fsync", "e"], ["fsync", "d"],
    ],
    "a logged file loses a name, gets another one, the directory of the third": [
        *TWO, ["mkdir", "b"], ["mkdir", "c"], ["link", "d/a", "c/l"], ["create", "o"], ["sync"],
        ["create", "d/z"], ["write", "o", 0, 10, 1], ["fsync", "o"], ["write", "d/a", 0, 10, 2],
        ["fsync", "d/a"], ["unlink", "c/l"], ["link", "d/a", "b/g"], ["fsync", "d"],
    ],
    "a logged file is renamed, the directory after the one above": [
        *TWO, ["sync"], ["chown", "d/a", 0, 5], ["fsync", "d/a"], ["rename", "d/a", "d/o"],
        ["create", "g"], ["fsync", ""], ["fsync", "d"],
    ],
}  # fmt: skip


def compare(scenario: Scenario, place: Path) -> None:
    ours, theirs = place / "model.crash", place / "device.crash"
    wanted = in_the_kernel(scenario, place / "device.img", theirs)
    assert in_the_model(scenario, ours) == wanted
    assert comparable_logs(ours, scenario) == comparable_logs(theirs, scenario)


def summary(image: Path) -> dict[str, list[Any]]:
    """Keys of the items in each log; of extents also their type, offset and length."""
    with Filesystem.open(image) as fs:
        logs = logs_of(fs)
    found: dict[str, list[Any]] = {}
    for root, items in logs.items():
        del items["csums"]
        found[str(root)] = rows = []
        for key, content in sorted(items.items()):
            extent = isinstance(content, RawFileExtent)
            what = (content.type, content.offset, content.num_bytes) if extent else ()
            rows.append([*key, *what])
    return found


@pytest.mark.claim(
    "The model logs what 6.18.44 logged in the named cases; `tests/data/log_live.json` holds "
    "these logs.",
    judge="recorded",
)
@pytest.mark.parametrize("case", CASES)
def test_the_log_is_what_a_kernel_logged(case: str, tmp_path: Path) -> None:
    """Without a kernel: what came of the cases when Linux 6.18.44 went through them."""
    recorded = json.loads(RECORDED.read_text())[case]
    scenario = Beside([*CASES[case], ["crash"]]).scenario
    ran = in_the_model(scenario, tmp_path / "crash", "v6.18.44")
    assert [ran.synced, summary(tmp_path / "crash")] == recorded


not_known = pytest.mark.skipif(not KNOWN, reason=f"what {KERNEL} took over is not known")


@pytest.mark.claim(
    "After calls of all kinds (names, data, clones, holes, preallocation, NODATACOW, "
    "compression, subvolumes, mounts in between) the running kernel (6.18.44) logs what the "
    "model logs, and commits where the model does."
)
@beside_the_kernel
@not_known
@pytest.mark.parametrize("case", CASES)
def test_the_running_kernel_logs_the_same(case: str, tmp_path: Path) -> None:
    compare(Beside([*CASES[case], ["crash"]]).scenario, tmp_path)


APART: list[Operation] = [["create", "f"], ["sync"]]
APART += [["write", "f", at * 8192, 4096, 1] for at in range(3000)]
FILES = 1_000_000 if corpus.LONG else 10_000
WAITS = "writes that wait for room"
OF_MOUNT = 1
"""The commit of the kernel's first sync, which the model has not: mkfs.btrfs does not say that the
uuid tree is up to date (``uuid_tree_generation``), so the first mount goes through it
(``btrfs_uuid_scan_kthread()``), for which it starts a transaction though nothing changes. With the
generation there, there is no such commit."""
AT_SCALE = {
    WAITS: Beside([*APART, ["fsync", "f"], ["crash"]]),
    "writes beyond the first chunk": Beside(
        [*APART, ["fsync", "f"], ["crash"]], ["-m", "dup"], size=64 << 30
    ),
    "a hundredth of a directory removed": Beside(
        [["mkdir", "d"], ["mkfiles", "d", "f", 1, FILES], ["sync"],
         ["rmfiles", "d", "f", 1, FILES, 100], ["fsync", "d"], ["crash"]],
        ["-m", "dup"], size=128 << 30,
    ),
}  # fmt: skip


def at_scale(image: Path) -> tuple[int, dict[int, Counter[int]]]:
    """Generation, and items of each log by type."""
    with Filesystem.open(image) as fs:
        logs = {root: Counter(key[1] for key in items if key != "csums")
                for root, items in logs_of(fs).items()}  # fmt: skip
        return fs.image.superblock.generation, logs


@pytest.mark.claim(
    "At scale the running kernel (6.18.44) commits before an fsync where the model does, and "
    "logs as many items of each type: 3,000 writes beyond the first chunk of data with and "
    "without room for their reservations, and a hundredth of 10,000 files of a directory "
    "removed (1,000,000 in the long run)."
)
@beside_the_kernel
@not_known
@pytest.mark.parametrize("case", AT_SCALE)
def test_fsync_at_scale(case: str, tmp_path: Path) -> None:
    """Which commits come before decides whether it is a log, and what is in it."""
    ours, theirs = tmp_path / "model.crash", tmp_path / "device.crash"
    scenario, size = AT_SCALE[case].scenario, AT_SCALE[case].size
    wanted = in_the_kernel(scenario, tmp_path / "device.img", theirs, size)
    assert in_the_model(scenario, ours, size=size) == wanted
    (made, logs), (generation, known) = at_scale(ours), at_scale(theirs)
    assert logs.keys() == known.keys()
    if case == WAITS:
        # a call goes on while the worker still commits, and may ask for another commit
        assert made + OF_MOUNT - generation in (-1, 0, 1)
    else:
        assert (made + OF_MOUNT, logs) == (generation, known)


@pytest.mark.claim(
    "After random calls the running kernel logs what the model logs, and commits where the "
    "model does."
)
@beside_the_kernel
@not_known
@pytest.mark.parametrize("seed", range(200 if corpus.LONG else 8))
def test_random_calls(seed: int, tmp_path: Path) -> None:
    compare(random_log(seed), tmp_path)
