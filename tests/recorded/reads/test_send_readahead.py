# SPDX-License-Identifier: GPL-2.0-only
"""The workload `send-readahead`: what is read on both sides, and how long it takes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import corpus
import numpy as np
import pandas as pd
import pytest
from figures import is_tidy, value

import btrfs_model as bm
from btrfs_model.cli import run as run_cli
from btrfs_model.experiments import commits
from btrfs_model.experiments.replay import run
from btrfs_model.experiments.replays import all_names
from btrfs_model.experiments.report import write
from btrfs_model.experiments.results import frame
from btrfs_model.experiments.times import add_reported, judge
from btrfs_model.experiments.workloads import NAMES, counterparts, load
from btrfs_model.experiments.workloads.knobs import Knobs
from btrfs_model.experiments.workloads.send_readahead import DEVICES, DISK
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.questions.reads.cold import blocks_after_mount

DISTANCES = json.loads(
    (corpus.PROJECT / "data/workloads/send-readahead/distances.json").read_text()
)


def distances(table: pd.DataFrame) -> np.ndarray:
    """How far each leaf lies from the one before it, from the reads of a send without readahead."""
    return np.diff(table["physical"].to_numpy()[(table["level"] == 0).to_numpy()])


@pytest.fixture(scope="module")
def quick() -> pd.DataFrame:
    return bm.replay("send-readahead", "quick")


def test_more_is_read_ahead_and_nothing_in_vain(quick: pd.DataFrame) -> None:
    assert is_tidy(quick)
    for side in ("before", "after"):
        parts = [value(quick, side, f"reads: {part}") for part in ("on demand", "ahead")]
        assert sum(parts) == value(quick, side, "reads: all")
        assert value(quick, side, "reads: ahead and never used") == 0
    assert value(quick, "before", "reads: all") == value(quick, "after", "reads: all")
    assert value(quick, "before", "reads: ahead") < value(quick, "after", "reads: ahead")


def test_reads_are_those_of_a_fresh_mount(quick: pd.DataFrame) -> None:
    with bm.open(corpus.image("reada/r5k")) as fs:
        kernel = bm.Behaviour.parse("v5.13")
        cached = blocks_after_mount(fs, [fs.subvolume("snap1")], kernel)
        table = bm.reads(fs, "snap1", behaviour=kernel, cached=cached).on(DISK)
    assert value(quick, "after", "reads: all") == len(table)
    assert value(quick, "after", "send time", device=DISK) == table.attrs["seconds"]


def test_the_change_helps_where_there_is_something_to_wait_for(quick: pd.DataFrame) -> None:
    for device in DEVICES:
        before, after = (
            value(quick, side, "send time", device=device) for side in ("before", "after")
        )
        wait = value(quick, "before", "waiting", device=device)
        if device == "memory":
            assert 0 <= before - after < 0.003 * before
        else:
            assert 0 < before - after < wait < before
    # the share of the time that the change saves, on the disk; the message has 5.7 % at full scale
    after, before = (value(quick, side, "send time", device=DISK) for side in ("after", "before"))
    gain = 1 - after / before
    assert 0.02 < gain < 0.2


@pytest.mark.parametrize("device", ["hp97560", "samsung-850-evo"])
def test_one_device(device: str, quick: pd.DataFrame, tmp_path: Path) -> None:
    """The times of the reads on that device alone; what is read does not depend on it."""
    table = bm.replay("send-readahead", "quick", device=device, out=tmp_path)
    with bm.open(corpus.image("reada/r5k")) as fs:
        for side, kernel in (("before", "v5.13 - send-reada-always"), ("after", "v5.13")):
            behaviour = bm.Behaviour.parse(kernel)
            cached = blocks_after_mount(fs, [fs.subvolume("snap1")], behaviour)
            reads = bm.reads(fs, "snap1", behaviour=behaviour, cached=cached).on(device)
            assert value(table, side, "send time", device=device) == reads.attrs["seconds"]
            for part in ("all", "on demand", "ahead"):
                quantity = f"reads: {part}"
                assert value(table, side, quantity) == value(quick, side, quantity)
    assert set(table.device.dropna()) == {device}
    assert ("seeks" in set(table.quantity)) == (device == "hp97560")
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert record["workloads"]["send-readahead"]["knobs"] == {"device": device}
    report = (tmp_path / "report.html").read_text()
    assert device in report
    assert DISK not in report


def test_a_device_where_it_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all_names(["device"]) == all_names(["parameters"]) == all_names(["nodesize"]) == NAMES
    assert set(NAMES) - set(all_names(["limits"])) == {"log-dir"}
    table = bm.replay("fiemap-shared", "quick", device="samsung-970-evo")
    assert set(table[table.cache == "cold"].device.dropna()) == {"samsung-970-evo"}
    assert set(table[table.cache == "cached"].device.dropna()) == {"memory"}
    assert set(table[table.device.notna()].quantity) == {"time", "waiting for reads"}
    for arguments, words in (
        (["send-readahead", "--device", "drum"], "no device 'drum': there is deskstar-7k500"),
        (["log-dir", "--limits", "name_cache=1"], "log-dir: no knob limits; its knobs: device"),
        (["send-readahead", "--nodesize", "5000"], "nodesize is 5000, not one of (4096, 8192"),
        (["send-readahead", "--set", "rpm=5400"], "parameters go with the name of a device"),
        (["send-readahead", "--device", DISK, "--set", "rpm=0"], f"{DISK}: rpm is 0"),
        (["send-readahead", "--device", DISK, "--set", "dies=8"], f"{DISK}: no parameter 'dies'"),
    ):
        assert run_cli(["replay", *arguments, "--scale", "quick", "--out", str(tmp_path)]) == 1
        assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_knobs(quick: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Window, node budget, queue and device of the workload are those of the reads of its image."""
    limits = {"always_leaves": 1 << 20, "always_nodes": 0, "siblings": 100}
    table = bm.replay(
        "send-readahead", "quick", device=DISK, parameters={"queue_depth": 1}, limits=limits
    )
    assert {name: set(table[f"limit_{name}"]) for name in limits} == {
        name: {limit} for name, limit in limits.items()
    }
    assert set(table[table.device.notna()].device_queue_depth) == {1}
    assert table[table.device.isna()].device_queue_depth.isna().all()
    with bm.open(corpus.image("reada/r5k")) as fs:
        for side, behaviour in (("before", "v5.13 - send-reada-always"), ("after", "v5.13")):
            kernel = bm.Behaviour.parse(behaviour)
            cached = blocks_after_mount(fs, [fs.subvolume("snap1")], kernel)
            reads = bm.reads(fs, "snap1", behaviour=kernel, cached=cached, limits=limits)
            reads = reads.on(DISK, {"queue_depth": 1})
            assert value(table, side, "send time", device=DISK) == reads.attrs["seconds"]
            requests = [value(one, side, "requests", device=DISK) for one in (table, quick)]
            assert requests[0] != requests[1]
    arguments = ["--device", DISK, "--set", "queue_depth=1"]
    for limit in ("always_leaves=1M", "always_nodes=0", "siblings=100"):
        arguments += ["--limits", limit]
    command = ["replay", "send-readahead", "--scale", "quick", "--out", str(tmp_path), *arguments]
    assert run_cli(command) == 0
    # who reads the report sees what was turned
    printed, page = capsys.readouterr().out, (tmp_path / "report.html").read_text()
    for name, value_ in (
        ("files", "5,000"), ("device", DISK), ("queue_depth", "1"), ("always_leaves", "1,048,576"),
    ):  # fmt: skip
        assert f"{name} {value_}" in " ".join(printed.split())
        assert f"{name} = {value_}" in page
    for text in (" ".join(printed.split()), page):
        assert "written by a kernel (kernel/reada/r5k)" in text
    written = pd.read_parquet(tmp_path / "results.parquet")
    assert written["modelled"].tolist() == table["modelled"].tolist()
    with pytest.raises(bm.BtrfsModelError, match="near is -1"):
        bm.replay("send-readahead", "quick", limits={"near": -1})
    with pytest.raises(bm.BtrfsModelError, match="window"):
        bm.replay("send-readahead", "quick", limits={"window": 1})


def test_nodesize() -> None:
    """Smaller nodes hold fewer files; each block of the tree is read, whatever its size."""
    sizes = {}
    for nodesize in (4096, 65536):
        table = bm.replay("send-readahead", 0.002, nodesize=nodesize, device="memory")
        assert set(table.nodesize) == {nodesize}
        sizes[nodesize] = value(table, "after", "reads: all") * nodesize
        assert value(table, "after", "reads: ahead") > value(table, "before", "reads: ahead")
    # a thousand files of 2000 bytes, in leaves of one file or of up to 28
    assert 1000 * 4096 < sizes[4096] < 1200 * 4096
    assert 1000 * 65536 / 28 < sizes[65536] < 1000 * 65536 / 14


def test_reported_times_stand_beside_the_full_scale_alone(quick: pd.DataFrame) -> None:
    assert quick.reported.isna().all()


def test_leaves_lie_as_recorded() -> None:
    """The image is one of those whose distances were recorded."""
    recorded = DISTANCES["cases"]["r5k"]
    with bm.open(corpus.image("reada/r5k")) as fs:
        every = [block.logical for block in fs.subvolume("snap1").tree.blocks() if not block.level]
        table = bm.reads(fs, "snap1", behaviour="v5.12", cached=[fs.root_tree.bytenr])
    assert recorded["leaves"] == len(every)
    next_to = sum(after - before == 16384 for before, after in pairwise(every))
    assert recorded["distances"]["+16384"] == next_to
    assert (distances(table) == 16384).sum() == next_to
    assert sum(recorded["distances"].values()) == len(every) - 1


def test_times_of_the_message_stand_beside_those_of_the_disk() -> None:
    """Of a small filesystem as if it were that of the message."""
    one = run("send-readahead", "quick")
    message, source = commits.load("send-readahead"), replace(one.input, scale=1.0)
    pairs = counterparts(one.workload.compared, one.sides)
    judged = judge(message, one.outcome, source, pairs, one.machine)
    assert [row.timed.case if row.timed else None for row in judged] == [{"device": DISK}] * 2
    add_reported(one.outcome, judged)
    table = frame([one]).dropna(subset=["reported"])
    assert table.set_index(["side", "quantity", "device"])["reported"].to_dict() == {
        ("before", "send time", DISK): 217.0,
        ("after", "send time", DISK): 205.0,
    }


def test_the_chart_has_the_times_of_the_table() -> None:
    """Whole bars are the times of the sends, the dark parts what is not waiting.

    Those of other devices are drawn beside their time before.
    """
    one = run("send-readahead", "quick")
    chart = one.workload.draw(one.outcome)
    first, others, *reads = chart.axes
    assert reads[-1].get_xlabel() == "seconds" and len(reads) == 2
    bars = sorted(round(bar.get_width(), 9) for axes in (first, others) for bar in axes.patches)
    wanted = []
    for device in DEVICES:
        # as the table has it: through a pipe, where the message's sends are
        sides = [one.outcome.time(side, "send time", {"device": device})
                 for side in ("before", "after")]  # fmt: skip
        scale = 1.0
        for side, told in zip(("before", "after"), sides, strict=True):
            assert told is not None and told.modelled is not None and told.computed is not None
            scale = told.modelled if side == "before" and device != DISK else scale
            wait = one.outcome.find(side, "waiting", device=device)
            assert wait is not None and wait.modelled is not None
            assert 0 < told.computed <= told.modelled
            assert told.pipe or abs(told.modelled - wait.modelled - told.computed) < 1e-9
            wanted += [round(part / scale, 9) for part in (told.modelled, told.computed)]
    assert bars == sorted(wanted)


def test_other_kernels_and_the_files(tmp_path: Path) -> None:
    one = run("send-readahead", "quick", behaviour_before="v5.12", behaviour_after="v6.18")
    assert one.sides[0].behaviour == "v5.12"
    first = one.outcome.find("before", "reads: ahead")
    assert first is not None and first.modelled == 0
    for folder in (tmp_path / "one", tmp_path / "two"):
        write([one], folder)
    names = {"results.csv", "results.parquet", "speedups.csv", "report.html", "provenance.json"}
    names |= {f"send-readahead{kind}.{end}" for kind in ("", "-time") for end in ("png", "svg")}
    names.add("messages.csv")
    assert {file.name for file in (tmp_path / "one").iterdir()} == names
    for name in names:
        left, right = (tmp_path / folder / name for folder in ("one", "two"))
        assert left.read_bytes() == right.read_bytes(), name
    report = (tmp_path / "one" / "report.html").read_text()
    for words in ("Reads of tree blocks", "deskstar-7k500", "improve btree readahead"):
        assert words in report
    assert load("send-readahead").input("quick").parameters == {
        "files": 5000, "jobs": 4, "file_bytes": 2000,
    }  # fmt: skip


SMALL = 0.008


@pytest.fixture(scope="module")
def built() -> Iterator[WritableFilesystem]:
    workload = load("send-readahead")
    with workload.open(workload.input(SMALL), Knobs()) as fs:
        yield fs


def test_the_script_is_done(built: WritableFilesystem) -> None:
    """Both snapshots hold what the script left in them, and nothing is wrong with either."""
    files = round(500_000 * SMALL)
    assert bm.check(built) == []
    first, second = built.subvolume("snap1"), built.subvolume("snap2")
    for subvolume, count in ((first, files), (second, files + files // 4)):
        names = {entry.name for entry in subvolume.readdir("")} - {b"snap1"}
        assert names == {f"file_{number}".encode() for number in range(1, count + 1)}
        for number in (1, files, count):
            assert subvolume.inode(f"file_{number}").size == 2000
    for number in (1, 51, 52):
        assert first.read_file(f"file_{number}") == b"\xab" * 2000
    assert second.read_file("file_51") == b"\xcd" * 20 + b"\xab" * 1980
    assert second.read_file("file_52") == b"\xab" * 2000


def shares(*bins: str) -> list[float]:
    """The share of distances in some bins, in each of the kernel's filesystems."""
    return [
        sum(case["distances"].get(name, 0) for name in bins) / (case["leaves"] - 1)
        for case in DISTANCES["cases"].values()
    ]


@pytest.mark.claim(
    "The leaves of the workload `send-readahead` lie as far apart as a kernel lays them."
)
def test_leaves_lie_as_far_apart_as_a_kernels(built: WritableFilesystem) -> None:
    """As scattered as in filesystems of a kernel with 5,000 to 500,000 files, which differ."""
    table = bm.reads(built, "snap1", behaviour="v5.12")
    found = distances(table)[1:]
    forward = [name for name in DISTANCES["cases"]["r500k"]["distances"] if name.startswith("+")]
    near = ("+16384", "+65536", "-16384", "-65536")
    for share, recorded in (
        (np.mean(found == 16384), shares("+16384")),
        (np.mean(np.abs(found) <= 65536), shares(*near)),
        (np.mean(np.abs(found) <= 1 << 20),
         shares(*near, "+262144", "-262144", "+1048576", "-1048576")),
        (np.mean(found > 0), shares(*forward)),
    ):  # fmt: skip
        assert min(recorded) - 0.02 <= share <= max(recorded) + 0.02, recorded


def test_any_scale(built: WritableFilesystem) -> None:
    table = bm.replay("send-readahead", SMALL)
    # the filesystem of the replay is another one, and the same
    cached = blocks_after_mount(built, [built.subvolume("snap1")], bm.Behaviour.parse("v5.13"))
    again = bm.reads(built, "snap1", behaviour="v5.13", cached=cached).on(DISK)
    assert value(table, "after", "send time", device=DISK) == again.attrs["seconds"]
    before = value(table, "before", "send time", device=DISK)
    assert before > again.attrs["seconds"]
    with pytest.raises(bm.BtrfsModelError, match="nothing to do"):
        load("send-readahead").input(1e-6)


def test_what_is_wrong_shows_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No folder is made for a wrong scale, and nothing is built for a folder that is none."""
    out = tmp_path / "out"
    for scale in ("1e30", "nan", "0"):
        assert run_cli(["replay", "--scale", scale, "--out", str(out)]) == 1
        assert "a scale is greater than 0" in capsys.readouterr().err
    assert not out.exists()
    out.write_text("a file")
    assert run_cli(["replay", "send-readahead", "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"btrfs-model: {out}: File exists\n"
    with pytest.raises(FileExistsError):
        bm.replay("send-readahead", out=out)
    assert out.read_text() == "a file"


def test_a_workload_that_is_named_twice_is_replayed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = ["send-readahead", "send-readahead", "--device", "memory", "--scale", "quick"]
    assert run_cli(["replay", *twice, "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "results.csv")
    assert is_tidy(table)
    names = ("send-readahead", "send-readahead")
    again = bm.replay(names, "quick", device="memory")
    assert again["modelled"].tolist() == table["modelled"].tolist()
