# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `send-utimes`: its times, how the work grows, what each patch saves."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from btrfs_model.base.charts import COLOURS, RC, bare, is_narrow, new_figure, stacked
from btrfs_model.experiments.formulas import find
from btrfs_model.experiments.numbers import short
from btrfs_model.experiments.workloads import Outcome
from btrfs_model.experiments.workloads.charts.evidence import ABLATED, Series
from btrfs_model.experiments.workloads.charts.panels import (
    BAR_INCHES,
    SIDES,
    draw_counts,
    draw_times,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEPS = "sender: btrfs_get_next_valid_item"
_SHORT = {
    "btrfs_search_slot": "tree\nsearches",
    "btrfs_get_next_valid_item": "items\nstepped over",
    "get_inode_info": "inodes\nlooked up",
    "__get_cur_name_and_parent": "paths\nbuilt",
    "send_cmd": "commands",
    "stream size": "bytes",
}


def draw(outcome: Outcome) -> Figure:
    """Draw the times, the growth with the number of files, the ablation and the commands."""
    shown = outcome.evidence
    assert isinstance(shown, Series)
    sizes, ablation = shown.sizes, shown.ablation
    about = (
        f"Incremental send after half of {sizes[-1]:,} files moved to another directory",
        "Bars of the time of the send at three numbers of files, before and after, beside the "
        "times of the message and of kernels. A curve of the items that are stepped over: it "
        "grows with the square of the files before, in a line after."
        + (" A table of what each patch saves, and bars of the commands of the stream by kind."
           if ablation else ""),
    )  # fmt: skip

    def draw_time(axes: Axes) -> None:
        cases = {f"{files:,} files": {"files": files} for files in sizes[::-1]}
        draw_times(axes, outcome, "time", cases)
        axes.set_title("Time of the send", pad=8)

    with rc_context(RC):
        if is_narrow():
            below_it = [(4.8, lambda axes: _draw_ablation(axes, ablation)),
                        (2.2, lambda axes: _draw_commands(axes, outcome, sizes[-1]))]  # fmt: skip
            return stacked(*about, [
                (BAR_INCHES * 6 + 1, draw_time),
                (2.6, lambda axes: _draw_growth(axes, outcome, sizes)),
                *(below_it if ablation else []),
            ])  # fmt: skip
        figure = new_figure(11.0, 7.2 if ablation else 3.9, *about)
        rows = figure.add_gridspec(
            2 if ablation else 1, 1, height_ratios=[1.2, 1][: 1 + bool(ablation)]
        )
        above = figure.add_subfigure(rows[0]).subplots(1, 2, width_ratios=[1.45, 1.0])
        draw_time(above[0])
        _draw_growth(above[1], outcome, sizes)
        if ablation:
            below = figure.add_subfigure(rows[1])
            left, right = below.subplots(1, 2, width_ratios=[1.7, 1.0])
            _draw_ablation(left, ablation)
            _draw_commands(right, outcome, sizes[-1])
    return figure


def _value(outcome: Outcome, side: str, files: int, name: str) -> float:
    found = outcome.find(side, name, files=files)
    return 0.0 if found is None else found.modelled or 0.0


def _draw_growth(axes: Axes, outcome: Outcome, sizes: tuple[int, ...]) -> None:
    """Draw the items stepped over on both sides: the sizes, and the formula between them."""
    small = [one for one in outcome.small if one.quantity == _STEPS]
    is_measured = False
    for side in SIDES:
        points = {files: _value(outcome, side, files, _STEPS) for files in sizes}
        axes.plot(*zip(*points.items(), strict=True), "s", color=COLOURS[side], markersize=4)
        kernels = {
            files: one.measured
            for files in sizes
            if (one := outcome.find(side, _STEPS, files=files)) and one.measured is not None
        }
        if kernels:
            axes.plot(*zip(*kernels.items(), strict=True), "o", color=COLOURS[side], markersize=8,
                      markerfacecolor="none")  # fmt: skip
            is_measured = True
        known = {int(one.case["files"]): one.modelled or 0.0 for one in small if one.side == side}
        formula = find({files: int(value) for files, value in (known | points).items()})
        name = side
        if formula is not None:
            between = np.linspace(0, sizes[-1], 61).astype(int)
            axes.plot(between, [float(formula.at(int(files))) for files in between],
                      color=COLOURS[side], linewidth=2)  # fmt: skip
            name = f"{side}: {formula}"
        axes.annotate(name, (sizes[-1], points[sizes[-1]]), xytext=(0, 7),
                      textcoords="offset points", ha="right", va="bottom", fontsize=9,
                      color=COLOURS[side], fontweight="bold")  # fmt: skip
    axes.set_title("Items stepped over, N files", pad=8)
    axes.set_xlim(0, sizes[-1] * 1.04)
    axes.margins(y=0.16)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"files; {'circles: measured, ' if is_measured else ''}curves: the formula")
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.grid(axis="y", color=COLOURS["plain"])
    bare(axes, "bottom")


def _draw_ablation(axes: Axes, rows: dict[str, dict[str, int]]) -> None:
    """Draw a table: for each patch what is done more without it; the others stand in a line."""
    names = list(ABLATED)
    kept = {toggle: row for toggle, row in rows.items() if any(it > 0 for it in row.values())}
    for line, row in enumerate(kept.values()):
        for column, name in enumerate(names):
            saved = row[name]
            share = max(0.0, saved / max(1.0, *(one[name] for one in kept.values())))
            axes.add_patch(
                Rectangle((column + 0.03, len(kept) - 0.94 - line), 0.94, 0.88, linewidth=0,
                          facecolor=COLOURS["after"] if share > 0.5 else COLOURS["plain"])
            )  # fmt: skip
            axes.text(column + 0.5, len(kept) - 0.5 - line, short(saved) if saved else "-",
                      ha="center", va="center", fontsize=9,
                      color="white" if share > 0.5 else COLOURS["ink"])  # fmt: skip
    none = [toggle for toggle in rows if toggle not in kept]
    if none:
        text = textwrap.fill(
            f"{len(none)} patches save nothing here: {', '.join(none)}.",
            40 if is_narrow() else 84, break_on_hyphens=False,
        )  # fmt: skip
        axes.text(0, -0.12, text, va="top", fontsize=8.5, color=COLOURS["muted"],
                  in_layout=is_narrow())  # fmt: skip
    axes.set_xlim(0, len(names))
    axes.set_ylim(0, len(kept))
    axes.set_yticks([len(kept) - 0.5 - line for line in range(len(kept))],
                    list(kept))  # fmt: skip
    axes.set_xticks([column + 0.5 for column in range(len(names))],
                    [_SHORT[name].replace("\n", " " if is_narrow() else "\n") for name in names],
                    rotation=90 if is_narrow() else 0)  # fmt: skip
    axes.xaxis.tick_top()
    if is_narrow():
        axes.set_yticks(axes.get_yticks(), [toggle.replace("-", "-\n", 2) for toggle in kept])
    axes.set_title("Each patch taken away from the series: what is done more",
                   pad=8 if is_narrow() else 30, x=-0.28)  # fmt: skip
    bare(axes)


def _draw_commands(axes: Axes, outcome: Outcome, files: int) -> None:
    """Draw the commands of the stream by kind, on both sides; the same ones stand in a line."""
    kinds = [one.quantity.removeprefix("command ") for one in outcome.figures
             if one.side == "before" and one.quantity.startswith("command ")
             and one.case["files"] == files]  # fmt: skip
    counts = {kind: tuple(_value(outcome, side, files, f"command {kind}") for side in SIDES)
              for kind in kinds}  # fmt: skip
    draw_counts(axes, counts)
    axes.set_title("Commands of the stream", pad=8)
