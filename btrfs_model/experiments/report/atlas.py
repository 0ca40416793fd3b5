# SPDX-License-Identifier: GPL-2.0-only
"""The page and the files of the atlas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pandas as pd

from btrfs_model.base.charts import COLOURS
from btrfs_model.base.version import __version__
from btrfs_model.base.whole_file import whole_file
from btrfs_model.cost.causes import duration
from btrfs_model.experiments import provenance
from btrfs_model.experiments.atlas.predictions import Value, model_hash
from btrfs_model.experiments.atlas.rows import AREAS, Figure
from btrfs_model.experiments.atlas.runs import Run
from btrfs_model.experiments.atlas.scores import COLUMNS, Judged, judge, scores, table
from btrfs_model.experiments.numbers import number, percent, times
from btrfs_model.experiments.report import size_chart
from btrfs_model.experiments.report.page import Cell, template
from btrfs_model.experiments.results import to_csv, to_parquet

HEADINGS: Final = ("commit", "figure", "reported", "predicted", "now", "verdict")
TITLES: Final = {
    "Predicted before the figures were looked up": False,
    "Known while the model was built, or counted in a kernel": True,
}
"""Of the tables of scores, and whether they are of figures that were known."""
SCORES: Final = ("of", "figures", "counts", "equal", "ratios", "median error", "worst error",
                 "inside 90 %", "inside fitted", "order right")  # fmt: skip


def write(runs: Sequence[Run], out: Path, sizes: pd.DataFrame | None = None) -> list[Path]:
    """Write the atlas into a folder: ``atlas.csv``, ``atlas.parquet`` and ``atlas.html``.

    Where rows ran at several sizes, ``sizes.csv`` too, and the page has them.
    """
    judged = judge(runs)
    rows = table(judged)
    about = {"software": provenance.software(), "machine": provenance.machine()}
    files = {
        "atlas.csv": to_csv(rows),
        "atlas.parquet": to_parquet(rows, COLUMNS.__getitem__, about),
        "atlas.html": page(judged, sizes).encode(),
    }
    if sizes is not None:
        files["sizes.csv"] = to_csv(sizes)
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as places:
        for name, content in files.items():
            places.enter_context(whole_file(out / name)).write(content)
    return [out / name for name in files]


def page(judged: Sequence[Judged], sizes: pd.DataFrame | None = None) -> str:
    """Return the atlas as HTML that needs nothing but itself."""
    runs = list({one.run.row.name: one.run for one in judged}.values())
    return template("atlas.html.j2").render(
        colours=COLOURS, headings=HEADINGS, version=__version__, model=model_hash(),
        areas=[(AREAS[area], [_section(run, judged, sizes) for run in runs if run.row.area == area])
               for area in AREAS if any(run.row.area == area for run in runs)],
        scores=[(title, SCORES, score_rows(judged, known=known))
                for title, known in TITLES.items()],
    )  # fmt: skip


def _section(run: Run, judged: Sequence[Judged], sizes: pd.DataFrame | None) -> dict[str, Any]:
    mine = [one for one in judged if one.run is run]
    return {
        "row": run.row, "run": run, "hangs": run.hangs, "mail": run.row.mail_url,
        "took": duration(run.seconds),
        "sizes": None if sizes is None else size_chart.part(sizes, run.row.name),
        "cells": [(one.figure.name, *cells(one)[2:]) for one in mine],
        "table": [cells(one) for one in mine],
        "places": [(one.figure.name, one.figure.place) for one in mine],
        "entered": max((str(one.entered) for one in run.row.figures if one.entered), default=""),
        "whys": [(one.figure.name, one.figure.why) for one in mine if one.figure.why],
    }  # fmt: skip


def cells(one: Judged) -> tuple[Cell, ...]:
    """Return what stands below :data:`HEADINGS` for a figure."""
    size = "" if one.run.is_full else " (quick)"
    verdict = one.verdict if one.error is None else f"{one.verdict}, {percent(one.error)}"
    why = one.run.untold.get(one.figure.name, "")
    return (
        {"message": one.row, "name": one.row.name, "case": _from(one)},
        one.figure.name,
        reported(one.figure),
        shown(one.figure, one.value) + _fitted(one),
        shown(one.figure, one.now) + size,
        [verdict.removesuffix(", exact"), why] if why else verdict.removesuffix(", exact"),
    )


def _from(one: Judged) -> str:
    """Say why a figure was not predicted."""
    if one.figure.kernel:
        return f"({one.figure.kernel})"
    return "(known)" if one.row.known else ""


def _fitted(one: Judged) -> str:
    if one.fitted is None:
        return ""
    return f", fitted {times(one.fitted[0])} to {times(one.fitted[1])}"


def flat(one: Judged) -> tuple[str, ...]:
    """Return the cells of a figure for a terminal."""
    others = cells(one)[1:]
    name = f"{one.row.name} {_from(one)}".rstrip()
    return name, *(cell if isinstance(cell, str) else "; ".join(cell) for cell in others)


def reported(one: Figure) -> str:
    """Say what a message reports, before and after."""
    if one.entered is None:
        return ""
    sides = [f"{number(value)} {one.unit}".rstrip() + ("" if both else f" {side}")
             for side, value, both in (("before", one.before, one.after is not None),
                                       ("after", one.after, one.before is not None))
             if value is not None]  # fmt: skip
    ratio = f" ({times(one.ratio.value)})" if one.kind == "ratio" and one.ratio else ""
    return ", then ".join(sides) + ratio


def shown(one: Figure, value: Value | None) -> str:
    """Say what came out, before and after."""
    if value is None:
        return ""
    if one.line or one.counter:
        sides = [f"{number(side)} {one.unit}".rstrip()
                 for side in (value.before, value.after) if side is not None]  # fmt: skip
    else:
        sides = [duration(side) for side in (value.before, value.after) if side is not None]
    text = ", then ".join(sides)
    if value.ratio is None or value.low is None or value.high is None:
        return text
    ends = f"{times(value.low)} to {'any' if math.isinf(value.high) else times(value.high)}"
    return f"{text} ({times(value.ratio)}, {ends})"


def score_rows(judged: Sequence[Judged], *, known: bool = False) -> list[tuple[str, ...]]:
    """Return the scores in words; see :func:`btrfs_model.experiments.atlas.scores.scores`."""
    found = scores(judged, known=known).astype(object)
    rows = []
    for by, of, *numbers in found.where(pd.notna(found), None).itertuples(index=False):
        figures, exact, equal, ratios, median, worst, covered, fitted, order = numbers
        rows.append((
            of if by in ("all", "kind") else f"{by} {of}", str(figures), str(exact), str(equal),
            str(ratios), *("" if one is None else f"{one:.1%}" for one in (median, worst)),
            *(str(one) if ratios else "" for one in (covered, fitted, order)),
        ))  # fmt: skip
    return rows
