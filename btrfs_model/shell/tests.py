# SPDX-License-Identifier: GPL-2.0-only
"""Tests: ``[[ ]]``, and ``[ ]`` by the rules of POSIX for few arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from btrfs_model.shell.expansion import arithmetic, words
from btrfs_model.shell.expansion.patterns import matches, unquoted
from btrfs_model.shell.parse import Node
from btrfs_model.shell.state import Array, DiscardError, ShellError, UnknownError

if TYPE_CHECKING:
    from btrfs_model.shell.state import Shell

Decide: TypeAlias = "Callable[[Shell], bool]"
_NUMBERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip


def _seen(shell: Shell, path: str, follow: bool = True) -> Any:
    if path == "":
        return None
    return shell.world.stat(shell.world.absolute(path), follow)


def _is_set(shell: Shell, text: str) -> bool:
    element = re.fullmatch(r"(\w+)\[(.*)\]", text)
    if not element:
        return shell.get(shell.referred(text)) is not None
    found = shell.array(element[1])
    if found is None:
        return False
    if element[2] in ("@", "*"):
        return bool(found)
    key: Any = element[2]
    if isinstance(found, Array):
        key = arithmetic.evaluate(shell, key)
    return key in found


_UNARY: Final[dict[str, Callable[[Shell, str], bool]]] = {
    "-n": lambda shell, text: bool(text),
    "-z": lambda shell, text: not text,
    "-e": lambda shell, text: _seen(shell, text) is not None,
    "-a": lambda shell, text: _seen(shell, text) is not None,
    "-f": lambda shell, text: bool((found := _seen(shell, text)) and found.is_file),
    "-d": lambda shell, text: bool((found := _seen(shell, text)) and found.is_dir),
    "-L": lambda shell, text: bool((found := _seen(shell, text, False)) and found.is_link),
    "-h": lambda shell, text: bool((found := _seen(shell, text, False)) and found.is_link),
    "-b": lambda shell, text: bool((found := _seen(shell, text)) and found.kind == "b"),
    "-c": lambda shell, text: bool((found := _seen(shell, text)) and found.kind == "c"),
    "-p": lambda shell, text: bool((found := _seen(shell, text)) and found.kind == "p"),
    "-S": lambda shell, text: bool((found := _seen(shell, text)) and found.kind == "s"),
    "-s": lambda shell, text: bool((found := _seen(shell, text)) and found.size),
    "-r": lambda shell, text: _seen(shell, text) is not None,
    "-w": lambda shell, text: _seen(shell, text) is not None,
    "-x": lambda shell, text: bool((found := _seen(shell, text))
                                   and (found.is_dir or found.mode & 0o111)),
    "-u": lambda shell, text: bool((found := _seen(shell, text)) and found.mode & 0o4000),
    "-g": lambda shell, text: bool((found := _seen(shell, text)) and found.mode & 0o2000),
    "-k": lambda shell, text: bool((found := _seen(shell, text)) and found.mode & 0o1000),
    "-O": lambda shell, text: _seen(shell, text) is not None,
    "-G": lambda shell, text: _seen(shell, text) is not None,
    "-t": lambda shell, text: False,
    "-o": lambda shell, text: text in shell.options,
    "-v": _is_set,
    "-R": lambda shell, text: "n" in shell.marks.get(text, ""),
}  # fmt: skip


def _files(shell: Shell, operation: str, first: str, second: str) -> bool:
    a, b = _seen(shell, first), _seen(shell, second)
    if operation == "-ef":
        return a is not None and b is not None and a.same == b.same
    if operation == "-nt":
        return a is not None and (b is None or a.mtime > b.mtime)
    return b is not None and (a is None or a.mtime < b.mtime)


# ------------------------------------------------------------------------------------- [[ ]] --


def _flattened(node: Node) -> list[Any]:
    """Return operands and operators of a chain, which shfmt nests to the right."""
    if node["Type"] == "BinaryTest" and node["Op"] in ("&&", "||"):
        return [*_flattened(node["X"]), node["Op"], *_flattened(node["Y"])]
    if node["Type"] == "UnaryTest" and node["Op"] == "!":
        inner = node["X"]
        if inner["Type"] == "BinaryTest" and inner["Op"] in ("&&", "||"):
            chain = _flattened(inner)
            return [{"Type": "UnaryTest", "Op": "!", "X": chain[0]}, *chain[1:]]
    return [node]


def conditional(node: Node) -> Decide:
    """Compile what stands in ``[[ ]]``."""
    chain = _flattened(node)
    if len(chain) > 1:
        return _chain(chain)
    return _operand(chain[0])


def _chain(chain: Sequence[Any]) -> Decide:
    groups: list[list[Decide]] = [[]]
    for one in chain:
        if one == "||":
            groups.append([])
        elif one != "&&":
            groups[-1].append(_operand(one))
    return lambda shell: any(all(one(shell) for one in group) for group in groups)


def _operand(node: Node) -> Decide:
    kind = node["Type"]
    if kind == "ParenTest":
        return conditional(node["X"])
    if kind == "Word":
        word = words.text(node)
        return lambda shell: bool(word(shell))
    if kind == "UnaryTest":
        if node["Op"] == "!":
            inner = conditional(node["X"])
            return lambda shell: not inner(shell)
        if node["Op"] not in _UNARY:
            raise UnknownError(f"[[ {node['Op']}: this test is not known")
        decide, text = _UNARY[node["Op"]], words.text(node["X"])
        return lambda shell: decide(shell, text(shell))
    return _compared(node)


def _compared(node: Node) -> Decide:
    operation, first = node["Op"], words.text(node["X"])
    if operation in ("==", "=", "!="):
        find = words.pattern(node["Y"])
        wanted = operation != "!="
        return lambda shell: matches(shell, find(shell), first(shell)) == wanted
    if operation == "=~":
        return _regular(first, words.pattern(node["Y"]))
    second = words.text(node["Y"])
    if operation in ("<", ">"):
        less = operation == "<"
        return lambda shell: (
            (first(shell) < second(shell)) if less else first(shell) > second(shell)
        )
    if operation in _NUMBERS:
        both = _NUMBERS[operation]
        return lambda shell: both(arithmetic.evaluate(shell, first(shell)),
                                  arithmetic.evaluate(shell, second(shell)))  # fmt: skip
    if operation in ("-nt", "-ot", "-ef"):
        return lambda shell: _files(shell, operation, first(shell), second(shell))
    raise UnknownError(f"[[ {operation}: this test is not known")


_POSIX_CLASS: Final = {"[:alpha:]": "a-zA-Z", "[:digit:]": "0-9", "[:alnum:]": "a-zA-Z0-9",
                       "[:space:]": r"\s", "[:upper:]": "A-Z", "[:lower:]": "a-z",
                       "[:xdigit:]": "0-9a-fA-F", "[:blank:]": r" \t",
                       "[:punct:]": r"!-/:-@\[-`{-~"}  # fmt: skip


def _regular(first: Callable[[Shell], str], find: Callable[[Shell], str]) -> Decide:
    def decide(shell: Shell) -> bool:
        text = find(shell)
        for name, value in _POSIX_CLASS.items():
            text = text.replace(name, value)
        try:
            found = re.search(text, first(shell), re.DOTALL)
        except re.error:
            raise DiscardError(f"{unquoted(text)}: invalid regular expression") from None
        shell.values["BASH_REMATCH"] = Array(
            enumerate([found[0], *[one or "" for one in found.groups()]]) if found else {}
        )
        return found is not None

    return decide


# --------------------------------------------------------------------------------------- [ ] --


def _number(text: str) -> int:
    try:
        return int(text.strip(), 10)
    except ValueError:
        raise ShellError(f"{text}: integer expression expected") from None


_BINARY: Final = {"=", "==", "!=", "<", ">", "-nt", "-ot", "-ef", *_NUMBERS}


def _binary(shell: Shell, first: str, operation: str, second: str) -> bool:
    if operation in _NUMBERS:
        return _NUMBERS[operation](_number(first), _number(second))
    if operation in ("=", "=="):
        return first == second
    if operation == "!=":
        return first != second
    if operation in ("<", ">"):
        return first < second if operation == "<" else first > second
    return _files(shell, operation, first, second)


def decided(shell: Shell, arguments: Sequence[str]) -> bool:
    """Decide what stands in ``[ ]``: POSIX up to four arguments, beyond by precedence.

    Raises
    ------
    ShellError
        When it is no test.
    """
    count = len(arguments)
    if count == 0:
        return False
    if count == 1:
        return bool(arguments[0])
    if count == 2:
        if arguments[0] == "!":
            return not arguments[1]
        return _unary(shell, *arguments)
    if count == 3 and (arguments[1] in _BINARY or arguments[1] in ("-a", "-o")):
        if arguments[1] == "-a":
            return bool(arguments[0]) and bool(arguments[2])
        if arguments[1] == "-o":
            return bool(arguments[0]) or bool(arguments[2])
        return _binary(shell, arguments[0], arguments[1], arguments[2])
    if count in (3, 4) and arguments[0] == "!":
        return not decided(shell, arguments[1:])
    if count in (3, 4) and arguments[0] == "(" and arguments[-1] == ")":
        return decided(shell, arguments[1:-1])
    if count == 3:
        raise ShellError(f"{arguments[1]}: binary operator expected")
    value, rest = _any(shell, arguments)
    if rest:
        raise ShellError("too many arguments")
    return value


def _unary(shell: Shell, operation: str, text: str) -> bool:
    if operation not in _UNARY:
        raise ShellError(f"{operation}: unary operator expected")
    return _UNARY[operation](shell, text)


def _any(shell: Shell, rest: Sequence[str]) -> tuple[bool, Sequence[str]]:
    value, rest = _all(shell, rest)
    while rest and rest[0] == "-o":
        other, rest = _all(shell, rest[1:])
        value = value or other
    return value, rest


def _all(shell: Shell, rest: Sequence[str]) -> tuple[bool, Sequence[str]]:
    value, rest = _one(shell, rest)
    while rest and rest[0] == "-a":
        other, rest = _one(shell, rest[1:])
        value = value and other
    return value, rest


def _one(shell: Shell, rest: Sequence[str]) -> tuple[bool, Sequence[str]]:
    if not rest:
        raise ShellError("argument expected")
    if rest[0] == "!":
        value, after = _one(shell, rest[1:])
        return not value, after
    if len(rest) > 2 and rest[1] in _BINARY:
        return _binary(shell, rest[0], rest[1], rest[2]), rest[3:]
    if rest[0] == "(":
        value, after = _any(shell, rest[1:])
        if not after or after[0] != ")":
            raise ShellError("`)' expected")
        return value, after[1:]
    if rest[0] in _UNARY and len(rest) > 1:
        return _UNARY[rest[0]](shell, rest[1]), rest[2:]
    return bool(rest[0]), rest[1:]
