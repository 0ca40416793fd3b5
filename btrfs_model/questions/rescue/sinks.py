# SPDX-License-Identifier: GPL-2.0-only
"""Where files go that were rescued: a folder, a tar archive, or nowhere."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.whole_file import naming, write_at
from btrfs_model.questions.archive import add_file, member
from btrfs_model.volume.subvolume import device_number

if TYPE_CHECKING:
    from btrfs_model.questions.rescue.content import Content

_ZEROS: Final = bytes(1 << 20)
_SECOND: Final = 10**9
_INT64: Final = 2**63 - 1


Refusal = tuple[str, str] | None
"""What could not be made where files go: ``file`` or ``attribute``, and why."""
_NO_MORE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_SOCKET: Final = ("file", "it is a socket, which no tar archive holds")


class Sink(Protocol):
    """Takes files, each directory before what it holds; paths have names that a host takes."""

    def add(self, row: dict[str, Any], content: Content | None) -> Refusal:
        """Take a file.

        `row`: as a listing has it, ``path`` as bytes.
        `content`: of a regular file.
        """

    def link(self, row: dict[str, Any], first: bytes) -> Refusal:
        """Give a file that is there another name."""

    def end(self) -> None:
        """Finish after the last file."""


class Nowhere:
    """Reads all and writes nothing."""

    def add(self, row: dict[str, Any], content: Content | None) -> Refusal:
        """Read a file."""
        for _ in content.parts() if content else ():
            pass
        return None

    def link(self, row: dict[str, Any], first: bytes) -> Refusal:
        """Do nothing."""
        return None

    def end(self) -> None:
        """Do nothing."""


class Archive:
    """A tar archive, as :func:`btrfs_model.write_tar` writes it; what is lost reads as zeros.

    `out`: the file; `stack` ends what was begun when something fails.
    """

    def __init__(self, out: BinaryIO, stack: ExitStack) -> None:
        self._tar = stack.enter_context(
            tarfile.open(  # noqa: SIM115
                fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8",
                errors="surrogateescape",
            )
        )  # fmt: skip

    def _member(self, row: dict[str, Any]) -> tarfile.TarInfo:
        return member(row | {"path": os.fsdecode(row["path"])})

    def add(self, row: dict[str, Any], content: Content | None) -> Refusal:
        """Write a member."""
        if stat.S_ISSOCK(row["mode"]):
            return _SOCKET
        info = self._member(row)
        if content is None:
            self._tar.addfile(info)
            return None
        spans = [(extent.start, stop) for extent, stop in content.ranges]
        add_file(self._tar, info, row["ino"], row["size"], spans, _filled(content, spans))
        return None

    def link(self, row: dict[str, Any], first: bytes) -> Refusal:
        """Write a link."""
        if stat.S_ISSOCK(row["mode"]):
            return _SOCKET
        info = self._member(row)
        info.type, info.linkname = tarfile.LNKTYPE, f"./{os.fsdecode(first)}"
        self._tar.addfile(info)
        return None

    def end(self) -> None:
        """Write the end of the archive."""
        self._tar.close()


def _filled(content: Content, spans: list[tuple[int, int]]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of spans, zeros where they are lost."""
    left = iter(spans)
    at = end = 0
    for start, data in content.parts():
        while start >= end:
            yield from _zeros(end - at)
            at, end = next(left)
        yield from _zeros(start - at)
        yield data
        at = start + len(data)
    yield from _zeros(end - at)
    for start, stop in left:
        yield from _zeros(stop - start)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield _ZEROS[:count]
        count -= len(_ZEROS)


class Folder:
    """A folder of the host, new or empty.

    A directory is opened below its parent and no symbolic link is followed, so nothing is written
    outside. Owners are set by root alone.

    `path`: where it is, or will be.
    Raises BtrfsModelError: when there is something in it.
    Raises OSError: when it cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with naming(path):
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise BtrfsModelError(f"{os.fspath(path)}: the folder is not empty")
            self._top = os.open(path, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)
        self._is_root = os.geteuid() == 0
        self._directories: list[dict[str, Any]] = []

    @contextmanager
    def _naming(self, row: dict[str, Any]) -> Iterator[None]:
        """Let errors name the file by its whole path, whatever the call knew of it."""
        try:
            yield
        except OSError as error:
            where = self.path / os.fsdecode(row["path"])
            raise OSError(error.errno, error.strerror, os.fspath(where)) from None

    def _open(self, path: bytes) -> int:
        """Open a directory that was made, name by name."""
        fd = os.dup(self._top)
        for name in filter(None, path.split(b"/")):
            flags = os.O_DIRECTORY | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                below = os.open(name, flags, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    def add(self, row: dict[str, Any], content: Content | None) -> Refusal:
        """Make a file, with what attributes the host lets it have."""
        if not row["path"]:
            self._directories.append(row)
            return None
        folder, _, name = row["path"].rpartition(b"/")
        with self._naming(row):
            within = self._open(folder)
            try:
                return self._make(within, name, row, content)
            finally:
                os.close(within)

    def _make(
        self, within: int, name: bytes, row: dict[str, Any], content: Content | None
    ) -> Refusal:
        mode = row["mode"]
        if stat.S_ISDIR(mode):
            os.mkdir(name, 0o700, dir_fd=within)
            self._directories.append(row)
            return None
        if stat.S_ISREG(mode):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=within)
            try:
                said = self._write(fd, row, content)
                said = said or self._attributes(fd, row)
            except BaseException:
                os.close(fd)
                os.unlink(name, dir_fd=within)
                raise
            os.close(fd)
            return said
        if stat.S_ISLNK(mode):
            os.symlink(row["target"], name, dir_fd=within)
        else:
            try:
                os.mknod(name, stat.S_IFMT(mode) | 0o600, device_number(row["rdev"]), dir_fd=within)
            except OSError as error:
                return _refused(error, "it cannot be made here")
        if self._is_root:
            os.chown(name, row["uid"], row["gid"], dir_fd=within, follow_symlinks=False)
        if not stat.S_ISLNK(mode):
            os.chmod(name, stat.S_IMODE(mode), dir_fd=within)
        _set_times(name, row, dir_fd=within, follow_symlinks=False)
        return None

    def _write(self, fd: int, row: dict[str, Any], content: Content | None) -> Refusal:
        for start, data in content.parts() if content else ():
            write_at(fd, data, start)
        try:
            os.ftruncate(fd, min(row["size"], _INT64))
        except OSError as error:
            return _refused(error, f"it cannot be {row['size']} bytes long here")
        return None

    def _attributes(self, fd: int, row: dict[str, Any]) -> Refusal:
        if self._is_root:
            os.fchown(fd, row["uid"], row["gid"])
        refused = []
        for key, value in row["xattrs"].items():
            try:
                os.setxattr(fd, key, value)
            except (OSError, ValueError):
                refused.append(os.fsdecode(key))
        os.fchmod(fd, stat.S_IMODE(row["mode"]))
        _set_times(fd, row)
        return ("attribute", f"it cannot have here: {', '.join(refused)}") if refused else None

    def link(self, row: dict[str, Any], first: bytes) -> Refusal:
        """Make a hard link."""
        with self._naming(row):
            folder, _, name = row["path"].rpartition(b"/")
            before, _, old = first.rpartition(b"/")
            here = self._open(folder)
            try:
                there = self._open(before)
                try:
                    os.link(old, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
                finally:
                    os.close(there)
            except OSError as error:
                return _refused(error, "it cannot be made here")
            finally:
                os.close(here)
        return None

    def end(self) -> None:
        """Give directories their attributes, which the files in them would change."""
        for row in reversed(self._directories):
            with self._naming(row):
                fd = self._open(row["path"])
                try:
                    self._attributes(fd, row)
                finally:
                    os.close(fd)
        os.close(self._top)


def _refused(error: OSError, what: str) -> Refusal:
    """Say what the place does not take; when nothing more goes there, nothing does.

    Raises OSError: then.
    """
    if error.errno in _NO_MORE:
        raise error
    return "file", f"{what}: {error.strerror}"


def _set_times(what: int | bytes, row: dict[str, Any], **how: Any) -> None:
    with suppress(OSError, OverflowError):
        os.utime(what, ns=(row["atime"], row["mtime"]), **how)
