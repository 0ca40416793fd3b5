# SPDX-License-Identifier: GPL-2.0-only
"""Which names there are while random calls are drawn, and what each call was about.

A call that is drawn blindly fails most of the time, and what an fsync after it means depends on
what it has to do with it: with the inode of the call, the directory that a name left, the one that
it came into. So names are followed as far as they decide on that, and no other error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

TOP: Final = 0
"""The inode of the directory at the top."""

ROLES: Final = (
    "it", "the other one", "new directory", "old directory", "directory of another name",
    "directory above",
)  # fmt: skip
"""What an inode may be to a call; the first that is true is told."""

MADE: Final = ("create", "mkdir", "symlink", "mknod", "subvol_create")
_COMMITS: Final = ("sync", "remount", "snapshot")
_CALLS: Final = {
    **dict.fromkeys(("create", "mkdir", "mknod", "subvol_create"), 0), "symlink": 1, "snapshot": 1,
    **dict.fromkeys(("link", "rename", "exchange", "unlink", "rmdir"), 0),
    **dict.fromkeys(("write", "truncate", "fallocate", "chmod", "chown", "utimes", "chattr"), 0),
    **dict.fromkeys(("setxattr", "removexattr", "open", "mkfiles", "rmfiles"), 0),
    "clone_range": 3,
}  # fmt: skip
"""Calls that change something, and which argument says what."""


def above(path: str) -> str:
    """Return the path of the directory of a path."""
    return path.rpartition("/")[0]


@dataclass
class Change:
    """A call that went well.

    Attributes
    ----------
    name : str
        Of the operation.
    roles : dict
        Inodes by :data:`ROLES`.
    logged : bool
        Whether an fsync asked for what it is about since the last commit.
    """

    name: str
    roles: dict[str, set[int]] = field(default_factory=dict)
    logged: bool = False


class Names:
    """The names of a filesystem, and the calls since the last commit.

    Attributes
    ----------
    there : dict
        Inodes by path; the top is the empty path.
    folders : set of int
        Those that are directories, but of snapshots, in which names are not followed.
    changes : list of Change
        Since the last commit, the last one at the end.
    """

    def __init__(self) -> None:
        self.there: dict[str, int] = {"": TOP}
        self.folders: set[int] = {TOP}
        self._subvolumes: set[int] = {TOP}
        self.changes: list[Change] = []
        self._logged: set[int] = set()
        self._last = TOP

    def paths_of(self, ino: int) -> list[str]:
        """Return all paths of an inode."""
        return [path for path, one in self.there.items() if one == ino]

    def files(self) -> list[str]:
        """Return the paths of all that is no directory."""
        others = self.folders | self._subvolumes
        return [path for path, one in self.there.items() if one not in others]

    def directories(self) -> list[str]:
        """Return the paths of all directories, the top too."""
        return [path for path, one in self.there.items() if one in self.folders]

    def subvolume(self, path: str) -> int:
        """Return the subvolume that a path lies in; the path of one lies in the one above."""
        while self.there.get(path := above(path)) not in self._subvolumes:
            pass
        return self.there[path]

    def carry_out(self, operation: list[Any]) -> None:
        """Follow a call."""
        name, *arguments = operation
        if name in _COMMITS:
            self.changes.clear()
            self._logged.clear()
        if name in ("fsync", "fdatasync") and arguments[0] in self.there:
            self._logged.add(self.there[arguments[0]])
        elif name in _CALLS:
            change = Change(name)
            if self._went_well(change, arguments):
                change.logged = bool(change.roles.get("it", set()) & self._logged)
                self.changes.append(change)

    def _went_well(self, change: Change, arguments: list[Any]) -> bool:
        name, path = change.name, str(arguments[_CALLS[change.name]])
        if name in MADE or name == "snapshot":
            return self._make(change, path)
        if name in ("link", "rename", "exchange"):
            return self._second_name(change, path, str(arguments[1]))
        if name in ("unlink", "rmdir"):
            return self._remove(change, path)
        if path not in self.there:
            return False
        self._note(change, "it", path)
        self._note_directories(change, "new directory", path)
        return True

    def _note(self, change: Change, role: str, path: str) -> None:
        change.roles.setdefault(role, set()).add(self.there[path])

    def _note_directories(self, change: Change, role: str, path: str) -> None:
        """Note the directory of a path and the one above, and those of other names of it."""
        self._note(change, role, above(path))
        self._note(change, "directory above", above(above(path)))
        for other in self.paths_of(self.there.get(path, -1)):
            self._note(change, "directory of another name", above(other))

    def _make(self, change: Change, path: str) -> bool:
        if path in self.there or self.there.get(above(path)) not in self.folders:
            return False
        self._last += 1
        self.there[path] = self._last
        if change.name in ("mkdir", "subvol_create"):
            self.folders.add(self._last)
        if change.name in ("subvol_create", "snapshot"):
            self._subvolumes.add(self._last)
        self._note(change, "it", path)
        self._note_directories(change, "new directory", path)
        return True

    def _second_name(self, change: Change, old: str, new: str) -> bool:
        ino, other = self.there.get(old), self.there.get(new)
        folder = self.there.get(above(new))
        if not old or ino is None or folder not in self.folders or ino == other:
            return False
        inside = new.startswith(f"{old}/") or old.startswith(f"{new}/") or not new
        if inside and (change.name != "link" or ino in self.folders):
            return False
        between = self.subvolume(old) != self.subvolume(new)
        if between and (change.name == "link" or not {ino, other} <= {None, *self._subvolumes}):
            return False
        refused: Mapping[str, bool] = {
            "link": ino in self.folders | self._subvolumes or other is not None,
            "exchange": other is None,
            "rename": other is not None
            and (
                (other in self.folders) != (ino in self.folders)
                or any(path.startswith(f"{new}/") for path in self.there)
            ),
        }
        if refused[change.name]:
            return False
        self._note(change, "it", old)
        self._note_directories(change, "old directory", old)
        if other is not None:
            self._note(change, "the other one", new)
        if change.name == "link":
            self.there[new] = ino
        else:
            self._move(old, new, exchange=change.name == "exchange")
        self._note_directories(change, "new directory", new)
        return True

    def _move(self, old: str, new: str, *, exchange: bool) -> None:
        def below(top: str) -> Iterator[tuple[str, int]]:
            for path in [p for p in self.there if p == top or p.startswith(f"{top}/")]:
                yield path.removeprefix(top), self.there.pop(path)

        moved, others = list(below(old)), list(below(new))
        for rest, ino in moved:
            self.there[new + rest] = ino
        for rest, ino in others if exchange else ():
            self.there[old + rest] = ino

    def _remove(self, change: Change, path: str) -> bool:
        ino = self.there.get(path)
        filled = any(one.startswith(f"{path}/") for one in self.there)
        if not path or ino is None or filled or (ino in self.folders) != (change.name == "rmdir"):
            return False
        self._note(change, "it", path)
        self._note_directories(change, "old directory", path)
        del self.there[path]
        return True
