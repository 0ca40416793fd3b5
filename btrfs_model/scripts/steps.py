# SPDX-License-Identifier: GPL-2.0-only
"""What a script's programs call, and when it reads the clock: rows of what it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from btrfs_model.base.counters import apart, counting
from btrfs_model.cost.machine import Machine
from btrfs_model.cost.prediction import NoCostError, predict
from btrfs_model.cost.writing import log_sync
from btrfs_model.mount.mount import START as MOUNT_START

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from btrfs_model.cost.answer import Cold
    from btrfs_model.cost.device import Device
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.volume.device.memory import Memory

START: Final = MOUNT_START / 1e9
"""Seconds since 1970 at which a script begins: the clock stands still but for what is predicted."""


@dataclass(slots=True)
class Step:
    """A call of a program on a filesystem: its work, and what it takes."""

    line: int
    what: str
    seconds: float | None
    work: dict[str, int]
    waits: float = 0.0
    """Nanoseconds of waiting for the device."""
    bytes: int = 0
    """What was read, written, sent or received by it."""
    errno: int = 0
    """Of the error that it returned."""
    cold: Cold | None = None
    """Tree blocks that it read."""
    log: NDArray[np.int64] | None = None
    """Bytes of the device that the blocks of a log were written to, where there is one."""
    nodesize: int = 0
    functions: dict[str, dict[str, int]] = field(default_factory=dict)
    """What functions of the kernel did in it, of those that are counted apart."""

    def waits_on(self, device: Device, computed: float) -> float:
        """Return the nanoseconds of waiting for a device beside so many seconds of computing."""
        waits = 0.0
        if self.cold is not None and self.cold.physical is not None:
            waits += self.cold.on(device).waits(computed)
        if self.log is not None:
            waits += log_sync(device, self.log, self.nodesize)
        return waits


class Reading(NamedTuple):
    """A reading of the clock: where, when, and how many calls and commits were before."""

    line: int
    time: float
    calls: int
    commits: int


class Ran(Protocol):
    """A script that ran: what is told of its calls."""

    calls: list[Step]
    readings: list[Reading]
    machine: Machine
    device: str

    @property
    def steps(self) -> pd.DataFrame:
        """The calls as a table."""

    @property
    def regions(self) -> pd.DataFrame:
        """What was done between readings of the clock, as a table."""


class Watcher(Protocol):
    """Who is told what happens to filesystems."""

    def mounted(self, fs: WritableFilesystem, name: str) -> None:
        """Note that a device of that name is mounted."""

    def unmounted(self, fs: WritableFilesystem, *, crashed: bool) -> None:
        """Note that it no longer is, by umount or a crash."""

    def kept(self, fs: WritableFilesystem) -> Memory:
        """Return what is on the device now, for a crash."""

    def called(self, what: str) -> None:
        """Note that a call ended."""


class Record:
    """The calls of a script and its clock.

    Parameters
    ----------
    costs : Machine
        What work costs.
    disk : Device, optional
        What is waited for; nothing is without it.
    watcher : Watcher, optional
        Is told of calls.
    """

    def __init__(
        self, costs: Machine, disk: Device | None = None, watcher: Watcher | None = None
    ) -> None:
        self.costs, self.disk, self.watcher = costs, disk, watcher
        self.now = START
        self.line = 0
        self.steps: list[Step] = []
        self.readings: list[Reading] = []
        self._times: dict[tuple[tuple[str, int], ...], float | None] = {}

    def flush(self) -> None:
        """Do what was collected: it comes before what is noted now."""

    @contextmanager
    def timed(self, what: str, line: int | None = None) -> Iterator[Step]:
        """Count the work of a call, and let the clock go on by what it takes.

        It has a row where it fails, too. `line`: of its command, where that is not the one that
        runs.
        """
        self.flush()
        step = Step(self.line if line is None else line, what, None, {})
        first, failed = len(self.steps), None
        with counting() as counted, apart() as functions:
            try:
                yield step
            except OSError as error:
                failed, step.errno = error, error.errno or 0
        work = dict(counted)
        step.functions = {name: dict(one) for name, one in functions.items()}
        for one in self.steps[first:]:  # what calls inside it did is theirs
            work = {name: work[name] - one.work.get(name, 0) for name in work}
        step.work = {**{name: count for name, count in work.items() if count}, **step.work}
        step.seconds = self._predicted(step.work)
        self.now += step.seconds or 0.0
        self.wait(step)
        self.steps.append(step)
        if self.watcher is not None:
            self.watcher.called(f"line {step.line}: {what}")
        if failed is not None:
            failed.has_row = True  # type: ignore[attr-defined]
            raise failed

    def _predicted(self, work: dict[str, int]) -> float | None:
        """Return the seconds that work takes; None where nothing of it has a cost.

        Most calls of a loop do what one before them did.
        """
        key = tuple(work.items())
        if key not in self._times:
            try:
                self._times[key] = predict(self.costs, work).seconds
            except NoCostError:
                self._times[key] = None
        return self._times[key]

    def refused(self, what: str, error: OSError) -> OSError:
        """Note a call that was refused before it did anything, unless that is noted; return why."""
        self.flush()
        if not hasattr(error, "has_row"):
            self.steps.append(Step(self.line, what, None, {}, errno=error.errno or 0))
            error.has_row = True  # type: ignore[attr-defined]
        return error

    def wait(self, step: Step) -> None:
        """Add what a call waits for the device."""
        if self.disk is not None:
            computed = step.seconds or 0.0
            step.waits = step.waits_on(self.disk, computed)
            step.seconds = computed + step.waits / 1e9 if step.waits else step.seconds
            self.now += step.waits / 1e9
