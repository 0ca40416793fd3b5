# SPDX-License-Identifier: GPL-2.0-only
"""Figures of a replay, picked from the table of its results."""

import pandas as pd

from btrfs_model.experiments.results import COLUMNS

VALUES = ("reported", "modelled", "measured", "measured_min", "measured_max", "runs", "error")


def chosen(table: pd.DataFrame, quantity: str, **where: object) -> pd.DataFrame:
    """The rows of a quantity in which columns have these values."""
    for name, wanted in {"quantity": quantity, **where}.items():
        table = table[(table[name] == wanted).fillna(False).astype(bool)]
    return table


def value(
    table: pd.DataFrame, side: str, quantity: str, column: str = "modelled", **case: object
) -> float:
    """One figure: there is exactly one row that fits."""
    return float(chosen(table, quantity, side=side, **case)[column].item())


def is_tidy(table: pd.DataFrame) -> bool:
    """Whether each row is one figure: nothing but its values tells two rows apart."""
    keys = [name for name in table.columns if name not in VALUES]
    return not table.duplicated(keys).any() and set(VALUES) <= set(COLUMNS)
