# SPDX-License-Identifier: GPL-2.0-only
"""Random scenarios from a seed."""

from __future__ import annotations

import os
import random
from typing import Any

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.random.calls import Call, random_call

_BLOCK = 4096
_EXCHANGE = 2
_SPECIAL = {"fifo": 0o10644, "socket": 0o140600, "whiteout": 0o20000}
_OFTEN = 0.15
"""How many operations are on what is no file."""


def random_scenario(seed: object, *, portable: bool = False) -> Scenario:
    """Make a scenario of 20 to 60 operations.

    Where it is `portable` mkfs.btrfs of btrfs-progs 6.2 can make its filesystem too.
    """
    choice = random.Random(f"scenario {seed}")
    lines: list[list[Any]] = [["mkfs", mkfs_options(choice, portable)],
                              ["mount", mount_options(choice)]]  # fmt: skip
    lines += [["mkdir", "a"], ["mkdir", "b"], ["mkdir", "a/c"], ["create", "c"], ["create", "a/a"],
              ["subvol_create", "sub"], ["create", "sub/d"],
              *(["mknod", name, mode] for name, mode in _SPECIAL.items()),
              ["symlink", "fifo", "to fifo"]]  # fmt: skip
    data, subvolumes = choice.random() < 0.7, choice.random() < 0.7
    if subvolumes:
        lines.append(["snapshot", "sub", "snap", choice.random() < 0.3])
    for _ in range(choice.randint(20, 60)):
        if choice.random() < _OFTEN:
            lines.append(_special_operation(choice))
        elif data and choice.random() < 0.5:
            lines.append(_data_operation(choice))
        elif line := as_operation(random_call(choice, subvolumes=subvolumes)):
            lines.append(line)
    steps = [parse_step(f"seed {seed}", number, line) for number, line in enumerate(lines, 1)]
    return Scenario(f"seed {seed}", steps, hex_values=True)


def mkfs_options(choice: random.Random, portable: bool) -> list[str]:
    """Return random options of mkfs.btrfs."""
    nodesize = choice.choice(["4096", "16384", "16384"])
    options = ["-n", nodesize]
    if choice.random() < 0.3:
        options += ["-m", "single", "-d", "single"]
    if choice.random() < 0.3:
        options += ["--csum", choice.choice(["xxhash", "sha256", "blake2"])]
    if choice.random() < 0.4:
        options += ["-O", choice.choice(["^no-holes", "^skinny-metadata", "^extref,^no-holes"])]
    elif choice.random() < 0.3 and not portable and nodesize == "16384":
        options += ["-O", "block-group-tree"]
    elif choice.random() < 0.2:
        options += ["-R", "^free-space-tree"]
    return options


def mount_options(choice: random.Random) -> str:
    """Return random options of a mount."""
    compression = choice.choice(["", "", "compress=zlib", "compress=lzo", "compress=zstd",
                                 "compress-force=zstd"])  # fmt: skip
    inline = choice.choice(["", "", "max_inline=0", "max_inline=512"])
    return ",".join(filter(None, ["noatime", compression, inline]))


def as_operation(call: Call) -> list[Any] | None:
    """Write a call as an operation of a scenario; None where there is none for it."""
    name, *args = call
    match name:
        case "rename":
            flags = args[2] if len(args) > 2 else 0
            return {0: ["rename", *args[:2]], _EXCHANGE: ["exchange", *args[:2]]}.get(flags)
        case "mknod":
            path, mode, device = (*args, 0)[:3]
            return ["mknod", path, mode, os.major(device), os.minor(device)]
        case "setxattr":
            return ["setxattr", args[0], args[1], args[2].hex()]
        case "create_subvolume":
            return ["subvol_create", *args]
        case "delete_subvolume":
            return ["subvol_delete", *args]
        case "set_received_subvolume":
            return ["set_received", args[0], args[1].hex(), args[2]]
    return [name, *args]


def _special_operation(choice: random.Random) -> list[Any]:
    """Make an operation on what is no file; nearly all that is of data fails."""
    one = choice.choice
    path = one([*_SPECIAL, "to fifo", "a", "sub"])
    xattr = one(["user.a", "trusted.a", "btrfs.compression"])
    return one([
        [one(["fsync", "fdatasync"]), path],
        ["fallocate", path, one([0, 1, 2, 3, 8, 16, 17, 32, 64]), 0, one([0, _BLOCK])],
        ["write", path, 0, 5, 7],
        ["truncate", path, 5],
        [*one([["clone_range", path, 0, 0, "c"], ["clone_range", "c", 0, 0, path],
               ["dedupe", path, 0, 0, "c"], ["dedupe", "c", 0, 0, path]]), 0],
        ["setxattr", path, xattr, b"zstd".hex()],
        ["removexattr", path, xattr],
        ["chmod", path, one([0o600, 0o4711])],
        ["chattr", path, one([0x80, 0x800000]), 0],
        ["link", path, one(["b/g", "c"])],
        ["rename", path, one(["b/h", "c/i"])],
        ["snapshot", path, "b/s", True],
        [one(["unlink", "rmdir", "subvol_delete"]), path],
        ["open", path, "o"],
        ["fsyncfd", "o"],
        ["close", "o"],
    ])  # fmt: skip


def _data_operation(choice: random.Random) -> list[Any]:
    one = choice.choice
    path = one(["c", "c", "a/a", "a/a", "sub/d", "sub/d", "snap/d", "d", "a"])
    other = one(["c", "a/a", "sub/d", "b/f"])
    offset = max(one([0, 0, 1, 2, 5, 30]) * _BLOCK + one([0, 0, 0, 1, -1, 100, 3000]), 0)
    length = one([1, 100, 2047, 2048, 2049, _BLOCK, 5000, 3 * _BLOCK, 70_000, 200_000])
    at, to, part = (one([0, 0, 1, 2, 8]) * _BLOCK for _ in range(3))
    fill = one([7, ["zero"], ["pat", "a"], ["pat", "b"], ["rnd", str(offset)]])
    kinds: list[tuple[int, list[Any]]] = [
        (12, ["write", path, offset, length, fill]),
        (3, ["truncate", path, one([0, offset, length, offset + length])]),
        (4, ["fallocate", path, one([0, 1, 3, 3, 16, 17]), offset, length]),
        (3, ["clone_range", path, at, part, other, to]),
        (1, ["clone", path, other]),
        (2, [one(["fsync", "fdatasync"]), path]),
        (1, ["sync"]),
        (1, ["remount"]),
        (1, ["setxattr", path, "btrfs.compression", one([b"zstd", b"zlib", b"lzo", b""]).hex()]),
    ]
    return choice.choices([line for _, line in kinds], [weight for weight, _ in kinds])[0]
