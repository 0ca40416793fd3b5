# SPDX-License-Identifier: GPL-2.0-only
"""How many leaves the trees of the workloads have, beside those that a kernel built."""

from collections import Counter
from collections.abc import Callable

import corpus
import pytest

import btrfs_model as bm
from btrfs_model.workloads import fiemap_shared, send_readahead, send_utimes

Build = Callable[[], bm.Filesystem]


def silent(_: str) -> None:
    pass


def utimes(files: int) -> Build:
    return lambda: send_utimes.build(files)


def shared(extents: int) -> Build:
    full = fiemap_shared.INPUTS[-1].parameters["extents"]
    return lambda: fiemap_shared.build(fiemap_shared.scaled(extents / full), silent)


def inline(files: int) -> Build:
    full = send_readahead.INPUTS[-1].parameters["files"]
    return lambda: send_readahead.build(send_readahead.scaled(files / full), silent)


# Name of the kernel's image, how it is built, by how much the leaves of subvolumes may differ. The
# jobs of send-readahead run side by side, so that one run of a kernel differs from another.
CASES = [
    ("send/send-utimes/n200", utimes(200), 0.02),
    ("send/send-utimes/n2000", utimes(2000), 0.02),
    ("send/send-utimes/n20000", utimes(20_000), 0.02),
    ("fiemap/f100", shared(3200), 0.02),
    ("fiemap/f10", shared(32_000), 0.02),
    ("reada/r5k", inline(5000), 0.05),
    ("reada/r20k", inline(20_000), 0.02),
]


def leaves(fs: bm.Filesystem) -> dict[int, int]:
    """Leaves of each subvolume."""
    return {
        tree: Counter(block.level for block in fs.tree(tree).blocks())[0]
        for tree in fs.subvolume_ids
    }


@pytest.mark.parametrize(("name", "build", "most"), CASES, ids=[case[0] for case in CASES])
def test_leaves_are_as_many_as_a_kernels(name: str, build: Build, most: float) -> None:
    if not corpus.has(name, "image.zst"):
        pytest.skip(f"{name} is not at hand")
    with bm.open(corpus.image(name)) as kernel:
        wanted = leaves(kernel)
    with build() as fs:
        found = leaves(fs)
    assert found.keys() == wanted.keys()
    for tree, count in wanted.items():
        # of a few leaves one more or less says nothing
        assert abs(found[tree] - count) <= max(1, most * count), (found, wanted)
