# SPDX-License-Identifier: GPL-2.0-only
"""Times that kernels took for workloads, each with the work that the model counts for the same.

None of them takes part in a calibration. Recorded ones are in the folder ``timings`` of
``BTRFS_MODEL_ORACLE``; they come from other hours of a host whose speed changes by half and more.
So each recording, a file for one kernel, has a factor: the first of its rows that reads nothing
tells it and is not counted as predicted. Where microbenchmarks were recorded as well, these tell
the factor.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import btrfs_model as bm
from btrfs_model.base.counters import Work
from btrfs_model.cost import machine as machines
from btrfs_model.cost.answer import amounts_of_reads
from btrfs_model.cost.machine import Machine
from btrfs_model.cost.pipe import through_a_pipe
from btrfs_model.cost.prediction import predict
from btrfs_model.experiments.workloads import log_dir, send_utimes
from btrfs_model.questions.fiemap.api import Fiemap
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.questions.reads.walk import reads_and_work
from btrfs_model.questions.send.ioctl import amounts_of, prepare

Amounts = Mapping[str, float]
LARGEST_LOG = 100_000
_SWITCH = 47e-6
"""Seconds that a system call of a guest takes more where its processes are on two processors.

The guests that were recorded ran so; those of the machines run on one. 5,000 calls of getppid()
took 13 us each on one and 60 us on two, in User-Mode Linux 6.1, 6.12 and 5.10 alike. It matters to
FIEMAP, which is many calls.
"""
_PATCHED = "+patch"
"""How a recording says that a kernel of 5.10 had log-dir and nothing else."""


@dataclass
class Row:
    """A time that a kernel took, and the prediction.

    Attributes
    ----------
    source : str
        Where the time comes from.
    machine : str
        Whose costs predict it.
    what : str
        The operation.
    measured, predicted : float
        Seconds; the prediction by the factor of its recording.
    is_used : bool
        Whether the time tells the factor, so that it is not predicted.
    """

    source: str
    machine: str
    what: str
    measured: float
    predicted: float
    is_used: bool = False

    @property
    def error(self) -> float:
        """Of the prediction, relative."""
        return self.predicted / self.measured - 1


def predicted(machine: Machine, work: Amounts) -> float:
    """Seconds of recorded work, by the machine of a kernel."""
    switches = work.get("btrfs_fiemap", 0) if machine.kind == "uml" else 0
    return predict(machine, work).seconds + switches * _SWITCH


@cache
def machine_of(kernel: str) -> Machine | None:
    """Return the machine of a kernel, by the first two numbers of its release."""
    for name in machines.names():
        machine = machines.load(name)
        if kernel.split(".")[:2] == machine.kernel.removeprefix("v").split(".")[:2]:
            return machine
    return None


# -------------------------------------------------------------------------------------- work --


@cache
def _utimes(files: int) -> Any:
    return send_utimes.build(files)


@cache
def utimes(files: int, behaviour: str) -> Amounts:
    """Work of the send of send-utimes."""
    return bm.send(_utimes(files), "snap2", "snap1", ["snap1"], behaviour=behaviour).amounts


@cache
def _built(workload: str, scale: float) -> Any:
    return bm.build(workload, scale)


@cache
def full_send(workload: str, scale: float, behaviour: str, *, cold: bool = False) -> Amounts:
    """Work of the full send of a workload's first snapshot, in memory or after a mount."""
    fs = _built(workload, scale)
    if not cold:
        return bm.send(fs, "snap1", behaviour=behaviour).amounts
    kernel = bm.Behaviour.parse(behaviour)
    request = prepare(fs, "snap1", behaviour=kernel, write=lambda data: None)
    cached = blocks_after_mount(fs, [fs.subvolume("snap1")], kernel, writable=False)
    rows, work = reads_and_work(request, cached, counted=True)
    return {**work, **amounts_of_reads(rows)}


@cache
def mapped(scale: float, behaviour: str, *, cold: bool) -> Amounts:
    """Work of mapping the file of fiemap-shared."""
    fs = _built("fiemap-shared", scale)
    file = Fiemap(fs, "", "foobar", behaviour=behaviour)
    if not cold:
        file.run()
        with bm.counting() as work:
            file.run()
        return dict(work)
    kernel = bm.Behaviour.parse(behaviour)
    fs.image.start_cold(blocks_after_mount(fs, [fs.subvolume("")], kernel))
    with bm.counting() as work:
        file.run()
    return {**work, **amounts_of_reads(fs.image.stop_cold())}


@cache
def logged(files: int, deletes: int, behaviour: str) -> tuple[Amounts, Amounts]:
    """Work of the two fsyncs of log-dir."""
    found = []
    with log_dir.build(files, worker=True) as fs:  # kernels have the thread
        fs.behaviour = bm.Behaviour.parse(behaviour)
        for which in log_dir.FSYNCS:
            if which > 1:
                log_dir.delete(fs, files, deletes)
            with bm.counting() as work:
                fs.fsync(log_dir.DIRECTORY)
            found.append(dict(work))
    return found[0], found[1]


@cache
def stream_of(truncates: bool) -> bytes:
    """Send send-truncate, with a truncate for each file or without."""
    behaviour = "v6.18 - send-skip-truncate" if truncates else "v6.18"
    return bm.send(_built("send-truncate", 1), "snap1", behaviour=behaviour).data or b""


@cache
def received(truncates: bool) -> Amounts:
    """Work of receiving :func:`stream_of`."""
    data = stream_of(truncates)
    return {**Counter(bm.receiver_calls(bm.read_stream(data))), "stream_bytes": len(data)}


# ---------------------------------------------------------------------------------- recorded --


def _rows(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def _sent_again(work: Amounts, kernel: str) -> Amounts:
    """Leave out the reads of file data that a send of 5.10 left in the page cache."""
    if not kernel.startswith("v5.10."):
        return work
    return {name: count for name, count in work.items() if name != "data_reads"}


def _recorded_sends(folder: Path) -> Iterator[tuple[str, str, float, Callable[[str], Amounts]]]:
    for row in _rows(folder, "send"):
        workload, n = row["workload"], row["n"]
        work: Callable[[str], Amounts]
        if workload == "send-utimes":
            work = lambda kernel, n=n: utimes(n, kernel)  # noqa: E731
        elif workload == "send-truncate":
            work = lambda kernel: _sent_again(full_send("send-truncate", 1, kernel), kernel)  # noqa: E731
        else:
            work = lambda kernel: full_send("send-readahead", 0.01, kernel)  # noqa: E731
        # the first run reads the metadata
        took = float(np.median(row["ioctl_ms"][1:])) / 1e3
        yield row["kernel"].split()[0], f"{workload}, {n:,} files", took, work


def _recorded_maps(folder: Path) -> Iterator[tuple[str, str, float, Callable[[str], Amounts]]]:
    for row in _rows(folder, "fiemap"):
        if "complete" not in row["operation"]:
            continue
        cold, scale = "cold" in row["operation"], row["parameters"]["scale"]
        work = lambda kernel, cold=cold, full=scale == "full": mapped(  # noqa: E731
            1.0 if full else 32_000 / 327_680, kernel, cold=cold
        )
        what = f"fiemap-shared, {scale}, {'cold' if cold else 'cached'}"
        yield row["kernel"], what, row["median"] / 1e3, work


def _recorded_logs(folder: Path) -> Iterator[tuple[str, str, float, Callable[[str], Amounts]]]:
    for row in _rows(folder, "log"):
        files, deletes = row["parameters"]["N"], row["parameters"]["D"]
        if "fsync" not in row["operation"] or files > LARGEST_LOG:
            continue
        which = int("second" in row["operation"])
        work = lambda kernel, n=files, d=deletes, which=which: logged(n, d, kernel)[  # noqa: E731
            which
        ]
        yield (
            row["kernel"],
            f"log-dir, {files:,} files, fsync {which + 1}",
            row["median"] / 1e3,
            work,
        )


def _recorded_receives(folder: Path) -> Iterator[tuple[str, str, float, Callable[[str], Amounts]]]:
    for row in _rows(folder, "receive"):
        # what was measured in User-Mode Linux is one run, too weak to use, as its note says
        plain = not any(word in row["operation"] for word in ("syncfs", "system time", "user time"))
        if row["kernel"].startswith("6.18") and plain:
            added = bool(row["parameters"]["commands_added"])
            what = f"send-truncate received, {'with' if added else 'without'} truncates"
            yield row["kernel"], what, row["median"] / 1e3, lambda _, a=added: received(a)


def _recorded_readahead(folder: Path) -> Iterator[tuple[str, str, float, Callable[[str], Amounts]]]:
    for row in _rows(folder, "readahead"):
        of = row["parameters"]
        if of["latency_mode"] != "none" or of["files"] > 20_000:
            continue
        cold = "cold" in row["operation"]
        what = f"send-readahead, {of['files']:,} files, {'cold' if cold else 'cached'}"
        scale = of["files"] / 500_000

        def work(kernel: str, cold: bool = cold, scale: float = scale) -> Amounts:
            # these were sent through a pipe, all others into a file in memory
            return through_a_pipe(full_send("send-readahead", scale, kernel, cold=cold))

        yield row["kernel"], what, row["median"] / 1e3, work


SOURCES = {
    "send": _recorded_sends,
    "fiemap": _recorded_maps,
    "log": _recorded_logs,
    "receive": _recorded_receives,
    "readahead": _recorded_readahead,
}


def recorded(folder: Path, step: Callable[[str], None]) -> list[Row]:
    """Predict all recorded times of kernels; two of 5.10 are one recording."""
    found = _with_micro(folder)
    for source, of_source in SOURCES.items():
        of_machines: dict[str, list[Row]] = {}
        for kernel, what, seconds, work in of_source(folder):
            if machine := machine_of(kernel):
                step(f"{source}: {what}, {machine.name}")
                is_patched = kernel.endswith(_PATCHED)
                side = f"{machine.kernel} + log-dir-index-only" if is_patched else machine.kernel
                made = predicted(machine, work(side))
                name = f"{what}, with log-dir" if is_patched else what
                row = Row(source, machine.name, name, seconds, made)
                of_machines.setdefault(kernel.removesuffix(_PATCHED), []).append(row)
        for rows in of_machines.values():
            _set_speed(rows)
            found += rows
    return found


def _set_speed(rows: list[Row]) -> None:
    """Let the first of a recording tell the processor's speed; one that does not read first."""
    first = next(row for row in rows if "cold" not in row.what)
    factor = first.measured / first.predicted
    for row in rows:
        row.predicted *= factor
    first.is_used = True


def _with_micro(folder: Path) -> list[Row]:
    """Predict the sends that were recorded beside microbenchmarks, which tell the factor."""
    machine, rows = machine_of("6.18.44"), _rows(folder, "send-micro")
    if machine is None or not rows:
        return []
    made = []
    for row in rows:
        work = Work()
        for name, count in row["work"].items():
            work.count(name, count)
        predicted = predict(machine, amounts_of(work, row["stream_bytes"])).seconds
        made.append((row["name"], sorted(row["ms"])[len(row["ms"]) // 2] / 1e3, predicted))
    quotients = sorted(took / guess for name, took, guess in made if not name.startswith("S0_"))
    factor = quotients[len(quotients) // 2]
    return [
        Row("send-micro", machine.name, f"send-utimes, {int(name[3:]):,} files", took,
            guess * factor)
        for name, took, guess in made
        if name.startswith("S0_")
    ]  # fmt: skip


# ------------------------------------------------------------------------------------ ratios --


@dataclass
class Pair:
    """Two times of kernels and how many times as long the first was; the same predicted."""

    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Of the predicted ratio, relative."""
        return self.predicted / self.measured - 1


@dataclass
class Message(Pair):
    """A ratio that a commit message reports, and the 90 % interval of the predicted one.

    Attributes
    ----------
    low, high : float
        The interval.
    least, most : float
        Between what the reported one lies, by the digits and the runs of its times.
    """

    low: float
    high: float
    least: float
    most: float


def ratios(folder: Path, step: Callable[[str], None]) -> list[Pair]:
    """Predict recorded ratios before and after a change; no factor is needed."""
    old, new, native = map(machine_of, ("6.1.176", "6.12.101", "6.18.44"))
    found = []
    times = {
        (source, kernel, what): (seconds, work)
        for source in ("send", "fiemap", "receive")
        for kernel, what, seconds, work in SOURCES[source](folder)
    }
    for (source, kernel, what), (seconds, work) in times.items():
        after = times.get((source, "6.12.101", what))
        if kernel != "6.1.176" or after is None or source == "receive" or not (old and new):
            continue
        if source == "send" and "utimes" not in what:
            continue
        step(f"ratio: {what}")
        made = [predicted(on, of(on.kernel)) for on, of in ((old, work), (new, after[1]))]
        found.append(Pair(f"{what}, 6.1 to 6.12", seconds / after[0], made[0] / made[1]))
    if before_logs := machine_of("5.10.223"):
        found += _log_ratios(folder, before_logs, step)
    receives = [value for (source, *_), value in times.items() if source == "receive"]
    if native and len(receives) == 2:
        (without, fewer), (with_them, more) = receives
        made = [predict(native, work(native.kernel)).seconds for work in (more, fewer)]
        found.append(
            Pair("send-truncate received, with to without", with_them / without, made[0] / made[1])
        )
    return found


def _log_ratios(folder: Path, machine: Machine, step: Callable[[str], None]) -> list[Pair]:
    before: dict[tuple[int, int, int], float] = {}
    after = dict(before)
    for row in _rows(folder, "log"):
        files, deletes = row["parameters"]["N"], row["parameters"]["D"]
        side = {"5.10.223": before, f"5.10.223{_PATCHED}": after}.get(row["kernel"])
        if side is not None and "fsync" in row["operation"] and files <= LARGEST_LOG:
            side[files, deletes, int("second" in row["operation"])] = row["median"]
    found = []
    for (files, deletes, which), took in before.items():
        step(f"ratio: log-dir, {files:,} files")
        made = [
            predict(machine, logged(files, deletes, kernel)[which]).seconds
            for kernel in ("v5.10.223", "v5.10.223 + log-dir-index-only")
        ]
        found.append(
            Pair(f"log-dir, {files:,} files, fsync {which + 1}, 5.10.223 without and with",
                 took / after[files, deletes, which], made[0] / made[1])
        )  # fmt: skip
    return found
