# SPDX-License-Identifier: GPL-2.0-only
"""Quota groups without a kernel: what they count is what a walk of all references finds."""

import errno
import random
from collections import Counter

import corpus
import numpy as np
import pytest
from calls import ModelCalls, run
from hypothesis import given, settings
from hypothesis import strategies as st
from quota_calls import FIRST, HIGH, ONE, quota_items, random_calls

import btrfs_model as bm
from btrfs_model.mount.calls.quotas import group_id
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.quotas import StatusFlag, quotas_of


def by_walks(fs: Filesystem) -> dict[int, tuple[int, int]]:
    """Referenced and exclusive bytes of each subvolume, by a walk from each extent."""
    forest = fs.forest().native
    referenced: Counter[int] = Counter()
    exclusive: Counter[int] = Counter()
    columns = fs.tree(ObjectId.EXTENT_TREE).scan()
    extents = np.isin(columns["type"], [ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM])
    for row in np.flatnonzero(extents).tolist():
        whole = columns["type"][row] == ItemType.EXTENT_ITEM
        size = int(columns["offset"][row]) if whole else fs.image.nodesize
        roots = forest.find_all_roots(int(columns["objectid"][row]), restart=False)
        for root in roots:
            referenced[root] += size
            exclusive[root] += size * (len(roots) == 1)
    return {root: (size, exclusive[root]) for root, size in referenced.items()}


@pytest.mark.claim("Quota groups count what a walk of all references finds, after any calls.")
@given(seed=st.integers(0, 2**32), nodesize=st.sampled_from([4096, 16384]), skinny=st.booleans())
@settings(max_examples=12)
def test_counts_are_those_of_walks(seed: int, nodesize: int, skinny: bool) -> None:
    choice = random.Random(seed)
    with bm.create(256 << 20, nodesize, seed=1, skinny_metadata=skinny) as fs:
        mine = ModelCalls(fs)
        for call in [*FIRST, ("quota_enable",), *random_calls(choice, 80, limits=False)]:
            run(mine, call)
        fs.sync()
        quotas = quotas_of(fs.trees, fs.image)
        walked = by_walks(fs)
        consistent = not quotas.flags & StatusFlag.INCONSISTENT
        for root in fs.subvolume_ids:
            group = quotas.by_id[root]
            # a lost relation leaves subvolumes right
            if consistent:
                assert (group.rfer, group.excl) == walked[root]
        table = fs.qgroups().set_index("qgroup")
        for root in fs.subvolume_ids:
            counted = table.loc[f"0/{root}"]
            assert (counted["reached"], counted["alone"]) == walked[root]
        assert bm.check(fs) == []


def test_leaves_are_found_whose_first_items_went_to_the_left() -> None:
    """Extent items of old filesystems have the first key of when a block was made."""
    with bm.create(256 << 20, 4096, seed=1, skinny_metadata=False) as fs:
        fs.quota_enable()
        for number in range(400):
            fs.create(f"file{number}")
        for number in range(0, 400, 3):
            fs.unlink(f"file{number}")
        fs.sync()
        group = quotas_of(fs.trees, fs.image).by_id[5]
        assert (group.rfer, group.excl) == by_walks(fs)[5]
        assert not bm.check(fs)


def test_a_tree_that_is_too_high_is_not_looked_at() -> None:
    """``drop_subtree_threshold``: then a rescan is needed, and makes it right."""
    with bm.create(1 << 30, 4096, seed=1) as fs:
        fs.quota_enable()
        fs.create_subvolume("sub")
        fs.create_files("sub", [f"{'n' * 180}{number}" for number in range(6000)])
        fs.snapshot("sub", "snap")
        assert fs.writer.tree_state(256).level == 2
        fs.set_drop_subtree_threshold(1)
        fs.delete_subvolume("snap")
        fs.sync()
        assert bm.check(fs) == []  # its blocks are still there
        fs.clean_subvolumes()
        fs.sync()
        assert quotas_of(fs.trees, fs.image).flags == StatusFlag.ON | StatusFlag.INCONSISTENT
        fs.quota_rescan()
        fs.sync()
        assert quotas_of(fs.trees, fs.image).flags == StatusFlag.ON
        assert bm.check(fs) == []


def test_simple_quotas_stay_with_who_allocated() -> None:
    with bm.create(256 << 20, seed=1) as fs:
        fs.create("before")
        fs.write("before", 0, b"b" * 100_000)
        fs.quota_enable(simple=True)
        fs.create_subvolume("sub")
        fs.create("sub/f")
        fs.write("sub/f", 0, b"f" * 1_000_000)
        fs.snapshot("sub", "snap")
        fs.unlink("sub/f")
        fs.unlink("before")
        fs.sync()
        groups = quotas_of(fs.trees, fs.image).by_id
        assert groups[256].rfer == 1_003_520 + fs.nodesize
        assert groups[257].rfer == fs.nodesize
        # what was there before does not count
        assert groups[5].rfer == fs.nodesize
        assert bm.check(fs) == []
        fs.delete_subvolume("snap")
        fs.sync()
        assert bm.check(fs) == []  # its blocks are still there
        fs.clean_subvolumes()
        fs.sync()
        assert quotas_of(fs.trees, fs.image).by_id[256].rfer == fs.nodesize
        assert bm.check(fs) == []


def test_check_finds_wrong_numbers() -> None:
    with bm.create(256 << 20, seed=1) as fs:
        fs.quota_enable()
        fs.sync()
        fs.quotas.by_id[5].rfer += 4096
        fs.quotas.touch(fs.quotas.by_id[5])
        fs.create("f")
        fs.sync()
        (finding,) = bm.check(fs)
        assert str(finding).startswith("tree 8, key (0 QGROUP_INFO 0/5): the quota group 0/5 has ")


@pytest.mark.parametrize("name", ["quota", "simple-quota"])
def test_images_of_kernels_are_counted_on(name: str) -> None:
    image = corpus.image(f"features/{name}")
    assert bm.check(image) == []
    with bm.WritableFilesystem.load(image) as fs:
        fs.create("new")
        fs.write("new", 0, b"n" * 50_000)
        fs.delete_subvolume("snap")
        fs.sync()
        assert bm.check(fs) == []  # its blocks are still there
        fs.clean_subvolumes()
        fs.snapshot("volume", "again")
        assert bm.check(fs) == []
        assert fs.qgroups()["path"].tolist() == ["", "volume", "again"]


def test_groups_stay(tmp_path_factory: pytest.TempPathFactory) -> None:
    """They go on from what is on disk, with limits and relations."""
    path = tmp_path_factory.mktemp("quotas") / "image"
    with bm.create(256 << 20, seed=1) as fs:
        fs.quota_enable()
        fs.create_subvolume("sub")
        fs.qgroup_create("1/0")
        fs.qgroup_create("2/0")
        fs.qgroup_assign("0/256", "1/0")
        fs.qgroup_assign("1/0", "2/0")
        fs.qgroup_limit("1/0", max_rfer=1 << 20)
        fs.save(path)
        before = quota_items(path)
    with bm.WritableFilesystem.load(path) as fs:
        assert [group.id for group in fs.quotas.by_id[256].upwards()] == [256, ONE, HIGH]
        fs.create("sub/f")
        with pytest.raises(OSError, match="sub/f") as caught:
            fs.write("sub/f", 0, b"f" * 4096)
            for number in range(1000):
                fs.create(f"sub/f{number}")
                fs.write(f"sub/f{number}", 0, b"f" * 4096)
        assert caught.value.errno == errno.EDQUOT
        fs.sync()
        table = fs.qgroups().set_index("qgroup")
        assert table.loc["1/0", "rfer"] == table.loc["2/0", "rfer"] == table.loc["0/256", "rfer"]
        assert table.loc["0/256", "groups"] == "1/0"
        assert table.loc["1/0", "max_rfer"] == 1 << 20
    assert quota_items(path) == before


@pytest.mark.parametrize("group", ["x", "1/x", "1/2/3", "65536/1", "-1/1", f"0/{1 << 48}", ""])
def test_what_is_no_group(group: str) -> None:
    with pytest.raises(ValueError, match="is no quota group"):
        group_id(group)


@pytest.mark.parametrize(
    ("kernel", "written", "ends"),
    [("v6.18.44", 16384, errno.EDQUOT), ("v6.12.101", None, errno.EDQUOT),
     ("v6.1.176", None, errno.ENOENT)],
)  # fmt: skip
def test_what_kernels_reserve_for_at_once(kernel: str, written: int | None, ends: int) -> None:
    """Linux 6.13 and later write page by page; before 6.1.191 calls on groups reserve nothing."""
    with bm.create(256 << 20, seed=1, behaviour=kernel) as fs:
        fs.create("f")
        fs.quota_enable()
        fs.qgroup_limit("0/5", max_rfer=16384 + 32768)
        if written is None:
            with pytest.raises(OSError, match="quota") as caught:
                fs.write("f", 0, bytes(30_000))
            assert caught.value.errno == errno.EDQUOT
        else:
            assert fs.write("f", 0, bytes(30_000)) == written
        fs.qgroup_limit("0/5", max_rfer=1)
        with pytest.raises(OSError, match="0/77") as caught:
            fs.qgroup_limit("0/77", max_rfer=1)
        assert caught.value.errno == ends


def test_the_group_of_a_subvolume_that_is_gone() -> None:
    """Linux 6.11 and later delete it whatever it counts."""
    for kernel, can in (("v6.1.192", False), ("v6.18.44", True)):
        with bm.create(256 << 20, seed=1, behaviour=kernel) as fs:
            fs.quota_enable()
            fs.create_subvolume("sub")
            fs.sync()
            group = fs.quotas.by_id[256]
            with pytest.raises(OSError, match="busy"):
                fs.qgroup_destroy("0/256")
            fs.delete_subvolume("sub")
            fs.clean_subvolumes()
            group = fs.quotas.by_id.setdefault(256, group)
            group.rfer = group.excl = 4096
            try:
                fs.qgroup_destroy("0/256")
            except OSError as error:
                assert (error.errno, can) == (errno.EBUSY, False)
            else:
                assert can


def test_arguments_are_looked_at_before_quotas_are_missed() -> None:
    """Before 6.11; then they start a transaction, too."""
    with bm.create(256 << 20, seed=1, behaviour="v6.1.192") as fs:
        for call, number in ((fs.quota_rescan, errno.EINVAL),
                             (lambda: fs.qgroup_assign("0/5", "0/5"), errno.EINVAL),
                             (lambda: fs.qgroup_create("0/300"), errno.EINVAL),
                             (lambda: fs.qgroup_limit("0/5", 1), errno.ENOTCONN),
                             (lambda: fs.qgroup_remove("0/5", "1/0"), errno.ENOTCONN),
                             (lambda: fs.qgroup_destroy("1/0"), errno.ENOTCONN)):  # fmt: skip
            with pytest.raises(OSError, match="Errno") as caught:
                call()
            assert caught.value.errno == number


def test_without_quotas() -> None:
    with bm.create(256 << 20) as fs:
        for call in (fs.quota_rescan, lambda: fs.qgroup_create("1/0"),
                     lambda: fs.qgroup_limit("0/5", 1), lambda: fs.qgroup_assign("0/5", "1/0"),
                     lambda: fs.qgroup_destroy("1/0")):  # fmt: skip
            with pytest.raises(OSError, match="not connected") as caught:
                call()
            assert caught.value.errno == errno.ENOTCONN
        fs.quota_disable()
        assert fs.qgroups().empty
