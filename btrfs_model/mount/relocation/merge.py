# SPDX-License-Identifier: GPL-2.0-only
"""Trees of relocation and subvolumes become one (``merge_reloc_root()``, Linux 6.18).

Where both have a subtree under the same key, and the subvolume did not change its own, they swap.
The tree of relocation then has the old blocks, and is dropped.
"""

from __future__ import annotations

from typing import Final

from btrfs_model.mount.mount import Mount
from btrfs_model.mount.relocation.backrefs import slot_of
from btrfs_model.mount.relocation.control import Control
from btrfs_model.mount.relocation.extents import replace_file_extents
from btrfs_model.mount.roots.reloc_root import RelocRoot, drop_reloc_root, update_reloc_root
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.ondisk.keys import MAX_KEY, MIN_KEY, ObjectId
from btrfs_model.volume.ctree import RawKey, block_key, node_ptr, nritems

_RELOC: Final = int(ObjectId.TREE_RELOC)


def merge_reloc_roots(fs: Mount, control: Control) -> list[RelocRoot]:
    """Merge all, the last one first; returns those to be dropped, in this order."""
    roots = list(fs.reloc_roots.by_root.values())[::-1]
    for reloc in roots:
        _Merge(fs, control, reloc).run()
    return roots


def prepare_to_merge(fs: Mount) -> None:
    """Write the trees of relocation (``prepare_to_merge()``); commits."""
    fs.join_transaction()
    fs.reloc_roots.merging = True
    for reloc in fs.reloc_roots.by_root.values():
        reloc.item.refs = 1
        update_reloc_root(fs, reloc.root)
    commit(fs)


def clean_dirty_subvols(fs: Mount, roots: list[RelocRoot]) -> None:
    """Drop what was merged."""
    for reloc in roots:
        start_transaction(fs, from_reserve=True)
        drop_reloc_root(fs, reloc)


class _Merge:
    """A subvolume and its tree of relocation.

    `nodes`, `slots`: by level, the way down the tree of relocation.
    """

    def __init__(self, fs: Mount, control: Control, reloc: RelocRoot) -> None:
        self.fs, self.control, self.reloc = fs, control, reloc
        self.dest, self.last_snapshot = reloc.root, reloc.item.last_snapshot
        self.nodes: dict[int, int] = {}
        self.slots: dict[int, int] = {}
        self.next_key: RawKey = MIN_KEY

    def run(self) -> None:
        """``merge_reloc_root()``."""
        fs, writer = self.fs, self.fs.writer
        state = writer.tree_state(self.reloc.id)
        level = state.level
        self.nodes[level], self.slots[level] = state.bytenr, 0
        while True:
            start_transaction(fs)
            fs.live_root(self.dest).dirty = True
            highest = level
            down = self._walk_down(level)
            if down is None:
                break
            level = down
            behind = self._key_behind(level)
            if behind is None or self.next_key < behind:
                replaced = self._replace_path(level, highest)
                level = replaced or level
            up = self._walk_up(level)
            if up is None:
                break
            level = up
            key = block_key(fs.image.block(self.nodes[level]), self.slots[level])
            self.reloc.item.drop_progress = type(self.reloc.item.drop_progress)(*key)
            self.reloc.item.drop_level = level
        old = writer.tree_state(self.dest)
        writer.own_root(self.dest)
        new = writer.tree_state(self.dest)
        if not new.level and new.bytenr != old.bytenr and old.generation <= new.last_snapshot:
            replace_file_extents(fs, self.control, new.bytenr, parent=0)
        item = self.reloc.item
        item.drop_progress, item.drop_level, item.refs = type(item.drop_progress)(0, 0, 0), 0, 0
        update_reloc_root(fs, self.dest)

    def _walk_down(self, level: int) -> int | None:
        """Go down to a node above leaves that is new (``walk_down_reloc_tree()``); its level."""
        at = level
        while at > 0:
            node = self.fs.image.block(self.nodes[at])
            count = nritems(node)
            while self.slots[at] < count:
                if node_ptr(node, self.slots[at])[1] > self.last_snapshot:
                    break
                self.slots[at] += 1
            if self.slots[at] >= count:
                return None if at == level else at
            if at == 1:
                return at
            self.nodes[at - 1] = node_ptr(node, self.slots[at])[0]
            self.slots[at - 1] = 0
            at -= 1
        return None

    def _walk_up(self, level: int) -> int | None:
        """Go to the next child that is new (``walk_up_reloc_tree()``); the level of its parent."""
        for below in range(level):
            self.nodes.pop(below, None)
        at = level
        while at in self.nodes:
            node = self.fs.image.block(self.nodes[at])
            while self.slots[at] + 1 < nritems(node):
                self.slots[at] += 1
                if node_ptr(node, self.slots[at])[1] > self.last_snapshot:
                    return at
            del self.nodes[at]
            at += 1
        return None

    def _key_behind(self, level: int) -> RawKey | None:
        """Return the key after the child that the path is at (``find_next_key()``)."""
        while level in self.nodes:
            node = self.fs.image.block(self.nodes[level])
            if self.slots[level] + 1 < nritems(node):
                return block_key(node, self.slots[level] + 1)
            level += 1
        return None

    def _replace_path(self, lowest: int, highest: int) -> int:
        """Swap a subtree with the subvolume (``replace_path()``); its parent's level, 0: none."""
        fs, image = self.fs, self.fs.image
        key = block_key(image.block(self.nodes[lowest]), self.slots[lowest])
        owned = False
        while True:
            if owned:
                fs.writer.own_root(self.dest)
            state = fs.writer.tree_state(self.dest)
            parent, level = state.bytenr, state.level
            if level < lowest:
                return 0
            self.next_key = MAX_KEY
            while True:
                node = image.block(parent)
                slot = slot_of(node, key)
                if slot + 1 < nritems(node):
                    self.next_key = block_key(node, slot + 1)
                if self._can_swap(node, slot, level, highest):
                    break
                if level <= lowest:
                    return 0
                parent = (fs.writer.own_child(self.dest, parent, slot) if owned
                          else node_ptr(node, slot)[0])  # fmt: skip
                level -= 1
            if owned:
                self._swap(parent, slot, level)
                return level
            owned = True

    def _can_swap(self, node: memoryview, slot: int, level: int, highest: int) -> bool:
        """Whether both trees have a subtree under that key, and the subvolume's is an old one."""
        if level > highest:
            return False
        mine = self.fs.image.block(self.nodes[level])
        if node_ptr(node, slot)[1] > self.last_snapshot:
            return False
        return block_key(node, slot) == block_key(mine, self.slots[level])

    def _swap(self, parent: int, slot: int, level: int) -> None:
        """Swap the children of two nodes, and say who refers to them now."""
        fs, writer = self.fs, self.fs.writer
        old, old_generation = node_ptr(fs.image.block(parent), slot)
        mine = fs.image.block(self.nodes[level])
        key = block_key(mine, self.slots[level])
        new, new_generation = node_ptr(mine, self.slots[level])
        self._search(key, level)
        holder = self.nodes[level]
        writer.point(self.dest, parent, slot, new, new_generation)
        writer.point(self.reloc.id, holder, self.slots[level], old, old_generation)
        writer.tree_ref(1, old, holder, _RELOC, level - 1)
        writer.tree_ref(1, new, 0, self.dest, level - 1)
        writer.tree_ref(-1, new, holder, _RELOC, level - 1)
        writer.tree_ref(-1, old, 0, self.dest, level - 1)

    def _search(self, key: RawKey, level: int) -> None:
        """Go to a key in the tree of relocation anew, and copy what may not be written to."""
        fs, reloc = self.fs, self.reloc.id
        fs.writer.own_root(reloc)
        state = fs.writer.tree_state(reloc)
        self.nodes, self.slots = {}, {}
        bytenr = state.bytenr
        for at in range(state.level, level - 1, -1):
            self.nodes[at], self.slots[at] = bytenr, slot_of(fs.image.block(bytenr), key)
            if at > level:
                bytenr = fs.writer.own_child(reloc, bytenr, self.slots[at])
