# SPDX-License-Identifier: GPL-2.0-only
"""How the exercises of the notebooks are judged."""

from __future__ import annotations

from collections.abc import Callable


def judge(wrong: Callable[[], str | None]) -> None:
    """Print ``right``, or ``not yet`` and why.

    Parameters
    ----------
    wrong : callable
        Says what is wrong with an answer, or returns None; that an answer fails is wrong too.
    """
    try:
        why = wrong()
    except Exception as error:
        why = f"it ends with {type(error).__name__}: {error}"
    print(f"not yet: {why}" if why else "right")
