# SPDX-License-Identifier: GPL-2.0-only
"""A disk drive in plain Python: the twin of ``native/device/disk.c``.

Where a sector lies, how long the arm and the platter take to get there, what is in the drive's
buffer. A track begins where the platter is when the arm has come over from the track before: each
is turned against the one before by a skew. After a request the drive reads on into a segment of its
buffer, until the segment is full or another request makes the arm move.

Source: Ruemmler and Wilkes, "An introduction to disk drive modeling" (IEEE Computer 27(3), 1994);
the choice of the shortest access time: Seltzer, Chen and Ousterhout, "Disk scheduling revisited"
(1990); Jacobson and Wilkes, "Disk scheduling algorithms based on rotational position" (1991).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from btrfs_model.cost.device import Disk, Zone
    from twins.device_elevator import Request

_NEVER = 2**64 - 1


@dataclass(slots=True)
class Service:
    """What became of a request: when it is done, when the device turns to the next one."""

    done: int
    free: int
    buffered: bool = False
    seek: bool = False


class Place(NamedTuple):
    """Where a sector lies: ``sector`` of the track, ``slot`` counted from the index mark."""

    zone: Zone
    cylinder: int
    head: int
    sector: int
    slot: int


@dataclass(slots=True)
class _Segment:
    start: int = 0
    end: int = 0
    used: int = 0


def locate(disk: Disk, sector: int) -> Place:
    """Return the place of a logical sector."""
    zone = disk.zones[bisect_right(disk.zones, sector, key=lambda one: one.first_sector) - 1]
    track, at = divmod(sector - zone.first_sector, zone.sectors_per_track)
    crossed, head = divmod(zone.first_track + track, disk.heads)
    switched = zone.first_track + track - crossed
    skew = crossed * zone.cylinder_skew + switched * zone.track_skew
    slot = (at + skew) % zone.sectors_per_track
    return Place(zone, zone.first_cylinder + crossed, head, at, slot)


class DiskState:
    """Where the arm is and what is in the buffer."""

    def __init__(self, model: Disk) -> None:
        self.model = model
        self.cylinder = self.head = 0
        self.link_free = 0
        self.requests = 0
        self.segments = [_Segment() for _ in range(model.segments)]
        self.active: _Segment | None = None
        self.active_since = self.active_limit = 0
        last = model.zones[-1]
        self.sectors = last.first_sector + last.sectors

    # ------------------------------------------------------------------------ mechanics -----

    def arm_time(self, place: Place) -> int:
        """How long the arm takes to get there."""
        seek = self.model.seek_time[abs(place.cylinder - self.cylinder)]
        return max(seek, self.model.head_switch if place.head != self.head else 0)

    def rotation_time(self, place: Place, now: int) -> int:
        """How long it takes from `now` until the sector comes by."""
        turn = self.model.revolution
        return (place.slot * turn // place.zone.sectors_per_track - now) % turn

    def transfer(
        self, sector: int, count: int, now: int, settle: int = 0, until: int = _NEVER
    ) -> tuple[int, int]:
        """Read or write on, until `count` sectors are done or `until` is there.

        Returns
        -------
        done : int
            How many sectors were done.
        end : int
            When the last of them was.
        """
        turn, done, end = self.model.revolution, 0, now
        while done < count:
            place = locate(self.model, sector + done)
            track = place.zone.sectors_per_track
            start = end + self.arm_time(place) + settle
            start += self.rotation_time(place, start)
            if start >= until:
                break
            self.cylinder, self.head, settle = place.cylinder, place.head, 0
            zone_end = place.zone.first_sector + place.zone.sectors
            here = min(track - place.sector, zone_end - sector - done, count - done)
            left = until - start
            # as many as end in time
            fit = min(here, track if left >= turn else ((left + 1) * track - 1) // turn)
            done += fit
            end = start + fit * turn // track
            if fit < here:
                break
        return done, end

    # --------------------------------------------------------------------- the buffer -------

    def read_on(self, now: int) -> None:
        """Let the drive read on until `now`."""
        active = self.active
        if active is None or now <= self.active_since:
            return
        count, self.active_since = self.transfer(
            active.end, self.active_limit - active.end, self.active_since, until=now
        )
        active.end += count

    def find_segment(self, sector: int) -> _Segment | None:
        """Return the segment that holds a sector, or is about to."""
        for segment in self.segments:
            behind = segment.end + (segment is self.active)
            if segment.used and segment.start <= sector < behind:
                return segment
        return None

    def keep(self, segment: _Segment, now: int) -> None:
        """Read on behind a segment that ends where the last read ended, at `now`."""
        self.active, segment.used = segment, self.requests
        self.active_since = now
        self.active_limit = min(segment.end + self.model.read_ahead, self.sectors)
        segment.start = max(segment.start, self.active_limit - self.model.segment_size)

    def link_read(self, sectors: int, ready: int, read: int) -> int:
        """Carry a read over the interface: from `ready` on, the last sector came at `read`."""
        model = self.model
        end = max(ready + model.reselect, self.link_free) + sectors * model.link_sector
        self.link_free = max(end, read + model.link_sector)
        return self.link_free + model.completion

    # ----------------------------------------------------------------------- requests -------

    def choose(self, queue: list[Request], now: int) -> int:
        """Say which request comes next: the oldest, or that with the shortest access time."""
        if not self.model.shortest_first:
            return 0
        return min(range(len(queue)), key=lambda at: self.access_time(queue[at], now))

    def access_time(self, request: Request, now: int) -> int:
        """Time until a request's first sector is at hand; 0 where it is in the buffer."""
        sector = request.offset // self.model.sector_size
        if not request.write and self.find_segment(sector) is not None:
            return 0
        model, place = self.model, locate(self.model, sector)
        arm = self.arm_time(place)
        arm += model.write_overhead + model.write_settle if request.write else model.miss_overhead
        return arm + self.rotation_time(place, now + arm)

    def serve(self, request: Request, now: int) -> Service:
        """Do a request that the drive turns to at `now`."""
        self.requests += 1
        size = self.model.sector_size
        first = request.offset // size
        count = -(-request.end // size) - first
        return (self._write if request.write else self._read)(first, count, now)

    def _read(self, sector: int, count: int, now: int) -> Service:
        model = self.model
        self.read_on(now)
        segment = self.find_segment(sector)
        buffered = segment is not None
        now += model.hit_overhead if buffered else model.miss_overhead
        if buffered and segment is self.active:
            self.read_on(now)
        held = min(segment.end - sector, count) if segment is not None else 0
        if segment is not None and held == count:
            segment.used = self.requests
            done = self.link_read(count, now, now)
            return Service(done, done, buffered)
        # the rest comes off the medium, at once where the drive is reading just that
        start = now
        if segment is not None and segment is self.active and segment.end < self.active_limit:
            start = self.active_since
        seek = locate(model, sector + held).cylinder != self.cylinder
        _, read = self.transfer(sector + held, count - held, start)
        if segment is None and self.segments:
            segment = min(self.segments, key=lambda one: one.used)
            segment.start = sector
        if segment is not None:
            segment.end = sector + count
            self.keep(segment, read)
        # the interface starts when that part of the request is there that the watermark asks for
        track = locate(model, sector + count - 1).zone.sectors_per_track
        early = (count - held) * (1000 - model.watermark) // 1000 * model.revolution // track
        done = self.link_read(count, max(read - early, now), read)
        return Service(done, read, buffered, seek)

    def _write(self, sector: int, count: int, now: int) -> Service:
        model, place = self.model, locate(self.model, sector)
        self.read_on(now)
        self.active = None
        for segment in self.segments:
            if segment.start < sector + count and sector < segment.end:
                segment.used = 0
        now += model.write_overhead
        self.link_free = max(now, self.link_free) + count * model.link_sector
        seek = place.cylinder != self.cylinder
        # the data comes in while the arm moves
        start = max(now, self.link_free - self.arm_time(place) - model.write_settle)
        _, end = self.transfer(sector, count, start, model.write_settle)
        return Service(end + model.completion, end, seek=seek)
