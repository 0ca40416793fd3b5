# SPDX-License-Identifier: GPL-2.0-only
"""How fast filesystems of many files are built and committed in memory, and how that grows.

Each figure is from ``mkfs`` to the end of the last commit, of one run: they take seconds. Each is
built in a process of its own (``python -m bench.bench_writer NAME [FILES]``), so that its peak
memory is that of this build alone, the interpreter included.

Then calls one by one, and the receive of a stream beside ``btrfs receive`` on a loop device, which
only root can measure: warm, the median of five.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import btrfs_model as bm
from bench.timing import peak
from btrfs_model.experiments.workloads import fiemap_shared, send_readahead

GIB = 1 << 30
GROWTH = (10_000, 100_000, 1_000_000, 10_000_000)
MEMORY = "<= 3"
ROUNDS = 5
RECEIVED = 5_300


def empty_files(count: int = 1_000_000) -> bm.Filesystem:
    """Make so many empty files in one directory."""
    fs = bm.create(max(8, count >> 18) * GIB)
    fs.mkdir("d")
    fs.create_files("d", [f"file_{number}" for number in range(count)])
    fs.commit()
    return fs


def small_files(count: int = 200_000) -> bm.Filesystem:
    """Make so many files of 5000 bytes in one directory."""
    fs = bm.create(8 * GIB)
    fs.mkdir("d")
    fs.write_files("d", [f"file_{number}" for number in range(count)], b"x" * 5000)
    fs.commit()
    return fs


def moved_files(count: int = 60_000) -> bm.Filesystem:
    """Make files and move them to another directory, with a snapshot before and after."""
    fs = bm.create(GIB)
    names = [f"file_{number}" for number in range(count)]
    fs.mkdir("A")
    fs.create_files("A", names)
    fs.snapshot("", "snap1")
    fs.mkdir("B")
    fs.move_files("A", "B", sorted(names))
    fs.snapshot("", "snap2")
    fs.commit()
    return fs


def shared_extents() -> bm.Filesystem:
    """Build the workload fiemap-shared at its full scale."""
    return fiemap_shared.build(fiemap_shared.WORKLOAD.scaled(1))


def inline_files() -> bm.Filesystem:
    """Build the workload send-readahead at its full scale."""
    return send_readahead.build(send_readahead.WORKLOAD.scaled(1))


def _median(action: Callable[[], float]) -> float:
    """Seconds that an action says it took, the median of some; the first warms up."""
    action()
    return statistics.median(action() for _ in range(ROUNDS))


def one_by_one(count: int = 2_000) -> float:
    """Seconds for each file that is created, written to, and given permissions and times."""
    data = bytes(4096)
    with bm.create(8 * GIB) as fs:
        fs.mkdir("d")
        start = time.perf_counter()
        for number in range(count):
            path = f"d/file_{number}"
            fs.create(path)
            fs.write(path, 0, data)
            fs.chmod(path, 0o644)
            fs.utimes(path, 10**18, 10**18)
        return (time.perf_counter() - start) / count


def stream_of_files(count: int = RECEIVED) -> bytes:
    """Return a full send of files of up to 46 KB, 80 MB together, ten in a directory."""
    data = bytes(range(256)) * 256
    with bm.create(GIB) as fs:
        fs.create_subvolume("s")
        for number in range(count):
            directory = f"s/dir_{number // 10}"
            if not number % 10:
                fs.mkdir(directory)
            path = f"{directory}/file_{number}"
            fs.create(path)
            fs.write(path, 0, data[: (number * 7919 % 97) ** 2 * 5])
        fs.snapshot("s", "sent")
        sent = bm.send(fs, "sent").data
        assert sent is not None
        return sent


def model_receives(stream: bytes) -> float:
    """Seconds that the model takes to receive a stream."""
    with bm.create(4 * GIB) as fs:
        start = time.perf_counter()
        bm.receive(fs, stream)
        return time.perf_counter() - start


def kernel_receives(stream: bytes) -> float:
    """Seconds that ``btrfs receive`` takes, on the machine's own kernel."""
    with tempfile.TemporaryDirectory() as folder:
        image, file, top = (Path(folder) / name for name in ("image", "stream", "top"))
        file.write_bytes(stream)
        with image.open("wb") as device:
            device.truncate(4 * GIB)
        top.mkdir()
        subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(top)], check=True)

        def receive() -> float:
            os.sync()
            start = time.perf_counter()
            subprocess.run(["btrfs", "-q", "receive", "-f", str(file), str(top)], check=True)
            seconds = time.perf_counter() - start
            delete = ["btrfs", "-q", "subvolume", "delete", str(top / "sent")]
            subprocess.run(delete, check=True, stdout=subprocess.DEVNULL)
            return seconds

        try:
            return _median(receive)
        finally:
            subprocess.run(["umount", str(top)], check=True)


BUILDS: dict[str, Callable[..., bm.Filesystem]] = {
    build.__name__: build
    for build in (empty_files, small_files, moved_files, shared_extents, inline_files)
}


def _measure(name: str, *files: int) -> tuple[float, float]:
    """Seconds that a build takes in a process of its own, and its peak memory in GB."""
    command = [sys.executable, "-m", "bench.bench_writer", name, *map(str, files)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    seconds, peak = json.loads(done.stdout)
    return seconds, peak / 1e9


def _row(name: str, value: float, unit: str, bar: str | None) -> dict[str, Any]:
    return {"name": f"writer: {name}", "value": value, "unit": unit, "peer": None, "ratio": None,
            "bar": bar}  # fmt: skip


def _build_rows(what: str, bar: str, measured: tuple[float, float]) -> list[dict[str, Any]]:
    seconds, peak = measured
    return [_row(what, seconds, "s", bar), _row(f"{what}: memory", peak, "GB", MEMORY)]


def _call_rows() -> list[dict[str, Any]]:
    """Figures of calls one by one."""
    seconds = _median(one_by_one)
    stream = stream_of_files()
    received, peer = _median(lambda: model_receives(stream)), None
    if os.geteuid() == 0:
        peer = kernel_receives(stream)
    else:
        print("writer: not root, so btrfs receive is not measured", file=sys.stderr)
    receive = _row(f"receive of {RECEIVED:,} files", received, "s", "1 x peer")
    ratio = None if peer is None else peer / received
    return [
        _row("create, write 4 KiB, chmod, utimes one by one", seconds * 1e6, "us", "<= 200"),
        receive | {"peer": peer, "ratio": ratio},
    ]


def run() -> list[dict[str, Any]]:
    """Measure; a row for each figure."""
    taken = {count: _measure("empty_files", count) for count in GROWTH}
    rows = _build_rows("1,000,000 empty files", "<= 8", taken[1_000_000])
    for what, bar, name in (
        ("200,000 files of 5000 bytes", "<= 10", "small_files"),
        ("60,000 files moved, two snapshots", "<= 2", "moved_files"),
        ("100 GB of shared extents, a snapshot", "<= 8", "shared_extents"),
        ("625,000 inline files, two snapshots", "<= 15", "inline_files"),
    ):
        rows += _build_rows(what, bar, _measure(name))
    each = {count: seconds / count * 1e6 for count, (seconds, _) in taken.items()}
    rows += [_row(f"an empty file, of {count:,}", time, "us", None) for count, time in each.items()]
    spread = max(each.values()) / min(each.values())
    rows.append(_row("the dearest of these to the cheapest", spread, "times", "<= 2"))
    rows.append(_row(f"{GROWTH[-1]:,} empty files: memory", taken[GROWTH[-1]][1], "GB", None))
    return rows + _call_rows()


def main() -> None:
    """Make what the command line names, and print seconds and peak memory."""
    name, *files = sys.argv[1:]
    start = time.perf_counter()
    fs = BUILDS[name](*map(int, files))
    seconds = time.perf_counter() - start
    fs.close()
    json.dump([seconds, peak()], sys.stdout)


if __name__ == "__main__":
    main()
