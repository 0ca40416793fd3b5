# SPDX-License-Identifier: GPL-2.0-only
"""A workload that runs: the writes to its device, and what processes saw in between.

It runs twice. The first run is as it stands, and what it writes is noted. In the second one all is
written back and committed after each call, and the commit is looked at: that is what processes see
at that moment, whatever waits in memory. Looking at the first run would change it: what is in
memory decides what an fsync logs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from btrfs_model.base.errors import BtrfsModelError, UnsupportedError
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.crashes.seen import Ref, State, seen
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import Step
from btrfs_model.experiments.scenario.run import Runner
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.scripts.device_log import DeviceLog
from btrfs_model.volume.device.memory import Memory

_BEFORE: Final = ("mkfs", "mount")
_MOST: Final = 2_000_000
"""Calls times inodes: so many are looked at in minutes."""


class Synced:
    """That a call returned which makes an inode last, or all; after so many entries of a log."""

    __slots__ = ("entries", "ref", "step")

    def __init__(self, entries: int, step: int, ref: Ref | None) -> None:
        self.entries, self.step, self.ref = entries, step, ref


class Recorder(DeviceLog):
    """The writes to a device, from a mount on.

    `name`: of the device.
    `first` (Memory): what is on it at first; it stays as it is.
    `synced_calls` (list of Synced): what was made to last.
    `ends` (list of int): how many entries there are after each call, from the mount on.
    `steps` (list of str): what was called.
    """

    def __init__(self, name: str, first: Memory) -> None:
        super().__init__(name, first.copy())
        self.first = first
        self.synced_calls: list[Synced] = []
        self.ends: list[int] = [0]
        self.steps: list[str] = ["mount"]

    def synced(self, inode: LiveInode | None) -> None:
        """Note it."""
        ref = None if inode is None else (inode.root, inode.ino)
        self.synced_calls.append(Synced(len(self.entries), len(self.ends), ref))

    def called(self, what: str) -> None:
        """Note that a call ended."""
        self.ends.append(len(self.entries))
        self.steps.append(what)


@dataclass
class Recording:
    """What a mount of a workload did, and what was seen after each of its calls.

    `name`: of the device; `log`: what was written to it; `states`: one after each call, the first
    that of the mount.
    """

    name: str
    log: Recorder
    states: list[State] = field(default_factory=list)


def record_scenario(
    scenario: Scenario,
    behaviour: Behaviour,
    *,
    size: int,
    states: Callable[[WritableFilesystem], list[State]] | None = None,
    first: Memory | None = None,
    strict: bool = True,
) -> Recording:
    """Run a scenario.

    Parameters
    ----------
    scenario : Scenario
        What is called; ``crash`` is passed over, since it crashes everywhere.
    behaviour : Behaviour
        The kernel.
    size : int
        Of the device, bytes.
    states : callable, optional
        Returns what was seen, where that is known already; given the filesystem after the last
        call, which may be changed.
    first : Memory, optional
        The filesystem that the first step finds; without it the scenario's mkfs makes one.
    strict : bool
        Whether a call that fails is an error, unless it is recorded as failing.

    Raises
    ------
    ScenarioError
        When a call does not end as recorded.
    """
    with _Run(scenario, behaviour, size, first, strict) as run:
        log = Recorder(Path(scenario.path).name, run.fs.memory.copy() if first is None else first)
        run.fs.watcher = log
        for step in run.rest:
            run.take(step)
            log.called(str(step))
        log.end(run.fs.memory)
        run.fs.watcher = None
        if states is not None:
            return Recording(log.name, log, states(run.fs))
    with _Run(scenario, behaviour, size, first, strict) as run:
        return Recording(log.name, log, run.seen())


def state_after(scenario: Scenario, behaviour: Behaviour, first: Memory) -> State:
    """Return what is seen after the last call of a scenario."""
    with _Run(scenario, behaviour, 0, first, strict=False) as run:
        for step in run.rest:
            run.take(step)
        run.fs.sync()
        return seen(run.fs)


def _add(states: list[State], fs: WritableFilesystem) -> None:
    """Add what is seen now.

    Raises UnsupportedError: when that is too much to be looked at after each call.
    """
    fs.sync()
    states.append(seen(fs))
    if len(states) * len(states[-1]) > _MOST:
        raise UnsupportedError(f"after {len(states):,} calls there are {len(states[-1]):,} inodes, "
                               "too many to be looked at after each call")  # fmt: skip


class _Run:
    """A scenario on its way: what comes before the first call is done."""

    def __init__(
        self, scenario: Scenario, behaviour: Behaviour, size: int,
        first: Memory | None, strict: bool,
    ) -> None:  # fmt: skip
        self.strict = strict
        self._runner = Runner(scenario, size, 0)
        self._runner.behaviour = behaviour
        count = 0
        if first is not None:
            self._runner.made = WritableFilesystem(first.copy())
            self._runner.made.behaviour = behaviour
        else:
            while count < len(scenario.steps) and scenario.steps[count].name in _BEFORE:
                self.take(scenario.steps[count])
                count += 1
        self.rest = [step for step in scenario.steps[count:] if step.name != "crash"]
        self.fs = self._runner.fs()
        # kernels have the thread
        self.fs.machine.asynchronous = True

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.fs.watcher = None
        self._runner.close()

    def take(self, step: Step) -> None:
        """Make a call."""
        if self.strict:
            self._runner.take(step)
            return
        with suppress(OSError):
            self._runner.carry_out(step)

    def seen(self) -> list[State]:
        """Return what is seen at first and after each call."""
        states: list[State] = []
        _add(states, self.fs)
        for step in self.rest:
            self.take(step)
            _add(states, self.fs)
        return states


class Watching:
    """The mounts of a script, of which each has its recording.

    `noted`: where this is the run that is looked at after each call: the one that it follows.
    """

    def __init__(self, noted: Watching | None = None) -> None:
        self.recordings: list[Recording] = []
        self._mounted: list[tuple[WritableFilesystem, Recording]] = []
        self._looks = noted is not None
        self._crashes: list[Memory] = [] if noted is None else noted._crashes

    def mounted(self, fs: WritableFilesystem, name: str) -> None:
        """Note a mount."""
        if any(one is fs for one, _ in self._mounted):
            return
        fs.machine.asynchronous = True
        recording = Recording(name, Recorder(name, fs.memory.copy()))
        if self._looks:
            _add(recording.states, fs)
        else:
            fs.watcher = recording.log
        self.recordings.append(recording)
        self._mounted.append((fs, recording))

    def unmounted(self, fs: WritableFilesystem, *, crashed: bool) -> None:
        """Note that a mount ended."""
        if not crashed:
            self.called("umount", fs)
        for one, recording in self._mounted:
            if one is fs and not self._looks:
                recording.log.end(None if crashed else fs.memory)
                fs.watcher = None
        self._mounted = [one for one in self._mounted if one[0] is not fs]

    def kept(self, fs: WritableFilesystem) -> Memory:
        """Return what a crash leaves: in the second run what it left in the first."""
        if self._looks:
            if not self._crashes:
                raise _differs("it crashes more often")
            return self._crashes.pop(0)
        self._crashes.append(fs.memory.copy())
        return fs.memory

    def called(self, what: str, only: WritableFilesystem | None = None) -> None:
        """Note that a call ended."""
        for fs, recording in self._mounted:
            if only is not None and fs is not only:
                continue
            if self._looks:
                _add(recording.states, fs)
            else:
                recording.log.called(what)

    def end(self) -> None:
        """Note that the script ended."""
        for fs, _ in list(self._mounted):
            self.unmounted(fs, crashed=True)


def _differs(how: str) -> BtrfsModelError:
    return BtrfsModelError("the script does something else where all is written back after each "
                           f"call: {how}")  # fmt: skip


def record_script(run: Callable[[Watching], None]) -> list[Recording]:
    """Run a script twice, and return what each mount in it did.

    `run`: runs it, and tells who watches.
    Raises BtrfsModelError: for a script that does not do the same twice.
    """
    noted = Watching()
    run(noted)
    noted.end()
    looked = Watching(noted)
    run(looked)
    if len(noted.recordings) != len(looked.recordings):
        raise _differs(f"{len(looked.recordings)} mounts, not {len(noted.recordings)}")
    for one, other in zip(noted.recordings, looked.recordings, strict=True):
        if len(one.log.ends) != len(other.states):
            raise _differs(f"{len(other.states):,} calls on {one.name}, not {len(one.log.ends):,}")
        one.states = other.states
    return noted.recordings
