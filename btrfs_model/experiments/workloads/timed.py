# SPDX-License-Identifier: GPL-2.0-only
"""Operations of a replay that take time: their work, and how long they wait for a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from btrfs_model.cost.machine import Machine, NoCostError, Prediction, Ratio, predict, ratio

SECONDS: Final = {"s": 1.0, "ms": 1e-3}
"""Units of times in commit messages and results, in seconds."""


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
        For a device, nanoseconds; see :func:`btrfs_model.cost.machine.predict`.
    others : tuple
        The same, for each of what else the device may be: what no data sheet tells.
    beside : bool
        Whether it is what the commit message timed, as far as the message tells.
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
    beside: bool = True
    record: Mapping[str, Any] | None = None
    _made: dict[Machine, Prediction | None] = field(default_factory=dict, repr=False)

    def with_work(self, work: Mapping[str, float]) -> Timed:
        """Return the same with another work."""
        return replace(self, work=work, _made={})

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


def ratio_on(machine: Machine, before: Timed, after: Timed) -> Ratio | None:
    """Compare two times on a machine, see :func:`btrfs_model.cost.machine.ratio`.

    Whatever else the device may be, it is for both; the interval has those ratios in it. None where
    a time is not known.
    """
    times = before.on(machine), after.on(machine)
    if times[0] is None or times[1] is None:
        return None
    found = ratio(times[0], times[1])
    both = zip(before.else_on(machine), after.else_on(machine), strict=False)
    values = [found.low, found.high, *(one.seconds / other.seconds for one, other in both)]
    return Ratio(found.value, min(values), max(values))
