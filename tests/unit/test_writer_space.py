# SPDX-License-Identifier: GPL-2.0-only
"""Space and references behind trees that change, judged by walks of all trees.

What an image of a real kernel says is compared in test_writable.py; here are the rules one by one
and random sequences of writes, clones, snapshots and drops of trees.
"""

import errno
import random
import struct
from pathlib import Path

import corpus
import pytest
from calls import ModelCalls, run
from hypothesis import given, settings
from hypothesis import strategies as st
from space_image import (
    CSUM,
    DATA_REF,
    EXTENT,
    EXTENT_DATA,
    FULL_BACKREF,
    METADATA,
    SECTOR,
    Extents,
    check,
    commit,
    writer,
)

import btrfs_model as bm
from btrfs_model.base.errors import UnsupportedError
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.verify.random.calls import random_call
from btrfs_model.mount.space import level
from btrfs_model.mount.tree_writer import TreeWriter
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.native.door import lib
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_METADATA as METADATA_GROUP
from btrfs_model.ondisk.structs import HEADER, ITEM

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


@pytest.mark.claim("References and checksums are those that a walk of all trees counts.")
@pytest.mark.parametrize("features", [0, lib.BM_WRITER_SKINNY_METADATA])
@settings(max_examples=settings().max_examples // 5)
@given(seed=st.integers(0, 2**32), steps=st.sampled_from([20, 100, 300]))
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


@pytest.mark.parametrize("name", corpus.images()[::10] if corpus.LONG else IMAGES)
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


# ----------------------------------------------------------------------------- single rules --


def keyed(made: TreeWriter) -> list[tuple[int, int, int]]:
    return [tuple(item.key) for item in made.tree(EXTENT).items() if item.key[1] == DATA_REF]


def test_references_that_do_not_fit() -> None:
    """An item takes references up to the limit; while one is outside, new ones go there too."""
    made = writer(nodesize=16384)
    bytenr, size = made.reserve_data(SECTOR, SECTOR)
    rows = [(bytenr, size, 0, 5, 256, n * SECTOR) for n in range(40)]
    made.alloc_data_ref(rows[:1])
    made.inc_data_ref(rows[1:])
    made.run_refs()
    # 24 bytes and 29 for each: 33 are 981, one more would be 1010, the limit is 992
    assert len(keyed(made)) == 40 - 33
    made.drop_data_ref(rows[:1])
    made.run_refs()
    outside = keyed(made)
    made.inc_data_ref([(bytenr, size, 0, 5, 999, 0)])
    made.run_refs()
    assert len(keyed(made)) == len(outside) + 1
    refs, flags = made.extent_info(bytenr)
    assert (refs, flags) == (40, 1)


def test_equal_references_add_up() -> None:
    made = writer()
    bytenr, size = made.reserve_data(4 * SECTOR, SECTOR)
    row = (bytenr, size, 0, 5, 256, 0)
    made.alloc_data_ref([row])
    made.run_refs()
    made.inc_data_ref([row] * 5)
    made.drop_data_ref([row] * 2)
    assert made.extent_info(bytenr) == (4, 1)
    made.run_refs()
    assert Extents(made).refs[bytenr, DATA_REF, 5, 256, 0] == 4
    # what is taken and dropped before anyone runs it was never there
    before = bytes(made.get(EXTENT, (bytenr, lib.BTRFS_EXTENT_ITEM_KEY, size)) or b"")
    other = (bytenr, size, 0, 5, 257, 0)
    made.inc_data_ref([other])
    made.drop_data_ref([other])
    made.run_refs()
    assert made.get(EXTENT, (bytenr, lib.BTRFS_EXTENT_ITEM_KEY, size)) == before


def test_extent_that_never_was() -> None:
    """Allocated and dropped in one transaction: pinned, without csums, never counted."""
    made = writer()
    commit(made)
    group = made.groups()[1]
    bytenr, size = made.reserve_data(2 * SECTOR, SECTOR)
    row = (bytenr, size, 0, 5, 256, 0)
    made.alloc_data_ref([row])
    made.insert_csums(bytenr, bytes(8), 2)
    made.drop_data_ref([row])
    made.run_refs()
    assert not list(made.tree(CSUM).items())
    assert made.groups()[1] == group._replace(free=group.free - size, pinned=size)
    made.unpin()
    assert made.groups()[1] == group


def csum_items(made: TreeWriter) -> list[tuple[int, int]]:
    """First sector and number of sectors of each csum item."""
    base = METADATA + (32 << 20)
    return [
        ((item.key[2] - base) // SECTOR, len(item.data) // 4) for item in made.tree(CSUM).items()
    ]


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 3000), st.integers(1, 1500)),
        min_size=1,
        max_size=30,
    )
)
def test_csums(operations: list[tuple[bool, int, int]]) -> None:
    """Every sector has the checksum that it was given last, in items that do not overlap."""
    made, base = writer(), METADATA + (32 << 20)
    wanted: dict[int, bytes] = {}
    for number, (insert, start, count) in enumerate(operations):
        if not insert:
            made.delete_csums(base + start * SECTOR, count * SECTOR)
            for sector in range(start, start + count):
                wanted.pop(sector, None)
            continue
        # an extent is new: nothing in it has a checksum yet
        while count and any(sector in wanted for sector in range(start, start + count)):
            count //= 2
        if count:
            sums = [struct.pack("<HH", number, n) for n in range(count)]
            made.insert_csums(base + start * SECTOR, b"".join(sums), count)
            wanted.update(zip(range(start, start + count), sums, strict=True))
    found: dict[int, bytes] = {}
    for item in made.tree(CSUM).items():
        assert (*item.key[:2],) == CSUM_KEY
        data, first = bytes(item.data), (item.key[2] - base) // SECTOR
        assert 0 < len(data) // 4 <= (4096 - 101 - 50) // 4 - 1
        for n in range(len(data) // 4):
            assert first + n not in found
            found[first + n] = data[n * 4 : n * 4 + 4]
    assert found == wanted


def test_csum_items_that_overlap_are_refused() -> None:
    """In a damaged tree the rest of an item would get the key of the next one."""
    made, base = writer(), METADATA + (32 << 20)
    made.insert_csums(base, bytes(400), 100)
    made.insert(CSUM, (*CSUM_KEY, base + 92 * SECTOR), bytes(20))
    with pytest.raises(bm.errors.CorruptImageError, match=r"tree 7.*key is not greater"):
        made.delete_csums(base + 50 * SECTOR, 42 * SECTOR)
    assert made.aborted


def test_csum_items_grow() -> None:
    made, base = writer(nodesize=16384), METADATA + (32 << 20)
    made.insert_csums(base, bytes(40), 10)
    made.insert_csums(base + 10 * SECTOR, bytes(40), 10)
    assert csum_items(made) == [(0, 20)]
    # to the most that an item may have, 4057; the next one begins with a single checksum
    made.insert_csums(base + 20 * SECTOR, bytes(4 * 5000), 5000)
    assert csum_items(made) == [(0, 4057), (4057, 5020 - 4057)]
    made.delete_csums(base + 100 * SECTOR, 10 * SECTOR)
    assert csum_items(made) == [(0, 100), (110, 3947), (4057, 963)]
    with pytest.raises(ValueError, match="39 bytes are not 10 checksums"):
        made.insert_csums(base, bytes(39), 10)


def test_no_space_for_blocks() -> None:
    made = writer(metadata=1 << 20)
    with pytest.raises(OSError, match="No space left") as caught:
        for tree in range(1000, 2000):
            made.new_tree(tree)
    assert caught.value.errno == errno.ENOSPC
    assert made.groups()[0].free == 0


@pytest.mark.parametrize("ssd", [False, True])
def test_log_trees_have_no_references(ssd: bool) -> None:
    made = writer(ssd=ssd)
    commit(made)
    free = made.groups()[0].free
    made.new_tree(1000, owner=2**64 - 6)
    made.insert(1000, (256, 1, 0), bytes(160))
    assert made.waiting_refs() == 0
    assert made.groups()[0].free == free - made.image.nodesize
    made.drop_tree(1000)
    assert made.groups()[0].free == free
    check(made)


def test_shared_block_of_its_owner_refers_by_itself() -> None:
    """The owner leaves a block that a snapshot has: it becomes FULL_BACKREF."""
    files = Files(writer())
    files.write(FIRST, FIRST, 0, 1, csums=True)
    for size in range(1, 60):
        files.fill(FIRST, FIRST + size, size * 10)
    files.snapshot(FIRST)
    files.commit()
    assert not any(flags & FULL_BACKREF for flags in files.check().flags.values())
    files.fill(FIRST, FIRST, 7)
    files.commit()
    full = [flags for flags in files.check().flags.values() if flags & FULL_BACKREF]
    assert len(full) == 1
    # a change of the snapshot copies the block, which nobody has any more then
    files.fill(FIRST + 1, FIRST, 7)
    files.commit()
    assert not any(flags & FULL_BACKREF for flags in files.check().flags.values())


# --------------------------------------------------------------------------------- size classes --


def data_groups(fs: WritableFilesystem) -> int:
    return sum(1 for group in fs.writer.groups() if group.flags & 1)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([4096, 128 << 10, 8192], 1),
        ([4096, 132 << 10], 2),
        ([132 << 10, 4096, 1 << 20, 8192], 2),
        ([12 << 20, 4096, 132 << 10, 16 << 20], 3),
    ],
)
def test_extents_of_another_size_class_get_a_chunk(sizes: list[int], groups: int) -> None:
    for behaviour, wanted in ("v6.18.44", groups), ("v6.18.44 - alloc-size-class", None):
        with bm.create(1 << 30) as fs:
            fs.behaviour = Behaviour.parse(behaviour)
            for number, size in enumerate(sizes):
                fs.create(f"f{number}")
                fs.write(f"f{number}", 0, b"x" * size)
                fs.flush_delalloc()
            # without classes there are as many as hold all of it
            assert data_groups(fs) == (wanted or 1 + (sum(sizes) > 8 << 20))
            fs.sync()
            assert bm.check(fs) == []


def test_a_group_without_extents_is_for_any_size_class(tmp_path: Path) -> None:
    with bm.create(1 << 30) as fs:
        for size, groups in (4096, 1), (1 << 20, 1), (4096, 2):
            fs.create("f")
            fs.write("f", 0, b"x" * size)
            fs.sync()
            assert data_groups(fs) == groups
            if groups == 1:
                keep = size == 1 << 20
                fs.rename("f", "kept") if keep else fs.unlink("f")
                fs.sync()
        fs.save(tmp_path / "image")
    # a mount looks what is there
    with WritableFilesystem.load(tmp_path / "image") as fs:
        fs.create("g")
        fs.write("g", 0, b"x" * (1 << 20))
        fs.create("h")
        fs.write("h", 0, b"x" * 4096)
        fs.sync()
        assert data_groups(fs) == 2


@pytest.mark.claim(
    "What decides about room is kept as sums; they are what a count of everything gives."
)
@given(st.integers(0, 2**32), st.integers(1, 80))
def test_sums_are_those_of_a_count(seed: int, calls: int) -> None:
    choice, fs = random.Random(seed), WritableFilesystem.mkfs("256M", seed=seed)
    ours = ModelCalls(fs)
    for _ in range(calls):
        run(ours, random_call(choice, subvolumes=True))
        if not choice.randrange(20):
            fs.commit()
        waiting = fs.delayed.nodes.values()
        counted = [node.waits(fs.nodesize - HEADER.size) for node in waiting]
        assert len(fs.delayed) == sum(waits.items for waits in counted)
        assert fs.delayed.paths == sum(waits.paths for waits in counted)
        assert fs.delayed.nbytes == sum(
            ITEM.size + len(payload) for node in waiting for payload in node.insertions.values()
        )
        groups = fs.writer.groups()
        kind = [group for group in groups if group.flags & METADATA_GROUP]
        info = fs.writer.space_info(METADATA_GROUP)
        assert info.total == sum(group.length for group in kind)
        assert info.free == sum(group.free for group in kind)
        assert info.pinned == sum(group.pinned for group in kind)
        assert info.stale_groups == sum(group.used != group.commit_used for group in groups)
        trees = [tree for tree in (2, 7, 10, 11) if fs.writer.has_tree(tree)]
        assert info.trees == len(trees)
        assert info.tree_bytes == sum(fs.writer.tree_state(tree).bytes_used for tree in trees)
    fs.writer.run_refs()
    info = fs.writer.space_info(METADATA_GROUP)
    assert (info.refs, info.losing) == (0, 0)


def test_extents_that_lose_references_are_counted() -> None:
    """``csum_bytes`` of the kernel's delayed references: one for each extent, whatever it loses."""
    fs = WritableFilesystem.mkfs("256M")
    for name in ("one", "two", "clone"):
        fs.create(name)
    for name in ("one", "two"):
        fs.write(name, 0, bytes(1 << 16))
    fs.sync()
    fs.clone_range("one", "clone", 0, 0, 0)
    # a new reference waits, and an old one that goes makes up for it
    assert fs.writer.space_info(METADATA_GROUP).losing == 0
    fs.unlink("two")
    assert fs.writer.space_info(METADATA_GROUP).losing == 1
    fs.unlink("one")
    assert fs.writer.space_info(METADATA_GROUP).losing == 1
    fs.unlink("clone")
    assert fs.writer.space_info(METADATA_GROUP).losing == 2
    fs.writer.run_refs()
    assert fs.writer.space_info(METADATA_GROUP).losing == 0


@pytest.mark.claim("A look for room counts only files that changed since the last one.")
def test_a_look_for_room_counts_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    count = level._extents_of
    monkeypatch.setattr(level, "_extents_of", lambda *args: counted.append(1) or count(*args))
    fs, files = WritableFilesystem.mkfs("1G"), 1500
    for number in range(files):
        fs.create(f"{number}")
        fs.write(f"{number}", 0, bytes(1950))
    assert files / 2 <= len(counted) <= 2 * files
