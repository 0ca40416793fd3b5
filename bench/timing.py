# SPDX-License-Identifier: GPL-2.0-only
"""Taking time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path


def best(action: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of the fastest of a few runs."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def peak() -> int:
    """Bytes of memory that this process had at most; getrusage() counts its parent's as well."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0
