# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `log-dir`: what the two logs hold, and how they grow with the directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from btrfs_model.base.charts import COLOURS, RC, bare, new_figure
from btrfs_model.experiments.workloads import Outcome
from btrfs_model.experiments.workloads.log_dir import FSYNCS, TYPES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDES: Final = ("before", "after")
_NAMES: Final = dict(zip(FSYNCS, ("first fsync", "second fsync"), strict=True))
_SHADES: Final = {
    "INODE_ITEM": "#cfdcea", "INODE_REF": "#9db8d2", "DIR_ITEM": "#b4540a", "DIR_INDEX": "#1b6ca8",
    "DIR_LOG_ITEM": "#d9a441", "DIR_LOG_INDEX": "#6b7280",
}  # fmt: skip
_GROWTH: Final = (("items", "Items in the log"), ("bytes", "Bytes of items"), ("leaves", "Leaves"))


def draw(outcome: Outcome) -> Figure:
    """Draw both logs by type of item, and items, bytes and leaves against the number of files."""
    largest = outcome.evidence["sizes"][-1]
    with rc_context(RC):
        figure = new_figure(11.0, 7.4)
        rows = figure.add_gridspec(2, 1, height_ratios=[1.0, 1.25])
        above, below = figure.add_subfigure(rows[0]), figure.add_subfigure(rows[1])
        left, right = above.subplots(1, 2)
        _draw_types(left, outcome, largest, "items")
        _draw_types(right, outcome, largest, "bytes")
        handles, labels = left.get_legend_handles_labels()
        above.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
        for axes, (name, title) in zip(below.subplots(1, 3), _GROWTH, strict=True):
            _draw_growth(axes, outcome, name, title)
        deletes = outcome.evidence["deletes"][largest]
        figure.suptitle(
            f"The log of a directory: {largest:,} files added, then {deletes:,} deleted",
            x=0.011, ha="left", fontsize=15, fontweight="bold",
        )  # fmt: skip
    return figure


def _value(outcome: Outcome, side: str, name: str, files: int, which: int) -> float:
    found = outcome.find(side, name, files=files, fsync=which)
    return 0.0 if found is None else found.modelled or 0.0


def _short(value: float) -> str:
    """Format a count in at most six characters or so."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def _draw_types(axes: Axes, outcome: Outcome, files: int, measure: str) -> None:
    """Draw a bar for each side of each fsync, cut by the type of the items."""
    bars = [(which, side) for which in FSYNCS for side in _SIDES]
    places = [4.2, 3.2, 1.2, 0.2]
    starts = [0.0] * len(bars)
    for kind in (kind.name for kind in TYPES):
        widths = [_value(outcome, side, f"{measure} {kind}", files, which)
                  for which, side in bars]  # fmt: skip
        axes.barh(places, widths, left=starts, height=0.8, color=_SHADES[kind], label=kind)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for place, total in zip(places, starts, strict=True):
        axes.text(total, place, f" {_short(total)}", va="center", fontsize=9)
    axes.set_yticks(places, [f"{_NAMES[which]}, {side}" for which, side in bars])
    axes.set_xticks([])
    axes.margins(x=0.14)
    axes.set_title(measure.capitalize() + " by type", pad=8)
    bare(axes, "left")


def _draw_growth(axes: Axes, outcome: Outcome, name: str, title: str) -> None:
    """Draw a quantity against the number of files, dashed for the second; dots are measured."""
    sizes = outcome.evidence["sizes"]
    for which, style in zip(FSYNCS, ("-", "--"), strict=True):
        for side in _SIDES:
            values = [_value(outcome, side, name, files, which) for files in sizes]
            axes.plot(sizes, values, style, color=COLOURS[side], linewidth=1.8,
                      label=f"{side}, {_NAMES[which]}")  # fmt: skip
            found = [(files, outcome.find(side, name, files=files, fsync=which))
                     for files in sizes]  # fmt: skip
            dots = [(files, one.measured) for files, one in found
                    if one is not None and one.measured is not None]  # fmt: skip
            if dots:
                axes.plot(*zip(*dots, strict=True), "o", color=COLOURS[side], markersize=5,
                          markerfacecolor="white")  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(title, pad=8)
    axes.set_xlabel("files")
    axes.set_xticks(sizes)
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.grid(axis="y", color=COLOURS["plain"])
    axes.legend(frameon=False, fontsize=8)
    bare(axes, "bottom")
