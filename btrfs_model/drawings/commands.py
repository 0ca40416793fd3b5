# SPDX-License-Identifier: GPL-2.0-only
"""A stream's commands beside the items that caused them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from btrfs_model.base.charts import COLOURS
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.tables import plural
from btrfs_model.drawings.picture import INKS, Box, Drawing, Link, spread, stack

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.questions.send.ioctl import SendResult

MOST = 120
"""Boxes of items."""
_LONGEST = 44
_CHANGES = {"new": INKS[0], "deleted": INKS[1], "changed": INKS[3], "same": COLOURS["muted"]}


def draw_stream(sent: SendResult) -> Drawing:
    """Draw what a send did; each item stands once for neighbours that it caused."""
    if sent.causes is None:
        raise BtrfsModelError("the send has no causes: bm.send(..., explain=True) keeps them")
    runs = list(_runs(sent.causes))
    drawing = Drawing(
        f"{sum(sent.commands.values()):,} commands of a stream, and why",
        f"At the left the items that differ, in the order in which the send comes to them; at the "
        f"right the commands that each causes. {sent.size:,} bytes.",
    )
    shown, left = runs, 0
    if len(runs) > MOST:
        left = len(runs) - MOST
        shown = runs[:MOST]
    items, commands = [], []
    for item, rows in shown:
        colour = _CHANGES.get(item[1], COLOURS["muted"])
        items.append(Box(item[0], [item[1]] if item[1] else [], colour))
        causes = dict.fromkeys(row.cause for row in rows)
        texts = [f"{row.command} {_short(row.path)}" for row in rows]
        if len(texts) > 6:
            texts = [*texts[:5], f"… {len(texts) - 5:,} more"]
        functions = ", ".join(dict.fromkeys(str(row.function) + "()" for row in rows))
        commands.append(Box(f"{', '.join(map(str, causes))}: {functions}", texts, colour))
    if left:
        items.append(Box(f"… {plural(left, 'item')} more", [], is_fold=True))
        commands.append(
            Box(f"… {sum(len(rows) for _, rows in runs[MOST:]):,} commands more", [], is_fold=True)
        )
    x = max(box.width for box in items) + 44
    stack(commands, x, 0)
    for box, command in zip(items, commands, strict=True):
        box.y = command.y
    spread(items, 0)
    drawing.boxes = [*items, *commands]
    drawing.links = [
        Link(item, command, item.colour) for item, command in zip(items, commands, strict=True)
    ]
    return drawing


def _runs(causes: pd.DataFrame) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    """Yield each item, with its change, and the commands that it causes one after another."""

    def item(row: Any) -> tuple[str, str]:
        if not row.item_type:
            return f"inode {row.inode}" if row.inode else "the subvolume", ""
        return f"({row.item_objectid} {row.item_type} {row.item_offset})", str(row.change)

    for key, rows in groupby(causes.itertuples(), item):
        yield key, list(rows)


def _short(path: str) -> str:
    return path if len(path) <= _LONGEST else f"…{path[1 - _LONGEST :]}"
