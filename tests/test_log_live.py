# SPDX-License-Identifier: GPL-2.0-only
"""fsync beside the running kernel: what it logs of names that were swapped, moved and taken."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fsync_log import logs_of
from live import beside_the_kernel, mounted

from btrfs_model.filesystem import Filesystem
from btrfs_model.filesystem.writable import WritableFilesystem
from btrfs_model.patches import PRESETS
from btrfs_model.scenario import run_scenario
from btrfs_model.scenario.load import Scenario
from btrfs_model.scenario.operations import parse_step

KERNEL = "v" + platform.release().split("-")[0]
# on a smaller device room for metadata may be short, and then more is written than calls ask for
SIZE = 1 << 30
OPTIONS = "commit=300,noatime,nodiscard,ssd"

Operation = list[Any]

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
}  # fmt: skip


class Kernel:
    """The running kernel carries out operations on a fresh filesystem."""

    def __init__(self, image: Path) -> None:
        self.image = image
        self.ends: list[str] = []
        self.handles: dict[str, int] = {}
        with image.open("wb") as file:
            file.truncate(SIZE)
        command = ["mkfs.btrfs", "-q", "-m", "single", "-d", "single", image]
        subprocess.run(command, check=True)

    def run(self, operations: list[Operation]) -> None:
        parts: list[list[Operation]] = [[]]
        for operation in operations:
            parts.append([]) if operation == ["remount"] else parts[-1].append(operation)
        for part in parts:
            with mounted(self.image, OPTIONS) as self.top:
                subprocess.run(["btrfs", "filesystem", "sync", self.top], check=True)
                for name, *arguments in part:
                    getattr(self, name)(*arguments)
                if part is parts[-1]:
                    crash = self.image.with_suffix(".crash")
                    subprocess.run(["cp", "--sparse=always", self.image, crash], check=True)
                for handle in self.handles.values():
                    os.close(handle)

    def mkdir(self, path: str) -> None:
        (self.top / path).mkdir(0o755)

    def create(self, path: str) -> None:
        os.close(os.open(self.top / path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

    def rename(self, old: str, new: str) -> None:
        (self.top / old).rename(self.top / new)

    def exchange(self, one: str, other: str) -> None:
        paths = [bytes(self.top / path) for path in (one, other)]
        assert ctypes.CDLL(None).renameat2(-100, paths[0], -100, paths[1], 2) == 0

    def link(self, old: str, new: str) -> None:
        (self.top / new).hardlink_to(self.top / old)

    def rmdir(self, path: str) -> None:
        (self.top / path).rmdir()

    def chmod(self, path: str, mode: int) -> None:
        (self.top / path).chmod(mode)

    def truncate(self, path: str, size: int) -> None:
        os.truncate(self.top / path, size)

    def sync(self) -> None:
        subprocess.run(["btrfs", "filesystem", "sync", self.top], check=True)

    def open(self, path: str, name: str) -> None:
        self.handles[name] = os.open(self.top / path, os.O_RDONLY)

    def fsync(self, path: str) -> None:
        handle = os.open(self.top / path, os.O_RDONLY)
        self._fsync(handle)
        os.close(handle)

    def fsyncfd(self, name: str) -> None:
        self._fsync(self.handles[name])

    def _fsync(self, handle: int) -> None:
        before = self._super()
        os.fsync(handle)
        after = self._super()
        end = "commit" if after[0] != before[0] else "log" if after[1] != before[1] else "none"
        self.ends.append(end)

    def _super(self) -> tuple[bytes, bytes]:
        """Generation and log_root of the superblock."""
        with self.image.open("rb") as file:
            file.seek(65536 + 72)
            found = file.read(32)
        return found[:8], found[24:]


def in_the_model(operations: list[Operation], crash: Path) -> list[str]:
    lines = [["mkfs", ["-m", "single"]], ["sync"], *operations, ["crash"]]
    steps = [parse_step("case", number, line) for number, line in enumerate(lines, 1)]
    ends: list[str] = []

    def crashed(fs: WritableFilesystem, _number: int) -> None:
        fs.save_crash(crash)

    with run_scenario(
        Scenario("case", steps), size=SIZE, behaviour=KERNEL, asynchronous=True,
        crashed=crashed, synced=lambda step, how: ends.append(how),
    ):  # fmt: skip
        return ends


@beside_the_kernel
@pytest.mark.skipif(KERNEL not in PRESETS, reason=f"what {KERNEL} took over is not known")
@pytest.mark.parametrize("case", CASES)
def test_the_running_kernel_logs_the_same(case: str, tmp_path: Path) -> None:
    kernel = Kernel(tmp_path / "device.img")
    kernel.run(CASES[case])
    assert in_the_model(CASES[case], tmp_path / "model.crash") == kernel.ends
    with (
        Filesystem.open(tmp_path / "model.crash") as ours,
        Filesystem.open(tmp_path / "device.crash") as theirs,
    ):
        assert logs_of(ours) == logs_of(theirs)
