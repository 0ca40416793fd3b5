# SPDX-License-Identifier: GPL-2.0-only
"""What a script came to: what its timed regions take before and after, what it printed."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pandas as pd

from btrfs_model.cost.causes import BLOCKS_AWAITED
from btrfs_model.cost.prediction import NoCostError, Prediction, Ratio, predict, ratio
from btrfs_model.scripts.steps import Ran, Reading

if TYPE_CHECKING:
    from btrfs_model.cost.device import Device
    from btrfs_model.scripts.steps import Step

_TIMES: Final = re.compile(
    r"\d+(?:\.\d+)?(?=\s*(?:ms|us|ns|milliseconds|microseconds|nanoseconds|seconds|secs?|s)\b)|"
    r"\d+m\d+\.\d+s|; [\d.]+ sec \(.*\)|\d+:\d\d\.\d+"
)
_SEVERAL: Final = 8
_LEFT_OUT: Final = re.compile(r"\s*[\[(<]?\s*(?:\.{3}|snip|\u2026)\s*[\])>]?\s*", re.IGNORECASE)
_REMARK: Final = re.compile(r"\s*(?:-->|<--|==>|\^\^)")


@dataclass(frozen=True)
class Region:
    """What a script does between two readings of the clock.

    Attributes
    ----------
    lines : tuple of int
        Of the two readings.
    what : str
        Calls in it.
    work : mapping
        What was counted in them.
    waits : float
        Nanoseconds of waiting for the device.
    time : Prediction, optional
        What they take; None where nothing of their work has a cost.
    uncounted : tuple of str
        Calls in it that have no cost, and parts of others that have none.
    depends : tuple of str
        What the time depends on besides the work, in a few words each.
    """

    lines: tuple[int, int]
    what: str
    work: Mapping[str, int]
    waits: float
    time: Prediction | None
    uncounted: tuple[str, ...]
    depends: tuple[str, ...]

    @property
    def where(self) -> str:
        """Its lines, for people."""
        first, last = self.lines
        return str(last) if first == last else f"{first} to {last}"

    @property
    def title(self) -> str:
        """What it is called, for people."""
        return f"{'line' if self.lines[0] == self.lines[1] else 'lines'} {self.where}"


def regions(result: Ran, device: Device | None = None) -> list[Region]:
    """Return the timed regions of a script, in their order.

    Parameters
    ----------
    result : ScriptResult
        What became of it.
    device : Device, optional
        What they wait for, in place of the device that it ran with.
    """
    found = [_between(result, start, end, device) for start, end in pairwise(result.readings)]
    return [one for one in found if one is not None]


def whole(result: Ran, device: Device | None = None) -> Region | None:
    """Return all that a script did as one region; None where it called nothing."""
    lines = [one.line for one in result.calls]
    start = Reading(min(lines, default=1), 0.0, 0, 0)
    return _between(result, start, Reading(max(lines, default=1), 0.0, len(lines), 0), device)


def waits_of(calls: Iterable[Step], device: Device | None) -> float:
    """Return the nanoseconds that calls wait, for the device that they ran with or for another."""
    if device is None:
        return sum(one.waits for one in calls)
    return sum(one.waits_on(device, (one.seconds or 0.0) - one.waits / 1e9) for one in calls)


def _between(
    result: Ran, start: Reading, end: Reading, device: Device | None
) -> Region | None:  # fmt: skip
    """Return what is between two readings; None where nothing was called."""
    calls = result.calls[start.calls : end.calls]
    if not calls:
        return None
    work: Counter[str] = Counter()
    for one in calls:
        work.update(one.work)
    names = Counter(one.what.split(" ")[0] for one in calls)
    told = [f"{count:,} {name}" if count > 1 else name for name, count in names.items()]
    shown = ", ".join(told[:_SEVERAL]) + (" ..." if len(told) > _SEVERAL else "")
    waits = waits_of(calls, device)
    without = sorted({one.what.split(" ")[0] for one in calls if one.seconds is None})
    try:
        time = predict(result.machine, work, waits)
        without += time.without
    except NoCostError:
        time = None
    name = result.device if device is None else device.name
    depends = _depends(work, end.commits - start.commits, waits, name, without)
    lines = start.line, end.line
    return Region(lines, shown, dict(work), waits, time, tuple(without), depends)


def _depends(
    work: Mapping[str, int], commits: int, waits: float, device: str, uncounted: Sequence[str]
) -> tuple[str, ...]:
    """Say what a time depends on besides the work that has a cost."""
    told = []
    syncs = bool(work.get("btrfs_sync_log"))
    if waits:
        told.append(f"device {device}")
    elif (syncs or commits) and not device:
        told.append("no device named: not waited for")
    elif work.get(BLOCKS_AWAITED):
        told.append("no device named: read from memory")
    if commits:
        told.append("1 commit" if commits == 1 else f"{commits:,} commits")
        told[-1] += ", not waited for" if device else ""
    sends = bool(work.get("send_cmd"))
    if syncs or sends:
        told.append("no worker")
    if sends:
        told.append("no pipe")
    if uncounted:
        told.append(f"without a cost: {', '.join(uncounted)}")
    return tuple(told)


def region_table(found: Sequence[Region]) -> pd.DataFrame:
    """Return regions as a table."""
    times = [(None,) * 3 if one.time is None else (one.time.seconds, one.time.low, one.time.high)
             for one in found]  # fmt: skip
    return pd.DataFrame({
        "first": pd.Series([one.lines[0] for one in found], dtype="int64"),
        "last": pd.Series([one.lines[1] for one in found], dtype="int64"),
        "what": pd.Series([one.what for one in found], dtype="str"),
        **{name: pd.Series([time[at] for time in times], dtype="float64")
           for at, name in enumerate(("seconds", "low", "high"))},
        "depends_on": pd.Series(["; ".join(one.depends) for one in found], dtype="str"),
    })  # fmt: skip


def tables(names: Sequence[str], results: Sequence[Ran]) -> dict[str, pd.DataFrame]:
    """Return the ``steps`` and ``regions`` of a script on one kernel or more as plain tables.

    The kernel is a column, `behaviour`, and so is each counter of the work.
    """
    steps, found = [], []
    for name, result in zip(names, results, strict=True):
        calls = result.steps
        work = pd.DataFrame(calls.pop("work").tolist(), index=calls.index)
        steps.append(pd.concat([calls, work], axis=1).assign(behaviour=name))
        found.append(result.regions.assign(behaviour=name))
    together = pd.concat(steps, ignore_index=True)
    first = ["behaviour", "line", "what", "seconds", "bytes", "errno"]
    counters = sorted(set(together.columns) - set(first))
    together[counters] = together[counters].fillna(0).astype("int64")
    both = pd.concat(found, ignore_index=True)
    return {
        "steps": together[[*first, *counters]],
        "regions": both[["behaviour", *both.columns.drop("behaviour")]],
    }


@dataclass(frozen=True)
class Row:
    """A timed region on one kernel or on two, in words.

    Attributes
    ----------
    lines : str
        Of the script.
    times : tuple of str
        On each kernel.
    ratio : str
        How many times as long before, with its interval; empty where there is one kernel.
    why : str
        Why the ratio is not told.
    depends : str
        What the times depend on.
    what : str
        Calls in it.
    """

    lines: str
    times: tuple[str, ...]
    ratio: str
    why: str
    depends: str
    what: str


def rows(names: Sequence[str], sides: Sequence[Sequence[Region]]) -> list[Row]:
    """Set the regions of one kernel or of two beside each other, in words."""
    if len(sides) == 1:
        return [Row(one.where, (_time(one),), "", "", _words(one), one.what) for one in sides[0]]
    found = []
    for first, second, value in compared(*sides):
        depends = _words(second)
        if first.depends != second.depends:
            depends = f"{names[0]}: {_words(first)}; {names[1]}: {depends}"
        told = value is not None and not value.untold
        times = (_time(first), _time(second))
        why = value.untold if value is not None else ""
        ratio_told = str(value) if told else "not told"
        found.append(Row(second.where, times, ratio_told, why, depends, second.what))
    return found


def _time(region: Region) -> str:
    return "no time" if region.time is None else str(region.time)


def _words(region: Region) -> str:
    return "; ".join(region.depends) or "work alone"


def compared(
    before: Sequence[Region], after: Sequence[Region]
) -> list[tuple[Region, Region, Ratio | None]]:
    """Set the regions of two sides beside each other, with their ratios."""
    found = []
    for one, other in zip(before, after, strict=False):
        value = None
        if (
            one.time is not None
            and other.time is not None
            and one.time.seconds
            and other.time.seconds
        ):
            value = ratio(one.time, other.time)
        found.append((one, other, value))
    return found


@dataclass(frozen=True)
class Line:
    """A line of output that an author shows.

    Attributes
    ----------
    shown : str
        What the author shows.
    printed : str or None
        What the script printed in its place, the line most alike; None where there is none.
    same : bool
        Whether they are equal but for times.
    """

    shown: str
    printed: str | None
    same: bool


def beside(printed: str, shown: Sequence[str]) -> list[Line]:
    """Compare what an author shows line by line with an output; times are no difference.

    What is left out (``(...)``) and what the author remarks (``-->``) is not compared.
    """
    ours = [one.rstrip() for one in printed.split("\n")]
    theirs = list(_output(shown))
    first_plain, second_plain = ([_plain(one) for one in lines] for lines in (ours, theirs))
    found: list[Line] = []
    matcher = difflib.SequenceMatcher(None, first_plain, second_plain, autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind == "equal":
            pairs = zip(theirs[start:end], ours[first:last], strict=True)
            found += [Line(other, one, True) for other, one in pairs]
        else:
            for other in theirs[start:end]:
                alike = difflib.get_close_matches(other, ours[first:last], 1)
                found.append(Line(other, alike[0] if alike else None, False))
    return found


def _output(shown: Sequence[str]) -> Iterator[str]:
    """Yield the lines of an output, without what its author says of it."""
    remark = None
    for line in shown:
        depth = len(line) - len(line.lstrip())
        if _REMARK.match(line):
            remark = depth
        elif remark is None or depth <= remark:
            remark = None
            if line.strip() and not _LEFT_OUT.fullmatch(line):
                yield line.rstrip()


def _plain(line: str) -> str:
    return _TIMES.sub("TIME", re.sub(r"\s+", " ", line.strip()))
