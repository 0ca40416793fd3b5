# SPDX-License-Identifier: GPL-2.0-only
"""What the commit messages report: the figures of ``data/commits``, and what they say of them.

A message names neither the speed of its machine nor, most often, its device. So a ratio of two of
its times is compared with a ratio; an absolute time, by one factor for the whole message, which its
first time tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.samples import data_folder
from btrfs_model.cost.device import names, read_toml
from btrfs_model.cost.prediction import Ratio
from btrfs_model.experiments.workloads.timed import SECONDS

PERCENTAGES: Final = {
    "none": lambda before, after: "",
    "times": lambda before, after: f"{before / after:.1f}x",
    "of before": lambda before, after: f"{100 * (after - before) / before:+.1f}%",
    "of the mean": lambda before, after: f"{200 * (after - before) / (before + after):+.1f}%",
}
"""How a message says what two times come to."""

_STUDENT: Final = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""Deviations of the average of 2, 3, ... runs that leave 5 % out at each end."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A time that a commit message reports.

    Attributes
    ----------
    side, quantity, unit : str
        As of :class:`btrfs_model.experiments.workloads.Figure`.
    case : dict
        What it was measured with.
    value : float
        The time in its unit.
    deviation : float or None
        Standard deviation.
    runs : int or None
        Of how many runs it is the average.
    said : str
        What the message says that the time is beside the one before, e.g. ``"9.5x"``.
    is_headline : bool
        Whether it and the time before it stand for the whole commit.
    why, more : dict
        Reasons where what is known here is not what the message says, see :class:`Message`.
    below, above : float
        Between how much less and more the time lies, in its unit: of a clock of whole seconds that
        was read twice, one each; of whole milliseconds of which the rest was cut off, 0 and 1.
    """

    side: str
    quantity: str
    unit: str
    case: dict[str, int | str]
    value: float
    deviation: float | None = None
    runs: int | None = None
    said: str = ""
    is_headline: bool = False
    why: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)
    below: float = 0.0
    above: float = 0.0

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return round(self.value * SECONDS[self.unit], 9)

    @property
    def scatter(self) -> float:
        """Half of the 90 % interval of an average of runs, of the average; 0 where not told.

        Source: Student, The probable error of a mean, Biometrika 6, 1908.
        """
        if not self.deviation or not self.runs or self.runs < 2:
            return 0.0
        factor = _STUDENT[min(self.runs - 2, len(_STUDENT) - 1)]
        return factor * self.deviation / math.sqrt(self.runs) / self.value


def ratio_of(before: Reported, after: Reported) -> Ratio:
    """Return how many times as long one time of a message is as another, and the 90 % interval."""
    scatter = math.exp(math.hypot(before.scatter, after.scatter))
    units = SECONDS[before.unit] / SECONDS[after.unit]
    low = (before.value - before.below) / (after.value + after.above) * units
    high = (before.value + before.above) / (after.value - after.below) * units
    return Ratio(before.seconds / after.seconds, low / scatter, high * scatter)


@dataclass(frozen=True, slots=True)
class Series:
    """The series of patches that the times of a message are of; its commit is the last of them.

    Attributes
    ----------
    number : int
        How many patches they are.
    url : str
        Where they can be read.
    """

    number: int
    url: str


@dataclass(frozen=True, slots=True)
class Also:
    """A pair of times of a message besides those with the one before.

    Attributes
    ----------
    before, after : str
        Sides.
    words : str
        What is done between them.
    why, more : dict
        As of :class:`Message`.
    """

    before: str
    after: str
    words: str
    why: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """The figures of a commit message.

    Attributes
    ----------
    title, commit, release : str
        Which commit it is of.
    percentages : str
        How it says what two times come to: one of :data:`PERCENTAGES`.
    machine : str
        What it tells about its machine.
    device : str
        What stands for its device, a name of ``data/devices``; empty where nothing is waited for.
    devices : tuple of str
        What else its device may have been.
    size : dict
        Parameters of the workload that all its figures are of, at full scale; empty where each
        figure has its own.
    stand_in : dict
        Sides that were measured on the kernels at hand in place of those of the message.
    why, more : dict
        Reasons where what is known here is not what the message says, in a few words and in more:
        ``predicted`` and ``measured``, why that differs; ``unmeasured``, why there is nothing
        measured, and what it takes. A figure's own come first.
    figures : tuple of Reported
        In the order of the message; the first is of the side before.
    pipe : bool
        Whether it timed sends through a pipe, as ``btrfs send > /dev/null`` makes them.
    work : dict
        What the work alone says: the ``quantity`` of a figure that is counted, the ``case`` that it
        is of besides that of the headline, its ``words``, and ``why`` that is not the time.
    series : Series or None
        What the times are of, where that is more than the commit.
    also : tuple of Also
        Pairs of times besides those with the one before.
    """

    title: str
    commit: str
    release: str
    percentages: str
    machine: str
    device: str
    size: dict[str, int]
    stand_in: dict[str, str]
    why: dict[str, str]
    figures: tuple[Reported, ...]
    pipe: bool = False
    work: dict[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    more: dict[str, str] = field(default_factory=dict)
    series: Series | None = None
    also: tuple[Also, ...] = ()

    @property
    def url(self) -> str:
        """Where the commit can be read; empty without one."""
        return f"https://git.kernel.org/torvalds/c/{self.commit}" if self.commit else ""

    @property
    def headline(self) -> tuple[Reported, Reported]:
        """The pair of times that stands for the whole commit."""
        return next(pair for pair in self.pairs if pair[1].is_headline)

    def reason(self, before: Reported, after: Reported, kind: str) -> tuple[str, str]:
        """Return why something differs from a time, or is not known: in a few words, and in more.

        Both are empty without a reason.
        """
        pair = self.besides(before, after)
        of = next((one for one in (after, pair or self) if kind in one.why), None)
        return ("", "") if of is None else (of.why[kind], of.more.get(kind, ""))

    def besides(self, before: Reported, after: Reported) -> Also | None:
        """Return what is known of a pair of times that is not one with the side before."""
        sides = before.side, after.side
        return next((one for one in self.also if (one.before, one.after) == sides), None)

    @property
    def pairs(self) -> list[tuple[Reported, Reported]]:
        """Each time after a change with the time before it, of the same case."""
        return [
            (before, after)
            for before in self.figures
            for after in self.figures
            if (before.side == "before" != after.side or self.besides(before, after))
            and (after.quantity, after.case) == (before.quantity, before.case)
        ]


NO_MESSAGE: Final = Message("", "", "", "none", "", "", {}, {}, {}, ())
"""Of a workload that no commit message is about."""


@cache
def load(workload: str) -> Message:
    """Return the figures of the commit message of a workload.

    Raises
    ------
    BtrfsModelError
        When its file is not there or says what no figure is, with the file and the key.
    """
    path = data_folder() / "commits" / f"{workload}.toml"
    table = read_toml(path)
    percentages = wanted(path, table, "percentages", str)
    if percentages not in PERCENTAGES:
        known = ", ".join(PERCENTAGES)
        raise BtrfsModelError(f"{path}: percentages is {percentages!r}, not one of {known}")
    rows = wanted(path, table, "figure", list)
    resolution = _resolution(path, table)
    figures = tuple(_figure(path, number, row, *resolution) for number, row in enumerate(rows))
    if not figures or figures[0].side != "before":
        raise BtrfsModelError(f"{path}: the first figure is not of the side before")
    title, commit, release, machine, device = (
        str(wanted(path, table, key, str))
        for key in ("title", "commit", "release", "machine", "device")
    )
    size, stand_in = dict(table.get("size", {})), dict(table.get("stand_in", {}))
    return Message(
        title, commit, release, percentages, machine, device, size, stand_in,
        wanted(path, table, "why", dict), figures, _pipe(path, table),
        wanted(path, table, "work", dict), _devices(path, table), table.get("more", {}),
        _series(path, table), _also(path, table),
    )  # fmt: skip


def wanted(path: Path, table: Mapping[str, Any], key: str, kind: Any, place: str = "") -> Any:
    """Return the value of a key of a file.

    Raises BtrfsModelError: when it is missing or of another kind, with the file, `place` and key.
    """
    value = table.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        wrong = "is missing" if value is None else f"is {value!r}"
        raise BtrfsModelError(f"{path}: {place}{key} {wrong}")
    return value


def _series(path: Path, table: Mapping[str, Any]) -> Series | None:
    """Return the series of patches that its times are of."""
    series = table.get("series", False)
    if not isinstance(series, bool):
        raise BtrfsModelError(f"{path}: series is {series!r}, not true or false")
    if not series:
        return None
    patches = wanted(path, table, "patches", dict)
    return Series(*(wanted(path, patches, key, kind, "patches.")
                    for key, kind in (("number", int), ("url", str))))  # fmt: skip


def _also(path: Path, table: Mapping[str, Any]) -> tuple[Also, ...]:
    """Return the pairs of times besides those with the one before."""
    return tuple(
        Also(
            **{key: wanted(path, row, key, str, f"also {number}: ")
               for key in ("before", "after", "words")},
            why=row.get("why", {}), more=row.get("more", {}),
        )
        for number, row in enumerate(table.get("also", ()), 1)
    )  # fmt: skip


def _pipe(path: Path, table: Mapping[str, Any]) -> bool:
    """Return whether sends through a pipe were timed."""
    pipe = table.get("pipe", False)
    if not isinstance(pipe, bool):
        raise BtrfsModelError(f"{path}: pipe is {pipe!r}, not true or false")
    return pipe


def _devices(path: Path, table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of what else the device may have been."""
    devices = table.get("devices", [])
    if not isinstance(devices, list) or not set(map(str, devices)) <= set(names()):
        raise BtrfsModelError(f"{path}: devices is {devices!r}, not names of data/devices")
    return tuple(devices)


def _resolution(path: Path, table: Mapping[str, Any]) -> tuple[float, float]:
    """Return how much less and more a time may be than what is reported, in its unit."""
    of = wanted(path, table, "resolution", dict)
    below, above = (float(wanted(path, of, key, int | float, "resolution."))
                    for key in ("below", "above"))  # fmt: skip
    if min(below, above) < 0:
        raise BtrfsModelError(f"{path}: resolution is negative")
    return below, above


def _figure(
    path: Path, number: int, row: Mapping[str, Any], below: float, above: float
) -> Reported:
    place = f"figure {number + 1}: "
    unit = wanted(path, row, "unit", str, place)
    if unit not in SECONDS:
        raise BtrfsModelError(f"{path}: {place}unit is {unit!r}, not {' or '.join(SECONDS)}")
    value = float(wanted(path, row, "value", int | float, place))
    if not value > below:
        raise BtrfsModelError(f"{path}: {place}value is {value:g}, not more than {below:g}")
    return Reported(
        wanted(path, row, "side", str, place), wanted(path, row, "quantity", str, place), unit,
        dict(wanted(path, row, "case", dict, place)), value,
        row.get("deviation"), row.get("runs"), row.get("said", ""), row.get("headline", False),
        row.get("why", {}), row.get("more", {}), below, above,
    )  # fmt: skip
