# SPDX-License-Identifier: GPL-2.0-only
"""Words: expansions, splitting, pathnames. A word becomes a closure of its kind.

Of a word in a command come fields (:func:`fields`), of one in an assignment, a redirection or a
here document a text (:func:`text`), of one in a ``case`` a pattern (:func:`pattern`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.shell.ansi import ansi_c
from btrfs_model.shell.expansion import arithmetic, patterns
from btrfs_model.shell.expansion.braces import braces
from btrfs_model.shell.parse import Node
from btrfs_model.shell.state import ShellError, UnknownError

if TYPE_CHECKING:
    from btrfs_model.shell.state import Shell

Emit: TypeAlias = "Callable[[Shell, Builder], None]"
DEFAULT_IFS: Final = " \t\n"
_TILDES: Final = {"": "HOME", "+": "PWD", "-": "OLDPWD"}
_SPECIAL: Final = re.compile(r"[\s*?\[\\@+!(]")
"""What an unquoted value may not have if it is one field as it stands."""
_LITERAL: Final = re.compile(r"[^\\]+|\\\n|\\.|\\", re.DOTALL)
_NAMED: Final = re.compile(r"[A-Za-z_]\w*")


class Builder:
    """Fields that grow: each is a list of texts, quoted or not."""

    def __init__(self, shell: Shell, splitting: bool) -> None:
        self.done: list[list[tuple[str, bool]]] = []
        self.open: list[tuple[str, bool]] | None = None
        self.splitting = splitting
        ifs = shell.values.get("IFS", DEFAULT_IFS) if splitting else ""
        self.ifs = ifs if isinstance(ifs, str) else DEFAULT_IFS

    def add(self, text: str, quoted: bool) -> None:
        """Add to the field that is open, or open one."""
        if self.open is None:
            self.open = []
        self.open.append((text, quoted))

    def end(self) -> None:
        """End the field that is open."""
        if self.open is not None:
            self.done.append(self.open)
            self.open = None

    def expanded(self, text: str) -> None:
        """Add what an unquoted expansion gave: split at ``$IFS``."""
        if not self.splitting:
            self.add(text, False)
            return
        if not text:
            return
        if not self.ifs:
            self.add(text, False)
            return
        white = [one for one in self.ifs if one in DEFAULT_IFS]
        hard = [one for one in self.ifs if one not in DEFAULT_IFS]
        at, size = 0, len(text)
        while at < size and text[at] in white:
            at += 1
        if at:
            self.end()
        while at < size:
            start = at
            while at < size and text[at] not in self.ifs:
                at += 1
            if at > start or (self.open is None and (at >= size or text[at] in hard)):
                self.add(text[start:at], False)
            if at >= size:
                return
            seen_hard = False
            while at < size and (text[at] in white or (text[at] in hard and not seen_hard)):
                seen_hard = seen_hard or text[at] in hard
                at += 1
            self.end()

    def several(self, values: Sequence[str], quoted: bool) -> None:
        """Add a field for each value, the first and the last of them with what stands beside."""
        for number, value in enumerate(values):
            if number:
                self.end()
            if quoted:
                self.add(value, True)
            else:
                self.expanded(value)

    def finished(self) -> list[list[tuple[str, bool]]]:
        """Return all fields."""
        self.end()
        return self.done


def _joined(field: Sequence[tuple[str, bool]]) -> str:
    return "".join([text for text, _ in field])


def _pattern_of(field: Sequence[tuple[str, bool]]) -> str:
    return "".join([patterns.quoted(text) if is_quoted else text for text, is_quoted in field])


# ------------------------------------------------------------------------------------ parts --


def pieces(value: str) -> list[tuple[str, bool]]:
    """Take an unquoted literal apart: what a backslash quotes, and the rest."""
    found: list[tuple[str, bool]] = []
    for one in _LITERAL.findall(value):
        if one == "\\\n":
            continue
        if one[0] == "\\" and len(one) > 1:
            found.append((one[1:], True))
        else:
            found.append((one, False))
    return found


_IN_QUOTES: Final = re.compile(r"\\([$`\"\\\n])")
_IN_DOCUMENT: Final = re.compile(r"\\([$`\\\n])")


def _unescaped(value: str, inside: re.Pattern[str]) -> str:
    return inside.sub(lambda found: "" if found[1] == "\n" else found[1], value)


def _literal(value: str, quoted: str) -> Emit:
    if quoted:
        text = _unescaped(value, _IN_DOCUMENT if quoted == "document" else _IN_QUOTES)
        return lambda shell, builder: builder.add(text, True)
    parts = pieces(value)

    def emit(shell: Shell, builder: Builder) -> None:
        for text, is_quoted in parts:
            builder.add(text, is_quoted)

    return emit


EXPANSIONS: Final[dict[str, Callable[[Node, str], Emit]]] = {}
"""Parts of words that hold words or commands: the modules that compile these add them."""


def part(node: Node, quoted: str = "") -> Emit:
    """Compile a part of a word; quoted: empty, ``quotes`` or ``document``."""
    kind = node["Type"]
    if kind == "Lit":
        return _literal(node["Value"], quoted)
    if kind == "SglQuoted":
        text = node.get("Value", "")
        text = ansi_c(text) if node.get("Dollar") is True else text
        return lambda shell, builder: builder.add(text, True)
    if kind == "DblQuoted":
        inner = [part(one, "quotes") for one in node.get("Parts", [])]
        if not inner:
            return lambda shell, builder: builder.add("", True)
        return _quotes(inner)
    if kind == "ArithmExp":
        value = expression(node["X"])
        if quoted:
            return lambda shell, builder: builder.add(str(value(shell)), True)
        return lambda shell, builder: builder.expanded(str(value(shell)))
    if kind == "ExtGlob":
        glob = node["Op"] + node["Pattern"]["Value"] + ")"
        return lambda shell, builder: builder.add(glob, False)
    if kind in EXPANSIONS:
        return EXPANSIONS[kind](node, quoted)
    raise UnknownError(f"{kind}: this part of a word is not known")


def _quotes(inner: Sequence[Emit]) -> Emit:
    def emit(shell: Shell, builder: Builder) -> None:
        before = builder.open is None
        count = len(builder.done)
        for one in inner:
            one(shell, builder)
        # "$@" without arguments is no field; any other "" is one
        if before and builder.open is None and len(builder.done) == count and len(inner) > 1:
            builder.add("", True)

    return emit


def expression(node: Node) -> arithmetic.Expression:
    """Compile an expression with expansions in it.

    An expansion puts its text into the expression. Where that is a number or a name the tree
    holds; otherwise the text is parsed when it is met.
    """
    places: list[Node] = []
    _find_expansions(node, places)
    if not places:
        return arithmetic.compiled(node, text)
    known = {id(one): text(one) for one in places}
    values: dict[int, str] = {}

    def words(one: Node) -> Callable[[Shell], str]:
        if id(one) in known:
            return lambda shell: values[id(one)]
        return text(one)

    run = arithmetic.compiled(node, words)

    def evaluate(shell: Shell) -> int:
        found = {key: one(shell) for key, one in known.items()}
        if all(arithmetic.is_plain(value) for value in found.values()):
            outer = dict(values)
            values.update(found)
            try:
                return run(shell)
            finally:
                values.update(outer)
        return arithmetic.evaluate(shell, _written(node, found))

    return evaluate


def _find_expansions(node: Node, found: list[Node]) -> None:
    if node["Type"] == "Word":
        parts = node["Parts"]
        if any(one["Type"] != "Lit" for one in parts):
            if len(parts) == 1 and parts[0]["Type"] == "ParamExp" and "Dollar" not in parts[0]:
                return
            found.append(node)
        return
    for side in ("X", "Y"):
        if side in node:
            _find_expansions(node[side], found)


def _written(node: Node, found: dict[int, str]) -> str:
    """Write an expression with the texts of its expansions in it."""
    if id(node) in found:
        return found[id(node)]
    kind = node["Type"]
    if kind == "Word":
        one = node["Parts"][0]
        if one["Type"] == "Lit":
            return str(one["Value"])
        return f"{one['Param']['Value']}[{_written(one['Index'], found)}]"
    inner = _written(node["X"], found)
    if kind == "ParenArithm":
        return f"({inner})"
    if kind == "UnaryArithm":
        return f"{inner}{node['Op']}" if node.get("Post") else f"{node['Op']} {inner}"
    return f"{inner} {node['Op']} {_written(node['Y'], found)}"


# ------------------------------------------------------------------------------------ words --


def _tilde(parts: list[Node], assigned: bool) -> list[Node]:
    """Put a folder where a word begins with a tilde: ``$HOME``, ``$PWD`` or ``$OLDPWD``."""
    first = parts[0] if parts else None
    if first is None or first["Type"] != "Lit":
        return parts
    value = first["Value"]
    begins = re.match(r"~([+-]?)(?=[/:]|$)" if assigned else r"~([+-]?)(?=/|$)", value)
    name = _TILDES[begins[1]] if begins is not None else "HOME"
    home = {"Type": "ParamExp", "Param": {"Value": name}, "Quoted": True}
    if begins is not None and (len(parts) == 1 or begins.end() < len(value)):
        after = value[begins.end() :]
        rest = [{"Type": "Lit", "Value": after}, *parts[1:]] if after else parts[1:]
        return [home, *(_tilde(rest, assigned) if assigned else rest)]
    if assigned and ":~" in value:
        before, _, after = value.partition(":~")
        rest = _tilde([{"Type": "Lit", "Value": "~" + after}, *parts[1:]], assigned)
        return [{"Type": "Lit", "Value": before + ":"}, *rest]
    return parts


def text(word: Node, *, assigned: bool = False, document: bool = False) -> Callable[[Shell], str]:
    """Compile a word that is one text: nothing is split, no path is looked for."""
    parts = word.get("Parts", [])
    if not document:
        parts = _tilde(parts, assigned)
    if (simple := _simple(parts, document)) is not None:
        return simple
    emits = [part(one, "document" if document else "") for one in parts]

    def value(shell: Shell) -> str:
        builder = Builder(shell, splitting=False)
        for emit in emits:
            emit(shell, builder)
        return " ".join(map(_joined, builder.finished()))

    return value


def _simple(parts: Sequence[Node], document: bool) -> Callable[[Shell], str] | None:
    """Compile a text of literals and variables alone."""
    found = _flat(parts, "document" if document else "")
    if found is None:
        return None
    if not any(named for _, named, _ in found):
        constant = "".join(one for one, _, _ in found)
        return lambda shell: constant
    if len(found) == 1:
        return _variable(found[0][0])
    getters = [(_variable(one) if named else None, one) for one, named, _ in found]

    def value(shell: Shell) -> str:
        return "".join([get(shell) if get else one for get, one in getters])

    return value


def _variable(name: str) -> Callable[[Shell], str]:
    def value(shell: Shell) -> str:
        found = shell.values.get(name)
        if found.__class__ is str and name not in shell.marks:
            return found
        found = shell.get(shell.referred(name))
        if found is None:
            if "nounset" in shell.options:
                raise ShellError(f"{name}: unbound variable")
            return ""
        return found

    return value


def _flat(parts: Sequence[Node], quoted: str) -> list[tuple[str, bool, bool]] | None:
    """Return texts and names of variables, and whether each is quoted; None: there is more."""
    found: list[tuple[str, bool, bool]] = []
    for node in parts:
        kind = node["Type"]
        if kind == "Lit" and quoted:
            inside = _IN_DOCUMENT if quoted == "document" else _IN_QUOTES
            found.append((_unescaped(node["Value"], inside), False, True))
        elif kind == "Lit":
            found += [(one, False, is_quoted) for one, is_quoted in pieces(node["Value"])]
        elif kind == "SglQuoted" and node.get("Dollar") is not True:
            found.append((node.get("Value", ""), False, True))
        elif kind == "DblQuoted":
            inner = _flat(node.get("Parts", []), "quotes")
            if inner is None:
                return None
            found += inner or [("", False, True)]
        elif kind == "ParamExp" and _is_simple(node):
            found.append((node["Param"]["Value"], True, bool(quoted) or node.get("Quoted", False)))
        else:
            return None
    return found


def _is_simple(node: Node) -> bool:
    if not _NAMED.fullmatch(node["Param"]["Value"]):
        return False
    return not any(
        key in node for key in ("Index", "Excl", "Length", "Width", "Slice", "Repl", "Exp", "Names")
    )


def pattern(word: Node) -> Callable[[Shell], str]:
    """Compile a word that is a pattern: what is quoted stands for itself."""
    emits = [part(one) for one in _tilde(word.get("Parts", []), assigned=False)]

    def value(shell: Shell) -> str:
        builder = Builder(shell, splitting=False)
        for emit in emits:
            emit(shell, builder)
        return " ".join(map(_pattern_of, builder.finished()))

    return value


def replacement(word: Node) -> Callable[[Shell], str]:
    """Compile what takes the place of a match, for :func:`.patterns.replaced`."""
    emits = [part(one) for one in _tilde(word.get("Parts", []), assigned=False)]

    def value(shell: Shell) -> str:
        builder = Builder(shell, splitting=False)
        for emit in emits:
            emit(shell, builder)
        return " ".join(map(_replacement_of, builder.finished()))

    return value


def _replacement_of(field: Sequence[tuple[str, bool]]) -> str:
    has_match = any("&" in text for text, is_quoted in field if not is_quoted)
    return "".join([text if has_match and not is_quoted else patterns.unmatched(text)
                    for text, is_quoted in field])  # fmt: skip


def fields(word: Node) -> Callable[[Shell], list[str]] | str:
    """Compile a word of a command; a text where it has nothing that is expanded."""
    words = braces(word.get("Parts", []))
    if len(words) > 1:
        several = [_fields(one) for one in words]

        def all_of(shell: Shell) -> list[str]:
            found: list[str] = []
            for one in several:
                if isinstance(one, str):
                    found.append(one)
                else:
                    found += one(shell)
            return found

        return all_of
    return _fields(words[0])


def _fields(parts: list[Node]) -> Callable[[Shell], list[str]] | str:
    parts = _tilde(parts, assigned=False)
    flat = _flat(parts, "")
    active = flat is not None and any(
        not named and not is_quoted and patterns.ACTIVE.search(one)
        for one, named, is_quoted in flat
    )
    if flat is not None and not active and not any(named for _, named, _ in flat):
        return "".join(one for one, _, _ in flat)
    emits = [part(one, "quotes" if one.get("Quoted") else "") for one in parts]

    def slow(shell: Shell) -> list[str]:
        builder = Builder(shell, splitting=True)
        for emit in emits:
            emit(shell, builder)
        return _globbed(shell, builder.finished())

    if flat is None or active:
        return slow
    if len(flat) == 1:
        return _one_variable(flat[0][0], flat[0][2], slow)
    known = flat

    def fast(shell: Shell) -> list[str]:
        values = shell.values
        if "IFS" in values and values["IFS"] != DEFAULT_IFS:
            return slow(shell)
        found = []
        for one, named, is_quoted in known:
            if named:
                value = values.get(one)
                if value.__class__ is not str or one in shell.marks:
                    return slow(shell)
                if not is_quoted and (not value or _SPECIAL.search(value)):
                    return slow(shell)
                found.append(value)
            else:
                found.append(one)
        return ["".join(found)]

    return fast


def _one_variable(
    name: str, quoted: bool, slow: Callable[[Shell], list[str]]
) -> Callable[[Shell], list[str]]:
    def fast(shell: Shell) -> list[str]:
        value = shell.values.get(name)
        if value.__class__ is not str or name in shell.marks:
            return slow(shell)
        if not quoted and (not value or _SPECIAL.search(value) or "IFS" in shell.values):
            return slow(shell)
        return [value]

    return fast


def _globbed(shell: Shell, found: list[list[tuple[str, bool]]]) -> list[str]:
    """Put paths in the place of the fields that are patterns."""
    if "noglob" in shell.options:
        return [_joined(field) for field in found]
    result: list[str] = []
    for field in found:
        if not any(not quoted and patterns.ACTIVE.search(one) for one, quoted in field):
            result.append(_joined(field))
            continue
        as_pattern = _pattern_of(field)
        names = patterns.paths(shell, as_pattern) if _has_glob(as_pattern) else []
        if names:
            result += names
        elif "failglob" in shell.options:
            raise ShellError(f"no match: {_joined(field)}")
        elif "nullglob" not in shell.options or not _has_glob(as_pattern):
            result.append(_joined(field))
    return result


def _has_glob(as_pattern: str) -> bool:
    return (
        re.search(r"[*?]|\[[^/]*\]|[+@!]\(", re.sub(r"\\.", "", as_pattern, flags=re.DOTALL))
        is not None
    )
