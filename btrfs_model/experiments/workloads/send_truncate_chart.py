# SPDX-License-Identifier: GPL-2.0-only
"""The chart of `send-truncate`: what is sent, and what is done with it."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from btrfs_model.base.charts import COLOURS, RC, bare, new_figure
from btrfs_model.experiments.workloads import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sent = tuple[str, int]
Strip = list[Sent]
"""Commands in the order of the stream: name and bytes."""

_WAITS = "waits for the last page"


def draw(outcome: Outcome) -> Figure:
    """Draw the commands for one file, and the receiver's system calls."""
    strips: dict[str, Strip] = outcome.evidence["strips"]
    names = list(strips)
    with rc_context(RC):
        figure = new_figure(11.0, 7.0)
        rows = figure.add_gridspec(2, 1, height_ratios=[1.0, 1.6])
        top, bottom = figure.add_subfigure(rows[0]), figure.add_subfigure(rows[1])
        _draw_strips(top.subplots(), strips[names[0]], strips[names[-1]])
        _draw_calls(bottom.subplots(), outcome, names[0], names[-1])
        files = f"{outcome.evidence['files']:,}"
        figure.suptitle(
            f"Full send of {files} files of 5000 bytes",
            x=0.011, ha="left", fontsize=15, fontweight="bold",
        )  # fmt: skip
    return figure


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
        face = COLOURS["data"]
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


def _draw_calls(axes: Axes, outcome: Outcome, before: str, after: str) -> None:
    """Draw the receiver's calls per file, the most frequent on top, what is saved below."""
    files = outcome.evidence["files"]

    def per_file(side: str, name: str) -> float:
        figure = outcome.find(side, f"receiver: {name}")
        return 0.0 if figure is None else (figure.modelled or 0.0) / files

    kinds = [
        figure.quantity.removeprefix("receiver: ")
        for figure in outcome.figures
        if figure.side == before and figure.quantity.startswith("receiver: ")
    ]
    kinds = [kind for kind in kinds if kind not in ("system calls", "truncate", _WAITS)]
    kinds.sort(key=lambda kind: (-per_file(before, kind), kind))
    kinds += ["truncate", _WAITS]
    for row, kind in enumerate(kinds):
        place = len(kinds) - row
        for shift, side, colour in (
            (0.19, before, COLOURS["before"]),
            (-0.19, after, COLOURS["after"]),
        ):
            count = per_file(side, kind)
            axes.barh(place + shift, count, height=0.34, color=colour)
            axes.text(count + 0.15, place + shift, f"{count:.3g}", va="center", fontsize=8,
                      color=colour if count else COLOURS["muted"])  # fmt: skip
    axes.set_yticks([len(kinds) - row for row in range(len(kinds))], kinds)
    for label in axes.get_yticklabels()[-2:]:
        label.set_fontweight("bold")
    axes.axhspan(0.5, 2.5, color=COLOURS["plain"], zorder=0)
    axes.set_ylim(0.45, len(kinds) + 0.6)
    widest = max(per_file(side, kind) for side in (before, after) for kind in kinds)
    axes.set_xlim(0, widest * 1.12)
    axes.set_xticks([])
    axes.set_title("System calls of btrfs receive for one file", pad=8)
    bare(axes, "left")
