# SPDX-License-Identifier: GPL-2.0-only
"""Before and after: the experiment of a commit message, done again on both sides of the commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError
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
    judge,
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
)
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
    knobs : dict
        What-if knobs that were turned.
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
    knobs: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Replay({self.workload.name}, {len(self.outcome.figures)} figures)"

    @property
    def settings(self) -> dict[str, str]:
        """What was replayed, for people: parameters of the workload, and the knobs as turned."""
        values: dict[str, Any] = dict(self.input.parameters)
        for name, value in self.knobs.items():
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
        """The pairs of times of the message, before and after."""
        return speedups(self.workload.name, self.message, self.judged, self.machine)

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        return self.workload.notes(self.sides, self.outcome)

    @property
    def origin(self) -> str:
        """Where its filesystem is from, for people."""
        sample = self.input.sample
        return "built by the model" if sample is None else f"written by a kernel ({sample})"


def message_of(workload: Workload) -> Message:
    """Return what the commit message of a workload reports, if one is about it."""
    return load_message(workload.name) if workload.name in NAMES else NO_MESSAGE


def _silent(_: str) -> None:
    """Report no progress."""


def run(
    name: str | Workload,
    scale: str | float = "full",
    *,
    kernel_before: str | None = None,
    kernel_after: str | None = None,
    knobs: Mapping[str, Any] | None = None,
    machine: str | Machine | None = None,
    measured: Mapping[str, Any] | None = None,
    step: Step = _silent,
) -> Replay:
    """Replay one workload; see :func:`replay`.

    Parameters
    ----------
    name, scale, kernel_before, kernel_after
        As for :func:`replay`.
    measured : mapping, optional
        Times of kernels in place of those that come with the package, see
        :func:`btrfs_model.experiments.times.use_measured`.
    knobs : mapping, optional
        What-if knobs, see :attr:`btrfs_model.experiments.workloads.Workload.knobs`.
    machine : str or Machine, optional
        As for :func:`replay`.
    step : callable
        Called with a few words when a part of the work begins.
    """
    turned = dict(knobs or {})
    workload = load(name).turned(turned)
    source = workload.input(scale)
    sides = workload.sides(kernel_before, kernel_after)
    message = message_of(workload)
    where = chosen(machine)
    behaviours = {side.name: Behaviour.parse(side.behaviour) for side in sides}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    clock = time.monotonic()
    with workload.open(source, step) as fs:
        nodesize = fs.image.nodesize
        outcome = workload.run(fs, source, sides, step, where)
    if measured is not None:
        use_measured(outcome, measured, workload.name, source)
        message = replace(message, stand_in={})
    # a device stands for one that the message does not name; other knobs it knows nothing of
    unlike = set(turned) - ({"device"} if message.device else set())
    if unlike:
        outcome.forget_measured()
    pairs = counterparts(workload.compared, sides)
    add_times(outcome, where, pairs)
    judged = [] if unlike else judge(message, outcome, source, pairs, where)
    add_reported(outcome, judged)
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
            "knobs": turned,
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
            "measured_on": dict(outcome.measured_on),
        },
        turned,
    )


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
    if known.scaled is None or known.build is None:
        raise BtrfsModelError(f"{workload}: nothing builds its filesystem")
    return known.build(known.scaled(scale), _silent)
