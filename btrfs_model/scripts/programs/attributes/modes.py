# SPDX-License-Identifier: GPL-2.0-only
"""Modes as chmod and find read them."""

from __future__ import annotations

import re
import stat
from typing import Final

_CLAUSE: Final = re.compile(r"([ugoa]*)((?:[-+=](?:[rwxXst]*|[ugo]))+)")


def is_mode(told: str) -> bool:
    """Whether a word is a mode, of digits or letters."""
    if re.fullmatch(r"[0-7]+", told):
        return int(told, 8) <= 0o7777
    return all(_CLAUSE.fullmatch(one) for one in told.split(","))


def new_mode(told: str, old: int, umask: int) -> int:
    """Return a mode as chmod makes it of an old one."""
    mode = old & 0o7777
    if re.fullmatch(r"[0-7]+", told):
        # what a directory has of these stays, unless five digits are told
        kept = mode & 0o6000 if stat.S_ISDIR(old) and len(told) < 5 else 0
        return int(told, 8) | kept
    for clause in told.split(","):
        found = _CLAUSE.fullmatch(clause)
        assert found is not None
        mask = 0
        for letter in found[1] or "a":
            mask |= {"u": 0o4700, "g": 0o2070, "o": 0o1007, "a": 0o7777}[letter]
        for sign, letters in re.findall(r"([-+=])([rwxXstugo]*)", found[2]):
            bits = _bits(letters, mode, stat.S_ISDIR(old))
            bits &= mask if found[1] else mask & ~umask
            # of a directory, = leaves what is not told of the first three bits
            cleared = mask & 0o777 if stat.S_ISDIR(old) else mask
            mode = {"+": mode | bits, "-": mode & ~bits, "=": mode & ~cleared | bits}[sign]
    return mode


def _bits(letters: str, mode: int, is_dir: bool) -> int:
    bits = 0
    for letter in letters:
        if letter in "ugo":
            bits |= (mode >> {"u": 6, "g": 3, "o": 0}[letter] & 7) * 0o111
        else:
            bits |= {"r": 0o444, "w": 0o222, "x": 0o111, "s": 0o6000, "t": 0o1000,
                     "X": 0o111 if is_dir or mode & 0o111 else 0}[letter]  # fmt: skip
    return bits
