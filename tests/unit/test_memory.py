# SPDX-License-Identifier: GPL-2.0-only
"""Memory that holds a device goes to a file and to other memory as it is, with its holes."""

import mmap
import os
import random
from pathlib import Path

import pytest

import btrfs_model as bm
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.native.image import differences
from btrfs_model.volume.device import memory as memory_module
from btrfs_model.volume.device.memory import Memory, Replacement, replacement_of

PAGE = 4096


@pytest.mark.parametrize("size", [5, PAGE, PAGE + 1, 100 * PAGE, (40 << 20) + 123])
def test_what_is_saved_is_what_is_there(size: int, tmp_path: Path) -> None:
    rng, memory, file = random.Random(size), Memory(size), tmp_path / "saved"
    for _ in range(40):
        at = rng.randrange(size)
        length = min(rng.choice([1, 5000, PAGE, 70_000]), size - at)
        # zeros that were written, and pages of which only the last byte is not zero
        zeros = bytes(length)
        memory.buffer[at : at + length] = rng.choice(
            [zeros, zeros[1:] + b"x", rng.randbytes(length)]
        )
    memory.save(file)
    assert file.read_bytes() == bytes(memory.buffer)
    assert bytes(memory.copy().buffer) == bytes(memory.buffer)


@pytest.mark.parametrize("frozen", [False, True])
def test_changes_are_taken_over(frozen: bool) -> None:
    """What is yielded are the pages that differ, and in the end both are equal."""
    rng, size = random.Random(1), 300 * PAGE + 77
    mine, other = Memory(size), Memory(size)
    if frozen:
        mine.freeze()
    for memory in (mine, other):
        for _ in range(30):
            at = rng.randrange(size - 5000)
            memory.buffer[at : at + 5000] = rng.choice([bytes(5000), rng.randbytes(5000)])
    other.buffer[-1] = 1
    before = bytes(mine.buffer)
    pages = {at // PAGE for at in range(0, size, PAGE)
             if before[at : at + PAGE] != other.buffer[at : at + PAGE]}  # fmt: skip
    found = {page for at, run in mine.take_changes(other)
             for page in range(at // PAGE, -(-(at + len(run)) // PAGE))}  # fmt: skip
    assert found == pages
    assert bytes(mine.buffer) == bytes(other.buffer)
    assert [*mine.take_changes(other)] == []


def test_runs_of_pages_are_cut() -> None:
    one, other = bytes(5 * PAGE), b"x" * (4 * PAGE) + bytes(PAGE)
    assert [*differences(one, other, 3 * PAGE)] == [(0, 3 * PAGE), (3 * PAGE, 4 * PAGE)]


def test_pages_of_zeros_are_holes(tmp_path: Path) -> None:
    memory, file = Memory(64 << 20), tmp_path / "saved"
    memory.buffer[:] = bytes(64 << 20)
    memory.buffer[(20 << 20) + 4095] = 1
    memory.save(file)
    assert file.stat().st_blocks * 512 < 1 << 20


def replacing(file: Path) -> Memory:
    memory = replacement_of(file, file.stat().st_size)
    if not isinstance(memory, Replacement):
        pytest.skip("the filesystem of the tests has no files without names")
    return memory


@pytest.mark.parametrize("seed", range(4))
def test_a_replacement_has_what_was_written_to_memory_and_to_its_file(
    seed: int, tmp_path: Path
) -> None:
    rng, file, size = random.Random(seed), tmp_path / "image", (5 << 20) + 1234
    with file.open("wb") as out:
        for at in range(0, size - 70_000, 500_000):
            out.seek(at)
            out.write(rng.randbytes(70_000))
        out.truncate(size)
    file.chmod(0o640)
    old, memory = file.read_bytes(), replacing(file)
    expected = bytearray(old)
    assert bytes(memory.buffer) == old
    for _ in range(200):
        at = rng.randrange(size - 70_000)
        data = rng.choice([bytes, rng.randbytes])(rng.choice([1, PAGE, 70_000]))
        if rng.random() < 0.5:
            at, data = at // PAGE * PAGE, data.ljust(PAGE, b"x")[: len(data) // PAGE * PAGE or PAGE]
            os.pwrite(memory.file, data, at)
            memory.buffer.madvise(mmap.MADV_DONTNEED, at, len(data))
        else:
            memory.buffer[at : at + len(data)] = data
        expected[at : at + len(data)] = data
    assert bytes(memory.buffer) == bytes(memory.copy().buffer) == expected
    assert file.read_bytes() == old
    memory.finish(file)
    assert file.read_bytes() == expected
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_a_replacement_is_of_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("image")
    (tmp_path / "image").write_bytes(b"old" * PAGE)
    memory = replacing(tmp_path / "link")
    memory.buffer[:3] = b"new"
    memory.finish(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "image").read_bytes() == b"new" + b"old" * (PAGE - 1)


@pytest.mark.parametrize("way", ["file", "full", "none"])
def test_an_image_is_replaced_by_what_would_be_saved(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data go to the file; where it takes none, or there is no such file, to memory."""
    image, rng = tmp_path / "image", random.Random(1)
    with bm.create("256M") as fs:
        fs.create("old")
        fs.write("old", 0, rng.randbytes(3 << 20))
        fs.sync()
        fs.unlink("old")
        fs.save(image)
    files = {f"f{size}": rng.randbytes(size) for size in [1, 4096, 5000, 1 << 18, 6_000_001]}

    def change(fs: WritableFilesystem) -> None:
        for name, data in files.items():
            fs.create(name)
            fs.write(name, 0, data)
        fs.sync()

    with WritableFilesystem.load(image) as fs:
        change(fs)
        fs.save(tmp_path / "saved")
    if way == "none":
        monkeypatch.setattr(memory_module, "open_unnamed", lambda _: None)
    else:
        replacing(image)
    with WritableFilesystem.load_to_replace(image) as fs, Path("/dev/full").open("wb") as full:
        memory = fs.memory
        if way == "full":
            memory.file = full.fileno()
        change(fs)
        if isinstance(memory, Replacement):
            own = sum(end - start for start, end in memory._own())
            assert (way == "full") == (own > 6_000_001)
        fs.replace()
    assert image.read_bytes() == (tmp_path / "saved").read_bytes()
    with bm.open(image) as found:
        assert {name: found.read_file(5, name) for name in files} == files
