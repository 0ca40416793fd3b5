# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `send-readahead`: how long the send takes, and where the disk reads when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes

from btrfs_model.base.charts import COLOURS, RC, bare, is_narrow, new_figure, stacked
from btrfs_model.cost.causes import duration
from btrfs_model.experiments.numbers import times
from btrfs_model.experiments.workloads import Outcome
from btrfs_model.experiments.workloads.charts.evidence import Readings
from btrfs_model.experiments.workloads.charts.panels import (
    BAR_INCHES,
    colour,
    draw_times,
    finish_bars,
    say_bar,
)
from btrfs_model.experiments.workloads.timed import Shown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DOTS = 4000
"""As many reads as a panel shows: more would be one colour."""


def draw(outcome: Outcome) -> Figure:
    """Draw the times on all devices, and the reads on the first one on both sides."""
    shown = outcome.evidence
    assert isinstance(shown, Readings)
    tables = shown.tables
    first, *others = shown.devices
    about = (
        f"Full send of {shown.files:,} files in the leaves of the tree",
        f"Bars of the time of the send from {first}, before and after, beside the times of the "
        "message; bars for each other device, each on its own scale. Two strips of dots that "
        "show which place of the disk is read when: a start that is scattered, then two passes "
        "from one end to the other; after, the second pass is over sooner.",
    )
    sides = list(tables)
    end = max(table.attrs["seconds"] for table in tables.values())
    lowest, highest = (
        find(find(table["physical"], default=0) for table in tables.values()) / 1e6
        for find in (min, max)
    )

    def draw_strip(axes: Axes, side: str) -> None:
        _draw_reads(axes, tables[side], side)
        # both on one scale
        axes.set_xlim(0, 1.05 * end)
        margin = 0.05 * (highest - lowest)
        axes.set_ylim(lowest - margin, highest + margin)
        if side == sides[0]:
            axes.set_title(
                "Which place of the disk is read when, sent into memory; dark: read on demand",
                pad=8,
            )
        if side == sides[-1]:
            axes.set_xlabel("seconds")

    with rc_context(RC):
        if is_narrow():
            aside = [(BAR_INCHES * len(sides) * len(others) + 0.6,
                      lambda axes: _draw_others(axes, outcome, others, sides))]  # fmt: skip
            return stacked(*about, [
                (BAR_INCHES * len(sides) + 1,
                 lambda axes: _draw_first(axes, outcome, first, sides)),
                *(aside if others else []),
                *((1.9, lambda axes, side=side: draw_strip(axes, side)) for side in sides),
            ])  # fmt: skip
        figure = new_figure(11.0, 4.2 + 0.5 * (len(tables) + len(others)), *about)
        rows = figure.add_gridspec(2, 1, height_ratios=[1.0, 1.6])
        above, below = (figure.add_subfigure(rows[row]) for row in range(2))
        left, right = above.subplots(1, 2, width_ratios=[1.0, 1.0]) if others else (
            above.subplots(), None)  # fmt: skip
        _draw_first(left, outcome, first, sides)
        if right is not None:
            _draw_others(right, outcome, others, sides)
        strips = below.subplots(len(tables), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, side in zip(strips, sides, strict=True):
            draw_strip(axes, side)
    return figure


def _draw_first(axes: Axes, outcome: Outcome, device: str, sides: list[str]) -> None:
    """Draw the times on the first device, and what of them is computing."""
    places = draw_times(axes, outcome, "send time", {"": {"device": device}}, sides)
    for place, side in zip(places, sides, strict=True):
        _draw_computed(axes, outcome.time(side, "send time", {"device": device}), place, 1.0)
    axes.set_title(f"Time of the send, from {device}; dark: it computes", pad=8)


def _draw_reads(axes: Axes, table: pd.DataFrame, side: str) -> None:
    """Draw a dot where each read lies on the disk at the moment at which it is done."""
    some = table.iloc[:: max(1, len(table) // _DOTS)]
    ahead = (some["kind"] == "ahead").to_numpy()
    for chosen, ink in ((~ahead, COLOURS["ink"]), (ahead, colour(side))):
        axes.scatter(
            some["done"].to_numpy()[chosen] / 1e9,
            some["physical"].to_numpy()[chosen] / 1e6,
            s=3, linewidths=0, color=ink, rasterized=True,
        )  # fmt: skip
    seconds = table.attrs["seconds"]
    axes.axvline(seconds, color=colour(side), linewidth=1)
    axes.annotate(duration(seconds), (seconds, 0), xycoords=("data", "axes fraction"),
                  xytext=(-5, 3), textcoords="offset points", ha="right", va="bottom",
                  color=colour(side), fontweight="bold")  # fmt: skip
    axes.set_ylabel(f"{side}, MB", color=colour(side))
    bare(axes, "left", "bottom")


def _draw_computed(axes: Axes, time: Shown | None, place: float, scale: float) -> None:
    """Darken that part of a time in which the kernel does not wait."""
    if time is not None and time.computed is not None:
        axes.barh(place, time.computed / scale, height=0.8, color=COLOURS["ink"], alpha=0.3)


def _draw_others(axes: Axes, outcome: Outcome, devices: list[str], sides: list[str]) -> None:
    """Draw how long the send takes from other devices, beside its time on the first side."""
    place, ticks, labels = 0.0, [], []
    through = False
    for device in devices:
        found = [outcome.time(side, "send time", {"device": device}) for side in sides]
        seconds = [(one.modelled or 0.0) if one else 0.0 for one in found]
        if not seconds[0]:
            continue
        for side, one, time in zip(sides, found, seconds, strict=True):
            axes.barh(place, time / seconds[0], height=0.8, color=colour(side))
            _draw_computed(axes, one, place, seconds[0])
            through = through or bool(one and one.pipe)
            text = duration(time) + (f": {times(seconds[0] / time)}" if side != sides[0] else "")
            ticks.append(place)
            labels.append(f"{device}, {side}")
            place -= say_bar(axes, labels[-1], text, time / seconds[0], place, colour(side))
        place -= 0.5
    finish_bars(axes, ticks, labels, place)
    axes.set_xlim(0, 1.1)
    axes.set_xticks([])
    way = ",\nthrough a pipe" if through else ""
    axes.set_title(f"Other devices, own scales{way}", pad=8)
    bare(axes, "left")
