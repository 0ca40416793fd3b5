# SPDX-License-Identifier: GPL-2.0-only
"""Times that follow from work and the unit costs of a machine, and their ratios.

The time of an operation is the sum of what its work costs, and of what it waits for devices. Work
without a cost has no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.tables import html_table
from btrfs_model.cost.caches import with_cache
from btrfs_model.cost.causes import BLOCKS_AWAITED, DEVICE, duration, unpaid, without_cost, words
from btrfs_model.cost.pipe import PIPE, PIPE_WRITES, with_wakes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from btrfs_model.cost.machine import Machine

_TAIL: Final = 0.05
"""Beyond each end of an interval of 90 %."""
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
