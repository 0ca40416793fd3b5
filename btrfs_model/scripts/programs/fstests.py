# SPDX-License-Identifier: GPL-2.0-only
"""Programs of fstests that are C there: what its tests call in ``src/``."""

from __future__ import annotations

import errno
import hashlib
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.files import Stat, fail
from btrfs_model.scripts.mounted import MountedFile
from btrfs_model.scripts.program import Program, options, reason, say
from btrfs_model.scripts.programs.attributes.xattrs import xattrs
from btrfs_model.scripts.programs.copies import sync_filesystem
from btrfs_model.scripts.programs.names import read_link, unlink
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_FIELDS: Final = "ugoamcdtes"
_DEFAULT: Final = "ugoamCdtES"
_BLOCK: Final = 4096


def _lstat64(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Show what lstat says; scripts take the ninth word, the number of a device."""
    for path in arguments:
        seen = computer.stat(path, follow=False)
        if seen is None:
            say(shell, f"{path}: No such file or directory\n")
            return 1
        told = f"Device:  0,5  Inode: {seen.ino:<9} Links: {seen.nlink:<5}"
        if stat.S_ISBLK(seen.mode):
            number = list(computer.devices).index(computer.absolute(path))
            told += f"     Device type:  8,{16 * number:<2}"
        shell.write(f'  File: "{path}"\n  Size: {seen.size:<10}\n{told}\n')
    return 0


# ---------------------------------------------------------------------------------- fssum --


def _fssum(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Sum a tree up, or compare it with a sum; the sums are not those of fstests' own program."""
    flags, source, target, excluded, paths = _DEFAULT, "", "", [], []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word in ("-w", "-r", "-x"):
            value = words.pop(0)
            if word == "-x":
                excluded.append(computer.absolute(value).rstrip("/"))
            elif word == "-w":
                target = value
            else:
                source = value
        elif word.startswith("-"):
            for letter in word[1:]:
                if letter.lower() in _FIELDS:
                    flags = flags.replace(letter.swapcase(), letter)
                elif letter in "nN":
                    flags = _FIELDS.upper() if letter == "n" else _FIELDS
                elif letter not in "fv":
                    raise UnknownError(f"fssum: -{letter}: this option is not known")
        else:
            paths.append(word)
    if len(paths) != 1:
        raise UnknownError("fssum: say one path")
    before: list[str] = []
    if source:
        before = computer.read(computer.absolute(source)).decode().splitlines()
        flags = before[0].removeprefix("Flags: ")
    try:
        lines = list(_sums(computer, computer.absolute(paths[0]).rstrip("/"), "", flags, excluded))
    except OSError as error:
        say(shell, f"open failed for {error.filename}: {reason(error)}\n")
        return 255
    if not source:
        text = "\n".join([f"Flags: {flags}", *lines, ""])
        if target:
            computer.write(target, text.encode())
        else:
            shell.write(text)
        return 0
    if lines == before[1:]:
        shell.write("OK\n")
        return 0
    for name in sorted({line.split()[0] for line in set(lines) ^ set(before[1:])}):
        shell.write(f"differs: {name}\n")
    shell.write("FAIL\n")
    return 1


def _sums(
    computer: Computer, top: str, below: str, flags: str, excluded: list[str]
) -> Iterator[str]:
    folder = f"{top}/{below}".rstrip("/")
    device = _seen(computer, folder).device
    for name in sorted(computer.listdir(folder)):
        path = f"{folder}/{name}"
        seen = _seen(computer, path)
        if path in excluded or seen.device != device:
            continue
        inside = f"{below}/{name}".lstrip("/")
        parts = [inside, seen.nlink if not seen.is_dir else 0, *_chosen(seen, flags)]
        if "t" in flags and (seen.is_dir or seen.is_file):
            place = computer.place(computer.absolute(path))
            parts += sorted(xattrs(*place).items()) if place else []
        if seen.is_file:
            parts.append(seen.size)
            if "d" in flags:
                parts.append(hashlib.md5(computer.read(path), usedforsecurity=False).hexdigest())
        elif seen.is_link:
            parts.append(read_link(computer, path))
        told = hashlib.md5(repr(parts).encode(), usedforsecurity=False).hexdigest()
        yield f"{inside.encode('unicode_escape').decode()} {told}"
        if seen.is_dir:
            yield from _sums(computer, top, inside, flags, excluded)


def _seen(computer: Computer, path: str) -> Stat:
    found = computer.stat(path, follow=False)
    if found is None:
        raise fail(errno.ENOENT, path)
    return found


def _chosen(seen: Stat, flags: str) -> list[int]:
    known = {"u": seen.uid, "g": seen.gid, "o": seen.mode, "a": seen.atime // 10**9,
             "m": seen.mtime // 10**9, "c": seen.ctime // 10**9}  # fmt: skip
    return [value for letter, value in known.items() if letter in flags]


# ---------------------------------------------------------------------------------- the rest --


def _punch_alternating(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Punch every second block of a file."""
    given, paths = options(arguments, "", "osi", program_name="punch-alternating")
    if len(paths) != 1:
        raise UnknownError("punch-alternating: say one file")
    place = computer.place(computer.absolute(paths[-1]))
    if place is None:
        say(shell, f"{paths[-1]}: No such file or directory\n")
        return 1
    mounted, inside = place
    size = mounted.stat(inside).size
    start = int(given.get("o", "0")) * _BLOCK
    step, length = int(given.get("i", "2")) * _BLOCK, int(given.get("s", "1")) * _BLOCK
    fs, name = mounted.fs, mounted.inside(inside)
    with computer.timed("punch-alternating"):
        for offset in range(start, size, step):
            fs.vfs_fallocate(name, 3, offset, length)
        fs.fsync(name)
    return 0


def _cloner(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Clone a range of a file, or the whole."""
    given, paths = options(arguments, "", "sdl", program_name="cloner")
    if len(paths) != 2:
        raise UnknownError("cloner: say two files")
    names = []
    for path in paths:
        if computer.stat(path) is None:
            computer.write(path)
        place = computer.place(computer.absolute(path))
        if place is None:
            raise UnknownError(f"cloner: {path} is on no filesystem of the model")
        names.append(place)
    (mounted, source), (_, target) = names
    fs = mounted.fs
    try:
        with computer.timed("clone"):
            fs.clone_range(
                mounted.inside(source), mounted.inside(target), int(given.get("s", "0")),
                int(given.get("d", "0")), int(given.get("l", "0")),
            )  # fmt: skip
    except OSError as error:
        say(shell, f"clone failed: {reason(error)}\n")
        return 1
    return 0


_MACHINE: Final = {"o": "1", "s": "4096", "w": "64"}
"""Processors, bytes of a page, bits of a word."""


def _feature(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Say what the machine has."""
    del computer
    given, _ = options(arguments, "oswR", program_name="feature")
    if "R" in given:
        # no io_uring
        return 1
    shell.write("".join(_MACHINE[one] + "\n" for one in given))
    return 0


def _godown(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Refuse to shut a filesystem down, as btrfs does up to Linux 6.18."""
    del computer, arguments
    say(shell, "error on xfsctl(GOINGDOWN) (25: Inappropriate ioctl for device)\n")
    return 1


def _multi_open_unlink(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Make files that lose their names while they are open, for some seconds."""
    given, _ = options(arguments, "FS", "efnsv", program_name="multi_open_unlink")
    with ExitStack() as files:
        for number in range(1, int(given.get("n", "100")) + 1):
            path = f"{given.get('f', 'file')}.{number}"
            if computer.stat(path) is not None:
                say(shell, f'multi_open_unlink: file "{path}" already exists\n')
                return 1
            try:
                file = files.enter_context(computer.open(path, "w+"))
            except OSError as error:
                say(shell, f'multi_open_unlink: failed to create "{path}": {reason(error)}\n')
                return 1
            if not isinstance(file, MountedFile):
                raise UnknownError(f"multi_open_unlink: {path} is on no filesystem of the model")
            if "S" in given:
                sync_filesystem(file.mounted, cyclic=False)
            for at in range(int(given.get("e", "0"))):
                value = bytes(int(given.get("v", str(_LONGEST))))
                file.fs.setxattr(file.name, f"user.name.{at}", value)
            unlink(computer, path)
            if "F" in given:
                with computer.timed(f"fsync {path}"):
                    file.fs.fsync(file.name)
        computer.jobs.sleep(int(given.get("s", "60")))
    return 0


_LONGEST: Final = 64 << 10
"""Bytes of an attribute; btrfs refuses them."""

PROGRAMS: Final[dict[str, Program]] = {
    "feature": _feature, "godown": _godown, "lstat64": _lstat64, "fssum": _fssum,
    "punch-alternating": _punch_alternating, "cloner": _cloner,
    "multi_open_unlink": _multi_open_unlink,
}  # fmt: skip
