# SPDX-License-Identifier: GPL-2.0-only
"""Flash in plain Python: the twin of ``native/device_flash.c``.

Pages are spread over dies, dies share channels, channels share the interface. A read senses each of
its pages on its die, carries it over the channel of that die and over the interface. Pages of
different dies go on at the same time; a die is busy until its page left it.

Source: Agrawal, Prabhakaran, Wobber, Davis, Manasse and Panigrahy, "Design tradeoffs for SSD
performance" (USENIX 2008).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from btrfs_model.cost.disk import Service

if TYPE_CHECKING:
    from btrfs_model.cost.device import Flash
    from btrfs_model.cost.elevator import Request

__all__ = ["FlashState"]


class FlashState:
    """When each die, each channel and the interface are free again."""

    def __init__(self, model: Flash) -> None:
        self.model = model
        self.die_free = [0] * (model.channels * model.dies)
        self.channel_free = [0] * model.channels
        self.link_free = 0

    def choose(self, queue: list[Request], now: int) -> int:
        """Say which request comes next: the oldest."""
        return 0

    def serve(self, request: Request, now: int) -> Service:
        """Read what is asked for; the controller takes the next request at once."""
        model, ready, at = self.model, now + self.model.overhead, request.offset
        while at < request.end:
            page = at // model.page_size
            size = min((page + 1) * model.page_size, request.end) - at
            die, channel = page % len(self.die_free), page % len(self.channel_free)
            sensed = max(ready, self.die_free[die]) + model.sense
            carried = max(sensed, self.channel_free[channel]) + size * model.channel_byte // 1000
            self.die_free[die] = self.channel_free[channel] = carried
            self.link_free = max(carried, self.link_free) + size * model.link_byte // 1000
            at += size
        return Service(done=self.link_free, free=now)
