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
from dataclasses import dataclass, field

from btrfs_model.base.counters import current
from btrfs_model.patches import Patch
from btrfs_model.reference.send.command import send_link, send_rename, send_rmdir, send_unlink
from btrfs_model.reference.send.context import (
    TOP,
    DirRef,
    RecordedRef,
    SendContext,
    because,
    because_inode,
    because_of_rule,
    get_waiting_dir_move,
    is_waiting_for_move,
    send_errno,
)
from btrfs_model.reference.send.created import cache_dir_created, did_create_dir
from btrfs_model.reference.send.inode import cache_dir_utimes, send_create_inode
from btrfs_model.reference.send.moves import (
    can_rmdir,
    is_ancestor,
    rmdir_if_possible,
    wait_for_dest_dir_move,
    wait_for_parent_move,
)
from btrfs_model.reference.send.names import (
    InodeState,
    Overwritten,
    did_overwrite_first_ref,
    did_overwrite_ref,
    gen_unique_name,
    get_cur_inode_state,
    is_first_ref,
    will_overwrite_ref,
)
from btrfs_model.reference.send.paths import get_cur_path, name_cache_delete
from btrfs_model.reference.send.record import record_all_refs, update_ref_path
from btrfs_model.volume.compare import Change


@dataclass
class _Progress:
    """What ``process_recorded_refs()`` finds out on its way.

    `valid_path`: the path under which the receiver has the inode.
    `is_orphan`: that is its orphan name.
    `can_rename`: it need not wait for another directory.
    `orphanized_dir`, `orphanized_ancestor`: a directory, or one above the inode, has got its orphan
    name.
    `check_dirs`: directories in which names came or went.
    """

    valid_path: bytes
    is_orphan: bool
    can_rename: bool = True
    orphanized_dir: bool = False
    orphanized_ancestor: bool = False
    check_dirs: list[DirRef] = field(default_factory=list)


def process_recorded_refs(sctx: SendContext) -> bool:
    """Make the names; return whether the move of a directory has to wait."""
    current().count("process_recorded_refs")
    if sctx.cur_ino <= TOP:
        raise send_errno(sctx, errno.EINVAL)
    ino, gen = sctx.cur_ino, sctx.cur_inode_gen
    is_orphan = sctx.cur_inode_new or did_overwrite_first_ref(sctx, ino, gen)
    p = _Progress((gen_unique_name if is_orphan else get_cur_path)(sctx, ino, gen), is_orphan)
    _make_new_names(sctx, p)
    deleted = list(sctx.deleted_refs.values())
    if not stat.S_ISDIR(sctx.cur_inode.mode):
        _unlink_deleted_names(sctx, p)
    elif sctx.cur_inode_deleted:
        _remove_dir(sctx, p)
        p.check_dirs += [ref.directory for ref in deleted]
    else:
        # a directory has one name, so it has left one directory at most
        p.check_dirs += [ref.directory for ref in deleted[:1]]
    _finish_check_dirs(sctx, p)
    sctx.new_refs.clear()
    sctx.deleted_refs.clear()
    return not p.can_rename


def process_all_refs(sctx: SendContext, change: Change) -> None:
    """Record and make or remove all names of the current inode."""
    record_all_refs(sctx, change)
    # the inode is created again, so nothing has to wait
    process_recorded_refs(sctx)


# --------------------------------------------------------------------- what is in the way ----


def _clear_name(sctx: SendContext, p: _Progress, ref: RecordedRef) -> None:
    """Move or remove an inode, not processed yet, that has a new name of the current one."""
    other = will_overwrite_ref(sctx, ref.dir, ref.dir_gen, ref.name)
    if other is None:
        return
    is_first = is_first_ref(sctx, other.ino, ref.dir, ref.name)
    # the directory that was moved away may be on the path, which is older
    recompute = Patch.SEND_RECOMPUTE_REF_PATH if is_first else Patch.SEND_UNLINK_PATH
    if p.orphanized_dir and recompute in sctx:
        update_ref_path(sctx, ref)
    because(sctx, "name-in-the-way", other.ino, ref.item)
    if is_first:
        _orphanize_overwritten(sctx, p, ref.full_path, other)
    else:
        because_of_rule(sctx, "link-in-the-way")
        send_unlink(sctx, ref.full_path)


def _orphanize_overwritten(
    sctx: SendContext, p: _Progress, path: bytes, other: Overwritten
) -> None:
    """Move the inode away that has its first name at `path`."""
    orphanize_inode(sctx, other.ino, other.gen, path)
    p.orphanized_dir |= stat.S_ISDIR(other.mode)
    # one descent instead of two
    if Patch.SEND_WAITING_ONCE in sctx or is_waiting_for_move(sctx, other.ino):
        waiting = get_waiting_dir_move(sctx, other.ino)
        if waiting:
            waiting.orphanized = True
    name_cache_delete(sctx, other.ino, other.gen)
    # it may be a directory on the path of the current inode
    if is_ancestor(sctx, other.ino, other.gen, sctx.cur_ino):
        p.orphanized_ancestor = True
        sctx.cur_inode_path = b""
        p.valid_path = get_cur_path(sctx, sctx.cur_ino, sctx.cur_inode_gen)


def orphanize_inode(sctx: SendContext, ino: int, gen: int, path: bytes) -> None:
    """Give an inode its orphan name."""
    orphan = gen_unique_name(sctx, ino, gen)
    send_rename(sctx, path, orphan)
    is_current = (ino, gen) == (sctx.cur_ino, sctx.cur_inode_gen)
    if is_current and Patch.SEND_CUR_INODE_PATH in sctx:
        sctx.cur_inode_path = orphan


# ----------------------------------------------------------------------------- new names ----


def _make_new_names(sctx: SendContext, p: _Progress) -> None:
    refs = list(sctx.new_refs.values())
    # without it each name is cleared when it is its turn
    clear_first = Patch.SEND_ORPHANIZE_FIRST in sctx
    if clear_first:
        for ref in refs:
            if get_cur_inode_state(sctx, ref.dir, ref.dir_gen) != InodeState.WILL_CREATE:
                _clear_name(sctx, p, ref)
    for index, ref in enumerate(refs):
        _create_parent_if_needed(sctx, refs, index)
        if not clear_first:
            _clear_name(sctx, p, ref)
        _wait_if_needed(sctx, p, ref)
        if p.can_rename:
            _make_name(sctx, p, ref)
        p.check_dirs.append(ref.directory)


def _create_parent_if_needed(sctx: SendContext, refs: list[RecordedRef], index: int) -> None:
    """Create a parent directory with a higher number before its turn."""
    ref = refs[index]
    if get_cur_inode_state(sctx, ref.dir, ref.dir_gen) != InodeState.WILL_CREATE:
        return
    if any(earlier.dir == ref.dir for earlier in refs[:index]) or did_create_dir(sctx, ref.dir):
        return
    because(sctx, "parent-early", ref.dir, ref.item)
    send_create_inode(sctx, ref.dir)
    cache_dir_created(sctx, ref.dir)


def _wait_if_needed(sctx: SendContext, p: _Progress, ref: RecordedRef) -> None:
    """Let a directory wait that cannot go to its new place yet."""
    if not stat.S_ISDIR(sctx.cur_inode.mode) or sctx.parent_root is None:
        return
    if wait_for_dest_dir_move(sctx, ref, is_orphan=p.is_orphan):
        p.can_rename = False
    if p.can_rename and wait_for_parent_move(sctx, ref, is_orphan=p.is_orphan):
        p.can_rename = False


def _make_name(sctx: SendContext, p: _Progress, ref: RecordedRef) -> None:
    """Make a new name of the current inode: by a rename, if it moves, or a link."""
    moves = p.is_orphan or stat.S_ISDIR(sctx.cur_inode.mode)
    cause = "dir-moved" if moves else "name-added"
    if p.is_orphan:
        cause = "first-name" if sctx.cur_inode_new else "name-after-orphan"
    if not moves and p.orphanized_dir:
        update_ref_path(sctx, ref)
    because(sctx, cause, sctx.cur_ino, ref.item)
    if moves:
        _rename_current_inode(sctx, p, ref.full_path)
    else:
        send_link(sctx, ref.full_path, p.valid_path)


def _rename_current_inode(sctx: SendContext, p: _Progress, path: bytes) -> None:
    send_rename(sctx, p.valid_path, path)
    p.valid_path, p.is_orphan = path, False
    if Patch.SEND_CUR_INODE_PATH in sctx:
        sctx.cur_inode_path = path


# ----------------------------------------------------------------------------- old names ----


def _remove_dir(sctx: SendContext, p: _Progress) -> None:
    """Remove a directory that the snapshot does not have any more, or move it away."""
    if can_rmdir(sctx, sctx.cur_ino, sctx.cur_inode_gen):
        because_inode(sctx, "dir-removed")
        send_rmdir(sctx, p.valid_path)
    elif not p.is_orphan:
        because_inode(sctx, "dir-not-empty")
        orphanize_inode(sctx, sctx.cur_ino, sctx.cur_inode_gen, p.valid_path)


def _unlink_deleted_names(sctx: SendContext, p: _Progress) -> None:
    """Unlink the old names of a file, but those that another inode has taken."""
    ino, gen = sctx.cur_ino, sctx.cur_inode_gen
    for ref in sctx.deleted_refs.values():
        if not did_overwrite_ref(sctx, ref.dir, ref.dir_gen, ino, gen, ref.name):
            if p.orphanized_ancestor:
                update_ref_path(sctx, ref)
            because(sctx, "name-removed", ino, ref.item)
            send_unlink(sctx, ref.full_path)
            # is_current_inode_path(): compared as far as the remembered path goes
            if ref.full_path.startswith(sctx.cur_inode_path):
                sctx.cur_inode_path = b""
        p.check_dirs.append(ref.directory)
    # its first name was taken by another inode, and it has no new one
    if p.is_orphan:
        because_inode(sctx, "orphan-removed")
        send_unlink(sctx, p.valid_path)


def _finish_check_dirs(sctx: SendContext, p: _Progress) -> None:
    """Send the times of the directories in which names came or went, or remove them."""
    # with it each directory is visited once
    unique = Patch.SEND_CHECK_DIRS_UNIQUE in sctx
    seen, last_removed = set(), 0
    for ino, gen, item in p.check_dirs:
        if unique and (ino, gen) in seen:
            continue
        seen.add((ino, gen))
        # a directory with a higher number has its own turn
        if ino > sctx.cur_ino:
            continue
        state = get_cur_inode_state(sctx, ino, gen)
        if state in (InodeState.DID_CREATE, InodeState.NO_CHANGE):
            because(sctx, "times-entry", ino, item)
            cache_dir_utimes(sctx, ino, gen)
        elif (
            state == InodeState.DID_DELETE
            and (unique or ino != last_removed)
            and rmdir_if_possible(sctx, ino, gen, "dir-emptied", item)
        ):
            last_removed = ino
