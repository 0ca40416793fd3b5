# SPDX-License-Identifier: GPL-2.0-only
"""Space and references behind trees that change, judged by walks of all trees.

What an image of a real kernel says is compared in test_writable.py; here are the rules one by one
and random sequences of writes, clones, snapshots and drops of trees.
"""

import errno
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space_image import (
    CSUM,
    DATA_REF,
    EXTENT_DATA,
    FULL_BACKREF,
    METADATA,
    SECTOR,
    Extents,
    check,
    commit,
    writer,
)

from btrfs_model.btree.writer import TreeWriter
from btrfs_model.kernels import lib

FIRST = 256
CSUM_KEY = (2**64 - 10, lib.BTRFS_EXTENT_CSUM_KEY)


def file_extent(bytenr: int, size: int, offset: int = 0) -> bytes:
    return struct.pack("<QQBBHBQQQQ", 1, size, 0, 0, 0, 1, bytenr, size, offset, size - offset)


class Files:
    """Subvolumes of files whose extents are written, cloned and deleted."""

    def __init__(self, made: TreeWriter) -> None:
        self.writer = made
        made.new_tree(FIRST, shareable=True)
        self.extents: dict[int, dict[tuple[int, int], tuple[int, int]]] = {FIRST: {}}
        self.csums: dict[int, bytes] = {}
        self.next_tree = FIRST + 1

    def write(self, tree: int, ino: int, offset: int, sectors: int, csums: bool) -> None:
        key = (ino, offset * SECTOR)
        if key in self.extents[tree]:
            return self.delete(tree, *key)
        bytenr, size = self.writer.reserve_data(sectors * SECTOR, SECTOR)
        self.writer.alloc_data_ref([(bytenr, size, 0, tree, *key)])
        self._insert(tree, key, bytenr, size)
        if csums:
            sums = random.Random(bytenr).randbytes(size // SECTOR * 4)
            self.writer.insert_csums(bytenr, sums, size // SECTOR)
        return None

    def _insert(self, tree: int, key: tuple[int, int], bytenr: int, size: int) -> None:
        ino, offset = key
        self.writer.insert(tree, (ino, EXTENT_DATA, offset), file_extent(bytenr, size))
        self.extents[tree][key] = bytenr, size

    def clone(self, tree: int, source: int, ino: int, offset: int) -> None:
        rows = sorted(self.extents[tree].items())
        key = (ino, offset * SECTOR)
        if not rows or key in self.extents[tree]:
            return
        _, (bytenr, size) = rows[source % len(rows)]
        self._insert(tree, key, bytenr, size)
        self.writer.inc_data_ref([(bytenr, size, 0, tree, *key)])

    def delete(self, tree: int, ino: int, offset: int) -> None:
        bytenr, size = self.extents[tree].pop((ino, offset))
        self.writer.delete(tree, (ino, EXTENT_DATA, offset))
        self.writer.drop_data_ref([(bytenr, size, 0, tree, ino, offset)])

    def delete_some(self, tree: int, ino: int) -> None:
        for key in [key for key in self.extents[tree] if key[0] == ino]:
            self.delete(tree, *key)

    def fill(self, tree: int, ino: int, size: int) -> None:
        key = (ino, lib.BTRFS_XATTR_ITEM_KEY, size)
        if self.writer.get(tree, key) is None:
            self.writer.insert(tree, key, bytes(size))
        else:
            self.writer.delete(tree, key)

    def snapshot(self, tree: int) -> None:
        self.writer.copy_root(tree, self.next_tree)
        self.extents[self.next_tree] = dict(self.extents[tree])
        self.next_tree += 1

    def drop(self, tree: int) -> None:
        self.writer.drop_tree(tree)
        del self.extents[tree]

    def check(self) -> Extents:
        extents = check(self.writer)
        live = {extent for tree in self.extents.values() for extent in tree.values()}
        data = {at for at, flags in extents.flags.items() if flags & 1}
        assert data == {bytenr for bytenr, _ in live}
        for tree, wanted in self.extents.items():
            found = {
                (item.key[0], item.key[2]): struct.unpack_from("<QQ", item.data, 21)
                for item in self.writer.tree(tree).items()
                if item.key[1] == EXTENT_DATA
            }
            assert found == wanted
        return extents


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["write"] * 4 + ["clone"] * 4 + ["fill"] * 4 + ["delete", "snapshot", "drop", "commit",
                                                            "run"]  # fmt: skip
        ),
        st.integers(0, 2**16),
        st.integers(0, 40),
        st.integers(0, 2000),
    ),
    max_size=120,
)


@pytest.mark.parametrize("features", [0, lib.BM_WRITER_SKINNY_METADATA])
@settings(max_examples=40)
@given(operations=OPERATIONS)
def test_random_sequences(features, operations):
    files = Files(writer(features=features))
    for what, number, ino, size in operations:
        trees = sorted(files.extents)
        if not trees:
            break
        tree = trees[number % len(trees)]
        if what == "write":
            files.write(tree, FIRST + ino, size, number % 7 + 1, csums=bool(number % 2))
        elif what == "clone":
            files.clone(tree, number, FIRST + ino, size)
        elif what == "fill":
            for n in range(8):
                files.fill(tree, FIRST + (ino * 8 + n) % 41, size + 1 + n)
        elif what == "delete":
            files.delete_some(tree, FIRST + ino)
        elif what == "snapshot" and len(trees) < 6:
            files.snapshot(tree)
        elif what == "drop":
            files.drop(tree)
        elif what == "run":
            files.writer.run_refs()
            files.check()
        elif what == "commit":
            commit(files.writer)
            files.check()
            assert all(group.used + group.free == group.length for group in files.writer.groups())
    for tree in sorted(files.extents):
        commit(files.writer)
        files.check()
        files.drop(tree)
    commit(files.writer)
    extents = files.check()
    assert not any(flags & 1 for flags in extents.flags.values())
    assert not list(files.writer.tree(CSUM).items())
