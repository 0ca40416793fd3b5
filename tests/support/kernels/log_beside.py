# SPDX-License-Identifier: GPL-2.0-only
"""The same calls and fsyncs in the running kernel and in the model, and the logs that come of it.

Operations are those of scenarios. :func:`in_the_kernel` carries them out on a fresh filesystem,
:func:`in_the_model` as that kernel; each keeps the device as it is at the first ``crash``, and
fails where the other one does. :func:`random_operations` makes some.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import random
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import scenarios
from live import mounted

from btrfs_model.behaviour import PRESETS, Behaviour
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import Step, parse_step
from btrfs_model.experiments.scenario.run import _Runner
from btrfs_model.mount.writable import WritableFilesystem

KERNEL = "v" + platform.release().split("-")[0]
KNOWN = KERNEL in PRESETS
"""Whether it is known what the running kernel took over."""
# on a smaller device room for metadata may be short, and then more is written than calls ask for
SIZE = 1 << 30
# no commit comes between, no discard of what is free
_QUIET = "commit=300,nodiscard"

Operation = list[Any]


@dataclass
class Beside:
    """Operations, and the filesystem that they are carried out on."""

    operations: list[Operation]
    mkfs: list[str] = field(default_factory=list)
    mount: str = "noatime"
    size: int = SIZE

    @property
    def steps(self) -> list[Step]:
        return [parse_step("case", number, one) for number, one in enumerate(self.operations, 1)]

    @property
    def mkfs_options(self) -> list[str]:
        return ["-m", "single", "-d", "single", *self.mkfs]


def _can_be_opened(mode: int) -> None:
    """Leave out what is of another filesystem, or none, once it is open."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "neither file nor directory")


def _taken(carry_out: Callable[[Step], None], steps: list[Step]) -> list[str]:
    """Carry out operations; how each ended: the name of its errno, or nothing."""
    ended = []
    for step in steps:
        try:
            carry_out(step)
            ended.append("")
        except OSError as error:
            ended.append(errno.errorcode[error.errno or 0])
    return ended


# ---------------------------------------------------------------------------------- the kernel --


class _Kernel(scenarios._KernelSteps):
    """The running kernel; it is seen in the superblock what an fsync came to."""

    def __init__(self, image: Path, top: Path, options: str, crash: Path) -> None:
        super().__init__(image, top, options, hex_values=True)
        self.crash = crash
        self.ends: list[str] = []
        self.handles: dict[str, int] = {}

    def _super(self) -> tuple[bytes, bytes]:
        """Generation and log_root of the superblock."""
        with self.image.open("rb") as file:
            file.seek(65536 + 72)
            found = file.read(32)
        return found[:8], found[24:]

    def _sync(self, call: Callable[[int], None], fd: int) -> None:
        before = self._super()
        call(fd)
        after = self._super()
        end = "commit" if after[0] != before[0] else "log" if after[1] != before[1] else "none"
        self.ends.append(end)

    def _open(self, path: bytes) -> int:
        _can_be_opened(os.stat(self._at(path)).st_mode)  # noqa: PTH116
        return os.open(self._at(path), os.O_RDONLY)

    def do_fsync(self, path: bytes, call: Callable[[int], None] = os.fsync) -> None:
        fd = self._open(path)
        try:
            self._sync(call, fd)
        finally:
            os.close(fd)

    def do_fdatasync(self, path: bytes) -> None:
        self.do_fsync(path, os.fdatasync)

    def do_open(self, path: bytes, handle: str) -> None:
        fd = self._open(path)
        if handle in self.handles:
            os.close(fd)
            raise OSError(errno.EBUSY, handle)
        self.handles[handle] = fd

    def _opened(self, handle: str) -> int:
        if handle not in self.handles:
            raise OSError(errno.EBADF, handle)
        return self.handles[handle]

    def do_fsyncfd(self, handle: str) -> None:
        self._sync(os.fsync, self._opened(handle))

    def do_close(self, handle: str) -> None:
        os.close(self._opened(handle))
        del self.handles[handle]

    def close_all(self) -> None:
        for handle in list(self.handles):
            self.do_close(handle)

    def do_remount(self, options: str | None) -> None:
        self.close_all()
        super().do_remount(options)

    def _numbered(self, path: bytes, prefix: str, numbers: range) -> Iterator[str]:
        return (f"{os.fsdecode(path)}/{prefix}{number}" for number in numbers)

    def do_mkfiles(self, path: bytes, prefix: str, first: int, last: int) -> None:
        for name in self._numbered(path, prefix, range(first, last + 1)):
            self.names.create(name, 0o644)

    def do_rmfiles(self, path: bytes, prefix: str, first: int, last: int, step: int) -> None:
        for name in self._numbered(path, prefix, range(first, last + 1, step)):
            self.names.unlink(name)

    def do_crash(self) -> None:
        subprocess.run(["cp", "--sparse=always", str(self.image), str(self.crash)], check=True)


def in_the_kernel(beside: Beside, image: Path, crash: Path) -> tuple[list[str], list[str]]:
    """Carry operations out on a new filesystem: how each ended, and what the fsyncs came to."""
    with image.open("wb") as file:
        file.truncate(beside.size)
    command = ["mkfs.btrfs", "-q", *beside.mkfs_options, str(image)]
    subprocess.run(command, check=True, capture_output=True)
    options = f"{_QUIET},{beside.mount}"
    with mounted(image, options) as top:
        kernel = _Kernel(image, top, options, crash)
        kernel.names.sync()
        try:
            return _taken(kernel.carry_out, beside.steps), kernel.ends
        finally:
            kernel.close_all()


# ----------------------------------------------------------------------------------- the model --


class _Model(_Runner):
    """The model; what is neither file nor directory is not opened here either."""

    def _check(self, path: bytes, *, follow: bool = True) -> None:
        fs = self.fs()
        _can_be_opened(fs.inode(*fs.resolve(path, follow=follow)).item.mode)

    def do_fsync(self, path: bytes) -> None:
        self._check(path)
        super().do_fsync(path)

    def do_fdatasync(self, path: bytes) -> None:
        self._check(path)
        super().do_fdatasync(path)

    def do_open(self, path: bytes, handle: str) -> None:
        self._check(path)
        super().do_open(path, handle)

    def do_remount(self, options: str | None) -> None:
        for handle in list(self.open):
            self.do_close(handle)
        super().do_remount(options)


def in_the_model(
    beside: Beside, crash: Path, behaviour: str = KERNEL
) -> tuple[list[str], list[str]]:
    """Carry operations out as the running kernel does, or another one."""
    model = _Model(Scenario("case", [], hex_values=True), beside.size, 0)
    model.asynchronous = True
    model.behaviour = Behaviour.parse(behaviour)
    ends: list[str] = []

    def crashed(fs: WritableFilesystem, number: int) -> None:
        if number == 1:
            fs.save_crash(crash)

    model.crashed = crashed
    model.synced = lambda step, how, work: ends.append(how)
    lines: list[Operation] = [["mkfs", beside.mkfs_options], ["mount", beside.mount], ["sync"]]
    with contextlib.closing(model):
        for line in lines:
            model.carry_out(parse_step("case", 1, line))
        return _taken(model.carry_out, beside.steps), ends


# -------------------------------------------------------------------------- random operations --

BLOCK = 4096
NOCOW = 0x800000
FILES = ("f", "a/f", "a/g", "a/b/f", "d/h", "d/e/k")
FOLDERS = ("", "", "a", "a", "a/b", "d", "d/e")
IN_SUBVOLUME = (("s/f", "s/e/f"), ("s", "s/e"))
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

    def path(self) -> str:
        return f"{self.one(self.folders)}/{self.one(NAMES)}".lstrip("/")

    def file(self) -> str:
        return self.one(self.files) if self.random.random() < 0.8 else self.path()

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
        (1, lambda: ["removexattr", c.file(), c.one(["user.a", "user.b"])]),
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
    """What is committed before anything is logged."""
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
    yield ["sync"]
    if c.random.random() < 0.3:
        yield ["remount"]


def random_operations(seed: object) -> Beside:
    """A filesystem of 16 or 64 KiB a block, some calls with fsyncs in between, and a crash."""
    choice = random.Random(f"log {seed}")
    c = _Choice(choice, subvolumes=choice.random() < 0.4)
    mkfs = choice.choices([[], ["-n", "65536"]], [7, 1])[0]
    mkfs = mkfs + choice.choices([[], ["-O", "^no-holes"]], [3, 1])[0]
    mkfs = mkfs + choice.choices([[], ["--csum", c.one(["xxhash", "sha256"])]], [6, 1])[0]
    mount = c.one(["", "", "", ",compress=zlib", ",compress-force=zstd", ",max_inline=0"])
    weights = [c.one([1, 4, 6]), c.one([1, 4, 6]), 2]
    operations = list(_first_operations(c))
    for _ in range(c.one([1, 1, 2, 3, 5])):
        for _ in range(c.one([1, 2, 3, 5, 8])):
            make = choice.choices([_name_operation, _data_operation, _other_operation], weights)[0]
            operations.append(make(c))
        path = c.one([c.one(c.files), c.one(c.files), c.one(c.folders), c.path()])
        operations.append([c.one(["fsync", "fsync", "fsync", "fdatasync"]), path])
    if choice.random() < 0.5:
        path = c.one(c.files)
        operations += [["write", path, 0, 50, 3], ["fsync", path]]
    return Beside([*operations, ["crash"]], mkfs, f"noatime{mount}")
