# SPDX-License-Identifier: GPL-2.0-only
"""Charts of sweeps: what decides, as a tornado; two knobs beside each other, as a heat map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, rc_context
from matplotlib.colors import LogNorm

from btrfs_model.base.charts import COLOURS, KINDS, RC, bare, new_figure
from btrfs_model.base.errors import BtrfsModelError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.36
"""Inches of a bar."""
_CELL = 0.62
_COLUMN = 9.0
"""Inches of a chart whose text can be read in the column of a page."""
_LONG = 8
"""Characters of a label that does not fit below its field."""


def tornado(indices: pd.DataFrame, title: str = "") -> Figure:
    """Draw which knob decides: for each quantity a bar for each knob, the longest on top.

    Parameters
    ----------
    indices : pandas.DataFrame
        From :func:`btrfs_model.experiments.sweep.sensitivity.analyse`.
    title : str
        What stands above it.
    """
    index = "ST" if "ST" in set(indices["index"]) else "mu*"
    shown = indices[indices["index"] == index]
    panels = dict(list(shown.groupby("of", sort=False)))
    rows = [len(of_one) for of_one in panels.values()]
    what = (
        "share of the variance that the knob takes part in (Sobol's ST)" if index == "ST"
        else "mean of the absolute effects (Morris' mu*)"
    )  # fmt: skip
    with rc_context(RC):
        figure = new_figure(
            8.5, 1.1 + _ROW * sum(rows) + 0.75 * len(rows), title or "Which knob decides",
            f"Bars for each knob, the {what}, with the 95 % interval.",
        )  # fmt: skip
        axes = figure.subplots(len(panels), 1, height_ratios=rows, squeeze=False)[:, 0]
        for place, (name, of_one) in zip(axes, panels.items(), strict=True):
            _bars(place, of_one.sort_values("value"))
            place.set_title(str(name), pad=6)
        axes[-1].set_xlabel(what)
    return figure


def _bars(axes: Axes, of_one: pd.DataFrame) -> None:
    values = of_one["value"].to_numpy()
    spread = np.vstack([values - of_one["low"], of_one["high"] - values])
    colours = [KINDS[0] if decides else COLOURS["line"] for decides in of_one["decides"]]
    axes.barh(of_one["knob"].tolist(), values, height=0.72, color=colours)
    axes.errorbar(
        values, range(len(values)), xerr=spread, fmt="none", ecolor=COLOURS["ink"], elinewidth=1.2
    )
    axes.set_xlim(left=min(0.0, float(of_one["low"].min())))
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    bare(axes, "bottom")


def heat_map(
    table: pd.DataFrame,
    x: str,
    y: str,
    *,
    value: str = "value",
    by: str | None = None,
    title: str = "",
    label: str = "",
    words: Callable[[float], str] = "{:,.3g}".format,
    middle: float | None = None,
    names: Mapping[str, str] | None = None,
) -> Figure:
    """Draw a number over two knobs, each in its order in the table.

    Parameters
    ----------
    table : pandas.DataFrame
        One row for each pair of values, and each value of `by`.
    x, y : str
        Columns that the axes are.
    value : str
        Column that the colours are.
    by : str, optional
        A panel for each of its values.
    title, label : str
        What stands above, and at the scale of colours.
    words : callable
        How a number reads in its field.
    middle : float, optional
        Colours part here: what is below it is green, what is above it red, on a logarithmic scale.
    names : mapping, optional
        What the axes and panels are called, by column.

    Raises
    ------
    BtrfsModelError
        When a field has several rows.
    """
    keys = [x, y, *([by] if by else [])]
    if table.duplicated(keys).any():
        raise BtrfsModelError(f"heat map: several rows have the same {', '.join(keys)}")
    named = {name: (names or {}).get(name, name) for name in keys}
    panels: list[tuple[Any, pd.DataFrame]] = (
        [("", table)] if by is None else list(table.groupby(by, sort=False))
    )
    columns, rows = (list(dict.fromkeys(table[axis])) for axis in (x, y))
    norm, colours = _scale(table[value].to_numpy(np.float64), middle)
    with rc_context(RC):
        wide = _CELL * len(columns) + 0.4
        beside = min(len(panels), max(1, int((_COLUMN - 2.6) // wide)))
        below = -(-len(panels) // beside)
        figure = new_figure(
            2.6 + wide * beside, 1.1 + (0.8 + 0.34 * len(rows)) * below, title,
            f"Fields of numbers: {label or value} for each {named[x]} and {named[y]}.",
        )  # fmt: skip
        axes = figure.subplots(below, beside, squeeze=False, sharey=True).ravel()
        for place in axes[len(panels) :]:
            place.set_visible(False)
        for place, (name, of_one) in zip(axes, panels, strict=False):
            grid = of_one.pivot(index=y, columns=x, values=value).reindex(rows)[columns]
            _fields(place, grid.to_numpy(np.float64), words, norm, colours)
            labels = [_label(one) for one in columns]
            is_long = max(map(len, labels)) > _LONG
            turned = {"rotation": 30, "ha": "right"} if is_long else {}
            place.set_xticks(range(len(columns)), labels, **turned)
            place.set_yticks(range(len(rows)), [_label(one) for one in rows])
            place.set_xlabel(named[x])
            if by:
                place.set_title(f"{named[by]} {_label(name)}".strip(), pad=6)
        for place in axes[::beside]:
            place.set_ylabel(named[y])
        if label:
            figure.supxlabel(label, fontsize=9, color=COLOURS["muted"])
    return figure


def _scale(values: Any, middle: float | None) -> tuple[Any, Any]:
    there = values[np.isfinite(values) & (values > 0)]
    low, high = (there.min(), there.max()) if len(there) else (1.0, 1.0)
    if middle is None:
        return LogNorm(low, max(high, low * 1.0001)), colormaps["Blues"]
    reach = max(high / middle, middle / low, 1.05)
    return LogNorm(middle / reach, middle * reach), colormaps["BrBG_r"]


def _fields(axes: Axes, grid: Any, words: Callable[[float], str], norm: Any, colours: Any) -> None:
    shown = np.ma.masked_invalid(np.where(grid > 0, grid, norm.vmin))
    axes.imshow(shown, cmap=colours, norm=norm, aspect="auto", alpha=0.75)
    for row, column in np.argwhere(np.isfinite(grid)):
        tone = np.array(colours(norm(max(grid[row, column], norm.vmin))))
        axes.text(column, row, words(float(grid[row, column])), ha="center", va="center",
                  fontsize=8.5, color=_ink_on(tone[:3] * 0.75 + 0.25))  # fmt: skip
    bare(axes)


def _ink_on(ground: Any) -> str:
    """Return black or white, whichever stands out more: by 4.5 to 1 at least."""
    parts = np.where(ground <= 0.03928, ground / 12.92, ((ground + 0.055) / 1.055) ** 2.4)
    light = float(parts @ (0.2126, 0.7152, 0.0722))
    return "white" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "black"


def _label(value: Any) -> str:
    """Name a value of a knob: whole KiB and MiB as such."""
    if isinstance(value, int | np.integer) and value >= 1024 and value % 1024 == 0:
        return f"{value >> 20}M" if value % (1 << 20) == 0 else f"{value >> 10}K"
    return f"{value:,}" if isinstance(value, int | np.integer) else str(value)
