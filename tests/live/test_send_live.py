# SPDX-License-Identifier: GPL-2.0-only
"""Sends beside those of the running kernel, of filesystems that it has just made."""

import random
from itertools import pairwise
from pathlib import Path

import live
import pytest
from corpus import LONG

from btrfs_model.questions.send.ioctl import send
from btrfs_model.volume.filesystem import Filesystem

pytestmark = live.BESIDE_THE_KERNEL

SEEDS = 300 if LONG else 20

Plan = tuple[int, int, tuple[int, ...], int, int]


def plans(snapshots: list[int], seed: int) -> list[Plan]:
    """What to send: (snapshot, parent, clone sources, flags, version)."""
    choice = random.Random(seed)
    found: list[Plan] = [(snapshot, 0, (), 0, 1) for snapshot in snapshots]
    for older, newer in pairwise(snapshots):
        found += [
            (newer, older, (older,), 0, 1),
            (older, newer, (newer,), 0, 1),
            (newer, older, (), 1, 1),
            (newer, older, (older,), 16, 2),
        ]
    for _ in range(4):
        snapshot, parent = choice.sample(snapshots, 2)
        clones = tuple(choice.sample(snapshots, choice.randint(0, len(snapshots))))
        found.append((snapshot, choice.choice([0, parent]), clones, 0, choice.choice([1, 2])))
    return found


@pytest.mark.claim(
    "Sends are byte-identical to those of the running kernel for filesystems that it has just made."
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_streams_of_the_running_kernel(seed: int, tmp_path: Path) -> None:
    image = tmp_path / "live.img"
    live.random_filesystem(image, seed)
    with live.mounted(image, "ro") as top, Filesystem.open(image) as fs:
        snapshots = [i for i in fs.subvolume_ids if fs.subvolume(i).is_read_only]
        for snapshot, parent, clones, flags, proto in plans(snapshots, seed):
            where = top / fs.subvolume(snapshot).path
            number, stream = live.kernel_send(where, parent, clones, flags, proto)
            try:
                model = send(
                    fs,
                    snapshot,
                    parent or None,
                    clones,
                    behaviour=live.PRESET,
                    proto=proto,
                    no_file_data=bool(flags & 1),
                    compressed=bool(flags & 16),
                )
                answer = (0, model.data)
            except OSError as error:
                answer = (error.errno or 0, getattr(error, "partial", b""))
            assert answer == (number, stream), (snapshot, parent, clones, flags, proto)
