#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Where a real kernel put the leaves of the workload `send-readahead`: ``distances.json``.

Reads the maps of tree blocks (``treemap.json.zst``) of the cases ``reada/*`` in the folder that
``BTRFS_MODEL_ORACLE`` names. Of the first snapshot of each it counts how far a leaf lies from the
one before it in the tree. ::

    scripts/measure_send_readahead.py data/workloads/send-readahead/distances.json
"""

import json
import os
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import zstandard

CASES = ("r5k", "r20k", "r100k", "r500k")
# upper ends of the bins, in bytes; the last has none
BINS = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)


def label(distance: int) -> str:
    """Name the bin of a distance: forward or back, and up to where."""
    end = next((str(end) for end in BINS if abs(distance) <= end), "more")
    return f"{'+' if distance > 0 else '-'}{end}"


def leaves(oracle: Path, case: str) -> list[int]:
    """Return where the leaves of the first snapshot lie, in the order of the tree."""
    packed = (oracle / "reada" / case / "treemap.json.zst").read_bytes()
    tree = json.loads(zstandard.ZstdDecompressor().stream_reader(packed).read())["trees"]["256"]
    return [block[0] for block in tree["blocks"] if block[2] == 0]


def main(target: Path, oracle: Path) -> None:
    """Write the file."""
    cases = {}
    for case in CASES:
        made = json.loads((oracle / "reada" / case / "case.json").read_text())["made"]
        where = leaves(oracle, case)
        counts = Counter(label(after - before) for before, after in pairwise(where))
        cases[case] = {
            "files": made["total"],
            "jobs": made["jobs"],
            "kernel": made["made_by_kernel"],
            "leaves": len(where),
            "distances": dict(sorted(counts.items())),
        }
    target.write_text(json.dumps({"bins": BINS, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(os.environ["BTRFS_MODEL_ORACLE"]))
