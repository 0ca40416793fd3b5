# SPDX-License-Identifier: GPL-2.0-only
"""Going through kinds and seeds on several kernels at once, each with a process of its own.

A worker reads what it shall do on its standard input and prints a line of JSON for each comparison.
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
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from btrfs_model.base.errors import KernelFailedError, KernelHungError
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.verify.kinds import KINDS, Bench, Kind
from btrfs_model.experiments.verify.shrink import shrunk
from btrfs_model.experiments.verify.steer import (
    Reach,
    corpus,
    forget,
    keep,
    mutated,
    ran,
    unreachable,
)
from btrfs_model.kernels import gcov
from btrfs_model.kernels.choice import start
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.uml import Uml

_MEMORY = 1 << 30
_FRESH = 0.2
"""How many of the steered scenarios come from a seed."""
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
    corpus : str
        A folder of scenarios that are compared on first; those that reach something new go there.
    """

    kernel: str
    kinds: list[str]
    seeds: list[int]
    most: int = 10_000
    until: float = float("inf")
    images: list[str] = field(default_factory=list)
    corpus: str = ""


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
    reach : dict
        Of a function, instead of a comparison: see :class:`.steer.Function`.
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
    reach: dict[str, Any] = field(default_factory=dict)


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


def work(task: Task) -> Generator[Outcome, None, None]:
    """Do what a task says."""
    with _closed_at_last(start(task.kernel, memory=_MEMORY, limit=_LIMIT)) as kernel:
        kernel.start()
        bench = Bench(kernel)
        for kind in task.kinds if task.images else ():
            for image in task.images:
                yield _of_image(bench, task.kernel, kind, Path(image))
        if task.corpus:
            yield from _of_corpus(bench, task)
        yield from _of_seeds(bench, task)


@contextmanager
def _closed_at_last(kernel: Kernel) -> Iterator[Kernel]:
    """Close a kernel, also when asked to end; asked once more meanwhile, go on with that."""

    def ended(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kernel.stop()  # it may be busy, and would be asked to unmount
        sys.exit(1)

    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield kernel
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kernel.close()
        signal.signal(signal.SIGTERM, before)


def _of_seeds(bench: Bench, task: Task) -> Iterator[Outcome]:
    """Compare on seeds, with as much time for each kind: some take ten times as long as others."""
    waiting = {kind: iter(() if task.images else task.seeds) for kind in task.kinds}
    spent = dict.fromkeys(task.kinds, 0.0)
    while waiting and time.time() < task.until:
        kind = min(waiting, key=spent.__getitem__)
        seed = next(waiting[kind], None)
        if seed is None:
            del waiting[kind]
            continue
        outcome = _of_seed(bench, task, kind, seed)
        spent[kind] += outcome.seconds
        yield outcome


def _of_image(bench: Bench, name: str, kind: str, image: Path) -> Outcome:
    compare = KINDS[kind].of_image
    assert compare is not None
    outcome = Outcome(name, bench.kernel.release, kind, str(image))
    found = _compared(bench, outcome, lambda: compare(bench, image, random.Random(0)))
    return _told(outcome, found)


def _of_corpus(bench: Bench, task: Task) -> Iterator[Outcome]:
    """Compare on a corpus; on a kernel that counts then on what is made of it, steered by that."""
    kernel, folder = bench.kernel, Path(task.corpus)
    reach = Reach(listed=unreachable(folder))
    known = [(kind, one) for kind, one in corpus(folder) if kind in task.kinds]
    counting = kernel if isinstance(kernel, Uml) and gcov.why_not(kernel.binary) == "" else None
    choice, number = random.Random(f"steered {time.time_ns()}"), 0
    while number < len(known) or (counting and task.until < float("inf")):
        if time.time() >= task.until:
            break
        if number < len(known):
            kind, scenario = known[number]
        elif choice.random() < _FRESH or not known:
            kind = choice.choice(task.kinds)
            scenario = KINDS[kind].make(f"steered {choice.random()}", 10)
        else:
            kind, one = choice.choice(known)
            other = choice.choice([other for name, other in known if name == kind])
            scenario = mutated(choice, lines_of(one), lines_of(other), f"steered {number}")
        if counting:
            forget(counting)
        outcome = _of_scenario(bench, task, kind, Path(scenario.path).name, scenario)
        if (
            counting
            and reach.add(ran(counting))
            and number >= len(known)
            and not outcome.difference
        ):
            keep(folder, kind, lines_of(scenario))
            known.append((kind, scenario))
            number += 1
        number += number < len(known)
        yield outcome
    for function in reach.functions():
        yield Outcome(task.kernel, kernel.release, "reach", "", reach=asdict(function))


def _of_seed(bench: Bench, task: Task, kind: str, seed: int) -> Outcome:
    files = files_of(kind, seed, min(task.most, KINDS[kind].most))
    scenario = KINDS[kind].make(f"{kind} {seed}", files)
    return _of_scenario(bench, task, kind, str(seed), scenario, files)


def _of_scenario(
    bench: Bench, task: Task, kind: str, case: str, scenario: Scenario, files: int = 0
) -> Outcome:
    chosen = KINDS[kind]
    outcome = Outcome(task.kernel, bench.kernel.release, kind, case, files)
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
        except Exception as error:  # also where one side fails and the other does not
            found = error
        else:
            found = None
            break
    outcome.seconds = time.monotonic() - began
    outcome.compared = dict(bench.compared)
    return found


def _told(outcome: Outcome, found: Exception | None) -> Outcome:
    if found is not None:
        outcome.difference = str(found) or repr(found)
        notes = "\n".join(getattr(found, "__notes__", []))
        outcome.by_kernel = repr(getattr(found, "kernel", notes))
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
        except Exception as error:
            if type(error) is type(found):
                last = error
                return True
        return False

    if not isinstance(found, KernelHungError):
        scenario = shrunk(scenario, shows)
    return last, scenario


def main() -> None:
    """Be a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # closed as soon as nobody reads what it says
    with closing(work(Task(**json.load(sys.stdin)))) as outcomes:
        for outcome in outcomes:
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
    workers: dict[str, subprocess.Popen[str]] = {}
    try:
        for task in tasks:
            workers[task.kernel] = worker = subprocess.Popen(
                command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )  # fmt: skip
            assert worker.stdin is not None
            with worker.stdin as ears:
                json.dump(asdict(task), ears)
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
