# SPDX-License-Identifier: GPL-2.0-only
"""Run a host and a device beside each other: when is each request issued, started, done."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cost.device import Device, Disk, Flash, Zone
from btrfs_model.native.device import IO_FIELDS, STEP_FIELDS, run

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run came to; ``struct bm_io_totals``.

    Attributes
    ----------
    end : int
        When the last step was done, nanoseconds.
    waited : int
        How much of it the host waited, nanoseconds.
    requests : int
        What the device got, after merging.
    buffered : int
        How many of them began in the drive's buffer.
    seeks : int
        How many of them moved the arm.
    """

    end: int
    waited: int
    requests: int
    buffered: int
    seeks: int


def ios(offset: ArrayLike, length: ArrayLike, write: ArrayLike = 0) -> NDArray[Any]:
    """Gather requests into an array of :data:`IO_FIELDS`."""
    table = np.zeros(len(np.atleast_1d(np.asarray(offset))), dtype=IO_FIELDS)
    table["offset"], table["length"], table["write"] = offset, length, write
    return table


def steps(io: ArrayLike, think: ArrayLike = 0) -> NDArray[Any]:
    """Gather what the host does into an array of :data:`STEP_FIELDS`."""
    table = np.zeros(len(np.atleast_1d(np.asarray(io))), dtype=STEP_FIELDS)
    table["io"], table["think"] = io, think
    return table


def simulate(
    device: Device, requests: NDArray[Any], host: NDArray[Any]
) -> tuple[NDArray[Any], Totals]:
    """Let a host do its steps, and the device what it is asked for.

    Parameters
    ----------
    device : Device
        From :func:`btrfs_model.cost.device.load`.
    requests : numpy.ndarray
        Rows of :data:`IO_FIELDS`.
    host : numpy.ndarray
        Rows of :data:`STEP_FIELDS`, in order. Before each the host computes for ``think``
        nanoseconds. Each request is submitted once.

    Returns
    -------
    times : numpy.ndarray
        Rows of :data:`~btrfs_model.native.device.TIME_FIELDS`, one for each request.
    totals : Totals
        What it came to.

    Raises
    ------
    BtrfsModelError
        When a request lies beyond the device, or the steps contradict themselves.
    """
    if len(requests):
        end = int((requests["offset"] + requests["length"]).max())
        if end > device.capacity:
            raise BtrfsModelError(
                f"device {device.name} has {device.capacity:,} bytes; a request ends at {end:,}"
            )
    try:
        times, totals = run(_members(device), requests, host)
    except OverflowError:
        raise BtrfsModelError(
            f"device {device.name}: the requests take more than 292 years"
        ) from None
    except LookupError as error:
        number, io = error.args
        raise BtrfsModelError(
            f"device {device.name}: step {number} of the host: no request {io} is due"
        ) from None
    return times, Totals(**totals)


def _members(device: Device) -> dict[str, Any]:
    """Return what C takes of a device; what it has thousands of is not copied."""

    def shallow(one: Device | Disk | Flash | Zone) -> dict[str, Any]:
        return {field.name: getattr(one, field.name) for field in fields(one)}

    model = shallow(device.model)
    if isinstance(device.model, Disk):
        model["zones"] = [shallow(zone) for zone in device.model.zones]
    return shallow(device) | {"model": model}
