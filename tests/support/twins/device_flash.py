# SPDX-License-Identifier: GPL-2.0-only
"""Flash in plain Python: the twin of ``native/device/flash.c``.

Pages are spread over dies, dies share channels, channels share the interface. A read passes the
controller, senses each of its pages on its die, and carries it over the channel of that die and
over the interface. Pages of different dies go on at the same time.

What is shared has a clock that each use moves on by its length: no more passes than it can carry,
but a page that is sensed late does not hold up one that came after it and is sensed early.

Source: Agrawal, Prabhakaran, Wobber, Davis, Manasse and Panigrahy, "Design tradeoffs for SSD
performance" (USENIX 2008).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twins.device_disk import Service

if TYPE_CHECKING:
    from btrfs_model.cost.device import Flash
    from twins.device_elevator import Request


class _Shared:
    """Something that one at a time passes."""

    def __init__(self) -> None:
        self.clock = 0

    def through(self, now: int, ready: int, time: int) -> int:
        """Pass, from `ready` on, for `time`; when that is done."""
        self.clock = max(self.clock, now) + time
        return max(self.clock, ready + time)


class FlashState:
    """When each die is free again, and what is shared."""

    def __init__(self, model: Flash) -> None:
        self.model = model
        self.dies = [0] * (model.channels * model.dies)
        self.channels = [_Shared() for _ in range(model.channels)]
        self.controller, self.link = _Shared(), _Shared()

    def choose(self, queue: list[Request], now: int) -> int:
        """Say which request comes next: the oldest."""
        return 0

    def serve(self, request: Request, now: int) -> Service:
        """Read what is asked for; the controller takes the next request at once."""
        model, at, done = self.model, request.offset, 0
        ready = self.controller.through(now, now, model.command) + model.overhead
        while at < request.end:
            page = at // model.page_size
            size = min((page + 1) * model.page_size, request.end) - at
            die, channel = page % len(self.dies), self.channels[page % len(self.channels)]
            self.dies[die] = sensed = max(ready, self.dies[die]) + model.sense
            carried = channel.through(now, sensed, size * model.channel_byte // 1000)
            done = self.link.through(now, max(carried, done), size * model.link_byte // 1000)
            at += size
        return Service(done=done, free=now)
