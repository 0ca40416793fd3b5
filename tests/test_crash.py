# SPDX-License-Identifier: GPL-2.0-only
"""Crashes of the model's own filesystems: what was fsynced is there after the replay."""

import contextlib
import random
import subprocess
from pathlib import Path

import calls
import corpus
import pytest
from test_send_written import SIZE, change_data

import btrfs_model as bm
from btrfs_model.filesystem.writable import WritableFilesystem
from btrfs_model.patches import Behaviour

SEEDS = range(300) if corpus.LONG else range(16)
NOW = "v6.18.44"
OLD = ["v5.10.46", "v5.10.223 + log-dir-index-only"]
FILES = ["b", "c", "f", "d/a", "a/b", "e/f"]


class Run:
    """Random calls, and what has to survive a crash: the content of each file by its number."""

    def __init__(self, seed: int, behaviour: str = NOW) -> None:
        self.choice = random.Random(f"crash {seed}")
        self.fs = bm.create(SIZE, self.choice.choice([4096, 16384]), seed=seed)
        self.fs.behaviour = Behaviour.parse(behaviour)
        for name in ("a", "d", "e"):
            self.fs.mkdir(name)
        for name in FILES[::2]:
            self.fs.create(name)
        self.fs.sync()
        self.kept: dict[int, bytes] = {}
        self.logged = 0

    def content(self, ino: int) -> bytes | None:
        """What a file holds now, None when it has no name any more."""
        for path in FILES:
            with contextlib.suppress(OSError):
                if self.fs.resolve(path, follow=False)[1] == ino:
                    return self.fs.read(path)
        return None

    def step(self) -> None:
        what = self.choice.random()
        with contextlib.suppress(OSError):
            if what < 0.2:
                self.fsync(self.choice.choice(FILES))
            elif what < 0.25:
                self.fs.sync()
            elif what < 0.35:
                self.fs.create(self.choice.choice(FILES))
            elif what < 0.7:
                change_data(self.fs, self.choice)
            else:
                name, *arguments = calls.random_call(self.choice, subvolumes=False)
                getattr(self.fs, name)(*arguments)
        # what changed since its fsync may be there as it was then or later: nothing is promised
        self.kept = {ino: data for ino, data in self.kept.items() if self.content(ino) == data}

    def fsync(self, path: str) -> None:
        _, ino = self.fs.resolve(path, follow=False)
        data = self.fs.read(path)
        self.logged += self.fs.fsync(path) == "log"
        self.kept[ino] = data


def replayed_after(run: Run) -> WritableFilesystem:
    for _ in range(run.choice.randrange(15, 60)):
        run.step()
    return bm.replay_log(run.fs, behaviour=run.fs.behaviour)


@pytest.mark.parametrize(
    ("seed", "behaviour"),
    [(seed, NOW) for seed in SEEDS] + [(seed, old) for old in OLD for seed in SEEDS[::4]],
)
def test_what_was_fsynced_is_there(seed: int, behaviour: str) -> None:
    run = Run(seed, behaviour)
    with run.fs, replayed_after(run) as after:
        assert not after.image.superblock.log_root
        assert bm.check(after, verify_data=True) == []
        top = after.subvolume(5)
        for ino, data in run.kept.items():
            assert top.read_file(ino) == data, ino


def test_logs_were_written() -> None:
    """The runs above would say nothing if each fsync were a commit."""
    logged = kept = 0
    for seed in range(8):
        run = Run(seed)
        with run.fs, replayed_after(run):
            logged += run.logged
            kept += len(run.kept)
    assert logged > 8
    assert kept > 4


@pytest.mark.parametrize("seed", range(3))
def test_btrfs_check_finds_nothing(seed: int, tmp_path: Path) -> None:
    run = Run(seed)
    image = tmp_path / "image"
    with run.fs, replayed_after(run) as after:
        after.save(image)
    checked = subprocess.run(
        ["btrfs", "check", "--readonly", str(image)], check=False, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    assert "no error found" in checked.stdout
