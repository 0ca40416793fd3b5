# SPDX-License-Identifier: GPL-2.0-only
"""find."""

from __future__ import annotations

import fnmatch
import posixpath
import re
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.scripts.files import Stat
from btrfs_model.scripts.program import Program, say
from btrfs_model.scripts.programs.names import read_link, remove_folder, unlink
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell


_Test: TypeAlias = "Callable[[str, Stat], bool]"


def _find(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    at = 0
    while at < len(arguments) and not arguments[at].startswith("-") and arguments[at] not in "(!":
        at += 1
    starts, words = arguments[:at] or ["."], arguments[at:]
    depth = [0, 1 << 30]
    last_first = False
    kept = []
    position = 0
    while position < len(words):
        if words[position] in ("-mindepth", "-maxdepth"):
            depth[words[position] == "-maxdepth"] = int(words[position + 1])
            position += 2
            continue
        if words[position] in ("-depth", "-xdev", "-mount", "-noleaf"):
            last_first = last_first or words[position] == "-depth"
        else:
            kept.append(words[position])
        position += 1
    last_first = last_first or "-delete" in kept
    acts = any(one in kept for one in ("-print", "-print0", "-exec", "-delete", "-printf", "-ls"))
    parser = _Expression(computer, shell, kept)
    test = parser.parsed() if kept else (lambda path, seen: True)
    if not acts:
        inner = test

        def test(path: str, seen: Stat) -> bool:
            if inner(path, seen):
                shell.write(path + "\n")
            return True

    status = 0
    for start in starts:
        seen = computer.stat(start, follow=False)
        if seen is None:
            say(shell, f"find: '{start}': No such file or directory\n")
            status = 1
            continue
        for path, one, level in walk(computer, start, seen, 0, depth[1], last_first):
            if level >= depth[0]:
                test(path, one)
    parser.finish()
    return status


def walk(
    computer: Computer, path: str, seen: Stat, level: int, most: int, last_first: bool
) -> Iterator[tuple[str, Stat, int]]:
    """Yield what is below a path, with its level; a directory after what is in it on demand."""
    if not last_first:
        yield path, seen, level
    if seen.is_dir and level < most:
        for name in computer.listdir(path):
            inner = f"{path.rstrip('/')}/{name}" if path != "/" else f"/{name}"
            one = computer.stat(inner, follow=False)
            if one is not None:
                yield from walk(computer, inner, one, level + 1, most, last_first)
    if last_first:
        yield path, seen, level


class _Expression:
    """An expression of find."""

    def __init__(self, computer: Computer, shell: Shell, words: list[str]) -> None:
        self.computer, self.shell, self.words = computer, shell, words
        self.at = 0
        self.gathered: list[tuple[list[str], list[str]]] = []

    def parsed(self) -> _Test:
        """Parse all of it."""
        test = self._any()
        if self.at < len(self.words):
            raise UnknownError(f"find: {self.words[self.at]}: this test is not known")
        return test

    def finish(self) -> None:
        """Run what ``-exec ... +`` gathered."""
        from btrfs_model.shell.simple import call

        for command, found in self.gathered:
            if found:
                call(self.shell, [*command, *found])

    def _any(self) -> _Test:
        first = self._all()
        while self._next() in ("-o", "-or"):
            self.at += 1
            first = self._either(first, self._all())
        return first

    @staticmethod
    def _either(one: _Test, other: _Test) -> _Test:
        return lambda path, seen: one(path, seen) or other(path, seen)

    def _all(self) -> _Test:
        tests = [self._one()]
        while self._next() not in ("", "-o", "-or", ")"):
            if self._next() in ("-a", "-and"):
                self.at += 1
            tests.append(self._one())
        return lambda path, seen: all(one(path, seen) for one in tests)

    def _next(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _take(self) -> str:
        self.at += 1
        return self.words[self.at - 1]

    def _one(self) -> _Test:
        word = self._take()
        if word in ("!", "-not"):
            inner = self._one()
            return lambda path, seen: not inner(path, seen)
        if word == "(":
            inner = self._any()
            self._take()
            return inner
        if word in ("-name", "-iname", "-path", "-wholename"):
            form = self._take()
            whole = word in ("-path", "-wholename")
            fold = word == "-iname"
            return lambda path, seen: fnmatch.fnmatchcase(
                (path if whole else posixpath.basename(path)).lower()
                if fold
                else path
                if whole
                else posixpath.basename(path),
                form.lower() if fold else form,
            )
        if word == "-type":
            kinds = self._take().split(",")
            return lambda path, seen: seen.kind in kinds
        if word in ("-size", "-links", "-inum", "-uid", "-gid"):
            return self._number(word)
        if word == "-empty":
            return lambda path, seen: (
                not (self.computer.listdir(path) if seen.is_dir else seen.size)
            )
        return self._action(word)

    def _number(self, word: str) -> _Test:
        told = self._take()
        sign = told[0] if told[0] in "+-" else ""
        unit = told[-1] if told[-1].isalpha() else ""
        number = int(told.strip("+-").rstrip("cwbkMG"))
        scale = {"c": 1, "w": 2, "k": 1024, "M": 1 << 20, "G": 1 << 30}.get(unit, 512)
        field = {"-links": "nlink", "-inum": "ino"}.get(word, word[1:])

        def test(path: str, seen: Stat) -> bool:
            del path
            value = getattr(seen, field)
            value = -(-value // scale) if word == "-size" else value
            return bool(
                value > number if sign == "+" else value < number if sign else value == number
            )

        return test

    def _action(self, word: str) -> _Test:
        from btrfs_model.shell.simple import call

        shell, computer = self.shell, self.computer
        if word in ("-print", "-print0"):
            end = "\n" if word == "-print" else "\0"
            return lambda path, seen: _done(shell.write, path + end)
        if word == "-delete":
            return lambda path, seen: _removed(computer, path, seen)
        if word == "-prune":
            raise UnknownError("find: -prune is not known")
        if word == "-exec":
            command = []
            while self._next() not in (";", "+"):
                command.append(self._take())
            if self._take() == "+":
                found: list[str] = []
                self.gathered.append((command[:-1], found))
                return lambda path, seen: _done(found.append, path)
            return lambda path, seen: not call(shell, [one.replace("{}", path) for one in command])
        if word == "-printf":
            form = self._take()
            return lambda path, seen: _done(shell.write, _printed(computer, path, seen, form))
        raise UnknownError(f"find: {word}: this test is not known")


def _done(act: Callable[[str], None], value: str) -> bool:
    act(value)
    return True


def _removed(computer: Computer, path: str, seen: Stat) -> bool:
    (remove_folder if seen.is_dir else unlink)(computer, computer.absolute(path))
    return True


def _printed(computer: Computer, path: str, seen: Stat, form: str) -> str:
    from btrfs_model.shell.ansi import printf_format

    known = {"p": path, "f": posixpath.basename(path), "s": str(seen.size), "i": str(seen.ino),
             "y": seen.kind, "m": f"{seen.mode & 0o7777:o}", "n": str(seen.nlink), "P": path,
             "U": str(seen.uid), "G": str(seen.gid), "h": posixpath.dirname(path),
             "b": str(seen.blocks), "%": "%", "M": stat.filemode(seen.mode),
             "l": read_link(computer, computer.absolute(path)) if seen.is_link else ""}  # fmt: skip

    def value(found: re.Match[str]) -> str:
        if found[1] not in known:
            raise UnknownError(f"find: -printf %{found[1]}: this field is not known")
        return known[found[1]]

    return printf_format(re.sub("%(.)", value, form))


PROGRAMS: Final[dict[str, Program]] = {"find": _find}
