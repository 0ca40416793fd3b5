# SPDX-License-Identifier: GPL-2.0-only
"""``printf``."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import Final

from btrfs_model.shell.ansi import echoed, printf_format, quote

_DIRECTIVE: Final = re.compile(
    r"%(?P<flags>[-+ #0']*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d*))?"
    r"(?P<length>hh|h|ll|l|L|q|j|z|t)?"
    r"(?P<kind>\([^)]*\)T|[diouxXeEfFgGaAcsbqQ%])",
    re.DOTALL,
)


class _EndedError(Exception):
    r"""A ``\\c`` ends the output."""


class _Arguments:
    def __init__(self, values: Sequence[str]) -> None:
        self.values, self.at = values, 0
        self.faults: list[str] = []

    def text(self) -> str | None:
        if self.at >= len(self.values):
            return None
        self.at += 1
        return self.values[self.at - 1]

    def number(self) -> int:
        told = self.text()
        if told is None or told == "":
            return 0
        if told[0] in "'\"":
            return ord(told[1]) if len(told) > 1 else 0
        found = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|\d+)", told)
        if not found:
            self.faults.append(f"{told}: invalid number")
            return 0
        digits = found[2]
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
        value = int(digits[2:] if base == 16 else digits, base)
        if found.end() < len(told):
            self.faults.append(f"{told}: invalid number")
        value = -value if found[1] == "-" else value
        return max(-(1 << 63), min(value, (1 << 64) - 1))

    def real(self) -> float:
        told = self.text()
        try:
            return float(told or 0)
        except ValueError:
            self.faults.append(f"{told}: invalid number")
            found = re.match(r"[+-]?\d*\.?\d+", told or "")
            return float(found[0]) if found else 0.0


def formatted(form: str, values: Sequence[str], now: float) -> tuple[str, list[str]]:
    """Return what ``printf`` writes, and what it complains of."""
    arguments = _Arguments(values)
    found: list[str] = []
    try:
        while True:
            before = arguments.at
            for one in _once(form, arguments, now):
                found.append(one)
            if arguments.at >= len(values) or arguments.at == before:
                break
    except _EndedError:
        pass
    return "".join(found), arguments.faults


def _once(form: str, arguments: _Arguments, now: float) -> Iterator[str]:
    at = 0
    while at < len(form):
        percent = form.find("%", at)
        end = len(form) if percent < 0 else percent
        if end > at:
            text = form[at:end]
            stop = re.search(r"(?<!\\)(?:\\\\)*\\c", text)
            if stop:
                yield printf_format(text[: stop.end() - 2])
                raise _EndedError
            yield printf_format(text)
        if percent < 0:
            return
        directive = _DIRECTIVE.match(form, percent)
        if directive is None:
            arguments.faults.append(
                f"`{form[percent + 1 : percent + 2]}': invalid format character"
            )
            raise _EndedError
        at = directive.end()
        yield from _directive(directive, arguments, now)


def _directive(found: re.Match[str], arguments: _Arguments, now: float) -> Iterator[str]:
    kind, flags = found["kind"], found["flags"].replace("'", "")
    if kind == "%":
        yield "%"
        return
    width = str(arguments.number()) if found["width"] == "*" else found["width"] or ""
    if width.startswith("-"):
        flags, width = flags + "-", width[1:]
    precision = found["precision"]
    if precision == "*":
        precision = str(arguments.number())
    dot = "" if precision is None else f".{precision}"
    if kind in "sbqQ":
        text = arguments.text() or ""
        ended = False
        if kind == "b":
            text, ended = echoed(text, octal_without_zero=False)
            text = _octal(text)
        elif kind in "qQ":
            text = quote(text)
        yield _field(text, flags, width, precision)
        if ended:
            raise _EndedError
    elif kind == "c":
        # of no character it is the zero at its end
        yield _field(arguments.text() or "\0", flags, width, "1")
    elif kind in "di":
        yield _integer(f"%{flags}{width}{dot}d", arguments.number(), precision, flags)
    elif kind in "ouxX":
        value = arguments.number() & ((1 << 64) - 1)
        yield _unsigned(kind, flags, width, precision, value)
    elif kind.endswith("T"):
        told = arguments.text()
        when = now if told in (None, "", "-1", "-2") else float(told)
        moment = datetime.datetime.fromtimestamp(when, datetime.UTC)
        yield moment.strftime(kind[1:-2] or "%X").rjust(int(width or 0))
    else:
        value_ = arguments.real()
        if kind in "aA":
            yield float.hex(value_)
        else:
            yield f"%{flags}{width}{dot}{kind}" % value_


def _field(text: str, flags: str, width: str, precision: str | None) -> str:
    """Cut a text, and fill it up; both count bytes."""
    data = text.encode("utf-8", "surrogateescape")
    if precision is not None:
        data = data[: int(precision or 0)]
    data = data.ljust(int(width or 0)) if "-" in flags else data.rjust(int(width or 0))
    return data.decode("utf-8", "surrogateescape")


def _octal(text: str) -> str:
    return re.sub(r"\\([1-7][0-7]{0,2})",
                  lambda one: bytes([int(one[1], 8) & 255]).decode("utf-8", "surrogateescape"),
                  text)  # fmt: skip


def _integer(form: str, value: int, precision: str | None, flags: str) -> str:
    if precision is not None and "0" in flags:
        form = form.replace("0", "", 1) if form[1] == "0" else form
    if precision is not None and not int(precision or 0) and not value:
        return ""
    return form % value


def _unsigned(kind: str, flags: str, width: str, precision: str | None, value: int) -> str:
    digits = {"o": f"{value:o}", "u": str(value), "x": f"{value:x}", "X": f"{value:X}"}[kind]
    if precision is not None:
        digits = digits.rjust(int(precision or 0), "0")
    before = ""
    if "#" in flags and value:
        before = {"o": "0", "x": "0x", "X": "0X"}.get(kind, "")
    size = int(width or 0)
    if "-" in flags:
        return (before + digits).ljust(size)
    if "0" in flags and precision is None:
        return before + digits.rjust(size - len(before), "0")
    return (before + digits).rjust(size)
