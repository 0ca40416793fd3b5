# SPDX-License-Identifier: GPL-2.0-only
"""``native/device``: a host and a device beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from btrfs_model.base.codes import Code
from btrfs_model.native.door import ffi, lib, new_fault

IO_FIELDS = [("offset", "<u8"), ("length", "<u4"), ("write", "<u4")]
"""``struct bm_io`` as the fields of a numpy array."""
STEP_FIELDS = [("think", "<u8"), ("io", "<i8")]
"""``struct bm_io_step``: submit ``io``, or wait for ``~io``."""
TIME_FIELDS = [("issued", "<u8"), ("started", "<u8"), ("done", "<u8")]
"""``struct bm_io_time``, nanoseconds from the start."""


def run(
    device: Mapping[str, Any], requests: NDArray[Any], host: NDArray[Any]
) -> tuple[NDArray[Any], dict[str, int]]:
    """Let a host do its steps, and the device what it is asked for.

    `device`: a :class:`btrfs_model.cost.device.Device` as a dict.
    `requests`, `host`: rows of :data:`IO_FIELDS` and :data:`STEP_FIELDS`.
    Returns `times`: rows of :data:`TIME_FIELDS`.
    Returns `totals`: ``struct bm_io_totals``.
    Raises LookupError: for a step (its number, the request) with a request that is not there, or
    not in that state.
    Raises OverflowError: for times that 63 bits of nanoseconds do not hold.
    """
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
        raise OverflowError
    if code < 0:
        raise LookupError(fault.offset, fault.found)
    return times, {name: getattr(totals, name) for name in dir(totals)}


def _pointer(kind: str, rows: NDArray[Any], fields: Any, keep: list[Any]) -> Any:
    """Hand rows to a C kernel; `keep` holds what they lie in."""
    plain = np.ascontiguousarray(rows, dtype=np.dtype(fields))
    keep.append(plain)
    return ffi.cast(kind, plain.ctypes.data)


def _raw_device(device: Mapping[str, Any], keep: list[Any]) -> Any:
    """Make a ``struct bm_device`` of a device; `keep` holds what it points at."""
    model, is_disk = dict(device["model"]), "zones" in device["model"]
    if is_disk:
        zones = ffi.new("struct bm_disk_zone[]", model["zones"])
        seeks = np.array(model["seek_time"], dtype=np.uint64)
        keep += [zones, seeks]
        model |= {
            "zones": zones,
            "zone_count": len(zones),
            "seek_time": ffi.cast("uint64_t *", seeks.ctypes.data),
            "seek_count": len(seeks),
        }
    keep.append(raw := ffi.new("struct bm_disk *" if is_disk else "struct bm_flash *", model))
    return ffi.new(
        "struct bm_device *",
        {
            "disk" if is_disk else "flash": raw,
            "elevator": getattr(lib, f"BM_ELEVATOR_{device['elevator'].replace('-', '_')}"),
            **{
                name: device[name]
                for name in (
                    "capacity", "queue_depth", "fifo_batch", "read_expire", "max_request"
                )
            },
        },
    )  # fmt: skip
