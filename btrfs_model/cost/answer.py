# SPDX-License-Identifier: GPL-2.0-only
"""Answers that say how long they take, and the comparison of two of them.

What a question of the package returns has its rows in ``table``, its counts in ``work``, and its
time in :meth:`Answer.time`. On a device the tree blocks that a fresh mount has not in memory are
read, or those that the call changed are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import UnsupportedError
from btrfs_model.cost.device import Device, load
from btrfs_model.cost.machine import Machine, chosen
from btrfs_model.cost.pipe import through_a_pipe
from btrfs_model.cost.prediction import Prediction, Ratio, predict
from btrfs_model.cost.prediction import ratio as ratio_of
from btrfs_model.cost.reading import Reading

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from btrfs_model.volume.image import Image

Waits = float | Callable[[float], float]
"""Nanoseconds of waiting for a device, see :func:`btrfs_model.cost.prediction.predict`."""


@dataclass(frozen=True, eq=False)
class Cold:
    """Tree blocks that were read, and where they lie.

    Attributes
    ----------
    rows : numpy.ndarray
        The reads, rows of :data:`btrfs_model.native.image.READ`, in order.
    physical : numpy.ndarray or None
        Byte of the device of each, -1 for what goes to none; None where there are several devices.
    nodesize : int
        Bytes of a block.
    path : str
        The image.
    """

    rows: NDArray[Any]
    physical: NDArray[np.int64] | None
    nodesize: int
    path: str

    @classmethod
    def of(cls, image: Image, rows: NDArray[Any]) -> Cold:
        """Look up where reads of an image go."""
        physical = None if image.has_several else physical_of(image, rows)
        return cls(rows, physical, image.nodesize, image.path)

    def on(self, device: Device) -> Reading:
        """Prepare to do the reads on a device."""
        if self.physical is None:
            raise UnsupportedError(
                f"{self.path}: it has several devices; reads can be timed on one alone"
            )
        return Reading(device, self.rows, self.physical, self.nodesize)

    @property
    def amounts(self) -> dict[str, int]:
        """What costs are paid for, of reads of a device; see :func:`amounts_of_reads`."""
        there = slice(None) if self.physical is None else self.physical >= 0
        return amounts_of_reads(self.rows[there])


def physical_of(image: Image, read: NDArray[Any]) -> NDArray[np.int64]:
    """Return the byte of the first copy of each block; -1 for what goes to no device."""
    starts = np.array([chunk.logical for chunk in image.chunks], dtype=np.uint64)
    lengths = np.array([chunk.length for chunk in image.chunks], dtype=np.uint64)
    stripes = np.array([chunk.stripes[0] for chunk in image.chunks], dtype=np.uint64)
    chunk = np.searchsorted(starts, read["logical"], side="right") - 1
    within = read["logical"] - starts[chunk]
    # what a damaged node points at is asked for ahead, but goes to no device
    mapped = (chunk >= 0) & (within < lengths[chunk])
    physical = (stripes[chunk] + within).astype(np.int64)
    physical[~mapped] = -1
    return physical


def amounts_of_reads(rows: NDArray[Any]) -> dict[str, int]:
    """Count what costs are paid for of reads (rows of :data:`~btrfs_model.native.image.READ`).

    ``blocks_read``: tree blocks; ``blocks_awaited``: those of them that a thread waits for, because
    nobody read them ahead.
    """
    return {"blocks_read": len(rows), "blocks_awaited": int(np.count_nonzero(rows["ahead"] == 0))}


class Answer:
    """What a question gives: counts, and the time that follows from them.

    Attributes
    ----------
    work : mapping
        How often each kernel function was called, by its name.
    """

    work: Mapping[str, int]

    @property
    def amounts(self) -> Mapping[str, int]:
        """What costs are paid for."""
        return self.work

    def waiting(self, device: Device) -> tuple[Mapping[str, int], Waits]:
        """Return what costs are paid for on a device, and what is waited for it."""
        raise UnsupportedError(f"{type(self).__name__}: the model knows no time of it on a device")

    def time(
        self,
        machine: str | Machine | None = None,
        device: str | Device | Sequence[str | Device] | None = None,
        pipe: bool = False,
    ) -> Prediction:
        """Predict how long it takes.

        Parameters
        ----------
        machine : str or Machine, optional
            A name of :func:`btrfs_model.cost.machine.names` or the path of a file; the native
            machine without it.
        device : str, Device or sequence of them, optional
            What tree blocks are read from, after a mount, or written to: a name of
            :func:`btrfs_model.cost.device.names` or the path of a file. Without it everything is in
            memory. Of several the first tells the time, and the interval has the times of all in
            it: ``devices`` of the result has each.
        pipe : bool
            Whether a stream goes through a pipe, as that of ``btrfs send | ...``, not into a file.

        Raises
        ------
        BtrfsModelError
            For a machine or device that there is not, or one where nothing of the work has a cost.
        UnsupportedError
            For a device, where the model does not know what is read or written.
        """
        computes = chosen(machine)
        devices: Sequence[str | Device | None] = [None]
        if device:
            devices = [device] if isinstance(device, str | Device) else list(device)
        made = [self._on(computes, one, pipe=pipe) for one in devices]
        first = made[0][1]
        if len(made) == 1:
            return first
        return replace(
            first,
            low=min(one.low for _, one in made),
            high=max(one.high for _, one in made),
            devices=dict(made),
        )

    def _on(
        self, machine: Machine, device: str | Device | None, *, pipe: bool
    ) -> tuple[str, Prediction]:
        work: Mapping[str, float] = self.amounts
        waits: Waits = 0
        on = load(device) if isinstance(device, str) else device
        if on is not None:
            work, waits = self.waiting(on)
        made = predict(machine, through_a_pipe(work) if pipe else work, waits)
        return "memory" if on is None else on.name, made


@checked
def ratio(
    before: Answer | Prediction,
    after: Answer | Prediction,
    *,
    machine: str | Machine | None = None,
    device: str | Device | Sequence[str | Device] | None = None,
    pipe: bool = False,
) -> Ratio:
    """Compare two times: how many times as long the first one is, and the 90 % interval of that.

    Both times have the same costs, whatever these are, so the interval is narrower than those of
    the times; see :func:`btrfs_model.cost.prediction.ratio`.

    Parameters
    ----------
    before, after : Answer or Prediction
        Results of ``send``, ``receive``, ``fiemap``, ``reads``, ``fsync`` or ``commit``, or their
        times.
    machine, device, pipe
        Of an answer: as for :meth:`Answer.time`.

    Returns
    -------
    Ratio
        ``value``, ``low`` and ``high``. Of several devices the first tells the value, and the
        interval has the ratios on all of them in it.

    Raises
    ------
    BtrfsModelError
        As :meth:`Answer.time`.
    ValueError
        For times of different machines, or a time of 0.
    """
    times = [
        one if isinstance(one, Prediction) else one.time(machine, device, pipe)
        for one in (before, after)
    ]
    found = ratio_of(*times)
    known = [name for name in times[0].devices if name in times[1].devices]
    if found.untold or not known:
        return found
    each = {name: ratio_of(*(one.devices[name] for one in times)) for name in known}
    return replace(
        found,
        low=min(one.low for one in each.values()),
        high=max(one.high for one in each.values()),
        devices={name: one.value for name, one in each.items()},
        alone=each[known[0]],
    )
