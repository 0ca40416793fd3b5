# SPDX-License-Identifier: GPL-2.0-only
"""What the studies measure that is no workload of the package, and where they keep it."""

import os
from collections import Counter
from functools import lru_cache
from pathlib import Path

from IPython.display import Image

import btrfs_model as bm
from btrfs_model.base.charts import to_png

FULL = os.environ.get("BTRFS_MODEL_STUDIES") == "full"
"""Whether a study is done at its full scale, which takes minutes, or small."""
FOLDER = os.environ.get("BTRFS_MODEL_STUDIES_STORE")


def show(chart, name: str):
    """Show a chart; in the folder ``BTRFS_MODEL_STUDIES_STORE`` it becomes ``NAME.png``."""
    png = to_png(chart)
    if FOLDER:
        (Path(FOLDER) / f"{name}.png").write_bytes(png)
    return Image(png)


def study(name: str):
    """Do a study; what ``BTRFS_MODEL_STUDIES_STORE`` has of it is not measured again.

    At full scale the table is saved for the notebook on trade-offs.
    """
    table = bm.sweep(f"{name}.toml", small=not FULL, store=FOLDER and f"{FOLDER}/{name}.sweep")
    if FULL:
        table.to_parquet(f"{name}.parquet")
    return table


@lru_cache(2)
def tree_of_directories(directories: int, files: int):
    """Directories with files, written in turn; before the second snapshot all get new names.

    Each file is written anew, and half of it is a clone of another one's old data.
    """
    fs = bm.create("8G")
    names = [f"d{number}" for number in range(directories)]
    for name in names:
        fs.mkdir(name)
    for number in range(files):
        for name in names:
            fs.create(f"{name}/f{number}")
            fs.write(f"{name}/f{number}", 0, bytes([number + 1]) * 8192)
    fs.sync()
    fs.snapshot("", "snap1", read_only=True)
    for number in range(files):
        for place, name in enumerate(names):
            fs.rename(f"{name}/f{number}", f"{names[place - 1]}/g{number}")
    for number in range(files):
        for place, name in enumerate(names):
            fs.create(f"{name}/h{number}")
            fs.clone_range(f"{names[place - 7]}/g{number}", f"{name}/h{number}", 0, 0, 0)
    fs.snapshot("", "snap2", read_only=True)
    fs.commit()
    return fs


def send_with_cache(cache: str, entries: int, directories: int, files: int):
    """Send a difference with another size of one cache; work that finding things again costs."""
    fs = tree_of_directories(directories, files)
    sent = bm.send(fs, "snap2", "snap1", ["snap1"], limits={cache: entries})
    return {
        "work": sent.work["btrfs_search_slot"] + sent.work["find_parent_nodes"],
        "commands": Counter(sent.commands).total(),
        "time": sent.time().seconds,
    }


@lru_cache(2)
def file_that_is_shared(snapshots: int, rewritten: float, extents: int):
    """A file of single blocks, and snapshots of it; before each a part of it is written again."""
    fs = bm.create("8G")
    fs.create("file")
    for number in range(extents):
        fs.write("file", number * 8192, b"x" * 4096)
    fs.sync()
    part = round(extents * rewritten / max(snapshots, 1))
    for snapshot in range(snapshots):
        fs.snapshot("", f"snap{snapshot}", read_only=True)
        fs.sync()
        # spread over the file, each time others
        step = max(1, extents // part) if part else 1
        for number in range(part):
            fs.write("file", (number * step + snapshot) % extents * 8192, b"y" * 4096)
        fs.sync()
    return fs


def fiemap_of_shared(behaviour: str, snapshots: int, rewritten: float, extents: int):
    """Map the file: walks of back references, how many extents are shared, and the time."""
    fs = file_that_is_shared(snapshots, rewritten, extents)
    with bm.counting() as work:
        table = bm.fiemap(fs, "", "file", behaviour=behaviour)
    return {
        "walks": work["find_parent_nodes"],
        "shared": float((table["flags"] & 0x2000 != 0).mean()),
        "time": table.time("native-6.18").seconds,
    }
