# SPDX-License-Identifier: GPL-2.0-only
"""Writes that somebody waits for: a page, and the log of an fsync, as requests to a device.

The models of flash have no writes of their own: there a write takes what a read of it does. A
device without a cache that a power failure empties has nothing to flush.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.cost.device import Device
from btrfs_model.cost.simulate import ios, simulate, steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAGE: Final = 4096
_SUPER_OFFSET: Final = 64 << 10
_SUPER_SIZE: Final = 4096


def page_write(device: Device) -> float:
    """Return the nanoseconds of writing one page, after another one of it was written."""
    requests = ios([_SUPER_OFFSET, 1 << 27], _PAGE, 1)
    _, totals = simulate(device, requests, steps([0, ~0, 1, ~1]))
    _, first = simulate(device, requests[:1], steps([0, ~0]))
    return float(totals.end - first.end)


def log_sync(device: Device, blocks: NDArray[np.int64], nodesize: int) -> float:
    """Return the nanoseconds of writing a log (``btrfs_sync_log()``).

    The blocks of the log are submitted in the order of their addresses and waited for, then the
    superblock, which makes them count.

    Parameters
    ----------
    device : Device
        From :func:`btrfs_model.cost.device.load`.
    blocks : numpy.ndarray
        Bytes of the device that the blocks go to, all copies.
    nodesize : int
        Bytes of a block.
    """
    offsets = np.append(np.sort(blocks), _SUPER_OFFSET)
    lengths = np.append(np.full(len(blocks), nodesize), _SUPER_SIZE)
    block = np.arange(len(blocks))
    host = steps([*block, *~block, len(block), ~len(block)])
    _, totals = simulate(device, ios(offsets, lengths, 1), host)
    return float(totals.end)
