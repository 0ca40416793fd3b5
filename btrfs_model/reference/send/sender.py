# SPDX-License-Identifier: GPL-2.0-only
"""The send, in plain Python: the twin of ``native/send/send.c``.

Without a parent the tree of the snapshot is walked item by item in key order, and every item is
NEW. With a parent both trees are compared, and only items that differ are looked at. All items of
an inode stand together, so the walk meets, inode by inode::

    INODE_ITEM         create it under its orphan name
    INODE_REF, EXTREF  record its names; they are made when the first other item comes
    XATTR_ITEM         SET_XATTR, REMOVE_XATTR
    EXTENT_DATA        WRITE or CLONE
    the next inode     finish it: size, owner, mode, capabilities, times

Methods have the names of the kernel's functions.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from btrfs_model.base.counters import current
from btrfs_model.ondisk.items import root_ref
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.stream import COMMANDS
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.patches import Patch
from btrfs_model.reference.compare import Change, Side, compare_sides
from btrfs_model.reference.ctree import (
    Path,
    Reada,
    key_at,
    next_leaf,
    nritems,
    search_slot_for_read,
)
from btrfs_model.reference.send.context import SendContext
from btrfs_model.reference.send.create import Creator
from btrfs_model.reference.send.explain import Item
from btrfs_model.reference.send.extents import Extents
from btrfs_model.reference.send.moves import Moves
from btrfs_model.reference.send.names import Names
from btrfs_model.reference.send.process import RecordedRefs
from btrfs_model.reference.send.refs import Refs
from btrfs_model.reference.send.utimes import Utimes
from btrfs_model.reference.send.verity import verity_attributes
from btrfs_model.reference.send.xattrs import Xattrs

if TYPE_CHECKING:
    from btrfs_model.ondisk.structs import InodeItem
    from btrfs_model.reference.send.request import SendRequest
    from btrfs_model.volume.subvolume import Subvolume
    from btrfs_model.volume.tree import Tree

_TOP = ObjectId.FIRST_FREE
# objectids that are not inodes: the v1 free space and inode caches
_NOT_INODES = (2**64 - 11, 2**64 - 12)
_REFS = (ItemType.INODE_REF, ItemType.INODE_EXTREF)


class Sender:
    """One send.

    Parameters
    ----------
    request : SendRequest
        What to send, checked.
    """

    def __init__(self, request: SendRequest) -> None:
        self.sctx = sctx = SendContext(request)
        self.names = Names(sctx)
        self.extents = Extents(sctx, self.names)
        self.xattrs = Xattrs(sctx, self.names)
        self.utimes = Utimes(sctx, self.names)
        self.creator = Creator(sctx, self.names, self.extents.reader)
        self.moves = Moves(sctx, self.names, self.utimes)
        self.refs = Refs(sctx, self.names)

    def run(self) -> dict[str, int]:
        """Send; return the number of commands by name.

        Raises
        ------
        OSError, CorruptImageError
            See :func:`btrfs_model.questions.send.send`.
        """
        sctx = self.sctx
        if not sctx.request.omit_header:
            sctx.request.write(sctx.writer.header())
        self.send_subvol_begin()
        if sctx.parent_root:
            self.compare_trees(sctx.parent_root)
        else:
            self.full_send_tree()
        self.finish_inode_if_needed(at_end=True)
        self.utimes.flush()
        if not sctx.request.omit_end:
            sctx.because_of_nothing("stream-end", 0)
            sctx.send_cmd("end")
        if sctx.request.explanation is not None:
            sctx.request.explanation.rows = sctx.explained_rows()
        names = [command.name for command in COMMANDS.values()]
        return {name: sctx.commands[name] for name in names if sctx.commands[name]}

    def send_subvol_begin(self) -> None:
        """Send SUBVOL or SNAPSHOT, with the name under which the tree of roots has it."""
        sctx = self.sctx
        path, roots = sctx.search_path(), sctx.fs.root_tree
        wanted = (sctx.root.objectid, ItemType.ROOT_BACKREF)
        found = search_slot_for_read(roots, (*wanted, 0), path, find_higher=True)
        if not found or key_at(path.leaf, path.slots[0])[:2] != wanted:
            raise sctx.fail(errno.ENOENT)
        snapshot, parent = sctx.request.snapshot, sctx.request.parent
        name = sctx.decode(path, roots, root_ref).name
        sctx.because_of_nothing("subvol-begin", _TOP)
        identity = {"uuid": _uuid(snapshot), "ctransid": snapshot.item.ctransid}
        if parent is None:
            sctx.send_cmd("subvol", path=name, **identity)
        else:
            identity |= {"clone_uuid": _uuid(parent), "clone_ctransid": parent.item.ctransid}
            sctx.send_cmd("snapshot", path=name, **identity)

    # ----------------------------------------------------------------------------- walk -----

    def full_send_tree(self) -> None:
        """Walk the tree of the snapshot."""
        sctx = self.sctx
        reada = Reada.NONE
        if Patch.SEND_READA_ALWAYS in sctx:
            reada = Reada.FORWARD_ALWAYS
        elif Patch.SEND_READA in sctx:
            reada = Reada.FORWARD
        path = sctx.search_path(reada)
        first = (_TOP, ItemType.INODE_ITEM, 0)
        more = search_slot_for_read(sctx.root, first, path, find_higher=True)
        while more:
            sctx.path, sctx.key = path, Key(*key_at(path.leaf, path.slots[0]))
            self.changed_cb(Change.NEW)
            current().count("btrfs_next_old_item")
            path.slots[0] += 1
            more = path.slots[0] < nritems(path.leaf) or next_leaf(sctx.root, path)

    def compare_trees(self, parent_root: Tree) -> None:
        """Walk the trees of the snapshot and its parent (``btrfs_compare_trees()``)."""
        sctx = self.sctx
        # what is newer than the parent is not shared and will be needed
        newer_than = parent_root.generation if Patch.SEND_READA_COMPARE in sctx else None
        left, right = Side(sctx.root, newer_than), Side(parent_root, newer_than)
        for change, raw_key in compare_sides(left, right):
            key = Key(*raw_key)
            if change == Change.SAME:
                sctx.change = change
                if not self.is_changed(left.path, key):
                    continue
                change = Change.CHANGED
            sctx.path, sctx.right_path, sctx.key = left.path, right.path, key
            self.changed_cb(change)

    def is_changed(self, path: Path, key: Key) -> bool:
        """Whether something has to be done for an item that both trees have."""
        if key.type in _REFS and self.refs.compare_refs(path, key):
            return True
        current().count("changed_cb")
        if key.type == ItemType.EXTENT_DATA:
            self.extents.holes.maybe_send_hole(path)
        return False

    def changed_cb(self, change: Change) -> None:
        """Act on the item that the walk stands on."""
        current().count("changed_cb")
        sctx, kind = self.sctx, self.sctx.key.type
        sctx.change = change
        self.finish_inode_if_needed(at_end=False)
        if sctx.key.objectid in _NOT_INODES:
            return
        if kind == ItemType.INODE_ITEM:
            self.changed_inode(change)
        elif sctx.ignore_cur_inode:
            pass
        elif kind in _REFS:
            self.check_inode()
            if not sctx.cur_inode_new_gen and sctx.cur_ino != _TOP:
                self.refs.changed_ref(change)
        elif kind == ItemType.XATTR_ITEM:
            self.check_inode()
            if not sctx.cur_inode_new_gen and not sctx.cur_inode_deleted:
                self.xattrs.changed_xattr(change)
        elif kind == ItemType.EXTENT_DATA and sctx.key.objectid == sctx.cur_ino:
            self.changed_extent(change)
        elif kind == ItemType.VERITY_DESC_ITEM and not sctx.key.offset:
            self.changed_verity(change)

    def check_inode(self) -> None:
        """Refuse an item without its inode: "inconsistent snapshot"."""
        if self.sctx.key.objectid != self.sctx.cur_ino:
            raise self.sctx.fail(errno.EIO)

    def changed_extent(self, change: Change) -> None:
        """Send a file extent."""
        sctx = self.sctx
        skip = sctx.cur_inode_new_gen or sctx.cur_inode_deleted
        if not skip and change != Change.DELETED:
            self.extents.process_extent()

    def changed_verity(self, change: Change) -> None:
        """Note that a file has fs-verity enabled."""
        sctx = self.sctx
        skip = sctx.cur_inode_new_gen or sctx.cur_inode_deleted
        if not skip and change == Change.NEW:
            sctx.cur_inode_needs_verity = True

    # -------------------------------------------------------------------------- finishing ---

    def finish_inode_if_needed(self, *, at_end: bool) -> None:
        """Make the names of the current inode, and finish it, when their time has come."""
        current().count("finish_inode_if_needed")
        sctx = self.sctx
        if sctx.ignore_cur_inode:
            return
        next_inode = at_end or sctx.key.objectid != sctx.cur_ino
        # the names are complete with the first item that is none
        if (
            sctx.cur_ino
            and (sctx.new_refs or sctx.deleted_refs)
            and (next_inode or sctx.key.type > ItemType.INODE_EXTREF)
            and not self.process_recorded_refs()
        ):
            sctx.send_progress = sctx.cur_ino + 1
        if sctx.cur_ino and next_inode and not sctx.cur_inode_deleted:
            self.finish_inode()
        self.utimes.trim_dir_utimes_cache()

    def process_recorded_refs(self) -> bool:
        """Make the recorded names; return whether a move has to wait."""
        refs = RecordedRefs(self.sctx, self.names, self.creator, self.utimes, self.moves)
        return refs.process()

    def finish_inode(self) -> None:
        """Send everything of the current inode that comes after its items."""
        sctx, mode = self.sctx, self.sctx.cur_inode.mode
        item = self.names.need_inode_info(sctx.root, sctx.cur_ino)
        old = None
        if sctx.parent_root and not sctx.cur_inode_new:
            old = self.names.need_inode_info(sctx.parent_root, sctx.cur_ino)
        if stat.S_ISREG(mode):
            truncate_cause = self._truncate_cause(old)
            self.extents.holes.finish_holes()
            if truncate_cause:
                sctx.because(truncate_cause)
                self._send_attribute("truncate", size=sctx.cur_inode.size)
        if old is None or (item.uid, item.gid) != (old.uid, old.gid):
            sctx.because("owner-changed" if old else "owner-new")
            self._send_attribute("chown", uid=item.uid, gid=item.gid)
        if not stat.S_ISLNK(mode):
            if old is None or item.mode != old.mode:
                sctx.because("mode-changed" if old else "mode-new")
                self._send_attribute("chmod", mode=item.mode & 0o7777)
            if old is not None and item.flags != old.flags and sctx.request.proto >= 2:
                sctx.because("flags-changed")
                self._send_attribute("fileattr", fileattr=item.flags)
        if sctx.request.proto >= 3 and sctx.cur_inode_needs_verity:
            attributes = verity_attributes(sctx)
            descriptor = Key(sctx.cur_ino, ItemType.VERITY_DESC_ITEM, 0)
            sctx.because("verity", item=Item(descriptor, Change.NEW))
            self._send_attribute("enable_verity", **attributes)
        self.xattrs.send_capabilities()
        if not sctx.is_waiting_for_move(sctx.cur_ino):
            self.moves.apply_children_dir_moves()
            sctx.send_progress = sctx.cur_ino + 1
            sctx.because("times-inode")
            # more names may still come into a directory; an empty one is done
            if stat.S_ISDIR(mode) and sctx.cur_inode.size and Patch.SEND_UTIMES_CACHE in sctx:
                self.utimes.cache_dir_utimes(sctx.cur_ino, sctx.cur_inode_gen)
            else:
                self.utimes.send_utimes(sctx.cur_ino, sctx.cur_inode_gen)

    def _truncate_cause(self, old: InodeItem | None) -> str | None:
        """Return why the current file is to be truncated, if it is."""
        sctx, size = self.sctx, self.sctx.cur_inode.size
        has_its_size = sctx.cur_inode_next_write_offset == size
        if old is not None and old.size >= size:
            has_its_size = old.size == size
        if not has_its_size:
            return "truncate-size"
        # without it every regular file is truncated to its size
        return None if Patch.SEND_SKIP_TRUNCATE in sctx else "truncate-always"

    def _send_attribute(self, command: str, **attributes: int | bytes) -> None:
        path = self.names.get_cur_inode_path()
        self.sctx.send_cmd(command, path=path, **attributes)

    # --------------------------------------------------------------------------- inodes -----

    def changed_inode(self, change: Change) -> None:
        """Start with the inode that the walk stands on."""
        sctx = self.sctx
        sctx.cur_ino = sctx.send_progress = sctx.key.objectid
        sctx.inode_change = change
        sctx.cur_inode_new_gen = False
        sctx.cur_inode_last_extent = None
        sctx.cur_inode_next_write_offset = 0
        sctx.cur_inode_path = b""
        sctx.cur_inode_needs_verity = False
        sctx.ignore_cur_inode = False
        new = old = None
        if change != Change.DELETED:
            new = self._inode_at(sctx.path, sctx.root)
        if change != Change.NEW:
            old = self._inode_at(sctx.right_path, sctx.parent_tree)
        if new and self._ignore_unlinked(new, old):
            sctx.ignore_cur_inode = True
        elif new is None:
            assert old is not None
            self._set_inode(old, deleted=True)
        elif old is None:
            self._set_inode(new, new=True)
            if sctx.cur_ino != _TOP:
                sctx.because("inode-new")
                self.creator.send_create_inode_if_needed()
        elif self._is_other_inode(new, old):
            sctx.cur_inode_new_gen = True
            self._replace_inode(new, old)
        else:
            self._set_inode(new)

    def _inode_at(self, path: Path, tree: Tree) -> InodeItem:
        item: InodeItem = self.sctx.decode(path, tree, INODE_ITEM.unpack)
        return item

    def _set_inode(self, item: InodeItem, *, new: bool = False, deleted: bool = False) -> None:
        sctx = self.sctx
        sctx.cur_inode, sctx.cur_inode_gen = item, item.generation
        sctx.cur_inode_new, sctx.cur_inode_deleted = new, deleted

    def _ignore_unlinked(self, new: InodeItem, old: InodeItem | None) -> bool:
        """Whether an inode is of no interest: unlinked, but open when the snapshot was taken."""
        if new.nlink:
            return False
        if Patch.SEND_NLINK_ZERO in self.sctx:
            return old is None or not old.nlink
        if old is not None:
            self.refs.unlink_all_paths()
        return True

    def _is_other_inode(self, new: InodeItem, old: InodeItem) -> bool:
        """Whether the number was used again, or the inode lost or got its first link."""
        if new.generation != old.generation and self.sctx.cur_ino != _TOP:
            return True
        return Patch.SEND_NLINK_ZERO in self.sctx and bool(new.nlink) != bool(old.nlink)

    def _replace_inode(self, new: InodeItem, old: InodeItem) -> None:
        """Delete an inode and create another one under its number."""
        sctx = self.sctx
        unlinked_count = Patch.SEND_NLINK_ZERO in sctx
        if old.nlink or not unlinked_count:
            self._set_inode(old, deleted=True)
            self.process_all_refs(Change.DELETED)
        if new.nlink or not unlinked_count:
            self._set_inode(new, new=True)
            sctx.because("inode-replaced")
            self.creator.send_create_inode_if_needed()
            self.process_all_refs(Change.NEW)
            sctx.send_progress = sctx.cur_ino + 1
            self.extents.process_all_extents()
            self.xattrs.process_all_new_xattrs()

    def process_all_refs(self, change: Change) -> None:
        """Record and make or remove all names of the current inode."""
        self.refs.record_all_refs(change)
        self.process_recorded_refs()


def _uuid(subvolume: Subvolume) -> bytes:
    item = subvolume.item
    return item.received_uuid if any(item.received_uuid) else item.uuid
