# SPDX-License-Identifier: GPL-2.0-only
"""Operations of a kernel, timed in it with as little around them as there can be.

Each function mounts an image and repeats an operation on what is in it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from btrfs_model.kernels.inside import ioctls
from btrfs_model.kernels.inside.clock import Clock, Run
from btrfs_model.kernels.inside.ioctls import extents_in, fiemap_calls, opened, root_id
from btrfs_model.kernels.inside.mounts import Place, forget, mounted

_DIRENTS = 32768
_DT_DIR = 4
_BESIDE = 5
_DROPS_DATA = (6, 1)
"""Kernels from here on drop the file data that a send has read; it is in the page cache of 5.10."""
_PIPE_BYTES = 64 << 10


def _repeat(
    once: Callable[[Path], Run[int]], place: Place, runs: int, cold: bool
) -> list[Run[int]]:
    """Repeat what is done with a mounted image.

    Warm: in one mount, after a run that does not count. Cold: each in a fresh mount of a kernel
    that remembers nothing.
    """
    taken: list[Run[int]] = []
    if cold:
        for _ in range(runs):
            forget()
            with mounted(**place) as folder:
                taken.append(once(folder))
    else:
        with mounted(**place) as folder:
            once(folder)
            taken += [once(folder) for _ in range(runs)]
    return taken


class Sent(TypedDict):
    """What is sent."""

    snapshot: str
    parent: str | None
    clones: list[str]
    flags: int
    protocol: int


def _send_into(stream: int, folder: Path, what: Sent) -> Clock:
    parent = 0 if what["parent"] is None else root_id(folder / what["parent"])
    clones = [root_id(folder / name) for name in what["clones"]]
    with opened(folder / what["snapshot"]) as fd, Clock() as clock:
        clock.start()
        ioctls.send(fd, stream, parent, clones, what["flags"], what["protocol"])
        clock.stop()
    return clock


@contextmanager
def _file_in_memory() -> Iterator[tuple[int, Callable[[], int]]]:
    stream = os.memfd_create("stream")
    try:
        yield stream, lambda: os.fstat(stream).st_size
    finally:
        os.close(stream)


@contextmanager
def _pipe() -> Iterator[tuple[int, Callable[[], int]]]:
    """Have a thread give on what comes through a pipe, as that of ``btrfs send`` does."""
    out, into = os.pipe()
    passed: list[int] = []

    def pass_on() -> None:
        # closed whatever happens: a sender whose reader is gone fails, and does not wait for ever
        with os.fdopen(out, "rb", buffering=0), opened("/dev/null", os.O_WRONLY) as nowhere:
            while many := os.splice(out, nowhere, _PIPE_BYTES):
                passed.append(many)

    reader = threading.Thread(target=pass_on)
    reader.start()
    with os.fdopen(into, "wb", buffering=0) as pipe:

        def end() -> int:
            pipe.close()
            reader.join()
            return sum(passed)

        try:
            yield into, end
        finally:
            end()


def send(place: Place, what: Sent, runs: int, cold: bool, pipe: bool) -> list[Run[int]]:
    """Time the ioctl SEND into a file in memory or a pipe; amounts are bytes of the stream.

    File data is read from the device in each run, by all kernels.
    """
    release = tuple(map(int, os.uname().release.split(".")[:2]))
    read: list[str] = []

    def once(folder: Path) -> Run[int]:
        if release < _DROPS_DATA and not cold:
            read[:] = read or _with_data(folder / what["snapshot"])
            _drop_data(read)
        with _pipe() if pipe else _file_in_memory() as (stream, size):
            clock = _send_into(stream, folder, what)
            return clock.run(size())

    return _repeat(once, place, runs, cold)


def _with_data(folder: Path) -> list[str]:
    """List the files that have data."""
    found = []
    for top, _, names in os.walk(folder):
        for name in names:
            path = f"{top}/{name}"
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size:
                found.append(path)
    return found


def _drop_data(paths: list[str]) -> None:
    """Drop the pages of files."""
    for path in paths:
        with opened(path) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def stream(place: Place, what: Sent, target: str) -> None:
    """Send into a file."""
    with mounted(**place) as folder, open(target, "wb") as file:  # noqa: PTH123
        _send_into(file.fileno(), folder, what)


def fiemap(
    place: Place, path: str, extents_per_call: int, sync: bool, runs: int, cold: bool
) -> list[Run[int]]:
    """Time the ioctls FIEMAP that map a whole file; amounts are extents."""

    def once(folder: Path) -> Run[int]:
        with opened(folder / path) as fd, Clock() as clock:

            def timed(file: int, number: int, argument: bytearray) -> None:
                clock.start()
                fcntl.ioctl(file, number, argument)
                clock.stop()

            filled = list(fiemap_calls(fd, extents_per_call, int(sync), timed))
        return clock.run(sum(map(extents_in, filled)))

    return _repeat(once, place, runs, cold)


def find(place: Place, path: str, runs: int, cold: bool) -> list[Run[int]]:
    """Time opening and listing all directories below a path; amounts are entries."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_DIRENTS)

    def once(folder: Path) -> Run[int]:
        found, waiting = 0, [os.fsencode(folder / path)]
        with Clock() as clock:
            while waiting:
                at = waiting.pop()
                clock.start()
                fd = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
                clock.stop()
                length = _DIRENTS
                while length > 0:
                    clock.start()
                    length = libc.getdents64(fd, buffer, ctypes.c_size_t(_DIRENTS))
                    clock.stop()
                    for kind, name in _dirents(buffer.raw[: max(length, 0)]):
                        found += 1
                        if kind == _DT_DIR:
                            waiting.append(at + b"/" + name)
                os.close(fd)
                if length < 0:
                    raise OSError(ctypes.get_errno(), "getdents64", os.fsdecode(at))
        return clock.run(found)

    return _repeat(once, place, runs, cold)


def _dirents(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kinds and names in what getdents64() returns, without the two that are in all."""
    at = 0
    while at < len(data):
        length, kind = struct.unpack_from("<16xHB", data, at)
        name = data[at + 19 : at + length].split(b"\0", 1)[0]
        if name not in (b".", b".."):
            yield kind, name
        at += length


def receive(place: Place, stream: str) -> Run[int]:
    """Time the program ``btrfs receive -f``, by the wall and by its processor time."""
    with mounted(**place) as folder:
        began = time.perf_counter_ns()
        ran = subprocess.Popen(["btrfs", "-q", "receive", "-f", stream, str(folder)],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        assert ran.stdout is not None
        said = ran.stdout.read().decode(errors="replace")
        _, status, used = os.wait4(ran.pid, 0)
        wall = time.perf_counter_ns() - began
        if status:
            raise OSError(f"btrfs receive: status {status >> 8}: {' '.join(said.split())}")
    return wall / 1e6, (used.ru_utime + used.ru_stime) * 1e3, os.stat(stream).st_size  # noqa: PTH116


def list_xattrs(place: Place, path: str, times: int, runs: int) -> list[Run[int]]:
    """Time asking how long the list of the xattrs of a file is; amounts are bytes of the list."""
    ask, no_size = ctypes.CDLL(None, use_errno=True).flistxattr, ctypes.c_size_t(0)
    return _called(lambda fd: ask(fd, None, no_size), place, path, times, runs)


def look_up(place: Place, inode: int, times: int, runs: int) -> list[Run[int]]:
    """Time looking up the path of an inode of the top level; amounts are 0."""
    ask = ctypes.CDLL(None, use_errno=True).ioctl
    number, argument = ioctls.ino_lookup(inode)
    room = ctypes.create_string_buffer(argument, len(argument))
    return _called(lambda fd: ask(fd, ctypes.c_ulong(number), room), place, "", times, runs)


def _called(
    ask: Callable[[int], int], place: Place, path: str, times: int, runs: int
) -> list[Run[int]]:
    """Time a system call on an open file; amounts are what it returns.

    What as many calls take that fail at once is taken off: a system call, and Python.
    """

    def repeated(fd: int) -> tuple[Clock, int]:
        said = 0
        with Clock() as clock:
            clock.start()
            for _ in range(times):
                said = ask(fd)
            clock.stop()
        return clock, said

    # the fastest: what disturbs one of them must not leave less than nothing
    besides = [repeated(-1)[0] for _ in range(_BESIDE)]

    def once(folder: Path) -> Run[int]:
        with opened(folder / path) as fd:
            clock, said = repeated(fd)
        if said < 0:
            failed = ctypes.get_errno()
            raise OSError(failed, os.strerror(failed))
        clock.wall -= min(beside.wall for beside in besides)
        clock.cpu -= min(beside.cpu for beside in besides)
        return clock.run(said)

    return _repeat(once, place, runs, cold=False)
