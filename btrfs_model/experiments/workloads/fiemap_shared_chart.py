# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `fiemap-shared`: where the walks go, and how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes

from btrfs_model.base.charts import COLOURS, RC, bare, new_figure
from btrfs_model.experiments.workloads import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Walks = list[tuple[int, int]]
"""Leaf and number of walks of each extent of a call."""

_SIDE_COLOURS = (COLOURS["before"], COLOURS["after"])
_COUNTED = (
    ("find_parent_nodes", "cached", "walks"),
    ("btrfs_search_slot", "cached", "tree searches"),
    ("blocks read", "cold", "blocks read, cold"),
)


def draw(outcome: Outcome) -> Figure:
    """Draw the walks of one call extent by extent, all counts, each call."""
    walks: dict[str, Walks] = outcome.evidence["walks"]
    names = list(walks)
    with rc_context(RC):
        figure = new_figure(11.0, 6.6)
        rows = figure.add_gridspec(2, 1, height_ratios=[1.0, 1.25])
        top, bottom = figure.add_subfigure(rows[0]), figure.add_subfigure(rows[1])
        strips = top.subplots(2, 1, sharex=True, sharey=True)
        for axes, name, colour in zip(strips, names, _SIDE_COLOURS, strict=True):
            draw_walks(axes, walks[name], colour)
            axes.set_ylabel(name, color=colour, fontweight="bold", rotation=0, ha="right",
                            va="center")  # fmt: skip
        strips[0].set_title(
            "Walks back for each extent of one FIEMAP call; lines: where a leaf begins", x=0.0
        )
        panels = bottom.subplots(1, 2, width_ratios=[1.1, 1.0])
        _draw_counts(panels[0], outcome, names)
        _draw_along(panels[1], outcome.evidence["along"])
        extents = f"{outcome.evidence['extents']:,}"
        figure.suptitle(
            f"FIEMAP of a file of {extents} extents, all of them shared with a snapshot",
            x=0.011, ha="left", fontsize=15, fontweight="bold",
        )  # fmt: skip
    return figure


def draw_walks(axes: Axes, walks: Walks, colour: str) -> None:
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
    """Draw what both sides do in one complete FIEMAP, on a logarithmic scale."""
    for row, (quantity, cache, _) in enumerate(_COUNTED):
        for shift, name, colour in zip((0.2, -0.2), names, _SIDE_COLOURS, strict=True):
            found = outcome.find(name, quantity, cache=cache)
            count = (found.modelled or 0.0) if found else 0.0
            place = len(_COUNTED) - row + shift
            axes.barh(place, max(count, 0.8), left=0.8, height=0.36, color=colour)
            axes.text(max(count, 0.8) * 1.25, place, f"{count:,.0f}", va="center", fontsize=9,
                      color=colour)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(0.8, axes.get_xlim()[1] * 4)
    axes.set_yticks([len(_COUNTED) - row for row in range(len(_COUNTED))],
                    [label for *_, label in _COUNTED])  # fmt: skip
    axes.set_title("The whole file (logarithmic)", pad=8)
    axes.minorticks_off()
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
