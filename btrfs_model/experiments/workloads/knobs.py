# SPDX-License-Identifier: GPL-2.0-only
"""What-if knobs: a workload on another device, with other limits, with tree blocks of another size.

A knob is a field of :class:`Knobs`, which is handed on as a whole.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cost.device import Device, load
from btrfs_model.cost.machine import Machine
from btrfs_model.limits import NAMES as LIMITS
from btrfs_model.limits import Limits

NODESIZE: Final = 16384
"""Bytes of a tree block where the knob is not turned."""
_NODESIZES: Final = (4096, 8192, 16384, 32768, 65536)
ON_DEVICE: Final = "device_"
"""How a parameter of the device is named in a cell of a sweep, and in a table of results."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """How the knobs of a workload are turned; without arguments none is.

    Attributes
    ----------
    device : str, optional
        The one device it is done on: a name of :func:`btrfs_model.cost.device.names`, or a file.
    parameters : mapping
        Parameters of that device other than its file's.
    limits : mapping
        Limits of the kernel by name, see :class:`btrfs_model.limits.Limits`.
    nodesize : int, optional
        Bytes of a tree block of the filesystem, which is built then.
    machine : Machine, optional
        Where times are predicted: the native one without it. Not what-if: a message knows none.
    """

    device: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    nodesize: int | None = None
    machine: Machine | None = None

    @classmethod
    def of_cell(cls, params: Mapping[str, Any]) -> Knobs:
        """Return what a cell of a sweep says, which has each limit and parameter by its name."""
        settings = {
            name.removeprefix(ON_DEVICE): value
            for name, value in params.items() if name.startswith(ON_DEVICE)
        }  # fmt: skip
        limits = {name: params[name] for name in LIMITS if name in params}
        return cls(params.get("device"), settings, limits, params.get("nodesize"))

    @property
    def turned(self) -> dict[str, Any]:
        """Those that are turned, by name."""
        return {name: value for name in NAMES if (value := getattr(self, name))}

    def check(self, workload: str, known: Container[str] = ()) -> None:
        """Find out whether a workload has them, and whether they can be turned like that.

        Raises
        ------
        BtrfsModelError
            When the workload has no such knob, or the value is none for it.
        """
        for name in self.turned:
            if name not in known:
                there = ", ".join(one for one in NAMES if one in known) or "none"
                raise BtrfsModelError(f"{workload}: no knob {name}; its knobs: {there}")
        if self.device:
            load(self.device, self.parameters)
        elif self.parameters:
            raise BtrfsModelError(f"{workload}: parameters go with the name of a device")
        try:
            Limits.of(self.limits)
        except (TypeError, ValueError) as error:
            raise BtrfsModelError(f"{workload}: {error}") from None
        if self.nodesize not in (None, *_NODESIZES):
            raise BtrfsModelError(
                f"{workload}: nodesize is {self.nodesize}, not one of {_NODESIZES}"
            )

    def devices(self, *own: str) -> tuple[Device, ...]:
        """Return the device that is chosen, or else those that a workload names."""
        names = (self.device,) if self.device else own
        return tuple(load(name, self.parameters) for name in names)


def cell_names(knobs: Container[str]) -> list[str]:
    """Return how a cell of a sweep names these knobs, except the parameters of a device."""
    names = [name for name in ("nodesize", "device") if name in knobs]
    return [*names, *(LIMITS if "limits" in knobs else ())]


NAMES: Final = ("device", "parameters", "limits", "nodesize")
"""What-if knobs that a workload may have."""
NOT_TURNED: Final = Knobs()
