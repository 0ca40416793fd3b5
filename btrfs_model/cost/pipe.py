# SPDX-License-Identifier: GPL-2.0-only
"""A stream that goes through a pipe, as that of ``btrfs send``: each command may wake the reader.

The reader sleeps while the pipe is empty. It takes some microseconds to empty it; a command that
comes meanwhile wakes nobody. So commands that follow each other fast wake it seldom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

PIPE_WRITES: Final = "pipe_writes"
"""Commands that are written to a pipe."""
PIPE_WAKES: Final = "pipe_wakes"
"""Of these, those that wake the reader."""
PIPE: Final = (PIPE_WRITES, PIPE_WAKES)
"""What a send into a file has none of."""
READER: Final = 9e-6
"""Seconds for which a reader that was woken stays awake.

Chosen, with the weight of a wake, by the microbenchmarks, natively and in User-Mode Linux 6.1 and
6.12. None is a workload.
"""


def through_a_pipe(work: Mapping[str, float]) -> dict[str, float]:
    """Return the work of a send whose commands are written to a pipe."""
    return {**work, PIPE_WRITES: work.get("send_cmd", 0)}


def with_wakes(work: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Add how often the reader is woken while a send takes so long.

    Commands are taken to come at random: one follows the last by more than :data:`READER` as often
    as one event of a Poisson process does.
    """
    writes = work[PIPE_WRITES]
    return {**work, PIPE_WAKES: round(writes * math.exp(-READER * writes / seconds))}
