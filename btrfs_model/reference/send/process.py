# SPDX-License-Identifier: GPL-2.0-only
"""Making the recorded names of an inode: ``process_recorded_refs()``.

In this order: what is in the way is moved or removed, the new names are made (the first by renaming
an inode that has its orphan name, the others by links; a directory is always renamed), the old
names are removed, and then the directories concerned get their times, or are removed if they were
only waiting for this inode to leave.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from btrfs_model.base.counters import current
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.patches import Patch
from btrfs_model.reference.send.inodes import InodeState, Overwritten
from btrfs_model.reference.send.moves import is_ancestor

if TYPE_CHECKING:
    from btrfs_model.reference.send.context import DirRef, RecordedRef, SendContext
    from btrfs_model.reference.send.create import Creator
    from btrfs_model.reference.send.moves import Moves
    from btrfs_model.reference.send.names import Names
    from btrfs_model.reference.send.utimes import Utimes

_TOP = ObjectId.FIRST_FREE


class RecordedRefs:
    """The recorded names of the current inode, while they are made.

    Parameters
    ----------
    sctx : SendContext
        The send.
    names : Names
        Its paths.
    creator : Creator
        Creates directories before their turn.
    utimes : Utimes
        Sends times of directories.
    moves : Moves
        Knows which directories cannot be moved or removed yet.
    """

    def __init__(
        self, sctx: SendContext, names: Names, creator: Creator, utimes: Utimes, moves: Moves
    ) -> None:
        self.sctx = sctx
        self.names = names
        self.creator = creator
        self.utimes = utimes
        self.moves = moves
        self.is_dir = stat.S_ISDIR(sctx.cur_inode.mode)
        # the path under which the receiver has the inode
        self.valid_path = b""
        self.is_orphan = False
        self.can_rename = True
        self.orphanized_dir = False
        self.orphanized_ancestor = False
        self.check_dirs: list[DirRef] = []

    def process(self) -> bool:
        """Make the names; return whether the move of a directory has to wait."""
        current().count("process_recorded_refs")
        sctx = self.sctx
        if sctx.cur_ino <= _TOP:
            raise sctx.fail(errno.EINVAL)
        self._find_valid_path()
        new = list(sctx.new_refs.values())
        # without it room for each is made when it is its turn
        first = Patch.SEND_ORPHANIZE_FIRST in sctx
        if first:
            for ref in new:
                state = self.names.get_cur_inode_state(ref.dir, ref.dir_gen)
                if state != InodeState.WILL_CREATE:
                    self._make_room(ref)
        for index, ref in enumerate(new):
            self._create_parent_if_needed(ref, new[:index])
            if not first:
                self._make_room(ref)
            self._make_name(ref)
            self.check_dirs.append(ref.directory)
        if self.is_dir:
            self._leave_directory()
        else:
            self._remove_names()
        self._update_check_dirs()
        sctx.new_refs.clear()
        sctx.deleted_refs.clear()
        return not self.can_rename

    def _find_valid_path(self) -> None:
        sctx, names = self.sctx, self.names
        if sctx.cur_inode_new or names.did_overwrite_first_ref(sctx.cur_ino, sctx.cur_inode_gen):
            self.valid_path = names.gen_unique_name(sctx.cur_ino, sctx.cur_inode_gen)
            self.is_orphan = True
        else:
            self.valid_path = names.get_cur_path(sctx.cur_ino, sctx.cur_inode_gen)

    # ------------------------------------------------------------------- what is in the way --

    def _make_room(self, ref: RecordedRef) -> None:
        """Move or remove an inode, not processed yet, that has a new name of the current one."""
        sctx, tree = self.sctx, self.sctx.parent_root
        other = self.names.will_overwrite_ref(ref.dir, ref.dir_gen, ref.name)
        if other is None or tree is None:
            return
        is_first = self.names.is_first_ref(tree, other.ino, ref.dir, ref.name)
        # the directory that was moved away may be on the path, which is older
        recompute = Patch.SEND_RECOMPUTE_REF_PATH if is_first else Patch.SEND_UNLINK_PATH
        if self.orphanized_dir and recompute in sctx:
            self.update_ref_path(ref)
        sctx.because("name-in-the-way", other.ino, ref.item)
        if is_first:
            self._orphanize_other(ref, other)
        else:
            sctx.because_of_rule("link-in-the-way")
            sctx.send_cmd("unlink", path=ref.full_path)

    def _orphanize_other(self, ref: RecordedRef, other: Overwritten) -> None:
        sctx, names = self.sctx, self.names
        self.orphanize_inode(other.ino, other.gen, ref.full_path)
        self.orphanized_dir |= stat.S_ISDIR(other.mode)
        # one descent instead of two
        if Patch.SEND_WAITING_ONCE in sctx or sctx.is_waiting_for_move(other.ino):
            waiting = sctx.get_waiting_dir_move(other.ino)
            if waiting:
                waiting.orphanized = True
        names.name_cache_delete(other.ino, other.gen)
        # it may be a directory on the path of the current inode
        if is_ancestor(sctx, names, other.ino, other.gen, sctx.cur_ino):
            self.orphanized_ancestor = True
            sctx.cur_inode_path = b""
            self.valid_path = names.get_cur_path(sctx.cur_ino, sctx.cur_inode_gen)

    def orphanize_inode(self, ino: int, gen: int, path: bytes) -> None:
        """Give an inode its orphan name."""
        sctx = self.sctx
        orphan = self.names.gen_unique_name(ino, gen)
        sctx.send_cmd("rename", path=path, path_to=orphan)
        if (ino, gen) == (sctx.cur_ino, sctx.cur_inode_gen):
            self._set_cur_inode_path(orphan)

    def _set_cur_inode_path(self, path: bytes) -> None:
        if Patch.SEND_CUR_INODE_PATH in self.sctx:
            self.sctx.cur_inode_path = path

    def update_ref_path(self, ref: RecordedRef) -> None:
        """Compute the path of a name again (``update_ref_path()``, ``refresh_ref_path()``)."""
        directory = self.names.get_cur_path(ref.dir, ref.dir_gen)
        ref.full_path = self.names.join(directory, ref.name)

    # ------------------------------------------------------------------------ new names -----

    def _create_parent_if_needed(self, ref: RecordedRef, earlier: list[RecordedRef]) -> None:
        """Create a parent directory with a higher number before its turn."""
        if self.names.get_cur_inode_state(ref.dir, ref.dir_gen) != InodeState.WILL_CREATE:
            return
        if any(other.dir == ref.dir for other in earlier) or self.creator.did_create_dir(ref.dir):
            return
        self.sctx.because("parent-early", ref.dir, ref.item)
        self.creator.send_create_inode(ref.dir)
        self.creator.cache_dir_created(ref.dir)

    def _make_name(self, ref: RecordedRef) -> None:
        """Rename or link the inode, unless it is a directory that has to wait."""
        if self.is_dir and self.sctx.parent_root:
            if self.moves.wait_for_dest_dir_move(ref, is_orphan=self.is_orphan):
                self.can_rename = False
            if self.can_rename and self.moves.wait_for_parent_move(ref, is_orphan=self.is_orphan):
                self.can_rename = False
        if not self.can_rename:
            return
        if self.is_orphan or self.is_dir:
            cause = "first-name" if self.sctx.cur_inode_new else "name-after-orphan"
            self.sctx.because(cause if self.is_orphan else "dir-moved", item=ref.item)
            self.rename_current_inode(ref.full_path)
            self.is_orphan = False
            return
        if self.orphanized_dir:
            self.update_ref_path(ref)
        self.sctx.because("name-added", item=ref.item)
        self.sctx.send_cmd("link", path=ref.full_path, path_link=self.valid_path)

    def rename_current_inode(self, path: bytes) -> None:
        """Rename the current inode."""
        self.sctx.send_cmd("rename", path=self.valid_path, path_to=path)
        self.valid_path = path
        self._set_cur_inode_path(path)

    # ------------------------------------------------------------------------ old names -----

    def _leave_directory(self) -> None:
        """Remove a deleted directory, or move it away; a moved one left its old parent."""
        sctx = self.sctx
        left = [ref.directory for ref in sctx.deleted_refs.values()]
        if not sctx.cur_inode_deleted:
            self.check_dirs += left[:1]
            return
        if self.moves.can_rmdir(sctx.cur_ino, sctx.cur_inode_gen):
            sctx.because("dir-removed")
            sctx.send_cmd("rmdir", path=self.valid_path)
        elif not self.is_orphan:
            sctx.because("dir-not-empty")
            self.orphanize_inode(sctx.cur_ino, sctx.cur_inode_gen, self.valid_path)
            self.is_orphan = True
        self.check_dirs += left

    def _remove_names(self) -> None:
        """Unlink the old names of a file, but those that another inode has taken."""
        sctx = self.sctx
        for ref in sctx.deleted_refs.values():
            if not self.names.did_overwrite_ref(
                ref.dir, ref.dir_gen, sctx.cur_ino, sctx.cur_inode_gen, ref.name
            ):
                if self.orphanized_ancestor:
                    self.update_ref_path(ref)
                sctx.because("name-removed", item=ref.item)
                sctx.send_cmd("unlink", path=ref.full_path)
                # is_current_inode_path()
                if ref.full_path.startswith(sctx.cur_inode_path):
                    sctx.cur_inode_path = b""
            self.check_dirs.append(ref.directory)
        # its first name was taken by another inode, and it has no new one
        if self.is_orphan:
            sctx.because("orphan-removed")
            sctx.send_cmd("unlink", path=self.valid_path)

    def _update_check_dirs(self) -> None:
        """Send the times of the directories in which names came or went, or remove them."""
        sctx, last_removed = self.sctx, 0
        # with it each directory is visited once
        unique = Patch.SEND_CHECK_DIRS_UNIQUE in sctx
        seen = set()
        for ino, gen, item in self.check_dirs:
            if unique and (ino, gen) in seen:
                continue
            seen.add((ino, gen))
            # a directory with a higher number has its own turn
            if ino > sctx.cur_ino:
                continue
            state = self.names.get_cur_inode_state(ino, gen)
            if state in (InodeState.DID_CREATE, InodeState.NO_CHANGE):
                sctx.because("times-entry", ino, item)
                self.utimes.cache_dir_utimes(ino, gen)
            elif (
                state == InodeState.DID_DELETE
                and (unique or ino != last_removed)
                and self.moves.send_rmdir_if_possible(ino, gen, "dir-emptied", item)
            ):
                last_removed = ino
