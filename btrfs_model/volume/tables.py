# SPDX-License-Identifier: GPL-2.0-only
"""Subvolumes, devices and stripes of a filesystem as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from btrfs_model.ondisk.chunks import flag_names
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import DEV_ITEM
from btrfs_model.volume.quotas import LimitFlag, counted_quotas, group_name, quotas_of
from btrfs_model.volume.roots import timespec_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    import pandas as pd

    from btrfs_model.ondisk.structs import DevItem
    from btrfs_model.volume.forest import Forest
    from btrfs_model.volume.image import Image
    from btrfs_model.volume.roots import Root
    from btrfs_model.volume.tree import Tree

_TIMES = ("ctime", "otime", "stime", "rtime")
_INT64 = np.iinfo(np.int64)
_TIME_UNITS = (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9))
_SUBVOLUMES = {
    "id": "uint64", "path": "object", "parent": "uint64", "uuid": "object",
    "parent_uuid": "object", "received_uuid": "object", "generation": "uint64",
    "ctransid": "uint64", "otransid": "uint64", "stransid": "uint64", "rtransid": "uint64",
    "ctime": "object", "otime": "object", "stime": "object", "rtime": "object",
    "read_only": "bool", "refs": "uint32",
}  # fmt: skip
_QGROUPS = {
    "qgroup": "object", "path": "object", "rfer": "uint64", "excl": "uint64", "reached": "uint64",
    "alone": "uint64", "max_rfer": "UInt64", "max_excl": "UInt64", "groups": "object",
}  # fmt: skip
_STRIPES = {
    "chunk": "uint64", "length": "uint64", "type": "object", "stripe": "uint64", "devid": "uint64",
    "offset": "uint64", "stripe_length": "uint64", "missing": "bool",
}  # fmt: skip


def subvolumes(
    found: Iterable[Root], parents: Mapping[int, int], path_of: Callable[[int], str]
) -> pd.DataFrame:
    """Return the subvolumes; see :meth:`.Filesystem.subvolumes`.

    `found`, `parents`: their root items, and by id the subvolumes that contain them.
    `path_of`: gives the path of the subvolume of an id.
    """
    import pandas as pd

    rows = []
    for root in found:
        item = root.item
        row: dict[str, Any] = {
            "id": root.id, "path": path_of(root.id), "parent": parents.get(root.id, 0)
        }  # fmt: skip
        for field in ("uuid", "parent_uuid", "received_uuid"):
            value = getattr(item, field)
            row[field] = value.hex() if any(value) else ""
        for field in ("generation", "ctransid", "otransid", "stransid", "rtransid"):
            row[field] = getattr(item, field)
        for field in _TIMES:
            row[field] = timespec_ns(getattr(item, field))
        rows.append(row | {"read_only": root.is_read_only, "refs": item.refs})
    frame = pd.DataFrame(
        # text stays Python's: paths may be no UTF-8
        {name: pd.Series([row[name] for row in rows], dtype=dtype)
         for name, dtype in _SUBVOLUMES.items()}
    )  # fmt: skip
    for field in _TIMES:
        frame[field] = _to_datetime(frame[field].tolist())
    return frame


def _to_datetime(times: list[int]) -> pd.DatetimeIndex:
    """Nanoseconds as UTC times of the finest unit that has room for all of them; 0 is NaT."""
    import pandas as pd

    unit, each = next(
        (unit, each) for unit, each in _TIME_UNITS
        if all(_INT64.min < time // each <= _INT64.max for time in times)
    )  # fmt: skip
    counts = [time // each if time else _INT64.min for time in times]
    return pd.DatetimeIndex(np.array(counts, f"M8[{unit}]"), tz="UTC")


def stripes(image: Image) -> pd.DataFrame:
    """Return the stripes; see :meth:`.Filesystem.stripes`."""
    import pandas as pd

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
    import pandas as pd

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


def qgroups(
    trees: Mapping[int, Tree],
    image: Image,
    forest: Forest,
    alive: Container[int],
    path_of: Callable[[int], str],
) -> pd.DataFrame:
    """Return the quota groups; see :meth:`.Filesystem.qgroups`.

    `alive`, `path_of`: ids of the subvolumes that exist; gives the path of one.
    """
    import pandas as pd

    counted = counted_quotas(trees, image, forest)
    rows = []
    for number, group in sorted(quotas_of(trees, image).by_id.items()):
        limits, there = group.limits, counted.by_id[number]
        path = path_of(number) if number in alive else ""
        rows.append((
            group_name(number), path, group.rfer, group.excl, there.rfer, there.excl,
            limits.max_rfer if limits.flags & LimitFlag.MAX_RFER else None,
            limits.max_excl if limits.flags & LimitFlag.MAX_EXCL else None,
            " ".join(group_name(parent.id) for parent in group.groups),
        ))  # fmt: skip
    columns = zip(*rows, strict=True) if rows else [()] * len(_QGROUPS)
    pairs = zip(_QGROUPS.items(), columns, strict=True)
    return pd.DataFrame({name: pd.Series(list(values), dtype=kind)
                         for (name, kind), values in pairs})  # fmt: skip
