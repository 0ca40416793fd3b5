# SPDX-License-Identifier: GPL-2.0-only
"""How long operations take in a real kernel.

An image is a file, best in memory (``/dev/shm``): then what its device does is a copy of memory.
*Warm* runs follow each other in one mount, after one that does not count. A *cold* run is the first
in a fresh mount of a kernel that has dropped its caches (``/proc/sys/vm/drop_caches``); an image
that is not in memory is then read from the disk that it is on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from btrfs_model.base.errors import KernelFailedError, KernelMissingError
from btrfs_model.kernels.inside import timed
from btrfs_model.kernels.inside.clock import Run
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.kernels.inside.steps import steps as timed_steps
from btrfs_model.kernels.session import Kernel


@dataclass(frozen=True)
class Timing:
    """What runs of an operation took.

    Attributes
    ----------
    wall_ms : tuple of float
        Milliseconds of each run.
    cpu_ms : tuple of float
        Of these, those in which the calling thread had the processor, or all of User-Mode Linux;
        there that takes 0.1 ms itself.
    amount : int
        What one run made: bytes of a stream, extents, entries.
    wrote : tuple of str
        What each run of an fsync wrote: ``log``, ``commit``, or nothing.
    """

    wall_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    amount: int = 0
    wrote: tuple[str, ...] = ()


def _timing(runs: Sequence[Run[int]]) -> Timing:
    wall, cpu, amounts = zip(*runs, strict=True)
    (amount,) = set(amounts)
    return Timing(wall, cpu, amount)


@contextmanager
def _looked_at(kernel: Kernel, image: str | Path) -> Iterator[Place]:
    """Where a kernel mounts an image, to read it."""
    Path(image).stat()  # it may not be there
    with kernel.attached(Path(image), read_only=True) as source:
        yield Place(source=source, top=kernel.top, options="ro")


def send(
    kernel: Kernel,
    image: str | Path,
    snapshot: str,
    parent: str | None = None,
    clones: Sequence[str] | None = None,
    *,
    flags: int = 0,
    protocol: int = 1,
    runs: int = 7,
    cold: bool = False,
    pipe: bool = False,
) -> Timing:
    """Time the ioctl ``BTRFS_IOC_SEND`` into a file in memory, or a pipe.

    Parameters
    ----------
    kernel : Kernel
        Who is timed.
    image : path
        Of the filesystem; is not written to.
    snapshot, parent : str
        Paths of read-only subvolumes.
    clones : sequence of str, optional
        Paths of the clone sources; the parent where not given, as btrfs-progs does.
    flags, protocol : int
        Of the ioctl; protocol 1 is that of kernels that know no other.
    runs : int
        How many.
    cold : bool
        Whether each run is cold.
    pipe : bool
        Whether the stream goes through a pipe, whose reader gives it to ``/dev/null``, as
        ``btrfs send > /dev/null`` has it.

    Returns
    -------
    Timing
        Its amount is the bytes of the stream.
    """
    what = _sent(snapshot, parent, clones, flags, protocol)
    _check(runs)
    with _looked_at(kernel, image) as place:
        return _timing(kernel.call(timed.send, place, what, runs, cold, pipe))


def stream(
    kernel: Kernel,
    image: str | Path,
    snapshot: str,
    parent: str | None = None,
    clones: Sequence[str] | None = None,
    *,
    flags: int = 0,
    protocol: int = 1,
) -> bytes:
    """Send as :func:`send` does; the stream."""
    target = kernel.new_file()
    what = _sent(snapshot, parent, clones, flags, protocol)
    with _looked_at(kernel, image) as place:
        kernel.call(timed.stream, place, what, str(target))
    sent = target.read_bytes()
    target.unlink()
    return sent


def _sent(
    snapshot: str, parent: str | None, clones: Sequence[str] | None, flags: int, protocol: int
) -> timed.Sent:
    if clones is None:
        clones = [parent] if parent else []
    return timed.Sent(
        snapshot=snapshot, parent=parent, clones=list(clones), flags=flags, protocol=protocol
    )


def fiemap(
    kernel: Kernel,
    image: str | Path,
    path: str,
    *,
    extents_per_call: int = 292,
    sync: bool = False,
    runs: int = 7,
    cold: bool = False,
) -> Timing:
    """Time the ioctls ``FS_IOC_FIEMAP`` that map a file, many extents a call.

    Returns
    -------
    Timing
        Of a run all calls together; its amount is extents.
    """
    _check(runs)
    with _looked_at(kernel, image) as place:
        return _timing(kernel.call(timed.fiemap, place, path, extents_per_call, sync, runs, cold))


def find(
    kernel: Kernel, image: str | Path, path: str = "", *, runs: int = 7, cold: bool = False
) -> Timing:
    """Time what ``find`` does: open and list (``getdents64``) all directories below a path.

    Returns
    -------
    Timing
        Of a run all calls together; its amount is entries.
    """
    _check(runs)
    with _looked_at(kernel, image) as place:
        return _timing(kernel.call(timed.find, place, path, runs, cold))


def list_xattrs(
    kernel: Kernel, image: str | Path, path: str, times: int, *, runs: int = 7
) -> Timing:
    """Time ``flistxattr`` of a file without a buffer, so many times: a walk over its items.

    Without what a system call takes that does nothing.

    Returns
    -------
    Timing
        Its amount is the bytes that one list would take.
    """
    _check(runs)
    with _looked_at(kernel, image) as place:
        return _timing(kernel.call(timed.list_xattrs, place, path, times, runs))


def look_up(kernel: Kernel, image: str | Path, inode: int, times: int, *, runs: int = 7) -> Timing:
    """Time the ioctl ``BTRFS_IOC_INO_LOOKUP`` of an inode of the top level, so many times.

    A search for each directory of its path. Without what a system call takes that does nothing.
    """
    _check(runs)
    with _looked_at(kernel, image) as place:
        return _timing(kernel.call(timed.look_up, place, inode, times, runs))


def steps(
    kernel: Kernel,
    calls: Sequence[Sequence[Any]],
    *,
    image: str | Path | None = None,
    size: int = 8 << 30,
    mkfs: Sequence[str] = ("-m", "dup", "-d", "single"),
    mount: str = "commit=3600,noatime,nodiscard,ssd",
    runs: int = 7,
) -> list[Timing]:
    """Time calls that follow each other on a filesystem, each run on a fresh one.

    Parameters
    ----------
    kernel : Kernel
        Who is timed.
    calls : sequence of (name, argument, ...)
        Calls of ``bm.WritableFilesystem`` by name: ``("create_files", "d", ["a", "b"])``,
        ``("fsync", "d")``. Of an fsync the system call alone is timed; of others what Python does
        around their system calls as well.
    image : path, optional
        A filesystem to start from, of which each run has a copy. A fresh one where not given.
    size : int
        Bytes of a fresh one.
    mkfs : sequence of str
        Options of mkfs.btrfs for a fresh one.
    mount : str
        Options of the mount.
    runs : int
        How many.

    Returns
    -------
    list of Timing
        For each call; in User-Mode Linux the processor time is that of fsyncs alone, else 0.
    """
    _check(runs)
    taken = []
    for _ in range(runs):
        with _writable(kernel, image, size, mkfs, mount) as place:
            taken.append(kernel.call(timed_steps, place, [list(call) for call in calls]))
    found = []
    for of_call in zip(*taken, strict=True):
        wall, cpu, wrote = zip(*of_call, strict=True)
        found.append(Timing(wall, cpu, wrote=wrote))
    return found


def receive(
    kernel: Kernel,
    stream: str | Path,
    *,
    image: str | Path | None = None,
    size: int = 8 << 30,
    mkfs: Sequence[str] = (),
    mount: str = "rw",
    runs: int = 7,
) -> Timing:
    """Time ``btrfs receive -f`` of a stream, each run into a fresh filesystem.

    Parameters are those of :func:`steps`.

    Returns
    -------
    Timing
        Of the program from start to end; its processor time is counted in steps of 10 ms by
        User-Mode Linux. Its amount is the bytes of the stream.
    """
    _program("btrfs")
    _check(runs)
    taken = []
    for _ in range(runs):
        with _writable(kernel, image, size, mkfs, mount) as place:
            taken.append(kernel.call(timed.receive, place, str(Path(stream).resolve())))
    return _timing(taken)


def _check(runs: int) -> None:
    if runs < 1:
        raise ValueError(f"runs must be at least 1, not {runs}")


def _program(name: str) -> str:
    """Find a program of btrfs-progs; the PATH of an ordinary user may lack these folders."""
    folders = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    found = shutil.which(name, path=folders)
    if found is None:
        raise KernelMissingError(f"{name} is not here (Debian: package btrfs-progs)")
    return found


def make_filesystem(image: Path, size: int, options: Sequence[str]) -> None:
    """Make a filesystem of so many bytes with ``mkfs.btrfs``."""
    with image.open("wb") as file:
        file.truncate(size)
    _run(_program("mkfs.btrfs"), "-q", "-f", *options, str(image))


def _run(*command: str) -> None:
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode:
        said = f"status {ran.returncode}: {' '.join(ran.stdout.split())}"
        name = Path(command[0]).name
        raise KernelFailedError(f"{' '.join((name, *command[1:]))}: {said}")


@contextmanager
def _writable(
    kernel: Kernel, image: str | Path | None, size: int, mkfs: Sequence[str], mount: str
) -> Iterator[Place]:
    """Where a kernel mounts a filesystem that it writes to: a copy, or a fresh one."""
    with TemporaryDirectory(dir=kernel.images) as folder:
        path = Path(folder) / "image"
        if image is not None:
            _run("cp", "--sparse=always", str(image), str(path))
        else:
            make_filesystem(path, size, mkfs)
        with kernel.attached(path, read_only=False) as source:
            yield Place(source=source, top=kernel.top, options=mount)
