# SPDX-License-Identifier: GPL-2.0-only
"""chmod, chown and chgrp."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.scripts.files import Stat
from btrfs_model.scripts.program import Program, options, reason, say
from btrfs_model.scripts.programs.attributes.modes import is_mode, new_mode
from btrfs_model.scripts.programs.find.walk import walk
from btrfs_model.scripts.programs.names import GROUPS, USERS, set_mode

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_Change: TypeAlias = "Callable[[str, Stat], None]"
_EVERYTHING: Final = 1 << 30


def _missing(shell: Shell, name: str, words: list[str]) -> int:
    after = f" after '{words[0]}'" if words else ""
    say(shell, f"{name}: missing operand{after}\nTry '{name} --help' for more information.\n")
    return 1


def _each(
    computer: Computer, shell: Shell, name: str, paths: list[str], given: dict[str, str],
    change: _Change, *, follow: bool,
) -> int:  # fmt: skip
    """Change files, and on demand what is in them: chmod a directory first, chown it last."""
    status = 0
    quiet = bool({"f", "silent", "quiet"} & set(given))
    recursive = bool({"R", "recursive"} & set(given))
    for path in paths:
        seen = computer.stat(path, follow=follow)
        if seen is None:
            status = 1
            if not quiet:
                say(shell, f"{name}: {_unreachable(computer, name, path)}\n")
            continue
        below: Iterator[tuple[str, Stat]] = ((one, found) for one, found, _ in walk(
            computer, path, seen, 0, _EVERYTHING, name != "chmod"))  # fmt: skip
        for one, found in below if recursive else [(path, seen)]:
            try:
                change(one, found)
            except OSError as error:
                status = 1
                if not quiet:
                    what = "permissions" if name == "chmod" else "ownership" if (
                        name == "chown") else "group"  # fmt: skip
                    say(shell, f"{name}: changing {what} of '{one}': {reason(error)}\n")
    return status


def _unreachable(computer: Computer, name: str, path: str) -> str:
    if computer.stat(path, follow=False) is None:
        return f"cannot access '{path}': No such file or directory"
    if name == "chmod":
        return f"cannot operate on dangling symlink '{path}'"
    return f"cannot dereference '{path}': No such file or directory"


def _reference(computer: Computer, shell: Shell, name: str, path: str) -> Stat | None:
    """Return what ``--reference`` names, or say that there is none."""
    like = computer.stat(path)
    if like is None:
        say(shell, f"{name}: failed to get attributes of '{path}': No such file or directory\n")
    return like


# --------------------------------------------------------------------------------------- modes --


def _chmod(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    # a mode may look like an option: -w
    dashed = [re.fullmatch(r"-[rwxXst]+(?:,.*)?", one) is not None for one in arguments]
    plain = [one for one, is_mode in zip(arguments, dashed, strict=True) if not is_mode]
    given, words = options(plain, "Rvcf", program_name="chmod",
                           long=("recursive", "verbose", "changes", "silent", "quiet",
                                 "reference="))  # fmt: skip
    words = [one for one, is_mode in zip(arguments, dashed, strict=True) if is_mode] + words
    if "reference" in given:
        like = _reference(computer, shell, "chmod", given["reference"])
        if like is None:
            return 1
        # all of its digits: nothing is kept of a directory
        words = [f"{like.mode & 0o7777:05o}", *words]
    if len(words) < 2:
        return _missing(shell, "chmod", words)
    told, *paths = words
    if not is_mode(told):
        say(shell, f"chmod: invalid mode: '{told}'\nTry 'chmod --help' for more information.\n")
        return 1
    verbose, changes = bool({"v", "verbose"} & set(given)), bool({"c", "changes"} & set(given))

    def change(path: str, seen: Stat) -> None:
        if seen.is_link:
            if verbose:
                shell.write(f"neither symbolic link '{path}' nor referent has been changed\n")
            return
        mode = new_mode(told, seen.mode, computer.umask)
        set_mode(computer, path, mode)
        old = seen.mode & 0o7777
        if verbose or (changes and mode != old):
            kind = stat.S_IFMT(seen.mode)
            before, after = (f"{one:04o} ({stat.filemode(kind | one)[1:]})" for one in (old, mode))
            shell.write(f"mode of '{path}' retained as {after}\n" if mode == old else
                        f"mode of '{path}' changed from {before} to {after}\n")  # fmt: skip

    return _each(computer, shell, "chmod", paths, given, change, follow=True)


# -------------------------------------------------------------------------------------- owners --


def _chown(name: str) -> Program:
    def run(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        given, words = options(arguments, "hRfP", program_name=name,
                               long=("recursive", "silent", "quiet", "no-dereference",
                                     "reference="))  # fmt: skip
        if "reference" in given:
            like = _reference(computer, shell, name, given["reference"])
            if like is None:
                return 1
            words = [f"{like.gid}" if name == "chgrp" else f"{like.uid}:{like.gid}", *words]
        if len(words) < 2:
            return _missing(shell, name, words)
        told, *paths = words
        owner, _, group = ("", "", told) if name == "chgrp" else told.partition(":")
        if name == "chown" and ":" not in told and re.fullmatch(r"\w+\.\w+", told):
            owner, _, group = told.partition(".")
            say(shell, f"chown: warning: '.' should be ':': '{told}'\n")
        uid, gid = _number(owner, USERS), _number(group, GROUPS)
        if uid is None or gid is None or (name == "chown" and told.endswith(":")):
            say(shell, f"{name}: {_wrong(name, told, uid, gid)}: '{told}'\n")
            return 1

        recursive = bool({"R", "recursive"} & set(given))
        follow = not recursive and not {"h", "no-dereference"} & set(given)

        def change(path: str, seen: Stat) -> None:
            set_owner(computer, path, seen.uid if uid < 0 else uid, seen.gid if gid < 0 else gid,
                       follow=follow)  # fmt: skip

        return _each(computer, shell, name, paths, given, change, follow=follow)

    return run


def _number(name: str, known: dict[str, int]) -> int | None:
    """Return a number; -1 where none is told, None for a name that is not known."""
    if not name:
        return -1
    return int(name) if name.isdigit() else known.get(name)


def _wrong(name: str, told: str, uid: int | None, gid: int | None) -> str:
    if name == "chgrp" or (uid is not None and gid is None):
        return "invalid group"
    return "invalid user" if uid is None else "invalid spec"


def set_owner(computer: Computer, path: str, uid: int, gid: int, *, follow: bool) -> None:
    """Change who has a file."""
    found = computer.place(computer.absolute(path))
    if found is None:
        node = computer.tree.find(computer.absolute(path), follow=follow)
        node.uid, node.gid = uid, gid
        return
    mounted, inside = found
    mounted.may_write(path)
    with computer.timed("chown"):
        mounted.fs.chown(mounted.inside(inside), uid, gid, follow=follow)


PROGRAMS: Final[dict[str, Program]] = {
    "chmod": _chmod, "chown": _chown("chown"), "chgrp": _chown("chgrp"),
}  # fmt: skip
