# SPDX-License-Identifier: GPL-2.0-only
"""Every state that a crash of a workload may leave, beside what was promised: ``bm.crashes()``."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError, UnsupportedError
from btrfs_model.base.tables import frame_of_rows
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.crashes.promises import Broken, Content, History
from btrfs_model.experiments.crashes.record import (
    Recording,
    Watching,
    record_scenario,
    record_script,
)
from btrfs_model.experiments.crashes.seen import Ref, State, seen
from btrfs_model.experiments.crashes.states import AT, DiskState, Moment, disk_states
from btrfs_model.experiments.scenario.load import Scenario, load_scenario
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.structs import SUPER_BLOCK
from btrfs_model.ondisk.superblock import SUPER_OFFSETS, SUPER_SIZE, parse_superblock
from btrfs_model.patches import KERNEL
from btrfs_model.questions.check import check
from btrfs_model.questions.check.report import Finding
from btrfs_model.scripts.device_log import FUA
from btrfs_model.scripts.run import watched_script
from btrfs_model.volume.device.memory import Memory
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image

if TYPE_CHECKING:
    import pandas as pd

SIZE: Final = 256 << 20
SCENARIOS: Final = (".json", ".jsonl", ".json.zst", ".jsonl.zst")
"""How files of scenarios end."""
_SUPER: Final = SUPER_OFFSETS[0]
_DEVICE: Final = "<memory>"
_STATES: Final = {
    "kernel": "str", "device": "str", "call": "int64", "what": "str", "written": "str",
    "states": "int64", "outcome": "str", "broken": "str",
}  # fmt: skip
_BROKEN: Final = {
    "kernel": "str", "device": "str", "call": "int64", "what": "str", "moment": "str",
    "rule": "str", "broken": "str",
}  # fmt: skip


@dataclass(repr=False)
class Crashes:
    """What crashes of a workload leave.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each state of a device that differs from the one before it, and each kernel:
        ``kernel``, ``device``, ``call`` (number of the call that wrote it) and ``what`` that is,
        ``written`` (``mount``, ``superblock``, ``write in place``, ``torn ...``), ``states``
        (moments of a crash that leave the same), ``outcome`` (``mounted``, or how the mount ends),
        ``broken`` (names of rules).
    broken : pandas.DataFrame
        A row for each promise that is broken: ``kernel``, ``device``, ``call`` and ``what`` (the
        last call before the crash), ``moment`` (``in`` the call, or ``after`` it), ``rule`` (see
        :data:`btrfs_model.experiments.crashes.promises.RULES`), ``broken`` (by what).
    states : int
        Moments that were looked at, on one kernel.
    outcomes : int
        Filesystems that differ after a mount, on all kernels.
    status : int
        Exit status of the script; 0 for a scenario.
    stderr : bytes
        What it wrote to its standard error.
    """

    table: pd.DataFrame
    broken: pd.DataFrame
    states: int
    outcomes: int
    status: int = 0
    stderr: bytes = b""
    images: dict[str, Memory] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (f"<Crashes: {self.states:,} states, {self.outcomes:,} outcomes, "
                f"{len(self.broken):,} broken promises>")  # fmt: skip

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False))

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the devices that broke a promise, as the crash left them.

        Returns
        -------
        list of Path
            Files that were written: ``KERNEL-CALL.img``, and ``KERNEL-CALL-2.img`` ... of one call.

        Raises
        ------
        OSError
            When one cannot be written.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        paths = []
        for name, memory in self.images.items():
            paths.append(Path(folder, name))
            memory.save(paths[-1])
        return paths


@checked
def crashes(
    workload: Scenario | str | os.PathLike[str],
    *,
    behaviours: Sequence[str] = (KERNEL,),
    replay: str = "",
    at: str = "every-write",
    reorder: bool = False,
    torn: bool = False,
    size: int = SIZE,
) -> Crashes:
    """Look at every state that a crash of a workload may leave, on each kernel.

    Parameters
    ----------
    workload : os.PathLike or str
        The file of a scenario (``.json``, ``.jsonl``) or of a shell script; or the text of a
        script. A crash comes at each of its moments.
    behaviours : sequence of str
        The kernels.
    replay : str
        The kernel that mounts what a crash left; without it each mounts its own.
    at : str
        ``every-write``: a crash after each write to the device; ``flush``: after each superblock;
        ``fsync``: after each call that makes something last.
    reorder : bool
        Let each subset of the writes between two flushes come through.
    torn : bool
        Let a part of a write come through, sector by sector.
    size : int
        Of the device of a scenario, and of devices that a script names, bytes.

    Returns
    -------
    Crashes
        What is there, and what was promised and is not.

    Raises
    ------
    ValueError
        For an `at` that there is not.
    UnknownBehaviourError
        For a kernel or toggle that there is not.
    ScenarioError, ShellSyntaxError, UnknownError
        As of a scenario that is run, and of :func:`btrfs_model.script`.
    BtrfsModelError
        For a script that mounts nothing, or does something else in its second run.
    """
    if at not in AT:
        raise ValueError(f"at {at!r} is none of {', '.join(AT)}")
    found, workload = _Found(), _loaded(workload)
    for name in behaviours:
        behaviour = Behaviour.parse(name)
        found.states = 0
        mounting = Behaviour.parse(replay) if replay else behaviour
        for recording in _recorded(workload, behaviour, size, found):
            judge = Judge(recording, mounting)
            for state in disk_states(recording, at=at, reorder=reorder, torn=torn):
                found.add(str(behaviour), recording, state, judge)
    return found.answer()


def _loaded(workload: Scenario | str | os.PathLike[str]) -> Scenario | str:
    if not isinstance(workload, os.PathLike):
        return workload
    path = Path(workload)
    if path.name.endswith(SCENARIOS):
        return load_scenario(path)
    return path.read_text("utf-8", "surrogateescape")


def _recorded(
    workload: Scenario | str, behaviour: Behaviour, size: int, found: _Found
) -> list[Recording]:
    if isinstance(workload, Scenario):
        return [record_scenario(workload, behaviour, size=size)]

    def run(watching: Watching) -> None:
        with closing(watched_script(workload, behaviour, size, watching)) as result:
            found.status, found.stderr = result.status, result.stderr

    recordings = record_script(run)
    if not recordings:
        raise BtrfsModelError("the script mounts nothing: there is nothing that a crash could "
                              "leave")  # fmt: skip
    return recordings


class Outcome(NamedTuple):
    """What a mount makes of a state of a device.

    `state`: what is seen then; None where the mount does not go well.
    `said`: ``mounted``, or how it ends.
    `findings`: of a check after it.
    """

    state: State | None
    said: str
    findings: list[Finding]


def mount_after(memory: Memory, kernel: Behaviour) -> Outcome:
    """Mount what a crash left; the mount changes it.

    Raises UnsupportedError: for what the model does not handle.
    """
    try:
        # a mount looks at the first superblock alone (btrfs_read_disk_super())
        parse_superblock(bytes(memory.buffer[_SUPER : _SUPER + SUPER_SIZE]), _SUPER, _DEVICE)
        with WritableFilesystem(memory, behaviour=kernel, replay_behaviour=kernel) as fs:
            fs.sync()
            return Outcome(seen(fs), "mounted", check(fs, verify_data=True))
    except UnsupportedError:
        raise  # what the model does not handle is no broken promise
    except (BtrfsModelError, OSError) as error:
        return Outcome(None, str(error).removeprefix(f"{_DEVICE}: "), [])


class Judge:
    """Says which promises a crash of a workload breaks.

    `recording`: the workload; `kernel`: what mounts after the crash.
    """

    def __init__(self, recording: Recording, kernel: Behaviour) -> None:
        self.recording, self.kernel = recording, kernel
        self._commits = _commits(recording)
        """By the generation of a commit: the call that made it."""

    def broken(self, state: DiskState, outcome: Outcome) -> Iterator[tuple[Moment, Broken]]:
        """Yield what is broken for a crash at each moment that leaves the state."""
        if outcome.state is None:
            yield state.moments[0], Broken("mount", outcome.said)
            return
        for one in _unlogged(state, outcome.state):
            yield state.moments[0], one
        for finding in outcome.findings:
            yield state.moments[0], Broken("check", str(finding))
        known: set[Broken] = set()
        for moment in state.moments:
            if outcome.state == self.recording.states[moment[0]]:
                continue
            for one in self.history(state, moment).broken(outcome.state):
                if one not in known:
                    known.add(one)
                    yield moment, one

    def history(self, state: DiskState, moment: Moment) -> History:
        """Return what processes saw until a crash."""
        step, returned = moment
        # what the call of the commit does may be in it or not
        base = max(self._commits[SUPER_BLOCK.unpack(state.disk.superblock).generation] - 1, 0)
        states = self.recording.states
        fsynced: dict[Ref, int] = {}
        written: dict[Ref, int] = {}
        for call in self.recording.log.synced_calls:
            if call.step > step or (call.step == step and not returned):
                continue
            refs: Iterable[Ref] = states[call.step] if call.ref is None else [call.ref]
            for ref in refs:
                target = fsynced if call.step >= base else written
                target[ref] = max(call.step - base, 0) if target is fsynced else call.step
        unwritten = {ref: _contents(states, ref, written.get(ref, 0), base)
                     for ref, inode in states[base].items() if inode.is_file}  # fmt: skip
        return History(states[base : step + 1], fsynced, unwritten)


def _unlogged(state: DiskState, result: State) -> Iterator[Broken]:
    """Yield subvolumes without a log that are not as they were committed."""
    if len({root for root, _ in result}) == 1:
        return
    with Filesystem(Image(state.memory.buffer)) as fs:
        logged = fs.log_trees
        committed = seen(fs) if logged else result
    for root in sorted({root for root, _ in [*result, *committed]} - logged.keys()):
        before, after = ({ref: inode for ref, inode in state.items() if ref[0] == root}
                         for state in (committed, result))  # fmt: skip
        if before != after:
            yield Broken("subvolume", f"subvolume {root} has no log and is not as it was committed")


def _contents(states: Sequence[State], ref: Ref, first: int, last: int) -> list[Content]:
    found = [(state[ref].data, state[ref].size) for state in states[first:last] if ref in state]
    return [*found, (b"", 0)] if ref not in states[first] else found


def _commits(recording: Recording) -> dict[int, int]:
    """Return the call in which each transaction was committed; that of the mount is the first."""
    log, found = recording.log, {_generation(recording.log.first): 0}
    for number, entry in enumerate(log.entries):
        if entry.flags & FUA:
            superblock = SUPER_BLOCK.unpack(log.data(entry)[:SUPER_SIZE])
            found.setdefault(superblock.generation, bisect_right(log.ends, number))
    return found


def _generation(memory: Memory) -> int:
    return SUPER_BLOCK.unpack(memory.buffer[_SUPER : _SUPER + SUPER_SIZE]).generation


class _Found:
    """Rows of the answer."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self.broken: list[dict[str, object]] = []
        self.images: dict[str, Memory] = {}
        self.states = self.status = 0
        self.stderr = b""
        self._outcomes: list[tuple[str, State | None]] = []

    def add(self, kernel: str, recording: Recording, state: DiskState, judge: Judge) -> None:
        """Judge a state."""
        outcome = mount_after(state.memory.copy(), judge.kernel)
        steps = recording.log.steps
        rules = dict[str, None]()
        where = {"kernel": kernel, "device": recording.name}
        for (step, returned), one in judge.broken(state, outcome):
            rules[one.rule] = None
            self.broken.append({
                **where, "call": step, "what": steps[step],
                "moment": "after" if returned else "in", "rule": one.rule, "broken": one.what,
            })  # fmt: skip
        self.rows.append({
            **where, "call": state.step, "what": steps[min(state.step, len(steps) - 1)],
            "written": state.what, "states": state.states, "outcome": outcome.said,
            "broken": ", ".join(rules),
        })  # fmt: skip
        self.states += state.states
        if (outcome.said, outcome.state) not in self._outcomes:
            self._outcomes.append((outcome.said, outcome.state))
        if rules:
            name = f"{kernel}-{state.step}".replace(" ", "").replace("/", "_")
            count = sum(one.startswith((f"{name}.", f"{name}-")) for one in self.images)
            self.images[f"{name}-{count + 1}.img" if count else f"{name}.img"] = state.memory.copy()

    def answer(self) -> Crashes:
        """Return all of it."""
        return Crashes(
            frame_of_rows(_STATES, self.rows), frame_of_rows(_BROKEN, self.broken), self.states,
            len(self._outcomes), self.status, self.stderr, self.images,
        )  # fmt: skip
