#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Write data/workloads/log-dir/measured.json from records of real kernels.

    scripts/measure_log_dir.py CORPUS

CORPUS has ``log/nd/summary.json``, what the logs of kernels had in them, and ``timings/log.json``,
how long their fsyncs took (medians are taken).
"""

import json
import sys
from pathlib import Path
from typing import Any

from measured import taken, write

TARGET = Path(__file__).parent.parent / "data/workloads/log-dir/measured.json"
LOGS = {"5.10": "before", "5.10p": "after", "6.18": "Linux 6.18"}
TIMES = {"5.10.223": "before", "5.10.223+patch": "after", "6.18.44": "Linux 6.18"}
MACHINES = {
    "before": ("uml", "v5.10.223"), "after": ("uml", "v5.10.223 + log-dir-index-only"),
    "Linux 6.18": ("native", "v6.18.44"),
}  # fmt: skip
FSYNCS = {"after_adds": (1, "first fsync"), "after_deletes": (2, "second fsync")}
TYPES = ("INODE_ITEM", "INODE_REF", "DIR_ITEM", "DIR_INDEX", "DIR_LOG_ITEM", "DIR_LOG_INDEX")
# Of Linux 6.18 larger directories are not replayed.
LARGEST = {"Linux 6.18": 10_000}
SOURCES = {
    "items, bytes, blocks": {
        "before": "Linux 5.10.46, User-Mode Linux",
        "after": "Linux 5.10.223 with this commit alone, User-Mode Linux",
        "Linux 6.18": "Linux 6.18.44",
    },
    "time": {
        "before": "Linux 5.10.223, User-Mode Linux",
        "after": "Linux 5.10.223 with this commit alone, User-Mode Linux",
        "Linux 6.18": "Linux 6.18.44",
    },
}


def logged(log: dict[str, Any]) -> dict[str, int]:
    """Return the quantities of one log."""
    return {
        "items": log["items_total"],
        "bytes": log["item_bytes"],
        "leaves": log["leaves"],
        "nodes": log["nodes"],
        **{f"items {kind}": log["items"].get(kind, 0) for kind in TYPES},
    }


def rows(corpus: Path) -> list[dict[str, object]]:
    """Return a row for each side, number of files and of deletes, fsync and quantity."""
    found: dict[tuple[int, int, str, int, str], dict[str, object]] = {}
    for case in json.loads((corpus / "log/nd/summary.json").read_text()):
        side = LOGS.get(case["kernel"])
        for part, (fsync, _) in FSYNCS.items():
            if side and part in case and case[part]["fsync"] == "log":
                for name, value in logged(case[part]).items():
                    found[case["N"], case["D"], side, fsync, name] = {"value": value}
    for row in json.loads((corpus / "timings/log.json").read_text())["rows"]:
        side = TIMES.get(row["kernel"])
        for fsync, name in FSYNCS.values():
            if side and row["workload"] == "log-dir" and row["operation"].startswith(name):
                case = row["parameters"]
                times = taken(*MACHINES[side], "ms", row["ms"])
                found[case["N"], case["D"], side, fsync, "time"] = times
    return [
        {
            "files": files,
            "deletes": deletes,
            "side": side,
            "fsync": fsync,
            "quantity": name,
            **measured,
        }
        for (files, deletes, side, fsync, name), measured in sorted(
            found.items(), key=lambda one: one[0]
        )
        if files <= LARGEST.get(side, files)
    ]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(TARGET, SOURCES, rows(Path(sys.argv[1])))
