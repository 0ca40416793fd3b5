# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP and LOGICAL_INO in a running transaction: C and Python say and count the same."""

from functools import cache
from typing import Any

import corpus
import pytest

from btrfs_model.backref.api import logical_ino
from btrfs_model.base.counters import counting
from btrfs_model.experiments.scenario.run import Runner
from btrfs_model.experiments.verify.random.trees import random_tree
from btrfs_model.experiments.verify.sides import SIZE, ended
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.native.choice import Choice, select
from btrfs_model.questions.fiemap.file import Flag
from btrfs_model.questions.fiemap.mounted import fiemap_mounted

SEEDS = range(60 if corpus.LONG else 6)


def said(fs: WritableFilesystem, path: bytes, choice: Choice) -> Any:
    """What FIEMAP answers, who refers to each extent, and the work of both."""
    with select(choice), counting() as work:
        rows = fiemap_mounted(fs, path).to_numpy().tolist()
        forest, found = fs.running_forest(), []
        for _, physical, _, flags in rows:
            if physical and not flags & Flag.UNWRITTEN:
                try:
                    found.append(logical_ino(forest, physical).to_numpy().tolist())
                except FileNotFoundError:
                    found.append(None)
    return rows, found, dict(work)


@cache
def answers(seed: int) -> list[tuple[Any, Any]]:
    """Answers of C and of Python wherever a scenario maps a file."""
    found = []
    scenario = random_tree(f"mounted {seed}", 0, sharing=True)
    runner = Runner(scenario, SIZE, seed)
    try:
        for step in scenario.steps:
            ended(runner.carry_out, [step])
            if step.name == "fiemap":
                path, fs = step.arguments["path"], runner.fs()
                found.append((said(fs, path, "c"), said(fs, path, "python")))
    finally:
        runner.close()
    return found


@pytest.mark.one_of(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_both_say_and_count_the_same(seed: int) -> None:
    assert answers(seed)
    for c, python in answers(seed):
        assert c == python


def test_these_seeds_have_it_all() -> None:
    flags, refs = Flag(0), set()
    for seed in SEEDS:
        for (rows, found, _), _ in answers(seed):
            for row in rows:
                flags |= Flag(row[3])
            refs |= {len(one) for one in found if one is not None}
            refs |= {-1 for one in found if one is None}
    wanted = Flag.DELALLOC | Flag.UNKNOWN | Flag.UNWRITTEN | Flag.SHARED | Flag.LAST
    assert flags & wanted == wanted
    assert {-1, 1} < refs


def test_data_that_wait_are_told_and_written_with_sync() -> None:
    with WritableFilesystem.mkfs(1 << 30) as fs:
        fs.create("f")
        fs.fallocate("f", 0, 1 << 16)
        fs.write("f", 4096, bytes(range(1, 256)) * 64)
        before = fiemap_mounted(fs, "f")
        assert before["logical"].tolist() == [0, 4096, 20480]
        assert before["length"].tolist() == [4096, 16384, 45056]
        assert before["flags"].tolist() == [
            Flag.UNWRITTEN, Flag.DELALLOC | Flag.UNKNOWN, Flag.UNWRITTEN | Flag.LAST,
        ]  # fmt: skip
        after = fiemap_mounted(fs, "f", sync=True)
        assert after["flags"].tolist() == [Flag.UNWRITTEN, 0, Flag.UNWRITTEN | Flag.LAST]
        assert after["physical"].diff().tolist()[1:] == [4096, 16384]


def test_a_clone_of_this_transaction_is_shared_until_it_goes() -> None:
    """References that wait count, those that are dropped as well."""
    with WritableFilesystem.mkfs(1 << 30) as fs:
        fs.create("f")
        fs.write("f", 0, b"x" * 8192)
        fs.create("g")
        fs.clone_range("f", "g", 0, 0, 0)
        assert fiemap_mounted(fs, "f")["flags"].tolist() == [Flag.SHARED | Flag.LAST]
        fs.commit()
        assert fiemap_mounted(fs, "f")["flags"].tolist() == [Flag.SHARED | Flag.LAST]
        fs.unlink("g")
        assert fiemap_mounted(fs, "f")["flags"].tolist() == [Flag.LAST]
