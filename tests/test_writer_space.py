# SPDX-License-Identifier: GPL-2.0-only
"""Space and references behind trees that change, judged by walks of all trees.

What an image of a real kernel says is compared in test_writable.py; here are the rules one by one
and random sequences of writes, clones, snapshots and drops of trees.
"""

import random
import struct

import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space_image import (
    CSUM,
    EXTENT_DATA,
    SECTOR,
    Extents,
    check,
    commit,
    writer,
)

from btrfs_model.btree.writer import TreeWriter
from btrfs_model.errors import UnsupportedError
from btrfs_model.filesystem.writable import WritableFilesystem
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
        self.fresh: set[int] = set()

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
        self.fresh.add(self.next_tree)
        self.next_tree += 1

    def drop(self, tree: int) -> None:
        self.writer.drop_tree(tree)
        del self.extents[tree]

    def changeable(self) -> list[int]:
        """Trees, without snapshots of this transaction: kernels take those as it ends."""
        return sorted(set(self.extents) - self.fresh)

    def commit(self) -> None:
        commit(self.writer)
        self.fresh.clear()

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


KINDS = ["write", "clone", "fill"] * 4 + ["delete", "snapshot", "drop", "commit", "run"]


def take_step(files: Files, choice: random.Random) -> None:
    """Change something at random, or look whether everything is right."""
    trees = files.changeable()
    if not trees:
        return files.commit()
    what, tree = choice.choice(KINDS), choice.choice(trees)
    ino, offset = FIRST + choice.randrange(41), choice.randrange(2001)
    if what == "write":
        files.write(tree, ino, offset, choice.randrange(1, 8), csums=choice.random() < 0.5)
    elif what == "clone":
        files.clone(tree, choice.randrange(2**16), ino, offset)
    elif what == "fill":
        for _ in range(8):
            files.fill(tree, FIRST + choice.randrange(41), offset + 1)
    elif what == "delete":
        files.delete_some(tree, ino)
    elif what == "snapshot" and len(files.extents) < 6:
        files.snapshot(tree)
    elif what == "drop" and len(trees) > 1:
        files.drop(tree)
    elif what == "run":
        files.writer.run_refs()
        files.check()
    elif what == "commit":
        files.commit()
        files.check()
        assert all(group.used + group.free == group.length for group in files.writer.groups())
    return None


@pytest.mark.parametrize("features", [0, lib.BM_WRITER_SKINNY_METADATA])
@settings(max_examples=settings().max_examples // 5)
@given(seed=st.integers(0, 2**32), steps=st.sampled_from([20, 100, 400, 800]))
def test_random_sequences(features: int, seed: int, steps: int) -> None:
    files, choice = Files(writer(features=features)), random.Random(seed)
    for _ in range(steps):
        take_step(files, choice)
    for tree in sorted(files.extents):
        files.commit()
        files.check()
        files.drop(tree)
    files.commit()
    extents = files.check()
    assert not any(flags & 1 for flags in extents.flags.values())
    assert not list(files.writer.tree(CSUM).items())


# ------------------------------------------------------------------------- images of kernels --


def delete_file(made: TreeWriter, tree: int, choice: random.Random) -> None:
    """Delete the extents of a file, as truncation does."""
    items = [item for item in made.tree(tree).items() if item.key[1] == EXTENT_DATA]
    if not items:
        return
    ino = choice.choice(items).key[0]
    rows = []
    for key, data in [(item.key, bytes(item.data)) for item in items if item.key[0] == ino]:
        if data[20] == lib.BTRFS_FILE_EXTENT_INLINE:
            continue
        disk, size, offset = struct.unpack_from("<QQQ", data, 21)
        if disk:
            rows.append((disk, size, 0, tree, ino, (key[2] - offset) % 2**64))
    made.delete_range(tree, (ino, EXTENT_DATA, 0), (ino, EXTENT_DATA, 2**64 - 1), backward=True)
    made.drop_data_ref(rows)


IMAGES = ["features/nodesize-4096", "features/skinny-metadata-off", "fiemap-random/s05",
          "send/random/seed-003"]  # fmt: skip


@pytest.mark.parametrize("name", corpus.images() if corpus.LONG else IMAGES)
def test_images_of_kernels(name: str) -> None:
    """A walk says what the kernel's extent tree says, also when subvolumes are changed."""
    choice = random.Random(name)
    try:
        fs = WritableFilesystem.load(corpus.image(name))
    except UnsupportedError as error:
        pytest.skip(str(error))
    with fs:
        made = fs.writer
        check(made)
        tree_id = 2**32
        for _ in range(40):
            trees = [tree for tree in made.tree_ids() if made.tree_state(tree).shareable]
            delete_file(made, choice.choice(trees), choice)
            if choice.random() < 0.3:
                tree_id += 1
                made.copy_root(choice.choice(trees), tree_id)
                commit(made)
            if choice.random() < 0.2 and len(trees) > 1:
                made.drop_tree(choice.choice(trees))
            if choice.random() < 0.3:
                commit(made)
                check(made)
        commit(made)
        check(made)
