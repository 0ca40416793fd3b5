# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel listed of the snapshots of a random filesystem, and listings in that form."""

import json
import os
import stat
from collections import defaultdict
from typing import Any

import corpus

from btrfs_model.volume.listing import EMPTY_SUBVOL_DIR


def recorded(name: str) -> dict[str, dict[str, dict[str, Any]]]:
    """What the kernel listed: by snapshot and path."""
    snapshots: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in corpus.data(name, "trees.jsonl.zst").decode().splitlines():
        record = json.loads(line)
        snapshots[record.pop("snap")][record.pop("path")] = record
    return snapshots


def as_recorded(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a listing in the form of the kernel's record."""
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


def without_made_up(record: dict[str, Any]) -> dict[str, Any]:
    """A record less what the kernel makes up for entries of subvolumes at the time of the look."""
    if record["ino"] != EMPTY_SUBVOL_DIR:
        return record
    made_up = ("mtime", "ctime", "ioctl_error")
    return {field: value for field, value in record.items() if field not in made_up}
