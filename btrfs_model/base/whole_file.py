# SPDX-License-Identifier: GPL-2.0-only
"""Files that are written as a whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
        mode = _mode_of(path, special=special)
        if mode is None:
            with Path(path).open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        fd, partial = _beside(target, path)
        try:
            with os.fdopen(fd, "wb") as file:
                # mkstemp() lets nobody else read
                os.fchmod(fd, mode)
                yield file
            partial.replace(target)
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
        return os.open(target.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def name_file(fd: int, path: str | os.PathLike[str]) -> None:
    """Let a file take its place, as :func:`whole_file` does.

    `fd`: of a file without a name (:func:`open_unnamed`).
    Raises OSError: likewise.
    """
    with naming(path):
        mode = _mode_of(path, special=False)
        assert mode is not None
        target = Path(os.path.realpath(path))
        # such a file gets a name that is free, so another takes it to the place
        partial = target.with_name(f".{target.name[:200]}.{os.urandom(8).hex()}")
        # with a directory it is linkat(2), which follows the link
        os.link(f"/proc/self/fd/{fd}", partial, src_dir_fd=fd, follow_symlinks=True)
        try:
            os.fchmod(fd, mode)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def check_folder(path: str | os.PathLike[str]) -> None:
    """Make sure that files can be made in a folder, which is made where it is missing.

    Raises OSError: when they cannot.
    """
    Path(path).mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))


def _beside(target: Path, path: str | os.PathLike[str]) -> tuple[int, Path]:
    """Make the file that will take a place, beside it; errors name the place."""
    import tempfile  # what it imports takes longer than many a command

    try:
        fd, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    return fd, Path(name)


def _mode_of(path: str | os.PathLike[str], *, special: bool) -> int | None:
    """Return the permissions of a file that is there or will be; None for a `special` one."""
    try:
        there = Path(path).stat()
    except FileNotFoundError:
        return 0o666 & ~_umask()
    if stat.S_ISREG(there.st_mode):
        return stat.S_IMODE(there.st_mode)
    if stat.S_ISDIR(there.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not special:
        raise OSError(errno.ENOTSUP, "it is not a file, so no file takes its place")
    return None


def _umask() -> int:
    """Return the process's mask, by the only way there is to ask for it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
