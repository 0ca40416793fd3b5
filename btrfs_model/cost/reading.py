# SPDX-License-Identifier: GPL-2.0-only
"""Reads of tree blocks on a device: when each is issued and done, and how long the walk takes.

The kernel's thread walks the tree. It waits for a block that it reads on demand, and for one that
was read ahead where it comes to it too early; between that it computes. What it reads ahead it only
submits. So how much of the waiting is hidden behind the work comes out of the run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cost.device import Device
from btrfs_model.cost.simulate import Totals, ios, simulate
from btrfs_model.native.device import STEP_FIELDS
from btrfs_model.native.device import TIME_FIELDS as RUN_FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_US = 10**9
"""The work on a leaf takes less, microseconds."""
TIME_FIELDS = [*RUN_FIELDS, ("needed", "<i8")]
"""What the simulation gives, and when the thread came to the block; -1: never."""


class Reading:
    """Reads of tree blocks on a device, by a thread that computes between them.

    Parameters
    ----------
    device : Device
        From :func:`btrfs_model.cost.device.load`.
    rows : numpy.ndarray
        The reads, rows of :data:`btrfs_model.native.image.READ`, in order.
    physical : numpy.ndarray
        Byte of the device of each; -1: it goes to none.
    nodesize : int
        Bytes of a block.

    Attributes
    ----------
    leaves : int
        Leaves that the thread comes to: what it computes is spread over them.
    """

    def __init__(
        self, device: Device, rows: NDArray[Any], physical: NDArray[Any], nodesize: int
    ) -> None:
        self.device = device
        self.count = len(rows)
        self.host, self.is_leaf = _steps(rows, physical >= 0)
        self.there = np.flatnonzero(physical >= 0)
        numbers = np.zeros(len(rows), dtype=np.int64)
        numbers[self.there] = np.arange(len(self.there))
        waits = self.host["io"] < 0
        self.host["io"] = np.where(waits, ~numbers[~self.host["io"]], numbers[self.host["io"]])
        self.requests = ios(physical[self.there], nodesize)
        self.leaves = int(np.count_nonzero(self.is_leaf))

    def run(self, think: float) -> tuple[NDArray[Any], Totals]:
        """Do the reads.

        Parameters
        ----------
        think : float
            Microseconds that the thread computes for each leaf that it comes to.

        Returns
        -------
        times : numpy.ndarray
            Rows of :data:`TIME_FIELDS`, nanoseconds; those of reads that go to no device are 0.
        totals : Totals
            What it came to.

        Raises
        ------
        BtrfsModelError
            When the device is too small.
        """
        done, totals = self._simulate(think)
        times = np.zeros(self.count, dtype=TIME_FIELDS)
        for name in done.dtype.names or ():
            times[name][self.there] = done[name]
        times["needed"][self.there] = _needed(self.host, done["done"])
        return times, totals

    def waits(self, computed: float) -> float:
        """Return the nanoseconds of waiting beside so many seconds of computing."""
        return self._simulate(self.think(computed))[1].waited

    def think(self, computed: float) -> float:
        """Return the microseconds for each leaf of so many seconds of computing."""
        return computed * 1e6 / self.leaves if self.leaves else 0.0

    def _simulate(self, think: float) -> tuple[NDArray[Any], Totals]:
        if not 0 <= think < MOST_US:
            raise BtrfsModelError(f"{think:g} microseconds for a leaf are not in [0, {MOST_US:,})")
        work = np.where(self.is_leaf, round(think * 1000), 0)
        # the work on a leaf comes after it is there, so before the next step
        self.host["think"][1:] = work[:-1]
        done, totals = simulate(self.device, self.requests, self.host)
        rest = int(work[-1]) if len(work) else 0
        return done, replace(totals, end=totals.end + rest)


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


def _steps(rows: NDArray[Any], mapped: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return what the thread does with the reads, and after which steps it has come to a leaf."""
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
    is_leaf: NDArray[np.bool_] = waits & (rows["level"][io] == 0)
    return host, is_leaf
