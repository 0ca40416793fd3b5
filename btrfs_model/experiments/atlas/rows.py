# SPDX-License-Identifier: GPL-2.0-only
"""The rows of the atlas, a commit each: ``data/atlas``, as ``docs/atlas.md`` describes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

from btrfs_model.base.errors import BtrfsModelError, UnknownNameError
from btrfs_model.base.samples import data_folder
from btrfs_model.cost.device import names as device_names
from btrfs_model.cost.device import read_toml
from btrfs_model.cost.prediction import Ratio
from btrfs_model.experiments.atlas.predictions import Predicted, predicted_rows
from btrfs_model.experiments.commits import wanted
from btrfs_model.experiments.evidence import toggles_of
from btrfs_model.experiments.workloads import NAMES
from btrfs_model.experiments.workloads.timed import SECONDS
from btrfs_model.patches import Patch

Kind = Literal["exact", "count", "ratio", "time"]
AREAS: Final = {
    "send": "sends",
    "fiemap": "FIEMAP and seeks",
    "log": "fsyncs and their logs",
    "names": "directories and delayed items",
    "files": "file data: reflinks, preallocation, holes, checksums",
    "trees": "trees, roots and mounts",
}
KEPT_BACK: Final = (
    "069a2e37789a", "19358b154fce", "22a3c0ac8ed0", "374d45af6435", "506650dcb3a7", "5897710b28ca",
    "6976201f188f", "732d591a5d6c", "877c14767f10", "c7499a64dcf6", "fa4b8cb17380",
)  # fmt: skip
"""Commits that judge the model, and are no rows."""
_PLACES: Final = ("region", "call", "line", "counter")
_KEYS: Final = {
    "title", "commit", "release", "date", "area", "mail", "machine", "devices", "pipe",
    "toggles", "since", "known", "note", "script", "workload", "quick", "figure",
}  # fmt: skip
_FIGURE: Final = {
    "name", "kind", *_PLACES, "unit", "before", "after", "below", "above", "entered", "why",
    "kernel", "quick",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """What a commit message reports of one quantity, before and after.

    Attributes
    ----------
    name : str
        What it is called.
    kind : str
        ``exact``: equal to the digit; ``count``: of work; ``ratio``: of two times; ``time``.
    region : int
        Of a time, which of those between two readings of the clock, from 1; 0: none.
    call : str
        Of a time in place of a region, the name of the calls that it is of, such as ``fsync``.
    line : str
        Of a number that the script prints: what stands in front of it, with a colon between.
    counter : str
        Of work, what is counted.
    unit : str
        Of what is reported.
    before, after : float or None
        What is reported, if it is entered yet.
    below, above : float
        Between how much less and more that lies.
    entered : date or None
        When.
    why : str
        Why it is not what is predicted, where that is known.
    kernel : str
        Which kernel it was counted or printed in; empty: it is the message's.
    quick : bool
        Whether it is of the quick scale.
    """

    name: str
    kind: Kind
    region: int
    call: str
    line: str
    counter: str
    unit: str
    before: float | None
    after: float | None
    below: float
    above: float
    entered: date | None
    why: str
    kernel: str = ""
    quick: bool = False

    @property
    def ratio(self) -> Ratio | None:
        """How many times as much is reported before, within its digits."""
        if self.before is None or not self.after:
            return None
        low = (self.before - self.below) / (self.after + self.above)
        least = self.after - self.below
        high = (self.before + self.above) / least if least > 0 else math.inf
        return Ratio(self.before / self.after, low, high)

    @property
    def place(self) -> str:
        """Where it is looked for, in words."""
        if self.line:
            where = f" in {self.kernel}" if self.kernel else ""
            return f"the number that the script prints after '{self.line}:'{where}"
        if self.call:
            return f"time of all calls {self.call}"
        what = self.counter or "time"
        of = f"{what} of region {self.region}" if self.region else f"{what} of all"
        return f"{of}, counted in {self.kernel}" if self.kernel else of


@dataclass(frozen=True, slots=True)
class Row:
    """A commit with what its message reports.

    Attributes
    ----------
    name : str
        Of its file.
    title, commit, release : str
        Of the commit.
    date : date
        When its message was sent.
    area : str
        One of :data:`AREAS`.
    mail : str
        The Message-ID.
    machine : str
        As far as the message tells.
    devices : tuple of str
        What logs may have been written to; the first stands for it. Empty: nothing is waited for.
    pipe : bool
        Whether streams went through a pipe.
    toggles : tuple of Patch
        Those of the commit.
    since : str
        The first commit of a series that the figures are of; empty: they are of this commit alone.
    known : bool
        Whether its figures were known while the model was built, so that it takes no part in scores
        of predictions.
    note : str
        What a reader has to know.
    script : str
        For bash; empty where a workload of the package is replayed.
    workload : str
        Its name; empty where there is a script.
    quick : mapping
        Numbers that the script is given at quick scale; ``scale`` of a workload.
    figures : tuple of Figure
        What is reported.
    predicted : Predicted or None
        What was predicted before that was entered.
    """

    name: str
    title: str
    commit: str
    release: str
    date: date
    area: str
    mail: str
    machine: str
    devices: tuple[str, ...]
    pipe: bool
    toggles: tuple[Patch, ...]
    since: str
    known: bool
    note: str
    script: str
    workload: str
    quick: Mapping[str, int | float]
    figures: tuple[Figure, ...]
    predicted: Predicted | None = field(default=None)

    @property
    def sides(self) -> dict[str, str]:
        """The behaviours of both sides."""
        return {"before": f"{self.since or self.commit}^", "after": self.commit}

    @property
    def url(self) -> str:
        """Where the commit can be read."""
        return f"https://git.kernel.org/torvalds/c/{self.commit}"

    @property
    def mail_url(self) -> str:
        """Where its mail can be read; empty without one."""
        return f"https://lore.kernel.org/linux-btrfs/{self.mail}/" if self.mail else ""

    @property
    def command(self) -> str:
        """What runs it again."""
        return f"btrfs-model atlas {self.name}"

    def refuse_prediction(self) -> None:
        """Refuse to predict what is known: raises BtrfsModelError for a row with figures."""
        if self.known or any(one.entered for one in self.figures if not one.kernel):
            raise BtrfsModelError(
                f"{self.name}: its figures are entered or known, nothing is predicted any more"
            )


def chosen(names: Iterable[str] = ()) -> list[Row]:
    """Return rows by name, commit or area, all without; in the order of the releases.

    Raises
    ------
    UnknownNameError
        For what is none of these.
    BtrfsModelError
        For a file that says what no row is, with the file and the key.
    """
    rows = all_rows()
    wishes = tuple(names)
    for one in wishes:
        if not any(_is(row, one) for row in rows):
            raise UnknownNameError("row", one, [*AREAS, *(row.name for row in rows)])
    return [row for row in rows if not wishes or any(_is(row, one) for one in wishes)]


def _is(row: Row, name: str) -> bool:
    return name in (row.name, row.area, row.commit, *map(str, row.toggles))


@cache
def all_rows() -> tuple[Row, ...]:
    """Return all rows; see :func:`chosen`."""
    folder = data_folder() / "atlas"
    predicted = predicted_rows(folder / "predicted")
    rows = [load(path, predicted.get(path.stem)) for path in sorted(folder.glob("*.toml"))]
    order = list(Patch)
    return tuple(sorted(rows, key=lambda row: order.index(row.toggles[0])))


def load(path: Path, predicted: Predicted | None = None) -> Row:
    """Return the row of a file.

    Raises
    ------
    BtrfsModelError
        When it says what no row is, with the file and the key.
    """
    table = read_toml(path)
    _no_others(path, table, _KEYS)
    title, commit, release, area, mail, machine = (
        str(wanted(path, table, key, str))
        for key in ("title", "commit", "release", "area", "mail", "machine")
    )
    if area not in AREAS:
        raise BtrfsModelError(f"{path}: area is {area!r}, not one of {', '.join(AREAS)}")
    if commit in KEPT_BACK:
        raise BtrfsModelError(f"{path}: commit {commit} is kept back, to judge the model")
    script, workload = (str(table.get(key, "")) for key in ("script", "workload"))
    if bool(script) == bool(workload) or workload not in ("", *NAMES):
        raise BtrfsModelError(f"{path}: script or workload is wanted, one of both")
    quick = _numbers(path, table, "quick")
    known = _flag(path, table, "known")
    figures = tuple(
        _figure(path, number, one)
        for number, one in enumerate(wanted(path, table, "figure", list), 1)
    )
    row = Row(
        path.stem, title, commit, release, wanted(path, table, "date", date), area, mail, machine,
        _devices(path, table), _flag(path, table, "pipe"), _toggles(path, table, commit),
        _since(path, table), known,
        str(table.get("note", "")), script, workload, quick, figures, predicted,
    )  # fmt: skip
    _in_order(path, row)
    return row


def _in_order(path: Path, row: Row) -> None:
    """See to it that figures were entered after they were predicted, or are marked as known."""
    if len({one.name for one in row.figures}) < len(row.figures):
        raise BtrfsModelError(f"{path}: two figures have one name")
    for number, one in enumerate(row.figures, 1):
        if one.entered is None or row.known or one.kernel:
            continue
        place = f"{path}: figure {number}: entered"
        if row.predicted is None or one.name not in row.predicted.figures:
            raise BtrfsModelError(f"{place} before it was predicted: known = true is missing")
        if one.entered < row.predicted.date:
            raise BtrfsModelError(f"{place} on {one.entered}, predicted on {row.predicted.date}")


def _no_others(path: Path, table: Mapping[str, Any], keys: set[str], place: str = "") -> None:
    for key in table:
        if key not in keys:
            raise BtrfsModelError(f"{path}: {place}{key} is no key of a row")


def _flag(path: Path, table: Mapping[str, Any], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise BtrfsModelError(f"{path}: {key} is {value!r}, not true or false")
    return value


def _numbers(path: Path, table: Mapping[str, Any], key: str) -> dict[str, int | float]:
    value = table.get(key, {})
    if not isinstance(value, dict) or not all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in value.values()
    ):
        raise BtrfsModelError(f"{path}: {key} is {value!r}, not numbers by name")
    return value


def _devices(path: Path, table: Mapping[str, Any]) -> tuple[str, ...]:
    devices = table.get("devices", [])
    if not isinstance(devices, list) or not set(map(str, devices)) <= set(device_names()):
        raise BtrfsModelError(f"{path}: devices is {devices!r}, not names of data/devices")
    return tuple(devices)


def _toggles(path: Path, table: Mapping[str, Any], commit: str) -> tuple[Patch, ...]:
    slugs = table.get("toggles") or toggles_of(commit)
    known = {str(one): one for one in Patch}
    if not isinstance(slugs, list) or not all(one in known for one in slugs):
        raise BtrfsModelError(f"{path}: commit {commit} has no toggle, or toggles is wrong")
    return tuple(known[one] for one in slugs)


def _since(path: Path, table: Mapping[str, Any]) -> str:
    since = str(table.get("since", ""))
    if since and toggles_of(since) == [since]:
        raise BtrfsModelError(f"{path}: since: commit {since} has no toggle")
    return since


def _figure(path: Path, number: int, table: Mapping[str, Any]) -> Figure:
    place = f"figure {number}: "
    _no_others(path, table, _FIGURE, place)
    kind = wanted(path, table, "kind", str, place)
    if kind not in get_args(Kind):
        raise BtrfsModelError(f"{path}: {place}kind is {kind!r}, not {', '.join(get_args(Kind))}")
    call, line, counter = (str(table.get(key, "")) for key in ("call", "line", "counter"))
    region = int(table.get("region", 0))
    timed = kind in ("ratio", "time") and not line
    told = sum(map(bool, (region, call, line))) + (bool(counter) and not region)
    if told != 1 or timed == bool(line or counter):
        raise BtrfsModelError(f"{path}: {place}region, call, line or counter: a time has one of "
                              "the first two, a count one of the others")  # fmt: skip
    unit = str(table.get("unit", ""))
    if kind == "time" and unit not in SECONDS:
        raise BtrfsModelError(f"{path}: {place}unit is {unit!r}, not {' or '.join(SECONDS)}")
    before, after = (
        None if key not in table else float(wanted(path, table, key, int | float, place))
        for key in ("before", "after")
    )
    below, above = (float(table.get(key, 0)) for key in ("below", "above"))
    entered = None if "entered" not in table else wanted(path, table, "entered", date, place)
    if (before is None and after is None) != (entered is None):
        raise BtrfsModelError(f"{path}: {place}entered: a day, if and only if there is a value")
    if kind == "ratio" and entered and (before is None or not after):
        raise BtrfsModelError(f"{path}: {place}before and after: a ratio has both")
    return Figure(
        wanted(path, table, "name", str, place), kind, region, call, line, counter, unit,
        before, after, below, above, entered, str(table.get("why", "")),
        str(table.get("kernel", "")), _flag(path, table, "quick"),
    )  # fmt: skip
