# SPDX-License-Identifier: GPL-2.0-only
"""Stored streams without an image, tar archives, and parts of streams."""

import hashlib
import io
import json
import random
import stat
import tarfile
from pathlib import Path

import corpus
import pytest
from click.testing import CliRunner
from damage import Broken
from test_plan import with_snapshots

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.cli.sinks import sink
from btrfs_model.ondisk.keys import ItemType


def chain(seed: int = 1) -> list[bytes]:
    """Three sends, each from the snapshot before."""
    with with_snapshots(seed, 3) as fs:
        parents = [None, "s0", "s1"]
        streams = [bm.send(fs, f"s{n}", parent).data for n, parent in enumerate(parents)]
    return [stream for stream in streams if stream is not None]


def run(*arguments: object, status: int = 0, given: bytes = b"") -> bytes:
    """What a command prints to standard output."""
    result = CliRunner().invoke(cli, [*map(str, arguments)], input=given)
    if isinstance(result.exception, bm.BtrfsModelError | OSError):
        assert status == 1
        return str(result.exception).encode()
    assert result.exit_code == status, result.output
    return result.stdout_bytes if status < 2 else result.stderr_bytes


@pytest.mark.claim(
    "A subvolume as a tar archive has the names, owners, permissions, times, xattrs, links, holes "
    "and bytes of its files."
)
@pytest.mark.parametrize("image", ["features/zstd", "send/random/seed-003", "send/random/seed-011"])
def test_a_tar_archive_has_what_a_listing_has(image: str) -> None:
    out = io.BytesIO()
    with bm.open(corpus.image(image)) as fs:
        number = fs.subvolume_ids[-1]
        sockets = bm.write_tar(fs, number, out)
        rows = {row["path"]: row for row in fs.listing(number).to_dict("records")}
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        found = {name[2:]: name for name in archive.getnames()}
        assert sorted([*found, *sockets]) == sorted(rows)
        for path, name in found.items():
            member, row = archive.getmember(name), rows[path]
            for key, value in row["xattrs"].items():
                kept = member.pax_headers[f"SCHILY.xattr.{key.decode()}"]
                assert kept.encode("utf-8", "surrogateescape") == value
            assert (member.mode, member.uid, member.gid) == (
                stat.S_IMODE(row["mode"]), row["uid"], row["gid"],
            )  # fmt: skip
            seconds, _, rest = member.pax_headers["mtime"].partition(".")
            assert int(seconds + rest) == row["mtime"]
            if stat.S_ISLNK(row["mode"]) and not member.islnk():
                assert member.linkname.encode("utf-8", "surrogateescape") == row["target"]
            if stat.S_ISREG(row["mode"]):
                data = archive.extractfile(name)
                assert data is not None
                assert hashlib.sha256(data.read()).hexdigest() == row["sha256"]


def test_holes_take_no_room_in_an_archive(tmp_path: Path) -> None:
    with bm.create("1G") as fs:
        for name, places in (("all", []), ("end", [0]), ("both", [1 << 28, 3 << 28])):
            fs.create(name)
            for place in places:
                fs.write(name, place, name.encode())
            fs.truncate(name, 1 << 30)
        fs.sync()
        bm.write_tar(fs, 5, tmp_path / "t.tar")
        assert (tmp_path / "t.tar").stat().st_size < 100_000
        with tarfile.open(tmp_path / "t.tar") as archive:
            assert {member.size for member in archive if member.isreg()} == {1 << 30}
            both = archive.extractfile("./both")
            assert both is not None and both.seek(3 << 28) and both.read(5) == b"both\0"


def test_names_that_lead_outside_are_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "disk.img", tmp_path / "out.tar"
    with bm.create("256M", seed=1) as fs:
        fs.create("ab")
        fs.sync()
        fs.save(path)
    broken = Broken(path)
    (leaf,) = broken.fs().trees[5].blocks()
    items = [(key, data.replace(b"ab", b"..") if key[1] == ItemType.DIR_INDEX else data)
             for key, data in broken.items(leaf.logical)]  # fmt: skip
    broken.write_items(leaf.logical, items)
    with pytest.raises(bm.BtrfsModelError, match=r"no file can have the name '\.\.'"):
        bm.write_tar(broken.fs(), 5, out)
    assert not out.exists()


@pytest.mark.claim(
    "Stored streams are looked into without an image: what a receive makes of a chain, at which "
    "command it ends, which parent is lacking; of one that is cut off, what was there before."
)
def test_stored_streams_are_what_a_receive_makes_of_them(tmp_path: Path) -> None:
    streams = chain()
    for number, stream in enumerate(streams):
        (tmp_path / f"{number}").write_bytes(stream)
    with bm.stored_streams(*(tmp_path / f"{number}" for number in range(3))) as stored:
        assert stored.subvolumes == ["s0", "s1", "s2"] and not stored.problems
        assert stored.table["parent"].tolist() == ["", "s0", "s1"]
        with bm.create("1G") as fs:
            bm.receive(fs, b"".join(streams))
            for path in stored.subvolumes:
                assert fs.listing(path)["sha256"].equals(stored.fs.listing(path)["sha256"])
    with bm.stored_streams(b"".join(streams)) as together:
        assert together.subvolumes == ["s0", "s1", "s2"] and together.table["complete"].all()
        assert together.table["offset"].tolist() == [0, len(streams[0]), len(b"".join(streams[:2]))]


def test_what_is_out_of_order_is_told() -> None:
    first, second, third = chain()
    with bm.stored_streams(first, third, second) as stored:
        problems = stored.table["problem"].tolist()
        assert problems[0] == problems[2] == "" and "cannot find parent subvolume" in problems[1]
        assert stored.subvolumes == ["s0", "s1"]
    with bm.create("1G") as target:
        bm.receive(target, first)
        with bm.stored_streams(second, second, target=target) as stored:
            assert stored.table["problem"][0] == ""
            assert "File exists" in stored.table["problem"][1]
        # it is the caller's
        assert target.subvolume("s1").is_read_only


@pytest.mark.parametrize("seed", range(3))
def test_streams_that_are_cut_off_anywhere(seed: int) -> None:
    first, second, _ = chain(seed)
    choice = random.Random(seed)
    for end in [0, 1, 16, 17, 18, *choice.sample(range(len(second)), 8), len(second)]:
        with bm.stored_streams(first, second[:end]) as stored:
            assert stored.table["complete"].tolist() == [True, end == len(second)]
            assert bool(stored.problems) == (end < len(second))
            for path in stored.subvolumes:
                bm.write_tar(stored.fs, path, io.BytesIO())


def test_a_parent_of_another_time_is_told() -> None:
    """What was sent again after a change has the same uuid."""
    with with_snapshots(2, 2) as fs, bm.create("1G") as target:
        full, changed = bm.send(fs, "s0").data, bm.send(fs, "s1", "s0").data
        assert full is not None and changed is not None
        bm.receive(target, full)
        received = target.subvolume("s0")
        assert received.received_uuid is not None
        path, uuid = "s0", received.received_uuid
        target.set_read_only(path, read_only=False)
        target.set_received_subvolume(path, uuid, received.item.stransid + 1)
        target.set_read_only(path)
        target.sync()
        with bm.stored_streams(changed, target=target) as stored:
            [problem] = stored.table["problem"]
            assert problem.startswith("the parent was sent at transaction")


@pytest.mark.claim("An interrupted send goes on at any byte: the rest is that of the whole stream.")
def test_the_rest_of_a_stream(tmp_path: Path) -> None:
    whole = chain()[0]
    for start in range(0, len(whole), 100):
        out = tmp_path / "rest"
        with sink(out, start) as to:
            for at in range(0, len(whole), 777):
                to.write(whole[at : at + 777])
        assert out.read_bytes() == whole[start:]
    image = corpus.image("send/random/seed-003")
    with bm.open(image) as fs:
        sent = next(path for path in fs.subvolumes()["path"] if fs.subvolume(path).is_read_only)
        stream = bm.send(fs, sent).data
    assert stream is not None
    size = len(stream)
    assert run("send", image, sent, "--from-byte", 1000, "-o", tmp_path / "rest") == b""
    assert (tmp_path / "rest").read_bytes() == stream[1000:]
    assert run("send", image, sent, "--from-byte", size) == b""
    told = run("send", image, sent, "--from-byte", size + 1, status=1)
    assert told == f"the stream ends before that, at byte {size}".encode()
    run("send", image, sent, "-o", tmp_path / "part", "--split", "1000")
    manifest = json.loads((tmp_path / "part.json").read_text())
    parts = [(tmp_path / part["file"]).read_bytes() for part in manifest["parts"]]
    assert b"".join(parts) == stream and {len(part) for part in parts[:-1]} == {1000}
    assert [hashlib.sha256(part).hexdigest() for part in parts] == [
        part["sha256"] for part in manifest["parts"]
    ]
    assert manifest["stream"] == {"bytes": size, "sha256": hashlib.sha256(stream).hexdigest()}


def test_commands_about_stored_streams(tmp_path: Path) -> None:
    first, second, _ = chain()
    one, two, cut = (tmp_path / name for name in ("one", "two", "cut"))
    one.write_bytes(first)
    two.write_bytes(second)
    cut.write_bytes(first[:-50])
    assert len(run("stream", "verify", one, two).splitlines()) == 3
    assert b"cannot find parent" in run("stream", "verify", two, status=1)
    names = [line.split(b"\t")[-1] for line in run("stream", "ls", one).splitlines()[2:]]
    with bm.stored_streams(first) as stored:
        content = stored.fs.subvolume("s0").read_file(names[0])
    assert run("stream", "cat", one, names[0].decode()) == content
    assert run("stream", "cat", one, two, "--snapshot", "s0", names[0].decode()) == content
    archive = run("stream", "tar", "-", given=first)
    assert archive == run("stream", "tar", one) and archive[257:262] == b"ustar"
    assert run("stream", "ls", cut, status=1).count(b"\n") > 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["stream", "cat", "one"], "stream cat FILE... PATH is wanted"),
        (["stream", "verify"], "Missing argument 'FILE... [PATH]'"),
        (["stream", "cat", "one", "x", "--json"], "stream cat has no --json"),
        (["stream", "ls", "one", "-o", "x"], "stream ls has no --out"),
        (["stream", "verify", "one", "--snapshot", "x"], "stream verify has no --snapshot"),
        (["stream", "verify", "one", "-o", "x", "--json"], "has no --json beside --out"),
        (["send", "one", "x", "--split", "5"], "--split wants a size and --out"),
        (["send", "one", "x", "--split", "5q", "-o", "x"], "'5q' is no size"),
        (["send", "one", "x", "--estimate", "--from-byte", "5"], "--estimate makes no stream"),
    ],
)
def test_wrong_use_is_told(words: list[str], told: str) -> None:
    assert told in run(*words, status=2).decode()


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.write_bytes(chain()[0])
    assert b"did you mean 's0'" in run("stream", "ls", one, "--snapshot", "s00", status=1)
    assert b"no file 'nope'" in run("stream", "cat", one, "nope", status=1)
    (tmp_path / "empty").write_bytes(b"")
    assert b"nothing of these streams" in run("stream", "ls", tmp_path / "empty", status=1)
    assert b"No such file" in run("stream", "verify", tmp_path / "none", status=1)
    with pytest.raises(bm.BtrfsModelError, match="no stream was named"):
        bm.stored_streams()
