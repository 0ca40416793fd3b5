# SPDX-License-Identifier: GPL-2.0-only
"""Logs that contradict the filesystem: which a mount refuses, and the errno that it ends with.

What ends how was seen on Linux 6.1.176, 6.12.113 and 6.18.44, which mounted images
damaged in the same way.
"""

import errno
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import Broken

import btrfs_model as bm
from btrfs_model.kernels.inside.asked import _errno_of_mount
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume.tree import RawKey

Items = dict[RawKey, bytes]
DIR, NEW = 257, 260
INODE, REF, INDEX = int(ItemType.INODE_ITEM), int(ItemType.INODE_REF), int(ItemType.DIR_INDEX)
EXTENT = int(ItemType.EXTENT_DATA)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "crash"
    with bm.create(256 << 20, seed=3) as fs:
        fs.mkdir("d")
        for name in "abc":
            fs.create(f"d/{name}")
        fs.sync()
        fs.create("d/new")
        fs.write("d/new", 0, bytes(8192))
        fs.unlink("d/a")
        assert [fs.fsync("d"), fs.fsync("d/new")] == ["log", "log"]
        fs.save_crash(path)
    return path


def new_file(items: Items) -> int:
    return max(key[0] for key in items if key[1] == REF and key[2] == DIR)


def a_name_at_the_index_of_another(items: Items) -> None:
    key = (new_file(items), REF, DIR)
    items[key] = struct.pack("<Q", 3) + items[key][8:]


def no_inode_item(items: Items) -> None:
    del items[new_file(items), INODE, 0]


def an_entry_of_no_directory(items: Items) -> None:
    key = max(key for key in items if key[:2] == (DIR, INDEX))
    items[DIR + 1000, INDEX, key[2]] = items.pop(key)


def a_name_of_no_inode(items: Items) -> None:
    items[NEW + 1000, REF, DIR] = items.pop((new_file(items), REF, DIR))


def an_extent_of_no_inode(items: Items) -> None:
    extent = next(key for key in items if key[1] == EXTENT)
    items[NEW + 1000, EXTENT, 0] = items[extent]


def an_index_of_another(items: Items) -> None:
    key = max(key for key in items if key[:2] == (DIR, INDEX))
    items[DIR, INDEX, 2] = items.pop(key)


def no_item_of_the_directory(items: Items) -> None:
    del items[DIR, INODE, 0]


def nothing_of_the_new_file(items: Items) -> None:
    for key in [key for key in items if key[0] == new_file(items)]:
        del items[key]


@pytest.mark.parametrize(
    ("change", "new", "old"),
    [
        (a_name_at_the_index_of_another, errno.EEXIST, errno.EEXIST),
        (no_inode_item, errno.ENOENT, errno.EIO),
        (an_entry_of_no_directory, errno.ENOENT, errno.EIO),
        (a_name_of_no_inode, errno.ENOENT, errno.EIO),
        (an_extent_of_no_inode, errno.ENOENT, errno.EIO),
        (an_index_of_another, 0, 0),
        (no_item_of_the_directory, 0, 0),
        (nothing_of_the_new_file, 0, 0),
    ],
)
def test_what_a_mount_ends_with(
    crashed: Path, change: Callable[[Items], None], new: int, old: int
) -> None:
    for behaviour, wanted in (("v6.18.44", new), ("v6.12.101", new), ("v6.1.176", old)):
        broken = Broken(crashed)
        (leaf,) = broken.fs().log_trees[5].blocks()
        items = dict(broken.items(leaf.logical))
        change(items)
        broken.write_items(leaf.logical, items.items())
        if wanted:
            with pytest.raises(bm.errors.CorruptImageError, match=f"errno {wanted}$") as caught:
                bm.replay_log(broken.fs(), behaviour=behaviour)
            assert caught.value.fault.found == wanted
        else:
            with bm.replay_log(broken.fs(), behaviour=behaviour) as fs:
                assert bm.check(fs) == []


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("mount: /m: mount(2) system call failed: File exists.", errno.EEXIST),
        ("mount: /m: mount(2) system call failed: File exists. dmesg(1) may have more "
         "information after failed mount system call.", errno.EEXIST),
        ("mount: /m: can't read superblock on /dev/loop1. dmesg(1) may have more", errno.EIO),
        ("mount: /m: wrong fs type, bad option, bad superblock on /dev/loop1, missing codepage or "
         "helper program, or other error.", errno.EINVAL),
    ],
)  # fmt: skip
def test_what_mount_says(said: str, number: int) -> None:
    assert _errno_of_mount(said) == number
