# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `send-readahead`: where the disk reads when, and how long the send takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes

from btrfs_model.base.charts import COLOURS, RC, bare, new_figure
from btrfs_model.experiments.workloads import Figure as Quantity
from btrfs_model.experiments.workloads import Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DOTS = 4000
"""As many reads as a panel shows: more would be one colour."""


def draw(outcome: Outcome) -> Figure:
    """Draw the reads on the disk on both sides, and the times on all devices."""
    tables: dict[str, pd.DataFrame] = outcome.evidence["tables"]
    end = max(table.attrs["seconds"] for table in tables.values())
    with rc_context(RC):
        figure = new_figure(11.0, 7.6)
        rows = figure.add_gridspec(2, len(tables), height_ratios=[1.5, 1.0])
        first = None
        for column, (side, table) in enumerate(tables.items()):
            first = figure.add_subplot(rows[0, column], sharey=first)
            title = f"{side}: {table.attrs['seconds']:,.3g} s on {outcome.evidence['devices'][0]}"
            _draw_reads(first, table, COLOURS[side], title, end)
        _draw_times(figure.add_subplot(rows[1, :]), outcome, list(tables))
        files = f"{outcome.evidence['files']:,}"
        figure.suptitle(
            f"Full send of {files} files in the leaves of the tree",
            x=0.011, ha="left", fontsize=15, fontweight="bold",
        )  # fmt: skip
    return figure


def _draw_reads(axes: Axes, table: pd.DataFrame, colour: str, title: str, end: float) -> None:
    """Draw a dot where each read lies on the disk at the moment at which it is done."""
    some = table.iloc[:: max(1, len(table) // _DOTS)]
    ahead = (some["kind"] == "ahead").to_numpy()
    for chosen, ink, label in (
        (~ahead, COLOURS["ink"], "on demand"),
        (ahead, colour, "read ahead"),
    ):
        axes.scatter(
            some["done"].to_numpy()[chosen] / 1e9,
            some["physical"].to_numpy()[chosen] / 1e6,
            s=3, linewidths=0, color=ink, label=label, rasterized=True,
        )  # fmt: skip
    axes.axvline(table.attrs["seconds"], color=colour, linewidth=1)
    axes.set_xlim(0, end * 1.03)
    axes.set_title(title, color=colour, pad=6)
    axes.set_xlabel("seconds")
    axes.set_ylabel("place on the device, MB")
    axes.legend(loc="upper center", markerscale=4, frameon=False, fontsize=8.5)
    bare(axes, "left", "bottom")


def _draw_times(axes: Axes, outcome: Outcome, sides: list[str]) -> None:
    """Draw how long the send takes from each device, and how much of it is waiting."""
    devices = outcome.evidence["devices"]
    height = 0.8 / len(sides)
    widest = 0.0
    for row, device in enumerate(devices):
        for place, side in enumerate(sides):
            time = outcome.find(side, "send time", device=device)
            wait = outcome.find(side, "waiting", device=device)
            if time is None or wait is None:
                continue
            at = len(devices) - row - place * height
            end = _draw_time(axes, at, height, COLOURS[side], time, wait.modelled or 0.0)
            widest = max(widest, end)
    ticks = [len(devices) - row - (len(sides) - 1) * height / 2 for row in range(len(devices))]
    axes.set_yticks(ticks, devices)
    axes.set_xlim(0, widest * 1.25 + np.finfo(float).tiny)
    axes.set_xticks([])
    axes.set_title("Time to send; dark: the kernel computes, the rest it waits", pad=8)
    bare(axes, "left")


def _draw_time(
    axes: Axes, at: float, height: float, colour: str, time: Quantity, waited: float
) -> float:
    """Draw the bar of one time; return where it ends."""
    seconds = time.modelled or 0.0
    axes.barh(at, seconds, height=height * 0.86, color=colour)
    axes.barh(at, seconds - waited, height=height * 0.86, color=COLOURS["ink"], alpha=0.25)
    axes.text(seconds, at, f"  {seconds:,.3g} s", va="center", fontsize=8.5, color=colour)
    return seconds
