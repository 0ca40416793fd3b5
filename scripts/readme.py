#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Write what pages show of a replay of all workloads at full scale.

That is the two tables of ``README.md``, its pictures, and ``docs/speedups.csv``. Without an
argument they are replaced. ``scripts/readme.py --check`` changes nothing, and says in which rows
they are not those of a replay. ``scripts/readme.py --pictures`` replaces the pictures alone.
"""

import difflib
import re
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import pandas as pd

import btrfs_model as bm
from btrfs_model.base.charts import narrow_charts, to_png
from btrfs_model.cli.flags import FIRST_SAMPLE
from btrfs_model.experiments.replay import Replay, run
from btrfs_model.experiments.replays import default_jobs, run_all
from btrfs_model.experiments.report import charts_of, drawn
from btrfs_model.experiments.report.verdicts import HEADINGS, Row, commit_row, pair_rows
from btrfs_model.experiments.times import speedup_table
from btrfs_model.experiments.workloads import NAMES
from btrfs_model.experiments.workloads.knobs import Knobs

ROOT = Path(__file__).resolve().parents[1]
_AT_THE_EDGE = 0.02
"""Inches that a label may leave its picture by: a pixel or two."""
PAIRS = ("workload", "times of", "reported", "predicted", "measured", "verdict")


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown(rows: Iterable[Row]) -> str:
    """Return rows of commits as a table of Markdown, each commit with its link."""
    lines = []
    for row in rows:
        title = f"[{row.message.title}]({row.message.url}) ({row.message.release})"
        about = [f"{title}; `{row.workload}`, {row.case}"]
        if series := row.message.series:
            about.append(f"[Series of {series.number}]({series.url}), its last commit")
        *figures, verdict = row.cells
        if row.more:
            verdict += f" <details><summary>Why</summary>{' '.join(row.more)}</details>"
        lines.append((". ".join([*about, *filter(None, [row.alone])]), *figures, verdict))
    return _table(HEADINGS, lines)


def pairs(replays: Iterable[Replay]) -> str:
    """Return the pairs of times of all messages as a table of Markdown."""
    return _table(PAIRS, (
        (row.workload, row.case, *(text or "-" for text in (row.reported, row.predicted,
                                                             row.measured)), row.verdict)
        for one in replays for row in pair_rows(one)
    ))  # fmt: skip


def speedups(replays: Iterable[Replay]) -> str:
    """Return all ratios as CSV, to five digits."""
    table: pd.DataFrame = speedup_table([pair for one in replays for pair in one.speedups])
    text: str = table.to_csv(index=False, float_format="%.5g")
    return text


def pictures(folder: Path) -> None:
    """Draw what README opens with, each for wide pages and for telephones."""
    knobs = Knobs(device="deskstar-7k500", parameters={"queue_depth": 1})
    for one in (run("send-utimes"), run("send-readahead", "quick", knobs=knobs)):
        name = one.workload.name
        (folder / f"{name}.png").write_bytes(drawn(one)[name][1])
        with narrow_charts():
            chart = to_png(one.workload.draw(one.outcome))
        (folder / f"{name}-narrow.png").write_bytes(chart)
    with bm.open(bm.sample(FIRST_SAMPLE)) as fs:
        drawing = bm.draw([fs.subvolume(name) for name in ("snap1", "snap2")])
        drawing.save(folder / "sample.svg")
        with narrow_charts():
            drawing = bm.draw([fs.subvolume(name) for name in ("snap1", "snap2")])
            drawing.save(folder / "sample-narrow.svg")


def cut_charts(one: Replay) -> list[str]:
    """Name the charts of a replay that do not hold all that is drawn in them."""
    found = []
    for width in (nullcontext, narrow_charts):
        with width():
            charts = charts_of(one)
        for name, chart in charts.items():
            for _ in range(2):  # the first time axes make room for their labels
                chart.draw_without_rendering()
            drawn, page = chart.get_tightbbox(), chart.bbox_inches
            out = max(
                page.x0 - drawn.x0, page.y0 - drawn.y0, drawn.x1 - page.x1, drawn.y1 - page.y1
            )
            if out > _AT_THE_EDGE:
                found.append(f"{name}: a label leaves it by {out:.2f} inches")
    return found


def main(*, is_check: bool) -> int:
    """Replay, then compare or replace; return the status to end with."""
    replays = run_all(NAMES, default_jobs(), lambda _: None, scale="full")
    cut = [text for one in replays for text in cut_charts(one)]
    print(*cut, sep="\n", end="", file=sys.stderr)
    paper, csv = ROOT / "README.md", ROOT / "docs" / "speedups.csv"
    new = paper.read_text()
    for name, table in {"answer": markdown(map(commit_row, replays)),
                        "pairs": pairs(replays)}.items():  # fmt: skip
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        old = re.search(f"{begin}.*{end}", new, re.DOTALL)
        assert old is not None
        new = new.replace(old[0], begin + table + end)
    made = {paper: new, csv: speedups(replays)}
    if is_check:
        for path, text in made.items():
            old_lines, lines = (one.splitlines(keepends=True) for one in (path.read_text(), text))
            sys.stderr.writelines(
                difflib.unified_diff(old_lines, lines, path.name, "a replay", n=0)
            )
        return int(bool(cut) or any(path.read_text() != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text)
    pictures(ROOT / "docs")
    return 0


if __name__ == "__main__":
    if "--pictures" in sys.argv[1:]:
        pictures(ROOT / "docs")
    else:
        sys.exit(main(is_check="--check" in sys.argv[1:]))
