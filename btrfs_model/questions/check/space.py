# SPDX-License-Identifier: GPL-2.0-only
"""Space: chunks, device extents, block groups, free space and checksums agree with the extents.

::

    chunk tree       chunk at L, length, stripes -----> device tree   device extents
       |                                                              one for each stripe
       v
    block group at L, length, used  = sum of the extents in it
    free space tree: the gaps between the extents in it
    checksum tree:   sectors inside of data extents
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.native.items import gather, records, select
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.structs import (
    BLOCK_GROUP_ITEM,
    DEV_EXTENT,
    DEV_ITEM,
    FILE_EXTENT_ITEM,
    FREE_SPACE_INFO,
    DevItem,
)
from btrfs_model.questions.check.extents import Extents
from btrfs_model.questions.check.report import Report

if TYPE_CHECKING:
    from btrfs_model.volume.checksums import DataChecksums
    from btrfs_model.volume.device.devices import Member
    from btrfs_model.volume.filesystem import Filesystem

_U64 = np.uint64
_DATA: Final = 1 << 0
_METADATA: Final = 1 << 1 | 1 << 2
_USING_BITMAPS: Final = 1 << 0
_TEMPORARY: Final = 21 << 20
"""End of the groups that mkfs begins with, and removes: from 1 MiB on 4 MiB, and twice 8 MiB."""


class _BlockGroup(NamedTuple):
    start: int
    length: int
    used: int
    flags: int
    key: Key
    block: int
    slot: int


class Coverage:
    """How much of any range a set of ranges covers.

    `start`, `end`: uint64, ascending ranges that do not overlap.
    """

    def __init__(self, start: npt.NDArray[np.uint64], end: npt.NDArray[np.uint64]) -> None:
        self.start = start
        self.end = end
        self._before = np.concatenate([[0], np.cumsum(end - start)]).astype(_U64)

    def below(self, address: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return how many covered bytes lie below each address."""
        if not len(self.start):
            return np.zeros(len(address), _U64)
        row = np.searchsorted(self.start, address, "right")
        last = np.maximum(row, 1) - 1
        inside = np.minimum(self.end[last], address) - self.start[last]
        return np.where(row == 0, _U64(0), self._before[last] + inside)

    def of(
        self, start: npt.NDArray[np.uint64], length: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint64]:
        """Return how many bytes of each range are covered."""
        return self.below(start + length) - self.below(start)


def check_space(fs: Filesystem, extents: Extents, report: Report) -> None:
    """Compare chunks, device extents, block groups and free space."""
    groups = _block_groups(fs)
    _check_groups(fs, groups, report)
    _check_devices(fs, report)
    _check_usage(fs, groups, extents, report)
    if fs.image.superblock.has_compat_ro("FREE_SPACE_TREE_VALID"):
        _check_free_space(fs, groups, extents, report)


def _block_groups(fs: Filesystem) -> list[_BlockGroup]:
    """All block group items; they have a tree of their own with that feature."""
    own = fs.trees.get(ObjectId.BLOCK_GROUP_TREE)
    columns = (own or fs.tree(ObjectId.EXTENT_TREE)).scan()
    columns = select(
        columns,
        (columns["type"] == ItemType.BLOCK_GROUP_ITEM) & (columns["size"] == BLOCK_GROUP_ITEM.size),
    )
    rows = records(fs.image, columns, BLOCK_GROUP_ITEM)
    return [
        _BlockGroup(start, length, used, flags,
                    Key(start, int(ItemType.BLOCK_GROUP_ITEM), length), block, slot)
        for start, length, used, flags, block, slot in zip(
            columns["objectid"].tolist(), columns["offset"].tolist(), rows["used"].tolist(),
            rows["flags"].tolist(), columns["block"].tolist(), columns["slot"].tolist(),
            strict=True)
    ]  # fmt: skip


def _place(group: _BlockGroup) -> dict[str, Any]:
    return {
        "tree": int(ObjectId.EXTENT_TREE),
        "block": group.block,
        "slot": group.slot,
        "key": group.key,
    }


def _check_groups(fs: Filesystem, groups: list[_BlockGroup], report: Report) -> None:
    """Check that each chunk has a block group and the other way round."""
    chunks = {(chunk.logical, chunk.length, chunk.type) for chunk in fs.image.chunks}
    have = {(group.start, group.length, group.flags) for group in groups}
    for group in groups:
        if (group.start, group.length, group.flags) not in chunks:
            report.add("block group is no chunk", **_place(group))
    for logical, length, flags in sorted(chunks - have):
        report.add(
            "chunk at {logical} of {length} bytes, flags {flags:#x}, is no block group",
            tree=int(ObjectId.CHUNK_TREE),
            logical=logical,
            length=length,
            flags=flags,
        )


def _check_devices(fs: Filesystem, report: Report) -> None:
    """Check that stripes are device extents, and that the device items count them."""
    columns = fs.tree(ObjectId.DEV_TREE).scan()
    columns = select(
        columns, (columns["type"] == ItemType.DEV_EXTENT) & (columns["size"] == DEV_EXTENT.size)
    )
    rows = records(fs.image, columns, DEV_EXTENT)
    devid, physical, length = columns["objectid"], columns["offset"], rows["length"]
    tree = int(ObjectId.DEV_TREE)
    inside = (physical[1:] < (physical + length)[:-1]) & (devid[1:] == devid[:-1])
    over = np.flatnonzero(inside) + 1
    report.rows("device extent begins inside the one before", columns, over, tree)
    beyond = np.zeros(len(devid), np.bool_)
    for device in fs.image.devices:
        mine = devid == _U64(device.devid)
        item = _check_device_item(fs, device, int(length[mine].sum()), report)
        if item is not None:
            beyond |= mine & (physical + length > item.total_bytes)
    report.rows("device extent ends beyond the device", columns, beyond, tree)
    fields = (rows["chunk_offset"], devid, physical, length)
    extents = list(zip(*(field.tolist() for field in fields), strict=True))
    sole = fs.image.devices[0].devid
    stripes = {
        (chunk.logical, chunk.devids[number] if chunk.devids else sole, at, chunk.stripe_length)
        for chunk in fs.image.chunks
        for number, at in enumerate(chunk.stripes)
    }
    unknown = np.array([extent not in stripes for extent in extents], np.bool_)
    report.rows("device extent is no stripe of a chunk", columns, unknown, tree)
    for logical, device_of, at, size in sorted(stripes - set(extents)):
        report.add(
            "stripe of {size} bytes at {stripe} of device {devid}, of chunk {logical}, is no "
            "device extent",
            tree=int(ObjectId.CHUNK_TREE),
            size=size,
            stripe=at,
            devid=device_of,
            logical=logical,
        )


def _check_device_item(fs: Filesystem, device: Member, used: int, report: Report) -> DevItem | None:
    tree = int(ObjectId.CHUNK_TREE)
    found = fs.chunk_tree.get((1, ItemType.DEV_ITEM, device.devid))
    if found is None or len(found.data) != DEV_ITEM.size:
        report.add("device {devid} has no item", tree=tree, devid=device.devid)
        return None
    item: DevItem = DEV_ITEM.unpack(found.data)
    says = {"device item": item.bytes_used}
    if device.superblock is not None:
        says["superblock"] = device.superblock.dev_item.bytes_used
    for name, bytes_used in says.items():
        if bytes_used != used:
            report.add(
                f"{name} says {{says}} bytes are used, device extents have {{used}}",
                tree=tree, block=found.block, slot=found.slot, key=found.key, says=bytes_used,
                used=used,
            )  # fmt: skip
    return item


def _check_usage(
    fs: Filesystem, groups: list[_BlockGroup], extents: Extents, report: Report
) -> None:
    """Check that extents lie in block groups of their kind, which count their bytes."""
    tree = int(ObjectId.EXTENT_TREE)
    starts = np.array([group.start for group in groups], _U64)
    ends = np.array([group.start + group.length for group in groups], _U64)
    flags = np.array([group.flags for group in groups], _U64)
    if not len(starts):
        report.add("there are no block groups", tree=tree)
        return
    row = np.searchsorted(starts, extents.start, "right") - 1
    outside = (row < 0) | (extents.end > ends[row])
    report.rows("extent lies in no block group", extents.columns, outside, tree)
    kind = np.where(extents.is_data, _U64(_DATA), _U64(_METADATA))
    foreign = ~outside & (flags[row] & kind == 0)
    report.rows("extent lies in a block group of another kind", extents.columns, foreign, tree)
    used = np.bincount(row[~outside], extents.length[~outside], minlength=len(starts))
    for group, found in zip(groups, used.astype(np.int64).tolist(), strict=True):
        if group.used != found:
            report.add(
                "block group says {says} bytes are used, its extents have {found}",
                **_place(group),
                says=group.used,
                found=found,
            )
    total = int(used.sum())
    if fs.image.superblock.bytes_used != total:
        report.add(
            "superblock says {says} bytes are used, extents have {found}",
            says=fs.image.superblock.bytes_used,
            found=total,
        )


# -------------------------------------------------------------------------------- free space


def _check_free_space(
    fs: Filesystem, groups: list[_BlockGroup], extents: Extents, report: Report
) -> None:
    """Check that the free space tree has the gaps between extents, group by group.

    What it has of :data:`_TEMPORARY` groups does not matter: mkfs leaves such behind.
    """
    tree = fs.trees.get(ObjectId.FREE_SPACE_TREE)
    if tree is None:
        report.add("there is no free space tree, but the superblock says it is valid")
        return
    columns = tree.scan()
    infos = {}
    is_info = (columns["type"] == ItemType.FREE_SPACE_INFO) & (
        columns["size"] == FREE_SPACE_INFO.size
    )
    items = select(columns, is_info)
    for start, length, info in zip(
        items["objectid"].tolist(), items["offset"].tolist(),
        records(fs.image, items, FREE_SPACE_INFO).tolist(), strict=True,
    ):  # fmt: skip
        infos[start, length] = info
    known = {(group.start, group.length) for group in groups}
    for start, length in sorted(infos.keys() - known):
        if start >= _TEMPORARY:
            report.add("free space info of no block group", tree=int(ObjectId.FREE_SPACE_TREE),
                       key=Key(start, int(ItemType.FREE_SPACE_INFO), length))  # fmt: skip
    spaces = select(columns, columns["type"] == ItemType.FREE_SPACE_EXTENT)
    bitmaps = select(columns, columns["type"] == ItemType.FREE_SPACE_BITMAP)
    for group in groups:
        place: dict[str, Any] = {"tree": int(ObjectId.FREE_SPACE_TREE),
                 "key": Key(group.start, int(ItemType.FREE_SPACE_INFO), group.length)}  # fmt: skip
        info = infos.get((group.start, group.length))
        if info is None:
            report.add("block group has no free space info", **place)
            continue
        if info[1] & _USING_BITMAPS:
            found = _from_bitmaps(fs, select(bitmaps, _within(bitmaps["objectid"], group)))
        else:
            rows = select(spaces, _within(spaces["objectid"], group))
            found = np.stack([rows["objectid"], rows["objectid"] + rows["offset"]], axis=1)
        wanted = _gaps(group, extents)
        if len(found) != info[0]:
            report.add("free space info says {says} extents, there are {found}", **place,
                       says=info[0], found=len(found))  # fmt: skip
        if not np.array_equal(found, wanted):
            have, want = set(map(tuple, found.tolist())), set(map(tuple, wanted.tolist()))
            odd = min(have ^ want)
            report.add(
                "free space {odd} is in the {where} only", **place, odd=f"{odd[0]} to {odd[1]}",
                where="free space tree" if odd in have else "gaps between extents",
            )  # fmt: skip


def _within(start: npt.NDArray[np.uint64], group: _BlockGroup) -> npt.NDArray[np.bool_]:
    return (start >= _U64(group.start)) & (start - _U64(group.start) < _U64(group.length))


def _gaps(group: _BlockGroup, extents: Extents) -> npt.NDArray[np.uint64]:
    """Return the ranges of a block group between its extents, shape (gaps, 2)."""
    inside = _within(extents.start, group)
    end = group.start + group.length
    starts = np.append(extents.start[inside], _U64(end))
    ends = np.concatenate([np.array([group.start], _U64), extents.end[inside]])
    gap = starts > ends
    return np.stack([ends[gap], starts[gap]], axis=1)


def _from_bitmaps(fs: Filesystem, columns: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    """Return the ranges that bitmaps of free space say are free, shape (ranges, 2)."""
    sector = fs.image.sectorsize
    edges: list[tuple[int, int]] = []
    for number, (start, length, size) in enumerate(
        zip(columns["objectid"].tolist(), columns["offset"].tolist(), columns["size"].tolist(),
            strict=True)
    ):  # fmt: skip
        row = gather(fs.image, select(columns, slice(number, number + 1)), size)[0]
        bits = np.unpackbits(row, bitorder="little")[: length // sector]
        change = np.diff(np.concatenate([[0], bits.astype(np.int8), [0]]))
        for low, high in zip(
            np.flatnonzero(change == 1).tolist(), np.flatnonzero(change == -1).tolist(),
            strict=True,
        ):  # fmt: skip
            low, high = start + low * sector, start + high * sector
            # a run that goes on in the next bitmap is one
            if edges and edges[-1][1] == low:
                edges[-1] = (edges[-1][0], high)
            else:
                edges.append((low, high))
    return np.array(edges, _U64).reshape(-1, 2)


# --------------------------------------------------------------------------------- checksums


def check_checksums(fs: Filesystem, extents: Extents, report: Report) -> None:
    """Check that checksums are of sectors in data extents, and of each sector one."""
    sums = fs.checksums
    columns = _sum_columns(fs, sums)
    tree = int(ObjectId.CSUM_TREE)
    over = np.flatnonzero(sums.starts[1:] < sums.ends[:-1]) + 1
    report.rows("checksums of sectors that the item before has", columns, over, tree)
    data, logged = extents.is_data, _logged_extents(fs)
    start = np.concatenate([extents.start[data], logged["disk_bytenr"]])
    end = np.concatenate([extents.end[data], logged["disk_bytenr"] + logged["disk_num_bytes"]])
    order = np.argsort(start, kind="stable")
    end = np.maximum.accumulate(end[order])
    start = np.maximum(start[order], np.append(np.zeros(1, _U64), end)[:-1])
    coverage = Coverage(start, np.maximum(start, end))
    length = sums.ends - sums.starts
    lost = coverage.of(sums.starts, length) < length
    report.rows("checksums of sectors in no extent of data", columns, lost, tree)


def _logged_extents(fs: Filesystem) -> npt.NDArray[Any]:
    """Return the extents of data that logs name: a replay adds what the extent tree lacks."""
    found = [np.empty(0, FILE_EXTENT_ITEM.dtype)]
    for tree in fs.log_trees.values():
        columns = tree.scan()
        regular = columns["size"] == FILE_EXTENT_ITEM.size
        columns = select(columns, (columns["type"] == ItemType.EXTENT_DATA) & regular)
        found.append(records(fs.image, columns, FILE_EXTENT_ITEM))
    return np.concatenate(found)


def _sum_columns(fs: Filesystem, sums: DataChecksums) -> dict[str, npt.NDArray[Any]]:
    tree = fs.trees.get(ObjectId.CSUM_TREE)
    if tree is None:
        return {}
    kind = (ObjectId.EXTENT_CSUM, ItemType.EXTENT_CSUM)
    return tree.scan((*kind, 0), (*kind, 2**64 - 1))
