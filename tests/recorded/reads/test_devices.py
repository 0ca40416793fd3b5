# SPDX-License-Identifier: GPL-2.0-only
"""Devices beside what was published and measured of them, beside physics, and C beside Python."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pandas as pd
import pytest
from demerit import Trace, demerit, read_trace, replay_trace
from disksim import drive
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import select
from twins.device_disk import locate

import btrfs_model as bm
from btrfs_model.cli import run as run_cli
from btrfs_model.cost.device import Device, Disk, Flash, build, load, names, read_file
from btrfs_model.cost.seek import seek_times
from btrfs_model.cost.simulate import ios, simulate, steps
from btrfs_model.native.device import STEP_FIELDS
from btrfs_model.native.door import ffi, lib, new_fault
from btrfs_model.volume.filesystem import Filesystem

DISKS = [name for name in names() if read_file(name)["kind"] == "disk"]
NODE = 16384
R5K = "reada/r5k"


def one_by_one(device: Device, offset: Any, length: Any, **other: Any) -> tuple[Any, Any]:
    """Submit each request when the one before is done."""
    table = ios(offset, length, **other)
    numbers = np.arange(len(table))
    return simulate(device, table, steps(np.stack([numbers, ~numbers], 1).reshape(-1)))


def at_once(
    device: Device, offset: Any, length: Any, *, first_alone: bool = False
) -> tuple[Any, Any]:
    """Submit all requests, then wait for them; the first may be at the device before the others."""
    table = ios(offset, length)
    numbers = np.arange(len(table))
    host = steps(np.concatenate([numbers, ~numbers]))
    host["think"][1] = first_alone
    return simulate(device, table, host)


def random_blocks(seed: int, count: int, device: Device, size: int = NODE) -> Any:
    return np.random.default_rng(seed).integers(0, device.capacity // size, count) * size


# ----------------------------------------------------------------------- published figures -----


@pytest.mark.parametrize("name", names())
def test_every_parameter_says_where_it_is_from(name: str) -> None:
    table = read_file(name)
    parameters = set(table) - {"title", "kind", "provenance"}
    assert set(table["provenance"]) == parameters
    assert all(len(text) > 3 for text in table["provenance"].values())
    assert load(name).capacity > 10**9


@pytest.mark.claim("Seek curves are the published ones.", judge="measured")
@pytest.mark.parametrize("name", ["hp97560", "hp-c2247a"])
def test_seek_curves_are_the_published_ones(name: str) -> None:
    model = load(name).model
    assert isinstance(model, Disk)
    for distance, published in read_file(name)["published"]["seek_ms"].items():
        assert model.seek_time[int(distance)] / 1e6 == pytest.approx(published, abs=0.0005)


def test_three_points_give_their_curve() -> None:
    curve = {"form": "three-point", "single_ms": 1.0, "average_ms": 8.5, "full_ms": 17.0}
    times = np.array(seek_times(curve, 2000))
    distance = np.arange(2000)
    weight = (2000 - distance) * (distance > 0)
    assert times[1] == 1_000_000
    assert times[-1] == pytest.approx(17e6, abs=1)
    assert np.average(times, weights=weight) == pytest.approx(8.5e6, rel=1e-6)
    assert np.all(np.diff(times) > 0)


@pytest.mark.claim("Disks read as fast as their data sheets say.", judge="measured")
def test_random_reads_of_a_sector_take_what_the_data_sheet_says() -> None:
    published = read_file("deskstar-7k500")["published"]["random_reads"]
    device = load("deskstar-7k500")
    where = random_blocks(5, published["reads"], device, published["bytes"])
    _, totals = one_by_one(device, where, published["bytes"])
    assert totals.end / 1e9 == pytest.approx(published["seconds"], rel=0.02)


@pytest.mark.parametrize("zone", [0, 1])
def test_sequential_reads_take_what_the_data_sheet_says(zone: int) -> None:
    published = read_file("deskstar-7k500")["published"]["sequential_reads"][zone]
    device = load("deskstar-7k500")
    assert isinstance(device.model, Disk)
    start = device.model.zones[published["zone"]].first_sector * 512
    where = start + np.arange(published["reads"]) * published["bytes"]
    _, totals = one_by_one(device, where, published["bytes"])
    # which has an average seek before the first read
    assert totals.end / 1e9 + 0.0082 == pytest.approx(published["seconds"], rel=0.02)


@pytest.mark.parametrize("zone", [0, 1])
def test_long_reads_reach_the_rate_of_the_medium(zone: int) -> None:
    published = read_file("deskstar-7k500")["published"]["media_mb_s"][zone]
    device = load("deskstar-7k500")
    assert isinstance(device.model, Disk)
    start = device.model.zones[published["zone"]].first_sector * 512
    where = start + np.arange(400) * (1 << 20)
    times, _ = at_once(device, where, 1 << 20)
    rate = 1000 * (399 << 20) / int(times["done"].max() - times["done"].min())
    assert rate == pytest.approx(published["sustained"], rel=0.01)


@pytest.mark.claim("Flash reads as often in a second as its data sheets say.", judge="measured")
@pytest.mark.parametrize("name", ["samsung-850-evo", "samsung-970-evo"])
def test_flash_reads_as_often_as_its_data_sheet_says(name: str) -> None:
    published = read_file(name)["published"]
    for depth, wanted in published["iops_4k"].items():
        device = load(name, {"queue_depth": int(depth), "elevator": "none"})
        _, totals = at_once(device, random_blocks(1, 20_000, device, 4096), 4096)
        assert 20_000e9 / totals.end == pytest.approx(wanted, rel=0.1), depth
    device = load(name)
    times, _ = at_once(device, np.arange(4000) * (1 << 17), 1 << 17)
    rate = 1000 * (3999 << 17) / int(times["done"].max() - times["done"][0])
    assert rate == pytest.approx(published["sequential_mb_s"], rel=0.05)


def traces() -> Path | None:
    """Where the validation traces of DiskSim are, see tests/README.md."""
    named = os.environ.get("BTRFS_MODEL_DISKSIM")
    return Path(named) if named else None


def like_the_requests(of: Mapping[str, Any], capacity: int, seed: int) -> Trace:
    """Requests as a file of a device describes them."""
    chance = np.random.default_rng(seed)
    count = of["requests"]
    kind, near = chance.random(count), chance.normal(0, of["local_deviation_sectors"], count)
    size = np.ceil(chance.exponential(of["mean_sectors"], count)).astype(int)
    write = chance.random(count) < of["write"]
    last = capacity // 512 - size.max()
    sector = chance.integers(0, last, count)
    for number in range(1, count):
        behind = sector[number - 1] + size[number - 1]
        if kind[number] < of["sequential"] and behind < last:
            sector[number] = behind
            size[number], write[number] = size[number - 1], write[number - 1]
        elif kind[number] < of["sequential"] + of["local"]:
            sector[number] = np.clip(behind + round(near[number]), 0, last)
    steps_of_think = np.linspace(0, 1, len(of["think_ms"]))
    think = np.interp(chance.random(count), steps_of_think, of["think_ms"])
    return Trace(write, sector, size, np.zeros(count), think)


@pytest.mark.claim(
    "Without the traces demerit figures beside the published percentiles of one drive are 1.5 "
    "to 3.5 %.",
    judge="measured",
)
@pytest.mark.parametrize("seed", range(3))
def test_demerit_beside_published_response_times(seed: int) -> None:
    """Other requests of the same kind, and the percentiles of the real drive's times."""
    device = load("hp-c2247a")
    published = read_file("hp-c2247a")["published"]["responses"]
    modelled = replay_trace(device, like_the_requests(published, device.capacity, seed))
    measured = published["response_ms"]
    share = (np.arange(len(measured)) + 0.5) / len(measured)
    assert demerit(measured, np.quantile(modelled, share)) < 0.05
    # a disk that turns as fast as others of its time does not answer like it
    other = load("hp-c2247a", {"rpm": 3600})
    slower = replay_trace(other, like_the_requests(published, other.capacity, seed))
    assert demerit(measured, np.quantile(slower, share)) > 0.15


@pytest.mark.claim(
    "The demerit figure of the HP C2247A is 2.3 %, with the traces (see below).",
    judge="measured",
)
@pytest.mark.skipif(traces() is None, reason="BTRFS_MODEL_DISKSIM names no folder of traces")
def test_demerit_of_the_disk_beside_a_real_drive() -> None:
    """HP C2247A: 9999 requests whose times were measured (DiskSim 4.0, valid/)."""
    folder = traces()
    assert folder is not None
    trace = read_trace(folder / "hp_c2247a.trace")
    modelled = replay_trace(load("hp-c2247a"), trace)
    assert demerit(trace.measured, modelled) < 0.03
    for way in (trace.write, ~trace.write):
        assert demerit(trace.measured[way], modelled[way]) < 0.05
    assert np.corrcoef(trace.measured, modelled)[0, 1] > 0.85


@pytest.mark.claim(
    "Disks of the model answer as real drives whose times were measured: demerit figures of "
    "five drives are 2.2 to 9.5 %, with the traces (see below).",
    judge="measured",
)
@pytest.mark.skipif(traces() is None, reason="BTRFS_MODEL_DISKSIM names no folder of traces")
@pytest.mark.parametrize(
    ("name", "most"),
    [("hp_c3323a", 0.03), ("hp_c2490a", 0.10), ("st41601n", 0.035), ("dec_rz26", 0.04)],
)
def test_demerit_of_other_drives(name: str, most: float) -> None:
    """By parameters that were measured too, nothing of them adapted to the model."""
    folder = traces()
    assert folder is not None
    trace = read_trace(folder / f"{name}.trace")
    modelled = replay_trace(drive(folder, name), trace)
    assert demerit(trace.measured, modelled) < most
    assert np.corrcoef(trace.measured, modelled)[0, 1] > 0.8


def test_demerit_is_the_distance_of_the_curves() -> None:
    assert demerit([3, 1, 2], [1, 2, 3]) == 0
    # a constant shift of 1 against a mean of 2
    assert demerit([1, 2, 3], [4, 2, 3]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="measured"):
        demerit([1, 2], [1])


def test_broken_traces_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "trace"
    broken.write_text("R Hit 1 2 3.0 4.0\nR Hit 1 2 3.0\n")
    with pytest.raises(bm.BtrfsModelError, match=r"trace: line 2"):
        read_trace(broken)


TIMED = "reada/r20k"
_timings = corpus.ORACLE / "timings/readahead.json" if corpus.ORACLE else None


@pytest.mark.claim(
    "A send waits for a device that sleeps as long as with three kernels, with `timings` in "
    "`BTRFS_MODEL_ORACLE`."
)
@pytest.mark.skipif(
    _timings is None or not corpus.has(TIMED, "image.zst"),
    reason="BTRFS_MODEL_ORACLE names no folder with the times of kernels",
)
@pytest.mark.parametrize("kernel", ["5.10.46", "6.1.176", "6.12.101"])
@pytest.mark.parametrize("mode", ["one request at a time", "queued requests overlap"])
def test_waiting_is_that_of_kernels(kernel: str, mode: str) -> None:
    """A device that sleeps for each read: the send takes as long as it did with that kernel.

    What the kernel computes is its time with all blocks cached; a read costs 190 us of wakeups
    more than the sleep, by the file's note.
    """
    assert _timings is not None
    wanted = {"case": "r20k", "added_read_latency_us": 1000, "latency_mode": mode}
    times = {
        row["operation"].rpartition(" ")[2]: row["min"] / 1000
        for row in json.loads(_timings.read_text())["rows"]
        if row["kernel"] == kernel and wanted.items() <= row["parameters"].items()
    }
    alone = mode == "one request at a time"
    table = {
        "kind": "flash", "capacity_gb": 100, "channels": 1, "dies": 1 if alone else 4096,
        "page_size": NODE, "command_us": 0, "overhead_us": 190, "sense_us": 1000,
        "channel_mb_s": 1e6, "link_mb_s": 1e6, "elevator": "none", "queue_depth": 4096,
    }  # fmt: skip
    with Filesystem.open(corpus.image(TIMED)) as fs:
        leaves = sum(not block.level for block in fs.subvolume("snap1").tree.blocks())
        modelled = on(
            fs, build("sleeper", table), behaviour=f"v{kernel}",
            think=times["cached"] / leaves * 1e6,
        ).attrs["seconds"]  # fmt: skip
    # by the same note, times of cached runs differ by 300 ms
    assert modelled == pytest.approx(times["cold"], rel=0.12, abs=0.4), times


# --------------------------------------------------------------------------------- physics -----


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(1, 200)), min_size=1, max_size=30))
@settings(max_examples=40)
def test_no_read_is_faster_than_its_parts(reads: list[tuple[int, int]]) -> None:
    """Each takes overhead, seek and transfer, and at most a turn more for each track."""
    device = load("hp97560", {"segments": 0, "segment_sectors": 0, "read_ahead_sectors": 0})
    model = device.model
    assert isinstance(model, Disk)
    times, totals = one_by_one(
        device, [block * NODE for block, _ in reads], [512 * count for _, count in reads]
    )
    cylinder, turn = 0, model.revolution
    for (block, count), row in zip(reads, times, strict=True):
        first, last = (locate(model, block * 32 + at) for at in (0, count - 1))
        spent = int(row["done"] - row["issued"])
        seek = model.seek_time[abs(first.cylinder - cylinder)]
        least = model.miss_overhead + seek + count * turn // 72 + model.link_sector
        tracks = (count + first.sector - 1) // 72 + 1
        assert least - 2 <= spent + tracks
        most = least + tracks * turn + model.head_switch * tracks + model.seek_time[1] * tracks
        assert spent <= most + count * model.link_sector
        cylinder = last.cylinder
    assert totals.buffered == 0


@given(st.integers(0, 83_000))
def test_what_follows_a_read_comes_out_of_the_buffer(block: int) -> None:
    device = load("hp97560")
    model = device.model
    assert isinstance(model, Disk)
    offsets = np.array([block * NODE, block * NODE + 4096])
    table = ios(offsets, 4096)
    host = steps([0, ~0, 1, ~1], [0, 0, 2 * model.revolution, 0])
    times, totals = simulate(device, table, host)
    assert totals.buffered == 1
    spent = int(times["done"][1] - times["issued"][1])
    assert spent == model.hit_overhead + 8 * model.link_sector


def test_the_shortest_access_time_first_is_faster_than_the_oldest() -> None:
    """Worthington, Ganger and Patt (1994): the more requests to choose from, the more so."""
    gain = {}
    for depth in (1, 8, 32):
        ends = []
        for order in ("oldest", "shortest"):
            device = load("hp97560", {"order": order, "queue_depth": depth, "elevator": "none"})
            ends.append(at_once(device, random_blocks(2, 3000, device), NODE)[1].end)
        gain[depth] = ends[0] / ends[1]
    assert gain[1] == 1.0 < gain[8] < gain[32]
    assert gain[8] > 1.3
    assert gain[32] > 1.6


@pytest.mark.parametrize("name", names())
def test_a_deeper_queue_is_not_slower(name: str) -> None:
    ends = []
    for depth in (1, 2, 4, 8, 16, 32):
        parameters: dict[str, object] = {"queue_depth": depth, "elevator": "none"}
        if name in DISKS:
            parameters["order"] = "shortest"
        device = load(name, parameters)
        ends.append(at_once(device, random_blocks(3, 2000, device), NODE)[1].end)
    assert all(after <= before for before, after in pairwise(ends))


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=40), st.integers(1, 8))
def test_deeper_queues_of_flash(blocks: list[int], depth: int) -> None:
    ends = []
    for queue in (depth, depth + 1):
        device = load("samsung-850-evo", {"queue_depth": queue, "elevator": "none"})
        ends.append(at_once(device, np.array(blocks) * NODE, NODE)[1].end)
    assert ends[1] <= ends[0]


def test_neighbours_become_one_request() -> None:
    device = load("hp97560", {"queue_depth": 1})
    # the first goes to the drive at once; of the others two touch each other, in either order
    blocks = np.array([0, 40_000, 20_001, 20_000])
    times, totals = at_once(device, blocks * NODE, NODE, first_alone=True)
    assert totals.requests == 3
    assert times["done"][2] == times["done"][3] < times["done"][1]
    device = load("hp97560", {"queue_depth": 1, "max_request_kib": 16})
    assert at_once(device, blocks * NODE, NODE)[1].requests == 4
    device = load("hp97560", {"queue_depth": 1, "elevator": "none"})
    times, totals = at_once(device, blocks * NODE, NODE)
    assert totals.requests == 4
    assert np.all(np.diff(times["started"].astype(np.int64)) > 0)


def test_what_is_submitted_at_one_moment_is_sorted_first() -> None:
    """Requests wait in the elevator until kblockd gives them to the drive."""
    blocks = np.array([50_002, 50_000, 50_001])
    for elevator, requests in (("mq-deadline", 1), ("none", 3)):
        device = load("hp97560", {"queue_depth": 32, "elevator": elevator})
        assert at_once(device, blocks * NODE, NODE)[1].requests == requests


def test_requests_go_out_in_ascending_order_until_one_expires() -> None:
    blocks = np.array([10, 70_000, *range(0, 40_000, 1000)])
    for expire, first in ((10_000, 2), (0, 1)):
        device = load("hp97560", {"queue_depth": 1, "read_expire_ms": expire, "fifo_batch": 1})
        times, _ = at_once(device, blocks * NODE, NODE, first_alone=True)
        order = np.argsort(times["started"])
        assert order[0] == 0
        # block 0 lies before the sweep, so it starts at block 1000, or with the oldest
        assert order[1] == (3 if first == 2 else 1)
    device = load("hp97560", {"queue_depth": 1, "fifo_batch": 5, "read_expire_ms": 0})
    times, _ = at_once(device, blocks * NODE, NODE, first_alone=True)
    order = np.argsort(times["started"]).tolist()
    # a sweep of five ends although the oldest has expired
    assert order[:6] == [0, 3, 4, 5, 6, 1]


# --------------------------------------------------------------------------- C and Python -----


@st.composite
def runs(draw: st.DrawFn) -> tuple[Device, Any, Any]:
    """A device, requests and a host that thinks, submits and waits."""
    name = draw(st.sampled_from(names()))
    parameters: dict[str, object] = {
        "queue_depth": draw(st.integers(1, 40)),
        "elevator": draw(st.sampled_from(["none", "mq-deadline"])),
        "fifo_batch": draw(st.integers(1, 20)),
        "read_expire_ms": draw(st.integers(0, 400)),
        "max_request_kib": draw(st.integers(1, 300)),
    }
    if name in DISKS:
        parameters["order"] = draw(st.sampled_from(["oldest", "shortest"]))
        parameters["segments"] = draw(st.integers(0, 4))
    count = draw(st.integers(1, 60))
    choose = np.random.default_rng(draw(st.integers(0, 2**32)))
    near = np.arange(count) * NODE + NODE * choose.integers(0, 3, count)
    blocks = np.where(choose.random(count) < 0.6, near, choose.integers(0, 64_000, count) * NODE)
    size = np.where(choose.random(count) < 0.8, NODE, 512 * choose.integers(1, 300, count))
    if draw(st.booleans()):
        blocks = blocks[choose.permutation(count)]
    host: list[tuple[int, int]] = []
    for number in range(count):
        host.append((int(choose.integers(0, 3_000_000)), number))
        while choose.random() < 0.4:
            host.append((0, ~int(choose.integers(0, number + 1))))
    table = ios(blocks, size, (choose.random(count) < 0.1) & (name in DISKS))
    return load(name, parameters), table, np.array(host, dtype=STEP_FIELDS)


@given(runs())
@settings(max_examples=100)
def test_python_twin_is_equal(run: tuple[Device, Any, Any]) -> None:
    times, totals = simulate(*run)
    with select("python"):
        twin_times, twin_totals = simulate(*run)
    assert times.tolist() == twin_times.tolist()
    assert totals == twin_totals


@given(runs())
@settings(max_examples=50)
def test_a_run_is_possible(run: tuple[Device, Any, Any]) -> None:
    """Nothing is started before it is issued, nothing done before it is started."""
    device, table, host = run
    times, totals = simulate(device, table, host)
    assert np.all(times["issued"] <= times["started"])
    assert np.all(times["started"] < times["done"])
    assert np.all(np.diff(times["issued"].astype(np.int64)) >= 0)
    assert totals.waited + int(host["think"].sum()) == totals.end
    assert totals.requests <= len(table)
    # at no time does the device have more than it takes
    if device.elevator == "none":
        for at in times["started"]:
            busy = (times["started"] <= at) & (times["done"] > at)
            assert busy.sum() <= device.queue_depth


def test_a_million_requests_take_seconds() -> None:
    device = load("hp-c2247a", {"queue_depth": 32, "order": "shortest"})
    _, totals = at_once(device, random_blocks(4, 1_000_000, device), NODE)
    assert 0 < totals.requests < 1_000_000


# ---------------------------------------------------------------------------------- errors -----


def test_wrong_parameters_are_named() -> None:
    table = read_file("hp97560")
    for parameters, what in (
        ({"nonsense": 1}, "no parameter 'nonsense'"),
        ({"rpm": 0}, "hp97560: rpm is 0"),
        ({"heads": 0}, "heads is 0, not a whole number from 1"),
        ({"heads": 1.5}, "heads is 1.5, not a whole number"),
        ({"heads": 1 << 31, "sector_size": 1 << 16, "rpm": 9}, "more than any device has"),
        ({"sector_size": 1 << 17}, "sector_size is 131072, not a whole number from 1 to 65536"),
        ({"segments": 2**32 - 1}, "segments is 4294967295, not a whole number from 0 to 65536"),
        ({"watermark": 1.5}, "watermark is 1.5, which is more than 1"),
        ({"read_ahead_sectors": 257}, "read_ahead_sectors is 257, more than segment_sectors"),
        ({"rpm": 4e9}, "at that rpm 72 sectors pass within 15 ns"),
        ({"miss_overhead_ms": 4e9}, "miss_overhead_ms is 4000000000.0, which is more than 1,000,0"),
        ({"zones": table["zones"] * 2}, "the zones overlap at cylinder 0"),
        ({"rpm": float("inf")}, "rpm is inf"),
        ({"link_mb_s": 0}, "link_mb_s is 0"),
        ({"seek": 3}, "seek is 3, not a table"),
        ({"zones": 1}, "zones is 1, not a list"),
        ({"segments": -1}, "segments is -1"),
        ({"elevator": "cfq"}, "elevator"),
        ({"order": "random"}, "order"),
        ({"zones": []}, "no zones"),
        ({"seek": {"form": "flat"}}, "form"),
        ({"queue_depth": 0}, "queue_depth is 0, not a whole number from 1"),
        ({"queue_depth": 1e9}, "queue_depth is 1000000000.0"),
        ({"head_switch_ms": "fast"}, "head_switch_ms is 'fast', not a number"),
        ({"head_switch_ms": float("nan")}, "head_switch_ms is nan"),
    ):
        with pytest.raises(bm.BtrfsModelError, match=what):
            build("hp97560", table, parameters)
    for dies in (0, 1 << 18, float("inf")):
        with pytest.raises(bm.BtrfsModelError, match="dies is"):
            load("samsung-850-evo", {"dies": dies})
    with pytest.raises(bm.BtrfsModelError, match="missing"):
        build("x", {key: value for key, value in table.items() if key != "rpm"})
    with pytest.raises(bm.BtrfsModelError, match="kind"):
        build("x", {"kind": "tape"})
    with pytest.raises(bm.BtrfsModelError, match="there is deskstar"):
        load("nothing")


@pytest.mark.parametrize("kernels", ["c", "python"])
def test_steps_that_contradict_themselves(kernels: str) -> None:
    device = load("hp97560")
    with select(kernels):
        for wrong in ([0, 0], [~0], [1], [0, ~1], [0, ~0, 0]):
            with pytest.raises(bm.BtrfsModelError, match="hp97560"):
                simulate(device, ios([0], NODE), steps(wrong))
        with pytest.raises(bm.BtrfsModelError, match="bytes; a request ends at"):
            simulate(device, ios([device.capacity - 512], NODE), steps([0]))


@pytest.mark.parametrize("kernels", ["c", "python"])
def test_times_that_no_clock_holds(kernels: str) -> None:
    """Refused, not counted from 0 again: 63 bits of nanoseconds are 292 years."""
    flash = load("samsung-850-evo", {"sense_us": 1e9, "queue_depth": 1, "elevator": "none"})
    assert isinstance(flash.model, Flash)
    slow = replace(flash, model=replace(flash.model, sense=2**62))
    think = 2**62
    with select(kernels):
        for host in (steps([0, 1, ~0, ~1]), steps([0, 1])):
            with pytest.raises(bm.BtrfsModelError, match=r"samsung-850-evo: .* than 292 years"):
                simulate(slow, ios([0, 0], NODE), host)
        with pytest.raises(bm.BtrfsModelError, match="more than 292 years"):
            simulate(flash, ios([0, 0], NODE), steps([0, 1, ~1], [think, think, 0]))
        times, _ = simulate(flash, ios([0], NODE), steps([0], [think]))
        assert times["issued"][0] == think


def test_files_that_are_no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, with the place; the command has no more to say than that."""
    (tmp_path / "devices").mkdir()
    monkeypatch.setenv("BTRFS_MODEL_DATA", str(tmp_path))
    device = tmp_path / "devices" / "mine.toml"
    for content, what in (
        (b"title = x", r"mine\.toml: .*line 1"),
        (b"\xff\xfe", r"mine\.toml: .*0xff"),
        (b"rpm = 3", r"mine\.toml: there is no title"),
        (b'title = "x"', "mine: kind is None"),
        (b'title = "x"\nkind = "flash"', "mine: parameter 'channels' is missing"),
        (b'title = "x"\nkind = "disk"\nzones = [1]\nheads = 1\nsector_size = 512', "mine: zones"),
    ):
        device.write_bytes(content)
        with pytest.raises(bm.BtrfsModelError, match=what):
            load("mine")


def test_kernels_trust_no_model() -> None:
    """A disk or flash that contradicts itself is refused by the C kernel itself."""
    zone = {
        "first_sector": 0, "sectors": 720, "first_cylinder": 0, "cylinders": 10, "first_track": 0,
        "sectors_per_track": 72, "track_skew": 0, "cylinder_skew": 0,
    }  # fmt: skip
    disk = {
        "zone_count": 1, "seek_count": 10, "heads": 1, "sector_size": 512, "revolution": 10**7,
        "segments": 1, "segment_size": 10, "read_ahead": 5,
    }  # fmt: skip
    device = {"capacity": 720 * 512, "queue_depth": 4, "elevator": 1, "fifo_batch": 1}

    def run(
        zone: Mapping[str, int], disk: Mapping[str, int], device: Mapping[str, int], end: int
    ) -> int:
        zones, seeks = ffi.new("struct bm_disk_zone[1]", [dict(zone)]), ffi.new("uint64_t[10]")
        raw = ffi.new("struct bm_disk *", {**disk, "zones": zones, "seek_time": seeks})
        whole = ffi.new("struct bm_device *", {**device, "disk": raw})
        request = ffi.new("struct bm_io[1]", [{"offset": end - 512, "length": 512}])
        host = ffi.new("struct bm_io_step[2]", [{"io": 0}, {"io": -1}])
        times, totals = ffi.new("struct bm_io_time[1]"), ffi.new("struct bm_io_totals *")
        fault = new_fault()
        return int(lib.bm_device_run(whole, request, 1, host, 2, times, totals, fault))

    good = 720 * 512
    assert run(zone, disk, device, good) == 0
    assert run(zone, disk, device, good + 512) == lib.BM_BAD_VALUE
    for wrong in (
        {"sectors_per_track": 0}, {"sectors": 0}, {"first_sector": 1}, {"first_cylinder": 1},
        {"sectors": 721}, {"first_track": 1}, {"cylinders": 9}, {"sectors": 2**64 - 1},
    ):  # fmt: skip
        assert run({**zone, **wrong}, disk, device, good) == lib.BM_BAD_VALUE, wrong
    for wrong in (
        {"zone_count": 0}, {"heads": 0}, {"sector_size": 0}, {"revolution": 71},
        {"watermark": 1001}, {"read_ahead": 11}, {"seek_count": 9}, {"segments": 65537},
        {"segments": 2**32 - 1},
    ):  # fmt: skip
        assert run(zone, {**disk, **wrong}, device, good) == lib.BM_BAD_VALUE, wrong
    for wrong in ({"queue_depth": 0}, {"fifo_batch": 0}, {"capacity": good + 512}):
        assert run(zone, disk, {**device, **wrong}, good) == lib.BM_BAD_VALUE, wrong


# ----------------------------------------------------------------------------------- reads -----


def on(
    fs: Filesystem, device: str | Device = "hp97560", parameters: Any = None,
    think: float | None = None, **options: Any,
) -> pd.DataFrame:  # fmt: skip
    return bm.reads(fs, "snap1", **options).on(device, parameters, think=think)


def test_reads_wait_for_what_they_want() -> None:
    with Filesystem.open(corpus.image(R5K)) as fs:
        plain = bm.reads(fs, "snap1")
        timed = plain.on("hp97560")
        pd.testing.assert_frame_equal(plain, timed[list(plain.columns)], check_like=False)
    issued, done = timed["issued"], timed["done"]
    assert issued.is_monotonic_increasing
    assert (done > issued).all()
    # after a read on demand nothing is issued before it is done
    demand = (timed["kind"] == "demand").to_numpy()[:-1]
    assert (issued.to_numpy()[1:] >= done.to_numpy()[:-1])[demand].all()
    assert timed.attrs["seconds"] * 1e9 >= done[timed["used"]].max()
    time = timed.attrs["time"]
    assert time["parts"]["device"] == timed.attrs["waited"]
    assert timed.attrs["seconds"] == time["seconds"] == pytest.approx(sum(time["parts"].values()))


def test_work_hides_waiting() -> None:
    """The longer the work on a leaf, the less is waited for what was read ahead."""
    with Filesystem.open(corpus.image(R5K)) as fs:
        waits = [
            on(fs, "samsung-850-evo", behaviour="v6.18", think=us).attrs["waited"]
            for us in (0, 10, 50)
        ]
        assert waits[0] > waits[1] > waits[2]
        # what is read on demand alone is waited for in full, whatever the work
        alone = [
            on(fs, "samsung-850-evo", behaviour="v5.12", think=us).attrs["waited"]
            for us in (0, 10, 50)
        ]
        assert alone[0] == alone[1] == alone[2] > waits[0]
        # and without any waiting the work remains
        memory = on(fs, "memory", parameters={"sense_us": 0, "channel_mb_s": 1e6, "link_mb_s": 1e6})
        assert memory.attrs["waited"] < 1e-4


def test_readahead_is_overlapped() -> None:
    with Filesystem.open(corpus.image(R5K)) as fs:
        before = on(fs, behaviour="v5.12")
        after = on(fs, behaviour="v6.18")
        window = on(fs, behaviour="v6.18", limits={"always_leaves": 1 << 20})
        deep = on(fs, behaviour="v6.18", parameters={"queue_depth": 16, "order": "shortest"})
    assert set(before["logical"]) == set(after["logical"]) == set(window["logical"])
    # the elevator makes one request of neighbours that are read ahead
    assert before.attrs["requests"] == len(before) > after.attrs["requests"]
    assert before.attrs["seconds"] > after.attrs["seconds"]
    assert window.attrs["requests"] < after.attrs["requests"]
    assert deep.attrs["seconds"] != after.attrs["seconds"]


@pytest.mark.parametrize("device", ["hp97560", "samsung-850-evo"])
@pytest.mark.parametrize("behaviour", ["v5.12", "v5.12 + send-reada", "v6.18"])
def test_the_kernel_waits_for_what_is_in_flight(device: str, behaviour: str) -> None:
    """Block by block, what comes later than it is needed is what the send waits for."""
    with Filesystem.open(corpus.image(R5K)) as fs:
        far = {"near": 1 << 20, "distance": 1 << 20}
        for reads in (
            bm.reads(fs, "snap1", behaviour=behaviour), bm.readdir_reads(fs, "snap1", limits=far),
            bm.reads(fs, "snap2", behaviour=behaviour, parent="snap1"),
        ):  # fmt: skip
            table = reads.on(device, think=30)
            assert ((table.needed >= 0) == table.used).all()
            used = table[table.used]
            late = (used.done - used.needed).clip(lower=0)
            assert late.sum() == round(table.attrs["waited"] * 1e9)
            # what is read on demand is waited for from its submission
            demand = used.kind == "demand"
            assert (used.needed[demand] == used.issued[demand]).all()
            assert (used.needed[~demand] >= used.issued[~demand]).all()
            assert used.needed.max() <= table.attrs["seconds"] * 1e9


@pytest.mark.parametrize("behaviour", ["v5.12", "v5.13", "v6.18"])
def test_reads_on_devices_are_the_twins(behaviour: str) -> None:
    tables = []
    for kernels in ("c", "python"):
        with Filesystem.open(corpus.image("features/nodesize-4096")) as fs, select(kernels):
            snapshots = [which for which in fs.subvolume_ids if fs.subvolume(which).is_read_only]
            full = bm.reads(fs, snapshots[0], behaviour=behaviour)
            changed = bm.reads(fs, snapshots[-1], behaviour=behaviour, parent=snapshots[0])
            tables.append(
                [
                    full.on("deskstar-7k500"),
                    changed.on("deskstar-7k500"),
                    bm.readdir_reads(fs, snapshots[0]).on("hp97560"),
                ]
            )
    for one, other in zip(*tables, strict=True):
        pd.testing.assert_frame_equal(one, other)
        assert one.attrs == other.attrs


@pytest.mark.parametrize("behaviour", ["v5.10", "v5.12 + send-reada", "v5.13", "v6.18"])
def test_a_plain_snapshot_is_read_without_its_stream(behaviour: str) -> None:
    """The walk alone reads what the send reads, and comes to it at the same moments."""
    from btrfs_model.questions.send import ioctl, native

    plain = 0
    for name in (R5K, "send/random/seed-003", "features/nodesize-4096"):
        with Filesystem.open(corpus.image(name)) as fs:
            for which in fs.subvolume_ids:
                if not fs.subvolume(which).is_read_only:
                    continue
                request = ioctl.prepare(fs, which, behaviour=behaviour, write=lambda data: None)
                sent = ioctl.run(request, [])[2]
                assert ioctl.reads(request, []).tolist() == sent.tolist(), (name, which)
                fs.image.start_cold([])
                plain += native.walk(request)
                fs.image.stop_cold()
    assert plain >= 2


def test_the_page_on_times_says_what_a_disk_that_reads_far_ahead_does() -> None:
    page = " ".join((corpus.PROJECT / "docs/validation.md").read_text().split())
    seen = {}
    with bm.open(bm.sample("kernel/reada/r5k")) as fs:
        for kernel in ("v5.12", "v5.15"):
            reads = bm.reads(fs, "snap1", behaviour=kernel)
            for sectors in (128, 2048):
                seen[kernel, sectors] = reads.on(
                    "deskstar-7k500", {"read_ahead_sectors": sectors}
                ).attrs
    told = {
        key: (f"{one['seconds']:.2f} s", one["requests"] - one["buffered"], one["seeks"])
        for key, one in seen.items()
    }
    assert "they take {}, {} requests come off the medium with {} seeks;".format(
        *told["v5.12", 2048]
    ) in page  # fmt: skip
    assert "as in 5.15 it is {}, {} and {}.".format(*told["v5.15", 2048]) in page
    near = [told[kernel, 128][0] for kernel in ("v5.12", "v5.15")]
    assert f"({near[0].removesuffix(' s')} and {near[1]})" in page


def test_options_that_go_with_a_device() -> None:
    with Filesystem.open(corpus.image(R5K)) as fs:
        for wrong in ({"think": 1.0}, {"parameters": {"rpm": 5400}}):
            with pytest.raises(TypeError, match="device"):
                bm.reads(fs, "snap1").on(**wrong)
        with pytest.raises(ValueError, match="name of a device"):
            on(fs, load("hp97560"), parameters={"rpm": 5400})
        with pytest.raises(bm.BtrfsModelError, match="microseconds"):
            on(fs, think=-1)
        small = {"zones": [dict(read_file("hp97560")["zones"][0], cylinders=20)]}
        with pytest.raises(bm.BtrfsModelError, match="bytes; a request ends at"):
            on(fs, parameters=small)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(corpus.image(R5K))
    with Filesystem.open(image) as fs:
        table = on(fs, parameters={"queue_depth": 4}, limits={"always_leaves": 65536}, think=9)

    def run(*arguments: str) -> str:
        assert run_cli(["reads", image, "snap1", *arguments]) == 0
        return capsys.readouterr().out

    chosen = ["--device", "hp97560", "--set", "queue_depth=4", "--limits", "always_leaves=64K"]
    chosen += ["--think", "9"]
    rows = [json.loads(line) for line in run(*chosen, "--json").splitlines()]
    assert rows == table.reset_index().to_dict("records")
    header, line = run(*chosen, "--total").splitlines()
    total = dict(zip(header.split("\t"), line.split("\t"), strict=True))
    assert total["device"] == "hp97560"
    assert total["seconds"] == str(table.attrs["seconds"])
    assert total["reads"] == str(len(table))
    assert json.loads(run(*chosen, "--total", "--json"))["seeks"] == table.attrs["seeks"]
    written = tmp_path / "reads.parquet"
    assert run(*chosen, "--out", str(written)) == ""
    pd.testing.assert_frame_equal(pd.read_parquet(written), table.reset_index())
    listed = dict(line.split("\t") for line in run("--devices").splitlines())
    assert list(listed) == names()
    for status, wrong in (
        (2, ["--think", "3"]),
        (2, ["--total"]),
        (2, ["--set", "rpm=3"]),
        (2, ["--device", "hp97560", "--set", "rpm"]),
        (2, ["--device", "hp97560", "--think", "-1"]),
        (2, ["--device", "hp97560", "--think", "1e9"]),
        (2, ["--device", "hp97560", "--think", "nan"]),
        (2, ["--limits", "nearly=1"]),
        (2, ["--limits", "near=many"]),
        (1, ["--device", "hp97561"]),
        (1, ["--device", "hp97560", "--set", "rmp=3"]),
    ):
        assert run_cli(["reads", image, "snap1", *wrong]) == status, wrong
        assert len(capsys.readouterr().err.splitlines()) == (1 if status == 1 else 4)
