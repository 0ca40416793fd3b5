# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `send-utimes`: growth of the work, what each patch saves, what is in the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from btrfs_model.base.charts import COLOURS, RC, bare, new_figure
from btrfs_model.experiments.workloads import Outcome
from btrfs_model.experiments.workloads.send_utimes import ABLATED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDES = ("before", "after")
_GROWTH = (
    ("sender: btrfs_search_slot", "Tree searches"),
    ("sender: btrfs_get_next_valid_item", "Items stepped over"),
    ("stream size", "Bytes of the stream"),
)
_SHORT = {
    "btrfs_search_slot": "tree\nsearches",
    "btrfs_get_next_valid_item": "items\nstepped over",
    "get_inode_info": "inodes\nlooked up",
    "__get_cur_name_and_parent": "paths\nbuilt",
    "send_cmd": "commands",
    "stream size": "bytes",
}


def draw(outcome: Outcome) -> Figure:
    """Draw the growth with the number of files, the ablation and the commands of the stream."""
    ablation = outcome.evidence.get("ablation")
    with rc_context(RC):
        figure = new_figure(11.0, 7.6 if ablation else 4.0)
        rows = figure.add_gridspec(2 if ablation else 1, 1)
        growth = figure.add_subfigure(rows[0]).subplots(1, len(_GROWTH))
        for axes, (name, title) in zip(growth, _GROWTH, strict=True):
            _draw_growth(axes, outcome, name, title)
        if ablation:
            below = figure.add_subfigure(rows[1])
            left, right = below.subplots(1, 2, width_ratios=[1.7, 1.0])
            _draw_ablation(left, ablation)
            _draw_commands(right, outcome)
        files = f"{outcome.evidence['files']:,}"
        figure.suptitle(
            f"Incremental send after half of {files} files moved to another directory",
            x=0.011, ha="left", fontsize=15, fontweight="bold",
        )  # fmt: skip
    return figure


def _value(outcome: Outcome, side: str, files: int, name: str) -> float:
    found = outcome.find(side, name, files=files)
    return 0.0 if found is None else found.modelled or 0.0


def _draw_growth(axes: Axes, outcome: Outcome, name: str, title: str) -> None:
    """Draw a quantity against the number of files on both sides; dots are measured."""
    sizes, circles = outcome.evidence["sizes"], False
    for side in _SIDES:
        values = [_value(outcome, side, files, name) for files in sizes]
        axes.plot(sizes, values, color=COLOURS[side], linewidth=2)
        measured = [outcome.find(side, name, files=files) for files in sizes]
        dots = [(files, one.measured) for files, one in zip(sizes, measured, strict=True)
                if one is not None and one.measured is not None]  # fmt: skip
        if dots:
            circles = True
            axes.plot(*zip(*dots, strict=True), "o", color=COLOURS[side], markersize=5,
                      markerfacecolor="white")  # fmt: skip
        axes.annotate(side, (sizes[-1], values[-1]), xytext=(5, 1), textcoords="offset points",
                      va="bottom", color=COLOURS[side], fontweight="bold")  # fmt: skip
    axes.set_title(title, pad=8)
    axes.set_xlim(0, sizes[-1] * 1.25)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.2)
    axes.set_xlabel("files; circles: measured" if circles else "files")
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.grid(axis="y", color=COLOURS["plain"])
    bare(axes, "bottom")


def _short(value: float) -> str:
    """Format a count in at most six characters or so."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def _draw_ablation(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw a table: for each patch what is spent more without it, as a part of the saving."""
    names = list(ABLATED)
    for line, row in enumerate(rows):
        for column, name in enumerate(names):
            saved = row["alone off"][name]
            strength = min(1.0, saved / max(1.0, _most(rows, name))) if saved > 0 else 0.0
            axes.add_patch(
                Rectangle((column + 0.03, len(rows) - 0.94 - line), 0.94, 0.88, linewidth=0,
                          facecolor=COLOURS["after"], alpha=0.06 + 0.75 * strength)
            )  # fmt: skip
            axes.text(column + 0.5, len(rows) - 0.5 - line, _short(saved) if saved else "-",
                      ha="center", va="center", fontsize=8.5,
                      color="white" if strength > 0.6 else COLOURS["ink"])  # fmt: skip
    axes.set_xlim(0, len(names))
    axes.set_ylim(0, len(rows))
    axes.set_yticks([len(rows) - 0.5 - line for line in range(len(rows))],
                    [row["toggle"] for row in rows])  # fmt: skip
    axes.set_xticks([column + 0.5 for column in range(len(names))],
                    [_SHORT[name] for name in names])  # fmt: skip
    axes.xaxis.tick_top()
    axes.set_title("Each patch taken away from the series: what is done more", pad=30, x=-0.28)
    bare(axes)


def _most(rows: list[dict[str, Any]], name: str) -> float:
    return float(max(row["alone off"][name] for row in rows))


def _draw_commands(axes: Axes, outcome: Outcome) -> None:
    """Draw the commands of the stream by kind, on both sides."""
    files = outcome.evidence["files"]
    kinds = [one.quantity.removeprefix("command ") for one in outcome.figures
             if one.side == "before" and one.quantity.startswith("command ")
             and one.case["files"] == files]  # fmt: skip
    counts = {kind: [_value(outcome, side, files, f"command {kind}") for side in _SIDES]
              for kind in kinds}  # fmt: skip
    kinds = sorted((kind for kind in kinds if max(counts[kind]) > files / 100),
                   key=lambda kind: max(counts[kind]))  # fmt: skip
    for place, kind in enumerate(kinds):
        for shift, side, count in zip((0.19, -0.19), _SIDES, counts[kind], strict=True):
            axes.barh(place + shift, count, height=0.34, color=COLOURS[side])
            axes.text(count, place + shift, f" {_short(count)}", va="center", fontsize=8,
                      color=COLOURS[side])  # fmt: skip
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_xticks([])
    axes.margins(x=0.15)
    axes.set_title("Commands of the stream", pad=8)
    bare(axes, "left")
