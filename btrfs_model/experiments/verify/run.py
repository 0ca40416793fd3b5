# SPDX-License-Identifier: GPL-2.0-only
"""Going through kinds and seeds on several kernels at once, each with a process of its own.

A worker reads what it shall do on its command line and prints a line of JSON for each comparison.
It ends with who started it, and its kernel with it.
"""

from __future__ import annotations

import ctypes
import json
import math
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from btrfs_model.base.errors import KernelFailedError, KernelHungError
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.verify.kinds import KINDS, Bench, DifferenceError, Kind
from btrfs_model.experiments.verify.shrink import shrunk
from btrfs_model.kernels.choice import start

_MEMORY = 1 << 30
_LIMIT = 1800
_TIMES = 3
"""A difference is one when it comes so often: threads of a kernel come to their work by chance."""
_SHRINKING = 120
"""Seconds for making a scenario short."""
_DYING = 30
_PR_SET_PDEATHSIG = 1


@dataclass
class Task:
    """What a worker does.

    Attributes
    ----------
    kernel : str
        As for :func:`btrfs_model.kernels.choice.start`.
    kinds : list of str
        What is compared.
    seeds : list of int
        On which scenarios.
    most : int
        Files that a scenario may have.
    until : float
        When no more is begun, by :func:`time.time`.
    images : list of str
        Images of the user, which are compared on instead of scenarios.
    """

    kernel: str
    kinds: list[str]
    seeds: list[int]
    most: int = 10_000
    until: float = float("inf")
    images: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What came of one comparison.

    Attributes
    ----------
    release : str
        Of the kernel.
    compared : dict
        How much was compared, by unit.
    difference : str
        What differs; empty where nothing does.
    by_kernel, by_model : str
        What they say.
    scenario : list
        The shortest that shows it.
    """

    kernel: str
    release: str
    kind: str
    case: str
    files: int = 0
    seconds: float = 0
    compared: dict[str, int] = field(default_factory=dict)
    difference: str = ""
    by_kernel: str = ""
    by_model: str = ""
    scenario: list[Any] = field(default_factory=list)


def files_of(kind: str, seed: int, most: int) -> int:
    """Draw how many files a scenario has: from 10 on, mostly few."""
    drawn = random.Random(f"files {kind} {seed}").random()
    return int(10 * math.pow(most / 10, math.pow(drawn, 8)))


def lines_of(scenario: Scenario) -> list[Any]:
    """Write a scenario as ``btrfs-model run`` reads it."""

    def plain(value: Any) -> Any:
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value

    return [
        [step.name, *(plain(value) for value in step.arguments.values() if value is not None)]
        for step in scenario.steps
    ]


# -------------------------------------------------------------------------------------- worker --


def work(task: Task) -> Iterator[Outcome]:
    """Do what a task says."""
    with start(task.kernel, memory=_MEMORY, limit=_LIMIT) as kernel:
        kernel.start()
        bench = Bench(kernel)
        for kind in task.kinds if task.images else ():
            for image in task.images:
                yield _of_image(bench, task.kernel, kind, Path(image))
        for seed in () if task.images else task.seeds:
            for kind in task.kinds:
                if time.time() >= task.until:
                    return
                yield _of_seed(bench, task, kind, seed)


def _of_image(bench: Bench, name: str, kind: str, image: Path) -> Outcome:
    compare = KINDS[kind].of_image
    assert compare is not None
    outcome = Outcome(name, bench.kernel.release, kind, str(image))
    found = _compared(bench, outcome, lambda: compare(bench, image, random.Random(0)))
    return _told(outcome, found)


def _of_seed(bench: Bench, task: Task, kind: str, seed: int) -> Outcome:
    chosen, files = KINDS[kind], files_of(kind, seed, min(task.most, KINDS[kind].most))
    scenario = chosen.make(f"{kind} {seed}", files)
    outcome = Outcome(task.kernel, bench.kernel.release, kind, str(seed), files)
    found = _compared(bench, outcome, lambda: chosen.compare(bench, scenario))
    if found is not None:
        found, scenario = _shortest(bench, chosen, scenario, found)
        outcome.scenario = lines_of(scenario)
    return _told(outcome, found)


def _compared(bench: Bench, outcome: Outcome, compare: Callable[[], None]) -> Exception | None:
    """Compare, more than once where there is a difference; the last one, if there is each time."""
    began = time.monotonic()
    found: Exception | None = None
    for _ in range(_TIMES):
        bench.compared.clear()
        try:
            compare()
        except (DifferenceError, KernelFailedError, KernelHungError) as error:
            found = error
        else:
            found = None
            break
    outcome.seconds = time.monotonic() - began
    outcome.compared = dict(bench.compared)
    return found


def _told(outcome: Outcome, found: Exception | None) -> Outcome:
    if found is not None:
        outcome.difference = str(found)
        outcome.by_kernel = repr(
            getattr(found, "kernel", "\n".join(getattr(found, "__notes__", [])))
        )
        outcome.by_model = repr(getattr(found, "model", ""))
    return outcome


def _shortest(
    bench: Bench, kind: Kind, scenario: Scenario, found: Exception
) -> tuple[Exception, Scenario]:
    """Make a scenario short; what the shortest one shows."""
    end, last = time.monotonic() + _SHRINKING, found

    def shows(shorter: Scenario) -> bool:
        nonlocal last
        if time.monotonic() > end:
            return False
        try:
            kind.compare(bench, shorter)
        except DifferenceError as error:
            last = error
            return True
        except (KernelFailedError, KernelHungError):
            return False
        return False

    if isinstance(found, DifferenceError):
        scenario = shrunk(scenario, shows)
    return last, scenario


def _ended(*_: object) -> None:
    sys.exit(1)


def main() -> None:
    """Be a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ended)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    for outcome in work(Task(**json.loads(sys.argv[1]))):
        print(json.dumps(asdict(outcome)), flush=True)


# --------------------------------------------------------------------------------- who starts it --


def verify(tasks: Sequence[Task], step: Callable[[str], None]) -> Iterator[Outcome]:
    """Run a worker for each task; what they find, as it comes.

    Raises
    ------
    KernelFailedError
        When a worker ends early; the message is the last line that it said.
    """
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    workers = {
        task.kernel: subprocess.Popen([*command, json.dumps(asdict(task))], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for task in tasks
    }  # fmt: skip
    try:
        with selectors.DefaultSelector() as selector:
            for name, worker in workers.items():
                assert worker.stdout is not None
                selector.register(worker.stdout, selectors.EVENT_READ, name)
            while selector.get_map():
                for key, _ in selector.select():
                    worker = workers[key.data]
                    assert worker.stdout is not None
                    line = worker.stdout.readline()
                    if line:
                        outcome = Outcome(**json.loads(line))
                        step(f"{key.data}: {outcome.kind} {outcome.case}")
                        yield outcome
                    else:
                        selector.unregister(worker.stdout)
                        _ended_well(key.data, worker)
    finally:
        for worker in workers.values():
            worker.terminate()
        for worker in workers.values():
            with suppress(subprocess.TimeoutExpired):
                worker.wait(_DYING)
            worker.kill()


def _ended_well(name: str, worker: subprocess.Popen[str]) -> None:
    assert worker.stderr is not None
    said = worker.stderr.read().strip().splitlines()
    if worker.wait():
        error = KernelFailedError(said[-1].partition(": ")[2] if said else f"kernel {name} ended")
        raise error
