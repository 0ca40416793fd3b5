# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `log-dir`: its times, what the two logs hold, and how they grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from btrfs_model.base.charts import COLOURS, KINDS, RC, bare, is_narrow, new_figure, stacked
from btrfs_model.experiments.numbers import short
from btrfs_model.experiments.workloads import Outcome
from btrfs_model.experiments.workloads.charts.evidence import TYPES, Deletes
from btrfs_model.experiments.workloads.charts.panels import BAR_INCHES, SIDES, draw_times, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES: Final = {1: "first fsync", 2: "second fsync"}
_GROWTH: Final = (("items", "Items in the log"), ("bytes", "Bytes of items"), ("leaves", "Leaves"))
_LEGEND = 0.35
"""How much higher axes are than their lines, for a legend there."""
_SEEN: Final = 0.002
"""Part of a bar from which it is seen."""


def draw(outcome: Outcome) -> Figure:
    """Draw the times, both logs by type of item, and their growth with the number of files."""
    shown = outcome.evidence
    assert isinstance(shown, Deletes)
    sizes = list(shown.deletes)
    largest = sizes[-1]
    deletes = shown.deletes[largest]
    about = (
        f"The log of a directory: {largest:,} files added, then {deletes:,} deleted",
        "Bars of the time of the first and of the second fsync, before and after, beside the "
        "times of the message and of kernels. Bars of the items and of the bytes of both logs, "
        "by type: after, the DIR_ITEM items are gone. Lines of items, bytes and leaves against "
        "the number of files, both scales logarithmic: before lies above after at each size.",
    )

    def draw_time(axes: Axes) -> None:
        cases = {name: {"files": largest, "fsync": which} for which, name in _NAMES.items()}
        draw_times(axes, outcome, "time", cases)
        axes.set_title("Time of the fsync", pad=8)

    with rc_context(RC):
        if is_narrow():
            return stacked(*about, [
                (BAR_INCHES * 4 + 1, draw_time),
                (1.7, lambda axes: _draw_types(axes, outcome, largest, "items")),
                (2.2, lambda axes: _draw_types(axes, outcome, largest, "bytes", is_told=True)),
                *((2.7, lambda axes, one=one: _draw_growth(axes, outcome, sizes, *one))
                  for one in _GROWTH),
            ])  # fmt: skip
        figure = new_figure(11.0, 9.0, *about)
        rows = figure.add_gridspec(3, 1, height_ratios=[0.9, 0.9, 1.25])
        above, middle, below = (figure.add_subfigure(rows[row]) for row in range(3))
        draw_time(above.subplots())
        left, right = middle.subplots(1, 2)
        _draw_types(left, outcome, largest, "items")
        _draw_types(right, outcome, largest, "bytes")
        handles, labels = left.get_legend_handles_labels()
        middle.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
        for axes, (name, title) in zip(below.subplots(1, 3), _GROWTH, strict=True):
            _draw_growth(axes, outcome, sizes, name, title)
    return figure


def _value(outcome: Outcome, side: str, name: str, files: int, which: int) -> float:
    found = outcome.find(side, name, files=files, fsync=which)
    return 0.0 if found is None else found.modelled or 0.0


def _draw_types(
    axes: Axes, outcome: Outcome, files: int, measure: str, *, is_told: bool = False
) -> None:
    """Draw a bar for each side of each fsync, cut by the type of the items; `is_told`: which."""
    bars = [(which, side) for which in _NAMES for side in SIDES]
    places = [4.2, 3.2, 1.2, 0.2]
    starts = [0.0] * len(bars)
    whole = max(_value(outcome, side, measure, files, which) for which, side in bars)
    for kind, shade in zip((kind.name for kind in TYPES), KINDS, strict=True):
        widths = [_value(outcome, side, f"{measure} {kind}", files, which)
                  for which, side in bars]  # fmt: skip
        is_seen = max(widths) > _SEEN * whole
        axes.barh(places, widths, left=starts, height=0.8, color=shade,
                  label=kind if is_seen else "_")  # fmt: skip
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for place, total in zip(places, starts, strict=True):
        say(axes, short(total), total, place, COLOURS["ink"])
    axes.set_yticks(places, [f"{_NAMES[which]}, {side}" for which, side in bars])
    axes.set_xticks([])
    axes.margins(x=0.14)
    axes.set_title(measure.capitalize() + " by type", pad=8)
    bare(axes, "left")
    if is_told:
        axes.legend(loc="upper right", bbox_to_anchor=(1, 0), ncols=2, frameon=False, fontsize=8.5)


def _draw_growth(axes: Axes, outcome: Outcome, sizes: list[int], name: str, title: str) -> None:
    """Draw a quantity against the number of files, dashed for the second; dots are measured."""
    for which, style in zip(_NAMES, ("-", "--"), strict=True):
        for side in SIDES:
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
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.grid(axis="y", color=COLOURS["plain"])
    if is_narrow():
        axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.28), ncols=2, frameon=False,
                    fontsize=8.5)  # fmt: skip
    else:
        axes.legend(loc="upper left", frameon=False, fontsize=8.5)
        # room for it above the lines, however few sizes there are
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** _LEGEND)
    bare(axes, "bottom")
