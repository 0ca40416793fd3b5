# SPDX-License-Identifier: GPL-2.0-only
"""What was measured or counted on both sides, beside each other."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from btrfs_model.cost.prediction import Ratio
from btrfs_model.experiments.numbers import amount, number, ratio_text, times
from btrfs_model.experiments.verify.times import Taken
from btrfs_model.experiments.workloads.timed import SECONDS

_DRAWS: Final = 2000
_TAIL: Final = 0.05
_MOST: Final = 40
"""Functions that are told of one workload."""


@dataclass(frozen=True)
class Measured:
    """A median with its 90 % interval, by bootstrap."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One thing that was measured on both sides.

    Attributes
    ----------
    workload, what, unit : str
        What it is of; the unit may be empty.
    before, after : Measured
        On both sides.
    ratio : Measured or None
        The one divided by the other; None where after is 0.
    reported : str
        What the message says it comes to.
    predicted : Ratio or None
        What the model does.
    modelled : tuple of float, optional
        What the model counts before and after.
    """

    workload: str
    what: str
    unit: str
    before: Measured
    after: Measured
    ratio: Measured | None
    reported: str = ""
    predicted: Ratio | None = None
    modelled: tuple[float, float] | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands below :data:`HEADINGS`."""
        told = ""
        if self.predicted is not None:
            told = ratio_text(self.predicted)
        elif self.modelled is not None:
            told = f"{number(self.modelled[0])}, then {number(self.modelled[1])}"
        sides = (amount(self.unit, one.value, one.low, one.high)
                 for one in (self.before, self.after))  # fmt: skip
        measured = ""
        if self.ratio is not None:
            measured = times(self.ratio.value, self.ratio.low, self.ratio.high)
        unit = f" ({self.unit})" if self.unit and self.unit not in SECONDS else ""
        return f"{self.what}{unit}", self.reported, told, measured, *sides


HEADINGS: Final = ("", "reported", "predicted", "measured", "before", "after")


def _medians(values: Sequence[float], chance: np.random.Generator) -> NDArray[np.float64]:
    """Draw medians of runs that might have been."""
    known = np.asarray(values, np.float64)
    drawn = known[chance.integers(0, len(known), (_DRAWS, len(known)))]
    return np.asarray(np.median(drawn, axis=1), np.float64)


def row_of(workload: str, before: Taken, after: Taken, what: str, **known: Any) -> Row:
    """Set what runs of both sides came to beside each other."""
    chance = np.random.default_rng(0)
    draws = [_medians(one.values, chance) for one in (before, after)]
    values = [statistics.median(one.values) for one in (before, after)]
    compared = None
    if draws[1].all():
        compared = _interval(values[0] / values[1], draws[0] / draws[1])
    first, second = (_interval(*one) for one in zip(values, draws, strict=True))
    return Row(workload, what, before.unit, first, second, compared, **known)


def _interval(value: float, draws: NDArray[np.float64]) -> Measured:
    return Measured(value, *np.quantile(draws, [_TAIL, 1 - _TAIL]).tolist())


def differing(
    workload: str, functions: Sequence[Sequence[Counter[str]]],
    work: Sequence[Mapping[str, int]] | None,
) -> list[Row]:  # fmt: skip
    """Set counts that differ beside each other, and the model's where it has any.

    Of several runs of a side each differs from each of the other side in the same direction.
    """
    rows = []
    for name in functions[0][0].keys() & functions[1][0].keys():
        first, second = ([float(counts[name]) for counts in runs] for runs in functions)
        if max(first) < min(second) or max(second) < min(first):
            before, after = (Taken(name, "calls", values=one) for one in (first, second))
            model = None
            if work is not None and any(name in one for one in work):
                model = (float(work[0].get(name, 0)), float(work[1].get(name, 0)))
            rows.append(row_of(workload, before, after, name, modelled=model))
    rows.sort(key=lambda row: -abs(row.before.value - row.after.value))
    return rows[:_MOST]
