# SPDX-License-Identifier: GPL-2.0-only
"""Reads of tree blocks on a device: when each is issued and done, and how long the walk takes.

The kernel's thread walks the tree. It waits for a block that it reads on demand, and for one that
was read ahead where it comes to it too early; between that it computes. What it reads ahead it only
submits. So how much of the waiting is hidden behind the work comes out of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.samples import data_folder
from btrfs_model.cost.device import Device, load, read_toml
from btrfs_model.cost.simulate import Totals, ios, simulate
from btrfs_model.native.device import STEP_FIELDS
from btrfs_model.native.device import TIME_FIELDS as RUN_FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_US = 10**9
"""The work on a leaf takes less, microseconds."""
TIME_FIELDS = [*RUN_FIELDS, ("needed", "<i8")]
"""What the simulation gives, and when the thread came to the block; -1: never."""


def leaf_cost() -> float:
    """Return what a send computes for each leaf, in microseconds (``data/costs/send.toml``).

    Raises
    ------
    BtrfsModelError
        When the file does not say.
    """
    path = data_folder() / "costs" / "send.toml"
    cost = read_toml(path).get("leaf_us")
    if not isinstance(cost, int | float) or not 0 <= cost < MOST_US:
        raise BtrfsModelError(f"{path}: leaf_us is {cost!r}, not a number in [0, {MOST_US:,})")
    return float(cost)


def read_on(
    device: str | Device,
    rows: NDArray[Any],
    physical: NDArray[Any],
    nodesize: int,
    *,
    parameters: Mapping[str, object] | None = None,
    think: float | None = None,
) -> tuple[NDArray[Any], Totals]:
    """Do reads of tree blocks on a device.

    Parameters
    ----------
    device : str or Device
        Its name in ``data/devices``, or itself.
    rows : numpy.ndarray
        The reads, rows of :data:`btrfs_model.native.image.READ`, in order.
    physical : numpy.ndarray
        Byte of the device of each; -1: it goes to none.
    nodesize : int
        Bytes of a block.
    parameters : mapping, optional
        Of the device, other than its file's.
    think : float, optional
        Microseconds that the thread computes for each leaf that it comes to; :func:`leaf_cost`
        without it.

    Returns
    -------
    times : numpy.ndarray
        Rows of :data:`TIME_FIELDS`, nanoseconds; those of reads that go to no device are 0.
    totals : Totals
        What it came to.

    Raises
    ------
    BtrfsModelError
        When the device is unknown or too small.
    """
    if isinstance(device, str):
        device = load(device, parameters)
    elif parameters:
        raise BtrfsModelError("parameters go with the name of a device")
    cost = leaf_cost() if think is None else float(think)
    if not 0 <= cost < MOST_US:
        raise BtrfsModelError(f"{cost:g} microseconds for a leaf are not in [0, {MOST_US:,})")
    host, rest = _steps(rows, physical >= 0, round(cost * 1000))
    there = np.flatnonzero(physical >= 0)
    numbers = np.zeros(len(rows), dtype=np.int64)
    numbers[there] = np.arange(len(there))
    waits = host["io"] < 0
    host["io"] = np.where(waits, ~numbers[~host["io"]], numbers[host["io"]])
    done, totals = simulate(device, ios(physical[there], nodesize), host)
    times = np.zeros(len(rows), dtype=TIME_FIELDS)
    for name in done.dtype.names or ():
        times[name][there] = done[name]
    times["needed"][there] = _needed(host, done["done"])
    ended = Totals(totals.end + rest, totals.waited, totals.requests, totals.buffered, totals.seeks)
    return times, ended


def _needed(host: NDArray[Any], done: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return when the thread comes to each block, which may be before it is there."""
    waits = host["io"] < 0
    which = np.where(waits, ~host["io"], host["io"])
    worked = np.cumsum(host["think"]).astype(np.int64)
    # what a wait adds to the work up to it stays until a later wait adds more
    lost = np.where(waits, done.astype(np.int64)[which] - worked, 0)
    before = np.maximum.accumulate(np.concatenate([[0], lost]))[:-1]
    needed = np.full(len(done), -1, dtype=np.int64)
    needed[which[waits]] = (worked + before)[waits]
    return needed


def _steps(rows: NDArray[Any], mapped: NDArray[Any], think: int) -> tuple[NDArray[Any], int]:
    """Return what the thread does with the reads, and what it computes at the end."""
    count = len(rows)
    demand = rows["ahead"] == 0
    later = np.flatnonzero(~demand & (rows["used"] != 0))
    # submissions have the numbers that are not those of a later use
    used_at = np.zeros(count + len(later), dtype=np.int64)
    is_use = np.zeros(count + len(later), dtype=bool)
    is_use[rows["used_at"][later].astype(np.int64) - 1] = True
    used_at[rows["used_at"][later].astype(np.int64) - 1] = later
    used_at[~is_use] = np.arange(count)
    # a read on demand is submitted and waited for
    parts = np.where(~is_use & demand[used_at], 2, 1)
    io = np.repeat(used_at, parts)
    waits = np.repeat(is_use, parts)
    second = np.flatnonzero(np.diff(io, prepend=-1) == 0)
    waits[second] = True
    keep = mapped[io]
    io, waits = io[keep], waits[keep]
    host = np.zeros(len(io), dtype=STEP_FIELDS)
    host["io"] = np.where(waits, ~io, io)
    # the work on a leaf comes after it is there, so before the next step
    work = np.where(waits & (rows["level"][io] == 0), think, 0)
    host["think"][1:] = work[:-1]
    return host, int(work[-1]) if len(work) else 0
