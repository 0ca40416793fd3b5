# SPDX-License-Identifier: GPL-2.0-only
"""Logs of kernels and logs of the model, in a form that can be compared.

Left out is what depends on the machine: addresses, times, what a kernel leaves in fields of inode
items that it does not set (nbytes, reserved), and versions, which begin anywhere. Transactions
count from the one that the log belongs to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.mount.live_inode import InodeFields
from btrfs_model.ondisk.items import InlineExtent, dir_items, file_extent, inode_extrefs, inode_refs
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.tree import Tree

LogItems = dict[Any, Any]
"""Content by key; ``"csums"``: checksums."""


def items_of(fs: Filesystem, tree: int) -> dict[tuple[int, int, int], bytes]:
    """Every item of a tree."""
    return {item.key: bytes(item.data) for item in fs.tree(tree).items()}


def logs_of(fs: Filesystem) -> dict[int, LogItems]:
    """Items of every log, by subvolume."""
    now = fs.image.superblock.generation + 1
    found = {}
    for root, tree in fs.log_trees.items():
        extents = _Addresses()
        items: LogItems = {}
        for item in tree.items():
            if item.key.type != ItemType.EXTENT_CSUM:
                items[tuple(item.key)] = _content(item.key, bytes(item.data), now, extents)
        items["csums"] = _checksums(fs, tree, extents)
        found[root] = items
    return found


def comparable_logs(image: Path, scenario: Scenario) -> dict[int, LogItems]:
    """Return logs; of what is compressed not what the checksums are: that is the compressor's."""
    with Filesystem.open(image) as fs:
        logs = logs_of(fs)
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


def _content(key: Key, data: bytes, now: int, extents: _Addresses) -> Any:
    kind = key.type
    if kind == ItemType.INODE_ITEM:
        item = InodeFields.unpack(data)
        # how many commits a mount makes is not the matter here: old is old
        made = 0 if not item.generation else 1 if item.generation < now else 2
        return replace(
            item, generation=made, transid=item.transid - now,
            nbytes=0, sequence=0, reserved=(), atime=0, ctime=0, mtime=0, otime=0,
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
