# SPDX-License-Identifier: GPL-2.0-only
"""The operations of scenarios on a mounted filesystem, which stays mounted from call to call.

Between two calls who asks may look at the device, as after a loss of power.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypedDict

from btrfs_model.kernels.inside import ioctls
from btrfs_model.kernels.inside.calls import KernelCalls
from btrfs_model.kernels.inside.fill import data_of
from btrfs_model.kernels.inside.mounts import Place, mounted
from btrfs_model.kernels.inside.steps import device_of, written

_EXCHANGE = 2
_WAIT_BEFORE = 1
_SETTLING = 0.01
"""Seconds from the end of a write to the extent in the tree."""
_UMASK = 0o022
_CLOCK_REALTIME_COARSE = 5
_LIBC = ctypes.CDLL(None, use_errno=True)

OneStep = tuple[str, Mapping[str, Any]]
"""An operation and its arguments by name; the values of extended attributes are bytes."""


class Mapped(TypedDict):
    """Extents of a file, and who refers to the first byte of each that has a place on disk."""

    extents: list[ioctls.Extent]
    references: list[ioctls.Refs | int]


class Taken(TypedDict):
    """How operations ended (errno names), what fsyncs came to, what files that were mapped said."""

    ended: list[str]
    synced: list[str]
    mapped: list[Mapped]


class Operations(KernelCalls):
    """Operations below a mount point, each in a method: ``do_`` and its name, or that of a call."""

    def __init__(self, place: Place) -> None:
        super().__init__(Path(place["top"]))
        self.place = place
        self.synced: list[str] = []
        self.mapped: list[Mapped] = []
        self.waits = False
        self.before: Callable[[], None] = lambda: None  # just before each fsync
        self.each: Callable[[], None] = lambda: None  # just before each operation
        self._mount = ExitStack()
        self.do_mount(place["options"])

    def take(self, steps: Sequence[OneStep], ticks: Sequence[int] | None = None) -> list[str]:
        """Carry out operations; how each ended. See :func:`take`."""
        self.waits = any(name == "fiemap" for name, _ in steps)
        before = os.umask(_UMASK)  # that of the model
        try:
            # what an fsync has to log depends on whether times changed
            syncs = any(name.startswith(("fsync", "fdatasync")) for name, _ in steps)
            at = {*(range(len(steps) * syncs) if ticks is None else ticks)}
            return [
                self._end_of(*(_at_a_tick(step) if number in at else step))
                for number, step in enumerate(steps)
            ]
        finally:
            os.umask(before)

    def unmount(self) -> None:
        self.release_all()
        self._mount.close()

    def _end_of(self, name: str, arguments: Mapping[str, Any]) -> str:
        call = getattr(self, f"do_{name}", None) or getattr(self, _CALLS.get(name, name))
        self.each()
        try:
            call(*(os.fsdecode(value) if isinstance(value, bytes) and key != "value" else value
                   for key, value in arguments.items()))  # fmt: skip
        except OSError as error:
            return errno.errorcode[error.errno or errno.EIO]
        return ""

    def do_mount(self, options: str) -> None:
        place: Place = {**self.place, "options": options}
        self._mount.enter_context(mounted(**place))
        self._device = device_of(Path(self.top))

    def do_remount(self, options: str | None) -> None:
        self.unmount()
        self.do_mount(options or self.place["options"])

    def do_mkdir(self, path: str, mode: int | None) -> None:
        self.mkdir(path)
        if mode is not None:
            self.chmod(path, mode)

    def do_mknod(self, path: str, mode: int, major: int, minor: int) -> None:
        self.mknod(path, mode, os.makedev(major, minor))

    def do_rename(self, old: str, new: str) -> None:
        self.rename(old, new)
        self._wait(new)

    def do_exchange(self, old: str, new: str) -> None:
        self.rename(old, new, _EXCHANGE)

    def do_chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self._at(path), uid, gid, follow_symlinks=False)

    def do_utimes(self, path: str, atime: int, mtime: int) -> None:
        os.utime(self._at(path), ns=(atime, mtime), follow_symlinks=False)

    def do_setxattr(self, path: str, name: str, value: bytes) -> None:
        os.setxattr(self._at(path), name, value, follow_symlinks=False)

    def do_removexattr(self, path: str, name: str) -> None:
        os.removexattr(self._at(path), name, follow_symlinks=False)

    def do_write(self, path: str, offset: int, length: int, fill: Any) -> None:
        self.write(path, offset, data_of(fill, offset, length))

    def do_fallocate(self, path: str, mode: int, offset: int, length: int) -> None:
        with self.opened(path, os.O_RDWR) as fd:
            if _LIBC.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)):
                raise OSError(ctypes.get_errno(), "fallocate")

    def do_clone(self, source: str, target: str) -> None:
        self.do_clone_range(source, 0, 0, target, 0)

    def do_clone_range(self, source: str, start: int, length: int, target: str, to: int) -> None:
        self.no_driver(source)
        self.no_driver(target)
        try:
            ioctls.clone_range(self._at(source), start, length, self._at(target), to)
        finally:
            self._wait(source)

    def _wait(self, path: str) -> None:
        """Wait for what is being written of a file, where files are mapped.

        That is all of a clone's source, and of what replaces another file by a rename.
        """
        file = Path(self._at(path))
        with suppress(OSError):  # a symbolic link may be too long to be followed
            if not self.waits or not file.is_file():
                return
            with suppress(OSError), ioctls.opened(file, os.O_RDWR) as fd:
                _LIBC.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), _WAIT_BEFORE)
            time.sleep(_SETTLING)

    def do_dedupe(self, source: str, start: int, length: int, target: str, to: int) -> None:
        with self.opened(source) as source_fd, self.opened(target) as target_fd:
            _, status = ioctls.dedupe_range(source_fd, start, length, target_fd, to)
        if status < 0:  # above 0: the ranges differ, which is no error
            raise OSError(-status, "FIDEDUPERANGE")

    def do_set_received(self, path: str, uuid: str, transid: int) -> None:
        self.set_received_subvolume(path, bytes.fromhex(uuid), transid)

    def do_fsync(self, path: str, call: Callable[[int], None] = os.fsync) -> None:
        with self.opened(path) as fd:
            self._sync(call, fd)

    def do_fdatasync(self, path: str) -> None:
        self.do_fsync(path, os.fdatasync)

    def _sync(self, call: Callable[[int], None], fd: int) -> None:
        before = written(self._device)
        self.before()
        call(fd)
        after = written(self._device)
        how = "commit" if after[0] != before[0] else "log" if after[1] != before[1] else "none"
        self.synced.append(how)

    def do_fiemap(self, path: str, sync: bool) -> None:
        self.no_driver(path)
        extents = ioctls.fiemap(Path(self._at(path)), sync=sync)
        places = [physical for _, physical, _, _ in extents if physical]
        references = [ioctls.logical_ino(Path(self.top), place, False) for place in places]
        self.mapped.append(Mapped(extents=extents, references=references))

    def do_open(self, path: str, handle: str) -> None:
        self.no_driver(path)
        fd = os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK)
        if handle in self._held:
            os.close(fd)
            raise OSError(errno.EBUSY, handle)
        self._held[handle] = fd

    def do_fsyncfd(self, handle: str) -> None:
        self._sync(os.fsync, self._opened(handle))

    def do_close(self, handle: str) -> None:
        self._opened(handle)
        self.release(handle)

    def _opened(self, handle: str) -> int:
        if handle not in self._held:
            raise OSError(errno.EBADF, handle)
        return self._held[handle]

    def _each(self, call: Callable[[str], None], path: str, prefix: str, numbers: range) -> None:
        for number in numbers:
            call(f"{path}/{prefix}{number}")

    def do_mkfiles(self, path: str, prefix: str, first: int, last: int) -> None:
        self._each(lambda one: self.create(one, 0o644), path, prefix, range(first, last + 1))

    def do_fillfiles(
        self, path: str, prefix: str, first: int, last: int, length: int, fill: Any
    ) -> None:
        def filled(one: str) -> None:
            self.create(one, 0o644)
            if length:
                self.do_write(one, 0, length, fill)

        self._each(filled, path, prefix, range(first, last + 1))

    def do_rmfiles(self, path: str, prefix: str, first: int, last: int, step: int) -> None:
        self._each(self.unlink, path, prefix, range(first, last + 1, step))

    def do_chmodfiles(self, path: str, prefix: str, first: int, last: int, step: int) -> None:
        self._each(lambda one: self.chmod(one, 0o600), path, prefix, range(first, last + 1, step))


_CALLS = {"subvol_create": "create_subvolume", "subvol_delete": "delete_subvolume"}
_running: list[Operations] = []


def begin(place: Place) -> None:
    """Mount a filesystem, which must be there for :func:`take`, and commit what a mount changes."""
    end()
    _running.append(Operations(place))
    _running[0].sync()


def _at_a_tick(step: OneStep) -> OneStep:
    """Wait for the next tick of the clock that inodes take their times from.

    A call within the tick of the last one changes no time, and may so leave an inode as it is.
    """
    now = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) == now:
        time.sleep(0.001)
    return step


def take(
    steps: Sequence[OneStep],
    ticks: Sequence[int] | None = None,
    each: Callable[[], None] = lambda: None,
) -> Taken:
    """Carry out operations.

    `ticks`: before which of them the clock has to go on; by default, where there are fsyncs, before
    each.
    `each`: called just before one.
    """
    operations = _running[0]
    operations.each = each
    operations.synced, operations.mapped = [], []
    ended = operations.take(steps, ticks)
    return Taken(ended=ended, synced=operations.synced, mapped=operations.mapped)


def end() -> None:
    """Unmount it."""
    while _running:
        _running.pop().unmount()
