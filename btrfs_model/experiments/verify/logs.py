# SPDX-License-Identifier: GPL-2.0-only
"""Logs of kernels and of the model, and what is there after replays, in a form to be compared.

Of logs is left out what depends on the machine: addresses, what a kernel leaves in fields of inode
items that it does not set (nbytes, reserved, before log-otime also otime), and versions, which
begin anywhere. Transactions count from the one that the log belongs to. Times that a scenario sets
are compared as they are, those of the clock by their order in an inode: each call has a tick of its
own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, KernelHungError, ReplayBugError
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.verify.bench import Bench
from btrfs_model.kernels.inside import asked
from btrfs_model.kernels.inside.listing import Listing
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.kernels.native import Native
from btrfs_model.mount.live_inode import InodeFields
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.items import InlineExtent, dir_items, file_extent, inode_extrefs, inode_refs
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.patches import Patch
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.tree import Tree

Items = dict[tuple[int, int, int], bytes]
"""Payloads by key."""
LogItems = dict[Any, Any]
"""Content by key; ``"csums"``: checksums."""


def items_of(fs: Filesystem, tree: int) -> Items:
    """Every item of a tree."""
    return {item.key: bytes(item.data) for item in fs.tree(tree).items()}


_LATER = 2**33
"""The clock of the model's replays: no time of a call."""
TIMES = ("atime", "ctime", "mtime", "otime")
"""Of inodes; a kernel before log-otime leaves the last one in logs as memory had it."""
_CLOCK = 10**18
"""Earlier times, of before 2001, are none of a clock."""


def times_of(behaviour: str) -> Sequence[str]:
    """Return the times of inodes that a kernel's logs have."""
    return TIMES if Patch.LOG_OTIME in Behaviour.parse(behaviour) else TIMES[:3]


@contextmanager
def clock_of_replays() -> Iterator[None]:
    """Let replays take times of another century, so that they are known."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = str(_LATER)
    try:
        yield
    finally:
        del os.environ["SOURCE_DATE_EPOCH"]
        if before is not None:
            os.environ["SOURCE_DATE_EPOCH"] = before


BUG: Final = "the kernel dies"
"""A mount that ends in a BUG."""
NOT_MOUNTED: Final = "not mounted"
"""What the machine's own kernel would die of."""


ENDS: Final = ("refused mounts", "kernel BUGs", NOT_MOUNTED)
"""Units of mounts that do not go well."""


def both_replayed(
    bench: Bench, image: Path
) -> tuple[Listing | int | str, WritableFilesystem | int | str]:
    """Let a kernel replay logs, and the model those that the kernel wrote.

    The machine's own kernel does not get what it would die of by the model.

    Returns
    -------
    dict, int or str
        What the kernel lists then; the errno of a mount that is refused, :data:`BUG`, or
        :data:`NOT_MOUNTED`.
    WritableFilesystem, int or str
        What the model makes; likewise.

    Raises
    ------
    KernelHungError
        Where the kernel dies and the model does not say so.
    """
    with Filesystem.open(image) as fs:
        subvolumes = fs.subvolumes()["path"].tolist()
    with clock_of_replays():
        ours = replayed(image, bench.behaviour)
    if ours == BUG and isinstance(bench.kernel, Native):
        return NOT_MOUNTED, ours
    try:
        with bench.kernel.attached(image, read_only=False) as source:
            place = Place(source=source, top=bench.kernel.top, options="noatime")
            listed = bench.kernel.call(asked.replayed, place, subvolumes)
            if listed == asked.KILLED:
                bench.kernel.stop()  # what is locked stays so
            return (BUG if listed == asked.KILLED else listed), ours
    except KernelHungError:
        if ours != BUG:
            raise
        return BUG, ours


def same_ends_of_mounts(bench: Bench, theirs: int | str, ours: int | str) -> None:
    """Compare how mounts with logs end that do not go well on one side; 0 is one that does."""
    if theirs == NOT_MOUNTED:
        bench.compared[NOT_MOUNTED] += 1
        return
    unit = ENDS[ours == BUG]
    bench.same(unit, "how a mount with logs ends", theirs, ours, how=(theirs, ours))


def replayed(image: Path, behaviour: str) -> WritableFilesystem | int | str:
    """Replay logs as a mount does; the errno of one that is refused, or :data:`BUG`."""
    try:
        return WritableFilesystem.load(image, replay_behaviour=behaviour)
    except ReplayBugError:
        return BUG
    except CorruptImageError as error:
        return error.fault.found if error.fault.code == Code.ERRNO else error.errno or 0
    except OSError as error:
        return error.errno or 0


def items_after_replays(
    kernel: Filesystem, model: Filesystem, tree: int, since: int
) -> tuple[Items, Items]:
    """Return items of a tree after both replays, with the kernel's times where both took one.

    `since`: the kernel's clock before its replay, in nanoseconds.
    """
    its, mine = items_of(kernel, tree), items_of(model, tree)
    for key, data in its.items():
        if key[1] == ItemType.INODE_ITEM and key in mine:
            mine[key] = _with_its_times(mine[key], data, since)
    return its, mine


def _with_its_times(ours: bytes, theirs: bytes, since: int) -> bytes:
    mine, its = InodeFields.unpack(ours), InodeFields.unpack(theirs)
    for name in TIMES:
        if getattr(mine, name) >= _LATER * 10**9 and getattr(its, name) >= since:
            setattr(mine, name, getattr(its, name))
    return theirs if mine == its else ours


def checksums_by_sector(fs: Filesystem) -> dict[int, bytes]:
    """Return checksums by sector: how they are spread over items depends on what was freed."""
    size = fs.image.superblock.csum_size
    return {
        key[2] + at // size * fs.image.sectorsize: data[at : at + size]
        for key, data in items_of(fs, ObjectId.CSUM_TREE).items()
        for at in range(0, len(data), size)
    }


def logs_of(fs: Filesystem, times: Sequence[str] = ()) -> dict[int, LogItems]:
    """Items of every log, by subvolume, with these times of inodes."""
    now = fs.image.superblock.generation + 1
    found = {}
    for root, tree in fs.log_trees.items():
        extents = _Addresses()
        items: LogItems = {}
        for item in tree.items():
            if item.key.type != ItemType.EXTENT_CSUM:
                items[tuple(item.key)] = _content(item.key, bytes(item.data), now, extents, times)
        items["csums"] = _checksums(fs, tree, extents)
        found[root] = items
    return found


def without_ranges(
    image: Path, root: int, items: LogItems
) -> tuple[LogItems, dict[int, list[int]]]:
    """Return a log without its ranges, and which names of the last commit these delete.

    A range names a deletion that waits for the worker, or what lies between two old names of a leaf
    that was changed: which ranges there are depends on when the worker ran. A replay asks which
    names of the last commit lie in one; the others are of this transaction, and gone.

    Returns
    -------
    dict
        The other items.
    dict
        By inode number of the directory, indexes of names.
    """
    ranges = [key for key in items if key[1] == ItemType.DIR_LOG_INDEX]
    deleted: dict[int, list[int]] = {}
    with Filesystem.open(image) as fs:
        tree = fs.tree(root)
        for directory, _, first in ranges:
            last = int.from_bytes(items[directory, ItemType.DIR_LOG_INDEX, first], "little")
            low, high = ((directory, ItemType.DIR_INDEX, index) for index in (first, last))
            found = [item.key.offset for item in tree.items(low, high)]
            deleted.setdefault(directory, []).extend(found)
    rest = {key: value for key, value in items.items() if key[1] != ItemType.DIR_LOG_INDEX}
    return rest, {directory: sorted(set(found)) for directory, found in deleted.items()}


def comparable_logs(
    image: Path, scenario: Scenario, times: Sequence[str] = ()
) -> dict[int, LogItems]:
    """Return logs; of what is compressed not what the checksums are: that is the compressor's.

    `times`: which times of inodes are compared.
    """
    with Filesystem.open(image) as fs:
        logs = logs_of(fs, times)
    if "compress" in scenario.steps[1].arguments["options"]:
        for items in logs.values():
            known, other = items["csums"]
            items["csums"] = known.keys(), other.total()
    return logs


def _checksums(fs: Filesystem, tree: Tree, extents: _Addresses) -> Any:
    """Checksums by sector of the extents that are logged, of others how often there is which."""
    size = fs.image.superblock.csum_size
    known: dict[tuple[int, int], bytes] = {}
    other: Counter[bytes] = Counter()
    for item in tree.items((2**64 - 10, ItemType.EXTENT_CSUM, 0)):
        for at in range(0, len(item.data), size):
            sum_ = bytes(item.data[at : at + size])
            place = extents.place(item.key.offset + at // size * fs.image.sectorsize)
            if place is None:
                other[sum_] += 1
            else:
                known[place] = sum_
    return known, other


class _Addresses:
    """Extents on disk, numbered as they are met."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, int]] = {}

    def number(self, bytenr: int, length: int) -> int:
        if not bytenr:
            return -1
        return self.known.setdefault(bytenr, (len(self.known), length))[0]

    def place(self, bytenr: int) -> tuple[int, int] | None:
        for start, (number, length) in self.known.items():
            if start <= bytenr < start + length:
                return number, bytenr - start
        return None


def _by_order(item: InodeFields, names: Sequence[str]) -> dict[str, int]:
    """Return times of an inode: those of the clock as they follow each other."""
    times = {name: getattr(item, name) for name in names}
    if "ctime" in times and item.ctime >= item.mtime >= _CLOCK:
        # fallocate() reads the clock twice: whether it went on meanwhile is chance
        times["ctime"] = times["mtime"]
    ticks = sorted({time for time in times.values() if time >= _CLOCK})
    found = {
        name: time if time < _CLOCK else _CLOCK + ticks.index(time) for name, time in times.items()
    }
    return dict.fromkeys(TIMES, 0) | found


def _content(key: Key, data: bytes, now: int, extents: _Addresses, times: Sequence[str]) -> Any:
    kind = key.type
    if kind == ItemType.INODE_ITEM:
        item = InodeFields.unpack(data)
        # how many commits a mount makes is not the matter here: old is old
        made = 0 if not item.generation else 1 if item.generation < now else 2
        return replace(
            item, generation=made, transid=item.transid - now,
            nbytes=0, sequence=0, reserved=(), **_by_order(item, times),
        )  # fmt: skip
    if kind == ItemType.INODE_REF:
        return inode_refs(data)
    if kind == ItemType.INODE_EXTREF:
        return inode_extrefs(data)
    if kind in (ItemType.DIR_INDEX, ItemType.DIR_ITEM):
        return [entry._replace(transid=entry.transid - now) for entry in dir_items(data)]
    if kind == ItemType.XATTR_ITEM:
        return [(entry.name, entry.data) for entry in dir_items(data)]
    if kind == ItemType.EXTENT_DATA:
        extent = file_extent(data)
        extent = extent._replace(generation=extent.generation < now)
        if isinstance(extent, InlineExtent):
            return extent
        number = extents.number(extent.disk_bytenr, extent.disk_num_bytes)
        return extent._replace(disk_bytenr=number)
    return data
