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
import traceback
from collections import ChainMap
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from btrfs_model.base.errors import KernelFailedError, KernelHungError
from btrfs_model.experiments.scenario.load import Scenario, lines_of
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.bench import Bench, DifferenceError, kind_of
from btrfs_model.experiments.verify.causes import (
    changed,
    is_known,
    remember,
    shape_of,
    toggles,
)
from btrfs_model.experiments.verify.events import check_traces
from btrfs_model.experiments.verify.kinds import KINDS, NAMED, Kind
from btrfs_model.experiments.verify.random.steer import (
    Reach,
    corpus,
    forget,
    keep,
    mutated,
    ran,
    unreachable,
)
from btrfs_model.experiments.verify.shrink import shrunk
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
_SHRINKING = 60
"""Seconds for making a scenario short; as long again for being sure of it."""
_SURE = 6
"""How often what was made short has to differ once more, as it is written."""
_DYING = 30
_PR_SET_PDEATHSIG = 1
_KINDS = ChainMap(KINDS, NAMED)


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
    behaviour : str
        What the model does, in place of the kernel's preset.
    toggles : bool
        Whether to look which toggles take a difference away.
    once : bool
        Of each cause make one difference short: see :mod:`.causes`.
    short : bool
        Whether differences are made short at all.
    known : list of str
        Changes of toggles that are known to take differences away.
    """

    kernel: str
    kinds: list[str]
    seeds: list[int]
    most: int = 10_000
    until: float = float("inf")
    images: list[str] = field(default_factory=list)
    corpus: str = ""
    behaviour: str = ""
    toggles: bool = False
    once: bool = False
    short: bool = True
    known: list[str] = field(default_factory=list)


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
        What they say; where one did not come to an answer, how it failed.
    scenario : list
        The shortest that shows it.
    toggles : list of str
        Toggles that take the difference away, each alone, with the sign of what is done to it.
    tried : int
        How many toggles were tried, the newest first; fewer than there are where time was up.
    reach : dict
        Of a function, instead of a comparison: see :class:`.steer.Function`.
    shape : list of str
        How the difference looks: see :func:`.causes.shape_of`.
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
    toggles: list[str] = field(default_factory=list)
    tried: int = 0
    reach: dict[str, Any] = field(default_factory=dict)
    shape: list[str] = field(default_factory=list)


def files_of(kind: str, seed: int, most: int) -> int:
    """Draw how many files a scenario has: from 10 on, mostly few."""
    drawn = random.Random(f"files {kind} {seed}").random()
    return int(10 * math.pow(most / 10, math.pow(drawn, 8)))


# -------------------------------------------------------------------------------------- worker --


def _unseen(_: Outcome) -> None:
    pass


def work(task: Task, seen: Callable[[Outcome], None] = _unseen) -> Generator[Outcome, None, None]:
    """Do what a task says; `seen` gets what differs before it is made short."""
    with _closed_at_last(start(task.kernel, memory=_MEMORY, limit=_LIMIT)) as kernel:
        kernel.start()
        if "trace" in task.kinds:
            check_traces(kernel)
        bench = Bench(kernel, seen=seen, chosen=task.behaviour, known=[*task.known])
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
    compare = _KINDS[kind].of_image
    assert compare is not None
    outcome = Outcome(name, bench.kernel.release, kind, str(image))
    found = _compared(bench, outcome, lambda: compare(bench, image, random.Random(0)))
    return _told(outcome, found)


def _of_corpus(bench: Bench, task: Task) -> Iterator[Outcome]:
    """Compare on a corpus; on a kernel that counts then on what is made of it, steered by that."""
    kernel, folder = bench.kernel, Path(task.corpus)
    reach = Reach(listed=unreachable(folder, kernel.release))
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
            scenario = _KINDS[kind].make(f"steered {choice.random()}", 10)
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
    files = files_of(kind, seed, min(task.most, _KINDS[kind].most))
    scenario = _KINDS[kind].make(f"{kind} {seed}", files)
    return _of_scenario(bench, task, kind, str(seed), scenario, files)


def _of_scenario(
    bench: Bench, task: Task, kind: str, case: str, scenario: Scenario, files: int = 0
) -> Outcome:
    chosen = _KINDS[kind]
    outcome = Outcome(task.kernel, bench.kernel.release, kind, case, files)
    found = _compared(bench, outcome, lambda: chosen.compare(bench, scenario))

    def differs() -> Exception | None:
        errors = (_difference(lambda: chosen.compare(bench, scenario)) for _ in range(_TIMES))
        return next(filter(None, errors), None)

    _told(outcome, found)
    if not found or (task.once and is_known(bench, outcome, differs)):
        return outcome
    bench.seen(outcome)
    with changed(bench, bench.known):
        if bench.known:
            found = [*filter(None, (differs() for _ in range(_TIMES)))] or found
        if task.short:
            scenario, shortest = _shortest(bench, chosen, _part(scenario, found[-1]), found)
            found.append(shortest)
            outcome.scenario = lines_of(scenario)
        if task.toggles:
            outcome.toggles, outcome.tried = toggles(bench, differs, _SHRINKING)
    if task.once:
        remember(bench, _told(outcome, found))
    return _told(outcome, found)


def _part(scenario: Scenario, error: Exception) -> Scenario:
    """Return the part of a scenario that differs alone, where that is known."""
    return (isinstance(error, DifferenceError) and error.scenario) or scenario


def _compared(bench: Bench, outcome: Outcome, compare: Callable[[], None]) -> list[Exception]:
    """Compare, more than once where there is a difference; all of them, if there is each time."""
    began = time.monotonic()
    found: list[Exception] = []
    for _ in range(_TIMES):
        bench.compared.clear()
        error = _difference(compare)
        if error is None:
            found.clear()
            break
        found.append(error)
    outcome.seconds = time.monotonic() - began
    outcome.compared = dict(bench.compared)
    return found


def _difference(compare: Callable[[], None]) -> Exception | None:
    try:
        compare()
    except Exception as error:  # also where one side fails and the other does not
        return error
    return None


def _told(outcome: Outcome, found: Sequence[Exception]) -> Outcome:
    if found:
        outcome.difference = str(found[-1]) or repr(found[-1])
        outcome.by_kernel, outcome.by_model = _sides(found[-1])
        outcome.shape = shape_of(found[-1])
    return outcome


def _sides(found: Exception) -> tuple[str, str]:
    """Return what both sides say; of one that failed, how."""
    if isinstance(found, DifferenceError):
        return repr(found.kernel), repr(found.model)
    notes = "\n".join([str(found), *getattr(found, "__notes__", [])])
    if isinstance(found, KernelFailedError | KernelHungError):
        return notes, "not asked, or not compared: the kernel failed"
    trace = "".join(traceback.format_exception(found))
    return "not asked, or not compared: the model failed", trace.strip()


def _shortest(
    bench: Bench, kind: Kind, scenario: Scenario, found: Sequence[Exception]
) -> tuple[Scenario, Exception]:
    """Make a scenario short that differs in the same way each time; what the shortest one shows.

    Threads come to their work by chance: so one counts only when it differs as often as the whole
    one had to. The shortest, as it is written, has to do so again. Else the next longer one is
    tried, at last the whole one.
    """
    shows = {kind_of(error) for error in found}
    known = [(scenario, found[-1])]
    if len(shows) > 1 or isinstance(found[-1], KernelHungError):
        return known[0]
    end = time.monotonic() + _SHRINKING

    def differs(one: Scenario, times: int) -> bool:
        for _ in range(times):
            error = _difference(lambda: kind.compare(bench, one))
            if error is None or kind_of(error) not in shows:
                return False
            last = error
        known.append((one, last))
        return True

    def shows_it(shorter: Scenario) -> bool:
        return time.monotonic() < end and differs(shorter, _TIMES)

    shrunk(scenario, shows_it)
    end += _SHRINKING
    while len(known) > 1 and time.monotonic() < end:
        written = _as_written(known[-1][0])
        if differs(written, _SURE):
            return known[-1]
        known.pop()
    return known[0]


def _as_written(scenario: Scenario) -> Scenario:
    """Return a scenario as it is when its file is read."""
    steps = [
        parse_step(scenario.path, number, line, hex_values=True)
        for number, line in enumerate(json.loads(json.dumps(lines_of(scenario))), 1)
    ]
    return Scenario(scenario.path, steps, hex_values=True)


def main() -> None:
    """Be a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # closed as soon as nobody reads what it says
    with closing(work(Task(**json.load(sys.stdin)), partial(_say, True))) as outcomes:
        for outcome in outcomes:
            _say(False, outcome)


def _say(is_first: bool, outcome: Outcome) -> None:
    print(json.dumps([is_first, asdict(outcome)]), flush=True)


# --------------------------------------------------------------------------------- who starts it --


def verify(
    tasks: Sequence[Task],
    step: Callable[[str], None],
    seen: Callable[[Outcome], None] = _unseen,
) -> Iterator[Outcome]:
    """Run a worker for each task; what they find, as it comes.

    `step` is called at the end of each comparison, `seen` as soon as one differs: then it is made
    short, which takes minutes.

    Raises
    ------
    KernelFailedError
        When a worker ends early; the message is the last line that it said.
    """
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    workers: list[subprocess.Popen[str]] = []
    try:
        for task in tasks:
            worker = subprocess.Popen(
                command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )  # fmt: skip
            workers.append(worker)
            assert worker.stdin is not None
            with worker.stdin as ears:
                json.dump(asdict(task), ears)
        with selectors.DefaultSelector() as selector:
            for task, worker in zip(tasks, workers, strict=True):
                assert worker.stdout is not None
                selector.register(worker.stdout, selectors.EVENT_READ, (task.kernel, worker))
            while selector.get_map():
                for key, _ in selector.select():
                    name, worker = key.data
                    assert worker.stdout is not None
                    line = worker.stdout.readline()
                    if line:
                        is_first, told = json.loads(line)
                        outcome = Outcome(**told)
                        if is_first:
                            seen(outcome)
                            continue
                        step(f"{name}: {outcome.kind} {outcome.case}")
                        yield outcome
                    else:
                        selector.unregister(worker.stdout)
                        _ended_well(name, worker)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(_DYING)
            worker.kill()


def _ended_well(name: str, worker: subprocess.Popen[str]) -> None:
    assert worker.stderr is not None
    said = worker.stderr.read().strip().splitlines()
    if worker.wait():
        error = KernelFailedError(said[-1].partition(": ")[2] if said else f"kernel {name} ended")
        raise error
