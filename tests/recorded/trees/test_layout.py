# SPDX-License-Identifier: GPL-2.0-only
"""How many leaves and nodes the trees of the workloads have, beside those that a kernel built.

Every tree and every level is compared: with the image (or, where only that is at hand, the map of
the blocks) of one run of a kernel, and with what further runs of a kernel came to, which
``data/workloads/layout.json`` records (``scripts/measure_layout.py``). Jobs and the kernel's own
threads run side by side, so that one run differs from the next. The model has to be within 2 % of
the image, or a block, or within the scatter of the kernel's runs.
"""

import json
from collections import Counter
from collections.abc import Callable

import corpus
import pytest

import btrfs_model as bm
from btrfs_model.experiments.workloads import (
    Input,
    fiemap_shared,
    send_readahead,
    send_truncate,
    send_utimes,
)
from btrfs_model.experiments.workloads.written_in_turn import files_before_flush
from btrfs_model.mount.writable import WritableFilesystem

Build = Callable[[], bm.Filesystem]
Blocks = dict[int, list[int]]
"""Of each tree the number of blocks, level by level."""

SCATTER = json.loads((corpus.PROJECT / "data/workloads/layout.json").read_text())
MIB = 1 << 20


def utimes(files: int) -> Build:
    return lambda: send_utimes.build(files)


def same_files(files: int, size: int) -> Build:
    source = Input(None, "snap1", 1.0, {"files": files, "file_bytes": size})
    return lambda: send_truncate.build(source)


def shared(extents: int) -> Build:
    source = fiemap_shared.WORKLOAD.scaled(extents / 327_680)
    return lambda: fiemap_shared.build(source)


def inline(files: int, jobs: int = 4) -> Build:
    source = Input(None, "snap1", 1.0, {"files": files, "jobs": jobs, "file_bytes": 2000})
    return lambda: send_readahead.build(source)


def directory(files: int, mib: int) -> Build:
    """``log-dir`` up to the commit after the first fsync."""

    def build() -> bm.Filesystem:
        fs = WritableFilesystem.mkfs(mib * MIB, metadata="single" if mib < 1024 else "dup")
        fs.machine.asynchronous = True
        fs.mkdir("testdir")
        fs.create_files("testdir", [f"file_{i}" for i in range(1, files + 1)])
        fs.fsync("testdir")
        fs.sync()
        return fs

    return build


CASES = {
    "send/send-utimes/n200": utimes(200),
    "send/send-utimes/n2000": utimes(2000),
    "send/send-utimes/n20000": utimes(20_000),
    "send/send-truncate/n500": same_files(500, 5000),
    "send/send-readahead/n5000": same_files(5000, 2000),
    "fiemap/f100": shared(3200),
    "fiemap/f10": shared(32_000),
    "reada/r5k": inline(5000),
    "reada/r5k1j": inline(5000, jobs=1),
    "reada/r20k": inline(20_000),
    # the next were made by Linux 6.1 on one CPU
    **{f"counts/W2/N{n}": same_files(n, 5000) for n in (500, 1000, 2000)},
    **{f"counts/W4/N{n}": same_files(n, 2000) for n in (2000, 10_000)},
    "counts/W3/snap200": shared(1600),
    **{
        f"log/nd/nd_{files}_{files // 10}/{kernel}/committed2.img.zst": directory(files, mib)
        for files, mib, kernels in (
            (1000, 128, ("5.10", "6.1", "6.12", "6.18")),
            (10_000, 2048, ("5.10", "6.18")),
        )
        for kernel in kernels
    },
}
LONG_CASES = {
    "send/send-utimes/n60000": utimes(60_000),
    "reada/r100k": inline(100_000),
    "reada/r500k": inline(500_000),
    "fiemap/ffull": shared(327_680),
}
# Bytes of a device, whether metadata has two copies, and how many files of 5000 bytes Linux 6.18
# made there before it wrote the first of them back (btrfs_inode_new, btrfs_flush_space).
FLUSHED = [
    (200, False, 30), (256, False, 40), (512, False, 86),
    (256, True, 48), (400, True, 59), (1024, True, 136), (2048, True, 290),
]  # fmt: skip


def by_level(levels: Counter[int]) -> list[int]:
    return [levels[level] for level in range(max(levels) + 1)]


def blocks(fs: bm.Filesystem) -> Blocks:
    """Blocks of every tree."""
    return {
        tree: by_level(Counter(block.level for block in one.blocks()))
        for tree, one in fs.trees.items()
    }


def kernel_blocks(name: str) -> Blocks | None:
    """Blocks of the image, or those of the map that was made of it; None without either."""
    folder, _, file = name.rpartition("/") if name.endswith(".zst") else (name, "", "image.zst")
    if corpus.has(folder, file):
        with bm.open(corpus.image(name)) as fs:
            return blocks(fs)
    if corpus.has(name, "treemap.json.zst"):
        trees = json.loads(corpus.data(name, "treemap.json.zst"))["trees"]
        return {
            int(tree) % 2**64: by_level(Counter(block[2] for block in one["blocks"]))
            for tree, one in trees.items()
        }
    return None


def scatter(name: str, tree: int, level: int, count: int) -> tuple[int, int]:
    """Return the fewest and most blocks of all runs of a kernel, the given one among them."""
    signed = tree - 2**64 if tree >> 63 else tree
    recorded = SCATTER.get("/".join(name.split("/")[:3]), {"trees": {}})
    levels = recorded["trees"].get(str(signed), {})
    runs = levels.get(str(level), {"min": 0, "max": 0} if levels else {"min": count, "max": count})
    return min(count, runs["min"]), max(count, runs["max"])


def at(levels: list[int], level: int) -> int:
    return levels[level] if level < len(levels) else 0


def check(name: str, build: Build) -> None:
    """Compare every tree, level by level."""
    kernel = kernel_blocks(name)
    if kernel is None:
        pytest.skip(f"{name} is not at hand")
    with build() as fs:
        model = blocks(fs)
    assert model.keys() == kernel.keys()
    wrong = []
    for tree, levels in kernel.items():
        for level in range(max(len(levels), len(model[tree]))):
            wanted, found = at(levels, level), at(model[tree], level)
            low, high = scatter(name, tree, level, wanted)
            # of a few blocks one more or less says nothing
            near = abs(found - wanted) <= max(1, 0.02 * wanted)
            if not near and not low <= found <= high:
                wrong.append((tree, level, found, wanted, (low, high)))
    assert not wrong, "tree, level, model, image, scatter"


@pytest.mark.claim(
    "The trees of all workloads have as many leaves and nodes as a kernel's, level by level: "
    "within 2 % or a block of its image, or inside the scatter of its runs, which "
    "`data/workloads/layout.json` records (`scripts/measure_layout.py`)."
)
@pytest.mark.parametrize("name", CASES)
def test_leaves_and_nodes_are_as_many_as_a_kernels(name: str) -> None:
    check(name, CASES[name])


@pytest.mark.skipif(not corpus.LONG, reason="a long run")
@pytest.mark.parametrize("name", LONG_CASES)
def test_leaves_and_nodes_of_large_trees(name: str) -> None:
    check(name, LONG_CASES[name])


@pytest.mark.parametrize("files", [200, 300, 400, 1000, 1500, 2000, 4000, 20_000])
def test_on_one_cpu_the_worker_does_not_lag(files: int) -> None:
    """Then nothing is left to chance: every tree has as many blocks of each level."""
    kernel = kernel_blocks(f"counts/W0/N{files}")
    if kernel is None:
        pytest.skip(f"counts/W0/N{files} is not at hand")
    with send_utimes.build(files, lag=0) as fs:
        assert blocks(fs) == kernel


@pytest.mark.claim("Files wait for writeback as long as the kernel lets them.")
@pytest.mark.parametrize(("mib", "two", "files"), FLUSHED)
def test_files_are_written_back_when_reservations_have_no_room(
    mib: int, two: bool, files: int
) -> None:
    with WritableFilesystem.mkfs(mib * MIB, metadata="dup" if two else "single") as fs:
        assert files_before_flush(fs) == files
