#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Write ``docs/validation.md`` and its picture from what ``python -m bench time`` kept.

Use: ``BTRFS_MODEL_VALIDATION=rows.json python -m bench time``, then ``scripts/validation.py
rows.json``. Without rows the picture alone is drawn again, from the table.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

DOCS = Path(__file__).resolve().parents[1] / "docs"
Row = dict[str, Any]

_BESIDE = "timed in turn with the microbenchmarks of a calibration"
_FIRST = "recorded; the first row that reads nothing tells the speed"
RUNGS = {
    "fresh sends": f"Sends, {_BESIDE}",
    "fresh maps": f"FIEMAP, {_BESIDE}",
    "fresh logs": f"fsync of a directory, {_BESIDE}",
    "fresh receivers": f"Receivers, {_BESIDE}",
    "send-micro": "Sends, recorded with ten microbenchmarks that tell the speed",
    "send": f"Sends, {_FIRST}",
    "readahead": f"Sends of inline files, {_FIRST}",
    "fiemap": f"FIEMAP, {_FIRST}",
    "log": f"fsync of a directory, {_FIRST}",
    "receive": f"Receivers, {_FIRST}",
}


def errors(rows: list[Row]) -> list[float]:
    """Return by how many percent predictions are off."""
    return [100 * abs(row["predicted"] / row["measured"] - 1)
            for row in rows if not row.get("is_used")]  # fmt: skip


def summary(rows: list[Row]) -> list[str]:
    """Make a row of the table for each rung."""
    lines = ["| rung | machine | predicted | median error | worst |", "|---|---|---|---|---|"]
    for source, what in RUNGS.items():
        for machine in sorted({row["machine"] for row in rows if row.get("source") == source}):
            of = [
                row for row in rows if (row.get("source"), row.get("machine")) == (source, machine)
            ]
            off = errors(of)
            if off:
                lines.append(f"| {what} | {machine} | {len(off)} | {np.median(off):.1f} % "
                             f"| {max(off):.1f} % |")  # fmt: skip
    return lines


def details(rows: list[Row]) -> list[str]:
    """Make a row for each time."""
    lines = ["| source | machine | operation | measured | predicted | error |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        if "source" in row:
            error = "tells the speed" if row["is_used"] else (
                f"{100 * (row['predicted'] / row['measured'] - 1):+.1f} %")  # fmt: skip
            lines.append(f"| {row['source']} | {row['machine']} | {row['what']} "
                         f"| {row['measured'] * 1e3:,.2f} ms | {row['predicted'] * 1e3:,.2f} ms "
                         f"| {error} |")  # fmt: skip
    return lines


def ratios(rows: list[Row]) -> list[str]:
    """Make a row for each pair before and after."""
    lines = ["| before and after | measured | predicted | error |", "|---|---|---|---|"]
    for row in rows:
        if "source" not in row:
            interval = f" ({row['low']:.2f} to {row['high']:.2f})" if "low" in row else ""
            error = f"{100 * (row['predicted'] / row['measured'] - 1):+.1f} %"
            lines.append(
                f"| {row['what']} | {row['measured']:.2f} | {row['predicted']:.2f}{interval} "
                f"| {error} |"
            )
    return lines


def listed(text: str) -> list[tuple[str, str, str, float, float]]:
    """Return the table of `details`: source, machine, operation, measured and predicted seconds."""
    table = text.split("<!-- details -->")[1].split("<!-- end of details -->")[0]
    rows = [line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]]
    return [(*row[:3], *(float(cell.removesuffix(" ms").replace(",", "")) / 1e3
                         for cell in row[3:5])) for row in rows]  # fmt: skip


def draw(text: str, path: Path) -> None:
    """Curves over size: a panel for each workload that was measured at several, for all widths."""
    panels = {"send-utimes": "sends", "log-dir": "first fsyncs"}
    figure, axes = plt.subplots(len(panels), 1, figsize=(4.4, 11), layout="constrained")
    for axis, (workload, what) in zip(axes, panels.items(), strict=True):
        curves: dict[str, list[tuple[int, float, float]]] = {}
        for source, machine, operation, *times in sorted(listed(text)):
            found = re.fullmatch(rf"{workload}, ([\d,]+) files(, fsync 1)?", operation)
            if found:
                name = machine.removesuffix(", measured with it")
                how = "in turn" if source.startswith("fresh") else "recorded"
                with_ten = ", ten microbenchmarks" if source == "send-micro" else ""
                curve = curves.setdefault(f"{name}, {how}{with_ten}", [])
                curve.append((int(found[1].replace(",", "")), *times))
        for number, (name, points) in enumerate(curves.items()):
            files, measured, predicted = np.array(sorted(points)).T
            axis.plot(files, predicted, ".-", color=f"C{number}", label=name)
            axis.plot(files, measured, "o", color=f"C{number}", mfc="none")
        axis.set(title=f"{workload}: {what}", xlabel="files", ylabel="seconds",
                 xscale="log", yscale="log")  # fmt: skip
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xticks(sorted({size for line in axis.lines for size in line.get_xdata()}))
        axis.legend(fontsize=9, title="line: predicted, circle: measured", title_fontsize=9,
                    loc="upper center", bbox_to_anchor=(0.42, -0.17), frameon=False)  # fmt: skip
    figure.savefig(path, dpi=160, metadata={"Software": None})


def main() -> None:
    """Write both files, or the picture."""
    text = (DOCS / "validation.md").read_text()
    if sys.argv[1:]:
        rows: list[Row] = json.loads(Path(sys.argv[1]).read_text())
        for name, lines in {"summary": summary(rows), "ratios": ratios(rows),
                            "details": details(rows)}.items():  # fmt: skip
            begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
            head, rest = text.split(begin, 1)
            text = head + begin + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1]
        (DOCS / "validation.md").write_text(text)
    draw(text, DOCS / "validation.png")


if __name__ == "__main__":
    main()
