# SPDX-License-Identifier: GPL-2.0-only
"""Many calls at once leave the same bytes as the calls one by one."""

import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.mount.writable import WritableFilesystem

SIZE = 256 << 20
NAME = st.binary(min_size=1, max_size=20).filter(
    lambda name: not set(name) & {0, ord("/")} and name not in (b".", b"..")
)
LONG = st.integers(0, 999).map(lambda number: b"%03d" % number * 80)
NAMES = st.lists(st.one_of(NAME, LONG), unique=True, max_size=120)


BLOCK = 4096


def data_of(path: Path) -> dict[int, bytes]:
    """The blocks of a sparse file that are not zero, whichever of them are holes."""
    blocks, end = {}, 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while end < size:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA) // BLOCK * BLOCK
            except OSError:
                break
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            file.seek(start)
            for at in range(start, end, BLOCK):
                block = file.read(BLOCK)
                if block != bytes(len(block)):
                    blocks[at] = block
    return blocks


def built(
    folder: Path,
    nodesize: int,
    steps: Callable[[WritableFilesystem], None],
    options: dict[str, Any] | None = None,
) -> dict[int, bytes]:
    with bm.create(SIZE, nodesize, **options or {}) as fs:
        fs.mkdir("d")
        fs.create("d/other")
        steps(fs)
        fs.mkdir("d/after")
        target = folder / "image"
        fs.save(target)
    return data_of(target)


@pytest.mark.claim("Many files made at once leave the bytes that the calls one by one leave.")
@settings(max_examples=25)
@given(
    names=NAMES,
    nodesize=st.sampled_from([4096, 16384]),
    commit=st.booleans(),
    worker=st.booleans(),
)
def test_created_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    names: list[bytes],
    nodesize: int,
    commit: bool,
    worker: bool,
) -> None:
    folder = tmp_path_factory.mktemp("many")
    names = [name for name in names if name not in (b"other", b"after")]

    def at_once(fs: WritableFilesystem) -> None:
        fs.machine.asynchronous = worker
        fs.create_files("d", names, 0o640)
        follow(fs)

    def one_by_one(fs: WritableFilesystem) -> None:
        fs.machine.asynchronous = worker
        for name in names:
            fs.create(b"d/" + name, 0o640)
        follow(fs)

    def follow(fs: WritableFilesystem) -> None:
        if commit:
            fs.commit()
        # what was made at once is known as well as what was made by itself
        for name in names[::3]:
            fs.unlink(b"d/" + name)
        for name in names[1::3]:
            fs.rename(b"d/" + name, b"d/new" + name[:100])

    assert built(folder, nodesize, at_once) == built(folder, nodesize, one_by_one)


@pytest.mark.claim("Many files filled at once leave the bytes that the calls one by one leave.")
@settings(max_examples=15)
@given(
    count=st.integers(1, 60),
    size=st.sampled_from([1, 100, 2000, 2048, 2049, 4096, 5000, 20_000]),
    options=st.sampled_from([
        {}, {"no_holes": False}, {"max_inline": 0}, {"compress": "zstd"}, {"csum": "sha256"},
        {"free_space_tree": False, "skinny_metadata": False},
    ]),
    waits=st.booleans(),
    commit=st.booleans(),
    nodesize=st.sampled_from([4096, 16384]),
)  # fmt: skip
def test_written_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    size: int,
    options: dict[str, Any],
    waits: bool,
    commit: bool,
    nodesize: int,
) -> None:
    folder = tmp_path_factory.mktemp("many")
    names = [b"%04d" % number for number in range(count)]
    data = random.Random(size).randbytes(size)

    def prepare(fs: WritableFilesystem) -> None:
        # what is freed in pieces is filled in pieces
        for number in range(20):
            fs.write("d/other", number * 4096, b"o" * 4096)
            fs.fsync("d/other")
        fs.commit()
        for number in range(0, 20, 2):
            fs.punch_hole("d/other", number * 4096, 4096)
        fs.commit()
        if waits:
            fs.write("d/other", 3, b"waits")

    def at_once(fs: WritableFilesystem) -> None:
        prepare(fs)
        fs.write_files("d", names, data)
        follow(fs)

    def one_by_one(fs: WritableFilesystem) -> None:
        prepare(fs)
        for name in names:
            fs.create(b"d/" + name)
        for name in names:
            fs.write(b"d/" + name, 0, data)
        fs.flush_delalloc()
        follow(fs)

    def follow(fs: WritableFilesystem) -> None:
        if commit:
            fs.commit()
        fs.snapshot("", "snap")
        for name in names[::3]:
            fs.write(b"d/" + name, size - 1, b"more")
        for name in names[1::3]:
            fs.truncate(b"d/" + name, 0)
        fs.sync()

    assert built(folder, nodesize, at_once, options) == built(folder, nodesize, one_by_one, options)


@pytest.mark.parametrize(("seed", "behaviour"), [(0, "v6.18.44"), (1, "v6.1"), (2, "v6.18.44")])
@pytest.mark.claim("Files written back at once, for want of room, are as after one by one.")
def test_written_back_at_once(tmp_path: Path, seed: int, behaviour: str) -> None:
    choice = random.Random(seed)
    sizes = [choice.choice([100, 5000, 5000, 5000, 9000, 20_000]) for _ in range(500)]
    behind = set(choice.sample(range(len(sizes)), 40))
    same = [f"same{number}" for number in range(700)]
    commits = []

    def write(fs: WritableFilesystem) -> None:
        for number, size in enumerate(sizes):
            path = f"d/f{number}"
            fs.create(path)
            fs.write(path, 0, bytes([number % 251 + 1]) * size)
            if number in behind:
                fs.write(path, size + 5000, b"behind a hole")

    def at_once(fs: WritableFilesystem) -> None:
        begin = fs.transid
        write(fs)
        fs.write_files("d", same, b"x" * 5000)
        fs.flush_delalloc()
        commits.append(fs.transid - begin)

    def one_by_one(fs: WritableFilesystem) -> None:
        write(fs)
        fs.create_files("d", same)
        for name in same:
            fs.write(f"d/{name}", 0, b"x" * 5000)
        fs.flush_delalloc()

    options = {"behaviour": behaviour}
    left, right = (built(tmp_path, 16384, steps, options) for steps in (at_once, one_by_one))
    assert left == right
    # they did not all find room at once
    assert commits[0] > 0


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.claim("Calls at once, where each may lack room, are as calls one by one.")
def test_created_and_moved_where_room_is_short(tmp_path: Path, threads: bool) -> None:
    names = [f"file_{number}" for number in range(1500)]

    def prepare(fs: WritableFilesystem) -> None:
        fs.machine.asynchronous = threads
        fs.mkdir("e")

    def at_once(fs: WritableFilesystem) -> None:
        prepare(fs)
        fs.create_files("d", names)
        fs.snapshot("", "snap")
        fs.move_files("d", "e", sorted(names))
        fs.commit()

    def one_by_one(fs: WritableFilesystem) -> None:
        prepare(fs)
        for name in names:
            fs.create(f"d/{name}")
        fs.snapshot("", "snap")
        for name in sorted(names):
            fs.rename(f"d/{name}", f"e/{name}")
        fs.commit()

    assert built(tmp_path, 16384, at_once) == built(tmp_path, 16384, one_by_one)


def test_files_that_are_filled_in_another_order(tmp_path: Path) -> None:
    def at_once(fs: WritableFilesystem) -> None:
        inos = fs.create_files("d", ["a", "b", "c", "e"])
        fs.fill_files("d", inos[[2, 0, 3]], b"x" * 5000)

    def one_by_one(fs: WritableFilesystem) -> None:
        for name in "abce":
            fs.create(f"d/{name}")
        for name in "cae":
            fs.write(f"d/{name}", 0, b"x" * 5000)
        fs.flush_delalloc()

    assert built(tmp_path, 4096, at_once) == built(tmp_path, 4096, one_by_one)


def test_what_cannot_be_filled() -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        names = ("f", "immutable", "append")
        files = {name: fs.create(name) for name in names}
        fs.chattr("immutable", 0x10)
        fs.chattr("append", 0x20)
        others = {"d": fs.mkdir("d"), "p": fs.mknod("p", stat.S_IFIFO | 0o600)}
        fs.sync()
        fs.remount()
        for name, number in [("d", errno.EISDIR), ("p", errno.EINVAL), ("immutable", errno.EPERM),
                             ("append", errno.EPERM), ("none", errno.ENOENT)]:  # fmt: skip
            ino = (files | others | {"none": 999})[name]
            with pytest.raises(OSError, match=os.strerror(number)):
                fs.fill_files("", np.array([files["f"], ino], np.uint64), b"data" * 2000)
        assert not fs.commit()
        assert fs.read("f") == b""


@pytest.mark.parametrize("metadata", ["single", "dup"])
def test_chunks_are_added_on_the_way(metadata: str) -> None:
    with bm.create(SIZE, metadata=metadata) as fs:
        for number in range(3):
            fs.mkdir(f"d{number}")
            fs.write_files(f"d{number}", [f"{name:05}" for name in range(5000)], b"x" * 2000)
        fs.commit()
        assert not bm.check(fs)
        assert len(list(fs.subvolume("").readdir("d2"))) == 5000


def test_a_device_too_full_for_one_piece(tmp_path: Path) -> None:
    names = [f"{number:04}" for number in range(600)]

    def fill(fs: WritableFilesystem) -> None:
        inos = fs.create_files("d", [f"full{number}" for number in range(3000)])
        fs.fill_files("d", inos, b"f" * 4096)
        fs.commit()
        for number in range(0, 3000, 2):
            fs.unlink(f"d/full{number}")
        # the rest of the chunks, so that holes of a block are what is left
        free = sum(group.free for group in fs.writer.groups() if group.flags & 1)
        fs.fallocate("d/other", 0, free - (1 << 20))
        fs.commit()

    def at_once(fs: WritableFilesystem) -> None:
        fill(fs)
        fs.write_files("d", names, b"x" * 8192)

    def one_by_one(fs: WritableFilesystem) -> None:
        fill(fs)
        fs.create_files("d", names)
        for name in names:
            fs.write(f"d/{name}", 0, b"x" * 8192)
        fs.flush_delalloc()

    assert built(tmp_path, 16384, at_once) == built(tmp_path, 16384, one_by_one)


def test_a_directory_that_hands_something_down() -> None:
    with bm.create(SIZE) as fs:
        fs.mkdir("d")
        fs.chown("d", 0, 7)
        fs.chmod("d", 0o2755)
        fs.create_files("d", ["a", "b"])
        assert fs.inode(*fs.resolve("d/b")).item.gid == 7


@pytest.mark.parametrize(
    ("names", "number"),
    [
        (["a", "b", "a"], errno.EEXIST),
        (["a", "there"], errno.EEXIST),
        (["a", ""], errno.EINVAL),
        (["a", ".."], errno.EINVAL),
        (["a", "b/c"], errno.EINVAL),
        (["a", "x" * 256], errno.ENAMETOOLONG),
    ],
)
def test_names_that_cannot_be_made(names: list[str], number: int) -> None:
    with bm.create(SIZE) as fs:
        fs.create("there")
        with pytest.raises(OSError) as error:
            fs.create_files("", names)
        assert error.value.errno == number
        with pytest.raises(FileNotFoundError):
            fs.resolve("a")


def test_directories_that_are_none() -> None:
    with bm.create(SIZE) as fs:
        fs.create("file")
        for directory, number in (("file", errno.ENOTDIR), ("nothing", errno.ENOENT)):
            with pytest.raises(OSError) as error:
                fs.create_files(directory, ["a"])
            assert error.value.errno == number
            assert os.strerror(number) in str(error.value)


@pytest.mark.claim("Many files moved at once leave the bytes that the calls one by one leave.")
@settings(max_examples=25)
@given(
    names=NAMES,
    moved=st.lists(st.integers(0, 150), max_size=150),
    there=st.sets(st.integers(0, 150)),
    linked=st.sets(st.integers(0, 150)),
    commit=st.booleans(),
    worker=st.booleans(),
)
def test_moved_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    names: list[bytes],
    moved: list[int],
    there: set[int],
    linked: set[int],
    commit: bool,
    worker: bool,
) -> None:
    folder = tmp_path_factory.mktemp("many")
    names = [name for name in names if name not in (b"other", b"after")]
    order = [names[at] for at in dict.fromkeys(moved) if at < len(names)]

    def prepare(fs: WritableFilesystem) -> None:
        fs.machine.asynchronous = worker
        fs.create_files("d", names)
        fs.mkdir("e")
        fs.create_files("e", [names[at] for at in there if at < len(names)])
        for at in linked:
            if at < len(names):
                fs.link(b"d/" + names[at], b"link%d" % at)
        if commit:
            fs.commit()
            fs.remount()

    def at_once(fs: WritableFilesystem) -> None:
        prepare(fs)
        fs.move_files("d", "e", order)
        follow(fs)

    def one_by_one(fs: WritableFilesystem) -> None:
        prepare(fs)
        for name in order:
            fs.rename(b"d/" + name, b"e/" + name)
        follow(fs)

    def follow(fs: WritableFilesystem) -> None:
        for name in order[::2]:
            fs.unlink(b"e/" + name)

    assert built(folder, 4096, at_once) == built(folder, 4096, one_by_one)


def test_a_file_that_is_not_there_ends_the_moves() -> None:
    with bm.create(SIZE) as fs:
        fs.mkdir("d")
        fs.mkdir("e")
        fs.create_files("d", ["a", "b"])
        fs.commit()
        with pytest.raises(FileNotFoundError):
            fs.move_files("d", "e", ["a", "a", "b"])
        fs.resolve("e/a")
        fs.resolve("d/b")


@pytest.mark.claim("Many files unlinked at once leave the bytes that the calls one by one leave.")
@settings(max_examples=25)
@given(
    names=NAMES,
    order=st.randoms(use_true_random=False),
    nodesize=st.sampled_from([4096, 16384]),
    first=st.sampled_from(["nothing", "commit", "remount", "fsync"]),
)
def test_unlinked_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    names: list[bytes],
    order: random.Random,
    nodesize: int,
    first: str,
) -> None:
    folder = tmp_path_factory.mktemp("many")
    names = sorted({*names, b"collide_plumless", b"collide_buckeroo"} - {b"other", b"after"})
    doomed = [name for name in names if order.random() < 0.7]
    order.shuffle(doomed)

    def prepare(fs: WritableFilesystem) -> None:
        # files of other kinds among the empty ones
        fs.create_files("d", names)
        for name in names[::7]:
            fs.write(b"d/" + name, 0, b"data")
        for name in names[1::7]:
            fs.link(b"d/" + name, b"link to " + name)
        for name in names[2::9]:
            fs.setxattr(b"d/" + name, b"user.a", b"b")
        if first == "fsync":
            fs.fsync("d")
        elif first != "nothing":
            fs.sync()
        if first == "remount":
            fs.live_subvolumes.clear()
        for name in names[3::11]:
            fs.chmod(b"d/" + name, 0o600)

    def follow(fs: WritableFilesystem) -> None:
        fs.create_files("d", doomed[::2])
        fs.sync()

    def at_once(fs: WritableFilesystem) -> None:
        prepare(fs)
        fs.unlink_files("d", doomed)
        follow(fs)

    def one_by_one(fs: WritableFilesystem) -> None:
        prepare(fs)
        for name in doomed:
            fs.unlink(b"d/" + name)
        follow(fs)

    assert built(folder, nodesize, at_once) == built(folder, nodesize, one_by_one)


def test_what_cannot_be_unlinked() -> None:
    with bm.create(SIZE) as fs:
        fs.mkdir("d")
        fs.create_files("d", ["a", "b", "c"])
        fs.mkdir("d/sub")
        for names, number in (
            (["a", "missing", "b"], errno.ENOENT),
            (["b", "sub", "c"], errno.EISDIR),
            (["c", "c"], errno.ENOENT),
        ):
            with pytest.raises(OSError) as raised:
                fs.unlink_files("d", names)
            assert raised.value.errno == number
        fs.commit()
        assert [entry.name for entry in fs.subvolume("").readdir("d")] == [b"sub"]
        fs.create("file")
        with pytest.raises(NotADirectoryError):
            fs.unlink_files("file", ["a"])
