# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems with a history, made by kernels: the model says of them what kernels say.

Balances and conversions, also interrupted ones, other sizes and devices, quotas, seeds, mount
options, crashes, what btrfs-progs change: see :mod:`history.making`. Where the model can write, it
goes on with what is left, and the kernel goes on with that.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import judges
import pytest
from corpus import LONG
from history.judge import Compared, compare, go_on
from history.making import copied, make
from progs import needs_progs

import btrfs_model as bm
from btrfs_model.kernels.session import Kernel

SEEDS, IN_GUEST = (300, 60) if LONG else (18, 2)
CSUMS = ("crc32c", "xxhash", "sha256", "blake2")


def cases() -> list[Any]:
    """Kernels and seeds; the guest is slow."""
    return [
        pytest.param(judges.STARTED[name], seed, marks=judges.MARKS[name], id=f"{name}-{seed}")
        for name, seeds in (("machine", range(SEEDS)), ("uml", range(1000, 1000 + IN_GUEST)))
        for seed in seeds
    ]


@contextmanager
def images(kernel: Kernel, seed: int) -> Iterator[tuple[list[str], list[tuple[str, Path]]]]:
    """Make a filesystem; what was done, and its images with their kinds."""
    place = kernel.images / f"history-{seed}"
    origin = None
    if seed % 10 == 9:  # btrfs-progs 6.2 make none
        origin = kernel.new_file()
        with bm.create("288M", seed=seed, csum=CSUMS[seed // 10 % 4], block_group_tree=True) as fs:
            fs.save(origin)
    try:
        with judges.alone(kernel):
            made = kernel.call(make, str(place), kernel.top, str(seed), origin and str(origin))
        yield made["log"], [(kind, Path(image)) for kind, image in made["images"]]
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if origin:
            origin.unlink()


@pytest.mark.claim(
    "Of filesystems with a history (balanced, converted, resized, moved, seeded, crashed in the "
    "middle of it) all sends, files, FIEMAP, LOGICAL_INO, paths of inodes, `du`, quota groups, "
    "dumps and checks are those of the running kernel, of User-Mode Linux and of btrfs-progs."
)
@pytest.mark.claim(
    "The model goes on with filesystems that have a history, and the kernel with what it wrote."
)
@needs_progs
@pytest.mark.parametrize(("kernel", "seed"), cases(), indirect=["kernel"], scope="session")
def test_a_history(kernel: Kernel, seed: int) -> None:
    compared = Compared()
    with images(kernel, seed) as (log, made):
        for kind, image in made:
            compare(kernel, image, f"{seed} {kind}", compared)
            written = image.with_suffix(".written")
            copied(image, written)
            go_on(kernel, written, f"{seed} {kind}", compared)
            written.unlink()
    assert not compared.different, "\n".join(log)
    assert compared.counts["file"]
