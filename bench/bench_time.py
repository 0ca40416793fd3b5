# SPDX-License-Identifier: GPL-2.0-only
"""Times predicted, beside those that kernels took; ``docs/validation.md`` is made of this."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.time_fresh import SENDS, fresh, fresh_ratios
from bench.time_rows import Message, Pair, Row, ratios, recorded
from btrfs_model.experiments.replays import all_names, run_all


def messages(step: Callable[[str], None]) -> list[Message]:
    """Replay all workloads as large as their messages, for the ratios that these report."""
    found = []
    for one in run_all(all_names(), 1, step):
        for pair in one.speedups:
            reported, predicted = pair.reported, pair.predicted
            if pair.alone:
                continue
            if predicted is None or predicted.untold or reported is None:
                raise RuntimeError(f"no time predicted for {one.workload.name} {pair.case}")
            # on the device that stands for one that the message does not name
            on = predicted.alone or predicted
            found.append(
                Message(f"message: {one.workload.name} {pair.case}", reported.value, on.value,
                        on.low, on.high, reported.low, reported.high)
            )  # fmt: skip
    return found


def _judged(pairs: Sequence[Message]) -> list[dict[str, Any]]:
    """Count the ratios of messages that are outside of their interval or in the wrong order."""
    if not pairs:
        return []
    outside = sum(not pair.low <= pair.measured <= pair.high for pair in pairs)
    apart = sum(pair.high < pair.least or pair.most < pair.low for pair in pairs)
    wrong = sum((pair.measured > 1) != (pair.predicted > 1) for pair in pairs)
    width = max(max(pair.high / pair.predicted, pair.predicted / pair.low) for pair in pairs)
    last = {"peer": None, "ratio": None}
    return [
        {"name": f"time: messages, {len(pairs)} pairs: outside of the interval", "value": outside,
         "unit": "pairs", "bar": "<= 0", **last},
        {"name": "time: messages, outside by more than their digits and runs leave open",
         "value": apart, "unit": "pairs", "bar": "<= 0", **last},
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
    timed = fresh(step)
    rows = timed + recorded(folder, step)
    pairs, told = fresh_ratios(timed) + ratios(folder, step), messages(step)
    for row in rows:
        used = "tells the factor" if row.is_used else f"{row.error:+.1%}"
        print(f"{row.source:10} {row.machine:12} {row.what:48} "
              f"{row.measured * 1e3:10.2f} {row.predicted * 1e3:10.2f} ms  {used}")  # fmt: skip
    for pair in (*pairs, *told):
        print(f"{pair.what:60} {pair.measured:8.2f} {pair.predicted:8.2f}  {pair.error:+.1%}")
    if keep := os.environ.get("BTRFS_MODEL_VALIDATION"):
        Path(keep).write_text(json.dumps([vars(one) for one in (*rows, *pairs, *told)], indent=1))
    predicted = [row for row in rows if not row.is_used]
    native = [row for row in predicted if row.machine.startswith("native")]
    sends = [row for row in native if row.source in (SENDS, "send-micro")]
    return [
        *_group("time: sends, native", sends, 5, 12),
        *_group("time: all", predicted, 10, 25),
        *_group("time: ratios", pairs, 7, 15),
        *_group("time: messages", told, 10)[:1],
        *_judged(told),
    ]
