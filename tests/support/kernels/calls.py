# SPDX-License-Identifier: GPL-2.0-only
"""The same calls on a mounted filesystem and on the model, and random sequences of them.

A call is a tuple, its name first; paths are relative to the top of the filesystem. What fails on
one side must fail on the other with the same errno.
"""

import ctypes
import errno
import fcntl
import os
import random
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from btrfs_model.mount.names.subvolume import dead_subvolumes
from btrfs_model.mount.writable import WritableFilesystem

Call = tuple[Any, ...]

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_VOL_ARGS = struct.Struct("<q4088s")
_VOL_ARGS_V2 = struct.Struct("<qQQ32x4040s")
_RECEIVED = struct.Struct("<16sQQQI4xQI4xQ128x")


def _ioctl(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | number


_SYNC = _ioctl(0, 8, 0)
_TREE_SEARCH = _ioctl(3, 17, 4096)
_SUBVOL_CREATE = _ioctl(1, 14, 4096)
_SNAP_DESTROY = _ioctl(1, 15, 4096)
_SNAP_CREATE_V2 = _ioctl(1, 23, 4096)
_GETFLAGS = _ioctl(2, 25, 8)
_SETFLAGS = _ioctl(1, 26, 8)
_SET_RECEIVED = _ioctl(3, 37, _RECEIVED.size)
_FS_GETFLAGS = 2 << 30 | 8 << 16 | ord("f") << 8 | 1
_FS_SETFLAGS = 1 << 30 | 8 << 16 | ord("f") << 8 | 2
_RDONLY = 2
_MAX = 2**64 - 1
_ORPHAN = 2**64 - 5


@contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def _dead_subvolumes(fd: int) -> int:
    """How many orphan items the root tree has (BTRFS_IOC_TREE_SEARCH)."""
    argument = bytearray(4096)
    # tree, objectids, offsets, transids, types, how many
    struct.pack_into("<7QIII", argument, 0, 1, _ORPHAN, _ORPHAN, 0, _MAX, 0, _MAX, 48, 48, 4096)
    fcntl.ioctl(fd, _TREE_SEARCH, argument)
    found: int = struct.unpack_from("<I", argument, 64)[0]
    return found


class KernelCalls:
    """The calls of a filesystem of the model, on a mounted one.

    Paths go to the kernel as they are (:mod:`pathlib` would straighten them).
    """

    def __init__(self, top: Path) -> None:
        self.top = str(top)
        self._held: dict[str, int] = {}

    def _at(self, path: str) -> str:
        return f"{self.top}/{path}"

    def _parent(self, path: str) -> tuple[str, bytes]:
        parent, _, name = path.rpartition("/")
        return self._at(parent), os.fsencode(name)

    def create(self, path: str, mode: int = 0o666) -> None:
        os.close(os.open(self._at(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        os.mkdir(self._at(path), mode)  # noqa: PTH102

    def mknod(self, path: str, mode: int, device: int = 0) -> None:
        os.mknod(self._at(path), mode, device)

    def symlink(self, target: str, path: str) -> None:
        os.symlink(target, self._at(path))  # noqa: PTH211

    def link(self, existing: str, path: str) -> None:
        os.link(self._at(existing), self._at(path), follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))  # noqa: PTH108

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))  # noqa: PTH106

    def rename(self, old: str, new: str, flags: int = 0) -> None:
        names = (os.fsencode(self._at(path)) for path in (old, new))
        source, target = names
        if _LIBC.renameat2(_AT_FDCWD, source, _AT_FDCWD, target, flags):
            raise OSError(ctypes.get_errno(), "renameat2", old)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._at(path), mode)  # noqa: PTH101

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self._at(path), uid, gid)

    def utimes(self, path: str, atime: int, mtime: int) -> None:
        os.utime(self._at(path), ns=(atime, mtime))

    def chattr(self, path: str, add: int, remove: int) -> None:
        if stat.S_IFMT(Path(self._at(path)).stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise OSError(errno.ENOTTY, path)
        fd = os.open(self._at(path), os.O_RDONLY)
        try:
            flags = bytearray(8)
            fcntl.ioctl(fd, _FS_GETFLAGS, flags)
            new = struct.unpack("<q", flags)[0] & ~remove | add
            fcntl.ioctl(fd, _FS_SETFLAGS, struct.pack("<q", new))
        finally:
            os.close(fd)

    def setxattr(self, path: str, name: str, value: bytes, flags: int = 0) -> None:
        os.setxattr(self._at(path), name, value, flags)

    def removexattr(self, path: str, name: str) -> None:
        os.removexattr(self._at(path), name)

    def create_subvolume(self, path: str) -> None:
        parent, name = self._parent(path)
        with _opened(parent) as fd:
            fcntl.ioctl(fd, _SUBVOL_CREATE, bytearray(_VOL_ARGS.pack(0, name)))

    def snapshot(self, source: str, path: str, read_only: bool = True) -> None:
        parent, name = self._parent(path)
        flags = _RDONLY if read_only else 0
        with _opened(self._at(source)) as of, _opened(parent) as fd:
            fcntl.ioctl(fd, _SNAP_CREATE_V2, bytearray(_VOL_ARGS_V2.pack(of, 0, flags, name)))

    def delete_subvolume(self, path: str) -> None:
        parent, name = self._parent(path)
        with _opened(parent) as fd:
            fcntl.ioctl(fd, _SNAP_DESTROY, bytearray(_VOL_ARGS.pack(0, name)))

    def set_read_only(self, path: str, read_only: bool = True) -> None:
        with _opened(self._at(path)) as fd:
            flags = struct.pack("<Q", _RDONLY if read_only else 0)
            fcntl.ioctl(fd, _SETFLAGS, flags)

    def set_received_subvolume(self, path: str, uuid: bytes, stransid: int, stime: int = 0) -> None:
        seconds, rest = divmod(stime, 10**9)
        with _opened(self._at(path)) as fd:
            argument = _RECEIVED.pack(uuid, stransid, 0, seconds, rest, 0, 0, 0)
            fcntl.ioctl(fd, _SET_RECEIVED, argument)

    def hold(self, path: str) -> None:
        self._held[path] = os.open(self._at(path), os.O_RDONLY)

    def release(self, path: str) -> None:
        os.close(self._held.pop(path))

    def release_all(self) -> None:
        for path in list(self._held):
            self.release(path)

    def clean(self) -> None:
        """Commit; where subvolumes are deleted wait until the cleaner has freed them, and commit.

        When it comes to that without being woken is a matter of chance.
        """
        with _opened(self.top) as fd:
            if not _dead_subvolumes(fd):
                return
            fcntl.ioctl(fd, _SYNC)
            for _ in range(60_000):
                if not _dead_subvolumes(fd):
                    break
                time.sleep(0.001)
        self.sync()

    def sync(self) -> None:
        """Commit; unlike BTRFS_IOC_SYNC this does not wake the cleaner of deleted subvolumes."""
        with _opened(self.top) as fd:
            if _LIBC.syncfs(fd):
                raise OSError(ctypes.get_errno(), "syncfs", self.top)


# Which arguments an ioctl opens, the directory itself or (True) the one above, in what order. To
# open a directory is not without effect: it looks up the next index.
_OPENED = {
    "create_subvolume": [(0, True)],
    "snapshot": [(0, False), (1, True)],
    "delete_subvolume": [(0, True)],
    "set_read_only": [(0, False)],
    "set_received_subvolume": [(0, False)],
}


class ModelCalls:
    """The same on the model; handles are known by the path that was opened."""

    def __init__(self, fs: WritableFilesystem) -> None:
        self.fs = fs
        self._held: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self.fs, name)
        if name not in _OPENED:
            return call

        def opened(*args: Any) -> None:
            for at, of_parent in _OPENED[name]:
                path = args[at].rpartition("/")[0] if of_parent else args[at]
                self._open_directory(path)
            call(*args)

        return opened

    def _open_directory(self, path: str) -> None:
        inode = self.fs.hold(path)
        self.fs.release(inode)
        if not inode.is_dir:
            raise OSError(errno.ENOTDIR, path)

    def clean(self) -> None:
        self._open_directory("")
        if dead_subvolumes(self.fs):
            self.sync()
            self.fs.clean_subvolumes()
            self.sync()

    def sync(self) -> None:
        self._open_directory("")
        self.fs.sync()

    def hold(self, path: str) -> None:
        self._held[path] = self.fs.hold(path)

    def release(self, path: str) -> None:
        self.fs.release(self._held.pop(path))

    def release_all(self) -> None:
        for path in list(self._held):
            self.release(path)


def run(calls: Any, call: Call) -> int:
    """Make a call; return its errno, 0 for success. Deleted subvolumes are freed at once."""
    try:
        getattr(calls, call[0])(*call[1:])
        if call[0] in ("delete_subvolume", "rmdir"):
            calls.clean()
    except OSError as error:
        assert error.errno
        return error.errno
    return 0


def acl(user: int, group: int, other: int, named: int | None = None) -> bytes:
    """A POSIX ACL, with an entry for user 1000 and a mask where `named` is given."""
    undefined = 2**32 - 1
    entries = [(1, user, undefined), (4, group, undefined), (32, other, undefined)]
    if named is not None:
        entries[1:1] = [(2, named, 1000)]
        entries[-1:-1] = [(16, 7, undefined)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


# ---------------------------------------------------------------------------------------- random --

_NAMES = ["a", "b", "c", "d", "e", "f", "long" * 40]
_XATTRS = ["user.a", "user.b", "trusted.t", "security.x", "user." + "n" * 200, "nothing.x"]
_MODES = [0o644, 0o600, 0o755, 0o4755, 0o2711, 0o1777, 0o7777]
# nothing, +c, +m, +C, +A, +S, +d, +D, +a, +i, and one that btrfs does not have
_FLAGS = [0, 0, 4, 0x400, 0x800000, 0x80, 0x8, 0x40, 0x10000, 0x20, 0x10, 0x1000]


class _Choice:
    """Random arguments."""

    def __init__(self, choice: random.Random, subvolumes: bool) -> None:
        self.one = choice.choice
        self.tops = ["", "", "", "sub/", "sub/", "snap/"] if subvolumes else [""]
        self.random = choice

    def path(self) -> str:
        depth = self.one([1, 1, 2, 2, 2, 3])
        return self.one(self.tops) + "/".join(self.one(_NAMES) for _ in range(depth))

    def subvolume(self) -> str:
        return self.one(["sub", "sub", "snap", "a/sub", "rw", "sub/a/deep", "b"])

    def value(self) -> bytes:
        return self.random.randbytes(self.one([0, 1, 8, 60, 300, 1500]))


def random_call(random_choice: random.Random, *, subvolumes: bool) -> Call:
    """A call with random arguments, which may well fail."""
    c = _Choice(random_choice, subvolumes)
    one, path = c.one, c.path
    plain: list[tuple[int, Callable[[], Call]]] = [
        (14, lambda: ("create", path(), one(_MODES))),
        (9, lambda: ("mkdir", path(), one(_MODES))),
        (2, lambda: ("mknod", path(), one([stat.S_IFIFO, stat.S_IFSOCK]) | one(_MODES))),
        (1, lambda: ("mknod", path(), stat.S_IFCHR | 0o600, os.makedev(300, 70000))),
        (3, lambda: ("symlink", one(["a", "b/c", "a/../b", "x" * 500]), path())),
        (10, lambda: ("link", path(), path())),
        (8, lambda: ("unlink", path())),
        (4, lambda: ("rmdir", path())),
        (12, lambda: ("rename", path(), path())),
        (2, lambda: ("rename", path(), path(), 1)),
        (6, lambda: ("rename", path(), path(), 2)),
        (4, lambda: ("chmod", path(), one(_MODES))),
        (3, lambda: ("chown", path(), one([0, 1000, -1]), one([0, 5, -1]))),
        (2, lambda: ("utimes", path(), one([0, 10**18 + 1]), one([7, 2 * 10**18 + 3]))),
        (8, lambda: ("setxattr", path(), one(_XATTRS), c.value(), one([0, 0, 1, 2]))),
        (4, lambda: ("removexattr", path(), one(_XATTRS))),
        (1, lambda: ("setxattr", path(), "btrfs.compression", one([b"zstd", b"", b"none", b"x"]))),
        (2, lambda: ("setxattr", path(), "security.capability",
                     struct.pack("<IIIII", 0x02000001, 1 << 5, 0, 0, 0))),
        (2, lambda: ("setxattr", path(), "system.posix_acl_access",
                     acl(7, one([5, 7]), one([0, 1]), one([None, 3])))),
        (2, lambda: ("setxattr", path(), "system.posix_acl_default",
                     acl(7, 5, one([0, 1]), one([None, 6])))),
        (1, lambda: ("removexattr", path(), one(["system.posix_acl_access",
                                                  "system.posix_acl_default"]))),
        (5, lambda: ("chattr", path(), one(_FLAGS), one(_FLAGS))),
        (3, lambda: ("sync",)),
    ]  # fmt: skip
    if subvolumes:
        plain += [
            (3, lambda: ("create_subvolume", c.subvolume())),
            (3, lambda: ("snapshot", one(["", "sub", "snap"]), c.subvolume(), one([True, False]))),
            (2, lambda: ("delete_subvolume", c.subvolume())),
            (1, lambda: ("rmdir", c.subvolume())),
            (2, lambda: ("rename", c.subvolume(), c.subvolume())),
            (1, lambda: ("rename", c.subvolume(), c.subvolume(), 2)),
            (1, lambda: ("rename", c.subvolume(), path())),
            (1, lambda: ("set_read_only", c.subvolume(), one([True, False]))),
            (1, lambda: ("set_received_subvolume", c.subvolume(), c.random.randbytes(16),
                         c.random.randrange(99), 5 * 10**9 + 1)),
        ]  # fmt: skip
    weights = [weight for weight, _ in plain]
    return random_choice.choices([make for _, make in plain], weights)[0]()
