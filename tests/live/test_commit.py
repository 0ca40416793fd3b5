# SPDX-License-Identifier: GPL-2.0-only
"""Commits, judged by btrfs check and by the running kernel, which goes on with what was written."""

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import pytest
from by_hand import SECTOR, Folder
from corpus import copy_sparse
from damage import Broken
from hypothesis import given, settings
from hypothesis import strategies as st
from live import beside_the_kernel, mounted
from progs import btrfs_check

import btrfs_model as bm
from btrfs_model.mount.mkfs.layout import Format
from btrfs_model.mount.space import block_group
from btrfs_model.mount.space.data import ensure_data
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import DEV_EXTENT, FREE_SPACE_INFO, ROOT_ITEM, SUPER_BLOCK
from btrfs_model.ondisk.superblock import SUPER_OFFSETS
from btrfs_model.ondisk.superblock_write import write_superblocks

GIB = 1 << 30
MIN_DEVICE = Format(0).smallest
INITIALIZED = 1 << 31
"""``BTRFS_INODE_ROOT_ITEM_INIT``."""
judged_live = beside_the_kernel
FEATURES = ["csum-blake2", "csum-sha256", "csum-xxhash", "dup", "extended-refs", "metadata-uuid",
            "mixed", "mixed-dup", "no-holes-off", "nodesize-4096", "nodesize-65536", "quota",
            "skinny-metadata-off", "space-cache-v1", "zstd"]  # fmt: skip


@pytest.fixture
def fs() -> Iterator[bm.WritableFilesystem]:
    """A fresh filesystem with small nodes, so that trees grow."""
    with bm.create(GIB, 4096, seed=7) as fresh:
        yield fresh


def good(fs: bm.WritableFilesystem, path: Path) -> None:
    """Save; nobody finds anything wrong."""
    fs.save(path)
    assert bm.check(fs) == []
    assert btrfs_check(path, data=False) == ""


def superblocks(path: Path) -> list[Any]:
    """All superblocks of an image."""
    blocks = []
    with path.open("rb") as file:
        for offset in SUPER_OFFSETS:
            file.seek(offset)
            block = file.read(4096)
            if len(block) == 4096:
                blocks.append(SUPER_BLOCK.unpack(block))
    return blocks


# -------------------------------------------------------------------------------- transactions --


def test_what_was_committed_is_read(fs: bm.WritableFilesystem, tmp_path: Path) -> None:
    folder = Folder(fs)
    folder.mkdir(b"d")
    folder.write_inline(b"f", b"content")
    assert "f" not in fs.listing(5)["path"].tolist()
    assert fs.commit()
    assert fs.read_file(5, "f") == b"content"
    assert fs.transid == 8
    good(fs, tmp_path / "image")
    with bm.open(tmp_path / "image") as again:
        assert again.read_file(5, "f") == b"content"


def test_empty_transactions_are_not_committed(fs: bm.WritableFilesystem) -> None:
    before = bytes(fs.memory.buffer[: 1 << 17])
    assert not fs.commit()
    assert fs.transid == 7
    assert fs.memory.buffer[: 1 << 17] == before
    fs.live_root(5).dirty = True
    assert fs.commit()
    assert not fs.commit()


@pytest.mark.claim("`btrfs check` finds nothing wrong after random commits.", judge="progs")
@given(
    batches=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=60), min_size=1, max_size=5),
    nodesize=st.sampled_from([4096, 8192]),
)
@settings(max_examples=12)
def test_random_commits(batches: list[list[int]], nodesize: int, tmp_path_factory: Any) -> None:
    """Names come and go; after every commit everything fits together."""
    with bm.create(MIN_DEVICE, nodesize, seed=len(batches)) as fs:
        folder = Folder(fs)
        for batch in batches:
            for number in batch:
                # long names, so that few of them fill a leaf
                name = b"%03d" % number * 50
                if name in folder.files:
                    folder.unlink(name)
                elif number % 3:
                    folder.write_inline(name, bytes(number * 20))
                else:
                    folder.mkdir(name)
            fs.commit()
            assert bm.check(fs) == []
        found = {path.encode() for path in fs.listing(5)["path"]} - {b""}
        assert found == set(folder.files)
        path = tmp_path_factory.mktemp("random") / "image"
        fs.save(path)
    assert btrfs_check(path) == ""


def test_subvolumes(fs: bm.WritableFilesystem, tmp_path: Path) -> None:
    top = Folder(fs)
    for number in range(40):
        inner = top.subvolume(b"sub%d" % number)
        inner.write_inline(b"f", b"in %d" % number)
        if number % 10 == 0:
            fs.commit()
    good(fs, tmp_path / "image")
    assert fs.subvolume_ids == [5, *range(256, 296)]
    assert fs.read_file("sub7", "f") == b"in 7"
    assert fs.next_root_id() == 296
    with pytest.raises(FileNotFoundError, match="no tree 999"):
        fs.live_root(999)


def test_deleted_subvolume_takes_its_data_along(fs: bm.WritableFilesystem, tmp_path: Path) -> None:
    fs.create_subvolume("sub")
    fs.create("sub/file")
    fs.write("sub/file", 0, b"d" * 100_000)
    fs.delete_subvolume("sub")
    assert fs.clean_subvolumes() == [256]
    good(fs, tmp_path / "image")
    assert fs.subvolume_ids == [5]


def test_same_calls_same_bytes(tmp_path: Path) -> None:
    def make(path: Path, seed: int) -> bytes:
        with bm.create(MIN_DEVICE, seed=seed) as fs:
            folder = Folder(fs)
            folder.subvolume(b"s").write_extents(b"x", [b"x" * SECTOR] * 3)
            fs.commit()
            folder.mkdir(b"d")
            fs.save(path)
        return path.read_bytes()

    once = make(tmp_path / "1", 1)
    assert once == make(tmp_path / "2", 1)
    assert once != make(tmp_path / "3", 2)


def test_clock_and_uuids(fs: bm.WritableFilesystem) -> None:
    first, second = fs.now(), fs.now()
    assert first < second == fs.clock - (second - first)
    uuids = {fs.new_uuid() for _ in range(9)}
    assert len(uuids) == 9
    assert all(uuid[6] >> 4 == 4 and uuid[8] >> 6 == 2 for uuid in uuids)


# ------------------------------------------------------------------------------ the superblock --


def test_superblocks_and_backups(fs: bm.WritableFilesystem, tmp_path: Path) -> None:
    folder, roots = Folder(fs), {}
    for number in range(6):
        folder.mkdir(b"%d" % number)
        fs.commit()
        roots[fs.raw_super.generation] = fs.raw_super.root
    good(fs, tmp_path / "image")
    first, second = superblocks(tmp_path / "image")
    assert second == first._replace(bytenr=SUPER_OFFSETS[1], csum=second.csum)
    assert first.generation == first.uuid_tree_generation == 12
    # cell 1 was that of mkfs.btrfs, transaction 6
    cells = [cell.tree_root_gen for cell in first.super_roots]
    assert cells == [9, 10, 11, 12]
    assert all(cell.tree_root == roots[cell.tree_root_gen] for cell in first.super_roots)
    assert first.bytes_used == sum(group.used for group in fs.writer.groups())
    if shutil.which("btrfs"):
        command = ["btrfs", "inspect-internal", "dump-super", "-fa", str(tmp_path / "image")]
        text = subprocess.check_output(command, text=True)
        assert text.count("[match]") == 2 * 3
        assert "DON'T MATCH" not in text


def test_features_of_a_mount(tmp_path: Path) -> None:
    """What a mount switches on goes to the superblock with the first commit."""
    for nodesize, compress, wanted in [(4096, None, set()), (16384, "zlib", {"BIG_METADATA"}),
                                       (4096, "lzo", {"COMPRESS_LZO"}),
                                       (4096, "zstd", {"COMPRESS_ZSTD"})]:  # fmt: skip
        with bm.create(MIN_DEVICE, nodesize, compress=compress) as fs:
            Folder(fs).mkdir(b"d")
            fs.commit()
            names = {"BIG_METADATA", "COMPRESS_LZO", "COMPRESS_ZSTD"}
            assert {n for n in names if fs.image.superblock.has_incompat(n)} == wanted
    with pytest.raises(ValueError, match="gzip"):
        bm.create(MIN_DEVICE, compress="gzip")


def top_level_item(fs: bm.Filesystem) -> Any:
    """The root item of the top level, as it is on disk."""
    item = fs.root_tree.get((ObjectId.FS_TREE, ItemType.ROOT_ITEM, 0))
    assert item is not None
    return ROOT_ITEM.unpack(item.data)


def test_the_top_level_counts_as_initialized_once_it_is_written(tmp_path: Path) -> None:
    """mkfs.btrfs does not say so; a mount takes it so, and what it writes says so."""
    with bm.create(MIN_DEVICE) as fs:
        fresh = top_level_item(fs)
        assert fresh.inode.flags == 0
        assert fs.subvolume(5).item.inode.flags == INITIALIZED
        # neither to look at it nor a commit of other trees is a reason to write it
        assert fs.live_root(5).inode.flags == INITIALIZED
        assert not fs.commit()
        start_transaction(fs)
        fs.commit()
        assert top_level_item(fs) == fresh
        fs.create("file")
        fs.snapshot("", "snapshot")
        fs.commit()
        assert top_level_item(fs).inode.flags == INITIALIZED
        assert fs.subvolume("snapshot").is_read_only
        assert fs.subvolume("snapshot").item.inode.flags == INITIALIZED


def test_flags_of_an_item_that_was_not_initialized_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "image"
    with bm.create(MIN_DEVICE) as fs:
        fs.create("file")
        fs.snapshot("", "snapshot")
        fs.sync()
        live = fs.live_root(256)
        live.inode = live.inode._replace(flags=0)
        live.byte_limit = 1 << 20
        fs.save(path)
    with bm.open(path) as old:
        assert not old.subvolume("snapshot").is_read_only
        with pytest.raises(PermissionError):
            bm.send(old, "snapshot")
    with bm.WritableFilesystem.load(path) as fs:
        fs.create("snapshot/new")
        fs.commit()
        item = fs.subvolume("snapshot").item
        assert (item.flags, item.byte_limit, item.inode.flags) == (0, 0, INITIALIZED)


# ----------------------------------------------------------------------------------- the space --


@pytest.mark.parametrize(
    ("flags", "total", "wanted"),
    [
        (1, 1 << 30, ((1 << 30) * 10 // 100, 1 << 30)),
        (1, 300 << 30, (10 << 30, 1 << 30)),
        (2, 300 << 30, (32 << 20, 32 << 20)),
        (4, 50 << 30, (256 << 20, 256 << 20)),
        (4, (50 << 30) + 1, (1 << 30, 1 << 30)),
    ],
)
def test_chunk_sizes(flags: int, total: int, wanted: tuple[int, int]) -> None:
    assert block_group.chunk_sizes(flags, total) == wanted


def test_chunks_are_added(tmp_path: Path) -> None:
    with bm.create(3 * GIB, seed=1) as fs:
        folder = Folder(fs)
        folder.write_extents(b"data", [bytes([n]) * (1 << 20) for n in range(1, 20)])
        for kind in (2, 4, 4):
            block_group.allocate_chunk(fs, kind)
        good(fs, tmp_path / "image")
        kinds = [chunk.type & 7 for chunk in fs.image.chunks]
        assert kinds == [1, 2, 4, 1, 2, 4, 4]
        assert fs.read_file(5, "data", 5 << 20, 1 << 20) == bytes([6]) * (1 << 20)
    with bm.WritableFilesystem.load(tmp_path / "image") as again:
        Folder(again).write_extents(b"more", [b"m" * SECTOR])
        good(again, tmp_path / "image")


def test_device_fills_up(tmp_path: Path) -> None:
    with bm.create(MIN_DEVICE, seed=1) as fs:
        folder = Folder(fs)
        with pytest.raises(OSError, match="No space left"):
            ensure_data(fs, 200 << 20)
        # all that the device had is now data
        free = sum(group.free for group in fs.writer.groups() if group.flags & 1)
        folder.write_extents(b"all", [b"a" * SECTOR] * (free // SECTOR))
        block_group.ensure_metadata(fs)
        good(fs, tmp_path / "image")
        with pytest.raises(OSError, match="No space left"):
            fs.writer.reserve_data(SECTOR, SECTOR)


def test_metadata_fills_up(tmp_path: Path) -> None:
    """A call that has no room is refused before it changes anything."""
    with bm.create(MIN_DEVICE, 16384, seed=1) as fs:
        with pytest.raises(OSError, match="No space left"):
            ensure_data(fs, 200 << 20)
        made = 0
        with pytest.raises(OSError, match="No space left"):
            for number in range(3000):
                fs.create(f"file{number}")
                fs.setxattr(f"file{number}", "user.large", bytes([number % 256]) * 15000)
                made = number
                if number % 300 == 0:
                    fs.commit()
        assert made * 16384 > 16 << 20
        good(fs, tmp_path / "image")
        values = fs.subvolume(5).xattrs(f"file{made}")
        assert values == {b"user.large": bytes([made % 256]) * 15000}
        # what was deleted makes room again
        for number in range(0, made, 2):
            fs.unlink(f"file{number}")
        fs.commit()
        fs.create("again")
        good(fs, tmp_path / "image")


def fill_with_data(fs: bm.WritableFilesystem) -> None:
    """Leave the device no room for another chunk."""
    with pytest.raises(OSError, match="No space left"):
        ensure_data(fs, 1 << 40)


def test_items_that_wait_get_a_chunk(tmp_path: Path) -> None:
    """What waits for the commit did not fit into what was free, while the device had room."""
    with bm.create(1 << 30, seed=1) as fs:
        fs.create_files("", [f"{number:0245}" for number in range(48_000)])
        # four fifths are not in use, so that alone asks for no chunk
        groups = [group for group in fs.writer.groups() if group.flags & 4]
        assert fs.commit()
        assert sum(group.used for group in fs.writer.groups() if group.flags & 4) > groups[0].length
        fs.save(tmp_path / "image")
        assert btrfs_check(tmp_path / "image") == ""


@pytest.mark.parametrize(("nodesize", "metadata"), [(4096, "single"), (65536, "dup")])
def test_full_device(nodesize: int, metadata: str, tmp_path: Path) -> None:
    """Whatever is refused for want of room leaves a filesystem that can be committed.

    Beside snapshots 6.18.44 refuses unlink() too, after 928 of 6,862 names.
    """
    names = [f"{number:0120}" for number in range(80_000)]

    def create(fs: bm.WritableFilesystem) -> None:
        for first in range(0, len(names), 4000):
            fs.create_files("", names[first : first + 4000])

    def touch(fs: bm.WritableFilesystem) -> None:
        for name in [name for name in fs.listing(5)["path"] if len(name) == 120][::100]:
            fs.utimes(name, 1, 1)

    def snapshot(fs: bm.WritableFilesystem) -> None:
        for number in range(100):
            fs.snapshot("", f"snapshot{number}")

    def unlink(fs: bm.WritableFilesystem) -> None:
        fs.unlink_files("", [name for name in fs.listing(5)["path"] if len(name) == 120])

    with bm.create(MIN_DEVICE, nodesize, seed=1, metadata=metadata) as fs:
        fill_with_data(fs)
        for call, ends in ((create, "full"), (touch, "well"), (snapshot, ""), (unlink, "")):
            try:
                call(fs)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                assert ends != "well"
            else:
                assert ends != "full"
            good(fs, tmp_path / "image")


def test_old_leaves_that_change_at_once(tmp_path: Path) -> None:
    """Inode items that wait have leaves copied that take more than is free."""
    with bm.create(MIN_DEVICE, seed=1) as fs:
        fill_with_data(fs)
        names = [f"{number:0200}" for number in range(23_500)]
        with pytest.raises(OSError, match="No space left"):
            fs.create_files("", names)
        fs.commit()
        names = sorted(name for name in fs.listing(5)["path"] if len(name) == 200)
        for number, name in enumerate(names[::20]):
            fs.utimes(name, number, number)
        good(fs, tmp_path / "image")
        inode = fs.subvolume(5).inode(names[::20][-1])
        assert inode.mtime == len(names[::20]) - 1


def free_space_forms(fs: bm.Filesystem) -> dict[int, tuple[int, int]]:
    """Of each block group in the free space tree: number of extents, flags."""
    return {
        item.key.objectid: FREE_SPACE_INFO.unpack(item.data)
        for item in fs.tree(ObjectId.FREE_SPACE_TREE).items()
        if item.key.type == ItemType.FREE_SPACE_INFO
    }


def test_bitmaps_come_and_go(tmp_path: Path) -> None:
    """A group of 1 GiB takes bitmaps above 1438 extents, and extents again below 1338."""
    with bm.create(20 * GIB, seed=1) as fs:
        folder = Folder(fs)
        ensure_data(fs, 10 << 20)
        fill = folder.write_extents(b"fill", [b"f" * (1 << 20)] * 8)
        rows = folder.write_extents(b"data", [b"%04d" % n * 1024 for n in range(2900)])
        group = max(g.start for g in fs.writer.groups())
        assert all(row[0] < group for row in fill)
        assert all(row[0] >= group for row in rows)
        fs.commit()
        # with the free space behind the file, 1438 free extents
        folder.punch(rows[0 : 2 * 1437 : 2])
        fs.commit()
        assert free_space_forms(fs)[group] == (1438, 0)
        folder.punch(rows[2 * 1437 : 2 * 1437 + 1])
        good(fs, tmp_path / "image")
        assert free_space_forms(fs)[group] == (1439, 1)
        # each joins two neighbours: 1338 are not yet few enough
        folder.punch(rows[1 : 2 * 101 : 2])
        good(fs, tmp_path / "image")
        assert free_space_forms(fs)[group] == (1338, 1)
        folder.punch(rows[2 * 101 + 1 : 2 * 101 + 2])
        good(fs, tmp_path / "image")
        assert free_space_forms(fs)[group] == (1337, 0)


def test_bitmap_bits(tmp_path: Path) -> None:
    """Space that is taken and given back across the seams of bitmaps."""
    with bm.create(2 * GIB, seed=1) as fs:
        folder = Folder(fs)
        folder.write_extents(b"fill", [b"f" * (1 << 20)] * 8)
        ensure_data(fs, 100 << 20)
        # runs from 4 KiB to 3 MiB, over the seams at every 8 MiB
        sizes = [SECTOR * (1 + n * n % 700) for n in range(110)]
        rows = folder.write_extents(b"data", [bytes([n]) * size for n, size in enumerate(sizes)])
        small = folder.write_extents(b"small", [b"s" * SECTOR] * 900)
        fs.commit()
        folder.punch(small[::2])
        good(fs, tmp_path / "image")
        assert 1 in {flags for _, flags in free_space_forms(fs).values()}
        for step in (3, 2, 1):
            gone, rows = rows[::step], [row for n, row in enumerate(rows) if n % step]
            folder.punch(gone)
            good(fs, tmp_path / "image")
            folder.write_extents(b"again%d" % step, [b"a" * (SECTOR * n) for n in range(1, 60)])
            good(fs, tmp_path / "image")


# ----------------------------------------------------------------- beside the running kernel ----


def punch_hole(fd: int, offset: int) -> None:
    """Punch a sector out of a file (``FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE``)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 3, ctypes.c_int64(offset), ctypes.c_int64(SECTOR)):
        raise OSError(ctypes.get_errno(), "fallocate")


def tree_places(fs: bm.Filesystem) -> dict[int, tuple[int, int, list[Any]]]:
    """Where each tree is, and its keys."""
    return {
        number: (tree.bytenr, tree.generation, [item.key for item in tree.items()])
        for number, tree in fs.trees.items()
    }


@judged_live
@pytest.mark.parametrize("nodesize", [4096, 16384])
def test_first_commit_is_the_kernels(nodesize: int, tmp_path: Path) -> None:
    """A new directory: the same blocks at the same addresses, the same superblock."""
    theirs, copy = tmp_path / "theirs", tmp_path / "copy"
    with bm.create(MIN_DEVICE, nodesize, seed=3) as fs:
        fs.save(theirs)
        with mounted(theirs, "nossd,commit=900") as top:
            (top / "d").mkdir()
            subprocess.run(["btrfs", "filesystem", "sync", str(top)], check=True)
            # before the unmount, which commits again
            copy_sparse(theirs, copy)
        Folder(fs).mkdir(b"d")
        fs.commit()
        with bm.open(copy) as kernels:
            assert tree_places(fs) == tree_places(kernels)
            for number in (ObjectId.EXTENT_TREE, ObjectId.FREE_SPACE_TREE, ObjectId.DEV_TREE):
                ours, others = fs.tree(number).items(), kernels.tree(number).items()
                assert [bytes(a.data) for a in ours] == [bytes(b.data) for b in others]
    ours, kernel = fs.raw_super, superblocks(copy)[0]
    assert kernel == ours._replace(csum=kernel.csum, bytenr=kernel.bytenr,
                                   sys_chunk_array=kernel.sys_chunk_array)  # fmt: skip


SYNC = ("sync", "")
FILES = [("create", f"f{number}") for number in range(60)]
SCRIPTS = {
    "create": [*FILES, SYNC],
    "unlink": [*FILES, SYNC, *(("unlink", name) for _, name in FILES[::3]), SYNC],
    "commits": [step for file in FILES[:20] for step in (file, SYNC)],
    "snapshots": [*FILES[:20], SYNC, ("subvolume", "v"), ("snapshot", "s1"), ("create", "x"),
                  ("snapshot", "s2"), ("create", "y"), SYNC, *FILES[20:], ("snapshot", "s3")],
}  # fmt: skip


def in_kernel(top: Path, call: str, name: str) -> None:
    """A step of a script below a mount point."""
    if call == "create":
        (top / name).touch()
    elif call == "unlink":
        (top / name).unlink()
    else:
        target = str(top / name)
        arguments = {
            "sync": ["filesystem", "sync", target],
            "subvolume": ["subvolume", "create", target],
            "snapshot": ["subvolume", "snapshot", "-r", str(top), target],
        }
        subprocess.run(["btrfs", "-q", *arguments[call]], check=True, capture_output=True)


def in_model(fs: bm.WritableFilesystem, call: str, name: str) -> None:
    """The same step in the model."""
    calls = {
        "create": fs.create,
        "unlink": fs.unlink,
        "subvolume": fs.create_subvolume,
        "snapshot": lambda path: fs.snapshot("", path),
        "sync": lambda _: fs.sync(),
    }
    calls[call](name)


@pytest.mark.claim(
    "After runs of calls with snapshots every tree block is at the running kernel's address."
)
@judged_live
@pytest.mark.parametrize("kernels", ["c", "python"])
@pytest.mark.parametrize("nodesize", [4096, 16384])
@pytest.mark.parametrize("script", SCRIPTS)
def test_all_blocks_are_the_kernels(
    script: str, nodesize: int, kernels: str, tmp_path: Path
) -> None:
    """After a run of calls every tree block is at the kernel's address, with as many items."""
    theirs, copy = tmp_path / "theirs", tmp_path / "copy"
    with bm.use_code(kernels), bm.create(MIN_DEVICE, nodesize, seed=3) as fs:
        fs.save(theirs)
        with mounted(theirs, "nossd,commit=900") as top:
            for step in SCRIPTS[script]:
                in_kernel(top, *step)
            copy_sparse(theirs, copy)
        for step in SCRIPTS[script]:
            in_model(fs, *step)
        with bm.open(copy) as other:
            assert list(fs.trees) == list(other.trees)
            for number in fs.trees:
                ours, kernel = fs.trees[number].blocks(), other.trees[number].blocks()
                # uuids are random
                if number == ObjectId.UUID_TREE:
                    ours = [block._replace(first=kernel[0].first) for block in ours]
                assert ours == kernel


@pytest.mark.claim("New chunks are those of the running kernel.")
@judged_live
def test_chunks_are_the_kernels(tmp_path: Path) -> None:
    """The kernel needs a data chunk: the model's is as large and lies where it lies."""
    path = tmp_path / "theirs"
    for size in (MIN_DEVICE + (200 << 20), 2 * GIB, 30 * GIB):
        with bm.create(size, seed=3) as fs:
            fs.save(path)
            with mounted(path, "nossd") as top:
                (top / "f").write_bytes(bytes(range(256)) * (9 << 12))
                subprocess.run(["btrfs", "filesystem", "sync", str(top)], check=True)
            ensure_data(fs, 9 << 20)
            with bm.open(path) as kernels:
                assert kernels.image.chunks == fs.image.chunks
                key = (256, ItemType.CHUNK_ITEM, fs.image.chunks[-1].logical)
                new = kernels.chunk_tree.get(key)
                assert new is not None
                assert fs.writer.get(ObjectId.CHUNK_TREE, key) == bytes(new.data)


@judged_live
def test_device_extents_are_the_kernels(tmp_path: Path) -> None:
    """A device fills up: behind the chunks of mkfs.btrfs, then in the hole before them."""
    path, data = tmp_path / "theirs", bytes(range(256)) * (1 << 14)
    with bm.create(128 << 20, seed=3) as fs:
        fs.save(path)
        with mounted(path, "nossd") as top:
            # the leaf is copied before chunks are added
            for name in ("first", *map(str, range(7))):
                content = data if name != "first" else b""
                fs.create(name)
                fs.write(name, 0, content)
                fs.sync()
                (top / name).write_bytes(content)
                subprocess.run(["btrfs", "filesystem", "sync", str(top)], check=True)
        with bm.open(path) as kernels:
            ours, theirs = (
                [(item.key, bytes(item.data)) for item in each.tree(ObjectId.DEV_TREE).items()]
                for each in (fs, kernels)
            )
        assert ours == theirs
        uuids = {DEV_EXTENT.unpack(data).chunk_tree_uuid
                 for key, data in ours if key.type == ItemType.DEV_EXTENT}  # fmt: skip
        assert len(uuids) == 2
        assert bytes(16) in uuids


@pytest.mark.claim("The free space tree is the running kernel's.")
@judged_live
def test_free_space_tree_is_the_kernels(tmp_path: Path) -> None:
    """A file is punched extent by extent: at the same one both turn to bitmaps."""
    path, start = tmp_path / "theirs", tmp_path / "start"
    with bm.create(MIN_DEVICE, seed=3) as fresh:
        fresh.save(path)
    with mounted(path, "nossd,nodatasum") as top:
        fd = os.open(top / "f", os.O_CREAT | os.O_RDWR | os.O_DSYNC)
        for number in range(30):
            os.pwrite(fd, bytes([number + 1]) * SECTOR, number * SECTOR)
        os.close(fd)
    copy_sparse(path, start)
    with bm.WritableFilesystem.load(start) as fs:
        folder = Folder(fs)
        extents = fs.tree(5).items((257, 108, 0), (257, 108, 2**64 - 1))
        rows = [
            (int.from_bytes(item.data[21:29], "little"), SECTOR, 0, 5, 257, item.key.offset)
            for item in extents
        ]
        assert len(rows) == 30
        forms = []
        # 11 free extents, with the one behind the file, are the most without bitmaps
        for count in (9, 1, 1, 1):
            gone, rows = rows[: 2 * count : 2], rows[2 * count :]
            with mounted(path, "nossd") as top, (top / "f").open("r+b") as file:
                for row in gone:
                    punch_hole(file.fileno(), row[5])
            folder.punch(gone)
            fs.commit()
            with bm.open(path) as kernels:
                group = (fs.image.chunks[0].logical, fs.image.chunks[0].end)
                ours, others = (
                    [(item.key, bytes(item.data)) for item in each.tree(10).items()
                     if group[0] <= item.key.objectid < group[1]]
                    for each in (fs, kernels)
                )  # fmt: skip
                assert ours == others
            forms.append(free_space_forms(fs)[group[0]])
        assert forms == [(10, 0), (11, 0), (12, 1), (13, 1)]


@pytest.mark.claim(
    "The running kernel mounts and scrubs what the model committed, and goes on with it."
)
@judged_live
def test_kernel_goes_on(tmp_path: Path) -> None:
    """The kernel mounts what was written, changes it, scrubs it; the model goes on with that."""
    path = tmp_path / "image"
    with bm.create(GIB, 4096, seed=5) as fs:
        folder = Folder(fs)
        folder.write_extents(b"data", [bytes([n]) * SECTOR * n for n in range(1, 80)])
        inner = folder.subvolume(b"sub")
        for number in range(300):
            inner.mkdir(b"d%d" % number)
        fs.save(path)
    with mounted(path, "rw") as top:
        assert (top / "data").read_bytes() == b"".join(
            bytes([n]) * SECTOR * n for n in range(1, 80)
        )
        assert len(list((top / "sub").iterdir())) == 300
        (top / "sub" / "new").write_bytes(b"n" * 100_000)
        shutil.rmtree(top / "sub" / "d7")
        done = subprocess.run(["btrfs", "scrub", "start", "-B", str(top)], check=True,
                              capture_output=True, text=True)  # fmt: skip
        assert "no errors found" in done.stdout
    with bm.WritableFilesystem.load(path) as fs:
        Folder(fs).mkdir(b"after")
        good(fs, path)
        assert fs.read_file("sub", "new") == b"n" * 100_000


# ---------------------------------------------------------------------------- images of kernels --


@pytest.mark.parametrize("name", FEATURES)
def test_images_of_kernels_are_changed(name: str, tmp_path: Path) -> None:
    image = corpus.image(f"features/{name}")
    before = image.stat().st_mtime_ns
    with bm.WritableFilesystem.load(image, seed=1) as fs:
        used = fs.raw_super.bytes_used
        # the groups add up to what the kernel counted
        assert sum(group.used for group in fs.writer.groups()) == used
        folder = Folder(fs)
        folder.mkdir(b"model")
        folder.write_inline(b"inline", b"x" * 50)
        fs.commit()
        for number in range(20):
            folder.mkdir(b"m%d" % number)
        folder.write_extents(b"extents", [b"e" * SECTOR] * 3)
        good(fs, tmp_path / "image")
        assert fs.read_file(5, "extents") == b"e" * 3 * SECTOR
    assert image.stat().st_mtime_ns == before


@judged_live
@pytest.mark.parametrize("name", ["space-cache-v1", "skinny-metadata-off", "mixed"])
def test_kernel_takes_its_image_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    with bm.WritableFilesystem.load(corpus.image(f"features/{name}")) as fs:
        Folder(fs).mkdir(b"model")
        fs.save(path)
    with mounted(path, "rw") as top:
        assert (top / "model").is_dir()
        (top / "model" / "file").write_bytes(b"k" * 300_000)
    assert btrfs_check(path) == ""


# -------------------------------------------------------------------------------------- errors --


@pytest.mark.parametrize("name", ["features/mixed", "features/mixed-dup"])
def test_data_where_a_tree_block_was(name: str, tmp_path: Path) -> None:
    """Where data and metadata share groups, data get the place of a block that came and went."""
    with bm.WritableFilesystem.load(corpus.image(name)) as fs:
        fs.mkdir("many")
        contents = {}
        for turn in range(12):
            fs.create_files("many", [f"{turn}-{number:080}" for number in range(300)])
            fs.unlink_files("many", [f"{turn}-{number:080}" for number in range(290)])
            path, data = f"many/data{turn}", bytes([turn + 1]) * 50_000
            fs.create(path)
            fs.write(path, 0, data)
            fs.flush_delalloc()
            contents[path] = data
        good(fs, tmp_path / "image")
        for path, data in contents.items():
            assert fs.read_file(5, path) == data


def test_overlapping_stripes_are_refused(tmp_path: Path) -> None:
    """What is written to one chunk would be what the other one has."""
    path = tmp_path / "image"
    with bm.create(MIN_DEVICE) as fs:
        data = next(chunk for chunk in fs.image.chunks if chunk.type & 1)
        metadata = next(chunk for chunk in fs.image.chunks if chunk.type & 4)
        key = (256, int(ItemType.CHUNK_ITEM), data.logical)
        # the offset of the first stripe
        offset = metadata.stripes[0].to_bytes(8, "little")
        fs.writer.update(ObjectId.CHUNK_TREE, key, 56, offset)
        fs.save(path)
    with pytest.raises(bm.errors.CorruptImageError, match="image: tree 3, offset"):
        bm.WritableFilesystem.load(path)


def test_truncated_image(tmp_path: Path) -> None:
    path = tmp_path / "short"
    with bm.create(MIN_DEVICE) as fs:
        fs.save(path)
    os.truncate(path, MIN_DEVICE - 4096)
    with pytest.raises(bm.errors.CorruptImageError, match=r"short: the image is cut off"):
        bm.WritableFilesystem.load(path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"log_root": 30425088}, "log"),
        ({"compat_ro_flags": 1 << 9}, "features"),
        ({"compat_ro_flags": 1}, "free space tree"),
        ({"flags": 1 << 32}, "seed"),
        ({"flags": 1 << 2}, "errors"),
        ({"incompat_flags": 0x341 | 1 << 12}, "ZONED"),
    ],
)
def test_refused(change: dict[str, int], named: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    with bm.create(MIN_DEVICE) as fs:
        write_superblocks(fs.memory.buffer, fs.raw_super._replace(**change))
        fs.memory.save(path)
    with pytest.raises(bm.errors.UnsupportedError, match=rf"image: .*{named}"):
        bm.WritableFilesystem.load(path)


def test_wrong_block_group(tmp_path: Path) -> None:
    """An item that says another use than the extents is found before anything is changed."""
    path = tmp_path / "image"
    with bm.create(MIN_DEVICE) as fs:
        data = fs.writer.groups()[0]
        key = (data.start, int(ItemType.BLOCK_GROUP_ITEM), data.length)
        fs.writer.update(ObjectId.EXTENT_TREE, key, 1, b"\x10")
        fs.save(path)
    with pytest.raises(bm.errors.CorruptImageError, match="image: tree 2: impossible value 4096"):
        bm.WritableFilesystem.load(path)


def test_failed_commit_ends_it(tmp_path: Path) -> None:
    """As the kernel goes read-only: what was committed before is there, nothing else is."""
    with bm.create(MIN_DEVICE) as fs:
        folder = Folder(fs)
        folder.mkdir(b"before")
        fs.commit()
        before = superblocks_of(fs)
        folder.mkdir(b"after")

        def fail() -> None:
            raise OSError(28, "No space left on device")

        fs.pending_snapshots.append(fail)
        with pytest.raises(OSError, match="No space left"):
            fs.commit()
        for call in (fs.commit, lambda: fs.save(tmp_path / "image")):
            with pytest.raises(OSError, match="Read-only file system"):
                call()
        assert superblocks_of(fs) == before
        assert fs.listing(5)["path"].tolist() == ["", "before"]
        assert bm.check(fs) == []


@pytest.mark.parametrize("kernels", ["c", "python"])
def test_half_a_change_is_never_committed(kernels: Any, tmp_path: Path) -> None:
    """A damaged leaf stops a change of the trees; the image stays as it was."""
    path = tmp_path / "image"
    with bm.create(MIN_DEVICE, 4096, seed=1) as fs:
        for number in range(200):
            fs.create(f"file{number}")
        fs.save(path)
    broken = Broken(path)
    leaf = broken.fs().tree(5).get((257 + 150, ItemType.INODE_ITEM, 0))
    assert leaf is not None
    broken.write(leaf.block, 200, b"\xa5" * 4, seal=False)
    path = tmp_path / "broken"
    path.write_bytes(broken.map[:])
    before = path.read_bytes()
    with bm.WritableFilesystem.load(path) as fs, bm.use_code(kernels):
        fs.create("new")
        with pytest.raises(bm.errors.CorruptImageError, match="bad checksum"):
            fs.writer.update(ObjectId.FS_TREE, leaf.key, 0, b"x")
        for call in (fs.commit, lambda: fs.save(path), lambda: fs.create("more")):
            with pytest.raises(OSError, match="Read-only file system"):
                call()
    assert path.read_bytes() == before


def test_refusals_do_not_abort(tmp_path: Path) -> None:
    """What is refused before anything is changed leaves a filesystem to go on with."""
    with bm.create(MIN_DEVICE, seed=1) as fs:
        fs.create("file")
        tree = (ObjectId.FS_TREE, (257, ItemType.INODE_ITEM, 0))
        for call in (
            lambda: fs.writer.insert(*tree, b""),
            lambda: fs.writer.delete(ObjectId.FS_TREE, (999, 1, 0)),
            lambda: fs.writer.extend(*tree, bytes(20_000)),
            lambda: fs.writer.reserve_data(1 << 40, 1 << 40),
        ):
            with pytest.raises(OSError, match=r"exists|No such|too large|No space"):
                call()
        good(fs, tmp_path / "image")


def superblocks_of(fs: bm.WritableFilesystem) -> list[bytes]:
    """The bytes of all superblocks."""
    return [bytes(fs.memory.buffer[at : at + 4096]) for at in SUPER_OFFSETS[:2]]


def test_create_refuses() -> None:
    with pytest.raises(ValueError, match="size"):
        bm.create(MIN_DEVICE - 1)
    with pytest.raises(TypeError, match="nonsense"):
        bm.create(MIN_DEVICE, nonsense=True)


def test_a_commit_of_a_root_item_alone() -> None:
    """The root tree is copied, so the extent tree changes after the root items were written."""
    with bm.create(256 << 20) as fs:
        fs.create_subvolume("sub")
        fs.commit()
        for read_only in (True, False, True):
            fs.set_read_only("sub", read_only)
            assert bm.check(fs) == []
            assert fs.subvolume("sub").is_read_only == read_only


def test_failed_save_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    with bm.create(MIN_DEVICE) as fs, pytest.raises(OSError, match="folder"):
        fs.save(target)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    with bm.create(MIN_DEVICE) as fs, pytest.raises(FileNotFoundError):
        fs.save(tmp_path / "nowhere" / "image")


def test_saved_file_is_sparse(tmp_path: Path) -> None:
    with bm.create(100 * GIB) as fs:
        Folder(fs).write_extents(b"f", [b"f" * (1 << 20), bytes(1 << 20)])
        good(fs, tmp_path / "image")
    status = (tmp_path / "image").stat()
    assert status.st_size == 100 * GIB
    assert status.st_blocks * 512 < 3 << 20
    assert status.st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
