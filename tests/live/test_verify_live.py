# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model verify`` with kernels: it compares, it finds a wrong rule, it leaves nothing."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import corpus
import crash_bugs
import judges
import pytest
from traces import last_traces, traces

import btrfs_model.cli.commands.verify as verify_cli
import btrfs_model.questions.send.ioctl as send_ioctl
from btrfs_model.base.errors import KernelFailedError
from btrfs_model.experiments import replay
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify import kinds, pairs, run, sequences, sides, times
from btrfs_model.experiments.verify.bench import Bench, DifferenceError
from btrfs_model.experiments.verify.random import steer
from btrfs_model.experiments.verify.random.logs import _in_mixed_groups
from btrfs_model.experiments.verify.run import Task
from btrfs_model.kernels import debian
from btrfs_model.kernels.choice import start

TRACED = os.environ.get("BTRFS_MODEL_TRACED", "")
"""A Linux 7.2 of ``btrfs-model kernel build``: the program."""
NAMES = {"machine": "native", "uml": "uml"}
KERNELS = [pytest.param(NAMES[name], marks=mark) for name, mark in judges.MARKS.items()]


@pytest.mark.claim(
    "On random filesystems and images of the user, streams, logs, replays, extents, references, "
    "cold reads and images are those of the running kernel and of User-Mode Linux."
)
@pytest.mark.more
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_difference(kernel: str) -> None:
    seeds = range(50 if corpus.LONG else 1 + corpus.MORE)
    found = list(run.verify([Task(kernel, [*kinds.KINDS], list(seeds))], lambda text: None))
    assert [one.difference for one in found] == [""] * (len(seeds) * len(kinds.KINDS))
    assert all(one.compared for one in found)


@pytest.mark.skipif(not TRACED, reason="no kernel with tracepoints of logs (BTRFS_MODEL_TRACED)")
@pytest.mark.claim(
    "What fsyncs, renames, links and unlinks decide is what Linux 7.2 tells by its tracepoints, "
    "one event after the other."
)
def test_no_difference_in_what_tracepoints_tell() -> None:
    seeds = range(50 if corpus.LONG else 5)
    found = list(run.verify([Task(TRACED, ["trace"], list(seeds))], lambda text: None))
    assert [one.difference for one in found] == [""] * len(seeds)
    assert sum(one.compared["events"] for one in found) > 20 * len(seeds)


@judges.MARKS["uml"]
def test_a_kernel_without_tracepoints_of_logs_is_refused() -> None:
    with pytest.raises(KernelFailedError, match="has no tracepoint"):
        list(run.verify([Task("uml", ["trace"], [0])], lambda text: None))


PARTS = 6
"""Of the corpus."""
SUITES = [one.name for one in debian.unpacked()]


@pytest.mark.skipif(not SUITES, reason="no kernel of another suite (btrfs-model kernel get sid)")
@pytest.mark.parametrize("kernel", SUITES)
def test_no_difference_with_kernels_of_other_suites(kernel: str) -> None:
    """All that is compared with any release; how much goes in depends on it."""
    kinds_of_all = [kind for kind in kinds.KINDS if kind != "full"]
    seeds = range(50 if corpus.LONG else 2)
    found = list(run.verify([Task(kernel, kinds_of_all, list(seeds))], lambda text: None))
    assert [one.difference for one in found] == [""] * (len(seeds) * len(kinds_of_all))


FOUND = {
    "NOCOW of a file whose data is in memory alone": [
        "images", ["create", "d"], ["write", "d", 32768, 5000, 1], ["chattr", "d", 0x800000],
    ],
    "an xattr in a leaf after that of its inode": [
        "reads", ["subvol_create", "work"], ["mkdir", "work/many"],
        ["mkfiles", "work/many", "m", 1, 15], ["setxattr", "work", "user.b", "77" * 3500],
        ["snapshot", "work", "s1", True],
    ],
    "what zlib does not make smaller, in an inline extent": [
        "log", ["mount", "noatime,compress=zlib"], ["create", "f"], ["write", "f", 0, 100, 5],
        ["fsync", "f"],
    ],
    "a block that zstd makes smaller, but not small enough": [
        "images", ["mount", "noatime,compress=zstd,max_inline=0"], ["create", "f"],
        ["write", "f", 0, 4096, 7],
    ],
    "a small file that is written in place, with something allocated beyond its end": [
        "log", ["create", "f"], ["fallocate", "f", 1, 65536, 30000], ["write", "f", 0, 50, 3],
        ["fsync", "f"],
    ],
    "a byte that is a quarter of what the kernel looks at before it compresses": [
        "fiemap", ["create", "f"], ["chattr", "f", 4, 0],
        ["write", "f", 12287, 12288, ["rnd", "84"]],
        ["write", "f", 16384, 4096, 2], ["fiemap", "f", True],
    ],
    "a hole punched beyond the end": [
        "log", ["create", "f"], ["fallocate", "f", 1, 65536, 30000], ["sync"],
        ["fallocate", "f", 3, 49151, 70000], ["fsync", "f"],
    ],
    "a hole punched beyond the end, of what no commit has seen": [
        "log", ["create", "f"], ["sync"], ["fallocate", "f", 1, 65536, 30000],
        ["fallocate", "f", 3, 69632, 70000], ["fsync", "f"],
    ],
    "names of this transaction that are gone, before or after the worker came": [
        "log", ["mkdir", "d"], ["mkfiles", "d", "f", 1, 700], ["sync"],
        ["mkfiles", "d", "g", 1, 700], ["fsync", "d"], ["mkfiles", "d", "h", 1, 700],
        ["rmfiles", "d", "g", 1, 700, 5], ["fsync", "d"], ["rmfiles", "d", "f", 1, 700, 1],
        ["fsync", "d"],
    ],
    "a map of data that wait, in a hole and in preallocated space": [
        "fiemap", ["create", "f"], ["write", "f", 40960, 100, 1], ["fallocate", "f", 0, 0, 16384],
        ["write", "f", 4096, 5000, 2], ["fiemap", "f"], ["fiemap", "f", True],
    ],
    "clones of a transaction that runs, and one that is gone": [
        "fiemap", ["create", "f"], ["write", "f", 0, 16384, 1], ["create", "g"],
        ["clone", "f", "g"], ["fiemap", "f"], ["sync"], ["unlink", "g"], ["fiemap", "f"],
        ["clone_range", "f", 0, 4096, "f", 8192], ["fiemap", "f"],
    ],
    "an empty file that is cloned to the start of one that waits": [
        "fiemap", ["create", "f"], ["write", "f", 0, 2048, 1], ["create", "g"], ["clone", "g", "f"],
        ["fiemap", "f"],
    ],
    "a second extent of what is written back, for which nobody waits": [
        "fiemap", ["create", "f"], ["write", "f", 0, 65536, 1], ["sync"],
        ["fallocate", "f", 1, 65536, 8192], ["create", "g"], ["clone", "f", "g"],
        ["write", "f", 61440, 20480, 3], ["fallocate", "f", 17, 61440, 4096], ["fiemap", "f"],
        ["fiemap", "g"],
    ],
    "a hole that two calls made, and what a punch zeroes where the first of them ended": [
        "fiemap", ["create", "f"], ["write", "f", 0, 1, 1], ["truncate", "f", 8192],
        ["write", "f", 122881, 4096, 2], ["sync"], ["fallocate", "f", 3, 4096, 5000],
        ["create", "g"], ["clone", "f", "g"], ["fiemap", "f"],
    ],
    "what is on its way to disk since it replaced another file": [
        "fiemap", ["create", "f"], ["write", "f", 0, 30000, 1], ["create", "g"],
        ["write", "g", 4096, 100, 2], ["rename", "g", "f"], ["fiemap", "f"],
    ],
    "a symbolic link that leads to what is no name": [
        "fiemap", ["symlink", "x" * 900, "a"], ["rename", "a", "b"], ["create", "f"],
        ["write", "f", 0, 100, 1], ["fiemap", "f"],
    ],
    "quotas that stop a write of several blocks, calls on groups without quotas": [
        "quotas", ["qgroup_assign", "0/5", "0/5"], ["qgroup_create", "0/300"], ["quota_rescan"],
        ["qgroup_limit", "1/0", 1, 1], ["qgroup_remove", "0/5", "1/0"], ["qgroup_destroy", "1/0"],
        ["create", "f"], ["quota_enable"], ["subvol_create", "sub"], ["qgroup_destroy", "0/256"],
        ["qgroup_limit", "0/5", 61440, -1], ["write", "f", 0, 32768, 1], ["write", "f", 0, 4096, 1],
        ["sync"], ["write", "f", 4096, 32768, 2], ["qgroup_limit", "0/5", 1, -1],
        ["qgroup_limit", "0/77", 1, -1], ["qgroup_create", "1/5"],
        ["qgroup_assign", "0/5", "1/5"], ["qgroup_destroy", "1/7"], ["qgroup_destroy", "0/257"],
    ],
    "a directory that is opened while the deletion of its last name waits": [
        "log", ["create", "f"], ["remount"], ["unlink", "f"], ["sync"], ["mkdir", "b"],
        ["fsync", ""],
    ],
}  # fmt: skip
"""What was found once, with its kind; a mount of its own comes first."""


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """One kernel for all that was found."""
    with start(request.param) as one:
        yield Bench(one)


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("bench", KERNELS, indirect=True)
def test_what_was_found_is_right_now(bench: Bench, name: str) -> None:
    kind, *operations = FOUND[name]
    if operations[0][0] != "mount":
        operations.insert(0, ["mount", "noatime"])
    lines = [["mkfs", ["-n", "4096"]], *operations]
    steps = [parse_step(name, number, line) for number, line in enumerate(lines, 1)]
    kinds.KINDS[kind].compare(bench, Scenario(name, steps, hex_values=True))


@pytest.mark.claim(
    "Operations on a small tree, with fsync, fdatasync or sync of anything after each: what it "
    "comes to, its log, the tree after a crash and a replay are the kernel's; so is what is sent."
)
@pytest.mark.parametrize("bench", KERNELS, indirect=True)
def test_small_sequences_and_pairs(bench: Bench) -> None:
    """A part of the sequences of one operation: `verify sequences` goes through all."""
    bench.compared.clear()
    some = sequences.enumerated(1)[0][:: 1 if corpus.LONG else 9]
    sequences.compare_sequences(bench, sequences.scenario_of("small", some))
    assert bench.compared["sequences"] + bench.compared["differ by chance"] == len(some)
    if corpus.LONG:
        pairs.compare_pairs(bench, pairs.scenario_of_pairs("pairs 0"))
        assert bench.compared["pairs"] == len(pairs.seconds(pairs.firsts()[0]))


@pytest.mark.parametrize("bench", KERNELS, indirect=True)
def test_a_sequence_of_three_shows_a_wrong_rule(bench: Bench) -> None:
    """An fsync of a folder that a new name had logged: before log-new-name-unsynced it was lost."""
    steps = [["mkdir", "A/new"], ["chmod", "A/foo", 0o600], ["fsync", "A/foo"],
             ["link", "A/foo", "A/new/new"], ["fsync", "A"]]  # fmt: skip
    scenario = sequences.scenario_of("three", [steps])
    sequences.compare_sequences(bench, scenario)
    wrong = Bench(bench.kernel, chosen=f"{bench.kernel.preset} - log-new-name-unsynced")
    with pytest.raises(DifferenceError):
        sequences.compare_sequences(wrong, scenario)


@judges.MARKS["uml"]
@pytest.mark.claim(
    "What a guest dies of or refuses when it replays a log, the model says, and it logs the same."
)
@pytest.mark.parametrize(("second", "unit"), [("exchange", "kernel BUGs"),
                                              ("rename", "refused mounts")])  # fmt: skip
def test_logs_that_no_mount_survives(second: str, unit: str) -> None:
    """Never on the machine's own kernel: it may panic."""
    with start("uml") as one:
        bench = Bench(one)
        kinds.KINDS["log"].compare(bench, crash_bugs.scenario(second))
        kinds.compare_replays(bench, crash_bugs.scenario(second))
    assert bench.compared[unit] == 1


@judges.MARKS["machine"]
@pytest.mark.parametrize("seed", [3, 1])
def test_logs_of_groups_that_mix(seed: int) -> None:
    """Where a bitmap does not have what a log names the mount ends, else it replays the log."""
    scenario = _in_mixed_groups(seed, random.Random(seed))
    with start("native") as one:
        bench = Bench(one)
        kinds.compare_replays(bench, scenario)
    assert ("refused mounts" in bench.compared) == (seed == 3)


@judges.MARKS["uml"]
def test_an_image_of_the_user_is_not_written_to() -> None:
    image = corpus.image("send/random/seed-003")
    before = image.read_bytes()
    task = Task("uml", ["send", "fiemap", "reads"], [], images=[str(image)])
    found = list(run.verify([task], lambda text: None))
    assert [(one.kind, one.difference) for one in found] == [(kind, "") for kind in task.kinds]
    assert image.read_bytes() == before


@judges.MARKS["uml"]
def test_for_some_time_there_are_seeds_enough() -> None:
    """More than the command line of a worker would hold."""
    outcomes = run.verify([Task("uml", ["log"], list(range(100_000)))], lambda text: None)
    assert next(outcomes).difference == ""
    outcomes.close()  # type: ignore[attr-defined]


@judges.MARKS["uml"]
def test_a_wrong_rule_is_found_made_short_and_found_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def send(*arguments: object, **named: object) -> object:
        named["no_file_data"] = True
        return send_ioctl.send(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(sides, "send", send)
    monkeypatch.setattr(run, "_SHRINKING", 3600)  # how short it gets is not for the day to say
    seen: list[run.Outcome] = []
    (found,) = run.work(Task("uml", ["send"], [4], most=10), seen.append)
    assert seen == [found]  # as soon as it differs
    assert found.difference.startswith("kernel and model differ: send ")
    names = [line[0] for line in found.scenario]
    assert names[:2] == ["mkfs", "mount"]
    assert "write" in names
    assert len(names) <= 8
    # what is written is what shows it
    verify_cli._write(tmp_path, found)
    (place,) = tmp_path.iterdir()
    assert {path.name for path in place.iterdir()} == {
        "kernel.txt",
        "model.txt",
        "send-scenario.json",
    }
    (again,) = run.work(Task("uml", ["send"], [], corpus=str(place)))
    assert again.difference.startswith("kernel and model differ: send ")
    assert again.scenario == found.scenario


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(kernel: str, how: signal.Signals, tmp_path: Path) -> None:
    """Also of who is interrupted or killed in the middle: no process, mount, loop device, file."""
    place = tmp_path / "tmp"
    place.mkdir()
    often = "from btrfs_model.cli import common, main; common.SELDOM = 0.1; main()"
    command = [sys.executable, "-c", often, "verify", "send", "--seeds", "1000",
               "--kernel", kernel]  # fmt: skip
    process = subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(place)}, cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        # what runs in the background of a shell ignores an interrupt, and so would the command
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if f"{kernel}: send" in line:
            break
    process.send_signal(how)
    status = process.wait(600)
    process.stderr.close()
    assert status == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(how, -how)
    assert not last_traces(place)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_worker_that_is_asked_to_end_again_and_again_cleans_up(
    kernel: str, tmp_path: Path
) -> None:
    """As where nobody reads what it says any more, and then who started it has died."""
    place = tmp_path / "tmp"
    place.mkdir()
    worker = subprocess.Popen(
        [sys.executable, "-c", f"from {run.__name__} import main; main()"], cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert worker.stdin is not None
    assert worker.stdout is not None
    with worker.stdin as ears:
        json.dump(asdict(Task(kernel, ["send"], list(range(100)))), ears)
    worker.stdout.readline()
    assert traces(place)
    worker.stdout.close()
    while worker.poll() is None:
        worker.terminate()
        time.sleep(0.001)
    assert not last_traces(place)


@pytest.mark.claim("The corpus of `data/verify` has no difference on User-Mode Linux 6.1.")
@judges.MARKS["uml"]
@pytest.mark.parametrize("part", range(PARTS))
def test_the_corpus_has_no_difference(part: int, tmp_path: Path) -> None:
    if part and not corpus.MORE:
        pytest.skip("all parts but the first are for runs with the larger corpus, and long ones")
    folder = tmp_path / "verify"
    folder.mkdir()
    for path in sorted((corpus.PROJECT / "data/verify").iterdir())[part::PARTS]:
        shutil.copy(path, folder)
    task = Task("uml", [*kinds.KINDS], [], corpus=str(folder))
    found = list(run.verify([task], lambda text: None))
    assert len(found) == len(steer.corpus(folder)) > 0
    differing = {one.case for one in found if one.difference}
    for path in folder.iterdir():
        if path.name not in differing:
            path.unlink()
    # threads that a busy machine starves run in an order of their own: once more
    again = run.verify([task], lambda text: None) if differing else []
    assert [one.case for one in again if one.difference] == []


@judges.MARKS["uml"]
def test_workloads_are_timed_for_a_report() -> None:
    """On guests; each side that Linux 6.1 stands for, at each size, with all its runs."""
    names = list(times.MEASURES)
    found = times.measure(["uml"], names, 0.005, 2, lambda text: None)
    sides = {(row["workload"], row["side"]) for row in found["rows"]}
    assert sides == {("send-truncate", "before + fix"), ("send-truncate", "after"),
                     ("send-utimes", "before"), ("fiemap-shared", "before"),
                     ("send-readahead", "after"), ("log-dir", "after")}  # fmt: skip
    assert all(row["runs"] == 2 and 0 < row["min"] <= row["value"] for row in found["rows"])
    for name in names:
        one = replay.run(name, 0.005, measured=found)
        assert any(figure.measured for figure in one.outcome.figures if "time" in figure.quantity)
