# SPDX-License-Identifier: GPL-2.0-only
"""Random calls with fsyncs in between, and a crash: what ends up in logs.

Some calls are drawn blindly, and what is made durable among all that they may have touched. Others
follow one inode: it is changed and made durable, its names change, and then it, the directories
that it left and came into, and what has its old name are made durable, one after the other. At
times another file is made durable in between, and the log that the names changed with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.random.names import ROLES, Names, above

Operation = list[Any]
BLOCK = 4096
NOCOW = 0x800000
FILES = ("f", "a/f", "a/g", "a/b/f", "d/h", "d/e/k")
FOLDERS = ("", "", "a", "a", "a/b", "d", "d/e")
IN_SUBVOLUME = (("s/f", "s/e/f"), ("s", "s/e"))
_MIXED = 0.05
"""How often groups mix data and metadata."""
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
        self.names = Names()
        self.operations: list[Operation] = []

    def add(self, operation: Operation) -> None:
        """Let an operation be the next one."""
        self.operations.append(operation)
        self.names.carry_out(operation)

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
        (1, lambda: ["rmdir", c.one([c.path(), c.one(c.names.directories())])]),
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
    for _ in range(c.one([0, 1, 2, 4])):
        yield ["link", c.one(c.files), _free(c, c.one(c.folders))]
    for folder in "ad":
        if c.random.random() < 0.5:
            yield ["mkfiles", folder, "x", 1, MANY]
    yield ["sync"]
    if c.random.random() < 0.3:
        yield ["remount"]


# ------------------------------------------------------------------------------ about one inode --


def _free(c: _Choice, folder: str) -> str:
    """Return a name that is not there."""
    free = [name for name in NAMES if f"{folder}/{name}".lstrip("/") not in c.names.there]
    name = c.one(free or NAMES)
    return f"{folder}/{name}".lstrip("/")


def _folder(c: _Choice, beside: str) -> str:
    """Return a directory: the one of a path, any, or a new one."""
    drawn = c.random.random()
    if drawn < 0.3:
        return above(beside)
    folder = c.one(c.names.directories())
    if drawn < 0.55:
        folder = _free(c, folder)
        c.add(["mkdir", folder])
    return folder


def _changed(c: _Choice, path: str) -> Operation:
    """Return a call that changes an inode, but none of its names."""
    kinds: list[tuple[int, Callable[[], Operation]]] = [
        (1, lambda: ["chmod", path, c.one([0o600, 0o755])]),
        (1, lambda: ["chown", path, c.one([0, 1000]), 5]),
        (1, lambda: ["setxattr", path, c.one(["user.a", "user.b"]), c.one(["", "77"])]),
        (1, lambda: ["utimes", path, 10**9, c.one([10**9, 5 * 10**17 + 7])]),
    ]
    if c.names.there[path] not in c.names.folders:
        kinds += [(4, lambda: ["write", path, c.offset(), c.length(), 7]),
                  (1, lambda: ["truncate", path, c.one([0, c.offset()])])]  # fmt: skip
    return _weighed(c, kinds)


def _beside(c: _Choice, path: str) -> Operation:
    """Return a call that changes the directory of an inode, or other names in it."""
    ino, folder = c.names.there[path], above(path)
    others = [one for one in c.names.files() if c.names.there[one] != ino] or [path]
    siblings = [one for one in others if above(one) == folder] or others
    kinds: list[tuple[int, Callable[[], Operation]]] = [
        (2, lambda: ["create", _free(c, folder)]),
        (2, lambda: ["mkdir", _free(c, folder)]),
        (1, lambda: ["unlink", c.one(siblings)]),
        (1, lambda: ["rename", c.one(siblings), _free(c, _folder(c, path))]),
        (1, lambda: ["link", c.one(siblings), _free(c, folder)]),
        (1, lambda: ["rmdir", c.one(c.names.directories())]),
        (1, lambda: _changed(c, folder)),
        (int(bool(folder)), lambda: ["rename", folder, _free(c, _folder(c, folder))]),
        (int(c.subvolumes), lambda: _weighed(c, [
            (1, lambda: ["subvol_create", _free(c, folder)]),
            (1, lambda: ["snapshot", c.one(["", "s"]), _free(c, folder), True]),
        ])),
    ]  # fmt: skip
    return _weighed(c, kinds)


def _renamed(c: _Choice, path: str) -> Operation:
    """Return a call that changes the names of an inode."""
    ino = c.names.there[path]
    others = [one for one in c.names.files() if c.names.there[one] != ino]
    kinds: list[tuple[int, Callable[[], Operation]]] = [
        (4, lambda: ["rename", path, _free(c, _folder(c, path))]),
    ]
    if ino in c.names.folders:
        kinds += [
            (1, lambda: ["rmdir", path]),
            (1, lambda: ["exchange", path, c.one(c.names.directories()[1:])]),
            (2, lambda: ["rename", c.one(others or [path]), _free(c, path)]),
            (2, lambda: ["link", c.one(others or [path]), _free(c, path)]),
        ]
    else:
        kinds += [
            (4, lambda: ["link", path, _free(c, _folder(c, path))]),
            (2, lambda: ["unlink", c.one(c.names.paths_of(ino))]),
            (1, lambda: ["rename", path, c.one(others or [path])]),
            (1, lambda: ["rename", c.one(others or [path]), path]),
            (1, lambda: ["exchange", path, c.one(others or [path])]),
        ]
    return _weighed(c, kinds)


def _near(c: _Choice) -> str:
    """Return what has to do with the last calls: mostly a directory."""
    role = c.random.choices(ROLES, [2, 1, 2, 5, 4, 3])[0]
    near = [ino for one in c.names.changes[-3:] for ino in sorted(one.roles.get(role, ()))]
    paths = [path for ino in near for path in c.names.paths_of(ino)]
    return c.one(paths or list(c.names.there))


def _bystander(c: _Choice, path: str) -> None:
    """Sync the log for another file: what a new name logged is in it, and not asked for."""
    others = [one for one in c.names.files() if c.names.there[one] != c.names.there[path]]
    near = [one for one in others if c.names.subvolume(one) == c.names.subvolume(path)]
    other = c.one(near or [path])
    c.add(_changed(c, other))
    c.add(["fsync", other])


def _follow(c: _Choice) -> None:
    """Follow one inode through some calls and fsyncs."""
    path = c.one(c.one([c.names.files() or [""], c.names.files() or [""], c.names.directories()]))
    if c.often in c.names.there and c.random.random() < 0.4:
        path = c.often
    if not path:
        return c.add(["fsync", path])
    ino = c.names.there[path]

    def at_times(likely: float, make: Callable[[_Choice, str], Operation]) -> None:
        paths = c.names.paths_of(ino)
        if paths and c.random.random() < likely:
            c.add(make(c, c.one(paths)))

    at_times(0.7, _beside)
    at_times(0.1, lambda c, path: ["open", path, "r"])
    at_times(0.8, _changed)
    at_times(0.9, lambda c, path: [c.one(["fsync", "fsync", "fdatasync"]), path])
    for _ in range(c.one([1, 1, 1, 2])):
        at_times(0.2, _beside)
        at_times(1.0, _renamed)
    at_times(0.2, _beside)
    if c.names.paths_of(ino) and c.random.random() < 0.4:
        _bystander(c, c.one(c.names.paths_of(ino)))
    for _ in range(c.one([1, 2, 2, 3])):
        c.add([c.one(["fsync", "fsync", "fsync", "fdatasync"]), _near(c)])
    if ["open", "r"] in [one[::2] for one in c.operations]:
        c.add([c.one(["fsyncfd", "close"]), "r"])


def _blindly(c: _Choice, weights: list[int]) -> None:
    """Draw some calls, and an fsync of what they may have touched."""
    changed: list[str] = []
    for _ in range(c.one([1, 2, 3, 5, 8])):
        make = c.random.choices([_name_operation, _data_operation, _other_operation], weights)[0]
        c.add(make(c))
        for path in c.operations[-1][1:2]:  # a name that went is missed in its directory
            changed += [path, above(path)]
    path = c.one([*changed, c.one(c.files), c.one(c.files), c.one(c.folders), c.path()])
    c.add([c.one(["fsync", "fsync", "fsync", "fdatasync"]), path])


def random_log(seed: object) -> Scenario:
    """Make a scenario: blocks of 16 or 64 KiB, some calls with fsyncs in between, and a crash."""
    choice = random.Random(f"log {seed}")
    c = _Choice(choice, subvolumes=choice.random() < 0.4)
    mkfs = choice.choices([[], ["-n", "65536"]], [7, 1])[0]
    mkfs = mkfs + choice.choices([[], ["-O", "^no-holes"]], [3, 1])[0]
    mkfs = mkfs + choice.choices([[], ["--csum", c.one(["xxhash", "sha256"])]], [6, 1])[0]
    mount = c.one(["", "", "", ",compress=zlib", ",compress-force=zstd", ",max_inline=0"])
    weights = [c.one([1, 4, 6]), c.one([1, 4, 6]), 2]
    for operation in _first_operations(c):
        c.add(operation)
    follows = c.one([0.0, 0.5, 0.9, 1.0])
    for _ in range(c.one([1, 2, 2, 3, 5])):
        if choice.random() < follows:
            _follow(c)
        else:
            _blindly(c, weights)
    if choice.random() < 0.3:
        path = c.one(c.files)
        c.add(["write", path, 0, 50, 3])
        c.add(["fsync", path])
    mkfs = ["-m", "single", "-d", "single", *mkfs]
    lines = [["mkfs", mkfs], ["mount", f"noatime{mount}"], *c.operations, ["crash"]]
    steps = [parse_step(f"seed {seed}", number, line) for number, line in enumerate(lines, 1)]
    return Scenario(f"seed {seed}", steps, hex_values=True)


def random_replay(seed: object) -> Scenario:
    """Make a scenario as :func:`random_log` does, now and then one of groups that mix."""
    choice = random.Random(f"replay {seed}")
    return _in_mixed_groups(seed, choice) if choice.random() < _MIXED else random_log(seed)


def _in_mixed_groups(seed: object, choice: random.Random) -> Scenario:
    """Log a clone where free space is in pieces: kernels refuse logs of extents in bitmaps."""
    files = choice.randint(1000, 9000)
    step, cloned = choice.choice([2, 2, 3]), choice.randrange(files // 6) * 6 + 1
    lines: list[Operation] = [
        ["mkfs", ["-b", str(1 << 30), "-M", "-n", "4096"]], ["mount", "noatime"], ["mkdir", "d"],
        ["fillfiles", "d", "f", 0, files, choice.choice([1, 2, 2, 3]) * BLOCK, ["pat", f"{seed}"]],
        ["sync"], ["rmfiles", "d", "f", 0, files, step], ["sync"], ["create", "g"],
        ["clone", f"d/f{cloned}", "g"], ["fsync", "g"], ["crash"],
    ]  # fmt: skip
    steps = [parse_step(f"seed {seed}", number, line) for number, line in enumerate(lines, 1)]
    return Scenario(f"seed {seed}", steps, hex_values=True)
