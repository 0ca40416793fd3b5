# SPDX-License-Identifier: GPL-2.0-only
"""Expressions of find: tests and actions, and how they are put together."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from btrfs_model.scripts.files import Stat
from btrfs_model.scripts.program import reason, say
from btrfs_model.scripts.programs.attributes.modes import is_mode, new_mode
from btrfs_model.scripts.programs.find.printed import listed, printed
from btrfs_model.scripts.programs.find.walk import Item
from btrfs_model.scripts.programs.names import GROUPS, USERS, read_link, remove_folder, unlink
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from contextlib import ExitStack

    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_KINDS: Final = "bcdpfls"
_SIZES: Final = {"c": 1, "w": 2, "b": 512, "": 512, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIMES: Final = {"a": "atime", "c": "ctime", "m": "mtime", "B": "birth"}


class WrongExpressionError(Exception):
    """An expression is none; the text is what find says of it."""


class QuitFind(Exception):  # noqa: N818 - no error: -quit
    """Nothing more is looked at."""


Test: TypeAlias = Callable[[Item], bool]
T = TypeVar("T")


class Expression:
    """An expression of find, parsed.

    `test`: what it says of a file.
    """

    def __init__(
        self, computer: Computer, shell: Shell, words: list[str], outputs: ExitStack, *,
        follows: bool,
    ) -> None:  # fmt: skip
        self.computer, self.shell, self.words, self.follows = computer, shell, words, follows
        self._outputs = outputs
        self.at = 0
        self._texts: dict[str, Callable[[Item], str]] = {
            "-name": lambda item: item.name, "-path": lambda item: item.path,
            "-wholename": lambda item: item.path, "-regex": lambda item: item.path,
            "-lname": self._target,
        }  # fmt: skip
        self.gathered: list[tuple[list[str], list[str]]] = []
        self.test: Test = self._list() if words else (lambda item: True)
        if self.at < len(words):
            raise WrongExpressionError(
                "invalid expression; you have too many ')'" if self._next() == ")" else
                f"paths must precede expression: `{self._next()}'")  # fmt: skip

    def finish(self) -> int:
        """Run what ``-exec ... +`` gathered; return 1 where it failed."""
        from btrfs_model.shell.simple import call

        runs = [call(self.shell, [*command, *found]) for command, found in self.gathered if found]
        return int(any(runs))

    # ------------------------------------------------------------------------- put together --

    def _list(self) -> Test:
        last = self._any()
        while self._next() == ",":
            self.at += 1
            last = self._second(last, self._any())
        return last

    @staticmethod
    def _second(one: Test, other: Test) -> Test:
        return lambda item: (one(item), other(item))[1]

    def _any(self) -> Test:
        first = self._all()
        while self._next() in ("-o", "-or"):
            self.at += 1
            first = self._either(first, self._all())
        return first

    @staticmethod
    def _either(one: Test, other: Test) -> Test:
        return lambda item: one(item) or other(item)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._next() not in ("", "-o", "-or", ")", ","):
            if self._next() in ("-a", "-and"):
                self.at += 1
            tests.append(self._one())
        return lambda item: all(one(item) for one in tests)

    def _next(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _take(self, of: str = "") -> str:
        if self.at >= len(self.words):
            raise WrongExpressionError(f"missing argument to `{of}'")
        self.at += 1
        return self.words[self.at - 1]

    def _one(self) -> Test:
        word = self._take()
        if word in ("!", "-not"):
            inner = self._one()
            return lambda item: not inner(item)
        if word == "(":
            inner = self._list()
            if self._next() != ")":
                raise WrongExpressionError("invalid expression; I was expecting to find a ')' "
                                           "somewhere but did not see one.")  # fmt: skip
            self.at += 1
            return inner
        for kind in (self._constant, self._on_name, self._on_inode, self._on_time, self._action):
            found = kind(word)
            if found is not None:
                return found
        raise UnknownError(f"find: {word}: this test is not known")

    # -------------------------------------------------------------------------------- tests --

    def _constant(self, word: str) -> Test | None:
        if word in ("-true", "-false"):
            return lambda item: word == "-true"
        return None

    def _on_name(self, word: str) -> Test | None:
        folded = word[1:2] == "i" and f"-{word[2:]}" in self._texts
        base = f"-{word[2:]}" if folded else word
        what = self._texts.get(base)
        if what is None:
            return None
        form = self._take(word)
        if base == "-regex":
            pattern = re.compile(_emacs(form), re.I * folded | re.S)
            return lambda item: pattern.fullmatch(what(item)) is not None
        pattern = re.compile(fnmatch.translate(form), re.I * folded)
        return lambda item: pattern.match(what(item)) is not None and bool(what(item))

    def _target(self, item: Item) -> str:
        return read_link(self.computer, self.computer.absolute(item.path)) if (
            item.seen.is_link) else ""  # fmt: skip

    def _on_inode(self, word: str) -> Test | None:
        if word in ("-type", "-xtype"):
            return self._type(word)
        if word == "-size":
            return self._size()
        if word == "-perm":
            return self._perm()
        if word in ("-links", "-inum", "-uid", "-gid"):
            field = {"-links": "nlink", "-inum": "ino"}.get(word, word[1:])
            test = _numbered(self._take(word))
            return lambda item: test(getattr(item.seen, field))
        if word in ("-user", "-group"):
            told, field = self._take(word), {"-user": "uid", "-group": "gid"}[word]
            known = USERS if word == "-user" else GROUPS
            if not told.isdigit() and told not in known:
                raise UnknownError(f"find: {word} {told}: this name is not known")
            number = int(told) if told.isdigit() else known[told]
            return lambda item: getattr(item.seen, field) == number
        if word in ("-nouser", "-nogroup"):
            field, known = ("uid", USERS) if word == "-nouser" else ("gid", GROUPS)
            return lambda item: getattr(item.seen, field) not in known.values()
        if word == "-samefile":
            same = self._reference(word).same
            return lambda item: item.seen.same == same
        if word == "-empty":
            return lambda item: (item.seen.is_file and not item.seen.size) or (
                item.seen.is_dir and not self.computer.listdir(item.path))  # fmt: skip
        return None

    def _reference(self, word: str) -> Stat:
        path = self._take(word)
        seen = self.computer.stat(path, follow=self.follows)
        if seen is None:
            raise WrongExpressionError(f"'{path}': No such file or directory")
        return seen

    def _type(self, word: str) -> Test:
        kinds = self._take(word).split(",")
        wrong = next((one for one in kinds if len(one) != 1 or one not in _KINDS), None)
        if wrong is not None:
            raise WrongExpressionError(f"Unknown argument to {word}: {wrong}")
        if word == "-type":
            return lambda item: item.seen.kind in kinds

        def test(item: Item) -> bool:
            other = self.computer.stat(item.path, follow=not self.follows)
            return (other or item.seen).kind in kinds

        return test

    def _size(self) -> Test:
        told = self._take("-size")
        found = re.fullmatch(r"([-+]?\d+)([cwbkMG]?)", told)
        if found is None:
            raise WrongExpressionError(f"invalid -size type `{told[-1:]}'")
        unit, test = _SIZES[found[2]], _numbered(found[1])
        return lambda item: test(-(-item.seen.size // unit))

    def _perm(self) -> Test:
        told = self._take("-perm")
        sign = told[0] if told[0] in "-/" else ""
        mode = told.removeprefix(sign)
        if not is_mode(mode):
            raise WrongExpressionError(f"invalid mode '{told}'")
        bits = new_mode(mode, 0, 0)
        if sign == "-":
            return lambda item: item.seen.mode & bits == bits
        if sign == "/":
            return lambda item: not bits or bool(item.seen.mode & bits)
        return lambda item: item.seen.mode & 0o7777 == bits

    def _on_time(self, word: str) -> Test | None:
        from btrfs_model.scripts.programs.coreutils import moment

        if word in ("-newer", "-anewer", "-cnewer"):
            word = {"-newer": "-newermm", "-anewer": "-neweram", "-cnewer": "-newercm"}[word]
        newer = re.fullmatch("-newer([acmB])([acmBt])", word)
        if newer:
            field = _TIMES[newer[1]]
            when = int(moment(self._take(word)) * 1e9) if newer[2] == "t" else getattr(
                self._reference(word), _TIMES[newer[2]])  # fmt: skip
            return lambda item: getattr(item.seen, field) > when
        aged = re.fullmatch("-([acm])(time|min)", word)
        if not aged:
            return None
        field, unit = _TIMES[aged[1]], 86400 if aged[2] == "time" else 60
        test, now = _numbered(self._take(word)), self.computer.time_ns()

        def is_aged(item: Item) -> bool:
            age = (now - getattr(item.seen, field)) / 1e9 / unit
            # minutes are rounded up, days down
            return test(int(age) if unit == 86400 else -int(-age // 1))

        return is_aged

    # ------------------------------------------------------------------------------ actions --

    def _action(self, word: str) -> Test | None:
        shell, computer = self.shell, self.computer
        if word in ("-print", "-print0"):
            end = "\n" if word == "-print" else "\0"
            return lambda item: _done(shell.write, item.path + end)
        if word == "-fprint":
            output = self._outputs.enter_context(computer.open(self._take(word), "w"))
            return lambda item: _done(output.write, f"{item.path}\n".encode())
        if word == "-printf":
            form = self._take(word)
            return lambda item: _done(shell.write, printed(computer, item, form))
        if word == "-delete":
            return self._delete
        if word == "-prune":
            return self._prune
        if word == "-quit":
            return self._quit
        if word == "-ls":
            return lambda item: _done(shell.write, listed(computer, item))
        return self._exec(word) if word in ("-exec", "-execdir", "-ok", "-okdir") else None

    @staticmethod
    def _prune(item: Item) -> bool:
        item.pruned = True
        return True

    @staticmethod
    def _quit(item: Item) -> bool:
        raise QuitFind

    def _delete(self, item: Item) -> bool:
        if item.path == ".":
            return True
        try:
            (remove_folder if item.seen.is_dir else unlink)(
                self.computer, self.computer.absolute(item.path)
            )
        except OSError as error:
            say(self.shell, f"find: cannot delete '{item.path}': {reason(error)}\n")
            item.failed = True
            return False
        return True

    def _exec(self, word: str) -> Test:
        command: list[str] = []
        while self._next() != ";" and not (self._next() == "+" and command[-1:] == ["{}"]):
            command.append(self._take(word))
        if self._take() == "+":
            if word != "-exec":
                raise UnknownError(f"find: {word} ... +: this is not known")
            found: list[str] = []
            self.gathered.append((command[:-1], found))
            return lambda item: _done(found.append, item.path)
        return lambda item: self._run(word, command, item)

    def _run(self, word: str, command: list[str], item: Item) -> bool:
        """Run a command with the name of a file in it."""
        from btrfs_model.shell.simple import call

        if word.startswith("-ok"):
            say(self.shell, f"< {command[0]} ... {item.path} > ? ")
            if not self.shell.files[0].read_line().startswith((b"y", b"Y")):
                return False
        if not word.endswith("dir"):
            return not call(self.shell, [one.replace("{}", item.path) for one in command])
        head, _, name = item.path.rstrip("/").rpartition("/")
        before = self.computer.cwd
        # without "/" the path is of this directory
        self.computer.chdir(self.computer.absolute(head or ("/" if "/" in item.path else ".")))
        try:
            return not call(self.shell, [one.replace("{}", f"./{name}") for one in command])
        finally:
            self.computer.cwd = before


def _done(act: Callable[[T], None], value: T) -> bool:
    """Do what cannot fail."""
    act(value)
    return True


def _numbered(told: str) -> Callable[[int], bool]:
    """Return a test of a number: it is as large, larger (+) or smaller (-)."""
    if not re.fullmatch(r"[-+]?\d+", told):
        raise UnknownError(f"find: {told}: this number is not known")
    number = int(told.lstrip("+-"))
    if told[0] == "+":
        return lambda value: value > number
    return (lambda value: value < number) if told[0] == "-" else (lambda value: value == number)


def _emacs(form: str) -> str:
    """Return a regular expression of emacs as Python writes it."""

    def written(found: re.Match[str]) -> str:
        one = found[0]
        if one in ("\\(", "\\)", "\\|"):
            return one[1]
        return one if one[0] == "\\" else "\\" + one

    if re.search(r"\\[^()|.*+?\[\]^$\\]", form):
        raise UnknownError(f"find: -regex {form}: this is not known")
    return re.sub(r"\\.|[(){}|]", written, form)
