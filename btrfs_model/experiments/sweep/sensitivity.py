# SPDX-License-Identifier: GPL-2.0-only
"""Which knob decides: Morris screening and Sobol indices of quantities and of conclusions.

A conclusion is a sentence about both sides of a commit that holds in a cell or does not. Its
indices say what it depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.experiments.sweep.plan import Plan, optional, problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHODS: Final = {"morris": "morris", "sobol": "saltelli"}
"""The samplers that methods want."""
_SEED: Final = 0


@dataclass(frozen=True)
class Conclusion:
    """What is said of both sides of a commit.

    Attributes
    ----------
    name : str
        As a sentence.
    quantity : str
        What is compared.
    saves : float or None
        It holds where `after` is at least this fraction less than `before`.
    costs : float or None
        It holds where `after` is at least this fraction more, and more at all.
    before, after : str
        The sides.
    case : mapping
        Of figures of several cases, such as two fsyncs: which.
    """

    name: str
    quantity: str
    saves: float | None = None
    costs: float | None = None
    before: str = "before"
    after: str = "after"
    case: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = [one for one in (self.saves, self.costs) if one is not None]
        is_number = [isinstance(one, int | float) and one is not True for one in given]
        if is_number != [True] or not given[0] >= 0:
            raise BtrfsModelError(
                f"conclusion {self.name!r}: it has either saves or costs, a fraction from 0 on"
            )

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any]) -> Conclusion:
        """Read a table of a file."""
        if not isinstance(table, Mapping):
            raise BtrfsModelError(f"conclusion {name!r}: it is no table")
        known = [one.name for one in fields(cls)[1:]]
        for key in table:
            if key not in known:
                near = did_you_mean(key, known)
                raise BtrfsModelError(f"conclusion {name!r}: no key {key!r}{near}")
        if not isinstance(table.get("case", {}), Mapping):
            raise BtrfsModelError(f"conclusion {name!r}: case is no table")
        if not isinstance(table.get("quantity"), str):
            raise BtrfsModelError(f"conclusion {name!r}: quantity is missing")
        for side in ("before", "after"):
            if not isinstance(table.get(side, ""), str):
                raise BtrfsModelError(f"conclusion {name!r}: {side} is no text")
        return cls(name, **table)

    def holds(self, table: pd.DataFrame, cells: NDArray[np.int64], count: int) -> NDArray[Any]:
        """Return for each cell 1 where it holds, and 0 where it does not."""
        before, after = (
            values_of(table, cells, count, self.quantity, side, self.case)
            for side in (self.before, self.after)
        )
        if self.saves is not None:
            return (after <= (1 - self.saves) * before).astype(float)
        return ((after > before) & (after >= (1 + (self.costs or 0)) * before)).astype(float)


def values_of(
    table: pd.DataFrame, cells: NDArray[np.int64], count: int, quantity: str,
    side: str | None = None, case: Mapping[str, Any] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Return one value for each cell.

    Raises
    ------
    BtrfsModelError
        Where a cell has none, or several.
    """
    mask = (table["quantity"] == quantity).to_numpy()
    if not mask.any():
        near = did_you_mean(quantity, map(str, table["quantity"].unique()))
        raise BtrfsModelError(f"sweep: no cell has a quantity {quantity!r}{near}")
    if side is not None:
        mask = mask & (table["side"] == side).to_numpy()
    for name, value in (case or {}).items():
        if name not in table:
            raise BtrfsModelError(f"sweep: {quantity}: no column {name!r}")
        mask = mask & (table[name] == value).fillna(False).to_numpy(bool)
    found = np.full(count, np.nan)
    found[cells[mask]] = table["value"].to_numpy()[mask]
    times = np.bincount(cells[mask], minlength=count)
    if (times != 1).any():
        cell = int(np.argmax(times != 1))
        what = f"{quantity!r} on side {side!r}" if side else repr(quantity)
        raise BtrfsModelError(
            f"sweep: cell {cell} has {times[cell]} figures of {what}: one is wanted, "
            "say which by its side and case"
        )
    if np.isnan(found).any():
        raise BtrfsModelError(f"sweep: {quantity}: cells have no value of it")
    return found


def indices(planned: Plan, values: NDArray[np.float64], method: str, of: str) -> pd.DataFrame:
    """Return how much each knob decides about values of the cells of a plan.

    Parameters
    ----------
    planned : Plan
        Sampled as the method wants it.
    values : numpy.ndarray
        One for each cell.
    method : str
        ``"morris"`` or ``"sobol"``.
    of : str
        What the values are of.

    Returns
    -------
    pandas.DataFrame
        A row for each knob and index: ``of``, ``knob``, ``index``, ``value``, ``low`` and ``high``,
        the 95 % interval of a bootstrap; ``decides`` says whether that is above 0. Morris: ``mu*``,
        the mean of the absolute effects, in the unit of the values, and ``sigma``, their spread.
        Sobol: ``S1``, the share of the variance that the knob explains alone, and ``ST``, that of
        what it takes part in. Both are 0 where the values do not vary.
    """
    samples = values[planned.sampled]
    wanted = (("mu*", "mu_star", "mu_star_conf"), ("sigma", "sigma", ""))
    if method == "sobol":
        wanted = (("S1", "S1", "S1_conf"), ("ST", "ST", "ST_conf"))
    nothing = np.zeros(len(planned.varied))
    if np.ptp(samples) == 0:
        found: Mapping[str, Any] = {}
    elif method == "sobol":
        found = optional("SALib.analyze.sobol").analyze(
            problem(planned.varied), samples, calc_second_order=False, seed=_SEED
        )
    else:
        found = optional("SALib.analyze.morris").analyze(
            problem(planned.varied), planned.shares, samples, seed=_SEED
        )
    rows = []
    for name, key, spread in wanted:
        values_, ends = found.get(key, nothing), found.get(spread, nothing)
        for knob, value, end in zip(planned.varied, values_, ends, strict=True):
            low, high = float(value - end), float(value + end)
            rows.append((of, knob, name, float(value), low, high, low > 0))
    columns = ["of", "knob", "index", "value", "low", "high", "decides"]
    return pd.DataFrame(rows, columns=columns)


def analyse(
    planned: Plan,
    table: pd.DataFrame,
    cells: NDArray[np.int64],
    method: str,
    quantities: Sequence[str] = (),
    conclusions: Sequence[Conclusion] = (),
) -> pd.DataFrame:
    """Return the :func:`indices` of quantities, on each side that they have, and of conclusions.

    `table` and `cells` are what :func:`btrfs_model.experiments.sweep.api.frame` returns.

    Raises
    ------
    BtrfsModelError
        When nothing is asked for, or a quantity has not one value in each cell.
    """
    if not quantities and not conclusions:
        raise BtrfsModelError(
            f"sweep: {method}: of what? Name quantities, or conclusions (see docs/sweeps.md)"
        )
    found = []
    for quantity in quantities:
        of_it = table[table["quantity"] == quantity]
        for side in of_it["side"].unique() if len(of_it) else ("",):
            values = values_of(table, cells, len(planned), quantity, side)
            of = f"{quantity}, {side}" if side else quantity
            found.append(indices(planned, values, method, of))
    for one in conclusions:
        holds = one.holds(table, cells, len(planned))
        share = holds[planned.sampled].mean()
        found.append(indices(planned, holds, method, f"{one.name} ({share:.0%} of the samples)"))
    return pd.concat(found, ignore_index=True)
