# SPDX-License-Identifier: GPL-2.0-only
"""Random filesystems made by the running kernel, and what it sends of them.

As root with loop devices and btrfs. :func:`random_filesystem` makes a small filesystem, changes it
at random and takes read-only snapshots on the way; everything follows from a seed but uuids and
times. :func:`kernel_send` is ``BTRFS_IOC_SEND``.
"""

import contextlib
import os
import platform
import random
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from mounts import mounted

from btrfs_model.behaviour import preset_of
from btrfs_model.kernels.inside.ioctls import clone_range
from btrfs_model.kernels.inside.ioctls import send as ioctl_send
from btrfs_model.kernels.native import why_not

_BLOCK = 4096


PRESET = preset_of(platform.release())
"""Of the running kernel."""

BESIDE_THE_KERNEL = [
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.flaky(reruns=2),
]
"""Marks of a test beside the running kernel, which may try again, twice.

Threads of the kernel (writeback, the cleaner, caching of free space) may come in between and write
or read something that they do not in other runs. What the model gets wrong is wrong each time.
"""


def beside_the_kernel(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test with :data:`BESIDE_THE_KERNEL`."""
    for mark in BESIDE_THE_KERNEL:
        test = mark(test)
    return test


def kernel_send(
    snapshot: Path, parent: int = 0, clones: tuple[int, ...] = (), flags: int = 0, proto: int = 1
) -> tuple[int, bytes]:
    """Send as the running kernel does: errno (0: none) and the stream so far."""
    with os.fdopen(os.memfd_create("stream"), "w+b") as file:
        folder = os.open(snapshot, os.O_RDONLY)
        number = 0
        try:
            ioctl_send(folder, file.fileno(), parent, clones, flags, proto)
        except OSError as error:
            number = error.errno or 0
        finally:
            os.close(folder)
        file.seek(0)
        return number, file.read()


class Changes:
    """Random changes below a folder, each a method; what cannot be done there is let be."""

    def __init__(self, top: Path, choice: random.Random) -> None:
        self.top = top
        self.choice = choice
        self.count = 0

    def paths(self, *, folders: bool) -> list[Path]:
        found = [Path(at) / name for at, dirs, files in os.walk(self.top)
                 for name in sorted(dirs if folders else files)]  # fmt: skip
        return sorted(found)

    def folder(self) -> Path:
        return self.choice.choice([self.top, *self.paths(folders=True)])

    def file(self) -> Path:
        files = [p for p in self.paths(folders=False) if stat.S_ISREG(p.lstat().st_mode)]
        return self.choice.choice(files) if files else self.create()

    def name(self) -> str:
        self.count += 1
        # few names, so that they are taken from and given to each other
        return self.choice.choice(["a", "b", "c", "d", f"f{self.count}", "long" * 40])

    def data(self) -> bytes:
        blocks = self.choice.choice([0, 1, 3, 40])
        tail = self.choice.choice([0, 0, 100, 2000])
        return bytes([self.choice.randrange(256)]) * (blocks * _BLOCK + tail)

    def create(self) -> Path:
        path = self.folder() / self.name()
        with path.open("xb") as file:
            file.write(self.data())
        return path

    def mkdir(self) -> None:
        (self.folder() / self.name()).mkdir()

    def write(self) -> None:
        with self.file().open("r+b") as file:
            file.seek(self.choice.randrange(60) * _BLOCK)
            file.write(self.data())

    def truncate(self) -> None:
        os.truncate(self.file(), self.choice.randrange(200_000))

    def fallocate(self) -> None:
        with self.file().open("r+b") as file:
            os.posix_fallocate(file.fileno(), self.choice.randrange(9) * 10_000, 50_000)

    def clone(self) -> None:
        source, target = self.file(), self.file()
        start, at = (self.choice.randrange(8) * _BLOCK for _ in range(2))
        length = self.choice.randrange(9) * _BLOCK  # 0: to the end
        clone_range(source, start, length, target, at)

    def link(self) -> None:
        os.link(self.file(), self.folder() / self.name(), follow_symlinks=False)

    def unlink(self) -> None:
        self.choice.choice(self.paths(folders=False)).unlink()

    def rmdir(self) -> None:
        self.choice.choice(self.paths(folders=True)).rmdir()

    def rename(self) -> None:
        everything = self.paths(folders=True) + self.paths(folders=False)
        self.choice.choice(everything).rename(self.folder() / self.name())

    def move_folder(self) -> None:
        self.choice.choice(self.paths(folders=True)).rename(self.folder() / self.name())

    def symlink(self) -> None:
        (self.folder() / self.name()).symlink_to(self.name())

    def special(self) -> None:
        kind = self.choice.choice([stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])
        os.mknod(self.folder() / self.name(), kind | 0o600, os.makedev(1, 3))

    def attributes(self) -> None:
        path = self.choice.choice([self.file(), self.folder()])
        path.chmod(self.choice.choice([0o600, 0o644, 0o755, 0o4755]))
        os.chown(path, self.choice.randrange(3), self.choice.randrange(3))

    def xattr(self) -> None:
        path, name = self.file(), f"user.{self.choice.choice('xyz')}"
        if self.choice.random() < 0.3:
            os.removexattr(path, name)
        else:
            os.setxattr(path, name, self.data()[:300])

    def sync(self) -> None:
        subprocess.run(["btrfs", "filesystem", "sync", str(self.top)], check=True)


def random_filesystem(image: Path, seed: int) -> None:
    """Make a filesystem of 128 MiB with three to five snapshots ``s0``, ``s1``, ..."""
    choice = random.Random(f"live-{seed}")
    with image.open("wb") as file:
        file.truncate(128 << 20)
    nodesize = choice.choice(["4096", "16384"])
    holes = choice.choice([[], ["-O", "^no-holes"]])
    subprocess.run(["mkfs.btrfs", "-q", "-f", "-n", nodesize, *holes, str(image)], check=True)
    compression = choice.choice(["no", "zlib", "lzo", "zstd"])
    with mounted(image, f"compress={compression}") as top:
        change_at_random(top, choice)


def change_at_random(top: Path, choice: random.Random) -> None:
    """Change a filesystem at random, and take snapshots ``s0``, ``s1``, ... on the way."""
    work = top / "work"
    subprocess.run(["btrfs", "-q", "subvolume", "create", str(work)], check=True)
    changes = Changes(work, choice)
    kinds: list[Callable[[], object]] = [
        changes.create, changes.create, changes.mkdir, changes.write, changes.truncate,
        changes.fallocate, changes.clone, changes.link, changes.unlink, changes.rmdir,
        changes.rename, changes.rename, changes.move_folder, changes.symlink, changes.special,
        changes.attributes, changes.xattr, changes.sync,
    ]  # fmt: skip
    for number in range(choice.randint(3, 5)):
        for _ in range(choice.choice([20, 80, 200])):
            # what does not exist, or exists already, or cannot be moved into itself
            with contextlib.suppress(OSError, IndexError):
                choice.choice(kinds)()
        target = str(top / f"s{number}")
        subprocess.run(
            ["btrfs", "-q", "subvolume", "snapshot", "-r", str(work), target], check=True
        )
