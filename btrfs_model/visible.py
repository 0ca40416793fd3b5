# SPDX-License-Identifier: GPL-2.0-only
"""How text is shown that may hold anything: names of files on a terminal, in a pipe, in a notebook.

A name is bytes. Python has it as a string in which a byte that is not UTF-8 is a lone surrogate
(``surrogateescape``).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice

__all__ = ["counts_table", "html_table", "plural", "printable", "visible_bytes", "without_controls"]

_ROWS = 20


def printable(text: str) -> str:
    """Text for a terminal: what would control it is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in visible_bytes(text))


def visible_bytes(text: str) -> str:
    r"""Text in which bytes that are no UTF-8 are escaped, as in ``\xff``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def without_controls(text: str) -> str:
    """Text for a row of a pipe: control characters are escaped, all other bytes are as they are."""
    if text.isprintable():
        return text
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) == "Cc" else c for c in text)


def html_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], count: int = 0
) -> str:
    """Return a small table for a notebook.

    Parameters
    ----------
    title : str
        What stands above it.
    headings : sequence of str
        Of the columns; without any there is no heading.
    rows : iterable of sequence
        Its rows, of which the first twenty are shown. Numbers are shown with separators.
    count : int
        How many rows there are, where that is more than are shown.
    """
    shown = list(islice(rows, _ROWS))
    head = "".join(f"<th>{_cell(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in shown
    )
    more = f"<p>and {count - len(shown):,} more</p>" if count > len(shown) else ""
    heading = f"<thead><tr>{head}</tr></thead>" if headings else ""
    caption = f"<caption>{_cell(title)}</caption>" if title else ""
    return f"<table>{caption}{heading}<tbody>{body}</tbody></table>{more}"


def counts_table(kind: str, counts: Mapping[str, int]) -> str:
    """Return a table of how often there was each of some kind, the most frequent first."""
    rows = sorted(counts.items(), key=lambda row: -row[1])
    return html_table("", [kind, "times"], rows, len(rows))


def plural(count: int, thing: str) -> str:
    """Return a number of things."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else escape(printable(str(value)))
