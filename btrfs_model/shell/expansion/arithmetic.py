# SPDX-License-Identifier: GPL-2.0-only
"""Arithmetic of bash: 64 bits, that wrap; names are variables, whose values are expressions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from btrfs_model.shell.parse import Node, ShellSyntaxError, parse_arithmetic
from btrfs_model.shell.state import Array, DiscardError, Map, ShellError

if TYPE_CHECKING:
    from btrfs_model.shell.state import Shell

Expression: TypeAlias = "Callable[[Shell], int]"
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_NUMBER: Final = re.compile(r"[+-]?\d+")
_PLAIN: Final = re.compile(r"\s*(?:[A-Za-z_]\w*|\d\w*|\d+#[\w@]+)\s*")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
_DEEPEST: Final = 64


def wrapped(value: int) -> int:
    """Return what 64 bits keep of a number."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def _constant(text: str) -> int:
    """Return the value of a number: decimal, 0x, octal, base#digits."""
    base, digits = 10, text
    if "#" in text:
        before, digits = text.split("#", 1)
        base = int(before) if before.isdigit() else 0
        if not 2 <= base <= 64:
            raise DiscardError(f"{text}: invalid arithmetic base")
    elif text[:2] in ("0x", "0X"):
        base, digits = 16, text[2:]
    elif text.startswith("0") and len(text) > 1:
        base, digits = 8, text[1:]
    value = 0
    for digit in digits:
        at = _DIGITS.find(digit)
        if base <= 36 and 36 <= at < 62:
            at -= 26
        if not 0 <= at < base:
            raise DiscardError(f"{text}: value too great for base")
        value = value * base + at
    return wrapped(value)


def evaluate(shell: Shell, text: str, depth: int = 0) -> int:
    """Return the value of an expression that is known when it is met.

    Raises
    ------
    ShellError
        When it is none.
    """
    stripped = text.strip()
    if not stripped:
        return 0
    if _NUMBER.fullmatch(stripped) and not stripped.lstrip("+-").startswith("0"):
        return wrapped(int(stripped))
    if depth > _DEEPEST:
        raise DiscardError(f"{text}: expression recursion level exceeded")
    try:
        run = _compiled(stripped)
    except DiscardError:
        # what bash reads first it misses first
        first = _NAME.match(stripped)
        if first and "nounset" in shell.options and shell.get(first[0]) is None:
            raise ShellError(f"{first[0]}: unbound variable") from None
        raise
    return run(shell)


@functools.lru_cache(4096)
def _compiled(text: str) -> Expression:
    if _NAME.fullmatch(text):
        return _variable(text)
    try:
        node = parse_arithmetic(text)
    except ShellSyntaxError:
        raise DiscardError(f"{text}: syntax error in expression") from None
    return compiled(node)


def _variable(name: str) -> Expression:
    def value(shell: Shell) -> int:
        found = shell.get(shell.referred(name) if name in shell.marks else name)
        if found is None:
            if "nounset" in shell.options:
                raise ShellError(f"{name}: unbound variable")
            return 0
        try:
            if found[0] != "0" or found == "0":
                return int(found) if len(found) < 19 else wrapped(int(found))
        except (ValueError, IndexError):
            pass
        if found.strip() == name:
            raise DiscardError(f"{name}: expression recursion level exceeded")
        shell.depth += 1
        try:
            if shell.depth > _DEEPEST + 200:
                raise DiscardError(f"{found}: expression recursion level exceeded")
            return evaluate(shell, found)
        finally:
            shell.depth -= 1

    return value


def _divided(first: int, second: int) -> int:
    if not second:
        raise DiscardError("division by 0")
    found = abs(first) // abs(second)
    return found if (first < 0) == (second < 0) else -found


def _power(first: int, second: int) -> int:
    if second < 0:
        raise DiscardError("exponent less than 0")
    return wrapped(pow(first, second, 1 << 64))


_BINARY: Final[dict[str, Callable[[int, int], int]]] = {
    "+": lambda a, b: wrapped(a + b), "-": lambda a, b: wrapped(a - b),
    "*": lambda a, b: wrapped(a * b), "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b), "**": _power,
    "<<": lambda a, b: wrapped(a << (b & 63)), ">>": lambda a, b: a >> (b & 63),
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
    "<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b), ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b), "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
}  # fmt: skip
_ASSIGNING: Final = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}


def compiled(node: Node, words: Callable[[Node], Any] | None = None) -> Expression:
    """Compile an expression.

    Parameters
    ----------
    node : dict
        The tree of it.
    words : callable, optional
        Compiles a word of it that has expansions to what returns its text.
    """
    kind = node["Type"]
    if kind == "Word":
        return _word(node, words)
    if kind == "ParenArithm":
        return compiled(node["X"], words)
    if kind == "UnaryArithm":
        return _unary(node, words)
    if kind == "FlagsArithm":
        raise DiscardError("flags in an expression")
    operator = node["Op"]
    if operator in _ASSIGNING:
        return _assignment(node, words)
    if operator == "?":
        condition = compiled(node["X"], words)
        first, second = (compiled(node["Y"][side], words) for side in "XY")
        return lambda shell: first(shell) if condition(shell) else second(shell)
    left, right = compiled(node["X"], words), compiled(node["Y"], words)
    if operator == "&&":
        return lambda shell: int(bool(left(shell) and right(shell)))
    if operator == "||":
        return lambda shell: int(bool(left(shell) or right(shell)))
    if operator == ",":
        return lambda shell: (left(shell), right(shell))[1]
    both = _BINARY[operator]
    return lambda shell: both(left(shell), right(shell))


def _word(node: Node, words: Callable[[Node], Any] | None) -> Expression:
    parts = node["Parts"]
    if len(parts) == 1 and parts[0]["Type"] == "Lit":
        text = parts[0]["Value"].strip()
        if _NAME.fullmatch(text):
            return _variable(text)
        if not text[:1].isdigit():
            raise DiscardError(f"{text}: syntax error: operand expected")
        try:
            number = _constant(text)
        except ShellError as error:
            message = str(error)

            def fail(_: Shell) -> int:
                raise DiscardError(message)

            return fail
        return lambda _: number
    if (place := _element(parts)) is not None:
        name, index = place
        read, _ = _at(name, index, words)
        return read
    assert words is not None, node
    expanded = words(node)
    return lambda shell: evaluate(shell, expanded(shell))


def _element(parts: list[Node]) -> tuple[str, Node] | None:
    """Return name and index of ``a[i]``."""
    if len(parts) != 1 or parts[0]["Type"] != "ParamExp" or "Dollar" in parts[0]:
        return None
    if "Index" not in parts[0]:
        return None
    return parts[0]["Param"]["Value"], parts[0]["Index"]


def _at(
    name: str, index: Node, words: Callable[[Node], Any] | None
) -> tuple[Expression, Callable[[Shell, int], None]]:
    """Return what reads an element of an array, and what writes it."""
    position = subscript(index, words)

    def read(shell: Shell) -> int:
        found = shell.array(name)
        if found is None:
            position(shell, name)
            return 0
        value = found.get(position(shell, name))  # type: ignore[arg-type]
        return evaluate(shell, value or "0")

    def write(shell: Shell, value: int) -> None:
        assign_element(shell, name, position(shell, name), str(value))

    return read, write


def subscript(
    index: Node, words: Callable[[Node], Any] | None
) -> Callable[[Shell, str], int | str]:
    """Compile what stands in ``[ ]``: a number, or the key of an associative array."""
    text = words(index) if words is not None and index["Type"] == "Word" else None
    number: Expression | None
    try:
        number = compiled(index, words)
    except (ShellError, AssertionError):
        number = None

    def position(shell: Shell, name: str) -> int | str:
        if isinstance(shell.values.get(shell.referred(name)), Map):
            if text is None:
                raise DiscardError(f"{name}: bad array subscript")
            return str(text(shell))
        if number is None:
            return evaluate(shell, text(shell) if text else "")
        at = number(shell)
        if at < 0:
            array = shell.array(name)
            at += (max(array, default=-1) if isinstance(array, Array) else -1) + 1
            if at < 0:
                raise DiscardError(f"{name}: bad array subscript")
        return at

    return position


def assign_element(shell: Shell, name: str, position: int | str, value: str) -> None:
    """Assign an element of an array, which becomes one where it is none."""
    name = shell.referred(name)
    if name in shell.marks:
        value = shell.marked(name, value)
    old = shell.values.get(name)
    if isinstance(old, Map):
        old[str(position)] = value
        return
    if not isinstance(old, Array):
        old = shell.values[name] = Array({} if old is None else {0: str(old)})
    old[int(position)] = value


def _target(node: Node, words: Callable[[Node], Any] | None) -> Any:
    """Return what reads and what writes what is assigned to."""
    parts = node.get("Parts", [])
    if node["Type"] == "Word" and len(parts) == 1 and parts[0]["Type"] == "Lit":
        name = parts[0]["Value"].strip()
        if _NAME.fullmatch(name):

            def write(shell: Shell, value: int) -> None:
                if name in shell.marks:
                    shell.set(name, str(value))
                elif shell.values.get(name).__class__ is str:
                    shell.values[name] = str(value)
                else:
                    shell.set(name, str(value))

            return _variable(name), write
    if node["Type"] == "Word" and (place := _element(parts)) is not None:
        return _at(*place, words)
    if node["Type"] == "Word" and words is not None:
        expanded = words(node)

        def name_of(shell: Shell) -> str:
            text = str(expanded(shell)).strip()
            if not _NAME.fullmatch(text):
                raise DiscardError(f"{text}: attempted assignment to non-variable")
            return text

        return (lambda shell: _variable(name_of(shell))(shell),
                lambda shell, value: shell.set(name_of(shell), str(value)))  # fmt: skip
    raise DiscardError("attempted assignment to non-variable")


def _unary(node: Node, words: Callable[[Node], Any] | None) -> Expression:
    operator, inner = node["Op"], node["X"]
    if operator in ("++", "--"):
        read, write = _target(inner, words)
        step = 1 if operator == "++" else -1
        after = node.get("Post", False)

        def change(shell: Shell) -> int:
            old: int = read(shell)
            new = wrapped(old + step)
            write(shell, new)
            return old if after else new

        return change
    value = compiled(inner, words)
    if operator == "!":
        return lambda shell: int(not value(shell))
    if operator == "~":
        return lambda shell: ~value(shell)
    if operator == "-":
        return lambda shell: wrapped(-value(shell))
    return value


def _assignment(node: Node, words: Callable[[Node], Any] | None) -> Expression:
    read, write = _target(node["X"], words)
    value = compiled(node["Y"], words)
    both = _BINARY.get(node["Op"][:-1])

    def assign(shell: Shell) -> int:
        new = value(shell) if both is None else both(read(shell), value(shell))
        write(shell, new)
        return new

    return assign


def is_plain(text: str) -> bool:
    """Whether what an expansion gives can stand for itself in an expression."""
    return _PLAIN.fullmatch(text) is not None
