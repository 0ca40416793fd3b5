# SPDX-License-Identifier: GPL-2.0-only
"""Trees of relocation: for each subvolume a copy in which blocks move, until both are merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.ondisk.structs import DiskKey

if TYPE_CHECKING:
    from btrfs_model.mount.mount import Mount
    from btrfs_model.mount.roots.live_root import LiveRoot

_ROOT_TREE: Final = int(ObjectId.ROOT_TREE)
# what the writer calls them by: below the trees of logs
_FIRST: Final = 1 << 62


@dataclass(slots=True)
class RelocRoot:
    """The tree of relocation of a subvolume (``root->reloc_root``).

    `root`: the subvolume.
    `item`: its root item.
    `made`: the transaction that made it.
    `dead`: whether the subvolume was merged with it (BTRFS_ROOT_DEAD_RELOC_TREE).
    """

    root: int
    item: LiveRoot
    made: int
    dead: bool = False

    @property
    def id(self) -> int:
        """What the writer calls it."""
        return _FIRST + self.root


@dataclass(slots=True)
class RelocRoots:
    """Those of a mount, as far as a commit has to know of them.

    `by_root`: by subvolume, in the order in which they were made.
    `merging`: whether subvolumes are just merged with theirs (``merge_reloc_tree``).
    `last_ino`: the last inode of data relocation that was made.
    """

    by_root: dict[int, RelocRoot] = field(default_factory=dict)
    merging: bool = False
    last_ino: int = 0


def create_reloc_root(fs: Mount, root: int) -> RelocRoot:
    """Make the tree of relocation of a subvolume (``create_reloc_root()``, Linux 6.18).

    It begins as a copy of the root block that the last commit wrote. What the subvolume had then
    is shared from now on, as by a snapshot.
    """
    live = fs.live_root(root)
    reloc = RelocRoot(root, live, fs.transid)
    fs.writer.reloc_root(root, reloc.id, fs.committed_roots[root][0])
    live.last_snapshot = fs.writer.tree_state(root).last_snapshot
    live.dirty = True
    state = fs.writer.tree_state(reloc.id)
    item = live.item._replace(
        bytenr=state.bytenr, level=state.level, generation=fs.transid, generation_v2=fs.transid,
        refs=0, drop_progress=DiskKey(0, 0, 0), drop_level=0,
    )  # fmt: skip
    reloc.item = type(live).of(int(ObjectId.TREE_RELOC), root, item)
    fs.writer.insert(_ROOT_TREE, reloc.item.key, reloc.item.stored)
    fs.reloc_roots.by_root[root] = reloc
    return reloc


def update_reloc_root(fs: Mount, root: int) -> None:
    """Write the root item of a subvolume's tree of relocation (``btrfs_update_reloc_root()``)."""
    reloc = fs.reloc_roots.by_root.get(root)
    if reloc is None or reloc.dead:
        return
    item = reloc.item
    reloc.dead = fs.reloc_roots.merging and not item.refs
    state = fs.writer.tree_state(reloc.id)
    item.bytenr, item.level, item.bytes_used = state.bytenr, state.level, state.bytes_used
    item.generation = state.generation
    item.stored = item.pack()
    fs.writer.update(_ROOT_TREE, item.key, 0, item.stored)


def drop_reloc_root(fs: Mount, reloc: RelocRoot) -> None:
    """Drop what is left in it, and its root item (``btrfs_drop_snapshot()``)."""
    fs.writer.drop_tree(reloc.id)
    fs.writer.delete(_ROOT_TREE, reloc.item.key)
    del fs.reloc_roots.by_root[reloc.root]
