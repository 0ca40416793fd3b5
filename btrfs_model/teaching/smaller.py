# SPDX-License-Identifier: GPL-2.0-only
"""Assignment: the same files, and a send of a tenth."""

from __future__ import annotations

import random
from collections.abc import Callable

import btrfs_model as bm
from btrfs_model.teaching.grading import Answers, Parts

PARTS = Parts()
_PAGE = 4096
_PAGES = 256


def save_slowly(fs: bm.WritableFilesystem, path: str, content: bytes) -> None:
    """Save a file as many programs do: a new one, which takes the name of the old."""
    fs.create(f"{path}.new")
    fs.write(f"{path}.new", 0, content)
    fs.rename(f"{path}.new", path)


def tonight(content: bytes, seed: int = 0) -> bytes:
    """Return what a database of 256 pages is a day later: five pages changed, some bytes longer."""
    return _changed(content, random.Random(f"night {seed}"))


def _changed(content: bytes, choice: random.Random) -> bytes:
    pages = [content[at : at + _PAGE] for at in range(0, len(content), _PAGE)]
    for at in choice.sample(range(len(pages)), 5):
        pages[at] = choice.randbytes(len(pages[at]))
    return b"".join(pages) + choice.randbytes(choice.randrange(1, 3000))


def _sent(save: Callable[..., object], choice: random.Random) -> tuple[int, int, str | None]:
    """Return the bytes of the slow send and of the other, and what is wrong with the file."""
    first = choice.randbytes(_PAGES * _PAGE)
    second = _changed(first, choice)
    if choice.random() < 0.5:
        first, second = second, first  # it gets shorter as well
    sizes = []
    for one in (save_slowly, save):
        with bm.create("256M", seed=1) as fs:
            fs.create("base.db")
            fs.write("base.db", 0, first)
            fs.snapshot("", "yesterday")
            one(fs, "base.db", second)
            fs.sync()
            if fs.read_file("", "base.db") != second:
                return 0, 0, "the file has another content than asked for"
            if {entry.name for entry in fs.subvolume("").readdir("")} != {b"base.db", b"yesterday"}:
                return 0, 0, "there are other files than before"
            fs.snapshot("", "today")
            sizes.append(bm.send(fs, "today", "yesterday", estimate=True).size)
    return sizes[0], sizes[1], None


def _times_smaller(answers: Answers, choice: random.Random, times: int) -> str | None:
    for _ in range(3):
        slow, size, problem = _sent(answers.function("save"), choice)
        if problem:
            return problem
        if size * times > slow:
            return f"the send has {size:,} bytes; {slow:,} are to become {slow // times:,}"
    return None


@PARTS.part(points=2)
def right(answers: Answers, choice: random.Random) -> str | None:
    """``save(fs, path, content)`` leaves the file with its new content, and no other."""
    for _ in range(3):
        if problem := _sent(answers.function("save"), choice)[2]:
            return problem
    return None


@PARTS.part(points=3)
def twice(answers: Answers, choice: random.Random) -> str | None:
    """Check that the next send is half as large as after ``save_slowly``."""
    return _times_smaller(answers, choice, 2)


@PARTS.part(points=5)
def ten_times(answers: Answers, choice: random.Random) -> str | None:
    """Check that it has a tenth."""
    return _times_smaller(answers, choice, 10)
