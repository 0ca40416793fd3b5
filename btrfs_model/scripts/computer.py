# SPDX-License-Identifier: GPL-2.0-only
"""The computer that a script runs on: devices, mounts, files, a clock, programs."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import _TemporaryFileWrapper
from typing import TYPE_CHECKING, Final

from btrfs_model.base.whole_file import write_at
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.device import Device as DiskModel
from btrfs_model.cost.machine import Machine
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.patches import Patch
from btrfs_model.scripts.cold import Blocks
from btrfs_model.scripts.device_log import DISCARD, DeviceLog, Entry
from btrfs_model.scripts.files import Node, Stat, Tree, TreeFile, fail
from btrfs_model.scripts.find import DEVICE
from btrfs_model.scripts.mounted import Fate, Mounted, MountedFile
from btrfs_model.scripts.special import SPECIAL
from btrfs_model.scripts.steps import Reading, Record, Watcher
from btrfs_model.shell.jobs import Jobs
from btrfs_model.shell.state import UnknownError
from btrfs_model.shell.streams import Stream
from btrfs_model.volume.device.memory import Memory

if TYPE_CHECKING:
    from btrfs_model.shell.state import Builtin, Shell

_BUILTIN: Final = {"true", "false", "echo", "printf", "test", "[", "kill", "pwd"}
"""Programs that bash has itself."""
_FEATURES: Final = ("big_metadata", "compress_lzo", "compress_zstd", "default_subvol",
                    "extended_iref", "free_space_tree", "metadata_uuid", "no_holes",
                    "rmdir_subvol", "skinny_metadata", "supported_checksums")  # fmt: skip
"""Files of ``/sys/fs/btrfs/features``."""
_LINUX: Final = {"version": b"Linux version 6.18.0\n", "cpuinfo": b"processor\t: 0\n",
                 "meminfo": b"MemTotal:        8000000 kB\n"}  # fmt: skip


class StepsError(UnknownError):
    """A script ran for more commands than it may."""


@dataclass
class Device:
    """A block device.

    Attributes
    ----------
    path : str
        Its name.
    size : int
        Bytes.
    filesystem : WritableFilesystem, optional
        What mkfs made on it.
    crashed : file, optional
        What is on it after a crash, until it is mounted.
    """

    path: str
    size: int
    filesystem: WritableFilesystem | None = None
    crashed: _TemporaryFileWrapper[bytes] | None = None
    fate: Fate = Fate.WRITTEN
    """What becomes of what is written; where it is not written, `crashed` has what was before."""
    clock: int = 0
    """Nanoseconds since 1970 when it was mounted last."""
    transid: int = 0
    """The transaction that runs, when commits were counted last."""
    blocks: Blocks | None = None
    """Tree blocks that are in memory; None: all."""
    log: DeviceLog | None = None
    """Where writes to it are noted now."""
    noted: DeviceLog | None = None
    """The writes to another device that were noted on it."""

    def memory(self) -> Memory:
        """Return what is on it, to be changed."""
        if self.filesystem is not None:
            return self.filesystem.memory.copy()
        return Memory(self.size) if self.crashed is None else (
            Memory.copy_of(self.crashed.name, self.size))  # fmt: skip

    def replay(self, entries: Iterable[Entry], log: DeviceLog) -> None:
        """Write what was noted of another device; no filesystem in memory is of it then."""
        if self.crashed is None:
            self.crashed = tempfile.NamedTemporaryFile(prefix="script-")  # noqa: SIM115
            self.crashed.truncate(self.size)
            if self.filesystem is not None:
                self.filesystem.save_crash(self.crashed.name)
                self.filesystem.close()
                self.filesystem = None
        with Path(self.crashed.name).open("r+b", buffering=0) as file:
            for entry in entries:
                if entry.flags & DISCARD:
                    file.truncate(0)
                    file.truncate(self.size)
                elif entry.size:
                    write_at(file.fileno(), log.data(entry), entry.start)


class Computer(Record):
    """What a script acts on.

    Parameters
    ----------
    behaviour : Behaviour
        The kernel.
    costs : Machine
        What work costs.
    size : int
        Of a device that comes into being when it is named, bytes.
    steps : int
        Commands that a script may run.
    program : callable
        Finds a program by its name.
    disk : Device, optional
        What logs are written to and tree blocks read from; without it nothing is waited for.
    collects : bool
        Whether files that loops make are made together.
    jobs_order : int
        Another number is another order of background jobs.
    watcher : Watcher, optional
        Is told of mounts and calls.
    """

    def __init__(
        self, behaviour: Behaviour, costs: Machine, *, size: int, steps: int,
        program: Callable[[str], Callable[[Computer, Shell, list[str]], int] | None],
        disk: DiskModel | None = None, collects: bool = True, jobs_order: int = 0,
        watcher: Watcher | None = None,
    ) -> None:  # fmt: skip
        super().__init__(costs, disk, watcher)
        self.collects = collects
        self.behaviour, self.size = behaviour, size
        self.left, self.program = steps, program
        self.jobs, self._turn = Jobs(self, jobs_order), 0
        self.tree = Tree()
        self.devices: dict[str, Device] = {}
        self.parts: dict[tuple[str, int, int], Device] = {}
        """Parts of devices, and thin volumes, that the device mapper made."""
        self.mapped: dict[str, Fate] = {}
        """Devices of the device mapper: what the table that was loaded does to writes."""
        self.mounts: dict[str, Mounted] = {}
        self.umask = 0o22
        self.cwd = "/root"
        self._pipes = self._commits = 0
        self._last: Mounted | None = None
        for folder in ("bin", "dev/mapper", "etc", "home", "mnt", "opt", "proc/sys/vm", "root",
                       "mnt/x", "run", "sys/fs/btrfs/features", "tmp", "usr/bin",
                       "var/tmp"):  # fmt: skip
            self.tree.folders("/" + folder)
        for name in ("null", "zero", "urandom", "random", "full", "tty"):
            self.tree.make(f"/dev/{name}", stat.S_IFCHR | 0o666)
        for name, data in _LINUX.items():
            self.tree.make(f"/proc/{name}", stat.S_IFREG | 0o444, data=bytearray(data))
        sent = 1 + (Patch.SEND_STREAM_V2 in behaviour)
        for name, value in {**dict.fromkeys(_FEATURES, 0), "send_stream_version": sent}.items():
            self.tree.make(f"/sys/fs/btrfs/features/{name}", stat.S_IFREG | 0o444,
                           data=bytearray(b"%d\n" % value))  # fmt: skip
        self.tree.make("/proc/mounts", stat.S_IFREG | 0o444, shown=self._mounts)
        self.tree.make("/etc/fstab", stat.S_IFREG | 0o644)
        self.tree.make("/dev/kmsg", stat.S_IFCHR | 0o644, changed=self.message)
        self.messages: list[str] = []
        self.tree.make("/proc/sys/vm/drop_caches", stat.S_IFREG | 0o200, changed=self._drop_caches)

    def close(self) -> None:
        """Give the memory of all filesystems back."""
        for device in self.devices.values():
            if device.filesystem is not None:
                device.filesystem.close()

    # --------------------------------------------------------------------------- the world --

    def absolute(self, path: str) -> str:
        """Return a path from the root on, without dots."""
        if "/." not in path and "//" not in path and path.startswith("/"):
            return path
        joined = path if path.startswith("/") else posixpath.join(self.cwd, path)
        found = posixpath.normpath(joined)
        if found.startswith("//"):
            found = found[1:]
        return found + "/" if path.endswith("/") and found != "/" else found

    def chdir(self, path: str) -> None:
        """Change the working directory."""
        seen = self.stat(path)
        if seen is None:
            raise fail(errno.ENOENT, path)
        if not seen.is_dir:
            raise fail(errno.ENOTDIR, path)
        self.cwd = path.rstrip("/") or "/"

    def step(self, line: int) -> None:
        """Note that a command begins."""
        self.line = line
        self.left -= 1
        if self.left < self._turn:
            self._take_turns()

    def _take_turns(self) -> None:
        """Let background jobs go on; raise where the script has run for too long."""
        if self.left < 0:
            raise StepsError("the script ran for too many commands: --steps allows more")
        line = self.line
        self.jobs.turn()
        self.line = line

    def share(self, commands: int) -> None:
        """Let background jobs go on after so many commands; 0: there are none."""
        self._turn = max(0, self.left - commands) if commands else 0

    def flush(self) -> None:
        """Do what was collected."""
        for mounted in self.mounts.values():
            mounted.flush()

    def clock(self) -> float:
        """Return the time in seconds."""
        return self.now

    def pass_time(self, seconds: float) -> None:
        """Let time go by, for filesystems too."""
        self.flush()
        self.now += seconds
        for device in {id(one): one for one in self.devices.values()}.values():
            device.clock += int(seconds * 10**9)
            if device.filesystem is not None:
                device.filesystem.clock += int(seconds * 10**9)
        for mounted in {id(one.device): one for one in self.mounts.values()}.values():
            mounted.sleep(seconds)

    def pipe(self, data: bytes) -> str:
        """Return the path of a file that is read once (``<( )``)."""
        self._pipes += 1
        path = f"/dev/fd/{100 + self._pipes}"
        self.tree.folders("/dev/fd")
        self.tree.make(path, stat.S_IFIFO | 0o600, data=bytearray(data))
        return path

    def command(self, name: str) -> Builtin | None:
        """Return a program."""
        if name.startswith(("/usr/", "/bin/", "/sbin/")):
            name = posixpath.basename(name)
        found = self.program(name)
        if found is None and name in _BUILTIN:
            return lambda shell, arguments: shell.builtins[name](shell, arguments)
        if found is not None:
            return partial(found, self)
        if "/" in name and self.stat(self.absolute(name)) is not None:
            return lambda shell, arguments: self._run_file(shell, name, arguments)
        return None

    def _run_file(self, shell: Shell, name: str, arguments: list[str]) -> int:
        """Run a script that is a file."""
        from btrfs_model.shell import compile as compiler

        text = self.read(self.absolute(name)).decode("utf-8", "surrogateescape")
        return compiler.subshell(shell.started(name, arguments), compiler.script(text))

    # ------------------------------------------------------------------------------- paths --

    def place(self, path: str) -> tuple[Mounted, str] | None:
        """Return the mount that an absolute path is in, and the path in it."""
        last = self._last
        if last is not None and path.startswith(last.prefix):
            return last, path[len(last.prefix) :]
        best = None
        for where, mounted in self.mounts.items():
            if (path == where or path.startswith(where + "/")) and (
                best is None or len(where) > len(best.where)
            ):
                best = mounted
        if best is None:
            return None
        if len(self.mounts) == 1:
            self._last = best
        return best, path[len(best.where) :].lstrip("/")

    def stat(self, path: str, follow: bool = True) -> Stat | None:
        """Return what stat says of a path; None where there is nothing."""
        path = self.absolute(path)
        found = self.place(path)
        try:
            if found is not None:
                return found[0].stat(found[1], follow)
            self._come_into_being(path)
            return self.tree.stat(path, follow=follow)
        except OSError:
            return None

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, in the order of readdir."""
        path = self.absolute(path)
        found = self.place(path)
        if found is not None:
            return found[0].listdir(found[1])
        node = self.tree.find(path)
        if not stat.S_ISDIR(node.mode):
            raise fail(errno.ENOTDIR, path)
        return list(node.names)

    def open(self, path: str, mode: str, bits: int = 0o666) -> Stream:
        """Open a file, which is made with some mode where it is written to.

        It is open as long as a ``with`` block or a number of a shell has it.
        """
        path = self.absolute(path)
        found = self.place(path)
        if found is not None:
            try:
                return MountedFile(found[0], found[1], mode, bits)
            except OSError as error:
                raise self.refused("open", error) from None
        special = SPECIAL.get(path)
        if special is not None:
            return special()
        self._come_into_being(path)
        try:
            node = self.tree.find(path)
        except OSError:
            if mode in ("r",):
                raise
            node = self.tree.make(path, stat.S_IFREG | (bits & ~self.umask))
        if stat.S_ISDIR(node.mode) and mode != "r":
            raise fail(errno.EISDIR, path)
        return TreeFile(node, mode, self.time_ns)

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file, as ``> path`` does; files of one directory are made together."""
        found = self.place(path)
        if found is None:
            self.write(path, data)
            return
        try:
            found[0].put(found[1], data)
        except OSError as error:
            raise self.refused("open", error) from None

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        with self.open(path, "r") as file:
            return file.read()

    def write(self, path: str, data: bytes = b"", mode: str = "w", bits: int = 0o666) -> None:
        """Open a file, write some bytes, and close it."""
        with self.open(path, mode, bits) as file:
            file.write(data)

    def time_ns(self) -> int:
        """Return the time in nanoseconds."""
        return int(self.now * 1e9)

    def node(self, path: str) -> Node:
        """Return a file that is on no filesystem of the model."""
        path = self.absolute(path)
        self._come_into_being(path)
        return self.tree.find(path)

    # ----------------------------------------------------------------------------- devices --

    def _come_into_being(self, path: str) -> None:
        if path.startswith("/dev/") and DEVICE.fullmatch(path) and path not in self.devices:
            self.add_device(path, self.size)
        elif path.startswith("/usr/bin/"):
            folder, name = self.tree.parent(path)
            if name not in folder.names and (name in _BUILTIN or self.program(name) is not None):
                self.tree.make(path, stat.S_IFREG | 0o755)

    def add_device(self, path: str, size: int) -> Device:
        """Make a blank device."""
        try:
            self.tree.find(path)
        except OSError:
            self.tree.folders(posixpath.dirname(path))
            self.tree.make(path, stat.S_IFBLK | 0o660)
        device = self.devices[path] = Device(path, size)
        return device

    def device(self, path: str) -> Device:
        """Return a device, or a file that serves as one; OSError where there is none."""
        path = self.absolute(path)
        self._come_into_being(path)
        if path in self.devices:
            return self.devices[path]
        seen = self.stat(path)
        if seen is None:
            raise fail(errno.ENOENT, path)
        if self.place(path) is not None or not seen.is_file:
            raise fail(errno.ENOTBLK, path)
        device = self.devices[path] = Device(path, seen.size)
        return device

    def mounted_at(self, path: str) -> Mounted | None:
        """Return what is mounted at a place, or from a device."""
        path = self.absolute(path).rstrip("/") or "/"
        if path in self.mounts:
            return self.mounts[path]
        return next((one for one in self.mounts.values() if one.source == path), None)

    def mount(self, source: str, where: str, options: list[str]) -> None:
        """Mount a device by its name; OSError or ValueError as mount(8) is refused."""
        device = self.device(source)
        where = self.absolute(where).rstrip("/") or "/"
        seen = self.stat(where)
        if seen is None:
            raise fail(errno.ENOENT, where)
        if not seen.is_dir:
            raise fail(errno.ENOTDIR, where)
        mounted = Mounted(device, self.absolute(source), where, self)
        self.count_commits()
        mounted.begin(options)
        if self.watcher is not None and device.log is None:
            self.watcher.mounted(mounted.fs, device.path)
        device.transid = mounted.fs.transid
        self.mounts[where] = mounted
        self._last = None

    def bind(self, folder: str, where: str) -> None:
        """Mount a directory of a mount at another place; OSError where mount(8) is refused."""
        where = self.absolute(where).rstrip("/") or "/"
        found, seen = self.place(self.absolute(folder)), self.stat(folder)
        if seen is None or self.stat(where) is None:
            raise fail(errno.ENOENT, where if seen is not None else folder)
        if found is None:
            raise UnknownError(f"mount --bind {folder}: only what is on a mount is known")
        self.mounts[where] = found[0].bound(found[1], where)
        self._last = None

    def unmount(self, mounted: Mounted) -> None:
        """Unmount: everything is committed, and no inode stays in memory."""
        places = [self.cwd, *(job.place for job in self.jobs.left if not job.runs)]
        if mounted.files or any((one + "/").startswith(mounted.where + "/") for one in places):
            raise fail(errno.EBUSY, mounted.where)
        if any(one is not mounted and one.where.startswith(mounted.where + "/")
               for one in self.mounts.values()):  # fmt: skip
            raise fail(errno.EBUSY, mounted.where)
        self.count_commits()
        mounted.end()
        del self.mounts[mounted.where]
        self._last = None

    def crash(self) -> None:
        """Lose what is not on the devices, and mount again what was mounted."""
        self.count_commits()
        before = list(self.mounts.values())
        self.mounts, self._last = {}, None
        for mounted in {id(one.device): one for one in before}.values():
            mounted.crash()
        if any((self.cwd + "/").startswith(one.where + "/") for one in before):
            self.cwd = "/root"

    def region(self) -> None:
        """Note that the clock is read: what came between two readings is a region."""
        self.flush()
        self.count_commits()
        self.readings.append(Reading(self.line, self.now, len(self.steps), self._commits))

    def count_commits(self) -> None:
        """Count the transactions that were committed since this was called last."""
        for device in self.devices.values():
            if device.filesystem is not None and device.transid:
                now = device.filesystem.transid
                self._commits += max(0, now - device.transid)
                device.transid = now

    def message(self, data: bytes) -> None:
        """Keep what is written to the kernel's log."""
        self.messages.append(data.decode(errors="replace").rstrip("\n"))

    def _drop_caches(self, data: bytes) -> None:
        if data.strip() not in (b"1", b"2", b"3", b"4"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.flush()
        if data.strip() != b"2":
            for mounted in self.mounts.values():
                mounted.forget()

    def _mounts(self) -> bytes:
        lines = [f"{one.source} {one.where} btrfs {one.shown()} 0 0\n"
                 for one in self.mounts.values()]  # fmt: skip
        return "".join(lines).encode()
