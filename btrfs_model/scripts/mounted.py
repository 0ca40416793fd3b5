# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem of the model that is mounted, and its open files."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final

from btrfs_model.base.counters import uncounted
from btrfs_model.mount.inode import discard_pages
from btrfs_model.mount.names.lookup import find, is_read_only, read_link
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.scripts.cold import Blocks
from btrfs_model.scripts.collected import Collected, listed
from btrfs_model.scripts.files import Stat, fail
from btrfs_model.scripts.subvolumes import TOP, named
from btrfs_model.shell.state import UnknownError
from btrfs_model.shell.streams import Stream
from btrfs_model.volume.subvolume import device_number

if TYPE_CHECKING:
    from btrfs_model.mount.live_inode import LiveInode
    from btrfs_model.scripts.computer import Computer, Device
    from btrfs_model.scripts.steps import Step
    from btrfs_model.volume.device.memory import Memory

_SECTOR: Final = 512
_BLOCK: Final = 4096
_OF_OTHERS: Final = (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO)
_WRITTEN_BACK: Final = 35
"""Seconds after which all data that waited are on their way (``dirty_expire_centisecs``)."""
_IGNORED: Final = {"rw", "noatime", "relatime", "nodiratime", "loop", "defaults", "strictatime",
                   "exec", "suid", "dev", "nofail", "lazytime"}  # fmt: skip


def _aligned(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


class Fate(Enum):
    """What becomes of what is written to a device."""

    WRITTEN = auto()
    LOST = auto()
    REFUSED = auto()
    """With EIO."""


class _Refusing:
    """A device that refuses writes: the first one of a transaction or a log aborts."""

    def __init__(self, fs: WritableFilesystem) -> None:
        self._fs = fs

    def flush(self, memory: Memory) -> None:
        """End a commit, or the sync of a log (``btrfs_abort_transaction()``)."""
        del memory
        self._fs.aborted = True
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def superblock(self, memory: Memory) -> None:
        """Nothing comes so far."""

    def synced(self, inode: LiveInode | None) -> None:
        """Nothing is to be done behind a call without writes."""


class Mounted:
    """A mount.

    Attributes
    ----------
    device, source, where
        What is mounted, the name of its device that was told, and where.
    top : str
        The subvolume that is mounted, a path from the top of the filesystem.
    """

    def __init__(self, device: Device, source: str, where: str, computer: Computer) -> None:
        self.device, self.source, self.where, self.computer = device, source, where, computer
        self.prefix = where.rstrip("/") + "/"
        self.top = ""
        self.is_read_only = False
        self.options: list[str] = []
        self.files: set[MountedFile] = set()
        """Those that are open."""
        self.collected = Collected(self)

    @property
    def fs(self) -> WritableFilesystem:
        """The filesystem, with all that was collected."""
        self.collected.flush()
        self.made.umask = self.computer.umask
        return self.made

    @property
    def made(self) -> WritableFilesystem:
        """The filesystem, without what was collected."""
        assert self.device.filesystem is not None
        return self.device.filesystem

    # ------------------------------------------------------------------------------ mounts --

    def begin(self, options: list[str]) -> None:
        """Mount; OSError or ValueError where mount(8) is refused."""
        device, self.options = self.device, options
        if device.fate is Fate.REFUSED:
            raise fail(errno.EIO, device.path)
        if device.crashed is not None:
            self._recover()
        if device.filesystem is None:
            raise fail(errno.EINVAL, device.path)
        kept = []
        top: str | None = None
        for one in options:
            name, _, value = one.partition("=")
            if name == "subvol":
                top = value.strip("/")
            elif name == "subvolid":
                top = named(device.filesystem, int(value, 0) or TOP)
            elif name == "ro":
                self.is_read_only = True
            elif name not in _IGNORED and one:
                kept.append(one)
        self.top = named(device.filesystem, device.filesystem.default_subvolume()) if (
            top is None) else top  # fmt: skip
        if self.top and not find(device.filesystem, self.top).is_dir:
            raise fail(errno.ENOENT, self.top)
        fs = device.filesystem
        fs.watcher = device.log
        fs.set_mount_options(",".join(kept))
        fs.clock = max(fs.clock, device.clock, int(self.computer.now * 10**9))
        superblock = fs.image.superblock
        self.forget()
        if not self.is_read_only and superblock.uuid_tree_generation != superblock.generation:
            # what a kernel does first on a filesystem that it does not know is for a commit
            start_transaction(fs)

    def forget(self) -> None:
        """Have no more tree blocks in memory than after a mount."""
        self.device.blocks = Blocks(self.made.image.superblock.generation)

    def reading(self, path: str | bytes, step: Step) -> AbstractContextManager[None]:
        """Note in a call on a file which tree blocks it reads; a path from the top."""
        fs, blocks = self.fs, self.device.blocks
        if blocks is None:
            return nullcontext()
        with uncounted():
            return blocks.reading(fs, find(fs, path).root, step)

    def bound(self, path: str, where: str) -> Mounted:
        """Return a mount of a directory of this one."""
        other = Mounted(self.device, self.source, where, self.computer)
        other.top, other.is_read_only = self.inside(path).strip("/"), self.is_read_only
        other.options = [*self.options, f"subvol={other.top}"]
        return other

    def end(self) -> None:
        """Unmount; the filesystem too where it is mounted nowhere else."""
        self.device.clock = self.fs.clock
        if any(one.device is self.device and one is not self
               for one in self.computer.mounts.values()):  # fmt: skip
            return
        if self.device.crashed is not None:
            self._tell_unmounted(crashed=True)
            self.fs.close()
            self.device.filesystem = None
        else:
            self.fs.remount()
            self._tell_unmounted(crashed=False)

    def _tell_unmounted(self, *, crashed: bool) -> None:
        if self.computer.watcher is not None:
            self.computer.watcher.unmounted(self.made, crashed=crashed)

    def remount(self, options: list[str]) -> None:
        """Change the options (``mount -o remount``).

        Raises
        ------
        OSError
            EBUSY where it shall be read-only, and a file is open to be written to or has no name
            (``sb_prepare_remount_readonly()``).
        """
        if "ro" in options and any(one.stays_writable for one in self.files):
            raise fail(errno.EBUSY, self.where)
        kept = [one for one in options if one not in _IGNORED and one not in ("remount", "ro")]
        self.is_read_only = "ro" in options or (self.is_read_only and "rw" not in options)
        if kept:
            self.fs.set_mount_options(",".join(kept))
        else:
            self.fs.sync()

    def sleep(self, seconds: float) -> None:
        """Do what threads of the kernel do while a script sleeps (``transaction_kthread()``)."""
        fs = self.fs
        if seconds < fs.options.commit_interval:
            return
        if self.device.fate is Fate.REFUSED:
            fs.aborted = True
        if fs.aborted:
            return
        with uncounted():
            if seconds >= _WRITTEN_BACK:
                fs.sync()
            elif fs.in_transaction:
                commit(fs)

    def shown(self) -> str:
        """Return the options as ``/proc/mounts`` shows them."""
        access = "ro" if self.is_read_only else "rw"
        number = self.fs.resolve(self.top)[0]
        told = [self.fs.mount_options, f"subvolid={number}", f"subvol=/{named(self.fs, number)}"]
        return ",".join([access, "relatime", *filter(None, told)])

    def crash(self) -> None:
        """Keep what a crash would leave."""
        fs = self.fs
        self.device.clock = fs.clock
        if self.device.crashed is None:
            self.keep()
        self._tell_unmounted(crashed=True)
        fs.close()
        self.device.filesystem = None

    def write_to(self, fate: Fate) -> None:
        """Let something else become of what is written to the device."""
        fs, device = self.fs, self.device
        if fate is Fate.WRITTEN:
            fs.watcher = device.log
            if not fs.aborted:
                device.crashed = None
        elif device.crashed is None:
            self.keep()
        if fate is Fate.REFUSED:
            fs.watcher = _Refusing(fs)

    def before_writeback(self, path: str | bytes) -> None:
        """See that the device takes data; where it refuses them, what waits of a file is lost.

        Raises
        ------
        OSError
            EIO: the extents of the file stay what they were (``btrfs_finish_one_ordered()``).
        """
        if self.device.fate is Fate.REFUSED:
            inode = find(self.fs, path)
            if stat.S_ISREG(inode.item.mode) and inode.pages.is_dirty:
                discard_pages(self.fs, inode)
                raise fail(errno.EIO, os.fsdecode(path))

    def write_direct(self, path: str | bytes, offset: int, data: bytes) -> int:
        """Write past the page cache; OSError EIO where the device refuses it."""
        fs = self.fs
        if self.device.fate is Fate.REFUSED:
            raise fail(errno.EIO, os.fsdecode(path))
        return fs.write_direct(path, offset, data)

    def keep(self) -> None:
        """Keep what is on the device now."""
        self.device.crashed = tempfile.NamedTemporaryFile(prefix="script-")  # noqa: SIM115
        fs, watcher = self.fs, self.computer.watcher
        memory = fs.memory if watcher is None else watcher.kept(fs)
        memory.save(self.device.crashed.name)

    def _recover(self) -> None:
        """Load what a crash left; a mount replays the log."""
        assert self.device.crashed is not None
        behaviour = self.computer.behaviour
        with self.device.crashed as file:
            self.device.filesystem = WritableFilesystem.load(
                file.name, behaviour=behaviour, replay_behaviour=behaviour)  # fmt: skip
        if self.device.log is not None:
            self.device.log.flush(self.device.filesystem.memory)
            self.device.log.superblock(self.device.filesystem.memory)
        self.device.crashed = None

    # -------------------------------------------------------------------- made in one call --

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file; new files of a directory with the same bytes are made together."""
        mode = 0o666
        if not self.collected.write(path, data, mode):
            with MountedFile(self, path, "w", mode) as file:
                file.write(data)

    def flush(self) -> None:
        """Make the files that were collected."""
        self.collected.flush()

    # ------------------------------------------------------------------------------- files --

    def inside(self, path: str) -> str:
        """Return a path from the top of the filesystem."""
        return f"{self.top}/{path}" if self.top else path

    def may_write(self, path: str) -> None:
        """See that the mount can be written to."""
        if self.is_read_only or self.made.aborted:
            error = fail(errno.EROFS, path)
            raise self.computer.refused("refused (read-only mount)", error)

    def inode(self, path: str, *, follow: bool = True) -> LiveInode:
        """Return the inode of a path, with nothing counted."""
        fs = self.fs
        with uncounted():
            return find(fs, self.inside(path), follow=follow)

    def has_read_only(self, path: str) -> bool:
        """Whether a path, from the top of the filesystem, is in a read-only subvolume."""
        fs = self.fs
        with uncounted():
            return is_read_only(fs, find(fs, path).root)

    def stat(self, path: str, follow: bool = True) -> Stat:
        """Return what stat says; OSError where there is nothing."""
        inode = self.inode(path, follow=follow)
        item = inode.item
        return Stat(
            item.mode, inode.i_size, inode.ino, inode.root, item.nlink if not inode.is_dir else 1,
            item.uid, item.gid, _aligned(item.nbytes) // _SECTOR, item.atime, item.mtime,
            item.ctime, item.otime, device_number(item.rdev),
            partial(self._new_delalloc, inode) if stat.S_ISREG(item.mode) else None,
        )  # fmt: skip

    def _new_delalloc(self, inode: LiveInode) -> int:
        """Return the sectors that wait over holes (``new_delalloc_bytes``)."""
        if not inode.pages.is_dirty:
            return 0
        with uncounted():
            return _aligned(self._bytes_over_holes(inode)) // _SECTOR

    def _bytes_over_holes(self, inode: LiveInode) -> int:
        fs = self.fs
        tree = fs.writer.tree(inode.root)
        taken = []
        for item in tree.items((inode.ino, ItemType.EXTENT_DATA, 0),
                               (inode.ino, ItemType.EXTENT_DATA, 2**64 - 1)):  # fmt: skip
            extent = file_extent(item.data)
            start = item.key.offset
            if isinstance(extent, InlineExtent):
                taken.append((start, start + _aligned(extent.ram_bytes)))
            elif extent.disk_bytenr:
                taken.append((start, start + extent.num_bytes))
        waits = 0
        for start, end in inode.pages.delalloc_ranges(0, 2**64 - 1):
            waits += end - start
            waits -= sum(max(0, min(end, last) - max(start, first)) for first, last in taken)
        return waits

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory by their index, as readdir does."""
        return listed(self.fs, self.inside(path))

    def read_link(self, path: str) -> str:
        """Return where a symbolic link leads; OSError where it is none."""
        fs, inode = self.fs, self.inode(path, follow=False)
        return read_link(fs, inode).decode("utf-8", "surrogateescape")


class MountedFile(Stream):
    """An open file of a mount."""

    def __init__(self, mounted: Mounted, path: str, mode: str, bits: int = 0o666) -> None:
        self.mounted, self.path, self.mode = mounted, path, mode
        self.at, self.direct, truncates = 0, False, mode[0] == "w"
        fs, name = mounted.fs, mounted.inside(path)
        try:
            seen = mounted.stat(path)
        except OSError as error:
            if mode == "r" or error.errno != errno.ENOENT:
                raise
            mounted.may_write(path)
            with mounted.computer.timed("create"):
                fs.create(name, bits)
            truncates = False
        else:
            if stat.S_ISDIR(seen.mode) and mode != "r":
                raise fail(errno.EISDIR, path)
            if stat.S_ISFIFO(seen.mode) and "+" not in mode:
                raise UnknownError(f"{path}: a named pipe has no other end here")
            if mode != "r":
                mounted.may_write(path)
        self._fs, self._inode = fs, mounted.inode(path)
        self.name = name.encode("utf-8", "surrogateescape")
        """A path that stands for it; what is not of btrfs, a device node or a pipe, has its own."""
        if stat.S_IFMT(self._inode.item.mode) not in _OF_OTHERS:
            with mounted.computer.timed("truncate") if truncates else uncounted():
                self.name = fs.open_file(name, truncate=truncates)
            mounted.files.add(self)

    def _closed(self) -> None:
        """Close it; a crash may have come before."""
        mounted = self.mounted
        is_open = self in mounted.files
        mounted.files.discard(self)
        if is_open and mounted.device.filesystem is self._fs:
            fs, inode = mounted.fs, self._inode
            works = not inode.item.nlink or (not inode.is_dir and inode.pages.flush_on_close)
            with mounted.computer.timed("close") if works else uncounted():
                fs.close_file(self.name)

    @property
    def fs(self) -> WritableFilesystem:
        """The filesystem; OSError where a crash took it away."""
        if self.mounted.device.filesystem is not self._fs:
            raise fail(errno.EIO, self.path)
        return self.mounted.fs

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._inode.i_size

    @property
    def stays_writable(self) -> bool:
        """Whether its filesystem has to be writable as long as it is open."""
        return self.mode != "r" or not self._inode.item.nlink

    @property
    def same(self) -> tuple[int, int]:
        """What two open files of one inode have in common."""
        return self._inode.root, self._inode.ino

    def read(self, size: int = -1) -> bytes:
        """Read from the place on."""
        self.may_read()
        fs, name = self.fs, self.name
        with self.mounted.computer.timed("read") as step:
            found = fs.read(name, self.at, None if size < 0 else size)
            step.bytes = len(found)
        self.at += len(found)
        return found

    def read_line(self, end: int = 10) -> bytes:
        """Read up to a byte."""
        found = bytearray()
        while piece := self.read(4096):
            at = piece.find(end)
            if at >= 0:
                self.at -= len(piece) - at - 1
                return bytes(found + piece[: at + 1])
            found += piece
        return bytes(found)

    def write(self, data: bytes) -> None:
        """Write at the place, or at the end."""
        if not data:
            return
        self.may_write()
        fs, name = self.fs, self.name
        if self.mode == "a":
            self.at = self.size
        with self.mounted.computer.timed("write") as step:
            write = self.mounted.write_direct if self.direct else fs.write
            done = step.bytes = write(name, self.at, data)
        self.at += done
        if done < len(data):
            raise self.mounted.computer.refused("write", fail(errno.ENOSPC, self.path))
