# SPDX-License-Identifier: GPL-2.0-only
"""Random calls on filesystems with quota groups, and what the groups have then."""

import random
import struct
from pathlib import Path

from btrfs_model.experiments.verify.random.calls import Call, random_call
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.quotas import LEVEL_SHIFT

ONE, TWO, HIGH = 1 << LEVEL_SHIFT, 1 << LEVEL_SHIFT | 1, 2 << LEVEL_SHIFT
FIRST: list[Call] = [
    ("mkdir", "a"), ("mkdir", "b"), ("mkdir", "a/c"), ("create", "a/a"), ("create", "c"),
    ("link", "c", "a/d"), ("mkdir", "b/e"), ("create_subvolume", "sub"), ("mkdir", "sub/a"),
    ("create", "sub/a/b"), ("snapshot", "sub", "snap", False),
]  # fmt: skip
"""Before quotas are switched on: subvolumes 256 and 257."""

_GROUPS = [ONE, TWO, HIGH, 256, 257, 258, 259, 5]
_LIMITS = [30 << 10, 60 << 10, 100 << 10, 1 << 20, -1]


def _quota_call(choice: random.Random, limits: bool) -> Call:
    one = choice.choice
    calls: list[Call] = [
        ("qgroup_create", one(_GROUPS)), ("qgroup_create", one(_GROUPS[:3])),
        ("qgroup_destroy", one(_GROUPS)), ("quota_rescan",),
        ("qgroup_assign", one(_GROUPS), one(_GROUPS[:3])),
        ("qgroup_assign", one(_GROUPS), one(_GROUPS[:3])),
        ("qgroup_remove", one(_GROUPS), one(_GROUPS[:3])),
        ("create_subvolume", one(["q1", "q2", "sub/q3"]), [one(_GROUPS)]),
        ("snapshot", one(["", "sub", "snap"]), one(["q1", "q2", "sub/q3"]), one([True, False]),
         [one(_GROUPS)]),
    ]  # fmt: skip
    if limits:
        limit = [one(_LIMITS), None]
        choice.shuffle(limit)
        calls += [("qgroup_limit", one([5, 256, 257, ONE]), *limit)] * 4
    return one(calls)


def _data_call(choice: random.Random) -> Call:
    top, folder = choice.choice(["", "", "sub/", "snap/", "rw/"]), choice.choice(["a/", "", "b/"])
    path = top + folder + choice.choice("abcdef")
    block = bytes([choice.randrange(256)]) * 4096
    return choice.choice([
        ("write", path, 4096 * choice.randrange(8), block * choice.randrange(1, 9)),
        ("write", path, 0, b"x" * choice.randrange(1, 9000)),
        ("truncate", path, choice.randrange(40_000)),
    ])  # fmt: skip


def random_calls(choice: random.Random, count: int, *, limits: bool) -> list[Call]:
    """Calls on names, data, subvolumes and quota groups, which may well fail."""
    calls: list[Call] = []
    while len(calls) < count:
        kind = choice.random()
        if kind < 0.15:
            call = _quota_call(choice, limits)
        elif kind < 0.4:
            call = _data_call(choice)
        else:
            call = random_call(choice, subvolumes=True)
        # to open a device or a pipe for writing fails in its own way
        if call[0] != "mknod":
            calls.append(call)
    return calls


def quota_items(image: Path | Filesystem) -> list[tuple[tuple[int, int, int], tuple[int, ...]]]:
    """Return key and numbers of each item of the quota tree.

    What follows the four numbers of the state is not initialized by all kernels.
    """
    if isinstance(image, Path):
        with Filesystem.open(image) as fs:
            return quota_items(fs)
    if ObjectId.QUOTA_TREE not in image.trees:
        return []
    found = []
    for item in image.tree(ObjectId.QUOTA_TREE).items():
        size = 32 if item.key.type == ItemType.QGROUP_STATUS else len(item.data)
        found.append((tuple(item.key), struct.unpack(f"<{size // 8}Q", item.data[:size])))
    return found
