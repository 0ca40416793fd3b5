# SPDX-License-Identifier: GPL-2.0-only
"""Writing ``data/workloads/*/measured.json``, a line for each row."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path


def taken(kind: str, kernel: str, unit: str, values: Sequence[float]) -> dict[str, object]:
    """Say in a row what several runs took: the median, the least, the most, how many.

    `kind` and `kernel` are those of a machine: ``uml`` or ``native``, and a behaviour.
    """
    return {
        "kind": kind,
        "kernel": kernel,
        "unit": unit,
        "value": round(statistics.median(values), 6),
        "min": round(min(values), 6),
        "max": round(max(values), 6),
        "runs": len(values),
    }


def write(
    target: Path,
    sources: Mapping[str, Mapping[str, object]],
    rows: Sequence[Mapping[str, object]],
) -> None:
    """Write what was measured, and where it is from: a text for each side."""
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        f'{{"sources": {json.dumps(sources, indent=1)},\n "rows": [\n  {lines}\n]}}\n'
    )
