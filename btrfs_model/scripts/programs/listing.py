# SPDX-License-Identifier: GPL-2.0-only
"""What is there: ls, wc."""

from __future__ import annotations

import datetime
import os
import posixpath
import stat
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.files import Stat
from btrfs_model.scripts.program import Program, human_size, options, say
from btrfs_model.scripts.programs.copies import inputs
from btrfs_model.scripts.programs.names import read_link
from btrfs_model.scripts.programs.stat import GROUPS, USERS
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell
    from btrfs_model.shell.streams import Stream

_SIX_MONTHS: Final = 31556952 // 2


def _ls(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "laA1hidRFtrUSnsgp", "", long=("color=", "full-time", "all"),
                           program_name="ls")  # fmt: skip
    if {"g", "full-time"} & set(given):
        raise UnknownError("ls: of the options -lnisdaA1trRUSFph are known")
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
    if set("lnitRsSFp") & set(given):
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
    if {"l", "n", "s"} & set(given):
        shell.write(f"total {_blocks(sum(one.blocks for _, one in rows), given)}\n")
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
    elif "S" in given:
        found.sort(key=lambda row: -row[1].size)
    return found[::-1] if "r" in given else found


def _rows(
    computer: Computer,
    shell: Shell,
    rows: list[tuple[str, Stat]],
    given: dict[str, str],
    folder: str,
) -> None:
    first = _columns([
        [*([str(seen.ino)] if "i" in given else []),
         *([_blocks(seen.blocks, given)] if "s" in given else [])] for _, seen in rows
    ])  # fmt: skip
    if not {"l", "n"} & set(given):
        for before, (name, seen) in zip(first, rows, strict=True):
            shell.write(f"{before}{name}{_mark(seen, given)}\n")
        return
    numeric = "n" in given
    cells = []
    for name, seen in rows:
        shown = name + _mark(seen, given) * (not seen.is_link)
        if seen.is_link:
            whole = computer.absolute(posixpath.join(folder, name) if folder else name)
            target = computer.stat(whole)
            mark = _mark(target, given) if target is not None else ""
            shown = f"{name} -> {read_link(computer, whole)}{mark}"
        cells.append((
            stat.filemode(seen.mode), str(seen.nlink),
            str(seen.uid) if numeric else USERS.get(seen.uid, str(seen.uid)),
            str(seen.gid) if numeric else GROUPS.get(seen.gid, str(seen.gid)),
            _size(seen, rows, given),
            when(computer, seen.mtime), shown,
        ))  # fmt: skip
    widths = [max((len(row[at]) for row in cells), default=0) for at in range(5)]
    for before, (mode, links, user, group, size, time, shown) in zip(first, cells, strict=True):
        shell.write(f"{before}{mode} {links:>{widths[1]}} {user:<{widths[2]}} {group:<{widths[3]}} "
                    f"{size:>{widths[4]}} {time} {shown}\n")  # fmt: skip


def _columns(rows: list[list[str]]) -> list[str]:
    """Return what stands in front of each row, numbers in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["".join(f"{one:>{width}} " for one, width in zip(row, widths, strict=True))
            for row in rows]  # fmt: skip


def _blocks(sectors: int, given: dict[str, str]) -> str:
    """Return what takes so many sectors, in units of 1 KiB or with a suffix."""
    return human_size(512 * sectors) if "h" in given else str(sectors // 2)


def _mark(seen: Stat, given: dict[str, str]) -> str:
    """Return the sign behind a name that tells its kind (``-F``, ``-p``)."""
    if seen.is_dir:
        return "/" if {"F", "p"} & set(given) else ""
    if "F" not in given:
        return ""
    signs = {"l": "@", "p": "|", "s": "="}
    return signs.get(seen.kind, "*" if seen.is_file and seen.mode & 0o111 else "")


def _size(seen: Stat, rows: list[tuple[str, Stat]], given: dict[str, str]) -> str:
    """Return the size of a file; of a device its two numbers, each in a column."""
    if seen.kind not in "bc":
        return human_size(seen.size) if "h" in given else str(seen.size)
    devices = [one.rdev for _, one in rows if one.kind in "bc"]
    wide, narrow = (max(len(str(part(one))) for one in devices) for part in (os.major, os.minor))
    return f"{os.major(seen.rdev):>{wide}}, {os.minor(seen.rdev):>{narrow}}"


def when(computer: Computer, nanoseconds: int) -> str:
    """Return a time as ``ls -l`` shows it."""
    moment = datetime.datetime.fromtimestamp(nanoseconds // 10**9, datetime.UTC)
    # a filesystem's clock is a little ahead
    recent = -60 <= computer.now - nanoseconds / 1e9 < _SIX_MONTHS
    return moment.strftime("%b %e %H:%M" if recent else "%b %e  %Y")


# ---------------------------------------------------------------------------------------- wc --


def _wc(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "lwcmL", program_name="wc")
    chosen = [one for one in "lwc" if one in given or (one == "c" and "m" in given)] or list("lwc")
    seen = [computer.stat(path) for path in paths]
    # it makes its columns before it reads
    width = len(str(sum(one.size for one in seen if one is not None and one.is_file)))
    if not paths or any(one is not None and not one.is_file for one in seen):
        width = max(width, 7)
    if len(chosen) == 1 and len(paths) < 2:
        width = 1
    total, status = dict.fromkeys("lwc", 0), 0
    for path, stream in inputs(computer, shell, "wc", paths):
        status |= stream is None
        is_dir = stream is None and bool(getattr(computer.stat(path), "is_dir", False))
        if stream is None and not is_dir:
            continue
        counts = dict.fromkeys("lwc", 0) if stream is None else _counts(stream, chosen)
        _wc_row(shell, counts, chosen, width, path if paths else "")
        total = {one: total[one] + counts[one] for one in "lwc"}
    if len(paths) > 1:
        _wc_row(shell, total, chosen, width, "total")
    return int(status)


def _counts(stream: Stream, chosen: list[str]) -> dict[str, int]:
    """Count lines, words and bytes; words where they are wanted."""
    lines = words = size = 0
    inside = False
    for piece in stream.pieces():
        lines += piece.count(b"\n")
        size += len(piece)
        if "w" in chosen:
            found = piece.split()
            words += len(found) - (1 if found and inside and not piece[:1].isspace() else 0)
            inside = not piece[-1:].isspace()
    return {"l": lines, "w": words, "c": size}


def _wc_row(shell: Shell, counts: dict[str, int], chosen: list[str], width: int, name: str) -> None:
    shown = " ".join(f"{counts[one]:>{width}}" for one in chosen)
    shell.write(f"{shown} {name}\n" if name else f"{shown}\n")


PROGRAMS: Final[dict[str, Program]] = {
    "ls": _ls,
    "wc": _wc,
}
