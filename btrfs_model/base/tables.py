# SPDX-License-Identifier: GPL-2.0-only
"""Tables: small ones for notebooks, in which names are shown as on a terminal; made of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

from btrfs_model.base.printable import printable

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

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


def counts_frame(kind: str, counts: Mapping[str, int]) -> pd.DataFrame:
    """Return how often there was each of some kind: columns `kind` and ``count``."""
    import pandas as pd

    return pd.DataFrame({kind: pd.Series(list(counts), dtype="str"), "count": [*counts.values()]})


@cache
def _layout(
    names: tuple[str, ...], dtypes: tuple[np.dtype[Any], ...]
) -> tuple[Callable[..., pd.DataFrame], pd.Index[str], list[tuple[list[int], NDArray[Any]]]]:
    """Return what makes a table of columns, its heading, and which columns are of one type."""
    import numpy as np
    import pandas as pd
    from pandas.api.internals import (  # type: ignore[import-not-found]
        create_dataframe_from_blocks,
    )

    kinds: dict[np.dtype[Any], list[int]] = {}
    for place, dtype in enumerate(dtypes):
        kinds.setdefault(dtype, []).append(place)
    blocks = [(places, np.array(places)) for places in kinds.values()]
    return create_dataframe_from_blocks, pd.Index(names), blocks


def frame(columns: Mapping[str, NDArray[Any]]) -> pd.DataFrame:
    """Return a copy of columns as a DataFrame; for small answers that are asked for one by one."""
    import numpy as np
    import pandas as pd

    arrays = list(columns.values())
    # since 3.0; what is general takes ten times as long
    try:
        make, heading, kinds = _layout(tuple(columns), tuple([array.dtype for array in arrays]))
    except ImportError:
        return pd.DataFrame(dict(columns))
    blocks = [(np.array([arrays[i] for i in at]), places) for at, places in kinds]
    index = pd.RangeIndex.from_range(range(len(arrays[0])))
    return make(blocks, index=index, columns=heading.view())


def frame_of_rows(columns: Mapping[str, str], rows: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """Return rows as a DataFrame; `columns`: the names, in their order, with the types."""
    import pandas as pd

    rows = list(rows)
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=kind)
                         for name, kind in columns.items()})  # fmt: skip


def plural(count: int, thing: str) -> str:
    """Return a number of things."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else escape(printable(str(value)))
