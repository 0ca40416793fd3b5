# SPDX-License-Identifier: GPL-2.0-only
"""Background jobs: each goes on for some commands, then another does, in an order of their own."""

from __future__ import annotations

import contextvars
import random
from typing import TYPE_CHECKING, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.shell.state import Killed

try:
    from greenlet import getcurrent, greenlet
except ImportError as error:
    raise BtrfsModelError("greenlet is not here: pip install 'btrfs_model[script]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from btrfs_model.shell.state import World

_SLICE: Final = 1000
"""Commands that a job, and the script itself, runs before the next one goes on."""
_FIRST: Final = 1001
_SIGNALED: Final = 128
SIGNALS: Final = {1: "HUP", 2: "INT", 3: "QUIT", 9: "KILL", 10: "USR1", 12: "USR2", 13: "PIPE",
                  14: "ALRM", 15: "TERM"}  # fmt: skip
KILLS: Final = {name: number for number, name in SIGNALS.items()}


class Job:
    """A background job.

    Attributes
    ----------
    number : str
        What ``$!`` has.
    status : int or None
        Its exit status; None while it runs.
    place : str
        Its working directory, while others run.
    """

    def __init__(
        self, number: str, run: Callable[[], int], trap: Callable[[int], bool], world: World
    ) -> None:
        self.number, self._trap, self._signal = number, trap, 0
        self.status: int | None = None
        self.wake = 0.0
        self.runs = False
        self.place, self._umask = world.cwd, world.umask
        self._coroutine = greenlet(lambda: self._run(run))
        self._coroutine.gr_context = contextvars.copy_context()

    def _run(self, run: Callable[[], int]) -> None:
        self.status = run()

    def resume(self, world: World, signal: int = 0) -> None:
        """Go on until it pauses or ends; a signal comes first. What it raises is raised here."""
        place, umask = world.cwd, world.umask
        world.cwd, world.umask = self.place, self._umask
        self._coroutine.parent = getcurrent()
        self.runs = True
        self._signal = signal
        try:
            self._coroutine.switch()
        finally:
            self.runs = False
            self.place, self._umask = world.cwd, world.umask
            world.cwd, world.umask = place, umask

    def pause(self) -> None:
        """Let go on what resumed it."""
        parent = self._coroutine.parent
        assert parent is not None
        parent.switch()
        signal, self._signal = self._signal, 0
        if signal:
            self.wake = 0.0
            self.end(signal)

    def end(self, signal: int) -> None:
        """Do what its shell does at a signal: it runs a trap, or ends."""
        if not self._trap(signal):
            raise Killed(_SIGNALED + signal)


class Jobs:
    """The background jobs of a script.

    Parameters
    ----------
    world : World
        What they act on: its clock goes on when all of them sleep.
    order : int
        Another number is another order: slices of other lengths.
    """

    def __init__(self, world: World, order: int = 0) -> None:
        self._world = world
        self._choice = random.Random(order) if order else None
        self._number = _FIRST
        self.left: list[Job] = []
        """Those that have not ended, the oldest first."""
        self._running: list[Job] = []

    def start(self, run: Callable[[], int], trap: Callable[[int], bool]) -> Job:
        """Begin a job, which runs its first slice at once; `trap` runs the trap of a signal."""
        job = Job(str(self._number), run, trap, self._world)
        self._number += 1
        self.left.append(job)
        self._resume(job)
        return job

    def _resume(self, job: Job, signal: int = 0) -> None:
        self._running.append(job)
        self._world.share(self._slice())
        try:
            job.resume(self._world, signal)
        finally:
            self._running.pop()
            if job.status is not None:
                self.left.remove(job)
            self._world.share(self._slice() if self.left else 0)

    def _slice(self) -> int:
        return self._choice.randint(1, 2 * _SLICE) if self._choice else _SLICE

    def turn(self) -> bool:
        """Let the others go on; return whether there were any."""
        if self._running:
            self._running[-1].pause()
            return True
        now = self._world.clock()
        ready = [one for one in self.left if one.wake <= now]
        for job in ready:
            if job.status is None:
                self._resume(job)
        return bool(ready)

    def wait(self, jobs: Sequence[Job]) -> Job:
        """Let the others go on until one of some jobs has ended; return it."""
        while True:
            for job in jobs:
                if job.status is not None:
                    return job
            if self._running:
                self._running[-1].pause()
            elif not self.turn():
                self._pass_until(min(one.wake for one in self.left))

    def sleep(self, seconds: float) -> None:
        """Let time go by: the others go on in it."""
        end = self._world.clock() + seconds
        if self._running:
            job = self._running[-1]
            job.wake = end
            while self._world.clock() < end:
                job.pause()
            return
        while self._world.clock() < end:
            self.turn()
            now = self._world.clock()
            self._pass_until(min([end, *(one.wake for one in self.left if one.wake > now)]))

    def _pass_until(self, time: float) -> None:
        self._world.pass_time(max(0.0, time - self._world.clock()))

    def kill(self, job: Job, signal: int) -> None:
        """Send a job a signal that ends it where it has no trap."""
        if job.runs:
            job.end(signal)
        else:
            self._resume(job, signal)

    def end(self) -> None:
        """End what is left: the script has ended."""
        for job in list(self.left):
            self._resume(job, KILLS["KILL"])
