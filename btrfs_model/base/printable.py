# SPDX-License-Identifier: GPL-2.0-only
"""Names as text for people: what would control a terminal or break a line is escaped.

Names on disk are any bytes but ``/`` and zero. Python has one as a string in which a byte that is
not UTF-8 is a lone surrogate (``surrogateescape``). JSON has them exactly.
"""

from __future__ import annotations

from pathlib import PurePath

_BYTES = range(0xDC80, 0xDD00)


def printable(text: str | bytes | PurePath, *, keep_bytes: bool = False) -> str:
    r"""Return text with escapes for what is not printable: ``\n``, ``\x1b``, ``\u200b``.

    Parameters
    ----------
    text : str, bytes or path
        Bytes that are no UTF-8 may stand in it as lone surrogates (``surrogateescape``).
    keep_bytes : bool
        Leave these as they are, for a file or a pipe; else each becomes ``\xNN``.
    """
    shown = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else str(text)
    if shown.isprintable():
        return shown
    return "".join(_escaped(c, keep_bytes) for c in shown)


def visible_bytes(text: str) -> str:
    r"""Text in which bytes that are no UTF-8 are escaped, as in ``\xff``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _escaped(c: str, keep_bytes: bool) -> str:
    if ord(c) in _BYTES:
        return c if keep_bytes else f"\\x{ord(c) - 0xDC00:02x}"
    return c if c.isprintable() else ascii(c)[1:-1]
