# SPDX-License-Identifier: GPL-2.0-only
"""Figures as people read them: in the report, on a terminal and in charts."""

from __future__ import annotations

import math
from typing import Final

from btrfs_model.cost.causes import duration
from btrfs_model.cost.prediction import Ratio
from btrfs_model.experiments.workloads.timed import SECONDS

_SHOWN: Final = 1.005
"""How many times as much shows in three digits."""
_SIZES: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Units in which times read, in seconds."""


def number(value: float | None) -> str:
    """Format a figure for people: thousands apart, four digits; empty for None."""
    if value is None or math.isnan(value):
        return ""
    whole = value == int(value) or abs(value) >= 1000
    return f"{value:,.0f}" if whole else f"{value:,.4g}"


def percent(value: float | None) -> str:
    """Format an error for people: ``exact``, or per cent with a sign; empty for None."""
    if value is None or math.isnan(value):
        return ""
    if value == 0:
        return "exact"
    return f"{value:+.2%}" if abs(value) >= 5e-5 else f"{value * 100:+.2g}%"


def _half(value: float, low: float | None, high: float | None, size: float = 1.0) -> str:
    """Return the larger half of an interval in a unit, behind its sign; empty without one."""
    if low is None or high is None or math.isclose(low, high):
        return ""
    half = max(high - value, value - low) / size
    return f" ± {half:,.0f}" if half >= 100 else f" ± {half:.2g}"


def times(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Format a ratio: ``12.9x``, with its interval ``12.9x ± 3.2``; empty for None."""
    if value is None:
        return ""
    return f"{number(round(value) if value >= 100 else float(f'{value:.3g}'))}x" + _half(
        value, low, high
    )


def ratio_text(one: Ratio | None) -> str:
    """Format a ratio; with its interval where that shows in three digits; empty for None.

    Where it hangs on the device, both ends of the interval stand there.
    """
    if one is None:
        return ""
    if one.untold:
        return "not told"
    if one.devices:
        return f"{times(one.value)} ({times(one.low)} to {times(one.high)})"
    if max(one.high / one.value, one.value / one.low) < _SHOWN:
        return times(one.value)
    return times(one.value, one.low, one.high)


def amount(
    unit: str, value: float | None, low: float | None = None, high: float | None = None
) -> str:
    """Format a figure of a unit, with its interval: ``7,837``, ``1.8 s ± 0.2``; empty for None."""
    if value is None:
        return ""
    if unit not in SECONDS:
        return number(value) + _half(value, low, high)
    text = duration(value * SECONDS[unit])
    return text + _half(value, low, high, _SIZES[text.rpartition(" ")[2]] / SECONDS[unit])


def short(value: float) -> str:
    """Format a count in at most six characters or so: ``900 M``, ``60 k``."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
