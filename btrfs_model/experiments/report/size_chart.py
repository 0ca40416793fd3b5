# SPDX-License-Identifier: GPL-2.0-only
"""The gain of a commit over the size of a row's script, as a curve and as a table."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter

from btrfs_model.base.charts import (
    COLOURS,
    KINDS,
    RC,
    bare,
    is_narrow,
    narrow_charts,
    new_figure,
    stacked,
    to_svg,
)
from btrfs_model.experiments.atlas.sizes import where
from btrfs_model.experiments.numbers import number, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def part(found: pd.DataFrame, row: str) -> dict[str, Any] | None:
    """Return what a section of the atlas says of sizes; None where it has none."""
    mine = found[found.row == row]
    if mine.ratio.isna().all():
        return None
    charts = [to_svg(draw(mine), f"{row}-sizes")]
    with narrow_charts():
        charts.append(to_svg(draw(mine), f"{row}-sizes-narrow"))
    headings, rows = cells(mine)
    return {"charts": [svg[svg.index("<svg") :] for svg in charts],
            "headings": headings, "rows": rows}  # fmt: skip


def cells(found: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the table: a line for each ratio, a column for each size, and where it pays."""
    columns = list(dict.fromkeys(found.sort_values("share")["size"]))
    rows = []
    for (_, figure), of_one in found.groupby(["row", "figure"], sort=False):
        known = of_one.set_index("size").ratio
        ratios = ["" if np.isnan(one := known.get(size, np.nan)) else times(one)
                  for size in columns]  # fmt: skip
        rows.append([str(figure), *ratios, where(of_one)])
    return ["figure", *columns, "where it pays"], rows


def draw(found: pd.DataFrame) -> Figure:
    """Draw the ratios of a row over its sizes, each with its interval."""
    about = (
        "The gain over the size of the script",
        "Curves of how many times as long it takes before the commit, over the size of the script, "
        "with the 90 % interval. Below the line at 1x the commit costs time. The figures are in "
        "the table below.",
    )
    with rc_context(RC):
        if is_narrow():
            return stacked(*about, [(3.4, lambda axes: _draw(axes, found))])
        figure = new_figure(9.0, 4.0, *about)
        _draw(figure.subplots(), found)
    return figure


def _draw(axes: Axes, found: pd.DataFrame) -> None:
    for colour, (name, of_one) in zip(KINDS, found.groupby("figure", sort=False), strict=False):
        label = textwrap.fill(str(name), 34)
        axes.plot(of_one.share, of_one.ratio, "o-", color=colour, markersize=5, label=label)
        axes.fill_between(of_one.share, of_one.low, of_one.high, color=colour, alpha=0.15,
                          linewidth=0)  # fmt: skip
    at = found.drop_duplicates("share").sort_values("share")
    names = [one.replace(", ", "\n") for one in at["size"]]
    axes.set_xticks(at.share, names, rotation=30 if is_narrow() else 0,
                    ha="right" if is_narrow() else "center")  # fmt: skip
    axes.axhline(1, color=COLOURS["muted"], linewidth=0.8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{number(value)}x"))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=COLOURS["plain"])
    axes.legend(frameon=False, loc="best")
    bare(axes, "bottom")
