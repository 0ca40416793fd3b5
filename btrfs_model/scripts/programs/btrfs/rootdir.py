# SPDX-License-Identifier: GPL-2.0-only
"""``mkfs.btrfs --rootdir``: a fresh filesystem with the files of a directory.

Files are as btrfs-progs 6.2 makes them: numbers of inodes follow from those of the source, times
are whole seconds, device nodes have no number, and the top itself is left as it is. The trees are
those of a mount that made the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from btrfs_model.base.counters import uncounted
from btrfs_model.mount.inode import live_subvolume, mark_inode_dirty
from btrfs_model.mount.names.lookup import find
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.scripts.programs.attributes.xattrs import file_xattrs
from btrfs_model.scripts.programs.names import read_link
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.mount.live_inode import LiveInode
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.scripts.files import Stat

_FIRST: Final = int(ObjectId.FIRST_FREE)
_EXTENT: Final = 1 << 20
"""Bytes of the largest extent that mkfs makes."""
_SECOND: Final = 10**9


def fill(computer: Computer, fs: WritableFilesystem, source: str) -> None:
    """Copy a directory into a filesystem that mkfs has just made."""
    with uncounted():
        fs.set_mount_options("max_inline=4096")
        fs.umask = 0
        top = find(fs, "")
        before = top.item.atime, top.item.ctime, top.item.mtime
        _Copy(computer, fs).directory(source, "")
        top.item.atime, top.item.ctime, top.item.mtime = before
        top.item.sequence = 0
        mark_inode_dirty(fs, top)
        fs.remount("")


class _Copy:
    """A copy that is being made; it knows which files it has made, by their source."""

    def __init__(self, computer: Computer, fs: WritableFilesystem) -> None:
        self.computer, self.fs = computer, fs
        self.made: dict[tuple[int, int], tuple[str, Stat]] = {}
        self.numbers: set[int] = set()

    def directory(self, source: str, target: str) -> None:
        """Copy what is in a directory, then what is in those."""
        todo = [(source, target)]
        while todo:
            source, target = todo.pop(0)
            for name in self.computer.listdir(source):
                path, copy = f"{source.rstrip('/')}/{name}", f"{target}/{name}"
                seen = self.computer.stat(path, follow=False)
                assert seen is not None
                self._file(path, copy, seen)
                if seen.is_dir:
                    todo.append((path, copy))
        for copy, seen in self.made.values():
            self._finish(find(self.fs, copy, follow=False), seen)

    def _finish(self, inode: LiveInode, seen: Stat) -> None:
        """Make an inode's item what mkfs makes it."""
        item = inode.item
        item.mode, item.uid, item.gid = seen.mode, seen.uid, seen.gid
        item.atime, item.ctime, item.mtime = (
            time // _SECOND * _SECOND for time in (seen.atime, seen.ctime, seen.mtime)
        )
        item.otime = item.sequence = 0
        mark_inode_dirty(self.fs, inode)

    def _file(self, path: str, copy: str, seen: Stat) -> None:
        fs = self.fs
        if seen.same in self.made:
            fs.link(self.made[seen.same][0], copy)
            return
        if seen.ino in self.numbers:
            raise UnknownError(f"mkfs.btrfs --rootdir: {path}: two files with number {seen.ino}")
        self.numbers.add(seen.ino)
        self.made[seen.same] = copy, seen
        live_subvolume(fs, int(ObjectId.FS_TREE)).next_ino = seen.ino + _FIRST
        if seen.is_dir:
            fs.mkdir(copy)
        elif seen.is_link:
            fs.symlink(read_link(self.computer, self.computer.absolute(path)), copy)
        elif not seen.is_file:
            fs.mknod(copy, seen.mode)
        else:
            fs.create(copy)
            data = self.computer.read(path)
            for at in range(0, len(data), _EXTENT):
                fs.write(copy, at, data[at : at + _EXTENT])
                fs.sync_file_range(copy, at, _EXTENT)
        for name, value in file_xattrs(self.computer, path, follow=False).items():
            fs.setxattr(copy, name, value, follow=False)
