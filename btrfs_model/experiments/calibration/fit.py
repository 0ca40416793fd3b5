# SPDX-License-Identifier: GPL-2.0-only
"""Finding the unit costs that explain the times of microbenchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cost.causes import operations
from btrfs_model.experiments.calibration.costs import Term

if TYPE_CHECKING:
    from numpy.typing import NDArray

DRAWS = 50
_TAIL = 5


@dataclass(frozen=True)
class Row:
    """A microbenchmark that was counted and timed.

    Attributes
    ----------
    name : str
        Which one.
    work : mapping of str to float
        What was counted.
    seconds, waited : tuple of float
        Of the processor and waiting in each run, at the speed of a machine that nothing disturbs.
    """

    name: str
    work: Mapping[str, float]
    seconds: tuple[float, ...]
    waited: tuple[float, ...] = (0.0,)

    @property
    def took(self) -> float:
        """Seconds by the wall."""
        return float(np.median(self.seconds) + np.median(self.waited))

    @property
    def spread(self) -> float:
        """How far apart the middle half of the runs lies, of their median."""
        low, middle, high = np.quantile(self.seconds, [0.25, 0.5, 0.75])
        return float((high - low) / middle)


@dataclass(frozen=True, eq=False)
class Fit:
    """Costs that were found, in seconds.

    Attributes
    ----------
    values, low, high : numpy.ndarray
        Of each term; the 90 % interval of the bootstrap.
    draws : numpy.ndarray
        The costs of each draw, a row for each.
    residuals : dict of str to float
        Standard deviation of the logarithm of measured / explained, as
        :attr:`btrfs_model.cost.machine.Machine.residuals` has it.
    explained : dict of str to float
        Seconds that the costs explain, by microbenchmark.
    """

    values: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    draws: NDArray[np.float64]
    residuals: dict[str, float]
    explained: dict[str, float] = field(default_factory=dict)


def amounts(terms: Sequence[Term], work: Mapping[str, float]) -> NDArray[np.float64]:
    """Return how many of each cost some work comes to."""
    return np.array(
        [sum(weight * work.get(name, 0) for name, weight in term.counts.items()) for term in terms],
        np.float64,
    )


def fit(terms: Sequence[Term], rows: Sequence[Row], seed: int = 0) -> Fit:
    """Find the costs.

    Least squares of the relative error, no cost below zero; computing and waiting each by itself.
    The bootstrap draws weights of microbenchmarks (Rubin 1981) and, of each, runs with replacement.

    Parameters
    ----------
    terms : sequence of Term
        What is to be found.
    rows : sequence of Row
        The microbenchmarks.
    seed : int
        Of the bootstrap.

    Raises
    ------
    BtrfsModelError
        When scipy is missing, or no microbenchmark pays a cost.
    """
    table = np.array([amounts(terms, row.work) for row in rows])
    for number, term in enumerate(terms):
        if not table[:, number].any():
            raise BtrfsModelError(f"calibration: no microbenchmark tells the cost {term.name}")
    waits = np.array([term.waits for term in terms])
    times = np.array([row.took for row in rows])
    values = _solve(table, waits, *_middles(rows))
    explained = table @ values
    chance = np.random.default_rng(seed)
    draws = np.array([_draw(table, waits, rows, chance) for _ in range(DRAWS)])
    low, high = np.percentile(draws, [_TAIL, 100 - _TAIL], axis=0)
    return Fit(
        values, np.minimum(low, values), np.maximum(high, values), draws,
        _residuals(rows, np.log(times / explained)),
        dict(zip((row.name for row in rows), explained.tolist(), strict=True)),
    )  # fmt: skip


def _residuals(rows: Sequence[Row], errors: NDArray[np.float64]) -> dict[str, float]:
    """Return the standard deviation of errors: of all rows, and of each operation's."""
    of: dict[str, list[float]] = {"relative": errors.tolist()}
    for row, error in zip(rows, errors.tolist(), strict=True):
        for name in operations(row.work):
            of.setdefault(name, []).append(error)
    return {name: float(np.sqrt(np.mean(np.square(some)))) for name, some in of.items()}


def _middles(
    rows: Sequence[Row], chance: np.random.Generator | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the medians of what rows computed and waited, or those of runs of chance."""

    def middle(runs: tuple[float, ...]) -> float:
        return float(np.median(runs if chance is None else chance.choice(runs, len(runs))))

    return (np.array([middle(row.seconds) for row in rows]),
            np.array([middle(row.waited) for row in rows]))  # fmt: skip


def _solve(
    table: NDArray[np.float64],
    waits: NDArray[np.bool_],
    computed: NDArray[np.float64],
    waited: NDArray[np.float64],
    weights: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the costs of least squares; weights are those of squares.

    What was computed is explained by what the processor does, what was waited by waits. The error
    of a wait is relative to all of the time: where next to nothing was waited it tells nothing.
    """
    root = np.ones(len(computed)) if weights is None else np.sqrt(weights)
    found = np.zeros(table.shape[1])
    for which, times, of in ((~waits, computed, computed), (waits, waited, computed + waited)):
        relative = table[:, which] / of[:, None] * root[:, None]
        scale = np.linalg.norm(relative, axis=0)
        costs, _ = _optimize().nnls(relative / scale, times / of * root)
        found[which] = costs / scale
    return found


def _draw(
    table: NDArray[np.float64],
    waits: NDArray[np.bool_],
    rows: Sequence[Row],
    chance: np.random.Generator,
) -> NDArray[np.float64]:
    computed, waited = _middles(rows, chance)
    return _solve(table, waits, computed, waited, chance.exponential(size=len(rows)))


def needs_scipy() -> None:
    """See to it that there is scipy.

    Raises
    ------
    BtrfsModelError
        When it is missing.
    """
    _optimize()


def _optimize() -> Any:
    try:
        return import_module("scipy.optimize")
    except ImportError:
        raise BtrfsModelError(
            "calibrate needs scipy, which is not installed: pip install 'btrfs-model[calibrate]'"
        ) from None
