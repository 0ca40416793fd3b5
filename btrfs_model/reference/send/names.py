# SPDX-License-Identifier: GPL-2.0-only
"""Names and paths as the receiver has them at a moment of the stream.

An inode whose number is below ``send_progress`` has its name of the snapshot, another one that of
the parent snapshot. One that is not there yet, whose name was taken by another or whose removal
waits, is in the top directory under its orphan name ``o<ino>-<generation>-<n>``.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.patches import Patch
from btrfs_model.reference.send.context import LruCache, SendContext
from btrfs_model.reference.send.inodes import Inodes

if TYPE_CHECKING:
    from btrfs_model.volume.tree import Tree

_TOP = ObjectId.FIRST_FREE
_PATH_LIMIT = 4096
_NAME_CACHE_SIZE = 256
_NAME_CACHE_KEPT = 128


class _CachedName(NamedTuple):
    """An entry of the name cache; `need_later_update`: made before the inode was processed."""

    name: bytes
    parent_ino: int
    parent_gen: int
    is_orphan: bool
    need_later_update: bool


class Names(Inodes):
    """Looks up inodes, names and paths for one send.

    Parameters
    ----------
    sctx : SendContext
        The send.
    """

    def __init__(self, sctx: SendContext) -> None:
        super().__init__(sctx)
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

    # ----------------------------------------------------------------------- name cache -----

    def name_cache_search(self, ino: int, gen: int) -> _CachedName | None:
        """Return an entry of the name cache."""
        current().count("name_cache_search")
        if Patch.SEND_NAME_CACHE_LRU in self.sctx:
            current().count("btrfs_lru_cache_lookup")
        entry: _CachedName | None = self.cache.lookup(ino, gen)
        return entry

    def name_cache_delete(self, ino: int, gen: int) -> None:
        """Drop an entry of the name cache, if there is one."""
        if self.name_cache_search(ino, gen):
            del self.cache[ino, gen]

    def get_cur_name_and_parent(self, ino: int, gen: int) -> _CachedName:
        """Return the name that the receiver has for an inode (``__get_cur_name_and_parent()``)."""
        sctx = self.sctx
        current().count("__get_cur_name_and_parent")
        entry = self.name_cache_search(ino, gen)
        processed = ino < sctx.send_progress
        if entry and processed and entry.need_later_update:
            del self.cache[ino, gen]
            entry = None
        if entry:
            return entry
        parent, parent_gen = 0, 0
        is_orphan = not self.is_inode_existent(ino, gen)
        if not is_orphan:
            tree = sctx.root if processed else sctx.parent_root
            # without a parent what exists was processed
            assert tree is not None
            parent, parent_gen, name = self.get_first_ref(tree, ino)
            is_orphan = self.did_overwrite_ref(parent, parent_gen, ino, gen, name)
        if is_orphan:
            name = self.gen_unique_name(ino, gen)
        entry = _CachedName(name, parent, parent_gen, is_orphan, not processed)
        self._remember(ino, gen, entry)
        return entry

    def _remember(self, ino: int, gen: int, entry: _CachedName) -> None:
        if Patch.SEND_NAME_CACHE_LRU in self.sctx:
            current().count("btrfs_lru_cache_store")
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
        remember = Patch.SEND_CUR_INODE_PATH in sctx and is_current
        if remember and sctx.cur_inode_path:
            return sctx.cur_inode_path
        path, depth = b"", 0
        while ino != _TOP:
            depth = self.deeper(depth, sctx.root, ino)
            name, parent = self._component(ino, gen)
            path = self.join(name, path) if path else name
            if parent is None:
                break
            ino, gen = parent
        if remember:
            sctx.cur_inode_path = path
        return path

    def _component(self, ino: int, gen: int) -> tuple[bytes, tuple[int, int] | None]:
        """Return the name of an inode and its directory; None for an orphan name."""
        sctx = self.sctx
        # is_waiting_for_rm()
        if sctx.get_orphan_dir_info(ino, gen):
            return self.gen_unique_name(ino, gen), None
        waiting = sctx.get_waiting_dir_move(ino)
        if waiting and waiting.orphanized:
            return self.gen_unique_name(ino, gen), None
        if waiting:
            ref = self.get_first_ref(sctx.parent_tree, ino)
            return ref.name, (ref.dir, ref.dir_gen)
        entry = self.get_cur_name_and_parent(ino, gen)
        return entry.name, None if entry.is_orphan else (entry.parent_ino, entry.parent_gen)

    def get_cur_inode_path(self) -> bytes:
        """Return the path of the current inode, from memory where it is kept there."""
        sctx = self.sctx
        current().count("get_cur_inode_path")
        if Patch.SEND_CUR_INODE_PATH in sctx and sctx.cur_inode_path:
            return sctx.cur_inode_path
        return self.get_cur_path(sctx.cur_ino, sctx.cur_inode_gen)

    def get_inode_path(self, tree: Tree, ino: int) -> bytes:
        """Return the path of an inode in a subvolume that is not being sent, by first names."""
        path, depth = b"", 0
        while ino != _TOP:
            depth = self.deeper(depth, tree, ino)
            found = self.find_first_ref(tree, ino)
            if found is None:
                raise self.sctx.fail(errno.ENOENT)
            ino, name = found
            path = self.join(name, path) if path else name
        return path

    def deeper(self, depth: int, tree: Tree, ino: int) -> int:
        """Count a step upwards; directories that are each other's parents are an error."""
        if depth > _PATH_LIMIT // 2:
            raise CorruptImageError(
                self.sctx.image.path, Fault(Code.LOOP, tree.objectid, found=ino)
            )
        return depth + 1
