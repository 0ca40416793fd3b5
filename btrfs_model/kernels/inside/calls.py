# SPDX-License-Identifier: GPL-2.0-only
"""The calls of ``bm.WritableFilesystem`` on a mounted filesystem, by the same names."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from btrfs_model.kernels.inside.ioctls import number, opened

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_VOL_ARGS = struct.Struct("<q4088s")
_VOL_ARGS_V2 = struct.Struct("<qQQQQ16x4040s")
_RECEIVED = struct.Struct("<16sQQQI4xQI4xQ128x")


_SYNC = number(0, 8, 0)
_TREE_SEARCH = number(3, 17, 4096)
_SUBVOL_CREATE = number(1, 14, 4096)
_SNAP_DESTROY = number(1, 15, 4096)
_SNAP_CREATE_V2 = number(1, 23, 4096)
_SUBVOL_CREATE_V2 = number(1, 24, 4096)
_GETFLAGS = number(2, 25, 8)
_SETFLAGS = number(1, 26, 8)
_FS_INFO = number(2, 31, 1024)
_QUOTA_CTL = number(3, 40, 16)
_QGROUP_ASSIGN = number(1, 41, 24)
_QGROUP_CREATE = number(1, 42, 16)
_QGROUP_LIMIT = number(2, 43, 48)
_QUOTA_RESCAN = number(1, 44, 64)
_QUOTA_RESCAN_WAIT = number(0, 46, 0)
_SET_RECEIVED = number(3, 37, _RECEIVED.size)
_FS_GETFLAGS = number(2, 1, 8, ord("f"))
_FS_SETFLAGS = number(1, 2, 8, ord("f"))
_QUOTA_TREE, _QGROUP_INFO = 8, 242
_FOR_GROUPS = 300
_RDONLY = 2
_QGROUP_INHERIT = 4
_MAX = 2**64 - 1
_ORPHAN = 2**64 - 5


def _search(fd: int, tree: int, objectid: int, kind: int) -> set[int]:
    """Offsets of the first items of a kind in a tree (BTRFS_IOC_TREE_SEARCH)."""
    argument = bytearray(4096)
    # tree, objectids, offsets, transids, types, how many
    struct.pack_into(
        "<7QIII", argument, 0, tree, objectid, objectid, 0, _MAX, 0, _MAX, kind, kind, 4096
    )
    fcntl.ioctl(fd, _TREE_SEARCH, argument)
    found, at = set(), 104
    for _ in range(struct.unpack_from("<I", argument, 64)[0]):
        _, _, offset, _, size = struct.unpack_from("<QQQII", argument, at)
        found.add(offset)
        at += 32 + size
    return found


def _dead_subvolumes(fd: int) -> set[int]:
    return _search(fd, 1, _ORPHAN, 48)


def _groups(fd: int) -> set[int]:
    try:
        return _search(fd, _QUOTA_TREE, 0, _QGROUP_INFO)
    except FileNotFoundError:
        return set()


class KernelCalls:
    """The calls of a filesystem of the model, on a mounted one.

    Paths go to the kernel as they are (:mod:`pathlib` would straighten them).
    """

    def __init__(self, top: Path) -> None:
        self.top = str(top)
        self._held: dict[str, int] = {}

    def _at(self, path: str) -> str:
        return f"{self.top}/{path}"

    def _parent(self, path: str) -> tuple[str, bytes]:
        parent, _, name = path.rpartition("/")
        return self._at(parent), os.fsencode(name)

    @contextmanager
    def opened(self, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open what a path leads to, without waiting for the other end of a FIFO."""
        self.no_driver(path)
        with opened(self._at(path), flags | os.O_NONBLOCK) as fd:
            yield fd

    def no_driver(self, path: str) -> None:
        """Refuse a device node: what its driver says is of no filesystem."""
        if stat.S_IFMT(os.stat(self._at(path)).st_mode) in (stat.S_IFCHR, stat.S_IFBLK):  # noqa: PTH116
            raise OSError(errno.ENXIO, path)

    def create(self, path: str, mode: int = 0o666) -> None:
        os.close(os.open(self._at(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        os.mkdir(self._at(path), mode)  # noqa: PTH102

    def mknod(self, path: str, mode: int, device: int = 0) -> None:
        os.mknod(self._at(path), mode, device)

    def symlink(self, target: str, path: str) -> None:
        os.symlink(target, self._at(path))  # noqa: PTH211

    def link(self, existing: str, path: str) -> None:
        os.link(self._at(existing), self._at(path), follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))  # noqa: PTH108

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))  # noqa: PTH106

    def rename(self, old: str, new: str, flags: int = 0) -> None:
        names = (os.fsencode(self._at(path)) for path in (old, new))
        source, target = names
        if _LIBC.renameat2(_AT_FDCWD, source, _AT_FDCWD, target, flags):
            raise OSError(ctypes.get_errno(), "renameat2", old)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._at(path), mode)  # noqa: PTH101

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self._at(path), uid, gid)

    def utimes(self, path: str, atime: int, mtime: int) -> None:
        os.utime(self._at(path), ns=(atime, mtime))

    def chattr(self, path: str, add: int, remove: int) -> None:
        with self.opened(path) as fd:
            flags = bytearray(8)
            fcntl.ioctl(fd, _FS_GETFLAGS, flags)
            new = struct.unpack("<q", flags)[0] & ~remove | add
            fcntl.ioctl(fd, _FS_SETFLAGS, struct.pack("<q", new))

    def setxattr(self, path: str, name: str, value: bytes, flags: int = 0) -> None:
        os.setxattr(self._at(path), name, value, flags)

    def removexattr(self, path: str, name: str) -> None:
        os.removexattr(self._at(path), name)

    def create_subvolume(self, path: str, qgroups: Sequence[int] | None = None) -> None:
        parent, name = self._parent(path)
        with opened(parent, os.O_DIRECTORY) as fd:
            if qgroups is None:
                fcntl.ioctl(fd, _SUBVOL_CREATE, bytearray(_VOL_ARGS.pack(0, name)))
            else:
                self._inherit(fd, _SUBVOL_CREATE_V2, 0, 0, name, qgroups)

    def snapshot(
        self, source: str, path: str, read_only: bool = True, qgroups: Sequence[int] | None = None
    ) -> None:
        parent, name = self._parent(path)
        flags = _RDONLY if read_only else 0
        with self.opened(source) as of, opened(parent, os.O_DIRECTORY) as fd:
            self._inherit(fd, _SNAP_CREATE_V2, of, flags, name, qgroups)

    def _inherit(
        self, fd: int, request: int, of: int, flags: int, name: bytes, groups: Sequence[int] | None
    ) -> None:
        """Make a subvolume or snapshot that goes into quota groups."""
        size, at = 0, 0
        if groups is not None:
            inherit = struct.pack(f"<9Q{len(groups)}Q", 0, len(groups), *[0] * 7, *groups)
            memory = ctypes.create_string_buffer(inherit, len(inherit))
            flags, size, at = flags | _QGROUP_INHERIT, len(inherit), ctypes.addressof(memory)
        fcntl.ioctl(fd, request, bytearray(_VOL_ARGS_V2.pack(of, 0, flags, size, at, name)))

    def quota_enable(self, simple: bool = False) -> None:
        self._quota_ctl(4 if simple else 1)
        self._wait_for_rescan()

    def quota_disable(self) -> None:
        self._quota_ctl(2)

    def quota_rescan(self) -> None:
        self._ioctl(_QUOTA_RESCAN, bytes(64))
        self._wait_for_rescan()

    def set_drop_subtree_threshold(self, level: int) -> None:
        with opened(self.top) as fd:
            info = bytearray(1024)
            fcntl.ioctl(fd, _FS_INFO, info)
        fsid = UUID(bytes=bytes(info[16:32]))
        Path(f"/sys/fs/btrfs/{fsid}/qgroups/drop_subtree_threshold").write_text(f"{level}")

    def qgroup_create(self, group: int) -> None:
        self._ioctl(_QGROUP_CREATE, struct.pack("<QQ", 1, group))

    def qgroup_destroy(self, group: int) -> None:
        self._ioctl(_QGROUP_CREATE, struct.pack("<QQ", 0, group))

    def qgroup_assign(self, member: int, group: int) -> None:
        self._ioctl(_QGROUP_ASSIGN, struct.pack("<QQQ", 1, member, group))

    def qgroup_remove(self, member: int, group: int) -> None:
        self._ioctl(_QGROUP_ASSIGN, struct.pack("<QQQ", 0, member, group))

    def qgroup_limit(
        self, group: int, max_rfer: int | None = None, max_excl: int | None = None
    ) -> None:
        flags = (max_rfer is not None) | (max_excl is not None) << 1
        numbers = ((value or 0) % 2**64 for value in (max_rfer, max_excl))
        self._ioctl(_QGROUP_LIMIT, struct.pack("<6Q", group, flags, *numbers, 0, 0))

    def _quota_ctl(self, command: int) -> None:
        self._ioctl(_QUOTA_CTL, struct.pack("<QQ", command, 0))

    def _wait_for_rescan(self) -> None:
        self._ioctl(_QUOTA_RESCAN_WAIT, b"")

    def _ioctl(self, request: int, argument: bytes) -> None:
        with opened(self.top) as fd:
            fcntl.ioctl(fd, request, argument or 0)

    def delete_subvolume(self, path: str) -> None:
        parent, name = self._parent(path)
        with opened(parent, os.O_DIRECTORY) as fd:
            fcntl.ioctl(fd, _SNAP_DESTROY, bytearray(_VOL_ARGS.pack(0, name)))

    def set_read_only(self, path: str, read_only: bool = True) -> None:
        with self.opened(path) as fd:
            flags = struct.pack("<Q", _RDONLY if read_only else 0)
            fcntl.ioctl(fd, _SETFLAGS, flags)

    def set_received_subvolume(self, path: str, uuid: bytes, stransid: int, stime: int = 0) -> None:
        seconds, rest = divmod(stime, 10**9)
        with self.opened(path) as fd:
            argument = _RECEIVED.pack(uuid, stransid, 0, seconds, rest, 0, 0, 0)
            fcntl.ioctl(fd, _SET_RECEIVED, argument)

    def hold(self, path: str) -> None:
        self._held[path] = os.open(self._at(path), os.O_RDONLY)

    def release(self, path: str) -> None:
        os.close(self._held.pop(path))

    def release_all(self) -> None:
        for path in list(self._held):
            self.release(path)

    def clean(self) -> None:
        """Commit; where subvolumes are deleted wait until the cleaner has freed them, and commit.

        When it comes to that without being woken is a matter of chance.
        """
        with opened(self.top) as fd:
            dead = _dead_subvolumes(fd)
            if not dead:
                return
            fcntl.ioctl(fd, _SYNC)
            for _ in range(60_000):
                if not _dead_subvolumes(fd):
                    break
                time.sleep(0.001)
            # then it deletes their quota groups, unless simple quotas still need them
            for _ in range(_FOR_GROUPS):
                if not dead & _groups(fd):
                    break
                time.sleep(0.001)
        self.sync()

    def sync(self) -> None:
        """Commit; unlike BTRFS_IOC_SYNC this does not wake the cleaner of deleted subvolumes."""
        with opened(self.top) as fd:
            if _LIBC.syncfs(fd):
                raise OSError(ctypes.get_errno(), "syncfs", self.top)

    def create_files(self, directory: str, names: list[str]) -> None:
        for name in names:
            self.create(f"{directory}/{name}")

    def unlink_files(self, directory: str, names: list[str]) -> None:
        for name in names:
            self.unlink(f"{directory}/{name}")

    def write(self, path: str, offset: int, data: bytes) -> None:
        with self.opened(path, os.O_RDWR) as fd:
            os.pwrite(fd, data, offset)

    def truncate(self, path: str, size: int) -> None:
        os.truncate(self._at(path), size)
