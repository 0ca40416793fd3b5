# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems to write to, and random changes of file data for the model and for a kernel.

A *change* is a tuple (name, arguments ...). :class:`ModelFiles` makes it in the model,
:class:`KernelFiles` below a mount point, :class:`PlainFiles` to bytes in memory.
"""

import ctypes
import errno
import fcntl
import os
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

from btrfs_model.mount.writable import WritableFilesystem

NAMES = ("a", "b", "c")
BLOCK = 4096
_CLONE = struct.Struct("<qQQQ")
_FICLONERANGE = 1 << 30 | _CLONE.size << 16 | 0x94 << 8 | 13
_DEDUPE_HEAD = struct.Struct("<QQHHI")
_DEDUPE_ONE = struct.Struct("<qQQiI")
_FIDEDUPERANGE = 3 << 30 | _DEDUPE_HEAD.size << 16 | 0x94 << 8 | 54
_FS_IOC_SETFLAGS = 1 << 30 | 8 << 16 | ord("f") << 8 | 2
_KEEP_SIZE, _PUNCH_HOLE, _ZERO_RANGE = 1, 2, 16

Change = tuple[Any, ...]


def make(size: int, **options: Any) -> Any:
    """Make a fresh filesystem in memory."""
    return WritableFilesystem.mkfs(size, **options)


def load(path: Path, **options: Any) -> Any:
    """Go on with an image, in memory."""
    return WritableFilesystem.load(path, **options)


# --------------------------------------------------------------------------- the same calls ------


class ModelFiles:
    def __init__(self, fs: Any) -> None:
        self.fs = fs

    def create(self, name: str) -> None:
        self.fs.create(name)

    def chattr(self, name: str, flags: int) -> None:
        self.fs.chattr(name, flags)

    def write(self, name: str, offset: int, data: bytes) -> None:
        self.fs.write(name, offset, data)

    def truncate(self, name: str, size: int) -> None:
        self.fs.truncate(name, size)

    def fallocate(self, name: str, offset: int, length: int, keep_size: bool) -> None:
        self.fs.fallocate(name, offset, length, keep_size)

    def punch_hole(self, name: str, offset: int, length: int) -> None:
        self.fs.punch_hole(name, offset, length)

    def zero_range(self, name: str, offset: int, length: int, keep_size: bool) -> None:
        self.fs.zero_range(name, offset, length, keep_size)

    def clone(self, source: str, target: str, offset: int, to: int, length: int) -> None:
        self.fs.clone_range(source, target, offset, to, length)

    def dedupe(self, source: str, target: str, offset: int, to: int, length: int) -> None:
        self.fs.dedupe_range(source, target, offset, to, length)

    def fsync(self, name: str) -> None:
        self.fs.fsync(name)
        self.fs.commit()  # the kernel's is mounted with notreelog

    def snapshot(self, name: str) -> None:
        self.fs.snapshot("", name)

    def sync(self) -> None:
        self.fs.sync()

    def read(self, name: str) -> bytes:
        data: bytes = self.fs.read(name)
        return data


class KernelFiles:
    def __init__(self, top: Path) -> None:
        self.top = top
        self.libc = ctypes.CDLL(None, use_errno=True)

    def _open(self, name: str) -> int:
        return os.open(self.top / name, os.O_RDWR)

    def _fallocate(self, name: str, mode: int, offset: int, length: int) -> None:
        fd = self._open(name)
        try:
            wide = [ctypes.c_long(offset), ctypes.c_long(length)]
            if self.libc.fallocate(fd, mode, *wide):
                raise OSError(ctypes.get_errno(), "fallocate")
        finally:
            os.close(fd)

    def create(self, name: str) -> None:
        (self.top / name).touch()

    def chattr(self, name: str, flags: int) -> None:
        """Give a file flags, which has none."""
        fd = self._open(name)
        try:
            fcntl.ioctl(fd, _FS_IOC_SETFLAGS, struct.pack("<q", flags))
        finally:
            os.close(fd)

    def write(self, name: str, offset: int, data: bytes) -> None:
        fd = self._open(name)
        try:
            assert os.pwrite(fd, data, offset) == len(data)
        finally:
            os.close(fd)

    def truncate(self, name: str, size: int) -> None:
        os.truncate(self.top / name, size)

    def fallocate(self, name: str, offset: int, length: int, keep_size: bool) -> None:
        self._fallocate(name, _KEEP_SIZE * keep_size, offset, length)

    def punch_hole(self, name: str, offset: int, length: int) -> None:
        self._fallocate(name, _PUNCH_HOLE | _KEEP_SIZE, offset, length)

    def zero_range(self, name: str, offset: int, length: int, keep_size: bool) -> None:
        self._fallocate(name, _ZERO_RANGE | _KEEP_SIZE * keep_size, offset, length)

    def clone(self, source: str, target: str, offset: int, to: int, length: int) -> None:
        from_fd, to_fd = self._open(source), self._open(target)
        try:
            fcntl.ioctl(to_fd, _FICLONERANGE, _CLONE.pack(from_fd, offset, length, to))
        finally:
            os.close(from_fd)
            os.close(to_fd)

    def dedupe(self, source: str, target: str, offset: int, to: int, length: int) -> None:
        from_fd, to_fd = (os.open(self.top / name, os.O_RDONLY) for name in (source, target))
        try:
            head, one = (offset, length, 1, 0, 0), (to_fd, to, 0, 0, 0)
            argument = bytearray(_DEDUPE_HEAD.pack(*head) + _DEDUPE_ONE.pack(*one))
            fcntl.ioctl(from_fd, _FIDEDUPERANGE, argument)
            status = _DEDUPE_ONE.unpack_from(argument, _DEDUPE_HEAD.size)[3]
            if status < 0:
                raise OSError(-status, "FIDEDUPERANGE")
        finally:
            os.close(from_fd)
            os.close(to_fd)

    def fsync(self, name: str) -> None:
        fd = self._open(name)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def snapshot(self, name: str) -> None:
        command = ["btrfs", "-q", "subvolume", "snapshot", "-r", str(self.top)]
        subprocess.run([*command, str(self.top / name)], check=True)

    def sync(self) -> None:
        subprocess.run(["btrfs", "filesystem", "sync", str(self.top)], check=True)

    def read(self, name: str) -> bytes:
        return (self.top / name).read_bytes()


class PlainFiles:
    """What the bytes of the files are; sizes and errors as POSIX and FICLONERANGE have them."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}

    def _grow(self, name: str, size: int) -> None:
        data = self.files[name]
        data.extend(bytes(max(size - len(data), 0)))

    def create(self, name: str) -> None:
        self.files[name] = bytearray()

    def write(self, name: str, offset: int, data: bytes) -> None:
        if data:
            self._grow(name, offset + len(data))
            self.files[name][offset : offset + len(data)] = data

    def truncate(self, name: str, size: int) -> None:
        self._grow(name, size)
        del self.files[name][size:]

    def fallocate(self, name: str, offset: int, length: int, keep_size: bool) -> None:
        if length <= 0:
            raise OSError(errno.EINVAL, "fallocate")
        if not keep_size:
            self._grow(name, offset + length)

    def punch_hole(self, name: str, offset: int, length: int) -> None:
        self.fallocate(name, offset, length, True)
        end = min(offset + length, len(self.files[name]))
        if offset < end:
            self.files[name][offset:end] = bytes(end - offset)

    def zero_range(self, name: str, offset: int, length: int, keep_size: bool) -> None:
        self.fallocate(name, offset, length, keep_size)
        self.punch_hole(name, offset, length)

    def clone(self, source: str, target: str, offset: int, to: int, length: int) -> None:
        data, size = self.files[source], len(self.files[source])
        if not length and offset == size:
            return
        if offset % BLOCK or to % BLOCK or offset > size:
            raise OSError(errno.EINVAL, "clone")
        length = length or size - offset
        end = offset + length
        if end > size or (end < size and length % BLOCK):
            raise OSError(errno.EINVAL, "clone")
        if length % BLOCK and to + length < len(self.files[target]):
            raise OSError(errno.EINVAL, "clone")
        stop = -(-end // BLOCK) * BLOCK if end == size else end
        if source == target and to < stop and offset < to + (stop - offset):
            raise OSError(errno.EINVAL, "clone")
        self.write(target, to, bytes(data[offset:end]))

    def fsync(self, name: str) -> None:
        pass

    def snapshot(self, name: str) -> None:
        pass

    def sync(self) -> None:
        pass

    def read(self, name: str) -> bytes:
        return bytes(self.files[name])


# --------------------------------------------------------------------------- random changes ------


def _data(choice: random.Random, length: int) -> bytes:
    kind = choice.randrange(3)
    if kind == 0:
        return choice.randbytes(length)
    if kind == 1:
        return bytes([choice.randrange(256)]) * length
    words = [b"leaf ", b"node ", b"extent ", b"key ", b"%d " % choice.randrange(10**6)]
    return b"".join(choice.choice(words) for _ in range(length // 4 + 1))[:length]


def _offset(choice: random.Random) -> int:
    """Some are whole blocks, some are near the border of one, few are far out."""
    block = choice.choice([0, 0, 1, 2, 5, choice.randrange(40), choice.randrange(200)])
    return max(block * BLOCK + choice.choice([0, 0, 0, 1, -1, 100, choice.randrange(BLOCK)]), 0)


def _length(choice: random.Random) -> int:
    return choice.choice([1, 100, 2047, 2048, 2049, BLOCK, BLOCK, 5000, 3 * BLOCK, 20000, 70000,
                          200_000, choice.randrange(1, 3000)])  # fmt: skip


# File by file: a kernel that writes back several at once does so in any order, and whether one of
# them may write into an extent depends on what another one has given up.
_FSYNC_ALL: list[Change] = [("fsync", name) for name in NAMES]


def random_changes(
    seed: object, count: int, *, snapshots: bool = False, whole_holes: bool = False
) -> list[Change]:
    """Return so many changes of three files, which are made first.

    With `whole_holes` only whole blocks are punched and zeroed: what becomes of a part of a block
    that lies in a hole depends on which extent maps the kernel has, where holes have items.
    """
    choice = random.Random(f"changes {seed}")
    changes: list[Change] = [("create", name) for name in NAMES]
    kinds = ["write"] * 8 + ["truncate", "truncate", "fallocate", "punch_hole", "punch_hole"]
    kinds += ["zero_range", "clone", "clone", "fsync", "fsync", "sync"]
    for number in range(count):
        name, offset, length = choice.choice(NAMES), _offset(choice), _length(choice)
        kind = choice.choice(kinds + ["snapshot"] * snapshots)
        if whole_holes and kind in ("punch_hole", "zero_range"):
            offset, length = offset // BLOCK * BLOCK, (length // BLOCK + 1) * BLOCK
        match kind:
            case "write":
                changes.append(("write", name, offset, _data(choice, length)))
            case "truncate":
                size = choice.choice([offset, length, 0])
                changes.append(("truncate", name, size))
            case "fallocate" | "zero_range":
                changes.append((kind, name, offset, length, choice.random() < 0.5))
            case "punch_hole":
                changes.append(("punch_hole", name, offset, length))
            case "clone":
                at, to = (_offset(choice) // BLOCK * BLOCK for _ in range(2))
                length = choice.choice([0, 0, BLOCK, 5 * BLOCK, length])
                changes.append(("clone", name, choice.choice(NAMES), at, to, length))
            case "fsync":
                changes.append(("fsync", name))
            case "snapshot":
                changes += [*_FSYNC_ALL, ("snapshot", f"snap{number}")]
            case "sync":
                changes += [*_FSYNC_ALL, ("sync",)]
    return [*changes, *_FSYNC_ALL, ("sync",)]
