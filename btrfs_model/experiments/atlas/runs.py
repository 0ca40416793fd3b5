# SPDX-License-Identifier: GPL-2.0-only
"""A row of the atlas is run: its script, or the workload that it names, before and after."""

from __future__ import annotations

import gc
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.version import __version__
from btrfs_model.cost.device import load as load_device
from btrfs_model.cost.machine import Machine, chosen
from btrfs_model.cost.pipe import through_a_pipe
from btrfs_model.cost.prediction import NoCostError, Prediction, Ratio, predict, ratio
from btrfs_model.experiments.atlas.predictions import Predicted, Value, model_hash
from btrfs_model.experiments.atlas.rows import Figure, Row
from btrfs_model.experiments.replay import run as replay
from btrfs_model.experiments.workloads.timed import MEMORY, Timed, yes_no

if TYPE_CHECKING:
    from btrfs_model.scripts.run import ScriptResult
    from btrfs_model.scripts.steps import Step

QUICK: Final = "quick"
UNNAMED: Final = ("samsung-850-evo", "deskstar-7k500", MEMORY)
"""What tree blocks may be read from where a message names no device. The first tells the time."""
_NO_TIME: Final = "nothing of its work has a cost"


@dataclass(frozen=True, slots=True)
class _Part:
    """What is between two readings of the clock, or all: its work, its time, what that needs."""

    work: Mapping[str, float]
    time: Prediction | None
    depends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Side:
    """What came of one side: all of it, its timed parts, and what it printed."""

    whole: _Part
    parts: Sequence[_Part]
    printed: str = ""
    calls: Mapping[str, _Part] = field(default_factory=dict)

    def part(self, region: int, call: str = "") -> _Part:
        """Return a timed part by its number, all for 0; or what calls of a name come to."""
        if call:
            if call not in self.calls:
                raise BtrfsModelError(f"call {call}: not one of {', '.join(self.calls)}")
            return self.calls[call]
        if region > len(self.parts):
            raise BtrfsModelError(f"region {region} of {len(self.parts)}")
        return self.parts[region - 1] if region else self.whole


@dataclass(slots=True)
class Run:
    """A row that was run.

    Attributes
    ----------
    row : Row
        Which one.
    machine : str
        Whose unit costs times are of.
    is_full : bool
        Whether it had the size of the message.
    values : dict
        What came out, by the names of figures.
    untold : dict
        Why a figure has no ratio.
    hangs : list of str
        What times depend on besides the work.
    seconds : float
        How long it took here.
    """

    row: Row
    machine: str
    is_full: bool
    values: dict[str, Value] = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)
    hangs: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def predicted(self) -> Predicted:
        """What came out, as it is written down before the figures of the row are looked up."""
        today = datetime.now(UTC).date()
        return Predicted(today, __version__, model_hash(), self.machine, self.values)


def run(row: Row, scale: str = "full", machine: str | Machine | None = None) -> Run:
    """Run a row on both sides.

    Parameters
    ----------
    row : Row
        Which one.
    scale : str
        ``"full"`` as in the message, or ``"quick"``.
    machine : str or Machine, optional
        Whose unit costs tell times; the native machine without it.

    Raises
    ------
    BtrfsModelError
        When its script is none, fails, or does not say what a figure is, with the name of the row.
    """
    costs, began = chosen(machine), time.monotonic()
    quick = row.quick if scale == QUICK else {}
    run_row = _scripted if row.script else _replayed
    found = Run(row, costs.name, not quick)
    try:
        by_device = run_row(row, quick, costs)
        for one in row.figures:
            found.values[one.name], why = _value(one, list(by_device.values()))
            if why:
                found.untold[one.name] = why
    except BtrfsModelError as error:
        raise BtrfsModelError(f"atlas: {row.name}: {error}") from error
    found.hangs = _hangs(row, by_device, costs)
    found.seconds = time.monotonic() - began
    return found


def _scripted(
    row: Row, quick: Mapping[str, int | float], costs: Machine
) -> dict[str, dict[str, _Side]]:  # fmt: skip
    """Run the script of a row on both sides, and time it on each device."""
    sides: dict[str, dict[str, _Side]] = {}
    for name, behaviour in row.sides.items():
        for device, side in _on_side(row, behaviour, quick, costs).items():
            sides.setdefault(device, {})[name] = side
        # the shell of a script, with its filesystems, is a cycle: else two would be in memory
        gc.collect()
    return {device: both for device, both in sides.items() if len(both) == len(row.sides)}


def _on_side(
    row: Row, behaviour: str, quick: Mapping[str, int | float], costs: Machine
) -> dict[str, _Side]:  # fmt: skip
    """Run the script of a row on one side, by device."""
    # its parser and its jobs are an extra
    from btrfs_model.scripts.run import script
    from btrfs_model.scripts.variables import numbers, with_numbers

    if unknown := set(quick) - set(numbers(row.script)):
        raise BtrfsModelError(f"quick: {min(unknown)} is no number that the script sets once")
    text = with_numbers(row.script, {name: int(value) for name, value in quick.items()})
    first = row.devices[0] if row.devices else ""
    result = script(text, behaviour=behaviour, machine=costs, device=first)
    result.close()
    if result.status:
        last = result.output.decode(errors="replace").strip().split("\n")[-1]
        raise BtrfsModelError(f"the script ends with status {result.status}: {last}")
    reads = any(one.cold is not None for one in result.calls)
    devices = row.devices or (UNNAMED if reads else (MEMORY,))
    return {device: _of_script(result, device, costs, row) for device in devices}


def seconds_of(
    row: Row, behaviour: str, figures: Sequence[Figure], quick: Mapping[str, int | float],
    costs: Machine,
) -> list[float]:  # fmt: skip
    """Return the seconds of some times of a row on one kernel, on its first device; NaN for none.

    Raises
    ------
    BtrfsModelError
        When the script fails there.
    """
    side = next(iter(_on_side(row, behaviour, quick, costs).values()))
    made = [side.part(one.region, one.call).time for one in figures]
    return [float("nan") if one is None else one.seconds for one in made]


def _of_script(result: ScriptResult, device: str, costs: Machine, row: Row) -> _Side:
    """Return what a script came to, its times on a device."""
    from btrfs_model.scripts.answer import regions, waits_of, whole

    on = None if device == MEMORY else load_device(device)
    all_of_it = whole(result, on)
    if all_of_it is None:
        raise BtrfsModelError("the script calls nothing")
    every, *parts = (_part(one.work, one.waits, one.depends, costs, row)
                     for one in (all_of_it, *regions(result, on)))  # fmt: skip
    by_call: dict[str, list[Step]] = {}
    work: dict[str, Counter[str]] = {}
    for one in result.calls:
        name = one.what.split(" ")[0]
        by_call.setdefault(name, []).append(one)
        for function, counted in [(name, one.work), *one.functions.items()]:
            work.setdefault(function, Counter()).update(counted)
    calls = {name: _part(counted, waits_of(by_call.get(name, ()), on), every.depends, costs, row)
             for name, counted in work.items()}  # fmt: skip
    return _Side(every, parts, result.output.decode(errors="replace"), calls)


def _part(
    work: Mapping[str, float], waits: float, depends: Sequence[str], costs: Machine, row: Row
) -> _Part:
    if row.pipe and work.get("send_cmd"):
        work = through_a_pipe(work)
        depends = [one for one in depends if one != "no pipe"]
    try:
        made = predict(costs, work, waits)
    except NoCostError:
        made = None
    return _Part(work, made, tuple(depends))


def _replayed(
    row: Row, quick: Mapping[str, int | float], costs: Machine
) -> dict[str, dict[str, _Side]]:  # fmt: skip
    """Replay the workload of a row, which knows its devices, on the sides of its commit."""
    one = replay(
        row.workload, quick.get("scale", "full"), machine=costs,
        behaviour_before=row.sides["before"], behaviour_after=row.sides["after"],
    )  # fmt: skip
    sides = {}
    for name in row.sides:
        counts = {figure.quantity: figure.modelled or 0.0
                  for figure in reversed(one.outcome.figures) if figure.side == name}  # fmt: skip
        parts = [_of_timed(timed, costs, row) for timed in one.outcome.timed
                 if timed.side == name and timed.beside]  # fmt: skip
        sides[name] = _Side(_Part(counts, None), parts)
    return {MEMORY: sides}


def _of_timed(timed: Timed, costs: Machine, row: Row) -> _Part:
    if row.pipe:
        timed = timed.with_work(through_a_pipe(timed.work), pipe=yes_no(True))
    told = tuple(f"{key} {value}" for key, value in timed.conditions.items())
    return _Part(timed.work, timed.on(costs), told)


def _value(one: Figure, sides: Sequence[Mapping[str, _Side]]) -> tuple[Value, str]:
    """Return a figure as it came out, on the first device; and why it has no ratio, if so."""
    first = sides[0]
    if one.line or one.counter:
        before, after = (_count(one, first[name]) for name in ("before", "after"))
        return Value(before, after), ""
    ratios: list[Ratio] = []
    for of in sides:
        times = [of[name].part(one.region, one.call).time for name in ("before", "after")]
        if times[0] is None or times[1] is None or not (times[0].seconds and times[1].seconds):
            return _pair(first, one), _NO_TIME
        ratios.append(ratio(times[0], times[1]))
    if untold := next((found.untold for found in ratios if found.untold), ""):
        return _pair(first, one), untold
    low, high = min(found.low for found in ratios), max(found.high for found in ratios)
    return replace(_pair(first, one), ratio=ratios[0].value, low=low, high=high), ""


def _pair(sides: Mapping[str, _Side], one: Figure) -> Value:
    """Return the times of both sides, in seconds."""
    times = (sides[name].part(one.region, one.call).time for name in ("before", "after"))
    return Value(*(None if made is None else made.seconds for made in times))


def _count(one: Figure, side: _Side) -> float:
    if one.counter:
        return float(side.part(one.region).work.get(one.counter, 0))
    value = printed_number(one.line, side.printed)
    if value is None:
        raise BtrfsModelError(f"figure {one.name}: the script prints no line '{one.line}: NUMBER'")
    return value


def printed_number(line: str, printed: str) -> float | None:
    """Return the number behind a word, with a colon between, of what a script printed."""
    found = re.search(rf"(?m)^{re.escape(line)}:\s*(-?\d+(?:\.\d+)?)", printed)
    return None if found is None else float(found[1])


def _hangs(row: Row, by_device: Mapping[str, Mapping[str, _Side]], costs: Machine) -> list[str]:
    """Say what the times of a row depend on besides the work."""
    if all(one.line or one.counter for one in row.figures):
        return []
    timed = {(one.region, one.call) for one in row.figures if not (one.line or one.counter)}
    parts = [side.part(*one) for sides in by_device.values() for side in sides.values()
             for one in timed]  # fmt: skip
    told = dict.fromkeys(one for part in parts for one in part.depends)
    return [*told, f"processor: {costs.title}; the message's: {row.machine}"]


def tell_nothing(_: str) -> None:
    """Tell nobody how far it is."""


def run_all(
    rows: Sequence[Row], scale: str, machine: str | None, jobs: int,
    step: Callable[[str], None] = tell_nothing,
) -> list[Run]:  # fmt: skip
    """Run rows, so many at a time; see :func:`run`."""
    from btrfs_model.experiments.sweep.engine import WorkerDiedError, Workers

    if min(jobs, len(rows)) < 2:
        found = []
        for row in rows:
            step(row.name)
            found.append(run(row, scale, machine))
        return found
    with Workers(min(jobs, len(rows)), step) as pool:
        waiting = [pool.submit(_in_process, row, scale, machine) for row in rows]
        try:
            return [one.result() for one in waiting]
        except WorkerDiedError:
            raise BtrfsModelError(
                "atlas: a process was killed; with --jobs 1 less memory is needed"
            ) from None


def _in_process(row: Row, scale: str, machine: str | None) -> Run:
    from btrfs_model.experiments.sweep.engine import tell

    tell(row.name)
    return run(row, scale, machine)
