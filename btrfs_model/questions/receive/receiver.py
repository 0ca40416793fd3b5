# SPDX-License-Identifier: GPL-2.0-only
"""One command after the other: ``cmds/receive.c`` of btrfs-progs 6.2 on a model filesystem.

Methods have the names of its functions; what is one system call stands in a table. A subvolume is
made by its first command and stays writable until the next one, or the end of the stream, finishes
it: then it gets the UUID from which it was received, by which later streams find it as their
parent, and becomes read-only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from btrfs_model.cost.receiver import ReceiverCalls
from btrfs_model.mount.bulk.made_inodes import Made, NewInodes
from btrfs_model.mount.bulk.new_inodes import describe, make_inodes
from btrfs_model.mount.names.dir_item import NAME_LEN, fail
from btrfs_model.ondisk.stream import COMMANDS
from btrfs_model.questions.receive.encoded import encoded_write
from btrfs_model.questions.receive.search import find_subvolume

if TYPE_CHECKING:
    from collections.abc import Callable

    from btrfs_model.mount.live_inode import LiveInode
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.questions.receive.encoded import Values
    from btrfs_model.stream.index import Batch
    from btrfs_model.stream.reader import Command

_U32: Final = (1 << 32) - 1
_SECOND: Final = 10**9


class _Subvolume(NamedTuple):
    """The subvolume that is being received."""

    path: bytes
    uuid: bytes
    ctransid: int


class Receiver:
    """Carries out commands.

    `fs`: on which filesystem.
    `directory`: where subvolumes are made.
    `received` (list of bytes): paths of the subvolumes that were begun.
    `counts` (Counter): commands that were carried out, by name.
    `calls` (ReceiverCalls): the system calls for them.
    """

    def __init__(self, fs: WritableFilesystem, directory: str | bytes) -> None:
        self.fs = fs
        self.directory = os.fsencode(directory).strip(b"/")
        # the slash makes it a directory
        fs.resolve(self.directory + b"/")
        self.received: list[bytes] = []
        self.counts: Counter[str] = Counter()
        self.calls = ReceiverCalls(sectorsize=fs.sectorsize)
        self._subvolume: _Subvolume | None = None
        self._write_path = b""
        self._write_inode: LiveInode | None = None
        self._ended = False
        self._next = 0

    def begin_batch(self, batch: Batch) -> None:
        """Look which of the next commands make new inodes."""
        most = len(self.directory) + NAME_LEN + 1
        self._types, self._next = batch.type, 0
        self._inodes = NewInodes(batch.data, batch.columns, most)

    def process_inodes(self, at: int) -> int:
        """Carry out commands of the batch at once, where they say what new inodes are.

        `at`: the first of them.
        Returns how many; 0: the next command has to be carried out by itself.
        Raises OSError: when a tree does not take what has to be there; then there is no commit.
        """
        rows = self._inodes.rows
        while self._next < len(rows) and rows[self._next].end <= at:
            self._next += 1
        if self._subvolume is None or self._next == len(rows):
            return 0
        row, held = rows[self._next], self._write_inode
        skip = at - row.command
        if not 0 <= skip <= row.head + row.writes or (held and not held.item.nlink):
            return 0
        self._inodes.prefix = self._subvolume.path
        self._inodes.open, self._inodes.held = self.calls.open_path, held
        if skip < row.head:
            made = make_inodes(self.fs, self._inodes, self._next, there=skip == 1)
        else:
            made = describe(self.fs, self._inodes, self._next, skip - row.head)
        self._next += made.inodes
        self._count_many(at, made)
        return made.commands

    def _count_many(self, at: int, made: Made) -> None:
        """Count commands that were carried out at once; the file that was written last is open."""
        if not made.commands:
            return
        numbers = np.bincount(self._types[at : at + made.commands]).tolist()
        counts = {COMMANDS[n].name: count for n, count in enumerate(numbers) if count}
        self.counts.update(counts)
        end = 0
        if made.written is not None:
            if made.written is not self._write_inode:
                self.close_inode_for_write()
                made.written.holders += 1
                self._write_inode = made.written
                self._write_path = _join(self._inodes.prefix, made.path)
            end = made.written.i_size
        self.calls.add_many(counts, made.files, made.path, end)

    def process(self, command: Command) -> None:
        """Carry out a command.

        Raises OSError: when that cannot be done; then nothing was.
        """
        name, values = command.name, command.attributes
        call = _CALLS.get(name)
        if call is not None:
            call(self.fs, self._full(values), values)
        else:
            process: Callable[[Values], None] = getattr(self, f"process_{name}")
            process(values)
        self.calls.add(command)
        self.counts[name] += 1

    # ------------------------------------------------------------------------- subvolumes ---

    def _begin(self, values: Values) -> bytes:
        """Finish the subvolume before; return the path of the new one."""
        name = _path(values)
        if not name or b"/" in name or name in (b".", b".."):
            raise fail(errno.EINVAL, name)
        self.finish_subvol()
        return _join(self.directory, name)

    def _begun(self, values: Values, path: bytes) -> None:
        self._subvolume = _Subvolume(path, _bytes(values, "uuid"), _int(values, "ctransid"))
        self.received.append(path)

    def process_subvol(self, values: Values) -> None:
        """Make an empty subvolume."""
        path = self._begin(values)
        self.fs.create_subvolume(path)
        self._begun(values, path)

    def process_snapshot(self, values: Values) -> None:
        """Take a writable snapshot of the parent, to be changed into what is received."""
        path = self._begin(values)
        uuid = _bytes(values, "clone_uuid")
        parent = find_subvolume(self.fs, uuid, received_only=False)
        if parent is None:
            raise OSError(errno.ENOENT, f"cannot find parent subvolume {uuid.hex()}")
        self.fs.snapshot(parent, path, read_only=False)
        self._begun(values, path)

    def finish_subvol(self) -> None:
        """Say where the subvolume was received from, and make it read-only."""
        if self._subvolume is None:
            return
        self.close_inode_for_write()
        (path, uuid, ctransid), self._subvolume = self._subvolume, None
        self.fs.set_received_subvolume(path, uuid, ctransid)
        self.fs.set_read_only(path)

    def process_end(self, values: Values) -> None:
        """Finish the subvolume; another stream may follow."""
        self.finish_subvol()

    def _full(self, values: Values, attribute: str = "path") -> bytes:
        """Return the path, from the top of the filesystem, that a command names."""
        if self._subvolume is None:
            raise OSError(errno.EINVAL, "no subvolume was begun before")
        path = _path(values, attribute)
        # a kernel sends no such paths; they would lead out of the subvolume
        if path.startswith(b"/") or (b".." in path and b".." in path.split(b"/")):
            raise fail(errno.EINVAL, path)
        return _join(self._subvolume.path, path)

    # ------------------------------------------------------------------------------ names ---

    def process_mkfile(self, values: Values) -> None:
        """creat(2): a file that is there already becomes empty."""
        path = self._full(values)
        try:
            self.fs.create(path, 0o600)
        except FileExistsError:
            self.fs.truncate(path, 0)

    def process_rename(self, values: Values) -> None:
        """rename(2)."""
        self.fs.rename(self._full(values), self._full(values, "path_to"))

    def process_link(self, values: Values) -> None:
        """link(2)."""
        self.fs.link(self._full(values, "path_link"), self._full(values))

    # ------------------------------------------------------------------------------- data ---

    def open_inode_for_write(self, path: bytes) -> None:
        """Open a file, unless it is the one that is open."""
        if self._write_inode is not None and self._write_path == path:
            return
        self.close_inode_for_write()
        self._write_inode, self._write_path = self.fs.hold(path), path

    def close_inode_for_write(self) -> None:
        """Close the file that is open, if any."""
        if self._write_inode is not None:
            self.fs.release(self._write_inode)
        self._write_inode = None

    def process_write(self, values: Values) -> None:
        """pwrite(2)."""
        path = self._full(values)
        self.open_inode_for_write(path)
        self.fs.write(path, _off_t(values, "file_offset"), _bytes(values, "data"))

    def process_clone(self, values: Values) -> None:
        """BTRFS_IOC_CLONE_RANGE, from this subvolume or one that was received before."""
        path, uuid = self._full(values), _bytes(values, "clone_uuid")
        assert self._subvolume is not None
        if uuid == self._subvolume.uuid:
            source = self._subvolume.path
        else:
            found = find_subvolume(self.fs, uuid, received_only=True)
            if found is None:
                raise OSError(errno.ENOENT, f"did not find source subvolume {uuid.hex()}")
            source = found
        self.open_inode_for_write(path)
        self.fs.clone_range(
            _join(source, _path(values, "clone_path")), path, _off_t(values, "clone_offset"),
            _off_t(values, "file_offset"), _off_t(values, "clone_len"),
        )  # fmt: skip

    def process_encoded_write(self, values: Values) -> None:
        """BTRFS_IOC_ENCODED_WRITE, or decompression and pwrite(2) where the kernel refuses."""
        path = self._full(values)
        if values.get("encryption", 0):
            raise fail(errno.EOPNOTSUPP, path)
        self.open_inode_for_write(path)
        encoded_write(self.fs, path, values)

    def process_fallocate(self, values: Values) -> None:
        """fallocate(2)."""
        path, mode = self._full(values), _int(values, "fallocate_mode")
        self.open_inode_for_write(path)
        offset, length = _off_t(values, "file_offset"), _off_t(values, "size")
        self.fs.vfs_fallocate(path, mode, offset, length)

    # ------------------------------------------------------------------------- attributes ---

    def process_chown(self, values: Values) -> None:
        """lchown(2)."""
        # uid_t and gid_t have 32 bits, and their highest value changes nothing
        uid, gid = (_int(values, name) & _U32 for name in ("uid", "gid"))
        uid, gid = (-1 if number == _U32 else number for number in (uid, gid))
        self.fs.chown(self._full(values), uid, gid, follow=False)

    def process_utimes(self, values: Values) -> None:
        """utimensat(2): the change time cannot be set."""
        times = _time(values, "atime"), _time(values, "mtime")
        self.fs.utimes(self._full(values), *times, follow=False)

    def process_enable_verity(self, values: Values) -> None:
        """FS_IOC_ENABLE_VERITY, which fails as on a kernel without fs-verity.

        Raises OSError: EOPNOTSUPP.
        """
        raise fail(errno.EOPNOTSUPP, self._full(values))


def _join(directory: bytes, path: bytes) -> bytes:
    return directory + b"/" + path if directory and path else directory or path


def _path(values: Values, attribute: str = "path") -> bytes:
    value = values[attribute]
    assert isinstance(value, bytes)
    return value


def _bytes(values: Values, attribute: str) -> bytes:
    value = values[attribute]
    assert isinstance(value, (bytes, memoryview))
    return bytes(value)


def _int(values: Values, attribute: str) -> int:
    value = values[attribute]
    assert isinstance(value, int)
    return value


def _off_t(values: Values, attribute: str) -> int:
    """Return a number as the system calls take sizes and offsets: signed."""
    number = _int(values, attribute)
    return number - (number >> 63 << 64)


def _time(values: Values, attribute: str) -> int:
    """Return a time in nanoseconds since 1970."""
    value = values[attribute]
    assert isinstance(value, tuple)
    seconds, nanoseconds = value
    if nanoseconds >= _SECOND:
        # UTIME_NOW and UTIME_OMIT too, which no kernel sends
        raise fail(errno.EINVAL, _path(values))
    return int(seconds * _SECOND + nanoseconds)


# Commands that are one system call on a path. Permissions come later, as commands of their own.
_CALLS: Final[dict[str, Callable[[WritableFilesystem, bytes, Values], object]]] = {
    "mkdir": lambda fs, path, _: fs.mkdir(path, 0o700),
    "mknod": lambda fs, path, values: fs.mknod(
        path, stat.S_IFMT(_int(values, "mode") & _U32), _int(values, "rdev")
    ),
    "mkfifo": lambda fs, path, _: fs.mknod(path, stat.S_IFIFO | 0o600),
    "mksock": lambda fs, path, _: fs.mknod(path, stat.S_IFSOCK | 0o600),
    "symlink": lambda fs, path, values: fs.symlink(_path(values, "path_link"), path),
    "unlink": lambda fs, path, _: fs.unlink(path),
    "rmdir": lambda fs, path, _: fs.rmdir(path),
    "truncate": lambda fs, path, values: fs.truncate(path, _off_t(values, "size")),
    # the stream was sent without data
    "update_extent": lambda fs, path, values: None,
    "set_xattr": lambda fs, path, values: fs.setxattr(
        path, _path(values, "xattr_name"), _bytes(values, "xattr_data"), follow=False
    ),
    "remove_xattr": lambda fs, path, values: fs.removexattr(
        path, _path(values, "xattr_name"), follow=False
    ),
    "chmod": lambda fs, path, values: fs.chmod(path, _int(values, "mode") & _U32),
    # btrfs-progs has no way to set the flags of an inode as the stream has them
    "fileattr": lambda fs, path, values: None,
}
