# SPDX-License-Identifier: GPL-2.0-only
"""What ``find -printf`` and ``-ls`` print."""

from __future__ import annotations

import datetime
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.programs.listing import when
from btrfs_model.scripts.programs.names import GROUPS, USERS, read_link
from btrfs_model.shell.ansi import printf_format
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.scripts.programs.find.walk import Item

_TIMES: Final = {"A": "atime", "C": "ctime", "T": "mtime", "B": "birth"}
_DIRECTIVE: Final = re.compile(r"%([-0]*\d*)([ACTB].|.)")


_ESCAPES: Final = str.maketrans({
    "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v", "\a": "\\a",
    " ": "\\ ", "\\": "\\\\", '"': '\\"',
})  # fmt: skip


def listed(computer: Computer, item: Item) -> str:
    """Return the line of a file that ``-ls`` prints."""
    seen = item.seen
    users, groups = ({number: name for name, number in known.items()}
                     for known in (USERS, GROUPS))  # fmt: skip
    size = f"{seen.size:>8}"
    if seen.kind in "bc":
        size = f"{os.major(seen.rdev):>3}, {os.minor(seen.rdev):>3}"
    name = item.path.translate(_ESCAPES)
    if seen.is_link:
        target = read_link(computer, computer.absolute(item.path))
        name += f" -> {target.translate(_ESCAPES)}"
    return (
        f"{seen.ino:>9} {-(-seen.blocks // 2):>6} {stat.filemode(seen.mode)} {seen.nlink:>3} "
        f"{users.get(seen.uid, str(seen.uid)):<8} {groups.get(seen.gid, str(seen.gid)):<8} "
        f"{size} {when(computer, seen.mtime)} {name}\n"
    )


def printed(computer: Computer, item: Item, form: str) -> str:
    """Return the text of a format for a file."""

    def value(found: re.Match[str]) -> str:
        width, what = found.groups()
        text = "%" if what == "%" else _value(computer, item, what)
        size = int(width.lstrip("-0") or 0)
        return text.ljust(size) if width.startswith("-") else text.rjust(size)

    # a backslash of a name is no escape
    parts = _DIRECTIVE.split(form)
    text = printf_format(parts[0])
    for found, rest in zip(_DIRECTIVE.finditer(form), parts[3::3], strict=True):
        text += value(found) + printf_format(rest)
    return text


def _value(computer: Computer, item: Item, what: str) -> str:
    seen = item.seen
    if len(what) == 2:
        return _time(getattr(seen, _TIMES[what[0]]), what[1])
    if what in "act":
        return _time(getattr(seen, _TIMES[what.upper()]), "c")
    if what == "l":
        return read_link(computer, computer.absolute(item.path)) if seen.is_link else ""
    if what == "Y":
        other = computer.stat(item.path) if seen.is_link else seen
        return other.kind if other is not None else "N"
    users, groups = ({number: name for name, number in known.items()}
                     for known in (USERS, GROUPS))  # fmt: skip
    head, _, name = item.path.rstrip("/").rpartition("/")
    known = {
        "p": item.path, "f": name or item.path, "h": head or ("" if "/" in item.path else "."),
        "P": item.path[len(item.start) :].lstrip("/"), "H": item.start, "d": item.level,
        "y": seen.kind, "s": seen.size, "i": seen.ino, "n": seen.nlink,
        "m": f"{seen.mode & 0o7777:o}",
        "M": stat.filemode(seen.mode), "U": seen.uid, "G": seen.gid,
        "u": users.get(seen.uid, seen.uid), "g": groups.get(seen.gid, seen.gid),
        "b": seen.blocks, "k": -(-seen.blocks // 2),
    }  # fmt: skip
    if what not in known:
        raise UnknownError(f"find: -printf %{what}: this field is not known")
    return str(known[what])


def _time(nanoseconds: int, letter: str) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    part = f"{rest:09d}0"
    if letter == "@":
        return f"{seconds}.{part}"
    if letter == "c":
        return f"{when:%a %b %e %H:%M:%S}.{part} {when:%Y}"
    if letter == "S":
        return f"{when:%S}.{part}"
    if letter == "T":
        return f"{when:%T}.{part}"
    if letter == "+":
        return f"{when:%Y-%m-%d+%T}.{part}"
    if letter == "s":
        return str(seconds)
    if letter not in "aAbBdDFhHIjmMpuUVwWyY":
        raise UnknownError(f"find: -printf %T{letter}: this field is not known")
    return when.strftime(f"%{letter}")
