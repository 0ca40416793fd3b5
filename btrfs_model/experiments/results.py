# SPDX-License-Identifier: GPL-2.0-only
"""Results as a table: a row for each figure, a column for each thing that it depends on.

:data:`COLUMNS` is the one list of the columns; ``docs/results.md`` shows it to readers, and each
Parquet file carries it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.workloads.cases import PARAMETERS, Column, column_of
from btrfs_model.experiments.workloads.knobs import ON_DEVICE, Knobs

if TYPE_CHECKING:
    from btrfs_model.experiments.replay import Replay
    from btrfs_model.experiments.workloads import Figure


_SEE: Final = "see unit"

_KNOBS: Final = {
    ON_DEVICE: Column("", "", "Parameter of the device that was set, as its file names it."),
    "limit_": Column("", "", "Limit of the kernel that was set, by its name."),
}
"""Columns of knobs that were turned, by how their names begin."""

_BEFORE: Final = {
    "workload": Column("string", "", "The workload that was replayed."),
}
_AFTER: Final = {
    "side": Column("string", "", "Side of the comparison that the figure is of."),
    "behaviour": Column("string", "", "Behaviour of the kernel on that side, in full."),
    "quantity": Column(
        "string", "", "What was counted: functions, items and commands have the kernel's names."
    ),
    "unit": Column("string", "", "Unit of the figures."),
    "reported": Column("float64", _SEE, "The figure in the commit message."),
    "modelled": Column("float64", _SEE, "The figure of this replay."),
    "low": Column("float64", _SEE, "Lower end of the 90 % interval of a time."),
    "high": Column("float64", _SEE, "Upper end of it."),
    "measured": Column("float64", _SEE, "The figure of a real kernel, the median of its runs."),
    "measured_min": Column("float64", _SEE, "The least of these runs."),
    "measured_max": Column("float64", _SEE, "The most of these runs."),
    "runs": Column("Int64", "runs", "How many runs were measured."),
    "error": Column(
        "float64", "fraction",
        "(modelled - measured) / measured; against reported where nothing was measured. Empty for "
        "times that were measured or reported on another machine.",
    ),
}  # fmt: skip

COLUMNS: Final = {**_BEFORE, **PARAMETERS, **_AFTER}
"""The columns of the results by name, in their order."""


def column(name: str) -> Column:
    """Return what a column of a table of results holds, also one of a knob that was turned."""
    if name in COLUMNS:
        return COLUMNS[name]
    knobs = (found for prefix, found in _KNOBS.items() if name.startswith(prefix))
    return next(knobs, column_of(name))


def frame(replays: Iterable[Replay]) -> pd.DataFrame:
    """Return the figures of replays as a table, a row for each: see :data:`COLUMNS`."""
    rows = [_row(one, figure) for one in replays for figure in one.outcome.figures]
    found = {name for row in rows for name in row}
    turned = sorted(name for name in found if name.startswith(tuple(_KNOBS)))
    variables = dict.fromkeys(name for row in rows for name in row
                              if name not in COLUMNS and name not in turned)  # fmt: skip
    names = [
        *_BEFORE, *variables, *(name for name in PARAMETERS if name in found), *turned, *_AFTER,
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=names)
    return table.astype({name: column(name).dtype for name in names if name not in turned})


def _row(one: Replay, figure: Figure) -> dict[str, Any]:
    """Return what one figure has in each column."""
    return {
        "workload": one.workload.name,
        **one.input.parameters,
        "nodesize": one.nodesize,
        **_turned(one.knobs, figure),
        **figure.conditions,
        **figure.case,
        "side": figure.side,
        "behaviour": str(Behaviour.parse(one.behaviours[figure.side])),
        "quantity": figure.quantity,
        "unit": figure.unit,
        "reported": figure.reported,
        "modelled": figure.modelled,
        "low": figure.low,
        "high": figure.high,
        "measured": figure.measured,
        "measured_min": figure.measured_min,
        "measured_max": figure.measured_max,
        "runs": figure.runs,
        "error": figure.error,
    }


def _turned(knobs: Knobs, figure: Figure) -> dict[str, Any]:
    """Name the settings of knobs that one figure depends on."""
    values = {f"limit_{name}": value for name, value in knobs.limits.items()}
    if "device" in {**figure.case, **figure.conditions}:
        values |= {f"{ON_DEVICE}{name}": value for name, value in knobs.parameters.items()}
    return values


def label(figure: Figure, known: Iterable[str] = ()) -> str:
    """Name a figure for people: its quantity and what it depends on, except what is `known`."""
    words = [
        PARAMETERS[name].words.format(figure.case[name])
        for name in PARAMETERS
        if name in figure.case and name not in known and figure.case[name]
    ]
    return ", ".join([figure.quantity, *(word for word in words if word)])


def _plain(value: object) -> str:
    """Write a number without needless digits."""
    assert isinstance(value, float)
    return str(int(value)) if value.is_integer() else repr(float(value))


def to_csv(table: pd.DataFrame) -> bytes:
    """Return results as CSV; what is not known is empty."""
    text: str = table.to_csv(index=False, float_format=_plain)
    return text.encode()


def to_parquet(
    table: pd.DataFrame,
    of: Callable[[str], Column] = column,
    about: Mapping[str, object] | None = None,
) -> bytes:
    """Return results as Parquet; each field says what it holds, and in which unit.

    `of`: what a column holds, by its name.
    `about`: where they come from; JSON under ``provenance`` in the metadata of the file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    found = pa.Table.from_pandas(table, preserve_index=False)
    schema = found.schema
    for place, name in enumerate(schema.names):
        holds = of(name)
        words: dict[bytes | str, bytes | str] = {"description": holds.meaning, "unit": holds.unit}
        schema = schema.set(place, schema.field(place).with_metadata(words))
    if about is not None:
        schema = schema.with_metadata(
            {**(schema.metadata or {}), b"provenance": json.dumps(about).encode()}
        )
    buffer = io.BytesIO()
    parquet.write_table(found.cast(schema), buffer)
    return buffer.getvalue()
