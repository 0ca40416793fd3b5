# SPDX-License-Identifier: GPL-2.0-only
"""The page of a script: what it is, what it printed, what its timed regions take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from matplotlib import rc_context

from btrfs_model.base.charts import (
    COLOURS,
    RC,
    bare,
    is_narrow,
    narrow_charts,
    new_figure,
    stacked,
    to_svg,
)
from btrfs_model.base.printable import printable
from btrfs_model.cost.causes import duration
from btrfs_model.drawings.picture import DARK
from btrfs_model.experiments.report.page import Cell, template
from btrfs_model.experiments.workloads.charts.panels import BAR_INCHES, finish_bars, say_bar
from btrfs_model.scripts.answer import Line, Region, beside, regions, rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from btrfs_model.scripts.find import Found
    from btrfs_model.scripts.run import ScriptResult
    from btrfs_model.scripts.steps import Step

_ROW: Final = 0.34
"""Inches of a bar."""
_MOST_BARS: Final = 40
_MOST_WHAT: Final = 24
_SHOWN: Final = ("ink", "muted", "line", "plain", "before", "after")
_VARIABLES: Final = {name: f"var(--{name})" for name in _SHOWN}
"""Colours of the page, which is dark where its reader wants it."""
_GROUND: Final = "#ffffff"


def page(
    name: str, one: Found, names: Sequence[str], results: Sequence[ScriptResult], version: str
) -> str:
    """Return a script as HTML that needs nothing but itself.

    Parameters
    ----------
    name : str
        What the page is called.
    one : Found
        The script, and what its author shows.
    names : sequence of str
        The kernels that it ran on, one or two.
    results : sequence of ScriptResult
        What became of it on each.
    version : str
        Of the model.
    """
    sides = [regions(result) for result in results]
    outputs = [result.output.decode("utf-8", "replace") for result in results]
    lines = [beside(output, one.printed) for output in outputs]
    timed = {call.line for result, found in zip(results, sides, strict=True) if found
             for call in _timed(result)}  # fmt: skip
    told = [(name, _shown(output), result.status)
            for name, output, result in zip(names, outputs, results, strict=True)]  # fmt: skip
    return template("script.html.j2").render(
        name=name, title=name, colours=_VARIABLES, light=COLOURS, dark=DARK, shown=_SHOWN,
        version=version, names=names, machine=results[0].machine, device=results[0].device,
        script=list(enumerate(one.text.splitlines(), 1)), timed=timed,
        outputs=told if len({output for _, output, _ in told}) > 1 else told[-1:],
        headings=_headings(names), times=_times(names, sides),
        equal=[sum(line.same for line in found) for found in lines], compared=len(lines[0]),
        shown_headings=["the message shows", *names], message=_message(lines),
        charts=_charts(names, sides),
    )  # fmt: skip


def _shown(output: str) -> str:
    """Return an output without what would control a terminal."""
    return "\n".join(map(printable, output.expandtabs().split("\n")))


def _timed(result: ScriptResult) -> Sequence[Step]:
    """Return the calls that are in a timed region."""
    return result.calls[result.readings[0].calls : result.readings[-1].calls]


def _headings(names: Sequence[str]) -> list[str]:
    return ["lines", *names, *(["times as long before"] if len(names) > 1 else []), "depends on",
            "calls"]  # fmt: skip


def _times(names: Sequence[str], sides: Sequence[Sequence[Region]]) -> list[tuple[Cell, ...]]:
    found: list[tuple[Cell, ...]] = []
    for row in rows(names, sides):
        ratio: Cell = [row.ratio, row.why] if row.why else row.ratio
        ratios = (ratio,) if len(names) > 1 else ()
        found.append((row.lines, *row.times, *ratios, row.depends, row.what))
    return found


def _message(sides: Sequence[Sequence[Line]]) -> list[tuple[Cell, ...]]:
    """Return a row for each line that a message shows: it, and what came on each kernel."""
    return [
        (of_all[0].shown, *(_printed(line) for line in of_all))
        for of_all in zip(*sides, strict=True)
    ]


def _printed(line: Line) -> Cell:
    if line.same:
        return (
            ["equal"] if line.printed == line.shown else ["equal, times apart", line.printed or ""]
        )
    return ["not equal", line.printed] if line.printed is not None else ["not printed"]


# --------------------------------------------------------------------------------- the chart --


def _charts(names: Sequence[str], sides: Sequence[Sequence[Region]]) -> list[str]:
    """Return the chart of times for wide and for narrow screens; nothing without a time."""
    bars = _bars(names, sides)
    if not bars:
        return []
    found = [to_svg(_draw(names, bars), "times")]
    with narrow_charts():
        found.append(to_svg(_draw(names, bars), "times-narrow"))
    return [_themed(svg[svg.index("<svg") :]) for svg in found]


Bar = tuple[str, Region]
"""What a bar is called, and what it is of."""


def _bars(names: Sequence[str], sides: Sequence[Sequence[Region]]) -> list[list[Bar]]:
    """Return the bars of each region, of the longest where there are very many."""
    groups = []
    for found in zip(*sides, strict=False):
        group = [
            (f"{one.title}, {_short(one.what)}" + (f", {name}" if len(names) > 1 else ""), one)
            for name, one in zip(names, found, strict=True)
            if one.time is not None
        ]
        if group:
            groups.append(group)
    longest = sorted(groups, key=_longest, reverse=True)[: _MOST_BARS // len(names)]
    return [group for group in groups if group in longest]


def _short(what: str) -> str:
    return what if len(what) <= _MOST_WHAT else what[: _MOST_WHAT - 1].rstrip(", ") + "…"


def _longest(group: list[Bar]) -> float:
    return max(one.time.seconds for _, one in group if one.time is not None)


def _draw(names: Sequence[str], groups: list[list[Bar]]) -> Figure:
    count = sum(map(len, groups))
    about = (
        "What the timed regions take",
        "Bars of the predicted time of each timed region, on each kernel; the line is the 90 % "
        "interval. The figures are in the table of times.",
    )
    with rc_context(RC):
        if is_narrow():
            return stacked(
                *about, [(BAR_INCHES * count + 0.4, lambda axes: _draw_bars(axes, groups))]
            )
        figure = new_figure(11.0, 0.9 + _ROW * count + 0.18 * len(groups), *about)
        _draw_bars(figure.subplots(), groups)
    return figure


def _draw_bars(axes: Axes, groups: list[list[Bar]]) -> None:
    place, widest = 0.0, 0.0
    ticks, labels = [], []
    for group in groups:
        for at, (label, one) in enumerate(group):
            time = one.time
            assert time is not None
            colour = COLOURS["before" if at == 0 and len(group) > 1 else "after"]
            axes.barh(place, time.seconds, height=0.8, color=colour)
            axes.plot([time.low, time.high], [place, place], color=COLOURS["ink"], linewidth=1.2)
            ticks.append(place)
            labels.append(label)
            widest = max(widest, time.high)
            place -= say_bar(axes, label, duration(time.seconds), time.high, place, colour)
        place -= 0.5
    finish_bars(axes, ticks, labels, place)
    axes.set_xlim(0, widest * (1.02 if is_narrow() else 1.15))
    axes.set_xticks([])
    bare(axes, "left")


def _themed(svg: str) -> str:
    """Let a chart have the colours of the page, and no ground of its own."""
    names = {COLOURS[name]: f"var(--{name})" for name in _SHOWN}
    known = re.compile("|".join(map(re.escape, [*names, _GROUND])))
    return known.sub(lambda found: names.get(found[0], "none"), svg)
