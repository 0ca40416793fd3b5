# SPDX-License-Identifier: GPL-2.0-only
"""All sends between 30 snapshots of real files: how long a plan of them takes.

The files are those of ``bench_real.py``, up to 2.5 GB, and one of fifty changes between two
snapshots: 900 sends. As root they are copied into a btrfs on a loop device; nothing is measured
without root. A plan is made in a process of its own, twice, and the second time counts: then the
image is in memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.bench_real import BYTES, SOURCE, change, choose, copy
from btrfs_model.kernels.inside.mounts import mounted
from btrfs_model.kernels.inside.mounts import run as run_program
from btrfs_model.kernels.timings import make_filesystem

SNAPSHOTS: Final = 30
SECONDS: Final = 10

_PROGRAM: Final = (
    "import resource, sys, time\n"
    "start = time.perf_counter()\n"
    "import btrfs_model as bm\n"
    "sends = len(bm.plan(sys.argv[1]).table)\n"
    "clock = time.perf_counter() - start\n"
    "used = resource.getrusage(resource.RUSAGE_SELF)\n"
    "print(sends, clock, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)\n"
)


def make_history(folder: Path, source: Path, limit: int, count: int) -> Path:
    """Make the image as root: a tree and its snapshots."""
    image, paths = folder / "image", choose(source, limit)
    make_filesystem(image, 4 * limit + (1 << 30), [])
    with mounted(str(image), str(folder / "mount"), "noatime") as top:
        tree = top / "tree"
        run_program("btrfs", "subvolume", "create", str(tree))
        copy(source, paths, tree / "files")
        for seed in range(count):
            name = str(top / f"snap{seed:02}")
            run_program("btrfs", "subvolume", "snapshot", "-r", str(tree), name)
            change(tree, seed)
    return image


def plan_seconds(image: Path) -> tuple[int, float, float, float]:
    """Return sends, seconds of the clock and of processors, and the most memory, in MiB."""
    told = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(image)], check=True, text=True, stdout=subprocess.PIPE
    ).stdout.split()
    return int(told[0]), float(told[1]), float(told[2]), float(told[3])


def run() -> list[dict[str, Any]]:
    """Measure; a row for each figure."""
    missing = [name for name in ("btrfs", "tar") if not shutil.which(name)]
    if os.geteuid() or missing:
        why = f"no {', '.join(missing)} on this machine" if missing else "not root"
        print(f"plan: {why}: not measured", file=sys.stderr)
        return []
    # not in memory: the image is larger than that of some machines
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        image = make_history(Path(name), SOURCE, BYTES, SNAPSHOTS)
        plan_seconds(image)
        sends, clock, processors, memory = plan_seconds(image)
    return [
        {"name": f"plan: {what}", "value": value, "unit": unit, "peer": None, "ratio": None,
         "bar": bar}
        for what, value, unit, bar in (
            (f"{sends} sends", clock, "s", f"<= {SECONDS}"),
            ("processor time", processors, "s", ""),
            ("memory", memory, "MiB", ""),
        )
    ]  # fmt: skip
