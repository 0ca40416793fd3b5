# SPDX-License-Identifier: GPL-2.0-only
"""What a crash between two writes leaves on the device, each state that differs once.

Writes between two flushes may come to the device or not, in any order; the superblock comes behind
a flush, alone. A mount reads the superblock, the trees that it leads to, the log, and the data that
these name. A write to another place changes nothing that anybody reads: the state after it is that
before it, whatever of it is there. So of the states between two superblocks only those differ in
which a write went to a place in use, as data of a file without copy on write do.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.experiments.crashes.record import Recording
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.superblock import SUPER_OFFSETS, SUPER_SIZE
from btrfs_model.scripts.device_log import FUA, SECTOR, DeviceLog, Entry
from btrfs_model.volume.device.memory import Memory
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image

_SUPER: Final = SUPER_OFFSETS[0]
BOUND: Final = 10
"""Writes of which all subsets are looked at; of more none and all, and each alone."""
_TORN: Final = 7
"""Places at which a write is torn, at most."""

AT: Final = ("every-write", "flush", "fsync")
"""Where it may crash."""


Moment = tuple[int, bool]
"""Of a crash: the last call that was begun, and whether it returned."""


class Disk:
    """A device as it is after some writes, which are carried out when it is asked for.

    `first`: what is on it at first.
    `superblock` (bytes): the first one.
    """

    def __init__(self, first: Memory) -> None:
        self._first = first
        self._memory: Memory | None = None
        self._writes: list[tuple[DeviceLog, Entry, int | None]] = []
        self._done = 0
        self._digest = hashlib.sha256()
        self.superblock = bytes(first.buffer[_SUPER : _SUPER + SUPER_SIZE])

    def write(self, log: DeviceLog, entry: Entry, size: int | None = None) -> None:
        """Carry out a write, or a part of it."""
        if not entry.size:
            return
        data = log.data(entry)[:size]
        self._writes.append((log, entry, size))
        self._digest.update(b"%d %d " % (entry.start, len(data)))
        self._digest.update(data)
        if entry.start == _SUPER:
            self.superblock = (data + self.superblock[len(data) :])[:SUPER_SIZE]

    def written(self) -> bytes:
        """Return a digest of what was written."""
        return self._digest.digest()

    def memory(self) -> Memory:
        """Return what is on it; it changes with the next write."""
        if self._memory is None:
            self._memory = self._first.copy()
        for log, entry, size in self._writes[self._done :]:
            self._memory.put(entry.start, log.data(entry)[:size])
        self._done = len(self._writes)
        return self._memory

    def take(self) -> Memory:
        """Return what is on it, in memory of the caller's own."""
        memory, self._memory, self._done = self.memory(), None, 0
        return memory

    def copy(self) -> Disk:
        """Return another one that goes its own way."""
        other = copy(self)
        other._writes, other._digest = [*self._writes], self._digest.copy()
        if self._memory is not None:
            other._memory = self._memory.copy()
        return other


@dataclass
class DiskState:
    """What a crash may leave.

    `disk`: the device; it is changed when the next one is asked for.
    `step`: the call that wrote it.
    `what`: how it came to be.
    `moments`: when a crash leaves it: the last call that was begun, and whether it returned.
    `written`: a digest of all writes to the device since the mount.
    `states`: places between writes at which a crash leaves the same.
    """

    disk: Disk
    step: int
    what: str
    moments: list[Moment]
    written: bytes
    states: int = 1

    @property
    def memory(self) -> Memory:
        """What is on the device."""
        return self.disk.memory()


def disk_states(
    recording: Recording,
    *,
    at: str = "every-write",
    reorder: bool = False,
    torn: bool = False,
    used: dict[bytes, Places | None] | None = None,
) -> Iterator[DiskState]:
    """Yield what a crash may leave at each moment from the mount on.

    Parameters
    ----------
    recording : Recording
        The workload.
    at : str
        ``every-write``: after each write; ``flush``: after each superblock; ``fsync``: after each
        call that makes something last.
    reorder : bool
        Each subset of the writes between two flushes, up to :data:`BOUND` of them that matter.
    torn : bool
        Of each write that matters, and of superblocks, a part of the sectors.
    used : dict of bytes to Places, optional
        Places in use after the writes of a digest, for workloads that start from one device; what
        is missing is added.

    Yields
    ------
    DiskState
        One for each state that differs from the one before it.
    """
    log, disk = recording.log, Disk(recording.log.first)
    used = {} if used is None else used
    entries = log.entries
    supers = [number for number, entry in enumerate(entries) if entry.flags & FUA]
    borders = [-1, *supers, len(entries)]
    for place, (begin, end) in enumerate(pairwise(borders)):
        if place:
            if torn and at != "fsync":
                yield from _torn_super(recording, disk, entries[begin], begin)
            disk.write(log, entries[begin])
        writes = [number for number in range(begin + 1, end) if entries[number].size]
        state = _state(recording, disk, begin, end, "superblock" if place else "mount")
        if at == "every-write":
            state.states += len(writes)
        if at == "fsync":
            synced = {one.step for one in log.synced_calls}
            state.moments = [moment for moment in state.moments if moment[0] in synced and
                             moment[1]]  # fmt: skip
        if state.moments:
            yield state
        if at == "every-write" and writes:
            matter = _matter(log, disk, writes, used)
            yield from _between(recording, disk, matter, end, reorder=reorder, torn=torn)
        for number in writes:
            disk.write(log, entries[number])


def _state(recording: Recording, disk: Disk, begin: int, end: int, what: str) -> DiskState:
    """Make the state from an entry of the log on, which lasts to another one."""
    log = recording.log
    # the call in which an entry was written: the first that ended behind it
    step = bisect_right(log.ends, begin) if begin >= 0 else 0
    return DiskState(disk, step, what, _moments(recording, begin, end), disk.written())


def _moments(recording: Recording, begin: int, end: int) -> list[Moment]:
    ends = recording.log.ends
    step = bisect_right(ends, begin) if begin >= 0 else 0
    found = [(step, False)] if begin >= 0 and step < len(ends) else []
    while step < len(ends) and ends[step] <= end:
        found.append((step, True))
        step += 1
    return found


def _matter(
    log: DeviceLog, disk: Disk, writes: list[int], used: dict[bytes, Places | None]
) -> list[int]:
    """Return which writes go to places in use; all where those are not known."""
    # nothing but a mount that finds no first superblock reads the second
    writes = [number for number in writes if not _is_second(log.entries[number])]
    if not writes:
        return []
    before = disk.written()
    if before not in used:
        used[before] = _in_use(disk.memory())
    places = used[before]
    return [number for number in writes if places is None or places.has(log.entries[number])]


def _is_second(entry: Entry) -> bool:
    """Whether a write goes to the second superblock alone."""
    start = SUPER_OFFSETS[1]
    return start <= entry.start and entry.start + entry.size <= start + SUPER_SIZE


def _between(
    recording: Recording, disk: Disk, matter: list[int], end: int, *, reorder: bool, torn: bool
) -> Iterator[DiskState]:
    """Yield states in which writes to places in use came through, before the next superblock."""
    if not matter:
        return
    entries = recording.log.entries
    sets = [matter[: count + 1] for count in range(len(matter))]
    if reorder:
        sets = _subsets(matter)
    for some in sets:
        yield _applied(recording, disk, [(number, None) for number in some], end, "write in place")
    for number in matter if torn else ():
        for size in _cuts(entries[number]):
            yield _applied(recording, disk, [(number, size)], end, "torn write")


def _applied(
    recording: Recording, disk: Disk, some: list[tuple[int, int | None]], end: int, what: str
) -> DiskState:
    other = disk.copy()
    for number, size in some:
        other.write(recording.log, recording.log.entries[number], size)
    return _state(recording, other, max(number for number, _ in some), end, what)


def _subsets(matter: list[int]) -> list[list[int]]:
    if len(matter) > BOUND:
        return [*([one] for one in matter), matter]
    return [list(some) for count in range(1, len(matter) + 1)
            for some in combinations(matter, count)]  # fmt: skip


def _cuts(entry: Entry) -> list[int]:
    sectors = entry.size // SECTOR
    step = max(1, -(-(sectors - 1) // _TORN))
    return [count * SECTOR for count in range(1, sectors, step)]


def _torn_super(recording: Recording, disk: Disk, entry: Entry, number: int) -> Iterator[DiskState]:
    """Yield states in which a superblock came through in part."""
    new = recording.log.data(entry)
    old = bytes(disk.memory().buffer[entry.start : entry.start + entry.size])
    known = {old, new}
    for size in _cuts(entry):
        mixed = new[:size] + old[size:]
        if mixed not in known:
            known.add(mixed)
            state = _applied(recording, disk, [(number, size)], number, "torn superblock")
            state.moments = state.moments[:1]
            yield state


class Places:
    """Those of a device that a mount and who reads the files look at."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(ranges):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def has(self, entry: Entry) -> bool:
        """Whether a write touches one."""
        at = bisect_right(self._starts, entry.start + entry.size - 1) - 1
        return at >= 0 and self._ends[at] > entry.start


def _in_use(disk: Memory) -> Places | None:
    """Return what is in use on a device; None where that cannot be read."""
    try:
        with Image(disk.buffer) as image:
            fs = Filesystem(image)
            logical = [*_extents(fs), *_logged(fs)]
            ranges = [
                (stripe + start - chunk.logical, stripe + end - chunk.logical)
                for start, end in logical
                for chunk in image.chunks
                if chunk.logical <= start < chunk.logical + chunk.length
                for stripe in chunk.stripes
            ]
    except BtrfsModelError:
        return None
    return Places([*ranges, (_SUPER, _SUPER + SUPER_SIZE)])


def _extents(fs: Filesystem) -> Iterator[tuple[int, int]]:
    """Yield what the last commit refers to."""
    for item in fs.tree(ObjectId.EXTENT_TREE).items():
        start, kind, offset = item.key
        if kind == ItemType.EXTENT_ITEM:
            yield start, start + offset
        elif kind == ItemType.METADATA_ITEM:
            yield start, start + fs.image.nodesize


def _logged(fs: Filesystem) -> Iterator[tuple[int, int]]:
    """Yield what the log is made of, and the data that it names."""
    if fs.log_root_tree is None:
        return
    trees = list(fs.log_trees.values())
    for tree in [fs.log_root_tree, *trees]:
        for block in tree.blocks(0):
            yield block.logical, block.logical + fs.image.nodesize
    for tree in trees:
        for item in tree.items((0, 0, 0), (U64_MAX, 255, U64_MAX)):
            if item.key.type != ItemType.EXTENT_DATA:
                continue
            extent = file_extent(item.data)
            if not isinstance(extent, InlineExtent) and extent.disk_bytenr:
                yield extent.disk_bytenr, extent.disk_bytenr + extent.disk_num_bytes
