# SPDX-License-Identifier: GPL-2.0-only
"""``declare``, ``local``, ``export``, ``readonly``, ``typeset``, ``nameref``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.shell.ansi import double_quote
from btrfs_model.shell.expansion import words
from btrfs_model.shell.parse import Node
from btrfs_model.shell.simple import assigned
from btrfs_model.shell.state import Array, Map, ShellError, UnknownError

if TYPE_CHECKING:
    from btrfs_model.shell.state import Run, Shell

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_LETTERS: Final = set("aAilnrtuxgfFpI")


def declaration(node: Node) -> Run:
    """Compile a declaration, whose assignments are not split."""
    variant, line = node["Variant"]["Value"], node["Pos"]["Line"]
    parts: list[tuple[str, Any, Any]] = []
    for one in node.get("Args") or []:
        if one.get("Name"):
            name = one["Name"]["Value"]
            sets = not one.get("Naked")
            parts.append((name, assigned(one, name) if sets else None, "Array" in one))
        elif one.get("Value"):
            parts.append(("", words.fields(one["Value"]), False))

    def run(shell: Shell) -> int:
        shell.line = line
        flags, removed = set(_DEFAULT[variant]), set[str]()
        named: list[tuple[str, Any, bool]] = []
        for name, what, is_array in parts:
            if name:
                named.append((name, what, is_array))
                continue
            for word in [what] if isinstance(what, str) else what(shell):
                if word == "--":
                    continue
                if word[:1] in "-+" and len(word) > 1 and not named:
                    _take(variant, word, flags, removed)
                else:
                    named.append(_loose(shell, word))
        return declare(shell, variant, flags, removed, named)

    return run


_DEFAULT: Final = {"declare": "", "typeset": "", "local": "", "export": "x", "readonly": "r",
                   "nameref": "n"}  # fmt: skip


def _take(variant: str, word: str, flags: set[str], removed: set[str]) -> None:
    for letter in word[1:]:
        if letter not in _LETTERS and not (variant == "export" and letter in "n"):
            raise UnknownError(f"{variant}: {word}: this option is not known")
        if variant == "export" and letter == "n":
            flags.discard("x")
            removed.add("x")
        elif word[0] == "-":
            flags.add(letter)
        else:
            removed.add(letter)


def _loose(shell: Shell, word: str) -> tuple[str, Any, bool]:
    """Take a word that an expansion made: ``name`` or ``name=value``."""
    name, equals, value = word.partition("=")
    append = name.endswith("+")
    name = name.removesuffix("+")
    if not _NAME.fullmatch(name):
        raise ShellError(f"`{word}': not a valid identifier")
    if not equals:
        return name, None, False

    def assign(shell: Shell) -> None:
        old = shell.get(name) or "" if append else ""
        shell.set(name, old + value)

    return name, assign, False


def declare(
    shell: Shell, variant: str, flags: set[str], removed: set[str],
    named: Sequence[tuple[str, Callable[[Shell], None] | None, bool]],
) -> int:  # fmt: skip
    """Do what a declaration says; return its status."""
    if variant == "local" and not shell.scopes:
        shell.complain("local: can only be used in a function")
        shell.status = 1
        return 1
    if "f" in flags or "F" in flags:
        shell.status = _functions(shell, flags, [name for name, _, _ in named])
        return shell.status
    if ("p" in flags and named) or not named:
        shell.status = _print(shell, variant, flags, [name for name, _, _ in named])
        return shell.status
    is_local = variant == "local" or (
        variant in ("declare", "typeset") and bool(shell.scopes) and "g" not in flags
    )
    status = 0
    for name, assign, is_array in named:
        is_new = is_local and name not in shell.scopes[-1]
        if "r" in shell.marks.get(name, "") and (assign is not None or is_new):
            before = "" if variant in ("export", "readonly") else f"{variant}: "
            shell.complain(f"{before}{name}: readonly variable")
            status = 1
            continue
        if is_local:
            _make_local(shell, name, assign)
        old = shell.values.get(name)
        if "A" in flags and not isinstance(old, Map):
            shell.values[name] = Map()
        elif ("a" in flags or is_array) and not isinstance(old, Array | Map):
            shell.values[name] = Array() if old is None else Array({0: str(old)})
        marks = "".join(one for one in flags if one in "ilnutx")
        if "n" in flags:
            if assign is not None:
                assign(shell)
            shell.mark(name, "n")
            continue
        if marks:
            shell.mark(name, marks)
        for letter in removed:
            shell.marks[name] = shell.marks.get(name, "").replace(letter, "")
        if assign is not None:
            assign(shell)
        if "r" in flags:
            shell.mark(name, "r")
        if not shell.marks.get(name):
            shell.marks.pop(name, None)
    shell.status = status
    return status


def _make_local(shell: Shell, name: str, assign: Any) -> None:
    old = shell.values.get(name)
    scope = shell.scopes[-1]
    if name in scope:
        return
    if assign is not None:
        # the value outside is seen while the new one is made
        scope[name] = (old, shell.marks.get(name))
        shell.marks.pop(name, None)
        if isinstance(old, Array | Map):
            shell.values.pop(name)
        return
    shell.local(name)


def _functions(shell: Shell, flags: set[str], names: Sequence[str]) -> int:
    status = 0
    for name in names or sorted(shell.functions):
        if name not in shell.functions:
            status = 1
        elif "F" in flags:
            shell.write(f"{name}\n" if names else f"declare -f {name}\n")
        elif "p" in flags or not names:
            raise UnknownError("declare -f: the text of a function is not kept")
    return status


def _print(shell: Shell, variant: str, flags: set[str], names: Sequence[str]) -> int:
    status = 0
    chosen = names or sorted(shell.values)
    for name in chosen:
        marks = shell.marks.get(name, "")
        value = shell.values.get(name)
        if value is None:
            if name in names and not marks:
                shell.complain(f"{variant}: {name}: not found")
                status = 1
            continue
        if not names and variant in ("export", "readonly") and _DEFAULT[variant] not in marks:
            continue
        letters = "".join(one for one in "aAilnrtux" if one in marks)
        if isinstance(value, Array):
            letters = "a" + letters
            inner = " ".join(f"[{at}]={double_quote(value[at])}" for at in sorted(value))
            text = f"({inner})"
        elif isinstance(value, Map):
            letters = "A" + letters
            inner = "".join(f"[{_key(key)}]={double_quote(one)} " for key, one in value.items())
            text = f"({inner})"
        else:
            text = double_quote(value)
        if names or variant != "declare" or flags & {"p"}:
            shell.write(f"declare -{letters or '-'} {name}={text}\n")
        else:
            shell.write(f"{name}={value if isinstance(value, str) else text}\n")
    return status


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w./:-]+", key) else double_quote(key)
