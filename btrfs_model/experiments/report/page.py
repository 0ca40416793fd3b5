# SPDX-License-Identifier: GPL-2.0-only
"""What the page of the report shows, in words; how it looks is in ``page.html.j2``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, Template

from btrfs_model.base.charts import COLOURS
from btrfs_model.cost.causes import duration
from btrfs_model.experiments.formulas import Formula, formulas
from btrfs_model.experiments.numbers import amount, percent
from btrfs_model.experiments.replay import Replay
from btrfs_model.experiments.report import verdicts
from btrfs_model.experiments.results import label
from btrfs_model.experiments.times import Judged
from btrfs_model.experiments.workloads import Figure
from btrfs_model.experiments.workloads.timed import SECONDS

Cell = str | list[str] | dict[str, Any]
"""What stands in a cell: a text, lines of which all but the first are small, or a ``text`` with
``more`` that is folded."""
_PLAIN_UNITS = ("blocks", "calls", "commands", "requests", "seeks", "waits")


def page(replays: Sequence[Replay], svgs: Mapping[str, tuple[str, str]], version: str) -> str:
    """Return the report as HTML that needs nothing but itself.

    Parameters
    ----------
    replays : sequence of Replay
        What was replayed.
    svgs : mapping
        Their charts by name: for wide screens and for narrow ones.
    version : str
        Of the model.
    """
    return template("page.html.j2").render(
        colours=COLOURS, headings=verdicts.HEADINGS, version=version,
        sections=[_section(one, svgs) for one in replays],
    )  # fmt: skip


def template(name: str) -> Template:
    """Return a template of this folder."""
    shelf = Environment(
        loader=PackageLoader("btrfs_model.experiments.report", "."), autoescape=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return shelf.get_template(name)


def _section(one: Replay, svgs: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    name = one.workload.name
    return {
        "one": one,
        "name": name,
        "row": (row := verdicts.commit_row(one)),
        "cells": [*row.cells[:-1], folded(row)],
        "pairs": [
            (row.case, row.said, row.reported, row.predicted, row.measured, folded(row))
            for row in verdicts.pair_rows(one)
        ],
        "charts": {key: [svg[svg.index("<svg") :] for svg in svgs[key]]
                   for key in (name, f"{name}-time") if key in svgs},
        "factor": _factor(one),
        "times": [_time(row) for row in one.judged],
        "causes": list(_causes(one)),
        "counts": list(_counts(one)),
        **_formulas(one),
    }  # fmt: skip


def folded(row: verdicts.Row) -> Cell:
    """Return a verdict with what is folded behind it."""
    return {"text": row.verdict, "more": row.more} if row.more else row.verdict


def _factor(one: Replay) -> str:
    """Say how the message's times are compared."""
    used = next((row for row in one.judged if row.is_used), None)
    time = None if used is None or used.timed is None else used.timed.on(one.machine)
    if used is None or time is None:
        return ""
    seconds = used.reported.seconds
    return (
        f"How fast the message's machine is, its first time tells: {duration(seconds)}, "
        f"{seconds / time.seconds:.3g} times ours. That time is used up so, and not predicted; the "
        "others are. Ratios need no factor."
    )


def _time(row: Judged) -> tuple[Cell, ...]:
    """Return the row of a time of the message."""
    reported, record = row.reported, row.record or {}
    runs = f"{record['runs']} runs, " if record.get("runs", 1) > 1 else ""
    off = reported.deviation or 0.0
    case = [f"{value:,} {name}" if isinstance(value, int) else str(value)
            for name, value in reported.case.items() if name != "fsync"]  # fmt: skip
    fsync = [f"fsync {reported.case['fsync']}"] if "fsync" in reported.case else []
    return (
        ", ".join([*case, *fsync, reported.side]),
        amount(reported.unit, reported.value, reported.value - off, reported.value + off),
        "used" if row.is_used else amount("s", row.predicted, row.low, row.high),
        percent(row.error),
        [
            amount(record.get("unit", "s"), record.get("value"), record.get("min"),
                   record.get("max")),
            f"{runs}{row.measured_on}",
        ] if record else "",
    )  # fmt: skip


def _causes(one: Replay) -> Iterable[tuple[str, Sequence[str]]]:
    """Say what the largest time of each side goes into."""
    for side in one.sides:
        times = [(timed, timed.on(one.machine)) for timed in one.outcome.timed
                 if timed.side == side.name and timed.beside]  # fmt: skip
        there = [(timed, time) for timed, time in times if time is not None]
        if there:
            timed, time = max(there, key=lambda both: both[1].seconds)
            case = ", ".join(f"{name} {value}" for name, value in timed.case.items())
            where = f"{side.name}{f' ({case})' if case else ''}"
            yield f"{where}: {time} on {one.machine.name}", time.split()
        elif times:
            why = f"no time, for a part of its work has no cost on {one.machine.name}"
            yield f"{side.name}: {why}", ()


def _counts(one: Replay) -> Iterable[tuple[str, list[str], list[tuple[Cell, ...]]]]:
    """Return a table for each group of figures: a row for each quantity, a column for each side."""
    rows: dict[tuple[object, ...], dict[str, Figure]] = {}
    for figure in one.outcome.figures:
        rows.setdefault(figure.key, {})[figure.side] = figure
    sides = [side.name for side in one.sides]
    for group in one.workload.groups:
        chosen = [key for key, of in rows.items() if group.holds(next(iter(of.values())))]
        found: list[tuple[Cell, ...]] = []
        for figures in (rows.pop(key) for key in chosen):
            figure = next(iter(figures.values()))
            if not figures.keys() & set(sides):
                continue
            text = label(figure, group.case)
            text = text.partition(": ")[2] or text
            plain = (*_PLAIN_UNITS, *SECONDS)
            if figure.unit not in plain and not figure.quantity.endswith(figure.unit):
                text += f" ({figure.unit})"
            found.append((text, *(_cell(figures.get(side)) for side in sides)))
        if found:
            kept = [0, *(at for at in range(1, len(sides) + 1) if any(row[at] for row in found))]
            yield (
                group.title,
                [["", *sides][at] for at in kept],
                [tuple(row[at] for at in kept) for row in found],
            )


def _cell(figure: Figure | None) -> Cell:
    """Return what is known of a figure: modelled first, then reported and measured."""
    if figure is None:
        return ""
    lines = [amount(figure.unit, figure.modelled, figure.low, figure.high)]
    if figure.reported is not None:
        lines.append(f"reported {amount(figure.unit, figure.reported)}")
    if figure.measured is not None:
        ends = figure.measured_min, figure.measured_max
        lines.append(f"measured {amount(figure.unit, figure.measured, *ends)}")
    if figure.error is not None:
        lines[-1] += f": {percent(figure.error)}"
    return lines


def _formulas(one: Replay) -> dict[str, Any]:
    """Return the counts that are a polynomial in the size, and name those that are none."""
    sides = [side.name for side in one.sides]
    found: dict[tuple[str, str], dict[str, Formula | None]] = {}
    if one.workload.size:
        by_side = formulas(one.outcome, one.input.parameters, one.workload.size)
        for (quantity, case, side), formula in by_side.items():
            found.setdefault((quantity, case), {})[side] = formula
    rows, none, checked = [], [], set[int]()
    for (quantity, case), of_sides in found.items():
        name = f"{quantity}, {case}" if case else quantity
        if any(of_sides.values()):
            checked.update(size for known in of_sides.values() if known for size in known.checked)
            rows.append((name, *(str(of_sides.get(side) or "none") for side in sides)))
        else:
            none.append(name)
    return {
        "formulas": rows, "no_formula": ", ".join(none), "sides": sides,
        "checked": ", ".join(f"{size:,}" for size in sorted(checked)),
    }  # fmt: skip
