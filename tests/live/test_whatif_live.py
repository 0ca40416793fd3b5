# SPDX-License-Identifier: GPL-2.0-only
"""What would be, beside the running kernel that does it: dedupe, defragmentation, a mount."""

import fcntl
import os
import random
import re
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import corpus
import live
import live_devices
import pytest
from corpus import LONG
from many_chunks import many_chunks

import btrfs_model as bm
from btrfs_model.questions.usage.rewritten import Changed, duplicates

pytestmark = live.BESIDE_THE_KERNEL

SEEDS = range(12) if LONG else range(2)
_FIDEDUPERANGE = 0xC0189436
_TRACING = Path("/sys/kernel/tracing")


def with_duplicates(seed: int, image: Path) -> None:
    """Files of pieces that come again, in small extents and large ones, in two snapshots."""
    choice = random.Random(seed)
    sizes = [4096, 20_000, 128 << 10, 256 << 10, 700_000]
    pieces = [choice.randbytes(choice.choice(sizes)) for _ in range(6)]
    with bm.create("1G") as fs:
        names = [f"d{number % 3}/f{number}" for number in range(25)]
        for directory in range(3):
            fs.mkdir(f"d{directory}")
        for name in names:
            fs.create(name)
            data = b"".join(choice.choices([*pieces, choice.randbytes(9000)], k=3))
            step = choice.choice([16_384, 65_536, len(data)])
            for at in range(0, len(data), step):
                fs.write(name, at, data[at : at + step])
                fs.fsync(name)
        fs.sync()
        fs.snapshot("", "snap1")
        for name in choice.sample(names, 8):
            fs.write(name, 4096 * choice.randrange(10), choice.randbytes(9000))
        for name in choice.sample(names, 2):
            fs.fallocate(name, 0, 400_000)
        fs.sync()
        fs.snapshot("", "snap2")
        fs.write(names[0], 0, choice.randbytes(5000))
        fs.save(image)


def dedupe(source: Path, start: int, target: Path, to: int, length: int) -> None:
    """Call FIDEDUPERANGE."""
    with source.open("rb") as file, target.open("r+b") as other:
        asked = bytearray(
            struct.pack("=QQHHIqQQiI", start, length, 1, 0, 0, other.fileno(), to, 0, 0, 0)
        )
        fcntl.ioctl(file, _FIDEDUPERANGE, asked)
    *_, done, status, _ = struct.unpack("=QQHHIqQQiI", asked)
    assert (done, status) == (length, 0)


def of_the_kernel(top: Path, parents: list[str]) -> tuple[int, list[int]]:
    """Take a snapshot; return the bytes of data, and the size of each send."""
    live_devices.run("btrfs", "filesystem", "sync", top)
    df = subprocess.run(["btrfs", "filesystem", "df", "-b", str(top)], capture_output=True,
                        text=True, check=True).stdout  # fmt: skip
    used = re.search(r"Data, single: total=\d+, used=(\d+)", df)
    assert used is not None
    live_devices.run("btrfs", "subvolume", "snapshot", "-r", top, top / "next1")
    sizes = []
    for parent in parents:
        option = ["-p", str(top / parent)] if parent else []
        sent = subprocess.run(["btrfs", "send", "-q", *option, str(top / "next1")],
                              capture_output=True, check=True)  # fmt: skip
        sizes.append(len(sent.stdout))
    return int(used[1]), sizes


@pytest.mark.claim("A dedupe and a defragmentation come to what the running kernel makes of them.")
@pytest.mark.parametrize("how", ["dedupe", "blocks", "defragment", "compress"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rewritten_beside_the_kernel(seed: int, how: str, tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with_duplicates(seed, image)
    block = 4096 if how == "blocks" else 128 << 10
    if how in ("dedupe", "blocks"):
        plan = bm.dedupe_plan(image, block=block)
        with bm.load(image) as fs:
            one = Changed(fs, "", None)
            calls = [(os.fsdecode(one.full(same.source)), same.start,
                      os.fsdecode(one.full(same.target)), same.to, same.length)
                     for same in duplicates(one, block)]  # fmt: skip
    else:
        plan = bm.defragment_plan(image, compress="zstd" if how == "compress" else "")
        calls = []
    # directories are read on the way, which would be sent as times
    with live_devices.mounted([image], "noatime") as top:
        for source, start, target, to, length in calls:
            dedupe(top / source, start, top / target, to, length)
        if not calls:
            option = ["-czstd"] if how == "compress" else []
            command = ["btrfs", "filesystem", "defragment", "-r", *option]
            live_devices.run(*command, *sorted(top.glob("d*")))
        found = of_the_kernel(top, plan.sends["parent"].tolist())
    assert found == (plan.data_after, plan.sends["after"].tolist())


# ------------------------------------------------------------------------------------- mounts --


def why_no_trace() -> str:
    """Why requests of a block device cannot be traced, or nothing."""
    if not _TRACING.is_dir():
        return "there is no tracefs"
    subprocess.run(["mount", "-t", "tracefs", "none", str(_TRACING)], capture_output=True)
    there = (_TRACING / "events/block/block_bio_queue/enable").exists()
    return "" if there else "the kernel has no tracepoints of the block layer"


@contextmanager
def traced() -> Iterator[list[str]]:
    """Yield what will hold the lines of the trace of requests."""
    lines: list[str] = []
    enable, on = _TRACING / "events/block/block_bio_queue/enable", _TRACING / "tracing_on"
    (_TRACING / "trace").write_text("\n")
    enable.write_text("1")
    on.write_text("1")
    try:
        yield lines
    finally:
        on.write_text("0")
        enable.write_text("0")
        lines += (_TRACING / "trace").read_text().splitlines()


@pytest.mark.claim("A mount reads the tree blocks that the running kernel reads, in its order.")
@pytest.mark.parametrize("options", ["ro", "rw"])
@pytest.mark.parametrize("name", ["6.2", "7.3", "features/quota", "features/nodesize-65536",
                                  "reada/r5k", "balance/moved-nodes"])  # fmt: skip
def test_reads_of_a_mount(name: str, options: str, tmp_path: Path) -> None:
    if why := why_no_trace():
        pytest.skip(why)
    image = tmp_path / "disk.img"
    if "/" in name:
        corpus.scratch_copy(name, image)
    else:
        with many_chunks(name) as fs:
            fs.snapshot("", "snap")
            fs.save(image)
    with bm.open(image) as fs:
        reads = bm.mount_reads(fs, writable=options == "rw")
        copies = [[fs.image.map(logical, copy)[0] for copy in range(chunk.placed)]
                  for logical in reads["logical"].tolist()
                  for chunk in [fs.image.chunk_at(logical)] if chunk is not None]  # fmt: skip
    with live_devices.looped([image]) as (loop,):
        live_devices.run("blockdev", "--flushbufs", loop)
        with traced() as lines:
            live_devices.run("mount", "-t", "btrfs", "-o", options, loop, "/mnt")
        live_devices.run("umount", "/mnt")
    # tree blocks are read as metadata
    asked = (re.search(r"block_bio_queue: \S+ RM\S* (\d+) \+", line) for line in lines)
    places = [512 * int(found[1]) for found in asked if found]
    assert len(places) == len(copies)
    assert all(place in known for place, known in zip(places, copies, strict=True))
