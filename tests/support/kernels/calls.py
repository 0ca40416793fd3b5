# SPDX-License-Identifier: GPL-2.0-only
"""The same calls on a mounted filesystem and on the model, and random sequences of them.

A call is a tuple, its name first; paths are relative to the top of the filesystem. What fails on
one side must fail on the other with the same errno.
"""

import errno
import os
import random
import stat
import struct
from collections.abc import Callable
from typing import Any

from btrfs_model.mount.names.subvolume import dead_subvolumes
from btrfs_model.mount.writable import WritableFilesystem

Call = tuple[Any, ...]

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
