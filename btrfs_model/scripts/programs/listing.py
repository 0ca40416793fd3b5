# SPDX-License-Identifier: GPL-2.0-only
"""What is there: ls, stat, find, wc."""

from __future__ import annotations

import datetime
import fnmatch
import posixpath
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.scripts.files import Stat
from btrfs_model.scripts.program import Program, human_size, options, say
from btrfs_model.scripts.programs.copies import inputs
from btrfs_model.scripts.programs.names import read_link, remove_folder, unlink
from btrfs_model.scripts.programs.statfs import statfs
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_USERS: Final = {0: "root", 65534: "nobody"}
_GROUPS: Final = {0: "root", 65534: "nogroup"}
_SIX_MONTHS: Final = 31556952 // 2


def _ls(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "laA1hidRFtrUSnsgp", "", long=("color=", "full-time", "all"),
                           program_name="ls")  # fmt: skip
    if {"F", "S", "s", "g", "p", "full-time"} & set(given):
        raise UnknownError("ls: of the options -l -a -A -1 -i -d -t -r -R -U -n -h are known")
    status = 0
    files: list[tuple[str, Stat]] = []
    folders: list[tuple[str, Stat]] = []
    for path in paths or ["."]:
        seen = computer.stat(path, follow="l" not in given and "d" not in given)
        if seen is None:
            say(shell, f"ls: cannot access '{path}': No such file or directory\n")
            status = 2
        elif seen.is_dir and "d" not in given:
            folders.append((path, seen))
        else:
            files.append((path, seen))
    _rows(computer, shell, _sorted(files, given), given, "")
    folders.sort(key=_name)
    titled = len(paths) > 1 or "R" in given
    for number, (path, seen) in enumerate(folders):
        if titled:
            shell.write(f"{chr(10) if number or files else ''}{path}:\n")
        inner = _folder(computer, shell, path, seen, given)
        if "R" in given:
            folders[number + 1 : number + 1] = inner
    return status


def _folder(
    computer: Computer, shell: Shell, path: str, seen: Stat, given: dict[str, str]
) -> list[tuple[str, Stat]]:
    """List a directory; return the directories in it, for ``-R``."""
    hidden = {"a", "A", "all"} & set(given)
    names = [one for one in computer.listdir(path) if not one.startswith(".") or hidden]
    rows = []
    if {"l", "n", "i", "t", "R"} & set(given):
        for name in names:
            inner = computer.stat(f"{computer.absolute(path).rstrip('/')}/{name}", follow=False)
            if inner is not None:
                rows.append((name, inner))
    else:
        rows = [(one, seen) for one in names]
    below = [(f"{path.rstrip('/')}/{name}", one) for name, one in _sorted(rows, given)
             if one.is_dir]  # fmt: skip
    if {"a", "all"} & set(given):
        above = computer.stat(posixpath.dirname(computer.absolute(path).rstrip("/")) or "/")
        rows += [(".", seen), ("..", above or seen)]
    if "l" in given:
        blocks = sum(one.blocks for _, one in rows)
        shell.write(f"total {human_size(512 * blocks) if 'h' in given else blocks // 2}\n")
    _rows(computer, shell, _sorted(rows, given), given, path)
    return below


def _name(row: tuple[str, Stat]) -> bytes:
    return row[0].encode("utf-8", "surrogateescape")


def _sorted(rows: list[tuple[str, Stat]], given: dict[str, str]) -> list[tuple[str, Stat]]:
    if "U" in given:
        return rows
    found = sorted(rows, key=_name)
    if "t" in given:
        found.sort(key=lambda row: -row[1].mtime)
    return found[::-1] if "r" in given else found


def _rows(
    computer: Computer,
    shell: Shell,
    rows: list[tuple[str, Stat]],
    given: dict[str, str],
    folder: str,
) -> None:
    number = f"{max((len(str(one.ino)) for _, one in rows), default=1)}"
    if not {"l", "n"} & set(given):
        for name, seen in rows:
            shell.write((f"{seen.ino:>{number}} " if "i" in given else "") + name + "\n")
        return
    numeric = "n" in given
    cells = []
    for name, seen in rows:
        shown = name
        if seen.is_link:
            whole = computer.absolute(posixpath.join(folder, name) if folder else name)
            shown = f"{name} -> {read_link(computer, whole)}"
        cells.append((
            stat.filemode(seen.mode), str(seen.nlink),
            str(seen.uid) if numeric else _USERS.get(seen.uid, str(seen.uid)),
            str(seen.gid) if numeric else _GROUPS.get(seen.gid, str(seen.gid)),
            human_size(seen.size) if "h" in given else str(seen.size),
            _when(computer, seen.mtime), shown, str(seen.ino),
        ))  # fmt: skip
    widths = [max((len(row[at]) for row in cells), default=0) for at in range(5)]
    for mode, links, user, group, size, when, shown, ino in cells:
        before = f"{ino:>{number}} " if "i" in given else ""
        shell.write(f"{before}{mode} {links:>{widths[1]}} {user:<{widths[2]}} {group:<{widths[3]}} "
                    f"{size:>{widths[4]}} {when} {shown}\n")  # fmt: skip


def _when(computer: Computer, nanoseconds: int) -> str:
    when = datetime.datetime.fromtimestamp(nanoseconds // 10**9, datetime.UTC)
    # a filesystem's clock is a little ahead
    recent = -60 <= computer.now - nanoseconds / 1e9 < _SIX_MONTHS
    return when.strftime("%b %e %H:%M" if recent else "%b %e  %Y")


# -------------------------------------------------------------------------------------- stat --


def _stat(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "Lft", "c", long=("format=", "printf=", "dereference"),
                           program_name="stat")  # fmt: skip
    form = given.get("c", given.get("format", given.get("printf")))
    if "t" in given or ("f" in given and form is None):
        raise UnknownError("stat: -t, and -f without -c, are not known")
    status = 0
    for path in paths:
        seen = computer.stat(path, follow=bool({"L", "dereference"} & set(given)))
        if seen is None:
            say(shell, f"stat: cannot statx '{path}': No such file or directory\n")
            status = 1
            continue
        if "f" in given and form is not None:
            shell.write(_of_filesystem(computer, path, form) + "\n")
        elif form is None:
            shell.write(_whole(computer, path, seen))
        else:
            text = re.sub(
                r"%([-0]?\d*)([a-zA-Z%])",
                partial(_matched, computer, path, seen),
                form,
            )
            if "printf" in given:
                from btrfs_model.shell.ansi import printf_format

                shell.write(printf_format(text))
            else:
                shell.write(text + "\n")
    return status


def _of_filesystem(computer: Computer, path: str, form: str) -> str:
    """Return what ``stat -f -c`` says."""
    place = computer.place(computer.absolute(path))
    if place is None:
        raise UnknownError(f"stat -f: {path} is on no filesystem of the model")
    seen = statfs(place[0].fs)
    known = {"a": seen.available, "b": seen.blocks, "c": 0, "d": 0, "f": seen.free, "l": 255,
             "n": path, "s": 4096, "S": 4096, "t": "9123683e", "T": "btrfs", "%": "%"}  # fmt: skip

    def shown(found: re.Match[str]) -> str:
        if found[1] not in known:
            raise UnknownError(f"stat -f: %{found[1]}: this directive is not known")
        return str(known[found[1]])

    return re.sub(r"%([a-zA-Z%])", shown, form)


_KINDS: Final = {"f": "regular file", "d": "directory", "l": "symbolic link",
                 "b": "block special file",
                 "c": "character special file", "p": "fifo", "s": "socket"}  # fmt: skip


def _kind(seen: Stat) -> str:
    return "regular empty file" if seen.is_file and not seen.size else _KINDS[seen.kind]


def _time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{rest:09d} +0000"


def _matched(computer: Computer, path: str, seen: Stat, found: re.Match[str]) -> str:
    return _field(computer, path, seen, found[1], found[2])


def _field(computer: Computer, path: str, seen: Stat, width: str, letter: str) -> str:
    known: dict[str, Callable[[], object]] = {
        "a": lambda: f"{seen.mode & 0o7777:o}", "A": lambda: stat.filemode(seen.mode),
        "b": lambda: seen.blocks, "B": lambda: 512, "d": lambda: seen.device,
        "f": lambda: f"{seen.mode:x}", "F": lambda: _kind(seen), "g": lambda: seen.gid,
        "G": lambda: _GROUPS.get(seen.gid, "UNKNOWN"), "h": lambda: seen.nlink,
        "i": lambda: seen.ino, "n": lambda: path, "N": lambda: f"'{path}'",
        "o": lambda: 4096, "s": lambda: seen.size, "u": lambda: seen.uid,
        "U": lambda: _USERS.get(seen.uid, "UNKNOWN"), "x": lambda: _time(seen.atime),
        "X": lambda: seen.atime // 10**9, "y": lambda: _time(seen.mtime),
        "Y": lambda: seen.mtime // 10**9, "z": lambda: _time(seen.ctime),
        "Z": lambda: seen.ctime // 10**9, "w": lambda: _time(seen.birth),
        "W": lambda: seen.birth // 10**9, "t": lambda: 0, "T": lambda: 0, "%": lambda: "%",
        "m": lambda: found[0].where if (found := computer.place(computer.absolute(path))) else "/",
    }  # fmt: skip
    if letter not in known:
        raise UnknownError(f"stat: %{letter}: this field is not known")
    text = str(known[letter]())
    size = int(width.lstrip("-0") or 0)
    return text.ljust(size) if width.startswith("-") else text.rjust(size)


def _whole(computer: Computer, path: str, seen: Stat) -> str:
    shown = path
    if seen.is_link:
        shown = f"{path} -> {read_link(computer, computer.absolute(path))}"
    return (
        f"  File: {shown}\n"
        f"  Size: {seen.size:<10}\tBlocks: {seen.blocks:<10} IO Block: 4096   {_kind(seen)}\n"
        f"Device: 0,{seen.device}\tInode: {seen.ino:<11} Links: {seen.nlink}\n"
        f"Access: ({seen.mode & 0o7777:04o}/{stat.filemode(seen.mode)})  "
        f"Uid: ({seen.uid:>5}/{_USERS.get(seen.uid, 'UNKNOWN'):>8})   "
        f"Gid: ({seen.gid:>5}/{_GROUPS.get(seen.gid, 'UNKNOWN'):>8})\n"
        f"Access: {_time(seen.atime)}\nModify: {_time(seen.mtime)}\n"
        f"Change: {_time(seen.ctime)}\n Birth: {_time(seen.birth)}\n"
    )


# -------------------------------------------------------------------------------------- find --

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


# ----------------------------------------------------------------------------------- wc, du --


def _wc(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "lwcmL", program_name="wc")
    chosen = [one for one in "lwc" if one in given or (one == "c" and "m" in given)] or list("lwc")
    rows, status = [], 0
    for path, stream in inputs(computer, shell, "wc", paths):
        if stream is None:
            status = 1
            continue
        lines = words = size = 0
        inside = False
        while piece := stream.read(1 << 20):
            lines += piece.count(b"\n")
            size += len(piece)
            if "w" in chosen:
                found = piece.split()
                words += len(found) - (1 if found and inside and not piece[:1].isspace() else 0)
                inside = not piece[-1:].isspace()
        rows.append(({"l": lines, "w": words, "c": size}, path if paths else ""))
    if len(rows) > 1:
        rows.append(({key: sum(row[0][key] for row in rows) for key in "lwc"}, "total"))
    alone = len(chosen) == 1 and len(rows) == 1
    width = 0 if alone else max((len(str(one["c"])) for one, _ in rows), default=1)
    if not paths and not alone:
        width = 7
    for counts, path in rows:
        shell.write(
            " ".join(f"{counts[one]:>{width}}" for one in chosen)
            + (f" {path}" if path else "")
            + "\n"
        )
    return status


PROGRAMS: Final[dict[str, Program]] = {
    "ls": _ls,
    "stat": _stat,
    "find": _find,
    "wc": _wc,
}
