# SPDX-License-Identifier: GPL-2.0-only
"""How fast ``btrfs-model reads`` tells the reads of a million tree blocks, and a disk does them.

The snapshot is made here: 956,000 files of 1950 bytes in one directory, in leaves of 4 KiB, one to
a leaf. What is measured is the whole command, from the start of Python to the last byte of what it
writes, in a file system cache that holds the image (4 GB). Each tree block is verified on the way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import btrfs_model as bm

FILES = 956_000
BATCH = 50_000
ROUNDS = 5


def make_image(path: Path) -> int:
    """Make the snapshot ``snap1``; how many blocks are read to send it."""
    with bm.WritableFilesystem.mkfs(8 << 30, nodesize=4096, metadata="single") as fs:
        fs.mkdir("d")
        for start in range(0, FILES, BATCH):
            names = [f"file_{number}" for number in range(start, min(FILES, start + BATCH))]
            fs.write_files("d", names, b"x" * 1950)
            fs.commit()
        fs.snapshot("", "snap1")
        fs.commit()
        fs.save(path)
    with bm.open(path) as fs:
        return len(bm.reads(fs, "snap1"))


def _command(image: Path, *options: str) -> tuple[float, float]:
    """Seconds of the fastest of a few runs of the command, and of the processor's time."""
    command = [sys.executable, "-m", "btrfs_model.cli", "reads", str(image), "snap1", *options]
    times = []
    for _ in range(ROUNDS):
        before, start = os.times(), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds, after = time.perf_counter() - start, os.times()
        used = after.children_user + after.children_system
        times.append((seconds, used - before.children_user - before.children_system))
    return min(times)


def _row(name: str, seconds: float, bar: str) -> dict[str, Any]:
    return {"name": f"reads: {name}", "value": seconds, "unit": "s", "peer": None, "ratio": None,
            "bar": bar}  # fmt: skip


def run() -> list[dict[str, Any]]:
    """Measure; a row for each figure."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        blocks = make_image(image)
        parquet = str(Path(folder) / "reads.parquet")
        for name, options, bar in (
            ("as text", (), "<= 2"),
            ("as JSON", ("--json",), ""),
            ("to Parquet", ("--out", parquet), "<= 2"),
            ("on a disk", ("--device", "deskstar-7k500", "--total"), ""),
        ):
            seconds, used = _command(image, *options)
            rows.append(_row(f"{blocks:,} blocks {name}", seconds, bar))
            rows.append(_row(f"{blocks:,} blocks {name}: CPU", used, ""))
    return rows
