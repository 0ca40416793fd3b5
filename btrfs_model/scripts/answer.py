# SPDX-License-Identifier: GPL-2.0-only
"""What a script came to: what its timed regions take before and after, what it printed."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from btrfs_model.cost.machine import Machine, NoCostError, Prediction, Ratio, predict, ratio

if TYPE_CHECKING:
    from btrfs_model.scripts.run import ScriptResult

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
    time : Prediction, optional
        What they take; None where nothing of their work has a cost.
    uncounted : tuple of str
        Calls in it that have no cost.
    """

    lines: tuple[int, int]
    what: str
    time: Prediction | None
    uncounted: tuple[str, ...]


def regions(result: ScriptResult, machine: Machine) -> list[Region]:
    """Return the timed regions of a script, in their order."""
    found = []
    for (line, _, first), (other, _, last) in zip(
        result.readings, result.readings[1:], strict=False
    ):
        calls = result.calls[first:last]
        if not calls:
            continue
        work: Counter[str] = Counter()
        for one in calls:
            work.update(one.work)
        names = Counter(one.what.split(" ")[0] for one in calls)
        told = [f"{count:,} {name}" if count > 1 else name for name, count in names.items()]
        shown = ", ".join(told[:_SEVERAL]) + (" ..." if len(told) > _SEVERAL else "")
        waits = sum(one.waits for one in calls)
        try:
            time = predict(machine, work, waits)
        except NoCostError:
            time = None
        without = tuple(sorted({one.what.split(" ")[0] for one in calls if one.seconds is None}))
        found.append(Region((line, other), shown, time, without))
    return found


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
