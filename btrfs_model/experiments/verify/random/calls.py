# SPDX-License-Identifier: GPL-2.0-only
"""Random calls on names, attributes and subvolumes, many of which fail.

A call is a tuple, its name first; paths are relative to the top of the filesystem.
"""

from __future__ import annotations

import os
import random
import stat
import struct
from collections.abc import Callable
from typing import Any

Call = tuple[Any, ...]


def acl(user: int, group: int, other: int, named: int | None = None) -> bytes:
    """Return a POSIX ACL, with an entry for user 1000 and a mask where `named` is given."""
    undefined = 2**32 - 1
    entries = [(1, user, undefined), (4, group, undefined), (32, other, undefined)]
    if named is not None:
        entries[1:1] = [(2, named, 1000)]
        entries[-1:-1] = [(16, 7, undefined)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


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
    """Make a call with random arguments, which may well fail."""
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
