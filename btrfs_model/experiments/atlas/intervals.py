# SPDX-License-Identifier: GPL-2.0-only
"""Intervals of ratios that are fitted: wide enough for what was predicted before.

The interval of a prediction knows how far costs are uncertain. It does not know what the model does
not count. How far reported ratios lay outside says that, on rows that were predicted before they
were looked up: conformalized intervals (Romano, Patterson and Candes, Conformalized quantile
regression, 2019). An interval of a row is fitted to the other rows, never to itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from btrfs_model.experiments.atlas.predictions import Value
from btrfs_model.experiments.atlas.rows import Row, all_rows

_SHARE: Final = 0.9
"""Of the ratios that a fitted interval is to hold."""


def widening(others: Iterable[Row]) -> float | None:
    """Return by how much intervals have to be wider, as a logarithm.

    Parameters
    ----------
    others : iterable of Row
        Rows; of these count ratios that were predicted before they were entered.

    Returns
    -------
    float or None
        None where they are too few: with nine or more, one in ten may lie outside.
    """
    outside = sorted(score for row in others for score in _scores(row))
    rank = math.ceil(_SHARE * (len(outside) + 1))
    return outside[rank - 1] if 0 < rank <= len(outside) else None


def _scores(row: Row) -> Iterable[float]:
    """Yield how far outside its interval each ratio of a row is reported; inside is negative."""
    if row.known or row.predicted is None:
        return
    for one in row.figures:
        value = row.predicted.figures.get(one.name)
        told = one.ratio if one.kind == "ratio" and not one.kernel else None
        if value is not None and value.low and value.high and told is not None:
            yield max(math.log(value.low / told.high), math.log(told.low / value.high))


def fitted(row: Row, value: Value | None) -> tuple[float, float] | None:
    """Return the interval of a ratio of a row, fitted to all other rows; None without one."""
    if value is None or not value.low or not value.high:
        return None
    more = widening(one for one in all_rows() if one.name != row.name)
    if more is None:
        return None
    return value.low * math.exp(-max(0.0, more)), value.high * math.exp(max(0.0, more))
