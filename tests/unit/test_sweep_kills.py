# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps that are killed at any time, and go on."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import cells
import corpus
import pandas as pd
import psutil
import pytest

import btrfs_model as bm

KILLS = 50 if corpus.LONG else 4 if corpus.MORE else 2
JOBS, CELLS, SECONDS, BATCH = 2, 400, 0.005, 0.1
MOST = round(BATCH / SECONDS)
"""Cells of a batch, at most."""
SWEEP = f"""
import sys
import btrfs_model as bm, cells
from btrfs_model.experiments.sweep import driver
if __name__ == "__main__":
    driver.BATCH_SECONDS = {BATCH}
    bm.sweep(cells.noted, {{"a": list(range({CELLS})), "log": sys.argv[1], "seconds": {SECONDS}}},
             store=sys.argv[2], scheduler=sys.argv[3] or None, jobs={JOBS}, retries=100)
"""
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(cells.__file__).parent), str(corpus.PROJECT)]),
    # a scheduler that lost a worker tries again as the sweep itself would
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "100",
}


def processes_that_measure(of: int) -> list[psutil.Process]:
    """The processes of an engine that have cells: those of Dask are spawned by nannies."""
    below = psutil.Process(of).children(recursive=True)
    spawned = [one for one in below if "spawn_main" in " ".join(one.cmdline())]
    return spawned or [one for one in below if "engine" in " ".join(one.cmdline())]


def kill(sweep: subprocess.Popen[bytes], whom: str, cluster: int | None) -> None:
    """Kill a process of a sweep, the one that hands out its cells, or all."""
    if whom == "whole":
        os.killpg(sweep.pid, signal.SIGKILL)
    elif whom == "client":
        sweep.kill()
    else:
        with suppress(psutil.NoSuchProcess):
            if workers := processes_that_measure(cluster or sweep.pid):
                random.choice(workers).kill()


@pytest.fixture
def cluster() -> Iterator[tuple[str, int]]:
    """A Dask cluster of two workers, and the process of their nannies."""
    pytest.importorskip("distributed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": ENVIRONMENT,
             "start_new_session": True}  # fmt: skip
    with ExitStack() as stack:

        def start(program: str, *arguments: str) -> int:
            command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments]
            process = subprocess.Popen(command, **quiet)
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            return process.pid

        start("scheduler", "--port", address.rpartition(":")[2], "--no-dashboard")
        yield address, start("worker", address, "--nworkers", str(JOBS), "--nthreads", "1",
                             "--no-dashboard")  # fmt: skip


@pytest.mark.more
@pytest.mark.claim(
    "A sweep whose processes are killed at random times, one or all, measures at most a batch for "
    "each process again, loses nothing, and ends with the table of one that was left alone: with "
    "processes of its own, with those of a LocalCluster, with a Dask cluster."
)
@pytest.mark.parametrize("engine", ["", "local", "tcp"])
def test_killed_at_random(tmp_path: Path, engine: str, request: pytest.FixtureRequest) -> None:
    address, nannies = request.getfixturevalue("cluster") if engine == "tcp" else (engine, None)
    chance = random.Random(4)
    random.seed(4)
    kills = seen = 0
    while kills < KILLS:
        # a sweep that is done begins anew, so that there is something to kill
        seen += 1
        store, log = tmp_path / f"store{seen}", tmp_path / f"log{seen}"
        most = min(KILLS - kills, 10)
        killed = run_and_kill([str(log), str(store), address], nannies, chance, most)
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


def run_and_kill(
    arguments: list[str], nannies: int | None, chance: random.Random, most: int
) -> int:
    """Carry out a sweep that is killed again and again; return how often."""
    kills, log = 0, Path(arguments[0])
    script = log.with_suffix(".py")
    script.write_text(SWEEP)
    while True:
        sweep = subprocess.Popen(
            [sys.executable, str(script), *arguments], env=ENVIRONMENT, start_new_session=True
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
                kill(sweep, whom, nannies)
                kills += 1
            started = log.stat().st_size
            if whom != "worker":
                break
        status = sweep.wait()
        if status == 0:
            return kills
        assert status == -signal.SIGKILL
