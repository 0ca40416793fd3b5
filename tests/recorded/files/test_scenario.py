# SPDX-License-Identifier: GPL-2.0-only
"""Scenarios: what is accepted, and that kernels came to the same end."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import corpus
import pytest
import zstandard
from click.testing import CliRunner
from kernel_listing import recorded, without_made_up

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.experiments.scenario.load import Scenario, load_scenario
from btrfs_model.experiments.scenario.operations import OPERATIONS, ScenarioError, parse_step
from btrfs_model.experiments.scenario.run import run_scenario
from btrfs_model.experiments.verify.listing import as_recorded
from btrfs_model.mount.space import space_info
from btrfs_model.volume.filesystem import Filesystem

LOGGED = [name for name in corpus.cases("send/random") if corpus.has(name, "ops.jsonl.zst")]
SHORT = 12
"""So many logs are run where there is little time; the others in long runs."""


def write(path: Path, *operations: Any) -> Path:
    path.write_text(json.dumps({"ops": operations}))
    return path


# --------------------------------------------------------------------------- beside the kernel --


PROPERTY = "btrfs.compression"


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """A record without times, which are not those of the run."""
    left_out = {"atime", "mtime", "ctime"}
    return {field: value for field, value in record.items() if field not in left_out}


def hide_property(mine: dict[str, Any], kernels: dict[str, Any]) -> bool:
    """Take the compression property from a record where only the kernel does not have it.

    After a mount a kernel does not see the property of a directory whose inode item is the last of
    its leaf, and hands nothing down; which leaf that is depends on when it ran delayed items.
    """
    xattrs = dict(mine.get("xattrs", {}))
    if PROPERTY not in xattrs or PROPERTY in kernels.get("xattrs", {}):
        return False
    del xattrs[PROPERTY]
    mine.pop("xattrs")
    if xattrs:
        mine["xattrs"] = xattrs
    return True


MEASURED = json.loads((corpus.PROJECT / "data/workloads/generations.json").read_text())
"""How often the same calls came to which generations (``scripts/measure_generations.py``).

What the calls of these nine runs reserve fills the metadata of 8 MiB; then a worker of the kernel
commits to make room, which no call asked for. All commits of the other runs are those of calls:
sync, snapshots, subvolumes, fsyncs that cannot log.
"""

CHANCE = {"send/random/seed-007"}
"""The end depends on the moments at which the kernel's threads act.

In 32 runs of the kernel the calls came to 13 ends, and never to the recorded one: while its worker
commits, the calls that make inodes go on. The calls that have it commit are the same each time.
"""

SEVERAL = {"send/random/seed-022"}
"""There are several ends; the model comes to the one to which the kernel came most often.

That is 18 times of 32; 9 times it was the recorded one. Whether a commit follows the writing of
data is up to which of these become inline extents first.
"""

EARLY = {"send/random/seed-036"}
"""One of five commits for room comes ten calls early.

It is made for a rename that found 137.4 of 137.2 items' room taken, where the kernel had 3 less.
Five of 1452 inodes have the generation after it. Of 32 runs of the kernel 28 came to the recorded
end.
"""

FIRST_WAIT = {
    "seed-002": 111, "seed-004": 124, "seed-007": 132, "seed-008": 96, "seed-009": 133,
    "seed-011": 116, "seed-012": 102, "seed-013": 98, "seed-014": 165, "seed-016": 212,
    "seed-022": 110, "seed-023": 108, "seed-024": 132, "seed-026": 118, "seed-028": 137,
    "seed-029": 91, "seed-031": 224, "seed-032": 82, "seed-034": 118, "seed-036": 115,
    "seed-037": 144, "seed-039": 134,
}  # fmt: skip
"""The first step that has to wait for room for metadata, in runs of Linux 6.18.44.

Seen with the tracepoint btrfs_trigger_flush while the calls of the recorded runs were carried out
again. Of the 29 runs in which any call waits these are the ones where the model is right to the
call; in seeds 0, 15, 20 and 25, which have small nodes, and in 17, 21 and 27 it is not.
"""


def digest(generations: dict[tuple[str, str], int]) -> str:
    """What ``scripts/measure_generations.py`` tells of the generations of inodes."""
    rows = sorted([*place, number] for place, number in generations.items())
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@pytest.mark.claim(
    "The system calls of 40 recorded runs end in the listings that the kernel recorded; all "
    "runs need `BTRFS_MODEL_TESTS=long`."
)
@pytest.mark.claim(
    "In 37 of these runs the generations agree too; in 6 of them a worker of the kernel makes "
    "commits for room."
)
@pytest.mark.claim(
    "In two others the kernel's own runs differ (`data/workloads/generations.json`, "
    "`scripts/measure_generations.py`); in one of these the model agrees with most of those "
    "runs."
)
@pytest.mark.claim("In one run the model commits ten calls early.")
@pytest.mark.parametrize("name", LOGGED if corpus.LONG else LOGGED[:SHORT])
def test_logs_of_kernels_end_in_their_listings(name: str) -> None:
    scenario = load_scenario(corpus.path(name, "ops.jsonl.zst"))
    hidden = 0
    generations, theirs = {}, {}
    with run_scenario(scenario) as fs:
        for snapshot, paths in recorded(name).items():
            rows = {row["path"]: row for row in fs.listing(snapshot).to_dict("records")}
            assert rows.keys() == paths.keys()
            for path, record in paths.items():
                wanted = comparable(without_made_up(record))
                found = comparable(as_recorded(rows[path]))
                hidden += hide_property(found, wanted)
                if "gen" in wanted:
                    generations[snapshot, path] = found.pop("gen")
                    theirs[snapshot, path] = wanted.pop("gen")
                assert found == wanted, (snapshot, path)
    assert hidden <= 2
    if name in CHANCE:
        assert generations.keys() == theirs.keys()
    elif name in SEVERAL:
        assert digest(generations) in MEASURED[name.rpartition("/")[2]]["6.18.44"]
    else:
        other = [place for place, number in theirs.items() if generations[place] != number]
        assert bool(other) == (name in EARLY), other[:5]
        assert len(other) <= 5


@pytest.mark.parametrize("name", [name for name in FIRST_WAIT if f"send/random/{name}" in LOGGED])
def test_the_first_call_that_waits_for_room(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all calls before it reserved is the kernel's, so this one is."""
    scenario = load_scenario(corpus.path(f"send/random/{name}", "ops.jsonl.zst"))
    at, waited = "", []
    monkeypatch.setattr(space_info, "make_room", lambda fs, size, steal: waited.append(at))

    def begin(step: str) -> None:
        nonlocal at
        at = step

    steps = scenario.steps[: FIRST_WAIT[name]]
    with run_scenario(Scenario(scenario.path, steps, hex_values=True), step=begin):
        assert waited == [str(steps[-1])]


def test_calls_that_wait_for_room_commit() -> None:
    """A commit that nobody asked for, on a device that is small."""
    lines = [["mkfs", []], ["sync"]]
    lines += [[what, f"f{i}", *rest] for i in range(200)
              for what, *rest in (["create"], ["write", 0, 5000, 1])]  # fmt: skip
    steps = [parse_step("s", number, line) for number, line in enumerate(lines, 1)]
    ends = {}
    for size in (256 << 20, 8 << 30):
        with run_scenario(Scenario("s", steps), size=size) as fs:
            ends[size] = fs.transid
            rows = fs.listing(5)
            assert (rows["size"][1:] == 5000).all()
            assert len(rows) == 201
            assert bm.check(fs, verify_data=True) == []
            made = set(rows["generation"][1:])
            assert (len(made) > 1) == (size == 256 << 20)
    assert ends[256 << 20] > ends[8 << 30]


# ---------------------------------------------------------------------------------- the format --


def test_every_operation_is_described_and_can_be_carried_out() -> None:
    from btrfs_model.experiments.scenario.run import Runner

    for name, operation in OPERATIONS.items():
        assert operation.what
        assert callable(getattr(Runner, f"do_{name}"))


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("mkdir", "an operation is a list"),
        ([], "an operation is a list"),
        (["frobnicate"], "unknown operation 'frobnicate'"),
        (["mkdir"], "mkdir: path is missing"),
        (["mkdir", 7], "mkdir: path must be a path"),
        (["mkdir", "a\0b"], "mkdir: path must be a path"),
        (["mkdir", "a", 493, 1], "mkdir: takes 2 arguments"),
        (["truncate", "f", -1], "truncate: size must be a whole number from 0"),
        (["truncate", "f", True], "truncate: size must be a whole number"),
        (["write", "f", 0, 1, ["pat"]], "write: fill must be a number"),
        (["snapshot", "a", "b", 1], "snapshot: read_only must be true or false"),
        (["rmfiles", "d", "f", 1, 9, 0], "rmfiles: step must not be 0"),
        (["mkdir", "a", {"err": "EWRONG"}], "mkdir: unknown errno 'EWRONG'"),
        (["mkdir", "a", {"err": "errorcode"}], "mkdir: unknown errno 'errorcode'"),
        (["mkdir", "a", {"err": 17}], "mkdir: how it ended cannot be 'err': 17"),
        (["mkdir", "a", {"eer": "EEXIST"}], "mkdir: how it ended cannot be 'eer'"),
        (["mkdir", "\ud800"], "mkdir: path must be a path"),
        (["setxattr", "d", "user.\ud800", "v"], "setxattr: name must be a string"),
        (["setxattr", "d", "user.a\0", "v"], "setxattr: name must be a string"),
        (["setxattr", "d", "user.a", "\ud800"], "setxattr: value must be a string"),
        (["write", "f", 0, 9, ["rnd", "\ud800"]], "write: fill must be a number"),
        (["write", "f", 0, 2**62, 0], "write: length must be a whole number from 0 to 2^31 - 4096"),
        (["write", "f", float("nan"), 9, 0], "write: offset must be a whole number"),
        (["mknod", "n", 0o20600, 2**40], "mknod: major must be a whole number from 0 to 4095"),
        (["mknod", "n", 0o20600, 1, 2**20], "mknod: minor must be a whole number from 0 to 2^20"),
        (["mknod", "n", 2**62], "mknod: mode must be a whole number from 0 to 2^32 - 1"),
        (["truncate", "f", 2**63], "truncate: size must be a whole number from 0 to 2^63 - 1"),
    ],
)
def test_what_is_no_operation(tmp_path: Path, operation: Any, message: str) -> None:
    file = write(tmp_path / "s.json", ["mkdir", "d"], operation)
    with pytest.raises(ScenarioError, match=r"s\.json: step 2: ") as error:
        load_scenario(file)
    assert message in str(error.value)
    assert error.value.step == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n", "there is no operation"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b'["mkdir", "d"]\n["mkdir"', "step 2: not JSON"),
        (b"7", "a scenario is an object"),
        (b'{"ops": 7}', "a scenario is an object"),
        (b'{"ops": [], "extra": 1}', "unknown member 'extra'"),
        (b'{"ops": [], "hex_values": 1}', "hex_values must be"),
        (b'{"ops": [], "doc": 1}', "doc must be a string"),
        (b'{"ops": []', "s.json: not JSON: Expecting ',' delimiter: line 1 column 11"),
        (b'{"ops": [["sync"]], "ops": []}', "not JSON: member 'ops' is there twice"),
        (b'["sync", {"err": "", "err": ""}]', "step 1: not JSON: member 'err' is there twice"),
        (b"[" * 100_000, "step 1: not JSON: nested too deeply"),
        (b'["truncate", "f", ' + b"9" * 5000 + b"]", "step 1: not JSON: Exceeds the limit"),
        (b'["setxattr", "", "user.a", "odd"]', "step 1: setxattr: value must be hexadecimal"),
    ],
)
def test_what_is_no_scenario(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "s.json"
    file.write_bytes(content)
    with pytest.raises(ScenarioError, match=message):
        load_scenario(file)


def test_what_is_no_zstd(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl.zst"
    file.write_bytes(b"nothing")
    with pytest.raises(ScenarioError, match="cannot be decompressed"):
        load_scenario(file)
    file.write_bytes(zstandard.compress(b'["mkdir", "d"]\n["sync"]\n'))
    assert [step.name for step in load_scenario(file).steps] == ["mkdir", "sync"]


def test_frames_of_zstd(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl.zst"
    first, second = (zstandard.compress(line) for line in (b'["mkdir", "d"]\n', b'["sync"]\n'))
    file.write_bytes(first + second)
    assert [step.name for step in load_scenario(file).steps] == ["mkdir", "sync"]
    file.write_bytes(first + second[:-1])
    with pytest.raises(ScenarioError, match="cannot be decompressed: it ends too early"):
        load_scenario(file)
    file.write_bytes(first + b"more")
    with pytest.raises(ScenarioError, match="cannot be decompressed"):
        load_scenario(file)


def test_names_may_hold_what_ends_lines_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text('["mkdir", "a\u2028b\x85c"]\r\n\n["sync"]\n', encoding="utf-8")
    first, second = load_scenario(file).steps
    assert first.arguments["path"] == "a\u2028b\x85c".encode()
    assert (second.name, second.number) == ("sync", 2)


# ----------------------------------------------------------------------------------- the command --


def run_command(*arguments: str | os.PathLike[str]) -> Any:
    return CliRunner().invoke(cli, ["run", *map(os.fspath, arguments)])


def test_the_command_writes_an_image(tmp_path: Path) -> None:
    file = write(tmp_path / "s.json", ["mkdir", "d"], ["create", "d/f"],
                 ["write", "d/f", 0, 9000, 1], ["snapshot", "", "snap", True])  # fmt: skip
    first, second = tmp_path / "1.img", tmp_path / "2.img"
    for target in (first, second):
        assert run_command(file, "-o", target, "--size", "128M").exit_code == 0
    assert first.read_bytes() == second.read_bytes()
    with Filesystem.open(first) as fs:
        assert fs.read_file("snap", "d/f") == bytes((1 + i) & 255 for i in range(9000))


def test_a_step_that_fails_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    file = write(tmp_path / "s.json", ["mkdir", "d"], ["rmdir", "nothing"])
    result = run_command(file, "-o", tmp_path / "x.img")
    assert isinstance(result.exception, ScenarioError)
    assert "s.json: step 2: rmdir nothing: No such file or directory" in str(result.exception)
    assert not (tmp_path / "x.img").exists()


def test_a_call_recorded_as_failing_has_to_fail(tmp_path: Path) -> None:
    file = write(tmp_path / "s.json", ["mkdir", "d"], ["mkdir", "d", {"err": "EEXIST"}])
    assert run_command(file, "-o", tmp_path / "x.img").exit_code == 0
    file = write(tmp_path / "s.json", ["mkdir", "d"], ["mkdir", "e", {"err": "EEXIST"}])
    result = run_command(file, "-o", tmp_path / "y.img")
    assert "step 2: mkdir e: did not fail, recorded was EEXIST" in str(result.exception)


def test_errors_are_the_same_under_all_their_names(tmp_path: Path) -> None:
    for name in ("EOPNOTSUPP", "ENOTSUP"):
        file = write(tmp_path / "s.json", ["setxattr", "", "none.a", "v", {"err": name}])
        assert run_command(file, "-o", tmp_path / "x.img").exit_code == 0


@pytest.mark.parametrize(
    ("mode", "number"),
    [(1, 0), (3, 0), (16, 0), (17, 0), (2, "EOPNOTSUPP"), (8, "EOPNOTSUPP"), (19, "EOPNOTSUPP"),
     (0x20, "EOPNOTSUPP"), (0x40, "EOPNOTSUPP")],
)  # fmt: skip
def test_modes_of_fallocate(tmp_path: Path, mode: int, number: int | str) -> None:
    ended = [{"err": number}] if number else []
    file = write(tmp_path / "s.json", ["create", "f"], ["fallocate", "f", mode, 0, 4096, *ended])
    assert run_command(file, "-o", tmp_path / "x.img").exit_code == 0


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (["receive", "none"], "receive none: .* there is no subvolume 'none'"),
        (["chown", "", -2, 0], "chown .* Invalid argument"),
        (["utimes", "", 2**100, 0], "utimes .* Invalid argument"),
        (["mount", "frob"], "mount frob: mount option 'frob': a kernel refuses it"),
    ],
)
def test_whatever_fails_is_named_with_its_step(
    tmp_path: Path, operation: Any, message: str
) -> None:
    file = write(tmp_path / "s.json", ["sync"], operation)
    result = run_command(file, "-o", tmp_path / "x.img")
    assert isinstance(result.exception, ScenarioError)
    assert re.search(f"s.json: step 2: {message}", str(result.exception))


def test_no_crash_is_left_of_a_run_that_fails(tmp_path: Path) -> None:
    file = write(tmp_path / "s.json", ["mkdir", "d"], ["crash"], ["rmdir", "nothing"])
    assert run_command(file, "-o", tmp_path / "x.img").exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
    file = write(tmp_path / "s.json", ["mkdir", "d"], ["crash"], ["crash"])
    assert run_command(file, "-o", tmp_path / "x.img").exit_code == 0
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["s.json", "x.img", "x.img.crash1", "x.img.crash2"]


def test_what_is_open_cannot_be_unmounted(tmp_path: Path) -> None:
    lines: list[Any] = [["create", "f"], ["open", "f", "h"], ["unlink", "f"]]
    busy = ["remount", {"err": "EBUSY"}]
    file = write(tmp_path / "s.json", *lines, busy, ["close", "h"], ["remount"])
    assert run_command(file, "-o", tmp_path / "x.img").exit_code == 0
    with Filesystem.open(tmp_path / "x.img") as fs:
        assert not bm.check(fs)
