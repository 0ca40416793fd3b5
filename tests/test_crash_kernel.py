# SPDX-License-Identifier: GPL-2.0-only
"""Crashes of the model's filesystems, replayed by kernels: they find what the model's replay does.

Sequences of calls with fsyncs in between end in a crash. A kernel mounts the image, which replays
the logs, and says what is there; the model replays the same image as that kernel does. Listings
and all items of the subvolumes must be the same; times that the replay itself takes are those of
the clock on both sides.

Each kernel is asked in a process with a time limit: a mount that hangs is a failure, no more.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from corpus import LONG
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernel_session import KernelSession
from live import Machine, preset
from scenarios import model_listing
from test_replay_log import covered, items
from writing import check_image

import btrfs_model as bm
from btrfs_model.filesystem import Filesystem
from btrfs_model.filesystem.live_inode import InodeFields
from btrfs_model.filesystem.writable import WritableFilesystem
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.patches import Behaviour

SIZE = 128 << 20
BLOCK = 4096
LOGGED_BY = ("v6.1.176", "v6.12.101", "v6.18.44")
"""Kernels whose logs the model writes."""
# the clock of the model's replays: no time of a call
LATER = 2**33
TIMES = ("atime", "ctime", "mtime", "otime")

Call = tuple[Any, ...]


# --------------------------------------------------------------------------------- sequences --

_folders = st.sampled_from(["", "", "a", "a", "a/b", "d", "s", "s/e"])
_names = st.sampled_from(["f", "g", "h", "b", "e", "l0", "l1", "long" * 40])
_paths = st.builds(lambda folder, name: f"{folder}/{name}".lstrip("/"), _folders, _names)
_files = st.sampled_from(["f", "a/f", "a/g", "a/b/f", "d/h", "s/f", "s/e/f"])
_offsets = st.builds(lambda block, rest: block * BLOCK + rest, st.integers(0, 12),
                     st.sampled_from([0, 0, 0, 5, 2000]))  # fmt: skip
_aligned = st.integers(0, 12).map(lambda block: block * BLOCK)
_lengths = st.sampled_from([1, 9, 2000, BLOCK, 3 * BLOCK, 70_000])
_xattrs = st.sampled_from(["user.a", "user.b", "user." + "n" * 200, "trusted.t"])


def _write(path: str, offset: int, length: int, byte: int) -> Call:
    return "write", path, offset, bytes([byte]) * length


def call(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.tuples(st.just(name), *arguments)


_fsyncs = st.one_of(
    call("fsync", st.sampled_from(["", "a", "a/b", "d", "s", "s/e"])),
    call("fsync", _paths),
)
_changes = st.one_of(
    call("create", _files),
    call("create", _paths),
    call("mkdir", _paths),
    call("symlink", st.sampled_from(["a", "x" * 500]), _paths),
    call("link", _files, _paths),
    call("links", _files, _folders, st.integers(2, 40), st.sampled_from([4, 60, 240])),
    call("unlink", _paths),
    call("unlinks", _folders, st.integers(2, 40), st.sampled_from([4, 60, 240])),
    call("rmdir", _paths),
    call("rename", _paths, _paths),
    call("rename", _files, _paths, st.sampled_from([0, 2])),
    st.builds(_write, _files, _offsets, _lengths, st.integers(0, 255)),
    st.builds(_write, _files, _offsets, _lengths, st.integers(0, 255)),
    call("truncate", _files, _offsets),
    call("punch_hole", _files, _offsets, _lengths),
    call("fallocate", _files, _offsets, _lengths),
    call("clone_range", _files, _files, st.just(0), _aligned, st.just(0)),
    call("setxattr", _paths, _xattrs, st.binary(max_size=300)),
    call("removexattr", _paths, _xattrs),
    call("chmod", _paths, st.sampled_from([0o600, 0o755, 0o4711])),
)


def _ends(path: str) -> st.SearchStrategy[list[Call]]:
    """A change of what is fsynced then: another fsync would say that there is nothing to do."""
    change = st.one_of(
        st.builds(_write, st.just(path), _offsets, _lengths, st.integers(0, 255)),
        call("link", st.just(path), _paths),
        call("links", st.just(path), _folders, st.integers(2, 40), st.sampled_from([4, 60, 240])),
        call("rename", _paths, st.just(path)),
        call("create", st.just(path)),
        call("setxattr", st.just(path), _xattrs, st.binary(max_size=300)),
        call("chmod", st.just(path), st.sampled_from([0o600, 0o755, 0o4711])),
    )
    return st.builds(lambda made: [made, ("fsync", path)], change)


_last = st.one_of(*[_files.flatmap(_ends)] * 4, *[_fsyncs.map(lambda fsync: [fsync])] * 2,
                  st.just([("sync",)]))  # fmt: skip
_rounds = st.builds(lambda calls, last: calls + last, st.lists(_changes, max_size=6), _last)
sequences = st.lists(_rounds, min_size=3, max_size=14).map(
    lambda rounds: list(itertools.chain(*rounds))
)
formats = st.fixed_dictionaries(
    {"nodesize": st.sampled_from([4096, 16384]), "no_holes": st.booleans()}
)


class Crash:
    """A filesystem that went through calls, those of them that fail left out."""

    def __init__(self, options: dict[str, Any], behaviour: str, calls: list[Call]) -> None:
        self.fs = WritableFilesystem.mkfs(SIZE, **options)
        self.fs.behaviour = Behaviour.parse(behaviour)
        self.ends: list[str] = []
        for folder in ("a", "a/b", "d"):
            self.fs.mkdir(folder)
        self.fs.create_subvolume("s")
        self.fs.mkdir("s/e")
        for name in ("f", "a/f", "d/h", "s/f"):
            self.fs.create(name)
        self.fs.sync()
        for name, *arguments in calls:
            with contextlib.suppress(OSError):
                self.make(name, arguments)

    def make(self, name: str, arguments: list[Any]) -> None:
        match name, arguments:
            case "links", [path, folder, count, length]:
                for number in range(count):
                    self.fs.link(path, _link(folder, number, length))
            case "unlinks", [folder, count, length]:
                for number in range(count):
                    self.fs.unlink(_link(folder, number, length))
            case "fsync", [path]:
                self.ends.append(self.fs.fsync(path))
            case _:
                getattr(self.fs, name)(*arguments)


def _link(folder: str, number: int, length: int) -> str:
    return f"{folder}/{f'l{number}'.ljust(length, 'x')}".lstrip("/")


# ---------------------------------------------------------------------------------- judgement --


@contextlib.contextmanager
def clock_of_replays() -> Iterator[None]:
    """Times of a replay are of another century."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = str(LATER)
    try:
        yield
    finally:
        del os.environ["SOURCE_DATE_EPOCH"]
        if before is not None:
            os.environ["SOURCE_DATE_EPOCH"] = before


def with_its_times(ours: bytes, theirs: bytes, since: int) -> bytes:
    """An inode item with the kernel's times where both replays took the time for it."""
    mine, its = InodeFields.unpack(ours), InodeFields.unpack(theirs)
    for field in TIMES:
        if getattr(mine, field) >= LATER * 10**9 and getattr(its, field) >= since:
            setattr(mine, field, getattr(its, field))
    return theirs if mine == its else ours


def differences(ours: Any, theirs: Any, tree: int, since: int) -> list[Any]:
    mine, its = items(ours, tree), items(theirs, tree)
    found = []
    for key in sorted(mine.keys() | its.keys()):
        a, b = mine.get(key), its.get(key)
        if a is not None and b is not None and key[1] == ItemType.INODE_ITEM:
            a = with_its_times(a, b, since)
        if a != b:
            found.append((key, a, b))
    return found


def may_hang(fs: Filesystem) -> bool:
    """Whether an image is kept from the machine's own kernel.

    6.18.44 once hung in the mount of such an image, which nothing but a boot ends: leaves of 4 KiB
    and an inode with so many names that it has INODE_EXTREF items. Guests get them all the same;
    none has hung, so that what it was is not known.
    """
    if fs.image.nodesize > BLOCK:
        return False
    trees = [fs.tree(tree) for tree in fs.subvolume_ids] + list(fs.log_trees.values())
    return any(item.key.type == ItemType.INODE_EXTREF for tree in trees for item in tree.items())


def judge(crash: Crash, kernel: KernelSession) -> None:
    """Let a kernel replay the logs of a crash, and compare."""
    image = kernel.new_image()
    crash.fs.save_crash(image)
    if isinstance(kernel, Machine):
        with bm.open(image) as crashed:
            assume(not may_hang(crashed))
    since = time.time_ns() - 10**9
    answer = kernel.ask(image, subvolumes=["", "s"])
    assert not answer.failed
    assert not answer.alarms
    with clock_of_replays():
        replayed = bm.replay_log(crash.fs, behaviour=preset(kernel.release))
    with replayed as ours, bm.open(image) as theirs:
        assert model_listing(theirs) == answer.listing
        for tree in theirs.subvolume_ids:
            assert differences(ours, theirs, tree, since) == []
        csums = [covered(items(fs, ObjectId.CSUM_TREE)) for fs in (ours, theirs)]
        assert csums[0] == csums[1]
    assert check_image(image) == ""
    image.unlink()


@pytest.mark.parametrize("behaviour", LOGGED_BY)
@settings(max_examples=200 if LONG else 7)
@given(options=formats, calls=sequences)
def test_kernels_replay_to_the_same_state(
    behaviour: str, kernel: KernelSession, options: dict[str, Any], calls: list[Call]
) -> None:
    crash = Crash(options, behaviour, calls)
    with crash.fs:
        judge(crash, kernel)
