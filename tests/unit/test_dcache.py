# SPDX-License-Identifier: GPL-2.0-only
"""What is remembered of names, paths and attributes changes no result of a call."""

import errno
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.mount.writable import WritableFilesystem

NAMES = ("a", "b")
PATHS = [*NAMES, *(f"{up}/{name}" for up in NAMES for name in (*NAMES, "..", ".")), "a/b/c", "b/a/"]
ATTRIBUTES = ("user.x", "security.capability", "btrfs.compression")

Call = tuple[str, Callable[[WritableFilesystem], Any]]

paths = st.sampled_from(PATHS)
flags = st.sampled_from((0, 0, 0, 1, 2, 4))


def call(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    """A call with its arguments."""
    return st.tuples(*arguments).map(
        lambda values: (f"{name}{values}", lambda fs: getattr(fs, name)(*values))
    )


CALLS = st.one_of(
    *[call("create", paths), call("mkdir", paths), call("rename", paths, paths, flags)] * 4,
    call("symlink", paths, paths),
    call("link", paths, paths),
    call("unlink", paths),
    call("rmdir", paths),
    call("chmod", paths, st.sampled_from((0o644, 0o2755, 0o4711))),
    call("chown", paths, st.just(1), st.just(2)),
    call("write", paths, st.just(0), st.binary(max_size=40)),
    call("setxattr", paths, st.sampled_from(ATTRIBUTES), st.sampled_from((b"zlib", b"x"))),
    call("removexattr", paths, st.sampled_from(ATTRIBUTES)),
    call("create_subvolume", paths),
    call("snapshot", st.sampled_from(("", "a", "b/a")), paths),
    call("delete_subvolume", paths),
    call("clean_subvolumes"),
    call("create_files", paths, st.just(("a", "d")), st.just(0o600)),
    call("move_files", paths, paths, st.just(("a", "d"))),
    call("unlink_files", paths, st.just(("d", "a"))),
    call("fsync", paths),
    call("remount"),
)


def forget(fs: WritableFilesystem) -> None:
    """Forget everything that a search would find again."""
    for live in fs.live_subvolumes.values():
        live.walked.clear()
        for inode in live.inodes.values():
            inode.dentries.clear()
            inode.xattrs = {}


def outcome(fs: WritableFilesystem, action: Callable[[WritableFilesystem], Any]) -> str:
    """What a call ends in."""
    try:
        action(fs)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def items(fs: WritableFilesystem) -> list[tuple[Any, ...]]:
    """Every item of every tree, and the block that it lies in."""
    return [
        (tree, item.key, item.block, bytes(item.data))
        for tree in fs.writer.tree_ids()
        for item in fs.writer.tree(tree).items()
    ]


@pytest.mark.claim("A cache of names, paths and attributes changes no result of a call.")
@given(st.lists(CALLS, min_size=4, max_size=40))
def test_what_is_remembered_is_what_a_search_finds(calls: list[Call]) -> None:
    with bm.create("256M") as fs, bm.create("256M") as forgetful:
        for what, action in calls:
            expected = outcome(forgetful, action)
            assert outcome(fs, action) == expected, what
            forget(forgetful)
            assert fs.clock == forgetful.clock, what
        fs.sync()
        forgetful.sync()
        assert items(fs) == items(forgetful)


@pytest.mark.parametrize("moved", ["a", "up", "link"])
def test_a_path_leads_nowhere_once_a_part_of_it_goes(moved: str) -> None:
    with bm.create("256M") as fs:
        fs.mkdir("up")
        fs.mkdir("up/a")
        fs.symlink("up/a", "link")
        fs.symlink("up/a", "a")
        path = {"a": "a/x", "up": "up/a/x", "link": "link/x"}[moved]
        fs.create(path)
        fs.chmod(path, 0o600)
        fs.rename(moved, "elsewhere")
        for again in (lambda: fs.create(path), lambda: fs.chmod(path, 0o644)):
            with pytest.raises(FileNotFoundError):
                again()
