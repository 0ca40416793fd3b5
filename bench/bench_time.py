# SPDX-License-Identifier: GPL-2.0-only
"""Times predicted, beside those that kernels took; ``docs/validation.md`` is made of this.

Fresh runs (as root) stand in turn with the microbenchmarks of a calibration, which find the costs
of this machine: one that was measured on another processor has other proportions.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import btrfs_model as bm
from bench.time_rows import Message, Pair, Row, ratios, recorded
from btrfs_model.experiments.calibration.costs import TERMS
from btrfs_model.experiments.calibration.fit import amounts, fit
from btrfs_model.experiments.calibration.measure import measure
from btrfs_model.experiments.calibration.micro import Micro, Send, microbenchmarks
from btrfs_model.experiments.workloads import send_utimes
from btrfs_model.kernels import native
from btrfs_model.kernels.choice import start

SEEDS = range(6)
_PASSES = 3


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


def _first(workload: str, scale: float) -> Send:
    return Send(lambda: bm.build(workload, scale), "snap1")


def _random(seed: int, *snapshots: str) -> Send:
    return Send(lambda: random_filesystem(seed), *snapshots)


def fresh(step: Callable[[str], None]) -> list[Row]:
    """Time sends on this machine's kernel, in turn with the microbenchmarks of a calibration."""
    if native.why_not():
        return []
    sends = [
        Micro(
            f"send-utimes, {files:,} files",
            Send(lambda n=files: send_utimes.build(n), "snap2", "snap1"),
        )
        for files in (20_000, 40_000, 60_000)
    ]
    sends += [
        Micro("send-truncate, 20,000 files", _first("send-truncate", 1)),
        Micro("send-readahead, 5,000 files", _first("send-readahead", 0.01)),
        *(Micro(f"random {seed}, full", _random(seed, "s1")) for seed in SEEDS),
        *(Micro(f"random {seed}, difference", _random(seed, "s2", "s1")) for seed in SEEDS),
    ]
    micros = microbenchmarks()
    with start("native") as kernel:
        measured = measure(kernel, [*micros[1:], *sends], 0, _PASSES, step)
        name = f"{kernel.preset[1:]}, measured with it"
    of_machine = {micro.name for micro in micros}
    found = fit(TERMS, [row for row in measured.rows if row.name in of_machine])
    return [
        Row("fresh", name, row.name, row.took, float(amounts(TERMS, row.work) @ found.values))
        for row in measured.rows if row.name not in of_machine
    ]  # fmt: skip


def messages(step: Callable[[str], None]) -> list[Message]:
    """Replay all workloads as large as their messages, for the ratios that these report."""
    with tempfile.TemporaryDirectory() as folder:
        step("replay of all workloads")
        bm.replay(out=folder)
        table = pd.read_csv(Path(folder) / "speedups.csv").dropna(subset=["predicted"])
    return [
        Message(f"message: {row.workload} {row.case}", row.reported, row.predicted, row.low,
                row.high)
        for row in table.itertuples()
    ]  # fmt: skip


def _judged(pairs: Sequence[Message]) -> list[dict[str, Any]]:
    """Count the ratios of messages that are outside of their interval or in the wrong order."""
    if not pairs:
        return []
    outside = sum(not pair.low <= pair.measured <= pair.high for pair in pairs)
    wrong = sum((pair.measured > 1) != (pair.predicted > 1) for pair in pairs)
    width = max(max(pair.high / pair.predicted, pair.predicted / pair.low) for pair in pairs)
    last = {"peer": None, "ratio": None}
    return [
        {"name": f"time: messages, {len(pairs)} pairs: outside of the interval", "value": outside,
         "unit": "pairs", "bar": "<= 0", **last},
        {"name": "time: messages, in the wrong order", "value": wrong, "unit": "pairs",
         "bar": "<= 0", **last},
        {"name": "time: messages, widest interval", "value": 100 * (width - 1), "unit": "%",
         "bar": "<= 30", **last},
    ]  # fmt: skip


def _group(name: str, rows: Sequence[Row | Pair], median: float, worst: float = 100
           ) -> list[dict[str, Any]]:  # fmt: skip
    errors = [100 * abs(row.error) for row in rows]
    if not errors:
        return []
    last = {"unit": "%", "peer": None, "ratio": None}
    return [
        {"name": f"{name}: median error of {len(errors)}", "value": float(np.median(errors)),
         "bar": f"<= {median:g}", **last},
        {"name": f"{name}: worst", "value": max(errors), "bar": f"<= {worst:g}", **last},
    ]  # fmt: skip


def run() -> list[dict[str, Any]]:
    """Predict; a row for the middle and the worst error of each group."""

    def step(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    oracle = os.environ.get("BTRFS_MODEL_ORACLE")
    folder = Path(oracle) / "timings" if oracle else Path("/nowhere")
    rows = fresh(step) + recorded(folder, step)
    pairs, told = ratios(folder, step), messages(step)
    for row in rows:
        used = "tells the factor" if row.is_used else f"{row.error:+.1%}"
        print(f"{row.source:10} {row.machine:12} {row.what:48} "
              f"{row.measured * 1e3:10.2f} {row.predicted * 1e3:10.2f} ms  {used}")  # fmt: skip
    for pair in (*pairs, *told):
        print(f"{pair.what:60} {pair.measured:8.2f} {pair.predicted:8.2f}  {pair.error:+.1%}")
    if keep := os.environ.get("BTRFS_MODEL_VALIDATION"):
        Path(keep).write_text(json.dumps([vars(one) for one in (*rows, *pairs, *told)], indent=1))
    predicted = [row for row in rows if not row.is_used]
    sends = [row for row in predicted if row.source in ("fresh", "send-micro")]
    return [
        *_group("time: sends, native", sends, 5, 12),
        *_group("time: all", predicted, 10, 25),
        *_group("time: ratios", pairs, 7, 15),
        *_group("time: messages", told, 10)[:1],
        *_judged(told),
    ]
