# SPDX-License-Identifier: GPL-2.0-only
"""The tree that all sequences start from, and the operations that they are made of.

Operations are those of scenarios. Some do nothing alone: they need what another one makes.
"""

from __future__ import annotations

from typing import Any, Final

Operation = list[Any]

_BLOCK: Final = 4096
_KEEP, _PUNCH, _ZERO = 1, 2, 16

TREE: Final[list[Operation]] = [
    ["mkdir", "A"], ["mkdir", "B"], ["mkdir", "B/D"],
    ["create", "A/foo"], ["write", "A/foo", 0, 3 * _BLOCK, ["pat", "a"]],
    ["link", "A/foo", "B/foo"],
    ["create", "A/bar"], ["write", "A/bar", 0, 100, ["pat", "b"]],
    ["setxattr", "A/bar", "user.u", "31"],
]  # fmt: skip
"""Two directories, an empty one; a file of three equal blocks with a name in each; an inline file.
"""

OPERATIONS: Final[dict[str, list[Operation]]] = {
    "new": [
        ["create", "A/new"], ["create", "B/D/new"], ["mkdir", "A/new"], ["symlink", "foo", "A/new"],
        ["mknod", "A/new", 0o10644],
        ["link", "A/foo", "A/new"], ["link", "A/foo", "B/D/new"], ["link", "A/bar", "B/new"],
        ["link", "A/foo", "A/new/new"],
    ],
    "gone": [
        ["unlink", "A/foo"], ["unlink", "B/foo"], ["unlink", "A/bar"], ["unlink", "A/new"],
        ["rmdir", "B/D"], ["rmdir", "A/new"],
    ],
    "moved": [
        ["rename", "A/foo", "A/new"], ["rename", "A/foo", "B/new"], ["rename", "A/bar", "B/new"],
        ["rename", "A/bar", "A/new"], ["rename", "A/new", "B/new"], ["rename", "B/new", "A/bar"],
        ["rename", "B/D", "A/new"], ["rename", "A", "B/D/new"], ["rename", "A/bar", "A/new/new"],
    ],
    "over": [
        ["rename", "A/foo", "A/bar"], ["rename", "A/bar", "A/foo"], ["rename", "A/bar", "B/foo"],
        ["rename", "A/new", "A/foo"], ["rename", "A", "B/D"],
    ],
    "exchanged": [
        ["exchange", "A/foo", "A/bar"], ["exchange", "A/bar", "B/foo"],
        ["exchange", "A/foo", "B/D"], ["exchange", "A", "B"], ["exchange", "A/new", "A/foo"],
    ],
    "size": [
        *(["truncate", "A/foo", size] for size in (0, _BLOCK, 5000, 20000)),
        *(["truncate", "A/bar", size] for size in (0, 50, 3 * _BLOCK)),
    ],
    "written": [
        # within, across and behind the end; at an edge, in a block, behind a hole
        *(["write", "A/foo", offset, length, 1]
          for offset, length in ((0, _BLOCK), (5000, 50), (11000, 3000), (3 * _BLOCK, _BLOCK),
                                 (10 * _BLOCK, _BLOCK))),
        *(["write", "A/bar", offset, length, 1]
          for offset, length in ((0, 100), (100, 5000), (_BLOCK, _BLOCK))),
        ["write", "A/new", 0, 200, 1], ["write", "A/new", 0, 2 * _BLOCK, 1],
    ],
    "allocated": [
        ["fallocate", "A/foo", 0, 2 * _BLOCK, 3 * _BLOCK],
        ["fallocate", "A/foo", _KEEP, 3 * _BLOCK, 2 * _BLOCK],
        ["fallocate", "A/bar", 0, 0, 2 * _BLOCK],
        ["fallocate", "A/foo", _PUNCH | _KEEP, _BLOCK, _BLOCK],
        ["fallocate", "A/foo", _PUNCH | _KEEP, 2 * _BLOCK, 2 * _BLOCK],
        ["fallocate", "A/foo", _PUNCH | _KEEP, 5000, 100],
        ["fallocate", "A/foo", _ZERO, _BLOCK, _BLOCK],
        ["fallocate", "A/foo", _ZERO | _KEEP, 2 * _BLOCK, 2 * _BLOCK],
    ],
    "shared": [
        ["clone", "A/foo", "A/bar"], ["clone", "A/bar", "A/foo"],
        ["clone_range", "A/foo", 0, _BLOCK, "A/foo", 4 * _BLOCK],
        ["clone_range", "A/foo", 0, _BLOCK, "A/bar", _BLOCK],
        ["dedupe", "A/foo", 0, _BLOCK, "A/foo", 2 * _BLOCK],
    ],
    "attributes": [
        ["setxattr", "A/foo", "user.a", "31"], ["setxattr", "A/bar", "user.u", "3232"],
        ["removexattr", "A/bar", "user.u"], ["setxattr", "A", "user.a", "31"],
        ["chmod", "A/foo", 0o600], ["chmod", "A", 0o700], ["chown", "A/bar", 1, 1],
        ["utimes", "A/foo", 10**9, 2 * 10**9],
    ],
}  # fmt: skip
"""By what they do."""

ALL: Final[list[Operation]] = [one for some in OPERATIONS.values() for one in some]
