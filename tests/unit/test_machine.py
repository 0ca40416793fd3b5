# SPDX-License-Identifier: GPL-2.0-only
"""Machines: what a file says, and the times that follow from work."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.base.counters import NAMES
from btrfs_model.cost import device
from btrfs_model.cost import machine as machines
from btrfs_model.cost.caches import with_cache
from btrfs_model.cost.causes import (
    DEVICE,
    OPERATIONS,
    PHRASES,
    QUANTITIES,
    amount,
    duration,
    operations,
)
from btrfs_model.cost.device import load as load_device
from btrfs_model.cost.pipe import through_a_pipe, with_wakes
from btrfs_model.cost.prediction import NoCostError, by_function, predict, ratio
from btrfs_model.cost.writing import log_sync, page_write
from btrfs_model.experiments.workloads.timed import Timed, ratio_on

FILE = corpus.TEST_DATA / "machine.toml"
MACHINE = machines.load(str(FILE))
COUNTED = sorted({name for cost in MACHINE.costs for name in cost.counts})
works = st.dictionaries(st.sampled_from(COUNTED), st.integers(1, 10**9), min_size=1)


# ------------------------------------------------------------------------------------- times --


def test_a_time_by_hand() -> None:
    work = {"btrfs_search_slot": 1000, "btrfs_get_next_valid_item": 2_000_000, "send_cmd": 10}
    time = predict(MACHINE, {**work, "stream_bytes": 500})
    assert time.parts == pytest.approx({"step": 0.05, "search": 0.001, "command": 15e-6})
    assert list(time.parts) == ["step", "search", "command"]
    assert time.seconds == pytest.approx(0.051015)
    assert time.split()[0] == "50 ms of 51 ms: stepping over 2 million items"
    assert time.without == ()
    waited = predict(MACHINE, work, 2e9)
    assert waited.parts[DEVICE] == 2 and waited.computed == pytest.approx(0.05101)
    assert json.loads(json.dumps(time.as_dict()))["parts"] == time.parts


@given(works, st.integers(0, 10**12))
def test_parts_add_up_and_the_interval_holds_the_time(work: dict[str, int], waits: int) -> None:
    time = predict(MACHINE, work, waits)
    assert sum(time.parts.values()) == pytest.approx(time.seconds)
    assert set(time.parts) == set(time.causes)
    assert time.low <= time.seconds <= time.high
    # what the costs leave open is in it, whatever the draws say
    assert time.high - time.low >= 0.09 * time.computed * 0.99
    assert sum(seconds for *_, seconds in by_function(MACHINE, work)) == pytest.approx(
        time.computed
    )


@given(works, st.integers(2, 1000))
def test_more_of_the_same_takes_as_many_times_as_long(work: dict[str, int], times: int) -> None:
    once, often = (
        predict(MACHINE, {name: count * factor for name, count in work.items()})
        for factor in (1, times)
    )
    for name in ("seconds", "low", "high"):
        assert getattr(often, name) == pytest.approx(times * getattr(once, name))
    found = ratio(often, once)
    assert found.value == pytest.approx(times)
    # of the same parts most cancels, and not all
    assert once.low / once.seconds < found.low / times < 1 < found.high / times


@given(works, works)
def test_ratios(one: dict[str, int], other: dict[str, int]) -> None:
    before, after = predict(MACHINE, one), predict(MACHINE, other)
    same = ratio(before, before)
    assert same.untold == "both sides do the same of all that is counted"
    assert (same.low, same.high) == (0, math.inf)
    if before.parts == after.parts:
        return
    there, back = ratio(before, after), ratio(after, before)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low <= there.value <= there.high
    # what both do cancels: never wider than the two intervals together
    assert there.high <= before.high / after.low * 1.001
    assert there.low >= before.low / after.high * 0.999


@given(works, st.integers(1, 10**6))
def test_what_differs_and_has_no_cost_is_in_the_interval(work: dict[str, int], calls: int) -> None:
    """A call without a cost takes nothing, or at most as long as a search."""
    plain = predict(MACHINE, work)
    more = predict(MACHINE, {**work, "get_cur_path": calls})
    same = ratio(more, plain)
    assert same.untold.endswith("they differ in what has none: get_cur_path")
    twice = predict(MACHINE, {name: 2 * count for name, count in work.items()})
    beside, known = ratio(replace(more, parts={**more.parts, "x": 0.0}), twice), ratio(plain, twice)
    search = next(one.seconds for one in MACHINE.costs if one.name == "search")
    assert (beside.value, beside.low) == pytest.approx((known.value, known.low))
    assert beside.high == pytest.approx(known.high * (1 + calls * search / plain.seconds))
    assert bool(beside.unpaid) == (calls * search > 0.01 * plain.seconds)


def test_what_both_sides_do_cancels() -> None:
    steps = {"btrfs_get_next_valid_item": 10**6}
    alike = ratio(
        predict(MACHINE, {"btrfs_get_next_valid_item": 2 * 10**6}), predict(MACHINE, steps)
    )
    other = ratio(predict(MACHINE, {"btrfs_search_slot": 50_000}), predict(MACHINE, steps))
    assert alike.value == pytest.approx(2) == other.value
    assert 0.05 < alike.high - alike.low < 0.3 < other.high - other.low


def test_what_is_left_unexplained_is_that_of_the_operation() -> None:
    told = {"relative": 0.1, "fiemap": 0.5, "send": 0.02}
    machine = replace(MACHINE, residuals=told)
    searches = {"btrfs_search_slot": 1000}
    widths = [
        time.high / time.seconds
        for time in (
            predict(machine, {**searches, **more})
            for more in ({"send_cmd": 1}, {}, {"emit_fiemap_extent": 1})
        )
    ]
    assert widths == sorted(widths) and len(set(widths)) == 3
    told = [predict(machine, {**searches, **more}).split() for more in
            ({"send_cmd": 1}, {"emit_fiemap_extent": 1})]  # fmt: skip
    assert "does not tell such times" not in told[0][-1]
    assert told[1][-1].endswith("those of its own microbenchmarks are off by 50%")
    assert operations({"creat": 1, "send_cmd": 1}) == ["send", "receive"]
    assert operations({"send_cmd": 0}) == []
    assert {name for machine in map(machines.load, machines.names())
            for name in machine.residuals} == {"relative", *OPERATIONS}  # fmt: skip


def test_a_smaller_cache_forgets_more() -> None:
    counted = {"log_leaves_uncached": 10, "log_leaves_uncached_16m": 20,
               "log_leaves_uncached_8m": 40, "btrfs_log_inode": 5}  # fmt: skip
    found = {mib: with_cache(counted, mib) for mib in (1, 8, 11, 12, 16, 22, 24, 32, 1000)}
    assert [work["log_leaves_uncached"] for work in found.values()] == [
        40, 40, 40, 20, 20, 20, 10, 10, 10,
    ]  # fmt: skip
    # what was taken once stays
    assert all(with_cache(work, mib) == work for work in found.values() for mib in found)
    assert with_cache({"btrfs_log_inode": 5}, 8) == {"btrfs_log_inode": 5}
    machine = machines.default()
    small = replace(machine, cache_mib=8)
    assert predict(small, counted).seconds > predict(machine, counted).seconds


@given(st.integers(1, 10**6), st.integers(1, 100))
def test_fast_commands_seldom_wake_the_reader_of_a_pipe(commands: int, searches: int) -> None:
    machine = machines.default()
    work = {"send_cmd": commands, "btrfs_search_slot": commands * searches,
            "leaves_copied": commands * searches}  # fmt: skip
    alone = predict(machine, work)
    made = with_wakes(through_a_pipe(work), alone.seconds)
    assert 0 <= made["pipe_wakes"] <= made["pipe_writes"] == commands
    piped = predict(machine, through_a_pipe(work))
    assert piped.seconds == predict(machine, made).seconds >= alone.seconds
    slower = with_wakes(through_a_pipe(work), 2 * alone.seconds)
    assert slower["pipe_wakes"] >= made["pipe_wakes"]


def test_a_device_that_works_meanwhile() -> None:
    """The longer the kernel computes, the less it waits; the time holds what is waited for it."""
    time = predict(
        MACHINE, {"btrfs_search_slot": 10**6}, lambda computed: max(0, 3 - computed) * 1e9
    )
    assert time.parts == pytest.approx({"search": 1, DEVICE: 2})
    assert time.seconds == pytest.approx(3)
    assert time.low == pytest.approx(3) == time.high
    assert np.allclose(time.draws, 3, rtol=0.01)


def test_what_no_data_sheet_tells_is_in_the_interval(tmp_path: Path) -> None:
    work = {"btrfs_search_slot": 10**6}
    before, after = (
        Timed("", "time", "s", {}, work, seconds * 1e9, (least * 1e9, most * 1e9))
        for seconds, least, most in ((9, 1, 19), (3, 3, 4))
    )
    time = before.on(MACHINE)
    assert time and (time.seconds, time.low, time.high) == (10, 2, 20)
    found = ratio_on(MACHINE, before, after)
    assert found and (found.value, found.low, found.high) == (10 / 4, 2 / 4, 20 / 5)
    assert {name: device.ends(name) for name in device.names() if device.ends(name)} == {
        "deskstar-7k500": [{"read_ahead_sectors": 128}, {"read_ahead_sectors": 2048}]
    }
    path = tmp_path / "own.toml"
    for text, what in (("1", "unpublished. is 1"), ("{ dies = 3 }", "unpublished.dies is 3"),
                       ("{ dies = [3] }", r"unpublished.dies is \[3\]")):  # fmt: skip
        path.write_text(f'title = "x"\nunpublished = {text}\n')
        with pytest.raises(bm.BtrfsModelError, match=f"own.toml: {what}, not two values"):
            device.ends(str(path))


def test_no_time_for_work_that_has_no_cost() -> None:
    for work in ({}, {"submit_bio": 3}, {"btrfs_search_slot": 0}):
        with pytest.raises(NoCostError, match=r"machine: no time for work that has no cost: "):
            predict(MACHINE, work)
    with pytest.raises(NoCostError, match=r"no cost: submit_bio$"):
        predict(MACHINE, {"submit_bio": 3}, 10**9)
    time = predict(MACHINE, {"btrfs_search_slot": 10, "find_parent_nodes": 5, "utimensat": 1})
    assert time.without == ("walks of back references",)
    page = {"wait for last page": 1, "btrfs_search_slot": 1}
    bare = replace(MACHINE, costs=MACHINE.costs[:1], draws=MACHINE.draws[:, :1])
    assert predict(bare, page).without == ("pages that are waited for",)
    assert predict(bare, page, 1000).without == ()
    assert time.split()[-1] == "not in it, for it has no cost: walks of back references"


def test_times_of_two_machines_have_no_ratio() -> None:
    work = {"btrfs_search_slot": 1}
    other = machines.load(str(FILE))
    with pytest.raises(ValueError, match="times of two machines"):
        ratio(predict(MACHINE, work), predict(other, work))


def test_words() -> None:
    assert set(NAMES) <= QUANTITIES and set(PHRASES) <= QUANTITIES
    assert all(phrase.count("{}") == 1 for phrase in PHRASES.values())
    assert [amount(count) for count in (900_090_001, 1_300_000, 12_345, 0.5)] == [
        "900 million", "1.3 million", "12,345", "0.5",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (27.71, 0.123, 4.5e-6, 0, 2000)] == [
        "27.7 s", "123 ms", "4.5 us", "0 s", "2,000 s",
    ]  # fmt: skip


# --------------------------------------------------------------------------------- what it is --


@pytest.mark.claim(
    "A machine has at most twelve unit costs for everything, each with a meaning and an interval."
)
def test_the_machines_that_are_there() -> None:
    assert machines.names()
    assert machines.default().kind == "native"
    for name in machines.names():
        machine = machines.load(name)
        assert len(machine.costs) <= 12 == machines.MOST_COSTS
        assert machine.draws.shape[0] >= 20 and machine.draws.shape[1] == len(machine.costs)
        assert all(cost.low <= cost.seconds <= cost.high for cost in machine.costs)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("value = 1.0", "", "cost.search.value is missing"),
        ("value = 1.0", "value = -1.0", "cost.search.value is -1.0, which is negative"),
        ("value = 1.0", 'value = "1"', "cost.search.value is '1', not a number"),
        ("value = 1.0", "value = nan", "cost.search.value is nan, not a number"),
        ("value = 1.0", "value = 2.0", "cost.search.value is 2, not between low and high"),
        ("low = 0.9\n", "", "cost.search.low is missing"),
        ('unit = "us"', 'unit = "hours"', "cost.search.unit is 'hours', not ns, us, ms"),
        ("btrfs_search_slot =", "btrfs_search_slit =", "no counter 'btrfs_search_slit'; did you"),
        ("creat = 1.0", "creat = -1.0", "cost.call.counts.creat is -1.0, which is negative"),
        ('meaning = "one search"', "", "cost.search.meaning is missing"),
        ("step = [20, 28,", "step = [", "draws.step has 4 draws, draws.search has 6"),
        ("step = [20,", "step = [-20,", "draws.step is -20, which is negative"),
        ("step = [20, 28, 25, 26, 24, 30]", "", "draws.step is missing"),
        ("call = [4", "coll = [4", "draws.coll: there is no such cost; did you mean 'call'?"),
        ("[residual]\nrelative = 0.03", "", "residual is missing"),
        ("relative = 0.03", "relative = -0.03", "residual.relative is -0.03, which is negative"),
        ('kind = "native"', 'kind = "native"\ncache_mib = 0', "cache_mib is 0"),
        ('kind = "native"', 'kind = "native"\ncache_mib = "L3"', "cache_mib is 'L3', not a number"),
        ("relative = 0.03", "send = 0.03", "residual.relative is missing"),
        (
            "relative = 0.03",
            "relative = 0.03\nfiemaps = 0.1",
            "residual.fiemaps: there is no such operation; did you mean 'fiemap'?",
        ),
        ('kind = "native"', 'kind = "nativ"', "kind is 'nativ', not native or uml"),
        ('kernel = "v6.18.44"', 'kernel = "v9"', "kernel: "),
        ('title = "Example"', "", "title is missing"),
        ("title =", "title", "line 3"),
    ],
)
def test_a_file_that_says_no_machine(tmp_path: Path, old: str, new: str, what: str) -> None:
    """One line that names the file and the key."""
    text = FILE.read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(bm.BtrfsModelError) as error:
        machines.load(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert what in str(error.value) and "\n" not in str(error.value)


def test_too_many_costs(tmp_path: Path) -> None:
    text, draws = FILE.read_text().split("[draws]")
    search = text[text.index("[cost.search]") : text.index("[cost.step]")]
    text += "".join(search.replace("search]", f"search{n}]") for n in range(7))
    path = tmp_path / "mine.toml"
    path.write_text(f"{text}[draws]{draws}")
    with pytest.raises(bm.BtrfsModelError, match="cost: 13 of them are more than 12"):
        machines.load(str(path))
    path.write_text('title = "x"')
    with pytest.raises(bm.BtrfsModelError, match="cost: there is none"):
        machines.load(str(path))


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BTRFS_MODEL_DATA", str(tmp_path))
    with pytest.raises(bm.BtrfsModelError, match="there is no native machine"):
        machines.default()
    (tmp_path / "machines").mkdir()
    shutil.copy(FILE, tmp_path / "machines" / "mine.toml")
    assert machines.names() == ["mine"]
    assert machines.default().name == "mine" == machines.load("mine").name
    with pytest.raises(bm.BtrfsModelError, match=r"no machine 'mina': there is mine, .* 'mine'"):
        machines.load("mina")
    with pytest.raises(FileNotFoundError):
        machines.load("other.toml")


# ----------------------------------------------------------------------------------- devices --


def test_writes_that_are_waited_for() -> None:
    fast, slow = load_device("samsung-970-evo"), load_device("deskstar-7k500")
    assert 1e3 < page_write(fast) < page_write(slow) < 50e6
    blocks = np.arange(64) * 16384 + (1 << 30)
    few, many = (log_sync(fast, blocks[:count], 16384) for count in (1, 64))
    assert 0 < few < many
    # a million bytes in order take a disk some turns, out of order many
    scattered = np.random.default_rng(0).integers(0, 10**6, 64) * 16384 + (1 << 30)
    assert log_sync(slow, scattered, 16384) > 2 * log_sync(slow, blocks, 16384)


# --------------------------------------------------------------------------------- questions --


def test_times_of_questions() -> None:
    name = str(FILE)
    with bm.open(bm.sample("kernel/send/send-utimes/n200")) as fs:
        sent = bm.send(fs, "snap2", "snap1", behaviour="v6.1")
        time = sent.time(name)
        assert time.parts["search"] == pytest.approx(sent.work["btrfs_search_slot"] / 1e6)
        weight = sent.work["send_cmd"] + sent.size / 100
        assert time.parts["command"] == pytest.approx(weight / 1e6)
        asked = bm.reads(fs, "snap1")
        reads = asked.on("samsung-850-evo", machine=name)
        known: Any = reads.attrs["time"]
        assert known["seconds"] == pytest.approx(reads.attrs["seconds"], rel=1e-3)
        assert known["parts"][DEVICE] == pytest.approx(reads.attrs["waited"])
        listed = bm.readdir_reads(fs, "snap1")
        for wrong in (lambda: asked.on("memory", machine=name, think=3.0),
                      lambda: listed.on("memory", machine=name)):  # fmt: skip
            with pytest.raises(ValueError, match="a machine computes for a send"):
                wrong()
        with bm.create(1 << 28) as copy:
            full = bm.send(fs, "snap1")
            calls = bm.receive(copy, full.data)
            creats = calls.calls["creat"] + 2 * calls.calls["pwrite64"]
            creats += calls.calls["truncate"] / 2
            assert calls.time(name).parts["call"] == pytest.approx(creats * 5e-6)
    with bm.open(bm.sample("kernel/counts/W3/snap200")) as fs, bm.counting() as work:
        with pytest.deprecated_call(match=r"is now fiemap\(...\).time\(machine\)") as seen:
            table = bm.fiemap(fs, "", "foobar", machine=name)
        assert seen[0].filename == __file__
        found: Any = table.attrs["time"]
        assert found["parts"]["search"] == pytest.approx(work["btrfs_search_slot"] / 1e6)
        assert found["without"] == ["walks of back references"]
        assert "time" not in bm.fiemap(fs, "", "foobar").attrs
        assert table.time(name).as_dict() == found


def test_two_costs_of_the_same_cause_are_one_line() -> None:
    """Data are read, and waited for: one sentence says both."""
    time = predict(machines.load("native-6.18"), {"data_reads": 1000, "btrfs_search_slot": 5})
    told = [line.partition(": ")[2] for line in time.split()]
    assert len(told) == len(set(told))
    assert sum("reading the data" in one for one in told) == 1
