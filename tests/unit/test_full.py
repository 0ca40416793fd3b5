# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem that fills up; the numbers are those of Linux 6.18.44."""

import errno

import pytest

import btrfs_model as bm
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.sides import in_the_model
from btrfs_model.mount.space.free_space_ctl import FreeSpaceCtl

MIB = 1 << 20


@pytest.mark.claim("A write that does not fit writes what fits.", judge="recorded")
@pytest.mark.parametrize(
    ("size", "each", "whole", "part"),
    [
        (115, 4 * MIB, 8, 2097152),
        (115, 3 * MIB, 11, 1048576),
        (128, 5000000, 9, 4272128),
        (150, 1234567, 58, 606208),
        (200, 9 * MIB, 13, 2097152),
        (300, 33 * MIB, 6, 22020096),
        (300, 777777, 295, 57344),
    ],
)
def test_what_fits_is_written(size: int, each: int, whole: int, part: int) -> None:
    with bm.create(size * MIB) as fs:
        written = []
        for number in range(whole + 1):
            fs.create(f"{number}")
            written.append(fs.write(f"{number}", 0, bytes(each)))
        assert written == [each] * whole + [part]
        fs.create("more")
        with pytest.raises(OSError, match="No space left"):
            fs.write("more", 0, bytes(each))
        fs.sync()
        assert len(fs.read(f"{whole}")) == part
        assert bm.check(fs) == []


def test_what_is_allocated_can_be_written() -> None:
    with bm.create(115 * MIB) as fs:
        fs.create("there")
        fs.vfs_fallocate("there", 0, 0, MIB)
        fs.create("all")
        assert fs.write("all", 0, bytes(200 * MIB)) < 200 * MIB
        fs.sync()
        assert fs.write("there", 0, b"x" * 8192) == 8192
        fs.sync()
        assert fs.read("there", 0, 8192) == b"x" * 8192
        with pytest.raises(OSError, match="No space left"):
            fs.vfs_fallocate("there", 0, 2 * MIB, MIB)


@pytest.mark.claim("Metadata are full where a kernel's are.", judge="recorded")
def test_names_fit_up_to_there() -> None:
    with bm.create(115 * MIB, 65536) as fs:
        fs.create("big")
        fs.write("big", 0, bytes(200 * MIB))
        made = 0
        with pytest.raises(OSError, match="No space left") as caught:
            while True:
                fs.create(f"{made:0120}")
                made += 1
        assert caught.value.errno == errno.ENOSPC
        assert made == 2110
        # a kernel counts stripes of superblocks apart
        assert fs.writer.space_info(4).used == 2097152 + 65536
        for call in (
            lambda: fs.mkdir("d"),
            lambda: fs.link("big", "link"),
            lambda: fs.symlink("big", "symlink"),
        ):
            with pytest.raises(OSError, match="No space left"):
                call()
        for number in range(made):
            fs.unlink(f"{number:0120}")
        fs.sync()
        fs.mkdir("d")
        assert bm.check(fs) == []


@pytest.mark.claim(
    "Checksums of data that wait have room reserved, by the leaves that they fill; no chunk is "
    "made for an extent that is known not to fit into one.",
    judge="recorded",
)
def test_the_last_chunk_is_for_metadata() -> None:
    lines = [
        ["mkfs", ["-b", str(153 * MIB), "-n", "16384", "-m", "single"]], ["mount", "noatime"],
        ["mkdir", "a"], ["fillfiles", "a", "data", 0, 100, 20784476, ["zero"]],
    ]  # fmt: skip
    steps = [parse_step("full", number, line) for number, line in enumerate(lines, 1)]
    with in_the_model(Scenario("full", steps), "v6.18.44") as (fs, ran):
        assert ran.ended == ["", "ENOSPC"]
        sizes = {row["path"]: row["size"] for row in fs.listing(5).to_dict("records")}
        assert sum(sizes[f"a/data{number}"] for number in range(7)) == 142524456
        groups = [(chunk.length // MIB, chunk.type) for chunk in fs.image.chunks]
        assert groups == [(4, 2), (8, 4), (8, 1), *[(16, 1)] * 8, (4, 4)]


@pytest.mark.parametrize(("entry", "extents"), [(80, 137), (104, 106)])
def test_small_ranges_become_bits(entry: int, extents: int) -> None:
    """A third of the entries is for small ranges."""
    ranges = [(number * 16384, 4096) for number in range(extents + 1)]
    group = FreeSpaceCtl(0, 256 * MIB, 4096, entry, ranges[:-1])
    assert group.bitmaps == []
    group.remove(4096, 4096)  # is not free
    group = FreeSpaceCtl(0, 256 * MIB, 4096, entry, ranges)
    assert group.bitmaps == [0]
    with pytest.raises(OSError, match="Invalid argument"):
        group.remove(4096, 4096)
    group.remove(*ranges[-1])
    assert group.bitmaps == []


def test_small_groups_have_no_bitmaps() -> None:
    ranges = [(number * 16384, 4096) for number in range(2000)]
    group = FreeSpaceCtl(0, 63 * MIB, 4096, 104, ranges)
    assert group.bitmaps == []
    group.remove(4096, 4096)
