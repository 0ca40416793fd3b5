# SPDX-License-Identifier: GPL-2.0-only
"""Panels that the charts of several workloads have."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from btrfs_model.base.charts import COLOURS, bare, is_narrow
from btrfs_model.cost.causes import duration
from btrfs_model.experiments.numbers import times
from btrfs_model.experiments.workloads import Case, Outcome
from btrfs_model.experiments.workloads.timed import Shown

SIDES = ("before", "after")
_KINDS = (("modelled", "here"), ("reported", "message"), ("measured", "kernels"))


def colour(side: str) -> str:
    """Return the colour of a side; what is compared besides before and after has one in common."""
    return COLOURS.get(side, COLOURS["between"])


def say(axes: Axes, text: str, end: float, place: float, ink: str) -> None:
    """Write a text behind the end of a bar."""
    axes.annotate(text, (end, place), xytext=(7, 0), textcoords="offset points", va="center",
                  fontsize=8.5, color=ink)  # fmt: skip


_PITCH, _CHARACTERS = 3.2, 66
"""Of a narrow chart: how far bars are apart, where a bar is 0.8; characters of a line."""
BAR_INCHES = 0.75
"""How high a bar of a narrow chart is with what is said of it."""


def say_bar(axes: Axes, label: str, text: str, end: float, place: float, ink: str) -> float:
    """Write a text behind a bar, or with its label above where it is narrow.

    Returns how much lower the next bar is.
    """
    if not is_narrow():
        say(axes, text, end, place, ink)
        return 1.0
    # lines end after a comma or a colon, never between a number and its unit
    kept = re.sub("(?<![,:;]) ", "\N{NO-BREAK SPACE}", f"{label}: {text}")
    lines = [line for part in kept.split("; ") for line in textwrap.wrap(part, _CHARACTERS)]
    axes.annotate("\n".join(lines), (0, place), xytext=(0, 7), textcoords="offset points",
                  va="bottom", fontsize=8, color=ink)  # fmt: skip
    return _PITCH


def finish_bars(axes: Axes, ticks: list[float], labels: list[str], place: float) -> None:
    """Set labels and limits of bars; the next one would be at `place`."""
    if is_narrow():
        axes.set_yticks([])
        axes.set_ylim(place + _PITCH - 0.6, _PITCH - 0.6)
    else:
        axes.set_yticks(ticks, labels)
        axes.set_ylim(place + 0.9, 0.6)


def draw_times(
    axes: Axes,
    outcome: Outcome,
    quantity: str,
    cases: Mapping[str, Case],
    sides: Sequence[str] = SIDES,
) -> list[float]:
    """Draw times in seconds from zero: predicted as bars, reported as lines, measured as circles.

    Below it stands what these are, of those that exist.

    Parameters
    ----------
    axes : Axes
        Where to draw.
    outcome : Outcome
        With the times.
    quantity : str
        What they are called there.
    cases : mapping
        Cases to draw, by their names.
    sides : sequence of str
        From top to bottom; behind all but the first stands how many times as fast it is.

    Returns
    -------
    list of float
        Where the bars stand.
    """
    ticks: list[float] = []
    labels: list[str] = []
    drawn: list[Shown] = []
    ends, place = [0.0], 0.0
    for name, case in cases.items():
        found = {side: outcome.time(side, quantity, case) for side in sides}
        first = found[sides[0]]
        for side, one in found.items():
            if one is None:
                continue
            value, reported, measured = one.modelled, one.reported, one.measured
            axes.barh(place, value or 0.0, height=0.8, color=colour(side))
            if reported is not None:
                for ink, width in (("white", 4.5), (COLOURS["ink"], 1.8)):
                    axes.plot([reported] * 2, [place - 0.45, place + 0.45], color=ink,
                              linewidth=width)  # fmt: skip
            if measured is not None:
                axes.plot([measured], [place], "o", color=COLOURS["ink"], markersize=6,
                          markerfacecolor="white")  # fmt: skip
            end = max(part for part in (value, reported, measured, 0.0) if part is not None)
            text = ", ".join(
                f"{duration(part)} {who}"
                for part, (_, who) in zip((value, reported, measured), _KINDS, strict=True)
                if part is not None
            )
            if one is not first and first is not None:
                text = "; ".join(filter(None, (text, _ratios(first, one))))
            ends.append(end)
            drawn.append(one)
            ticks.append(place)
            labels.append(f"{name}, {side}" if name else side)
            place -= say_bar(axes, labels[-1], text, end, place, colour(side))
        place -= 0.5
    finish_bars(axes, ticks, labels, place)
    axes.set_xlim(0, max(ends) * (1.02 if is_narrow() else 1.12) or 1)
    axes.set_xticks([])
    bare(axes, "left")
    ink = COLOURS["ink"]
    through, into = (
        (", through a pipe", ", into memory") if any(one.pipe for one in drawn) else ("", "")
    )
    marks = (
        Line2D([], [], color=COLOURS["line"], linewidth=7, label=f"predicted{through}"),
        Line2D([], [], color=ink, marker="|", markersize=11, markeredgewidth=1.8, linestyle="",
               label="the message"),
        Line2D([], [], color=ink, marker="o", markerfacecolor="white", linestyle="",
               label=f"measured on kernels{into}"),
    )  # fmt: skip
    axes.legend(
        handles=[mark for mark, (kind, _) in zip(marks, _KINDS, strict=True)
                 if any(getattr(one, kind) is not None for one in drawn)],
        loc="upper left", bbox_to_anchor=(0, 0), ncols=1 if is_narrow() else 3, frameon=False,
        fontsize=8.5,
    )  # fmt: skip
    return ticks


def _ratios(first: Shown, one: Shown) -> str:
    """Say how many times as fast, by whom."""
    pairs = [(getattr(first, kind), getattr(one, kind), who) for kind, who in _KINDS]
    return ", ".join(f"{times(was / now)} {who}" for was, now, who in pairs if was and now)


def draw_counts(
    axes: Axes, counts: Mapping[str, tuple[float, ...]], form: str = ",.0f", wide: int = 38
) -> None:
    """Draw counts of both sides that differ, the largest on top; the others stand in a line."""
    differ = {name: both for name, both in counts.items() if len(set(both)) > 1}
    alike = [name for name, both in counts.items() if name not in differ and any(both)]
    ticks = {}
    for row, (name, both) in enumerate(sorted(differ.items(), key=lambda one: -max(one[1]))):
        ticks[-row] = name
        for shift, side, count in zip((0.2, -0.2), SIDES, both, strict=True):
            axes.barh(shift - row, count, height=0.36, color=COLOURS[side])
            say(axes, f"{count:{form}}", count, shift - row, COLOURS[side])
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_xticks([])
    axes.margins(x=0.15)
    if alike:
        wide = min(wide, 34) if is_narrow() else wide
        text = textwrap.fill(f"The same on both sides: {', '.join(alike)}.", wide)
        axes.set_xlabel(text, loc="left", fontsize=8.5)
    bare(axes, "left")
