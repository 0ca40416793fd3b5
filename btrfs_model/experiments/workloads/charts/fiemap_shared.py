# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `fiemap-shared`: where the walks go, and how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes

from btrfs_model.base.charts import COLOURS, RC, bare, is_narrow, new_figure, stacked
from btrfs_model.experiments.numbers import times
from btrfs_model.experiments.workloads import Case, Outcome
from btrfs_model.experiments.workloads.charts.evidence import Walks
from btrfs_model.experiments.workloads.charts.panels import BAR_INCHES, draw_times, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE_COLOURS = (COLOURS["before"], COLOURS["after"])
_COUNTED = (
    ("find_parent_nodes", "cached", "walks"),
    ("btrfs_search_slot", "cached", "tree searches"),
    ("blocks read", "cold", "blocks read, cold"),
)


def draw(outcome: Outcome) -> Figure:
    """Draw times and counts of the whole file, then each call, then one extent by extent."""
    shown = outcome.evidence
    assert isinstance(shown, Walks)
    walks, names = shown.walks, list(shown.walks)
    cold = next((one.case for one in outcome.figures
                 if one.quantity == "time" and one.case.get("cache") == "cold"), {})  # fmt: skip
    cases: dict[str, Case] = {"cold": cold, "cached": {"rewritten": 0, "cache": "cached"}}
    about = (
        f"FIEMAP of a file of {shown.extents:,} extents, all of them shared with a snapshot",
        "Bars of the time of a FIEMAP of the whole file, cold and cached, before and after, "
        "beside the times of the message. Bars of walks, tree searches and blocks read for the "
        "whole file, on scales of their own. The walks of each call from the start of the file "
        "to its end. The walks of one call: before, one for each extent; after, those for the "
        "first extent of each leaf.",
    )
    was, now = (sum(count for _, count in walks[name]) for name in names[:2])
    fewer = f" ({times(was / now)} fewer)" if now else ""
    title = f"One call: walks for each extent{fewer}; lines: where a leaf begins"

    def draw_time(axes: Axes) -> None:
        draw_times(axes, outcome, "time", cases, names)
        axes.set_title("The whole file: time", pad=8)

    def draw_side(axes: Axes, place: int) -> None:
        draw_walks(axes, walks[names[place]], _SIDE_COLOURS[place])
        axes.set_ylabel(names[place], color=_SIDE_COLOURS[place], fontweight="bold", rotation=0,
                        ha="right", va="center")  # fmt: skip
        if not place:
            axes.set_title(title, x=0.0)

    with rc_context(RC):
        if is_narrow():
            return stacked(*about, [
                (BAR_INCHES * 2 * len(names) + 1, draw_time),
                (2.2, lambda axes: _draw_counts(axes, outcome, names)),
                (2.2, lambda axes: _draw_along(axes, shown.along)),
                (1.3, lambda axes: draw_side(axes, 0)),
                (0.9, lambda axes: draw_side(axes, 1)),
            ])  # fmt: skip
        figure = new_figure(11.0, 8.2, *about)
        rows = figure.add_gridspec(3, 1, height_ratios=[1.15, 1.1, 0.9])
        above, middle, below = (figure.add_subfigure(rows[row]) for row in range(3))
        draw_time(above.subplots())
        panels = middle.subplots(1, 2, width_ratios=[1.1, 1.0])
        _draw_counts(panels[0], outcome, names)
        _draw_along(panels[1], shown.along)
        for place, axes in enumerate(below.subplots(2, 1, sharex=True, sharey=True)):
            draw_side(axes, place)
    return figure


def draw_walks(axes: Axes, walks: list[tuple[int, int]], colour: str) -> None:
    """Draw how many walks each extent of a call takes, and where leaves begin."""
    axes.bar(range(len(walks)), [count for _, count in walks], width=1.0, color=colour,
             linewidth=0)  # fmt: skip
    for place in range(1, len(walks)):
        if walks[place][0] != walks[place - 1][0]:
            axes.axvline(place - 0.5, color=COLOURS["ink"], linewidth=0.8)
    total = sum(count for _, count in walks)
    axes.text(len(walks) + 2, 0.2, f"{total:,} walks", color=colour, fontweight="bold")
    axes.set_xlim(-0.5, len(walks) * 1.09)
    axes.set_ylim(0, max(4, *(count for _, count in walks)) + 0.3)
    axes.set_xticks([])
    axes.set_yticks([])
    bare(axes, "bottom")


def _draw_counts(axes: Axes, outcome: Outcome, names: list[str]) -> None:
    """Draw what both sides do in one complete FIEMAP: each count beside the larger of the two."""
    for row, (quantity, cache, _) in enumerate(_COUNTED):
        counts = [
            (found.modelled or 0.0) if found else 0.0
            for found in (outcome.find(name, quantity, cache=cache) for name in names)
        ]
        for shift, count, ink in zip((0.2, -0.2), counts, _SIDE_COLOURS, strict=True):
            place, share = len(_COUNTED) - row + shift, count / max(1.0, *counts)
            axes.barh(place, share, height=0.36, color=ink)
            is_less = 0 < 1.1 * count < counts[0]
            text = f"{count:,.0f}" + (f": {times(counts[0] / count)} fewer" if is_less else "")
            say(axes, text, share, place, ink)
    axes.set_xlim(0, 1.22)
    axes.set_xticks([])
    axes.set_yticks([len(_COUNTED) - row for row in range(len(_COUNTED))],
                    [label for *_, label in _COUNTED])  # fmt: skip
    axes.set_title("The whole file: work", pad=8)
    bare(axes, "left")


def _draw_along(axes: Axes, along: dict[str, list[int]]) -> None:
    """Draw the walks of each call, from the start of the file to its end."""
    for (name, walks), colour in zip(along.items(), _SIDE_COLOURS, strict=True):
        axes.step(range(1, len(walks) + 1), walks, where="mid", color=colour, linewidth=1.4)
        axes.text(len(walks) * 1.03, walks[len(walks) // 2], name, color=colour, va="center")
    axes.set_xlim(0, max(len(walks) for walks in along.values()) * 1.22)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("call of the ioctl, 292 extents each")
    axes.set_title("Walks in each call", pad=8)
    bare(axes, "left", "bottom")
