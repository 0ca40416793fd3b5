# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel listed of the snapshots of a random filesystem, and listings in that form."""

import json
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


def without_made_up(record: dict[str, Any]) -> dict[str, Any]:
    """A record less what the kernel makes up for entries of subvolumes at the time of the look."""
    if record["ino"] != EMPTY_SUBVOL_DIR:
        return record
    made_up = ("mtime", "ctime", "ioctl_error")
    return {field: value for field, value in record.items() if field not in made_up}
