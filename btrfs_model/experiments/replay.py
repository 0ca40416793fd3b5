# SPDX-License-Identifier: GPL-2.0-only
"""Before and after: the experiment of a commit message, done again on both sides of the commit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.samples import packed_sample
from btrfs_model.base.whole_file import check_folder
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments import provenance
from btrfs_model.experiments.results import frame
from btrfs_model.experiments.workloads import NAMES, Input, Outcome, Side, Step, Workload, load
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
    started : str
        When, ISO 8601.
    """

    workload: Workload
    input: Input
    sides: tuple[Side, ...]
    outcome: Outcome
    nodesize: int
    seconds: float = 0.0
    started: str = ""
    provenance: dict[str, object] = field(default_factory=dict)
    knobs: dict[str, Any] = field(default_factory=dict)

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
    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        return self.workload.notes(self.sides, self.outcome)

    @property
    def origin(self) -> str:
        """Where its filesystem is from, for people."""
        sample = self.input.sample
        return "built by the model" if sample is None else f"written by a kernel ({sample})"


def _silent(_: str) -> None:
    """Report no progress."""


def run(
    name: str,
    scale: str | float = "full",
    *,
    kernel_before: str | None = None,
    kernel_after: str | None = None,
    knobs: Mapping[str, Any] | None = None,
    step: Step = _silent,
) -> Replay:
    """Replay one workload; see :func:`replay`.

    Parameters
    ----------
    name, scale, kernel_before, kernel_after
        As for :func:`replay`.
    knobs : mapping, optional
        What-if knobs, see :attr:`btrfs_model.experiments.workloads.Workload.knobs`.
    step : callable
        Called with a few words when a part of the work begins.
    """
    turned = dict(knobs or {})
    workload = load(name).turned(turned)
    source = workload.input(scale)
    sides = workload.sides(kernel_before, kernel_after)
    behaviours = {side.name: Behaviour.parse(side.behaviour) for side in sides}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    clock = time.monotonic()
    with workload.open(source, step) as fs:
        nodesize = fs.image.nodesize
        outcome = workload.run(fs, source, sides, step)
    return Replay(
        workload,
        source,
        sides,
        outcome,
        nodesize,
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
            "measured_on": dict(outcome.measured_on),
        },
        turned,
    )


def check(
    names: Iterable[str],
    scale: str | float,
    knobs: Mapping[str, Any],
    out: str | os.PathLike[str] | None,
) -> None:
    """Find out what is wrong before the first workload takes its time; make the folder.

    Raises
    ------
    BtrfsModelError
        For a workload, scale or knob that there is not.
    OSError
        When nothing can be written to the folder.
    """
    for name in names:
        load(name).turned(knobs).input(scale)
    if out is not None:
        check_folder(out)


def all_names(knobs: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of the workloads that have these knobs."""
    return tuple(name for name in NAMES if set(knobs) <= set(load(name).knobs))


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


@checked
def replay(
    workload: str | Sequence[str] | None = None,
    scale: str | float = "full",
    *,
    kernel_before: str | None = None,
    kernel_after: str | None = None,
    device: str | None = None,
    parameters: Mapping[str, object] | None = None,
    readahead: Mapping[str, int] | None = None,
    nodesize: int | None = None,
    out: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Replay workloads of commit messages on both sides of their commit.

    Parameters
    ----------
    workload : str or sequence of str, optional
        Names, e.g. ``"send-truncate"``; without it all there are, or all that have the knobs.
    scale : str or float
        ``"full"`` as in the commit message, ``"quick"``, or a fraction of full.
    kernel_before, kernel_after : str, optional
        Behaviours to compare instead of the ones just before and after the commit, e.g.
        ``"v6.12 - send-utimes-cache"``.
    device : str, optional
        Model times on this device instead of those that the workload names, see
        :func:`btrfs_model.cost.device.names`.
    parameters : mapping, optional
        Parameters of that device other than its file's, e.g. ``{"queue_depth": 1}``.
    readahead : mapping of str to int, optional
        Limits of readahead, as for :func:`btrfs_model.questions.reads.walk`.
    nodesize : int, optional
        Build the filesystem with tree blocks of so many bytes.
    out : path, optional
        Folder that gets results.csv, results.parquet, report.html, the charts and provenance.json.

    Returns
    -------
    pandas.DataFrame
        A row per figure: workload, a column for each parameter that it depends on, side, behaviour,
        quantity, unit, reported (by the commit message), modelled, measured (on a real kernel; the
        median, and measured_min, measured_max, runs), error (of modelled against measured, or
        reported where nothing was measured; a fraction). What is not known is missing.
        ``docs/results.md`` says what each column holds.

    Raises
    ------
    BtrfsModelError
        For an unknown workload, behaviour or device, a scale that there is no image of, or a
        knob (`device` to `nodesize`) that a workload that is named does not have.
    """
    knobs = {
        name: value
        for name, value in (
            ("device", device),
            ("parameters", parameters),
            ("readahead", readahead),
            ("nodesize", nodesize),
        )
        if value
    }
    names = (workload,) if isinstance(workload, str) else workload or all_names(knobs)
    names = tuple(dict.fromkeys(names))
    check(names, scale, knobs, out)
    replays = [
        run(
            name, scale, kernel_before=kernel_before, kernel_after=kernel_after, knobs=knobs
        )
        for name in names
    ]  # fmt: skip
    if out is not None:
        from btrfs_model.experiments.report import write

        write(replays, out)
    return frame(replays)
