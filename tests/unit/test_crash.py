# SPDX-License-Identifier: GPL-2.0-only
"""Crashes at any moment: what a replay makes of them is what was promised, and nothing else.

What btrfs promises is in :mod:`crash_promises`. A machine of hypothesis changes a filesystem, lets
it crash, looks at what any kernel's replay of any kernel's log leaves, and goes on with that.
"""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import corpus
import hypothesis.strategies as st
import live
import pytest
from crash_promises import broken_promises
from crashes import START, Files, Workload
from hypothesis import note, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from progs import btrfs_check, needs_progs
from scenarios import operations

import btrfs_model as bm
from btrfs_model.experiments.crashes.seen import TOP, Ref, State, seen
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.sides import operations_of
from btrfs_model.ondisk.structs import SUPER_BLOCK
from btrfs_model.ondisk.superblock import SUPER_OFFSETS, SUPER_SIZE

WRITERS = ["v5.10.46", "v6.1.176", "v6.12.101", "v6.18.44"]
"""Kernels that write the log; any of them replays it."""

NAMES = "abcde"
PICK = st.integers(0, 255)
OFFSETS = st.sampled_from([0, 0, 1, 3000, 4096, 8192])
LENGTHS = st.sampled_from([1, 100, 2000, 4096, 5000, 12288])
SIZES = st.sampled_from([0, 1, 100, 4096, 5000, 10000])


class Crashes(RuleBasedStateMachine):
    """A filesystem that crashes now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.workload: Workload | None = None
        self.snapshots = 0

    @initialize(writer=st.sampled_from(WRITERS), nodesize=st.sampled_from([4096, 16384]))
    def start(self, writer: str, nodesize: int) -> None:
        self.workload = Workload.started(writer, nodesize)

    def teardown(self) -> None:
        if self.workload is not None:
            self.crash("v6.18.44", "v6.18.44")
            self.workload.fs.close()

    # ------------------------------------------------------------------------------ choices --

    def path(self, pick: int, kind: str = "") -> str:
        """One of the paths of now, of the top of no subvolume; one that is not there for none."""
        assert self.workload is not None
        files = self.workload.files
        found = [path for path, ref in files.paths().items()
                 if ref[1] != TOP and (not kind or getattr(files.inodes[ref], kind))]  # fmt: skip
        return found[pick % len(found)].decode() if found else "nothing"

    def new_path(self, pick: int) -> str:
        """A name, perhaps of something else, in a directory."""
        assert self.workload is not None
        inodes = self.workload.files.inodes
        folders = [path.decode() + "/" for path, ref in self.workload.files.paths().items()
                   if inodes[ref].is_dir]  # fmt: skip
        return ["", *folders][pick // len(NAMES) % (len(folders) + 1)] + NAMES[pick % len(NAMES)]

    def do(self, *line: Any) -> None:
        assert self.workload is not None
        if self.workload.do(*line):
            note(str(list(line)))

    # -------------------------------------------------------------------------------- names --

    @rule(path=PICK)
    def create(self, path: int) -> None:
        self.do("create", self.new_path(path))

    @rule(path=PICK)
    def mkdir(self, path: int) -> None:
        self.do("mkdir", self.new_path(path))

    @rule(path=PICK)
    def symlink(self, path: int) -> None:
        self.do("symlink", "target", self.new_path(path))

    @rule(old=PICK, new=PICK)
    def link(self, old: int, new: int) -> None:
        self.do("link", self.path(old, "is_file"), self.new_path(new))

    @rule(path=PICK)
    def unlink(self, path: int) -> None:
        self.do("unlink", self.path(path, "is_file"))

    @rule(path=PICK)
    def rmdir(self, path: int) -> None:
        self.do("rmdir", self.path(path, "is_dir"))

    @rule(old=PICK, new=PICK)
    def rename(self, old: int, new: int) -> None:
        self.do("rename", self.path(old), self.new_path(new))

    @rule(old=PICK, new=PICK)
    def rename_over(self, old: int, new: int) -> None:
        self.do("rename", self.path(old), self.path(new))

    @rule(old=PICK, new=PICK)
    def exchange(self, old: int, new: int) -> None:
        assert self.workload is not None
        # before that a log after an exchange of names in a directory loses one of the two
        if "log-old-conflicts" in self.workload.fs.behaviour:
            self.do("exchange", self.path(old), self.path(new))

    # --------------------------------------------------------------------------------- data --

    @rule(path=PICK, offset=OFFSETS, length=LENGTHS, fill=PICK)
    def write(self, path: int, offset: int, length: int, fill: int) -> None:
        self.do("write", self.path(path, "is_file"), offset, length, fill)

    @rule(path=PICK, size=SIZES)
    def truncate(self, path: int, size: int) -> None:
        self.do("truncate", self.path(path, "is_file"), size)

    @rule(path=PICK, mode=st.sampled_from([0, 1, 3, 3, 16, 17]), offset=OFFSETS, length=LENGTHS)
    def fallocate(self, path: int, mode: int, offset: int, length: int) -> None:
        self.do("fallocate", self.path(path, "is_file"), mode, offset, length)

    @rule(one=PICK, other=PICK, at=st.sampled_from([0, 4096]), to=st.sampled_from([0, 8192]))
    def clone(self, one: int, other: int, at: int, to: int) -> None:
        source, goal = (self.path(pick, "is_file") for pick in (one, other))
        self.do("clone_range", source, at, 0, goal, to)

    # --------------------------------------------------------------------------- attributes --

    @rule(path=PICK, mode=st.sampled_from([0o600, 0o644, 0o755]))
    def chmod(self, path: int, mode: int) -> None:
        self.do("chmod", self.path(path), mode)

    @rule(path=PICK, name=st.sampled_from(["user.x", "user.y"]), value=st.sampled_from(["", "77"]))
    def setxattr(self, path: int, name: str, value: str) -> None:
        self.do("setxattr", self.path(path), name, value)

    @rule(path=PICK, name=st.sampled_from(["user.x", "user.y"]))
    def removexattr(self, path: int, name: str) -> None:
        self.do("removexattr", self.path(path), name)

    # -------------------------------------------------------------------- to disk and memory --

    @rule(path=PICK)
    def fsync_file(self, path: int) -> None:
        self.do("fsync", self.path(path, "is_file"))

    @rule(path=PICK, name=st.sampled_from(["user.x", "user.y"]), fill=PICK)
    def change_and_fsync(self, path: int, name: str, fill: int) -> None:
        """What a program does that wants to keep a file."""
        file = self.path(path, "is_file")
        self.do("removexattr", file, name)
        self.do("write", file, 0, 100, fill)
        self.do("fsync", file)

    @rule(one=PICK, other=PICK)
    def exchange_and_fsync(self, one: int, other: int) -> None:
        self.exchange(one, other)
        self.fsync_directory(other)

    @rule(path=PICK)
    def fdatasync(self, path: int) -> None:
        self.do("fdatasync", self.path(path, "is_file"))

    @rule(path=PICK)
    def fsync_directory(self, path: int) -> None:
        self.do("fsync", self.path(path, "is_dir"))

    @rule()
    def sync(self) -> None:
        self.do("sync")

    @rule(read_only=st.booleans())
    def snapshot(self, read_only: bool) -> None:
        if self.snapshots < 2:
            self.snapshots += 1
            self.do("snapshot", "", f"snapshot{self.snapshots}", read_only)

    @rule(path=PICK)
    def writeback(self, path: int) -> None:
        self.do("flush", self.path(path, "is_file"))

    @rule()
    def drop_caches(self) -> None:
        self.do("drop_caches")

    # ------------------------------------------------------------------------------- crashes --

    @rule(replayer=st.sampled_from(WRITERS), writer=st.sampled_from(WRITERS))
    def crash(self, replayer: str, writer: str) -> None:
        assert self.workload is not None
        note(f"crash, replayed by {replayer}")
        before = self.workload
        after = bm.replay_log(before.fs, behaviour=replayer)
        assert after.image.superblock.log_root == 0
        assert bm.check(after, verify_data=True) == []
        result = seen(after)
        assert broken_promises(before.epoch, before.fs.behaviour, before.fs, after, result) == []
        before.fs.close()
        note(f"goes on as {writer}")
        self.workload = Workload(after, writer)


@pytest.mark.claim(
    "Whatever is called, and whenever it crashes: what was fsynced is there after the replay, "
    "what was not is whole, and nothing else is touched. `btrfs-model crashes --rules` "
    "lists what is promised."
)
def test_replays_keep_what_was_promised() -> None:
    run_state_machine_as_test(
        Crashes,
        settings=settings(
            max_examples=200 if corpus.LONG else 30,
            stateful_step_count=60 if corpus.LONG else 30,
        ),
    )


# ---------------------------------------------------------------- less than one would think --

QUIRKS = {
    "old content is cut where a later one ended": [
        ["exchange", "d/b", "d/e"], ["truncate", "d/e", 1], ["fallocate", "d/e", 0, 0, 50],
        ["fsync", "d/b"],
    ],
    "a link is not looked for where nobody fsynced": [
        ["link", "d/b", "b"], ["unlink", "d/b"], ["fsync", "d"],
    ],
    "a name that was taken by a rename stays": [
        ["link", "a", "d/x"], ["sync"], ["rename", "e/c", "a"], ["fsync", "d/x"],
    ],
}  # fmt: skip
"""Calls after START, an fsync at last. Then comes the crash."""

OLD_CONTENT = bytes((2 + i) & 255 for i in range(100))


def replayed_quirk(name: str) -> tuple[list[str], State, Files]:
    workload = Workload.started("v6.18.44")
    workload.ends.clear()
    for line in QUIRKS[name]:
        assert workload.do(*line), line
    with workload.fs, bm.replay_log(workload.fs) as after:
        return workload.ends, workload.files.inodes, Files(seen(after))


@pytest.mark.claim(
    "Three things that one might expect of a crash are not promised, because Linux 6.18 "
    "breaks them."
)
def test_what_is_not_promised() -> None:
    """The promises could not be any stronger than they are: Linux 6.18 breaks those that were."""
    cut, lost, stays = (replayed_quirk(name) for name in QUIRKS)
    assert cut[2].inodes[cut[2].at(b"d/e")].data == OLD_CONTENT[:50]
    file: Ref = (5, 261)
    assert file in lost[1]
    assert file not in lost[2].inodes
    assert stays[2].at(b"a") == stays[2].at(b"d/x") == (5, 260)


@pytest.mark.claim("The running kernel breaks these three promises too.", judge="live")
@pytest.mark.parametrize("name", QUIRKS)
@live.beside_the_kernel
def test_the_running_kernel_promises_no_more(name: str, tmp_path: Path) -> None:
    image, crashed = tmp_path / "image", tmp_path / "crashed"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.btrfs", "-q", "-f", "-n", "4096", str(image)], check=True)
    options = "noatime,commit=300"
    lines = [["mkfs", []], ["mount", options], *START, *QUIRKS[name]]
    steps = [parse_step(name, number, line) for number, line in enumerate(lines, 1)]
    with operations(image, options) as kernel:
        kernel.take(operations_of(Scenario(name, steps, hex_values=True)))
        subprocess.run(["cp", "--sparse=always", str(image), str(crashed)], check=True)
    ends, _, files = replayed_quirk(name)
    assert ends[-1] == "log"
    wanted = {path.decode(): (ref[1], files.inodes[ref].mode, files.inodes[ref].data)
              for path, ref in files.paths().items()}  # fmt: skip
    with live.mounted(crashed, "noatime") as top:
        assert dict(kernels_listing(top)) == wanted


def kernels_listing(top: Path) -> Any:
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = Path(folder, name)
            status = path.lstat()
            data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            yield str(path.relative_to(top)), (status.st_ino, status.st_mode, data)


@needs_progs
@pytest.mark.parametrize("writer", WRITERS)
def test_btrfs_check_finds_nothing(writer: str, tmp_path: Path) -> None:
    """A log with new names, taken names, data and holes, replayed and judged from outside."""
    workload = Workload.started(writer)
    lines = [
        ["mkdir", "d/new"], ["create", "d/new/f"], ["write", "d/new/f", 4096, 9000, 3],
        ["fallocate", "a", 3, 0, 4096], ["clone_range", "a", 0, 0, "d/new/f", 16384],
        ["link", "d/b", "e/b"], ["unlink", "d/b"], ["rename", "e/c", "d/b"],
        ["setxattr", "a", "user.x", "77"], ["fsync", "a"], ["fsync", "d/new/f"], ["fsync", "e"],
    ]  # fmt: skip
    for line in lines:
        assert workload.do(*line), line
    assert "log" in workload.ends
    image = tmp_path / "image"
    with workload.fs, bm.replay_log(workload.fs) as after:
        after.save(image)
    assert btrfs_check(image) == ""


@pytest.mark.claim("An fsync changes the first superblock alone, as in the crashes of kernels.")
@pytest.mark.parametrize("kernel", ["6.1/crash2", "6.12/crash1"])
def test_copies_of_the_superblock_know_no_log(kernel: str) -> None:
    with bm.create("256M") as fs:
        fs.create("file")
        assert fs.fsync("file") == "log"
        ours = [bytes(fs.memory.buffer[at : at + SUPER_SIZE]) for at in SUPER_OFFSETS[:2]]
    image = bm.sample(f"kernel/log/nd/nd_20_5/{kernel}").read_bytes()
    theirs = [image[at : at + SUPER_SIZE] for at in SUPER_OFFSETS[:2]]
    for copies in (ours, theirs):
        first, second = map(SUPER_BLOCK.unpack, copies)
        assert first.log_root and not second.log_root
        assert first.generation == second.generation
