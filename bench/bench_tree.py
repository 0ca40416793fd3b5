# SPDX-License-Identifier: GPL-2.0-only
"""How fast trees are read, beside dissect.btrfs and ``btrfs inspect-internal dump-tree``.

The image is made here by ``mkfs.btrfs --rootdir``: a directory of many files, so its filesystem
tree is dense with small items (inodes, references, names, inline data), as those of the workloads
are. Where the larger corpus is at hand, one of its images with some 20,000 tree blocks is read as
well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import btrfs_model as bm
from bench.timing import best

ROUNDS = 5
FILES = 60_000
PEER_ITEMS = 20_000
ONES = 1000
LARGE = "reada/r100k"


def make_image(folder: Path) -> Path:
    """Make an image with many small files."""
    top = folder / "files" / "directory"
    top.mkdir(parents=True)
    for i in range(FILES):
        (top / f"file_{i}").write_bytes(b"inline" * (i % 3))
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(1 << 30)
    command = ["mkfs.btrfs", "-q", "--rootdir", str(top.parent), str(image)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(top.parent)
    return image


def _scan_fresh(image: Path) -> int:
    """Open an image, verify every tree block and index every item; how many leaves there are."""
    blocks = 0
    with bm.open(image) as fs:
        for tree in fs.trees.values():
            leaf = tree.scan()["block"]
            blocks += int(np.count_nonzero(leaf[1:] != leaf[:-1])) + 1
    return blocks


def _dissect_items(image: Path, tree: int) -> float:
    """Items per second that dissect.btrfs walks; NaN when it is not installed."""
    from dissect.btrfs import Btrfs

    with image.open("rb") as file:
        walk = Btrfs(file).open_subvolume(tree).tree.cursor().walk()
        start = time.perf_counter()
        count = sum(1 for _ in islice(walk, PEER_ITEMS))
        return count / (time.perf_counter() - start)


def _dump_tree(image: Path) -> None:
    command = ["btrfs", "inspect-internal", "dump-tree", str(image)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _row(name: str, value: float, unit: str, bar: str, peer: float | None) -> dict[str, Any]:
    ratio = None if peer is None else value / peer
    return {"name": name, "value": value, "unit": unit, "peer": peer, "ratio": ratio, "bar": bar}


def _walk_rows(image: Path) -> list[dict[str, Any]]:
    peer = _dissect_items(image, 5) / 1e6
    with bm.open(image) as fs:
        tree = fs.trees[5]
        items = len(tree.scan()["objectid"])
        warm = items / best(tree.scan, ROUNDS) / 1e6

    def fresh() -> float:
        with bm.open(image) as fs:
            tree = fs.trees[5]
            start = time.perf_counter()
            tree.scan()
            return time.perf_counter() - start

    cold = items / min(fresh() for _ in range(ROUNDS)) / 1e6
    return [
        _row("tree: all items into columns", warm, "M items/s", ">= 20, 300 x peer", peer),
        # the peer verifies nothing
        _row("tree: the same, every block verified", cold, "M items/s", "", peer),
    ]


def _one_by_one_rows(image: Path) -> list[dict[str, Any]]:
    with bm.open(image) as fs:
        top = fs.subvolume(5)
        paths = [f"directory/file_{i}" for i in range(0, FILES, FILES // ONES)]
        asked = {
            "fiemap": (lambda path: bm.fiemap(fs, top, path), "<= 0.1"),
            "inode": (top.inode, ""),
            "read_file": (top.read_file, ""),
            "xattrs": (top.xattrs, ""),
        }
        return [
            _row(
                f"one file by path: {name}",
                1000 * best(lambda ask=ask: [ask(path) for path in paths], ROUNDS) / len(paths),
                "ms",
                bar,
                None,
            )
            for name, (ask, bar) in asked.items()
        ]


def _verify_row(name: str, image: Path) -> dict[str, Any]:
    blocks = _scan_fresh(image)
    seconds = best(lambda: _scan_fresh(image))
    peer = None
    if shutil.which("btrfs"):
        peer = blocks / best(lambda: _dump_tree(image), 1)
    return _row(f"tree: verify and index {name}", blocks / seconds, "leaves/s", "10 x peer", peer)


def run() -> list[dict[str, Any]]:
    """Measure; a row for each figure."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        if shutil.which("mkfs.btrfs"):
            image = make_image(Path(folder))
            rows += _walk_rows(image)
            rows += _one_by_one_rows(image)
            rows.append(_verify_row("(made)", image))
        else:
            print("tree: no mkfs.btrfs on this machine: not measured", file=sys.stderr)
        oracle = Path(os.environ.get("BTRFS_MODEL_ORACLE", ""), LARGE, "image.zst")
        if oracle.is_file():
            large = Path(folder) / "large"
            command = ["zstd", "-q", "-d", "--long=27", "--sparse", str(oracle), "-o", str(large)]
            subprocess.run(command, check=True)
            os.truncate(large, 6 << 30)
            rows.append(_verify_row(LARGE, large))
    return rows
