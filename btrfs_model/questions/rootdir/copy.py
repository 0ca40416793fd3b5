# SPDX-License-Identifier: GPL-2.0-only
"""The files of a folder come into a filesystem, as in ``mkfs.btrfs --rootdir`` 7.3."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from btrfs_model.mount.mkfs.identity import source_date
from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.transaction import Transactions
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import FileType, InodeFlag
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.questions.rootdir.data import Data
from btrfs_model.questions.rootdir.items import KINDS, TOP, Items, Place
from btrfs_model.questions.rootdir.source import Rootdir, attributes, walk

_SECOND: Final = 10**9
_NLINK, _INODE_FLAGS = 40, 64
_DEFAULT_SUBVOL: Final = 1 << 1
_COMPRESSION_FEATURES: Final = {"lzo": 1 << 3, "zstd": 1 << 4}

NewUuid = Callable[[int], bytes]
"""Returns the uuid of a subvolume by its number."""


class Copy:
    """The files of a folder, as they come into a filesystem (``mkfs/rootdir.c``).

    Parameters
    ----------
    trees : Transactions
        The filesystem, in a transaction.
    source : Rootdir
        What to copy; checked already.
    seconds : int
        When roots of subvolumes are made.
    """

    def __init__(
        self, trees: Transactions, source: Rootdir, seconds: int, new_uuid: NewUuid
    ) -> None:
        self.trees, self.source, self.when = trees, source, seconds
        self.new_uuid = new_uuid
        self.items = Items(trees)
        self.data = Data(self.items, source)
        self.date = source_date()
        self.subvolumes: list[Root] = []
        self._kinds = {os.path.normpath(path): kind for path, kind in source.subvolumes.items()}
        self._flags = {os.path.normpath(path): names for path, names in source.flags.items()}
        self._places: dict[str, Place] = {}
        self._next: dict[Place, int] = {}
        self._links: dict[tuple[int, int, int], int] = {}

    def run(self) -> None:
        """Copy everything."""
        folder, default = Path(self.source.folder), 0
        for path, status in walk(folder):
            copy = os.path.normpath(path.relative_to(folder))
            if copy == ".":
                self._top(path, copy, Place(self.trees.fs_root, TOP), status)
            elif copy in self._kinds:
                root = self._subvolume(path, copy, status)
                if self._kinds[copy].startswith("default"):
                    default = root.number
            else:
                self._file(path, copy, status)
        if default:
            self._set_default(default)
        compression = self.source.compression
        if self.data.is_packed and compression:
            self._feature(_COMPRESSION_FEATURES.get(compression.kind, 0))

    def _feature(self, bits: int) -> None:
        raw = self.trees.raw
        self.trees.raw = raw._replace(incompat_flags=raw.incompat_flags | bits)

    # ------------------------------------------------------------------------------- inodes --

    def _inode(self, copy: str, status: os.stat_result) -> structs.InodeItem:
        """Return the item of an inode without a name (``stat_to_inode_item()``)."""
        seconds = [int(one // _SECOND) for one in (status.st_atime_ns, status.st_ctime_ns,
                                                   status.st_mtime_ns)]  # fmt: skip
        if self.date is not None:
            seconds = [self.date, self.date, min(seconds[2], self.date)]
        times = [structs.Timespec(one, 0) for one in (*seconds, 0)]
        flags, words = 0, self._flags.get(copy, "").split(",")
        if "nodatacow" in words:
            flags |= InodeFlag.NODATACOW
            if stat.S_ISREG(status.st_mode):
                flags |= InodeFlag.NODATASUM
        if "nodatasum" in words:
            flags |= InodeFlag.NODATASUM
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        return structs.InodeItem(0, 0, size, 0, 0, 0, status.st_uid, status.st_gid, status.st_mode,
                                 0, flags, 0, (0, 0, 0, 0), *times)  # fmt: skip

    def _update(self, place: Place, inode: structs.InodeItem) -> None:
        self.items.change(place, structs.INODE_ITEM.pack(inode), 0, room=0)

    def _read(self, place: Place) -> structs.InodeItem:
        path, _ = self.trees.search(place.root, place.key(ItemType.INODE_ITEM))
        return structs.INODE_ITEM.unpack(path.leaf.read(path.slot))

    def _grow(self, parent: Place, name: bytes) -> None:
        """Count a name in the size of a folder."""
        self.items.set_size(parent, self._read(parent).size + 2 * len(name))

    def _top(self, path: Path, copy: str, place: Place, status: os.stat_result) -> None:
        """Make the uppermost folder of a tree what a folder is."""
        self.items.add_attributes(place, attributes(path))
        self._update(place, self._inode(copy, status)._replace(nlink=1))
        self._enter(copy, place)

    def _enter(self, copy: str, place: Place) -> None:
        self._places[copy] = place
        self._next[place] = 2

    def _parent(self, copy: str) -> tuple[Place, bytes]:
        above, _, name = copy.rpartition("/")
        return self._places[above or "."], os.fsencode(name)

    def _index(self, parent: Place) -> int:
        self._next[parent] += 1
        return self._next[parent] - 1

    def _file(self, path: Path, copy: str, status: os.stat_result) -> None:
        """Copy a file that is no subvolume (``ftw_add_inode()``)."""
        parent, name = self._parent(copy)
        mode, linked = status.st_mode, status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
        first = (parent.root.number, status.st_dev, status.st_ino)
        if linked and first in self._links:
            self._link(Place(parent.root, self._links[first]), parent, name, mode)
            return
        root = parent.root
        root.last_inode = max(root.last_inode, TOP) + 1
        place = Place(root, root.last_inode)
        inode = self._inode(copy, status)
        self.items.add_inode(place, inode)
        self._link(place, parent, name, mode)
        if linked:
            self._links[first] = place.number
        inode = self._read(place)
        self.items.add_attributes(place, attributes(path))
        if stat.S_ISDIR(mode):
            self._enter(copy, place)
        elif stat.S_ISREG(mode):
            self._update(place, self.data.copy(path, place, inode))
        elif stat.S_ISLNK(mode):
            # mkfs.btrfs writes the zero byte behind the target, too
            target = os.fsencode(path.readlink()) + b"\0"
            self.items.add_inline(place, target, len(target))
            self._update(place, inode._replace(nbytes=len(target)))

    def _link(self, place: Place, parent: Place, name: bytes, mode: int) -> None:
        """Give an inode a name (``btrfs_add_link()``)."""
        index = self._index(parent)
        self.items.refer(place, parent.number, index, name)
        links = self._read(place).nlink + 1
        self.items.change(place, links.to_bytes(4, "little"), _NLINK)
        if links == 1:
            self._inherit(place, parent)
        target = structs.DiskKey(*place.key(ItemType.INODE_ITEM))
        self.items.add_name(parent, name, index, target, KINDS[stat.S_IFMT(mode)])
        self._grow(parent, name)

    def _inherit(self, place: Place, parent: Place) -> None:
        """Take over flags of the folder (``inherit_inode_flags()``)."""
        above, inode = self._read(parent).flags, self._read(place)
        flags = inode.flags
        if above & InodeFlag.NODATACOW:
            flags |= InodeFlag.NODATACOW
            if stat.S_ISREG(inode.mode):
                flags |= InodeFlag.NODATASUM
        self.items.change(place, flags.to_bytes(8, "little"), _INODE_FLAGS, room=0)

    # --------------------------------------------------------------------------- subvolumes --

    def _subvolume(self, path: Path, copy: str, status: os.stat_result) -> Root:
        """Make a folder a subvolume (``ftw_add_subvol()``)."""
        trees, number = self.trees, TOP + len(self.subvolumes)
        read_only = self._kinds[copy].endswith("ro")
        root = trees.make_subvolume(number, self.when, self.new_uuid(number), read_only=read_only)
        self.subvolumes.append(root)
        parent, name = self._parent(copy)
        index = self._index(parent)
        target = structs.DiskKey(*root.key)
        self.items.add_name(parent, name, index, target, FileType.DIR)
        self._grow(parent, name)
        head = structs.RawRootRef(parent.number, index, len(name))
        data = structs.ROOT_REF.pack(head) + name
        above = parent.root.number
        trees.insert(trees.tree_root, (number, int(ItemType.ROOT_BACKREF), above), data)
        trees.insert(trees.tree_root, (above, int(ItemType.ROOT_REF), number), data)
        self._top(path, copy, Place(root, TOP), status)
        return root

    def _set_default(self, number: int) -> None:
        trees = self.trees
        key = (int(ObjectId.ROOT_TREE_DIR), int(ItemType.DIR_ITEM), name_hash(b"default"))
        path, _ = trees.search(trees.tree_root, key, change=True)
        target = structs.DiskKey(number, ItemType.ROOT_ITEM, 0)
        path.leaf.write(path.slot, structs.DISK_KEY.pack(target))
        trees.mark_dirty(path.leaf)
        self._feature(_DEFAULT_SUBVOL)
