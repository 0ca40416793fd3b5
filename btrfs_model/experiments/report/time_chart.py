# SPDX-License-Identifier: GPL-2.0-only
"""The chart of times: what they go into before and after, and how many times as fast that is."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Final

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from btrfs_model.base.charts import COLOURS, KINDS, RC, bare, is_narrow, new_figure, stacked
from btrfs_model.cost.causes import DEVICE, duration
from btrfs_model.cost.machine import Machine
from btrfs_model.cost.prediction import Ratio
from btrfs_model.experiments.replay import Replay
from btrfs_model.experiments.times import Judged, Speedup
from btrfs_model.experiments.workloads.cases import case_words
from btrfs_model.experiments.workloads.charts.panels import (
    BAR_INCHES,
    colour,
    finish_bars,
    say_bar,
)
from btrfs_model.experiments.workloads.timed import Timed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHADES: Final = KINDS[:-1]
_REST: Final = "the rest"
_ROW: Final = 0.34
"""Inches of a bar."""


def draw_times(one: Replay) -> Figure | None:
    """Draw the times of a replay; None where nothing has a time.

    The times on the chosen machine are bars, cut by what they go into. Where the commit message
    reports them, they are drawn beside its time before, and its own times are marks. On the right
    are the ratios.
    """
    groups = _groups(one)
    if not groups:
        return None
    bars = sum(len(group) for group in groups)
    pairs = [pair for pair in one.speedups if not pair.alone]
    about = (
        f"{one.workload.name}: time by cause, on {one.machine.title}",
        "Bars of the times on each side, cut by what they go into: the causes and the times "
        "stand in the text below the picture."
        + (" Beside them, how many times as fast it is: predicted with its interval, by the "
           "message and as measured; the figures are in the table of the message's times."
           if pairs else ""),
    )  # fmt: skip
    with rc_context(RC):
        if is_narrow():
            legend = _legend(_parts(one, groups), one)
            ratios = [(1.0 + 0.3 * len(pairs), lambda axes: _draw_ratios(axes, pairs))]
            figure = stacked(*about, [
                (BAR_INCHES * bars + 1.0, lambda axes: _draw_bars(axes, one, groups)),
                *(ratios if pairs else []),
                (0.28 * len(legend) + 0.2, lambda axes: _draw_legend(axes, legend)),
            ])  # fmt: skip
            return figure
        figure = new_figure(11.0, 1.7 + _ROW * bars + 0.18 * len(groups), *about)
        if pairs:
            left, right = figure.subplots(1, 2, width_ratios=[1.75, 1.0])
            _draw_ratios(right, pairs)
        else:
            left = figure.subplots()
        _draw_bars(left, one, groups)
        figure.legend(
            handles=_legend(_parts(one, groups), one),
            loc="outside lower left",
            ncols=3,
            frameon=False,
        )
    return figure


def _groups(one: Replay) -> list[list[tuple[Timed, Judged | None]]]:
    """Gather the times to draw: those of the message, or all that were replayed, by case."""
    judged = [(row.timed, row) for row in one.judged if row.timed is not None]
    sides = {side.name for side in one.sides[:3]}
    every = [(timed, None) for timed in one.outcome.timed if timed.side in sides and timed.beside]
    groups: dict[tuple[object, ...], list[tuple[Timed, Judged | None]]] = {}
    for timed, row in judged or every:
        if timed.on(one.machine) is not None:
            groups.setdefault(tuple(sorted(timed.case.items())), []).append((timed, row))
    return list(groups.values())


def _parts(one: Replay, groups: list[list[tuple[Timed, Judged | None]]]) -> list[str]:
    """Return the causes to tell apart, the largest first; those of little time are the rest."""
    sums: dict[str, float] = {}
    for group in groups:
        for timed, _ in group:
            time = timed.on(one.machine)
            assert time is not None
            for name, part in time.parts.items():
                sums[name] = max(sums.get(name, 0.0), part / time.seconds)
    ordered = sorted(sums, key=lambda name: -sums[name])
    return [name for name in ordered if sums[name] >= 0.02][: len(_SHADES)]


def _draw_bars(axes: Axes, one: Replay, groups: list[list[tuple[Timed, Judged | None]]]) -> None:
    shown = _parts(one, groups)
    place, ticks, labels, widest = 0.0, [], [], 1.0
    for group in groups:
        first_timed, first = group[0]
        first_time = first_timed.on(one.machine)
        assert first_time is not None
        for timed, row in group:
            time = timed.on(one.machine)
            assert time is not None
            # of the message's machine: its time before, by the factor that its first time tells
            reported = None if first is None or row is None else (
                row.reported.seconds / first.reported.seconds)  # fmt: skip
            scale = 1 / first_time.seconds
            if first is not None and first.predicted is not None:
                scale *= first.predicted / first.reported.seconds
            start = 0.0
            for name in [*shown, _REST]:
                part = (time.parts.get(name, 0.0) if name != _REST
                        else sum(p for n, p in time.parts.items() if n not in shown))  # fmt: skip
                axes.barh(place, part * scale, left=start, height=0.8, color=_colour(name, shown))
                start += part * scale
            text = _text(row, time.seconds)
            if reported is not None:
                axes.plot([reported] * 2, [place - 0.45, place + 0.45], color=COLOURS["ink"],
                          linewidth=1.8)  # fmt: skip
            end = max(start, reported or 0.0)
            widest = max(widest, end)
            ticks.append(place)
            labels.append(", ".join([*_words(timed), timed.side]))
            place -= say_bar(axes, labels[-1], text, end, place, colour(timed.side))
        place -= 0.5
    finish_bars(axes, ticks, labels, place)
    axes.set_xlim(0, widest * (1.02 if is_narrow() else 1.42))
    axes.set_xticks([])
    beside = any(row is not None for group in groups for _, row in group)
    axes.set_title(
        "Beside the message's time before; its times are the lines" if beside
        else f"On {one.machine.name}; each pair has its own scale", pad=8,
    )  # fmt: skip
    bare(axes, "left")


def _text(row: Judged | None, seconds: float) -> str:
    if row is None:
        return duration(seconds)
    reported = f"reported {duration(row.reported.seconds)}"
    if row.is_used:
        return f"{reported}: tells the factor"
    if row.predicted is None or row.error is None:
        return reported
    return f"{duration(row.predicted)}, {reported} ({row.error:+.0%})"


def _words(timed: Timed) -> list[str]:
    return case_words(timed.case)


def _legend(shown: list[str], one: Replay) -> list[Artist]:
    """Return what the colours, lines and marks mean."""
    found: list[Artist] = [
        Patch(color=_colour(name, shown), label=_label(name, one.machine))
        for name in [*shown, _REST]
    ]
    if not one.judged:
        return found
    ink, ours = COLOURS["ink"], KINDS[0]
    marks = [
        Line2D([], [], color=ink, linewidth=1.8, label="reported"),
        Line2D([], [], color=ink, linewidth=0.8, label="what its digits and runs leave open"),
        Line2D([], [], color=ours, marker="o", linestyle="", label="predicted"),
        Line2D([], [], color=ours, linewidth=5, alpha=0.35, label="90 % interval"),
        Line2D([], [], color=ink, marker="o", markerfacecolor="white", linestyle="", markersize=7,
               label="measured on a kernel"),
    ]  # fmt: skip
    is_measured = any(pair.measured for pair in one.speedups)
    return [*found, *(marks if is_measured else marks[:-1])]


def _draw_legend(axes: Axes, legend: list[Artist]) -> None:
    """Draw a legend in a panel of its own."""
    shown = axes.legend(handles=legend, loc="upper left", frameon=False, borderaxespad=0)
    shown.set_in_layout(False)
    axes.set_xticks([])
    axes.set_yticks([])
    bare(axes)


def _label(name: str, machine: Machine) -> str:
    if name == DEVICE:
        return "waiting for the device"
    # what one of them is, without the details
    meanings = {cost.name: re.split("[:;,]", cost.meaning)[0] for cost in machine.costs}
    text = meanings.get(name, name)
    return textwrap.fill(text, 44) if is_narrow() else text


def _colour(name: str, shown: list[str]) -> str:
    if name == DEVICE:
        return KINDS[-1]
    return COLOURS["line"] if name == _REST else _SHADES[shown.index(name)]


def _draw_ratios(axes: Axes, pairs: list[Speedup]) -> None:
    """Draw how many times as fast: predicted with its interval, reported, measured."""
    for row, pair in enumerate(pairs):
        place = -float(row)
        if pair.reported is not None:
            _draw_reported(axes, pair.reported, place)
        if pair.predicted is not None and not pair.predicted.untold:
            shown = pair.predicted.alone or pair.predicted
            value, low, high = shown.value, shown.low, shown.high
            axes.plot([low, high], [place, place], color=KINDS[0], linewidth=5, alpha=0.35,
                      solid_capstyle="butt")  # fmt: skip
            axes.plot([value], [place], "o", color=KINDS[0], markersize=6)
        if pair.measured is not None:
            axes.plot([pair.measured.value], [place], "o", color=COLOURS["ink"], markersize=7,
                      markerfacecolor="white")  # fmt: skip
    axes.set_yticks([-float(row) for row in range(len(pairs))], [_case(pair) for pair in pairs])
    axes.set_ylim(-len(pairs) + 0.4, 0.6)
    axes.set_xlim(left=0)
    axes.axvline(1, color=COLOURS["muted"], linewidth=0.8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.grid(axis="x", color=COLOURS["plain"])
    axes.set_title("Times as fast after", pad=8)
    bare(axes, "bottom")


def _draw_reported(axes: Axes, said: Ratio, place: float) -> None:
    """Draw a line at what a message reports, and what its digits and runs leave open."""
    axes.plot([said.value] * 2, [place - 0.32, place + 0.32], color=COLOURS["ink"], linewidth=1.8)
    axes.plot([said.low, said.high], [place + 0.25] * 2, color=COLOURS["ink"], linewidth=0.8)


def _case(pair: Speedup) -> str:
    """Name a pair by what differs."""
    if pair.before is None or pair.after is None:
        words = case_words(pair.where)
        return textwrap.fill(", ".join(words) or pair.case, 22 if is_narrow() else 30)
    assert pair.before.timed is not None
    side = pair.after.reported.side
    words = _words(pair.before.timed)
    if pair.before.reported.side != "before":
        side = f"{pair.before.reported.side},\nthen {side}"
    return ", ".join([*words, *([] if words and side == "after" else [side])])
