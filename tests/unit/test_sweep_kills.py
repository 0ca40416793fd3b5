# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps that are killed at any time, and go on."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cells
import corpus
import pandas as pd
import psutil
import pytest

import btrfs_model as bm

KILLS = 50 if corpus.LONG else 4
JOBS, CELLS, SECONDS, BATCH = 2, 400, 0.005, 0.1
MOST = round(BATCH / SECONDS)
"""Cells of a batch, at most."""
SWEEP = f"""
import sys
import btrfs_model as bm, cells
from btrfs_model.experiments.sweep import driver
driver.BATCH_SECONDS = {BATCH}
bm.sweep(cells.noted, {{"a": list(range({CELLS})), "log": sys.argv[1], "seconds": {SECONDS}}},
         store=sys.argv[2], jobs={JOBS}, retries=100)
"""


def kill(sweep: subprocess.Popen[bytes], whom: str) -> None:
    """Kill a process of a sweep, the one that hands out its cells, or all."""
    if whom == "whole":
        os.killpg(sweep.pid, signal.SIGKILL)
    elif whom == "client":
        sweep.kill()
    elif workers := psutil.Process(sweep.pid).children():
        random.choice(workers).kill()


@pytest.mark.claim(
    "A sweep whose processes are killed at random times, one or all, measures at most a batch for "
    "each process again, loses nothing, and ends with the table of one that was left alone."
)
def test_killed_at_random(tmp_path: Path) -> None:
    chance = random.Random(4)
    random.seed(4)
    path = os.pathsep.join([str(Path(cells.__file__).parent), str(corpus.PROJECT)])
    kills = seen = 0
    while kills < KILLS:
        # a sweep that is done begins anew, so that there is something to kill
        seen += 1
        store, log = tmp_path / f"store{seen}", tmp_path / f"log{seen}"
        killed = run_and_kill(log, store, path, chance, min(KILLS - kills, 10))
        counts = Counter(map(int, log.read_text().split()))
        assert sorted(counts) == list(range(CELLS)), "nothing is lost"
        assert counts.total() - CELLS <= killed * JOBS * MOST
        kills += killed
        knobs = {"a": list(range(CELLS)), "log": str(log), "seconds": SECONDS}
        before = log.read_text()
        found = bm.sweep(cells.noted, knobs, store=store, jobs=1)
        assert log.read_text() == before, "nothing is measured twice"
        alone = bm.sweep(
            cells.noted, {**knobs, "seconds": 0.0}, scheduler=ThreadPoolExecutor(1)
        ).assign(seconds=SECONDS)
        pd.testing.assert_frame_equal(found, alone, check_exact=True)


def run_and_kill(log: Path, store: Path, path: str, chance: random.Random, most: int) -> int:
    """Carry out a sweep that is killed again and again; return how often."""
    kills = 0
    while True:
        sweep = subprocess.Popen(
            [sys.executable, "-c", SWEEP, str(log), str(store)],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        started = log.stat().st_size if log.exists() else 0
        while kills < most and sweep.poll() is None:
            # something is being measured, and then any time
            if not log.exists() or log.stat().st_size == started:
                time.sleep(0.01)
                continue
            time.sleep(chance.random() * 0.25)
            whom = chance.choice(["worker", "worker", "client", "whole"])
            if sweep.poll() is None:
                kill(sweep, whom)
                kills += 1
            started = log.stat().st_size
            if whom != "worker":
                break
        status = sweep.wait()
        if status == 0:
            return kills
        assert status == -signal.SIGKILL
