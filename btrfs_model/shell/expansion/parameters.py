# SPDX-License-Identifier: GPL-2.0-only
"""``${parameter}`` with all that may stand in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.shell.ansi import ansi_c, double_quote, single_quote
from btrfs_model.shell.expansion import arithmetic, patterns
from btrfs_model.shell.expansion.words import (
    EXPANSIONS,
    expression,
    part,
    pattern,
    pieces,
    replacement,
    text,
)
from btrfs_model.shell.parse import Node
from btrfs_model.shell.state import Array, Map, ShellError, UnknownError

if TYPE_CHECKING:
    from btrfs_model.shell.expansion.words import Builder, Emit
    from btrfs_model.shell.state import Shell

_ELEMENT: Final = re.compile(r"([A-Za-z_]\w*)\[(.*)\]", re.DOTALL)
_SPECIAL: Final[dict[str, Callable[[Shell], str | None]]] = {
    "#": lambda shell: str(len(shell.arguments)), "?": lambda shell: str(shell.status),
    "-": lambda shell: shell.flags, "$": lambda shell: "1000", "!": lambda shell: shell.job,
    "0": lambda shell: shell.name,
}  # fmt: skip


class _Parameter:
    """A parameter: what reads it, and whether it is a list."""

    def __init__(self, name: str, index: Node | None) -> None:
        self.name = name
        self.each = name if name in ("@", "*") else ""
        self.position: Callable[[Shell, str], int | str] | None = None
        if index is not None:
            parts = index.get("Parts", [])
            if index["Type"] == "Word" and len(parts) == 1 and parts[0].get("Value") in ("@", "*"):
                self.each = parts[0]["Value"]
            else:
                self.position = arithmetic.subscript(index, text)

    def values(self, shell: Shell) -> list[str]:
        """Return all values of a list."""
        if self.name in ("@", "*"):
            return shell.arguments
        found = shell.array(self.name)
        return _sorted(found) if found is not None else []

    def keys(self, shell: Shell) -> list[str]:
        """Return the indices of an array."""
        found = shell.array(self.name)
        if found is None:
            return []
        return [str(one) for one in (sorted(found) if isinstance(found, Array) else found)]

    def value(self, shell: Shell) -> str | None:
        """Return the value of what is no list; None where it is not set."""
        name = self.name
        if self.position is not None:
            found = shell.array(name)
            at = self.position(shell, name)
            return found.get(at) if found is not None else None  # type: ignore[arg-type]
        if name in _SPECIAL:
            return _SPECIAL[name](shell)
        if name.isdigit():
            number = int(name)
            return shell.arguments[number - 1] if number <= len(shell.arguments) else None
        return shell.get(shell.referred(name))

    def assign(self, shell: Shell, value: str) -> None:
        """Assign, for ``${v:=x}``."""
        if self.name in _SPECIAL or self.name.isdigit() or self.each:
            raise ShellError(f"${self.name}: cannot assign in this way")
        if self.position is not None:
            arithmetic.assign_element(shell, self.name, self.position(shell, self.name), value)
        else:
            shell.set(self.name, value)


def _sorted(found: Array | Map) -> list[str]:
    if isinstance(found, Array):
        return [found[at] for at in sorted(found)]
    return list(found.values())


def _indirect(shell: Shell, inner: _Parameter) -> _Parameter:
    """Follow ``${!v}``."""
    name = inner.value(shell)
    if not name:
        raise ShellError(f"{inner.name}: invalid indirect expansion")
    element = _ELEMENT.fullmatch(name)
    if element:
        index: Node = {"Type": "Word", "Parts": [{"Type": "Lit", "Value": element[2]}]}
        return _Parameter(element[1], index)
    if not re.fullmatch(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", name):
        raise ShellError(f"{name}: invalid variable name")
    return _Parameter(name, None)


def parameter(node: Node, quoted: str) -> Emit:
    """Compile a parameter expansion; see :func:`btrfs_model.shell.expansion.words.part`."""
    name = node["Param"]["Value"]
    inner = _Parameter(name, node.get("Index"))
    if "Names" in node:
        return _emit_list(lambda shell: sorted(one for one in shell.values if one.startswith(name)),
                          node["Names"].lstrip("!"), quoted)  # fmt: skip
    if node.get("Excl") and inner.each and name not in ("@", "*"):
        return _emit_list(inner.keys, inner.each, quoted)
    if node.get("Width"):
        raise UnknownError("${%name}: bash does not have it")
    change = _change(node)
    operation = node.get("Exp", {}).get("Op", "")
    if node.get("Length"):
        return _emit_text(_length(inner), quoted)
    if operation and operation[-1] in "-+=?" and operation not in ("@",):
        return _conditional(node, inner, quoted)
    slice_ = _slice(node["Slice"]) if "Slice" in node else None
    indirect = bool(node.get("Excl"))

    def emit(shell: Shell, builder: Builder) -> None:
        target = _indirect(shell, inner) if indirect else inner
        if target.each:
            values = target.values(shell)
            if slice_ is not None:
                values = slice_(shell, target, values)
            if change is not None:
                values = [change(shell, one, target) for one in values]
            _add_list(shell, builder, values, target.each, quoted)
            return
        value = target.value(shell)
        if value is None:
            if "nounset" in shell.options and operation != "@":
                raise ShellError(f"{target.name}: unbound variable")
            if operation != "@":
                value = ""
        if value is not None and slice_ is not None:
            value = slice_(shell, target, value)
        if change is not None:
            value = change(shell, value, target)
        if quoted:
            builder.add(value or "", True)
        else:
            builder.expanded(value or "")

    return emit


def _add_list(
    shell: Shell, builder: Builder, values: Sequence[str], each: str, quoted: str
) -> None:
    if (quoted and each == "*") or (not builder.splitting and each == "*"):
        ifs = shell.values.get("IFS", " ")
        between = ifs[:1] if isinstance(ifs, str) else " "
        if quoted:
            builder.add(between.join(values), True)
        else:
            builder.expanded(between.join(values))
    else:
        builder.several(values, bool(quoted))


def _emit_list(find: Callable[[Shell], list[str]], each: str, quoted: str) -> Emit:
    return lambda shell, builder: _add_list(shell, builder, find(shell), each, quoted)


def _emit_text(find: Callable[[Shell], str], quoted: str) -> Emit:
    if quoted:
        return lambda shell, builder: builder.add(find(shell), True)
    return lambda shell, builder: builder.expanded(find(shell))


def _length(inner: _Parameter) -> Callable[[Shell], str]:
    def find(shell: Shell) -> str:
        if inner.each:
            return str(len(inner.values(shell)))
        value = inner.value(shell)
        if value is None and "nounset" in shell.options:
            raise ShellError(f"{inner.name}: unbound variable")
        return str(len(value or ""))

    return find


def _conditional(node: Node, inner: _Parameter, quoted: str) -> Emit:
    """Compile ``${v:-word}`` and its kin."""
    operation = node["Exp"]["Op"]
    word = node["Exp"].get("Word") or {"Parts": []}
    inside = "quotes" if quoted == "quotes" else quoted
    emits = [part(one, inside) for one in word.get("Parts", [])]
    whole = text(word)
    indirect = bool(node.get("Excl"))

    def emit(shell: Shell, builder: Builder) -> None:
        target = _indirect(shell, inner) if indirect else inner
        if target.each:
            values = target.values(shell)
            is_set = bool(values)
            is_null = not any(values) if len(values) < 2 else False
        else:
            value = target.value(shell)
            is_set, is_null = value is not None, not value
        there = is_set and not (operation[0] == ":" and is_null)
        kind = operation[-1]
        if there != (kind == "+"):
            if kind == "+":
                if quoted and target.each != "@":
                    builder.add("", True)  # an empty word is there all the same
                return
            if target.each:
                _add_list(shell, builder, values, target.each, quoted)
            elif quoted:
                builder.add(value or "", True)
            else:
                builder.expanded(value or "")
            return
        if kind == "=":
            new = whole(shell)
            target.assign(shell, new)
            if quoted:
                builder.add(new, True)
            else:
                builder.expanded(new)
        elif kind == "?":
            told = whole(shell) or "parameter null or not set"
            raise ShellError(f"{target.name}: {told}")
        else:
            _emit_word(shell, builder, emits, word, bool(quoted))

    return emit


def _emit_word(
    shell: Shell, builder: Builder, emits: Sequence[Emit], word: Node, quoted: bool
) -> None:
    """Add the word of ``${v:-word}``: its unquoted literals are split, too."""
    parts = word.get("Parts", [])
    if quoted:
        if not parts:
            builder.add("", True)
        for emit in emits:
            emit(shell, builder)
        return

    for node, emit in zip(parts, emits, strict=True):
        if node["Type"] == "Lit":
            for one, is_quoted in pieces(node["Value"]):
                if is_quoted:
                    builder.add(one, True)
                else:
                    builder.expanded(one)
        else:
            emit(shell, builder)


def _slice(node: Node) -> Callable[[Shell, _Parameter, Any], Any]:
    offset = expression(node["Offset"]) if node.get("Offset") else lambda shell: 0
    length = expression(node["Length"]) if node.get("Length") else None

    def cut(shell: Shell, target: _Parameter, value: Any) -> Any:
        start = offset(shell)
        size = length(shell) if length is not None else None
        if not target.each:
            start = start + len(value) if start < 0 else start
            if start < 0 or start > len(value):
                return ""
            if size is None:
                return value[start:]
            end = len(value) + size if size < 0 else start + size
            if end < start:
                raise ShellError(f"{size}: substring expression < 0")
            return value[start:end]
        if size is not None and size < 0:
            raise ShellError(f"{size}: substring expression < 0")
        if target.name in ("@", "*"):
            whole = [shell.name, *value]
            start = start + len(whole) if start < 0 else start
            if start < 0:
                return []
            if start == 0 and size is None:
                return whole
            return whole[start : None if size is None else start + size]
        found = shell.array(target.name)
        if isinstance(found, Array):
            start = start + max(found, default=-1) + 1 if start < 0 else start
            if start < 0:
                return []
            value = [found[at] for at in sorted(found) if at >= start]
            return value if size is None else value[:size]
        return value[start : None if size is None else start + size]

    return cut


def _change(node: Node) -> Callable[[Shell, str | None, _Parameter], str] | None:
    """Return what an operation makes of each value."""
    if "Repl" in node:
        return _replacement(node["Repl"])
    if "Exp" not in node:
        return None
    operation, word = node["Exp"]["Op"], node["Exp"].get("Word") or {"Parts": []}
    if operation in ("#", "##", "%", "%%"):
        found = pattern(word)
        cut = patterns.without_prefix if operation[0] == "#" else patterns.without_suffix
        return lambda shell, value, _: cut(found(shell), value or "", len(operation) > 1)
    if operation in ("^", "^^", ",", ",,"):
        which = pattern(word) if word["Parts"] else None
        to = str.upper if operation[0] == "^" else str.lower
        every = len(operation) > 1

        def cased(shell: Shell, value: str | None, _: _Parameter) -> str:
            value = value or ""
            of = which(shell) if which else "?"
            size = len(value) if every else 1
            changed = [to(one) if patterns.matches(shell, of, one) else one for one in value[:size]]
            return "".join(changed) + value[size:]

        return cased
    if operation == "@":
        return _transformed(text(word))
    if operation[-1] in "-+=?":
        return None
    raise UnknownError(f"${{{node['Param']['Value']}{operation}}}: this expansion is not known")


def _replacement(node: Node) -> Callable[[Shell, str | None, _Parameter], str]:
    original = node.get("Orig") or {"Parts": []}
    parts = list(original.get("Parts", []))
    kind = "all" if node.get("All") else "first"
    first = parts[0] if parts else {"Type": ""}
    if kind == "first" and first["Type"] == "Lit" and first["Value"][:1] in ("#", "%"):
        kind = first["Value"][0]
        parts[0] = {**first, "Value": first["Value"][1:]}
    find = pattern({"Parts": parts})
    new = replacement(node["With"]) if node.get("With") else lambda shell: ""

    def replace(shell: Shell, value: str | None, _: _Parameter) -> str:
        return patterns.replaced(find(shell), value or "", new(shell), kind,
                                 "nocasematch" in shell.options)  # fmt: skip

    return replace


def _transformed(which: Callable[[Shell], str]) -> Callable[[Shell, str | None, _Parameter], str]:
    """Compile ``${v@Q}`` and its kin."""

    def change(shell: Shell, value: str | None, target: _Parameter) -> str:
        operation = which(shell)
        if operation == "a":
            held = shell.values.get(target.name)
            letters = "a" if isinstance(held, Array) else "A" if isinstance(held, Map) else ""
            return letters + "".join(sorted(shell.marks.get(target.name, "")))
        if value is None:
            return ""
        if operation == "Q":
            return single_quote(value)
        if operation == "E":
            return ansi_c(value)
        if operation == "A":
            marks = "".join(sorted(shell.marks.get(target.name, "")))
            before = f"declare -{marks} " if marks else ""
            return f"{before}{target.name}={single_quote(value)}"
        if operation in ("U", "L", "u"):
            return {"U": value.upper(), "L": value.lower(),
                    "u": value[:1].upper() + value[1:]}[operation]  # fmt: skip
        if operation in ("K", "k"):
            return double_quote(value)
        raise UnknownError(f"${{{target.name}@{operation}}}: this expansion is not known")

    return change


EXPANSIONS["ParamExp"] = parameter
