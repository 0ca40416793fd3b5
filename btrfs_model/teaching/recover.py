# SPDX-License-Identifier: GPL-2.0-only
"""Assignment: a file comes back from a tree that lost its root."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import btrfs_model as bm
from btrfs_model.teaching.grading import Answers, Parts

PARTS = Parts()
_NODE = 4096


def broken_disk(path: str | Path, seed: int = 0) -> dict[str, bytes]:
    """Write an image whose top directory lost the root of its tree.

    Parameters
    ----------
    path : str or pathlib.Path
        Of the new image. Its tree blocks have 4096 bytes, and two copies.
    seed : int
        Of names and contents.

    Returns
    -------
    dict
        Contents by name.
    """
    return _broken(Path(path), random.Random(f"disk {seed}"))


def _broken(path: Path, choice: random.Random) -> dict[str, bytes]:
    contents = {}
    with bm.create("256M", nodesize=_NODE, seed=choice.randrange(1000)) as fs:
        for number in range(60 + choice.randrange(40)):
            name = f"{choice.choice(('letter', 'photo', 'notes'))}{number}"
            contents[name] = choice.randbytes(choice.choice((0, 30, 700, 5000, 20_000)))
            fs.create(name)
            fs.write(name, 0, contents[name])
        fs.sync()
        # older leaves stay on the device, with what was written over since
        for name in choice.sample(sorted(contents), 10):
            contents[name] = choice.randbytes(max(len(contents[name]), 30))
            fs.write(name, 0, contents[name])
        fs.sync()
        root = fs.subvolume("").tree.bytenr
        places = [place for copy in (0, 1) for place in fs.image.map(root, copy)[:1]]
        fs.save(path)
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            file.write(bytes(_NODE))
    return contents


@contextmanager
def _disk(choice: random.Random) -> Iterator[tuple[Path, dict[str, bytes]]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(bm, "rescue", _not_here),
    ):
        path = Path(folder, "broken.img")
        yield path, _broken(path, choice)


def _not_here(*_: object, **__: object) -> None:
    raise AssertionError("bm.rescue is what you are to build")


@PARTS.part(points=2)
def lost(answers: Answers, choice: random.Random) -> str | None:
    """``lost(path)`` is the logical address of the block that is lost."""
    for _ in range(2):
        with _disk(choice) as (path, _), bm.open(path) as fs:
            said, right = answers("lost", path), fs.tree(5).bytenr
            if said != right:
                return f"the root of the tree is at {right}, not at {said!r}"
    return None


@PARTS.part(points=4)
def leaves(answers: Answers, choice: random.Random) -> str | None:
    """``leaves(path)`` are the logical addresses of the leaves of tree 5 that lie on the device."""
    for _ in range(2):
        with _disk(choice) as (path, _):
            said = set(answers("leaves", path))
            right = {address for address, _ in _scan(path)}
            if missing := right - said:
                return f"it lacks {len(missing)} of {len(right)} leaves, as that at {min(missing)}"
            if more := said - right:
                return f"there is no leaf of tree 5 at {min(more)}"
    return None


def _scan(path: Path) -> Iterator[tuple[int, int]]:
    """Yield address and place of what has the header of a leaf of tree 5."""
    with bm.open(path) as fs:
        fsid = fs.image.superblock.tree_fsid
        data = path.read_bytes()
        for place in range(0, len(data), _NODE):
            header = data[place : place + 101]
            owner = int.from_bytes(header[88:96], "little")
            if header[32:48] == fsid and owner == 5 and header[100] == 0:
                yield int.from_bytes(header[48:56], "little"), place


@PARTS.part(points=4)
def recover(answers: Answers, choice: random.Random) -> str | None:
    """``recover(path, name)`` is the content that a file had at last."""
    with _disk(choice) as (path, contents):
        for name in choice.sample(sorted(contents), 25):
            said = answers("recover", path, name)
            if bytes(said) != contents[name]:
                size = len(contents[name])
                return f"of {name}, {size} bytes, it returns {len(said)} that are not those"
    return None
