# SPDX-License-Identifier: GPL-2.0-only
"""How much work a compressor does: levels, in mount options and as each algorithm has them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from btrfs_model.behaviour import Behaviour
from btrfs_model.patches import Patch


class Levels(NamedTuple):
    """The levels of an algorithm (``struct btrfs_compress_levels``)."""

    least: int
    most: int
    default: int


LEVELS: Final = {"zlib": Levels(1, 9, 3), "lzo": Levels(0, 1, 1), "zstd": Levels(-15, 15, 3)}
"""By the name in ``compress=``."""

_LEVEL: Final = re.compile(r"[+-]?[0-9]+\n?")
_UNSIGNED: Final = range(1 << 32)
_SIGNED: Final = range(-(1 << 31), 1 << 31)


def level_of(kind: str, level: int) -> int:
    """Return the level that is nearest to what a mount says (``btrfs_compress_set_level()``).

    `level`: 0 stands for the default.
    """
    levels = LEVELS[kind]
    return min(max(level, levels.least), levels.most) if level else levels.default


def parse_compression(value: str | None, behaviour: Behaviour) -> tuple[str, int]:
    """Read what stands behind ``compress=`` (``btrfs_parse_compress()``).

    `value`: None where nothing does.
    Returns the algorithm, empty for none, and the level.
    Raises ValueError: for what this kernel refuses.
    """
    if value is None:
        return "zlib", LEVELS["zlib"].default
    exact = Patch.COMPRESS_OPTION_EXACT in behaviour
    for kind in LEVELS:
        rest = value.removeprefix(kind)
        if rest == value or (exact and rest[:1] not in ("", ":")):
            continue
        if kind == "lzo" and Patch.COMPRESS_LZO_LEVEL not in behaviour:
            return kind, 0
        return kind, level_of(kind, _level(rest[1:], behaviour) if rest[:1] == ":" else 0)
    if value in ("no", "none") or (not exact and value.startswith("no")):
        return "", 0
    raise ValueError(value)


def _level(text: str, behaviour: Behaviour) -> int:
    """Read a level (``btrfs_compress_str2level()``)."""
    signed = Patch.ZSTD_NEGATIVE_LEVELS in behaviour
    fits = _LEVEL.fullmatch(text) and (signed or not text.startswith("-"))
    if fits and int(text) in (_SIGNED if signed else _UNSIGNED):
        return int(text)
    if Patch.COMPRESS_LEVEL_CHECKED in behaviour:
        raise ValueError(text)
    return 0
