# SPDX-License-Identifier: GPL-2.0-only
"""The free space of a block group as extents and as bitmaps, beside the running kernel.

A group goes over to bitmaps when extents would take more room, and back when they are 100 fewer
than that. The kernel makes small files side by side in a group of its own, and kernel and model
unlink the same of them, mount by mount: every second one, until there are too many free extents,
and then those between.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import beside_the_kernel, mounted

import btrfs_model as bm
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import FILE_EXTENT_ITEM

MIB, SECTOR = 1 << 20, 4096
FILES = 400
FIRST_INODE = 257
BITMAP = 2048 * SECTOR
BITMAPS = 1
"""Flag of a FREE_SPACE_INFO item."""

Items = list[tuple[tuple[int, int, int], bytes]]


def thresholds(length: int) -> tuple[int, int]:
    """Above how many extents a group has bitmaps, and below how many again extents."""
    most = -(-length // BITMAP) * (25 + 256) // 25
    return most, most - 100


def make(path: Path, nodesize: int) -> None:
    """Fill the group that mkfs made, and have files of a sector each in another."""
    with path.open("wb") as file:
        file.truncate(1024 * MIB)
    options = ["-n", str(nodesize), "-m", "single", "-d", "single"]
    subprocess.run(["mkfs.btrfs", "-q", "-f", *options, str(path)], check=True)
    with mounted(path, "rw") as top:
        (top / "fill").write_bytes(b"f" * (8 * MIB))
        subprocess.run(["btrfs", "filesystem", "sync", str(top)], check=True)
        for number in range(FILES):
            (top / f"f{number}").write_bytes(b"%04d" % number * (SECTOR // 4))


def group_of(fs: bm.Filesystem) -> tuple[int, int]:
    """Start and length of the group in which the files are, the last one of data."""
    chunk = max((c for c in fs.image.chunks if c.type & 1), key=lambda c: c.logical)
    return chunk.logical, chunk.length


def free_space(fs: bm.Filesystem) -> Items:
    """Items of the free space tree for that group."""
    start, length = group_of(fs)
    rows = fs.trees[int(ObjectId.FREE_SPACE_TREE)].items((start, 0, 0))
    return [(item.key, bytes(item.data)) for item in rows if item.key.objectid < start + length]


def info(items: Items) -> tuple[int, int]:
    """How many free extents there are, and whether as bitmaps."""
    (_, kind, _), data = items[0]
    assert kind == int(ItemType.FREE_SPACE_INFO)
    return int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little") & BITMAPS


def names_by_address(fs: bm.Filesystem) -> list[str]:
    """Files in the group, in the order of their extents."""
    start, _ = group_of(fs)
    found = []
    for item in fs.trees[5].items():
        if item.key.type == int(ItemType.EXTENT_DATA):
            at = FILE_EXTENT_ITEM.unpack(item.data)
            if at.disk_bytenr >= start:
                found.append((at.disk_bytenr, f"f{item.key.objectid - FIRST_INODE - 1}"))
    return [name for _, name in sorted(found)]


def steps(names: list[str], count: int, most: int, least: int) -> Iterator[tuple[list[str], int]]:
    """Files to be unlinked at once, and how many free extents there are then."""
    up, down = names[1 : 2 * (most + 3) : 2], names[2 : 2 * (most + 3) : 2]
    for wanted in (most - 1, most, most + 1, most + 2):
        yield [up.pop(0) for _ in range(wanted - count)], wanted
        count = wanted
    for wanted in (most, least, least - 1, least - 2):
        yield [down.pop(0) for _ in range(count - wanted)], wanted
        count = wanted


@pytest.mark.claim(
    "A block group changes to bitmaps of free space and back when the running kernel's does."
)
@beside_the_kernel
@pytest.mark.parametrize("nodesize", [4096, 16384, 65536])
def test_a_group_takes_bitmaps_and_extents_again_when_the_kernels_does(
    nodesize: int, tmp_path: Path
) -> None:
    path = tmp_path / "image"
    make(path, nodesize)
    with bm.WritableFilesystem.load(path) as fs:
        names = names_by_address(fs)
        most, least = thresholds(group_of(fs)[1])
        forms = []
        for gone, wanted in steps(names, info(free_space(fs))[0], most, least):
            with mounted(path, "rw") as top:
                for name in gone:
                    (top / name).unlink()
            for name in gone:
                fs.unlink(name)
            fs.commit()
            with bm.open(path) as kernels:
                assert free_space(fs) == free_space(kernels)
            count, form = info(free_space(fs))
            assert count == wanted
            forms.append(form)
        assert forms == [0, 0, 1, 1, 1, 1, 0, 0]
