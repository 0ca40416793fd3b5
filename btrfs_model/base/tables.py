# SPDX-License-Identifier: GPL-2.0-only
"""Small tables for notebooks, in which names are shown as on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice

from btrfs_model.base.printable import printable

_ROWS = 20


def html_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], count: int = 0
) -> str:
    """Return a small table for a notebook.

    `title`: what stands above it.
    `headings`: of the columns; without any there is no heading.
    `rows`: its rows, of which the first twenty are shown. Numbers are shown with separators.
    `count`: how many rows there are, where that is more than are shown.
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
