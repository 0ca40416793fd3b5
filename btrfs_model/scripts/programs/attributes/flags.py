# SPDX-License-Identifier: GPL-2.0-only
"""Flags of files: chattr, lsattr."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.program import Program, options, say
from btrfs_model.scripts.programs.attributes.xattrs import on_mount
from btrfs_model.scripts.programs.names import each
from btrfs_model.shell.state import UnknownError
from btrfs_model.volume.listing import to_fs_flags

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_LETTERS: Final = {"s": 0x1, "u": 0x2, "c": 0x4, "S": 0x8, "i": 0x10, "a": 0x20, "d": 0x40,
                   "A": 0x80, "D": 0x10000, "C": 0x800000, "m": 0x400, "V": 0x100000}  # fmt: skip
"""``FS_*_FL`` by the letters of chattr."""


def _chattr(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    add = remove = 0
    paths: list[str] = []
    for word in arguments:
        if re.fullmatch(r"[-+][A-Za-z]+", word) and not paths:
            bits = 0
            for letter in word[1:]:
                if letter not in _LETTERS:
                    raise UnknownError(f"chattr: {word}: this attribute is not known")
                bits |= _LETTERS[letter]
            add, remove = (add | bits, remove) if word[0] == "+" else (add, remove | bits)
        elif word.startswith("=") and not paths:
            raise UnknownError(f"chattr: {word}: only + and - are known")
        else:
            paths.append(word)

    def change(path: str) -> None:
        mounted, inside = on_mount(computer, path)
        mounted.may_write(path)
        with computer.timed("chattr"):
            mounted.fs.chattr(inside, add, remove)

    status = 0
    for path in paths:
        seen = computer.stat(path, follow=False)
        if seen is None:
            say(shell, f"chattr: No such file or directory while trying to stat {path}\n")
            status = 1
        elif not (seen.is_file or seen.is_dir):
            say(shell, f"chattr: Operation not supported while reading flags on {path}\n")
            status = 1
        else:
            status |= each(computer, shell, [path], change, "chattr: cannot set flags on {}")
    return status


_SHOWN: Final = "suSDiadAcEjItTeCxFNPVm"
"""Letters of lsattr(1) of e2fsprogs 1.47, in its order."""


def _lsattr(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "Rad", program_name="lsattr")
    status = 0

    def one(path: str) -> None:
        found = computer.place(computer.absolute(path))
        if found is None:
            raise UnknownError(f"lsattr: {path} is on no filesystem of the model")
        flags = to_fs_flags(found[0].inode(found[1], follow=False).item.flags)
        letters = {letter for letter, bit in _LETTERS.items() if flags & bit}
        shell.write("".join(each if each in letters else "-" for each in _SHOWN) + f" {path}\n")

    def folder(path: str) -> None:
        for name in (
            [".", "..", *sorted(computer.listdir(path))]
            if "a" in given
            else [name for name in sorted(computer.listdir(path)) if not name.startswith(".")]
        ):
            inside = f"{path.rstrip('/')}/{name}"
            seen = computer.stat(inside, follow=False)
            if seen is not None and (seen.is_dir or seen.is_file):
                one(inside)
                if "R" in given and seen.is_dir and name not in (".", ".."):
                    shell.write(f"\n{inside}:\n")
                    folder(inside)
                    shell.write("\n")

    for path in paths or ["."]:
        seen = computer.stat(path)
        if seen is None:
            say(shell, f"lsattr: No such file or directory while trying to stat {path}\n")
            status = 1
        elif seen.is_dir and "d" not in given:
            folder(path)
        else:
            one(path)
    return status


PROGRAMS: Final[dict[str, Program]] = {"chattr": _chattr, "lsattr": _lsattr}
