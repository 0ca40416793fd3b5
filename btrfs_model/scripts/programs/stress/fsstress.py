# SPDX-License-Identifier: GPL-2.0-only
"""fsstress: random operations on the names that it makes, as ``ltp/fsstress.c`` of fstests.

What it draws and calls is that of a program that was built with libaio and liburing, without
libbtrfsutil. Where btrfs, or the model, does not have what an operation asks for, it ends with the
errno of Linux 6.18.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from btrfs_model.scripts.glibc import Random
from btrfs_model.scripts.programs.stress.names import Names

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.scripts.files import Stat
    from btrfs_model.scripts.mounted import Mounted

BLOCK: Final = 4096
FILE_LENGTH: Final = 32 * 4096
MIB: Final = 1 << 20


class Seen(NamedTuple):
    """A regular file as it was when it was looked at; `info` is what is told of it."""

    size: int
    ino: int
    info: str


@dataclass
class Settings:
    """What options say."""

    operations: int = 1
    seed: int = 0
    verbose: bool = False
    verifiable: bool = False
    pads: bool = False
    modulo: int = 31
    frequencies: dict[str, int] | None = None


class Process:
    """A process of fsstress.

    Parameters
    ----------
    mounted, home : Mounted, str
        The mount, and the directory of the process in it.
    number : int
        Which process it is.
    settings : Settings
        Options.
    write : callable
        Prints a text.
    """

    def __init__(
        self, mounted: Mounted, home: str, number: int, settings: Settings,
        write: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.mounted, self.home, self.number, self.set = mounted, home, number, settings
        self.computer, self.write = mounted.computer, write
        self.names = Names()
        self.seed, self.operation = settings.seed, 0
        self.random = Random(0)

    @property
    def fs(self) -> WritableFilesystem:
        """The filesystem."""
        return self.mounted.fs

    def begin(self) -> None:
        """Begin a loop of operations."""
        self.seed += self.number
        self.random = Random(self.seed)
        if self.set.pads:
            self.names.padding = self.draw()

    def draw(self) -> int:
        """Return the next random number."""
        return self.random.next()

    def draw_long(self) -> int:
        """Return a number of 62 bits."""
        return (self.random.next() << 32) + self.random.next()

    def say(self, text: str) -> None:
        """Say what an operation did."""
        if self.set.verbose:
            self.write(f"{self.number}/{self.operation}: {text}\n")

    # -------------------------------------------------------------------------------- files --

    def inside(self, path: str) -> str:
        """Return a path from the top of the filesystem."""
        return self.mounted.inside(f"{self.home}/{path}")

    def absolute(self, path: str) -> str:
        """Return a path that programs take."""
        return f"{self.mounted.prefix}{self.home}/{path}"

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        """Return what stat says; OSError where there is nothing."""
        return self.mounted.stat(f"{self.home}/{path}", follow)

    def look(self, path: str) -> Seen:
        """Look at a regular file."""
        seen = self.stat(path)
        info = ""
        if self.set.verbose:
            ino = -1 if self.set.verifiable else seen.ino
            info = f"[{ino} {seen.nlink} {seen.uid} {seen.gid} {seen.blocks} {seen.size}]"
        return Seen(seen.size, seen.ino, info)

    def opened(
        self, what: str, kinds: tuple[int, ...], number: int, *, empty: bool = True
    ) -> tuple[str, Seen] | None:
        """Choose a file and look at it; None, with what is said, where there is none.

        `empty`: whether one without bytes will do.
        """
        entry = self.names.choose(kinds, number)
        if entry is None:
            self.say(f"{what} - no filename")
            return None
        path = self.names.path(entry)
        seen = self.look(path)
        if not empty and not seen.size:
            self.say(f"{what} - {path}{seen.info} zero size")
            return None
        return path, seen

    def ends(self, what: str, call: Callable[[], object]) -> int:
        """Call, and return how it ended: 0 or an errno."""
        try:
            with self.computer.timed(what):
                call()
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def opens(self, path: str) -> int:
        """Return how open(2) for reading and writing ends."""
        try:
            seen = self.stat(path)
        except OSError as error:
            return error.errno or errno.EIO
        return errno.EISDIR if seen.is_dir else errno.ENXIO if stat.S_ISCHR(seen.mode) else 0


def place_for_writing(process: Process, seen: Seen) -> int:
    """Return where a file is written, at most a MiB behind its end."""
    return process.draw_long() % (seen.size + MIB)


def aligned_length(process: Process) -> int:
    """Return a length for direct calls."""
    length = process.draw() % FILE_LENGTH + 1
    return length - length % BLOCK or BLOCK
