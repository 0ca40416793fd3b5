# SPDX-License-Identifier: GPL-2.0-only
"""The part of the report that is about times, and about work in closed form."""

from __future__ import annotations

from html import escape

from btrfs_model.cost.causes import duration
from btrfs_model.experiments.formulas import Formula, formulas
from btrfs_model.experiments.numbers import percent
from btrfs_model.experiments.replay import Replay
from btrfs_model.experiments.times import Judged, Speedup


def times_section(one: Replay, chart: str | None) -> str:
    """Return the chart of times, what they go into, the message's figures, and the formulas.

    Parameters
    ----------
    one : Replay
        What was replayed.
    chart : str or None
        The chart as an ``<svg>`` element.
    """
    parts = ["<h3>Times</h3>\n"]
    if chart is not None:
        parts.append(f"<figure>\n{chart}\n</figure>\n")
    if one.judged:
        parts += [_message(one), _judged_table(one.judged), _speedup_table(one.speedups)]
    parts.append(_causes(one))
    if one.workload.size:
        parts.append(_formulas(one))
    return "".join(parts)


def _message(one: Replay) -> str:
    """Say how the message's times are compared."""
    message, rows = one.message, one.judged
    used = next((row for row in rows if row.is_used), None)
    text = f"The message's machine: {message.machine}."
    if used is not None and used.timed is not None:
        time = used.timed.on(one.machine)
        factor = "" if time is None else f", {used.reported.seconds / time.seconds:.3g} times ours"
        text += (
            f" How fast it is, its first time tells: {duration(used.reported.seconds)}{factor}. "
            "That time is used up so, and not predicted; the others are. Ratios need no factor."
        )
    off = [pair for pair in one.speedups if pair.predicted and _off(pair) > 0]
    if off:
        words = ", ".join(
            f"{pair.case}: {pair.predicted.value / pair.reported - 1:+.0%}"
            for pair in off
            if pair.predicted
        )
        text += f" Outside the interval of 90 %: {words}. {message.off}"
    return f"<p>{escape(text.strip(), quote=False)}</p>\n"


def _off(pair: Speedup) -> float:
    """Return how far a reported ratio is outside of the interval, as a fraction."""
    assert pair.predicted is not None
    return max(pair.predicted.low / pair.reported, pair.reported / pair.predicted.high, 1.0) - 1


def _rows(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["".join(f"<th>{cell}</th>" for cell in head)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table>\n{body}\n</table></div>\n'


def _case(row: Judged) -> str:
    case = row.reported.case
    words = [f"{value:,} {name}" if isinstance(value, int) else str(value)
             for name, value in case.items() if name != "fsync"]  # fmt: skip
    fsync = [f"fsync {case['fsync']}"] if "fsync" in case else []
    return ", ".join([*words, *fsync, row.reported.side])


def _judged_table(rows: list[Judged]) -> str:
    return _rows(
        ("time", "reported", "predicted", "90 % interval", "error", "measured", "on"),
        [
            (
                _case(row),
                duration(row.reported.seconds),
                "used" if row.is_used else _seconds(row.predicted),
                "" if row.low is None or row.high is None
                else f"{duration(row.low)} to {duration(row.high)}",
                percent(row.error),
                _seconds(row.measured),
                row.measured_on,
            )
            for row in rows
        ],
    )  # fmt: skip


def _seconds(value: float | None) -> str:
    return "" if value is None else duration(value)


def _speedup_table(rows: list[Speedup]) -> str:
    return _rows(
        ("times as fast", "message says", "reported", "predicted", "90 % interval", "error",
         "measured"),
        [
            (
                _case(pair.after),
                pair.after.reported.said,
                f"{pair.reported:.3g}",
                f"{pair.predicted.value:.3g}" if pair.predicted else "",
                f"{pair.predicted.low:.3g} to {pair.predicted.high:.3g}" if pair.predicted else "",
                percent(pair.predicted.value / pair.reported - 1) if pair.predicted else "",
                "" if pair.measured is None else f"{pair.measured:.3g}",
            )
            for pair in rows
        ],
    )  # fmt: skip


def _causes(one: Replay) -> str:
    """Say what the largest time of each side goes into."""
    found = []
    for side in one.sides:
        times = [(timed, timed.on(one.machine)) for timed in one.outcome.timed
                 if timed.side == side.name and timed.beside]  # fmt: skip
        there = [(timed, time) for timed, time in times if time is not None]
        if there:
            timed, time = max(there, key=lambda both: both[1].seconds)
            lines = "".join(f"<li>{escape(line)}</li>" for line in time.split())
            case = ", ".join(f"{name} {value}" for name, value in timed.case.items())
            title = f"{side.name}{f' ({case})' if case else ''}: {time} on {one.machine.name}"
            found.append(f"<li>{escape(title)}<ul>{lines}</ul></li>")
        elif times:
            found.append(
                f"<li>{escape(side.name)}: no time, for a part of its work has no cost on "
                f"{escape(one.machine.name)}</li>"
            )
    return f"<ul>{''.join(found)}</ul>\n" if found else ""


def _formulas(one: Replay) -> str:
    """Show the counts that are a polynomial in the size, and name those that are none."""
    sides = [side.name for side in one.sides]
    found: dict[tuple[str, str], dict[str, Formula | None]] = {}
    by_side = formulas(one.outcome, one.input.parameters, one.workload.size)
    for (quantity, case, side), formula in by_side.items():
        found.setdefault((quantity, case), {})[side] = formula
    rows, none = [], []
    checked: set[int] = set()
    for (quantity, case), of_sides in found.items():
        name = f"{quantity}, {case}" if case else quantity
        if not any(of_sides.values()):
            none.append(name)
            continue
        checked.update(size for one_ in of_sides.values() if one_ for size in one_.checked)
        cells = [str(of_sides.get(side) or "none") for side in sides]
        rows.append((name, *cells))
    if not rows:
        return "<p>No count has a closed formula: all depend on where leaves begin.</p>\n"
    sizes = ", ".join(f"{size:,}" for size in sorted(checked))
    return (
        "<details><summary>Work in closed form</summary>\n"
        f"<p>N: {escape(one.workload.size)}. Found from the smallest sizes, and exact at all "
        f"others up to the largest ({sizes}).</p>\n"
        f"{_rows(('count', *map(escape, sides)), rows)}"
        + (f"<p>No formula, for it depends on where leaves begin or on the lengths of names: "
           f"{escape(', '.join(none))}.</p>\n" if none else "")
        + "</details>\n"
    )  # fmt: skip
