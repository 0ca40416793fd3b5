# SPDX-License-Identifier: GPL-2.0-only
"""What the calls that make inodes of a stream leave in memory, with the trees changed already.

:mod:`.new_inodes` says which inodes those are, and where they will be.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

from btrfs_model.mount.files.pages import Whole
from btrfs_model.mount.inode import live_subvolume
from btrfs_model.mount.live_inode import (
    DIR_START_INDEX,
    NO_XATTRS,
    NS,
    InodeFields,
    LiveInode,
    file_type,
    split_ns,
)
from btrfs_model.mount.log.log_tree import note_change
from btrfs_model.mount.log.state import InodeLog
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.attr import utimes
from btrfs_model.mount.names.dir_item import pack_dir_item
from btrfs_model.mount.names.lookup import PATH_MAX, find
from btrfs_model.native import bulk
from btrfs_model.native.stream import MODE, OWNERS, TIMES, Columns, NewInode, find_inodes
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.ondisk.stream import COMMANDS_BY_NAME
from btrfs_model.ondisk.structs import Timespec
from btrfs_model.patches import Patch

CREATE_TICKS, RENAME_TICKS = 4, 9
_OWN_CHANGE, _OLD_DIRECTORY, _NEW_DIRECTORY, _ROOT = 7, 8, 11, 12
"""Which of these ticks the inode, the directories and the root item have in the end."""

_NO_ID: Final = 2**32 - 1
_PERMISSIONS: Final = 0o7777
FILE, DIRECTORY, LINK = (COMMANDS_BY_NAME[name].number for name in ("mkfile", "mkdir", "symlink"))
_MODES: Final = {
    FILE: stat.S_IFREG | 0o600, DIRECTORY: stat.S_IFDIR | 0o700, LINK: stat.S_IFLNK | 0o777
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

    def made_name(self, row: NewInode) -> bytes:
        """Return the name under which an inode is made."""
        at, size = row.made
        return bytes(self.data[at + row.made_name : at + size])

    def path(self, row: NewInode) -> bytes:
        """Return the path that an inode gets, in the subvolume."""
        at, size = row.path
        return bytes(self.data[at : at + size])

    def directory(self, span: tuple[int, int], name: int) -> bytes:
        """Return the path of the directory of a name, in the subvolume."""
        return bytes(self.data[span[0] : span[0] + max(name - 1, 0)])


class Directory:
    """A directory in which names are made: `inode` is None before it is made itself."""

    __slots__ = ("ino", "inode", "next_index")

    def __init__(self, inode: LiveInode | None, ino: int, next_index: int) -> None:
        self.inode, self.ino, self.next_index = inode, ino, next_index


class Plan(NamedTuple):
    """Where an inode will be: directories, indexes there; what its calls take of clock and room.

    `times`: whether the times behind it are set as well.
    """

    row: NewInode
    old: Directory
    old_index: int
    new: Directory
    new_index: int
    made: Directory | None
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


def mode_of(fs: Mount, row: NewInode) -> int:
    """Return type and permissions with which an inode is made."""
    mode = _MODES[row.type]
    return mode if row.type == LINK else mode & ~fs.umask


class Remembered:
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

    def remember(self, first: int, plans: list[Plan], *, there: bool) -> Made:
        """Remember inodes that are in the tree.

        `first`: the number of the first; `there`: what is done to make it is remembered already.
        """
        fs, rsv = self._fs, self._fs.reservations
        live_subvolume(fs, self._root).next_ino += len(plans) - there
        if there:
            self._forget_name(plans[0], self._inodes[first])
        for ino, plan in enumerate(plans, first):
            follows = plans[ino - first + 1].old if ino - first + 1 < len(plans) else None
            self._make(ino, plan, is_last=follows is not plan.old)
            rsv.lent += plan.reserved
            if plan.times:
                self._set_times(plan.row)
        if any(plan.row.type != FILE for plan in plans):
            # d_drop() of what is no file
            live_subvolume(fs, int(ObjectId.FS_TREE)).walked.clear()
        done, last = plans[0].row, plans[-1]
        commands = last.row.end + last.times * last.row.more - done.command - there
        return self.end(commands, len(plans))

    def _set_times(self, row: NewInode) -> None:
        """Set the times of directories, by calls like any other."""
        fs = self._fs
        for path, atime, mtime in self._found.times(row):
            whole = self._found.whole(path)
            utimes(fs, find(fs, whole, follow=False), atime, mtime, whole)
        self._root_time = fs.clock - self._tick

    def _forget_name(self, plan: Plan, inode: LiveInode) -> None:
        """Let all be as before an inode was made that is there, except for its entry in memory."""
        fs, old = self._fs, plan.old.inode
        assert old is not None
        fs.clock -= CREATE_TICKS * self._tick
        fs.started -= 1
        fs.delayed.delete_index(old, plan.old_index)
        old.item.size -= 2 * len(self._found.made_name(plan.row))
        old.item.sequence -= 1

    def _make(self, ino: int, plan: Plan, *, is_last: bool) -> None:
        """Remember an inode; `is_last`: the next one is not made in the same directory."""
        fs, delayed, tick, transid = self._fs, self._fs.delayed, self._tick, self._fs.transid
        row, data, time = plan.row, self._found.data, self._fs.clock
        old, new = plan.old.inode, plan.new.inode
        assert old is not None and new is not None
        mode, (_, size) = mode_of(fs, row), row.target
        changed, last_unlink = time + _OWN_CHANGE * tick, transid
        if old is new and row.type == DIRECTORY:
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
        fs.clock = time + (CREATE_TICKS + RENAME_TICKS) * tick
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

    def _change_old(self, old: LiveInode, plan: Plan, time: int) -> None:
        """Let the directory follow in which an inode was made, and which it left."""
        name = self._found.made_name(plan.row)
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
