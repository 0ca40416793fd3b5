# SPDX-License-Identifier: GPL-2.0-only
"""Clones that are made at once are those that are made one by one."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

import btrfs_model as bm

SEEDS = range(3)


def _made(path: Path, seed: int, *, at_once: bool) -> tuple[bytes, bytes, int]:
    """Clone files, with calls between; return what a crash leaves, what a sync does, the clock."""
    dice = random.Random(seed)
    fs = bm.WritableFilesystem.mkfs(128 << 20)
    fs.mkdir("d")
    files = [f"d/f{number}" for number in range(40)]
    for name in files:
        fs.create(name)
        fs.write(name, 0, bytes([dice.randrange(1, 255)]) * dice.choice([50, 4096, 9000, 200_000]))
        if dice.random() < 0.2:
            fs.fsync(name)
            fs.write(name, 4096, b"x" * 5000)
        if dice.random() < 0.1:
            fs.punch_hole(name, 4096, 4096)
    if dice.random() < 0.7:
        fs.sync()
    for turn in range(4):
        sources = [dice.choice(files) for _ in range(dice.choice([3, 150]))]
        names = [f"c{turn}_{number}" for number in range(len(sources))]
        if at_once:
            fs.clone_files(sources, "d", names)
        else:
            for source, name in zip(sources, names, strict=True):
                fs.create(f"d/{name}")
                fs.clone_range(source, f"d/{name}", 0, 0, 0)
        dice.choice([lambda: None, fs.sync, lambda name=names[0]: fs.fsync(f"d/{name}"),
                     lambda name=sources[0]: fs.fsync(name)])()  # fmt: skip
    fs.save_crash(path)
    crashed = path.read_bytes()
    fs.sync()
    fs.save(path)
    clock = fs.clock
    fs.close()
    return crashed, path.read_bytes(), clock


@pytest.mark.claim(
    "Clones of files that a loop of a script makes are made together, to the same bytes on disk as "
    "one after the other.",
    judge="unit",
)
@pytest.mark.parametrize("seed", SEEDS)
def test_clones_at_once(tmp_path: Path, seed: int) -> None:
    at_once, in_turn = (_made(tmp_path / "disk.img", seed, at_once=one) for one in (True, False))
    assert at_once == in_turn


def test_a_loop_of_cp_is_one_row() -> None:
    result = bm.script(
        """
mkfs.btrfs -q -f /dev/sdb
mount /dev/sdb /mnt
for ((i = 0; i < 9; i++)); do xfs_io -f -c "pwrite 0 64K" /mnt/f$i > /dev/null; done
sync
for ((i = 0; i < 9; i++)); do cp --reflink=always /mnt/f$i /mnt/c$i; done
xfs_io -f -c "pwrite 0 64K" /mnt/one > /dev/null
cat /mnt/missing
md5sum < /mnt/c8
"""
    )
    rows = result.steps
    assert rows.what.tolist()[:5] == [
        "create 9 files", "sync", "clone 9 files", "create 1 file", "open"]  # fmt: skip
    assert result.stdout.split()[0] == hashlib.md5(b"\xcd" * 65536).hexdigest().encode()


def test_what_is_refused_stands_behind_what_was_before() -> None:
    rows = bm.script(
        """
mkfs.btrfs -q -f /dev/sdb; mkfs.btrfs -q -f /dev/sdc
mkdir /mnt/b /mnt/c
mount /dev/sdb /mnt/b; mount /dev/sdc /mnt/c
for i in 1 2 3; do : > /mnt/b/f$i; done
: > /mnt/c/no/such
for i in 1 2; do : > /mnt/b/g$i; done
mkdir /mnt/c/dir
"""
    ).steps
    assert list(zip(rows.line, rows.what, strict=True)) == [
        (5, "create 3 files"), (6, "create"), (7, "create 2 files"), (8, "mkdir"),
    ]  # fmt: skip


def test_an_inline_file_is_cloned_into_preallocated_blocks() -> None:
    """It goes through a page of the target, of which the file ends in the middle."""
    with bm.create("256M") as fs:
        fs.create("small")
        fs.write("small", 0, b"x" * 100)
        fs.create("target")
        fs.fallocate("target", 8192, 8192, keep_size=True)
        fs.sync()
        fs.clone_range("small", "target", 0, 0, 0)
        fs.sync()
        assert fs.file("target").read() == b"x" * 100
