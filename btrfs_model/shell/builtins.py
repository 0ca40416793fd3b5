# SPDX-License-Identifier: GPL-2.0-only
"""Builtins of bash."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from btrfs_model.shell import tests
from btrfs_model.shell.ansi import echoed, single_quote
from btrfs_model.shell.compile import evaluate
from btrfs_model.shell.declare import declaration
from btrfs_model.shell.expansion import arithmetic
from btrfs_model.shell.jobs import KILLS, SIGNALS
from btrfs_model.shell.output import formatted
from btrfs_model.shell.parse import ShellSyntaxError
from btrfs_model.shell.read import mapfile, read, set_element
from btrfs_model.shell.simple import call, find
from btrfs_model.shell.state import (
    LETTERS,
    Array,
    Break,
    Exit,
    Map,
    Return,
    ShellError,
    UnknownError,
)

if TYPE_CHECKING:
    from btrfs_model.shell.jobs import Job
    from btrfs_model.shell.state import Builtin, Shell

_USAGE: Final = 2
_ECHO_FLAGS: Final = re.compile(r"-[neE]+")
_KEYWORDS: Final = frozenset(
    [
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "case",
        "esac",
        "for",
        "select",
        "while",
        "until",
        "do",
        "done",
        "in",
        "function",
        "time",
        "{",
        "}",
        "!",
        "[[",
        "]]",
        "coproc",
    ]
)
_SIGNALS: Final = {"0": "EXIT", **{str(number): name for number, name in SIGNALS.items()}}
_PASSED_OVER: Final = (0, 2, 3)
"""Signals that end no background job: 0 asks whether it is there, a job ignores the others."""


def _true(shell: Shell, arguments: list[str]) -> int:
    return 0


def _false(shell: Shell, arguments: list[str]) -> int:
    return 1


def _echo(shell: Shell, arguments: list[str]) -> int:
    at, newline, escapes = 0, True, "xpg_echo" in shell.options
    while at < len(arguments) and _ECHO_FLAGS.fullmatch(arguments[at]):
        for letter in arguments[at][1:]:
            if letter == "n":
                newline = False
            else:
                escapes = letter == "e"
        at += 1
    text = " ".join(arguments[at:])
    if escapes:
        text, ended = echoed(text)
        newline = newline and not ended
    shell.files[1].write((text + ("\n" if newline else "")).encode("utf-8", "surrogateescape"))
    return 0


def _printf(shell: Shell, arguments: list[str]) -> int:
    target = None
    while arguments and arguments[0].startswith("-") and len(arguments[0]) > 1:
        if arguments[0] == "-v":
            target = arguments[1]
            arguments = arguments[2:]
        elif arguments[0] == "--":
            arguments = arguments[1:]
            break
        else:
            break
    if not arguments:
        shell.complain("printf: usage: printf [-v var] format [arguments]")
        return _USAGE
    text, faults = formatted(arguments[0], arguments[1:], shell.world.clock())
    for one in faults:
        shell.complain(f"printf: {one}")
    if target is None:
        shell.write(text)
    else:
        set_element(shell, target, text)
    return int(bool(faults))


def _test(shell: Shell, arguments: list[str]) -> int:
    try:
        return int(not tests.decided(shell, arguments))
    except UnknownError:
        raise
    except ShellError as error:
        shell.complain(f"test: {error}")
        return _USAGE


def _bracket(shell: Shell, arguments: list[str]) -> int:
    if not arguments or arguments[-1] != "]":
        shell.complain("[: missing `]'")
        return _USAGE
    try:
        return int(not tests.decided(shell, arguments[:-1]))
    except UnknownError:
        raise
    except ShellError as error:
        shell.complain(f"[: {error}")
        return _USAGE


# --------------------------------------------------------------------------------- variables --


def _unset(shell: Shell, arguments: list[str]) -> int:
    what = ""
    while arguments and arguments[0] in ("-f", "-v", "-n"):
        what, arguments = arguments[0], arguments[1:]
    for name in arguments:
        element = re.fullmatch(r"(\w+)\[(.*)\]", name)
        if element:
            found = shell.values.get(element[1])
            if isinstance(found, Array) and element[2] not in "@*":
                found.pop(arithmetic.evaluate(shell, element[2]), None)
            elif isinstance(found, Map):
                found.pop(element[2], None)
        elif what == "-f":
            shell.functions.pop(name, None)
        elif what == "-n":
            shell.values.pop(name, None)
            shell.marks.pop(name, None)
        elif name in shell.values or what == "-v":
            shell.unset(name)
        else:
            shell.functions.pop(name, None)
            shell.marks.pop(name, None)
    return 0


def _shift(shell: Shell, arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 1
    if count > len(shell.arguments) or count < 0:
        return 1
    shell.arguments = shell.arguments[count:]
    return 0


def _set(shell: Shell, arguments: list[str]) -> int:
    if not arguments:
        for name in sorted(shell.values):
            value = shell.values[name]
            if isinstance(value, str):
                plain = re.fullmatch(r"[\w@%+=:,./-]*", value)
                shell.write(f"{name}={value if plain else single_quote(value)}\n")
        return 0
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word == "--":
            shell.arguments = arguments[at:]
            return 0
        if word == "-":
            shell.options -= {"xtrace", "verbose"}
            shell.arguments = arguments[at:]
            return 0
        if len(word) > 1 and word[0] in "-+":
            for letter in word[1:]:
                if letter == "o":
                    if at >= len(arguments):
                        return 0
                    _option(shell, arguments[at], word[0] == "-")
                    at += 1
                elif letter in LETTERS:
                    _option(shell, LETTERS[letter], word[0] == "-")
                else:
                    raise UnknownError(f"set: -{letter}: this option is not known")
            continue
        shell.arguments = arguments[at - 1 :]
        return 0
    return 0


_OPTIONS: Final = {*LETTERS.values(), "pipefail", "posix", "ignoreeof", "history", "emacs", "vi",
                   "braceexpand", "interactive-comments", "errtrace", "functrace"}  # fmt: skip
_SHOPTS: Final = {"nullglob", "failglob", "dotglob", "extglob", "nocasematch", "nocaseglob",
                  "inherit_errexit", "xpg_echo", "expand_aliases", "globstar", "checkwinsize",
                  "lastpipe", "cmdhist", "interactive_comments", "sourcepath",
                  "extquote"}  # fmt: skip


def _option(shell: Shell, name: str, on: bool) -> None:
    if name not in _OPTIONS:
        raise UnknownError(f"set: {name}: this option is not known")
    if on and name in ("noexec", "functrace"):
        raise UnknownError(f"set: {name}: this option is not known")
    (shell.options.add if on else shell.options.discard)(name)


def _shopt(shell: Shell, arguments: list[str]) -> int:
    flags = [one for one in arguments if one.startswith("-")]
    names = [one for one in arguments if not one.startswith("-")]
    letters = "".join(one[1:] for one in flags)
    if "o" in letters:
        for name in names:
            if "s" in letters or "u" in letters:
                _option(shell, name, "s" in letters)
        return int(not all(name in shell.options for name in names)) if "q" in letters else 0
    for name in names:
        if name not in _SHOPTS or (name in ("lastpipe", "globstar") and "s" in letters):
            raise UnknownError(f"shopt: {name}: this option is not known")
        if "s" in letters:
            shell.options.add(name)
        elif "u" in letters:
            shell.options.discard(name)
        elif "q" not in letters:
            shell.write(f"{name:<15}\t{'on' if name in shell.options else 'off'}\n")
    if "s" in letters or "u" in letters:
        return 0
    return int(not all(name in shell.options for name in names))


def _getopts(shell: Shell, arguments: list[str]) -> int:
    told, name, *rest = arguments
    words = rest or shell.arguments
    index = int(shell.get("OPTIND") or 1)
    if shell.options_at[0] != index:
        shell.options_at = (index, 0)
    place = shell.options_at[1] or 1
    silent = told.startswith(":")
    word = words[index - 1] if index <= len(words) else ""
    shell.values.pop("OPTARG", None)
    if place == 1 and (not word.startswith("-") or word in ("-", "--")):
        shell.set("OPTIND", str(index + (word == "--")))
        shell.options_at = (index + (word == "--"), 0)
        shell.set(name, "?")
        return 1
    letter = word[place]
    at = told.find(letter) if letter != ":" else -1
    ended = place + 1 >= len(word)
    index, place = (index + 1, 0) if ended else (index, place + 1)
    if at < 0:
        if silent:
            shell.set("OPTARG", letter)
        else:
            shell.files[2].write(f"{shell.name}: illegal option -- {letter}\n".encode())
        letter = "?"
    elif told[at + 1 : at + 2] == ":":
        if not ended:
            value: str | None = word[place:]
            index += 1
        elif index <= len(words):
            value = words[index - 1]
            index += 1
        else:
            value = None
        place = 0
        if value is not None:
            shell.set("OPTARG", value)
        elif silent:
            shell.set("OPTARG", letter)
            letter = ":"
        else:
            shell.files[2].write(
                f"{shell.name}: option requires an argument -- {letter}\n".encode()
            )
            letter = "?"
    shell.set("OPTIND", str(index))
    shell.options_at = (index, place)
    shell.set(name, letter)
    return 0


# ----------------------------------------------------------------------------------- control --


def _status(shell: Shell, name: str, arguments: Sequence[str]) -> int:
    if not arguments:
        return int(shell.status)
    try:
        return int(arguments[0]) & 255
    except ValueError:
        shell.complain(f"{name}: {arguments[0]}: numeric argument required")
        return _USAGE


def _exit(shell: Shell, arguments: list[str]) -> int:
    raise Exit(_status(shell, "exit", arguments))


def _return(shell: Shell, arguments: list[str]) -> int:
    if not shell.function_names:
        shell.complain("return: can only `return' from a function or sourced script")
        return _USAGE
    raise Return(_status(shell, "return", arguments))


def _leave(again: bool) -> Builtin:
    def leave(shell: Shell, arguments: list[str]) -> int:
        if not shell.loops:
            return 0
        raise Break(int(arguments[0]) if arguments else 1, again)

    return leave


def _eval(shell: Shell, arguments: list[str]) -> int:
    if not arguments:
        return 0
    try:
        return evaluate(shell, " ".join(arguments))
    except ShellSyntaxError as error:
        shell.complain(f"eval: {error}")
        return 1


def _source(shell: Shell, arguments: list[str]) -> int:
    if not arguments:
        shell.complain("source: filename argument required")
        return _USAGE
    name = arguments[0]
    try:
        with shell.world.open(shell.world.absolute(name), "r") as file:
            data = file.read()
    except OSError as error:
        shell.complain(f"{name}: {os.strerror(error.errno or 0)}")
        return 1
    outer = shell.arguments
    if len(arguments) > 1:
        shell.arguments = arguments[1:]
    shell.function_names.append("source")
    try:
        return evaluate(shell, data.decode("utf-8", "surrogateescape"))
    except Return as leave:
        return leave.status
    except ShellSyntaxError as error:
        shell.complain(f"{name}: {error}")
        return 1
    finally:
        shell.function_names.pop()
        if len(arguments) > 1:
            shell.arguments = outer


def _exec(shell: Shell, arguments: list[str]) -> int:
    raise Exit(call(shell, arguments))


def _command(shell: Shell, arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-v", "-V"):
        status = 1
        for name in arguments[1:]:
            if name in shell.functions or name in BUILTINS:
                shell.write(f"{name}\n")
                status = 0
            elif find(shell, name) is not None:
                shell.write(f"/usr/bin/{name}\n")
                status = 0
        return status
    if arguments and arguments[0] == "-p":
        arguments = arguments[1:]
    if not arguments:
        return 0
    command = find(shell, arguments[0])
    if command is None:
        shell.complain(f"{arguments[0]}: command not found")
        return 127
    return command(shell, arguments[1:])


def _kind_of(shell: Shell, name: str) -> str:
    for kind, known in (("keyword", _KEYWORDS), ("function", shell.functions),
                        ("builtin", BUILTINS)):  # fmt: skip
        if name in known:
            return kind
    return "file" if find(shell, name) else ""


def _type(shell: Shell, arguments: list[str]) -> int:
    flags = "".join(one[1:] for one in arguments if one.startswith("-"))
    status = 0
    for name in [one for one in arguments if not one.startswith("-")]:
        kind = _kind_of(shell, name)
        if "P" in flags or "p" in flags:
            if kind == "file" or ("P" in flags and find(shell, name)):
                shell.write(f"/usr/bin/{name}\n")
            else:
                status = 1
            continue
        if not kind:
            status = 1
            if "t" not in flags:
                shell.complain(f"type: {name}: not found")
        elif "t" in flags:
            shell.write(f"{kind}\n")
        else:
            told = {"function": f"{name} is a function", "builtin": f"{name} is a shell builtin",
                    "keyword": f"{name} is a shell keyword",
                    "file": f"{name} is /usr/bin/{name}"}[kind]  # fmt: skip
            shell.write(told + "\n")
    return status


def _trap(shell: Shell, arguments: list[str]) -> int:
    if arguments and arguments[0] == "--":
        arguments = arguments[1:]
    if not arguments or arguments[0] == "-p":
        for name, action in shell.traps.items():
            told = name if name in ("EXIT", "ERR") else f"SIG{name}"
            shell.write(f"trap -- {single_quote(action)} {told}\n")
        return 0
    action, names = arguments[0], arguments[1:]
    if not names:
        action, names = "-", [action]
    for one in names:
        name = _SIGNALS.get(one, one.upper().removeprefix("SIG"))
        if name in ("DEBUG", "RETURN"):
            raise UnknownError(f"trap: {name}: this trap is not known")
        if action == "-":
            shell.traps.pop(name, None)
        else:
            shell.traps[name] = action
    return 0


def _wait(shell: Shell, arguments: list[str]) -> int:
    told = [one for one in arguments if not one.startswith("-")]
    known = [_job(shell, one) for one in told or shell.jobs]
    jobs, status = shell.world.jobs, 0
    if "-n" in arguments:
        left = [one for one in known if one is not None]
        known = [jobs.wait(left)] if left else [None]
    for place, job in enumerate(known):
        if job is not None:
            status = jobs.wait([job]).status or 0
            shell.jobs.pop(job.number, None)
            continue
        status = 127
        if told:
            shell.complain(f"wait: pid {told[place]} is not a child of this shell")
    return status if told or "-n" in arguments else 0


def _job(shell: Shell, told: str) -> Job | None:
    """Return a job by its number, or by its place (``%1``)."""
    if told.startswith("%"):
        known = list(shell.jobs)
        place = told[1:]
        if place in ("%", "+", ""):
            return shell.jobs[known[-1]] if known else None
        if not place.isdigit() or not 1 <= int(place) <= len(known):
            return None
        told = known[int(place) - 1]
    return shell.jobs.get(told)


def _jobs(shell: Shell, arguments: list[str]) -> int:
    left = [one.number for one in shell.jobs.values() if one.status is None]
    if left and "-p" not in arguments:
        raise UnknownError("jobs: it is known with -p alone")
    shell.write("".join(one + "\n" for one in left))
    return 0


def _kill(shell: Shell, arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-l", "-L"):
        return 0
    signal, told = "TERM", list(arguments)
    if told and told[0] in ("-s", "-n"):
        signal, told = told[1], told[2:]
    elif told and told[0].startswith("-") and told[0] != "--":
        signal, told = told[0][1:], told[1:]
    name = signal.upper().removeprefix("SIG")
    number = int(name) if name.isdigit() else KILLS.get(name, -1)
    if number not in (*SIGNALS, 0):
        raise UnknownError(f"kill: {signal}: this signal is not known")
    status = 0
    for one in told:
        if one == "--":
            continue
        job = _job(shell, one)
        if job is None or job.status is not None:
            shell.complain(f"kill: ({one}) - No such process")
            status = 1
        elif number not in _PASSED_OVER:
            shell.world.jobs.kill(job, number)
    return status


def _cd(shell: Shell, arguments: list[str]) -> int:
    arguments = [one for one in arguments if one not in ("-P", "-L", "-e", "--")]
    target = arguments[0] if arguments else shell.get("HOME") or ""
    told = target == "-"
    if told:
        target = shell.get("OLDPWD") or ""
    if not target:
        shell.complain("cd: HOME not set" if not arguments else "cd: OLDPWD not set")
        return 1
    before = shell.world.cwd
    try:
        shell.world.chdir(shell.world.absolute(target))
    except OSError as error:
        shell.complain(f"cd: {target}: {os.strerror(error.errno or 0)}")
        return 1
    shell.set("OLDPWD", before)
    shell.set("PWD", shell.world.cwd)
    if told:
        shell.write(shell.world.cwd + "\n")
    return 0


def _pwd(shell: Shell, arguments: list[str]) -> int:
    shell.write(shell.world.cwd + "\n")
    return 0


def _stack(shell: Shell) -> list[str]:
    found = shell.array("DIRSTACK")
    return [] if found is None else list(found.values())


def _pushd(shell: Shell, arguments: list[str]) -> int:
    before = shell.world.cwd
    if _cd(shell, arguments):
        return 1
    shell.values["DIRSTACK"] = Array(enumerate([before, *_stack(shell)]))
    return _dirs(shell, [])


def _popd(shell: Shell, arguments: list[str]) -> int:
    stack = _stack(shell)
    if not stack:
        shell.complain("popd: directory stack empty")
        return 1
    first, *rest = stack
    shell.values["DIRSTACK"] = Array(enumerate(rest))
    if _cd(shell, [first]):
        return 1
    return _dirs(shell, [])


def _dirs(shell: Shell, arguments: list[str]) -> int:
    shell.write(" ".join([shell.world.cwd, *_stack(shell)]) + "\n")
    return 0


def _umask(shell: Shell, arguments: list[str]) -> int:
    if not arguments:
        shell.write(f"{shell.world.umask:04o}\n")
        return 0
    if not re.fullmatch(r"[0-7]+", arguments[0]):
        raise UnknownError(f"umask: {arguments[0]}: only octal numbers are known")
    shell.world.umask = int(arguments[0], 8)
    return 0


def _let(shell: Shell, arguments: list[str]) -> int:
    found = 0
    for one in arguments:
        found = arithmetic.evaluate(shell, one)
    return int(not found)


def _builtin(shell: Shell, arguments: list[str]) -> int:
    command = BUILTINS.get(arguments[0]) if arguments else None
    if command is None:
        shell.complain(f"builtin: {arguments[0] if arguments else ''}: not a shell builtin")
        return 1
    return command(shell, arguments[1:])


def _declared(variant: str) -> Builtin:
    """Make a declaration of words, as ``command local x`` or ``$word`` come to."""

    def run(shell: Shell, arguments: list[str]) -> int:
        node = {"Variant": {"Value": variant}, "Args": [
            {"Naked": True, "Value": {"Parts": [{"Type": "SglQuoted", "Value": one}]}}
            for one in arguments]}  # fmt: skip
        return declaration(node)(shell)

    return run


BUILTINS: Final[dict[str, Builtin]] = {
    ":": _true, "true": _true, "false": _false, "echo": _echo, "printf": _printf, "test": _test,
    "[": _bracket, "read": read, "mapfile": mapfile, "readarray": mapfile, "unset": _unset,
    "shift": _shift, "set": _set, "shopt": _shopt, "getopts": _getopts, "exit": _exit,
    "return": _return, "break": _leave(False), "continue": _leave(True), "eval": _eval,
    "source": _source, ".": _source, "exec": _exec, "command": _command, "type": _type,
    "trap": _trap, "wait": _wait, "kill": _kill, "jobs": _jobs, "cd": _cd, "pwd": _pwd,
    "pushd": _pushd, "popd": _popd, "dirs": _dirs, "umask": _umask, "let": _let, "hash": _true,
    "ulimit": _true, "alias": _true, "unalias": _true, "builtin": _builtin, "disown": _true,
    **{one: _declared(one) for one in ("declare", "typeset", "local", "export", "readonly")},
}  # fmt: skip
