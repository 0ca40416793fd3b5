# SPDX-License-Identifier: GPL-2.0-only
"""Assignment: what a log brings back, what it brings along, and how to save a file."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import btrfs_model as bm
from btrfs_model.teaching.grading import Answers, Parts

PARTS = Parts()
CALLS = ("create", "mkdir", "write", "truncate", "link", "rename", "unlink", "fsync", "sync")
"""What an operation may be: a list of one of these and its arguments."""

Operations = Sequence[Sequence[Any]]


def carry_out(fs: bm.WritableFilesystem, operations: Operations) -> None:
    """Carry out operations, lists of a call and its arguments.

    Raises
    ------
    ValueError
        For a call that is not among :data:`CALLS`.
    OSError
        Where the call fails.
    """
    for call, *arguments in operations:
        if call not in CALLS:
            raise ValueError(f"{call!r} is none of {', '.join(CALLS)}")
        getattr(fs, call)(*arguments)


def crash(fs: bm.WritableFilesystem, path: str | Path) -> bm.Filesystem:
    """Write what is on the device if the power goes off now, and open it."""
    fs.save_crash(path)
    return bm.open(path)


def _files(fs: bm.Filesystem) -> dict[str, bytes | None]:
    listing = fs.listing("").iloc[1:]  # without the top directory
    return dict(zip(listing["path"], listing["sha256"], strict=True))


def _started(choice: random.Random) -> bm.WritableFilesystem:
    fs = bm.create("256M", nodesize=4096, seed=choice.randrange(1000))
    fs.mkdir("folder")
    for number in range(8):
        fs.create(f"folder/old{number}")
        fs.write(f"folder/old{number}", 0, choice.randbytes(200))
    fs.sync()
    for number in range(8):
        fs.write(f"folder/old{number}", 0, choice.randbytes(100))
        fs.create(f"folder/new{number}")
        fs.write(f"folder/new{number}", 0, choice.randbytes(300))
    for number in choice.sample(range(8), 3):
        fs.fsync(f"folder/{choice.choice(('old', 'new'))}{number}")
    return fs


@PARTS.part(points=3)
def zeroed(answers: Answers, choice: random.Random) -> str | None:
    """``zeroed(crashed)`` are the paths that are lost, or older, when someone zeroes the log."""
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder, _started(choice) as fs:
            crashed = crash(fs, Path(folder, "crashed.img"))
            before, after = _files(crashed), _files(bm.replay_log(crashed))
            right = {path for path in after if after[path] != before.get(path)}
            said = set(answers("zeroed", crashed))
            if said != right:
                path = min(said ^ right)
                return f"{path} is {'lost' if path in right else 'there'} without the log"
    return None


@PARTS.part(points=3)
def comes_along(answers: Answers, choice: random.Random) -> str | None:
    """``comes_along()`` are operations that bring a file through a crash without its fsync."""
    operations = list(answers("comes_along"))
    calls = [operation[0] for operation in operations]
    if "sync" in calls or calls.count("fsync") != 1 or len(calls) > 6:
        return "it may have six operations, one fsync among them and no sync"
    (synced,) = (operation[1] for operation in operations if operation[0] == "fsync")
    with tempfile.TemporaryDirectory() as folder, bm.create("256M", seed=1) as fs:
        carry_out(fs, operations)
        there = bm.replay_log(crash(fs, Path(folder, "crashed.img")))
        listing = there.listing("").set_index("path")
        files = [path for path in listing.index if listing["mode"][path] & 0o170000 == 0o100000]
        inodes = {path: listing["ino"][path] for path in files}
        if not {path for path in files if path != synced and inodes[path] != inodes.get(synced)}:
            return f"after the crash there is no file that nobody synced: {files}"
    return None


@PARTS.part(points=4)
def save(answers: Answers, choice: random.Random) -> str | None:
    """``save(name, content)`` are operations that replace a file, whole at each crash."""
    old, new = choice.randbytes(9000), choice.randbytes(5000)
    operations = list(answers("save", "settings", new))
    for done in range(len(operations) + 1):
        for committed in (False, True):
            with tempfile.TemporaryDirectory() as folder, bm.create("256M", seed=1) as fs:
                carry_out(fs, [["create", "settings"], ["write", "settings", 0, old], ["sync"]])
                carry_out(fs, operations[:done])
                if committed:  # as the kernel does by itself every thirty seconds
                    fs.sync()
                there = bm.replay_log(crash(fs, Path(folder, "crashed.img")))
                kept = there.read_file("", "settings") if "settings" in _files(there) else None
                at = f"a crash after operation {done}{', and a commit' * committed},"
                if kept not in (old, new):
                    return f"{at} leaves {'nothing' if kept is None else 'a mixture'}"
                if done == len(operations) and kept != new:
                    return f"{at} leaves the old content, though the save had ended"
    return None
