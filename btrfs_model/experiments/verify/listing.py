# SPDX-License-Identifier: GPL-2.0-only
"""What the model lists of subvolumes, in the form of :mod:`btrfs_model.kernels.inside.listing`."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from btrfs_model.experiments.verify.bench import Bench
from btrfs_model.kernels.inside.listing import Listing
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.listing import EMPTY_SUBVOL_DIR


def as_recorded(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Write a row of a listing in the form of the kernel's record."""
    mode = row["mode"]
    record = {field: row[field] for field in ("ino", "nlink", "uid", "gid", "size", "atime")}
    record["mode"] = f"{mode:o}"
    if row["ino"] == EMPTY_SUBVOL_DIR:
        return record
    record |= {field: row[field] for field in ("mtime", "ctime")}
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        record |= {"gen": row["generation"], "flags": row["flags"]}
    if stat.S_ISREG(mode):
        record["sha256"] = row["sha256"]
    if stat.S_ISLNK(mode):
        record["target"] = os.fsdecode(row["target"])
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        record["rdev"] = [row["rdev"] >> 20, row["rdev"] & 0xFFFFF]
    if row["xattrs"]:
        record["xattrs"] = {os.fsdecode(name): v.hex() for name, v in row["xattrs"].items()}
    return record


def snapshots_of(fs: Filesystem) -> dict[str, str]:
    """Paths of the read-only subvolumes, of each the one before it of the same source, or ''."""
    found, last = dict[str, str](), dict[bytes, str]()
    for number in fs.subvolume_ids:
        subvolume = fs.subvolume(number)
        if subvolume.is_read_only:
            source = subvolume.item.parent_uuid
            found[subvolume.path] = last.get(source, "")
            last[source] = subvolume.path
    return found


def model_listing(fs: Filesystem, paths: Sequence[str] | None = None) -> Listing:
    """List what is in subvolumes, by default all; of those inside one the path alone."""
    return {
        path: {
            row["path"]: {} if row["ino"] == EMPTY_SUBVOL_DIR else as_recorded(row)
            for row in fs.listing(path).to_dict("records")
        }
        for path in (fs.subvolumes()["path"] if paths is None else paths)
    }


def same_listings(bench: Bench, kernel: Listing, model: Listing) -> None:
    """Compare listings of all subvolumes."""
    bench.same("subvolumes", "subvolumes", sorted(kernel), sorted(model))
    for path, listed in kernel.items():
        bench.same_members("inodes", f"listing of {path or 'the top'}: ", listed, model[path])


def untimed(listing: Listing) -> Listing:
    """Leave out times, which are not those of the other run, and transactions."""
    times = ("atime", "mtime", "ctime", "gen")
    return {
        subvolume: {
            path: {name: value for name, value in record.items() if name not in times}
            for path, record in paths.items()
        }
        for subvolume, paths in listing.items()
    }
