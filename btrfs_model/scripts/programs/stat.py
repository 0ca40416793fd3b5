# SPDX-License-Identifier: GPL-2.0-only
"""stat: of a file, and of a filesystem."""

from __future__ import annotations

import datetime
import os
import re
import stat
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.files import Stat
from btrfs_model.scripts.program import Program, options, say
from btrfs_model.scripts.programs.names import read_link
from btrfs_model.scripts.programs.statfs import statfs
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

USERS: Final = {0: "root", 65534: "nobody"}
GROUPS: Final = {0: "root", 65534: "nogroup"}


def _stat(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "Lft", "c", long=("format=", "printf=", "dereference"),
                           program_name="stat")  # fmt: skip
    form = given.get("c", given.get("format", given.get("printf")))
    if form is None and "f" in given:
        form = _TERSE_FILESYSTEM if "t" in given else _FILESYSTEM
    elif form is None and "t" in given:
        form = _TERSE
    status = 0
    for path in paths:
        seen = computer.stat(path, follow=bool({"L", "dereference"} & set(given)))
        if seen is None:
            say(shell, f"stat: cannot statx '{path}': No such file or directory\n")
            status = 1
            continue
        if "f" in given and form is not None:
            shell.write(_of_filesystem(computer, path, seen, form) + "\n")
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


_TERSE: Final = "%n %s %b %f %u %g %D %i %h %t %T %X %Y %Z %W %o"
_TERSE_FILESYSTEM: Final = "%n %i %l %t %s %S %b %f %a %c %d"
_FILESYSTEM: Final = """\
  File: "%n"
    ID: %-8i Namelen: %-7l Type: %T
Block size: %-10s Fundamental block size: %S
Blocks: Total: %-10b Free: %-10f Available: %a
Inodes: Total: %-10c Free: %d"""


def _of_filesystem(computer: Computer, path: str, file: Stat, form: str) -> str:
    """Return what ``stat -f`` says."""
    place = computer.place(computer.absolute(path))
    if place is None:
        raise UnknownError(f"stat -f: {path} is on no filesystem of the model")
    seen = statfs(place[0].fs)
    known = {"a": seen.available, "b": seen.blocks, "c": 0, "d": 0, "f": seen.free,
             "i": f"{_fsid(place[0].fs, file.device):x}", "l": 255, "n": path, "s": 4096, "S": 4096,
             "t": "9123683e", "T": "btrfs", "%": "%"}  # fmt: skip

    def shown(found: re.Match[str]) -> str:
        width, letter = found.groups()
        if letter not in known:
            raise UnknownError(f"stat -f: %{letter}: this directive is not known")
        return _padded(str(known[letter]), width)

    return re.sub(r"%([-0]?\d*)([a-zA-Z%])", shown, form)


def _fsid(fs: WritableFilesystem, subvolume: int) -> int:
    """Return f_fsid: the UUID folded, with the id of the subvolume (``btrfs_statfs()``)."""
    high, low, *others = struct.unpack(">4I", fs.image.superblock.fsid)
    folded = int((high ^ others[0]) << 32 | low ^ others[1])
    return folded ^ subvolume


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
        "D": lambda: f"{seen.device:x}",
        "f": lambda: f"{seen.mode:x}", "F": lambda: _kind(seen), "g": lambda: seen.gid,
        "G": lambda: GROUPS.get(seen.gid, "UNKNOWN"), "h": lambda: seen.nlink,
        "i": lambda: seen.ino, "n": lambda: path, "N": lambda: f"'{path}'",
        "o": lambda: 4096, "s": lambda: seen.size, "u": lambda: seen.uid,
        "U": lambda: USERS.get(seen.uid, "UNKNOWN"), "x": lambda: _time(seen.atime),
        "X": lambda: seen.atime // 10**9, "y": lambda: _time(seen.mtime),
        "Y": lambda: seen.mtime // 10**9, "z": lambda: _time(seen.ctime),
        "Z": lambda: seen.ctime // 10**9, "w": lambda: _time(seen.birth),
        "W": lambda: seen.birth // 10**9, "t": lambda: f"{os.major(seen.rdev):x}",
        "T": lambda: f"{os.minor(seen.rdev):x}", "%": lambda: "%",
        "m": lambda: found[0].where if (found := computer.place(computer.absolute(path))) else "/",
    }  # fmt: skip
    if letter not in known:
        raise UnknownError(f"stat: %{letter}: this field is not known")
    return _padded(str(known[letter]()), width)


def _padded(text: str, width: str) -> str:
    size = int(width.lstrip("-0") or 0)
    return text.ljust(size) if width.startswith("-") else text.rjust(size)


def _whole(computer: Computer, path: str, seen: Stat) -> str:
    shown = path
    if seen.is_link:
        shown = f"{path} -> {read_link(computer, computer.absolute(path))}"
    special = ""
    if seen.kind in "bc":
        # links are padded where something follows
        special = (" " * (5 - len(str(seen.nlink)))
                   + f" Device type: {os.major(seen.rdev)},{os.minor(seen.rdev)}")  # fmt: skip
    return (
        f"  File: {shown}\n"
        f"  Size: {seen.size:<10}\tBlocks: {seen.blocks:<10} IO Block: 4096   {_kind(seen)}\n"
        f"Device: 0,{seen.device}\tInode: {seen.ino:<11} Links: {seen.nlink}{special}\n"
        f"Access: ({seen.mode & 0o7777:04o}/{stat.filemode(seen.mode)})  "
        f"Uid: ({seen.uid:>5}/{USERS.get(seen.uid, 'UNKNOWN'):>8})   "
        f"Gid: ({seen.gid:>5}/{GROUPS.get(seen.gid, 'UNKNOWN'):>8})\n"
        f"Access: {_time(seen.atime)}\nModify: {_time(seen.mtime)}\n"
        f"Change: {_time(seen.ctime)}\n Birth: {_time(seen.birth)}\n"
    )


PROGRAMS: Final[dict[str, Program]] = {"stat": _stat}
