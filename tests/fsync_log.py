# SPDX-License-Identifier: GPL-2.0-only
"""Logs of kernels and logs of the model, in a form that can be compared."""

import re
from dataclasses import replace

import corpus

from btrfs_model.filesystem import Filesystem
from btrfs_model.filesystem.live_inode import InodeFields
from btrfs_model.image import Image
from btrfs_model.ondisk.items import dir_items, file_extent, inode_extrefs, inode_refs
from btrfs_model.ondisk.keys import ItemType

LogItems = dict[tuple[int, int, int], object]


def logs_of(fs: Filesystem) -> dict[int, LogItems]:
    """Items of every log, by subvolume."""
    places: dict[int, int] = {}
    found = {}
    for root, tree in fs.log_trees.items():
        items = {tuple(item.key): (item.key, bytes(item.data)) for item in tree.items()}
        found[root] = {}
        for key, data in items.values():
            found[root][_key(key, places)] = _content(key, data, places)
    return found


def _key(key, places):  # noqa: ANN001, ANN202
    if key.type == ItemType.EXTENT_CSUM:
        return (int(key.objectid), int(key.type), 0)
    return tuple(map(int, key))


def _content(key, data, places):  # noqa: ANN001, ANN202
    kind = key.type
    if kind == ItemType.INODE_ITEM:
        item = InodeFields.unpack(data)
        return replace(item, nbytes=0, atime=0, ctime=0, mtime=0, otime=0)
    if kind == ItemType.INODE_REF:
        return inode_refs(data)
    if kind == ItemType.INODE_EXTREF:
        return inode_extrefs(data)
    if kind in (ItemType.DIR_INDEX, ItemType.XATTR_ITEM, ItemType.DIR_ITEM):
        return dir_items(data)
    if kind == ItemType.EXTENT_DATA:
        item = file_extent(data)
        if hasattr(item, "disk_bytenr"):
            return item._replace(disk_bytenr=bool(item.disk_bytenr))
        return item
    return data
