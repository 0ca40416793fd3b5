# SPDX-License-Identifier: GPL-2.0-only
"""Rotted sectors and tree blocks are made right from streams, images and other copies."""

import base64
import hashlib
import json
import random
from pathlib import Path

import corpus
import pytest
from click.testing import CliRunner

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.questions.rescue.faults import Wrong
from btrfs_model.questions.rescue.scan import ranges_of
from btrfs_model.questions.rescue.sources import Wanted


def rot(path: Path, count: int, seed: int = 1) -> None:
    """Change a byte of some sectors that have a checksum, in the first copy."""
    chance = random.Random(seed)
    with bm.open(path) as fs:
        sums = fs.checksums
        pairs = zip(sums.starts.tolist(), sums.ends.tolist(), strict=True)
        sectors = [at for start, end in pairs for at in range(start, end, fs.image.sectorsize)]
        places = [fs.image.copies(at)[0] for at in chance.sample(sectors, min(count, len(sectors)))]
    change(path, [place + chance.randrange(4096) for place in places])


def change(path: Path, places: list[int]) -> None:
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 0x10]))


def same(one: Path, other: Path) -> bool:
    """Whether two images have the same bytes, holes being zeros."""
    size = one.stat().st_size
    with one.open("rb") as first, other.open("rb") as second:
        for path in (one, other):
            for start, end in ranges_of(str(path), 0, size):
                first.seek(start)
                second.seek(start)
                if first.read(end - start) != second.read(end - start):
                    return False
    return size == other.stat().st_size


@pytest.mark.claim(
    "Sectors that rotted are made right from the stream of a snapshot, compressed ones from a "
    "stream with compressed data, whatever the checksums are."
)
@pytest.mark.parametrize(
    "name", ["send/send-truncate/n500", "features/zstd", "features/csum-blake2"]
)
def test_from_a_stream(name: str, tmp_path: Path) -> None:
    disk = corpus.scratch_copy(name, tmp_path / "disk.img")
    stream = tmp_path / "snap.stream"
    with bm.open(disk) as fs:
        stream.write_bytes(bm.send(fs, "snap", proto=2, compressed=True).data or b"")
    rot(disk, 20)
    healed = bm.heal(disk, stream, tmp_path / "p.json", copy=tmp_path / "healed.img")
    table = healed.table
    assert healed.is_whole and len(table) == 20 and set(table["what"]) == {"data"}
    assert table["source"].str.contains("snap.stream: command at byte").all()
    assert not bm.check(tmp_path / "healed.img", verify_data=True)
    assert same(tmp_path / "healed.img", corpus.image(name))
    head, *rows = map(json.loads, (tmp_path / "p.json").read_text().splitlines())
    assert head["format"] == "btrfs-model patch 1"
    with disk.open("r+b") as file:
        for row in rows:
            file.seek(row["offset"])
            file.write(base64.b64decode(row["data"]))
    assert same(disk, corpus.image(name))


@pytest.mark.claim("Of two copies, the good one makes the other right: data and tree blocks.")
def test_from_the_other_copy(tmp_path: Path) -> None:
    disk = corpus.scratch_copy("features/dup", tmp_path / "disk.img")
    with bm.open(disk) as fs:
        blocks = {block.logical for tree in fs.trees.values() for block in tree.blocks()}
        places = [fs.image.copies(block)[number % 2] for number, block in enumerate(sorted(blocks))]
    change(disk, [place + 200 for place in places])
    change(disk, [(64 << 20) + 300])
    rot(disk, 5)
    healed = bm.heal(disk, patch=tmp_path / "p.json", copy=tmp_path / "healed.img")
    assert healed.is_whole and healed.chance == 0
    there = disk.read_bytes()
    for row in list(map(json.loads, (tmp_path / "p.json").read_text().splitlines()))[1:]:
        was = there[row["offset"] : row["offset"] + row["length"]]
        assert row["was_sha256"] == hashlib.sha256(was).hexdigest()
    assert set(healed.table["what"]) == {"data", "tree block", "superblock"}
    assert same(tmp_path / "healed.img", corpus.image("features/dup"))


@pytest.mark.claim(
    "Tree blocks and compressed data are made right from another image of the filesystem, down "
    "from the root."
)
def test_from_an_image(tmp_path: Path) -> None:
    name = "features/nodesize-4096"
    disk = corpus.scratch_copy(name, tmp_path / "disk.img")
    rot(disk, 5)
    with bm.open(disk) as fs:
        blocks = {block.logical for tree in fs.trees.values() for block in tree.blocks()}
        places = [fs.image.map(block)[0] + 200 for block in blocks]
    change(disk, places)
    healed = bm.heal(disk, corpus.image(name), copy=tmp_path / "healed.img")
    assert healed.is_whole and len(healed.table) == len(blocks) + 5
    assert same(tmp_path / "healed.img", corpus.image(name))


def test_what_is_nowhere_is_told(tmp_path: Path) -> None:
    disk = corpus.scratch_copy("send/send-truncate/n500", tmp_path / "disk.img")
    rot(disk, 3)
    other = tmp_path / "other"
    other.write_bytes(b"nothing of it")
    result = CliRunner().invoke(cli, ["heal", str(disk), "--from", str(other), "--json"])
    assert result.exit_code == 1
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["source"] for row in rows] == [""] * 3
    assert all(row["path"].startswith("subvolume ") for row in rows)
    assert "3 runs of bytes are wrong, of 0 the right bytes" in result.stderr
    same_file = CliRunner().invoke(cli, ["heal", str(disk), "--copy", str(disk)])
    assert "would take the image's place" in str(same_file.exception)


def test_of_two_sectors_with_one_checksum_the_place_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numpy as np

    from btrfs_model.questions.rescue import sources

    def sums(kind: int, data: bytes, size: int) -> object:
        return np.full((len(data) // size, 4), 7, np.uint8)

    monkeypatch.setattr(sources, "sector_sums", sums)
    wrong = [Wrong("data", 0, 4096, 4096 * n, 0, b"\7" * 4) for n in (1, 2)]
    wanted = Wanted(wrong, {4096: {(b"f", 0)}}, 0, 4096)
    for path, byte in ((b"g", b"a"), (b"f", b"b"), (b"h", b"c")):
        wanted.offer(byte * 4096, lambda start: "here", path)
    assert wrong[0].data == b"b" * 4096 and wrong[0].proof == "checksum and place"
    assert wrong[1].data is None and wrong[1].proof == "several sectors have this checksum"
