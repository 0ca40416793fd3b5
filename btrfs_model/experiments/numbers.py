# SPDX-License-Identifier: GPL-2.0-only
"""Figures as people read them."""

from __future__ import annotations

import math


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
    return f"{value:+.2%}" if abs(value) >= 5e-5 else f"{value * 100:+.1e}%"
