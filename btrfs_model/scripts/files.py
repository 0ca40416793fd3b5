# SPDX-License-Identifier: GPL-2.0-only
"""Files that are on no filesystem of the model: a tree in memory."""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.ondisk.constants import OfMode
from btrfs_model.shell.streams import Stream

_KINDS: Final = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFBLK: "b",
                 stat.S_IFCHR: "c", stat.S_IFIFO: "p", stat.S_IFSOCK: "s"}  # fmt: skip
_LINKS: Final = 40
_COPIED: Final = 256 << 20


class ScriptFolderError(BtrfsModelError):
    """A folder cannot be copied for a script."""


def fail(number: int, path: str) -> OSError:
    """Return an error of a system call."""
    return OSError(number, os.strerror(number), path)


@dataclass(frozen=True)
class Stat(OfMode):
    """What stat(2) says; times in nanoseconds."""

    mode: int
    size: int
    ino: int
    device: int = 0
    nlink: int = 1
    uid: int = 0
    gid: int = 0
    stored: int = 0
    """Sectors that extents have."""
    atime: int = 0
    mtime: int = 0
    ctime: int = 0
    birth: int = 0
    rdev: int = 0
    """Of a device, as ``os.makedev()`` makes it."""
    waits: Callable[[], int] | None = None
    """Sectors that data have which wait to be written: asked for when somebody wants to know."""

    @property
    def blocks(self) -> int:
        """Sectors of the file, as ``st_blocks``."""
        return self.stored + (self.waits() if self.waits else 0)

    @property
    def kind(self) -> str:
        """A letter, as ``find -type`` has it."""
        return _KINDS.get(stat.S_IFMT(self.mode), "f")

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.mode)

    @property
    def same(self) -> tuple[int, int]:
        """What two names of a file have in common."""
        return self.device, self.ino


_numbers = itertools.count(2)


@dataclass
class Node:
    """A file: its bytes, the names in it, or where it leads."""

    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, Node] = field(default_factory=dict)
    target: str = ""
    changed: Callable[[bytes], None] | None = None
    """What writing to it does, for a file of /proc or /sys."""
    shown: Callable[[], bytes] | None = None
    ino: int = field(default_factory=lambda: next(_numbers))
    mtime: int = 0
    nlink: int = 1
    uid: int = 0
    gid: int = 0
    xattrs: dict[str, bytes] = field(default_factory=dict)


class Tree:
    """Files in memory, by absolute paths."""

    def __init__(self) -> None:
        self.top = Node(stat.S_IFDIR | 0o755)

    def find(self, path: str, *, follow: bool = True) -> Node:
        """Return a file; OSError where there is none."""
        node = self.top
        todo = [one for one in path.split("/") if one and one != "."][::-1]
        way: list[Node] = []
        links = 0
        while todo:
            name = todo.pop()
            if not stat.S_ISDIR(node.mode):
                raise fail(errno.ENOTDIR, path)
            if name == "..":
                node = way.pop() if way else node
                continue
            inner = node.names.get(name)
            if inner is None:
                raise fail(errno.ENOENT, path)
            if stat.S_ISLNK(inner.mode) and (todo or follow):
                links += 1
                if links > _LINKS:
                    raise fail(errno.ELOOP, path)
                if inner.target.startswith("/"):
                    node, way = self.top, []
                todo += [one for one in inner.target.split("/") if one and one != "."][::-1]
                continue
            way.append(node)
            node = inner
        return node

    def parent(self, path: str) -> tuple[Node, str]:
        """Return the directory of a name that need not exist, and the name."""
        head, _, name = path.rstrip("/").rpartition("/")
        node = self.find(head)
        if not stat.S_ISDIR(node.mode):
            raise fail(errno.ENOTDIR, path)
        return node, name

    def make(self, path: str, mode: int, **fields: object) -> Node:
        """Make a file; OSError where there is one."""
        folder, name = self.parent(path)
        if name in folder.names or not name:
            raise fail(errno.EEXIST, path)
        node = folder.names[name] = Node(mode, **fields)  # type: ignore[arg-type]
        return node

    def folders(self, path: str) -> Node:
        """Make a directory and those above it."""
        node = self.top
        for name in path.split("/"):
            if name:
                node = node.names.setdefault(name, Node(stat.S_IFDIR | 0o755))
        return node

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        """Return what stat says."""
        node = self.find(path, follow=follow)
        size = len(node.target) if stat.S_ISLNK(node.mode) else len(node.data)
        return Stat(
            node.mode, size, node.ino, nlink=node.nlink, uid=node.uid, gid=node.gid,
            stored=-(-size // 4096) * 8,
            atime=node.mtime, mtime=node.mtime, ctime=node.mtime,
        )  # fmt: skip

    def copy_folder(self, folder: Path, where: str) -> None:
        """Put a copy of a folder of this machine into the tree.

        Raises
        ------
        ScriptFolderError
            When its files have more than 256 MiB.
        """
        left = _COPIED
        for place, names, files in os.walk(folder):
            names[:] = sorted(name for name in names if name != ".git")
            at = posixpath.join(where, os.path.relpath(place, folder)).removesuffix("/.")
            node = self.folders(at)
            for name in sorted(files) + [one for one in names if Path(place, one).is_symlink()]:
                path = Path(place, name)
                seen = path.lstat()
                if stat.S_ISLNK(seen.st_mode):
                    node.names[name] = Node(seen.st_mode, target=str(path.readlink()))
                elif stat.S_ISREG(seen.st_mode):
                    left -= seen.st_size
                    if left < 0:
                        raise ScriptFolderError(f"{folder}: its files have more than 256 MiB")
                    node.names[name] = Node(seen.st_mode, bytearray(path.read_bytes()),
                                            mtime=seen.st_mtime_ns)  # fmt: skip

    def walk(self, node: Node) -> Iterator[Node]:
        """Go through a file and all in it."""
        yield node
        for inner in node.names.values():
            yield from self.walk(inner)


class TreeFile(Stream):
    """An open file of the tree."""

    def __init__(self, node: Node, mode: str, now: Callable[[], int]) -> None:
        self.node, self.mode, self.now = node, mode, now
        self.at = 0
        if mode[0] == "w" and node.changed is None:
            node.data.clear()
            node.mtime = now()

    def read(self, size: int = -1) -> bytes:
        """Read from the place on."""
        self.may_read()
        if stat.S_ISDIR(self.node.mode):
            raise fail(errno.EISDIR, "a directory")
        data = self.node.shown() if self.node.shown else self.node.data
        found = bytes(data[self.at : len(data) if size < 0 else self.at + size])
        self.at += len(found)
        return found

    def read_line(self, end: int = 10) -> bytes:
        """Read up to a byte."""
        self.may_read()
        data = self.node.shown() if self.node.shown else self.node.data
        at = data.find(bytes([end]), self.at)
        return self.read(-1 if at < 0 else at + 1 - self.at)

    def write(self, data: bytes) -> None:
        """Write at the place, or at the end."""
        self.may_write()
        node = self.node
        if node.changed is not None:
            node.changed(data)
            return
        if self.mode == "a":
            self.at = len(node.data)
        if self.at > len(node.data):
            node.data += bytes(self.at - len(node.data))
        node.data[self.at : self.at + len(data)] = data
        self.at += len(data)
        node.mtime = self.now()
