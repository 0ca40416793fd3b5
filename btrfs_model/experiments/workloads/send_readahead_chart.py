# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `send-readahead`: how long the send takes, and where the disk reads when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes

from btrfs_model.base.charts import COLOURS, RC, bare, new_figure
from btrfs_model.cost.causes import duration
from btrfs_model.experiments.numbers import times
from btrfs_model.experiments.workloads import Outcome
from btrfs_model.experiments.workloads.panels import colour, draw_times, say

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DOTS = 4000
"""As many reads as a panel shows: more would be one colour."""


def draw(outcome: Outcome) -> Figure:
    """Draw the times on all devices, and the reads on the first one on both sides."""
    tables: dict[str, pd.DataFrame] = outcome.evidence["tables"]
    first, *others = outcome.evidence["devices"]
    files = f"{outcome.evidence['files']:,}"
    with rc_context(RC):
        figure = new_figure(
            11.0, 4.2 + 0.5 * (len(tables) + len(others)),
            f"Full send of {files} files in the leaves of the tree",
            f"Bars of the time of the send from {first}, before and after, beside the times of the "
            "message; bars for each other device, each on its own scale. Two strips of dots that "
            "show which place of the disk is read when: a start that is scattered, then two passes "
            "from one end to the other; after, the second pass is over sooner.",
        )  # fmt: skip
        rows = figure.add_gridspec(2, 1, height_ratios=[1.0, 1.6])
        above, below = (figure.add_subfigure(rows[row]) for row in range(2))
        left, right = above.subplots(1, 2, width_ratios=[1.0, 1.0]) if others else (
            above.subplots(), None)  # fmt: skip
        draw_times(left, outcome, "send time", {"": {"device": first}}, list(tables))
        for row, side in enumerate(tables):
            _draw_computed(left, outcome, side, first, -row, 1.0)
        left.set_title(f"Time of the send, from {first}; dark: it computes", pad=8)
        if right is not None:
            _draw_others(right, outcome, others, list(tables))
        strips = below.subplots(len(tables), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (side, table) in zip(strips, tables.items(), strict=True):
            _draw_reads(axes, table, side)
        strips[0].set_title("Which place of the disk is read when; dark: read on demand", pad=8)
        strips[-1].set_xlabel("seconds")
    return figure


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
    axes.annotate(duration(seconds), (seconds, 0), xytext=(-5, 0), textcoords="offset points",
                  ha="right", va="bottom", color=colour(side), fontweight="bold")  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_ylabel(f"{side}, MB", color=colour(side))
    bare(axes, "left", "bottom")


def _draw_computed(
    axes: Axes, outcome: Outcome, side: str, device: str, place: float, scale: float
) -> None:
    """Darken that part of a time in which the kernel does not wait."""
    time, wait = (outcome.find(side, what, device=device) for what in ("send time", "waiting"))
    if time is not None and wait is not None and time.modelled is not None:
        computed = time.modelled - (wait.modelled or 0.0)
        axes.barh(place, computed / scale, height=0.8, color=COLOURS["ink"], alpha=0.3)


def _draw_others(axes: Axes, outcome: Outcome, devices: list[str], sides: list[str]) -> None:
    """Draw how long the send takes from other devices, beside its time on the first side."""
    place, ticks, labels = 0.0, [], []
    for device in devices:
        found = [outcome.find(side, "send time", device=device) for side in sides]
        seconds = [(one.modelled or 0.0) if one else 0.0 for one in found]
        if not seconds[0]:
            continue
        for side, time in zip(sides, seconds, strict=True):
            axes.barh(place, time / seconds[0], height=0.8, color=colour(side))
            _draw_computed(axes, outcome, side, device, place, seconds[0])
            text = duration(time) + (f": {times(seconds[0] / time)}" if side != sides[0] else "")
            say(axes, text, time / seconds[0], place, colour(side))
            ticks.append(place)
            labels.append(f"{device}, {side}")
            place -= 1
        place -= 0.5
    axes.set_yticks(ticks, labels)
    axes.set_xlim(0, 1.1)
    axes.set_xticks([])
    axes.set_title("Other devices, own scales", pad=8)
    bare(axes, "left")
