#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Enter what tools printed in ``docs/testing.csv`` and its page: ``scripts/testing.py OUTPUT ...``.

An output is that of `make -C native faults`, of `make -C native fuzz`, or the file that
``tests/unit/test_write_faults.py`` writes where BTRFS_MODEL_WRITE_FAULTS says. Rows of tools of
which there is none stay.
"""

import csv
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/testing.csv"
PAGE = ROOT / "docs/testing.md"
FAULTS = re.compile(
    r"/no_memory \d+ (.+)$(?:(?!/no_memory )[\s\S])*?^no_memory: (\d+) points, .* 0 wrong$", re.M
)
FUZZED = re.compile(
    r"/(fuzz_\w+) .*-max_total_time=(\d+)(?:(?!-max_total_time)[\s\S])*?"
    r"^stat::number_of_executed_units: (\d+)$",
    re.M,
)


def told(text: str) -> dict[str, tuple[str, int]]:
    """Return what an output says: by the tool, on what it ran, and how much was tried.

    Raises ValueError: when there is nothing, as where a tool found something wrong.
    """
    if text.startswith("{"):
        points = [json.loads(line) for line in text.splitlines()]
        cases = {point["case"] for point in points}
        return {"write_faults": (f"{len(cases)} commands", sum("way" in one for one in points))}
    found = {tool: (f"{seconds} seconds", int(number))
             for tool, seconds, number in FUZZED.findall(text)}  # fmt: skip
    for images, number in FAULTS.findall(text):
        found["no_memory"] = (f"{len(images.split())} images", int(number))
    if not found:
        raise ValueError("no tool says here how much it tried and that nothing was wrong")
    return found


def entered(outputs: list[str], results: Path = RESULTS, page: Path = PAGE) -> None:
    """Enter what outputs say, in the table and in the last cell of its row of the page."""
    with results.open(newline="") as file:
        head, *rows = csv.reader(file)
    found = {tool: row for text in outputs for tool, row in told(text).items()}
    text = page.read_text()
    cells = [*re.finditer(r"(?<=\| )[\d,]+ (?:points|inputs)(?= \|$)", text, re.M)]
    for row, cell in [*zip(rows, cells, strict=True)][::-1]:
        if row[0] in found:
            row[1], row[3] = map(str, found.pop(row[0]))
            text = f"{text[: cell.start()]}{int(row[3]):,} {row[2]}{text[cell.end() :]}"
    if found:
        raise ValueError(f"{results.name} has no row of {', '.join(found)}")
    lines = [",".join(row) for row in (head, *rows)]
    results.write_text("\n".join(lines) + "\n")
    page.write_text(text)


if __name__ == "__main__":
    try:
        entered([Path(path).read_text(errors="replace") for path in sys.argv[1:]])
    except (OSError, ValueError) as error:
        sys.exit(f"testing.py: {error}")
