# SPDX-License-Identifier: GPL-2.0-only
"""Inodes, names and paths as send looks them up.

A path is that of the receiver at this moment of the stream: an inode whose number is below
``send_progress`` has its name of the snapshot; one that is still to come exists only under its
orphan name ``o<ino>-<generation>-<n>``, if at all.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from btrfs_model.btree.search import search_slot_for_read
from btrfs_model.counters import current
from btrfs_model.errors import CorruptImageError, Fault
from btrfs_model.kernels import lib
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import inode_extrefs, inode_refs
from btrfs_model.ondisk.keys import Key
from btrfs_model.send.context import LruCache, SendContext

if TYPE_CHECKING:
    from btrfs_model.btree import Tree
    from btrfs_model.ondisk.structs import InodeItem

__all__ = ["InodeState", "Names"]

_TOP = lib.BTRFS_FIRST_FREE_OBJECTID
_REFS = (lib.BTRFS_INODE_REF_KEY, lib.BTRFS_INODE_EXTREF_KEY)
_PATH_LIMIT = 4096
_NAME_CACHE_SIZE = 256
_NAME_CACHE_KEPT = 128


class InodeState(Enum):
    """Whether the receiver has an inode of the snapshot yet."""

    WILL_CREATE = 0
    DID_CREATE = 1


class _CachedName(NamedTuple):
    """An entry of the name cache; `need_later_update`: made before the inode was processed."""

    name: bytes
    parent_ino: int
    parent_gen: int
    is_orphan: bool
    need_later_update: bool


class Names:
    """Looks up inodes, names and paths for one send.

    Parameters
    ----------
    sctx : SendContext
        The send.
    """

    def __init__(self, sctx: SendContext) -> None:
        self.sctx = sctx
        self.cache = LruCache()

    def join(self, directory: bytes, name: bytes) -> bytes:
        """Return the path of a name in a directory.

        Raises
        ------
        OSError
            ENAMETOOLONG where the kernel's buffer ends.
        """
        path = directory + b"/" + name if directory else name
        if len(path) >= _PATH_LIMIT:
            raise self.sctx.fail(errno.ENAMETOOLONG)
        return path

    # --------------------------------------------------------------------------- inodes -----

    def get_inode_info(self, tree: Tree, ino: int) -> InodeItem | None:
        """Return an inode item, or None."""
        current().count("get_inode_info")
        return self.sctx.inode_item(tree, ino)

    def need_inode_info(self, tree: Tree, ino: int) -> InodeItem:
        """Return an inode item; ENOENT when there is none."""
        item = self.get_inode_info(tree, ino)
        if item is None:
            raise self.sctx.fail(errno.ENOENT)
        return item

    def get_inode_gen(self, tree: Tree, ino: int) -> int:
        """Return the generation of an inode; ENOENT when there is none."""
        current().count("get_inode_gen")
        return self.need_inode_info(tree, ino).generation

    def get_cur_inode_state(self, ino: int, gen: int) -> InodeState:
        """Tell whether the receiver has an inode of the snapshot yet.

        Raises
        ------
        OSError
            ENOENT when the snapshot has no such inode of that generation.
        """
        current().count("get_cur_inode_state")
        item = self.get_inode_info(self.sctx.root, ino)
        unlinked = item is not None and "send-nlink-zero" in self.sctx and not item.nlink
        if item is None or item.generation != gen or unlinked:
            raise self.sctx.fail(errno.ENOENT)
        return InodeState.DID_CREATE if ino < self.sctx.send_progress else InodeState.WILL_CREATE

    def is_inode_existent(self, ino: int, gen: int) -> bool:
        """Whether the receiver has the inode."""
        current().count("is_inode_existent")
        return ino == _TOP or self.get_cur_inode_state(ino, gen) == InodeState.DID_CREATE

    # ---------------------------------------------------------------------------- names -----

    def gen_unique_name(self, ino: int, gen: int) -> bytes:
        """Return a name for the top directory that nothing in the snapshot has."""
        index = 0
        while True:
            name = b"o%d-%d-%d" % (ino, gen, index)
            current().count("btrfs_lookup_dir_item")
            key = Key(_TOP, lib.BTRFS_DIR_ITEM_KEY, name_hash(name))
            if self.sctx.lookup_name(key, name) is None:
                return name
            index += 1

    def get_first_ref(self, tree: Tree, ino: int) -> tuple[int, bytes]:
        """Return the parent directory and the name of an inode: the first in its first item.

        Raises
        ------
        OSError
            ENOENT when it has no name.
        """
        path = self.sctx.search_path()
        key = (ino, lib.BTRFS_INODE_REF_KEY, 0)
        found = search_slot_for_read(tree, key, path, find_higher=True)
        item = tree._item(path.leaf, path.slots[0]) if found else None
        if item is None or item.key.objectid != ino or item.key.type not in _REFS:
            raise self.sctx.fail(errno.ENOENT)
        if item.key.type == lib.BTRFS_INODE_REF_KEY:
            return item.key.offset, self.sctx.decode(path, tree, inode_refs)[0].name
        ref = self.sctx.decode(path, tree, inode_extrefs)[0]
        return ref.parent_objectid, ref.name

    def get_cur_name_and_parent(self, ino: int, gen: int) -> _CachedName:
        """Return the name that the receiver has for an inode (``__get_cur_name_and_parent()``)."""
        sctx = self.sctx
        current().count("__get_cur_name_and_parent")
        current().count("name_cache_search")
        if "send-name-cache-lru" in sctx:
            current().count("btrfs_lru_cache_lookup")
        entry: _CachedName | None = self.cache.lookup(ino, gen)
        if entry and ino < sctx.send_progress and entry.need_later_update:
            del self.cache[ino, gen]
            entry = None
        if entry:
            return entry
        parent, parent_gen = 0, 0
        is_orphan = not self.is_inode_existent(ino, gen)
        if is_orphan:
            name = self.gen_unique_name(ino, gen)
        else:
            current().count("get_first_ref")
            parent, name = self.get_first_ref(sctx.root, ino)
            parent_gen = self.get_inode_gen(sctx.root, parent)
            # a name can only have been overwritten where there is a parent snapshot
            current().count("did_overwrite_ref")
        entry = _CachedName(name, parent, parent_gen, is_orphan, ino >= sctx.send_progress)
        self._remember(ino, gen, entry)
        return entry

    def _remember(self, ino: int, gen: int, entry: _CachedName) -> None:
        if "send-name-cache-lru" in self.sctx:
            self.cache.store(ino, gen, entry, _NAME_CACHE_SIZE)
            return
        # name_cache_clean_unused(): a full cache is emptied by half
        self.cache.store(ino, gen, entry)
        if len(self.cache) >= _NAME_CACHE_SIZE:
            while len(self.cache) > _NAME_CACHE_KEPT:
                self.cache.popitem(last=False)

    # ---------------------------------------------------------------------------- paths -----

    def get_cur_path(self, ino: int, gen: int) -> bytes:
        """Return the path that the receiver has for an inode now; of the top: empty."""
        sctx = self.sctx
        current().count("get_cur_path")
        is_current = (ino, gen) == (sctx.cur_ino, sctx.cur_inode_gen)
        remember = "send-cur-inode-path" in sctx and is_current
        if remember and sctx.cur_inode_path:
            return sctx.cur_inode_path
        path, depth = b"", 0
        while ino != _TOP:
            depth = self._deeper(depth, sctx.root, ino)
            # is_waiting_for_rm() and the waiting moves: there are none without a parent
            current().count("get_orphan_dir_info")
            current().count("get_waiting_dir_move")
            entry = self.get_cur_name_and_parent(ino, gen)
            path = self.join(entry.name, path) if path else entry.name
            if entry.is_orphan:
                break
            ino, gen = entry.parent_ino, entry.parent_gen
        if remember:
            sctx.cur_inode_path = path
        return path

    def get_cur_inode_path(self) -> bytes:
        """Return the path of the current inode, from memory where it is kept there."""
        sctx = self.sctx
        current().count("get_cur_inode_path")
        if "send-cur-inode-path" in sctx and sctx.cur_inode_path:
            return sctx.cur_inode_path
        return self.get_cur_path(sctx.cur_ino, sctx.cur_inode_gen)

    def get_inode_path(self, tree: Tree, ino: int) -> bytes:
        """Return the path of an inode in a subvolume that is not being sent, by first names."""
        path, depth = b"", 0
        while ino != _TOP:
            depth = self._deeper(depth, tree, ino)
            ino, name = self.get_first_ref(tree, ino)
            path = self.join(name, path) if path else name
        return path

    def _deeper(self, depth: int, tree: Tree, ino: int) -> int:
        """Count a step upwards; directories that are each other's parents are an error."""
        if depth > _PATH_LIMIT // 2:
            raise CorruptImageError(
                self.sctx.image.path, Fault(lib.BM_LOOP, tree.objectid, found=ino)
            )
        return depth + 1
