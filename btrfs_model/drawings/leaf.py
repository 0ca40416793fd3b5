# SPDX-License-Identifier: GPL-2.0-only
"""A tree block to scale: headers of items from the front, their data from the back."""

from __future__ import annotations

from btrfs_model.base.charts import COLOURS
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.tables import plural
from btrfs_model.drawings import labels
from btrfs_model.drawings.picture import GAP, INKS, ROW, Bar, Box, Drawing, Line
from btrfs_model.ondisk.keys import Key, item_type_name
from btrfs_model.volume import ctree
from btrfs_model.volume.blocks import HEADER, ITEM, KEY_PTR

_ITEMS = 60  # rows at most
_WIDE = 110  # pixels
_LINES = 90  # pixels for lines between rows and data
_PER_PIXEL = 20  # bytes, at most


def draw_block(block: memoryview | bytes) -> Drawing:
    """Draw a tree block as it lies on disk."""
    block = memoryview(block)
    if len(block) < HEADER.size:
        raise BtrfsModelError(f"{len(block)} bytes are no tree block")
    *_, level = HEADER.unpack_from(block)
    count, each = ctree.nritems(block), (KEY_PTR if level else ITEM).size
    if HEADER.size + count * each > len(block):
        raise BtrfsModelError(f"{len(block)} bytes are no tree block of {count:,} items")
    rows = [_row(block, slot, level) for slot in range(count)]
    what = f"node of level {level}" if level else "leaf"
    things = plural(count, "pointer" if level else "item")
    drawing = Drawing(
        f"{what.capitalize()} {ctree.bytenr_of(block):,}",
        f"{len(block):,} bytes, {things}. "
        + (
            "A header, then pointers to the level below, from the front."
            if level
            else "The headers of items grow from the front, their data from the back; what lies "
            "between is free."
        ),
    )
    shown: list[int | None] = [*range(count)]
    if count > _ITEMS:
        shown = [*range(_ITEMS - 2), None, count - 1]
    if not level:
        # as their data lie, so that no line crosses another
        shown.reverse()
    more = f"…    {count - _ITEMS + 1:,} more"
    texts = [more if slot is None else f"{slot:>3}  {rows[slot][0]}" for slot in shown]
    order = "" if level else ", the last first: as their data lie"
    drawing.boxes.append(Box(f"slots of the {what}{order}", texts))
    x = drawing.boxes[0].width + _LINES
    height = max(drawing.boxes[0].height, len(block) / _PER_PIXEL)
    scale = height / len(block)

    def bar(start: int, size: int, colour: str, title: str) -> None:
        if size:
            drawing.bars.append(Bar(x, start * scale, _WIDE, size * scale, colour, title))

    bar(0, HEADER.size, COLOURS["ink"], f"header, {HEADER.size} bytes")
    end = HEADER.size + count * each
    bar(HEADER.size, end - HEADER.size, COLOURS["before"], f"{things}, {each} bytes each")
    types = sorted({kind for _, kind, _, size in rows if size})
    first = min([start for _, _, start, size in rows if size], default=len(block))
    bar(end, first - end, COLOURS["plain"], f"free, {first - end:,} bytes")
    for text, kind, start, size in rows:
        bar(start, size, INKS[types.index(kind) % len(INKS)] if size else "", f"{text}")
    for row, slot in enumerate(shown):
        if slot is None:
            continue
        _, kind, start, size = rows[slot]
        if size:
            from_y = drawing.boxes[0].port(row)
            to_y = (start + size / 2) * scale
            colour = INKS[types.index(kind) % len(INKS)]
            drawing.lines.append(Line(drawing.boxes[0].width, from_y, x, to_y, colour))
    legend = [
        Box("header", [], COLOURS["ink"]),
        Box(f"{'pointers' if level else 'headers of items'}", [], COLOURS["before"]),
        *(
            Box(item_type_name(kind), [], INKS[number % len(INKS)])
            for number, kind in enumerate(types)
        ),
        Box(f"free: {max(0, first - end):,} bytes", [], COLOURS["muted"], is_fold=True),
    ]
    for number, box in enumerate(legend):
        box.x, box.y = x + _WIDE + 20, number * (2 * ROW + GAP / 2)
    drawing.boxes += legend
    return drawing


def _row(block: memoryview, slot: int, level: int) -> tuple[str, int, int, int]:
    """Return the text of a slot, the item's type, where its data start and how many there are."""
    key = Key(*ctree.block_key(block, slot))
    if level:
        child, generation = ctree.node_ptr(block, slot)
        return f"{key} → {child:,}, generation {generation}", key.type, 0, 0
    *_, offset, size = ITEM.unpack_from(block, HEADER.size + slot * ITEM.size)
    data = ctree.item_data(block, slot)
    if len(data) < size:
        raise BtrfsModelError(f"the item in slot {slot} lies outside the block")
    return f"{labels.item(key, data)}, {size:,} bytes", key.type, HEADER.size + offset, size
