# SPDX-License-Identifier: GPL-2.0-only
"""What sweeps cost beside the work of their cells, and what two workers are worth.

The overhead is processor time of all processes for each cell, without that of the sends: it hardly
depends on what else the machine does. The other figures are times on the clock. Two workers are
given a sweep of some minutes: each takes a second to start, on processors that they share.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import btrfs_model as bm
from btrfs_model.experiments.workloads import send_utimes

CELLS = 10_000
MANY = 100_000


def simple(a: int, b: int) -> dict[str, float]:
    """Compute next to nothing."""
    return {"sum": float(a + b), "product": float(a * b)}


def _utimes(store: Path | None = None, cells: int = CELLS, **how: Any) -> float:
    """Sweep send-utimes at 200 files; seconds on the clock."""
    knobs = {
        "files": 200, "dir_utimes_cache": list(range(1, 51)), "behaviour": ["v6.2", "v6.3"],
        "name_cache": list(range(1, cells // 100 + 1)),
    }  # fmt: skip
    start = time.perf_counter()
    bm.sweep("send-utimes", knobs, store=store, **{"jobs": 2, **how})
    return time.perf_counter() - start


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _send(count: int = 500) -> float:
    """Processor seconds of what a cell asks: a send with limits of its own."""
    with send_utimes.build(200) as fs:
        start = time.process_time()
        for number in range(count):
            limits = {"name_cache": number % 100 + 1, "dir_utimes_cache": number % 50 + 1}
            kernel = ("v6.2", "v6.3")[number % 2]
            bm.send(fs, "snap2", "snap1", ["snap1"], behaviour=kernel, limits=limits)
        return (time.process_time() - start) / count


def _resume(store: Path) -> tuple[float, float]:
    """Seconds and megabytes of a process that plans and resumes many cells."""
    code = (
        "import json, sys, time\nstart = time.perf_counter()\nimport btrfs_model as bm\n"
        "from bench.bench_sweep import simple\nfrom bench.timing import peak\n"
        "bm.sweep(simple, {'a': list(range(1000)), 'b': list(range(100))}, store=sys.argv[1])\n"
        "print(json.dumps([time.perf_counter() - start, peak() / 1e6]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store)], check=True, stdout=subprocess.PIPE
    )
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def run() -> list[dict[str, Any]]:
    """Measure sweeps."""
    with tempfile.TemporaryDirectory() as folder:
        each, before = _send(), _processor()
        _utimes(Path(folder, "utimes"))
        overhead = (_processor() - before) / CELLS - each
        again = _utimes(Path(folder, "utimes"))
        bm.sweep(simple, {"a": list(range(1000)), "b": list(range(100))}, store=f"{folder}/many")
        seconds, peak = _resume(Path(folder, "many"))
    alone, both = (_utimes(cells=2 * CELLS, scheduler="local", jobs=jobs) for jobs in (1, 2))
    rows = [
        ("sweep: a cell of send-utimes, beside the send", overhead * 1e3, "ms", "<= 2"),
        (f"sweep: {CELLS:,} of these again", again, "s", "<= 2"),
        (f"sweep: {MANY:,} cells planned and resumed", seconds, "s", "<= 10"),
        (f"sweep: {MANY:,} cells planned and resumed, memory", peak, "MB", "<= 500"),
        ("sweep: two workers of a LocalCluster beside one", alone / both, "times", ">= 1.8"),
    ]  # fmt: skip
    return [
        {"name": name, "value": value, "unit": unit, "peer": None, "ratio": None, "bar": bar}
        for name, value, unit, bar in rows
    ]
