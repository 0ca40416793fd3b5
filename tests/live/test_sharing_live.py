# SPDX-License-Identifier: GPL-2.0-only
"""Sharing beside the running kernel, in filesystems that it has just made.

FIEMAP, and what it reads; LOGICAL_INO; the space of subvolumes; the paths of inodes.
"""

import os
import stat
from pathlib import Path

import corpus
import live
import live_sharing
import numpy as np
import pytest

import btrfs_model as bm
from btrfs_model.backref.api import logical_ino
from btrfs_model.behaviour import Behaviour
from btrfs_model.kernels.inside.ioctls import fiemap, inode_paths
from btrfs_model.kernels.inside.ioctls import logical_ino as kernel_logical_ino
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.questions.fiemap.api import Fiemap
from btrfs_model.questions.reads.cold import blocks_after_mount

pytestmark = live.BESIDE_THE_KERNEL

SEEDS = 200 if corpus.LONG else 15


def data_extents(fs: bm.Filesystem) -> list[tuple[int, int]]:
    items = fs.tree(2).scan()
    data = np.flatnonzero(items["type"] == ItemType.EXTENT_ITEM)
    return list(zip(items["objectid"][data].tolist(), items["offset"][data].tolist(), strict=True))


@pytest.mark.claim(
    "In filesystems that the running kernel has just made, FIEMAP, the number of blocks that "
    "a cold call of it reads, LOGICAL_INO and the paths of inodes are the kernel's, file by "
    "file and extent by extent."
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_sharing_of_the_running_kernel(seed: int, tmp_path: Path) -> None:
    image = tmp_path / "live.img"
    quota = live_sharing.random_sharing(image, seed, quota=seed % 3 == 0)
    if corpus.LONG:
        # on a busy machine other threads of the kernel read beside it
        compare_cold(image)
    with live.mounted(image, "ro") as top, bm.open(image) as fs:
        for objectid in fs.subvolume_ids:
            where = top / fs.subvolume(objectid).path
            compare_files(fs, objectid, where)
            compare_space(fs, objectid, where)
        compare_walks(fs, top)
    if quota:
        compare_quota(fs_of=image, shown=quota)


def largest_file(fs: bm.Filesystem) -> tuple[int, str] | None:
    """Subvolume and path of the file with the most extents."""
    files = [
        (len(fs.subvolume(objectid).extents(row["ino"])), objectid, row["path"])
        for objectid in fs.subvolume_ids
        for row in fs.listing(objectid, content=False).to_dict("records")
        if stat.S_ISREG(row["mode"])
    ]
    return max(files)[1:] if files else None


def compare_cold(image: Path) -> None:
    """Opening a file and FIEMAP, right after a mount: as many tree blocks are read."""
    behaviour = Behaviour.parse(live.PRESET)
    with bm.open(image) as fs:
        largest = largest_file(fs)
        if largest is None:
            return
        sub = fs.subvolume(largest[0])
        known = blocks_after_mount(fs, [sub], behaviour, writable=False)
        fs.image.start_cold(known)
        Fiemap(fs, sub, largest[1], behaviour=behaviour).run()
        modelled = len(fs.image.stop_cold()) * fs.image.nodesize
        folder = sub.path
    with live.mounted(image, "ro") as top:
        directory = os.open(top / folder, os.O_RDONLY)
        try:
            before = live_sharing.sectors_read(top)
            fiemap(top / folder / largest[1])
            assert (live_sharing.sectors_read(top) - before) * 512 == modelled, largest
        finally:
            os.close(directory)


def compare_files(fs: bm.Filesystem, objectid: int, where: Path) -> None:
    """FIEMAP of every regular file, and all paths of every inode."""
    files = folders = 0
    sub = fs.subvolume(objectid)
    listing = fs.listing(objectid, content=False)
    for row in listing.drop_duplicates("ino").to_dict("records"):
        if row["ino"] < sub.root_dir:
            continue  # where a subvolume was when the snapshot was made
        if stat.S_ISREG(row["mode"]):
            found = Fiemap(fs, objectid, row["ino"], behaviour=live.PRESET).run()
            rows = list(zip(*(found[name].tolist() for name in found.columns), strict=True))
            assert rows == fiemap(where / row["path"]), row["path"]
            files += 1
        else:
            folders += 1
        assert (sub.paths_of(row["ino"]), 0) == inode_paths(where, row["ino"])
    assert files or folders


def compare_walks(fs: bm.Filesystem, top: Path) -> None:
    """LOGICAL_INO_V2 of every data extent: its first, its middle and its last block, or all."""
    forest = fs.forest()
    for start, length in data_extents(fs):
        for logical in {start, start + length // 2 // 4096 * 4096, start + length - 4096}:
            for ignore in (False, True):
                table = logical_ino(forest, logical, ignore_offset=ignore)
                wanted = kernel_logical_ino(top, logical, ignore)
                assert table.to_numpy().tolist() == wanted, (logical, ignore)


def compare_space(fs: bm.Filesystem, objectid: int, where: Path) -> None:
    """`btrfs filesystem du -s`, of the subvolume with what is in it."""
    (row,) = bm.du(fs, objectid, nested=True).to_dict("records")
    shown = live_sharing.btrfs("filesystem", "du", "--raw", "-s", where).splitlines()[-1].split()
    assert [row["total"], row["exclusive"], row["set_shared"]] == [int(n) for n in shown[:3]]


def compare_quota(fs_of: Path, shown: str) -> None:
    """The counts of quota groups: all that a subvolume has, and what it has alone."""
    groups = {}
    for line in shown.splitlines():
        words = line.split()
        if words and words[0].startswith("0/"):
            groups[int(words[0][2:])] = (int(words[1]), int(words[2]))
    with bm.open(fs_of) as fs:
        table = bm.du(fs)
        for row in table.to_dict("records"):
            referenced = row["extent_bytes"] + row["tree_bytes"]
            exclusive = row["extent_exclusive"] + row["tree_exclusive"]
            assert (referenced, exclusive) == groups[row["id"]], row["id"]
    assert len(table)


@pytest.mark.claim(
    "`extents` and `du` count what FIEMAP, LOGICAL_INO, `btrfs filesystem du` and quota "
    "groups count."
)
def test_extents_beside_filefrag_and_du(tmp_path: Path) -> None:
    """The numbers of `btrfs filesystem du` for single files are those of their extents."""
    image = tmp_path / "live.img"
    live_sharing.random_sharing(image, 1000)
    compared = 0
    with live.mounted(image, "ro") as top, bm.open(image) as fs:
        listing = fs.listing(5, content=False)
        for row in listing[listing["mode"].map(stat.S_ISREG)].to_dict("records")[:25]:
            table = bm.extents(fs, 5, row["path"])
            data = table[table["disk_bytenr"] != 0]
            shown = live_sharing.btrfs("filesystem", "du", "--raw", "-s", top / row["path"])
            total, exclusive, _ = map(int, shown.splitlines()[-1].split()[:3])
            assert (data["length"].sum(), data["length"][~data["shared"]].sum()) == (
                total, exclusive,
            )  # fmt: skip
            command = live_sharing.btrfs("inspect-internal", "inode-resolve", str(row["ino"]), top)
            paths = [f"{top}/{path.decode()}" for path in fs.subvolume(5).paths_of(row["ino"])]
            assert command.splitlines() == paths
            compared += 1
    assert compared
