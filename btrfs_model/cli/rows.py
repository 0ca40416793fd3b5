# SPDX-License-Identifier: GPL-2.0-only
"""Long tables as lines of text: column by column by Arrow, not value by value.

What is written is what :func:`btrfs_model.cli.common.print_table` writes, many times as fast.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO

from btrfs_model.base.printable import printable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_CHUNK = 100_000


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
