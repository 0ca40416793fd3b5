# SPDX-License-Identifier: GPL-2.0-only
"""A file that xfs_io has open, and what its commands share."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.mount.names.lookup import find, may_write
from btrfs_model.scripts.files import fail
from btrfs_model.scripts.mounted import Mounted, MountedFile
from btrfs_model.scripts.program import UsageError, reason, size_of
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell
    from btrfs_model.shell.streams import Stream

BLOCK: Final = 4096


class OpenFile:
    """A file that xfs_io has open."""

    def __init__(self, computer: Computer, path: str, given: dict[str, str]) -> None:
        self.computer, self.shown = computer, path
        self.path = computer.absolute(path)
        self.read_only = "r" in given
        self.syncs, self.appends, self.direct = "s" in given, "a" in given, "d" in given
        self.maps = False
        if "T" in given:
            self.stream = self._without_a_name()
            return
        seen = computer.stat(self.path)
        if seen is None and "f" not in given:
            raise fail(errno.ENOENT, path)
        if seen is not None and seen.is_dir and not self.read_only:
            if "f" in given or "t" in given:
                raise fail(errno.EISDIR, path)
            # xfs_io tries to write first, then opens it to be read
            self.read_only = True
        found = computer.place(self.path)
        if seen is not None and found is not None and not self.read_only:
            mounted, inner = found
            mounted.may_write(path)
            may_write(mounted.fs, mounted.inode(inner), path)
        mode = "w+" if seen is None or "t" in given else "r" if self.read_only else "r+"
        self.stream = computer.open(self.path, mode, 0o600).hold()

    def _without_a_name(self) -> Stream:
        """Make a file without a name in the directory (O_TMPFILE)."""
        found = self.computer.place(self.path)
        if found is None:
            raise UnknownError(f"xfs_io: -T: {self.shown} is on no mount")
        mounted, inside = found
        mounted.may_write(inside)
        try:
            with self.computer.timed("create"):
                made = mounted.fs.tmpfile(mounted.inside(inside), 0o600)
        except OSError as error:
            raise fail(error.errno or 0, self.shown) from error
        self.path = f"{self.path.rstrip('/')}/{posixpath.basename(made)}"
        stream = self.computer.open(self.path, "r+").hold()
        mounted.fs.release(find(mounted.fs, made))
        return stream

    def close(self) -> None:
        """Close it: a file without a name is gone then."""
        self.stream.release()

    @property
    def is_mounted(self) -> bool:
        """Whether it is on a filesystem of the model."""
        return isinstance(self.stream, MountedFile)

    @property
    def on(self) -> tuple[Mounted, bytes]:
        """The mount, and a path from the top of the filesystem that stands for the open file."""
        if not isinstance(self.stream, MountedFile):
            raise UnknownError(f"xfs_io: {self.shown}: files are on a mount")
        return self.stream.mounted, self.stream.name

    @property
    def size(self) -> int:
        """Bytes of it."""
        seen = self.computer.stat(self.path)
        return seen.size if seen is not None else 0

    def to_share(self) -> tuple[Mounted, bytes]:
        """Return the place of a file that a call shares extents of; OSError where it is none."""
        seen = self.computer.stat(self.path)
        if seen is not None and not seen.is_file:
            raise fail(errno.EISDIR if seen.is_dir else errno.EINVAL, self.shown)
        return self.on


@contextmanager
def source_file(file: OpenFile, path: str) -> Iterator[OpenFile]:
    """Open the file that a command names; UsageError with xfs_io's words where it is refused."""
    try:
        opened = OpenFile(file.computer, path, {"r": ""})
    except OSError as error:
        raise UsageError(f"{path}: {reason(error)}") from error
    try:
        yield opened
    finally:
        opened.close()


FileCommand: TypeAlias = "Callable[[Shell, OpenFile, list[str]], int]"
"""What a command does with the open file; returns its exit status."""


def _human(value: int) -> str:
    """Write a number of bytes as xfs_io does, which shows digits where it is no int."""
    digits = 3 if value >= 1 << 31 else 0
    for unit, size in (("EiB", 1 << 60), ("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30),
                       ("MiB", 1 << 20), ("KiB", 1 << 10)):  # fmt: skip
        if value >= size:
            return f"{value / size:.{digits}f} {unit}"
    return f"{value:f} bytes"


def report(shell: Shell, verb: str, offset: int, done: int, count: int, operations: int) -> None:
    """Say what was done; no time passes here."""
    shell.write(
        f"{verb} {done}/{count} bytes at offset {offset}\n"
        f"{_human(done)}, {operations} ops; 0.0000 sec (inf EiB/sec and inf ops/sec)\n"
    )


def range_of(words: list[str]) -> tuple[int, int]:
    """Return an offset and a length."""
    return size_of(words[0], block=BLOCK), size_of(words[1], block=BLOCK)
