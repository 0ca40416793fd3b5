# SPDX-License-Identifier: GPL-2.0-only
"""Run a host and a device beside each other: when is each request issued, started, done."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import BtrfsModelError, new_fault
from btrfs_model.cost import twin
from btrfs_model.cost.device import Device, Disk
from btrfs_model.kernels import ffi, lib, use_python

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

IO_FIELDS = [("offset", "<u8"), ("length", "<u4"), ("write", "<u4")]
"""``struct bm_io`` as the fields of a numpy array."""
STEP_FIELDS = [("think", "<u8"), ("io", "<i8")]
"""``struct bm_io_step``: submit ``io``, or wait for ``~io``."""
TIME_FIELDS = [("issued", "<u8"), ("started", "<u8"), ("done", "<u8")]
"""``struct bm_io_time``, nanoseconds from the start."""


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
        Rows of :data:`TIME_FIELDS`, one for each request.
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
    if use_python():
        return twin.run(device, requests, host)
    fault, totals = new_fault(), ffi.new("struct bm_io_totals *")
    times = np.zeros(len(requests), dtype=TIME_FIELDS)
    keep: list[Any] = []
    code = lib.bm_device_run(
        _raw_device(device, keep),
        _pointer("struct bm_io *", requests, IO_FIELDS, keep), len(requests),
        _pointer("struct bm_io_step *", host, STEP_FIELDS, keep), len(host),
        ffi.cast("struct bm_io_time *", times.ctypes.data), totals, fault,
    )  # fmt: skip
    if code == Code.NOMEM:
        raise MemoryError(f"no memory for a run of {len(requests)} requests")
    if code == Code.PAST_END:
        raise twin.too_late(device)
    if code < 0:
        raise twin.bad_step(device, fault.offset, fault.found)
    return times, Totals(totals.end, totals.waited, totals.requests, totals.buffered, totals.seeks)


def _pointer(kind: str, rows: NDArray[Any], fields: Any, keep: list[Any]) -> Any:
    """Hand rows to a C kernel; `keep` holds what they lie in."""
    plain = np.ascontiguousarray(rows, dtype=np.dtype(fields))
    keep.append(plain)
    return ffi.cast(kind, plain.ctypes.data)


def _raw_device(device: Device, keep: list[Any]) -> Any:
    """Make a ``struct bm_device`` of a device; `keep` holds what it points at."""
    model = device.model
    if isinstance(model, Disk):
        zones = ffi.new("struct bm_disk_zone[]", [asdict(zone) for zone in model.zones])
        seeks = np.array(model.seek_time, dtype=np.uint64)
        fields = asdict(model) | {
            "zones": zones,
            "zone_count": len(zones),
            "seek_time": ffi.cast("uint64_t *", seeks.ctypes.data),
            "seek_count": len(seeks),
        }
        raw = ffi.new("struct bm_disk *", fields)
        keep += [zones, seeks, raw]
    else:
        raw = ffi.new("struct bm_flash *", asdict(model))
        keep.append(raw)
    return ffi.new(
        "struct bm_device *",
        {
            "disk" if isinstance(model, Disk) else "flash": raw,
            "capacity": device.capacity,
            "queue_depth": device.queue_depth,
            "elevator": getattr(lib, f"BM_ELEVATOR_{device.elevator.replace('-', '_')}"),
            "fifo_batch": device.fifo_batch,
            "read_expire": device.read_expire,
            "max_request": device.max_request,
        },
    )
