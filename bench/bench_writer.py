# SPDX-License-Identifier: GPL-2.0-only
"""How fast filesystems of many files are built and committed in memory, and how that grows.

Each figure is from ``mkfs`` to the end of the last commit, of one run: they take seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import btrfs_model as bm
from btrfs_model.workloads import fiemap_shared, send_readahead

GIB = 1 << 30
GROWTH = (10_000, 100_000, 1_000_000)


def _seconds(build: Callable[[], Any]) -> float:
    start = time.perf_counter()
    fs = build()
    seconds = time.perf_counter() - start
    fs.close()
    return seconds


def empty_files(count: int) -> bm.Filesystem:
    """Make so many empty files in one directory."""
    fs = bm.create(8 * GIB)
    fs.mkdir("d")
    fs.create_files("d", [f"file_{number}" for number in range(count)])
    fs.commit()
    return fs


def small_files(count: int, size: int) -> bm.Filesystem:
    """Make so many files of so many bytes in one directory."""
    fs = bm.create(8 * GIB)
    fs.mkdir("d")
    fs.write_files("d", [f"file_{number}" for number in range(count)], b"x" * size)
    fs.commit()
    return fs


def _silent(_: str) -> None:
    pass


def shared_extents() -> bm.Filesystem:
    """Build the workload fiemap-shared at its full scale."""
    return fiemap_shared.build(fiemap_shared.INPUTS[-1], _silent)


def inline_files() -> bm.Filesystem:
    """Build the workload send-readahead at its full scale."""
    return send_readahead.build(send_readahead.INPUTS[-1], _silent)


def _row(name: str, seconds: float, bar: str | None) -> dict[str, Any]:
    return {"name": f"writer: {name}", "value": seconds, "unit": "s", "peer": None, "ratio": None,
            "bar": bar}  # fmt: skip


def run() -> list[dict[str, Any]]:
    """Measure; a row for each figure."""
    rows = [
        _row("200,000 files of 5000 bytes", _seconds(lambda: small_files(200_000, 5000)), "<= 10"),
        _row("100 GB of shared extents, a snapshot", _seconds(shared_extents), "<= 8"),
        _row("625,000 inline files, two snapshots", _seconds(inline_files), "<= 20"),
    ]
    taken = {count: _seconds(lambda: empty_files(count)) for count in GROWTH}  # noqa: B023
    rows.insert(0, _row("1,000,000 empty files", taken[GROWTH[-1]], "<= 8"))
    for count, seconds in taken.items():
        row = _row(f"an empty file, of {count:,}", seconds / count * 1e6, None)
        rows.append(row | {"unit": "us"})
    return rows
