# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's elevator: requests that the device has no room for yet.

What mq-deadline does with reads: neighbours become one request, requests go to the device in
ascending order, at most ``fifo_batch`` of them before it is looked whether the oldest has waited
for longer than ``read_expire``. Plain Python, the twin of ``native/device/elevator.c``.

Source: ``block/mq-deadline.c`` (``dd_dispatch_request()``), ``block/blk-merge.c``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from btrfs_model.cost.device import Device


@dataclass(slots=True)
class Request:
    """Neighbouring bytes that the device gets at once.

    Attributes
    ----------
    offset, end : int
        Bytes of the device.
    write : bool
        Which direction.
    ios : list of int
        What was submitted, ascending by offset.
    since, order : int
        When the oldest of them was submitted, and as which.
    """

    offset: int
    end: int
    write: bool
    ios: list[int]
    since: int = 0
    order: int = 0

    @classmethod
    def of(cls, number: int, row: tuple[int, int, int]) -> Request:
        """Make a request of a row of ``struct bm_io``."""
        offset, length, write = row
        return cls(offset, offset + length, bool(write), [number])

    @property
    def place(self) -> tuple[int, int]:
        """What it is ordered by."""
        return self.offset, self.ios[0]


class Elevator:
    """Requests that wait, and the sweep over them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.waiting: list[Request] = []
        self.sweep = (0, 0)
        self.batch = 0
        self.added = 0

    def add(self, request: Request, now: int) -> None:
        """Let a request wait, as part of its neighbours' where they wait as well."""
        request.since, request.order = now, self.added
        self.added += 1
        insort(self.waiting, request, key=lambda one: one.place)
        if self.device.elevator == "none":
            return
        at = bisect_left(self.waiting, request.place, key=lambda one: one.place)
        self._merge(at)
        if at:
            self._merge(at - 1)

    def _merge(self, at: int) -> None:
        """Make one request of two where they are neighbours."""
        if at + 1 >= len(self.waiting):
            return
        first, second = self.waiting[at : at + 2]
        if (
            first.end != second.offset
            or second.end - first.offset > self.device.max_request
            or first.write != second.write
        ):
            return
        first.since, first.order = min(
            (first.since, first.order), (second.since, second.order), key=lambda pair: pair[1]
        )
        first.end = second.end
        first.ios += second.ios
        del self.waiting[at + 1]

    def take(self, now: int) -> Request | None:
        """Return the request that goes to the device next; None when none waits."""
        if not self.waiting:
            return None
        oldest = min(range(len(self.waiting)), key=lambda at: self.waiting[at].order)
        if self.device.elevator == "none":
            return self.waiting.pop(oldest)
        at = bisect_left(self.waiting, self.sweep, key=lambda one: one.place)
        if at == len(self.waiting) or self.batch >= self.device.fifo_batch:
            self.batch = 0
            expired = now - self.waiting[oldest].since >= self.device.read_expire
            if at == len(self.waiting) or expired:
                at = oldest
        self.batch += 1
        request = self.waiting.pop(at)
        self.sweep = request.offset, request.ios[0] + 1
        return request
