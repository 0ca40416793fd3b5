# SPDX-License-Identifier: GPL-2.0-only
"""Received streams: beside what was sent, beside ``btrfs receive``, and those that are refused."""

import contextlib
import errno
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live import beside_the_kernel, mounted
from progs import btrfs_check, needs_progs
from received import COLUMNS, table

import btrfs_model as bm
from btrfs_model.base.errors import ReceiveError, StreamError
from btrfs_model.ondisk.stream import ATTRIBUTES_BY_NAME, COMMANDS, Kind
from btrfs_model.questions.receive.receiver import Receiver
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.listing import listing
from btrfs_model.volume.subvolume import Subvolume

CALLS = json.loads((corpus.TEST_DATA / "receiver_calls.json").read_text())
SEEDS = range(40) if corpus.LONG else (1, 3, 7, 11)
RANDOM = [f"send/random/seed-{seed:03}" for seed in SEEDS]
# kernels send a UTIMES for a directory under a name that it has no more: both receivers refuse that
REFUSED = {
    "send/random/seed-014": ("s2", b"o381-13-0"),
    "send/random/seed-020": ("s3", b"o483-15-0"),
    "send/random/seed-039": ("s2", b"o317-15-0"),
}
# inline extents of files that are longer: kernels send less than they are, encoded
INCOMPLETE = {("send/random/seed-005", True)}
SIZE = 1 << 30


def chain(fs: Filesystem, **options: Any) -> Iterator[tuple[Subvolume, bytes]]:
    """The snapshots of a filesystem in order, each as a difference to the one before."""
    before = None
    for which in fs.subvolume_ids:
        snapshot = fs.subvolume(which)
        if which == 5 or not snapshot.is_read_only or snapshot.received_uuid:
            continue
        arguments = () if before is None else (before.id, [before.id])
        sent = bm.send(fs, which, *arguments, **options)
        assert sent.data is not None
        yield snapshot, sent.data
        before = snapshot


# ----------------------------------------------------------------------------- round trips ----


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", [name for name in RANDOM if name not in REFUSED])
def test_received_is_what_was_sent(name: str, compressed: bool) -> None:
    options = {"proto": 2, "compressed": True} if compressed else {}
    with Filesystem.open(corpus.image(name)) as source, bm.create(SIZE) as target:
        for snapshot, stream in chain(source, **options):
            result = bm.receive(target, stream, "/")
            (path,) = result.subvolumes
            received = target.subvolume(path)
            if (name, compressed) not in INCOMPLETE:
                pd.testing.assert_frame_equal(table(received), table(snapshot))
            assert received.is_read_only
            assert received.received_uuid == snapshot.uuid
            assert received.item.stransid == snapshot.item.ctransid
            commands = list(bm.read_stream(stream))
            assert sum(result.commands.values()) == len(commands)
            assert result.calls == bm.receiver_calls(commands)


def test_received_can_be_sent_on() -> None:
    """From a second filesystem to a third one, with the parents found by what was received."""
    with (
        Filesystem.open(corpus.image(RANDOM[2])) as source,
        bm.create(SIZE) as second,
        bm.create(SIZE, nodesize=4096) as third,
    ):
        streams = list(chain(source))
        for _, stream in streams:
            bm.receive(second, stream)
        paths = [second.subvolume(i).path for i in second.subvolume_ids if i != 5]
        parents: list[str] = []
        for (snapshot, _), path in zip(streams, paths, strict=True):
            sent = bm.send(second, path, *(parents and (parents[-1], parents[-1:])))
            bm.receive(third, sent.data or b"")
            parents.append(path)
            again = third.subvolume(path)
            pd.testing.assert_frame_equal(table(again), table(snapshot))
            # the UUID is that of the first filesystem, all the way
            assert again.received_uuid == snapshot.uuid


def recorded(name: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Streams of Linux 6.18 with data, as far as they are at hand, so that each can be received."""
    have: set[str] = set()
    for ask, kernel, record in corpus.records(name):
        needs = {*ask["clones"], *([ask["parent"]] if ask["parent"] else [])}
        if kernel != "6.18" or "errno" in record:
            continue
        if not record.get("file") or not corpus.has(name, record["file"]):
            continue
        if ask["flags"] & 7 or ask["snap"] in have or not needs <= have:
            continue
        have.add(ask["snap"])
        yield ask, corpus.stream(name, record["file"])


@pytest.mark.claim("A received stream of a kernel gives what the kernel sent.")
# those of which data/kernel has streams
@pytest.mark.parametrize("name", ["send/random/seed-001", "send/random/seed-003"])
def test_streams_of_the_kernel(name: str) -> None:
    count = 0
    with Filesystem.open(corpus.image(name)) as source, bm.create(SIZE) as target:
        target.mkdir("backups")
        for ask, stream in recorded(name):
            (path,) = bm.receive(target, stream, "backups").subvolumes
            assert path.startswith("backups/")
            received, sent = table(target.subvolume(path)), table(source.subvolume(ask["snap"]))
            pd.testing.assert_frame_equal(received, sent)
            count += 1
    assert count >= 2


@pytest.mark.claim(
    "The system calls that the commands of a received stream lead to are those of `btrfs receive`.",
    judge="progs",
)
@pytest.mark.parametrize("name", sorted({path.rpartition("/")[0] for path in CALLS["streams"]}))
def test_calls_are_those_of_btrfs_receive(name: str) -> None:
    """Those that commands lead to; the program itself makes a few more, see test_replay.py."""
    streams = [path for path in CALLS["streams"] if path.startswith(f"{name}/")]
    with bm.create(SIZE) as target:
        for path in streams:
            calls = bm.receive(target, corpus.stream(*path.rsplit("/", 1))).calls
            real = CALLS["streams"][path]
            for call in {*calls, *real} - {"ioctl", "openat", "close", "read"}:
                assert calls[call] == real.get(call, 0), call


def test_several_streams_in_one() -> None:
    with Filesystem.open(corpus.image(RANDOM[1])) as source, bm.create(SIZE) as target:
        snapshots = list(chain(source))
        result = bm.receive(target, b"".join(stream for _, stream in snapshots))
        assert len(result.subvolumes) == len(snapshots)
        for path, (snapshot, _) in zip(result.subvolumes, snapshots, strict=True):
            pd.testing.assert_frame_equal(table(target.subvolume(path)), table(snapshot))


@needs_progs
def test_btrfs_check_finds_nothing(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with Filesystem.open(corpus.image(RANDOM[2])) as source, bm.create(SIZE) as target:
        for _, stream in chain(source, proto=2, compressed=True):
            bm.receive(target, stream)
        target.save(image)
    assert btrfs_check(image) == ""


# --------------------------------------------------------------------- beside btrfs receive ---


def packed(subvolume: Subvolume) -> dict[str, list[tuple[int, ...]]]:
    """The compressed extents of each file: those of encoded writes are as they came.

    A file with a property may get others when it is written back, which a kernel does when it
    likes.
    """
    rows = listing(subvolume, content=False)
    found = {}
    for path, mode, xattrs in zip(rows["path"], rows["mode"], rows["xattrs"], strict=True):
        if stat.S_ISREG(mode) and b"btrfs.compression" not in xattrs:
            extents = subvolume.extents(path.encode("utf-8", "surrogateescape"))
            found[path] = [
                (extent.start, extent.length, extent.type, extent.compression, extent.ram_bytes,
                 extent.offset, extent.disk_num_bytes)
                for extent in extents if extent.compression
            ]  # fmt: skip
    return {path: extents for path, extents in found.items() if extents}


LIVE = RANDOM if corpus.LONG else [*RANDOM[:2], "send/random/seed-005", list(REFUSED)[2]]


@pytest.mark.claim(
    "A received stream gives what `btrfs receive` makes of it, or fails at the same command.",
    judge="progs",
)
@beside_the_kernel
@pytest.mark.parametrize("name", LIVE)
def test_as_btrfs_receive(name: str, tmp_path: Path) -> None:
    """The same subvolumes, or no success with the same command."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["mkfs.btrfs", "-q", "-f", str(image)], check=True, capture_output=True)
    outcomes = []
    with Filesystem.open(corpus.image(name)) as source, bm.create(SIZE) as target:
        with mounted(image, "noatime") as top:
            for _, stream in chain(source, proto=2, compressed=True):
                ran = subprocess.run(["btrfs", "receive", str(top)], input=stream,
                                     capture_output=True)  # fmt: skip
                try:
                    result = bm.receive(target, stream)
                except ReceiveError as error:
                    assert ran.returncode == 1
                    assert os.strerror(error.errno or 0).encode() in ran.stderr
                    outcomes.append((error.command, error.errno, ran.stderr))
                    break
                assert ran.returncode == 0, ran.stderr
                assert result.subvolumes
            subprocess.run(["btrfs", "filesystem", "sync", str(top)], check=True)
        with Filesystem.open(image) as real:
            for which in target.subvolume_ids[1:]:
                path = target.subvolume(which).path
                ours, theirs = target.subvolume(path), real.subvolume(path)
                if theirs.is_read_only:
                    pd.testing.assert_frame_equal(table(ours), table(theirs))
                    assert packed(ours) == packed(theirs)
                assert ours.is_read_only == theirs.is_read_only
                assert ours.received_uuid == theirs.received_uuid
                assert ours.item.stransid == theirs.item.stransid
    if name in REFUSED:
        ((command, number, said),) = outcomes
        assert (command, number) == ("utimes", errno.ENOENT)
        assert REFUSED[name][1] in said
    else:
        assert not outcomes


# ---------------------------------------------------------------------------------- errors ----


UUID = bytes(range(16))


def stream_of(*commands: tuple[str, dict[str, Any]], version: int = 1) -> bytes:
    writer = bm.StreamWriter(version)
    return writer.header() + b"".join(writer.command(name, **values) for name, values in commands)


BEGIN = ("subvol", {"path": b"sub", "uuid": UUID, "ctransid": 7})
FILE = [
    ("mkfile", {"path": b"f", "ino": 257}),
    ("write", {"path": b"f", "file_offset": 0, "data": b"data" * 3000}),
    ("mkdir", {"path": b"d", "ino": 258}),
]
OTHER = bytes(16).replace(b"\0", b"\xaa")


@pytest.mark.parametrize(
    ("command", "number", "words"),
    [
        (("mkfile", {"path": b"no/f", "ino": 259}), errno.ENOENT, "mkfile 'sub/no/f' failed: No"),
        (("mkdir", {"path": b"d", "ino": 259}), errno.EEXIST, "mkdir 'sub/d' failed: File exists"),
        (("rename", {"path": b"no", "path_to": b"x"}), errno.ENOENT, "rename 'sub/no' failed: No"),
        (("link", {"path": b"x", "path_link": b"no"}), errno.ENOENT, "link 'sub/no' failed: No"),
        (("unlink", {"path": b"d"}), errno.EISDIR, "unlink 'sub/d' failed: Is a directory"),
        (("rmdir", {"path": b"f"}), errno.ENOTDIR, "rmdir 'sub/f' failed: Not a directory"),
        (("truncate", {"path": b"no", "size": 1}), errno.ENOENT, "truncate 'sub/no' failed: No"),
        (("write", {"path": b"no", "file_offset": 0, "data": b"x"}), errno.ENOENT, "write"),
        (("write", {"path": b"d", "file_offset": 0, "data": b"x"}), errno.EISDIR, "Is a directory"),
        (("chown", {"path": b"no", "uid": 1, "gid": 1}), errno.ENOENT, "chown 'sub/no'"),
        (("remove_xattr", {"path": b"f", "xattr_name": b"user.x"}), errno.ENODATA, "No data"),
        (("set_xattr", {"path": b"f", "xattr_name": b"none.x", "xattr_data": b"v"}),
         errno.EOPNOTSUPP, "set_xattr 'sub/f' failed"),
        (("utimes", {"path": b"f", "atime": (0, 0), "mtime": (0, 10**9), "ctime": (0, 0)}),
         errno.EINVAL, "utimes 'f' failed: Invalid argument"),
        (("mknod", {"path": b"n", "ino": 259, "mode": 0o20600, "rdev": 2**40}),
         errno.EINVAL, "mknod 'sub/n' failed: Invalid argument"),
        (("unlink", {"path": b"../f"}), errno.EINVAL, "unlink '../f' failed: Invalid argument"),
        (("unlink", {"path": b"/f"}), errno.EINVAL, "unlink '/f' failed: Invalid argument"),
        (("subvol", {"path": b"sub", "uuid": UUID, "ctransid": 7}), errno.EEXIST, "File exists"),
        (("subvol", {"path": b"a/b", "uuid": UUID, "ctransid": 7}), errno.EINVAL, "'a/b' failed"),
        (
            ("snapshot", {"path": b"s", "uuid": OTHER, "ctransid": 9, "clone_uuid": OTHER,
                          "clone_ctransid": 7}),
            errno.ENOENT, f"cannot find parent subvolume {OTHER.hex()}",
        ),
        (
            ("clone", {"file_offset": 0, "clone_len": 4096, "path": b"f", "clone_uuid": OTHER,
                       "clone_ctransid": 7, "clone_path": b"f", "clone_offset": 0}),
            errno.ENOENT, f"did not find source subvolume {OTHER.hex()}",
        ),
        (
            ("clone", {"file_offset": 0, "clone_len": 4096, "path": b"f", "clone_uuid": UUID,
                       "clone_ctransid": 7, "clone_path": b"no", "clone_offset": 0}),
            errno.ENOENT, "clone 'sub/no' failed: No such file",
        ),
        (
            ("encoded_write", {"path": b"f", "file_offset": 0, "unencoded_file_len": 4096,
                               "unencoded_len": 4096, "unencoded_offset": 0, "compression": 9,
                               "data": b"x"}),
            errno.EOPNOTSUPP, "encoded_write 'sub/f' failed",
        ),
        (
            ("encoded_write", {"path": b"f", "file_offset": 1, "unencoded_file_len": 4096,
                               "unencoded_len": 4096, "unencoded_offset": 0, "compression": 1,
                               "data": b"no zlib"}),
            errno.EIO, "encoded_write 'sub/f' failed",
        ),
        (
            ("fallocate", {"path": b"f", "fallocate_mode": 64, "file_offset": 0, "size": 1}),
            errno.EOPNOTSUPP, "fallocate 'sub/f' failed",
        ),
        (
            ("enable_verity", {"path": b"f", "verity_algorithm": 1, "verity_block_size": 4096,
                               "verity_salt_data": b"", "verity_sig_data": b""}),
            errno.EOPNOTSUPP, "enable_verity 'sub/f' failed",
        ),
    ],
)  # fmt: skip
def test_a_command_that_fails_changes_nothing(
    command: tuple[str, dict[str, Any]], number: int, words: str
) -> None:
    before = stream_of(BEGIN, *FILE, version=3)
    whole = stream_of(BEGIN, *FILE, command, ("end", {}), version=3)
    with bm.create(SIZE) as good, bm.create(SIZE) as target:
        bm.receive(good, before)
        with pytest.raises(ReceiveError) as failure:
            bm.receive(target, whole)
        error = failure.value
        assert error.errno == number
        assert (error.offset, error.command) == (len(before), command[0])
        assert str(error) == f"<stream>: offset {len(before)}: {error.message}"
        assert words in error.message
        assert target.subvolume_ids == good.subvolume_ids
        ours, wanted = (listing(fs.subvolume("sub")) for fs in (target, good))
        pd.testing.assert_frame_equal(ours[["path", *COLUMNS[:6]]], wanted[["path", *COLUMNS[:6]]])
        assert ours["sha256"].tolist() == wanted["sha256"].tolist()
        # what follows another subvolume's begin is finished; what failed in the middle is not
        finished = command[0] in ("subvol", "snapshot") and number != errno.EINVAL
        assert target.subvolume("sub").is_read_only == finished


def test_commands_need_a_subvolume() -> None:
    with bm.create(SIZE) as target, pytest.raises(ReceiveError, match="no subvolume") as failure:
        bm.receive(target, stream_of(FILE[0]))
    assert (failure.value.offset, failure.value.errno) == (17, errno.EINVAL)


def test_a_stream_applied_twice() -> None:
    with Filesystem.open(corpus.image(RANDOM[1])) as source, bm.create(SIZE) as target:
        (_, full), (_, difference), *_ = chain(source)
        bm.receive(target, full)
        bm.receive(target, difference)
        kept = {i: table(target.subvolume(i)) for i in target.subvolume_ids}
        for stream, what in ((full, "subvol 's0'"), (difference, "snapshot 's1'")):
            with pytest.raises(ReceiveError, match=f"{what} failed: File exists") as failure:
                bm.receive(target, stream)
            assert failure.value.offset == 17
        assert target.subvolume_ids == list(kept)
        for which, before in kept.items():
            pd.testing.assert_frame_equal(table(target.subvolume(which)), before)


def test_a_difference_without_its_parent() -> None:
    with Filesystem.open(corpus.image(RANDOM[1])) as source, bm.create(SIZE) as target:
        (parent, _), (_, difference), *_ = chain(source)
        assert parent.uuid is not None
        with pytest.raises(ReceiveError, match=parent.uuid.hex()):
            bm.receive(target, difference)
        assert target.subvolume_ids == [5]


def test_a_broken_stream_is_applied_up_to_there() -> None:
    good = stream_of(BEGIN, *FILE)
    with bm.create(SIZE) as target:
        with pytest.raises(StreamError) as failure:
            bm.receive(target, good + b"\7\0\0\0\3\0\0\0\0\0broken!")
        assert failure.value.offset == len(good)
        assert set(listing(target.subvolume("sub"))["path"]) == {"", "f", "d"}
        assert not target.subvolume("sub").is_read_only


def test_the_directory_has_to_be_there() -> None:
    with bm.create(SIZE) as target:
        target.create("file")
        for directory, number in (("nowhere", errno.ENOENT), ("file", errno.ENOTDIR)):
            with pytest.raises(OSError) as failure:
                bm.receive(target, stream_of(BEGIN), directory)
            assert failure.value.errno == number


# --------------------------------------------------------------------------- any commands ----

NAMES = [b"", b"f", b"d", b"d/f", b"x", b"x/y", b"d/../f", b"long" * 100, b"\xff", b"f/f"]
NUMBERS = [0, 1, 100, 4096, 8192, 20000, 1 << 30, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.U8: st.integers(0, 255),
    Kind.U32: st.sampled_from([0, 1, 2, 3, 7, 16, (1 << 32) - 1]),
    Kind.U64: st.sampled_from(NUMBERS),
    Kind.UUID: st.sampled_from([UUID, OTHER]),
    Kind.TIMESPEC: st.tuples(
        st.sampled_from([0, -1, 1 << 40, -(1 << 63), (1 << 63) - 1]),
        st.sampled_from([0, 10**9 - 1, 10**9, (1 << 32) - 1]),
    ),
    Kind.STRING: st.sampled_from([*NAMES, b"user.a", b"security.b", b"system.posix_acl_access"]),
    Kind.BINARY: st.sampled_from([b"", b"data", b"zero" * 1024, b"\0" * 9000]),
}


@st.composite
def any_command(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    command = draw(st.sampled_from([c for c in COMMANDS.values() if c.name != "end"]))
    # data has to be the last
    names = sorted(command.mandatory, key=lambda name: name == "data")
    if command.name == "encoded_write":
        names.insert(0, "compression")
    return command.name, {name: draw(VALUES[ATTRIBUTES_BY_NAME[name].kind]) for name in names}


@given(st.lists(any_command(), min_size=1, max_size=12))
def test_any_commands_leave_a_filesystem(commands: list[tuple[str, dict[str, Any]]]) -> None:
    """Whatever is asked for is done or refused; nothing is found wrong with what is there then."""
    stream = stream_of(BEGIN, *FILE, *commands, version=3)
    with bm.create(SIZE) as target:
        receiver = Receiver(target, "")
        with contextlib.suppress(StreamError):
            for command in bm.read_stream(stream):
                try:
                    receiver.process(command)
                except OSError as error:
                    assert error.errno
        # the subvolume itself may have been removed
        with contextlib.suppress(FileNotFoundError):
            receiver.finish_subvol()
        target.sync()
        assert bm.check(target) == []


def test_a_new_file_changes_the_time_of_the_top() -> None:
    """It is made there, and the stream has no time for it: docs/findings.md, Linux 6.18.44."""
    with bm.create("256M") as fs, bm.create("256M") as target:
        fs.create_subvolume("w")
        fs.mkdir("w/A")
        fs.utimes("w", 1, 2)
        fs.snapshot("w", "s0")
        fs.create("w/A/new")
        fs.snapshot("w", "s1")
        for snapshot, parent in (("s0", None), ("s1", "s0")):
            bm.receive(target, bm.send(fs, snapshot, parent).data, "/")
        same = {name: fs.subvolume(name).inode(256).mtime == target.subvolume(name).inode(256).mtime
                for name in ("s0", "s1")}  # fmt: skip
        assert same == {"s0": True, "s1": False}
