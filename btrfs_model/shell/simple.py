# SPDX-License-Identifier: GPL-2.0-only
"""Simple commands: assignments, words, and what they call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from btrfs_model.shell.ansi import trace_quote
from btrfs_model.shell.expansion import arithmetic, words
from btrfs_model.shell.parse import Node
from btrfs_model.shell.redirections import Redirection
from btrfs_model.shell.state import Array, Map, Return, Shell, ShellError
from btrfs_model.shell.streams import Replaced

if TYPE_CHECKING:
    from btrfs_model.shell.state import Builtin, Run

Assign: TypeAlias = "Callable[[Shell], None]"


_NOT_FOUND: Final = 127


def simple(node: Node, redirs: Sequence[Node], opened: Sequence[Redirection], line: int) -> Run:
    """Compile a simple command: assignments, words, redirections."""
    assigns = [_assignment(one) for one in node.get("Assigns", [])]
    arguments = [words.fields(one) for one in node.get("Args", [])]
    if not arguments:
        return _assignments(assigns, opened, line)
    constant = [one for one in arguments if isinstance(one, str)]
    fixed = constant if len(constant) == len(arguments) else None
    name = arguments[0] if isinstance(arguments[0], str) else ""
    persists = name == "exec" and len(arguments) == 1
    put = _put(redirs, fixed, assigns, line)

    def run(shell: Shell) -> int:
        if put is not None and (status := put(shell)) >= 0:
            return status
        shell.line = line
        shell.world.step(line)
        if fixed is not None:
            found = list(fixed)
        else:
            found = []
            for one in arguments:
                if one.__class__ is str:
                    found.append(one)
                else:
                    found += one(shell)  # type: ignore[operator]
        if "xtrace" in shell.options:
            trace(shell, found)
        if not opened and not assigns:
            status = call(shell, found)
            shell.status = status
            return status
        replaced: Replaced = {}
        try:
            for redirection in opened:
                if not redirection(shell, replaced):
                    shell.status = 1
                    return 1
            if persists:
                shell.files.forget(replaced)
                replaced.clear()
                shell.status = 0
                return 0
            status = _assigned(shell, assigns, found) if assigns else call(shell, found)
            shell.status = status
            return status
        finally:
            shell.files.restore(replaced)

    return run


def _put(
    redirs: Sequence[Node], fixed: list[str] | None, assigns: Sequence[Any], line: int
) -> Run | None:
    """Compile ``echo constant > file``, which loops do a million times; None: it is not that.

    The file is written as a whole, by one call of the world.
    """
    if fixed is None or assigns or fixed[0] not in ("echo", ":") or len(redirs) != 1:
        return None
    redirection = redirs[0]
    if redirection["Op"] != ">" or redirection.get("N"):
        return None
    path = words.fields(redirection["Word"])
    plain = fixed[1:2] == ["-n"]
    texts = fixed[2:] if plain else fixed[1:]
    if isinstance(path, str) or any(one.startswith("-") for one in texts):
        return None
    data = b"" if fixed[0] == ":" else (" ".join(texts) + ("" if plain else "\n")).encode()
    name = fixed[0]

    def put(shell: Shell) -> int:
        if name in shell.functions or not shell.options.isdisjoint(_SLOW):
            return -1
        found = path(shell)
        if len(found) != 1 or not found[0].startswith("/") or found[0].startswith("/dev/"):
            return -1
        shell.line = line
        shell.world.step(line)
        try:
            shell.world.put(shell.world.absolute(found[0]), data)
        except OSError as error:
            shell.complain(f"{found[0]}: {os.strerror(error.errno or 0)}")
            shell.status = 1
            return 1
        shell.status = 0
        return 0

    return put


_SLOW: Final = {"xtrace", "noclobber", "xpg_echo"}


def trace(shell: Shell, arguments: Sequence[str]) -> None:
    """Write a command as ``set -x`` does."""
    _trace(shell, " ".join(trace_quote(one) for one in arguments))


def _trace(shell: Shell, told: str) -> None:
    prompt = shell.get("PS4") or "+ "
    first = prompt[0] * (shell.level + 1) + prompt[1:]
    shell.files[2].write(f"{first}{told}\n".encode("utf-8", "surrogateescape"))


def _assignments(
    assigns: Sequence[tuple[str, Assign]], opened: Sequence[Redirection], line: int
) -> Run:
    if len(assigns) == 1 and not opened:
        only = assigns[0][1]

        def single(shell: Shell) -> int:
            shell.line = line
            before = shell.status
            shell.status = _Before(before)
            only(shell)
            if shell.status.__class__ is _Before:
                shell.status = 0
            return shell.status

        return single

    def several(shell: Shell) -> int:
        shell.line = line
        shell.status = _Before(shell.status)
        for redirection in opened:
            replaced: Replaced = {}
            done = redirection(shell, replaced)
            shell.files.restore(replaced)
            if not done:
                shell.status = 1
                return 1
        for _, assign in assigns:
            assign(shell)
        if shell.status.__class__ is _Before:
            shell.status = 0
        return shell.status

    return several


class _Before(int):
    """The status of the command before: that of an assignment is of its last substitution."""


def _assigned(shell: Shell, assigns: Sequence[tuple[str, Assign]], found: list[str]) -> int:
    """Call a command with variables that it alone sees."""
    kept_values, kept_marks = dict(shell.values), dict(shell.marks)
    names = set()
    try:
        for name, assign in assigns:
            assign(shell)
            names.add(name)
        for name in names:
            shell.mark(name, "x")
        return call(shell, found)
    finally:
        for name in names:
            shell.values.pop(name, None)
            shell.marks.pop(name, None)
            if name in kept_values:
                shell.values[name] = kept_values[name]
            if name in kept_marks:
                shell.marks[name] = kept_marks[name]


def call(shell: Shell, found: list[str]) -> int:
    """Call a function, a builtin or a program."""
    if not found:
        return shell.status if shell.status.__class__ is int else 0
    name = found[0]
    function = shell.functions.get(name)
    if function is not None:
        return call_function(shell, name, found[1:])
    command = find(shell, name)
    if command is None:
        shell.complain(f"{name}: command not found")
        return _NOT_FOUND
    try:
        return command(shell, found[1:])
    except OSError as error:
        told = os.strerror(error.errno) if error.errno else str(error)
        shell.complain(f"{name}: write error: {told}")
        return 1


def find(shell: Shell, name: str) -> Builtin | None:
    """Return a builtin or a program."""
    found = shell.builtins.get(name)
    return found if found is not None else shell.world.command(name)


def call_function(shell: Shell, name: str, arguments: list[str]) -> int:
    """Call a function."""
    run, _ = shell.functions[name]
    with shell.scope(name, arguments):
        try:
            return run(shell)
        except Return as leave:
            return leave.status


def _assignment(node: Node) -> tuple[str, Assign]:
    """Compile an assignment; return the name of its variable too."""
    name = str(node["Name"]["Value"])
    return name, assigned(node, name)


def assigned(node: Node, name: str) -> Assign:
    """Compile what an assignment gives a variable."""
    append = node.get("Append", False)
    if "Array" in node:
        return _array(node["Array"].get("Elems") or [], name, append)
    value = words.text(node["Value"], assigned=True) if node.get("Value") else lambda shell: ""
    if "Index" in node:
        position = arithmetic.subscript(node["Index"], words.text)

        def element(shell: Shell) -> None:
            at, new = position(shell, name), value(shell)
            if append:
                held: Any = shell.array(name) or {}
                new = _appended(shell, name, held.get(at, ""), new)
            arithmetic.assign_element(shell, name, at, new)

        return element
    if append:

        def add(shell: Shell) -> None:
            new = value(shell)
            shell.set(name, _appended(shell, name, shell.get(shell.referred(name)) or "", new))

        return add

    def assign(shell: Shell) -> None:
        new = value(shell)
        if "xtrace" in shell.options:
            _trace(shell, f"{name}={trace_quote(new) if new else ''}")
        if name not in shell.marks and shell.values.get(name).__class__ is str:
            shell.values[name] = new
        else:
            shell.set(name, new)

    return assign


def _appended(shell: Shell, name: str, old: str, new: str) -> str:
    if "i" in shell.marks.get(name, ""):
        return str(arithmetic.evaluate(shell, old) + arithmetic.evaluate(shell, new))
    return old + new


def _array(elements: Sequence[Node], name: str, append: bool) -> Callable[[Shell], None]:
    compiled: list[tuple[Any, Any]] = []
    for one in elements:
        if one.get("Index"):
            position = arithmetic.subscript(one["Index"], words.text)
            compiled.append((position, words.text(one["Value"]) if one.get("Value") else None))
        elif one.get("Value"):
            compiled.append((None, words.fields(one["Value"])))

    def assign(shell: Shell) -> None:
        target = shell.referred(name)
        if "r" in shell.marks.get(target, ""):
            raise ShellError(f"{name}: readonly variable")
        old = shell.array(target) if append else None
        is_map = isinstance(shell.values.get(target), Map)
        new: Any = Map(old or {}) if is_map else Array(old or {})  # type: ignore[arg-type]
        at = max(new, default=-1) + 1 if not is_map else 0
        loose: list[str] = []
        for position, value in compiled:
            if position is not None:
                key = position(shell, target)
                new[key] = value(shell) if value else ""
                at = key + 1 if isinstance(key, int) else at
                continue
            for one in [value] if isinstance(value, str) else value(shell):
                if is_map:
                    loose.append(one)
                else:
                    new[at] = shell.marked(target, one) if target in shell.marks else one
                    at += 1
        for key, one in zip(loose[::2], [*loose[1::2], ""], strict=False):
            new[key] = one
        shell.values[target] = new

    return assign
