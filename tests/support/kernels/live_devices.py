# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems of several devices, made and mounted by the running kernel on loop devices."""

import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import live
from mounts import one_at_a_time

_DEVICE = 256 << 20


class Made(NamedTuple):
    """A filesystem: its files, how many may be lost, and whether damage prevents a mount."""

    files: list[Path]
    spare: int
    is_fragile: bool


LAYOUTS = [
    # profile of data, of metadata, devices, how many of them may be lost
    ("single", "raid1", 2, 0),
    ("raid0", "raid1", 3, 0),
    ("raid0", "raid0", 2, 0),
    ("dup", "dup", 2, 0),
    ("raid1", "raid1", 3, 1),
    ("raid1c3", "raid1c3", 4, 2),
    ("raid1c4", "raid1c4", 5, 3),
    ("raid10", "raid10", 4, 1),
    ("raid10", "raid1", 5, 1),
    ("raid5", "raid5", 3, 1),
    ("raid5", "raid1", 2, 1),
    ("raid5", "raid5", 5, 1),
    ("raid6", "raid6", 4, 2),
    ("raid6", "raid1c3", 5, 2),
    ("raid6", "raid6", 3, 2),
]
CONVERSIONS = {"single": "raid0", "raid0": "raid1", "raid1": "raid0", "raid5": "raid1",
               "raid10": "raid5", "raid6": "raid10"}  # fmt: skip


def run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)


@contextmanager
def looped(files: Sequence[Path]) -> Iterator[list[str]]:
    """Loop devices of files, which the kernel forgets afterwards."""
    loops: list[str] = []
    with one_at_a_time():
        try:
            for file in files:
                found = subprocess.run(["losetup", "--find", "--show", str(file)],
                                       capture_output=True, text=True, check=True)  # fmt: skip
                loops.append(found.stdout.strip())
            yield loops
        finally:
            for loop in loops:
                subprocess.run(["btrfs", "device", "scan", "--forget", loop], capture_output=True)
                subprocess.run(["losetup", "-d", loop], check=True)


@contextmanager
def mounted(files: Sequence[Path], options: str) -> Iterator[Path]:
    """Mount the filesystem that files are devices of; yield the folder."""
    with ExitStack() as stack:
        loops = stack.enter_context(looped(files))
        folder = Path(stack.enter_context(TemporaryDirectory()))
        devices = ",".join(f"device={loop}" for loop in loops)
        run("mount", "-t", "btrfs", "-o", f"{options},{devices}", loops[0], folder)
        stack.callback(run, "umount", folder)
        yield folder


def make(folder: Path, seed: int) -> Made:
    """Make a filesystem with snapshots ``s0``, ``s1``, ..., all by the seed but uuids and times.

    Every third has some of its data chunks converted to another profile.
    """
    choice = random.Random(f"devices-{seed}")
    data, metadata, count, spare = LAYOUTS[seed % len(LAYOUTS)]
    files = [folder / f"d{number}.img" for number in range(count)]
    for file in files:
        with file.open("wb") as made:
            # not all of a size, so that chunks go round
            made.truncate(_DEVICE + choice.randrange(8) * (16 << 20))
    nodesize = choice.choice(["4096", "16384", "65536"])
    with looped(files) as loops:
        run("mkfs.btrfs", "-q", "-f", "-n", nodesize, "-d", data, "-m", metadata, *loops)
    compression = choice.choice(["no", "no", "zlib", "zstd"])
    with mounted(files, f"compress={compression}") as top:
        for number in range(4):
            (top / f"large{number}").write_bytes(choice.randbytes(choice.randrange(2 << 20)))
        live.change_at_random(top, choice)
        work = top / "work"
        for number in range(3):
            (work / f"wide{number}").write_bytes(choice.randbytes(choice.randrange(3 << 20)))
        run("btrfs", "-q", "subvolume", "snapshot", "-r", work, top / "wide")
        if seed % 3 == 0 and data in CONVERSIONS:
            target = CONVERSIONS[data]
            run("btrfs", "balance", "start", f"-dconvert={target},limit=1", "-f", top)
            spare = min(spare, {"raid0": 0}.get(target, 1))
    return Made(files, spare, metadata in ("raid0", "dup"))


def rot(file: Path, choice: random.Random, ranges: Sequence[tuple[int, int]], count: int) -> None:
    """Overwrite some sectors in ranges of a device."""
    with file.open("r+b") as damaged:
        for _ in range(count):
            start, length = choice.choice(ranges)
            damaged.seek(start + choice.randrange(length // 4096) * 4096)
            damaged.write(choice.randbytes(4096))
