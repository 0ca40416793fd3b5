# SPDX-License-Identifier: GPL-2.0-only
"""Variables of a script that are numbers: what one would change to run it larger or smaller."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from btrfs_model.shell.parse import Node, parse

_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)")
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
    in two places, or that counts, is none.

    Raises
    ------
    ShellSyntaxError
        When it is no script.
    """
    tree = parse(text)
    times = Counter(_set(tree))
    found = {}
    for statement in tree.get("Stmts") or ():
        for one in _assignments(statement.get("Cmd") or {}):
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
    kind, operation = node.get("Type"), str(node.get("Op", ""))
    if kind == "WordIter":
        yield node["Name"]["Value"]
    if kind == "UnaryArithm" and operation in ("++", "--"):
        yield _named(node["X"])
    if kind == "BinaryArithm" and operation.endswith("=") and operation not in _COMPARES:
        yield _named(node["X"])
    for one in node.values():
        yield from _set(one)


def _named(word: Node) -> str:
    """Return the name that an expression assigns to."""
    parts = word.get("Parts") or [{}]
    return str(parts[0].get("Value", ""))
