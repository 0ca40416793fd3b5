# SPDX-License-Identifier: GPL-2.0-only
"""Taking time."""

from __future__ import annotations

import time
from collections.abc import Callable


def best(action: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of the fastest of a few runs."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
