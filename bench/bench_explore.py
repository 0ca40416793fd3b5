# SPDX-License-Identifier: GPL-2.0-only
"""Pages of ``explore``: how large, how soon they are there, how soon an item is shown.

Times are those of a browser that opens the file, with nothing unpacked; of items the worst of some
counts, each with no pack kept from the one before.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import btrfs_model as bm
from btrfs_model.drawings.explore import explore

CHROMIUM: Final = "/usr/bin/chromium"
FILES: Final = 1_000_000
ITEMS: Final = 50
WORDS: Final = ("alpha", "config", "data", "draft", "final", "image", "main", "notes", "report")
_ITEM: Final = """async inode => {
    packs.clear();
    const start = performance.now();
    await ROUTES.inode("5", `${inode}`);
    await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - start;
}"""

Row = dict[str, Any]


def _row(name: str, value: float, unit: str, bar: str) -> Row:
    return {"name": f"explore: {name}", "value": value, "unit": unit, "peer": None, "ratio": None,
            "bar": bar}  # fmt: skip


def ten_files() -> bm.WritableFilesystem:
    """Return a filesystem as that of the course."""
    fs = bm.create("256M", seed=1)
    fs.create_files("", [f"note{number}" for number in range(10)])
    fs.write("note1", 0, b"x" * 100_000)
    fs.commit()
    return fs


def million_files(*, odd_names: bool) -> bm.WritableFilesystem:
    """Return a thousand directories of a thousand files, and two snapshots."""
    dice = random.Random(1)
    fs = bm.create("16G", seed=1)
    for number in range(FILES // 1000):
        names = [f"file_{one}" for one in range(1000)]
        if odd_names:
            names = [f"{dice.choice(WORDS)}_{dice.randrange(10**9)}.{one}" for one in range(1000)]
        fs.mkdir(f"dir{number}")
        fs.create_files(f"dir{number}", names)
    fs.snapshot("", "snap1")
    fs.create_files("dir7", [f"new_{one}" for one in range(1000)])
    fs.snapshot("", "snap2")
    fs.commit()
    return fs


@contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def _measure(name: str, fs: bm.Filesystem, megabytes: float, paint: float) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, _browser() as browser:
        path, start = Path(folder, "page.html"), time.perf_counter()
        explore(fs).save(path)
        yield _row(f"{name}, made", time.perf_counter() - start, "s", "")
        yield _row(f"{name}, page", path.stat().st_size / 1e6, "MB", f"<= {megabytes}")
        page = browser.new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("body:not([aria-busy])")
        entries = "performance.getEntriesByType('paint').map(one => one.startTime)"
        yield _row(f"{name}, first paint", min(page.evaluate(entries)) / 1e3, "s", f"<= {paint}")
        inodes = [item.key.objectid for item in fs.tree(5).items() if item.key.type == 1]
        chosen = random.Random(2).choices(inodes, k=ITEMS)
        times = [page.evaluate(_ITEM, inode) for inode in chosen]
        yield _row(f"{name}, an item", max(times), "ms", "<= 200")


def run() -> list[Row]:
    """Measure the pages."""
    rows: list[Row] = []
    with ten_files() as fs:
        rows += _measure("ten files", fs, 1, 1)
    with million_files(odd_names=False) as fs:
        rows += _measure("10^6 files", fs, 30, 3)
    with million_files(odd_names=True) as fs:
        rows += _measure("10^6 files, random names", fs, 30, 3)
    return rows
