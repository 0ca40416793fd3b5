# SPDX-License-Identifier: GPL-2.0-only
"""Sizes of sends without a stream, and the smallest chain of them."""

import random
import re
from itertools import product
from pathlib import Path

import corpus
import pandas as pd
import pytest
from click.testing import CliRunner

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.native.send import Known
from btrfs_model.questions.send.ioctl import SendResult, sizes_of

WAYS = ({}, {"proto": 2}, {"proto": 2, "compressed": True}, {"no_file_data": True})


def with_snapshots(seed: int, count: int = 4) -> bm.WritableFilesystem:
    """A filesystem whose files come, go and are cloned between its snapshots."""
    choice, there = random.Random(seed), set[str]()
    fs = bm.create("256M", seed=seed, compress="zlib" if seed % 2 else None)
    for number in range(count):
        for _ in range(6):
            name = f"file{choice.randrange(8)}"
            if name in there and choice.random() < 0.3:
                fs.unlink(name)
                there.remove(name)
                continue
            if name not in there:
                fs.create(name)
                there.add(name)
            fs.write(name, 4096 * choice.randrange(3), choice.randbytes(choice.randrange(1, 30000)))
        fs.snapshot("", f"s{number}")
    fs.sync()
    return fs


@pytest.mark.claim(
    "The size of a send is told without a stream, exactly, with its commands and work, and without "
    "a look at file data: full, with a parent, of each protocol and of compressed data."
)
@pytest.mark.parametrize("image", ["features/zstd", "send/random/seed-003"])
def test_an_estimate_is_the_size_of_the_stream(image: str) -> None:
    with bm.open(corpus.image(image)) as fs:
        sent = [number for number in fs.subvolume_ids if fs.subvolume(number).is_read_only]
        assert sent
        for snapshot, parent, way in product(sent, [None, *sent], WAYS):
            whole = bm.send(fs, snapshot, parent, **way)
            told = bm.send(fs, snapshot, parent, estimate=True, **way)
            assert told.data is None and whole.data is not None
            assert (told.size, told.commands, told.work) == (
                len(whole.data), whole.commands, whole.work,
            )  # fmt: skip


def test_file_data_are_not_looked_at(tmp_path: Path) -> None:
    """What no sum fits any more ends a send, not an estimate."""
    fs = bm.create("256M", seed=1)
    fs.create("file")
    fs.write("file", 0, b"x" * 100_000)
    fs.snapshot("", "s")
    fs.sync()
    size = bm.send(fs, "s").size
    fs.save(tmp_path / "image")
    data = bytearray((tmp_path / "image").read_bytes())
    at = data.index(b"x" * 4096)
    data[at] ^= 1
    (tmp_path / "image").write_bytes(data)
    with bm.open(tmp_path / "image") as damaged:
        with pytest.raises((OSError, bm.BtrfsModelError)):
            bm.send(damaged, "s")
        assert bm.send(damaged, "s", estimate=True).size == size
    with pytest.raises(ValueError, match="explain"):
        bm.send(fs, "s", estimate=True, explain=True)


@pytest.mark.claim(
    "`plan` gives each send its real size, and no order of sends in which each parent is there "
    "before it is needed has fewer bytes than its chain."
)
@pytest.mark.parametrize("clones", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_chain_is_the_smallest_that_there_is(seed: int, clones: bool) -> None:
    fs = with_snapshots(seed)
    found = bm.plan(fs, clones=clones)
    names = ["s0", "s1", "s2", "s3"]
    whole = found.table[found.table["clone_sources"] <= (found.table["parent"] != "")]
    assert len(whole) == 16
    for row in whole.itertuples():
        assert len(bm.send(fs, row.snapshot, row.parent or None).data or b"") == row.bytes
    if clones:
        assert len(found.table) == 16 + 11  # where there is an older one that is not the parent
    else:
        size = {(row.snapshot, row.parent): row.bytes for row in whole.itertuples()}
        sums = [
            sum(size[pair] for pair in zip(names, parents, strict=True))
            for parents in product(["", *names], repeat=4)
            if all(pair in size for pair in zip(names, parents, strict=True))
            and all(leads_up(name, dict(zip(names, parents, strict=True))) for name in names)
        ]
        assert found.bytes == min(sums)
    there = {""}
    for row in found.chain.itertuples():
        assert row.parent in there
        there.add(row.snapshot)
    assert there == {"", *names}
    best = found.table[found.table["cheapest"]]
    assert best["snapshot"].tolist() == names
    least = found.table.groupby("snapshot")["bytes"].min()
    assert best.set_index("snapshot")["bytes"].equals(least[best["snapshot"]])


@pytest.mark.claim(
    "What sends of a plan remember for each other changes neither sizes nor commands nor work."
)
@pytest.mark.parametrize("behaviour", ["v6.18", "v6.2", "v5.10"])
@pytest.mark.parametrize("seed", range(2))
def test_sends_that_follow_each_other(seed: int, behaviour: str) -> None:
    fs, choice = with_snapshots(seed, 5), random.Random(seed)
    names = [f"file{number}" for number in range(8)]
    for name in filter(lambda one: fs.file(one).exists(), names):
        fs.create(f"{name}.copy")
        fs.clone_range(name, f"{name}.copy", 0, 4096 * choice.randrange(1, 3), 0)
        fs.rename(name, f"{name}.moved")
    fs.snapshot("", "s5")
    fs.sync()
    snapshots, known = [fs.subvolume(f"s{number}") for number in range(6)], Known()
    for snapshot in snapshots:
        asked = [
            (snapshot, parent, sources)
            for parent in [None, *snapshots]
            for sources in ([] if parent is None else [parent], snapshots)
        ]
        for one, together in zip(
            asked, sizes_of(fs, asked, known, behaviour=behaviour), strict=True
        ):
            (by_itself,) = sizes_of(fs, [one], Known(), behaviour=behaviour)
            assert together == by_itself
            alone = bm.send(fs, *one, behaviour=behaviour)
            assert (together.size, together.commands) == (alone.size, alone.commands)


@pytest.mark.claim(
    "What sends of a plan remember is what a send by itself finds: sizes, commands and work are "
    "those of one that remembers nothing, with a parent or clone sources and without, of each "
    "protocol."
)
@pytest.mark.parametrize("behaviour", ["v6.18", "v6.2", "v5.10"])
@pytest.mark.parametrize("image", ["features/zstd", "send/random/seed-003"])
def test_what_is_remembered_is_what_is_there(image: str, behaviour: str) -> None:
    ways = WAYS[:1] if behaviour == "v5.10" else WAYS[:3]
    with bm.open(corpus.image(image)) as fs:
        found = [fs.subvolume(number) for number in fs.subvolume_ids]
        snapshots = [one for one in found if one.is_read_only]
        for way in ways:
            known = Known()
            for snapshot, parent in product(snapshots, [None, *snapshots] * 2):
                for sources in ([] if parent is None else [parent], snapshots):
                    asked = [(snapshot, parent, sources)]
                    told = [sizes_of(fs, asked, one, behaviour=behaviour, **way)
                            for one in (known, None)]  # fmt: skip
                    assert told[0] == told[1]


def with_moves(seed: int, folders: int = 4, files: int = 350) -> bm.WritableFilesystem:
    """A filesystem with more inodes than a turn has, changed in all ways between its snapshots.

    Directories move into each other, so that renames wait, and go; names are taken over.
    """
    choice = random.Random(seed)
    fs = bm.create("256M", seed=seed)
    dirs = [f"d{number}" for number in range(folders)]
    there = [f"{folder}/f{number}" for folder in dirs for number in range(files)]
    for folder in dirs:
        fs.mkdir(folder)
    for path in there:
        fs.create(path)
    for number in range(3):
        for _ in range(60):
            path, other = choice.sample(there, 2)
            folder, target = choice.sample(dirs, 2)
            match choice.randrange(8):
                case 0:
                    fs.unlink(path)
                    there.remove(path)
                case 1:  # over another one, whose name it takes
                    fs.rename(path, other)
                    there.remove(path)
                case 2:
                    new = f"{folder}/l{choice.randrange(10**6)}"
                    fs.link(path, new)
                    there.append(new)
                case 3:
                    fs.write(path, 4096 * choice.randrange(3), choice.randbytes(5000))
                case 4:
                    fs.chmod(path, 0o600)
                case 5:
                    fs.write(path, 0, choice.randbytes(9000))
                    fs.clone_range(path, other, 0, 8192, 0)
                case 6:
                    new = f"{target}/{choice.randrange(10**6)}"
                    fs.mkdir(new)
                    dirs.append(new)
                case 7 if not target.startswith(f"{folder}/"):
                    new = f"{target}/{folder.rpartition('/')[2]}.{choice.randrange(10**6)}"
                    fs.rename(folder, new)
                    moved = [re.sub(rf"^{folder}(?=/|$)", new, one) for one in [*there, *dirs]]
                    there, dirs = moved[: len(there)], moved[len(there) :]
        fs.snapshot("", f"s{number}")
    fs.sync()
    return fs


@pytest.mark.claim(
    "Sends that take turns are those that each is by itself, byte for byte in size, with its "
    "commands and work."
)
@pytest.mark.parametrize("behaviour", ["v6.18", "v6.2", "v5.10"])
@pytest.mark.parametrize("seed", range(3))
def test_sends_that_take_turns(seed: int, behaviour: str) -> None:
    fs = with_moves(seed)
    snapshots, known = [fs.subvolume(f"s{number}") for number in range(3)], Known()
    asked = [
        (snapshot, parent, [] if parent is None else [parent])
        for snapshot in snapshots
        for parent in [None, *snapshots]
    ]
    for one, together in zip(asked, sizes_of(fs, asked, known, behaviour=behaviour), strict=True):
        (by_itself,) = sizes_of(fs, [one], None, behaviour=behaviour)
        assert together == by_itself
        stream = bm.send(fs, *one, behaviour=behaviour).data
        assert isinstance(together, SendResult) and stream is not None
        assert together.size == len(stream)


def leads_up(name: str, parents: dict[str, str]) -> bool:
    """Whether the parents of a snapshot end at none."""
    for _ in range(len(parents)):
        name = parents[name]
        if not name:
            return True
    return False


@pytest.mark.claim(
    "`plan --target` sends what a receiver lacks, from parents that a receive finds there."
)
def test_a_target_has_what_was_received_there(tmp_path: Path) -> None:
    fs, image, backup = with_snapshots(3), tmp_path / "disk.img", tmp_path / "backup.img"
    stream = bm.send(fs, "s1").data
    fs.save(image)
    receiver = bm.create("256M", seed=9)
    bm.receive(receiver, stream)
    receiver.sync()
    uuid = receiver.subvolumes()["received_uuid"].max()
    for target in (receiver, [uuid.upper()]):
        found = bm.plan(fs, target=target)
        assert found.there == ["s1"]
        assert {*found.chain["snapshot"]} == {"s0", "s2", "s3"}
        for row in found.chain.itertuples():  # as it says, so it can be received
            if isinstance(target, bm.WritableFilesystem):
                bm.receive(target, bm.send(fs, row.snapshot, row.parent or None).data)
    receiver.sync()
    assert bm.plan(fs, target=receiver).chain.empty
    receiver.save(backup)
    told = CliRunner().invoke(cli, ["plan", str(image), "--target", str(backup)])
    assert "0 sends, 0 bytes in all; there already: s0, s1, s2, s3" in told.stderr
    (tmp_path / "there").write_text(f"ID 257 received_uuid {dashed(uuid)} path s1\n")
    told = CliRunner().invoke(cli, ["plan", str(image), "--target", str(tmp_path / "there")])
    assert "there already: s1" in told.stderr
    receiver.set_read_only("s1", read_only=False)
    lost = bm.plan(fs, "s2", "s1", target=receiver).table
    assert lost["refused"].str.contains("writable").any()


def dashed(uuid: str) -> str:
    """A UUID as btrfs-progs print it."""
    return "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))


def test_a_parent_that_is_nowhere_is_refused_as_a_receive_does(tmp_path: Path) -> None:
    fs = with_snapshots(4, 2)
    fs.save(tmp_path / "disk.img")
    told = CliRunner().invoke(
        cli, ["plan", str(tmp_path / "disk.img"), "--all", "-o", str(tmp_path / "all.csv")]
    )
    assert told.exit_code == 0
    assert pd.read_csv(tmp_path / "all.csv")["bytes"].gt(0).all()
    nothing = tmp_path / "nothing"
    nothing.write_text("no uuid\n")
    told = CliRunner().invoke(cli, ["plan", str(tmp_path / "disk.img"), "--target", str(nothing)])
    assert isinstance(told.exception, bm.BtrfsModelError)
    assert "neither a btrfs image nor a text with UUIDs" in str(told.exception)
    with pytest.raises(bm.BtrfsModelError, match="no subvolume is read-only"):
        bm.plan(bm.create("256M", seed=1))


def test_an_estimate_is_a_number_on_standard_output(tmp_path: Path) -> None:
    fs = with_snapshots(5, 1)
    fs.save(tmp_path / "disk.img")
    told = CliRunner().invoke(cli, ["send", str(tmp_path / "disk.img"), "s0", "--estimate"])
    assert told.stdout == f"{bm.send(fs, 's0').size}\n"
    wrong = CliRunner().invoke(
        cli, ["send", str(tmp_path / "disk.img"), "s0", "--estimate", "--explain", "summary"]
    )
    assert wrong.exit_code == 2 and "no stream" in wrong.stderr
