# SPDX-License-Identifier: GPL-2.0-only
"""Files that are written as a whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_NEW: Final = 0o666
"""Permissions of a new file; the kernel takes those away that the process's umask, or the folder,
denies. To ask for the umask would change it for a moment, for all threads."""


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let errors of the system say which file they are about, where they do not."""
    try:
        yield
    except OSError as error:
        name_error(error, path)
        raise


def name_error(error: OSError, path: str | os.PathLike[str]) -> None:
    """Let an error of the system say which file it is about, where it does not."""
    if error.filename is None and error.errno is not None:
        error.filename = os.fspath(path)


@contextmanager
def whole_file(path: str | os.PathLike[str], *, special: bool = False) -> Iterator[BinaryIO]:
    """Write a file that takes its place when it is complete.

    Until then, and when something fails, what was there before is there. A symbolic link stays one:
    what it leads to is replaced. The file keeps the permissions of the one before it.

    `path`: where it will be.
    `special`: write to a pipe or device that is there; it stays what it is.
    Yields the file to write to; it has a descriptor.
    Raises OSError: when it cannot be written, with its name. ENOTSUP where a pipe or a device is,
    which a file must not replace.
    """
    with naming(path):
        mode, is_special = _mode_of(path, special=special)
        if is_special:
            with Path(path).open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        partial = _free_name(target)
        try:  # from here on: who is asked to end may be so at any step
            with os.fdopen(_made(partial, path, mode), "wb") as file:
                yield file
            _take_place(partial, target, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def open_unnamed(path: str | os.PathLike[str]) -> int | None:
    """Open a new file that may take the place of one that is there; see :func:`name_file`.

    `path`: where that is.
    None where the filesystem has no files without names, or none can be made there.
    """
    target = Path(os.path.realpath(path))
    if not target.is_file():
        return None
    try:
        return os.open(target.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, _NEW)
    except OSError:
        return None


def name_file(fd: int, path: str | os.PathLike[str]) -> None:
    """Let a file take its place, as :func:`whole_file` does.

    `fd`: of a file without a name (:func:`open_unnamed`).
    Raises OSError: likewise.
    """
    with naming(path):
        mode, _ = _mode_of(path, special=False)
        if mode is not None:
            os.fchmod(fd, mode)
        # what a filesystem says late, it says whenever a descriptor is closed
        os.close(os.dup(fd))
        target = Path(os.path.realpath(path))
        # such a file gets a name that is free, so another takes it to the place
        partial = _free_name(target)
        # with a directory it is linkat(2), which follows the link
        try:
            os.link(f"/proc/self/fd/{fd}", partial, src_dir_fd=fd, follow_symlinks=True)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        try:
            _take_place(partial, target, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def write_at(fd: int, data: bytes | memoryview, at: int) -> None:
    """Write all of some bytes to a place of a file: a call may take a part of them.

    Raises OSError.
    """
    left = memoryview(data)
    while len(left):
        done = os.pwrite(fd, left, at)
        left, at = left[done:], at + done


def check_folder(path: str | os.PathLike[str]) -> None:
    """Make sure that files can be made in a folder, which is made where it is missing.

    Raises OSError: when they cannot.
    """
    Path(path).mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))


def _free_name(target: Path) -> Path:
    """Return a name that nothing beside a file has, of no more bytes than a name may have."""
    ours = os.fsdecode(os.fsencode(target.name)[:200])
    return target.with_name(f".{ours}.{os.urandom(8).hex()}")


def _take_place(partial: Path, target: Path, path: str | os.PathLike[str]) -> None:
    """Rename a file; errors name the place that was asked for."""
    try:
        partial.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _made(partial: Path, path: str | os.PathLike[str], mode: int | None) -> int:
    """Make the file that will take the place of `path`; errors name the place.

    `mode`: its permissions; without them it has those that the kernel gives a new file.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(partial, flags, _NEW if mode is None else 0o600)
        if mode is not None:
            os.fchmod(fd, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    return fd


def _mode_of(path: str | os.PathLike[str], *, special: bool) -> tuple[int | None, bool]:
    """Return the permissions of a file that is there, if one is, and whether it is `special`."""
    try:
        there = Path(path).stat()
    except FileNotFoundError:
        return None, False
    if stat.S_ISREG(there.st_mode):
        return stat.S_IMODE(there.st_mode), False
    if stat.S_ISDIR(there.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not special:
        raise OSError(errno.ENOTSUP, "it is not a file, so no file takes its place")
    return None, True
