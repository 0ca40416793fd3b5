# SPDX-License-Identifier: GPL-2.0-only
"""Backslashes: of ``$'...'``, ``echo -e`` and ``printf``; and how bash quotes a text again."""

from __future__ import annotations

import re
from typing import Final

_SIMPLE: Final = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r",
                  "t": "\t", "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?"}  # fmt: skip
_ANSI: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))",
    re.DOTALL,
)
_ECHO: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|0([0-7]{0,3})|(c)|(.))",
    re.DOTALL,
)
_PLAIN: Final = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def _byte(value: int) -> str:
    return bytes([value & 255]).decode("utf-8", "surrogateescape")


def _value(found: re.Match[str]) -> str:
    """Return what a backslash and what follows it stand for, if that is no control character."""
    if found[1]:
        return _byte(int(found[1], 16))
    if found[2] or found[3]:
        return chr(int(found[2] or found[3], 16))
    if found[4]:
        return _byte(int(found[4], 8))
    return _SIMPLE.get(found[6], "\\" + found[6])


def ansi_c(text: str) -> str:
    """Return what ``$'text'`` stands for."""
    joined = _ANSI.sub(lambda one: chr(ord(one[5]) & 31) if one[5] else _value(one), text)
    return joined.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def echoed(text: str, octal_without_zero: bool = False) -> tuple[str, bool]:
    r"""Return what ``echo -e`` writes for a text, and whether a ``\\c`` ended it."""
    ended = False
    found: list[str] = []
    at = 0
    expression = _ANSI if octal_without_zero else _ECHO
    for one in expression.finditer(text):
        found.append(text[at : one.start()])
        at = one.end()
        if one[1]:
            found.append(_byte(int(one[1], 16)))
        elif one[2] or one[3]:
            found.append(chr(int(one[2] or one[3], 16)))
        elif one[4] is not None:
            found.append(_byte(int(one[4] or "0", 8)))
        elif one[5]:
            if octal_without_zero:
                found.append(one[0])
                continue
            ended = True
            break
        else:
            known = _SIMPLE.get(one[6])
            found.append(known if known is not None and one[6] not in "'\"?" else "\\" + one[6])
    if not ended:
        found.append(text[at:])
    return "".join(found), ended


def printf_format(text: str) -> str:
    r"""Return what the backslashes of a format of ``printf`` stand for; \\c is left alone."""
    return _ANSI.sub(lambda one: one[0] if one[5] else _value(one), text)


def quote(text: str) -> str:
    """Quote a text as ``printf %q`` does."""
    if not text:
        return "''"
    if _CONTROL.search(text):
        return ansi_quote(text)
    return re.sub(r"([^\w@%+=:./\u0080-\U0010ffff-])", r"\\\1", text)


def single_quote(text: str) -> str:
    """Quote a text as ``${v@Q}`` and ``declare -p`` do with apostrophes."""
    if _CONTROL.search(text):
        return ansi_quote(text)
    return "'" + text.replace("'", "'\\''") + "'"


def double_quote(text: str) -> str:
    """Quote a text as ``declare -p`` does."""
    if _CONTROL.search(text):
        return ansi_quote(text)
    return '"' + re.sub(r'([$`"\\])', r"\\\1", text) + '"'


def ansi_quote(text: str) -> str:
    """Quote a text with control characters as ``$'...'``."""
    names = {"\a": "a", "\b": "b", "\x1b": "E", "\f": "f", "\n": "n", "\r": "r", "\t": "t",
             "\v": "v", "\\": "\\", "'": "'"}  # fmt: skip
    found = [f"\\{names[one]}" if one in names
             else f"\\{ord(one):03o}" if ord(one) < 32 or ord(one) == 127 else one
             for one in text]  # fmt: skip
    return "$'" + "".join(found) + "'"


def trace_quote(text: str) -> str:
    """Quote a word as ``set -x`` shows it."""
    if text and _PLAIN.fullmatch(text):
        return text
    return single_quote(text) if text else "''"
