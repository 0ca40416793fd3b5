# SPDX-License-Identifier: GPL-2.0-only
"""The file that FIEMAP is asked about, and the flags of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from btrfs_model.behaviour import Behaviour
    from btrfs_model.limits import Limits
    from btrfs_model.volume.forest import Forest
    from btrfs_model.volume.tree import Tree


class Flag(IntFlag):
    """``FIEMAP_EXTENT_*``."""

    LAST = 0x1
    UNKNOWN = 0x2
    DELALLOC = 0x4
    ENCODED = 0x8
    NOT_ALIGNED = 0x100
    DATA_INLINE = 0x200
    UNWRITTEN = 0x800
    SHARED = 0x2000


@dataclass(frozen=True, slots=True)
class File:
    """The file that is asked about.

    `forest`: the trees.
    `tree`: the file's subvolume.
    `last_snapshot`: generation of the last snapshot of it.
    `ino`, `isize`: the inode and its size in bytes.
    `behaviour`: the kernel.
    `limits`: how much it remembers.
    `delalloc`: start and end of what waits to be written: ascending, none touches the next; of no
    kernel before 6.1.
    """

    forest: Forest
    tree: Tree
    last_snapshot: int
    ino: int
    isize: int
    behaviour: Behaviour
    limits: Limits
    delalloc: Sequence[tuple[int, int]] = ()
