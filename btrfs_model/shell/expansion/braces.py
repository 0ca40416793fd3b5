# SPDX-License-Identifier: GPL-2.0-only
"""Braces of a word, which are expanded before all else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from btrfs_model.shell.expansion import patterns
from btrfs_model.shell.parse import Node

_NAMED: Final = re.compile(r"[A-Za-z_]\w*")


def braces(parts: list[Node]) -> list[list[Node]]:
    """Expand the braces of a word, which come before all else."""
    if not any(one["Type"] == "Lit" and "{" in one["Value"] for one in parts):
        return [parts]
    tokens: list[Any] = []
    for one in parts:
        if one["Type"] == "Lit":
            tokens += _LITERAL_TOKENS.findall(one["Value"])
        else:
            tokens.append(one)
    return [_words_of(one) for one in _expanded(tokens)]


_LITERAL_TOKENS: Final = re.compile(r"\\.|[^\\]|\\", re.DOTALL)


def _words_of(tokens: Sequence[Any]) -> list[Node]:
    parts: list[Node] = []
    for token in tokens:
        last = parts[-1] if parts else {}
        if not isinstance(token, str):
            parts.append(token)
        elif last.get("Short") and _NAMED.fullmatch(last["Param"]["Value"] + token):
            # $a{1,2} is $a1 $a2
            parts[-1] = {**last, "Param": {"Value": last["Param"]["Value"] + token}}
        elif parts and parts[-1].get("Type") == "Lit" and "Joined" in parts[-1]:
            parts[-1]["Value"] += token
        else:
            parts.append({"Type": "Lit", "Value": token, "Joined": True})
    return parts


def _expanded(tokens: list[Any]) -> list[list[Any]]:
    """Expand the first braces, then what follows them."""
    for start, token in enumerate(tokens):
        if token != "{":
            continue
        choices, end = _choices(tokens, start)
        if choices is None:
            continue
        rest = _expanded(tokens[end:])
        return [[*tokens[:start], *choice, *one] for choice in choices for one in rest]
    return [tokens]


def _choices(tokens: list[Any], start: int) -> tuple[list[list[Any]] | None, int]:
    """Return what braces that open at a place stand for, and where they end."""
    depth, at = 0, start
    parts: list[list[Any]] = [[]]
    while at < len(tokens):
        token = tokens[at]
        if token == "{":
            depth += 1
            if depth > 1:
                parts[-1].append(token)
        elif token == "}":
            depth -= 1
            if not depth:
                break
            parts[-1].append(token)
        elif token == "," and depth == 1:
            parts.append([])
        else:
            parts[-1].append(token)
        at += 1
    else:
        return None, start
    if len(parts) > 1:
        return [found for one in parts for found in _expanded(one)], at + 1
    if all(isinstance(one, str) for one in parts[0]):
        names = patterns.ranged("".join(parts[0]))
        if names is not None:
            return [list(one) if one != "\\" else ["\\\\"] for one in names], at + 1
    return None, start
