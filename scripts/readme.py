#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Write the table of ``README.md`` and its picture from a replay of all workloads at full scale.

``scripts/readme.py`` replaces both. ``scripts/readme.py --check`` changes nothing, and says in
which rows the table is not that of a replay.
"""

import difflib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from btrfs_model.experiments.replays import default_jobs, run_all
from btrfs_model.experiments.report import drawn
from btrfs_model.experiments.verdicts import HEADINGS, Row, commit_row
from btrfs_model.experiments.workloads import NAMES

ROOT = Path(__file__).resolve().parents[1]
PICTURE = "send-utimes"


def markdown(rows: Iterable[Row]) -> str:
    """Return rows as a table of Markdown, each commit with its link."""
    lines = [HEADINGS, ("---",) * len(HEADINGS)]
    for row in rows:
        title = f"[{row.message.title}]({row.message.url}) ({row.message.release})"
        lines.append((f"{title}; `{row.workload}`, {row.case}", *row.cells))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(*, is_check: bool) -> int:
    """Replay, then compare or replace; return the status to end with."""
    replays = run_all(NAMES, default_jobs(), lambda _: None, scale="full")
    paper = ROOT / "README.md"
    old = paper.read_text()
    table = "<!-- answer -->\n" + markdown(map(commit_row, replays)) + "<!-- end of answer -->"
    new = re.sub(r"<!-- answer -->.*<!-- end of answer -->", lambda _: table, old, flags=re.DOTALL)
    if is_check:
        lines = [text.splitlines(keepends=True) for text in (old, new)]
        sys.stderr.writelines(difflib.unified_diff(*lines, "README.md", "a replay", n=0))
        return int(old != new)
    paper.write_text(new)
    one = next(one for one in replays if one.workload.name == PICTURE)
    (ROOT / "docs" / f"{PICTURE}.png").write_bytes(drawn(one)[PICTURE][1])
    return 0


if __name__ == "__main__":
    sys.exit(main(is_check="--check" in sys.argv[1:]))
