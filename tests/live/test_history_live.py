# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems with a history, made by kernels: the model says of them what kernels say.

Balances and conversions, also interrupted ones, other sizes and devices, quotas, seeds, mount
options, crashes, what btrfs-progs change: see :mod:`history.making`. Where the model can write, it
goes on with what is left, and the kernel goes on with that.
"""

import shutil
from pathlib import Path
from typing import Any

import judges
import pytest
from corpus import LONG
from history.judge import Compared, compare, compare_replay, go_on
from history.making import make
from progs import needs_progs

import btrfs_model as bm
from btrfs_model.kernels.session import Kernel

SEEDS, IN_GUEST = (300, 60) if LONG else (19, 1)
CSUMS = ("crc32c", "xxhash", "sha256", "blake2")


def cases() -> list[Any]:
    """Kernels and seeds; the guest is slow."""
    return [
        pytest.param(judges.STARTED[name], seed, marks=judges.MARKS[name], id=f"{name}-{seed}")
        for name, seeds in (("machine", range(SEEDS)), ("uml", range(1000, 1000 + IN_GUEST)))
        for seed in seeds
    ]


Images = list[tuple[str, Path]]


def made(
    kernel: Kernel, seed: str, origin: Path | None, *, several: bool
) -> tuple[list[str], Images]:
    """Make a filesystem or go on with one; what was done, and images of it with their kinds."""
    place = kernel.images / seed
    with judges.alone(kernel):
        answer = kernel.call(make, str(place), kernel.top, seed, origin and str(origin), several)
    return answer["log"], [(kind, Path(image)) for kind, image in answer["images"]]


def judge(kernel: Kernel, seed: str, images: Images, compared: Compared) -> Path | None:
    """Ask about images; what the model and the kernel make of the last one if it can be written."""
    written = None
    for kind, image in images:
        compare(kernel, image, f"{seed} {kind}", compared)
        if image.is_dir():  # the model changes filesystems of one device
            written = None
            continue
        if kind not in ("end", "seed"):
            compare_replay(kernel, image, compared)
        copy = image.with_suffix(".written")
        written = copy if go_on(kernel, image, copy, f"{seed} {kind}", compared) else None
    if written:
        compare(kernel, written, f"{seed} written", compared)
    return written


@pytest.mark.claim(
    "Of filesystems with a history (balanced, converted, resized, moved, seeded, crashed in the "
    "middle of it) all sends, files, FIEMAP, LOGICAL_INO, paths of inodes, `du`, quota groups, "
    "dumps and checks are those of the running kernel, of User-Mode Linux and of btrfs-progs."
)
@pytest.mark.claim(
    "The model goes on with filesystems that have a history, and the kernel with what it wrote."
)
# an interrupted balance goes on, and aborts on a full filesystem, as threads of the kernel have it
@pytest.mark.flaky(reruns=2)
@pytest.mark.more
@needs_progs
@pytest.mark.parametrize(("kernel", "seed"), cases(), indirect=["kernel"], scope="session")
def test_a_history(kernel: Kernel, seed: int) -> None:
    compared, origin = Compared(), None
    if seed % 10 == 9:  # btrfs-progs 6.2 make none with a tree of block groups
        origin = kernel.images / f"origin-{seed}"
        with bm.create("288M", seed=seed, csum=CSUMS[seed // 10 % 4], block_group_tree=True) as fs:
            fs.save(origin)
    log = []
    try:
        for life in ("first", "second") if LONG and seed % 5 == 0 else ("first",):
            log, images = made(kernel, f"{life}-{seed}", origin, several=seed % 4 == 3)
            origin = judge(kernel, f"{life} {seed}", images, compared)
            assert not compared.different, "\n".join(log)
            if origin is None:
                break
    finally:
        for life in ("first", "second"):
            shutil.rmtree(kernel.images / f"{life}-{seed}", ignore_errors=True)
        (kernel.images / f"origin-{seed}").unlink(missing_ok=True)
    assert compared.counts["file"]
