# SPDX-License-Identifier: GPL-2.0-only
"""Finding the unit costs that explain the times of microbenchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.errors import BtrfsModelError
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
    seconds : tuple of float
        Of each run, at the speed of a machine that nothing disturbs.
    """

    name: str
    work: Mapping[str, float]
    seconds: tuple[float, ...]

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
    residual : float
        Standard deviation of the logarithm of measured / explained.
    explained : dict of str to float
        Seconds that the costs explain, by microbenchmark.
    """

    values: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    draws: NDArray[np.float64]
    residual: float
    explained: dict[str, float] = field(default_factory=dict)


def amounts(terms: Sequence[Term], work: Mapping[str, float]) -> NDArray[np.float64]:
    """Return how many of each cost some work comes to."""
    return np.array(
        [sum(weight * work.get(name, 0) for name, weight in term.counts.items()) for term in terms],
        np.float64,
    )


def fit(terms: Sequence[Term], rows: Sequence[Row], seed: int = 0) -> Fit:
    """Find the costs.

    Least squares of the relative error, no cost below zero. The bootstrap draws weights of
    microbenchmarks (Rubin 1981) and, of each, runs with replacement.

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
    times = np.array([np.median(row.seconds) for row in rows])
    values = _solve(table, times)
    explained = table @ values
    chance = np.random.default_rng(seed)
    draws = np.array([_draw(table, rows, chance) for _ in range(DRAWS)])
    low, high = np.percentile(draws, [_TAIL, 100 - _TAIL], axis=0)
    return Fit(
        values, np.minimum(low, values), np.maximum(high, values), draws,
        float(np.sqrt(np.mean(np.log(times / explained) ** 2))),
        dict(zip((row.name for row in rows), explained.tolist(), strict=True)),
    )  # fmt: skip


def _solve(
    table: NDArray[np.float64],
    times: NDArray[np.float64],
    weights: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the costs of least squares; weights are those of squares."""
    root = np.ones(len(times)) if weights is None else np.sqrt(weights)
    relative = table / times[:, None] * root[:, None]
    scale = np.linalg.norm(relative, axis=0)
    found, _ = _optimize().nnls(relative / scale, root)
    return np.asarray(found / scale, np.float64)


def _draw(
    table: NDArray[np.float64], rows: Sequence[Row], chance: np.random.Generator
) -> NDArray[np.float64]:
    times = [np.median(chance.choice(row.seconds, len(row.seconds))) for row in rows]
    return _solve(table, np.array(times), chance.exponential(size=len(rows)))


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
