# SPDX-License-Identifier: GPL-2.0-only
"""Carrying out a scenario: each operation is a call of the filesystem in memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from btrfs_model.base.counters import Work, counting
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import ERRNOS, ScenarioError, Step
from btrfs_model.kernels.inside.fill import data_of
from btrfs_model.mount.calls.names import RENAME_EXCHANGE
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.trace import Trace
from btrfs_model.mount.mkfs.options import parse_mkfs_options
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.questions.fiemap.mounted import fiemap_mounted
from btrfs_model.questions.send.ioctl import send

if TYPE_CHECKING:
    import pandas as pd

_RECEIVED = b"recv"


def run_scenario(
    scenario: Scenario,
    *,
    size: int = 256 << 20,
    seed: int = 0,
    behaviour: str | Behaviour | None = None,
    asynchronous: bool = False,
    step: Callable[[str], None] = lambda text: None,
    crashed: Callable[[WritableFilesystem, int], None] = lambda fs, number: None,
    synced: Callable[[Step, str, Work], None] = lambda step, how, work: None,
    traced: list[tuple[Step, Trace]] | None = None,
) -> WritableFilesystem:
    """Carry out a scenario.

    Without ``mkfs`` as the first operation the filesystem is a fresh one, as mkfs.btrfs makes it by
    default, mounted and committed once.

    Parameters
    ----------
    scenario : Scenario
        What to do.
    size : int
        Of the device, in bytes.
    seed : int
        Of uuids and times: the same seed gives the same bytes.
    behaviour : str or Behaviour, optional
        The kernel whose fsync it is; see :attr:`.Mount.behaviour`.
    asynchronous : bool
        Run delayed items where a kernel's worker nearly always does; see
        :attr:`.Machine.asynchronous`.
    step : callable
        Called with a few words when an operation begins.
    crashed : callable
        Called for each ``crash`` with the filesystem and the number of the crash, from 1.
    synced : callable
        Called after each fsync with its step, what it came to (``log``, ``commit``, ``none``), and
        the work that was counted.
    traced : list, optional
        Gets each operation with what it told who traces it.

    Returns
    -------
    WritableFilesystem
        What came out, committed.

    Raises
    ------
    ScenarioError
        When an operation fails, or one recorded as failing does not; the message names the step.
        What was made until then is gone.
    """
    runner = Runner(scenario, size, seed)
    runner.crashed, runner.synced = crashed, synced
    runner.asynchronous = asynchronous
    if behaviour is not None:
        runner.behaviour = Behaviour.parse(behaviour)
    try:
        for one in scenario.steps:
            step(str(one))
            if traced is None or one.name == "mkfs":
                runner.take(one)
                continue
            with runner.fs().trace() as trace:
                traced.append((one, trace))
                runner.take(one)
        fs = runner.fs()
        fs.sync()
    except BaseException:
        runner.close()
        raise
    return fs


class Runner:
    """The state of a run: the filesystem, and the options that a mount gave it."""

    def __init__(self, scenario: Scenario, size: int, seed: int) -> None:
        self.scenario = scenario
        self.size = size
        self.seed = seed
        self.made: WritableFilesystem | None = None
        self.crashed: Callable[[WritableFilesystem, int], None] = lambda fs, number: None
        self.synced: Callable[[Step, str, Work], None] = lambda step, how, work: None
        self.mapped: Callable[[pd.DataFrame], None] = lambda extents: None
        self.crashes = 0
        self.behaviour: Behaviour | None = None
        self.asynchronous = False
        self.open: dict[str, LiveInode] = {}
        self.now: Step | None = None

    def close(self) -> None:
        if self.made is not None:
            self.made.close()

    def fs(self) -> WritableFilesystem:
        """Return the filesystem; a fresh one when there was no mkfs."""
        if self.made is None:
            self.do_mkfs([])
            self.fs().sync()
        assert self.made is not None
        return self.made

    def take(self, step: Step) -> None:
        """Carry out one operation and look at how it ends."""
        wanted = step.ended.get("err") if step.name != "receive" else None
        try:
            self.carry_out(step)
        except OSError as error:
            if wanted and error.errno == ERRNOS[wanted]:
                return
            recorded = f", recorded was {wanted}" if wanted else ""
            raise self._failed(step, f"{error.strerror or error}{recorded}") from error
        except BtrfsModelError as error:
            raise self._failed(step, str(error)) from error
        if wanted:
            raise self._failed(step, f"did not fail, recorded was {wanted}")

    def carry_out(self, step: Step) -> None:
        """Carry out one operation, however it was recorded to end."""
        self.now = step
        getattr(self, f"do_{step.name}")(**step.arguments)

    def _failed(self, step: Step, why: str) -> ScenarioError:
        return ScenarioError(self.scenario.path, step.number, f"{step}: {why}")

    # ------------------------------------------------------------------------- mkfs and mount --

    def do_mkfs(self, options: list[str]) -> None:
        if self.made is not None:
            raise OSError(errno.EBUSY, "there is a filesystem already")
        try:
            chosen = {"size": self.size, **parse_mkfs_options(options)}
            self.made = WritableFilesystem.mkfs(**chosen, seed=self.seed)
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error)) from None
        self.made.machine.asynchronous = self.asynchronous
        if self.behaviour is not None:
            self.made.behaviour = self.behaviour

    def do_mount(self, options: str) -> None:
        try:
            self.fs().set_mount_options(options)
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error)) from None

    def do_remount(self, options: str | None) -> None:
        try:
            self.fs().remount(options)
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error)) from None

    # ---------------------------------------------------------------------------------- names --

    def do_mkdir(self, path: bytes, mode: int | None) -> None:
        fs = self.fs()
        fs.mkdir(path)
        if mode is not None:
            # as the recorded programs do, whatever the umask
            fs.chmod(path, mode)

    def do_create(self, path: bytes, mode: int) -> None:
        self.fs().create(path, mode)

    def do_mknod(self, path: bytes, mode: int, major: int, minor: int) -> None:
        self.fs().mknod(path, mode, os.makedev(major, minor))

    def do_symlink(self, target: bytes, path: bytes) -> None:
        self.fs().symlink(target, path)

    def do_link(self, old: bytes, new: bytes) -> None:
        self.fs().link(old, new)

    def do_unlink(self, path: bytes) -> None:
        self.fs().unlink(path)

    def do_rmdir(self, path: bytes) -> None:
        self.fs().rmdir(path)

    def do_rename(self, old: bytes, new: bytes) -> None:
        self.fs().rename(old, new)

    def do_exchange(self, old: bytes, new: bytes) -> None:
        self.fs().rename(old, new, RENAME_EXCHANGE)

    def do_mkfiles(self, path: bytes, prefix: str, first: int, last: int) -> None:
        for name in _names(path, prefix, first, last, 1):
            self.fs().create(name, 0o644)

    def do_fillfiles(
        self, path: bytes, prefix: str, first: int, last: int, length: int, fill: Any
    ) -> None:
        for name in _names(path, prefix, first, last, 1):
            self.do_create(name, 0o644)
            if length:
                self.do_write(name, 0, length, fill)

    def do_rmfiles(self, path: bytes, prefix: str, first: int, last: int, step: int) -> None:
        for name in _names(path, prefix, first, last, step):
            self.fs().unlink(name)

    def do_chmodfiles(self, path: bytes, prefix: str, first: int, last: int, step: int) -> None:
        for name in _names(path, prefix, first, last, step):
            self.fs().chmod(name, 0o600)

    # ----------------------------------------------------------------------------------- data --

    def do_write(self, path: bytes, offset: int, length: int, fill: Any) -> None:
        self.fs().write(path, offset, data_of(fill, offset, length))

    def do_truncate(self, path: bytes, size: int) -> None:
        self.fs().truncate(path, size)

    def do_fallocate(self, path: bytes, mode: int, offset: int, length: int) -> None:
        self.fs().vfs_fallocate(path, mode, offset, length)

    def do_clone(self, source: bytes, target: bytes) -> None:
        self.fs().clone_range(source, target, 0, 0, 0)

    def do_clone_range(
        self, source: bytes, source_offset: int, length: int, target: bytes, target_offset: int
    ) -> None:
        self.fs().clone_range(source, target, source_offset, target_offset, length)

    def do_dedupe(
        self, source: bytes, source_offset: int, length: int, target: bytes, target_offset: int
    ) -> None:
        self.fs().dedupe_range(source, target, source_offset, target_offset, length)

    def do_fsync(self, path: bytes) -> None:
        self._sync(lambda: self.fs().fsync(path))

    def do_fdatasync(self, path: bytes) -> None:
        self._sync(lambda: self.fs().fdatasync(path))

    def _sync(self, sync: Callable[[], str]) -> None:
        assert self.now is not None
        with counting() as work:
            how = sync()
        self.synced(self.now, how, work)

    def do_fiemap(self, path: bytes, sync: bool) -> None:
        self.mapped(fiemap_mounted(self.fs(), path, sync=sync))

    def do_open(self, path: bytes, handle: str) -> None:
        held = self.fs().hold(path)  # what is not there is told first
        if handle in self.open:
            self.fs().release(held)
            raise OSError(errno.EBUSY, "the handle is in use")
        self.open[handle] = held

    def _opened(self, handle: str) -> LiveInode:
        if handle not in self.open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self.open[handle]

    def do_fsyncfd(self, handle: str) -> None:
        self._sync(lambda: self.fs().fsync_inode(self._opened(handle)))

    def do_close(self, handle: str) -> None:
        self.fs().release(self._opened(handle))
        del self.open[handle]

    def do_crash(self) -> None:
        fs = self.fs()
        self.crashes += 1
        self.crashed(fs, self.crashes)

    def do_sync(self) -> None:
        self.fs().sync()

    # ----------------------------------------------------------------------------- attributes --

    def do_chmod(self, path: bytes, mode: int) -> None:
        self.fs().chmod(path, mode)

    def do_chown(self, path: bytes, uid: int, gid: int) -> None:
        self.fs().chown(path, uid, gid, follow=False)

    def do_utimes(self, path: bytes, atime: int, mtime: int) -> None:
        self.fs().utimes(path, atime, mtime, follow=False)

    def do_setxattr(self, path: bytes, name: str, value: str) -> None:
        data = bytes.fromhex(value) if self.scenario.hex_values else value.encode()
        self.fs().setxattr(path, name, data, follow=False)

    def do_removexattr(self, path: bytes, name: str) -> None:
        self.fs().removexattr(path, name, follow=False)

    def do_chattr(self, path: bytes, set: int, clear: int) -> None:  # noqa: A002
        self.fs().chattr(path, set, clear)

    # ----------------------------------------------------------------------------- subvolumes --

    def do_subvol_create(self, path: bytes, groups: list[int] | None) -> None:
        self.fs().create_subvolume(path, groups)

    def do_subvol_delete(self, path: bytes) -> None:
        self.fs().delete_subvolume(path)

    def do_snapshot(
        self, source: bytes, path: bytes, read_only: bool, groups: list[int] | None
    ) -> None:
        self.fs().snapshot(source, path, read_only=read_only, qgroups=groups)

    def do_set_read_only(self, path: bytes, read_only: bool) -> None:
        self.fs().set_read_only(path, read_only)

    def do_set_received(self, path: bytes, uuid: str, transid: int) -> None:
        self.fs().set_received_subvolume(path, bytes.fromhex(uuid), transid)

    def do_quota_enable(self, simple: bool) -> None:
        self.fs().quota_enable(simple)

    def do_quota_disable(self) -> None:
        self.fs().quota_disable()

    def do_quota_rescan(self) -> None:
        self.fs().quota_rescan()

    def do_qgroup_create(self, group: int) -> None:
        self.fs().qgroup_create(group)

    def do_qgroup_destroy(self, group: int) -> None:
        self.fs().qgroup_destroy(group)

    def do_qgroup_assign(self, member: int, group: int) -> None:
        self.fs().qgroup_assign(member, group)

    def do_qgroup_remove(self, member: int, group: int) -> None:
        self.fs().qgroup_remove(member, group)

    def do_qgroup_limit(self, group: int, max_rfer: int, max_excl: int) -> None:
        self.fs().qgroup_limit(group, max_rfer, max_excl)

    def do_receive(self, snapshot: bytes, parent: bytes | None) -> None:
        """``btrfs send | btrfs receive``: the parent is a clone source too."""
        fs = self.fs()
        sent = send(fs, snapshot, parent)
        assert sent.data is not None
        from btrfs_model.questions.receive.api import apply_stream

        apply_stream(fs, sent.data, _RECEIVED)


def _names(path: bytes, prefix: str, first: int, last: int, step: int) -> Iterator[bytes]:
    start = path + b"/" + prefix.encode()
    return (start + str(number).encode() for number in range(first, last + 1, step))
