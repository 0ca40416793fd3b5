# SPDX-License-Identifier: GPL-2.0-only
"""New inodes: they are made under an orphan name, which is changed when their names are known."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from btrfs_model.base.counters import current
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.reference.ctree import search_slot
from btrfs_model.reference.send.context import LruCache

if TYPE_CHECKING:
    from btrfs_model.reference.send.context import SendContext
    from btrfs_model.reference.send.data import DataReader
    from btrfs_model.reference.send.names import Names

_DIR_CREATED_CACHE_SIZE = 64

_CREATE_COMMANDS = {
    stat.S_IFREG: "mkfile",
    stat.S_IFDIR: "mkdir",
    stat.S_IFLNK: "symlink",
    stat.S_IFCHR: "mknod",
    stat.S_IFBLK: "mknod",
    stat.S_IFIFO: "mkfifo",
    stat.S_IFSOCK: "mksock",
}


def new_encode_dev(dev: int) -> int:
    """Return a device number as ``new_encode_dev()`` has it, of major << 20 | minor."""
    major, minor = dev >> 20 & 0xFFF, dev & 0xFFFFF
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


class Creator:
    """Creates inodes.

    Parameters
    ----------
    sctx : SendContext
        The send.
    names : Names
        Its names.
    reader : DataReader
        Reads targets of symbolic links.
    """

    def __init__(self, sctx: SendContext, names: Names, reader: DataReader) -> None:
        self.sctx = sctx
        self.names = names
        self.reader = reader
        self.dir_created_cache = LruCache()

    def send_create_inode_if_needed(self) -> None:
        """Create the current inode, unless it is a directory that was created out of its turn."""
        sctx = self.sctx
        is_dir = stat.S_ISDIR(sctx.cur_inode.mode)
        if is_dir and self.did_create_dir(sctx.cur_ino):
            return
        self.send_create_inode(sctx.cur_ino)
        if is_dir:
            self.cache_dir_created(sctx.cur_ino)

    def send_create_inode(self, ino: int) -> None:
        """Create an inode under its orphan name."""
        current().count("send_create_inode")
        sctx, item = self.sctx, self.sctx.cur_inode
        if ino != sctx.cur_ino:
            item = self.names.need_inode_info(sctx.root, ino)
        command = _CREATE_COMMANDS.get(stat.S_IFMT(item.mode))
        if command is None:
            raise sctx.fail(errno.EOPNOTSUPP)
        path = self.names.gen_unique_name(ino, item.generation)
        if command == "symlink":
            sctx.send_cmd(command, path=path, ino=ino, path_link=self.read_symlink(ino))
        elif command in ("mkfile", "mkdir"):
            sctx.send_cmd(command, path=path, ino=ino)
        else:
            rdev = new_encode_dev(item.rdev)
            sctx.send_cmd(command, path=path, ino=ino, rdev=rdev, mode=item.mode)

    def read_symlink(self, ino: int) -> bytes:
        """Return the target of a symbolic link."""
        sctx, path = self.sctx, self.sctx.search_path()
        if not search_slot(sctx.root, (ino, ItemType.EXTENT_DATA, 0), path):
            raise sctx.fail(errno.EIO)
        return self.reader.symlink_target(path)

    def did_create_dir(self, ino: int) -> bool:
        """Whether a directory was created out of its turn, as the parent of a lower inode."""
        current().count("did_create_dir")
        sctx = self.sctx
        if Patch.SEND_DIR_CREATED_CACHE in sctx:
            current().count("btrfs_lru_cache_lookup")
            if self.dir_created_cache.lookup(ino) is not None:
                return True
        path, wanted = sctx.search_path(), (ino, ItemType.DIR_INDEX)
        for key in sctx.for_each_slot(sctx.root, Key(*wanted, 0), path):
            if key[:2] != wanted:
                break
            entry = sctx.dir_entries(path, sctx.root)[0]
            is_subvolume = entry.location.type == ItemType.ROOT_ITEM
            if not is_subvolume and entry.location.objectid < sctx.send_progress:
                self.cache_dir_created(ino)
                return True
        return False

    def cache_dir_created(self, ino: int) -> None:
        """Remember that a directory was created."""
        if Patch.SEND_DIR_CREATED_CACHE in self.sctx and (ino, 0) not in self.dir_created_cache:
            current().count("btrfs_lru_cache_store")
            self.dir_created_cache.store(ino, 0, True, _DIR_CREATED_CACHE_SIZE)
