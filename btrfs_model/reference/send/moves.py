# SPDX-License-Identifier: GPL-2.0-only
"""Directories that cannot be moved or removed yet.

Inodes are sent in the order of their numbers, but a directory may have moved below one with a
higher number, which itself moves later::

    parent    257  a/          snapshot    258  b/
              258  a/b/                    257  b/a/

When 257 has its turn, its new path does not exist yet: its move waits for 258
(``waiting_dir_moves``, by inode) and is made when 258 is finished (``pending_dir_moves``, by the
inode that is waited for). In the same way a deleted directory has to wait until all that was in it
is gone (``orphan_dirs``); until then it has its orphan name.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from btrfs_model.base.codes import EUCLEAN
from btrfs_model.base.counters import current
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import inode_extrefs
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.patches import Patch
from btrfs_model.reference.ctree import key_at, search_slot
from btrfs_model.reference.send.context import OrphanDirInfo, PendingDirMove, WaitingDirMove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from btrfs_model.reference.ctree import Path
    from btrfs_model.reference.send.context import RecordedRef, SendContext
    from btrfs_model.reference.send.explain import Item
    from btrfs_model.reference.send.names import Names
    from btrfs_model.reference.send.utimes import Utimes
    from btrfs_model.volume.tree import Tree

_TOP = ObjectId.FIRST_FREE
_MAX = 2**64 - 1


def is_ancestor(sctx: SendContext, names: Names, ino1: int, gen1: int, ino2: int) -> bool:
    """Whether `ino1` is above `ino2` in the parent snapshot, by any name of `ino2`."""
    tree, path = sctx.parent_tree, sctx.search_path()
    for key in sctx.for_each_slot(tree, Key(ino2, ItemType.INODE_REF, 0), path):
        if key.objectid != ino2:
            break
        if key.type == ItemType.INODE_REF:
            parents = [key.offset]
        elif key.type == ItemType.INODE_EXTREF:
            parents = [ref.parent_objectid for ref in sctx.decode(path, tree, inode_extrefs)]
        else:
            break
        for parent in parents:
            gen = names.get_inode_gen(tree, parent)
            if _check_ino_in_path(names, tree, (ino1, gen1), (parent, gen)):
                return True
    return False


def _check_ino_in_path(
    names: Names, tree: Tree, inode: tuple[int, int], below: tuple[int, int]
) -> bool:
    """Whether an inode is `below` or above it."""
    if below[0] == inode[0]:
        return below == inode
    ino, depth = below[0], 0
    while ino > _TOP:
        depth = names.deeper(depth, tree, ino)
        ref = names.get_first_ref(tree, ino)
        if ref.dir == inode[0]:
            return ref.dir_gen == inode[1]
        ino = ref.dir
    return False


class Moves:
    """Moves and removes directories when their time has come.

    Parameters
    ----------
    sctx : SendContext
        The send.
    names : Names
        Its paths.
    utimes : Utimes
        Sends times of directories.
    """

    def __init__(self, sctx: SendContext, names: Names, utimes: Utimes) -> None:
        self.sctx = sctx
        self.names = names
        self.utimes = utimes

    # ------------------------------------------------------------------------- removal ------

    def can_rmdir(self, ino: int, gen: int) -> bool:
        """Whether a deleted directory is empty by now: all that was in it has been processed."""
        current().count("can_rmdir")
        sctx = self.sctx
        if ino == _TOP:
            return False
        info = sctx.get_orphan_dir_info(ino, gen)
        high = last_offset = 0
        # the last entry is very likely the highest inode in the directory
        if Patch.SEND_RMDIR_LAST_ENTRY in sctx:
            if info and sctx.cur_ino < info.dir_high_seq_ino:
                return False
            if not info:
                last = self._last_entry(ino)
                if last is None:
                    return True
                high = last
                if sctx.cur_ino < high:
                    self._not_yet(ino, gen, info, last_offset, high)
                    return False
        start = info.last_dir_index_offset if info else 0
        path = sctx.search_path()
        for last_offset, entry in self._entries(ino, start, path):
            high = max(high, entry)
            waiting = sctx.get_waiting_dir_move(entry)
            if waiting:
                waiting.rmdir = (ino, gen)
            if waiting or entry > sctx.cur_ino:
                self._not_yet(ino, gen, info, last_offset, high)
                return False
        if info:
            sctx.free_orphan_dir_info(ino, gen)
        return True

    def _entries(self, directory: int, start: int, path: Path) -> Iterator[tuple[int, int]]:
        """Iterate over (index, inode) of a directory of the parent snapshot."""
        sctx, wanted = self.sctx, (directory, ItemType.DIR_INDEX)
        for key in sctx.for_each_slot(sctx.parent_tree, Key(*wanted, start), path):
            if key[:2] != wanted:
                break
            entry = sctx.dir_entries(path, sctx.parent_tree)[0]
            # the id of a subvolume counts as if it were an inode
            yield key.offset, entry.location.objectid

    def _last_entry(self, directory: int) -> int | None:
        """Return the inode of the last entry of a directory of the parent snapshot."""
        sctx, wanted = self.sctx, (directory, ItemType.DIR_INDEX)
        path = sctx.search_path()
        if not search_slot(sctx.parent_tree, (*wanted, _MAX), path):
            if not path.slots[0]:
                raise sctx.fail(EUCLEAN)
            path.slots[0] -= 1
        if key_at(path.leaf, path.slots[0])[:2] != wanted:
            return None
        return sctx.dir_entries(path, sctx.parent_tree)[0].location.objectid

    def _not_yet(
        self, ino: int, gen: int, info: OrphanDirInfo | None, last_offset: int, high: int
    ) -> None:
        """Remember how far the entries of a directory were looked at."""
        # no second descent for one that was found
        if info is None or Patch.SEND_RMDIR_ONE_DESCENT not in self.sctx:
            info = self.sctx.add_orphan_dir_info(ino, gen)
        info.last_dir_index_offset = last_offset
        info.dir_high_seq_ino = max(info.dir_high_seq_ino, high)

    def send_rmdir_if_possible(self, ino: int, gen: int, cause: str, item: Item) -> bool:
        """Remove a directory, if it can be removed now."""
        if not self.can_rmdir(ino, gen):
            return False
        path = self.names.get_cur_path(ino, gen)
        self.sctx.because(cause, ino, item)
        self.sctx.send_cmd("rmdir", path=path)
        return True

    # ------------------------------------------------------------------------- waiting ------

    def wait_for_dest_dir_move(self, ref: RecordedRef, *, is_orphan: bool) -> bool:
        """Let the move of the current directory wait for one that still has the new name."""
        sctx, tree = self.sctx, self.sctx.parent_tree
        if not sctx.waiting_dir_moves:
            return False
        key = Key(ref.dir, ItemType.DIR_ITEM, name_hash(ref.name))
        entry = sctx.lookup_name(tree, key, ref.name)
        if entry is None or entry.location.type != ItemType.INODE_ITEM:
            return False
        ino = entry.location.objectid
        gen = self.names.get_inode_gen(tree, ino)
        if self.names.find_inode_gen(sctx.root, ino) != gen:
            return False
        waiting = sctx.get_waiting_dir_move(ino)
        if waiting is None or waiting.orphanized:
            return False
        self._wait_for(ref, ino, is_orphan=is_orphan)
        return True

    def wait_for_parent_move(self, ref: RecordedRef, *, is_orphan: bool) -> bool:
        """Let the move of the current directory wait for one above its new place."""
        sctx, names, tree = self.sctx, self.names, self.sctx.parent_tree
        ino, gen, depth = ref.dir, ref.dir_gen, 0
        while ino > _TOP:
            depth = names.deeper(depth, sctx.root, ino)
            if sctx.is_waiting_for_move(ino) and is_ancestor(
                sctx, names, sctx.cur_ino, sctx.cur_inode_gen, ino
            ):
                break
            after = names.get_first_ref(sctx.root, ino)
            current().count("get_first_ref")
            before = names.find_first_ref(tree, ino)
            if before is None:
                return False
            moves = ino > sctx.cur_ino and before != (after.dir, after.name)
            if moves and names.get_inode_gen(tree, ino) == gen:
                break
            ino, gen = after.dir, after.dir_gen
        else:
            return False
        self._wait_for(ref, ino, is_orphan=is_orphan)
        return True

    def _wait_for(self, ref: RecordedRef, parent: int, *, is_orphan: bool) -> None:
        """Let the move of the current directory wait for that of `parent`."""
        sctx = self.sctx
        refs = (*sctx.deleted_refs.values(), *sctx.new_refs.values())
        self.add_pending_dir_move(
            parent,
            PendingDirMove(
                sctx.cur_ino, sctx.cur_inode_gen, ref.item, [old.directory for old in refs]
            ),
            is_orphan=is_orphan,
        )

    def add_pending_dir_move(self, parent: int, move: PendingDirMove, *, is_orphan: bool) -> None:
        """Let a move wait for that of `parent`; EEXIST when it waits already."""
        sctx = self.sctx
        if move.ino in sctx.waiting_dir_moves:
            raise sctx.fail(errno.EEXIST)
        sctx.waiting_dir_moves[move.ino] = WaitingDirMove(is_orphan)
        sctx.pending_dir_moves.setdefault(parent, []).append(move)

    # -------------------------------------------------------------------------- moving ------

    def apply_children_dir_moves(self) -> None:
        """Make the moves that waited for the current inode, and those that waited for them."""
        pending = self.sctx.pending_dir_moves
        queue = pending.pop(self.sctx.cur_ino, [])
        while queue:
            move = queue.pop(0)
            self.apply_dir_move(move)
            queue += pending.pop(move.ino, [])

    def apply_dir_move(self, move: PendingDirMove) -> None:
        """Make a move that waited, or let it wait for another directory."""
        sctx, names = self.sctx, self.names
        progress = sctx.send_progress
        waiting = sctx.get_waiting_dir_move(move.ino)
        if waiting is None:
            raise sctx.fail(errno.ENOENT)
        del sctx.waiting_dir_moves[move.ino]
        if waiting.orphanized:
            from_path = names.gen_unique_name(move.ino, move.gen)
        else:
            ref = names.get_first_ref(self.sctx.parent_tree, move.ino)
            from_path = names.join(names.get_cur_path(ref.dir, ref.dir_gen), ref.name)
        sctx.send_progress = sctx.cur_ino + 1
        ancestor = self.path_loop(move.ino, move.gen)
        if ancestor is not None:
            self.add_pending_dir_move(ancestor, move, is_orphan=waiting.orphanized)
            if waiting.rmdir:
                again = sctx.get_waiting_dir_move(move.ino)
                assert again is not None
                again.rmdir = waiting.rmdir
        else:
            to_path = names.get_cur_path(move.ino, move.gen)
            sctx.because("dir-moved-later", move.ino, move.item)
            sctx.send_cmd("rename", path=from_path, path_to=to_path)
            self._finish_dir_move(move, waiting.rmdir)
        sctx.send_progress = progress

    def _finish_dir_move(self, move: PendingDirMove, rmdir: tuple[int, int] | None) -> None:
        """Remove the directory that the moved one left, send the times of all concerned."""
        info = self.sctx.get_orphan_dir_info(*rmdir) if rmdir else None
        if rmdir and info:
            self.send_rmdir_if_possible(rmdir[0], info.gen, "dir-left", move.item)
        self.sctx.because("times-move", move.ino, move.item)
        self.utimes.cache_dir_utimes(move.ino, move.gen)
        for ino, gen, item in move.update_refs:
            self.sctx.because("times-move", ino, item)
            # a directory may be gone in the snapshot
            if self.names.get_inode_info(self.sctx.root, ino) is not None:
                self.utimes.cache_dir_utimes(ino, gen)

    def path_loop(self, start: int, gen: int) -> int | None:
        """Return the directory to wait for, when a path would lead back to where it started."""
        sctx, names = self.sctx, self.names
        ino, ancestor, depth = start, None, 0
        while ino != _TOP:
            depth = names.deeper(depth, sctx.root, ino)
            # is_waiting_for_rm()
            if sctx.get_orphan_dir_info(ino, gen):
                return None
            if sctx.is_waiting_for_move(ino):
                ancestor = ancestor or ino
                parent, parent_gen, _ = names.get_first_ref(self.sctx.parent_tree, ino)
            else:
                entry = names.get_cur_name_and_parent(ino, gen)
                if entry.is_orphan:
                    return None
                parent, parent_gen = entry.parent_ino, entry.parent_gen
            if parent == start:
                return ancestor or ino
            ino, gen = parent, parent_gen
        return None
