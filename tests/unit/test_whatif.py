# SPDX-License-Identifier: GPL-2.0-only
"""What would be: files written anew or shared, devices lost, a mount on a device."""

import errno
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path

import corpus
import pytest
from click.testing import CliRunner
from many_chunks import many_chunks

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.questions.usage.rewritten import BLOCK
from btrfs_model.volume.subvolume import Subvolume

NOCOW, IMMUTABLE = 0x800000, 0x10
SEEDS = range(20) if corpus.LONG else range(2)


def with_duplicates(seed: int) -> bm.WritableFilesystem:
    """Files of a few pieces that come again, written in small parts or at once; a snapshot."""
    choice = random.Random(seed)
    pieces = [choice.randbytes(choice.choice([4096, 20_000, BLOCK, 2 * BLOCK])) for _ in range(5)]
    fs = bm.create("1G")
    fs.mkdir("d")
    names = [f"{'d/' if number % 2 else ''}f{number}" for number in range(16)]
    for name in names:
        fs.create(name)
        data = b"".join(choice.choices([*pieces, choice.randbytes(9000)], k=3))
        step = choice.choice([16_384, len(data)])
        for at in range(0, len(data), step):
            fs.write(name, at, data[at : at + step])
            fs.fsync(name)
    fs.sync()
    fs.snapshot("", "snap")
    fs.write("f0", 8192, choice.randbytes(5000))
    fs.fallocate("f2", 0, 500_000)
    fs.sync()
    return fs


def contents(fs: bm.Filesystem) -> dict[str, str]:
    """The sum of each file of the top."""
    listing = fs.listing("").dropna(subset="sha256")
    return dict(zip(listing["path"], listing["sha256"], strict=True))


@pytest.mark.claim("What a dedupe or defragmentation and the next send come to is what they do.")
@pytest.mark.parametrize("seed", SEEDS)
def test_rewritten_as_foretold(seed: int, tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with with_duplicates(seed) as fs:
        fs.save(image)
    before = image.read_bytes()
    dedupe, defragment = bm.dedupe_plan(image, block=4096), bm.defragment_plan(image, path="d")
    assert image.read_bytes() == before
    assert dedupe.data == defragment.data >= dedupe.data_after
    assert dedupe.files["shared"].sum() > 0
    assert (defragment.files["extents_after"] < defragment.files["extents"]).any()
    assert set(defragment.files["path"].str[:2]) <= {"d/"}
    with bm.load(image) as fs:
        held = contents(fs)
        for name in sorted(held, key=lambda one: fs.subvolume("").resolve(one)):
            if name.startswith("d/"):
                fs.defragment(name, threshold=32 << 20)
        fs.sync()
        assert contents(fs) == held
        fs.snapshot("", "next1")
        for row in defragment.sends.itertuples():
            sent = bm.send(fs, "next1", row.parent or None)
            assert sent.size == row.after and sent.data is not None
            assert (row.after > row.bytes) == (row.parent == "snap")
    with bm.load(image) as fs:
        fs.snapshot("", "next1")
        sizes = [bm.send(fs, "next1", parent or None).size for parent in dedupe.sends["parent"]]
        assert sizes == dedupe.sends["bytes"].tolist()


def test_what_is_shared_already_is_left_alone(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with bm.create("256M", compress="zstd") as fs:
        for name in ("a", "b"):
            fs.create(name)
        fs.write("a", 0, b"text " * 60_000)
        fs.clone_range("a", "b", 0, 0, 0)
        fs.save(image)
    assert bm.dedupe_plan(image).files.empty
    assert bm.dedupe_plan(image).data > 0


def test_files_that_a_kernel_refuses_are_left_out(tmp_path: Path) -> None:
    image, data = tmp_path / "disk.img", random.Random(1).randbytes(300_000)
    with bm.create("256M") as fs:
        fs.create("plain")
        fs.create("no-sums")
        fs.chattr("no-sums", NOCOW)
        for name in ("fixed", "again"):
            fs.create(name)
        for name in ("plain", "no-sums", "fixed", "again"):
            for at in range(0, len(data), 20_480):
                fs.write(name, at, data[at : at + 20_480])
                fs.fsync(name)
        fs.chattr("fixed", IMMUTABLE)
        fs.save(image)
    assert bm.dedupe_plan(image, block=4096).files["path"].tolist() == ["again"]
    changed = bm.defragment_plan(image).files["path"].tolist()
    assert "plain" in changed and "fixed" not in changed
    with pytest.raises(ValueError, match="compress is one of zlib, lzo, zstd, not 'gzip'"):
        bm.defragment_plan(image, compress="gzip")


def test_refused_with_a_reason(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with with_duplicates(1) as fs:
        fs.save(image)
    for question in (bm.dedupe_plan, bm.defragment_plan):
        with pytest.raises(OSError, match="subvolume snap") as refused:
            question(image, "snap")
        assert refused.value.errno == errno.EROFS
    with pytest.raises(ValueError, match="block 1000: a block has a multiple of 4096 bytes"):
        bm.dedupe_plan(image, block=1000)
    run = CliRunner().invoke(cli, ["dedupe", str(image), "--block", "1000", "--dry-run"])
    assert run.exit_code == 2 and "block 1000" in run.output
    for command in ("dedupe", "defragment", "balance"):
        run = CliRunner().invoke(cli, [command, str(image)])
        assert run.exit_code == 2 and "--dry-run" in run.output


def test_rows_and_sums_of_the_commands(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with with_duplicates(2) as fs:
        fs.save(image)
    plan = bm.defragment_plan(image)
    for more, table in (([], plan.sends), (["--files"], plan.files)):
        ran = CliRunner().invoke(cli, ["defragment", str(image), "--dry-run", "--json", *more])
        *rows, sums = [json.loads(line) for line in ran.output.splitlines()]
        assert rows == json.loads(table.to_json(orient="records"))
        assert sums == {"files": len(plan.files), "shared": 0, "data": plan.data,
                        "data_after": plan.data_after}  # fmt: skip


# ------------------------------------------------------------------------------- lost devices --


def devices(name: str, folder: Path) -> Path:
    """Restore the devices of a recorded filesystem into a folder."""
    for packed in corpus.files(f"devices/{name}", "*.device.zst"):
        corpus.restore(corpus.path(f"devices/{name}", packed), folder / packed.split(".")[0])
    return folder


@pytest.mark.claim("What is told to be lost with a device is what cannot be read once it is junk.")
@pytest.mark.parametrize("name", ["raid0", "single", "raid10", "raid5", "raid5-to-raid1"])
def test_lost_is_what_junk_makes_unreadable(name: str, tmp_path: Path) -> None:
    folder = devices(name, tmp_path)
    devids = sorted(int(path.name) for path in folder.iterdir())
    for devid in devids:
        with bm.open(folder) as fs:
            left = bm.device_lost(fs, devid)
            data = [(chunk.stripes[chunk.devids.index(devid)], chunk.stripe_length)
                    for chunk in fs.image.chunks
                    if chunk.type & 1 and devid in chunk.devids]  # fmt: skip
        lost = {(row.subvolume, row.path): row.lost for row in left.files.itertuples()}
        with junk(folder / str(devid), data), bm.open(folder) as fs:
            for number in fs.subvolume_ids:
                for row in fs.listing(number, content=False).itertuples():
                    if row.mode & 0o170000 == 0o100000:
                        bad = unreadable(fs.subvolume(number), row.path, row.size)
                        assert lost.pop((number, row.path), 0) == bad, (number, row.path)
        assert not lost
        enough = all(
            chunk.missing <= {"RAID1": 1, "RAID5": 1, "RAID10": 1}.get(chunk.type.split("|")[-1], 0)
            for chunk in left.chunks.itertuples()
        )
        mounts = "writable" if enough else "read-only" if left.trees.empty else "none"
        assert left.mount == mounts


@contextmanager
def junk(device: Path, stripes: list[tuple[int, int]]) -> Iterator[None]:
    """Put junk where stripes of data hold something, and take it away again."""
    before = {}
    with device.open("r+b") as file:
        for start, length in stripes:
            for at in range(start, start + length, _PIECE):
                data = os.pread(file.fileno(), _PIECE, at)
                if data.strip(b"\0"):
                    before[at] = data
                    os.pwrite(file.fileno(), data.translate(_OTHER), at)
        yield
        for at, data in before.items():
            os.pwrite(file.fileno(), data, at)


_PIECE = 64 << 10
_OTHER = bytes(255 - byte for byte in range(256))


def unreadable(sub: Subvolume, path: str, size: int) -> int:
    """Count the bytes of a file that cannot be read, sector by sector."""
    with suppress(bm.errors.CorruptImageError):
        sub.read_file(path)
        return 0
    bad = 0
    for at in range(0, size, 4096):
        length = min(4096, size - at)
        try:
            sub.read_file(path, at, length)
        except bm.errors.CorruptImageError:
            bad += length
    return bad


def test_metadata_may_be_lost_as_well(tmp_path: Path) -> None:
    folder = devices("raid1", tmp_path)
    with bm.open(folder) as fs:
        both = {pair: bm.device_lost(fs, *pair) for pair in combinations((1, 2, 3), 2)}
        pair, left = next(item for item in both.items() if item[1].mount == "none")
        assert "fs tree" in set(left.trees["tree"])
        assert (left.trees["lost"] <= left.trees["blocks"]).all()
        with pytest.raises(bm.BtrfsModelError, match=r"there is no device 7 in \[1, 2, 3\]"):
            bm.device_lost(fs, 7)
        with pytest.raises(bm.BtrfsModelError, match="no device is named"):
            bm.device_lost(fs)
    devids = [word for devid in pair for word in ("--devid", str(devid))]
    command = ["device-lost", str(folder), *devids, "--json"]
    ran = CliRunner().invoke(cli, command)
    sums = json.loads(ran.output.splitlines()[-1])
    assert sums["mount"] == "none" and sums["files"] == len(left.files)
    ran = CliRunner().invoke(cli, [*command, "--chunks"])
    rows = [json.loads(line) for line in ran.output.splitlines()]
    assert len(rows) == len(left.chunks) + 1


# ------------------------------------------------------------------------------------- mounts --


def test_a_block_group_tree_makes_mounts_read_less() -> None:
    with many_chunks("6.2") as old, many_chunks("7.3") as new:
        as_it_is, with_one = bm.mount_reads(old), bm.mount_reads(old, block_group_tree=True)
        assert len(with_one) < len(as_it_is)
        assert len(bm.mount_reads(old, block_group_tree=False)) == len(as_it_is)
        extents = {block.logical for block in old.tree(2).blocks() if not block.level}
        leaves = as_it_is["logical"].isin(extents).sum()
        assert len(with_one) == len(as_it_is) - leaves + len(new.tree(11).blocks())
        assert len(bm.mount_reads(new, block_group_tree=False)) > len(bm.mount_reads(new))
        slow = as_it_is.on("deskstar-7k500").attrs["seconds"]
        assert slow > with_one.on("deskstar-7k500").attrs["seconds"] > 0


def test_a_row_with_and_without(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with many_chunks("6.2") as fs:
        fs.save(image)
        blocks = [len(bm.mount_reads(fs, block_group_tree=one)) for one in (False, True)]
    command = ["mount-time", str(image), "--json", "--device", "deskstar-7k500"]
    ran = CliRunner().invoke(cli, command)
    rows = [json.loads(line) for line in ran.output.splitlines()]
    assert [row["blocks"] for row in rows] == blocks
    assert [row["is"] for row in rows] == [True, False]
    assert rows[0]["seconds"] > rows[1]["seconds"]
    ran = CliRunner().invoke(cli, ["mount-time", str(image), "--reads", "--json"])
    assert len(ran.output.splitlines()) == blocks[0]
