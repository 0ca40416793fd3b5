# SPDX-License-Identifier: GPL-2.0-only
"""Microbenchmarks: small filesystems, and one operation on each, made to tell costs apart.

Each is counted by the model and timed on a kernel. None does what a workload of
:mod:`btrfs_model.experiments.workloads` does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from btrfs_model.experiments.calibration.operations import (
    Build,
    Call,
    ColdFiemap,
    ColdSend,
    Fiemap,
    Fsync,
    ListXattrs,
    LookUp,
    Micro,
    PipedSend,
    Receive,
    Send,
)
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.hashes import name_hash

_SIZE = 4 << 30


def _fresh() -> WritableFilesystem:
    return WritableFilesystem.mkfs(_SIZE)


def _names(count: int, start: str = "file_") -> list[str]:
    return [f"{start}{number}" for number in range(count)]


def _empty(count: int) -> WritableFilesystem:
    """Make empty files in one directory."""
    fs = _fresh()
    fs.mkdir("d")
    fs.create_files("d", _names(count))
    fs.snapshot("", "s1")
    return fs


def _many_directories(count: int, each: int) -> WritableFilesystem:
    fs = _fresh()
    for number in range(count // each):
        fs.mkdir(f"dir{number}")
        fs.create_files(f"dir{number}", _names(each))
    fs.snapshot("", "s1")
    return fs


def _changed(count: int, change: Callable[[WritableFilesystem, int], object], step: int = 2
             ) -> WritableFilesystem:  # fmt: skip
    """Change one file of every `step`; a second snapshot."""
    fs = _empty(count)
    for number in range(0, count, step):
        change(fs, number)
    fs.snapshot("", "s2")
    return fs


def _unlinked(count: int, step: int) -> WritableFilesystem:
    fs = _empty(count)
    fs.unlink_files("d", _names(count)[::step])
    fs.snapshot("", "s2")
    return fs


def _directory_removed(count: int) -> WritableFilesystem:
    fs = _empty(count)
    fs.unlink_files("d", _names(count))
    fs.rmdir("d")
    fs.snapshot("", "s2")
    return fs


def _directories_changed(count: int) -> WritableFilesystem:
    fs = _fresh()
    for number in range(count):
        fs.mkdir(f"dir{number}")
        fs.create_files(f"dir{number}", ["a", "b"])
    fs.snapshot("", "s1")
    for number in range(count):
        fs.rename(f"dir{number}/a", f"dir{number}/c")
    fs.snapshot("", "s2")
    return fs


def _with_xattrs(count: int, each: int, size: int) -> WritableFilesystem:
    fs = _fresh()
    fs.mkdir("d")
    fs.create_files("d", _names(count))
    for name in _names(count):
        for number in range(each):
            fs.setxattr(f"d/{name}", f"user.a{number}", b"v" * size)
    fs.snapshot("", "s1")
    return fs


def _one_with_xattrs(count: int) -> WritableFilesystem:
    fs = _fresh()
    fs.create("f")
    for name in _names(count):
        fs.setxattr("f", f"user.{name}", b"v" * 20)
    return fs


def _nested(depth: int, others: int = 0) -> WritableFilesystem:
    """Make directories in each other, and other files."""
    fs = _fresh()
    for number in range(depth):
        fs.mkdir("/".join(["d"] * (number + 1)))
    fs.create_files("d", _names(others))
    return fs


def _with_data(count: int, size: int) -> WritableFilesystem:
    fs = _fresh()
    fs.mkdir("d")
    for name in _names(count):
        fs.create(f"d/{name}")
        fs.write(f"d/{name}", 0, b"x" * size)
    fs.snapshot("", "s1")
    return fs


def _linked_backwards(count: int) -> WritableFilesystem:
    """Link files into a new directory, the last one first."""
    fs = _empty(count)
    fs.mkdir("e")
    for name in reversed(_names(count)):
        fs.link(f"d/{name}", f"e/{name}")
    fs.snapshot("", "s2")
    return fs


def _linked(count: int) -> WritableFilesystem:
    fs = _fresh()
    fs.create_files("", _names(count))
    fs.mkdir("l")
    for name in _names(count):
        fs.link(name, f"l/{name}")
    fs.snapshot("", "s1")
    return fs


def _extents(count: int, sharers: int = 0) -> WritableFilesystem:
    """Make a file of extents of 4096 bytes, a hole behind each; other files share them."""
    fs = _fresh()
    fs.create("f")
    for number in range(count):
        fs.write("f", number * 8192, b"x" * 4096)
    fs.sync()
    for number in range(sharers):
        fs.create(f"g{number}")
        fs.clone_range("f", f"g{number}", 0, 0, (count - 1) * 8192)
    return fs


def _without_holes(count: int) -> WritableFilesystem:
    """Make a file of extents of 4096 bytes that follow each other in it, and not on the device."""
    fs = _fresh()
    fs.create("f")
    for first in range(2):
        for number in range(first, count, 2):
            fs.write("f", number * 4096, b"x" * 4096)
        fs.sync()
    return fs


def _in_snapshots(fs: WritableFilesystem, count: int) -> WritableFilesystem:
    for number in range(count):
        fs.create(f"other{number}")
        fs.snapshot("", f"s{number}")
    return fs


# ------------------------------------------------------------------------------------- table --


def _chmod(fs: WritableFilesystem, number: int) -> None:
    fs.chmod(f"d/file_{number}", 0o600)


def _rename(fs: WritableFilesystem, number: int) -> None:
    fs.rename(f"d/file_{number}", f"d/new_{number}")


def _link(fs: WritableFilesystem, number: int) -> None:
    fs.link(f"d/file_{number}", f"d/link_{number}")


def _difference(build: Build) -> Send:
    return Send(build, "s2", "s1")


def _logged(count: int, length: int, *, in_order: bool = False) -> Fsync:
    """Call fsync on a new directory of new files; in order are those whose names' hashes grow.

    Before log-dir inodes are logged in the order of these hashes.
    """
    names = [f"{number:0{length}}" for number in range(count)]
    if in_order:
        names.sort(key=lambda name: name_hash(name.encode()))
    return Fsync(("mkdir", "d"), ("create_files", "d", names), ("fsync", "d"))


def _logged_new_links(count: int, *, in_order: bool) -> Fsync:
    """Call fsync on a directory of other names of new files; in no order each has its own leaf."""
    names = entered = _names(count)
    if not in_order:
        entered = np.random.default_rng(0).permutation(names).tolist()
    links: list[Call] = [("link", f"a/{name}", f"d/{name}") for name in entered]
    return Fsync(
        ("mkdir", "a"), ("create_files", "a", names), ("mkdir", "d"), *links, ("fsync", "d")
    )


def _logged_links(count: int) -> Fsync:
    """Call fsync on a directory of other names of old files."""
    links: list[Call] = [("link", f"a/{name}", f"d/{name}") for name in _names(count)]
    return Fsync(
        ("mkdir", "a"), ("create_files", "a", _names(count)), ("sync",), ("mkdir", "d"), *links,
        ("fsync", "d"),
    )  # fmt: skip


def _logged_xattrs(count: int) -> Fsync:
    """Call fsync on one file of many items."""
    xattrs: list[Call] = [("setxattr", "f", f"user.{name}", b"v" * 20) for name in _names(count)]
    return Fsync(("create", "f"), *xattrs, ("fsync", "f"))


def _logged_removed(count: int, removed: int) -> Fsync:
    """Call fsync on an old directory of other names of files, some of which are gone."""
    files = _names(count // 100)
    names = [f"{number:050}" for number in range(count)]
    links: list[Call] = [
        ("link", f"a/{files[number % len(files)]}", f"d/{name}")
        for number, name in enumerate(names)
    ]
    gone = np.random.default_rng(0).permutation(names)[:removed].tolist()
    return Fsync(
        ("mkdir", "a"), ("create_files", "a", files), ("mkdir", "d"), *links, ("sync",),
        ("unlink_files", "d", gone), ("fsync", "d"),
    )  # fmt: skip


def _logged_again(rounds: int) -> Fsync:
    """Call fsync on a directory after each new file."""
    calls: list[Call] = [("mkdir", "d"), ("fsync", "d")]
    for number in range(rounds):
        calls += [("create", f"d/{number}"), ("fsync", "d")]
    return Fsync(*calls)


REFERENCE = Micro("send 2,000 empty files", Send(lambda: _empty(2000)))
"""Timed before and after each other one: how fast the machine is just then."""


def microbenchmarks() -> list[Micro]:
    """Return all of them; the reference is the first."""
    return [
        REFERENCE,
        Micro("send 10,000 empty files", Send(lambda: _empty(10_000))),
        Micro("send 40,000 empty files", Send(lambda: _empty(40_000)), runs=1),
        Micro(
            "send 30,000 files in 300 directories",
            Send(lambda: _many_directories(30_000, 100)), runs=1,
        ),
        Micro("send 8,000 files in 800 directories", Send(lambda: _many_directories(8000, 10))),
        Micro("send 3,000 files of 3 xattrs", Send(lambda: _with_xattrs(3000, 3, 20))),
        Micro("send 2,000 files of 4 long xattrs", Send(lambda: _with_xattrs(2000, 4, 600))),
        Micro("send 4,000 files of 1,000 bytes inline", Send(lambda: _with_data(4000, 1000))),
        Micro("send 1,000 files of 48 KiB", Send(lambda: _with_data(1000, 48 << 10))),
        Micro("send 200 files of 128 KiB", Send(lambda: _with_data(200, 128 << 10))),
        Micro("send 3,000 files of 4 KiB", Send(lambda: _with_data(3000, 4 << 10))),
        Micro("send 3,000 files of 8 KiB", Send(lambda: _with_data(3000, 8 << 10))),
        Micro("send 2,000 files of 16 KiB", Send(lambda: _with_data(2000, 16 << 10))),
        Micro("send 4 files of 8 MiB", Send(lambda: _with_data(4, 8 << 20))),
        Micro("send 5,000 modes", _difference(lambda: _changed(10_000, _chmod))),
        Micro("send 200 modes of 40,000 files", _difference(lambda: _changed(40_000, _chmod, 200))),
        Micro("send 4,000 renamed", _difference(lambda: _changed(8_000, _rename))),
        Micro("send 4,000 links", _difference(lambda: _changed(12_000, _link, 3))),
        Micro("send 6,000 unlinked", _difference(lambda: _unlinked(18_000, 3))),
        Micro(
            "send 5,000 links made backwards",
            _difference(lambda: _linked_backwards(5000)), runs=1,
        ),
        Micro("send a directory of 2,000 removed", _difference(lambda: _directory_removed(2000))),
        Micro("send 2,000 changed directories", _difference(lambda: _directories_changed(2000))),
        Micro("send 10,000 empty files through a pipe", PipedSend(lambda: _empty(10_000))),
        Micro(
            "send 5,000 modes through a pipe",
            PipedSend(lambda: _changed(10_000, _chmod), "s2", "s1"),
        ),
        Micro(
            "send 4,000 links through a pipe",
            PipedSend(lambda: _changed(12_000, _link, 3), "s2", "s1"),
        ),
        Micro("send 20,000 empty files, cold", ColdSend(lambda: _empty(20_000))),
        Micro("send 4,000 files of 1,900 bytes, cold", ColdSend(lambda: _with_data(4000, 1900))),
        Micro("list 3,000 xattrs 300 times", ListXattrs(lambda: _one_with_xattrs(3000), 300)),
        Micro("look up 40 directories 500 times", LookUp(lambda: _nested(40), 40, 500)),
        Micro(
            "look up 40 directories 500 times, of 40,000 files",
            LookUp(lambda: _nested(40, 40_000), 40, 500),
        ),
        Micro("map 12,000 extents", Fiemap(lambda: _extents(12_000))),
        Micro("map 12,000 extents, cold", ColdFiemap(lambda: _extents(12_000))),
        Micro("map 4,000 extents of 2 files", Fiemap(lambda: _extents(4000, 1))),
        Micro("map 4,000 extents of 5 files", Fiemap(lambda: _extents(4000, 4))),
        Micro(
            "map 10,000 extents of 3 snapshots",
            Fiemap(lambda: _in_snapshots(_extents(10_000), 3)),
        ),
        Micro(
            "map 10,000 extents of 3 snapshots, cold",
            ColdFiemap(lambda: _in_snapshots(_extents(10_000), 3)),
        ),
        Micro("map 12,000 extents without holes", Fiemap(lambda: _without_holes(12_000))),
        Micro(
            "map 20,000 extents without holes of 2 snapshots",
            Fiemap(lambda: _in_snapshots(_without_holes(20_000), 2)),
        ),
        Micro("log 300 entries of long names", _logged(300, 120)),
        Micro("log 3,000 entries of short names", _logged(3000, 5)),
        Micro("log 3,000 entries of long names", _logged(3000, 120)),
        Micro("log 12,000 entries", _logged(12_000, 30), runs=1),
        Micro("log 6,000 entries in order", _logged(6000, 30, in_order=True)),
        Micro("log 2,000 links", _logged_links(2000)),
        Micro("log 6,000 files in order", _logged_new_links(6000, in_order=True), runs=1),
        Micro("log 6,000 files in no order", _logged_new_links(6000, in_order=False), runs=1),
        Micro("log 20,000 files in no order", _logged_new_links(20_000, in_order=False), runs=1),
        Micro("log 50,000 files in no order", _logged_new_links(50_000, in_order=False), runs=1),
        Micro("log 100 removed names of 1,500", _logged_removed(1500, 100)),
        Micro("log 400 removed names of 12,000", _logged_removed(12_000, 400), runs=1),
        Micro("log 1,500 removed names of 6,000", _logged_removed(6000, 1500), runs=1),
        Micro("log a file of 3,000 xattrs", _logged_xattrs(3000)),
        Micro("log a directory 20 times", _logged_again(20)),
        Micro("receive 1,500 empty files", Receive(lambda: _empty(1500)), runs=1),
        Micro("receive 700 files of 4 xattrs", Receive(lambda: _with_xattrs(700, 4, 20)), runs=1),
        Micro("receive 1,000 files of 2 names", Receive(lambda: _linked(1000)), runs=1),
        Micro("receive 700 files of 48 KiB", Receive(lambda: _with_data(700, 48 << 10)), runs=1),
    ]  # fmt: skip
