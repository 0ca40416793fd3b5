# SPDX-License-Identifier: GPL-2.0-only
"""What can be seen of a filesystem: names, contents and attributes, but no times."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.ondisk.constants import OfMode
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.subvolume import Subvolume

TOP: Final = 256
"""Inode number of the top directory of a subvolume."""
_WHOLE: Final = 1 << 20
_LARGEST: Final = 1 << 30
_PIECE: Final = 4 << 20

Ref = tuple[int, int]
"""Subvolume and inode number."""

Name = tuple[Ref, bytes, Ref]
"""Directory, name, and where it leads to."""


@dataclass(frozen=True, slots=True)
class Inode(OfMode):
    """What can be seen of an inode.

    `mode`, `owner` (uid and gid), `device` (of a device node).
    `data`: content of a file, or target of a symlink; of more than a MiB a digest.
    `large`: size of the content that has a digest.
    `xattrs`: names and values.
    `entries`: of a directory: names and where they lead to; that of a subvolume to its top.
    """

    mode: int
    data: bytes = b""
    large: int = 0
    owner: tuple[int, int] = (0, 0)
    device: int = 0
    xattrs: frozenset[tuple[bytes, bytes]] = frozenset()
    entries: frozenset[tuple[bytes, Ref]] = frozenset()

    @property
    def size(self) -> int:
        """Size of the content, bytes."""
        return self.large or len(self.data)


State = dict[Ref, Inode]
"""All inodes that have names."""


def seen(fs: Filesystem) -> State:
    """Return what the last commit of a filesystem holds.

    Raises CorruptImageError: where it is damaged; UnsupportedError: for a file above 1 GiB.
    """
    found: State = {}
    for root in fs.subvolume_ids:
        found.update(_of_subvolume(fs.subvolume(root), root))
    return found


def _of_subvolume(subvolume: Subvolume, root: int) -> Iterator[tuple[Ref, Inode]]:
    waiting, known = [TOP], {TOP}
    while waiting:
        ino = waiting.pop()
        entries = []
        item = subvolume.inode(ino)
        if stat.S_ISDIR(item.mode):
            for entry in subvolume.readdir(ino):
                number = entry.location.objectid
                if entry.location.type == ItemType.ROOT_ITEM:
                    entries.append((entry.name, (number, TOP)))
                    continue
                if number not in known:
                    known.add(number)
                    waiting.append(number)
                entries.append((entry.name, (root, number)))
        data, large = _content(subvolume, ino, item.mode, item.size)
        yield (root, ino), Inode(
            item.mode, data, large, (item.uid, item.gid), item.rdev,
            frozenset(subvolume.xattrs(ino).items()), frozenset(entries))  # fmt: skip


def _content(subvolume: Subvolume, ino: int, mode: int, size: int) -> tuple[bytes, int]:
    if stat.S_ISLNK(mode):
        return subvolume.read_link(ino), 0
    if not stat.S_ISREG(mode):
        return b"", 0
    if size <= _WHOLE:
        return subvolume.read_file(ino), 0
    if size > _LARGEST:
        raise UnsupportedError(f"{subvolume.fs.path}: inode {ino} of {size:,} bytes is too large "
                               f"to be compared: at most {_LARGEST:,}")  # fmt: skip
    digest = hashlib.sha256()
    for at in range(0, size, _PIECE):
        digest.update(subvolume.read_file(ino, at, min(_PIECE, size - at)))
    return digest.digest(), size


def names_of(state: State) -> set[Name]:
    """Return all names of a state."""
    return {(ref, *entry) for ref, inode in state.items() for entry in inode.entries}


def path_of(state: State, ref: Ref) -> str:
    """Return a path to an inode, from the top of the filesystem; its numbers where it has none."""
    parts: list[str] = []
    at = ref
    # the first of several names
    names = sorted(names_of(state), reverse=True)
    above = {to: (directory, name) for directory, name, to in names}
    while at != (5, TOP):
        if at not in above or len(parts) > len(above):
            return f"inode {ref[1]} of subvolume {ref[0]}"
        at, name = above[at][0], above[at][1]
        parts.append(name.decode("utf-8", "backslashreplace"))
    return "/".join(reversed(parts)) or "."
