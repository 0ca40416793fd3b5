# SPDX-License-Identifier: GPL-2.0-only
"""Quota groups: what is done with them, what they count, and what is said of them."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.bench import Bench
from btrfs_model.experiments.verify.random.calls import random_call
from btrfs_model.experiments.verify.random.scenarios import as_operation, mkfs_options
from btrfs_model.experiments.verify.sides import in_the_kernel, in_the_model
from btrfs_model.kernels.inside import asked
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.volume.filesystem import Filesystem

_GROUPS: Final = ("1/0", "1/1", "2/0", "0/256", "0/257", "0/258", "0/259", "0/5")
_HIGH: Final = _GROUPS[:3]
_THERE: Final = ("1/0", "2/0", "0/256", "0/257", "0/5", "0/5")
_LIMITS: Final = (30 << 10, 60 << 10, 100 << 10, 1 << 20, -1)
_BLOCK: Final = 4096
_WITHOUT: Final = ("mknod", "subvol_delete")
"""When the cleaner comes to a deleted subvolume is chance."""
_STATUS_SIZE: Final = 32
"""What follows in the item of the state is not written by all kernels."""
_STATE: Final = slice(2, None)
_ROW: Final = re.compile(r"^(\d+/\d+)\s+(\d+)\s+(\d+)", re.MULTILINE)
_WARNING: Final = re.compile(r"warning: (.*)", re.IGNORECASE)


def random_quotas(seed: str) -> Scenario:
    """Make a scenario of calls on names, data, subvolumes and quota groups, which may well fail."""
    choice = random.Random(seed)
    lines: list[list[Any]] = [
        ["mkfs", mkfs_options(choice, portable=True)], ["mount", "noatime"],
        ["mkdir", "a"], ["mkdir", "b"], ["mkdir", "a/c"], ["create", "a/a"], ["create", "c"],
        ["link", "c", "a/d"], ["subvol_create", "sub"], ["mkdir", "sub/a"], ["create", "sub/a/b"],
        ["write", "sub/a/b", 0, 50_000, 1], ["snapshot", "sub", "snap"],
        *([["quota_enable", True]] if choice.random() < 0.2 else []), ["quota_enable"],
        ["qgroup_create", "1/0"], ["qgroup_create", "2/0"],
        # a group that its source is not in: then nobody knows what it counts
        *([["snapshot", "sub", "q1", False, ["1/0"]]] if choice.random() < 0.35 else []),
    ]  # fmt: skip
    limits = choice.random() < 0.5
    if limits:
        one = choice.choice
        lines.append(["qgroup_limit", one(_THERE), one(_LIMITS), one(_LIMITS)])
    for _ in range(choice.randint(20, 60)):
        kind = choice.random()
        if kind < 0.3:
            lines.append(_quota_operation(choice, limits))
        elif kind < 0.5:
            lines.append(_data_operation(choice))
        else:
            other = as_operation(random_call(choice, subvolumes=True))
            lines += [other] if other and other[0] not in _WITHOUT else []
    steps = [parse_step(seed, number, line) for number, line in enumerate(lines, 1)]
    return Scenario(f"seed {seed}", steps, hex_values=True)


def _quota_operation(choice: random.Random, limits: bool) -> list[Any]:
    one = choice.choice
    path, into = one(["q1", "q2", "sub/q3"]), one(_GROUPS)
    rare: list[list[Any]] = [["quota_disable"], ["quota_enable"], ["qgroup_create", one(_GROUPS)]]
    return one([
        ["qgroup_create", one(_HIGH)],
        ["qgroup_assign", one(_GROUPS), one(_HIGH)], ["qgroup_assign", one(_GROUPS), one(_HIGH)],
        ["qgroup_remove", one(_GROUPS), one(_HIGH)], ["qgroup_destroy", one(_GROUPS)],
        ["subvol_create", path, [into]],
        ["snapshot", one(["", "sub", "snap"]), path, one([True, False]), [into]],
        ["quota_rescan"] if choice.random() < 0.3 else ["sync"],
        one(rare) if choice.random() < 0.2 else ["sync"],
        *[["qgroup_limit", one(_GROUPS), one(_LIMITS), one(_LIMITS)]] * (3 * limits),
    ])  # fmt: skip


def _data_operation(choice: random.Random) -> list[Any]:
    path = choice.choice(["c", "a/a", "a/d", "sub/a/b", "snap/a/b", "sub/a", "q1/a/b"])
    # as much as any kernel reserves for at once
    offset, length = _BLOCK * choice.randrange(8), choice.randrange(1, 8 * _BLOCK)
    return choice.choice([["write", path, offset, length, choice.randrange(256)],
                          ["truncate", path, choice.randrange(40_000)]])  # fmt: skip


def quota_numbers(fs: Filesystem) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of each item of the quota tree, by its key; no generations."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    if ObjectId.QUOTA_TREE not in fs.trees:
        return found
    for item in fs.tree(ObjectId.QUOTA_TREE).items():
        data = bytes(item.data)
        if item.key.type == ItemType.QGROUP_STATUS:
            numbers = struct.unpack("<4Q", data[:_STATUS_SIZE])[_STATE]
        else:
            numbers = struct.unpack(f"<{len(data) // 8}Q", data)
            numbers = numbers[1:] if item.key.type == ItemType.QGROUP_INFO else numbers
        found[tuple(item.key)] = numbers
    return found


def compare_quotas(bench: Bench, scenario: Scenario) -> None:
    """Compare how calls end, what groups count, and what is shown of them."""
    with bench.new_image() as image, in_the_model(scenario, bench.behaviour) as (fs, ran):
        wanted = in_the_kernel(bench.kernel, scenario, image)
        bench.same_ends(scenario, wanted.ended, ran.ended)
        with Filesystem.open(image) as its:
            theirs, ours = quota_numbers(its), quota_numbers(fs)
        bench.same_members("quota items", "quota tree: ", theirs, ours)
        with bench.looked_at(image) as place:
            shown = bench.kernel.call(asked.shown_groups, place)
        rows, warnings = _shown(image)
        told = [*_ROW.findall(shown or "")]
        bench.same("groups shown", "what is shown of groups", told, rows, len(rows))
        said = sorted(_WARNING.findall(shown or ""))
        bench.same("states shown", "what is said of the state", said, warnings)


def _shown(image: Path) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return what ``btrfs-model qgroups`` shows of an image, and the warnings that it says."""
    command = [sys.executable, "-m", "btrfs_model.cli", "qgroups", str(image), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    told: list[tuple[str, ...]]
    told = [(row["qgroup"], str(row["rfer"]), str(row["excl"])) for row in rows]
    return told, sorted(_WARNING.findall(ran.stderr))
