# SPDX-License-Identifier: GPL-2.0-only
"""A balance moves everything, and nothing that is stored changes."""

import errno
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

import btrfs_model as bm
from btrfs_model.cli import cli


def mixed_files(seed: int, count: int = 20) -> bm.WritableFilesystem:
    """Files of many kinds in four snapshots, with clones and preallocated ranges."""
    choice, names = random.Random(seed), []
    fs = bm.create("1G", nodesize=4096)
    for snapshot in range(4):
        for number in range(count):
            names.append(f"f{snapshot}-{number}")
            fs.create(names[-1])
            fs.write(names[-1], 0, choice.randbytes(choice.choice([100, 3000, 5000, 70_000])))
            fs.mkdir(f"d{snapshot}-{number}")
        for name in choice.sample(names, len(names) // 3):
            fs.write(name, 4096 * choice.randrange(20), choice.randbytes(9000))
        for name in choice.sample(names, 9):
            fs.fallocate(name, 0, 200_000)
        for name in choice.sample(names[-count:], 9):
            fs.unlink(name)
            fs.create(name)
            fs.clone_range(choice.choice(names), name, 0, 0, 0)
        fs.snapshot("", f"s{snapshot}")
    fs.commit()
    return fs


def stored(fs: bm.Filesystem) -> dict[tuple[int, str], object]:
    """All that files are, and how much of them is shared or preallocated."""
    found: dict[tuple[int, str], object] = {}
    for subvolume in fs.subvolume_ids:
        for row in fs.listing(subvolume).dropna(subset="sha256").itertuples():
            extents = bm.fiemap(fs, subvolume, row.path)
            # those that lie side by side now are one; LAST says nothing here
            kinds = extents.groupby(extents["flags"] | 1)["length"].sum().to_dict()
            found[subvolume, row.path] = (row.sha256, kinds)
    return found


@pytest.mark.claim("After a balance all files, sharing and checks are as before.")
@pytest.mark.parametrize("filters", [{"data": ""}, {"metadata": ""}, {}])
def test_nothing_that_is_stored_changes(filters: dict[str, str], tmp_path: Path) -> None:
    with mixed_files(len(filters)) as fs:
        before = stored(fs)
        chunks = {chunk.logical for chunk in fs.image.chunks}
        moved = fs.balance(**filters)
        assert moved.completed == moved.expected > 0
        after = {chunk.logical for chunk in fs.image.chunks}
        assert len(chunks - after) == moved.completed
        assert stored(fs) == before
        fs.save(tmp_path / "disk.img")
    assert not bm.check(tmp_path / "disk.img", verify_data=True)


def test_filters_choose_chunks() -> None:
    with mixed_files(7) as fs:
        assert fs.balance(data="usage=0", metadata="usage=0").completed == 0
        assert fs.balance(data="limit=1").completed == 1
        assert fs.balance(metadata="convert=single", force=True).completed > 0
        assert not any(chunk.type & 1 << 5 and chunk.type & 4 for chunk in fs.image.chunks)
        with pytest.raises(OSError, match=r"Invalid argument") as refused:
            fs.balance(data="convert=raid1")
        assert refused.value.errno == errno.EINVAL
        for wrong in ("usage", "usage=101", "drange=0..4", "soft", "convert=raid7", "left=1"):
            with pytest.raises(ValueError, match=r"\w"):
                fs.balance(data=wrong)


def test_what_rotted_does_not_move() -> None:
    with bm.create("1G") as fs:
        fs.create("f")
        fs.write("f", 0, b"a" * 100_000)
        fs.sync()
        place = fs.image.map(int(bm.fiemap(fs, "", "f").physical[0]))[0]
        fs.image.view[place] ^= 1
        with pytest.raises(OSError, match=r"Input/output error"):
            fs.balance(data="")
        fs.image.view[place] ^= 1
        assert fs.balance(data="").completed > 0


@pytest.mark.claim("What a balance would move is told without writing to the image.")
def test_a_plan_tells_what_a_balance_does(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with mixed_files(3) as fs:
        fs.save(image)
    before = image.read_bytes()
    plan = bm.balance_plan(image, data="", metadata="limit=1")
    assert image.read_bytes() == before
    with bm.load(image) as fs:
        moved = fs.balance(data="", metadata="limit=1")
        device = fs.raw_super.dev_item
    assert (plan.table.moved.sum(), plan.considered) == (moved.completed, moved.considered)
    assert plan.unallocated_after == device.total_bytes - device.bytes_used
    assert plan.error is None and plan.data > plan.metadata > 0
    ran = CliRunner().invoke(cli, ["balance", str(image), "-d", "", "--dry-run", "--json"])
    *chunks, sums = [json.loads(line) for line in ran.output.splitlines()]
    assert [row["type"] for row in chunks] == ["DATA"] * sums["relocated"]


def test_a_filesystem_ends_before_its_last_chunk(tmp_path: Path) -> None:
    with bm.create("1G") as fs:
        for name in ("a", "b", "c"):
            fs.create(name)
            fs.fallocate(name, 0, 100 << 20)
        fs.sync()
        fs.unlink("a")
        fs.unlink("b")
        fs.sync()
        fs.resize("500M")
        assert (
            max(at + chunk.length for chunk in fs.image.chunks for at in chunk.stripes) <= 500 << 20
        )
        fs.save(tmp_path / "disk.img")
    assert not bm.check(tmp_path / "disk.img")
