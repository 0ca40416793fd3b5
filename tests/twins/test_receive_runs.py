# SPDX-License-Identifier: GPL-2.0-only
"""A receiver leaves the same whether it makes inodes in runs or by one call after the other."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import corpus
import pytest
from collisions import names_of_hash
from hypothesis import given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.base.errors import ReceiveError
from btrfs_model.mount.files import pages, writeback
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.questions.receive.api import apply_stream
from btrfs_model.questions.receive.receiver import Receiver
from btrfs_model.stream import index
from btrfs_model.stream.writer import StreamWriter

DIRECTORIES = [b"", b"a/", b"a/b/", b"link/"]
SIZES = [1, 100, 2048, 2049, 4095, 4096, 4097, 20_000, 60_000]
# some have the same hash
NAMES = [*map(os.fsencode, names_of_hash(7, 3)), b"file", b"x" * 255]
TIME = (1_700_000_000, 999_999_999)

Step = tuple[Any, ...]


def inodes(draw: st.DrawFn, number: int) -> Step:
    """One inode, mostly as full sends have it."""
    kind = draw(st.sampled_from(["mkfile"] * 6 + ["mkdir"] * 2 + ["symlink", "mkfifo"]))
    name = draw(
        st.sampled_from(NAMES)
        if not draw(st.integers(0, 9))
        else st.integers(0, 9999).map(lambda n: b"n%d" % n)
    )
    rare = [b"gone/"] if not draw(st.integers(0, 99)) else DIRECTORIES
    path = draw(st.sampled_from(rare)) + name
    sizes = draw(st.lists(st.sampled_from(SIZES), max_size=3)) if kind == "mkfile" else []
    tail = draw(st.sampled_from(["cmt", "cmt", "cmt", "ct", "t", "", "mct", "cxmt", "cMt"]))
    gap = draw(st.sampled_from([0] * 8 + [1, 5000]))
    return ("inode", kind, b"o%d-7-0" % number, path, sizes, tail, gap)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream of new inodes, with other commands among them."""
    steps: list[Step] = [
        ("inode", "mkdir", b"o0-7-0", b"a", [], "cmt", 0),
        ("inode", "mkdir", b"o1-7-0", b"a/b", [], "cmt", 0),
        ("inode", "symlink", b"o2-7-0", b"link", [], "ct", 0),
    ]
    for number in range(3, draw(st.integers(3, 60))):
        steps.append(inodes(draw, number))
        if draw(st.integers(0, 7)) == 0:
            made = [step for step in steps[3:] if step[0] == "inode" and step[1] == "mkfile"]
            kinds = ["sgid"] + ["unlink", "link", "write", "truncate"] * bool(made)
            other = draw(st.sampled_from(kinds))
            at = draw(st.sampled_from(made if other != "sgid" else steps[:2]))[3]
            steps.append((other, at, b"l%d" % number))
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
            # of directories, as sends have it, and of anything else
            inode = st.sampled_from([step for step in steps if step[0] == "inode"])
            at = draw(st.one_of(st.sampled_from([b"a", b"a/b", b"a", b"link"]), inode))
            steps.append(("utimes", at if isinstance(at, bytes) else at[3], b""))
    return b"".join(commands(steps))


def commands(steps: list[Step]) -> Iterator[bytes]:
    stream = StreamWriter(version=1)
    make = stream.command
    yield stream.header()
    yield make("subvol", path=b"s", uuid=bytes(range(16)), ctransid=7)
    for step in steps:
        if step[0] == "inode":
            yield from inode_commands(make, *step[1:])
            continue
        name, path, new = step
        more: dict[str, Any] = {
            "utimes": {"atime": TIME, "mtime": TIME, "ctime": TIME}, "unlink": {},
            "link": {"path": new, "path_link": path}, "sgid": {"mode": 0o2770},
            "write": {"file_offset": 10, "data": b"more"}, "truncate": {"size": 8192},
        }[name]  # fmt: skip
        yield make("chmod" if name == "sgid" else name, **{"path": path, **more})
    yield stream.end()


def inode_commands(
    make: Callable[..., bytes], kind: str, made: bytes, path: bytes, sizes: list[int], tail: str,
    gap: int,
) -> Iterator[bytes]:  # fmt: skip
    link = {"path_link": b"a"} if kind == "symlink" else {}
    node = {"mode": 0o10600, "rdev": 0} if kind == "mkfifo" else {}
    yield make(kind, path=made, ino=300, **node, **link)
    yield make("rename", path=made, path_to=path)
    at = gap
    for size in sizes:
        data = (path + b"%d " % at) * (size // 8 + 1)
        yield make("write", path=path, file_offset=at, data=data[:size])
        at += size
    for letter in tail:
        if letter == "c":
            yield make("chown", path=path, uid=1000, gid=100)
        elif letter in "mM" and kind != "symlink":
            yield make("chmod", path=path, mode=0o755 if letter == "m" else 0o4711)
        elif letter == "x" and kind == "mkfile":
            yield make("set_xattr", path=path, xattr_name=b"user.x", xattr_data=b"1")
        elif letter == "t":
            yield make("utimes", path=path, atime=TIME, mtime=(-5, 7), ctime=TIME)


def memory_of(fs: WritableFilesystem) -> dict[Any, Any]:
    """What a filesystem has in memory, and what the next calls depend on."""
    rsv, delayed, dirty = fs.reservations, fs.delayed, fs.dirty_bytes
    found: dict[Any, Any] = {
        "clock": (fs.clock, fs.transid, fs.started, fs.in_transaction, fs.aborted),
        "room": (rsv.lent, rsv.refs, rsv.room, rsv.delayed, rsv.delalloc, rsv.chunks),
        "delayed": (len(delayed), delayed.nbytes, delayed.paths, delayed.waiting_changes),
        "nodes": [
            (key, node.inode_item, dict(node.insertions), sorted(node.deletions))
            for key, node in delayed.nodes.items()
        ],
        "prepared": list(delayed.prepared),
        "dirty": (list(fs.dirty_files), dirty.count, dirty.of_root, dirty.touched),
    }
    for root, live in fs.live_subvolumes.items():
        found[root] = live.next_ino
        for ino, inode in live.inodes.items():
            names = sorted(name for name, child in inode.dentries.items() if child is not None)
            pages = inode.pages.ranges(0, 2**63) if inode._pages is not None else []
            found[root, ino] = (
                inode.item, inode.dir_index, inode.index_cnt, inode.holders, inode.log,
                inode.i_size, names, pages,
            )  # fmt: skip
    return found


def received(stream: bytes, size: int) -> tuple[dict[Any, Any], Any, dict[int, bytes]]:
    with bm.create(size, 16384) as fs:
        try:
            result = apply_stream(fs, stream)
            outcome: Any = result.calls, result.commands, result.subvolumes
        except ReceiveError as error:
            outcome = str(error)
        memory = memory_of(fs)
        with TemporaryDirectory() as folder:
            fs.save(Path(folder, "image"))
            image = corpus.content(Path(folder, "image"))
    return memory, outcome, image


@pytest.mark.claim("A stream that is received in runs of new inodes leaves what each call leaves.")
@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(
    stream=streams(), size=st.sampled_from([128 << 20, 300 << 20]),
    extent=st.sampled_from([pages.MAX_EXTENT_SIZE, 16 << 10]),
    batch=st.sampled_from([index.BATCH_COMMANDS, 1, 5, 16]),
)  # fmt: skip
def test_runs_leave_what_calls_leave(stream: bytes, size: int, extent: int, batch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "BATCH_COMMANDS", batch)
        for module in (pages, writeback):
            patch.setattr(module, "MAX_EXTENT_SIZE", extent)
        in_runs = received(stream, size)
        patch.setattr(Receiver, "process_inodes", lambda *_: 0)
        patch.setattr(writeback, "_is_whole", lambda *_: False)
        by_calls = received(stream, size)
    assert in_runs[1] == by_calls[1]
    for key, value in by_calls[0].items():
        assert in_runs[0].get(key) == value, key
    assert in_runs[0].keys() == by_calls[0].keys()
    assert in_runs[2] == by_calls[2]


def test_runs_are_made() -> None:
    """Most inodes of a plain stream come in runs, so the test above compares something."""
    steps: list[Step] = [
        ("inode", "mkfile", b"o%d-7-0" % number, b"n%d" % number, [5000], "cmt", 0)
        for number in range(400)
    ]
    alone = []
    with pytest.MonkeyPatch.context() as patch:
        process = Receiver.process
        patch.setattr(Receiver, "process", lambda *a: (alone.append(a[1].name), process(*a)))
        received(b"".join(commands(steps)), 4 << 30)
    assert len(alone) < 400
