# SPDX-License-Identifier: GPL-2.0-only
"""Operations of a replay that take time: their work, and how long they wait for a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from btrfs_model.cost.machine import Machine
from btrfs_model.cost.prediction import NoCostError, Prediction, Ratio, predict, ratio

SECONDS: Final = {"s": 1.0, "ms": 1e-3}
"""Units of times in commit messages and results, in seconds."""
MEMORY: Final = "memory"
"""The device of what is all in memory."""


def yes_no(value: bool) -> str:
    """Say whether there is a condition of a time."""
    return "yes" if value else "no"


@dataclass(slots=True, eq=False)
class Timed:
    """An operation whose time follows from its work.

    Attributes
    ----------
    side, quantity, unit : str
        As of :class:`btrfs_model.experiments.workloads.Figure`; the unit is one of :data:`SECONDS`.
    case : mapping
        What it depends on besides the parameters of the input.
    work : mapping
        Work that was counted.
    waits : float or callable
        For a device, nanoseconds; see :func:`btrfs_model.cost.prediction.predict`.
    others : tuple
        The same, for each of what else the device may be: what no data sheet tells.
    conditions : mapping
        What a message leaves open, as it was here: the ``device``, whether the stream goes through
        a ``pipe``, and whether a ``worker`` runs delayed items.
    elsewhere : mapping
        What is waited for other devices that it may have been, by their names.
    beside : bool
        Whether it is what the commit message timed, as far as the message tells.
    alone : str
        The patch of a series that is added to the kernel before, alone; empty for whole sides.
    record : mapping or None
        What a kernel took, as :meth:`btrfs_model.experiments.workloads.Figure.measure` has it, with
        the ``kind`` and the ``kernel`` of the machine.
    """

    side: str
    quantity: str
    unit: str
    case: Mapping[str, int | str]
    work: Mapping[str, float]
    waits: float | Callable[[float], float] = 0.0
    others: tuple[float | Callable[[float], float], ...] = ()
    conditions: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, float] = field(default_factory=dict)
    beside: bool = True
    alone: str = ""
    record: Mapping[str, Any] | None = None
    _made: dict[Machine, Prediction | None] = field(default_factory=dict, repr=False)

    def with_work(self, work: Mapping[str, float], **conditions: str) -> Timed:
        """Return the same with another work, and what is different with it."""
        return replace(self, work=work, conditions={**self.conditions, **conditions}, _made={})

    def on(self, machine: Machine) -> Prediction | None:
        """Return the time on a machine; None where a part of the work has no cost there.

        Its interval has the times in it that it takes on what else the device may be.
        """
        if machine not in self._made:
            try:
                made = predict(machine, self.work, self.waits)
            except NoCostError:
                made = None
            if made is None or made.without:
                self._made[machine] = None
            else:
                ends = [made.low, made.high, *(one.seconds for one in self.else_on(machine))]
                self._made[machine] = replace(made, low=min(ends), high=max(ends))
        return self._made[machine]

    def else_on(self, machine: Machine) -> list[Prediction]:
        """Return the times on a machine with each of what else the device may be."""
        return [predict(machine, self.work, waits) for waits in self.others]

    def on_device(self, machine: Machine, name: str) -> Prediction:
        """Return the time on a machine with another device that it may have been."""
        return predict(machine, self.work, self.elsewhere[name])


@dataclass(frozen=True, slots=True)
class Shown:
    """A time of a commit message with what is known of it, in seconds: what charts draw.

    Attributes
    ----------
    side, quantity : str
        As of :class:`btrfs_model.experiments.workloads.Figure`.
    case : mapping
        What it depends on.
    modelled, reported, measured : float or None
        Predicted as the message timed it, by the message, and on kernels.
    pipe : bool
        Whether the message timed a send through a pipe, and it is predicted so.
    computed : float or None
        How much of the predicted time it does not wait for the device.
    """

    side: str
    quantity: str
    case: Mapping[str, int | str]
    modelled: float | None
    reported: float | None
    measured: float | None
    pipe: bool
    computed: float | None = None


def ratio_on(machine: Machine, before: Timed, after: Timed) -> Ratio | None:
    """Compare two times on a machine, see :func:`btrfs_model.cost.prediction.ratio`.

    Whatever else the device may be, it is for both; the interval has those ratios in it. None where
    a time is not known.
    """
    times = before.on(machine), after.on(machine)
    if times[0] is None or times[1] is None:
        return None
    found = ratio(times[0], times[1])
    if found.untold:
        return replace(found, untold=found.untold + _missing(before))
    both = zip(before.else_on(machine), after.else_on(machine), strict=False)
    values = [found.low, found.high, *(one.seconds / other.seconds for one, other in both)]
    found = replace(found, low=min(values), high=max(values))
    others = {
        name: before.on_device(machine, name).seconds / after.on_device(machine, name).seconds
        for name in before.elsewhere if name in after.elsewhere
    }  # fmt: skip
    if not others or not any((*before.elsewhere.values(), *after.elsewhere.values())):
        return found
    ends = found.low, found.high, *others.values()
    stands = before.conditions.get("device", "")
    return replace(
        found, low=min(ends), high=max(ends), devices={**others, stands: found.value}, alone=found
    )


def _missing(timed: Timed) -> str:
    """Say what a kernel has that the model had not, and what may decide."""
    if not timed.work.get("btrfs_log_inode") or timed.conditions.get("worker") != yes_no(False):
        return ""
    return (
        "; no worker ran delayed items here before the fsync, as in a kernel that has the time: "
        "fs.machine.asynchronous = True"
    )
