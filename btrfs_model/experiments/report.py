# SPDX-License-Identifier: GPL-2.0-only
"""Results as files: tables, charts, provenance, and a report that needs nothing but itself."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path

from btrfs_model.base.charts import to_png, to_svg
from btrfs_model.base.whole_file import whole_file
from btrfs_model.experiments import provenance
from btrfs_model.experiments.numbers import number, percent
from btrfs_model.experiments.replay import Replay
from btrfs_model.experiments.report_times import times_section
from btrfs_model.experiments.results import frame, label, to_csv, to_parquet
from btrfs_model.experiments.time_chart import draw_times
from btrfs_model.experiments.times import message_table, speedup_table
from btrfs_model.experiments.workloads import Figure

_RECORD = "provenance.json"


def write(replays: Sequence[Replay], out: str | os.PathLike[str]) -> list[Path]:
    """Write the results of replays into a folder.

    Everything but ``provenance.json``, which says when and where this ran, depends on the inputs
    alone.

    Parameters
    ----------
    replays : sequence of Replay
        What :func:`btrfs_model.experiments.replay.run` returned.
    out : path
        Folder; made when it is missing. Files of the same names are replaced, once all are written;
        what an earlier replay wrote, and this one does not, is removed.

    Returns
    -------
    list of pathlib.Path
        ``results.csv``, ``results.parquet``, ``speedups.csv``, ``messages.csv``, ``report.html``,
        ``provenance.json``, and for each workload its charts, of work as ``NAME.png`` and
        ``NAME.svg``, of times as ``NAME-time.png`` and ``NAME-time.svg``.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    table = frame(replays)
    pictures = {name: both for one in replays for name, both in drawn(one).items()}
    svgs = {name: svg for name, (svg, _) in pictures.items()}
    record = _provenance(replays)
    pairs = [pair for one in replays for pair in one.speedups]
    figures = [(one.workload.name, one.message, row) for one in replays for row in one.judged]
    files = {
        "results.csv": to_csv(table),
        "speedups.csv": to_csv(speedup_table(pairs)),
        "messages.csv": to_csv(message_table(figures)),
        "results.parquet": to_parquet(table),
        "report.html": _report(replays, svgs, record).encode(),
    }
    for name, (svg, png) in pictures.items():
        files[f"{name}.png"], files[f"{name}.svg"] = png, svg.encode()
    record["files"] = {name: _digest(content) for name, content in files.items()}
    files[_RECORD] = (json.dumps(record, indent=1) + "\n").encode()
    stale = [file for file in _written_before(folder) if file.name not in files]
    # all are complete before the first takes its place
    with ExitStack() as places:
        for name, content in files.items():
            file = places.enter_context(whole_file(folder / name))
            file.write(content)
            file.flush()
    for leftover in stale:
        leftover.unlink(missing_ok=True)
    return [folder / name for name in files]


def drawn(one: Replay) -> dict[str, tuple[str, bytes]]:
    """Draw the charts of a replay, once: SVG and PNG of each by name."""
    if not one.pictures:
        charts = {one.workload.name: one.workload.draw(one.outcome)}
        times = draw_times(one)
        if times is not None:
            charts[f"{one.workload.name}-time"] = times
        one.pictures |= {name: (to_svg(chart), to_png(chart)) for name, chart in charts.items()}
    return one.pictures


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _written_before(folder: Path) -> list[Path]:
    """Return the files that an earlier replay wrote into a folder, and nobody changed since."""
    try:
        listed = json.loads((folder / _RECORD).read_text())["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    places = [(folder / name, digest) for name, digest in listed if name == Path(name).name]
    return [
        place
        for place, digest in places
        if place.is_file() and not place.is_symlink() and _digest(place.read_bytes()) == digest
    ]


def _provenance(replays: Iterable[Replay]) -> dict[str, object]:
    return {
        "software": provenance.software(),
        "machine": provenance.machine(),
        "workloads": {
            one.workload.name: {
                **one.provenance,
                "time": {"started": one.started, "seconds": round(one.seconds, 3)},
            }
            for one in replays
        },
    }


# ------------------------------------------------------------------------------------- HTML --

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; color: #1f2430; background: #fff;
       max-width: 74rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p, li { max-width: 46rem; } .muted, footer { color: #6b7280; }
figure { margin: 1.4rem 0; } figure svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .55rem; border-bottom: 1px solid #e8ebf0; text-align: right;
         white-space: nowrap; }
th { color: #6b7280; font-weight: 600; border-bottom: 2px solid #d5d9e0; }
td:first-child, th:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
tr.group td { padding-top: 1rem; font-weight: 700; border-bottom: 2px solid #d5d9e0; }
.side { border-left: 2px solid #d5d9e0; } th[colspan] { text-align: center; }
code { font-size: .92em; background: #f3f4f7; padding: .05em .3em; border-radius: .2em; }
"""

_PLAIN_UNITS = ("blocks", "calls", "commands", "requests", "seeks", "waits")


def _report(replays: Sequence[Replay], svgs: dict[str, str], record: dict[str, object]) -> str:
    sections = "\n".join(_section(one, svgs) for one in replays)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>btrfs-model: replay</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        "<h1>Before and after: commits of btrfs, replayed</h1>\n"
        '<p class="muted">Reported: by the commit message. Modelled: by this run. Measured: on a '
        "real kernel. Error: of the modelled figure against the measured one, or against the "
        "reported one where nothing was measured.</p>\n"
        f"{sections}\n{_footer(record)}\n</body>\n</html>\n"
    )


def _section(one: Replay, svgs: dict[str, str]) -> str:
    svg, times = svgs[one.workload.name], svgs.get(f"{one.workload.name}-time")
    workload, outcome = one.workload, one.outcome
    commit = workload.toggles[0]
    summary = "".join(f"<p>{escape(text)}</p>\n" for text in workload.summary)
    sides = "".join(
        f"<li>{escape(side.name)}: <code>{escape(side.behaviour)}</code></li>" for side in one.sides
    )
    sources = "".join(
        f"<li>{escape(kind)}: {escape(where)}</li>" for kind, where in outcome.measured_on.items()
    )
    notes = "".join(f"<li>{escape(text)}</li>" for text in one.notes)
    settings = ", ".join(f"{key} = {value}" for key, value in one.settings.items())
    return (
        f'<section id="{escape(workload.name)}">\n<h2>{escape(workload.name)}</h2>\n'
        f"<p><strong>{escape(commit.subject)}</strong> "
        f'<span class="muted">({commit.commit}, in v{commit.release})</span></p>\n{summary}'
        f"<p>Replayed with {escape(settings)}, in a filesystem {escape(one.origin)}, on these "
        f"sides:</p>\n<ul>{sides}</ul>\n"
        f"<figure>\n{_inline(svg)}\n</figure>\n"
        f"{times_section(one, times and _inline(times))}"
        f'<h3>All figures</h3>\n<div class="scroll">{_table(one)}</div>\n'
        f"<h3>Notes</h3>\n<ul>{notes}</ul>\n"
        + (f"<h3>Measured on</h3>\n<ul>{sources}</ul>\n" if sources else "")
        + "</section>"
    )


def _inline(svg: str) -> str:
    """Return the ``<svg>`` element of an SVG file."""
    return svg[svg.index("<svg") :].strip()


def _table(one: Replay) -> str:
    """Make the table: a row for each quantity, the sides beside each other."""
    columns = {side.name: _columns(one, side.name) for side in one.sides}
    rows: dict[tuple[object, ...], dict[str, Figure]] = {}
    for figure in one.outcome.figures:
        rows.setdefault(figure.key, {})[figure.side] = figure
    head = "".join(
        f'<th class="side" colspan="{len(names)}">{escape(side)}</th>'
        for side, names in columns.items()
    )
    below = "".join(
        f"<th{' class=side' if place == 0 else ''}>{name}</th>"
        for names in columns.values()
        for place, name in enumerate(names)
    )
    width = 1 + sum(len(names) for names in columns.values())
    lines = [f"<tr><th></th>{head}</tr>", f"<tr><th></th>{below}</tr>"]
    for group in one.workload.groups:
        chosen = [key for key, of in rows.items() if group.holds(next(iter(of.values())))]
        if chosen:
            lines.append(f'<tr class="group"><td colspan="{width}">{group.title}</td></tr>')
        for figures in (rows.pop(key) for key in chosen):
            figure = next(iter(figures.values()))
            text = label(figure, group.case)
            shown = escape(text.partition(": ")[2] or text)
            if figure.unit not in _PLAIN_UNITS and not figure.quantity.endswith(figure.unit):
                shown += f' <span class="muted">({escape(figure.unit)})</span>'
            cells = "".join(
                _cell(figures.get(side), column, first=place == 0)
                for side, names in columns.items()
                for place, column in enumerate(names)
            )
            lines.append(f"<tr><td>{shown}</td>{cells}</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _columns(one: Replay, side: str) -> list[str]:
    """Return the columns that a side has any figure in."""
    figures = [figure for figure in one.outcome.figures if figure.side == side]
    return [
        column
        for column in ("reported", "modelled", "measured", "error")
        if any(getattr(figure, column) is not None for figure in figures)
    ]


def _cell(figure: Figure | None, column: str, *, first: bool) -> str:
    value: float | None = getattr(figure, column, None)
    text = percent(value) if column == "error" else number(value)
    return f"<td{' class=side' if first else ''}>{text}</td>"


def _footer(record: dict[str, object]) -> str:
    software = record["software"]
    assert isinstance(software, dict)
    return (
        f"<footer><p>Made by btrfs-model {escape(str(software['btrfs-model']))}. When, where and "
        "from which input: provenance.json.</p></footer>"
    )
