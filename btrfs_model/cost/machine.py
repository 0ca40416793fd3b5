# SPDX-License-Identifier: GPL-2.0-only
"""Machines: what a kernel takes for the work that is counted, and the times that follow.

A machine is a file of ``data/machines``: at most twelve unit costs, each measured by experiments of
its own, with an interval. The time of an operation is the sum of what its work costs, and of what
it waits for devices. Work without a cost has no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from btrfs_model.base.errors import BtrfsModelError, UnknownBehaviourError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.samples import data_folder
from btrfs_model.base.tables import html_table
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.caches import DEFAULT_MIB, with_cache
from btrfs_model.cost.causes import (
    BLOCKS_AWAITED,
    DEVICE,
    OPERATIONS,
    QUANTITIES,
    duration,
    operations,
    unpaid,
    without_cost,
    words,
)
from btrfs_model.cost.device import read_toml
from btrfs_model.cost.pipe import PIPE, PIPE_WRITES, with_wakes

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_COSTS: Final = 12
"""More would fit anything."""
UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
"""Units of costs, in seconds."""
_KINDS: Final = ("native", "uml")
_TAIL: Final = 0.05
"""Beyond each end of an interval of 90 %."""
_ALL: Final = "relative"
"""Key of what is left unexplained of all microbenchmarks."""
_LEAST: Final = 0.15
_SLOPE: Final = 5.0
"""What is left of a variance in a ratio, see :func:`ratio`: the least, and the more the less alike
the parts of both times are."""
_TELLING: Final = 0.01
"""Of a time; what may take as much, and has no cost, is named."""
_NAMED: Final = 4
"""So many quantities are named at most."""
_UNTOLD: Final = 0.25
"""A residual from which on a machine says that it does not tell times of an operation."""
_NORMAL: Final = 1.6448536269514722
"""Standard deviations of a normal distribution that leave :data:`_TAIL` out."""


class NoCostError(BtrfsModelError):
    """No part of the work has a cost on a machine: there is no time for it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one of something takes.

    Attributes
    ----------
    name, meaning, measured : str
        What it is called and what it is; how it was measured.
    seconds, low, high : float
        Of one; the 90 % interval.
    counts : dict
        What it is paid for: quantities of work with their weights.
    """

    name: str
    seconds: float
    low: float
    high: float
    counts: dict[str, float]
    meaning: str
    measured: str


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Unit costs of a machine.

    Attributes
    ----------
    name, title : str
        Name of its file, and what it is.
    kernel : str
        Behaviour that the work of the measurements was counted by.
    kind : str
        ``native``, or ``uml`` (User-Mode Linux).
    measured : str
        When.
    cache_mib : float
        MiB of the last cache of its processor.
    costs : tuple of Cost
        At most :data:`MOST_COSTS`.
    draws : numpy.ndarray
        Seconds of each cost in each draw of the bootstrap: a row for each draw.
    residuals : dict of str to float
        Standard deviation of what the costs leave unexplained, of the logarithm of a time: of all
        microbenchmarks under ``relative``; of those of an operation under its name, one of
        :data:`btrfs_model.cost.causes.OPERATIONS`.
    """

    name: str
    title: str
    kernel: str
    kind: str
    measured: str
    cache_mib: float
    costs: tuple[Cost, ...]
    draws: NDArray[np.float64] = field(repr=False)
    residuals: dict[str, float]

    def residual(self, work: Mapping[str, float]) -> float:
        """Return what is left unexplained of an operation, by its work."""
        of = [self.residuals[name] for name in operations(work) if name in self.residuals]
        return max(of, default=self.residuals[_ALL])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prediction:
    """The time of an operation on a machine.

    Attributes
    ----------
    machine : Machine
        Which one.
    seconds, low, high : float
        The time; its 90 % interval.
    parts : dict of str to float
        Seconds by cost, the largest first; waiting for a device under ``device``. They add up.
    causes : dict of str to str
        What was done for each part, in words.
    without : tuple of str
        Parts of the operation that have no cost on this machine: they are not in the time.
    draws : numpy.ndarray
        The time in each draw of the bootstrap.
    residual : float
        Standard deviation of what the costs leave unexplained, of the logarithm of such a time.
    work : mapping
        What was counted.
    devices : dict of str to Prediction
        The time on each device, where several may have been waited for; all are in the interval.
    """

    machine: Machine
    seconds: float
    low: float
    high: float
    parts: dict[str, float]
    causes: dict[str, str]
    without: tuple[str, ...]
    draws: NDArray[np.float64] = field(repr=False)
    residual: float
    work: Mapping[str, float] = field(default_factory=dict, repr=False)
    devices: Mapping[str, Prediction] = field(default_factory=dict, repr=False)

    @property
    def computed(self) -> float:
        """Seconds that are not waiting for a device."""
        return self.seconds - self.parts.get(DEVICE, 0.0)

    def as_dict(self) -> dict[str, object]:
        """Return what there is to know, as JSON has it."""
        return {
            "machine": self.machine.name,
            **{name: getattr(self, name) for name in ("seconds", "low", "high", "parts", "causes")},
            "without": list(self.without),
            "text": f"{self} on {self.machine.name}",
            "split": self.split(),
        }

    def __str__(self) -> str:
        return f"{duration(self.seconds)} ({duration(self.low)} to {duration(self.high)})"

    def __repr__(self) -> str:
        return f"Prediction({self} on {self.machine.name})"

    def _repr_html_(self) -> str:
        rows = [(duration(part), self.causes[name]) for name, part in self.parts.items()]
        rows += [(str(one), f"on {name}") for name, one in self.devices.items()]
        return html_table(f"{self} on {self.machine.name}", [], rows)

    def split(self, most: int = 4) -> list[str]:
        """Return what the time goes into: ``21.6 s of 27.7 s: stepping over 900 million items``.

        Parameters
        ----------
        most : int
            As many lines, and one for the rest.
        """
        whole = duration(self.seconds)
        told: dict[str, float] = {}
        for name, part in self.parts.items():  # two costs may be paid for the same
            told[self.causes[name]] = told.get(self.causes[name], 0.0) + part
        causes = sorted(told.items(), key=lambda one: -one[1])
        shown = causes[:most]
        lines = [f"{duration(part)} of {whole}: {cause}" for cause, part in shown]
        rest = sum(part for _, part in causes[most:])
        if len(causes) > most:
            lines.append(f"{duration(rest)} of {whole}: the rest")
        lines += [f"not in it, for it has no cost: {part}" for part in self.without]
        if self.residual > _UNTOLD:
            lines.append(
                f"{self.machine.name} does not tell such times: those of its own microbenchmarks "
                f"are off by {self.residual:.0%}"
            )
        return lines


@dataclass(frozen=True, slots=True, repr=False)
class Ratio:
    """How many times as long one operation takes as another.

    Attributes
    ----------
    value, low, high : float
        The ratio; its 90 % interval.
    untold : str
        Why the model cannot tell it, where it cannot: then it lies between nothing and infinity.
    unpaid : tuple of str
        What both sides do not do equally often, and what has no cost: it widens the interval.
    devices : dict of str to float
        The ratio on each device that may have been waited for; all are in the interval.
    alone : Ratio or None
        The ratio on the one that stands for them.
    """

    value: float
    low: float
    high: float
    untold: str = ""
    unpaid: tuple[str, ...] = ()
    devices: Mapping[str, float] = field(default_factory=dict)
    alone: Ratio | None = None

    def __str__(self) -> str:
        if self.untold:
            return f"not told: {self.untold}"
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"

    def __repr__(self) -> str:
        return f"Ratio({self})"

    def _repr_html_(self) -> str:
        rows = [(f"{value:.3g}", f"on {name}") for name, value in self.devices.items()]
        rows += [("without a cost", name) for name in self.unpaid]
        return html_table(f"{self} times as long before as after", [], rows)


def names() -> list[str]:
    """Names of the machines that there are files of."""
    return sorted(path.stem for path in (data_folder() / "machines").glob("*.toml"))


def default() -> Machine:
    """Return the machine that times are told for where none is named: the native one.

    Raises
    ------
    BtrfsModelError
        When there is none.
    """
    for machine in map(load, names()):
        if machine.kind == "native":
            return machine
    raise BtrfsModelError(f"{data_folder() / 'machines'}: there is no native machine")


@cache
def _read(path: Path) -> Machine:
    return build(path.stem, read_toml(path), str(path))


def load(name: str) -> Machine:
    """Return a machine.

    Parameters
    ----------
    name : str
        One of :func:`names`, or the path of a file ``*.toml``.

    Raises
    ------
    BtrfsModelError
        When there is none, or its file says what no machine is: with the file and the key.
    OSError
        When the file cannot be read.
    """
    if name.endswith(".toml") or "/" in name:
        return build(Path(name).stem, read_toml(Path(name)), name)
    if name not in names():
        near = did_you_mean(name, names())
        raise BtrfsModelError(
            f"no machine {name!r}: there is {', '.join(names()) or 'none'}, "
            f"or the path of a file NAME.toml{near}"
        )
    return _read(data_folder() / "machines" / f"{name}.toml")


def chosen(machine: str | Machine | None) -> Machine:
    """Return a machine by name or itself; :func:`default` for None."""
    if isinstance(machine, Machine):
        return machine
    return default() if machine is None else load(machine)


# --------------------------------------------------------------------------- what a file says --


def build(name: str, table: Mapping[str, Any], path: str) -> Machine:
    """Make a machine of a table as it stands in a file; `path` is what errors name."""
    try:
        costs = table.get("cost")
        if not isinstance(costs, Mapping) or not costs:
            raise ValueError("cost: there is none")
        if len(costs) > MOST_COSTS:
            raise ValueError(f"cost: {len(costs)} of them are more than {MOST_COSTS}")
        kind = _text(table, "kind")
        if kind not in _KINDS:
            raise ValueError(f"kind is {kind!r}, not {' or '.join(_KINDS)}")
        kernel = _text(table, "kernel")
        Behaviour.parse(kernel)
        made = tuple(_cost(one, of_one) for one, of_one in costs.items())
        units = [UNITS[of_one["unit"]] for of_one in costs.values()]
        return Machine(
            name, _text(table, "title"), kernel, kind, str(table.get("measured", "")),
            _cache(table.get("cache_mib", DEFAULT_MIB)), made,
            _draws(table.get("draws"), list(costs), units), _residuals(table.get("residual")),
        )  # fmt: skip
    except UnknownBehaviourError as error:
        raise BtrfsModelError(f"{path}: kernel: {error}") from None
    except ValueError as error:
        raise BtrfsModelError(f"{path}: {error}") from None


def _text(table: Mapping[str, Any], key: str, place: str = "") -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"{place}{key} is missing" if value is None else f"{place}{key} is no text"
        )
    return value


def _number(value: object, key: str) -> float:
    """Return a number that is not negative."""
    if value is None:
        raise ValueError(f"{key} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r}, not a number")
    if value < 0:
        raise ValueError(f"{key} is {value}, which is negative")
    return float(value)


def _cost(name: str, table: object) -> Cost:
    place = f"cost.{name}"
    if not isinstance(table, Mapping):
        raise ValueError(f"{place} is no table")
    unit = _text(table, "unit", f"{place}.")
    if unit not in UNITS:
        near = did_you_mean(unit, UNITS)
        raise ValueError(f"{place}.unit is {unit!r}, not {', '.join(UNITS)}{near}")
    value, low, high = (
        _number(table.get(key), f"{place}.{key}") for key in ("value", "low", "high")
    )
    if not low <= value <= high:
        raise ValueError(f"{place}.value is {value:g}, not between low and high")
    counts = table.get("counts")
    if not isinstance(counts, Mapping) or not counts:
        raise ValueError(f"{place}.counts is missing")
    for quantity in counts:
        if quantity not in QUANTITIES:
            near = did_you_mean(quantity, QUANTITIES)
            raise ValueError(f"{place}.counts: no counter {quantity!r}{near}")
    weights = {one: _number(weight, f"{place}.counts.{one}") for one, weight in counts.items()}
    scale = UNITS[unit]
    return Cost(
        name, value * scale, low * scale, high * scale, weights,
        _text(table, "meaning", f"{place}."), _text(table, "measured", f"{place}."),
    )  # fmt: skip


def _cache(value: object) -> float:
    mib = _number(value, "cache_mib")
    if not mib:
        raise ValueError("cache_mib is 0")
    return mib


def _draws(table: object, costs: list[str], units: list[float]) -> NDArray[np.float64]:
    if not isinstance(table, Mapping):
        raise ValueError("draws is missing")
    for name in table:
        if name not in costs:
            raise ValueError(f"draws.{name}: there is no such cost{did_you_mean(name, costs)}")
    columns: list[list[float]] = []
    for name, unit in zip(costs, units, strict=True):
        values = table.get(name)
        if not isinstance(values, list) or not values:
            raise ValueError(f"draws.{name} is missing")
        if columns and len(values) != len(columns[0]):
            raise ValueError(
                f"draws.{name} has {len(values)} draws, draws.{costs[0]} has {len(columns[0])}"
            )
        columns.append([_number(value, f"draws.{name}") * unit for value in values])
    return np.array(columns).T


def _residuals(table: object) -> dict[str, float]:
    if not isinstance(table, Mapping):
        raise ValueError("residual is missing")
    for name in table:
        if name not in (_ALL, *OPERATIONS):
            near = did_you_mean(name, OPERATIONS)
            raise ValueError(f"residual.{name}: there is no such operation{near}")
    found = {name: _number(value, f"residual.{name}") for name, value in table.items()}
    return {_ALL: _number(table.get(_ALL), f"residual.{_ALL}"), **found}


# ------------------------------------------------------------------------------------- times --


def predict(
    machine: Machine, work: Mapping[str, float], device: float | Callable[[float], float] = 0
) -> Prediction:
    """Predict how long work takes.

    Parameters
    ----------
    machine : Machine
        Where it is done.
    work : mapping
        How much of each quantity.
    device : float or callable
        Nanoseconds that are waited for a device besides; where the device works while the kernel
        computes, ``device(seconds)`` says so for that time of computing. With none, tree blocks
        that are waited for come from a device of memory.

    Where a stream goes through a pipe, see :mod:`btrfs_model.cost.pipe`, its reader is woken as
    often as the time in between allows.

    Raises
    ------
    NoCostError
        When nothing of the work has a cost.
    """
    if device:
        work = {name: count for name, count in work.items() if name != BLOCKS_AWAITED}
    work = with_cache(work, machine.cache_mib)
    if work.get(PIPE_WRITES):
        into_memory = {name: count for name, count in work.items() if name not in PIPE}
        work = with_wakes(work, predict(machine, into_memory).seconds)
    amounts = {
        cost.name: {one: weight * work[one] for one, weight in cost.counts.items() if work.get(one)}
        for cost in machine.costs
    }
    done = np.array([sum(amounts[cost.name].values()) for cost in machine.costs], np.float64)
    seconds = np.array([cost.seconds for cost in machine.costs])
    if not done.any():
        counted = ", ".join(sorted(name for name, count in work.items() if count)) or "no work"
        raise NoCostError(f"{machine.name}: no time for work that has no cost: {counted}")
    computed = float(seconds @ done)
    draws, residual = machine.draws @ done, machine.residual(work)
    ends = (*_interval(computed, draws, residual), computed)
    low, high, waits = (_waits(device, end) for end in ends)
    draws += np.interp(draws, (ends[0], computed, ends[1]), (low, waits, high))
    of_cost = zip(machine.costs, (seconds * done).tolist(), strict=True)
    parts = {cost.name: part for cost, part in of_cost if part}
    causes = {
        cost.name: words(amounts[cost.name], work) for cost in machine.costs if cost.name in parts
    }
    if waits:
        parts[DEVICE], causes[DEVICE] = waits, "waiting for the device"
    paid = _paid(machine)
    return Prediction(
        machine, computed + waits, ends[0] + low, ends[1] + high,
        dict(sorted(parts.items(), key=lambda part: -part[1])),
        causes, without_cost(work, paid, waited=waits > 0), draws, residual, work,
    )  # fmt: skip


def _waits(device: float | Callable[[float], float], computed: float) -> float:
    """Return the seconds of waiting beside so many of computing."""
    return (device(computed) if callable(device) else device) / 1e9


def _interval(value: float, draws: NDArray[np.float64], deviation: float) -> tuple[float, float]:
    """Return the 90 % interval of a time or ratio: of its draws, and of what they leave out."""
    if not value:
        return 0.0, 0.0
    ends = np.quantile(draws, [_TAIL, 1 - _TAIL])
    tiny = np.finfo(float).tiny
    below, above = (max(0.0, sign * math.log(max(float(end), tiny) / value))
                    for sign, end in zip((-1, 1), ends, strict=True))  # fmt: skip
    rest = _NORMAL * deviation
    return value * math.exp(-math.hypot(below, rest)), value * math.exp(math.hypot(above, rest))


def ratio(before: Prediction, after: Prediction) -> Ratio:
    """Compare two times of one machine.

    Both have the same costs, whatever these are, so the interval is of the ratio in each draw. What
    the costs leave unexplained cancels if both times go into the same parts, and no longer where
    their shares differ by more than a sixth. This was measured on pairs of microbenchmarks, on
    three machines: the variance of the difference of two unexplained parts, over that of any pair.
    It is a fifth where shares differ by less than 3 %, and all of it from some 15 % on (a
    variogram: Matheron, Principles of geostatistics, 1963).

    What is counted, has no cost and differs may take nothing, and at most as long as a search of a
    tree each time: the interval has both in it. Where nothing that has a cost differs, the ratio is
    not told.

    Raises
    ------
    ValueError
        For times of different machines, or a time of 0.
    """
    if before.machine is not after.machine:
        raise ValueError(f"times of two machines: {before.machine.name}, {after.machine.name}")
    if not after.seconds or not before.seconds:
        raise ValueError("a time of 0 has no ratio")
    more = unpaid(before.work, after.work, _paid(before.machine))
    if before.parts == after.parts:
        return Ratio(1.0, 0.0, math.inf, untold=_why_untold(more), unpaid=tuple(more))
    unlike = 0.0
    for name in {**before.parts, **after.parts}:
        shares = [one.parts.get(name, 0.0) / one.seconds for one in (before, after)]
        unlike += abs(shares[0] - shares[1]) / 2
    left = min(1.0, _LEAST + _SLOPE * unlike)
    deviation = max(before.residual, after.residual) * math.sqrt(2 * left)
    value = before.seconds / after.seconds
    low, high = _interval(value, before.draws / after.draws, deviation)
    longest = _search(before.machine)
    beyond = [longest * sum(max(0.0, sign * count) for count in more.values()) for sign in (1, -1)]
    telling = [name for name, count in more.items()
               if longest * abs(count) > _TELLING * min(before.seconds, after.seconds)]  # fmt: skip
    return Ratio(
        value, low * after.seconds / (after.seconds + beyond[1]),
        high * (before.seconds + beyond[0]) / before.seconds, unpaid=tuple(telling),
    )  # fmt: skip


def _paid(machine: Machine) -> set[str]:
    return {one for cost in machine.costs for one in cost.counts}


def _search(machine: Machine) -> float:
    """Return the seconds of a search of a tree that is one block; 0 where it has no cost."""
    weights = ((cost.seconds, cost.counts.get("btrfs_search_slot", 0.0)) for cost in machine.costs)
    return sum(seconds * weight for seconds, weight in weights)


def _why_untold(more: Mapping[str, float]) -> str:
    """Say why two times with the same parts have no ratio."""
    if not more:
        return "both sides do the same of all that is counted"
    names = list(more)
    others = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        "both sides do the same of all that has a cost; they differ in what has none: "
        f"{', '.join(names[:_NAMED])}{others}"
    )


def by_function(machine: Machine, work: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Split the time of work by what is counted.

    Returns
    -------
    list of tuple
        Quantity, how much of it, seconds; the longest first.
    """
    seconds: dict[str, float] = {}
    for cost in machine.costs:
        for name, weight in cost.counts.items():
            if work.get(name):
                seconds[name] = seconds.get(name, 0.0) + cost.seconds * weight * work[name]
    return sorted(((name, work[name], time) for name, time in seconds.items()), key=lambda r: -r[2])
