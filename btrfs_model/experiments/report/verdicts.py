# SPDX-License-Identifier: GPL-2.0-only
"""Do the speedups come out? A row for each commit, and the rule that makes words of its numbers.

A ratio (time before over time after) *contradicts* that of a message when one is faster and the
other slower. It *agrees* when its interval and that of the message's meet, or when it is less than
a tenth away. Else it is *smaller* or *larger*. The interval of a prediction is one of 90 %, that of
a measurement is what its runs come to; that of a message's comes from the digits of its times, and
from the deviation of its runs where it tells one. Reasons are data, beside the figures in
``data/commits``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from btrfs_model.cost.causes import duration
from btrfs_model.cost.prediction import Ratio
from btrfs_model.experiments.commits import Message, Reported, ratio_of
from btrfs_model.experiments.numbers import number, ratio_text, times
from btrfs_model.experiments.replay import Replay
from btrfs_model.experiments.times import Judged, Speedup
from btrfs_model.experiments.workloads.cases import case_words

BOTH: Final = "agrees"
SMALLER: Final = "smaller"
LARGER: Final = "larger"
CONTRARY: Final = "contradicts"
_WORSE: Final = {"": 0, BOTH: 0, SMALLER: 1, LARGER: 1, CONTRARY: 2}
_CLOSE: Final = 0.1


def compare(reported: Ratio, found: Ratio) -> str:
    """Say in a word how a ratio is beside the message's: the one rule."""
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
        One sentence or two.
    more : tuple of str
        What else there is to say: reasons, other devices.
    alone : str
        What patches of the series do alone; empty where the commit is the whole change.
    worse : int
        How far it is from what the message says: 0 agrees, 1 another size, 2 it contradicts.
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
    more: tuple[str, ...] = ()
    alone: str = ""
    worse: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands below :data:`HEADINGS` behind the commit."""
        known = self.reported, self.predicted, self.measured, self.work
        return *(text or "-" for text in known), self.verdict


HEADINGS: Final = ("commit", "reported", "predicted", "measured", "the work alone", "verdict")


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What is predicted or was measured, beside what is reported.

    `text` has no full stop. `word` is empty where nothing is compared.
    """

    text: str
    word: str = ""
    more: str = ""
    found: Ratio | None = None


def pair_row(one: Replay, pair: Speedup, work: str = "") -> Row:
    """Return the row of a pair of times."""
    if pair.before is None or pair.after is None or pair.reported is None:
        return _own_row(one, pair, work)
    message, before, after = one.message, pair.before.reported, pair.after.reported
    parts = [part for part in (_predicted(message, pair), _measured(message, pair)) if part]
    more = [part.more for part in parts if part.more]
    if pair.measured is None:
        short, long = message.reason(before, after, "unmeasured")
        parts.append(_Judgement(f"Not measured: {short or 'no kernel was timed'}"))
        more += [f"Not measured: {long}."] if long else []
    return Row(
        one.workload.name, message, case(message, after, before), after.said,
        ratio_text(pair.reported), _on_device(pair.predicted), _measured_text(pair), work,
        " ".join(f"{part.text}." for part in parts), tuple(more),
        worse=max(_WORSE[part.word] for part in parts),
    )  # fmt: skip


def _predicted(message: Message, pair: Speedup) -> _Judgement | None:
    """Say how what is predicted is beside what is reported."""
    found, reported = pair.predicted, pair.reported
    assert pair.before and pair.after and reported
    if found is None:
        return None
    if found.untold:
        return _Judgement(f"Predicted: not told, {found.untold}")
    word = compare(reported, found.alone or found)
    short, long = message.reason(pair.before.reported, pair.after.reported, "predicted")
    text = f"Predicted {times(found.value)}"
    if found.devices:
        text += f" on {_stands(found)}"
    text += f", reported {times(reported.value)}: {word}"
    text += f", {short}" if short and word != BOTH else ""
    more = [f"Predicted: {long}."] if long and word != BOTH else []
    if found.devices:
        values = found.devices.values()
        if max(values) > min(values) * (1 + _CLOSE):
            text += "; the size depends on the device"
        others = ", ".join(f"{times(value)} on {name}" for name, value in found.devices.items()
                           if name != _stands(found))  # fmt: skip
        more.append(f"The message names no device: predicted {others}.")
    return _Judgement(text, word, " ".join(more), found)


def _measured(message: Message, pair: Speedup) -> _Judgement | None:
    """Say how what was measured is beside what is reported."""
    found, reported = pair.measured, pair.reported
    if found is None or reported is None:
        return None
    assert pair.before and pair.after
    word = compare(reported, found)
    short, long = message.reason(pair.before.reported, pair.after.reported, "measured")
    text = f"Measured {times(found.value)}{_kernels(pair)}: {word}"
    if word == CONTRARY:
        text += f", {_run(pair.before)} before, {_run(pair.after)} after"
    elif word != BOTH and short:
        text += f", {short}"
    return _Judgement(text, word, f"Measured: {long}." if long and word != BOTH else "", found)


def _stands(found: Ratio) -> str:
    """Return the device that stands for one that the message does not name."""
    return list(found.devices)[-1]


def _on_device(found: Ratio | None) -> str:
    """Format a prediction, with the device where the message names none."""
    text = ratio_text(found)
    if found is None or not found.devices:
        return text
    return text.replace(" (", f" on {_stands(found)} (", 1)


def _measured_text(pair: Speedup) -> str:
    """Format what was measured."""
    found = pair.measured
    if found is None:
        return ""
    return ratio_text(found) + (" (one run)" if found.low == found.high else "")


def _kernels(pair: Speedup) -> str:
    """Say on which kernels a pair was measured."""
    assert pair.before and pair.after
    names = [re.search(r"v(\d+\.\d+)", one.measured_on) for one in (pair.before, pair.after)]
    found = list(dict.fromkeys(name[1] for name in names if name))
    return f" on {' -> '.join(found)}" if found else ""


def _own_row(one: Replay, pair: Speedup, work: str) -> Row:
    """Return the row of a pair of times that no message reports."""
    found, message = pair.predicted, one.message
    reported, said, worse = "", "", 0
    where = words_of({name: value for name, value in pair.where.items() if name != "device"})
    if pair.alone:
        where = ", ".join(filter(None, (where, f"{pair.alone} alone")))
        verdict = f"Predicted: {_told(found)}."
    elif not message.figures:
        where, verdict = pair.case, f"No commit message is about it. Predicted: {_told(found)}."
    elif one.is_of_message and found is not None and not found.untold:
        before, after = _like(message, pair)
        ratio = ratio_of(before, after)
        word = compare(ratio, found.alone or found)
        reported, worse, said = ratio_text(ratio), _WORSE[word], after.said
        on = f" on {_stands(found)}" if found.devices else ""
        verdict = (
            f"Predicted {times(found.value)}{on} ({_size(pair, where)}), reported "
            f"{times(ratio.value)} ({case(message, after)}): {word}. "
            "--scale full replays the sizes of the message."
        )
    else:
        verdict = f"The message has no such kernels or settings. Predicted: {_told(found)}."
    return Row(one.workload.name, message, where, said, reported, _on_device(found), "", work,
               verdict, worse=worse)  # fmt: skip


def _size(pair: Speedup, where: str) -> str:
    """Say how large something is that was replayed smaller than in the message."""
    return where if "files" in pair.where else f"{where}, {pair.where['extents']:,} extents"


def _like(message: Message, pair: Speedup) -> tuple[Reported, Reported]:
    """Return the pair of a message that is of the same case in another size."""
    for before, after in (message.headline, *message.pairs):
        if before.side == "before" and _is_like(pair, after):
            return before, after
    return message.headline


def _told(found: Ratio | None) -> str:
    """Say what is predicted where there is nothing beside it."""
    if found is None:
        return "no time, for a part of the work has no cost"
    if found.untold:
        return f"not told, {found.untold}"
    if found.low > 1:
        word = "faster after"
    elif found.high < 1:
        word = "slower after"
    else:
        word = "the interval has faster and slower in it"
    return word + (f" (without a cost: {', '.join(found.unpaid)})" if found.unpaid else "")


def _run(one: Judged) -> str:
    """Say how long a kernel took, in how many runs, and how far these are apart."""
    record, seconds = one.record or {}, one.measured or 0.0
    runs = int(record.get("runs", 1))
    if runs == 1:
        return f"{duration(seconds)} (one run)"
    scale = seconds / record["value"]
    ends = " to ".join(duration(record[end] * scale) for end in ("min", "max"))
    return f"{duration(seconds)} ({runs} runs, {ends})"


def words_of(where: Mapping[str, int | str]) -> str:
    """Name what a time depends on: ``60,000 files``, ``cold``."""
    return ", ".join(case_words(where))


def case(message: Message, after: Reported, before: Reported | None = None) -> str:
    """Name what a pair of times depends on: ``60,000 files``, ``1,000,000 files, fsync 1``."""
    pair = before and message.besides(before, after)
    other = [pair.words] if pair else [] if after.side in ("before", "after") else [after.side]
    return ", ".join(filter(None, (words_of({**message.size, **after.case}), *other)))


def pair_rows(one: Replay) -> list[Row]:
    """Return the rows of all pairs, the worst first; those of patches alone come last."""
    told = [pair for pair in one.speedups
            if not (pair.alone and pair.predicted and pair.predicted.untold)]  # fmt: skip
    rows = [(bool(pair.alone), pair_row(one, pair)) for pair in told]
    return [row for _, row in sorted(rows, key=lambda both: (both[0], -both[1].worse))]


def commit_row(one: Replay) -> Row:
    """Return the row of a commit: its headline, and where another pair is worse."""
    pairs = [pair for pair in one.speedups if not pair.alone]
    work = _work(one) if one.message.figures else ""
    if not one.message.figures:
        return next((pair_row(one, pair, work) for pair in pairs), _empty(one, work))
    before, after = one.message.headline
    known = [pair for pair in pairs if pair.before and pair.before.reported.side == "before"
             and pair.after and pair.after.reported.side == "after"]  # fmt: skip
    chosen = next((pair for pair in known if pair.after and pair.after.reported == after), None)
    if chosen is None and not known:
        known = [pair for pair in pairs if _is_like(pair, after)]
        chosen = known[-1] if known else None
    chosen = chosen or next(iter(known), None)
    if chosen is None:
        return replace(
            _empty(one, work), case=case(one.message, after), said=after.said,
            reported=ratio_text(ratio_of(before, after)),
            verdict="No time is predicted, for a part of the work has no cost on "
            f"{one.machine.name}.",
        )  # fmt: skip
    row = pair_row(one, chosen, work)
    other = _other(one, chosen, pairs)
    if other is not None:
        row = _with_other(row, one.message, other)
    else:
        row = _with_worst(row, one, chosen, pairs)
    return replace(row, alone=_alone(one, chosen))


def _empty(one: Replay, work: str) -> Row:
    """Return a row without a pair of times."""
    verdict = f"No commit message is about it. Predicted: {_told(None)}."
    return Row(one.workload.name, one.message, "", "", "", "", "", work, verdict)


def _is_like(pair: Speedup, after: Reported) -> bool:
    """Whether a pair of another size is else of the same case."""
    return all(pair.where.get(name) == value for name, value in after.case.items()
               if not isinstance(value, int) or name == "fsync")  # fmt: skip


def _other(one: Replay, chosen: Speedup, pairs: Sequence[Speedup]) -> Speedup | None:
    """Return the pair with the same time after that was measured, where one was not."""
    if chosen.measured or chosen.after is None:
        return None
    after = chosen.after.reported
    for pair in pairs:
        if pair.after and pair.after.reported == after and pair.measured:
            return pair
    return None


def _with_other(row: Row, message: Message, pair: Speedup) -> Row:
    """Add to the row of a pair that was not measured what is known of one that was."""
    assert pair.before and pair.after and pair.reported
    also = message.besides(pair.before.reported, pair.after.reported)
    words = also.words if also else pair.before.reported.side
    judged = [part for part in (_predicted(message, pair), _measured(message, pair)) if part]
    said = [part.text.partition(":")[0].split(",")[0] for part in judged]
    both = ", ".join(f"{text[:1].lower()}{text[1:]} ({part.word})"
                     for text, part in zip(said, judged, strict=True))  # fmt: skip
    first = row.verdict.split(". Not measured")[0]
    return replace(
        row,
        measured=f"{_measured_text(pair)} ({words})",
        verdict=f"{first}. {words[:1].upper()}{words[1:]}: {both}, "
        f"reported {times(pair.reported.value)}.",
        more=(*row.more, *(part.more for part in judged if part.more)),
        worse=max(row.worse, *(_WORSE[part.word] for part in judged)),
    )


def _with_worst(row: Row, one: Replay, chosen: Speedup, pairs: Sequence[Speedup]) -> Row:
    """Add to a verdict the worst of the other pairs, of what is predicted and of what was measured.

    Where it is worse than this one, or the contrary of what the message says.
    """
    found = []
    for judge in (_predicted, _measured):
        least = _rank(judge(one.message, chosen))[0] if chosen.reported else 0
        others = [(pair, judged) for pair in pairs if pair is not chosen and pair.reported
                  and (judged := judge(one.message, pair))]  # fmt: skip
        worst = max(others, key=lambda both: _rank(both[1], both[0]), default=None)
        if worst and _rank(worst[1])[0] >= min(least + 1, _WORSE[CONTRARY]):
            found.append(_worst(one.message, *worst))
    if not found:
        return row
    first, _, second = row.verdict.partition(". ")
    both = f"{first}; {second[:1].lower()}{second[1:]}" if second else first
    return replace(row, verdict=f"{both} The worst of {len(pairs)} pairs: {'; '.join(found)}.")


def _worst(message: Message, pair: Speedup, judged: _Judgement) -> str:
    """Name a pair, and say what is wrong with it."""
    assert pair.before and pair.after and pair.reported and judged.found
    who = judged.text.split(" ", 1)[0].lower()
    text = (
        f"{case(message, pair.after.reported, pair.before.reported)}: {who} "
        f"{times(judged.found.value)}, reported {times(pair.reported.value)}, {judged.word}"
    )
    if judged.word == CONTRARY and who == "measured":
        text += f" ({_run(pair.before)} before, {_run(pair.after)} after)"
    return text


def _rank(judged: _Judgement | None, pair: Speedup | None = None) -> tuple[int, float]:
    """Return how bad it is: the word, and within a word how far the ratios are apart."""
    if judged is None:
        return 0, 0.0
    far = 0.0
    if pair is not None and judged.found is not None and pair.reported is not None:
        far = abs(math.log(judged.found.value / pair.reported.value))
    return _WORSE[judged.word], far


def _alone(one: Replay, chosen: Speedup) -> str:
    """Say what patches of a series do alone: the commit itself, and the one that does the most."""
    found = {pair.alone: pair.predicted.value for pair in one.speedups
             if pair.alone and pair.predicted and pair.where == chosen.where}  # fmt: skip
    if not found:
        return ""
    itself = str(one.workload.toggles[0])
    most = max(found, key=lambda name: found[name])
    names = dict.fromkeys((most, itself))
    return "Alone: " + ", ".join(
        f"{name}{' (this commit)' if name == itself else ''} {times(found[name])}"
        for name in names if name in found
    )  # fmt: skip


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
