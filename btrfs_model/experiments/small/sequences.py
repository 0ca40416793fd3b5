# SPDX-License-Identifier: GPL-2.0-only
"""All sequences of operations, with what makes them durable between and after.

A sequence has a *point* after each operation: nothing, ``sync``, ``fsync`` or ``fdatasync`` of a
path. Left out is, by rules that are counted:

- what comes after an operation that fails for its names: that changes nothing;
- of more than one operation an fsync of what no operation since the last ``sync`` touched, its
  inode or, of a name, its directory: it finds nothing to do, which sequences of one operation show;
- of more than one operation ``fdatasync``: btrfs does the same for it as for ``fsync``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from copy import copy
from functools import cache
from typing import Final

from btrfs_model.experiments.small.vocabulary import ALL, TREE, Operation
from btrfs_model.experiments.verify.random.names import MADE, Names, above

Steps = list[Operation]
"""A sequence: operations, and the points after them that are something."""

LEFT_OUT: Final = ("after an operation that fails", "fsync of what is not touched", "fdatasync")
"""Why a sequence is left out."""

POINTS: Final = ("sync", "fsync", "fdatasync")
"""What makes something last."""
_ON_FILES: Final = ("write", "truncate", "fallocate", "clone", "clone_range", "dedupe")
_TARGET: Final = {"clone": 1, "clone_range": 3, "dedupe": 3}
_OF_NAMES: Final = (*MADE, "link", "rename", "exchange", "unlink", "rmdir")
_CHANGED: Final = ("it", "the other one", "new directory", "old directory")


class SmallTree:
    """The tree while a sequence goes on: its names, and what was touched since the last sync."""

    def __init__(self) -> None:
        self.names = Names()
        self._kinds: dict[int, str] = {}
        self._targets: dict[int, str] = {}
        self.touched: set[int] = set()
        for operation in TREE:
            self.carry_out(operation)
        self.sync()

    def copy(self) -> SmallTree:
        """Return one that goes its own way from here."""
        other = copy(self)
        other.names = copy(self.names)
        other.names.there, other.names.folders = {**self.names.there}, {*self.names.folders}
        other.names.changes = []
        other._kinds, other._targets = {**self._kinds}, {**self._targets}
        other.touched = {*self.touched}
        return other

    def sync(self) -> None:
        """Follow a commit."""
        self.touched = set()

    def carry_out(self, operation: Operation) -> bool:
        """Follow an operation; whether it goes well."""
        name, *arguments = operation
        if name in _ON_FILES:
            return self._on_files(name, arguments)
        before = len(self.names.changes)
        self.names.carry_out(operation)
        if len(self.names.changes) == before:
            return False
        roles = self.names.changes[-1].roles
        for role in _CHANGED if name in _OF_NAMES else _CHANGED[:1]:
            self.touched |= roles.get(role, set())
        if name in MADE:
            ino = self.names.there[arguments[1 if name == "symlink" else 0]]
            self._kinds[ino] = name
            if name == "symlink":
                self._targets[ino] = f"{above(arguments[1])}/{arguments[0]}"
        return True

    def _on_files(self, name: str, arguments: Operation) -> bool:
        source, target = self._file(arguments[0]), self._file(arguments[_TARGET.get(name, 0)])
        if source is None or target is None:
            return False
        self.touched.add(target)
        return True

    def _file(self, path: str) -> int | None:
        """Return the file that a path leads to."""
        ino = self.names.there.get(path)
        if ino in self._targets:
            ino = self.names.there.get(self._targets[ino])
        return ino if ino is not None and self._kinds.get(ino) == "create" else None

    def points(self) -> list[Operation]:
        """Return all points that make something durable: of each path, and sync."""
        paths = [path for path, ino in sorted(self.names.there.items())
                 if self._kinds.get(ino, "mkdir") in ("create", "mkdir")]  # fmt: skip
        return [["sync"], *([how, path] for how in ("fsync", "fdatasync") for path in paths)]

    def is_touched(self, point: Operation) -> bool:
        """Whether a point has something to make durable."""
        return point == ["sync"] or self.names.there[point[1]] in self.touched


def _continued(tree: SmallTree, steps: Steps, length: int, left: Counter[str]) -> Iterator[Steps]:
    """Yield what follows from a tree: `length` more operations, the last with a point."""
    for operation in ALL:
        after = tree.copy()
        if not after.carry_out(operation):
            if length == 1:
                left[LEFT_OUT[0]] += len(after.points())
                if not any(step[0] in POINTS for step in steps):
                    yield [*steps, operation]
            continue
        for point in _kept(after, left, alone=not steps and length == 1):
            if length == 1:
                yield [*steps, operation, point]
                continue
            further = after.copy()
            if point == ["sync"]:
                further.sync()
            yield from _continued(further, [*steps, operation, point], length - 1, left)
        if length > 1:
            yield from _continued(after, [*steps, operation], length - 1, left)


def _kept(tree: SmallTree, left: Counter[str], *, alone: bool) -> list[Operation]:
    """Return the points that are not left out, and count the others."""
    points = tree.points()
    if alone:
        return points
    kept = [point for point in points if point[0] != "fdatasync"]
    left[LEFT_OUT[2]] += len(points) - len(kept)
    touched = [point for point in kept if tree.is_touched(point)]
    left[LEFT_OUT[1]] += len(kept) - len(touched)
    return touched


@cache
def enumerated(length: int) -> tuple[list[Steps], Counter[str]]:
    """Return all sequences of so many operations, and how many were left out, by the reason."""
    left: Counter[str] = Counter()
    return list(_continued(SmallTree(), [], length, left)), left


def sampled(length: int, seed: object) -> Steps:
    """Draw a sequence of operations that go well, or fewer; its last step is a point."""
    choice, tree, steps = random.Random(f"sequence {seed}"), SmallTree(), Steps()
    for _ in range(length):
        going = [operation for operation in ALL if tree.copy().carry_out(operation)]
        if not going:
            break
        steps.append(choice.choice(going))
        tree.carry_out(steps[-1])
        steps.append(choice.choice([[], *_kept(tree, Counter(), alone=False)]))
        if steps[-1] == ["sync"]:
            tree.sync()
    steps[-1] = steps[-1] or ["sync"]
    return [step for step in steps if step]
