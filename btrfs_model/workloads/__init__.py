# SPDX-License-Identifier: GPL-2.0-only
"""The workloads of the commit messages: what they did, what they reported, how to do it again.

A workload is a module with one :class:`Workload`; :func:`load` finds it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from btrfs_model.errors import BtrfsModelError
from btrfs_model.filesystem import Filesystem
from btrfs_model.nearest import did_you_mean
from btrfs_model.samples import sample

if TYPE_CHECKING:
    from matplotlib import figure

__all__ = ["NAMES", "Figure", "Input", "Outcome", "Side", "Workload", "load"]

_MODULES = {
    "send-truncate": "btrfs_model.workloads.send_truncate",
    "send-utimes": "btrfs_model.workloads.send_utimes",
    "send-readahead": "btrfs_model.workloads.send_readahead",
    "fiemap-shared": "btrfs_model.workloads.fiemap_shared",
    "log-dir": "btrfs_model.workloads.log_dir",
}

_LARGEST = 1_000_000
"""Scale beyond which no device could hold the files."""

NAMES: tuple[str, ...] = tuple(_MODULES)
"""Names of the workloads that can be replayed."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its name, and the behaviour of the kernels that take part."""

    name: str
    behaviour: str


@dataclass(frozen=True, slots=True)
class Input:
    """The filesystem that a workload is replayed on.

    Attributes
    ----------
    sample : str or None
        Of an image that a kernel wrote, its name for :func:`btrfs_model.samples.sample`; None for
        one that :attr:`Workload.build` makes.
    subvolume : str
        Path of the subvolume in it.
    scale : float
        Size relative to the workload of the commit message.
    parameters : mapping
        The workload's parameters that it stands for, such as ``files``.
    """

    sample: str | None
    subvolume: str
    scale: float
    parameters: Mapping[str, int]


@dataclass(slots=True)
class Figure:
    """One figure of a replay: what is reported, what the model says, what was measured.

    Attributes
    ----------
    side, quantity, unit : str
        What it is a figure of.
    reported : float or None
        By the commit message.
    modelled : float or None
        By this replay.
    measured : float or None
        On a real kernel; :attr:`Outcome.measured_on` says which.
    """

    side: str
    quantity: str
    unit: str
    reported: float | None = None
    modelled: float | None = None
    measured: float | None = None

    @property
    def error(self) -> float | None:
        """(modelled - measured) / measured; of what is reported where nothing was measured."""
        reference = self.reported if self.measured is None else self.measured
        if self.modelled is None or reference is None:
            return None
        if reference == 0:
            return 0.0 if self.modelled == 0 else float("inf")
        return (self.modelled - reference) / reference


@dataclass(slots=True)
class Outcome:
    """What a replay of a workload gave.

    Attributes
    ----------
    figures : list of Figure
        The rows of the results.
    evidence : dict
        What the chart shows besides, such as the commands for one file.
    measured_on : dict
        Where the measured figures come from, by kind of quantity.
    """

    figures: list[Figure]
    evidence: dict[str, Any] = field(default_factory=dict)
    measured_on: dict[str, str] = field(default_factory=dict)

    def find(self, side: str, quantity: str) -> Figure | None:
        """Return the figure of a quantity on a side, or None."""
        for figure_ in self.figures:
            if figure_.side == side and figure_.quantity == quantity:
                return figure_
        return None


Step = Callable[[str], None]
"""Called with a few words when a part of the work begins."""


@dataclass(frozen=True)
class Workload:
    """A commit message's experiment.

    Attributes
    ----------
    name : str
        As on the command line.
    toggles : tuple of str
        What the commit is in :mod:`btrfs_model.patches`, the commit itself first.
    summary : tuple of str
        What the commit changes and what its message measured: paragraphs for the report.
    caveats : tuple of str
        What a reader of the figures has to know.
    inputs : tuple of Input
        What it is replayed on, smallest first: quick is the first, full has the scale 1.
    headline : tuple of str
        Quantities that the table on a terminal shows.
    sides : callable
        ``sides(before, after)``: the sides to compare, with other kernels where not None.
    run : callable
        ``run(fs, input, sides, step)``: do it.
    draw : callable
        ``draw(outcome)``: the chart.
    groups : tuple
        For the table of the report: the title of each group of quantities, and how they begin.
    scaled : callable, optional
        ``scaled(scale)``: the input of any size, where filesystems are built.
    build : callable, optional
        ``build(input, step)``: the filesystem of an input that has no image.
    knobs : mapping
        What-if knobs by name: ``knobs[name](workload, value)`` is the workload with that value.
    """

    name: str
    toggles: tuple[str, ...]
    summary: tuple[str, ...]
    caveats: tuple[str, ...]
    inputs: tuple[Input, ...]
    headline: tuple[str, ...]
    sides: Callable[[str | None, str | None], tuple[Side, ...]]
    run: Callable[..., Outcome]
    draw: Callable[[Outcome], figure.Figure]
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    scaled: Callable[[float], Input] | None = None
    build: Callable[[Input, Step], Filesystem] | None = None
    knobs: Mapping[str, Callable[[Workload, Any], Workload]] = field(default_factory=dict)

    def turned(self, knobs: Mapping[str, Any]) -> Workload:
        """Return the workload with what-if knobs turned.

        Raises
        ------
        BtrfsModelError
            When it has no such knob, or the value is none for it.
        """
        turned = self
        for name, value in knobs.items():
            if name not in self.knobs:
                there = ", ".join(self.knobs) or "none"
                why = "no time on a device is modelled" if name == "device" else f"no knob {name}"
                raise BtrfsModelError(f"{self.name}: {why}; its knobs: {there}")
            turned = self.knobs[name](turned, value)
        return turned

    def input(self, scale: str | float) -> Input:
        """Return the input for a scale: ``quick``, ``full`` or a fraction of full.

        Raises
        ------
        BtrfsModelError
            When there is no image of that size, and nothing builds one.
        """
        if scale == "quick":
            return self.inputs[0]
        wanted = 1.0 if scale == "full" else float(scale)
        if not 0 < wanted <= _LARGEST:
            raise BtrfsModelError(
                f"{self.name}: a scale is greater than 0 and at most {_LARGEST:,}, not {scale}"
            )
        for source in self.inputs:
            if source.scale == wanted:
                return source
        if self.scaled is not None:
            return self.scaled(wanted)
        there = ", ".join(f"{source.scale:g}" for source in self.inputs)
        raise BtrfsModelError(f"{self.name}: no image at scale {scale}; there are {there}")

    def open(self, source: Input, step: Step) -> Filesystem:
        """Open the sample of an input, or build its filesystem."""
        if source.sample is not None:
            step("restoring the image")
            return Filesystem.open(sample(source.sample))
        if self.build is None:
            raise BtrfsModelError(f"{self.name}: nothing builds its filesystem")
        step("building the filesystem")
        return self.build(source, step)


def load(name: str) -> Workload:
    """Return the workload of that name.

    Raises
    ------
    BtrfsModelError
        When there is none.
    """
    if name not in _MODULES:
        near = did_you_mean(name, NAMES)
        raise BtrfsModelError(f"no workload {name!r}: there is {', '.join(NAMES)}{near}")
    workload: Workload = import_module(_MODULES[name]).WORKLOAD
    return workload
