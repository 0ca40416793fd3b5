# SPDX-License-Identifier: GPL-2.0-only
"""Before and after: the experiment of a commit message, done again on both sides of the commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from btrfs_model.base.arguments import checked
from btrfs_model.base.samples import packed_sample
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.machine import Machine, chosen
from btrfs_model.experiments import provenance
from btrfs_model.experiments.commits import NO_MESSAGE, Message
from btrfs_model.experiments.commits import load as load_message
from btrfs_model.experiments.times import (
    Judged,
    Speedup,
    add_reported,
    add_times,
    alone_speedups,
    judge,
    own_speedups,
    shown_of,
    speedups,
    use_measured,
)
from btrfs_model.experiments.workloads import (
    NAMES,
    Input,
    Outcome,
    Side,
    Step,
    Workload,
    counterparts,
    load,
    silent,
)
from btrfs_model.experiments.workloads.knobs import NOT_TURNED, Knobs
from btrfs_model.experiments.workloads.room import check_room
from btrfs_model.volume.filesystem import Filesystem


@dataclass(slots=True, repr=False)
class Replay:
    """A workload that was replayed.

    Attributes
    ----------
    workload : Workload
        Which one.
    input : Input
        On what.
    sides : tuple of Side
        The sides that were compared.
    outcome : Outcome
        What came out.
    nodesize : int
        Bytes of a tree block of the filesystem.
    seconds : float
        How long it took.
    knobs : Knobs
        What-if knobs as they were turned.
    machine : Machine
        Where times are predicted.
    message : Message
        What the commit message reports.
    judged : list of Judged
        The times of the message that were replayed.
    started : str
        When, ISO 8601.
    pictures : dict
        SVG and PNG of its charts by name, once they are drawn.
    narrow : dict
        SVG of the same for narrow screens.
    """

    workload: Workload
    input: Input
    sides: tuple[Side, ...]
    outcome: Outcome
    nodesize: int
    machine: Machine
    message: Message
    judged: list[Judged]
    seconds: float = 0.0
    started: str = ""
    provenance: dict[str, object] = field(default_factory=dict)
    knobs: Knobs = NOT_TURNED
    pictures: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    narrow: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Replay({self.workload.name}, {len(self.outcome.figures)} figures)"

    @property
    def settings(self) -> dict[str, str]:
        """What was replayed, for people: parameters of the workload, and the knobs as turned."""
        values: dict[str, Any] = dict(self.input.parameters)
        for name, value in self.knobs.turned.items():
            values |= value if isinstance(value, Mapping) else {name: value}
        return {
            name: value if isinstance(value, str) else f"{value:,.12g}"
            for name, value in values.items()
        }

    @property
    def behaviours(self) -> dict[str, str]:
        """The behaviour of each side that figures are of."""
        return {side.name: side.behaviour for side in (*self.sides, *self.outcome.sides)}

    @property
    def speedups(self) -> list[Speedup]:
        """The pairs of times before and after: those of the message, where it has such.

        Behind them are those of each patch of a series alone.
        """
        found = speedups(self.workload.name, self.message, self.judged, self.machine)
        own = self.workload, self.input, self.outcome, self.machine, self.message
        return [*(found or own_speedups(*own)), *alone_speedups(*own)]

    @property
    def is_of_message(self) -> bool:
        """Whether the sides and the settings are those that the message is about."""
        sides = {known.name for known, _ in counterparts(self.workload.compared, self.sides)}
        return {"before", "after"} <= sides and not _unlike(self.message, self.knobs)

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        unjudged = dict.fromkeys(Behaviour.parse(side.behaviour).unjudged for side in self.sides)
        standing = [f"Of these kernels, {why}." for why in unjudged if why]
        notes = self.workload.notes(self.sides, self.outcome, self.knobs.device)
        return [*standing, *notes]

    @property
    def origin(self) -> str:
        """Where its filesystem is from, for people."""
        sample = self.input.sample
        return "built by the model" if sample is None else f"written by a kernel ({sample})"


def message_of(workload: Workload) -> Message:
    """Return what the commit message of a workload reports, if one is about it."""
    return load_message(workload.name) if workload.name in NAMES else NO_MESSAGE


def run(
    name: str | Workload,
    scale: str | float = "full",
    *,
    behaviour_before: str | None = None,
    behaviour_after: str | None = None,
    knobs: Knobs = NOT_TURNED,
    machine: str | Machine | None = None,
    measured: Mapping[str, Any] | None = None,
    step: Step = silent,
) -> Replay:
    """Replay one workload; see :func:`.replays.replay`.

    Parameters
    ----------
    name, scale, behaviour_before, behaviour_after
        As for :func:`.replays.replay`.
    measured : mapping, optional
        Times of kernels in place of those that come with the package, see
        :func:`btrfs_model.experiments.times.use_measured`.
    knobs : Knobs
        What-if knobs.
    machine : str or Machine, optional
        As for :func:`.replays.replay`.
    step : callable
        Called with a few words when a part of the work begins.
    """
    workload = load(name)
    source = workload.input(scale, knobs)
    check_room(workload, source)
    sides = workload.sides(behaviour_before, behaviour_after)
    message = message_of(workload)
    where = chosen(machine)
    knobs = replace(knobs, machine=where)
    behaviours = {side.name: Behaviour.parse(side.behaviour) for side in sides}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    clock = time.monotonic()
    outcome, nodesize = _run_sides(workload, source, sides, knobs, step)
    if measured is not None:
        use_measured(outcome, measured, workload.name, source)
        message = replace(message, stand_in={})
    unlike = _unlike(message, knobs)
    if unlike:
        outcome.forget_measured()
    pairs = counterparts(workload.compared, sides)
    add_times(outcome, where, pairs)
    judged = [] if unlike else judge(message, outcome, source, pairs, where)
    add_reported(outcome, judged)
    outcome.shown = shown_of(message, judged, outcome, where)
    return Replay(
        workload,
        source,
        sides,
        outcome,
        nodesize,
        where,
        message,
        judged,
        time.monotonic() - clock,
        started,
        {
            "parameters": dict(source.parameters),
            "scale": source.scale,
            "knobs": knobs.turned,
            "sample": source.sample,
            "image": source.sample and provenance.input_file(packed_sample(source.sample)),
            "subvolume": source.subvolume,
            "sides": {
                name: {"behaviour": str(behaviour), "toggles": sorted(behaviour)}
                for name, behaviour in behaviours.items()
            },
            "commits": [
                {"toggle": slug, "commit": slug.commit, "title": slug.subject}
                for slug in workload.toggles
            ],
            "machine": where.name,
            "conditions": _conditions(outcome),
            "message": {
                "device": message.device,
                "devices": list(message.devices),
                "pipe": message.pipe,
            },
            "measured_on": dict(outcome.measured_on),
        },
        knobs,
    )


def _unlike(message: Message, knobs: Knobs) -> set[str]:
    """Return the knobs that were turned, and that a message knows nothing of.

    A device stands for one that the message does not name.
    """
    return set(knobs.turned) - ({"device"} if message.device else set())


def _conditions(outcome: Outcome) -> dict[str, list[str]]:
    """Return what its times were predicted for, of what messages leave open."""
    found: dict[str, dict[str, None]] = {}
    for timed in outcome.timed:
        for name, value in timed.conditions.items():
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _run_sides(
    workload: Workload, source: Input, sides: tuple[Side, ...], knobs: Knobs, step: Step
) -> tuple[Outcome, int]:
    """Run a workload on all sides, and return the nodesize too."""
    if not workload.fresh:
        with workload.open(source, knobs, step) as fs:
            return workload.run(fs, source, sides, knobs, step), fs.image.nodesize
    outcome, nodesize = Outcome([]), 0
    for side in sides:
        with workload.open(source, knobs, step, side) as fs:
            nodesize = fs.image.nodesize
            outcome.add(workload.run(fs, source, (side,), knobs, step))
    return outcome, nodesize


@checked
def build(workload: str, scale: float) -> Filesystem:
    """Build the filesystem of a workload, as its script makes it.

    Parameters
    ----------
    workload : str
        Its name.
    scale : float
        How large, relative to the commit message.

    Returns
    -------
    Filesystem
        In memory; the same each time.

    Raises
    ------
    BtrfsModelError
        For a workload that is none, or too small a scale.
    """
    known = load(workload)
    return known.build(known.scaled(scale), NOT_TURNED)
