# SPDX-License-Identifier: GPL-2.0-only
"""A file of a filesystem that is being changed, as it is now."""

from __future__ import annotations

import errno
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.base.counters import uncounted
from btrfs_model.base.public import public
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import find, read_link
from btrfs_model.mount.names.xattr import all_xattrs
from btrfs_model.ondisk.items import dir_items
from btrfs_model.ondisk.keys import MAX_KEY, ItemType
from btrfs_model.volume.file import FileObject
from btrfs_model.volume.subvolume import Inode

if TYPE_CHECKING:
    import pandas as pd

_MAX = MAX_KEY.offset


class LiveFileObject(FileObject):
    """What a path leads to in the running transaction, with data that wait for writeback.

    :meth:`.FileObject.extents` alone is of the last commit. To look is no work: nothing is counted.
    """

    fs: Mount

    def _inode(self) -> LiveInode:
        with uncounted():
            return find(self.fs, self.raw_path, follow=False)

    def stat(self) -> Inode:
        """Return the inode.

        Raises
        ------
        OSError
            ENOENT, ENOTDIR, ELOOP or ENAMETOOLONG.
        """
        inode = self._inode()
        fields = {name: value for name, value in asdict(inode.item).items() if name in
                  Inode._fields}  # fmt: skip
        return Inode(**{**fields, "ino": inode.ino, "size": inode.i_size})

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Read the file, or the target of a link; see :meth:`.FileCalls.read`."""
        inode = self._inode()
        if inode.is_symlink:
            return read_link(self.fs, inode)[offset : None if length is None else offset + length]
        data: bytes = self.fs.read(self.raw_path, offset, length)  # type: ignore[attr-defined]
        return data

    def xattrs(self) -> dict[bytes, bytes]:
        """Return the extended attributes, in the order of the tree."""
        return all_xattrs(self.fs, self._inode())

    def names(self) -> list[bytes]:
        """Return the names in a directory, in the order of readdir(3), without "." and "..".

        Those that wait to be inserted are among them, those that wait to be deleted are not
        (``btrfs_readdir_get_delayed_items()``).

        Raises
        ------
        OSError
            ENOTDIR.
        """
        inode, fs = self._inode(), self.fs
        if not inode.is_dir:
            raise fail(errno.ENOTDIR, self.raw_path)
        with fs.image.lease, uncounted():
            kind = ItemType.DIR_INDEX
            found = {
                item.key.offset: bytes(item.data)
                for item in fs.writer.tree(inode.root).items(
                    (inode.ino, kind, 0), (inode.ino, kind, _MAX)
                )
            }
            node = fs.delayed.node(inode.root, inode.ino)
            if node is not None:
                for index in node.deletions:
                    found.pop(index, None)
                found |= _insertions(node.columns())
        return [entry.name for index in sorted(found) for entry in dir_items(found[index])]

    def fiemap(self, **options: Any) -> pd.DataFrame:
        """Return the extents as the kernel that mounts it reports them now.

        `options` are those of ``bm.fiemap_mounted()``; ``sync=True`` is ``FIEMAP_FLAG_SYNC``.
        """
        table: pd.DataFrame = public("fiemap_mounted")(self.fs, self.raw_path, **options)
        return table


def _insertions(columns: tuple[Any, Any, bytes] | None) -> dict[int, bytes]:
    if columns is None:
        return {}
    indexes, sizes, payloads = columns
    ends = np.cumsum(sizes).tolist()
    starts = [0, *ends[:-1]]
    return {index: payloads[start:end]
            for index, start, end in zip(indexes.tolist(), starts, ends, strict=True)}  # fmt: skip
