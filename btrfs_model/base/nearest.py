# SPDX-License-Identifier: GPL-2.0-only
"""What somebody may have meant who misspelt a name."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error: the known name that is nearest; empty where none is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 1)
    return f"; did you mean '{near[0]}'?" if near else ""
