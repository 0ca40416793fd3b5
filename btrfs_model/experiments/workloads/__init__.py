# SPDX-License-Identifier: GPL-2.0-only
"""The workloads of the commit messages: what they did, what they reported, how to do it again.

A workload is a module with one :class:`Workload`; :func:`load` finds it by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.samples import data_folder, has_sample, sample
from btrfs_model.behaviour import Behaviour, mounting_by
from btrfs_model.cost.device import read_file
from btrfs_model.experiments.workloads.charts.evidence import Evidence
from btrfs_model.experiments.workloads.knobs import NAMES as KNOBS
from btrfs_model.experiments.workloads.knobs import NOT_TURNED, Knobs
from btrfs_model.experiments.workloads.timed import SECONDS, Shown, Timed
from btrfs_model.mount.writable import WritableFilesystem
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

_LARGEST = 1000
"""Scale beyond which a number is that of files, and not how many times as large as the full one."""

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
        Name of the sample image (:func:`btrfs_model.base.samples.sample`), or None if
        :meth:`Workload.build` makes the filesystem.
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
:data:`btrfs_model.experiments.workloads.cases.PARAMETERS`."""


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
    conditions : mapping
        What a message leaves open, as it was here, see :class:`.Timed`.
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
    conditions: Case = field(default_factory=dict)
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
    evidence : Evidence, optional
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
    shown : list of Shown
        The times of the commit message with what is known of them.
    """

    figures: list[Figure]
    evidence: Evidence | None = None
    measured_on: dict[str, str] = field(default_factory=dict)
    sides: tuple[Side, ...] = ()
    small: list[Figure] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Outcome({len(self.figures)} figures)"

    def add(self, other: Outcome) -> None:
        """Add the figures and times of another part of the replay."""
        self.figures += other.figures
        self.timed += other.timed

    def find(self, side: str, quantity: str, **case: int | str) -> Figure | None:
        """Return the first figure of a quantity on a side in such a case, or None."""
        for figure_ in self.figures:
            if figure_.quantity == quantity and figure_.side == side and figure_.is_of(case):
                return figure_
        return None

    def time(self, side: str, quantity: str, case: Case) -> Shown | None:
        """Return a time as it is beside the message's, or else as it was replayed; or None."""
        for one in self.shown:
            known = one.case.items()
            if (one.side, one.quantity) == (side, quantity) and case.items() <= known:
                return one
        found = self.find(side, quantity, **case)
        if found is None:
            return None
        modelled, reported, measured = (
            None if value is None else value * SECONDS[found.unit]
            for value in (found.modelled, found.reported, found.measured)
        )
        return Shown(side, quantity, found.case, modelled, reported, measured, pipe=False)

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


def silent(_: str) -> None:
    """Report no progress."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Workload:
    """A commit message's experiment; the methods that raise are those of each workload.

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
    groups : tuple of Group
        For the table of the report.
    least : int
        The smallest size: of the first parameter of the inputs.
    size : str
        The parameter that formulas of counts are in; empty where there are none.
    knobs : tuple of str
        What-if knobs that it has, fields of :class:`.Knobs`.
    keeps : bool
        Whether `measure` leaves the filesystem as it was.
    arguments : tuple of str
        What `build` takes besides the parameters of the inputs.
    bytes_each : int
        Memory that a replay takes for each of its size, about.
    fresh : bool
        Whether each side has a filesystem of its own, built and mounted by its kernel, so that
        `run` is called for one side at a time, and may change it.
    """

    name: str
    toggles: tuple[Patch, ...]
    summary: tuple[str, ...]
    caveats: tuple[Note, ...]
    inputs: tuple[Input, ...]
    headline: tuple[str, ...]
    compared: tuple[Side, ...]
    groups: tuple[Group, ...]
    least: int = 1
    size: str = ""
    knobs: tuple[str, ...] = KNOBS
    keeps: bool = True
    arguments: tuple[str, ...] = ()
    bytes_each: int = 4 << 10
    fresh: bool = False

    def scaled(self, scale: float) -> Input:
        """Return the input of any size, to be built."""
        largest = self.inputs[-1]
        name, full = next(iter(largest.parameters.items()))
        count = max(self.least, round(full * scale))
        return Input(None, largest.subvolume, count / full, {**largest.parameters, name: count})

    def build(self, size: Input, knobs: Knobs, step: Step = silent) -> Filesystem:
        """Make the filesystem of an input, as the script does."""
        raise NotImplementedError

    def measure(
        self, fs: Filesystem, size: Input, side: Side, knobs: Knobs, step: Step = silent
    ) -> Outcome:
        """Do what one side is measured by, at one size: a cell of a sweep."""
        raise NotImplementedError

    def run(
        self, fs: Filesystem, size: Input, sides: tuple[Side, ...], knobs: Knobs,
        step: Step = silent,
    ) -> Outcome:  # fmt: skip
        """Do all that the report shows, on each side."""
        outcome = Outcome([])
        for side in sides:
            outcome.add(self.measure(fs, size, side, knobs, step))
        return outcome

    def draw(self, outcome: Outcome) -> figure.Figure:
        """Draw the chart of the report."""
        raise NotImplementedError

    def functions(self) -> tuple[Callable[..., object] | str, ...]:
        """Return what figures depend on besides the package, for the keys of cells.

        Functions stand for their source, a text for itself.
        """
        return (self.run,)

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

    def notes(
        self, sides: Iterable[Side], outcome: Outcome, device: str | None = None
    ) -> list[str]:
        """Return what a reader of the figures has to know, of these sides and a chosen device."""
        there = {(side.name, side.toggles) for side in sides}
        told = [f"The device: {read_file(device)['title']}."] if device else []
        return told + [
            note.text
            for note in self.caveats
            if there.issuperset((side.name, side.toggles) for side in note.sides)
            and (not note.measured or any(k.startswith(note.measured) for k in outcome.measured_on))
            and not (device and note.device)
        ]

    def input(self, scale: str | float, knobs: Knobs = NOT_TURNED) -> Input:
        """Return the input for a scale: ``quick``, ``full`` or a fraction of full.

        Raises
        ------
        BtrfsModelError
            When it is no scale, or the workload has not these knobs.
        """
        knobs.check(self.name, self.knobs)
        wanted = self.inputs[0].scale if scale == "quick" else self._number(scale)
        for source in self.inputs:
            # an installed package has no large images, and none has other tree blocks
            is_there = source.sample is None or (has_sample(source.sample) and not knobs.nodesize)
            if source.scale == wanted and is_there:
                return source
        return self.scaled(wanted)

    def _number(self, scale: str | float) -> float:
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
                f"{self._meant(wanted)}"
            )
        return wanted

    def _meant(self, size: float) -> str:
        """Name the scale of a size that was given in its place."""
        if not (_LARGEST < size < math.inf and size == round(size)):
            return ""
        name, full = next(iter(self.inputs[-1].parameters.items()))
        return f"; {size:,.0f} {name} are the scale {size / full:.6g}"

    def open(
        self, size: Input, knobs: Knobs, step: Step = silent, side: Side | None = None
    ) -> Filesystem:
        """Open the sample of an input, or build its filesystem.

        With a `side` what is built is mounted by its kernel, where the workload asks for that.
        """
        if size.sample is not None:
            step("restoring the image")
            return Filesystem.open(sample(size.sample))
        if not self.fresh or side is None:
            step("building the filesystem")
            return self.build(size, knobs, step)
        step(f"{side.name}: building the filesystem")
        with mounting_by(side.behaviour):
            fs = self.build(size, knobs, step)
        if isinstance(fs, WritableFilesystem):
            fs.behaviour = side.toggles
        return fs


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
