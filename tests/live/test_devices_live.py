# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems of several devices, of all profiles, beside the running kernel that made them."""

import errno
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import live
import live_devices
import pytest
from corpus import LONG

from btrfs_model.questions.check import check
from btrfs_model.questions.send.ioctl import send
from btrfs_model.questions.usage.lost import MOUNTS, device_lost
from btrfs_model.volume.filesystem import Filesystem

pytestmark = live.BESIDE_THE_KERNEL

SEEDS = 50 if LONG else 3

Answers = dict[str, tuple[int, bytes]]


def snapshots(fs: Filesystem) -> list[str]:
    return [fs.subvolume(i).path for i in fs.subvolume_ids if fs.subvolume(i).is_read_only]


def sends_of_the_kernel(files: Sequence[Path], names: list[str], options: str = "ro") -> Answers:
    with live_devices.mounted(files, options) as top:
        return {name: live.kernel_send(top / name) for name in names}


def sends_of_the_model(fs: Filesystem, names: list[str]) -> Answers:
    answers = {}
    for name in names:
        try:
            answers[name] = (0, send(fs, name, behaviour=live.PRESET).data)
        except OSError as error:
            answers[name] = (error.errno or 0, getattr(error, "partial", b""))
    return answers


def used_of_devices(files: Sequence[Path]) -> dict[Path, list[tuple[int, int]]]:
    """The ranges of each device that stripes take."""
    ranges = defaultdict(list)
    with Filesystem.open(files) as fs:
        path = {one.devid: Path(one.path) for one in fs.image.devices}
        for chunk in fs.image.chunks:
            for devid, start in zip(chunk.devids, chunk.stripes, strict=True):
                ranges[path[devid]].append((start, min(chunk.stripe_length, 4 << 20)))
    return ranges


@pytest.mark.claim(
    "Filesystems of several devices, of all profiles, are read as the running kernel reads them: "
    "whole, with devices missing where the profiles allow, and with rotted sectors."
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_several_devices(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    made = live_devices.make(tmp_path, seed)
    with Filesystem.open(tmp_path) as fs:
        names = snapshots(fs)
        whole = sends_of_the_kernel(made.files, names)
        assert all(number == 0 for number, _ in whole.values())
        assert sends_of_the_model(fs, names) == whole
        assert check(fs, verify_data=True) == []
    lost = list(combinations(made.files, made.spare))
    for gone in choice.sample(lost, min(2, len(lost))) if made.spare else []:
        left = [file for file in made.files if file not in gone]
        with Filesystem.open(left, degraded=True) as fs:
            assert sends_of_the_model(fs, names) == whole
        assert sends_of_the_kernel(left, names, "ro,degraded") == whole
    if made.is_fragile:
        return
    rotted, gone = choice.sample(made.files, 2)
    live_devices.rot(rotted, choice, used_of_devices(made.files)[rotted], 300)
    found = sends_of_the_kernel(made.files, names)
    with Filesystem.open(made.files) as fs:
        model, faults = sends_of_the_model(fs, names), check(fs, verify_data=True)
    for name in names:
        # Linux 6.18 sends zeros for some sectors that it could not read; the model fails there
        assert (model[name] == whole[name]) == (found[name] == whole[name])
        assert model[name] == whole[name] or model[name][0] == errno.EIO
        assert whole[name][1].startswith(model[name][1])
    if made.spare:
        assert found == whole
    assert faults or found == whole
    if made.spare > 1:
        left = [file for file in made.files if file != gone]
        with Filesystem.open(left, degraded=True) as fs:
            assert sends_of_the_model(fs, names) == whole
        assert sends_of_the_kernel(left, names, "ro,degraded") == whole


def unreadable(top: Path) -> dict[str, int]:
    """Count the bytes of each file that a kernel fails to read, page by page."""
    found = {}
    for path in sorted(top.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            size, bad = path.stat().st_size, 0
            for at in range(0, size, 4096):
                try:
                    os.pread(file.fileno(), 4096, at)
                except OSError as error:
                    assert error.errno == errno.EIO
                    bad += min(4096, size - at)
        if bad:
            found[str(path.relative_to(top))] = bad
    return found


def mounts(files: Sequence[Path], options: str) -> bool:
    """Whether what is left can be mounted."""
    with suppress(AssertionError), live_devices.mounted(files, options):
        return True
    return False


@pytest.mark.claim(
    "What is lost with one or two devices, to the byte, and what mount is left: as the running "
    "kernel mounts and reads what remains."
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_lost_devices(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    made = live_devices.make(tmp_path, seed)
    with Filesystem.open(tmp_path) as fs:
        devid = {Path(one.path): one.devid for one in fs.image.devices}
        most = min(2, len(made.files) - 1)
        gone = choice.sample(made.files, choice.randint(1, most))
        left = device_lost(fs, *(devid[file] for file in gone))
        lost = {}
        for row in left.files.itertuples():
            sub = fs.subvolume(row.subvolume)
            for path in sub.paths_of(row.inode):  # a file may have several names
                lost["/".join(filter(None, (sub.path, os.fsdecode(path))))] = row.lost
    there = [file for file in made.files if file not in gone]
    assert mounts(there, "degraded") == (left.mount == MOUNTS[0])
    assert mounts(there, "ro,degraded") == (left.mount != MOUNTS[2])
    if left.mount != MOUNTS[2] and left.trees.empty:
        with live_devices.mounted(there, "ro,degraded") as top:
            assert unreadable(top) == lost
