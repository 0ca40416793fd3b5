# SPDX-License-Identifier: GPL-2.0-only
"""Clocks of a kernel that is asked, and how long runs took by them."""

from __future__ import annotations

import os
import sys
import time
from typing import Self, TypeVar

T = TypeVar("T")

MARK = "answer "
"""Starts a line that the agent prints for who started it."""
PROCESSOR = "processor"
"""Asks it for the processor time of the process that is this kernel."""


Run = tuple[float, float, T]
"""Milliseconds of a run by the wall and of the processor, and what it made."""


class Clock:
    """Measures one run: what is between :meth:`start` and :meth:`stop`, inside a ``with``.

    A guest's own idea of processor time is that of its timer, in steps of 10 ms, and has the time
    in it that the machine took from the guest. There it is that of the guest's process over the
    whole ``with``, programs of the guest not among it, which are processes of their own.
    """

    def __init__(self) -> None:
        self.wall = self.cpu = 0
        self._in_guest = os.getpid() == 1

    def __enter__(self) -> Self:
        if self._in_guest:
            self.cpu -= _processor_of_guest()
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_guest:
            self.cpu += _processor_of_guest()

    def start(self) -> None:
        """Go on."""
        if not self._in_guest:
            self._cpu = time.thread_time_ns()
        self._wall = time.perf_counter_ns()

    def stop(self) -> None:
        """Stand still."""
        self.wall += time.perf_counter_ns() - self._wall
        if not self._in_guest:
            self.cpu += time.thread_time_ns() - self._cpu

    def run(self, made: T) -> Run[T]:
        """Say what a run took that made something."""
        return self.wall / 1e6, self.cpu / 1e6, made


def _processor_of_guest() -> int:
    print(f"{MARK}{PROCESSOR}", flush=True)
    return int(sys.stdin.readline())
