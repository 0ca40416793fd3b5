# SPDX-License-Identifier: GPL-2.0-only
"""The chart of a workload of your own: what there is more or less of after a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from btrfs_model.experiments.results import label
from btrfs_model.experiments.workloads import Outcome

if TYPE_CHECKING:
    from matplotlib import figure

_MOST_BARS: Final = 12


def draw_changes(outcome: Outcome) -> figure.Figure:
    """Draw what differs: how many times as much of it there is before as after."""
    from matplotlib.figure import Figure as Chart

    pairs = {
        label(one): (one.modelled, after.modelled)
        for one in outcome.figures
        if one.side == "before" and (after := outcome.find("after", one.quantity, **one.case))
    }
    ratios = {name: before / after for name, (before, after) in pairs.items() if before and after}
    shown = sorted(ratios, key=lambda name: abs(ratios[name] - 1))[-_MOST_BARS:]
    chart = Chart(figsize=(8, 1.2 + 0.3 * len(shown)), layout="constrained")
    axes = chart.subplots()
    axes.barh(shown, [ratios[name] for name in shown])
    axes.set_xlabel("times as much before as after")
    return chart
