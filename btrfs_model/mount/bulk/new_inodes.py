# SPDX-License-Identifier: GPL-2.0-only
"""New inodes as a full send stream makes them: made, renamed, filled and described.

The calls for such an inode are ``create`` (or ``mkdir``, ``symlink``) under a name of its own,
``rename``, ``write`` from its first byte on, ``chown``, ``chmod`` and ``utimes``; then ``utimes``
of directories may follow. What those of many inodes do to the tree is carried out at once
(``bm_writer_new_inodes()``); then what they leave in memory, each value as the last of the calls
leaves it.

That is done only while every one of the calls finds room, and only the first of them looks for it,
in directories that hand nothing down. Any other inode is made by one call after the other, in its
turn.
"""

from __future__ import annotations

import stat
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.bulk.made_inodes import (
    CREATE_TICKS,
    DIRECTORY,
    LINK,
    RENAME_TICKS,
    Directory,
    Made,
    NewInodes,
    Plan,
    Remembered,
    mode_of,
)
from btrfs_model.mount.bulk.rows import tick
from btrfs_model.mount.inode import last_index, live_subvolume
from btrfs_model.mount.live_inode import (
    DEFAULT,
    DIR_START_INDEX,
    EMPTY_SUBVOL_DIR,
    NO_XATTRS,
    InodeFields,
    LiveInode,
)
from btrfs_model.mount.log.log_tree import has_log, note_change
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.lookup import find, find_entry, find_parent, is_read_only
from btrfs_model.mount.names.rename import RENAME_ITEMS
from btrfs_model.mount.names.xattr import get_xattr
from btrfs_model.mount.space.block_group import stays_enough
from btrfs_model.mount.space.space_info import look_ahead
from btrfs_model.native import bulk
from btrfs_model.native.stream import NewInode
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA
from btrfs_model.patches import Patch

_MOST: Final = 64
_CALLS: Final = 4
"""An inode takes the room of so many small calls."""

_CREATE_ITEMS: Final = 5
_SPECIAL: Final = 0o7000


_NOTHING: Final = Made(0)


def make_inodes(fs: Mount, found: NewInodes, start: int, *, there: bool = False) -> Made:
    """Make inodes of a stream, from one of them on: as many as surely find room.

    `there`: the first of them was made, and has to get its name yet.
    """
    root = find(fs, found.prefix).root
    live = live_subvolume(fs, root)
    first = live.next_ino - there
    if not _is_quiet(fs, root) or (there and not _is_made(fs, live.inodes.get(first))):
        return _NOTHING
    if not _has_room(fs, root, found, found.rows[start], there=there):
        return _NOTHING
    plans = _plan(fs, root, found, start, first, there=there)
    calls = sum(_CALLS + plan.times * plan.row.more for plan in plans)
    if not plans or not stays_enough(fs, calls):
        return _NOTHING
    time, step = fs.clock, tick(fs)
    template = InodeFields(generation=fs.transid, transid=fs.transid, uid=fs.uid, gid=fs.gid).pack()
    rows = _rows(fs, found, plans, start, time, step)
    rows["there"][:1] = there
    try:
        count = bulk.new_inodes(fs.writer, root, first, rows, template, found.data)
    except OSError:
        # some of the changes of a call are made, and others not
        fs.aborted = True
        raise
    if not count:
        return _NOTHING
    return Remembered(fs, root, found, step).remember(first, plans[:count], there=there)


def _is_made(fs: Mount, inode: LiveInode | None) -> bool:
    """Whether an inode was made by the call before, and nothing else was done since."""
    if inode is None or inode.xattrs is not NO_XATTRS or inode.prop_compress:
        return False
    item = inode.item
    return (
        item.generation == fs.transid
        and item.otime == item.ctime == fs.clock - CREATE_TICKS * tick(fs)
        and not (item.flags or item.sequence or inode.holders or inode.pages.is_dirty)
        and fs.delayed.node(inode.root, inode.ino) is None
    )


def _has_room(fs: Mount, root: int, found: NewInodes, row: NewInode, *, there: bool) -> bool:
    """Whether all calls for an inode find room, after the look that the first of them takes."""
    cost = _least_cost(fs, row, there=there)
    if cost < _room(fs):
        return True
    old, new = (
        _find_directory(fs, root, found, found.directory(span, name))
        for span, name in ((row.made, row.made_name), (row.path, row.name))
    )
    if old is None or new is None or not stays_enough(fs, _CALLS):
        return False
    at, size = row.path if there else row.made
    try:
        taken = find_entry(fs, found.whole(bytes(found.data[at : at + size]))).inode
    except OSError:
        return False
    items = RENAME_ITEMS + (old.ino != new.ino) if there else _create_items(row)
    size = items * (fs.reservations.item + fs.reservations.ref)
    return taken is None and look_ahead(fs, size) and cost < _room(fs)


def describe(fs: Mount, found: NewInodes, at: int, skip: int) -> Made:
    """Do what follows the rename of an inode that was made: its data, and what is said of it.

    Of what is written, as much as surely finds room.

    `skip`: so many of its first writes are done.
    Returns how many commands are done more.
    """
    row = found.rows[at]
    path = found.path(row)
    inode = find(fs, found.whole(path), follow=False)
    done = int(found.pieces.rows["size"][row.piece : row.piece + skip].sum())
    row = row._replace(writes=row.writes - skip, piece=row.piece + skip, size=row.size - done)
    before = row.start + done
    ours = inode is found.held if before else path != found.open
    if not (row.writes or row.has) or not ours or not _is_new(fs, inode, row, before):
        return _NOTHING
    each = _cost_of_write(fs)
    if not _data_fits(fs, row.size) or not stays_enough(fs, _CALLS):
        return _NOTHING
    if not look_ahead(fs, each if row.writes else 0):
        return _NOTHING
    room = _room(fs)
    if _cost_of_tail(fs, row) >= room:
        writes = min(row.writes, max(room - 1, 0) // each)
        size = int(found.pieces.rows["size"][row.piece : row.piece + writes].sum())
        row = row._replace(writes=writes, size=size, has=0)
    memory = Remembered(fs, inode.root, found, tick(fs))
    memory.describe(inode, row)
    if row.has:
        fs.delayed.update_inode(inode)
        note_change(fs, inode)
    fs.reservations.lent += _cost_of_tail(fs, row)
    return memory.end(row.writes + row.has.bit_count())


def _is_new(fs: Mount, inode: LiveInode, row: NewInode, size: int) -> bool:
    """Whether an inode was just made, renamed and written to up to `size`, and no more."""
    newest = inode.ino == live_subvolume(fs, inode.root).next_ino - 1
    plain = inode.xattrs is NO_XATTRS and not inode.item.flags and inode.item.nlink == 1
    if not (newest and plain) or stat.S_IMODE(inode.item.mode) & _SPECIAL:
        return False
    if not row.writes:
        return True
    return inode.pages.may_take(size) and not inode.pages.flush_on_close


def _is_quiet(fs: Mount, root: int) -> bool:
    """Whether nothing but trees and inodes has to know of calls in a subvolume."""
    return not (
        fs.quotas.enabled
        or fs.machine.asynchronous
        or fs.aborted
        or has_log(fs, root)
        or Patch.LOG_CONFLICT_LIST not in fs.behaviour
        or is_read_only(fs, root)
    )


def _room(fs: Mount) -> int:
    """Return how much calls may reserve before there is a look for room."""
    rsv = fs.reservations
    return rsv.room - rsv.lent if rsv.chunks == fs.raw_super.dev_item.bytes_used else 0


def _data_fits(fs: Mount, size: int) -> bool:
    free = fs.writer.space_info(BTRFS_BLOCK_GROUP_DATA).free
    return not size or size + 2 * fs.sectorsize + fs.dirty_bytes.count <= free


def _create_items(row: NewInode) -> int:
    """Return how many items the making of an inode changes."""
    return _CREATE_ITEMS + (row.type == LINK)


def _least_cost(fs: Mount, row: NewInode, *, there: bool) -> int:
    """Return what all calls for an inode reserve, if it stays in one directory."""
    rsv, items = fs.reservations, RENAME_ITEMS + (0 if there else _create_items(row))
    return items * (rsv.item + rsv.ref) + _cost_of_tail(fs, row)


def _cost_of_tail(fs: Mount, row: NewInode) -> int:
    """Return what the calls behind the rename reserve."""
    return row.writes * _cost_of_write(fs) + row.has.bit_count() * fs.reservations.path


def _cost_of_write(fs: Mount) -> int:
    return 2 * fs.reservations.item + fs.reservations.path


# ------------------------------------------------------------------------------------- planning --


def _plan(
    fs: Mount, root: int, found: NewInodes, start: int, ino: int, *, there: bool
) -> list[Plan]:
    """Say of inodes where they will be, up to one for which that is not plain.

    `ino`: the number of the first; `there`: it was made.
    """
    rsv = fs.reservations
    room, item, transid = _room(fs), rsv.item + rsv.ref, fs.transid
    free = fs.writer.space_info(BTRFS_BLOCK_GROUP_DATA).free - fs.dirty_bytes.count
    directories: dict[bytes, Directory | None] = {}
    by_number: dict[int, Directory] = {}
    plans: list[Plan] = []
    most_target = min(bulk.MOST_TARGET, fs.inline_room)
    end = found.rows[start].command
    for row in found.rows[start : start + _MOST]:
        if row.command != end:
            break
        end = row.end + row.more
        old_path = found.directory(row.made, row.made_name)
        new_path = found.directory(row.path, row.name)
        for path in (old_path, new_path):
            if path not in directories:
                known = _find_directory(fs, root, found, path)
                # a symbolic link may lead to one that has another path, too
                directories[path] = known and by_number.setdefault(known.ino, known)
        old, new = directories[old_path], directories[new_path]
        if old is None or new is None or row.target[1] > most_target:
            break
        if old.inode is None or old.inode.log.logged_trans == transid:
            break
        # what is written to a path that is open goes to the file that was there before
        if row.writes and found.path(row) == found.open:
            break
        if there:
            inode = live_subvolume(fs, root).inodes[ino]
            named = old.inode.dentries.get(found.made_name(row)) is inode
            if not named or inode.dir_index != old.next_index - 1:
                break
        cost = _least_cost(fs, row, there=there) + (old is not new) * item
        room -= cost
        free -= row.size + 2 * fs.sectorsize
        if room <= 0 or (row.size and free < 0):
            break
        old_index = old.next_index - there
        old.next_index = old_index + 1
        new_index = new.next_index
        new.next_index += 1
        made = None
        if row.type == DIRECTORY:
            made = Directory(None, ino + len(plans), DIR_START_INDEX)
            directories[found.path(row)] = made
        calls = row.has.bit_count()
        times = row.more > 0
        if times:
            room -= row.more * rsv.path
            times = room > 0 and _sets_times(fs, root, found, row, directories)
            calls += times * row.more
        ticks = (not there) * CREATE_TICKS + RENAME_TICKS + row.writes + 2 * calls
        there = False
        plans.append(Plan(row, old, old_index, new, new_index, made, ticks, cost, times))
        if row.more and not times:
            break
    return plans


def _sets_times(
    fs: Mount, root: int, found: NewInodes, row: NewInode,
    directories: dict[bytes, Directory | None],
) -> bool:  # fmt: skip
    """Whether the times behind an inode are those of directories, nothing else."""
    for path, _, _ in found.times(row):
        made = directories.get(path)
        if made is not None and made.inode is None:
            continue
        try:
            inode = find(fs, found.whole(path), follow=False)
        except OSError:
            return False
        if inode.root != root or not inode.is_dir or inode.item.flags:
            return False
    return True


def _find_directory(fs: Mount, root: int, found: NewInodes, path: bytes) -> Directory | None:
    """Return a directory that hands nothing down to what is made in it; None where it does."""
    whole = b"%b/%b/." % (found.prefix, path) if path else found.prefix + b"/."
    try:
        inode = find_parent(fs, whole).directory
    except OSError:
        return None
    if (
        inode.root != root
        or inode.ino == EMPTY_SUBVOL_DIR
        or inode.item.flags
        or inode.item.mode & stat.S_ISGID
        or inode.prop_compress
        or get_xattr(fs, inode, DEFAULT) is not None
    ):
        return None
    return Directory(inode, inode.ino, last_index(fs, inode) + 1)


def _rows(
    fs: Mount, found: NewInodes, plans: list[Plan], start: int, time: int, tick: int
) -> npt.NDArray[Any]:
    """Return what the tree has to know of inodes."""
    raw = found.raw[start : start + len(plans)]
    rows = np.zeros(len(plans), bulk.NEW_INODE)
    rows["directory"] = [plan.old.ino for plan in plans]
    rows["index"] = [plan.old_index for plan in plans]
    rows["to_directory"] = [plan.new.ino for plan in plans]
    rows["to_index"] = [plan.new_index for plan in plans]
    ends = np.cumsum([0, *(plan.ticks for plan in plans)][:-1])
    rows["time"] = time + ends * tick
    rows["mode"] = [mode_of(fs, plan.row) for plan in plans]
    for name, whole, start_of_name in (("made", "made", "made_name"), ("name", "path", "name")):
        rows[name]["at"] = raw[whole]["at"] + raw[start_of_name]
        rows[name]["size"] = raw[whole]["size"] - raw[start_of_name]
    rows["target"] = raw["target"]
    return rows
