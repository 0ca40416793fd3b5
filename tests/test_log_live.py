# SPDX-License-Identifier: GPL-2.0-only
"""fsync beside the running kernel: what it logs, and when it commits instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import corpus
import pytest
from fsync_log import logs_of
from live import beside_the_kernel
from log_beside import (
    KERNEL,
    KNOWN,
    NOCOW,
    Beside,
    Operation,
    in_the_kernel,
    in_the_model,
    random_operations,
)

from btrfs_model.filesystem import Filesystem

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
}  # fmt: skip


def comparable_logs(image: Path, beside: Beside) -> dict[int, Any]:
    """Logs; of what is compressed not what the checksums are: the bytes are the compressor's."""
    with Filesystem.open(image) as fs:
        logs = logs_of(fs)
    if "compress" in beside.mount:
        for items in logs.values():
            known, other = items["csums"]
            items["csums"] = known.keys(), other.total()
    return logs


def compare(beside: Beside, place: Path) -> None:
    ours, theirs = place / "model.crash", place / "device.crash"
    wanted = in_the_kernel(beside, place / "device.img", theirs)
    assert in_the_model(beside, ours) == wanted
    assert comparable_logs(ours, beside) == comparable_logs(theirs, beside)


not_known = pytest.mark.skipif(not KNOWN, reason=f"what {KERNEL} took over is not known")


@beside_the_kernel
@not_known
@pytest.mark.parametrize("case", CASES)
def test_the_running_kernel_logs_the_same(case: str, tmp_path: Path) -> None:
    compare(Beside([*CASES[case], ["crash"]]), tmp_path)


@beside_the_kernel
@not_known
@pytest.mark.parametrize("seed", range(200 if corpus.LONG else 8))
def test_random_calls(seed: int, tmp_path: Path) -> None:
    compare(random_operations(seed), tmp_path)
