# SPDX-License-Identifier: GPL-2.0-only
"""Random logs: which calls come before which fsyncs, and which names there are meanwhile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from btrfs_model.experiments.scenario.load import Scenario, lines_of
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.random.logs import random_log
from btrfs_model.experiments.verify.random.names import ROLES, Change, Names
from btrfs_model.experiments.verify.sides import in_the_model
from btrfs_model.mount.writable import WritableFilesystem

SEEDS = 300
LAST = 4
"""An fsync is set beside so many calls before it."""

DIRECTORIES = ("new directory", "old directory", "directory above")
OFTEN = {
    # of 300; first what an fsync asked for before, the names of which change
    **{(True, name, role): 12 for name in ("link", "rename") for role in (*DIRECTORIES, "it")},
    **{(True, "unlink", role): 10 for role in DIRECTORIES[1:]},
    **{(True, "exchange", role): 3 for role in ("it", *DIRECTORIES)},
    **{(False, name, role): 8 for name in ("link", "rename") for role in (*DIRECTORIES, "it")},
    **{(False, name, "new directory"): 20 for name in ("create", "mkdir")},
    (True, "link", "directory of another name"): 3,
    (False, "unlink", "old directory"): 20,
    (False, "rmdir", "old directory"): 2,
    (True, "write", "it"): 10,
    **{(True, name, "it"): 2 for name in ("setxattr", "chmod", "utimes", "truncate")},
    (True, "setxattr", "new directory"): 2,
    (False, "subvol_create", "new directory"): 5,
}
"""In how many scenarios an fsync comes after a call: whether an fsync asked for the inode of the
call before, the call, and what is asked for to it."""

WAITING = {"link": 20, "rename": 40, "unlink": 20, "exchange": 8}
"""In how many a directory waits with a change of its own while an fsync asks for a file, the names
of the file change by this call, and then an fsync asks for the directory."""


def fsyncs(scenario: Scenario) -> Iterator[tuple[int, list[Change], Names]]:
    """Yield what each fsync asks for, with the calls before it."""
    names = Names()
    for line in lines_of(scenario)[2:]:
        if line[0] in ("fsync", "fdatasync") and line[1] in names.there:
            yield names.there[line[1]], names.changes, names
        names.carry_out(line)


def role_of(change: Change, ino: int) -> str:
    """Return what an inode is to a call; nothing: it has nothing to do with it."""
    return next((role for role in ROLES if ino in change.roles.get(role, ())), "")


def pairs(scenario: Scenario) -> set[tuple[bool, str, str]]:
    return {
        (change.logged, change.name, role_of(change, ino))
        for ino, changes, _ in fsyncs(scenario)
        for change in changes[-LAST:]
    }


def waiting(scenario: Scenario) -> set[str]:
    """Calls between the fsync of a file and that of a directory that changed before it."""
    found = set()
    before: list[tuple[int, int]] = []
    for ino, changes, _ in fsyncs(scenario):
        before = [(one, at) for one, at in before if at <= len(changes)]
        asked = [at for one, at in before if one == ino]
        changed = [
            at
            for at, change in enumerate(changes)
            if role_of(change, ino) and at >= max(asked, default=0)
        ]
        others = [at for one, at in before if one != ino and changed and at > changed[0]]
        if others:
            found |= {one.name for one in changes[others[0] :] if one.logged and role_of(one, ino)}
        before.append((ino, len(changes)))
    return found


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return [random_log(f"log {seed}") for seed in range(SEEDS)]


@pytest.mark.claim(
    "Random logs ask for what lost and got names after links, renames, exchanges and removals of "
    "what was logged before: each of these pairs comes in 3 to 20 of 300 scenarios or more.",
    judge="unit",
)
def test_what_is_asked_for_after_which_call(scenarios: list[Scenario]) -> None:
    found = Counter(pair for scenario in scenarios for pair in pairs(scenario))
    assert {pair: found[pair] for pair, often in OFTEN.items() if found[pair] < often} == {}


def test_a_directory_waits_while_a_file_of_it_is_logged(scenarios: list[Scenario]) -> None:
    found = Counter(name for scenario in scenarios for name in waiting(scenario))
    assert {name: found[name] for name, often in WAITING.items() if found[name] < often} == {}


@pytest.mark.claim(
    "Of 30 random logs 3 or more tell whether log-new-name-unsynced is there: an fsync of a "
    "directory that a new name logged, after the log was synced for another file.",
    judge="unit",
)
def test_a_new_name_that_is_logged_and_not_asked_for(
    scenarios: list[Scenario], tmp_path: Path
) -> None:
    told = 0
    for scenario in scenarios[:30]:
        synced = []
        for behaviour in ("v6.18.44", "v6.18.44 - log-new-name-unsynced"):
            crash = tmp_path / "crash"
            with in_the_model(scenario, behaviour, crash, size=256 << 20) as (_, ran):
                synced.append(ran.synced)
        told += synced[0] != synced[1]
    assert told >= 3


def test_the_names_are_those_of_the_model(scenarios: list[Scenario], tmp_path: Path) -> None:
    """But for what is in snapshots, and the many files of some directories."""
    ended: Counter[bool] = Counter()
    for scenario in scenarios[:12]:
        names, known, hidden = Names(), set[str](), [r"(.*/)?[xyz]\d+"]
        for line in lines_of(scenario)[2:]:
            names.carry_out(line)
            known |= {one for one in line[1:] if isinstance(one, str) and one}
            if line[0] == "snapshot":
                hidden.append(re.escape(line[2]) + "/.*")
        with in_the_model(scenario, "v6.18.44", tmp_path / "crash", size=256 << 20) as (fs, ran):
            ended.update(not one for one in ran.ended)
            there = {path for path in known | names.there.keys() if is_there(fs, path)}
        seen = re.compile("|".join(hidden)).fullmatch
        assert {one for one in there if not seen(one)} == {
            one for one in names.there if not seen(one)
        }
    assert ended[True] > 3 * ended[False]


def test_a_handle_in_use_is_told_after_what_is_not_there(tmp_path: Path) -> None:
    """As where a kernel is asked, which opens first."""
    lines = [["mkfs", []], ["mount", "noatime"], ["mkdir", "d"], ["open", "d", "q"],
             ["open", "n", "q"], ["open", "d", "q"], ["close", "q"], ["crash"]]  # fmt: skip
    steps = [parse_step("handles", number, line) for number, line in enumerate(lines, 1)]
    scenario = Scenario("handles", steps, hex_values=True)
    with in_the_model(scenario, "v6.18.44", tmp_path / "crash", size=256 << 20) as (_, ran):
        assert ran.ended == ["", "", "ENOENT", "EBUSY", ""]


def is_there(fs: WritableFilesystem, path: str) -> bool:
    try:
        fs.resolve(path, follow=False)
    except OSError:
        return False
    return True
