# SPDX-License-Identifier: GPL-2.0-only
"""How charts look, and how they become files: the same figure always becomes the same bytes.

A figure has a title (``suptitle``) and, as its label, a description for those
who cannot see it.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

COLOURS: Final = {
    "ink": "#1f2430",
    "muted": "#4b5563",
    "line": "#d5d9e0",
    "plain": "#e8ebf0",
    "before": "#b4540a",
    "between": "#6d4aa0",
    "after": "#1b6ca8",
}
"""Colours by what they mean, in charts, the report and notebooks; told apart by readers with any
colour vision. As text each has a contrast of 4.5 to 1 on white, but for lines and grounds."""

KINDS: Final = ("#0f766e", "#a3346f", "#66700f", "#6d4aa0", "#4b5563", "#9aa3b2")
"""Colours of things that are neither before nor after, such as types and causes."""

RC: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
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
    "svg.fonttype": "none",
}
"""Settings under which a figure has to be made and saved. No text is smaller than 8.5 points."""


def new_figure(width: float, height: float, title: str, description: str) -> Figure:
    """Return an empty figure of that size in inches; it belongs to no window.

    Parameters
    ----------
    width, height : float
        Inches.
    title : str
        What stands above it.
    description : str
        What there is to be seen, in a sentence or two.
    """
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(width, height), layout=layout, label=description)
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.011, ha="left", fontsize=15, fontweight="bold")
    return figure


_NARROW: ContextVar[bool] = ContextVar("narrow", default=False)
_NARROW_INCHES: Final = 4.1
"""A telephone held upright: 400 pixels."""


@contextmanager
def narrow_charts() -> Iterator[None]:
    """Draw charts for narrow screens: their panels one below the other."""
    token = _NARROW.set(True)
    try:
        yield
    finally:
        _NARROW.reset(token)


def is_narrow() -> bool:
    """Whether charts are drawn for narrow screens."""
    return _NARROW.get()


Panel = tuple[float, Callable[[Axes], object]]
"""Inches that a panel is high, and what draws it."""


def stacked(title: str, description: str, panels: Sequence[Panel]) -> Figure:
    """Return a figure for a narrow screen: panels one below the other.

    Parameters
    ----------
    title, description : str
        As for :func:`new_figure`.
    panels : sequence
        From top to bottom.
    """
    lines = textwrap.wrap(title, 38)
    heights = [height for height, _ in panels]
    figure = new_figure(_NARROW_INCHES, sum(heights) + 0.3 * len(lines), "", description)
    figure.suptitle("\n".join(lines), x=0.011, ha="left", fontsize=12, fontweight="bold")
    # each in a figure of its own: labels of one do not narrow the others
    rows = figure.add_gridspec(len(panels), 1, height_ratios=heights)
    for row, (_, draw) in enumerate(panels):
        part = figure.add_subfigure(rows[row])
        axes = part.subplots()
        draw(axes)
        text = textwrap.fill(axes.get_title(loc="left"), 44)
        axes.set_title("")
        if text:
            part.suptitle(text, x=0.02, ha="left", fontsize=10, fontweight="bold")
    return figure


def bare(axes: Axes, *keep: str) -> None:
    """Take the frame of a plot away, except the named sides."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in keep)
    axes.tick_params(length=0)


def to_png(figure: Figure) -> bytes:
    """Return the figure as PNG, 200 dots per inch, with its title and its description."""
    about = {"Title": figure.get_suptitle(), "Description": str(figure.get_label())}
    with rc_context(RC):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None, **about})
    return buffer.getvalue()


def to_svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG whose text is text, with its title and its description.

    Parameters
    ----------
    figure : Figure
        What to save.
    name : str
        Begins the ids of the picture, which can stand in a page with others.
    """
    with rc_context(RC):
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    svg = re.sub(r'<g id="[^"]*">', "<g>", buffer.getvalue())
    # Matplotlib names a clip by a hash of its place, whose last bit the solver of the layout leaves
    # to chance.
    numbers = {found: f"{name}-{number}"
               for number, found in enumerate(re.findall(r'\bid="([^"]+)"', svg))}  # fmt: skip
    svg = re.sub(
        r'(\bid="|#)([^")]+)(?=[")])',
        lambda found: found[1] + numbers.get(found[2], found[2]),
        svg,
    )
    about = "".join(
        f'<{tag} id="{name}-{tag}">{escape(str(text))}</{tag}>\n'
        for tag, text in (("title", figure.get_suptitle() or name), ("desc", figure.get_label()))
    )
    named = f'<svg role="img" aria-labelledby="{name}-title {name}-desc" '
    head, _, rest = svg.partition("<svg ")
    attributes, _, body = rest.partition(">")
    return f"{head}{named}{attributes}>\n{about}{body.lstrip()}"
