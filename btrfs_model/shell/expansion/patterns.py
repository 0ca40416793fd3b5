# SPDX-License-Identifier: GPL-2.0-only
"""Patterns: of names, as ``case`` and ``${v%x}`` take them, and of paths; braces."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from btrfs_model.shell.state import Shell

_CLASSES: Final = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z",
                   "lower": "a-z", "space": r"\s", "blank": r" \t", "punct": r"!-/:-@\[-`{-~",
                   "xdigit": "0-9A-Fa-f", "print": r"\x20-\x7e", "graph": r"\x21-\x7e",
                   "cntrl": r"\x00-\x1f\x7f", "word": r"\w"}  # fmt: skip
ACTIVE: Final = re.compile(r"[*?\[\\]|[?*+@!]\(")
"""What makes a pattern of a text."""
_EXTENDED: Final = "?*+@!"
_QUOTED: Final = re.compile(r"([*?\[\]\\()|!+@{}\-^])")


def quoted(text: str) -> str:
    """Return the pattern of a text itself."""
    return _QUOTED.sub(r"\\\1", text)


def unquoted(pattern: str) -> str:
    """Take the backslashes of a pattern away."""
    return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)


class _AllBut:
    """A pattern with ``!( )``: what is before it, what it may not be, and what is behind it."""

    def __init__(self, matchers: Sequence[Matcher], period: bool) -> None:
        self._before, self._never, self._after = matchers
        self._period = period

    def fullmatch(self, text: str, start: int = 0, end: int = 1 << 62) -> bool:
        """Whether a part of a text is matched: some part of it that is none of the patterns."""
        end = min(end, len(text))
        if self._period and text.startswith("."):
            return False
        return any(
            self._after.fullmatch(text, last, end) and not self._never.fullmatch(text, first, last)
            for first in range(start, end + 1)
            if self._before.fullmatch(text, start, first)
            for last in range(first, end + 1)
        )


Matcher: TypeAlias = "re.Pattern[str] | _AllBut"


@functools.lru_cache(4096)
def expression(pattern: str, nocase: bool = False, period: bool = False) -> Matcher:
    """Make a regular expression of a pattern.

    Parameters
    ----------
    pattern : str
        With backslashes before what is quoted.
    nocase : bool, optional
        Whether letters match in both cases.
    period : bool, optional
        Whether a leading period is matched by a period alone, as in names of files.
    """
    if parts := _around(pattern):
        before, never, after = parts
        matchers = [expression(one, nocase) for one in (before, never, after)]
        return _AllBut(matchers, period and before[:1] not in (".", "\\"))
    text, end = _translated(pattern, 0, "")
    assert end == len(pattern)
    if period and not pattern.startswith((".", "\\.")):
        text = r"(?!\.)" + text
    return re.compile(text, re.DOTALL | (re.IGNORECASE if nocase else 0))


def _around(pattern: str) -> tuple[str, str, str] | None:
    """Return what is before the first ``!( )`` of a pattern, a pattern of its list, and the rest.

    None where there is none, or it is in brackets or in another group.
    """
    at = 0
    while at < len(pattern):
        if pattern[at] == "[" and (brackets := _brackets(pattern, at + 1)):
            at = brackets[1]
        elif pattern[at] in _EXTENDED and pattern[at + 1 : at + 2] == "(":
            group = _group(pattern, at)
            if group and pattern[at] == "!":
                return pattern[:at], "@" + pattern[at + 1 : group[1]], pattern[group[1] :]
            at = group[1] if group else at + 1
        else:
            at += 1 + (pattern[at] == "\\")
    return None


def _translated(pattern: str, at: int, until: str) -> tuple[str, int]:
    """Translate up to one of some characters; return what it is, and where it ends."""
    found: list[str] = []
    while at < len(pattern):
        char = pattern[at]
        if char in until:
            break
        if char in _EXTENDED and pattern[at + 1 : at + 2] == "(" and (group := _group(pattern, at)):
            text, at = group
            found.append(text)
            continue
        at += 1
        if char == "\\" and at < len(pattern):
            found.append(re.escape(pattern[at]))
            at += 1
        elif char == "*":
            if not found or found[-1] != ".*":
                found.append(".*")
        elif char == "?":
            found.append(".")
        elif char == "[" and (brackets := _brackets(pattern, at)):
            text, at = brackets
            found.append(text)
        else:
            found.append(re.escape(char))
    return "".join(found), at


def _group(pattern: str, at: int) -> tuple[str, int] | None:
    """Translate ``@(a|b)`` and its kin."""
    kind, at = pattern[at], at + 2
    parts = []
    while True:
        text, at = _translated(pattern, at, "|)")
        parts.append(text)
        if at >= len(pattern):
            return None
        at += 1
        if pattern[at - 1] == ")":
            break
    inner = "|".join(parts)
    if kind == "!":
        # what follows in the pattern decides how much it is, as in bash: all but a match
        rest, _ = _translated(pattern, at, "|)")
        return f"(?!(?:{inner}){rest}\\Z).*", at
    return f"(?:{inner}){'' if kind == '@' else kind}", at


def _brackets(pattern: str, at: int) -> tuple[str, int] | None:
    """Translate what follows ``[``; None where it is not closed."""
    start = at
    negated = pattern[at : at + 1] in ("!", "^") and pattern[at : at + 1] != ""
    at += negated
    found = ""
    first = True
    while at < len(pattern):
        char = pattern[at]
        if char == "]" and not first:
            if not found:
                return None
            return f"[{'^' if negated else ''}{found}]", at + 1
        first = False
        if char == "[" and pattern[at + 1 : at + 2] == ":":
            end = pattern.find(":]", at)
            name = pattern[at + 2 : end]
            if end > 0 and name in _CLASSES:
                found += _CLASSES[name]
                at = end + 2
                continue
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            found += re.escape(pattern[at])
        elif char == "-" and found and pattern[at + 1 : at + 2] not in ("]", ""):
            upper = pattern[at + 1]
            if upper < pattern[at - 1] or at - 1 < start:
                return "(?!)", pattern.find("]", at) + 1
            found += "-"
        else:
            found += re.escape(char)
        at += 1
    return None


def matches(shell: Shell, pattern: str, text: str) -> bool:
    """Whether a pattern matches a whole text."""
    if not ACTIVE.search(pattern) and "nocasematch" not in shell.options:
        return pattern == text
    return bool(expression(pattern, "nocasematch" in shell.options).fullmatch(text))


def without_prefix(pattern: str, text: str, longest: bool) -> str:
    """Take a prefix away (``${v#x}``, ``${v##x}``)."""
    if not ACTIVE.search(pattern):
        return text.removeprefix(pattern)
    compiled = expression(pattern)
    ends = range(len(text), -1, -1) if longest else range(len(text) + 1)
    for end in ends:
        if compiled.fullmatch(text, 0, end):
            return text[end:]
    return text


def without_suffix(pattern: str, text: str, longest: bool) -> str:
    """Take a suffix away (``${v%x}``, ``${v%%x}``)."""
    if not ACTIVE.search(pattern):
        return text.removesuffix(pattern) if pattern else text
    compiled = expression(pattern)
    starts = range(len(text) + 1) if longest else range(len(text), -1, -1)
    for start in starts:
        if compiled.fullmatch(text, start):
            return text[:start]
    return text


_SPECIAL: Final = re.compile(r"\\([\\&])|&")


def unmatched(text: str) -> str:
    """Return what takes the place of a match, and is that text."""
    return re.sub(r"([\\&])", r"\\\1", text)


def _put(new: str, match: str) -> str:
    return _SPECIAL.sub(lambda found: found[1] or match, new)


def replaced(pattern: str, text: str, new: str, kind: str, nocase: bool) -> str:
    """Replace the longest matches (``${v/x/y}``); kind: first, all, ``#`` or ``%``.

    `new`: ``&`` in it is the match, where no backslash stands before it.
    """
    if not pattern and kind not in ("#", "%"):
        return text
    compiled = expression(pattern, nocase)
    if kind == "%":
        for start in range(len(text) + 1):
            if compiled.fullmatch(text, start):
                return text[:start] + _put(new, text[start:])
        return text
    found, at = [], 0
    while at <= len(text):
        end = next((end for end in range(len(text), at - 1, -1)
                    if compiled.fullmatch(text, at, end)), -1)  # fmt: skip
        if end >= 0 and (end > at or not text):
            found.append(_put(new, text[at:end]))
            at = end
            if kind != "all" or not text:
                break
            continue
        if kind == "#":
            if end == at:  # an empty match at the start
                found.append(_put(new, ""))
            break
        found.append(text[at : at + 1])
        at += 1
    return "".join(found) + text[at:]


# ------------------------------------------------------------------------------------ paths --


def paths(shell: Shell, pattern: str) -> list[str]:
    """Return the paths that match a pattern, sorted by their bytes; none where nothing does."""
    rooted = pattern.startswith("/")
    parts = pattern.split("/")
    found = ["/"] if rooted else [""]
    if rooted:
        parts = parts[1:]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if not part:
            if last:
                found = [one if one.endswith("/") else one + "/" for one in found
                         if _is_folder(shell, one)]  # fmt: skip
            continue
        found = list(_stepped(shell, found, part, last))
        if not found:
            return []
    return sorted(found, key=lambda one: one.encode("utf-8", "surrogateescape"))


def _is_folder(shell: Shell, path: str) -> bool:
    seen = shell.world.stat(path or ".")
    return seen is not None and seen.is_dir


def _stepped(shell: Shell, folders: Sequence[str], part: str, last: bool) -> Iterator[str]:
    active = ACTIVE.search(part.replace("\\", "")) is not None and ACTIVE.search(part) is not None
    compiled = expression(part, "nocaseglob" in shell.options, "dotglob" not in shell.options)
    for folder in folders:
        before = folder if not folder or folder.endswith("/") else folder + "/"
        if not active:
            path = before + unquoted(part)
            if shell.world.stat(path, follow=not last) is not None:
                yield path
            continue
        try:
            names = shell.world.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if compiled.fullmatch(name) and (last or _is_folder(shell, before + name)):
                yield before + name


# ----------------------------------------------------------------------------------- braces --


def ranged(text: str) -> list[str] | None:
    """Return what ``{1..5}``, ``{a..e}`` or ``{01..10..2}`` stands for; None: it is no range."""
    numbers = re.fullmatch(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?", text)
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        step = abs(int(numbers[3] or 1)) or 1
        width = 0
        if any(re.match(r"-?0\d", numbers[which]) for which in (1, 2)):
            width = max(len(numbers[1]), len(numbers[2]))
        ordered = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
        return [f"{one:0{width}d}" for one in ordered]
    letters = re.fullmatch(r"([a-zA-Z])\.\.([a-zA-Z])(?:\.\.(-?\d+))?", text)
    if letters:
        start, end = ord(letters[1]), ord(letters[2])
        step = abs(int(letters[3] or 1)) or 1
        codes = range(start, end + 1, step) if end >= start else range(start, end - 1, -step)
        return [chr(one) for one in codes]
    return None
