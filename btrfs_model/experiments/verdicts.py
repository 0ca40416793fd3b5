# SPDX-License-Identifier: GPL-2.0-only
"""Do the speedups come out? A row for each commit, and the rule that makes words of its numbers.

A ratio (time before over time after) is *of the direction* of the message's when both are faster
or both are slower, and *of its size* when its interval and that of the message's meet, or when it
is less than a tenth away. The interval of a prediction is one of 90 %, that of a measurement is
what its runs come to; that of a message's comes from the digits of its times, and from the
deviation of its runs where it tells one. Reasons are data, beside the figures in ``data/commits``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from btrfs_model.cost.causes import duration
from btrfs_model.cost.machine import Ratio
from btrfs_model.experiments.commits import Message, Reported, ratio_of
from btrfs_model.experiments.numbers import number, ratio_text, times
from btrfs_model.experiments.replay import Replay
from btrfs_model.experiments.results import PARAMETERS
from btrfs_model.experiments.times import Judged, Speedup

BOTH: Final = "direction and size"
SMALLER: Final = "direction; smaller here"
LARGER: Final = "direction; larger here"
CONTRARY: Final = "it contradicts"
_CLOSE: Final = 0.1


def compare(reported: Ratio, found: Ratio) -> str:
    """Say in words how a ratio is beside the message's: the one rule."""
    if (found.value > 1) != (reported.value > 1):
        return CONTRARY
    meet = found.low <= reported.high and reported.low <= found.high
    if meet or abs(found.value / reported.value - 1) < _CLOSE:
        return BOTH
    return SMALLER if found.value < reported.value else LARGER


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one pair of times of a commit message, in words.

    Attributes
    ----------
    workload : str
        Its name.
    message : Message
        Which commit it is of.
    case : str
        What the times depend on.
    said, reported, predicted, measured : str
        Times as fast: in the message's words, by its times, predicted with the interval, measured
        with the spread of the runs.
    work : str
        What the work alone says; empty but in the row of the commit.
    verdict : str
        A sentence or more.
    """

    workload: str
    message: Message
    case: str
    said: str
    reported: str
    predicted: str
    measured: str
    work: str
    verdict: str

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands below :data:`HEADINGS` behind the commit."""
        known = self.reported, self.predicted, self.measured, self.work
        return *(text or "-" for text in known), self.verdict


HEADINGS: Final = ("commit", "reported", "predicted", "measured", "the work alone", "verdict")


def pair_row(one: Replay, pair: Speedup, work: str = "") -> Row:
    """Return the row of a pair of times."""
    after, predicted = pair.after.reported, pair.predicted
    parts = []
    if predicted is not None:
        word = compare(pair.reported, predicted)
        parts.append(("Predicted", word, one.message.reason(after, "predicted")))
    measured = ""
    if pair.measured is not None:
        is_one = pair.measured.low == pair.measured.high
        measured = ratio_text(pair.measured) + (" (one run)" if is_one else "")
        word = compare(pair.reported, pair.measured)
        if word == CONTRARY:
            word = f"{CONTRARY}, {_measured(pair.before)} before, {_measured(pair.after)} after"
        parts.append(("Measured", word, one.message.reason(after, "measured")))
    return Row(
        one.workload.name, one.message, case(one.message, after), after.said,
        ratio_text(pair.reported), ratio_text(predicted), measured, work,
        _sentence(parts, one.message.reason(after, "unmeasured")),
    )  # fmt: skip


def _sentence(parts: Sequence[tuple[str, str, str]], unmeasured: str) -> str:
    """Say how what is predicted and what was measured is beside what is reported."""
    if len(parts) == 2 and {word for _, word, _ in parts} == {BOTH}:
        return "Predicted and measured: direction and size."
    found = [f"{who}: {word}{_because(word, why)}." for who, word, why in parts]
    if not any(who == "Measured" for who, *_ in parts):
        found.append(f"Not measured here: {unmeasured or 'no kernel was timed'}.")
    return " ".join(found)


def _because(word: str, why: str) -> str:
    """Return a reason, where one is needed."""
    if not why or word == BOTH:
        return ""
    return f": {why}" if word.startswith(CONTRARY) else f", because {why}"


def _measured(one: Judged) -> str:
    """Say how long a kernel took, in how many runs, and how far these are apart."""
    record, seconds = one.record or {}, one.measured or 0.0
    runs = int(record.get("runs", 1))
    if runs == 1:
        return f"{duration(seconds)} (one run)"
    scale = seconds / record["value"]
    ends = " to ".join(duration(record[end] * scale) for end in ("min", "max"))
    return f"{duration(seconds)} ({runs} runs, {ends})"


def case(message: Message, reported: Reported) -> str:
    """Name what a time depends on: ``60,000 files``, ``1,000,000 files, fsync 1``."""
    words = [
        PARAMETERS[name].words.format(value)
        for name, value in {**message.size, **reported.case}.items()
        if PARAMETERS[name].words
    ]
    other = [] if reported.side in ("before", "after") else [reported.side]
    return ", ".join([*words, *other])


def commit_row(one: Replay) -> Row:
    """Return the row of a commit: its headline; beside it, where a measurement contradicts."""
    if not one.message.figures:
        why = "No commit message is about it."
        return Row(one.workload.name, one.message, "", "", "", "", "", "", why)
    before, after = one.message.headline
    work = _work(one)
    pairs = [pair for pair in one.speedups if pair.after.reported.side == after.side]
    chosen = [pair for pair in pairs if pair.after.reported == after] or pairs
    if not chosen:
        return Row(
            one.workload.name, one.message, case(one.message, after), after.said,
            ratio_text(ratio_of(before, after)), "", "", work,
            "No time of the message is of this size, with these settings and these kernels.",
        )  # fmt: skip
    row = pair_row(one, chosen[0], work)
    others = [
        f"{other.case}: {other.reported} reported, {other.predicted} predicted. {other.verdict}"
        for other in (pair_row(one, pair) for pair in pairs if pair is not chosen[0])
        if CONTRARY in other.verdict
    ]
    return replace(row, verdict=" ".join([row.verdict, *others]))


def _work(one: Replay) -> str:
    """Say what was counted on both sides, and how many times less it is after."""
    about = one.message.work
    counts = [
        next((figure.modelled for figure in reversed(one.outcome.figures)
              if (figure.side, figure.quantity) == (side, about["quantity"])
              and figure.is_of(about.get("case", {}))), None)
        for side in ("before", "after")
    ]  # fmt: skip
    if counts[0] is None or counts[1] is None:
        return ""
    fewer = f"{times(counts[0] / counts[1])} fewer" if counts[1] else "no"
    return f"{fewer} {about['words']}: {number(counts[0])}, then {number(counts[1])}"
