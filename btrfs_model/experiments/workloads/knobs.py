# SPDX-License-Identifier: GPL-2.0-only
"""What-if knobs: a workload on another device, with other limits, with tree blocks of another size.

A workload names the knobs that it has. Its ``run`` gets ``devices``, ``parameters`` and ``limits``
where these are turned; its ``build`` finds the ``nodesize`` among the parameters of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cost.device import load, read_file
from btrfs_model.limits import Limits

if TYPE_CHECKING:
    from btrfs_model.experiments.workloads import Input, Workload

NODESIZE: Final = 16384
"""Bytes of a tree block where the knob is not turned."""
_NODESIZES: Final = (4096, 8192, 16384, 32768, 65536)


def _device(workload: Workload, device: str) -> Workload:
    """Do it on one device instead of those of the workload."""
    from btrfs_model.experiments.workloads import Note

    note = Note(f"The device: {read_file(device)['title']}.")
    caveats = (note, *(one for one in workload.caveats if not one.device))
    load(device)
    return replace(workload, run=partial(workload.run, devices=(device,)), caveats=caveats)


def _parameters(workload: Workload, parameters: Mapping[str, object]) -> Workload:
    """Set parameters of the device, which has to be named."""
    devices = getattr(workload.run, "keywords", {}).get("devices", ())
    if len(devices) != 1:
        raise BtrfsModelError(f"{workload.name}: parameters go with the name of a device")
    load(devices[0], parameters)
    return replace(workload, run=partial(workload.run, parameters=parameters))


def _limits(workload: Workload, limits: Mapping[str, int]) -> Workload:
    """Let kernels have other limits."""
    try:
        changed = Limits.of(limits)
    except (TypeError, ValueError) as error:
        raise BtrfsModelError(f"{workload.name}: {error}") from None
    return replace(workload, run=partial(workload.run, limits=changed))


def _nodesize(workload: Workload, nodesize: int) -> Workload:
    """Build the filesystem with tree blocks of a size."""
    scaled = workload.scaled
    if nodesize not in _NODESIZES:
        raise BtrfsModelError(f"{workload.name}: nodesize is {nodesize}, not one of {_NODESIZES}")
    assert scaled is not None

    def sized(scale: float) -> Input:
        found = scaled(scale)
        return replace(found, parameters={**found.parameters, "nodesize": nodesize})

    inputs = tuple(sized(source.scale) for source in workload.inputs)
    return replace(workload, inputs=inputs, scaled=sized)


KNOBS: Final[dict[str, Callable[[Workload, Any], Workload]]] = {
    "device": _device,
    "parameters": _parameters,
    "limits": _limits,
    "nodesize": _nodesize,
}
"""How each is turned, in the order in which they are."""
