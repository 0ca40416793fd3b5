# SPDX-License-Identifier: GPL-2.0-only
"""Random filesystems whose snapshots are worth sending, and whose extents are shared.

Names are followed, so that most operations succeed: directories are moved into each other, names
change hands, files lose their last name while they are open, and lie in many places by clones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.random.calls import acl
from btrfs_model.experiments.verify.random.scenarios import mkfs_options, mount_options

_BLOCK = 4096
_WORK = "work"
_FILE, _DIR, _OTHER = "file", "dir", "other"
_NAMES = ("a", "b", "c", "d", "e")
_XATTRS = ("user.a", "user.b", "user.c", "trusted.t")
_ACL = "system.posix_acl_access"
_LINKS = 200
"""So many names of one inode in a directory do not fit into an INODE_REF item."""
_PUNCH_HOLE = 3
_FAR = (1 << 32, 5 << 30, 1 << 44, 1 << 62, (1 << 63) - 100 * _BLOCK)
"""Offsets that integers of 32 bits do not hold, up to the largest of a file."""
_FAR_SHARE = 1 / 6
"""So many scenarios have files with such offsets."""


class _Tree:
    """What there is below the subvolume that is changed, and the operations so far.

    `maps`: files are mapped between the operations. `far`: some offsets are beyond 4 GiB.
    """

    def __init__(self, choice: random.Random, maps: bool, far: bool) -> None:
        self.random = choice
        self.maps = maps
        self.far = far
        self.one = choice.choice
        self.kinds = {_WORK: _DIR}
        self.lines: list[list[Any]] = []
        self.count = 0
        self.handles = 0

    def some(self, kind: str) -> str:
        """Return a path of a kind; of a file that is made where there is none."""
        found = [path for path, one in self.kinds.items() if one == kind]
        return self.one(found) if found else self.create()

    def any(self) -> str:
        """Return a path that is not the top."""
        return self.one([*self.kinds][1:] or [self.create()])

    def free(self, *, below: str | None = None) -> str:
        """Return a path that does not exist; few names, so that they are given again."""
        self.count += 1
        names = [*_NAMES, f"n{self.count}", "long" * (self.count % 7) * 8 + str(self.count)]
        path = f"{below or self.some(_DIR)}/{self.one(names)}"
        return path if path not in self.kinds else f"{path}{self.count}"

    def add(self, *line: Any) -> None:
        self.lines.append([*line])

    def made(self, kind: str, path: str, *line: Any) -> str:
        self.kinds[path] = kind
        self.add(*line)
        return path

    def gone(self, path: str) -> None:
        for one in [one for one in self.kinds if one == path or one.startswith(f"{path}/")]:
            del self.kinds[one]

    # ---------------------------------------------------------------------------------- names --

    def create(self) -> str:
        path = self.free()
        return self.made(_FILE, path, "create", path)

    def mkdir(self) -> None:
        path = self.free()
        self.made(_DIR, path, "mkdir", path)

    def symlink(self) -> None:
        path = self.free()
        self.made(_OTHER, path, "symlink", self.one(["t", "a/../b", "x" * 900]), path)

    def mknod(self) -> None:
        path, mode = self.free(), self.one([0o10600, 0o140644, 0o20600, 0o60600])
        self.made(_OTHER, path, "mknod", path, mode, 7, 300)

    def link(self) -> None:
        path = self.free()
        self.made(_FILE, path, "link", self.some(_FILE), path)

    def links(self) -> None:
        """Give a file so many names that some are in INODE_EXTREF items."""
        source, folder = self.some(_FILE), self.some(_DIR)
        for number in range(self.one([3, 20, _LINKS])):
            path = f"{folder}/link{'k' * 60}{self.count}-{number}"
            self.made(_FILE, path, "link", source, path)

    def unlink(self) -> None:
        path = self.one([path for path, kind in self.kinds.items() if kind != _DIR] or [""])
        if path:
            if self.random.random() < 0.15:
                self.handles += 1
                self.add("open", path, f"h{self.handles}")
            self.gone(path)
            self.add("unlink", path)

    def remove(self) -> None:
        """Remove a directory with all that is in it."""
        top = self.some(_DIR)
        below = sorted(one for one in self.kinds if one == top or one.startswith(f"{top}/"))
        if top != _WORK and len(below) < 30:
            for path in reversed(below):
                self.add("rmdir" if self.kinds[path] == _DIR else "unlink", path)
            self.gone(top)

    def rename(self, kind: str | None = None) -> None:
        old = self.some(kind) if kind else self.any()
        if old == _WORK:
            return
        new = self.free(below=self.some(_DIR))
        if self.random.random() < 0.2 and self.kinds[old] != _DIR:
            new = self.one([path for path, kind in self.kinds.items() if kind != _DIR])
        if new == old or new.startswith(f"{old}/"):
            return
        self.add("rename", old, new)
        self._moved(old, new)

    def _moved(self, old: str, new: str) -> None:
        for path in [one for one in self.kinds if one == old or one.startswith(f"{old}/")]:
            self.kinds[new + path[len(old) :]] = self.kinds.pop(path)

    def move(self) -> None:
        self.rename(_DIR)

    def invert(self) -> None:
        """Put a directory below what was below it."""
        below = [path for path, kind in self.kinds.items() if kind == _DIR and path.count("/") > 1]
        if below:
            inner = self.one(below)
            outer = inner.rpartition("/")[0]
            place = self.free(below=outer.rpartition("/")[0])
            self.add("rename", inner, place)
            self._moved(inner, place)
            target = self.free(below=place)
            self.add("rename", outer, target)
            self._moved(outer, target)

    def exchange(self) -> None:
        one, other = self.any(), self.any()
        if one != other and not (one.startswith(f"{other}/") or other.startswith(f"{one}/")):
            self.add("exchange", one, other)
            self._moved(one, "?")
            self._moved(other, one)
            self._moved("?", other)

    # ----------------------------------------------------------------------------------- data --

    def offset(self) -> int:
        block = self.one([0, 0, 1, 2, 3, 8, 30, self.random.randrange(90)])
        start = self.base() + block * _BLOCK
        return max(start + self.one([0, 0, 0, 1, -1, 100]), 0)

    def base(self) -> int:
        """Return where a range is counted from: the beginning, or far behind it."""
        return self.one(_FAR) if self.far and self.random.random() < 0.3 else 0

    def length(self) -> int:
        return self.one([1, 100, 2000, 2048, _BLOCK, _BLOCK, 3 * _BLOCK, 5000, 30_000, 150_000])

    def blocks(self) -> int:
        return self.base() + self.one([0, 0, 1, 2, 4, 8, 16]) * _BLOCK

    def write(self) -> None:
        self.count += 1
        fill = self.one([self.count, ["zero"], ["rnd", str(self.count)], ["pat", "p"]])
        self.add("write", self.some(_FILE), self.offset(), self.length(), fill)

    def fragments(self) -> None:
        """Write every second block of a file, and those between later."""
        path, number = self.some(_FILE), self.one([6, 30, 80])
        for first in (0, 1):
            for at in range(first, number, 2):
                self.add("write", path, at * 2 * _BLOCK, _BLOCK, at)
            self.add("sync")

    def truncate(self) -> None:
        size = self.one([0, self.offset(), self.length()])
        # what is written after a truncate to nothing is on its way to disk once it is closed
        self.add("truncate", self.some(_FILE), max(size, 1) if self.maps else size)

    def fallocate(self) -> None:
        mode, length = self.one([0, 1, 1, 3, 3, 16, 17]), self.length()
        if mode == _PUNCH_HOLE:
            length += self.base()
        self.add("fallocate", self.some(_FILE), mode, self.offset(), length)

    def far_hole(self) -> None:
        """Punch all between the first blocks of a file and one that is far behind them."""
        path, start, end = self.some(_FILE), self.blocks(), self.one(_FAR)
        self.add("write", path, end, _BLOCK, self.count)
        self.add("fallocate", path, _PUNCH_HOLE, start % _FAR[0], end - start % _FAR[0])

    def far_size(self) -> None:
        """Make a file short, then so long that it ends in a hole."""
        path = self.some(_FILE)
        self.add("truncate", path, self.one([1, _BLOCK, 5000]))
        self.add("truncate", path, self.one(_FAR) + self.one([0, 1, _BLOCK]))

    def clone(self) -> None:
        length = self.one([0, _BLOCK, 2 * _BLOCK, 5 * _BLOCK])
        source, target = self.some(_FILE), self.some(_FILE)
        self.add("clone_range", source, self.blocks(), length, target, self.blocks())

    def fiemap(self) -> None:
        self.add("fiemap", self.some(_FILE), self.one([True, False]))

    def clone_file(self) -> None:
        source, target = self.some(_FILE), self.create()
        self.add("clone", source, target)

    # ----------------------------------------------------------------------------- attributes --

    def attributes(self) -> None:
        self.add("chmod", self.some(self.one([_FILE, _DIR])), self.one([0o600, 0o755, 0o4711]))
        self.add("chown", self.any(), self.one([0, 1000]), self.one([0, 5]))

    def utimes(self) -> None:
        self.add("utimes", self.any(), self.one([5, 10**18 + 1]), self.one([7, 2 * 10**18 + 3]))

    def xattr(self) -> None:
        path, name = self.some(self.one([_FILE, _FILE, _DIR])), self.one(_XATTRS)
        if self.random.random() < 0.3:
            self.add("removexattr", path, name)
        else:
            size = self.one([0, 1, 60, 300, 1500, 3500])
            self.add("setxattr", path, name, self.random.randbytes(size).hex())

    def acl(self) -> None:
        value = acl(self.one([6, 7]), self.one([4, 5]), self.one([0, 4]), self.one([None, 3, 7]))
        self.add("setxattr", self.some(self.one([_FILE, _DIR])), _ACL, value.hex())

    def capability(self) -> None:
        value = "010000020004000000000000000000000000000000"[:40]
        self.add("setxattr", self.some(_FILE), "security.capability", value)

    def property(self) -> None:
        path = self.some(self.one([_FILE, _DIR]))
        self.add("setxattr", path, "btrfs.compression", self.one([b"zstd", b"lzo", b""]).hex())

    def flags(self) -> None:
        self.add("chattr", self.some(_FILE), self.one([0x800000, 0x4, 0x80]), 0)

    def sync(self) -> None:
        self.add("sync")


def _kinds(tree: _Tree, sharing: bool) -> list[Callable[[], object]]:
    names: list[Callable[[], object]] = [
        tree.create, tree.create, tree.mkdir, tree.mkdir, tree.symlink, tree.mknod, tree.link,
        tree.unlink, tree.unlink, tree.remove, tree.rename, tree.rename, tree.move, tree.move,
        tree.invert, tree.exchange, tree.attributes, tree.utimes, tree.xattr, tree.xattr, tree.acl,
        tree.property, tree.flags, tree.capability,
    ]  # fmt: skip
    data: list[Callable[[], object]] = [
        tree.create, tree.write, tree.write, tree.write, tree.write, tree.truncate, tree.fallocate,
        tree.fallocate, tree.clone, tree.clone, tree.clone_file, tree.unlink, tree.sync,
    ]  # fmt: skip
    if tree.far:
        data += [tree.far_hole, tree.far_hole, tree.far_size]
    if sharing:
        maps = [tree.fiemap] * len(data)
        return [*data, *data, *data, *maps, tree.fragments, tree.fragments, tree.clone, *names]
    return [*names, *names, *data, *data, tree.fragments]


def random_tree(seed: object, files: int, *, sharing: bool = False, far: bool = True) -> Scenario:
    """Make a scenario with snapshots ``s0``, ``s1``, ... of a subvolume.

    Parameters
    ----------
    seed : object
        Whose string decides all.
    files : int
        Empty files that are there besides.
    sharing : bool
        More of data and clones, snapshots that are written to; files are mapped meanwhile.
    far : bool
        Files of one scenario in six may have holes and sizes beyond 4 GiB.
    """
    choice = random.Random(f"tree {seed}")
    tree = _Tree(choice, sharing, far and choice.random() < _FAR_SHARE)
    tree.add("mkfs", mkfs_options(choice, portable=True))
    tree.add("mount", mount_options(choice))
    tree.add("subvol_create", _WORK)
    many = f"{_WORK}/many"
    if files:
        tree.made(_DIR, many, "mkdir", many)
        tree.add("mkfiles", many, "m", 1, files)
    kinds = _kinds(tree, sharing)
    for number in range(choice.randint(2, 4)):
        for _ in range(choice.choice([10, 30, 60, 120])):
            choice.choice(kinds)()
        if choice.random() < 0.05:
            tree.links()
        if files and number and many in tree.kinds:
            step = choice.choice([2, 7, 100])
            tree.add(choice.choice(["rmfiles", "chmodfiles"]), many, "m", number, files, step)
        tree.add("snapshot", _WORK, f"s{number}", True)
        if sharing and choice.random() < 0.5:
            tree.add("snapshot", choice.choice([_WORK, f"s{number}"]), f"w{number}", False)
            tree.add("mkfiles", f"w{number}", "w", 1, choice.choice([1, 60, 250]))
        if choice.random() < 0.3:
            tree.add("remount")
    steps = [parse_step(f"seed {seed}", number, line) for number, line in enumerate(tree.lines, 1)]
    return Scenario(f"seed {seed}", steps, hex_values=True)
