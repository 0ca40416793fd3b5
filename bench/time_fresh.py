# SPDX-License-Identifier: GPL-2.0-only
"""Workloads and filesystems of chance on kernels that are here, beside their predicted times.

They stand in turn with the microbenchmarks of a calibration, which find the costs of this machine:
one that was measured on another processor has other proportions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import btrfs_model as bm
from bench import time_rows
from bench.time_rows import Pair, Row
from btrfs_model.experiments.calibration import operations
from btrfs_model.experiments.calibration.costs import TERMS
from btrfs_model.experiments.calibration.fit import amounts, fit
from btrfs_model.experiments.calibration.measure import measure
from btrfs_model.experiments.calibration.micro import microbenchmarks
from btrfs_model.experiments.calibration.operations import Micro, Send
from btrfs_model.experiments.workloads import log_dir, send_utimes
from btrfs_model.kernels import native, timings, uml
from btrfs_model.kernels.choice import start
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.timings import Timing

SEEDS = range(6)
SENDS = "fresh sends"
"""Source of rows that are sends."""
_PASSES = 3
_LOG_DIR = "log-dir-index-only"
_SMALL_MAP = 32_000 / 327_680


def random_filesystem(seed: int) -> bm.WritableFilesystem:
    """Make directories and files of chance, a snapshot, changes of chance, another snapshot."""
    chance = np.random.default_rng(seed)
    fs = bm.create(4 << 30)
    names = []
    for folder in range(int(chance.integers(1, 40))):
        made = [f"f{number}" for number in range(int(chance.integers(20, 600)))]
        fs.mkdir(f"d{folder}")
        fs.create_files(f"d{folder}", made)
        names += [f"d{folder}/{name}" for name in made]
    _change(fs, names, chance, 0.1)
    fs.snapshot("", "s1")
    _change(fs, names, chance, 0.3)
    fs.snapshot("", "s2")
    return fs


def _change(fs: bm.WritableFilesystem, names: list[str], chance: Any, share: float) -> None:
    for number, name in enumerate(list(names)):
        if chance.random() > share:
            continue
        kind = int(chance.integers(5))
        if kind == 0:
            fs.chmod(name, int(chance.integers(0o400, 0o777)))
        elif kind == 1:
            fs.setxattr(name, "user.a", b"v" * int(chance.integers(1, 400)))
        elif kind == 2:
            fs.write(name, 0, b"x" * int(chance.integers(1, 60_000)))
        elif kind == 3:
            fs.link(name, f"{name}.link{number}.{chance.integers(1 << 30)}")
        else:
            fs.rename(name, f"{name}.new")
            names[names.index(name)] = f"{name}.new"


class _Map(Send):
    """FIEMAP of fiemap-shared, in memory or after a mount."""

    def __init__(self, scale: float, *, cold: bool) -> None:
        super().__init__(lambda: bm.build("fiemap-shared", scale))
        self.scale, self.cold = scale, cold

    def work(self, behaviour: str) -> Mapping[str, float]:
        return time_rows.mapped(self.scale, behaviour, cold=self.cold)

    def time(self, kernel: Kernel, runs: int) -> Timing:
        return timings.fiemap(kernel, self.image, "foobar", runs=runs, cold=self.cold)


class _Log(operations.Fsync):
    """One of the two fsyncs of log-dir."""

    def __init__(self, files: int, deletes: int, which: int) -> None:
        names = [f"file_{number}" for number in range(1, files + 1)]
        calls: list[operations.Call] = [
            ("mkdir", log_dir.DIRECTORY),
            ("create_files", log_dir.DIRECTORY, names),
            ("fsync", log_dir.DIRECTORY),
        ]
        if which > 1:
            gone = names[:: files // deletes]
            calls += [
                ("sync",), ("unlink_files", log_dir.DIRECTORY, gone), ("fsync", log_dir.DIRECTORY)
            ]  # fmt: skip
        super().__init__(*calls)
        self.size, self.which = (files, deletes), which

    def work(self, behaviour: str) -> Mapping[str, float]:
        return time_rows.logged(*self.size, behaviour)[self.which - 1]

    def time(self, kernel: Kernel, runs: int) -> Timing:
        return timings.steps(kernel, self.calls, runs=runs)[-1]


class _Receive(operations.Receive):
    """A receiver of send-truncate."""

    def __init__(self, *, truncates: bool) -> None:
        super().__init__(lambda: bm.build("send-truncate", 1))
        self.truncates = truncates

    def prepare(self, folder: Path) -> None:
        self.stream = folder / "stream"
        self.stream.write_bytes(time_rows.stream_of(self.truncates))


def _first(workload: str, scale: float) -> Callable[[], Any]:
    return lambda: bm.build(workload, scale)


def _random(seed: int, *snapshots: str) -> Send:
    return Send(lambda: random_filesystem(seed), *snapshots)


def _sends(sizes: tuple[int, ...]) -> list[Micro]:
    return [
        *(Micro(f"send-utimes, {files:,} files",
                Send(lambda n=files: send_utimes.build(n), "snap2", "snap1")) for files in sizes),
        Micro("send-utimes, 20,000 files, through a pipe",
              operations.PipedSend(lambda: send_utimes.build(20_000), "snap2", "snap1")),
        Micro("send-truncate, 20,000 files", Send(_first("send-truncate", 1), "snap1")),
        Micro("send-readahead, 5,000 files", Send(_first("send-readahead", 0.01), "snap1")),
        Micro("send-readahead, 20,000 files, cold",
              operations.ColdSend(_first("send-readahead", 0.04), "snap1")),
        *(Micro(f"random {seed}, full", _random(seed, "s1")) for seed in SEEDS),
        *(Micro(f"random {seed}, difference", _random(seed, "s2", "s1")) for seed in SEEDS),
        *(Micro(f"random {seed}, difference, through a pipe",
                operations.PipedSend(lambda seed=seed: random_filesystem(seed), "s2", "s1"))
          for seed in SEEDS[:3]),
    ]  # fmt: skip


def _maps() -> list[Micro]:
    return [
        Micro(f"fiemap-shared, {name}, {'cold' if cold else 'cached'}", _Map(scale, cold=cold))
        for name, scale in (("1/10", _SMALL_MAP), ("full", 1.0))
        for cold in (True, False)
    ]


def _logs(sizes: tuple[tuple[int, int], ...]) -> list[Micro]:
    return [
        Micro(f"log-dir, {files:,} files, fsync {which}", _Log(files, deletes, which))
        for files, deletes in sizes
        for which in log_dir.FSYNCS
    ]


def _receivers() -> list[Micro]:
    return [
        Micro(f"send-truncate received, {'with' if truncates else 'without'} truncates",
              _Receive(truncates=truncates))
        for truncates in (False, True)
    ]  # fmt: skip


def fresh(step: Callable[[str], None]) -> list[Row]:
    """Time all workloads on kernels, in turn with microbenchmarks.

    These are named by ``BTRFS_MODEL_TIMED``, each as ``btrfs-model calibrate --kernel`` takes it,
    and ``+log-dir-index-only`` behind it where it has that commit besides: then log-dir alone is
    timed. Without it those that are here: ``native``, ``uml``.
    """
    here = {"native": native.why_not(), "uml": uml.why_not()}
    there = os.environ.get("BTRFS_MODEL_TIMED", " ".join(one for one in here if not here[one]))
    rows: list[Row] = []
    logs = {"fresh logs": _logs(((1000, 100), (10_000, 1000), (100_000, 1000)))}
    for which in there.split():
        is_native = which == "native"
        sizes = (20_000, 40_000, 60_000)
        rows += _on(which, step, logs if which.endswith(f"+{_LOG_DIR}") else {
            SENDS: _sends(sizes if is_native else sizes[:1]),
            "fresh maps": _maps(),
            **logs,
            "fresh receivers": _receivers(),
        })  # fmt: skip
    return rows


def fresh_ratios(rows: Sequence[Row]) -> list[Pair]:
    """Compare operations in 6.1 and 6.12, without and with log-dir, with and without truncates."""
    of: dict[str, dict[str, Row]] = {}
    for row in rows:
        of.setdefault(row.machine.split(",")[0], {})[row.what] = row
    releases = {release: name for name in of for release in ("6.1", "6.12")
                if name.startswith(f"uml {release}.")}  # fmt: skip
    sides = [("6.1 to 6.12", releases.get("6.1"), releases.get("6.12"), ("send-utimes", "fiemap"))]
    sides += [(f"{name[4:]} without and with", name, f"{name} + {_LOG_DIR}", ("log-dir",))
              for name in of if f"{name} + {_LOG_DIR}" in of]  # fmt: skip
    pairs = [
        (f"{what}, {which}", row, after)
        for which, before, patched, workloads in sides if before and patched
        for what, row in of[before].items()
        if (after := of[patched].get(what)) and what.startswith(workloads)
    ]  # fmt: skip
    fewer, more = (micro.name for micro in _receivers())
    pairs += [
        (f"send-truncate received, with to without, {name}", of_kernel[more], of_kernel[fewer])
        for name, of_kernel in of.items()
        if {fewer, more} <= of_kernel.keys()
    ]
    return [
        Pair(f"{what}, fresh", before.measured / after.measured, before.predicted / after.predicted)
        for what, before, after in pairs
    ]


def _on(which: str, step: Callable[[str], None], runs: Mapping[str, Sequence[Micro]]) -> list[Row]:
    micros = microbenchmarks()
    source_of = {one.name: source for source, of_source in runs.items() for one in of_source}
    timed = [*micros[1:], *(one for of_source in runs.values() for one in of_source)]
    binary = which.removesuffix(f"+{_LOG_DIR}")
    with start(binary) as kernel:
        behaviour = kernel.preset if binary == which else f"{kernel.preset} + {_LOG_DIR}"
        measured = measure(kernel, timed, 0, _PASSES, step, behaviour)
        world = "native" if which == "native" else "uml"
        name = f"{world} {behaviour[1:]}, measured with it"
    found = fit(TERMS, [row for row in measured.rows if row.name not in source_of])
    return [
        Row(source_of[row.name], name, row.name, row.took,
            float(amounts(TERMS, row.work) @ found.values))
        for row in measured.rows if row.name in source_of
    ]  # fmt: skip
