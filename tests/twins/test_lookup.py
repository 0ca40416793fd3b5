# SPDX-License-Identifier: GPL-2.0-only
"""A path leads to the same inode in C and in Python, also where names collide or are damaged."""

from pathlib import Path

import pytest
from collisions import names_of_hash
from damage import NAME, Broken
from hypothesis import given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.base.counters import counting
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.native.choice import select
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume.subvolume import Subvolume

TWINS = names_of_hash(0x12345678, 3)
PATHS = [f"a/b/{name}" for name in TWINS] + ["a/b/c", "a/sub/x", "a/sub", "a/b", "a"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    path: Path = tmp_path_factory.mktemp("lookup") / NAME
    with bm.create(128 << 20) as fs:
        for folder in ("a", "a/b"):
            fs.mkdir(folder)
        for name in [*TWINS, "c"]:
            fs.create(f"a/b/{name}")
        fs.create_subvolume("a/sub")
        fs.create("a/sub/x")
        fs.save(path)
    return Broken(path)


def led_to(subvolume: Subvolume, path: str) -> tuple[object, dict[str, int]]:
    """Where a path leads, or what is said of it, and the work that it is."""
    with counting() as work:
        try:
            found: object = subvolume.resolve(path)
        except (BtrfsModelError, OSError) as error:
            found = str(error)
    return found, dict(work)


def both_agree(fs: bm.Filesystem, path: str) -> object:
    subvolume = fs.subvolume(5)
    in_c = led_to(subvolume, path)
    with select("python"):
        assert led_to(subvolume, path) == in_c
    return in_c[0]


@given(
    path=st.sampled_from(PATHS),
    more=st.sampled_from(["", "/", "/.", "/x", "//a", "\udcff"]),
    before=st.sampled_from(["", "/", "./", "a/../", "a//./../"]),
)
def test_paths(broken: Broken, path: str, more: str, before: str) -> None:
    with broken.fs() as fs:
        found = both_agree(fs, before + path + more)
        if not before.strip("./") and more in ("", "/", "/."):
            assert isinstance(found, int) != path.startswith("a/sub")


@settings(max_examples=150)
@given(
    path=st.sampled_from(PATHS),
    which=st.integers(0, 9),
    at=st.integers(0, 60),
    byte=st.integers(0, 255),
)
def test_damaged_entries(broken: Broken, path: str, which: int, at: int, byte: int) -> None:
    with broken.fs() as fs:
        items = [
            item for item in fs.subvolume(5).tree.items() if item.key.type == ItemType.DIR_ITEM
        ]
        item = items[which % len(items)]
        at %= len(item.data)
        places = [(start, broken.nodesize) for start in broken.copies(item.block)]
    with broken.restored(*places):
        broken.write_item(item, at, bytes([byte]))
        with broken.fs() as fs:
            both_agree(fs, path)
