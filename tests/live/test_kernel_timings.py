# SPDX-License-Identifier: GPL-2.0-only
"""Operations timed in real kernels: that they are those of the model, and what cannot be timed."""

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import judges
import pytest
from progs import needs_progs

import btrfs_model as bm
from btrfs_model.base.errors import KernelFailedError
from btrfs_model.kernels import timings, uml
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.timings import Timing
from btrfs_model.mount.writable import WritableFilesystem

NAMES = [f"file_{number}" for number in range(200)]
EXTENTS = 700
RUNS = 2


@pytest.fixture(scope="module")
def fs() -> Iterator[WritableFilesystem]:
    with bm.create(256 << 20) as fs:
        fs.mkdir("d")
        fs.create_files("d", NAMES)
        fs.create("parts")
        for number in range(EXTENTS):
            fs.write("parts", number * 8192, b"x" * 4096)
        fs.snapshot("", "s1")
        fs.unlink_files("d", NAMES[::7])
        fs.snapshot("", "s2")
        fs.sync()
        yield fs


@pytest.fixture(autouse=True)
def _alone(kernel: Kernel) -> Iterator[None]:
    with judges.alone(kernel):
        yield


@pytest.fixture
def image(kernel: Kernel, fs: WritableFilesystem) -> Iterator[Path]:
    path = kernel.images / kernel.new_file().name
    fs.save(path)
    yield path
    path.unlink()


def as_timed(timing: Timing, amount: int) -> None:
    """Each run has a time; what goes before is taken off, so it may be below nothing."""
    assert timing.amount == amount
    assert len(timing.wall_ms) == len(timing.cpu_ms) == RUNS
    assert all(map(math.isfinite, (*timing.wall_ms, *timing.cpu_ms)))


@pytest.mark.claim(
    "What is timed in a kernel is what the model counts: streams of the same bytes, as many "
    "extents, entries, logs and commits."
)
@pytest.mark.parametrize("cold", [False, True])
def test_looks_at_an_image(kernel: Kernel, fs: WritableFilesystem, image: Path, cold: bool) -> None:
    before = image.read_bytes()
    sent = bm.send(fs, "s2", "s1", ["s1"], behaviour=kernel.preset).data
    runs: dict[str, Any] = {"runs": RUNS, "cold": cold}
    as_timed(timings.send(kernel, image, "s2", "s1", **runs), len(sent))
    as_timed(timings.send(kernel, image, "s2", "s1", pipe=True, **runs), len(sent))
    assert timings.stream(kernel, image, "s2", "s1") == sent
    whole = bm.send(fs, "s1", behaviour=kernel.preset, no_file_data=True).data
    as_timed(timings.send(kernel, image, "s1", flags=1, **runs), len(whole))
    as_timed(timings.fiemap(kernel, image, "s2/parts", **runs), EXTENTS)
    as_timed(timings.fiemap(kernel, image, "s1/d/file_1", **runs), 0)
    as_timed(timings.find(kernel, image, "s1", **runs), 2 + len(NAMES))
    as_timed(timings.look_up(kernel, image, 257, 500, runs=RUNS), 0)
    assert image.read_bytes() == before


CALLS: list[tuple[Any, ...]] = [
    ("mkdir", "d"), ("create_files", "d", NAMES), ("fsync", "d"), ("fsync", "d"), ("sync",),
    ("unlink_files", "d", NAMES[::5]), ("fsync", "d"),
    ("create", "f"), ("write", "f", 0, bytes(range(256)) * 64), ("fdatasync", "f"),
    ("snapshot", "", "s"), ("truncate", "f", 100), ("setxattr", "f", "user.x", b"\xff"),
    ("rename", "f", "g"), ("link", "g", "d/g"), ("chmod", "g", 0o600), ("fsync", "g"),
]  # fmt: skip


@needs_progs
@pytest.mark.parametrize("given", [False, True])
def test_calls_that_follow_each_other(kernel: Kernel, tmp_path: Path, given: bool) -> None:
    options: dict[str, Any] = {"runs": RUNS, "size": 256 << 20}
    with bm.create(256 << 20, metadata="dup", behaviour=kernel.preset) as fs:
        if given:
            options["image"] = tmp_path / "image"
            fs.save(options["image"])
        taken = timings.steps(kernel, CALLS, **options)
        assert len(taken) == len(CALLS)
        for (name, *arguments), timing in zip(CALLS, taken, strict=True):
            as_timed(timing, 0)
            did = getattr(fs, name)(*arguments)
            wrote = {"log": "log", "commit": "commit"}.get(did, "") if "sync" in name else ""
            assert timing.wrote == (wrote,) * RUNS, (name, arguments)


@needs_progs
def test_receives(kernel: Kernel, fs: WritableFilesystem, tmp_path: Path) -> None:
    stream = tmp_path / "stream"
    stream.write_bytes(bm.send(fs, "s1", behaviour="v6.1").data)
    size = stream.stat().st_size
    as_timed(timings.receive(kernel, stream, size=256 << 20, runs=RUNS), size)
    stream.write_bytes(b"no stream")
    with pytest.raises(KernelFailedError, match=r"btrfs receive: status 1: ERROR: "):
        timings.receive(kernel, stream, size=256 << 20, runs=RUNS)
    with pytest.raises(KernelFailedError, match=r"^mkfs\.btrfs .* --odd .*: status 1: "):
        timings.receive(kernel, stream, size=256 << 20, mkfs=["--odd"])


def test_a_bad_image_is_one_line_and_the_kernel_goes_on(kernel: Kernel, image: Path) -> None:
    bad = kernel.images / "bad"
    bad.write_bytes(bytes(64 << 20))
    with pytest.raises(KernelFailedError) as error:
        timings.find(kernel, bad)
    assert "wrong fs type" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(KernelFailedError, match=r"\[Errno 2\] No such file or directory: .*/sx'"):
        timings.send(kernel, image, "sx")
    with pytest.raises(KernelFailedError, match=r"\[Errno 2\] No such file or directory: .*/sx'"):
        timings.send(kernel, image, "sx", pipe=True)
    with pytest.raises(KernelFailedError, match=r"\[Errno 2\] No such file or directory"):
        timings.look_up(kernel, image, 99_999, 1)
    assert timings.find(kernel, image, "d", runs=1).amount == len(NAMES) - len(NAMES[::7])


def test_processor_time_is_that_of_the_work(kernel: Kernel, image: Path) -> None:
    """A guest's is asked for outside; it cannot have more of it than there was time."""
    timing = timings.send(kernel, image, "s1", runs=20)
    assert 0 < statistics.median(timing.cpu_ms) < statistics.median(timing.wall_ms) + 5


@judges.MARKS["uml"]
@pytest.mark.parametrize("kernel", [judges.STARTED["uml"]], indirect=True)
def test_a_guest_has_one_device_after_the_other(kernel: Kernel, image: Path) -> None:
    with kernel.attached(image, read_only=True), pytest.raises(KernelFailedError, match="already"):
        timings.find(kernel, image)
    assert timings.find(kernel, image, "s1/d").amount == len(NAMES)


@judges.MARKS["uml"]
@pytest.mark.parametrize("kernel", [judges.STARTED["uml"]], indirect=True)
def test_a_guest_that_cannot_let_go_has_many_devices(
    kernel: Kernel, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 5.10 are so; after the last device the guest is started again."""
    monkeypatch.setattr(uml, "_REMOVES", (99, 0))
    monkeypatch.setattr(uml, "_UNITS", "bc")
    for _ in range(len(uml._UNITS) + 1):
        assert timings.find(kernel, image, "s1/d", runs=1).amount == len(NAMES)
