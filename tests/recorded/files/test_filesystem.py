# SPDX-License-Identifier: GPL-2.0-only
"""Subvolumes, paths, directories and listings, judged by what a kernel listed."""

import hashlib
import os
import stat

import corpus
import pytest
from kernel_listing import recorded, without_made_up

from btrfs_model.base.errors import NoSuchFileError, SubvolumeNotFoundError
from btrfs_model.experiments.verify.listing import as_recorded
from btrfs_model.native.choice import select
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.listing import EMPTY_SUBVOL_DIR

LISTED = [name for name in corpus.cases("send/random") if corpus.has(name, "trees.jsonl.zst")]


@pytest.mark.claim(
    "Files read as the kernel reads them; directories and subvolumes are listed as it lists them."
)
@pytest.mark.parametrize("name", LISTED)
def test_listing_is_the_kernels(name: str) -> None:
    with Filesystem.open(corpus.image(name)) as fs:
        for snapshot, paths in recorded(name).items():
            rows = fs.listing(snapshot).to_dict("records")
            assert len(rows) == len(paths)
            for row in rows:
                assert as_recorded(row) == without_made_up(paths[row["path"]]), row["path"]


def test_listing_in_python_is_that_in_c() -> None:
    with Filesystem.open(corpus.image(LISTED[0])) as fs:
        snapshot = fs.subvolume_ids[-1]
        with select("python"):
            rows = fs.listing(snapshot)
        assert rows.to_dict("records") == fs.listing(snapshot).to_dict("records")


@pytest.mark.parametrize("name", LISTED[:8])
def test_subvolumes_are_those_of_btrfs_subvolume_show(name: str) -> None:
    recorded_subvolumes = corpus.case(name)["subvolumes"]
    with Filesystem.open(corpus.image(name)) as fs:
        table = fs.subvolumes().set_index("path")
        for path, record in recorded_subvolumes.items():
            row = table.loc[path]
            assert row["id"] == record["root_id"]
            for field in ("uuid", "parent_uuid", "received_uuid"):
                assert (row[field] or "0" * 32) == record[field]
            for field in ("generation", "ctransid", "otransid", "stransid", "rtransid"):
                assert row[field] == record[field]
            assert row["read_only"] == bool(record["flags"] & 1)
            seconds, nanoseconds = record["otime"]
            assert row["otime"].value == seconds * 10**9 + nanoseconds


@pytest.fixture
def fs(small_image: os.PathLike[str]) -> Filesystem:
    return Filesystem.open(small_image)


def test_subvolume_by_path_and_id(fs: Filesystem) -> None:
    for row in fs.subvolumes().to_dict("records"):
        by_id = fs.subvolume(row["id"])
        path = row["path"]
        for spelling in (path, f"/{path}", f"{path}/", f"//{path}//", os.fsencode(path)):
            assert fs.subvolume(spelling).id == by_id.id == row["id"]
        assert by_id.path == path
        assert fs.subvolume(by_id) is by_id
        assert fs.subvolume(str(row["id"])).id == row["id"]


def test_nested_subvolumes_are_found_through_their_parents() -> None:
    for name in LISTED:
        with Filesystem.open(corpus.image(name)) as fs:
            table = fs.subvolumes()
            nested = table[~table["parent"].isin([0, ObjectId.FS_TREE])]
            for row in nested.to_dict("records"):
                assert fs.subvolume(row["path"]).id == row["id"]
                # in a snapshot of the parent the entry is there, but not the subvolume
                parent = fs.subvolume(row["parent"])
                for snapshot in fs.subvolume_ids:
                    other = fs.subvolume(snapshot)
                    if other.parent_uuid == parent.uuid:
                        inside = row["path"].removeprefix(parent.path)
                        with pytest.raises(SubvolumeNotFoundError):
                            fs.subvolume(other.path + inside)


@pytest.mark.parametrize("which", ["nothing", "snaps", "snaps/s0/x/y", "99999", 99999, 2, 255])
def test_missing_subvolume_names_image_and_subvolume(fs: Filesystem, which: str | int) -> None:
    with pytest.raises(SubvolumeNotFoundError) as caught:
        fs.subvolume(which)
    text = str(caught.value)
    assert fs.path in text and str(which) in text and "\n" not in text
    assert isinstance(caught.value, FileNotFoundError)


def test_paths_lead_to_the_inodes_of_the_listing(fs: Filesystem) -> None:
    for objectid in fs.subvolume_ids:
        subvolume = fs.subvolume(objectid)
        for row in fs.listing(objectid, content=False).to_dict("records"):
            if row["subvolume"]:
                with pytest.raises(NoSuchFileError):
                    subvolume.resolve(row["path"])
                continue
            assert subvolume.resolve(row["path"]) == row["ino"]
            inode = subvolume.inode(row["path"])
            assert (inode.mode, inode.size, inode.mtime) == (row["mode"], row["size"], row["mtime"])
            assert subvolume.xattrs(row["ino"]) == row["xattrs"]
            names = subvolume.names(row["ino"])
            assert len(names) == inode.nlink
            assert subvolume.resolve(subvolume.path_of(row["ino"])) == row["ino"]


def test_readdir_is_in_the_order_of_indexes(fs: Filesystem) -> None:
    subvolume = fs.subvolume(fs.subvolume_ids[-1])
    rows = fs.listing(subvolume, content=False)
    directories = rows[[stat.S_ISDIR(mode) for mode in rows["mode"]]]
    for ino in set(directories["ino"]) - {EMPTY_SUBVOL_DIR}:
        entries = list(subvolume.readdir(ino))
        assert [entry.index for entry in entries] == sorted(entry.index for entry in entries)
        for entry in entries:
            found = subvolume.lookup(ino, entry.name)
            assert found is not None and found.location == entry.location


def test_readdir_of_a_file_and_inode_that_is_not_there(fs: Filesystem) -> None:
    subvolume = fs.subvolume(fs.subvolume_ids[-1])
    rows = fs.listing(subvolume, content=False)
    file = rows[[stat.S_ISREG(mode) for mode in rows["mode"]]].iloc[0]["ino"]
    with pytest.raises(NoSuchFileError, match="not a directory"):
        list(subvolume.readdir(int(file)))
    with pytest.raises(NoSuchFileError, match="no inode 12345678"):
        subvolume.inode(12345678)
    with pytest.raises(NoSuchFileError, match="no file 'no/such'"):
        subvolume.resolve("no/such")


def test_log_trees_of_a_crash_image() -> None:
    name = next(name for name in corpus.images("log") if name.endswith("crash1.img.zst"))
    with Filesystem.open(corpus.image(name)) as fs:
        assert fs.log_root_tree is not None
        assert fs.log_trees
        for objectid, tree in fs.log_trees.items():
            assert objectid in fs.subvolume_ids
            blocks = tree.blocks()
            assert blocks[0].owner == ObjectId.TREE_LOG
            assert blocks[0].generation == fs.image.superblock.generation + 1


@pytest.mark.parametrize("name", LISTED[:6])
def test_any_part_of_a_file_is_that_part(name: str) -> None:
    with Filesystem.open(corpus.image(name)) as fs:
        subvolume = fs.subvolume(fs.subvolume_ids[-1])
        rows = fs.listing(subvolume)
        files = rows[[stat.S_ISREG(mode) for mode in rows["mode"]]]
        for row in files.to_dict("records")[:60]:
            whole = subvolume.read_file(row["ino"])
            assert len(whole) == row["size"]
            assert hashlib.sha256(whole).hexdigest() == row["sha256"]
            size = len(whole)
            for start, length in ((0, 1), (1, 4095), (4095, 2), (size // 2, 5000), (size - 1, 10),
                                  (size, 1), (size + 5, 5), (8191, None)):  # fmt: skip
                start = max(start, 0)
                end = size if length is None else start + length
                assert subvolume.read_file(row["ino"], start, length) == whole[start:end]
