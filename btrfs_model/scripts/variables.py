# SPDX-License-Identifier: GPL-2.0-only
"""Variables of a script that are numbers: what one would change to run it larger or smaller."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from btrfs_model.shell.parse import Node, parse

_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)")
_SETTERS: Final = ("read", "mapfile", "readarray", "getopts", "unset")
"""Builtins that set the variables that their arguments name."""
_SETS_AFTER: Final = {"printf": "-v", "wait": "-p"}
"""Others that do so with an option."""
_IN_TEXT: Final = re.compile(r"([A-Za-z_]\w*)\+?=")
_DECLARES: Final = ("declare", "typeset", "readonly", "export")
_COMPARES: Final = ("==", "!=", "<=", ">=")


class Number(NamedTuple):
    """A number that a script assigns to a variable: its value, and the bytes where it stands."""

    value: int
    start: int
    end: int


def numbers(text: str) -> dict[str, Number]:
    """Find the variables that a script sets to a literal number, and sets nowhere else.

    Such as ``NUM_FILES=1000000``, as a statement that is in no other one. A variable that is set
    in two places, by a builtin (``read``), or that counts, is none.

    Raises
    ------
    ShellSyntaxError
        When it is no script.
    """
    tree = parse(text)
    times = Counter(_set(tree))
    found = {}
    for statement in tree.get("Stmts") or ():
        alone = not statement.get("Background")  # else it is a variable of a subshell
        for one in _assignments(statement.get("Cmd") or {}) if alone else ():
            name, number = one["Name"]["Value"], _literal(one)
            if number is not None and times[name] == 1:
                found[name] = number
    return found


def with_numbers(text: str, values: Mapping[str, int]) -> str:
    """Return a script with other numbers in the place of those that it assigns to variables."""
    known = numbers(text)
    data = text.encode("utf-8", "surrogateescape")
    for name, value in sorted(values.items(), key=lambda one: -known[one[0]].start):
        at = known[name]
        data = data[: at.start] + b"%d" % value + data[at.end :]
    return data.decode("utf-8", "surrogateescape")


def _assignments(command: Node) -> list[Node]:
    """Return the assignments of a command that does nothing else."""
    if command.get("Type") == "DeclClause":
        found = command.get("Args") or [] if command["Variant"]["Value"] in _DECLARES else []
    else:
        found = [] if command.get("Args") else command.get("Assigns") or []
    return [one for one in found if one.get("Name") and one.get("Value")]


def _literal(assign: Node) -> Number | None:
    """Return the number that is assigned, quoted or not; None where it is none."""
    word = assign["Value"]
    parts = word.get("Parts") or []
    if len(parts) == 1 and parts[0]["Type"] == "DblQuoted":
        parts = parts[0].get("Parts") or []
    if len(parts) != 1 or assign.get("Append") or assign.get("Index"):
        return None
    told = parts[0].get("Value")
    if not isinstance(told, str) or not _NUMBER.fullmatch(told):
        return None
    return Number(int(told), word["Pos"]["Offset"], word["End"]["Offset"])


def _set(node: Any) -> Iterator[str]:
    """Go through the names of variables wherever something is assigned to them."""
    if isinstance(node, list):
        for one in node:
            yield from _set(one)
    if not isinstance(node, dict):
        return
    for one in (node.get("Assigns") or []) + (node.get("Args") or []):
        if one.get("Name"):
            yield one["Name"]["Value"]
    yield from _set_by_builtin(node)
    kind, operation = node.get("Type"), str(node.get("Op", ""))
    if kind == "WordIter":
        yield node["Name"]["Value"]
    if kind == "UnaryArithm" and operation in ("++", "--"):
        yield _named(node["X"])
    if kind == "BinaryArithm" and operation.endswith("=") and operation not in _COMPARES:
        yield _named(node["X"])
    for one in node.values():
        yield from _set(one)


def _set_by_builtin(node: Node) -> Iterator[str]:
    """Go through the words of a builtin that are names of variables which it sets.

    And the name of one that a redirection sets to its descriptor (``{NAME}>``).
    """
    if node.get("N"):
        yield str(node["N"].get("Value", "")).strip("{}")
    if node.get("Type") != "CallExpr":
        return
    words = [_word(one) for one in node.get("Args") or []]
    while words and words[0] in ("builtin", "command"):
        del words[0]
    name, *given = words or [""]
    if name in _SETTERS:
        yield from given
    elif name in _SETS_AFTER and _SETS_AFTER[name] in given[:-1]:
        yield given[given.index(_SETS_AFTER[name]) + 1]
    elif name == "eval":
        yield from _IN_TEXT.findall(" ".join(given))


def _word(word: Node) -> str:
    """Return the letters of a word, quoted or not, without what is expanded in it."""
    return "".join(
        _word(part) if part["Type"] == "DblQuoted" else str(part.get("Value", ""))
        for part in word.get("Parts") or ()
    )


def _named(word: Node) -> str:
    """Return the name that an expression assigns to."""
    parts = word.get("Parts") or [{}]
    return str(parts[0].get("Value", ""))
