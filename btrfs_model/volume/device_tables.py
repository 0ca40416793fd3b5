# SPDX-License-Identifier: GPL-2.0-only
"""Devices and stripes of a filesystem as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pandas as pd

from btrfs_model.ondisk.chunks import flag_names
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import DEV_ITEM

if TYPE_CHECKING:
    from btrfs_model.ondisk.structs import DevItem
    from btrfs_model.volume.image import Image
    from btrfs_model.volume.tree import Tree

_STRIPES = {
    "chunk": "uint64", "length": "uint64", "type": "object", "stripe": "uint64", "devid": "uint64",
    "offset": "uint64", "stripe_length": "uint64", "missing": "bool",
}  # fmt: skip


def stripes(image: Image) -> pd.DataFrame:
    """Return the stripes; see :meth:`.Filesystem.stripes`."""
    members = {one.devid: one for one in image.devices}
    sole = image.devices[0].devid
    rows: list[tuple[Any, ...]] = []
    for chunk in image.chunks:
        devids = chunk.devids or (sole,) * len(chunk.stripes)
        for number, (devid, offset) in enumerate(zip(devids, chunk.stripes, strict=True)):
            rows.append((chunk.logical, chunk.length, flag_names(chunk.type), number, devid, offset,
                         chunk.stripe_length, not members[devid].path))  # fmt: skip
    return pd.DataFrame(rows, columns=list(_STRIPES)).astype(_STRIPES)


def devices(image: Image, chunk_tree: Tree) -> pd.DataFrame:
    """Return the devices; see :meth:`.Filesystem.devices`."""
    placed = stripes(image)
    kinds = sorted(placed["type"].unique())
    rows = []
    for one in image.devices:
        item = chunk_tree.get((1, ItemType.DEV_ITEM, one.devid))
        found: DevItem | None = None
        if item is not None:
            found = item.decode(DEV_ITEM.unpack, image.path, chunk_tree.objectid)
        mine = placed[placed["devid"] == one.devid]
        taken = mine.groupby("type")["stripe_length"].sum()
        size, allocated = found.total_bytes if found else 0, int(mine["stripe_length"].sum())
        rows.append({
            "devid": one.devid,
            "uuid": str(UUID(bytes=one.uuid)),
            "path": one.path,
            "size": size,
            "allocated": allocated,
            "unallocated": max(size - allocated, 0),
            "missing": not one.path,
            **{kind: int(taken.get(kind, 0)) for kind in kinds},
        })  # fmt: skip
    table = pd.DataFrame(rows)
    whole = ("devid", "size", "allocated", "unallocated", *kinds)
    return table.astype(dict.fromkeys(whole, "uint64") | {"uuid": "object", "path": "object"})
