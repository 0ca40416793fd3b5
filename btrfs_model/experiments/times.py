# SPDX-License-Identifier: GPL-2.0-only
"""Times of a replay: predicted, beside what the commit message reports and what kernels took.

Each operation has a time on the chosen machine. The message's machine is another one, of unknown
speed: its first time, before the change, tells by what factor. That time is used up so, and is not
predicted; all the others are. Ratios need no factor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final

import pandas as pd

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cost.machine import Machine
from btrfs_model.cost.pipe import through_a_pipe
from btrfs_model.cost.prediction import Ratio
from btrfs_model.experiments.commits import Message, Reported, ratio_of
from btrfs_model.experiments.workloads import Figure, Input, Outcome, Side, Workload
from btrfs_model.experiments.workloads.cases import PARAMETERS
from btrfs_model.experiments.workloads.timed import SECONDS, Shown, Timed, ratio_on, yes_no

_TEXTS: Final = ("workload", "side", "quantity", "kind", "kernel")
_LABELS: Final = {"uml": "User-Mode Linux", "native": "this machine"}


@dataclass(slots=True)
class Judged:
    """A time of a commit message, and what is known of it here.

    Attributes
    ----------
    reported : Reported
        What the message says.
    timed : Timed or None
        The operation; None where the sides that are compared have none such.
    predicted, low, high : float or None
        Seconds on the machine of the message, by its first time; None for that one.
    is_used : bool
        Whether it is the one that tells the factor.
    measured : float or None
        Seconds on a kernel at hand.
    measured_on : str
        Which.
    record : mapping or None
        What was measured, with its runs and their spread.
    """

    reported: Reported
    timed: Timed | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    is_used: bool = False
    measured: float | None = None
    measured_on: str = ""
    record: Mapping[str, Any] | None = None

    @property
    def error(self) -> float | None:
        """(predicted - reported) / reported."""
        if self.predicted is None:
            return None
        return (self.predicted - self.reported.seconds) / self.reported.seconds


@dataclass(slots=True)
class Speedup:
    """A pair of times, before and after: how many times as fast.

    Of a workload that no message is about, of a size that it has no time of, and of a patch of a
    series that is alone, `before` and `after` are None.

    Attributes
    ----------
    workload, case : str
        What it is of, in words.
    before, after : Judged or None
        Times of the message.
    predicted : Ratio or None
        None where a time is not known.
    where : mapping
        What the times depend on.
    alone : str
        The patch of a series that alone makes the difference; empty for the whole.
    """

    workload: str
    case: str
    before: Judged | None
    after: Judged | None
    predicted: Ratio | None
    where: Mapping[str, int | str] = field(default_factory=dict)
    alone: str = ""

    @property
    def reported(self) -> Ratio | None:
        """By the message, and between what it may lie by its times."""
        if self.before is None or self.after is None:
            return None
        return ratio_of(self.before.reported, self.after.reported)

    @property
    def note(self) -> str:
        """What the prediction hangs on, and what it does not know."""
        found = self.predicted
        if found is None:
            return ""
        if found.untold:
            return f"not told: {found.untold}"
        parts = []
        if found.devices:
            devices = ", ".join(f"{value:.3g} on {name}" for name, value in found.devices.items())
            parts.append(f"hangs on the device: {devices}")
        if found.unpaid:
            parts.append(f"without a cost: {', '.join(found.unpaid)}")
        return "; ".join(parts)

    @property
    def measured(self) -> Ratio | None:
        """On kernels at hand, both in the same world; the least and the largest of the runs."""
        before, after = self.before, self.after
        if before is None or after is None or not before.record or not after.record:
            return None
        if not before.measured or not after.measured:
            return None
        scale = SECONDS[before.record["unit"]] / SECONDS[after.record["unit"]]
        low = scale * before.record["min"] / after.record["max"]
        high = scale * before.record["max"] / after.record["min"]
        return Ratio(before.measured / after.measured, low, high)


def judge(
    message: Message,
    outcome: Outcome,
    source: Input,
    pairs: list[tuple[Side, Side]],
    machine: Machine,
) -> list[Judged]:
    """Set what is predicted and what was measured beside each time of a message.

    Parameters
    ----------
    message : Message
        Its times.
    outcome : Outcome
        With the operations that take time, and what kernels took.
    source : Input
        What was replayed; times of other sizes are left out.
    pairs : list of tuple of Side
        Sides that the message is about, with those that are compared.
    machine : Machine
        Where times are predicted.
    """
    found: list[Judged] = []
    first: Timed | None = None
    for number, reported in enumerate(message.figures):
        for timed in _operations(message, outcome, source, reported, pairs):
            one = Judged(reported, timed, is_used=not number)
            if not number:
                first = timed
            elif first is not None:
                _scale(one, first, message.figures[0].seconds, machine)
            _measure(one, outcome, message.stand_in.get(reported.side, timed.side))
            found.append(one)
    return found


def _operations(
    message: Message,
    outcome: Outcome,
    source: Input,
    reported: Reported,
    pairs: list[tuple[Side, Side]],
) -> list[Timed]:
    """Return what a message timed, on each side that is compared and has its kernel."""
    if message.size and source.scale != 1:
        return []
    sides = {side.name for known, side in pairs if known.name == reported.side}
    return [
        _as_timed(message, timed)
        for timed in outcome.timed
        if timed.side in sides and timed.quantity == reported.quantity and timed.beside
        and all(timed.case.get(name) == value for name, value in reported.case.items())
    ]  # fmt: skip


def _as_timed(message: Message, timed: Timed) -> Timed:
    """Return an operation as a message timed it: through a pipe, where it did so."""
    if not message.pipe:
        return timed
    return timed.with_work(through_a_pipe(timed.work), pipe=yes_no(True))


def _scale(one: Judged, first: Timed, seconds: float, machine: Machine) -> None:
    """Predict a time of the message from its first one."""
    assert one.timed is not None
    found = ratio_on(machine, one.timed, first)
    if found is not None and not found.untold:
        one.predicted, one.low, one.high = (
            seconds * value for value in (found.value, found.low, found.high)
        )


def _measure(one: Judged, outcome: Outcome, side: str) -> None:
    """Set what a kernel took for the same: the kernel that measured this side."""
    assert one.timed is not None
    for timed in outcome.timed:
        known = dict(timed.case)
        if (
            (timed.side, timed.quantity) == (side, one.timed.quantity)
            and timed.record
            and all(
                known.get(name) == value
                for name, value in one.timed.case.items()
                if name != "device"
            )
        ):
            record = timed.record
            one.measured = float(record["value"]) * SECONDS[record["unit"]]
            one.record = record
            one.measured_on = f"{_LABELS[record['kind']]}, {record['kernel']}"
            return


def use_measured(
    outcome: Outcome, measured: Mapping[str, Any], workload: str, source: Input
) -> None:
    """Take the times of a file in place of those that come with the package.

    Parameters
    ----------
    outcome : Outcome
        Of a replay.
    measured : mapping
        ``rows`` and, for each workload, their ``sources``: a text for each side.
    workload : str
        Which one was replayed.
    source : Input
        On what.
    """
    own = {name for timed in outcome.timed for name in timed.case}
    outcome.timings = [
        {name: value for name, value in row.items() if name != "workload"}
        for row in measured["rows"]
        if row["workload"] == workload
        and all(row.get(name, value) == value
                for name, value in source.parameters.items() if name not in own)
    ]  # fmt: skip
    kept = {kind: text for kind, text in outcome.measured_on.items() if "time" not in kind}
    sides = {row["side"] for row in outcome.timings}
    texts = measured["sources"].get(workload, {})
    outcome.measured_on = {
        **kept, **{f"times, {side}": text for side, text in texts.items() if side in sides},
    }  # fmt: skip


def read_measured(path: str | PathLike[str]) -> dict[str, Any]:
    """Read what ``btrfs-model verify time`` wrote.

    Raises
    ------
    BtrfsModelError
        When it is no such file, with what is wrong.
    """
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text())
        for row in found["rows"]:
            times = [SECONDS[row["unit"]] * row[name] for name in ("value", "min", "max")]
            known = all(isinstance(row[name], str) for name in _TEXTS)
            if not known or min(*times, row["runs"]) <= 0:
                raise ValueError(row)
        for texts in found["sources"].values():
            dict(texts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise BtrfsModelError(f"{path}: not written by btrfs-model verify time: {said}") from None
    return found


def add_times(outcome: Outcome, machine: Machine, pairs: list[tuple[Side, Side]]) -> None:
    """Add a figure for each operation: its time on a machine, and what a kernel took.

    Parameters
    ----------
    outcome : Outcome
        Gets the figures; has the operations that take time, and what kernels took for them.
    machine : Machine
        Where times are predicted.
    pairs : list of tuple of Side
        Sides that something is known of, with those that are compared.
    """
    for record in outcome.timings:
        case = {name: value for name, value in record.items() if name in PARAMETERS}
        for known, side in pairs:
            if known.name == record["side"]:
                for timed in outcome.timed:
                    if _is_record_of(record, case, side.name, timed):
                        timed.record = record
    outcome.figures += [_figure(timed, machine) for timed in outcome.timed]


def _is_record_of(
    record: Mapping[str, Any], case: Mapping[str, Any], side: str, timed: Timed
) -> bool:
    return (timed.side, timed.quantity) == (side, record["quantity"]) and all(
        timed.case.get(name, value) == value for name, value in case.items()
    )


def _figure(timed: Timed, machine: Machine) -> Figure:
    """Return the figure of a time."""
    made, unit, record = timed.on(machine), SECONDS[timed.unit], timed.record
    figure = Figure(timed.side, timed.quantity, timed.unit, timed.case, conditions=timed.conditions)
    if made is not None:
        figure.modelled, figure.low, figure.high = (
            seconds / unit for seconds in (made.seconds, made.low, made.high)
        )
    if record is not None:
        scale = SECONDS[record["unit"]] / unit
        figure.measure(
            {
                **record,
                **{key: record[key] * scale for key in ("value", "min", "max") if key in record},
            }
        )
    figure.is_ours = record is not None and (record["kind"], record["kernel"]) == (
        machine.kind, machine.kernel,
    )  # fmt: skip
    return figure


def add_reported(outcome: Outcome, judged: list[Judged]) -> None:
    """Set the times of the message beside those of the chosen machine."""
    for one in judged:
        assert one.timed is not None
        figure = outcome.find(one.timed.side, one.timed.quantity, **one.timed.case)
        assert figure is not None
        figure.reported = round(one.reported.seconds / SECONDS[one.timed.unit], 6)


def shown_of(
    message: Message, judged: list[Judged], outcome: Outcome, machine: Machine
) -> list[Shown]:
    """Return the times of a message with what is known of them, for charts.

    Where it timed sends through a pipe, those that it does not tell go through one as well.
    """
    found = []
    for one in judged:
        assert one.timed is not None
        found.append(_shown(one.timed, machine, one.reported.seconds, one.measured, message.pipe))
    told = [(one.side, one.quantity, one.case) for one in found]
    for timed in outcome.timed if message.pipe else ():
        if (timed.side, timed.quantity, timed.case) in told:
            continue
        record = timed.record
        measured = float(record["value"]) * SECONDS[record["unit"]] if record else None
        found.append(_shown(_as_timed(message, timed), machine, None, measured, pipe=True))
    return found


def _shown(
    timed: Timed, machine: Machine, reported: float | None, measured: float | None, pipe: bool
) -> Shown:
    made = timed.on(machine)
    seconds, computed = (None, None) if made is None else (made.seconds, made.computed)
    return Shown(
        timed.side, timed.quantity, timed.case, seconds, reported, measured, pipe, computed
    )


# ---------------------------------------------------------------------------------- speedups --

SPEEDUPS: Final = (
    "workload", "case", "reported", "predicted", "low", "high", "measured", "note",
)  # fmt: skip
"""The columns of ``speedups.csv``."""


def speedups(
    workload: str, message: Message, judged: list[Judged], machine: Machine
) -> list[Speedup]:
    """Compare the times of a message that belong together, before and after the change."""
    by_figure = {id(one.reported): one for one in judged}
    found = []
    for before, after in message.pairs:
        pair = by_figure.get(id(before)), by_figure.get(id(after))
        if pair[0] is None or pair[1] is None:
            continue
        case = " ".join([case_words(message, before), *_other(before, after)])
        operations = pair[0].timed, pair[1].timed
        predicted = None
        if operations[0] is not None and operations[1] is not None:
            predicted = ratio_on(machine, operations[0], operations[1])
        found.append(Speedup(workload, case, *pair, predicted, {**message.size, **before.case}))
    return found


def own_speedups(
    one: Workload, source: Input, outcome: Outcome, machine: Machine, message: Message
) -> list[Speedup]:
    """Compare times that no message reports, before and after: timed as the message did, if any."""
    return [
        _own(one, source, message, before, after, machine)
        for before in outcome.timed
        for after in outcome.timed
        if (before.side, after.side) == ("before", "after") and _are_alike(before, after)
    ]


def alone_speedups(
    one: Workload, source: Input, outcome: Outcome, machine: Machine, message: Message
) -> list[Speedup]:
    """Compare the kernel before with itself and one patch of a series, for each that was timed."""
    return [
        _own(one, source, message, before, after, machine)
        for after in outcome.timed
        if after.alone
        for before in outcome.timed
        if before.side == "before" and _are_alike(before, after)
    ]


def _are_alike(before: Timed, after: Timed) -> bool:
    return (before.quantity, before.case) == (after.quantity, after.case) and before.beside


def _own(
    one: Workload, source: Input, message: Message, before: Timed, after: Timed, machine: Machine
) -> Speedup:
    where = {**source.parameters, **before.case}
    shown = {**message.size, **before.case} if after.alone else where
    words = [f"{name}={value}" for name, value in shown.items()]
    words += [f"{after.alone} alone"] if after.alone else []
    found = ratio_on(machine, _as_timed(message, before), _as_timed(message, after))
    return Speedup(one.name, " ".join(words), None, None, found, where, after.alone)


def _other(before: Reported, after: Reported) -> list[str]:
    """Name the sides where they are others than before and after."""
    if before.side != "before":
        return [f"{before.side}, then {after.side}"]
    return [] if after.side == "after" else [after.side]


def case_words(message: Message, reported: Reported) -> str:
    """Say what a time depends on: ``files=1000 deletes=100 fsync=1``."""
    case = {**message.size, **reported.case}
    return " ".join(f"{name}={value}" for name, value in case.items())


FIGURES: Final = (
    "workload", "case", "side", "reported", "predicted", "low", "high", "used", "error", "measured",
    "measured_on",
)  # fmt: skip
"""The columns of ``messages.csv``; times are seconds."""
_NUMBERS: Final = ("predicted", "low", "high", "error", "measured")


def message_table(rows: list[tuple[str, Message, Judged]]) -> pd.DataFrame:
    """Return times of workloads' messages as a table, see :data:`FIGURES`."""
    return pd.DataFrame(
        [
            (
                workload, case_words(message, one.reported), one.reported.side,
                one.reported.seconds, one.predicted, one.low, one.high, one.is_used, one.error,
                one.measured, one.measured_on or None,
            )
            for workload, message, one in rows
        ],
        columns=list(FIGURES),
    ).astype(dict.fromkeys(_NUMBERS, "float64"))  # fmt: skip


def speedup_table(rows: list[Speedup]) -> pd.DataFrame:
    """Return speedups as a table, see :data:`SPEEDUPS`."""
    return pd.DataFrame(
        [
            (
                one.workload, one.case, one.reported.value if one.reported else None,
                *((one.predicted.value, one.predicted.low, one.predicted.high)
                  if one.predicted and not one.predicted.untold else (None, None, None)),
                one.measured.value if one.measured else None, one.note or None,
            )
            for one in rows
        ],
        columns=list(SPEEDUPS),
    ).astype(dict.fromkeys(SPEEDUPS[2:-1], "float64"))  # fmt: skip
