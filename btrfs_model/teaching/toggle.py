# SPDX-License-Identifier: GPL-2.0-only
"""Assignment: a patch of send, written again as a rule over the commands of a stream."""

from __future__ import annotations

import random
from collections import Counter

import btrfs_model as bm
from btrfs_model.teaching.grading import Answers, Parts

PARTS = Parts()
COMMIT = "ffa7c4296e93"
"""Btrfs: send, do not issue unnecessary truncate operations (Linux 4.17)."""


def random_disk(seed: int = 0) -> bm.WritableFilesystem:
    """Return a filesystem with a snapshot ``snap``: small and large files, holes, empty ones."""
    return _disk(random.Random(f"disk {seed}"))


def _disk(choice: random.Random, holes: bool = True) -> bm.WritableFilesystem:
    fs = bm.create("256M", nodesize=4096, seed=choice.randrange(1000))
    for number in range(40):
        name = f"file{number}"
        fs.create(name)
        size = choice.choice((0, 10, 1000, 4096, 5000, 40_000))
        if size:
            fs.write(name, 0, choice.randbytes(size))
        if holes and choice.random() < 0.4:
            fs.truncate(name, size + choice.choice((1, 4096, 9000)))
            if choice.random() < 0.5:
                fs.write(name, 50_000, choice.randbytes(3000))
    fs.snapshot("", "snap")
    return fs


def _both(choice: random.Random, holes: bool) -> tuple[bytes, bytes]:
    with _disk(choice, holes) as fs:
        before, after = (
            bytes(bm.send(fs, "snap", behaviour=kernel).data or b"")
            for kernel in (f"{COMMIT}^", COMMIT)
        )
    return before, after


def _differs(said: bytes, right: bytes) -> str | None:
    if said == right:
        return None
    ours, theirs = (
        Counter(command.name for command in bm.read_stream(one)) for one in (right, said)
    )
    for name in sorted(ours | theirs):
        if ours[name] != theirs[name]:
            return f"it leaves {theirs[name]} commands {name}, and the kernel {ours[name]}"
    return "it has as many commands of each kind as the kernel's stream, and other ones"


@PARTS.part(points=2)
def truncates(answers: Answers, choice: random.Random) -> str | None:
    """``truncates(stream)`` is how many commands ``truncate`` a stream has."""
    for holes in (False, True):
        for stream in _both(choice, holes):
            said = answers("truncates", stream)
            right = sum(command.name == "truncate" for command in bm.read_stream(stream))
            if said != right:
                return f"there are {right}, not {said!r}"
    return None


@PARTS.part(points=3)
def patched(answers: Answers, choice: random.Random) -> str | None:
    """``patched(stream)`` is the stream of the next kernel, of files without holes."""
    for _ in range(3):
        before, after = _both(choice, holes=False)
        if problem := _differs(bytes(answers("patched", before)), after):
            return problem
    return None


@PARTS.part(points=5)
def patched_holes(answers: Answers, choice: random.Random) -> str | None:
    """Check the same of files with holes: a truncate is needed where a file ends in one."""
    for _ in range(3):
        before, after = _both(choice, holes=True)
        if problem := _differs(bytes(answers("patched", before)), after):
            return problem
    return None
