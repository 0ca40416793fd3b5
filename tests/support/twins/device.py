# SPDX-License-Identifier: GPL-2.0-only
"""A host and a device in plain Python: the twin of ``native/device/device.c``.

The host is one thread: it computes, submits, and waits. What it submits goes through the elevator
to the device as soon as that has room. Two kinds of events move the device on: it turns to the next
of its requests, and it finishes one, which makes room. Both happen in the order of their time, up
to the moment at which the host does something.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from btrfs_model.cost.device import Device, Disk, Flash, Zone
from btrfs_model.native.device import TIME_FIELDS
from twins.device_disk import DiskState
from twins.device_elevator import Elevator, Request
from twins.device_flash import FlashState

_NEVER = 2**64 - 1
_LAST = 2**63 - 1


class _Run:
    """The state of a run; what it finds is in ``issued``, ``started``, ``done`` and ``totals``."""

    def __init__(self, device: Device, requests: NDArray[Any]) -> None:
        self.device = device
        self.ios = [Request.of(number, row) for number, row in enumerate(requests.tolist())]
        self.issued: list[int | None] = [None] * len(self.ios)
        self.started = [0] * len(self.ios)
        self.done: list[int | None] = [None] * len(self.ios)
        self.totals = dict.fromkeys(("end", "waited", "requests", "buffered", "seeks"), 0)
        self.elevator = Elevator(device)
        model = device.model
        self.state = DiskState(model) if isinstance(model, Disk) else FlashState(model)
        self.queue: list[Request] = []
        self.busy: list[int] = []
        self.clock = 0
        self.free = 0

    def dispatch(self) -> None:
        """Give the device what it has room for."""
        while len(self.queue) + len(self.busy) < self.device.queue_depth:
            request = self.elevator.take(self.clock)
            if request is None:
                return
            self.queue.append(request)
            self.totals["requests"] += 1

    def serve(self) -> None:
        """Let the device turn to one of its requests."""
        request = self.queue.pop(self.state.choose(self.queue, self.clock))
        service = self.state.serve(request, self.clock)
        self.free = service.free
        self.totals["buffered"] += service.buffered
        self.totals["seeks"] += service.seek
        if max(service.done, service.free) > _LAST:
            raise OverflowError
        for io in request.ios:
            self.started[io], self.done[io] = self.clock, service.done
        heapq.heappush(self.busy, service.done)

    def step(self, until: int) -> bool:
        """Do the next event, unless it is later than `until`; whether there was one."""
        turn = max(self.free, self.clock)
        if self.busy and (not self.queue or self.busy[0] <= turn):
            if self.busy[0] > until:
                return False
            self.clock = max(self.clock, heapq.heappop(self.busy))
            self.dispatch()
            return True
        if not self.queue or turn > until:
            return False
        self.clock = turn
        self.serve()
        return True

    def advance(self, now: int) -> None:
        """Move the device on to `now`.

        With an elevator the kernel leaves it to a worker (kblockd) to give requests to the device,
        so what the host submits at one moment waits there together.
        """
        if now <= self.clock:
            return
        self.dispatch()
        while self.step(now):
            pass
        self.clock = now

    def submit(self, io: int, now: int) -> None:
        """Submit a request at `now`, after all that the device does up to then."""
        self.advance(now)
        self.issued[io] = now
        self.elevator.add(self.ios[io], now)
        if self.device.elevator == "none":
            self.dispatch()

    def host(self, steps: list[tuple[int, int]]) -> None:
        """Do the steps of the host one after the other."""
        now = 0
        for number, (think, io) in enumerate(steps):
            which = ~io if io < 0 else io
            if which >= len(self.ios) or (io < 0) == (self.issued[which] is None):
                raise LookupError(number, which)
            now += think
            if now > _LAST:
                raise OverflowError
            if io >= 0:
                self.submit(io, now)
                continue
            self.dispatch()
            while (done := self.done[which]) is None:
                self.step(_NEVER)
            if done > now:
                self.totals["waited"] += done - now
                now = done
        self.advance(_NEVER)
        self.totals["end"] = now


def run(
    device: Mapping[str, Any], requests: NDArray[Any], host: NDArray[Any]
) -> tuple[NDArray[Any], dict[str, int]]:
    """Do what :func:`btrfs_model.native.device.run` does."""
    model = dict(device["model"])
    if "zones" in model:
        model = Disk(**model | {"zones": tuple(Zone(**zone) for zone in model["zones"])})
    else:
        model = Flash(**model)
    this = _Run(Device(**{**device, "model": model}), requests)
    this.host(host.tolist())
    times = np.zeros(len(requests), dtype=TIME_FIELDS)
    for number, (issued, started, done) in enumerate(
        zip(this.issued, this.started, this.done, strict=True)
    ):
        times[number] = (issued or 0, started, done or 0)
    return times, this.totals
