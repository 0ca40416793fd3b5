# SPDX-License-Identifier: GPL-2.0-only
"""The names that fsstress has made: a letter for the kind of file, and a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DIR: Final = 0
REG: Final = 1
SYM: Final = 2
DEV: Final = 3
_TAGS: Final = "dflcrs"
REGULAR: Final = (REG, 4)
NOT_DIR: Final = (REG, SYM, DEV, 4)
ANY: Final = (DIR, REG, SYM, DEV, 4, 5)
ANY_DIR: Final = (DIR, 5)
_LENGTHS: Final = (2, 4, 8, 16, 32, 64, 128, 255)


@dataclass(eq=False)
class Entry:
    """A name.

    `number`, `kind`: what it is made of.
    `parent`: the number of the directory; -1 for the one that fsstress works in.
    `xattrs`: how many attributes were set.
    """

    number: int
    kind: int
    parent: int
    xattrs: int = 0


class Names:
    """All names of a process, in a list for each kind."""

    def __init__(self) -> None:
        self.lists: list[list[Entry]] = [[] for _ in _TAGS]
        self.folders: dict[int, Entry] = {}
        self.next = 0
        self.padding = 0

    def clear(self) -> None:
        """Forget all names."""
        self.lists = [[] for _ in _TAGS]
        self.folders = {}

    def add(self, kind: int, number: int, parent: int, xattrs: int = 0) -> None:
        """Note a name that was made."""
        entry = Entry(number, kind, parent, xattrs)
        self.lists[kind].append(entry)
        if kind in ANY_DIR:
            self.folders[number] = entry

    def remove(self, entry: Entry) -> None:
        """Forget a name: the last of its list takes its place."""
        entries = self.lists[entry.kind]
        last = entries.pop()
        if last is not entry:
            entries[entries.index(entry)] = last
        self.folders.pop(entry.number, None)

    def choose(self, kinds: tuple[int, ...], number: int) -> Entry | None:
        """Return a name of some kinds by a random number."""
        total = sum(len(self.lists[kind]) for kind in kinds)
        if not total:
            return None
        number %= total
        for kind in kinds:
            if number < len(self.lists[kind]):
                return self.lists[kind][number]
            number -= len(self.lists[kind])
        return None

    def path(self, entry: Entry) -> str:
        """Return the path of a name from where fsstress works."""
        parts = []
        at: Entry | None = entry
        while at is not None:
            parts.append(self._name(at.kind, at.number))
            at = self.folders[at.parent] if at.parent != -1 else None
        return "/".join(reversed(parts))

    def new(self, folder: Entry | None, kind: int) -> tuple[str, int]:
        """Return a new path in a directory, and its number."""
        number = self.next
        self.next += 1
        name = self._name(kind, number)
        return (f"{self.path(folder)}/{name}" if folder else name), number

    def is_above(self, entry: Entry, other: Entry) -> bool:
        """Whether `other` is a directory above an entry."""
        while entry.parent != -1:
            if entry.parent == other.number:
                return True
            entry = self.folders[entry.parent]
        return False

    def moved(self, old: int, new: int, *, swapped: bool) -> None:
        """Note that what was in a directory is in another."""
        for entries in self.lists:
            for entry in entries:
                if entry.parent == old:
                    entry.parent = new
                elif swapped and entry.parent == new:
                    entry.parent = old

    def _name(self, kind: int, number: int) -> str:
        name = f"{_TAGS[kind]}{number:x}"
        if not self.padding:
            return name
        mixed = number ^ self.padding
        most = _LENGTHS[mixed % len(_LENGTHS)] + 1 - len(name)
        return name + "X" * (mixed % most) if most > 0 else name
