# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `send-truncate`: what is sent, and what is done with it."""

from __future__ import annotations

from collections.abc import Callable
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from btrfs_model.base.charts import COLOURS, RC, bare, is_narrow, new_figure, stacked
from btrfs_model.experiments.workloads import Outcome
from btrfs_model.experiments.workloads.charts.evidence import Strips
from btrfs_model.experiments.workloads.charts.panels import BAR_INCHES, draw_counts, draw_times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sent = tuple[str, int]
Strip = list[Sent]
"""Commands in the order of the stream: name and bytes."""


def draw(outcome: Outcome) -> Figure:
    """Draw the times of the receiver, the commands for one file, and its system calls."""
    shown = outcome.evidence
    assert isinstance(shown, Strips)
    strips, names = shown.strips, list(shown.strips)
    about = (
        f"Full send of {shown.files:,} files of 5,000 bytes",
        "Bars of the time that a receiver takes, on each side, beside the times of the message "
        "and of kernels. The commands of the stream for one file, before and after: the "
        "truncate is not sent any more. Bars of the receiver's calls for one file: after, two "
        "reads, the truncate and the wait for the last page are gone.",
    )
    drawings: tuple[Callable[[Axes], None], ...] = (
        lambda axes: _draw_receiver(axes, outcome, names),
        lambda axes: _draw_strips(axes, strips[names[0]], strips[names[-1]]),
        lambda axes: _draw_calls(axes, outcome, shown.files, names[0], names[-1]),
    )
    with rc_context(RC):
        if is_narrow():
            heights = (BAR_INCHES * len(names) + 1, 3.6, 2.3)
            return stacked(*about, list(zip(heights, drawings, strict=True)))
        figure = new_figure(11.0, 6.2, *about)
        rows = figure.add_gridspec(3, 1, height_ratios=[1.0, 1.0, 0.9])
        for row, draw_panel in enumerate(drawings):
            draw_panel(figure.add_subfigure(rows[row]).subplots())
    return figure


def _draw_receiver(axes: Axes, outcome: Outcome, names: list[str]) -> None:
    draw_times(axes, outcome, "receive time", {"": {}}, names)
    axes.set_title("Time of the receiver", pad=8)


def _aligned(before: Strip, after: Strip) -> list[tuple[Sent | None, Sent | None]]:
    """Lay the commands of both sides beside each other; None where one side has none."""
    names = [[name for name, _ in strip] for strip in (before, after)]
    pairs: list[tuple[Sent | None, Sent | None]] = []
    for tag, start, stop, other, end in SequenceMatcher(
        None, names[0], names[1], False
    ).get_opcodes():
        if tag == "equal":
            pairs += zip(before[start:stop], after[other:end], strict=True)
        else:
            pairs += [(sent, None) for sent in before[start:stop]]
            pairs += [(None, sent) for sent in after[other:end]]
    return pairs


def _draw_strips(axes: Axes, before: Strip, after: Strip) -> None:
    """Draw the commands for one file, in the order of the stream, on both sides."""
    pairs = _aligned(before, after)
    if is_narrow():
        _draw_columns(axes, before, after)
        return
    for side, row in (("before", 0.9), ("after", 0.0)):
        strip = before if side == "before" else after
        for column, (old, new) in enumerate(pairs):
            mine, other = (old, new) if side == "before" else (new, old)
            _draw_command(axes, column, row, mine, COLOURS[side], alone=other is None)
        axes.text(-0.12, row + 0.31, side, ha="right", va="center", color=COLOURS[side],
                  fontsize=11.5, fontweight="bold")  # fmt: skip
        total = sum(size for _, size in strip)
        axes.text(len(pairs) + 0.06, row + 0.31, f"{total:,} bytes", va="center", fontsize=10.5)
    axes.set_title("What send writes for one file", x=0.0, pad=4)
    axes.set_xlim(-0.75, len(pairs) + 0.85)
    axes.set_ylim(-0.05, 1.55)
    axes.set_xticks([])
    axes.set_yticks([])
    bare(axes)


def _draw_columns(axes: Axes, before: Strip, after: Strip) -> None:
    """Draw the same from top to bottom, for a narrow screen."""
    pairs = _aligned(before, after)
    for column, side in enumerate(("before", "after")):
        strip = before if side == "before" else after
        for row, (old, new) in enumerate(pairs):
            mine, other = (old, new) if side == "before" else (new, old)
            _draw_command(axes, column, -0.64 * row, mine, COLOURS[side], alone=other is None)
        total = sum(size for _, size in strip)
        axes.text(column + 0.5, 0.75, f"{side}: {total:,} bytes", ha="center", color=COLOURS[side],
                  fontsize=10, fontweight="bold")  # fmt: skip
    axes.set_title("What send writes for one file", pad=4)
    axes.set_xlim(-0.02, 2.02)
    axes.set_ylim(-0.64 * len(pairs) + 0.6, 1.0)
    axes.set_xticks([])
    axes.set_yticks([])
    bare(axes)


def _draw_command(
    axes: Axes, column: int, row: float, command: Sent | None, colour: str, *, alone: bool
) -> None:
    """Draw a command as a box: in its side's colour when it is `alone`, dashed when it is not."""
    edge, face, ink, small = COLOURS["line"], COLOURS["plain"], COLOURS["ink"], COLOURS["muted"]
    if command is None:
        edge, face = colour, "none"
    elif alone:
        edge, face, ink, small = colour, colour, "white", "white"
    elif command[0] == "write":
        face = COLOURS["line"]
    axes.add_patch(
        FancyBboxPatch(
            (column + 0.07, row + 0.03), 0.86, 0.56, boxstyle="round,pad=0,rounding_size=0.06",
            facecolor=face, edgecolor=edge, linewidth=1.1,
            linestyle=(0, (3, 2)) if command is None else "solid",
        )
    )  # fmt: skip
    middle = column + 0.5
    if command is None:
        axes.text(middle, row + 0.31, "not sent", ha="center", va="center", color=colour,
                  fontsize=9.5, style="italic")  # fmt: skip
        return
    name, size = command
    axes.text(middle, row + 0.40, name.upper(), ha="center", va="center", color=ink,
              fontsize=9.5, fontweight="bold")  # fmt: skip
    axes.text(middle, row + 0.19, f"{size:,} bytes", ha="center", va="center", color=small,
              fontsize=8.5)  # fmt: skip


def _draw_calls(axes: Axes, outcome: Outcome, files: int, before: str, after: str) -> None:
    """Draw the receiver's calls per file, of which some are saved."""

    def per_file(side: str, name: str) -> float:
        figure = outcome.find(side, f"receiver: {name}")
        return 0.0 if figure is None else (figure.modelled or 0.0) / files

    kinds = [
        figure.quantity.removeprefix("receiver: ")
        for figure in outcome.figures
        if figure.side == before and figure.quantity.startswith("receiver: ")
        and not figure.quantity.endswith("system calls")
    ]  # fmt: skip
    draw_counts(
        axes, {kind: (per_file(before, kind), per_file(after, kind)) for kind in kinds}, ".3g", 120
    )
    axes.set_title("System calls of btrfs receive for one file", pad=8)
