# SPDX-License-Identifier: GPL-2.0-only
"""Going through a directory and all that is below it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from btrfs_model.scripts.files import Stat

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer


@dataclass
class Item:
    """A file that is looked at, as its path is told from where find began."""

    path: str
    seen: Stat
    level: int
    start: str
    pruned: bool = False
    failed: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return posixpath.basename(self.path.rstrip("/")) or self.path


def walk(
    computer: Computer, path: str, seen: Stat, level: int, most: int, last_first: bool
) -> Iterator[tuple[str, Stat, int]]:
    """Yield what is below a path, with its level; a directory after what is in it on demand."""
    if not last_first:
        yield path, seen, level
    if seen.is_dir and level < most:
        for inner in names_in(computer, path):
            one = computer.stat(inner, follow=False)
            if one is not None:
                yield from walk(computer, inner, one, level + 1, most, last_first)
    if last_first:
        yield path, seen, level


def names_in(computer: Computer, path: str) -> list[str]:
    """Return the paths of what is in a directory."""
    before = path if path.endswith("/") else f"{path}/"
    return [before + name for name in computer.listdir(path)]
