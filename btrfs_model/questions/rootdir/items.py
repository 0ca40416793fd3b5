# SPDX-License-Identifier: GPL-2.0-only
"""Items of inodes, names, attributes and data, as btrfs-progs writes them to trees."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from typing import Final, NamedTuple

from btrfs_model.mount.mkfs.layout import SECTORSIZE
from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.block import Key
from btrfs_model.mount.mkfs.writer.transaction import Transactions
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.hashes import extref_hash, name_hash
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.questions.rootdir.source import round_up

TOP: Final = 256
"""Number of the uppermost folder, and of the first subvolume."""
EXTENT: Final = 1 << 20
"""Bytes of the largest extent that mkfs makes."""
KINDS: Final = {
    stat.S_IFREG: FileType.REG_FILE, stat.S_IFDIR: FileType.DIR, stat.S_IFLNK: FileType.SYMLINK,
    stat.S_IFCHR: FileType.CHRDEV, stat.S_IFBLK: FileType.BLKDEV, stat.S_IFIFO: FileType.FIFO,
    stat.S_IFSOCK: FileType.SOCK,
}  # fmt: skip
"""What folders say that a file is, by its mode."""

_SIZE: Final = 16
_INLINE_HEAD: Final = structs.ITEM.size + structs.FILE_EXTENT_HEAD.size
_TRANSID: Final = slice(17, 25)
"""Where a name says in which transaction it came; mkfs.btrfs leaves it as it is in attributes."""
_NOTHING: Final = slice(0, 0)
_NOWHERE: Final = structs.DiskKey(0, 0, 0)


class Place(NamedTuple):
    """An inode: its tree and number."""

    root: Root
    number: int

    def key(self, kind: int, offset: int = 0) -> Key:
        """Return the key of an item of the inode."""
        return self.number, int(kind), offset


class Items:
    """Writes items to trees.

    Parameters
    ----------
    trees : Transactions
        The filesystem, in a transaction.
    dated : bool
        Whether names say in which transaction they came.
    """

    def __init__(self, trees: Transactions, *, dated: bool = True) -> None:
        self.trees = trees
        self._of_names = _NOTHING if dated else _TRANSID

    def change(self, place: Place, data: bytes, at: int, *, room: int = 1) -> None:
        """Change bytes of an inode item."""
        trees = self.trees
        path, _ = trees.search(place.root, place.key(ItemType.INODE_ITEM), room, change=True)
        path.leaf.write(path.slot, data, at)
        trees.mark_dirty(path.leaf)

    def set_size(self, place: Place, size: int) -> None:
        """Change the size of an inode."""
        self.change(place, size.to_bytes(8, "little"), _SIZE)

    def add_inode(self, place: Place, inode: structs.InodeItem) -> None:
        """Add an inode."""
        key = place.key(ItemType.INODE_ITEM)
        self.trees.insert(place.root, key, structs.INODE_ITEM.pack(inode))

    def refer(self, place: Place, parent: int, index: int, name: bytes) -> None:
        """Add a name to an inode (``btrfs_insert_inode_ref()``)."""
        data = structs.INODE_REF.pack(structs.RawInodeRef(index, len(name))) + name
        try:
            self._append(place.root, place.key(ItemType.INODE_REF, parent), data)
        except OverflowError:
            head = structs.RawInodeExtref(parent, index, len(name))
            key = place.key(ItemType.INODE_EXTREF, extref_hash(parent, name))
            self._append(place.root, key, structs.INODE_EXTREF.pack(head) + name)

    def _append(self, root: Root, key: Key, data: bytes, kept: slice = _NOTHING) -> None:
        """Insert an item, or add to that which is there; some bytes are what lay there."""
        trees = self.trees
        path, found = trees.insert_empty(root, key, len(data))
        before = path.leaf.size(path.slot) if found else 0
        if found:
            trees.extend(path, len(data))
        path.leaf.write(path.slot, data[: kept.start], before)
        path.leaf.write(path.slot, data[kept.stop :], before + kept.stop)
        trees.mark_dirty(path.leaf)

    def add_name(
        self, parent: Place, name: bytes, index: int, target: structs.DiskKey, file: int
    ) -> None:
        """Add a name to a folder (``btrfs_insert_dir_item()``)."""
        head = structs.RawDirItem(target, self.trees.generation, 0, len(name), file)
        data = structs.DIR_ITEM.pack(head) + name
        for kind, offset in ((ItemType.DIR_ITEM, name_hash(name)), (ItemType.DIR_INDEX, index)):
            self._append(parent.root, parent.key(kind, offset), data, self._of_names)

    def add_attributes(self, place: Place, attributes: Iterable[tuple[bytes, bytes]]) -> None:
        """Add attributes, names with values (``add_xattr_item()``)."""
        for name, value in attributes:
            head = structs.RawDirItem(_NOWHERE, 0, len(value), len(name), FileType.XATTR)
            key = place.key(ItemType.XATTR_ITEM, name_hash(name))
            self._append(place.root, key, structs.DIR_ITEM.pack(head) + name + value, _TRANSID)

    def is_inline(self, size: int) -> bool:
        """Whether the data of a file lie in its item."""
        return size < SECTORSIZE and size <= self.trees.capacity - _INLINE_HEAD

    def add_inline(self, place: Place, data: bytes, size: int, compression: int = 0) -> None:
        """Add data as an item; `size` is what they are without compression."""
        head = structs.FileExtentHead(self.trees.generation, size, compression, 0, 0, 0)
        key = place.key(ItemType.EXTENT_DATA)
        self.trees.insert(place.root, key, structs.FILE_EXTENT_HEAD.pack(head) + data)

    def add_hole(self, place: Place, start: int, length: int) -> None:
        """Note a hole."""
        item = structs.RawFileExtent(self.trees.generation, length, 0, 0, 0, 1, 0, 0, 0, length)
        key = place.key(ItemType.EXTENT_DATA, start)
        self.trees.insert(place.root, key, structs.FILE_EXTENT_ITEM.pack(item))

    def add_extent(
        self, place: Place, at: int, data: bytes, kept: tuple[int, int], *, sums: bool = True
    ) -> int:
        """Write an extent; return where it lies.

        `at`: where in the file.
        `kept`: how long it is there, and how it is compressed.
        `sums`: whether it has checksums.
        """
        trees, (length, compression) = self.trees, kept
        size, ram = round_up(len(data)), round_up(length)
        data = data.ljust(size, b"\0")
        start = trees.reserve(place.root, size, data=True)
        trees.write_data(start, data)
        for offset in range(0, size * sums, SECTORSIZE):
            trees.add_sum(start + offset, data[offset : offset + SECTORSIZE])
        trees.add_data(start, size)
        item = structs.RawFileExtent(trees.generation, ram, compression, 0, 0, 1, start, size, 0,
                                     ram)  # fmt: skip
        key = place.key(ItemType.EXTENT_DATA, at)
        trees.insert(place.root, key, structs.FILE_EXTENT_ITEM.pack(item))
        trees.refer(start, size, structs.ExtentDataRef(place.root.number, place.number, at, 1))
        return start
