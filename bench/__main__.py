# SPDX-License-Identifier: GPL-2.0-only
"""Run every ``bench/bench_*.py`` and print one table: ``python -m bench [--out FILE] [NAME ...]``.

Each module has ``run()``, which returns rows: ``name``, ``value`` with its ``unit``, ``peer`` (the
same of another program on the same input, None where there is none), ``ratio`` (how many times
better than the peer) and ``bar``, what is asked of it: ``>= 20`` of the value, ``300 x peer`` of
the ratio, several parted by commas; any other text is a remark.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from btrfs_model.base.errors import BtrfsModelError

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]


def bar_met(row: Row) -> bool | None:
    """Whether a row meets what is asked of it; None where nothing is asked or no peer is there."""
    verdicts: list[bool] = []
    for condition in str(row.get("bar") or "").split(","):
        if match := re.fullmatch(r"\s*(?:>=\s*)?([\d.]+) x peer\s*", condition):
            if row["ratio"] is None:
                return None
            verdicts.append(row["ratio"] >= float(match[1]))
        elif match := re.fullmatch(r"\s*>=\s*([\d.]+)\s*", condition):
            verdicts.append(row["value"] >= float(match[1]))
        elif match := re.fullmatch(r"\s*<=\s*([\d.]+)\s*", condition):
            verdicts.append(row["value"] <= float(match[1]))
    return all(verdicts) if verdicts else None


def table(rows: list[Row]) -> Table:
    """Lay the rows out."""
    drawn = Table(title="Speed", title_justify="left")
    for head, justify in [
        ("what", "left"),
        ("value", "right"),
        ("unit", "left"),
        ("peer", "right"),
        ("ratio", "right"),
        ("bar", "left"),
        ("met", "left"),
    ]:
        drawn.add_column(head, justify=justify, no_wrap=True)
    for row in rows:
        met = {True: "yes", False: "NO", None: ""}[bar_met(row)]
        drawn.add_row(
            row["name"],
            f"{row['value']:,.2f}",
            row["unit"],
            "" if row["peer"] is None else f"{row['peer']:,.4g}",
            "" if row["ratio"] is None else f"{row['ratio']:,.1f}",
            row["bar"] or "",
            met,
        )
    return drawn


def machine() -> Row:
    """Describe where this was measured."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        model = found[1] if found else ""
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def main() -> int:
    """Run what the command line names, or everything; 1 when a bar is not met."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help="tree, stream, ...")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    known = sorted(file.stem.removeprefix("bench_") for file in HERE.glob("bench_*.py"))
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    for name in arguments.names or known:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            rows += import_module(f"bench.bench_{name}").run()
        except BtrfsModelError as error:
            parser.exit(2, f"{parser.prog} {name}: {error}\n")
    wide = None if sys.stdout.isatty() else 120
    Console(width=wide).print(table(rows))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        for row in rows:
            row["met"] = bar_met(row)
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    missed = [row["name"] for row in rows if bar_met(row) is False]
    if missed:
        print(f"bars not met: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
