#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""How many leaves and nodes the running kernel's trees have for the workloads: ``layout.json``.

Each workload is made as the images of the corpus were (``CASES`` says how: sizes, mkfs, mount
options, jobs), time after time, each time in a fresh filesystem on a loop device, and the blocks of
every tree are counted by level. One run of a kernel differs from the next: jobs run side by side,
threads write data back and finish extents while the calls go on. What is recorded is that scatter.
Needs root, loop devices and mkfs.btrfs. ::

    scripts/measure_layout.py data/workloads/layout.json [--runs 12] [CASE ...]

measures the cases that are named, or all. What the file has of others stays, and so do the runs of
the same kernel on as many CPUs: new ones are added to them.
"""

import argparse
import ctypes
import fcntl
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import btrfs_model as bm

SNAP_CREATE_V2 = 0x50009417
READ_ONLY = 2
MIB = 1 << 20

Make = Callable[[Path], None]
Run = tuple[int, dict[str, list[int]]]
"""The generation of a filesystem, and of each tree the number of blocks by level."""


class Case(NamedTuple):
    """How an image is made."""

    size: int
    options: str
    make: Make
    mkfs: tuple[str, ...] = ()


def snapshot(top: Path, name: str) -> None:
    """Take a read-only snapshot of the top of a filesystem."""
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        argument = bytearray(struct.pack("<qQQ32x4040s", folder, 0, READ_ONLY, os.fsencode(name)))
        fcntl.ioctl(folder, SNAP_CREATE_V2, argument)
    finally:
        os.close(folder)


def sync(top: Path) -> None:
    """Call ``syncfs(2)``: of this filesystem alone."""
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(folder):
            raise OSError(ctypes.get_errno(), "syncfs", str(top))
    finally:
        os.close(folder)


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Make a file with these contents."""
    file = os.open(path, os.O_CREAT | os.O_RDWR, mode)
    if data:
        os.pwrite(file, data, 0)
    os.close(file)


def utimes(files: int) -> Make:
    """``send-utimes``: half of the files in A, the others in B, those of A moved there."""

    def make(top: Path) -> None:
        (top / "A").mkdir()
        for number in range(1, files // 2 + 1):
            write(top / "A" / f"file_{number}", b"")
        snapshot(top, "snap1")
        (top / "B").mkdir()
        for number in range(files // 2, files + 1):
            write(top / "B" / f"file_{number}", b"")
        for name in sorted(path.name for path in (top / "A").iterdir()):
            (top / "A" / name).rename(top / "B" / name)
        snapshot(top, "snap2")
        sync(top)

    return make


def directory(files: int) -> Make:
    """``log-dir``: empty files in a directory, which is fsynced, and all committed."""

    def make(top: Path) -> None:
        (top / "testdir").mkdir()
        for number in range(1, files + 1):
            write(top / "testdir" / f"file_{number}", b"")
        folder = os.open(top / "testdir", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        sync(top)

    return make


def same_files(files: int, size: int) -> Make:
    """``send-truncate``, and ``send-readahead`` with one job: files one by one, a snapshot."""

    def make(top: Path) -> None:
        for number in range(1, files + 1):
            write(top / f"file_{number}", b"\xab" * size)
        snapshot(top, "snap")
        sync(top)

    return make


def shared(mib: int) -> Make:
    """``fiemap-shared``: a file of `mib` MiB and three of half of it, a snapshot."""

    def make(top: Path) -> None:
        for name, byte in (("foobar", 0xAB), ("file1", 0xCD), ("file2", 0xEF), ("file3", 0x73)):
            size = mib * MIB // (1 if name == "foobar" else 2)
            file = os.open(top / name, os.O_CREAT | os.O_RDWR, 0o600)
            for at in range(0, size, MIB):
                os.pwrite(file, bytes([byte]) * min(MIB, size - at), at)
            os.close(file)
        snapshot(top, "snap1")

    return make


def side_by_side(top: Path, first: int, total: int, jobs: int) -> None:
    """Let jobs make files, each a range of numbers."""
    share, children = total // jobs, []
    for job in range(jobs):
        low = first + job * share
        high = first + total - 1 if job == jobs - 1 else low + share - 1
        child = os.fork()
        if not child:
            for number in range(low, high + 1):
                write(top / f"file_{number}", b"\xab" * 2000, 0o600)
            os._exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        raise SystemExit("a job failed")


def inline(files: int, jobs: int) -> Make:
    """``send-readahead``: inline files, a snapshot, a quarter more, some rewritten, another."""

    def make(top: Path) -> None:
        side_by_side(top, 1, files, jobs)
        sync(top)
        snapshot(top, "snap1")
        side_by_side(top, files + 1, files // 4, jobs)
        for number in range(1, files + 1, 50):
            write(top / f"file_{number}", b"\xcd" * 20, 0o600)
        snapshot(top, "snap2")

    return make


SINGLE = ("-m", "single", "-d", "single")
ROOMY = "max_inline=2048"
CASES = {
    "send/send-utimes/n200": Case(256 * MIB, "rw", utimes(200), SINGLE),
    "send/send-utimes/n2000": Case(256 * MIB, "rw", utimes(2000), SINGLE),
    "send/send-utimes/n20000": Case(1024 * MIB, "rw", utimes(20_000), SINGLE),
    "send/send-utimes/n60000": Case(1024 * MIB, "rw", utimes(60_000), SINGLE),
    "send/send-truncate/n500": Case(256 * MIB, "rw", same_files(500, 5000), SINGLE),
    "send/send-readahead/n5000": Case(256 * MIB, ROOMY, same_files(5000, 2000), SINGLE),
    "log/nd/nd_1000_100": Case(128 * MIB, "rw", directory(1000), SINGLE),
    "log/nd/nd_10000_1000": Case(2048 * MIB, "rw", directory(10_000), ("-m", "dup")),
    "fiemap/f100": Case(10240 * MIB, "compress=lzo", shared(400)),
    "fiemap/f10": Case(10240 * MIB, "compress=lzo", shared(4000)),
    "fiemap/ffull": Case(131_072 * MIB, "compress=lzo", shared(40_960)),
    "reada/r5k": Case(6144 * MIB, ROOMY, inline(5000, 4)),
    "reada/r5k1j": Case(6144 * MIB, ROOMY, inline(5000, 1)),
    "reada/r20k": Case(6144 * MIB, ROOMY, inline(20_000, 4)),
    "reada/r100k": Case(6144 * MIB, ROOMY, inline(100_000, 4)),
    "reada/r500k": Case(16_384 * MIB, ROOMY, inline(500_000, 4)),
}


@contextmanager
def mounted(image: Path, options: str) -> Iterator[Path]:
    """Mount an image; yield the folder."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-o", f"loop,{options}", str(image), folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def blocks(image: Path) -> Run:
    """Return the generation, and of each tree the number of blocks by level."""
    with bm.open(image) as fs:
        found = {}
        for tree, one in fs.trees.items():
            levels = Counter(block.level for block in one.blocks())
            signed = tree - (1 << 64) if tree >> 63 else tree
            found[str(signed)] = [levels[level] for level in range(max(levels) + 1)]
        return fs.root_tree.generation, found


def run(case: Case) -> Run:
    """Make a filesystem and count its blocks."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        with image.open("wb") as file:
            file.truncate(case.size)
        command = ["mkfs.btrfs", "-q", "-f", "-n", "16384", *case.mkfs, str(image)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with mounted(image, case.options) as top:
            case.make(top)
        return blocks(image)


def recorded(case: dict[str, Any]) -> list[Run]:
    """Take the runs of a case apart again."""
    count = len(case["generations"])
    runs: list[Run] = [(generation, {}) for generation in case["generations"]]
    for tree, levels in case["trees"].items():
        columns = [one.get("runs", [one["min"]] * count) for one in levels.values()]
        for (_, found), *numbers in zip(runs, *columns, strict=True):
            found[tree] = numbers
    return runs


def scatter(runs: list[Run]) -> dict[str, Any]:
    """Put runs together: of each tree and level the counts of all of them."""
    trees: dict[str, Any] = {}
    for tree in runs[0][1]:
        highest = max(len(found[tree]) for _, found in runs)
        trees[tree] = {}
        for level in range(highest):
            counts = [found[tree][level] if level < len(found[tree]) else 0 for _, found in runs]
            one = {"min": min(counts), "max": max(counts)}
            trees[tree][str(level)] = one | ({"runs": counts} if len(set(counts)) > 1 else {})
    return {"generations": [generation for generation, _ in runs], "trees": trees}


def why_not() -> str:
    """Why nothing can be measured here; empty when it can."""
    if os.geteuid():
        return "mounting needs root"
    if "btrfs" not in Path("/proc/filesystems").read_text():
        return "the running kernel has no btrfs"
    return "" if Path("/dev/loop-control").exists() else "there are no loop devices"


def write_json(target: Path, cases: dict[str, Any]) -> None:
    """Write the file, a line for each tree."""
    lines = []
    for name, one in sorted(cases.items()):
        trees = ",\n".join(
            f"   {json.dumps(tree)}: {json.dumps(levels)}" for tree, levels in one["trees"].items()
        )
        head = ", ".join(f'"{k}": {json.dumps(v)}' for k, v in one.items() if k != "trees")
        lines.append(f' {json.dumps(name)}: {{{head},\n  "trees": {{\n{trees}}}}}')
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("target", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--runs", type=int, default=12)
    asked = parser.parse_intermixed_args()
    if why_not():
        sys.exit(f"measure_layout: {why_not()}")
    if unknown := set(asked.cases) - set(CASES):
        sys.exit(f"measure_layout: no such case: {', '.join(sorted(unknown))}")
    known = json.loads(asked.target.read_text()) if asked.target.exists() else {}
    for name in asked.cases or CASES:
        case = CASES[name]
        old = known.get(name, {})
        same = old.get("kernel") == platform.release() and old.get("cpus") == os.cpu_count()
        runs, loads = (recorded(old), old["load"]) if same else ([], [])
        for number in range(asked.runs):
            loads.append(round(os.getloadavg()[0], 1))
            runs.append(run(case))
            print(name, number, runs[-1], flush=True)
        known[name] = {
            "kernel": platform.release(),
            "cpus": os.cpu_count(),
            "load": loads,
            "mkfs": ["-n", "16384", *case.mkfs],
            "device": case.size,
            "mount": case.options,
        } | scatter(runs)
        write_json(asked.target, known)


if __name__ == "__main__":
    main()
