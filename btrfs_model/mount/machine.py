# SPDX-License-Identifier: GPL-2.0-only
"""What a machine decides by chance: when its threads come to their work.

The model has one thread, which does everything at once and in order. An experiment that follows
a real machine says here where that one was different.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class Machine:
    """The machine that a filesystem is mounted on.

    `asynchronous`: a worker runs delayed items before the commit, once ``BACKGROUND`` of them wait;
    by default they wait for the commit.
    `lag`: up to so many further items, by `chance`, wait before the worker has begun: those that
    calls add while it is woken on another CPU.
    `late_extents`: the extents that a fast fsync wrote are finished (``btrfs_finish_ordered_io()``)
    after the log is synced, which two threads race for; the next fsync then logs the file once
    more.
    `finish_order`: for a number of extents that are written back together, the order in which
    workers make their items; without it each extent is finished before the next is begun.
    `chance`: what decides the lag.
    `worked`: how often the worker ran.
    """

    asynchronous: bool = False
    lag: int = 0
    late_extents: bool = False
    finish_order: Callable[[int], npt.NDArray[np.uint32]] | None = None
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    worked: int = 0
