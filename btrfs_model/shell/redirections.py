# SPDX-License-Identifier: GPL-2.0-only
"""Redirections: each changes the open files of a shell."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.shell.expansion import words
from btrfs_model.shell.parse import Node
from btrfs_model.shell.state import UnknownError
from btrfs_model.shell.streams import Replaced, Source, Stream

if TYPE_CHECKING:
    from btrfs_model.shell.state import Shell

Redirection: TypeAlias = "Callable[[Shell, Replaced], bool]"
"""Keeps what numbers had; False: it failed, and said so."""
_MODES: Final = {">": "w", ">|": "w", ">>": "a", "<": "r", "<>": "r+", "&>": "w", "&>>": "a"}
_FIRST: Final = 10
"""What ``{name}>`` begins with."""


def redirections(nodes: Sequence[Node]) -> list[Redirection]:
    """Compile redirections, in their order."""
    return [_redirection(one) for one in nodes]


def _number(node: Node, default: int) -> tuple[int, str]:
    """Return the number of a file, and the variable that gets it."""
    told = (node.get("N") or {}).get("Value", "")
    if told.startswith("{"):
        return -1, told.strip("{}")
    return (int(told) if told else default), ""


def _put(
    shell: Shell, replaced: Replaced, number: int, variable: str, stream: Stream | None
) -> None:
    if not variable:
        shell.files.put(number, stream, replaced)
        return
    # a number that the shell chose stays open
    number = next(one for one in range(_FIRST, 1 << 16) if one not in shell.files)
    shell.set(variable, str(number))
    shell.files.put(number, stream)


def _redirection(node: Node) -> Redirection:
    operation = node["Op"]
    if operation in ("<<", "<<-", "<<<"):
        return _document(node)
    if operation in ("<&", ">&"):
        return _duplicate(node)
    if operation not in _MODES:
        raise UnknownError(f"{operation}: this redirection is not known")
    number, variable = _number(node, 0 if operation in ("<", "<>") else 1)
    name = words.fields(node["Word"])
    mode = _MODES[operation]
    both = operation.startswith("&")

    def redirect(shell: Shell, replaced: Replaced) -> bool:
        found = [name] if isinstance(name, str) else name(shell)
        if len(found) != 1:
            shell.complain(f"{' '.join(found) or node['Word']}: ambiguous redirect")
            return False
        stream = opened(shell, found[0], mode, guarded=operation == ">")
        if stream is None:
            return False
        _put(shell, replaced, number, variable, stream)
        if both:
            shell.files.put(2, stream, replaced)
        return True

    return redirect


def opened(shell: Shell, name: str, mode: str, guarded: bool = False) -> Stream | None:
    """Open a file as a redirection does; say what is wrong."""
    place = re.fullmatch(r"/dev/fd/(\d+)", name)
    number = int(place[1]) if place else _STANDARD.get(name, -1)
    if number in shell.files:
        return shell.files[number]
    path = shell.world.absolute(name)
    if guarded and "noclobber" in shell.options:
        seen = shell.world.stat(path)
        if seen is not None and seen.is_file:
            shell.complain(f"{name}: cannot overwrite existing file")
            return None
    try:
        return shell.world.open(path, mode)
    except OSError as error:
        shell.complain(f"{name}: {os.strerror(error.errno or 0)}")
        return None


_STANDARD: Final = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}


def _duplicate(node: Node) -> Redirection:
    number, variable = _number(node, 0 if node["Op"] == "<&" else 1)
    word = words.text(node["Word"])
    plain = "N" not in node and node["Op"] == ">&"

    def duplicate(shell: Shell, replaced: Replaced) -> bool:
        told = word(shell)
        if told == "-":
            if variable:
                shell.files.put(int(shell.get(variable) or -1), None)
            else:
                shell.files.put(number, None, replaced)
            return True
        moved = told.endswith("-")
        if not told.rstrip("-").isdigit():
            if plain:  # >& file
                stream = opened(shell, told, "w")
                if stream is not None:
                    shell.files.put(1, stream, replaced)
                    shell.files.put(2, stream, replaced)
                return stream is not None
            shell.complain(f"{told}: ambiguous redirect")
            return False
        source = int(told.rstrip("-"))
        if source == number:
            return True
        if source not in shell.files:
            shell.complain(f"{source}: Bad file descriptor")
            return False
        _put(shell, replaced, number, variable, shell.files[source])
        if moved and source != number:
            shell.files.put(source, None, replaced)
        return True

    return duplicate


def _document(node: Node) -> Redirection:
    number, variable = _number(node, 0)
    operation = node["Op"]
    if operation == "<<<":
        word = words.text(node["Word"])

        def string(shell: Shell, replaced: Replaced) -> bool:
            data = (word(shell) + "\n").encode("utf-8", "surrogateescape")
            _put(shell, replaced, number, variable, Source(data))
            return True

        return string
    document = node.get("Hdoc") or {"Parts": []}
    is_quoted = any(one["Type"] != "Lit" or "\\" in one["Value"]
                    for one in node["Word"]["Parts"])  # fmt: skip
    parts = list(document.get("Parts", []))
    if operation == "<<-":
        parts = [{**one, "Value": re.sub(r"(?m)^\t+", "", one["Value"])}
                 if one["Type"] == "Lit" else one for one in parts]  # fmt: skip
    if is_quoted:
        text = "".join(one["Value"] for one in parts)
        fixed = text.encode("utf-8", "surrogateescape")

        def literal(shell: Shell, replaced: Replaced) -> bool:
            _put(shell, replaced, number, variable, Source(fixed))
            return True

        return literal
    value = words.text({"Parts": parts}, document=True)

    def expanded(shell: Shell, replaced: Replaced) -> bool:
        data = value(shell).encode("utf-8", "surrogateescape")
        _put(shell, replaced, number, variable, Source(data))
        return True

    return expanded
