# SPDX-License-Identifier: GPL-2.0-only
"""``read`` and ``mapfile``."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from btrfs_model.shell.expansion import arithmetic
from btrfs_model.shell.expansion.words import DEFAULT_IFS
from btrfs_model.shell.state import (
    Array,
    Map,
    UnknownError,
)

if TYPE_CHECKING:
    from btrfs_model.shell.state import Shell


def set_element(shell: Shell, name: str, value: str) -> None:
    """Assign a variable, or an element that is told as ``name[index]``."""
    element = re.fullmatch(r"(\w+)\[(.*)\]", name)
    if element is None:
        shell.set(name, value)
        return
    at: int | str = element[2]

    if not isinstance(shell.values.get(element[1]), Map):
        at = arithmetic.evaluate(shell, element[2])
    arithmetic.assign_element(shell, element[1], at, value)


def read(shell: Shell, arguments: list[str]) -> int:
    """Read a line into variables."""
    raw, end, count, array, number, exact = False, 10, -1, "", 0, False
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and len(arguments[at]) > 1:
        word, at = arguments[at], at + 1
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in "rse":
                raw = raw or letter == "r"
                continue
            if letter not in "dnNatupi":
                raise UnknownError(f"read: -{letter}: this option is not known")
            value = letters or (arguments[at] if at < len(arguments) else "")
            at += not letters
            letters = ""
            if letter == "d":
                end = value.encode("utf-8", "surrogateescape")[0] if value else 0
            elif letter in "nN":
                count, exact = int(value), letter == "N"
            elif letter == "a":
                array = value
            elif letter == "u":
                number = int(value)
    names = arguments[at:]
    if number not in shell.files:
        shell.complain(f"read: {number}: invalid file descriptor: Bad file descriptor")
        return 1
    try:
        text, ended = _line_of(shell, number, raw, end, count, exact)
    except OSError as error:
        shell.complain(f"read: read error: {number}: {os.strerror(error.errno or 0)}")
        return 1
    if array:
        shell.values[array] = Array(enumerate(_split(shell, text, 0, raw)))
    elif not names:
        shell.set("REPLY", "".join(one for one, _ in text))
    elif exact:
        shell.set(names[0], "".join(one for one, _ in text))
        for name in names[1:]:
            shell.set(name, "")
    else:
        values = _split(shell, text, len(names), raw)
        for at, name in enumerate(names):
            set_element(shell, name, values[at] if at < len(values) else "")
    return int(ended)


def _line_of(
    shell: Shell, number: int, raw: bool, end: int, count: int, exact: bool
) -> tuple[list[tuple[str, bool]], bool]:
    """Read a line: characters, and whether each is quoted; and whether the file ended before."""
    stream, found, ended = shell.files[number], bytearray(), False
    if count >= 0:
        while len(found.decode("utf-8", "ignore")) < count:
            one = stream.read(1)
            if not one:
                ended = True
                break
            if one[0] == end and not exact:
                break
            found += one
        text = found.decode("utf-8", "surrogateescape")
        return [(one, False) for one in text], ended
    while True:
        line = stream.read_line(end)
        ended = not line or line[-1] != end
        found += line if ended else line[:-1]
        if not raw and not ended and end == 10 and _ends_in_backslash(found):
            del found[-1]
            continue
        break
    text = found.replace(b"\0", b"").decode("utf-8", "surrogateescape")
    if raw:
        return [(one, False) for one in text], ended
    chars: list[tuple[str, bool]] = []
    at = 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
            if at < len(text):
                chars.append((text[at], True))
        else:
            chars.append((text[at], False))
        at += 1
    return chars, ended


def _ends_in_backslash(found: bytearray) -> bool:
    return (len(found) - len(found.rstrip(b"\\"))) % 2 == 1


def _split(shell: Shell, text: list[tuple[str, bool]], most: int, raw: bool) -> list[str]:
    """Split a line at ``$IFS``; the last of so many fields gets the rest (0: no bound)."""
    ifs = shell.values.get("IFS", DEFAULT_IFS)
    assert isinstance(ifs, str)
    white = [one in ifs and one in DEFAULT_IFS and not quoted for one, quoted in text]
    hard = [one in ifs and one not in DEFAULT_IFS and not quoted for one, quoted in text]
    values: list[str] = []
    at, size = 0, len(text)
    while at < size and white[at]:
        at += 1
    while at < size:
        if most and len(values) == most - 1:
            end = size
            while end > at and white[end - 1]:
                end -= 1
            rest = end
            # one delimiter at the very end is none of the last field
            if end > at and hard[end - 1] and not any(hard[at : end - 1]):
                rest = end - 1
                while rest > at and white[rest - 1]:
                    rest -= 1
            values.append("".join(one for one, _ in text[at:rest]))
            return values
        start = at
        while at < size and not white[at] and not hard[at]:
            at += 1
        values.append("".join(one for one, _ in text[start:at]))
        seen = False
        while at < size and (white[at] or (hard[at] and not seen)):
            seen = seen or hard[at]
            at += 1
    return values


def mapfile(shell: Shell, arguments: list[str]) -> int:
    """Read lines into an array."""
    strip, end, count, skip, number, origin = False, 10, 0, 0, 0, 0
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        word, at = arguments[at], at + 1
        if word == "-t":
            strip = True
            continue
        letter = word[1:2]
        if letter not in "dnsuO":
            raise UnknownError(f"mapfile: {word}: this option is not known")
        value = word[2:] or arguments[at]
        at += not word[2:]
        if letter == "d":
            end = value.encode()[0] if value else 0
        elif letter == "n":
            count = int(value)
        elif letter == "s":
            skip = int(value)
        elif letter == "u":
            number = int(value)
        else:
            origin = int(value)
    name = arguments[at] if at < len(arguments) else "MAPFILE"
    lines = []
    while line := shell.files[number].read_line(end):
        if strip and line[-1] == end:
            line = line[:-1]
        lines.append(line.decode("utf-8", "surrogateescape").replace("\0", ""))
        if count and len(lines) == count + skip:
            break
    shell.values[name] = Array(enumerate(lines[skip:], origin))
    return 0
