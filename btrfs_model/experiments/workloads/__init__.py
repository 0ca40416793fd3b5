# SPDX-License-Identifier: GPL-2.0-only
"""The workloads of the commit messages: what they did, what they reported, how to do it again.

A workload is a module with one :class:`Workload`; :func:`load` finds it by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.samples import data_folder, has_sample, sample
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.workloads.knobs import KNOBS
from btrfs_model.experiments.workloads.timed import Timed
from btrfs_model.patches import Patch
from btrfs_model.volume.filesystem import Filesystem

if TYPE_CHECKING:
    from matplotlib import figure

_MODULES = {
    "send-truncate": "btrfs_model.experiments.workloads.send_truncate",
    "send-utimes": "btrfs_model.experiments.workloads.send_utimes",
    "send-readahead": "btrfs_model.experiments.workloads.send_readahead",
    "fiemap-shared": "btrfs_model.experiments.workloads.fiemap_shared",
    "log-dir": "btrfs_model.experiments.workloads.log_dir",
}

_LARGEST = 1_000_000
"""Scale beyond which no device could hold the files."""

NAMES: tuple[str, ...] = tuple(_MODULES)
"""Names of the workloads of the package."""

GROUP: Final = "btrfs_model.workloads"
"""Entry points of other packages that lead to workloads."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its name, and the behaviour of the kernels that take part."""

    name: str
    behaviour: str

    @property
    def toggles(self) -> Behaviour:
        """The toggles of the behaviour: sides with the same ones are the same kernel."""
        return Behaviour.parse(self.behaviour)


@dataclass(frozen=True, slots=True)
class Input:
    """The filesystem that a workload is replayed on.

    Attributes
    ----------
    sample : str or None
        Of an image that a kernel wrote, its name for :func:`btrfs_model.base.samples.sample`; None
        for one that :attr:`Workload.build` makes.
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


Case = Mapping[str, int | str]
"""What a figure depends on besides its side, such as ``{"files": 20_000}``: names of
:data:`btrfs_model.experiments.results.PARAMETERS`."""


@dataclass(slots=True)
class Figure:
    """One figure of a replay: what is reported, what the model says, what was measured.

    Attributes
    ----------
    side, quantity, unit : str
        What it is a figure of.
    case : mapping
        What it depends on besides the parameters of the input, or in their place.
    reported : float or None
        By the commit message.
    modelled : float or None
        By this replay.
    low, high : float or None
        The 90 % interval of a time that is predicted.
    measured : float or None
        On a real kernel, the median; :attr:`Outcome.measured_on` says which.
    measured_min, measured_max : float or None
        The least and the most that was measured.
    runs : int or None
        How many runs were measured.
    is_ours : bool
        Whether a time that was measured is of the machine that it is predicted for: another
        machine's, and a message's, tell no error.
    """

    side: str
    quantity: str
    unit: str
    case: Case = field(default_factory=dict)
    reported: float | None = None
    modelled: float | None = None
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    measured_min: float | None = None
    measured_max: float | None = None
    runs: int | None = None
    is_ours: bool | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What figures of several sides have in common that are compared: quantity and case."""
        return self.quantity, *sorted(self.case.items())

    def is_of(self, case: Case) -> bool:
        """Whether it is of such a case."""
        return all(self.case.get(name) == value for name, value in case.items())

    def measure(self, record: Mapping[str, Any]) -> None:
        """Set what a record of :func:`recorded` says: a value, and of how many runs."""
        self.measured = float(record["value"])
        self.measured_min = float(record.get("min", record["value"]))
        self.measured_max = float(record.get("max", record["value"]))
        self.runs = int(record.get("runs", 1))

    @property
    def error(self) -> float | None:
        """(modelled - measured) / measured; of what is reported where nothing was measured.

        There is none for a time of another machine.
        """
        if self.is_ours is False:
            return None
        reference = self.reported if self.measured is None else self.measured
        if self.modelled is None or reference is None:
            return None
        if reference == 0:
            return 0.0 if self.modelled == 0 else float("inf")
        return (self.modelled - reference) / reference


@dataclass(slots=True, repr=False)
class Outcome:
    """What a replay of a workload gave.

    Attributes
    ----------
    figures : list of Figure
        The rows of the results.
    evidence : dict
        What the chart shows besides, such as the commands for one file.
    measured_on : dict
        Where the measured figures come from, by kind of quantity and sides.
    sides : tuple of Side
        Sides that figures are of besides those that are compared.
    small : list of Figure
        Counts at sizes that are not shown: what formulas are found from.
    timed : list of Timed
        Operations that take time.
    timings : list of dict
        What kernels took for some of them: records with ``kind`` and ``kernel``.
    """

    figures: list[Figure]
    evidence: dict[str, Any] = field(default_factory=dict)
    measured_on: dict[str, str] = field(default_factory=dict)
    sides: tuple[Side, ...] = ()
    small: list[Figure] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Outcome({len(self.figures)} figures)"

    def find(self, side: str, quantity: str, **case: int | str) -> Figure | None:
        """Return the first figure of a quantity on a side in such a case, or None."""
        for figure_ in self.figures:
            if figure_.quantity == quantity and figure_.side == side and figure_.is_of(case):
                return figure_
        return None

    def forget_measured(self) -> None:
        """Forget what kernels did: not what was replayed here, where a knob is turned."""
        for figure_ in self.figures:
            figure_.measured = figure_.measured_min = figure_.measured_max = figure_.runs = None
        self.measured_on, self.timings = {}, []

    def add_measured(
        self,
        pairs: Iterable[tuple[Side, Side]],
        records: Iterable[Mapping[str, Any]],
        sources: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Set what real kernels did beside the figures of their behaviours.

        Parameters
        ----------
        pairs : iterable
            From :func:`counterparts`.
        records : iterable of mapping
            Each with ``side``, ``quantity``, what :meth:`Figure.measure` takes, and its case; those
            with the ``kind`` of a machine are times, and are kept for later.
        sources : mapping
            Where they come from: a text for each side, by kind of quantity.
        """
        beside = [(known.name, side.name) for known, side in pairs]
        used: set[str] = set()
        for record in records:
            if "kind" in record:
                self.timings.append(dict(record))
                used.update(side for known, side in beside if known == record["side"])
                continue
            case = {name: record[name] for name in record if name not in _RECORD}
            for known, side in beside:
                if known != record["side"]:
                    continue
                found = self.find(side, record["quantity"], **case)
                if found is not None:
                    found.measure(record)
                    used.add(side)
        for kind, texts in sources.items():
            sides: dict[str, list[str]] = {}
            for known, side in beside:
                if known in texts and side in used:
                    sides.setdefault(texts[known], []).append(side)
            for text, names in sides.items():
                self.measured_on[f"{kind}, {', '.join(names)}"] = text


_RECORD = {"side", "quantity", "value", "min", "max", "runs"}
"""What a record says besides the case that it is of."""


def recorded(workload: str) -> dict[str, Any]:
    """Read what was measured on real kernels for a workload: ``rows`` and their ``sources``."""
    text = (data_folder() / "workloads" / workload / "measured.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def counterparts(known: Sequence[Side], chosen: Sequence[Side]) -> list[tuple[Side, Side]]:
    """Pair the sides that something is known of with those that are compared.

    What a commit message reports, or what was measured, is of a kernel: it stands beside a side
    only when that has the same toggles.
    """
    return [(one, side) for one in known for side in chosen if one.toggles == side.toggles]


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader of the figures has to know.

    Attributes
    ----------
    text : str
        A sentence or more.
    sides : tuple of Side
        Sides that it names: it is left out where one of them is not compared.
    measured : tuple of str
        Kinds of measured quantities that it is about: left out where none of them was measured.
    device : bool
        It is about the device that the workload names: left out where another is chosen.
    """

    text: str
    sides: tuple[Side, ...] = ()
    measured: tuple[str, ...] = ()
    device: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of the report's table under one title: each row is in the first group that it fits.

    Attributes
    ----------
    title : str
        What they are about.
    prefixes : tuple of str
        How their quantities begin.
    case : mapping
        What is the same in all of them.
    """

    title: str
    prefixes: tuple[str, ...] = ("",)
    case: Case = field(default_factory=dict)

    def holds(self, figure_: Figure) -> bool:
        """Whether a figure fits."""
        return figure_.quantity.startswith(self.prefixes) and figure_.is_of(self.case)


Step = Callable[[str], None]
"""Called with a few words when a part of the work begins."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A commit message's experiment.

    Attributes
    ----------
    name : str
        As on the command line.
    toggles : tuple of Patch
        What the commit is in :mod:`btrfs_model.patches`, the commit itself first.
    summary : tuple of str
        What the commit changes and what its message measured: paragraphs for the report.
    caveats : tuple of Note
        What a reader of the figures has to know.
    inputs : tuple of Input
        What it is replayed on, smallest first: quick is the first, full has the scale 1.
    headline : tuple of str
        Quantities that the table on a terminal shows, in each case that was replayed; all of them
        where none is named.
    compared : tuple of Side
        What is compared where no kernels are chosen; a ``before`` and an ``after`` are among them.
    run : callable
        ``run(fs, input, sides, step, machine)``: do it.
    draw : callable
        ``draw(outcome)``: the chart.
    groups : tuple of Group
        For the table of the report.
    size : str
        The parameter that formulas of counts are in; empty where there are none.
    scaled : callable, optional
        ``scaled(scale)``: the input of any size, where filesystems are built.
    build : callable, optional
        ``build(input, step)``: the filesystem of an input that has no image.
    knobs : tuple of str
        What-if knobs that it has, of :data:`btrfs_model.experiments.workloads.knobs.KNOBS`.
    once : callable, optional
        What `run` does for one side at one size, and nothing besides: a cell of a sweep.
    keeps : bool
        Whether that leaves the filesystem as it was.
    arguments : tuple of str
        What `build` takes besides the parameters of the inputs.
    """

    name: str
    toggles: tuple[Patch, ...]
    summary: tuple[str, ...]
    caveats: tuple[Note, ...]
    inputs: tuple[Input, ...]
    headline: tuple[str, ...]
    compared: tuple[Side, ...]
    run: Callable[..., Outcome]
    draw: Callable[[Outcome], figure.Figure]
    groups: tuple[Group, ...]
    size: str = ""
    scaled: Callable[[float], Input] | None = None
    build: Callable[[Input, Step], Filesystem] | None = None
    knobs: tuple[str, ...] = ()
    once: Callable[..., Outcome] | None = None
    keeps: bool = True
    arguments: tuple[str, ...] = ()

    def sides(self, before: str | None, after: str | None) -> tuple[Side, ...]:
        """Return the sides to compare: the workload's own, or the kernels that were chosen."""
        if before is None and after is None:
            return self.compared
        chosen = {"before": before, "after": after}
        return tuple(
            Side(side.name, chosen[side.name] or side.behaviour)
            for side in self.compared
            if side.name in chosen
        )

    def notes(self, sides: Iterable[Side], outcome: Outcome) -> list[str]:
        """Return what a reader of the figures has to know of these sides."""
        there = {(side.name, side.toggles) for side in sides}
        return [
            note.text
            for note in self.caveats
            if there.issuperset((side.name, side.toggles) for side in note.sides)
            and (not note.measured or any(k.startswith(note.measured) for k in outcome.measured_on))
        ]

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
                raise BtrfsModelError(f"{self.name}: no knob {name}; its knobs: {there}")
            turned = KNOBS[name](turned, value)
        return turned

    def input(self, scale: str | float) -> Input:
        """Return the input for a scale: ``quick``, ``full`` or a fraction of full.

        Raises
        ------
        BtrfsModelError
            When it is no scale, or there is no image of that size and nothing builds one.
        """
        if scale == "quick":
            return self.inputs[0]
        try:
            wanted = 1.0 if scale == "full" else float(scale)
        except ValueError:
            raise BtrfsModelError(
                f"{self.name}: no scale '{scale}': 'full', 'quick' or a fraction of full"
                f"{did_you_mean(str(scale), ('full', 'quick'))}"
            ) from None
        if not 0 < wanted <= _LARGEST:
            raise BtrfsModelError(
                f"{self.name}: a scale is greater than 0 and at most {_LARGEST:,}, not {scale}"
            )
        for source in self.inputs:
            # an installed package has no large images
            is_there = source.sample is None or has_sample(source.sample)
            if source.scale == wanted and is_there:
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


def load(name: str | Workload) -> Workload:
    """Return the workload of that name: of the package, or of an entry point of :data:`GROUP`.

    Raises
    ------
    BtrfsModelError
        When there is none, or the entry point leads to none.
    """
    if isinstance(name, Workload):
        return name
    workload: object
    if name in _MODULES:
        workload = import_module(_MODULES[name]).WORKLOAD
        assert isinstance(workload, Workload)
        return workload
    own = {one.name: one for one in entry_points(group=GROUP)}
    if name not in own:
        there = (*NAMES, *own)
        near = did_you_mean(name, there)
        raise BtrfsModelError(f"no workload {name!r}: there is {', '.join(there)}{near}")
    try:
        workload = own[name].load()
    except (AttributeError, ImportError) as error:
        raise BtrfsModelError(f"workload {name!r}: {own[name].value}: {error}") from None
    if not isinstance(workload, Workload):
        raise BtrfsModelError(f"workload {name!r}: {own[name].value} is no bm.workload()")
    return workload
