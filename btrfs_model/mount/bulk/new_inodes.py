# SPDX-License-Identifier: GPL-2.0-only
"""New inodes as a full send stream makes them: made, renamed, filled and described.

The calls for such an inode are ``create`` (or ``mkdir``, ``symlink``) under a name of its own,
``rename``, ``write`` from its first byte on, ``chown``, ``chmod`` and ``utimes``; then ``utimes``
of directories may follow. What those of many inodes do to the tree is carried out at once
(``bm_writer_new_inodes()``); then what they leave in memory, each value as the last of the calls
leaves it.

That is done only while every one of the calls finds room without a look for it, in directories that
hand nothing down. Any other inode is made by one call after the other, in its turn.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.files.pages import Whole
from btrfs_model.mount.inode import last_index, live_subvolume
from btrfs_model.mount.live_inode import (
    DEFAULT,
    DIR_START_INDEX,
    EMPTY_SUBVOL_DIR,
    NO_XATTRS,
    NS,
    InodeFields,
    LiveInode,
    file_type,
    split_ns,
)
from btrfs_model.mount.log.log_tree import has_log, note_change
from btrfs_model.mount.log.state import InodeLog
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.attr import utimes
from btrfs_model.mount.names.dir_item import pack_dir_item
from btrfs_model.mount.names.lookup import PATH_MAX, find, find_parent, is_read_only
from btrfs_model.mount.names.rename import RENAME_ITEMS
from btrfs_model.mount.names.xattr import get_xattr
from btrfs_model.mount.space.block_group import stays_enough
from btrfs_model.native import bulk
from btrfs_model.native.stream import MODE, OWNERS, TIMES, Columns, NewInode, find_inodes
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.ondisk.stream import COMMANDS_BY_NAME
from btrfs_model.ondisk.structs import Timespec
from btrfs_model.patches import Patch

_MOST: Final = 64
_CALLS: Final = 4
"""An inode takes the room of so many small calls."""

_CREATE_ITEMS: Final = 5
_CREATE_TICKS, _RENAME_TICKS = 4, 9
_OWN, _OLD_DIRECTORY, _OWN_CHANGE, _NEW_DIRECTORY, _ROOT = 0, 8, 7, 11, 12
"""Which of these ticks the inode, the directories and the root item have in the end."""

_NO_ID: Final = 2**32 - 1
_PERMISSIONS: Final = 0o7777
_SPECIAL: Final = 0o7000
_FILE, _DIRECTORY, _LINK = (
    COMMANDS_BY_NAME[name].number for name in ("mkfile", "mkdir", "symlink")
)
_MODES: Final = {
    _FILE: stat.S_IFREG | 0o600, _DIRECTORY: stat.S_IFDIR | 0o700, _LINK: stat.S_IFLNK | 0o777
}  # fmt: skip


class NewInodes:
    """The new inodes of a batch of commands.

    `data`, `columns`: of the batch.
    `most`: bytes of the path of a subvolume.
    `prefix` (bytes): the path of the subvolume that is received.
    `open` (bytes or None): the path of the file that was opened last, in the subvolume.
    `held` (LiveInode or None): this file, if it is open.
    `rows` (list of NewInode): the inodes, in the order of the stream.
    """

    def __init__(self, data: memoryview, columns: Columns, most: int) -> None:
        raw, spans, times = find_inodes(data, columns, PATH_MAX - most - 2)
        self.data, self.prefix = data, b""
        self.open: bytes | None = None
        self.held: LiveInode | None = None
        self.pieces = bulk.Pieces.of(data, spans)
        self.raw = raw
        self.rows = [NewInode._make(row) for row in raw.tolist()]
        self._times = times.tolist()

    def times(self, row: NewInode) -> Iterator[tuple[bytes, int, int]]:
        """Yield the directories whose times are set behind an inode: paths and times."""
        for (at, size), atime, mtime in self._times[row.first : row.first + row.more]:
            yield bytes(self.data[at : at + size]), _join_time(*atime), _join_time(*mtime)

    def whole(self, path: bytes) -> bytes:
        """Return a path from the top of the filesystem."""
        return b"%b/%b" % (self.prefix, path)

    def path(self, row: NewInode) -> bytes:
        """Return the path that an inode gets, in the subvolume."""
        at, size = row.path
        return bytes(self.data[at : at + size])

    def directory(self, span: tuple[int, int], name: int) -> bytes:
        """Return the path of the directory of a name, in the subvolume."""
        return bytes(self.data[span[0] : span[0] + max(name - 1, 0)])


class _Directory:
    """A directory in which names are made: `inode` is None before it is made itself."""

    __slots__ = ("ino", "inode", "next_index")

    def __init__(self, inode: LiveInode | None, ino: int, next_index: int) -> None:
        self.inode, self.ino, self.next_index = inode, ino, next_index


class _Plan(NamedTuple):
    """Where an inode will be: directories, indexes there; what its calls take of clock and room.

    `times`: whether the times behind it are set as well.
    """

    row: NewInode
    old: _Directory
    old_index: int
    new: _Directory
    new_index: int
    made: _Directory | None
    ticks: int
    reserved: int
    times: bool


class Made(NamedTuple):
    """How many commands were done, inodes made, files written to, and the last of these."""

    commands: int
    inodes: int = 0
    files: int = 0
    written: LiveInode | None = None
    path: bytes = b""


_NOTHING: Final = Made(0)


def make_inodes(fs: Mount, found: NewInodes, start: int) -> Made:
    """Make inodes of a stream, from one of them on: as many as surely find room."""
    # often there is no room for one, which is known before it is known where it goes
    if _least_cost(fs, found.rows[start]) >= _room(fs):
        return _NOTHING
    root = find(fs, found.prefix).root
    if not _is_quiet(fs, root):
        return _NOTHING
    first = live_subvolume(fs, root).next_ino
    plans = _plan(fs, root, found, start, first)
    calls = sum(_CALLS + plan.times * plan.row.more for plan in plans)
    if not plans or not stays_enough(fs, calls):
        return _NOTHING
    time, tick = fs.clock, _tick(fs)
    template = InodeFields(generation=fs.transid, transid=fs.transid, uid=fs.uid, gid=fs.gid).pack()
    try:
        count = bulk.new_inodes(
            fs.writer, root, first, _rows(fs, found, plans, start, time, tick), template, found.data
        )
    except OSError:
        # some of the changes of a call are made, and others not
        fs.aborted = True
        raise
    return _Memory(fs, root, found, tick).remember(first, plans[:count]) if count else _NOTHING


def describe(fs: Mount, found: NewInodes, at: int, skip: int) -> Made:
    """Do what follows the rename of an inode that was made: its data, and what is said of it.

    Of what is written, as much as surely finds room.

    `skip`: so many of its first writes are done.
    Returns how many commands are done more.
    """
    row = found.rows[at]
    path = found.path(row)
    inode = find(fs, found.whole(path), follow=False)
    before = int(found.pieces.rows["size"][row.piece : row.piece + skip].sum())
    row = row._replace(writes=row.writes - skip, piece=row.piece + skip, size=row.size - before)
    ours = inode is found.held if skip else path != found.open
    if not ours or not _is_new(fs, inode, row, before):
        return _NOTHING
    each, room = _cost_of_write(fs), _room(fs)
    if not _data_fits(fs, row.size) or not stays_enough(fs, _CALLS):
        return _NOTHING
    if _cost_of_tail(fs, row) >= room:
        writes = min(row.writes, max(room - 1, 0) // each)
        size = int(found.pieces.rows["size"][row.piece : row.piece + writes].sum())
        row = row._replace(writes=writes, size=size, has=0)
    memory = _Memory(fs, inode.root, found, _tick(fs))
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


def _tick(fs: Mount) -> int:
    """Return by how much the clock goes on when it is read."""
    before = fs.clock
    fs.now()
    tick, fs.clock = fs.clock - before, before
    return tick


def _is_quiet(fs: Mount, root: int) -> bool:
    """Whether nothing but trees and inodes has to know of calls in a subvolume."""
    return not (
        fs.quotas.enabled
        or fs.machine.asynchronous
        or fs.aborted
        or fs.reservations.given_up == fs.transid
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


def _least_cost(fs: Mount, row: NewInode) -> int:
    """Return what all calls for an inode reserve, if it stays in one directory."""
    rsv, items = fs.reservations, _CREATE_ITEMS + (row.type == _LINK) + RENAME_ITEMS
    return items * (rsv.item + rsv.ref) + _cost_of_tail(fs, row)


def _cost_of_tail(fs: Mount, row: NewInode) -> int:
    """Return what the calls behind the rename reserve."""
    return row.writes * _cost_of_write(fs) + row.has.bit_count() * fs.reservations.path


def _cost_of_write(fs: Mount) -> int:
    return 2 * fs.reservations.item + fs.reservations.path


# ------------------------------------------------------------------------------------- planning --


def _plan(fs: Mount, root: int, found: NewInodes, start: int, ino: int) -> list[_Plan]:
    """Say of inodes where they will be, up to one for which that is not plain."""
    rsv = fs.reservations
    room, item, transid = _room(fs), rsv.item + rsv.ref, fs.transid
    free = fs.writer.space_info(BTRFS_BLOCK_GROUP_DATA).free - fs.dirty_bytes.count
    directories: dict[bytes, _Directory | None] = {}
    by_number: dict[int, _Directory] = {}
    plans: list[_Plan] = []
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
                there = _find_directory(fs, root, found, path)
                # a symbolic link may lead to one that has another path, too
                directories[path] = there and by_number.setdefault(there.ino, there)
        old, new = directories[old_path], directories[new_path]
        if old is None or new is None or row.target[1] > most_target:
            break
        if old.inode is None or old.inode.log.logged_trans == transid:
            break
        # what is written to a path that is open goes to the file that was there before
        if row.writes and found.path(row) == found.open:
            break
        cost = _least_cost(fs, row) + (old is not new) * item
        room -= cost
        free -= row.size + 2 * fs.sectorsize
        if room <= 0 or (row.size and free < 0):
            break
        old_index = old.next_index
        old.next_index += 1
        new_index = new.next_index
        new.next_index += 1
        made = None
        if row.type == _DIRECTORY:
            made = _Directory(None, ino + len(plans), DIR_START_INDEX)
            directories[found.path(row)] = made
        calls = row.has.bit_count()
        times = row.more > 0
        if times:
            room -= row.more * rsv.path
            times = room > 0 and _sets_times(fs, root, found, row, directories)
            calls += times * row.more
        ticks = _CREATE_TICKS + _RENAME_TICKS + row.writes + 2 * calls
        plans.append(_Plan(row, old, old_index, new, new_index, made, ticks, cost, times))
        if row.more and not times:
            break
    return plans


def _sets_times(
    fs: Mount, root: int, found: NewInodes, row: NewInode,
    directories: dict[bytes, _Directory | None],
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


def _find_directory(fs: Mount, root: int, found: NewInodes, path: bytes) -> _Directory | None:
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
    return _Directory(inode, inode.ino, last_index(fs, inode) + 1)


def _rows(
    fs: Mount, found: NewInodes, plans: list[_Plan], start: int, time: int, tick: int
) -> npt.NDArray[Any]:
    """Return what the tree has to know of inodes."""
    raw = found.raw[start : start + len(plans)]
    rows = np.zeros(len(plans), bulk.NEW_INODE)
    rows["directory"] = [plan.old.ino for plan in plans]
    rows["index"] = [plan.old_index for plan in plans]
    rows["to_directory"] = [plan.new.ino for plan in plans]
    rows["to_index"] = [plan.new_index for plan in plans]
    ends = np.cumsum([0, *(plan.ticks for plan in plans)][:-1])
    rows["time"] = time + (ends + _OWN) * tick
    rows["mode"] = [_mode(fs, plan.row) for plan in plans]
    for name, whole, start_of_name in (("made", "made", "made_name"), ("name", "path", "name")):
        rows[name]["at"] = raw[whole]["at"] + raw[start_of_name]
        rows[name]["size"] = raw[whole]["size"] - raw[start_of_name]
    rows["target"] = raw["target"]
    return rows


def _mode(fs: Mount, row: NewInode) -> int:
    mode = _MODES[row.type]
    return mode if row.type == _LINK else mode & ~fs.umask


# ------------------------------------------------------------------------------------- in memory --


class _Memory:
    """What calls leave in memory: in inodes, delayed items and the root item.

    `found`: the inodes that they make.
    `tick`: by how much the clock goes on when it is read.
    """

    def __init__(self, fs: Mount, root: int, found: NewInodes, tick: int) -> None:
        self._fs, self._root, self._found, self._tick = fs, root, found, tick
        self._inodes = live_subvolume(fs, root).inodes
        self._touched: dict[int, LiveInode] = {}
        self._root_time: int | None = None
        self._written: tuple[LiveInode, NewInode] | None = None
        self._files = 0
        log = fs.tree_logs.root(root)
        self._log_trans = log.log_transid, log.log_transid - 1
        if Patch.LOG_SUB_TRANS not in fs.behaviour:
            self._log_trans = log.log_transid, log.last_log_commit
        self._copies = Patch.LOG_NEW_NAME_REFS in fs.behaviour

    def remember(self, first: int, plans: list[_Plan]) -> Made:
        """Remember inodes that are in the tree; the first one's number is `first`."""
        fs, rsv = self._fs, self._fs.reservations
        live_subvolume(fs, self._root).next_ino += len(plans)
        for ino, plan in enumerate(plans, first):
            follows = plans[ino - first + 1].old if ino - first + 1 < len(plans) else None
            self._make(ino, plan, is_last=follows is not plan.old)
            rsv.lent += plan.reserved
            if plan.times:
                self._set_times(plan.row)
        if any(plan.row.type != _FILE for plan in plans):
            # d_drop() of what is no file
            live_subvolume(fs, int(ObjectId.FS_TREE)).walked.clear()
        done, last = plans[0].row, plans[-1]
        commands = last.row.end + last.times * last.row.more - done.command
        return self.end(commands, len(plans))

    def _set_times(self, row: NewInode) -> None:
        """Set the times of directories, by calls like any other."""
        fs = self._fs
        for path, atime, mtime in self._found.times(row):
            whole = self._found.whole(path)
            utimes(fs, find(fs, whole, follow=False), atime, mtime, whole)
        self._root_time = fs.clock - self._tick

    def _make(self, ino: int, plan: _Plan, *, is_last: bool) -> None:
        """Remember an inode; `is_last`: the next one is not made in the same directory."""
        fs, delayed, tick, transid = self._fs, self._fs.delayed, self._tick, self._fs.transid
        row, data, time = plan.row, self._found.data, self._fs.clock
        old, new = plan.old.inode, plan.new.inode
        assert old is not None and new is not None
        mode, (_, size) = _mode(fs, row), row.target
        changed, last_unlink = time + _OWN_CHANGE * tick, transid
        if old is new and row.type == _DIRECTORY:
            last_unlink = 0
        item = InodeFields(
            transid, transid, size, size, 0, 1, fs.uid, fs.gid, mode, 0, 0, 2, (0, 0, 0, 0),
            time, changed, time, time,
        )  # fmt: skip
        log = InodeLog(
            transid - 1, transid, *self._log_trans, last_unlink, full_sync=True,
            copy_everything=self._copies,
            parent=(new.root, new.ino) if row.writes or row.has else (0, 0),
        )  # fmt: skip
        inode = self._inodes[ino] = LiveInode(
            self._root, ino, item, plan.new_index, None, 0, b"", log, fs.dirty_bytes, NO_XATTRS
        )
        if plan.made is not None:
            inode.index_cnt = DIR_START_INDEX
            plan.made.inode = inode
        if old.ino not in self._touched:
            delayed.update_inode(old)
        self._change_old(old, plan, time)
        at = row.path[0] + row.name
        name = bytes(data[at : row.path[0] + row.path[1]])
        new_ends = time + _NEW_DIRECTORY * tick
        new.dentries[name] = inode
        new.index_cnt = plan.new_index + 1
        fields = new.item
        fields.size += 2 * len(name)
        fields.sequence += 2
        fields.mtime = fields.ctime = new_ends
        if is_last:
            delayed.update_inode(old)
        self._root_time = time + _ROOT * tick
        fs.started += 2
        fs.clock = time + (_CREATE_TICKS + _RENAME_TICKS) * tick
        packed = b"" if row.has else item.pack()
        self.describe(inode, row)
        delayed.update_items(self._root, (ino,), (packed or item.pack(),))
        entry = pack_dir_item(inode.key, transid, file_type(mode), name)
        delayed.insert_index(new, plan.new_index, entry)
        if new.ino not in self._touched:
            self._touched[new.ino] = new
            delayed.update_inode(new)
        if row.has:
            delayed.move_last(self._root, ino)

    def _change_old(self, old: LiveInode, plan: _Plan, time: int) -> None:
        """Let the directory follow in which an inode was made, and which it left."""
        name = bytes(self._found.data[plan.row.made[0] :][plan.row.made_name : plan.row.made[1]])
        self._touched[old.ino] = old
        old.dentries.pop(name, None)
        old.index_cnt = plan.old_index + 1
        item, log, transid = old.item, old.log, self._fs.transid
        item.transid = transid
        item.sequence += 3
        item.mtime = item.ctime = time + _OLD_DIRECTORY * self._tick
        log.logged_trans = log.logged_trans or transid - 1
        if plan.old is not plan.new:
            log.last_unlink_trans = transid

    def describe(self, inode: LiveInode, row: NewInode) -> None:
        """Give an inode its data, owners, permissions and times."""
        fs, tick, item = self._fs, self._tick, inode.item
        if row.writes:
            whole = Whole(self._found.pieces, row.piece, row.writes, row.size)
            inode.pages.take(whole)
            fs.dirty_files.setdefault((inode.root, inode.ino), inode)
            item.sequence += row.writes
            fs.clock += row.writes * tick
            item.mtime = item.ctime = fs.clock - tick
            self._written = inode, row
            self._files += 1
        if row.has:
            self._set(item, row)
            calls = row.has.bit_count()
            item.transid = fs.transid
            item.sequence += calls
            fs.started += calls
            fs.clock += 2 * calls * tick
            item.ctime, self._root_time = fs.clock - 2 * tick, fs.clock - tick

    @staticmethod
    def _set(item: InodeFields, row: NewInode) -> None:
        """Do what chown(2), chmod(2) and utimensat(2) do with the fields."""
        if row.has & OWNERS:
            item.uid = item.uid if row.uid == _NO_ID else row.uid
            item.gid = item.gid if row.gid == _NO_ID else row.gid
        if row.has & MODE:
            item.mode = item.mode & ~_PERMISSIONS | row.mode & _PERMISSIONS
        if row.has & TIMES:
            item.atime, item.mtime = _join_time(*row.atime), _join_time(*row.mtime)

    def end(self, commands: int, inodes: int = 0) -> Made:
        """Let the directories and the root item be as the last call left them."""
        fs = self._fs
        for directory in self._touched.values():
            directory.item.transid = fs.transid
            fs.delayed.refresh_inode(directory)
            note_change(fs, directory)
        if self._root_time is not None:
            fs.in_transaction = True
            live = fs.live_root(self._root)
            live.ctransid, live.dirty = fs.transid, True
            live.ctime = Timespec._make(split_ns(self._root_time))
        if self._written is None:
            return Made(commands, inodes)
        inode, row = self._written
        return Made(commands, inodes, self._files, inode, self._found.path(row))


def _join_time(seconds: int, nanoseconds: int) -> int:
    return seconds * NS + nanoseconds
