# SPDX-License-Identifier: GPL-2.0-only
"""bash and sh, which run a script that is a file, a text or what they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.program import Program, reason, say
from btrfs_model.shell import compile as compiler
from btrfs_model.shell.parse import ShellSyntaxError
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_CHANGE_NOTHING: Final = {"-l", "--login", "--noprofile", "--norc", "-p", "--posix", "-h", "-B"}
_NOT_FOUND: Final = 127
_SYNTAX: Final = 2


def _bash(computer: Computer, shell: Shell, arguments: list[str], name: str) -> int:
    words = list(arguments)
    chosen: list[str] = []
    takes_text = False
    while words and words[0][:1] in "-+" and len(words[0]) > 1:
        word = words.pop(0)
        if word == "--":
            break
        if word in _CHANGE_NOTHING or word == "-s":
            continue
        if word.startswith("--"):
            raise UnknownError(f"{name}: {word}: this option is not known")
        takes_text |= word[0] == "-" and "c" in word
        kept = word.replace("c", "").replace("l", "")
        if len(kept) > 1:
            chosen.append(kept)
            if kept.endswith("o"):
                chosen += [words.pop(0)] if words else []
    text, called = "", name
    try:
        if takes_text:
            if not words:
                say(shell, f"{name}: -c: option requires an argument\n")
                return _SYNTAX
            text = words.pop(0)
            called = words.pop(0) if words else name
        elif words and "-s" not in arguments:
            called = words.pop(0)
            text = computer.read(called).decode("utf-8", "surrogateescape")
        else:
            text = shell.files[0].read().decode("utf-8", "surrogateescape")
    except OSError as error:
        say(shell, f"{name}: {called}: {reason(error)}\n")
        return _NOT_FOUND
    try:
        run = compiler.script(text)
    except ShellSyntaxError as error:
        say(shell, f"{called}: {error}\n")
        return _SYNTAX
    inner = shell.started(called, words)
    if chosen:
        inner.builtins["set"](inner, chosen)
    return compiler.subshell(inner, run)


def _named(name: str) -> Program:
    return lambda computer, shell, arguments: _bash(computer, shell, arguments, name)


PROGRAMS: Final[dict[str, Program]] = {"bash": _named("bash"), "sh": _named("sh")}
