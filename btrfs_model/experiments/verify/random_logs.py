# SPDX-License-Identifier: GPL-2.0-only
"""Random calls with fsyncs in between, and a crash: what ends up in logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step

Operation = list[Any]
BLOCK = 4096
NOCOW = 0x800000
FILES = ("f", "a/f", "a/g", "a/b/f", "d/h", "d/e/k")
FOLDERS = ("", "", "a", "a", "a/b", "d", "d/e")
IN_SUBVOLUME = (("s/f", "s/e/f"), ("s", "s/e"))
MANY = 6
"""Files that some directories have besides."""
NAMES = ("f", "g", "h", "b", "e", "k", "n", "o", "long" * 30)


class _Choice:
    """What a random operation may be about."""

    def __init__(self, choice: random.Random, subvolumes: bool) -> None:
        self.random = choice
        self.one = choice.choice
        self.subvolumes = subvolumes
        self.nocow = self.one([0.0, 0.0, 0.5])
        self.files = FILES + (IN_SUBVOLUME[0] if subvolumes else ())
        self.folders = FOLDERS + (IN_SUBVOLUME[1] if subvolumes else ())
        self.often = self.one(self.files)
        """A file to which much happens, so that it is in the log already."""

    def path(self) -> str:
        return f"{self.one(self.folders)}/{self.one(NAMES)}".lstrip("/")

    def file(self) -> str:
        drawn = self.random.random()
        if drawn < 0.3:
            return self.often
        return self.one(self.files) if drawn < 0.85 else self.path()

    def any(self) -> str:
        return self.one([self.file(), self.path(), self.one(self.folders[2:])])

    def offset(self) -> int:
        block = self.one([0, 0, 0, 1, 2, 3, 5, 8, 12, 16, 18, 30])
        return max(block * BLOCK + self.one([0, 0, 0, 0, 5, -1, 2000]), 0)

    def length(self) -> int:
        return self.one([1, 9, 100, 2000, BLOCK, BLOCK, 3 * BLOCK, 5000, 30_000, 70_000])

    def blocks(self) -> int:
        return self.one([0, 0, 1, 2, 4, 8]) * BLOCK


def _name_operation(c: _Choice) -> Operation:
    kinds: list[tuple[int, Callable[[], Operation]]] = [
        (3, lambda: ["create", c.path()]),
        (2, lambda: ["mkdir", c.path()]),
        (1, lambda: ["symlink", c.one(["t", "x" * 300]), c.path()]),
        (1, lambda: ["mknod", c.path(), c.one([0o10600, 0o140600, 0o20600]), 1, 3]),
        (4, lambda: ["link", c.file(), c.path()]),
        (6, lambda: ["unlink", c.file()]),
        (3, lambda: ["unlink", f"{c.one('ad')}/x{c.random.randint(1, MANY)}"]),
        (1, lambda: ["rmdir", c.path()]),
        (8, lambda: ["rename", c.file(), c.path()]),
        (2, lambda: ["rename", c.one(c.folders[2:]), c.path()]),
        (2, lambda: ["exchange", c.path(), c.path()]),
        (1, lambda: ["mkfiles", c.one("ad"), c.one("xyz"), 1, c.one([2, 5, 40])]),
        (1, lambda: ["rmfiles", c.one("ad"), c.one("xyz"), 1, c.one([2, 5]), c.one([1, 2])]),
    ]
    return _weighed(c, kinds)


def _data_operation(c: _Choice) -> Operation:
    fill = c.one([7, ["zero"], ["rnd", str(c.random.random())]])
    kinds: list[tuple[int, Callable[[], Operation]]] = [
        (8, lambda: ["write", c.file(), c.offset(), c.length(), fill]),
        (4, lambda: ["truncate", c.file(), c.one([0, c.offset(), c.offset() + c.length()])]),
        (5, lambda: ["fallocate", c.file(), c.one([0, 1, 1, 3, 3, 16, 17]), c.offset(),
                     c.length()]),
        (4, lambda: ["clone_range", c.file(), c.blocks(), c.one([0, 1, 2, 4]) * BLOCK, c.file(),
                     c.blocks()]),
    ]  # fmt: skip
    return _weighed(c, kinds)


def _other_operation(c: _Choice) -> Operation:
    xattr = c.one(["user.a", "user.b", "user." + "n" * 200])
    kinds: list[tuple[int, Callable[[], Operation]]] = [
        (1, lambda: ["chmod", c.any(), c.one([0o600, 0o755, 0o4711])]),
        (1, lambda: ["chown", c.file(), c.one([0, 1000]), 5]),
        (2, lambda: ["setxattr", c.any(), xattr, c.one(["", "77", "aa" * 250])]),
        (2, lambda: ["removexattr", c.file(), c.one(["user.a", "user.a", "user.b"])]),
        (1 if c.nocow else 0, lambda: ["chattr", c.any(), *c.one([(NOCOW, 0), (0, NOCOW)])]),
        (1, lambda: ["open", c.any(), c.one("pq")]),
        (2, lambda: ["fsyncfd", c.one("pq")]),
        (1, lambda: ["close", c.one("pq")]),
        (1, lambda: ["sync"]),
        (1, lambda: ["remount"]),
        (int(c.subvolumes), lambda: ["snapshot", c.one(["", "s"]), c.path(), c.one([True, False])]),
        (int(c.subvolumes), lambda: ["subvol_create", c.path()]),
    ]
    return _weighed(c, kinds)


def _weighed(c: _Choice, kinds: list[tuple[int, Callable[[], Operation]]]) -> Operation:
    return c.random.choices([make for _, make in kinds], [weight for weight, _ in kinds])[0]()


def _first_operations(c: _Choice) -> Iterator[Operation]:
    """Make what is committed before anything is logged."""
    yield from (["mkdir", folder] for folder in ("a", "a/b", "d", "d/e"))
    if c.subvolumes:
        yield from (["subvol_create", "s"], ["mkdir", "s/e"])
    for number, path in enumerate(c.files):
        yield ["create", path]
        if c.random.random() < c.nocow:
            yield ["chattr", path, NOCOW]
        if c.random.random() < 0.8:
            yield ["write", path, 0, c.one([100, 5000, 20_000, 70_000]), number]
        if c.random.random() < 0.4:
            yield ["setxattr", path, "user.a", "6162"]
        if c.random.random() < 0.3:
            yield ["fallocate", path, 1, 16 * BLOCK, 30_000]
    for folder in "ad":
        if c.random.random() < 0.5:
            yield ["mkfiles", folder, "x", 1, MANY]
    yield ["sync"]
    if c.random.random() < 0.3:
        yield ["remount"]


def random_log(seed: object) -> Scenario:
    """Make a scenario: blocks of 16 or 64 KiB, some calls with fsyncs in between, and a crash."""
    choice = random.Random(f"log {seed}")
    c = _Choice(choice, subvolumes=choice.random() < 0.4)
    mkfs = choice.choices([[], ["-n", "65536"]], [7, 1])[0]
    mkfs = mkfs + choice.choices([[], ["-O", "^no-holes"]], [3, 1])[0]
    mkfs = mkfs + choice.choices([[], ["--csum", c.one(["xxhash", "sha256"])]], [6, 1])[0]
    mount = c.one(["", "", "", ",compress=zlib", ",compress-force=zstd", ",max_inline=0"])
    weights = [c.one([1, 4, 6]), c.one([1, 4, 6]), 2]
    operations = list(_first_operations(c))
    for _ in range(c.one([1, 1, 2, 3, 5])):
        changed: list[str] = []
        for _ in range(c.one([1, 2, 3, 5, 8])):
            make = choice.choices([_name_operation, _data_operation, _other_operation], weights)[0]
            operations.append(make(c))
            for path in operations[-1][1:2]:  # a name that went is missed in its directory
                changed += [path, path.rpartition("/")[0]]
        path = c.one([*changed, c.one(c.files), c.one(c.files), c.one(c.folders), c.path()])
        operations.append([c.one(["fsync", "fsync", "fsync", "fdatasync"]), path])
    if choice.random() < 0.5:
        path = c.one(c.files)
        operations += [["write", path, 0, 50, 3], ["fsync", path]]
    mkfs = ["-m", "single", "-d", "single", *mkfs]
    lines = [["mkfs", mkfs], ["mount", f"noatime{mount}"], *operations, ["crash"]]
    steps = [parse_step(f"seed {seed}", number, line) for number, line in enumerate(lines, 1)]
    return Scenario(f"seed {seed}", steps, hex_values=True)
