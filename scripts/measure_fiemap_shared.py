#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Gather what the workload `fiemap-shared` is compared with: its ``measured.json``.

Counts of calls and numbers of block reads come from the records of the images in ``data/kernel``.
Times and reads at full scale come from a larger corpus of the same layout. ::

    scripts/measure_fiemap_shared.py data ORACLE
"""

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import zstandard
from measured import taken, write

SIDES = {"Linux 6.1": "6.1", "Linux 6.12": "6.12"}
VERSIONS = {"6.1.176": "Linux 6.1", "6.12.101": "Linux 6.12"}
RELEASES = {side: f"Linux {version}" for version, side in VERSIONS.items()}
# What the model counts under the same name as the kernel's symbol.
FUNCTIONS = (
    "add_prelim_ref", "btrfs_fiemap", "btrfs_is_data_extent_shared", "btrfs_next_old_item",
    "btrfs_next_old_leaf", "btrfs_search_old_slot", "btrfs_search_slot", "emit_fiemap_extent",
    "fiemap_fill_next_extent", "find_parent_nodes", "is_shared_data_backref",
    "lookup_backref_shared_cache", "prelim_ref_compare", "prelim_ref_insert",
    "store_backref_shared_cache", "ulist_add_merge",
)  # fmt: skip
COUNTS, READS = "kernel/counts/W3/snap200", "kernel/fiemap/f100"

Row = dict[str, Any]


def row(source: str, side: str, cache: str, quantity: str, value: float) -> Row:
    """Make a row of the file."""
    return {"input": source, "side": side, "cache": cache, "quantity": quantity, "value": value}


def calls(data: Path) -> list[Row]:
    """Take the calls and block reads that probes counted."""
    case = json.loads((data / COUNTS / "case.json").read_text())
    rows = []
    for side, kernel in SIDES.items():
        for phase in ("cold", "cached"):
            counts: dict[str, int] = {}
            for symbol, count in case["kernels"][kernel][phase]["counts"].items():
                name = symbol.partition(".")[0]
                counts[name] = counts.get(name, 0) + count
            if phase == "cold":
                rows.append(row(COUNTS, side, phase, "blocks read", counts["submit_bio"]))
            rows += [
                row(COUNTS, side, phase, name, counts[name]) for name in FUNCTIONS if name in counts
            ]
    return rows


def reads(folder: Path, source: str) -> list[Row]:
    """Count block reads of the cold call, from the trace of the block layer."""
    rows = []
    for side, kernel in SIDES.items():
        packed = (folder / f"reads.{kernel}.csv.zst").read_bytes()
        text = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(packed).read()
        trace = csv.DictReader(io.StringIO(text.decode()))
        count = sum(entry["phase"] == "2" for entry in trace)
        rows.append(row(source, side, "cold", "blocks read", count))
    return rows


def times(oracle: Path) -> list[Row]:
    """Take median times of complete FIEMAPs at full scale."""
    rows = []
    for entry in json.loads((oracle / "timings" / "fiemap.json").read_text())["rows"]:
        side, operation = VERSIONS.get(entry["kernel"]), entry["operation"]
        if side is None or entry["parameters"]["scale"] != "full":
            continue
        if not operation.startswith("complete FIEMAP"):
            continue
        cache = "cold" if "cold" in operation else "cached"
        seconds = taken("uml", f"v{entry['kernel']}", "s", [ms / 1000 for ms in entry["ms"]])
        # the file of the image is in memory
        device = {"device": "memory"} if cache == "cold" else {}
        rows.append(
            {"input": "full", "side": side, "cache": cache, **device, "quantity": "time", **seconds}
        )
    return rows


def main() -> None:
    """Write the file."""
    data, oracle = (Path(argument).resolve() for argument in sys.argv[1:])
    probes = sides("{}, User-Mode Linux, the same image, by probes")
    traced = "{}, User-Mode Linux, {}, trace of the block layer"
    made = "an image of the same workload that a kernel wrote"
    sources = {
        COUNTS: {"calls of kernel functions, blocks read": probes},
        READS: {"blocks read": sides(traced, "the same image")},
        "full": {
            "blocks read": sides(traced, made),
            "times": sides(
                "{}, User-Mode Linux on a two-core virtual machine, {}, in memory. Not the machine "
                "of the commit message",
                made,
            ),
        },
    }
    rows = [
        *calls(data),
        *reads(data / READS, READS),
        *reads(oracle / "fiemap" / "ffull", "full"),
        *times(oracle),
    ]
    write(data / "workloads" / "fiemap-shared" / "measured.json", sources, rows)


def sides(text: str, *words: str) -> dict[str, str]:
    """Make the text of each side from one for all."""
    return {side: text.format(release, *words) for side, release in RELEASES.items()}


if __name__ == "__main__":
    main()
