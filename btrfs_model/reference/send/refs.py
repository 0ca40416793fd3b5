# SPDX-License-Identifier: GPL-2.0-only
"""Recording names: which the current inode gets, and which it loses.

New names have to be made before old ones are removed, but the walk meets them mixed. So they are
recorded first, with the paths that their directories have at that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from btrfs_model.ondisk.items import inode_extrefs, inode_refs
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.reference.compare import Change
from btrfs_model.reference.send.context import RecordedRef
from btrfs_model.reference.send.explain import Item

if TYPE_CHECKING:
    from collections.abc import Iterator

    from btrfs_model.reference.ctree import Path
    from btrfs_model.reference.send.context import SendContext
    from btrfs_model.reference.send.names import Names
    from btrfs_model.volume.tree import Tree

_REFS = (ItemType.INODE_REF, ItemType.INODE_EXTREF)
Name = tuple[int, bytes]


class Refs:
    """Records names of the current inode.

    Parameters
    ----------
    sctx : SendContext
        The send.
    names : Names
        Its paths.
    """

    def __init__(self, sctx: SendContext, names: Names) -> None:
        self.sctx = sctx
        self.names = names

    def iterate_inode_ref(self, tree: Tree, path: Path, key: Key) -> list[Name]:
        """Return the names in an INODE_REF or INODE_EXTREF item, each with its directory."""
        if key.type == ItemType.INODE_REF:
            return [(key.offset, ref.name) for ref in self.sctx.decode(path, tree, inode_refs)]
        refs = self.sctx.decode(path, tree, inode_extrefs)
        return [(ref.parent_objectid, ref.name) for ref in refs]

    # ----------------------------------------------------------------------- recording ------

    def changed_ref(self, change: Change) -> None:
        """Record what differs in an item of names."""
        sctx, key = self.sctx, self.sctx.key
        new: list[Name] = []
        deleted: list[Name] = []
        if change != Change.DELETED:
            new = self.iterate_inode_ref(sctx.root, sctx.path, key)
        if change != Change.NEW:
            deleted = self.iterate_inode_ref(sctx.parent_tree, sctx.right_path, key)
        item = Item(key, change)
        # before v6.0 the names of both items were compared with each other
        alone = change != Change.CHANGED or Patch.SEND_REFS_RBTREE in sctx
        for name in new:
            if alone or not self.find_iref(sctx.root, name, sctx.parent_tree, deleted):
                self.record_new_ref(*name, item)
        for name in deleted:
            if alone or not self.find_iref(sctx.parent_tree, name, sctx.root, new):
                self.record_deleted_ref(*name, item)

    def find_iref(self, tree: Tree, name: Name, other: Tree, others: list[Name]) -> bool:
        """Whether a name is among `others` too, in the same directory."""
        gen = self.names.get_inode_gen(tree, name[0])
        return name in others and self.names.find_inode_gen(other, name[0]) == gen

    def record_new_ref(self, directory: int, name: bytes, item: Item) -> None:
        """Record a name that the snapshot has."""
        sctx = self.sctx
        gen = self.names.get_inode_gen(sctx.root, directory)
        self._record_ref(sctx.new_refs, sctx.deleted_refs, (directory, gen, name), item)

    def record_deleted_ref(self, directory: int, name: bytes, item: Item) -> None:
        """Record a name that the parent snapshot has."""
        sctx = self.sctx
        gen = self.names.get_inode_gen(self.sctx.parent_tree, directory)
        self._record_ref(sctx.deleted_refs, sctx.new_refs, (directory, gen, name), item)

    def _record_ref(
        self,
        refs: dict[tuple[int, int, bytes], RecordedRef],
        others: dict[tuple[int, int, bytes], RecordedRef],
        key: tuple[int, int, bytes],
        item: Item,
    ) -> None:
        # what is new and deleted stays as it is
        if Patch.SEND_REFS_RBTREE in self.sctx and key in others:
            del others[key]
            return
        directory, gen, name = key
        path = self.names.join(self.names.get_cur_path(directory, gen), name)
        refs[key] = RecordedRef(directory, gen, name, path, item)

    def record_all_refs(self, change: Change) -> None:
        """Record all names of the current inode in the snapshot or, DELETED, in its parent.

        That is what ``process_all_refs()`` does first.
        """
        is_new = change == Change.NEW
        tree = self.sctx.root if is_new else self.sctx.parent_tree
        record = self.record_new_ref if is_new else self.record_deleted_ref
        for key, name in self._all_names(tree):
            record(*name, Item(key, change))

    def _all_names(self, tree: Tree) -> Iterator[tuple[Key, Name]]:
        sctx, path = self.sctx, self.sctx.search_path()
        first = Key(sctx.cur_ino, ItemType.INODE_REF, 0)
        for key in sctx.for_each_slot(tree, first, path):
            if key.objectid != sctx.cur_ino or key.type not in _REFS:
                break
            for name in self.iterate_inode_ref(tree, path, key):
                yield key, name

    # ----------------------------------------------------------------------- comparing ------

    def compare_refs(self, path: Path, key: Key) -> bool:
        """Whether a directory was made again under the same number, where the names are equal."""
        if key.type == ItemType.INODE_REF:
            return self.dir_changed(key.offset)
        last = 0
        for directory, _ in self.iterate_inode_ref(self.sctx.root, path, key):
            if directory != last and self.dir_changed(directory):
                return True
            last = directory
        return False

    def dir_changed(self, ino: int) -> bool:
        """Whether a directory has another generation in the parent snapshot."""
        new = self.names.get_inode_gen(self.sctx.root, ino)
        return new != self.names.get_inode_gen(self.sctx.parent_tree, ino)

    def unlink_all_paths(self) -> None:
        """Remove all names of an inode that lost its last one (``btrfs_unlink_all_paths()``).

        Before v6.1. The kernel puts the whole path in the parent snapshot behind that of the
        directory.
        """
        names, tree, paths = self.names, self.sctx.parent_tree, []
        for _, (directory, name) in self._all_names(tree):
            whole = names.join(names.get_inode_path(tree, directory), name)
            gen = names.get_inode_gen(tree, directory)
            paths.append(names.join(names.get_cur_path(directory, gen), whole))
        self.sctx.because("links-gone")
        for whole in paths:
            self.sctx.send_cmd("unlink", path=whole)
