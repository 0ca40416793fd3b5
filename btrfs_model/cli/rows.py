# SPDX-License-Identifier: GPL-2.0-only
"""Tables as text: on a terminal, and long ones in a pipe.

These are written column by column by Arrow, not value by value: what comes of it is what
:func:`btrfs_model.cli.common.print_table` writes, many times as fast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from btrfs_model.base.printable import printable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_CHUNK = 100_000
_NUMBER = re.compile(r"[-+]?[\d,.]*[%KMGT]?")
_NAME = 24
"""Characters of text that is not folded where there is room for no more."""
_GAP = 2


def show(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None, *, err: bool
) -> None:
    """Print a table on a terminal: no number and no word is broken in two.

    Headings are broken after an underscore, and text between words; but a word that has no room
    beside the first column even alone. What has no room beside the rest comes below it, with the
    first column again.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=err)
    columns = list(zip(*rows, strict=True)) or [()] * len(headings)
    numbers = [all(map(_NUMBER.fullmatch, column)) for column in columns]
    whole = [max(map(len, [heading, *column])) for heading, column in zip(headings, columns,
                                                                         strict=True)]  # fmt: skip
    is_narrow = sum(whole) + _GAP * len(whole) > console.width
    least = whole
    if is_narrow:
        headings = [heading.replace("_", "_\n") for heading in headings]
        room = max(_NAME, console.width - whole[0] - _GAP)
        least = [
            max(*map(len, heading.split("\n")), *(
                len(cell) if is_number else min(_least(cell), room) for cell in column
            ), 0)
            for heading, column, is_number in zip(headings, columns, numbers, strict=True)
        ]  # fmt: skip
    for block in _blocks(least, console.width):
        widths = _widths([least[at] for at in block], [whole[at] for at in block], console.width)
        shown = Table(
            box=None, pad_edge=False, header_style="bold", title=title, title_justify="left"
        )
        for at, width in zip(block, widths, strict=True):
            shown.add_column(
                headings[at], justify="right" if numbers[at] else "left", overflow="fold",
                no_wrap=numbers[at] or at == 0, width=width if is_narrow else None,
            )  # fmt: skip
        for row in rows:
            shown.add_row(*(Text(row[at]) for at in block))
        console.print(shown)
        title = None


def _least(text: str) -> int:
    """Return how wide a text is at least: its longest word, and what is short as a whole."""
    return max(min(len(text), _NAME), *map(len, text.split()), 0)


def _widths(least: Sequence[int], whole: Sequence[int], room: int) -> list[int]:
    """Return how wide columns are: what is left goes to those that need the least to be whole.

    Rich alone would make one narrower than a word of it, so that another one is whole.
    """
    found = list(least)
    left = room - sum(least) - _GAP * len(least)
    for at in sorted(range(len(least)), key=lambda at: whole[at] - least[at]):
        more = max(0, min(whole[at] - least[at], left))
        found[at] += more
        left -= more
    return found


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return which columns stand beside each other, the first in each block."""
    blocks, used = [[0]], widths[0]
    for at, width in enumerate(widths[1:], 1):
        if used + _GAP + width > room and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(at)
        used += _GAP + width
    return blocks


def is_plain(table: pd.DataFrame) -> bool:
    """Whether all values are whole numbers, truth values or text, and none is missing."""
    from pandas.api.types import is_bool_dtype, is_integer_dtype

    kinds = table.dtypes
    return (
        all(is_integer_dtype(kind) or is_bool_dtype(kind) or kind == "str" for kind in kinds)
        and not table.isna().to_numpy().any()
    )


def write_rows(table: pd.DataFrame, out: BinaryIO, *, as_json: bool = False) -> None:
    """Write a plain table: separated by tabs under the names of its columns, or as JSON lines.

    Parameters
    ----------
    table : pandas.DataFrame
        One that :func:`is_plain`.
    out : binary file
        Where to.
    as_json : bool
        Whether to write JSON lines.
    """
    import pyarrow as pa

    if not as_json:
        out.write("\t".join(table.columns).encode() + b"\n")
    for start in range(0, len(table), _CHUNK):
        part = pa.Table.from_pandas(table.iloc[start : start + _CHUNK], preserve_index=False)
        out.write(_lines(part, as_json=as_json))


def _lines(part: pa.Table, *, as_json: bool) -> memoryview:
    """Return the lines of some rows as bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pieces: list[object] = []
    for number, name in enumerate(part.column_names):
        before = "\t" if number else ""
        if as_json:
            before = f"{', ' if number else '{'}{json.dumps(name)}: "
        pieces += [before, _texts(part.column(number).combine_chunks(), as_json=as_json)]
    end = "}\n" if as_json else "\n"
    large = [pa.scalar(piece, pa.large_string()) if isinstance(piece, str) else piece
             for piece in [*pieces, end, ""]]  # fmt: skip
    joined = pc.binary_join_element_wise(*large)  # type: ignore[call-overload]
    # the strings of an array lie one behind the other
    return memoryview(joined.buffers()[2])[: pc.sum(pc.binary_length(joined)).as_py()]


def _texts(column: pa.Array[Any], *, as_json: bool) -> pa.Array[Any]:
    """Return what stands for each value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(column.type):
        yes, no = ("true", "false") if as_json else ("yes", "no")
        column = pc.if_else(column, yes, no)
    elif as_json and pa.types.is_large_string(column.type):
        values = column.dictionary_encode()
        texts = [json.dumps(text) for text in values.dictionary.to_pylist()]
        column = pa.array(texts, pa.large_string()).take(values.indices)
    elif pa.types.is_large_string(column.type) and pc.any(_doubtful(column)).as_py():
        texts = [printable(str(text)) for text in column.to_pylist()]
        column = pa.array(texts, pa.large_string())
    return column.cast(pa.large_string())


def _doubtful(texts: pa.Array[Any]) -> pa.Array[Any]:
    """Whether there may be something to escape in each text."""
    import pyarrow.compute as pc

    return pc.match_substring_regex(texts, "[^ -~]")
