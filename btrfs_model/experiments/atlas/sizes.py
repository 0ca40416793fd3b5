# SPDX-License-Identifier: GPL-2.0-only
"""The gain of a commit over the size of a row's script: where it pays, and where it hurts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd

from btrfs_model.experiments.atlas.rows import Figure, Row, chosen
from btrfs_model.experiments.atlas.runs import QUICK, Run, run
from btrfs_model.experiments.numbers import number, times
from btrfs_model.experiments.sweep.api import Settings, carry_out
from btrfs_model.experiments.sweep.driver import Report
from btrfs_model.experiments.sweep.plan import Range, plan
from btrfs_model.experiments.sweep.target import Function
from btrfs_model.experiments.workloads.cases import Column
from btrfs_model.scripts.variables import numbers

POINTS: Final = 5
LIMIT: Final = 120
"""Seconds that a size may take, on both sides."""
_SMALLEST: Final = 16
"""How many times as large the quick size is as the smallest, where it is the largest."""
_TELLING: Final = 0.01
"""Of a time; less is no change."""
COLUMNS: Final = {
    "row": Column("string", "", "The row, a file of data/atlas."),
    "figure": Column("string", "", "Which time, as the row calls it."),
    "share": Column("float64", "fraction", "Of the largest size."),
    "size": Column("string", "", "The numbers of the script, or the scale of the workload."),
    "before": Column("float64", "s", "The time before the commit."),
    "after": Column("float64", "s", "The time after it."),
    "ratio": Column("float64", "", "Before over after; empty where it is not told."),
    "low": Column("float64", "", "Lower end of the 90 % interval of that."),
    "high": Column("float64", "", "Upper end of it."),
}  # fmt: skip
"""The columns of the table, in their order."""


def sizes(runs: Sequence[Run], machine: str | None, jobs: int, report: Report) -> pd.DataFrame:
    """Run rows again at smaller sizes: five of each, of which the run itself is the largest.

    The numbers that the quick scale turns are turned together, each by the same factor from one
    size to the next: from the quick size to that of a full run; for a quick run, from a sixteenth.

    Parameters
    ----------
    runs : sequence of Run
        At the largest size. Those without a ratio are left out; so is a size that fails, or takes
        longer than :data:`LIMIT`.
    machine : str, optional
        Whose unit costs tell times; the native machine without it.
    jobs : int
        Sizes that run at a time.
    report : callable
        Told how many are done, of how many, and how many failed.

    Returns
    -------
    pandas.DataFrame
        A row for each ratio and size, smallest first: :data:`COLUMNS`.
    """
    wanted = [one for one in runs if one.row.quick and _ratios(one.row)]
    places = [(one.row.name, point, one.is_full) for one in wanted for point in range(POINTS - 1)]
    found: list[dict[Any, Any]] = [row for one in wanted for row in _of_run(one, 1.0)]
    if places:
        names, points, full = zip(*places, strict=True)
        target = Function(smaller)
        knobs = {"row": names, "point": points, "full": full, "machine": machine or ""}
        settings = Settings(jobs=jobs, retries=0, timeout=LIMIT, incomplete=True, report=report)
        table, _ = carry_out(target, plan(target, knobs, "list"), settings)
        found += table.rename(columns={"quantity": "figure", "value": "ratio"}).to_dict("records")
    order = [(one.row.name, figure.name) for one in wanted for figure in _ratios(one.row)]
    found.sort(key=lambda one: (order.index((one["row"], one["figure"])), one["share"]))
    return pd.DataFrame(found, columns=list(COLUMNS)).astype(
        {name: one.dtype for name, one in COLUMNS.items()}
    )


def smaller(row: str, point: int, full: bool, machine: str) -> pd.DataFrame:
    """Run a row at one of its smaller sizes: a row for each ratio, as a cell of a sweep has it."""
    (one,) = chosen([row])
    at = np.array([point / (POINTS - 1)])
    quick = {name: ends.at(at)[0] for name, ends in _ends(one, full=full).items()}
    made = run(replace(one, quick=quick), QUICK, machine or None)
    return pd.DataFrame(_of_run(made, at.item())).rename(
        columns={"row": "name", "figure": "quantity", "ratio": "value"}
    )


def _ratios(row: Row) -> list[Figure]:
    return [one for one in row.figures if one.kind == "ratio" and not one.line]


def _ends(row: Row, *, full: bool) -> dict[str, Range]:
    """Return the smallest and the largest of each number that is turned."""
    if not full:
        return {name: Range(max(1, value // _SMALLEST) if isinstance(value, int)
                            else value / _SMALLEST, value, log=True)
                for name, value in row.quick.items()}  # fmt: skip
    whole: dict[str, float] = {"scale": 1.0}
    if row.script:
        whole = {name: one.value for name, one in numbers(row.script).items()}
    return {name: Range(value, whole[name], log=True) for name, value in row.quick.items()}


def _of_run(made: Run, share: float) -> Iterator[dict[str, object]]:
    """Yield what a run has of each ratio whose times are told."""
    turned = made.row.quick
    if made.is_full:
        turned = {name: ends.high for name, ends in _ends(made.row, full=True).items()}
    size = ", ".join(f"{name}={number(value)}" for name, value in turned.items())
    for one in _ratios(made.row):
        value = made.values[one.name]
        if value.before is not None and value.after is not None:
            yield {"row": made.row.name, "figure": one.name, "share": share, "size": size,
                   "before": value.before, "after": value.after, "ratio": value.ratio,
                   "low": value.low, "high": value.high}  # fmt: skip


def where(of_one: pd.DataFrame) -> str:
    """Say where a commit pays and where it hurts, of one figure with its sizes in their order."""
    known = of_one[of_one.ratio.notna()]
    if known.empty:
        return "not told at any size"
    pays = (known.ratio > 1 + _TELLING).to_numpy()
    hurts = known[known.ratio < 1 - _TELLING]
    names = known["size"].tolist()
    if pays.all():
        said = f"pays at each of {len(known)} sizes" if len(known) > 1 else f"pays at {names[0]}"
    elif not pays[-1]:
        said = "does not pay at the largest size" if pays.any() else "pays at no size"
    else:
        first = len(pays) - int(np.argmin(pays[::-1]))
        said = f"begins to pay between {names[first - 1]} and {names[first]}"
    worst = [f"{size}: {times(ratio)}"
             for size, ratio in zip(hurts["size"], hurts.ratio, strict=True)]  # fmt: skip
    return said + (f"; hurts at {'; '.join(worst)}" if worst else "")
