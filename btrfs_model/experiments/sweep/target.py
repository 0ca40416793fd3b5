# SPDX-License-Identifier: GPL-2.0-only
"""What a cell of a sweep measures: a workload, a scenario, or a function of your own.

A target knows its knobs, refuses values that are none, and measures one cell: a mapping of knobs to
values. It is made where the sweep is, and travels to the processes that measure.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Protocol

import pandas as pd

from btrfs_model.base.counters import NAMES as COUNTERS
from btrfs_model.base.counters import counting
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost import device, machine
from btrfs_model.experiments.scenario.load import load_scenario
from btrfs_model.experiments.scenario.run import run_scenario
from btrfs_model.experiments.sweep.images import opened
from btrfs_model.experiments.times import add_times
from btrfs_model.experiments.workloads import Input, Outcome, Side, Workload, load
from btrfs_model.experiments.workloads.knobs import ON_DEVICE, Knobs, cell_names
from btrfs_model.experiments.workloads.own import outcome_of
from btrfs_model.limits import NAMES as LIMITS
from btrfs_model.ondisk.stream import COMMANDS_BY_NAME
from btrfs_model.patches import KERNEL, Patch
from btrfs_model.questions.send.ioctl import SendResult

Params = Mapping[str, Any]
"""A cell: values of knobs by name."""
_TOGGLES: Final = {str(patch): patch for patch in Patch}
FLIPPED: Final = "flipped"
"""A knob: one toggle is on where the kernel has it off, or off where the kernel has it on. With it
goes what has no meaning otherwise: on, the toggles that it needs; off, those that need it."""
FLIPS: Final = ("none", *_TOGGLES)
_SIDES: Final = {"behaviour_before": "before", "behaviour_after": "after"}
RENAMED: Final = {side: knob for knob, side in _SIDES.items()}
"""Knobs of workloads that have another name now."""
_MOST: Final = 10**9
_PROBE: Final = 0.0005
"""Of a workload's full size: a run takes no time."""
_SHOWN: Final = 12
"""So many names an error lists."""


_FAMILIES: Final = {
    "command ": [*COMMANDS_BY_NAME],
    "sender: ": [*COUNTERS],
}
"""Figures of sends of which a small run may have some alone."""


class Row(NamedTuple):
    """A figure of a cell, and what it depends on besides the knobs."""

    quantity: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    side: str = ""
    case: Mapping[str, int | str] = {}


class Target(Protocol):
    """What is measured in each cell."""

    name: str

    def check(self, name: str, values: Sequence[Any]) -> None:
        """Refuse a knob that does not exist, or a value out of its range."""

    def identity(self, name: str, value: Any) -> Any:
        """Return what a value is, for the key of a cell: of a file its content."""

    def quantities(self) -> set[str]:
        """Return names of all figures that a cell may have; nothing where only a run tells."""

    def group(self, params: Params) -> str:
        """Key of the filesystem image that cells can share; empty if there is none."""

    def measure(self, params: Params, images: Path) -> list[Row]:
        """Measure a cell; images that cells share are in a folder."""


def target_of(what: object) -> Target:
    """Return the target that an argument of a sweep names."""
    if isinstance(what, str) and what.partition(".zst")[0].endswith((".json", ".jsonl")):
        return Scenario(what)
    if isinstance(what, str | Workload):
        return Workloads((what,))
    if callable(what):
        return Function(what)
    if isinstance(what, Iterable):
        return Workloads(tuple(what))
    raise BtrfsModelError(f"sweep: {what!r} is no workload, no scenario and no function")


def refuse(name: str, value: object, why: str) -> BtrfsModelError:
    """Return the error of a value that a knob does not take."""
    return BtrfsModelError(f"sweep: {name} = {value!r}: {why}")


def _unknown(name: str, of: str, known: Iterable[str]) -> BtrfsModelError:
    known = list(known)
    there = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
    near = did_you_mean(name, known)
    return BtrfsModelError(f"sweep: {of} has no knob {name!r}; there is {there}{near}")


def _count(name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise refuse(name, value, f"not a whole number from {least} to {_MOST:,}")


def _content(value: str) -> Any:
    """Return a name, and of a file what it holds."""
    if "/" in value or value.endswith((".toml", ".json", ".jsonl", ".zst")):
        return [value, hashlib.sha256(Path(value).read_bytes()).hexdigest()]
    return value


def _check_kernel(name: str, value: Any) -> bool:
    """Check a knob that says what the kernel is; whether it is one."""
    if name in ("behaviour", *_SIDES):
        if not isinstance(value, str):
            raise refuse(name, value, "a kernel is a text")
        Behaviour.parse(value)
    elif name == FLIPPED:
        if value not in FLIPS:
            raise refuse(name, value, f"no toggle{did_you_mean(str(value), FLIPS)}")
    elif name in _TOGGLES:
        if not isinstance(value, bool):
            raise refuse(name, value, "a toggle is true or false")
    else:
        return False
    return True


def _kernel(behaviour: str, params: Params) -> str:
    """Return a behaviour with the toggles of a cell on or off."""
    known = Behaviour.parse(behaviour)
    signs = {slug: params[slug] for slug in _TOGGLES if slug in params}
    if (slug := params.get(FLIPPED, FLIPS[0])) != FLIPS[0]:
        on = slug not in known
        signs |= dict.fromkeys(together(_TOGGLES[slug], on=on), on)
    changed = {slug: on for slug, on in signs.items() if on != (slug in known)}
    return " ".join([behaviour, *(f"{'+' if on else '-'} {slug}" for slug, on in changed.items())])


@cache
def together(patch: Patch, *, on: bool) -> tuple[str, ...]:
    """Return a toggle with those that it needs, to have it on; with those that need it, off."""
    others = patch.needs if on else tuple(one for one in Patch if patch in one.needs)
    further = (slug for one in others for slug in together(one, on=on))
    return tuple(dict.fromkeys([str(patch), *further]))


# ----------------------------------------------------------------------------------- workloads --


class Workloads:
    """One of several workloads, on the side or sides that a cell names.

    Without the knob ``behaviour`` both sides of the commit are measured, ``before`` and ``after``.
    """

    def __init__(self, which: tuple[str | Workload, ...]) -> None:
        self.workloads = {_name(one): one for one in which}
        if not self.workloads:
            raise BtrfsModelError("sweep: no workload is named")
        self.name = ", ".join(self.workloads)

    def _names(self) -> list[str]:
        """Return the knobs that all of the workloads have."""
        found: list[list[str]] = []
        for one in map(load, self.workloads.values()):
            parameters = {**one.inputs[-1].parameters, **dict.fromkeys(one.arguments)}
            found.append([*parameters, *cell_names(one.knobs)])
        first, *others = found
        shared = [name for name in first if all(name in one for one in others)]
        return [*shared, "behaviour", *_SIDES, "machine", "workload", FLIPPED, *_TOGGLES]

    def check(self, name: str, values: Sequence[Any]) -> None:
        """See :class:`Target`."""
        names = self._names()
        is_of_device = name.startswith(ON_DEVICE) and "device" in names
        if name not in names and not is_of_device:
            raise _unknown(name, self.name, names)
        for value in values:
            if not _check_kernel(name, value):
                self._check(name, value)

    def _check(self, name: str, value: Any) -> None:
        if name == "workload":
            if value not in self.workloads:
                raise _unknown(str(value), "the sweep", self.workloads)
        elif name == "machine":
            machine.load(str(value))
        elif name == "device":
            device.load(str(value))
        elif name in (*LIMITS, "nodesize"):
            if name in LIMITS:
                _count(name, value, 0)
            for one in map(load, self.workloads.values()):
                Knobs.of_cell({name: value}).check(one.name, one.knobs)
        elif not name.startswith(ON_DEVICE):
            for one in map(load, self.workloads.values()):
                if name not in one.arguments:
                    _count(name, value)
                if name == _size(one):
                    one.input(value / one.inputs[-1].parameters[name])

    def identity(self, name: str, value: Any) -> Any:
        """See :class:`Target`."""
        if name == "workload":
            found = load(self.workloads[value]).functions()
            return [value, *(one if isinstance(one, str) else source_of(one) for one in found)]
        return _content(value) if name in ("machine", "device") else value

    def quantities(self) -> set[str]:
        """See :class:`Target`: of a very small run, of what sends and receivers count besides."""
        found: set[str] = set()
        for name, one in self.workloads.items():
            workload = load(one)
            smallest = workload.scaled(_PROBE).parameters
            params = {"workload": name, _size(workload): smallest[_size(workload)]}
            with TemporaryDirectory() as images:
                found |= {row.quantity for row in self.measure(params, Path(images))}
        for start, names in _FAMILIES.items():
            if any(one.startswith(start) for one in found):
                found |= {f"{start}{name}" for name in names}
        return found

    def _workload(self, params: Params) -> tuple[Workload, Input, Knobs]:
        """Return the workload of a cell, its input, and its knobs."""
        workload = load(self.workloads[params["workload"]])
        knobs = Knobs.of_cell(params)
        knobs.check(workload.name, workload.knobs)
        full, size = workload.inputs[-1].parameters, _size(workload)
        source = workload.scaled(params.get(size, workload.inputs[0].parameters[size]) / full[size])
        given = {name: params[name] for name in (*full, *workload.arguments) if name in params}
        source = replace(source, parameters={**source.parameters, **given})
        return workload, source, replace(knobs, machine=_machine(params.get("machine")))

    def group(self, params: Params) -> str:
        """See :class:`Target`."""
        return self._image(*self._workload(params))

    def _image(self, workload: Workload, source: Input, knobs: Knobs) -> str:
        """Name the filesystem of a cell."""
        made = [*sorted(source.parameters.items()), knobs.nodesize]
        identity = [self.identity("workload", workload.name), made]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]

    def measure(self, params: Params, images: Path) -> list[Row]:
        """See :class:`Target`."""
        workload, source, knobs = self._workload(params)
        ours = {side.name: side.behaviour for side in workload.compared}
        named = {side: params.get(knob, ours[side]) for knob, side in _SIDES.items()}
        if "behaviour" in params:
            named = {"": params["behaviour"]}
        sides = tuple(Side(name, _kernel(kernel, params)) for name, kernel in named.items())
        outcome = Outcome([])
        shared = images / f"{self._image(workload, source, knobs)}.img" if workload.keeps else None
        for side in sides:
            with opened(shared, partial(workload.open, source, knobs, side=side)) as fs:
                outcome.add(workload.measure(fs, source, side, knobs))
        assert knobs.machine is not None
        add_times(outcome, knobs.machine, [])
        return [
            Row(one.quantity, one.unit, one.modelled, one.low, one.high, one.side, one.case)
            for one in outcome.figures
        ]


@cache
def _machine(named: str | None) -> machine.Machine:
    """Return the machine that a cell names, or the native one."""
    return machine.chosen(named or None)


def _name(workload: str | Workload) -> str:
    return load(workload).name


def _size(workload: Workload) -> str:
    """Return the parameter that says how large a workload is."""
    return next(iter(workload.inputs[-1].parameters))


# ----------------------------------------------------------------------------------- scenarios --


class Scenario:
    """A list of operations: the work of each fsync, and of the whole."""

    def __init__(self, path: str) -> None:
        load_scenario(path)
        self.name, self.path = Path(path).name, path

    def check(self, name: str, values: Sequence[Any]) -> None:
        """See :class:`Target`."""
        names = ["behaviour", "size", "seed", "asynchronous", FLIPPED, *_TOGGLES]
        if name not in names:
            raise _unknown(name, self.name, names)
        for value in values:
            if name == "asynchronous" and not isinstance(value, bool):
                raise refuse(name, value, "it is true or false")
            if name in ("size", "seed"):
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    raise refuse(name, value, "not a whole number")
            elif name != "asynchronous":
                _check_kernel(name, value)

    def quantities(self) -> set[str]:
        """See :class:`Target`."""
        return {"commits", *COUNTERS}

    def identity(self, name: str, value: Any) -> Any:
        """See :class:`Target`."""
        return _content(self.path) if name == "scenario" else value

    def group(self, params: Params) -> str:
        """See :class:`Target`."""
        return ""

    def measure(self, params: Params, images: Path) -> list[Row]:
        """See :class:`Target`."""
        rows: list[Row] = []

        def synced(step: Any, how: str, work: Mapping[str, int]) -> None:
            case = {"step": str(step)}
            rows.append(Row("commits", "commits", float(how == "commit"), case=case))
            rows.extend(Row(one, "calls", float(count), case=case) for one, count in work.items())

        kernel = _kernel(params.get("behaviour", KERNEL), params)
        given = {one: params[one] for one in ("size", "seed", "asynchronous") if one in params}
        with (
            counting() as work,
            run_scenario(load_scenario(self.path), behaviour=kernel, synced=synced, **given),
        ):
            pass
        return rows + [Row(one, "calls", float(count)) for one, count in work.items()]


# ----------------------------------------------------------------------------------- functions --


class Function:
    """A function of your own: its arguments are the knobs, what it returns is measured.

    It gives the result of a send, counts by name, a number, or a table with a row for each figure
    and a column ``value``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name, self.function = getattr(function, "__qualname__", str(function)), function

    def check(self, name: str, values: Sequence[Any]) -> None:
        """See :class:`Target`."""
        parameters = inspect.signature(self.function).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        if name not in parameters and not takes_any:
            raise _unknown(name, f"{self.name}()", parameters)
        for value in values:
            if name == "behaviour":
                _check_kernel(name, value)

    def quantities(self) -> set[str]:
        """See :class:`Target`."""
        return set()

    def identity(self, name: str, value: Any) -> Any:
        """See :class:`Target`."""
        return source_of(self.function) if name == "function" else value

    def group(self, params: Params) -> str:
        """See :class:`Target`."""
        return ""

    def measure(self, params: Params, images: Path) -> list[Row]:
        """See :class:`Target`."""
        given = {name: value for name, value in params.items() if name != "function"}
        found = self.function(**given)
        if isinstance(found, pd.DataFrame):
            return [_row(dict(one)) for one in found.to_dict("records")]
        if isinstance(found, SendResult):
            figures = outcome_of("", found).figures
            return [Row(one.quantity, one.unit, one.modelled) for one in figures]
        if isinstance(found, Real):
            found = {"value": found}
        if not isinstance(found, Mapping):
            raise BtrfsModelError(f"{self.name}() gives {type(found).__name__}, no mapping")
        return [Row(str(name), "", float(value)) for name, value in found.items()]


def _row(found: dict[Any, Any]) -> Row:
    """Return a row of a table as one of a cell; what no row has is a case."""
    known = {name: found.pop(name) for name in Row._fields if name in found}
    return Row(**{"quantity": "value", "unit": "", **known, "case": found})


@cache
def source_of(function: Callable[..., Any]) -> str:
    """Return the SHA-256 of the source of a function, and of the functions that it closes over.

    What else it calls is not looked at. Functions of the package stand for the package's build.
    """
    function = getattr(function, "func", function)
    if function.__module__.startswith("btrfs_model.") and function.__closure__ is None:
        return function.__qualname__
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = repr(getattr(function, "__code__", function))
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    parts = [text, *(source_of(one) for one in held if inspect.isfunction(one))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
