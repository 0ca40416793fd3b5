# SPDX-License-Identifier: GPL-2.0-only
"""All small sequences of operations and fsyncs, many of them in one filesystem.

Each has a subvolume, and so a log, of its own. One transaction can hold all logs, and one mount
replays them. But a commit ends the transaction. So the model carries the sequences out first, and
tells which points come to a commit. What leads to one is done before, sequence after sequence; the
rest of all of them stays in the last transaction, and waits in its logs for the crash.

Steps are done in ranks, the first of each sequence, the second: the clock has to go on between the
steps of one alone. A sequence that differs does so among others; it is carried out again alone, and
differs when it does so each time. What it shows but once is chance: of threads that run delayed
items of all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from btrfs_model.base.errors import KernelHungError
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import Step, parse_step
from btrfs_model.experiments.small.sequences import Steps, enumerated, sampled
from btrfs_model.experiments.small.vocabulary import TREE, Operation
from btrfs_model.experiments.verify.bench import Bench, DifferenceError
from btrfs_model.experiments.verify.listing import model_listing, untimed
from btrfs_model.experiments.verify.logs import (
    ENDS,
    LogItems,
    both_replayed,
    comparable_logs,
    items_after_replays,
    same_ends_of_mounts,
    times_of,
    without_ranges,
)
from btrfs_model.experiments.verify.sides import Ran, in_the_kernel, in_the_model
from btrfs_model.kernels.inside.listing import Listing
from btrfs_model.kernels.native import Native
from btrfs_model.mount.inode import live_subvolume
from btrfs_model.volume.filesystem import Filesystem

TOGETHER = 128
"""Sequences in one filesystem."""
_SIZE = 2 << 30
_PATHS = {"link": 2, "rename": 2, "exchange": 2, "clone": 2, "clone_range": 2, "dedupe": 2}
_AGAIN = 3
"""So often a sequence has to differ alone."""
_LAG = 60 * 10**9
"""The clock of a guest may lag so much."""


# ------------------------------------------------------------------------------------ scenarios --


def sequences_of(case: int) -> list[Steps]:
    """Return the sequences of a case: all of one operation, all of two, then sampled ones of three.

    Each case has :data:`TOGETHER`, the last one of a length the rest.
    """
    at = case
    for length in (1, 2):
        found, _ = enumerated(length)
        if at * TOGETHER < len(found):
            return found[at * TOGETHER : (at + 1) * TOGETHER]
        at -= -(-len(found) // TOGETHER)
    return [sampled(3, f"{at} {number}") for number in range(TOGETHER)]


def cases() -> list[int]:
    """Return how many cases there are of one operation, and of two."""
    return [-(-len(enumerated(length)[0]) // TOGETHER) for length in (1, 2)]


def below(subvolume: str, operation: Operation) -> Operation:
    """Let an operation be one in a subvolume."""
    name, *arguments = operation
    at = {"symlink": [1], "clone_range": [0, 3], "dedupe": [0, 3]}.get(
        name, range(_PATHS.get(name, 1) * bool(arguments))
    )
    return [name, *(f"{subvolume}/{value}".rstrip("/") if place in at else value
                    for place, value in enumerate(arguments))]  # fmt: skip


def scenario_of(title: str, sequences: Sequence[Steps]) -> Scenario:
    """Make the scenario of sequences, each in a subvolume, one after the other."""
    lines: list[Operation] = [["mkfs", ["-b", str(_SIZE)]], ["mount", "noatime"]]
    names = [f"s{number}" for number in range(len(sequences))]
    lines += [["subvol_create", name] for name in names]
    lines += [below(name, operation) for operation in TREE for name in names]
    lines.append(["sync"])
    for name, steps in zip(names, sequences, strict=True):
        lines += [below(name, operation) for operation in steps]
    lines.append(["crash"])
    parsed = [parse_step(title, number, line, hex_values=True)
              for number, line in enumerate(lines, 1)]  # fmt: skip
    return Scenario(title, parsed, hex_values=True)


def scenario_of_case(seed: str) -> Scenario:
    """Make the scenario of a case by its number; of any other seed one of sampled sequences."""
    last = seed.split()[-1]
    if last.isdigit():
        return scenario_of(seed, sequences_of(int(last)))
    return scenario_of(seed, [sampled(3, f"{seed} {number}") for number in range(TOGETHER)])


# ----------------------------------------------------------------------------------------- plan --


def _subvolume(step: Step) -> str:
    """Return the subvolume that a step is about; a sync is about any."""
    paths = (value for value in step.arguments.values() if isinstance(value, bytes))
    path = next((path for path in paths if path.startswith(b"s")), b"") if (
        step.name == "symlink") else next(paths, b"")  # fmt: skip
    return path.partition(b"/")[0].decode()


@dataclass
class Part:
    """A sequence in its subvolume.

    `committed`: how many of its steps the last commit has in it; `alone`: whether that is the
    commit of an fsync.
    """

    name: str
    steps: list[Step] = field(default_factory=list)
    committed: int = 0
    alone: bool = False


@dataclass
class Batch:
    """Sequences, and what comes before all of them."""

    scenario: Scenario
    before: list[Step]
    parts: list[Part]

    @classmethod
    def of(cls, scenario: Scenario) -> Batch:
        """Divide a scenario, in which each sequence follows the one before it."""
        steps = scenario.steps[2:-1]
        start = next((at + 1 for at, step in enumerate(steps) if step.name == "sync"), len(steps))
        parts: list[Part] = []
        for step in steps[start:]:
            name = _subvolume(step) or (parts[-1].name if parts else "")
            if not parts or parts[-1].name != name:
                parts.append(Part(name))
            parts[-1].steps.append(step)
        return cls(scenario, steps[:start], parts)

    def part(self, parts: Sequence[Part]) -> Scenario:
        """Return the scenario of some of the sequences."""
        names = {"", *(part.name for part in parts)}
        steps = [step for step in self.before if _subvolume(step) in names]
        steps += [step for part in parts for step in part.steps]
        ends = self.scenario.steps
        return replace(self.scenario, steps=[*ends[:2], *steps, ends[-1]])

    def plan(self, behaviour: str) -> None:
        """Let the model tell which fsyncs come to a commit."""
        with in_the_model(replace(self.scenario, steps=self.scenario.steps[:-1]), behaviour,
                          size=_SIZE) as (_, ran):  # fmt: skip
            outcomes = iter(ran.synced)
            ends = iter(ran.ended[len(self.before) :])
        for part in self.parts:
            part.committed = 0
            for number, step in enumerate(part.steps, 1):
                went = not next(ends)
                how = next(outcomes) if went and step.name in ("fsync", "fdatasync") else ""
                if step.name == "sync" or how == "commit":
                    part.committed, part.alone = number, how == "commit"

    def ordered(self) -> tuple[Scenario, list[int], list[tuple[Part | None, int]]]:
        """Return the scenario as planned, before which steps the clock goes on, whose steps are."""
        order: list[tuple[Part | None, int, Step, bool]] = []
        name = ""
        for step in self.before:
            order.append((None, 0, step, step.name != name))
            name = step.name
        for part in self.parts:
            for number in range(part.committed * part.alone):
                order.append((part, number, part.steps[number], True))
        synced = [part for part in self.parts if part.committed and not part.alone]
        order += _ranks(synced, 0)
        if synced:
            last = synced[-1]
            order.append((last, last.committed - 1, last.steps[last.committed - 1], True))
        order += _ranks(self.parts, 1)
        ends = self.scenario.steps
        steps = [*ends[:2], *(step for _, _, step, _ in order), ends[-1]]
        ticks = [at for at, one in enumerate(order) if one[3]]
        return replace(self.scenario, steps=steps), ticks, [(one[0], one[1]) for one in order]


def _ranks(parts: list[Part], last: bool | int) -> Iterator[tuple[Part | None, int, Step, bool]]:
    """Yield steps by rank: those before the sync that all of them wait for, or those after it."""
    ranges = [range(part.committed, len(part.steps)) if last else range(part.committed - 1)
              for part in parts]  # fmt: skip
    for rank in zip_longest(*ranges):
        first = True
        for part, number in zip(parts, rank, strict=True):
            if number is not None:
                yield part, number, part.steps[number], first
                first = False


# -------------------------------------------------------------------------------------- compare --


def compare_sequences(bench: Bench, scenario: Scenario) -> None:
    """Compare all sequences together, and once more alone each that differs."""
    batch = Batch.of(scenario)
    differing = _differing(bench, batch)
    if not differing:
        return
    if len(batch.parts) == 1:
        raise next(iter(differing.values()))
    compared = bench.compared.copy()
    found = list(_again(bench, batch, differing))
    bench.compared.clear()
    bench.compared.update(compared)
    bench.compared["differ"] += len(found)
    bench.compared["differ by chance"] += len(differing) - len(found)
    for error in found:
        raise error


def _halves(parts: list[Part]) -> tuple[list[Part], list[Part]]:
    return parts[: len(parts) // 2], parts[len(parts) // 2 :]


def _again(
    bench: Bench, batch: Batch, differing: Mapping[str, DifferenceError]
) -> Iterator[DifferenceError]:
    """Carry out once more what differs, in halves, and one alone; yield what differs each time.

    What anybody commits meanwhile, by sync(2), ends the transaction of all: the fewer go together,
    the shorter it is.
    """
    parts = [part for part in batch.parts if part.name in differing]
    whole = [error for error in differing.values() if error.scenario]
    if whole:
        yield from whole
        parts = [part for part in parts if not differing[part.name].scenario]
    if len(parts) > 1:
        for half in _halves(parts):
            yield from _again(bench, batch, _differing(bench, Batch.of(batch.part(half))))
        return
    for part in parts:
        alone = batch.part([part])
        for _ in range(_AGAIN):
            found = _differing(bench, Batch.of(alone))
            if part.name not in found:
                return
        found[part.name].scenario = alone
        yield found[part.name]


class _NothingSeenError(Exception):
    """A mount that does not go well: what the sequences came to was not compared.

    `error`: the difference, where the sides do not end alike.
    """

    def __init__(self, error: DifferenceError | None) -> None:
        self.error = error


def _differing(bench: Bench, batch: Batch) -> dict[str, DifferenceError]:
    """Carry out sequences on both sides; what differs first of each, by subvolume.

    Where the mount of all is refused, or the kernel dies on it, halves are carried out. What they
    do not show again is a difference of all of them together.
    """
    before = bench.compared.copy()
    try:
        return _differing_together(bench, batch)
    except _NothingSeenError as nothing:
        error = nothing.error
    except KernelHungError as died:
        if isinstance(bench.kernel, Native):
            raise
        said = "\n".join([str(died), *getattr(died, "__notes__", [])])
        error = DifferenceError("whether the kernel lives", said, "it does", ("kernel", "died"))
    ends = {unit: bench.compared[unit] for unit in ENDS if unit in bench.compared}
    bench.compared.clear()
    bench.compared.update({**before, **ends})
    found: dict[str, DifferenceError] = {}
    if len(batch.parts) > 1:
        for half in _halves(batch.parts):
            found |= _differing(bench, Batch.of(batch.part(half)))
    if error and not found:
        error.scenario = batch.scenario
        found[batch.parts[0].name] = error
    return found


def _differing_together(bench: Bench, batch: Batch) -> dict[str, DifferenceError]:
    """Carry out sequences in one filesystem, and compare."""
    batch.plan(bench.behaviour)
    scenario, ticks, whose = batch.ordered()
    found: dict[str, DifferenceError] = {}

    @contextmanager
    def of(name: str) -> Iterator[None]:
        try:
            yield
        except DifferenceError as error:
            found.setdefault(name, error)

    with bench.new_image() as image, bench.new_image() as theirs, bench.new_image() as ours:
        wanted = in_the_kernel(bench.kernel, scenario, image, theirs, _SIZE, ticks=ticks)
        with in_the_model(scenario, bench.behaviour, ours, _SIZE) as (_, ran):
            pass
        syncs = [iter(wanted.synced), iter(ran.synced)]
        steps = zip(scenario.steps[2:-1], whose, wanted.ended, ran.ended, strict=True)
        for step, (part, _), its, mine in steps:
            with of(part.name if part else ""):
                what = f"how this ended: {step}"
                bench.same("calls", what, its, mine, how=(step.name, its, mine))
            if step.name in ("fsync", "fdatasync"):
                came = [next(one) if not end else "" for one, end in zip(syncs, (its, mine),
                                                                         strict=True)]  # fmt: skip
                with of(part.name if part else ""):
                    bench.same(f"fsyncs: {came[0] or 'failed'}", f"what this comes to: {step}",
                               came[0], came[1], how=(came[0], came[1]))  # fmt: skip
        _same_logs(bench, scenario, theirs, ours, ran, of)
        _same_replays(bench, batch, theirs, ours, of)
    bench.compared["sequences"] += len(batch.parts) - len(found)
    return found


def _same_logs(
    bench: Bench, scenario: Scenario, theirs: Path, ours: Path, ran: Ran, of: Any
) -> None:
    """Compare the items of all logs; of ranges that the worker made by chance what they delete."""
    times = times_of(bench.behaviour)
    known, logs = (_logs_by_path(one, scenario, times) for one in (theirs, ours))
    for name in sorted(known.keys() | logs.keys()):
        with of(name):
            bench.same("logs", f"whether there is a log of {name}", name in known, name in logs)
            (root, its), (_, mine) = known[name], logs[name]
            if ran.by_chance and its != mine:
                its, deleted = without_ranges(theirs, root, its)
                mine, by_model = without_ranges(ours, root, mine)
                bench.same("logs with other ranges", f"names that the log of {name} deletes",
                           deleted, by_model)  # fmt: skip
            bench.same_members("log items", f"log of {name}: ", its, mine)


def _logs_by_path(
    image: Path, scenario: Scenario, times: Sequence[str]
) -> dict[str, tuple[int, LogItems]]:
    with Filesystem.open(image) as fs:
        names = {fs.subvolume(root).path: root for root in fs.log_trees}
    found = comparable_logs(image, scenario, times)
    return {name: (root, found[root]) for name, root in names.items()}


def _same_replays(bench: Bench, batch: Batch, theirs: Path, ours: Path, of: Any) -> None:
    """Compare what a mount makes of the kernel's logs, and what the model made without one."""
    since = time.time_ns() - _LAG
    listed, replay = both_replayed(bench, theirs)
    if isinstance(replay, int | str) or isinstance(listed, int | str):
        ends = (one if isinstance(one, int | str) else 0 for one in (listed, replay))
        try:
            same_ends_of_mounts(bench, *ends)
        except DifferenceError as error:
            raise _NothingSeenError(error) from None
        if len(batch.parts) > 1:
            raise _NothingSeenError(None)
        return
    with replay, Filesystem.open(theirs) as fs, Filesystem.open(ours) as made:
        committed = _committed(made)
        logged = {fs.subvolume(number).path: number for number in replay.subvolume_ids}
        for number in replay.subvolume_ids:  # the kernel looked into each: no orphan is left
            live_subvolume(replay, number)
        replay.sync()
        for name, number in logged.items():
            with of(name):
                its, mine = items_after_replays(fs, replay, number, since)
                bench.same_members("items", f"{name} after the replay: item ", its, mine)
        listing, wholly = untimed(model_listing(fs)), untimed(listed)
        for name in wholly:
            with of(name):
                bench.same_members("inodes", f"{name} after the mount: ", wholly[name],
                                   listing[name])  # fmt: skip
                if name in committed:
                    bench.same_members("inodes of commits", f"{name} as committed: ", wholly[name],
                                       committed[name])  # fmt: skip


def _committed(fs: Filesystem) -> Listing:
    """List what the model committed, where no log comes to it."""
    logged = fs.log_trees
    paths = [fs.subvolume(root).path for root in fs.subvolume_ids if root not in logged]
    return untimed(model_listing(fs, paths))
