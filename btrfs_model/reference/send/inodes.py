# SPDX-License-Identifier: GPL-2.0-only
"""Inodes and their first names as send looks them up, and who has taken whose name.

An inode is told by its number and generation: a number may be used again. Where it is in the stream
follows from whether the snapshot and its parent have it, and from ``send_progress``, the number up
to which inodes were sent.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from btrfs_model.base.counters import current
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import inode_extrefs, inode_refs
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.patches import Patch
from btrfs_model.reference.ctree import search_slot_for_read

if TYPE_CHECKING:
    from btrfs_model.ondisk.structs import InodeItem
    from btrfs_model.reference.send.context import SendContext
    from btrfs_model.volume.tree import Tree

_TOP = ObjectId.FIRST_FREE
_REFS = (ItemType.INODE_REF, ItemType.INODE_EXTREF)


class InodeState(Enum):
    """Whether the receiver has an inode."""

    NO_CHANGE = 0
    WILL_CREATE = 1
    DID_CREATE = 2
    WILL_DELETE = 3
    DID_DELETE = 4


_EXISTENT = (InodeState.NO_CHANGE, InodeState.DID_CREATE, InodeState.WILL_DELETE)


class FirstRef(NamedTuple):
    """The first name of an inode and the directory that it is in."""

    dir: int
    dir_gen: int
    name: bytes


class Overwritten(NamedTuple):
    """An inode whose name another one takes."""

    ino: int
    gen: int
    mode: int


class Inodes:
    """Looks up inodes for one send.

    Parameters
    ----------
    sctx : SendContext
        The send.
    """

    def __init__(self, sctx: SendContext) -> None:
        self.sctx = sctx

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

    def find_inode_gen(self, tree: Tree, ino: int) -> int | None:
        """Return the generation of an inode (``get_inode_gen()``), or None."""
        current().count("get_inode_gen")
        item = self.get_inode_info(tree, ino)
        return item.generation if item else None

    def get_inode_gen(self, tree: Tree, ino: int) -> int:
        """Return the generation of an inode; ENOENT when there is none."""
        gen = self.find_inode_gen(tree, ino)
        if gen is None:
            raise self.sctx.fail(errno.ENOENT)
        return gen

    # --------------------------------------------------------------------------- states -----

    def get_cur_inode_state(self, ino: int, gen: int) -> InodeState:
        """Tell whether the receiver has an inode at this moment of the stream.

        Raises
        ------
        OSError
            ENOENT when neither snapshot has an inode of that number and generation.
        """
        return self._state_and_gens(ino, gen)[0]

    def _state_and_gens(self, ino: int, gen: int) -> tuple[InodeState, int | None, int | None]:
        """Return the state, and the generations that snapshot and parent have of that number."""
        current().count("get_cur_inode_state")
        sctx = self.sctx
        left = self._linked_gen(sctx.root, ino)
        right = self._linked_gen(sctx.parent_root, ino) if sctx.parent_root else None
        processed = ino < sctx.send_progress
        if gen == left == right:
            state = InodeState.NO_CHANGE
        elif gen == left:
            state = InodeState.DID_CREATE if processed else InodeState.WILL_CREATE
        elif gen == right:
            state = InodeState.DID_DELETE if processed else InodeState.WILL_DELETE
        else:
            raise sctx.fail(errno.ENOENT)
        return state, left, right

    def _linked_gen(self, tree: Tree, ino: int) -> int | None:
        item = self.get_inode_info(tree, ino)
        if item is None or (Patch.SEND_NLINK_ZERO in self.sctx and not item.nlink):
            return None
        return item.generation

    def is_inode_existent(self, ino: int, gen: int) -> bool:
        """Whether the receiver has the inode."""
        return self._existent(ino, gen)[0]

    def _existent(self, ino: int, gen: int) -> tuple[bool, int | None, int | None]:
        current().count("is_inode_existent")
        if ino == _TOP:
            return True, None, None
        state, left, right = self._state_and_gens(ino, gen)
        return state in _EXISTENT, left, right

    # ---------------------------------------------------------------------------- names -----

    def gen_unique_name(self, ino: int, gen: int) -> bytes:
        """Return a name for the top directory that nothing in either snapshot has."""
        sctx = self.sctx
        trees = [sctx.root] + ([sctx.parent_root] if sctx.parent_root else [])
        index = 0
        while True:
            name = b"o%d-%d-%d" % (ino, gen, index)
            if not any(self._lookup_dir_item(tree, _TOP, name) for tree in trees):
                return name
            index += 1

    def _lookup_dir_item(self, tree: Tree, directory: int, name: bytes) -> Key | None:
        current().count("btrfs_lookup_dir_item")
        key = Key(directory, ItemType.DIR_ITEM, name_hash(name))
        entry = self.sctx.lookup_name(tree, key, name)
        return entry.location if entry else None

    def lookup_dir_item_inode(self, tree: Tree, directory: int, name: bytes) -> int | None:
        """Return the inode that a name in a directory is of; None for a subvolume."""
        location = self._lookup_dir_item(tree, directory, name)
        if location is None or location.type == ItemType.ROOT_ITEM:
            return None
        return location.objectid

    def find_first_ref(self, tree: Tree, ino: int) -> tuple[int, bytes] | None:
        """Return parent directory and name of an inode: the first in its first item; or None."""
        path = self.sctx.search_path()
        key = (ino, ItemType.INODE_REF, 0)
        found = search_slot_for_read(tree, key, path, find_higher=True)
        item = tree.item(path.leaf, path.slots[0]) if found else None
        if item is None or item.key.objectid != ino or item.key.type not in _REFS:
            return None
        if item.key.type == ItemType.INODE_REF:
            return item.key.offset, self.sctx.decode(path, tree, inode_refs)[0].name
        ref = self.sctx.decode(path, tree, inode_extrefs)[0]
        return ref.parent_objectid, ref.name

    def get_first_dir_and_name(self, tree: Tree, ino: int) -> tuple[int, bytes]:
        """Return parent directory and first name (``get_first_ref()`` without the generation).

        Raises
        ------
        OSError
            ENOENT when it has no name.
        """
        current().count("get_first_ref")
        found = self.find_first_ref(tree, ino)
        if found is None:
            raise self.sctx.fail(errno.ENOENT)
        return found

    def get_first_ref(self, tree: Tree, ino: int) -> FirstRef:
        """Return the first name of an inode; ENOENT when it has none."""
        directory, name = self.get_first_dir_and_name(tree, ino)
        return FirstRef(directory, self.get_inode_gen(tree, directory), name)

    def is_first_ref(self, tree: Tree, ino: int, directory: int, name: bytes) -> bool:
        """Whether that name is the first of the inode."""
        return self.get_first_dir_and_name(tree, ino) == (directory, name)

    # ---------------------------------------------------------------------- overwriting -----

    def will_overwrite_ref(self, directory: int, dir_gen: int, name: bytes) -> Overwritten | None:
        """Return the inode, not sent yet, that has a name in the parent snapshot, if any."""
        current().count("will_overwrite_ref")
        sctx, tree = self.sctx, self.sctx.parent_root
        if tree is None:
            return None
        existent, _, gen = self._existent(directory, dir_gen)
        # a directory that was deleted and made again holds nothing that could be overwritten
        if not existent or not self._same_dir(tree, directory, dir_gen, gen):
            return None
        other = self.lookup_dir_item_inode(tree, directory, name)
        if other is None:
            return None
        # what was processed has left the name already
        if other <= sctx.send_progress and not sctx.is_waiting_for_move(other):
            return None
        item = self.need_inode_info(tree, other)
        return Overwritten(other, item.generation, item.mode)

    def _same_dir(self, tree: Tree, directory: int, dir_gen: int, gen: int | None) -> bool:
        """Whether `tree` has the directory in that generation; `gen` is what was just found."""
        if directory == _TOP:
            return True
        # without it the generation is searched once more
        if Patch.SEND_OVERWRITE_GEN_ONCE not in self.sctx:
            gen = self.find_inode_gen(tree, directory)
        return gen == dir_gen

    def did_overwrite_ref(
        self, directory: int, dir_gen: int, ino: int, ino_gen: int, name: bytes
    ) -> bool:
        """Whether a name of an inode was taken by one that was sent before."""
        current().count("did_overwrite_ref")
        sctx, tree = self.sctx, self.sctx.root
        if sctx.parent_root is None:
            return False
        existent, gen, _ = self._existent(directory, dir_gen)
        if not existent or not self._same_dir(tree, directory, dir_gen, gen):
            return False
        other = self.lookup_dir_item_inode(tree, directory, name)
        if other is None:
            return False
        other_gen = None
        # with it the generation is searched only where it decides
        if other == ino or Patch.SEND_OVERWRITE_GEN_LATE not in sctx:
            other_gen = self.get_inode_gen(tree, other)
        if (other, other_gen) == (ino, ino_gen):
            return False
        if other < sctx.send_progress:
            return True
        if ino == sctx.cur_ino or other != sctx.cur_ino:
            return False
        # the current inode may be the one because of which it got its orphan name
        if other_gen is None:
            other_gen = self.get_inode_gen(tree, other)
        return other_gen == sctx.cur_inode_gen

    def did_overwrite_first_ref(self, ino: int, gen: int) -> bool:
        """Whether the first name of an inode was taken by one that was sent before."""
        tree = self.sctx.parent_root
        if tree is None:
            return False
        ref = self.get_first_ref(tree, ino)
        return self.did_overwrite_ref(ref.dir, ref.dir_gen, ino, gen, ref.name)
