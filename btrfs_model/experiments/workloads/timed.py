# SPDX-License-Identifier: GPL-2.0-only
"""Operations of a replay that take time: their work, and how long they wait for a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from btrfs_model.cost.machine import Machine, NoCostError, Prediction, predict

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
    beside: bool = True
    record: Mapping[str, Any] | None = None
    _made: dict[Machine, Prediction | None] = field(default_factory=dict, repr=False)

    def on(self, machine: Machine) -> Prediction | None:
        """Return the time on a machine; None where a part of the work has no cost there."""
        if machine not in self._made:
            try:
                made = predict(machine, self.work, self.waits)
            except NoCostError:
                made = None
            self._made[machine] = None if made is None or made.without else made
        return self._made[machine]
