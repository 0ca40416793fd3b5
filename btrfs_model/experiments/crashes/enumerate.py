# SPDX-License-Identifier: GPL-2.0-only
"""Crashes of all small sequences of operations: which kernel loses what."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from btrfs_model.base.arguments import checked
from btrfs_model.behaviour import Behaviour, name_ranges
from btrfs_model.experiments.crashes.api import Judge, Outcome, mount_after
from btrfs_model.experiments.crashes.promises import RULES
from btrfs_model.experiments.crashes.record import record_scenario, state_after
from btrfs_model.experiments.crashes.seen import State, seen
from btrfs_model.experiments.crashes.states import DiskState, Places, disk_states
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.scenario.run import Runner
from btrfs_model.experiments.small.sequences import POINTS, Steps, enumerated, sampled
from btrfs_model.experiments.small.vocabulary import TREE
from btrfs_model.experiments.sweep.api import sweep
from btrfs_model.experiments.sweep.target import together
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.patches import Patch
from btrfs_model.volume.device.memory import Memory

if TYPE_CHECKING:
    import pandas as pd

_SIZE: Final = 128 << 20
_ALL: Final = 2
"""Sequences of so many operations are all looked at."""
_KERNELS: Final = ("v5.10", "v5.15", "v5.18", "v6.1", "v6.6", "v6.12", "v6.18", "v6.18.44", "v7.2")
"""Long-lived releases, those that changed the log, and today's."""
_APART: Final = ("send-", "fiemap-", "qgroup-")
"""Toggles of what sequences do not do."""
_COUNTS: Final = ("sequences", "states", "mounts")
_KNOWN: Final = 500
"""States that are remembered, of each kind."""
PART: Final = 128
"""Sequences of a cell."""


class Broken(NamedTuple):
    """A rule that a sequence breaks: the number of the sequence, and by what."""

    sequence: int
    rule: str
    what: str


@dataclass
class Tally:
    """What sequences came to.

    `states`: moments of crashes; `mounts`: those of them that differ.
    """

    sequences: int = 0
    states: int = 0
    mounts: int = 0
    broken: list[Broken] = field(default_factory=list)


class Small:
    """Judges sequences that start from the small tree, on a kernel."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self._first = _tree(behaviour)
        self._states: dict[str, State] = {}
        # of crashes and places in use, by what was written to the device until then
        self._outcomes: dict[bytes, Outcome] = {}
        self._used: dict[bytes, Places | None] = {}

    def judge(self, sequences: Iterable[tuple[int, Steps]]) -> Tally:
        """Judge all states that crashes of sequences leave; each has a number."""
        tally = Tally()
        for number, steps in sequences:
            self._judge(number, steps, tally)
        return tally

    def _judge(self, number: int, steps: Steps, tally: Tally) -> None:
        recording = record_scenario(
            scenario_of(steps), self.behaviour, size=_SIZE, first=self._first, strict=False,
            states=lambda fs: self._seen(steps, fs),
        )  # fmt: skip
        judge = Judge(recording, self.behaviour)
        # sequences that begin alike follow each other
        for known in (self._states, self._outcomes, self._used):
            if len(known) > _KNOWN:
                known.clear()
        tally.sequences += 1
        found: dict[str, str] = {}
        for state in disk_states(recording, used=self._used):
            tally.states += state.states
            # what all sequences start from is the same mount for each of them
            tally.mounts += state.step > 0
            for _, one in judge.broken(state, self._outcome(state)):
                found.setdefault(one.rule, one.what)
        tally.broken += [Broken(number, rule, what) for rule, what in found.items()]

    def _outcome(self, state: DiskState) -> Outcome:
        """Return what a mount makes of a state, which other sequences may have left as well."""
        if state.written not in self._outcomes:
            self._outcomes[state.written] = mount_after(state.disk.take(), self.behaviour)
        return self._outcomes[state.written]

    def _seen(self, steps: Steps, fs: WritableFilesystem) -> list[State]:
        """Return what is seen after each step; what makes it last changes nothing of that.

        `fs`: after the last one.
        """
        last = str([step for step in steps if step[0] not in POINTS])
        if last not in self._states:
            fs.sync()
            self._states[last] = seen(fs)
        found: list[State] = []
        operations: Steps = []
        for step in [None, *steps]:
            if step is not None and step[0] not in POINTS:
                operations = [*operations, step]
            key = str(operations)
            if key not in self._states:
                self._states[key] = state_after(
                    scenario_of(operations), self.behaviour, self._first)  # fmt: skip
            found.append(self._states[key])
        return found


def scenario_of(steps: Sequence[list[object]]) -> Scenario:
    """Make the scenario of a sequence, which goes on from the small tree."""
    parsed = [parse_step("sequence", number, list(step), hex_values=True)
              for number, step in enumerate(steps, 1)]  # fmt: skip
    return Scenario("sequence", parsed, hex_values=True)


def _tree(behaviour: Behaviour) -> Memory:
    runner = Runner(scenario_of(TREE), _SIZE, 0)
    runner.made = WritableFilesystem.mkfs(_SIZE, behaviour=behaviour)
    for step in runner.scenario.steps:
        runner.take(step)
    runner.made.sync()
    memory = runner.made.memory.copy()
    runner.close()
    return memory


# ------------------------------------------------------------------------------------- cells --


def sequences_of(length: int, part: int) -> list[tuple[int, Steps]]:
    """Return the sequences of a part, with their numbers: all of two operations; three sampled."""
    numbers = range(part * PART, (part + 1) * PART)
    if length > _ALL:
        return [(number, sampled(length, number)) for number in numbers]
    found, _ = enumerated(length)
    return [(number, found[number]) for number in numbers if number < len(found)]


@lru_cache(1)
def _small(behaviour: str) -> Small:
    return Small(Behaviour.parse(behaviour))


def cell(behaviour: str, length: int, part: int) -> pd.DataFrame:
    """Judge a part, as a cell of a sweep: how much it was, and each rule that is broken."""
    import pandas as pd

    tally = _small(behaviour).judge(sequences_of(length, part))
    rows: list[dict[str, Any]] = [
        {"quantity": name, "value": getattr(tally, name), "sequence": -1, "what": ""}
        for name in _COUNTS
    ]
    rows += [{"quantity": one.rule, "value": 1, "sequence": one.sequence, "what": one.what}
             for one in tally.broken]  # fmt: skip
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------ answer --


@dataclass(repr=False)
class EnumeratedCrashes:
    """What crashes of all small sequences break, kernel by kernel.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each rule and each set of kernels that break it in the same sequences: ``rule``,
        ``kernels``, ``sequences`` (how many break it on these kernels and no others), ``shortest``
        (one of them), ``broken`` (by what), ``came with`` and ``mended by`` (toggles: with one of
        them taken away from the first kernel of a range, or the first one behind it, the shortest
        sequence does what it did before).
    totals : pandas.DataFrame
        A row for each kernel: ``kernel``, ``sequences``, ``states`` (moments of a crash),
        ``mounts`` (states that differ from the one before), ``broken`` (sequences that break a
        rule).
    """

    table: pd.DataFrame
    totals: pd.DataFrame

    def __repr__(self) -> str:
        return (f"<EnumeratedCrashes: {len(self.totals)} kernels, "
                f"{self.totals['states'].sum():,} states, {len(self.table)} causes>")  # fmt: skip

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False))


@checked
def enumerate_crashes(
    length: int = 1,
    *,
    behaviours: Sequence[str] = (),
    parts: int | None = None,
    first: int = 0,
    store: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    scheduler: Any = None,
) -> EnumeratedCrashes:
    """Look at every state that crashes of all small sequences of operations may leave.

    Parameters
    ----------
    length : int
        Operations of a sequence: all of 1 and of 2 are looked at, those of 3 are sampled.
    behaviours : sequence of str
        Kernels, the oldest first; long-lived releases from Linux 5.10 on without any.
    parts : int, optional
        So many parts of :data:`PART` sequences; without it all, or one of three operations.
    first : int
        The first part.
    store, jobs, scheduler
        As of :func:`btrfs_model.sweep`: a store remembers parts, and another run goes on.

    Returns
    -------
    EnumeratedCrashes
        Which kernel breaks which promise, and what made it so.

    Raises
    ------
    ValueError
        For a length that is none, and for parts that there are not.
    UnknownBehaviourError
        For a kernel or toggle that there is not.
    IncompleteSweepError
        When a part could not be looked at.
    """
    if not 1 <= length <= _ALL + 1:
        raise ValueError(f"length {length}: sequences have 1 to {_ALL + 1} operations")
    there = None if length > _ALL else -(-len(enumerated(length)[0]) // PART)
    last = first + parts if parts is not None else there if there is not None else first + 1
    if there is not None and not first < last <= there:
        raise ValueError(f"parts {first} to {last - 1}: there are 0 to {there - 1}")
    names = [str(Behaviour.parse(name)) for name in behaviours or _KERNELS]
    table = sweep(
        cell, {"behaviour": names, "length": [length], "part": list(range(first, last))},
        store=store, jobs=jobs, scheduler=scheduler,
    )  # fmt: skip
    return EnumeratedCrashes(_causes(table, names, length), _totals(table, names))


def _totals(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Add up what there was, kernel by kernel."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for kernel in names:
        mine = table[table["behaviour"] == kernel]
        row = {name: int(mine[mine["quantity"] == name]["value"].sum()) for name in _COUNTS}
        broken = mine[mine["sequence"] >= 0]["sequence"].nunique()
        rows.append({"kernel": kernel, **row, "broken": broken})
    return pd.DataFrame(rows)


def _causes(table: pd.DataFrame, names: Sequence[str], length: int) -> pd.DataFrame:
    """Group sequences by the rule that they break and the kernels on which they do."""
    import pandas as pd

    kernels: dict[tuple[str, int], list[str]] = {}
    said: dict[tuple[str, int], str] = {}
    found = table[table["sequence"] >= 0]
    for one in found.to_dict("records"):
        key = one["quantity"], int(one["sequence"])
        kernels.setdefault(key, []).append(one["behaviour"])
        said[key] = one["what"]
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for (rule, number), some in kernels.items():
        groups.setdefault((rule, tuple(some)), []).append(number)
    rows: list[dict[str, Any]] = []
    for (rule, on), numbers in groups.items():
        steps = {number: _steps(length, number) for number in numbers}
        shortest = min(numbers, key=lambda number: (len(steps[number]), number))
        came, mended = _toggles(names, on, rule, steps[shortest])
        rows.append({
            "rule": rule, "kernels": name_ranges(names, on), "sequences": len(numbers),
            "shortest": text_of(steps[shortest]), "broken": said[rule, shortest],
            "came with": ", ".join(came), "mended by": ", ".join(mended),
        })  # fmt: skip
    order = [*RULES]
    rows.sort(key=lambda row: (order.index(row["rule"]), -row["sequences"]))
    return pd.DataFrame(rows, columns=["rule", "kernels", "sequences", "shortest", "broken",
                                       "came with", "mended by"])  # fmt: skip


def _steps(length: int, number: int) -> Steps:
    return sampled(length, number) if length > _ALL else enumerated(length)[0][number]


def text_of(steps: Steps) -> str:
    """Write a sequence on a line."""
    return "; ".join(" ".join(str(one) or "." for one in step) for step in steps)


def _toggles(
    names: Sequence[str], on: Sequence[str], rule: str, steps: Steps
) -> tuple[list[str], list[str]]:
    """Return the toggles by which a broken rule came, and by which it was mended."""
    came, mended = dict[str, None](), dict[str, None]()
    for before, after in pairwise(names):
        if (before in on) == (after in on):
            continue
        patches = Behaviour.parse(after).patches - Behaviour.parse(before).patches
        asked = [one for one in sorted(patches) if not one.startswith(_APART)]
        found = mended if before in on else came
        for patch in _makes_it(asked, after, rule, steps, broken=before in on):
            found[f"{patch} ({patch.commit})"] = None
    return list(came), list(mended)


def _makes_it(
    patches: Sequence[Patch], kernel: str, rule: str, steps: Steps, *, broken: bool
) -> Iterator[Patch]:
    """Yield toggles each of which, taken away, lets a kernel break a rule, or keep it.

    What all of them do not do together none is taken to do alone.
    """
    there = [*map(str, Behaviour.parse(kernel).patches)]
    away = {one for patch in patches for one in together(patch, on=False) if one in there}
    if not away:
        return
    small = Small(Behaviour.parse(" - ".join([kernel, *sorted(away)])))
    tally = small.judge([(0, steps)])
    if any(one.rule == rule for one in tally.broken) != broken:
        return
    if len(patches) == 1:
        yield patches[0]
        return
    half = len(patches) // 2
    for some in (patches[:half], patches[half:]):
        yield from _makes_it(some, kernel, rule, steps, broken=broken)
