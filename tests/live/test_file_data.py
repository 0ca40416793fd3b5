# SPDX-License-Identifier: GPL-2.0-only
"""File data that the model writes: beside the running kernel, and beside bytes in memory."""

import random
import subprocess
from pathlib import Path
from typing import Any

import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live import beside_the_kernel, mounted
from progs import btrfs_check, needs_progs, why_mounts_are_unknown
from writing import (
    NAMES,
    KernelFiles,
    ModelFiles,
    PlainFiles,
    load,
    make,
    random_changes,
)

import btrfs_model as bm
from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.files.compress import COMPRESSION_TYPES
from btrfs_model.mount.files.compress import compress as compress_bytes
from btrfs_model.mount.files.elided import Elided
from btrfs_model.patches import KERNEL
from btrfs_model.volume.compression import decompress

SIZE = 128 << 20
NOCOW, IMMUTABLE = 0x800000, 0x10


def apply(files: Any, change: tuple[Any, ...]) -> int:
    """Make a change; the errno, 0 for none."""
    try:
        getattr(files, change[0])(*change[1:])
    except OSError as error:
        return error.errno or -1
    return 0


def shown(change: tuple[Any, ...]) -> str:
    return str(tuple(len(x) if isinstance(x, bytes) else x for x in change))


# ----------------------------------------------------------------------------- the kernel --------


def items_of(fs: Any) -> dict[str, list[Any]]:
    """File extents and inodes of all files; addresses on disk by the order in which they appear.

    Neighbouring holes count as one: where the kernel divides them depends on what it has cached.
    """
    seen: dict[int, int] = {0: 0}
    top, found = fs.subvolume(5), {}
    for name in NAMES:
        inode = top.inode(name)
        rows: list[Any] = [("size", inode.size, "nbytes", inode.nbytes, "flags", inode.flags)]
        for extent in top.extents(name):
            if extent.is_hole:
                before = rows.pop() if rows[-1][0] == "hole" else ("hole", extent.start, 0)
                rows.append(("hole", before[1], extent.end))
                continue
            where = seen.setdefault(extent.disk_bytenr, len(seen))
            rows.append((extent.start, extent.length, extent.type, extent.compression,
                         extent.ram_bytes, extent.offset, where,
                         extent.disk_num_bytes))  # fmt: skip
        found[name] = rows
    return found


def mkfs(image: Path, *options: str) -> None:
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["mkfs.btrfs", "-q", "-f", *options, str(image)], check=True)


CASES = [
    (seed, compress, holes)
    for seed in range(40 if corpus.LONG else 1)
    for compress in (None, "zlib", "lzo", "zstd")
    for holes in ("no-holes", "^no-holes")
]


def beside(
    tmp_path: Path, changes: list[tuple[Any, ...]], compress: str | None, holes: str
) -> None:
    """Make changes in the kernel and in the model, and compare."""
    image, before = tmp_path / "kernel.img", tmp_path / "before.img"
    mkfs(image, "-O", holes)
    corpus.copy_sparse(image, before)
    fs = load(before, compress=compress)
    model = ModelFiles(fs)
    with mounted(image, f"notreelog,compress={compress or 'no'}") as top:
        kernel = KernelFiles(top)
        for change in changes:
            assert apply(model, change) == apply(kernel, change), shown(change)
        contents = {name: kernel.read(name) for name in NAMES}
    history = "\n".join(shown(change) for change in changes)
    for name in NAMES:
        assert fs.read(name) == contents[name], (name, history)
    with bm.open(image) as made:
        theirs = items_of(made)
    ours = items_of(fs)
    for name in NAMES:
        assert ours[name] == theirs[name], (name, history)


@pytest.mark.claim(
    "Contents, extents and sizes of files are the running kernel's after random writes, "
    "truncates, holes, clones and preallocation."
)
@beside_the_kernel
@pytest.mark.parametrize(("seed", "compress", "holes"), CASES)
def test_same_items_as_the_kernel(
    tmp_path: Path, seed: int, compress: str | None, holes: str
) -> None:
    changes = random_changes(
        (seed, compress, holes), 60, snapshots=True, whole_holes=holes != "no-holes" or seed > 0
    )
    beside(tmp_path, changes, compress, holes)


@beside_the_kernel
@pytest.mark.parametrize("holes", ["no-holes", "^no-holes"])
def test_without_copy_on_write_as_the_kernel(tmp_path: Path, holes: str) -> None:
    for seed in range(20 if corpus.LONG else 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        changes = random_changes(("nocow", seed), 60, snapshots=True, whole_holes=True)
        without = [("chattr", name, NOCOW) for name in NAMES[:2]]
        beside(folder, [*changes[:3], *without, *changes[3:]], None, holes)


def test_data_without_copy_on_write_stay_where_they_are() -> None:
    with make(SIZE) as fs:
        files = ModelFiles(fs)
        for name in ("f", "g"):
            files.create(name)
            files.chattr(name, NOCOW)
            files.write(name, 0, b"1" * 40960)
        fs.sync()

        def places(name: str) -> set[int]:
            fs.sync()
            return {extent.disk_bytenr for extent in fs.subvolume(5).extents(name)}

        before = places("f")
        assert len(before) == 1
        files.write("f", 4096, b"2" * 4096)
        assert places("f") == before
        assert files.read("f") == b"1" * 4096 + b"2" * 4096 + b"1" * 32768
        fs.snapshot("", "snap")
        files.write("f", 4096, b"3" * 4096)
        assert places("f") > before
        assert fs.read_file("snap", "f", 4096, 4096) == b"2" * 4096
        before = places("g")
        files.clone("g", "f", 0, 0, 0)
        files.write("g", 0, b"4" * 4096)
        assert places("g") > before
        assert not bm.check(fs)


def shared_ranges(seed: int) -> list[tuple[Any, ...]]:
    """Random deduplication of files that hold much of the same."""
    choice = random.Random(f"dedupe {seed}")
    one = choice.choice
    places, lengths = [0, 4096, 8192, 40960], [1, 100, 4096, 8192, 5000, 20000, 40960]
    changes: list[tuple[Any, ...]] = [("create", name) for name in NAMES]
    for at in range(60):
        first, second = one(NAMES), one(NAMES)
        if at % 5 == 0:
            data = b"Z" * one([3, 4096, 30000, 100_000])
            changes.append(("write", first, one(places), data))
        elif at % 11 == 0:
            changes.append(("truncate", first, one([5, 5000, 20000, 60000])))
        elif at % 13 == 0:
            changes.append(one([("snapshot", f"s{at}"), ("fsync", first), ("sync",)]))
        else:
            changes.append(("dedupe", first, second, one(places), one(places), one(lengths)))
    return [*changes, ("sync",)]


@beside_the_kernel
@pytest.mark.parametrize("holes", ["no-holes", "^no-holes"])
def test_deduplicated_as_by_the_kernel(tmp_path: Path, holes: str) -> None:
    for seed in range(20 if corpus.LONG else 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        beside(folder, shared_ranges(seed), None, holes)


@beside_the_kernel
def test_much_is_deduplicated_by_pieces(tmp_path: Path) -> None:
    length = 17 << 20
    changes: list[tuple[Any, ...]] = [("create", name) for name in NAMES]
    # without data nothing is written back, in which pieces a kernel does is a matter of time
    changes += [("fallocate", "a", 0, length, False), ("fallocate", "b", 4096, length, False)]
    changes.append(("dedupe", "a", "b", 0, 4096, length))
    beside(tmp_path, [*changes, ("sync",)], None, "no-holes")


@beside_the_kernel
def test_ranges_that_cannot_be_shared(tmp_path: Path) -> None:
    changes: list[tuple[Any, ...]] = [("create", name) for name in NAMES]
    changes += [("write", "a", 0, b"a" * 20000), ("write", "b", 0, b"a" * 5)]
    far = (1 << 63) - 4096
    ranges = [(0, 0, 0), (0, 4096, 4096), (0, 4096, 5000), (1, 0, 4096), (0, 1, 4096), (0, 0, 5),
              (20000, 0, 0), (20480, 0, 4096), (16384, 0, 3616), (16384, 4096, 0), (far, 0, 4096),
              (0, far, 4096), (0, far, 0), (0, far + 1, 0), (0, 0, far), (0, 0, 30000),
              (0, 65536, 4096)]  # fmt: skip
    for call in ("dedupe", "clone"):
        for offset, to, length in ranges:
            changes += [(call, source, target, offset, to, length)
                        for source in "abc" for target in "ab"]  # fmt: skip
    changes.append(("chattr", "b", IMMUTABLE))
    changes += [("dedupe", source, "b", *one) for source in "ab" for one in ranges]
    beside(tmp_path, [*changes, ("sync",)], None, "no-holes")


@beside_the_kernel
@pytest.mark.parametrize("compress", ["zlib", "lzo", "zstd"])
def test_the_kernel_reads_what_the_model_compressed(tmp_path: Path, compress: str) -> None:
    fs = make(SIZE, compress=compress)
    files = {f"{n}-{kind}": data for n in (5, 2000, 4096, 131_077, 700_000)
             for kind, data in samples(n).items()}  # fmt: skip
    for name, data in files.items():
        fs.create(name)
        fs.write(name, 0, data)
    fs.save(tmp_path / "image")
    assert {e.compression for name in files for e in fs.subvolume(5).extents(name)} == {
        0,
        COMPRESSION_TYPES[compress],
    }
    with mounted(tmp_path / "image", "ro") as top:
        for name, data in files.items():
            assert (top / name).read_bytes() == data, name


# ------------------------------------------------------------------------ bytes in memory --------


def samples(size: int) -> dict[str, bytes]:
    """Data of a size that compress very well, well and not at all."""
    choice = random.Random(size)
    text = b"".join(choice.choice([b"leaf ", b"node ", b"extent "]) for _ in range(size // 5 + 1))
    return {"zeros": bytes(size), "text": text[:size], "noise": choice.randbytes(size)}


NAME = st.sampled_from(NAMES)
OFFSET = st.one_of(
    st.integers(0, 40).map(lambda block: block * 4096),
    st.integers(0, 200_000),
    st.sampled_from([1, 4095, 4097, 131_072, 1 << 20]),
)
LENGTH = st.one_of(
    st.sampled_from([0, 1, 100, 2048, 2049, 4095, 4096, 4097, 8192, 131_072, 150_000]),
    st.integers(1, 20_000),
)
DATA = st.builds(
    lambda length, kind: samples(length)[kind],
    LENGTH,
    st.sampled_from(["zeros", "text", "noise"]),
)
CHANGE = st.one_of(
    st.tuples(st.just("write"), NAME, OFFSET, DATA),
    st.tuples(st.just("truncate"), NAME, OFFSET),
    st.tuples(st.sampled_from(["fallocate", "zero_range"]), NAME, OFFSET, LENGTH, st.booleans()),
    st.tuples(st.just("punch_hole"), NAME, OFFSET, LENGTH),
    st.tuples(st.just("clone"), NAME, NAME, OFFSET, OFFSET, LENGTH),
    st.tuples(st.just("fsync"), NAME),
    st.tuples(st.just("sync")),
)


@pytest.mark.claim("What is read is what was written.", judge="unit")
@needs_progs
@settings(max_examples=1000 if corpus.LONG else 60)
@given(
    st.lists(CHANGE, max_size=30),
    st.sampled_from(["crc32c", "xxhash", "sha256", "blake2"]),
    st.sampled_from([None, "zlib", "lzo", "zstd"]),
    st.booleans(),
    st.sampled_from([4096, 16384]),
)
def test_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[Any, ...]], csum: str,
    compress: str | None, no_holes: bool, nodesize: int,
) -> None:  # fmt: skip
    fs = make(SIZE, nodesize=nodesize, csum=csum, compress=compress, no_holes=no_holes)
    model, plain = ModelFiles(fs), PlainFiles()
    for change in [("create", name) for name in NAMES] + changes:
        assert apply(model, change) == apply(plain, change), shown(change)
        if change[0] not in ("sync", "snapshot"):
            # a window around what changed; the files may be large
            name = change[2] if change[0] == "clone" else change[1]
            assert fs.read(name, 0, 300_000) == plain.read(name)[:300_000], shown(change)
    image = tmp_path_factory.mktemp("written") / "image"
    fs.save(image)
    assert btrfs_check(image) == ""
    with bm.open(image) as made:
        for name in NAMES:
            inode = made.subvolume(5).inode(name)
            assert inode.size == len(plain.read(name))
            assert made.subvolume(5).read_file(name) == plain.read(name)


@pytest.mark.parametrize("kind", COMPRESSION_TYPES)
def test_compression_is_undone(kind: str) -> None:
    for size in (1, 100, 4096, 4097, 20_000, 131_071, 131_072):
        for name, data in samples(size).items():
            packed = compress_bytes(kind, 0, data, 4096, Behaviour.parse(KERNEL))
            if packed is None:
                assert name == "noise" or size < 200, (name, size)
            else:
                on_disk = packed.ljust(-(-len(packed) // 4096) * 4096, b"\0")
                assert decompress(COMPRESSION_TYPES[kind], on_disk, size, 4096) == data, (
                    name,
                    size,
                )


@needs_progs
@pytest.mark.skipif(bool(why_mounts_are_unknown()), reason=why_mounts_are_unknown())
def test_restore_reads_compressed_files(tmp_path: Path) -> None:
    """`btrfs restore` decompresses on its own, without a kernel."""
    fs = make(SIZE)
    files = {}
    for compress in ("zlib", "lzo", "zstd"):
        for kind, data in samples(300_001).items():
            name = f"{compress}-{kind}"
            fs.create(name)
            fs.set_compression(name, compress)
            fs.write(name, 0, data)
            files[name] = data
    fs.save(tmp_path / "image")
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["btrfs", "restore", str(tmp_path / "image"), str(out)], check=True)
    for name, data in files.items():
        assert (out / name).read_bytes() == data, name


# ---------------------------------------------------------------------- elided, and many ---------


@needs_progs
def test_elided_data_leave_a_sound_filesystem(tmp_path: Path) -> None:
    fs = make(SIZE, compress=None)
    fs.create("plain")
    # what was there before must not show
    fs.write("plain", 0, b"old" * 500_000)
    fs.sync()
    fs.truncate("plain", 0)
    fs.sync()
    fs.write("plain", 1000, Elided(2_000_000, b"new"))
    fs.create("packed")
    fs.set_compression("packed", "lzo")
    fs.write("packed", 0, Elided(1 << 20, b"\xab"))
    fs.save(tmp_path / "image")
    assert btrfs_check(tmp_path / "image") == ""
    top = fs.subvolume(5)
    head, middle, tail = 4096 - 1000, 2_000_000, 1000
    assert top.read_file("plain")[4096 : middle - 4096] == bytes(middle - 8192)
    assert len(top.read_file("plain")) == middle + tail and head
    extents = top.extents("packed")
    assert [(e.length, e.disk_num_bytes, e.compression) for e in extents] == [
        (131_072, 4096, 2)
    ] * 8
    with pytest.raises(bm.errors.CorruptImageError, match="do not come out of decompressing"):
        top.read_file("packed")


RUNS = [
    (None, b"x" * 4096),
    (None, Elided(8192)),
    ("lzo", Elided(131_072, b"\xab")),
    ("zstd", b"ab" * 20_480),
]


@pytest.mark.parametrize(("compress", "block"), RUNS, ids=["4k", "elided", "lzo", "zstd"])
@pytest.mark.parametrize("full", [False, True])
def test_many_extents_are_as_one_at_a_time(
    compress: str | None, block: bytes | Elided, full: bool
) -> None:
    length = block.length if isinstance(block, Elided) else len(block)
    places = [place * length for place in range(60)]
    random.Random(f"{compress} {length}").shuffle(places)
    made = []
    for many in (False, True):
        fs = make(120 << 20, nodesize=4096, compress=compress)
        if full:
            # a chunk with little room, in pieces
            fs.create("other")
            free = sum(group.free for group in fs.writer.groups() if group.flags & 1)
            fs.write("other", 0, Elided(free - (1 << 20) - 5 * 4096))
            fs.flush_delalloc()
        fs.create("file")
        fs.write("file", 30 * length, b"there already")
        fs.flush_delalloc()
        if many:
            fs.write_many("file", places, block)
        else:
            for place in places:
                fs.write("file", place, block)
                fs.flush_delalloc()
        fs.sync()
        made.append(fs)
    one, other = made
    assert one.subvolume(5).extents("file") == other.subvolume(5).extents("file")
    assert one.memory.buffer[:] == other.memory.buffer[:]


def test_many_extents_in_elided_writeback_are_as_one_at_a_time() -> None:
    made = []
    for pieces in (1, 16):
        fs = make(SIZE, compress="zstd")
        fs.create("file")
        for at in range(0, 16 << 20, (16 << 20) // pieces):
            fs.write("file", at, Elided((16 << 20) // pieces, b"\xcd"))
        fs.sync()
        made.append(fs.subvolume(5).extents("file"))
    assert made[0] == made[1] and len(made[0]) == 128


def test_places_that_are_no_blocks_are_refused() -> None:
    fs = make(SIZE)
    fs.create("file")
    with pytest.raises(OSError, match="Invalid argument"):
        fs.write_many("file", [0, 100], b"x" * 4096)
    assert fs.read("file") == b""


def test_what_waits_for_writeback_has_its_room(tmp_path: Path) -> None:
    with make(114 << 20, metadata="single") as fs:
        with pytest.raises(OSError, match="No space left"):
            for number in range(1000):
                fs.create(f"large{number}")
                fs.fallocate(f"large{number}", 0, 1 << 20)
        for number in range(50):
            fs.create(f"small{number}")
        fs.unlink("large0")
        fs.sync()
        for number in range(50):
            fs.write(f"small{number}", 0, b"d" * 9000)
        with pytest.raises(OSError, match="No space left"):
            for number in range(100_000):
                fs.create("n" * 200 + str(number))
        fs.save(tmp_path / "image")
        assert fs.read_file("", "small49") == b"d" * 9000
        assert not bm.check(fs)
    assert btrfs_check(tmp_path / "image") == ""
