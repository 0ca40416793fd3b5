# SPDX-License-Identifier: GPL-2.0-only
"""Results as files: tables, charts, provenance, and a report that needs nothing but itself."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from btrfs_model.base.charts import narrow_charts, to_png, to_svg
from btrfs_model.base.version import __version__
from btrfs_model.base.whole_file import whole_file
from btrfs_model.experiments import provenance
from btrfs_model.experiments.replay import Replay
from btrfs_model.experiments.report.page import page
from btrfs_model.experiments.report.time_chart import draw_times
from btrfs_model.experiments.results import frame, to_csv, to_parquet
from btrfs_model.experiments.times import message_table, speedup_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    svgs = {name: (svg, one.narrow[name])
            for one in replays for name, (svg, _) in one.pictures.items()}  # fmt: skip
    record = _provenance(replays)
    pairs = [pair for one in replays for pair in one.speedups]
    figures = [(one.workload.name, one.message, row) for one in replays for row in one.judged]
    files = {
        "results.csv": to_csv(table),
        "speedups.csv": to_csv(speedup_table(pairs)),
        "messages.csv": to_csv(message_table(figures)),
        "results.parquet": to_parquet(table),
        "report.html": page(replays, svgs, __version__).encode(),
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
        one.pictures |= {
            name: (to_svg(chart, name), to_png(chart)) for name, chart in charts_of(one).items()
        }
        with narrow_charts():
            charts = charts_of(one)
        one.narrow |= {name: to_svg(chart, f"{name}-narrow") for name, chart in charts.items()}
    return one.pictures


def charts_of(one: Replay) -> dict[str, Figure]:
    """Return the charts of a replay by name."""
    charts = {one.workload.name: one.workload.draw(one.outcome)}
    times = draw_times(one)
    if times is not None:
        charts[f"{one.workload.name}-time"] = times
    return charts


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
