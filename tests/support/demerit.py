# SPDX-License-Identifier: GPL-2.0-only
"""How good a model of a device is: the demerit figure, and traces to take it of.

Ruemmler and Wilkes, "An introduction to disk drive modeling" (1994): plot the distributions of the
measured and of the modelled times, and take the root mean square of the horizontal distance between
the two curves, in terms of the mean of the measured times.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cost.simulate import ios, simulate
from btrfs_model.native.device import STEP_FIELDS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from btrfs_model.cost.device import Device


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests to a real drive, one at a time, as arrays of one length.

    Attributes
    ----------
    write : numpy.ndarray of bool
        Which of them write.
    sector, sectors : numpy.ndarray of int
        Where, and how many.
    measured : numpy.ndarray of float
        Response times, milliseconds.
    think : numpy.ndarray of float
        From the end of a request to the start of the next, milliseconds.
    """

    write: NDArray[np.bool_]
    sector: NDArray[np.int64]
    sectors: NDArray[np.int64]
    measured: NDArray[np.float64]
    think: NDArray[np.float64]


def demerit(measured: ArrayLike, modelled: ArrayLike) -> float:
    """Return the demerit figure of modelled times, a fraction.

    Parameters
    ----------
    measured, modelled : array_like
        Times, as many of both, in any order.
    """
    real, model = np.sort(np.asarray(measured)), np.sort(np.asarray(modelled))
    if real.shape != model.shape or not real.size:
        raise ValueError(f"{real.size} measured and {model.size} modelled times")
    return float(np.sqrt(np.mean((real - model) ** 2)) / np.mean(real))


def read_trace(path: Path) -> Trace:
    """Read a validation trace of DiskSim: R or W, hit or miss, sector, sectors, time, think time.

    Raises
    ------
    BtrfsModelError
        When a line is none of a trace.
    """
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split()
        try:
            way, _, sector, sectors, measured, think = words
            rows.append((way == "W", int(sector), int(sectors), float(measured), float(think)))
        except ValueError:
            raise BtrfsModelError(f"{path}: line {number} is no request") from None
    write, sector_, sectors_, measured_, think_ = zip(*rows, strict=True)
    return Trace(
        np.array(write),
        np.array(sector_),
        np.array(sectors_),
        np.array(measured_) / 1000,
        np.array(think_) / 1000,
    )


def replay_trace(device: Device, trace: Trace, sector_size: int = 512) -> NDArray[np.float64]:
    """Do the requests of a trace; return the response times, milliseconds."""
    count = len(trace.sector)
    host = np.zeros(2 * count, dtype=STEP_FIELDS)
    host["io"][0::2], host["io"][1::2] = np.arange(count), ~np.arange(count)
    host["think"][2::2] = np.rint(trace.think[:-1] * 1e6)
    requests = ios(trace.sector * sector_size, trace.sectors * sector_size, trace.write)
    times, _ = simulate(device, requests, host)
    modelled: NDArray[np.float64] = (times["done"] - times["issued"]) / 1e6
    return modelled
