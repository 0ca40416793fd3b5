# SPDX-License-Identifier: GPL-2.0-only
"""How charts look, and how they become files: the same figure always becomes the same bytes."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

COLOURS = {
    "ink": "#1f2430",
    "muted": "#6b7280",
    "line": "#d5d9e0",
    "before": "#b4540a",
    "between": "#d9a441",
    "after": "#1b6ca8",
    "plain": "#e8ebf0",
    "data": "#cfdcea",
}
"""Colours by what they mean; told apart by readers with any colour vision."""

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["line"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["ink"],
    "figure.facecolor": "white",
    "svg.hashsalt": "btrfs-model",
    "svg.fonttype": "path",
}
"""Settings under which a figure has to be made and saved."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of that size in inches; it belongs to no window."""
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def bare(axes: Axes, *keep: str) -> None:
    """Take the frame of a plot away, but for the named sides."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in keep)
    axes.tick_params(length=0)


def to_png(figure: Figure) -> bytes:
    """Return the figure as PNG, 200 dots per inch."""
    with rc_context(RC):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    return buffer.getvalue()


def to_svg(figure: Figure) -> str:
    """Return the figure as SVG; its text is paths, so it looks the same everywhere."""
    with rc_context(RC):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
