# SPDX-License-Identifier: GPL-2.0-only
"""How what is predicted stands beside what is reported: by figure, and by kind, area and year."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from btrfs_model.experiments.atlas.intervals import fitted
from btrfs_model.experiments.atlas.predictions import Value
from btrfs_model.experiments.atlas.rows import Figure, Row
from btrfs_model.experiments.atlas.runs import Run
from btrfs_model.experiments.workloads.cases import Column
from btrfs_model.experiments.workloads.timed import SECONDS

COLUMNS: Final = {
    "row": Column("string", "", "The row, a file of data/atlas."),
    "commit": Column("string", "", "Twelve digits of the id of the commit."),
    "release": Column("string", "", "The release that it entered."),
    "year": Column("int64", "", "In which its message was sent."),
    "area": Column("string", "", "What of the filesystem it is about."),
    "figure": Column("string", "", "What the message reports."),
    "kind": Column("string", "", "exact, count, ratio or time."),
    "unit": Column("string", "", "Of what is reported."),
    "reported_before": Column("float64", "see unit", "By the message, before the commit."),
    "reported_after": Column("float64", "see unit", "By the message, after it."),
    "predicted_before": Column("float64", "see unit; s", "What is judged, before the commit."),
    "predicted_after": Column("float64", "see unit; s", "What is judged, after it."),
    "reported_ratio": Column("float64", "", "Before over after, by the message."),
    "ratio": Column("float64", "", "Before over after, of two times, as it is judged."),
    "low": Column("float64", "", "Lower end of the 90 % interval of that."),
    "high": Column("float64", "", "Upper end of it."),
    "fitted_low": Column("float64", "", "Lower end of it, fitted to how far others were off."),
    "fitted_high": Column("float64", "", "Upper end of that."),
    "now_before": Column("float64", "see unit; s", "What this run came to, before the commit."),
    "now_after": Column("float64", "see unit; s", "What this run came to, after it."),
    "now_ratio": Column("float64", "", "Before over after, of this run."),
    "is_full": Column("bool", "", "Whether this run had the size of the message."),
    "known": Column("bool", "", "Whether the figure was known before, or a kernel's."),
    "predicted_on": Column("string", "", "When it was predicted, before it was looked up."),
    "entered": Column("string", "", "When what the message reports was entered."),
    "version": Column("string", "", "Version of the model that predicted."),
    "model": Column("string", "", "Digits for the code, machines and devices that predicted."),
    "error": Column("float64", "fraction", "Predicted over reported, less 1; the worse side."),
    "verdict": Column("string", "", "What came of it, in a word."),
}  # fmt: skip
"""The columns of the table of the atlas, in their order."""

EQUAL: Final = "equal"
DIFFERS: Final = "differs"
INSIDE: Final = "inside the interval"
OUTSIDE: Final = "outside the interval"
CONTRARY: Final = "contradicts"
UNTOLD: Final = "not told"
OPEN: Final = "not looked up"
SMALLER: Final = "at another size"
SCALED: Final = "by a factor"


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure of a row beside what the message reports.

    Attributes
    ----------
    row, figure
        Which one.
    run : Run
        Of now.
    now, value : Value
        What came out now; and what is judged: what was predicted before the figure was entered, or
        what came out now where it is known.
    error : float or None
        Predicted over reported, less 1; of a count the side that is worse.
    verdict : str
        In a word.
    """

    row: Row
    figure: Figure
    run: Run
    now: Value
    value: Value | None
    error: float | None
    verdict: str

    @property
    def fitted(self) -> tuple[float, float] | None:
        """The interval of a ratio, fitted to the other rows."""
        return fitted(self.row, self.value) if self.figure.kind == "ratio" else None

    @property
    def is_blind(self) -> bool:
        """Whether it was predicted before the figure was looked up."""
        return not (self.row.known or self.figure.kernel)


def judge(runs: Iterable[Run]) -> list[Judged]:
    """Set what was predicted beside what is reported; a row of the result for each figure."""
    return [_judged(run, one) for run in runs for one in run.row.figures]


def _judged(run: Run, one: Figure) -> Judged:
    row, now = run.row, run.values[one.name]
    values: Mapping[str, Value] = run.values if run.is_full != one.quick else {}
    if not (row.known or one.kernel):
        values = {} if row.predicted is None else row.predicted.figures
    value = values.get(one.name)
    if one.entered is None:
        return Judged(row, one, run, now, value, None, OPEN)
    if value is None:
        return Judged(row, one, run, now, None, None, SMALLER)
    if one.kind == "ratio":
        return Judged(row, one, run, now, value, *_of_ratio(one, value))
    factor = _factor(row, values) / SECONDS[one.unit] if one.kind == "time" else 1.0
    errors = [
        found * factor / told - 1 if told else (0.0 if found == told else math.inf)
        for found, told in ((value.before, one.before), (value.after, one.after))
        if found is not None and told is not None
    ]
    if not errors:
        return Judged(row, one, run, now, value, None, UNTOLD)
    error = max(errors, key=abs)
    if one.kind == "time":
        return Judged(row, one, run, now, value, error, SCALED)
    return Judged(row, one, run, now, value, error, DIFFERS if error else EQUAL)


def _of_ratio(one: Figure, value: Value) -> tuple[float | None, str]:
    """Return how far a ratio is from that of the message, and the verdict."""
    reported = one.ratio
    assert reported is not None  # a ratio has both sides
    if one.line or one.counter:
        found = None if not value.after or value.before is None else value.before / value.after
        low = high = found
    else:
        found, low, high = value.ratio, value.low, value.high
    if found is None or low is None or high is None:
        return None, UNTOLD
    error = found / reported.value - 1
    if low <= reported.high and reported.low <= high:
        return error, INSIDE
    return error, OUTSIDE if (found > 1) == (reported.value > 1) else CONTRARY


def _factor(row: Row, values: Mapping[str, Value]) -> float:
    """Return how many times as long the message's machine takes: its first time tells."""
    for one in row.figures:
        value = values.get(one.name, Value())
        if one.unit in SECONDS and not (one.line or one.counter):
            for told, found in ((one.before, value.before), (one.after, value.after)):
                if told is not None and found:
                    return told * SECONDS[one.unit] / found
    return 1.0


def table(judged: Iterable[Judged]) -> pd.DataFrame:
    """Return figures as a table, see :data:`COLUMNS`."""
    rows = [_cells(one) for one in judged]
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    return found.astype({name: column.dtype for name, column in COLUMNS.items()})


def _cells(one: Judged) -> tuple[object, ...]:
    row, figure, now = one.row, one.figure, one.now
    value, predicted = one.value or Value(), row.predicted if one.is_blind else None
    reported = figure.ratio if figure.kind == "ratio" else None
    return (
        row.name, row.commit, row.release, row.date.year, row.area, figure.name, figure.kind,
        figure.unit, figure.before, figure.after, value.before, value.after,
        reported and reported.value, value.ratio, value.low, value.high,
        *(one.fitted or (None, None)), now.before, now.after,
        now.ratio, one.run.is_full, not one.is_blind, str(predicted.date) if predicted else "",
        str(figure.entered or ""), predicted.version if predicted else "",
        predicted.model if predicted else "", one.error, one.verdict,
    )  # fmt: skip


_GROUPS: Final[dict[str, Callable[[Judged], str]]] = {
    "all": lambda _: "all",
    "kind": lambda one: one.figure.kind,
    "area": lambda one: one.row.area,
    "year": lambda one: str(one.row.date.year),
}
SCORES: Final = (
    "by", "of", "figures", "exact", "equal", "ratios", "median error", "worst error", "covered",
    "covered fitted", "order right",
)  # fmt: skip


def scores(judged: Sequence[Judged], *, known: bool = False) -> pd.DataFrame:
    """Say how often the model was right: by kind, by area and by year.

    Parameters
    ----------
    judged : sequence of Judged
        Figures; those that are not looked up yet, or of another size, do not count.
    known : bool
        Of the rows whose figures were known, in place of those that were not.

    Returns
    -------
    pandas.DataFrame
        ``exact`` and ``equal``: how many figures of a kind exact or count there are, and how many
        are equal. ``ratios``: how many, with ``median error`` and ``worst error`` (fractions), how
        many are ``covered`` by their 90 % interval and by the fitted one, and of how many the model
        says rightly which side takes longer.
    """
    there = [one for one in judged
             if one.is_blind != known and one.verdict not in (OPEN, SMALLER)]  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for by, of in _GROUPS.items():
        for name in sorted({of(one) for one in there}):
            rows.append((by, name, *_score([one for one in there if of(one) == name])))
    return pd.DataFrame(rows, columns=list(SCORES))


def _score(of: Sequence[Judged]) -> tuple[object, ...]:
    counts = [one for one in of if one.figure.kind in ("exact", "count")]
    ratios = [one for one in of if one.figure.kind == "ratio"]
    errors = [abs(one.error) for one in of if one not in counts and one.error is not None]
    return (
        len(of), len(counts), sum(one.verdict == EQUAL for one in counts), len(ratios),
        float(pd.Series(errors).median()) if errors else None, max(errors, default=None),
        sum(one.verdict == INSIDE for one in ratios),
        sum(_is_in_fitted(one) for one in ratios),
        sum(_order_is_right(one) for one in ratios),
    )  # fmt: skip


def _is_in_fitted(one: Judged) -> bool:
    told, ends = one.figure.ratio, one.fitted
    return told is not None and ends is not None and ends[0] <= told.high and told.low <= ends[1]


def _order_is_right(one: Judged) -> bool:
    reported, value = one.figure.ratio, one.value
    if reported is None or value is None or value.ratio is None:
        return False
    return (value.ratio > 1) == (reported.value > 1)
