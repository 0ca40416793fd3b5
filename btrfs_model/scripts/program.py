# SPDX-License-Identifier: GPL-2.0-only
"""Programs of a script's computer, by name, and how they take their options."""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

Program: TypeAlias = "Callable[[Computer, Shell, list[str]], int]"
_MODULES: Final = (
    "names",
    "copies",
    "dd",
    "coreutils",
    "attributes.owners",
    "bash",
    "listing",
    "stat",
    "find.command",
    "disk_usage",
    "storage",
    "xfs_io.command",
    "btrfs.command",
    "btrfs.mkfs",
    "attributes.flags",
    "attributes.xattrs",
    "attributes.acls",
    "attributes.capabilities",
    "device_mapper",
    "replay_log",
    "xfs_io.filefrag",
    "fstests",
    "stress.fsx_command",
    "stress.fsstress_command",
)
_UNITS: Final = {"": 1, "b": 512, "s": 512, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
                 "p": 1 << 50, "e": 1 << 60}  # fmt: skip


@functools.cache
def programs() -> dict[str, Program]:
    """Return all programs that are Python."""
    found: dict[str, Program] = {}
    for name in _MODULES:
        found |= importlib.import_module(f"btrfs_model.scripts.programs.{name}").PROGRAMS
    return found


class UsageError(Exception):
    """Options that a program refuses; the text is what it says."""


class HelpAsked(Exception):  # noqa: N818 - no error: the text is what ``--help`` shows
    """``--help`` was given."""


class Died(Exception):  # noqa: N818 - no error: a program's end
    """A program died of a signal: its number."""


def _usage(name: str, flags: str, valued: str, long: dict[str, bool]) -> str:
    told = [*(f"-{one}" for one in flags), *(f"-{one} VALUE" for one in valued),
            *(f"--{one}" + "=VALUE" * takes for one, takes in long.items())]  # fmt: skip
    return f"usage: {name} [options]\n" + "".join(f" {one} \n" for one in told)


def options(
    arguments: Sequence[str], flags: str = "", valued: str = "", *, long: Sequence[str] = (),
    program_name: str = "", mixed: bool = True,
) -> tuple[dict[str, str], list[str]]:  # fmt: skip
    """Take the options of a program apart, as getopt_long() does.

    Parameters
    ----------
    arguments : sequence of str
        What follows the program's name.
    flags, valued : str
        Letters of options without and with a value.
    long : sequence of str
        Long options; one that takes a value ends in ``=``.
    program_name : str
        For errors.
    mixed : bool
        Whether options may follow words.

    Raises
    ------
    UnknownError
        For an option that is not known here.
    HelpAsked
        For ``--help``.
    """
    found: dict[str, str] = {}
    words: list[str] = []
    names = {one.rstrip("="): one.endswith("=") for one in long}
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word == "--":
            words += arguments[at:]
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name == "help" and name not in names:
                raise HelpAsked(_usage(program_name, flags, valued, names))
            if name not in names:
                raise UnknownError(f"{program_name}: --{name}: this option is not known")
            if names[name] and not equals:
                value = arguments[at] if at < len(arguments) else ""
                at += 1
            found[name] = value
        elif word.startswith("-") and len(word) > 1:
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                if letter in valued:
                    if not letters and at >= len(arguments):
                        raise UsageError(f"option requires an argument -- '{letter}'")
                    found[letter] = letters or arguments[at]
                    at += not letters
                    break
                if letter not in flags:
                    raise UnknownError(f"{program_name}: -{letter}: this option is not known")
                found[letter] = ""
        else:
            words.append(word)
            if not mixed:
                words += arguments[at:]
                break
    return found, words


def size_of(text: str, *, block: int = 1) -> int:
    """Read a size such as ``64K`` or ``0x1000``.

    Raises
    ------
    UsageError
        When it is none.
    """
    found = re.fullmatch(r"\s*(0[xX][0-9a-fA-F]+|\d+)([a-zA-Z]?)(?:i?[bB])?\s*", text)
    if not found or found[2].lower() not in _UNITS:
        raise UsageError(f"invalid number: {text}")
    number = int(found[1], 0) if found[1][:2] in ("0x", "0X") else int(found[1])
    if found[2].lower() == "b" and block > 1:
        return number * block
    return number * _UNITS[found[2].lower()]


def human_size(size: int) -> str:
    """Return a size rounded up, with a digit behind the point below ten (``-h``)."""
    unit = 0
    while size >= 1024 << (10 * unit):
        unit += 1
    if not unit:
        return str(size)
    tenths = -(-size * 10 // (1 << (10 * unit)))
    shown = f"{tenths // 10}.{tenths % 10}" if tenths < 100 else str(-(-tenths // 10))
    return shown + "KMGTPE"[unit - 1]


def reason(error: OSError) -> str:
    """Return the words of an errno."""
    return os.strerror(error.errno) if error.errno else str(error)


def quoted(path: str) -> str:
    """Return a name as programs of coreutils tell it: between quotes where a shell needs them."""
    if path and re.fullmatch(r"[\w@%+=:,./-][\w@%+=:,./~#-]*", path, re.ASCII):
        return path
    return f"'{path}'"


def without_root(path: str) -> str:
    """Return a name as getfattr and getfacl tell it: without ``/`` or ``./`` before it."""
    if path.startswith("./"):
        path = path[1:]
    return path.lstrip("/") or "." if path.startswith("/") else path


def say(shell: Shell, text: str) -> None:
    """Write to the standard error."""
    shell.files[2].write(text.encode("utf-8", "surrogateescape"))
