# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem that is being changed, in memory.

::

    import btrfs_model as bm

    fs = bm.create(1 << 30)
    ...
    fs.save("disk.img")

Changes gather in a transaction. What reads the filesystem sees the state of the last
:meth:`WritableFilesystem.commit`.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self

from btrfs_model.base.arguments import checked, renamed
from btrfs_model.base.counters import uncounted
from btrfs_model.base.errors import NotWrittenWarning
from btrfs_model.base.sizes import size as parse_size
from btrfs_model.base.tables import plural
from btrfs_model.behaviour import Behaviour, mount_kernel
from btrfs_model.mount import transaction
from btrfs_model.mount.calls.file_object import LiveFileObject
from btrfs_model.mount.calls.files import FileCalls
from btrfs_model.mount.calls.names import NamespaceCalls
from btrfs_model.mount.calls.quotas import QuotaCalls
from btrfs_model.mount.calls.subvolumes import SubvolumeCalls
from btrfs_model.mount.delayed_inode import batches
from btrfs_model.mount.files.writeback import flush_delalloc, write_files_back
from btrfs_model.mount.log.replay.recover import recover_log_trees
from btrfs_model.mount.log.trace import Trace
from btrfs_model.mount.mkfs.layout import Format
from btrfs_model.mount.mkfs.make import fresh
from btrfs_model.mount.mount import Hooks
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import is_there
from btrfs_model.mount.options import MountOptions
from btrfs_model.mount.relocation.balance import Balanced, Request, balance
from btrfs_model.mount.roots import load
from btrfs_model.mount.space.qgroup import read_qgroup_config
from btrfs_model.mount.space.quota_ctl import rescan_worker
from btrfs_model.mount.space.reservations import Reservations
from btrfs_model.mount.space.resize import resize
from btrfs_model.native.lease import exclusive
from btrfs_model.patches import Patch
from btrfs_model.volume.device.memory import Memory, replacement_of
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image
from btrfs_model.volume.quotas import StatusFlag

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.mount.mkfs.writer.balance import Root
    from btrfs_model.mount.mkfs.writer.transaction import Transactions

_COMPRESSIONS: Final = (None, "zlib", "lzo", "zstd")
_UNNAMED: Final = "<memory>"
# BTRFS_LABEL_SIZE, the zero behind it apart
_LABEL: Final = 255
_HOOKS: Final = Hooks(transaction.commit, flush_delalloc, write_files_back)


def _size_of(path: str | os.PathLike[str], *, replay: bool = False) -> int:
    """Return the size of an image, after everything that can be refused was refused."""
    with Image.open(path, checks_items=True) as image:
        load.check_writable(Filesystem(image), replay=replay)
        return len(image.view)


class WritableFilesystem(FileCalls, SubvolumeCalls, QuotaCalls):
    """A filesystem in memory, mounted for writing.

    Make one with :meth:`mkfs` (``bm.create()``) or :meth:`load`. Threads may share it, as any
    :class:`Filesystem`. It neither pickles nor copies.

    Parameters
    ----------
    memory : Memory
        The device.
    path : str
        Its name in errors.
    seed : int
        Whatever is random (uuids) follows from it: the same calls give the same bytes.
    ssd : bool
        Mount option ``ssd``.
    compress : str, optional
        Mount option ``compress``: ``zlib``, ``lzo`` or ``zstd``.
    max_inline : int
        Mount option ``max_inline``, bytes.
    behaviour : str or Behaviour, optional
        The kernel that it is mounted by; see :attr:`.Mount.behaviour`. Without it
        :data:`~btrfs_model.patches.KERNEL`, or in a workload that is replayed the kernel of
        the side.
    replay_behaviour : str or Behaviour, optional
        The kernel whose way of replaying a log is followed; without it a log is refused.
    """

    _offered: ClassVar = (
        Filesystem._offered
        | {"behaviour", "commit", "crash", "delayed_batches", "load", "mkfs", "nodesize", "remount",
           "resize", "save", "save_crash", "set_label", "sync", "umask"}
        | {name for calls in (FileCalls, NamespaceCalls, SubvolumeCalls, QuotaCalls)
           for name in vars(calls)
           if not name.startswith("_")}
    ) - {"flush_delalloc", "fsync_inode", "hold", "release", "tmpfile",
         "vfs_fallocate"}  # fmt: skip

    _file_kind: ClassVar = LiveFileObject

    @renamed(replay="replay_behaviour")
    @checked
    def __init__(
        self,
        memory: Memory,
        path: str = _UNNAMED,
        *,
        seed: int = 0,
        ssd: bool = False,
        compress: str | None = None,
        max_inline: int = 2048,
        behaviour: str | Behaviour | None = None,
        replay_behaviour: str | Behaviour | None = None,
    ) -> None:
        if compress not in _COMPRESSIONS:
            raise ValueError(f"compress {compress!r} is none of zlib, lzo, zstd")
        options = MountOptions(compress, max_inline=max_inline)
        super().__init__(
            memory, path, _HOOKS, seed=seed, ssd=ssd, options=options,
            behaviour=mount_kernel(behaviour), has_log=replay_behaviour is not None,
        )  # fmt: skip
        read_qgroup_config(self)
        if replay_behaviour is not None:
            recover_log_trees(self, Behaviour.parse(replay_behaviour))
        if self.quotas.enabled and self.quotas.flags & StatusFlag.RESCAN:
            rescan_worker(self)

    # ------------------------------------------------------------------- from and to files --

    @classmethod
    @checked
    def mkfs(
        cls,
        size: int | str,
        nodesize: int | str = 16384,
        *,
        seed: int = 0,
        ssd: bool = False,
        compress: str | None = None,
        max_inline: int = 2048,
        behaviour: str | Behaviour | None = None,
        device_size: int | str | None = None,
        fill: Callable[[Transactions, int], list[Root]] | None = None,
        **options: Any,
    ) -> Self:
        """Make a fresh filesystem, as mkfs.btrfs does, in memory.

        Times are those of the variable ``SOURCE_DATE_EPOCH``, where there is one. With
        ``DETERMINISTIC_SEED=1`` uuids follow from that of the filesystem, as in btrfs-progs 7.3.

        Parameters
        ----------
        size : int or str
            Of the device: bytes, or text such as ``"1G"`` (K, M, G, T). Only what is written takes
            memory.
        nodesize : int or str
            4096 to 65536, likewise.
        seed, ssd, compress, max_inline, behaviour
            See the class.
        device_size : int or str, optional
            Of a device that is larger than the filesystem: room to :meth:`resize` it.
        fill : callable, optional
            What copies files into it, as mkfs.btrfs does it.
        **options
            ``csum``, ``label``, ``metadata``, ``uuid``, ``device_uuid``, features, and ``progs``,
            the release of btrfs-progs: see :class:`~btrfs_model.mount.mkfs.layout.Format`.

        Raises
        ------
        ValueError
            For a size, nodesize or option that mkfs.btrfs refuses, and text that is no size.
        UnknownBehaviourError
            For a kernel or toggle that there is not.
        TypeError
            For an option that there is not.
        """
        kernel = mount_kernel(behaviour)
        layout = checked(Format)(parse_size(size), parse_size(nodesize), **options)
        layout.check()
        whole = layout.size if device_size is None else parse_size(device_size)
        if whole < layout.size:
            raise ValueError(f"size {layout.size}: the device has {whole} bytes")
        memory = fresh(layout, seed, fill, device_size=whole)
        return cls(memory, seed=seed, ssd=ssd, compress=compress, max_inline=max_inline,
                   behaviour=kernel)  # fmt: skip

    @classmethod
    @renamed(replay="replay_behaviour")
    @checked
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        seed: int = 0,
        ssd: bool = False,
        compress: str | None = None,
        max_inline: int = 2048,
        behaviour: str | Behaviour | None = None,
        replay_behaviour: str | Behaviour | None = None,
    ) -> Self:
        """Copy an image into memory, to go on with it; the file stays as it is.

        Parameters
        ----------
        path : str or os.PathLike
            File or block device.
        seed, ssd, compress, max_inline, behaviour, replay_behaviour
            See the class; with `replay_behaviour` the log of an image is replayed.

        Raises
        ------
        CorruptImageError
            When it is truncated or damaged.
        UnsupportedError
            For what the model cannot write, or not read.
        UnknownBehaviourError
            For a kernel or toggle that there is not.
        OSError
            When the file cannot be read.
        """
        kernel = mount_kernel(behaviour)
        memory = Memory.copy_of(path, _size_of(path, replay=replay_behaviour is not None))
        return cls(memory, os.fspath(path), seed=seed, ssd=ssd, compress=compress,
                   max_inline=max_inline, behaviour=kernel,
                   replay_behaviour=replay_behaviour)  # fmt: skip

    @classmethod
    def load_to_replace(cls, path: str | os.PathLike[str]) -> Self:
        """Do as :meth:`load`, for :meth:`replace` in the end: data go to where they will stay."""
        return cls(replacement_of(path, _size_of(path)), os.fspath(path))

    @exclusive
    def replace(self) -> None:
        """Do as :meth:`save`, with the file that was loaded; nothing changes any more then."""
        self.sync()
        self.memory.finish(self.path)

    @checked
    @exclusive
    def save(self, path: str | os.PathLike[str]) -> None:
        """Commit and write the image to a sparse file, which is replaced as a whole.

        From then on, errors of a filesystem that was made in memory name that file.

        Raises
        ------
        OSError
            When it cannot be written; what was there before is still there.
        """
        if self.image.path == _UNNAMED:
            self.image.path = os.fspath(path)
        self.sync()
        self.memory.save(path)

    @exclusive
    def crash(self) -> bytes:
        """Return the device as a crash would leave it now: the last commit, and synced logs."""
        return bytes(self.memory.buffer)

    @exclusive
    def save_crash(self, path: str | os.PathLike[str]) -> None:
        """Write what :meth:`crash` returns to a sparse file, which is replaced as a whole.

        Raises
        ------
        OSError
            When it cannot be written; what was there before is still there.
        """
        self.memory.save(path)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.path}: a filesystem in memory cannot be pickled or copied; save() it and load()"
        )

    # -------------------------------------------------------------------- commits, mounts --

    @exclusive
    def commit(self) -> bool:
        """End the transaction; what it changed is then in the image.

        Returns
        -------
        bool
            Whether there was anything to commit; where not, nothing is written.

        Warns
        -----
        NotWrittenWarning
            Where data wait for writeback: they are in no extent yet, and the files are empty, or
            as they were, for those who read the image. :meth:`sync` writes them first.
        """
        if self.dirty_files:
            waiting = plural(len(self.dirty_files), "file")
            warnings.warn(
                f"{self.path}: commit() leaves data of {waiting} unwritten; sync() writes them",
                NotWrittenWarning,
                stacklevel=3,
            )
        return transaction.commit(self)

    @contextmanager
    def trace(self) -> Iterator[Trace]:
        """Collect what fsyncs decide inside the ``with`` block, as tracepoints of Linux 7.2 do.

        ::

            with fs.trace() as trace:
                fs.fsync("d/file")
            print(trace.table)

        A log as kernels before 6.1 write it has the events of the fsync itself alone.

        Yields
        ------
        Trace
            ``events`` by name, with the kernel's fields; ``table``.
        """
        trace = Trace()
        self.traces.append(trace)
        try:
            yield trace
        finally:
            self.traces.remove(trace)

    @exclusive
    def sync(self, *, cyclic: bool = False) -> None:
        """Write back what waits, then commit (BTRFS_IOC_SYNC, syncfs(2), umount(2)).

        Parameters
        ----------
        cyclic : bool
            As sync(2) does: flushers write a file back from where its last writeback ended on, and
            then from its beginning. What is dirty there becomes an extent of its own.
        """
        flush_delalloc(self, cyclic=cyclic)
        transaction.commit(self)
        if self.watcher is not None:
            self.watcher.synced(None)

    @exclusive
    def delayed_batches(self) -> pd.DataFrame:
        """Return how names that wait would go into the tree now, batch by batch.

        Returns
        -------
        pandas.DataFrame
            A row for each insertion (``btrfs_insert_delayed_item()``): ``subvolume``, ``inode``
            (of the directory), ``items``, ``bytes`` (with headers).

        Raises
        ------
        UnsupportedError
            For a kernel before ``batch-delayed-items``: there the leaves decide.
        """
        return batches(self)

    @exclusive
    def remount(self, options: str | None = None) -> None:
        """Unmount and mount: everything is committed, and no inode stays in memory.

        Parameters
        ----------
        options : str, optional
            As for :meth:`set_mount_options`; without them they stay as they are.

        Raises
        ------
        ValueError
            For an option that there is not.
        OSError
            EBUSY while an inode is open.
        """
        mount = None if options is None else self.parse_options(options)
        if any(i.holders for live in self.live_subvolumes.values() for i in live.inodes.values()):
            raise fail(errno.EBUSY, self.path)
        self.sync()
        if Patch.UMOUNT_NO_EMPTY_COMMIT not in self.behaviour:
            transaction.start_transaction(self)
            transaction.commit(self)
        self.live_subvolumes.clear()
        self.tree_logs.roots.clear()
        self.reservations = Reservations(self.writer)
        self.init_root_id()
        read_qgroup_config(self)
        if mount is not None:
            self.set_options(mount)

    @exclusive
    def set_mount_options(self, options: str) -> None:
        """Mount with the options of mount(8), separated by commas.

        Parameters
        ----------
        options : str
            Followed are ``compress`` and ``compress-force`` with levels, ``max_inline``,
            ``nodatacow``, ``nodatasum``, ``ssd``, ``flushoncommit``, ``notreelog`` and their
            opposites. What changes nothing here is taken, and shown by :attr:`mount_options`.

        Raises
        ------
        ValueError
            For an option that this kernel refuses, or that the model does not follow.
        """
        self.set_options(self.parse_options(options))

    @exclusive
    def set_label(self, label: str) -> None:
        """Set the label and commit (BTRFS_IOC_SET_FSLABEL).

        Raises
        ------
        ValueError
            For one of more than 255 bytes.
        """
        raw = label.encode("utf-8", "surrogateescape")
        if len(raw) > _LABEL:
            raise ValueError(f"a label of {len(raw)} bytes: it may have {_LABEL}")
        transaction.start_transaction(self)
        self.raw_super = self.raw_super._replace(label=raw)
        transaction.commit(self)

    @exclusive
    def resize(self, amount: str) -> None:
        """Let the filesystem take more or less of its device (BTRFS_IOC_RESIZE).

        A device is as large as the image that was loaded, or as `device_size` of :meth:`mkfs`.

        Parameters
        ----------
        amount : str
            ``max``, a size, or ``+`` or ``-`` and a size, as for ``btrfs filesystem resize``;
            ``1:`` may stand before it.

        Raises
        ------
        OSError
            EINVAL for less than 256 MiB or no size, ENODEV, ERANGE, EFBIG for more than the device
            has, ENOTCONN for ``cancel``, ENOSPC where what lies behind the new end has no room.
        UnsupportedError
            Where chunks have to move, for what :meth:`balance` refuses.
        """
        resize(self, amount)

    @exclusive
    def balance(
        self,
        data: str | None = None,
        metadata: str | None = None,
        system: str | None = None,
        *,
        force: bool = False,
    ) -> Balanced:
        """Move chunks, so that what is in them lies elsewhere (BTRFS_IOC_BALANCE_V2).

        Each of the filters is for one kind of chunks, as ``btrfs balance start -d`` takes them
        (``usage=50,limit=2``; ``""``: all). Where none is given all chunks are moved, where some
        are those of their kinds alone; those of the system go with those of metadata.

        Parameters
        ----------
        data, metadata, system : str, optional
            Filters.
        force : bool
            Metadata may get fewer copies, or only what is of the system is moved.

        Returns
        -------
        Balanced
            How many chunks were chosen, looked at and moved.

        Raises
        ------
        ValueError
            For what is no filter.
        OSError
            EINVAL for a profile that one device does not have, or fewer copies without `force`;
            ENOSPC when a chunk could not be moved, after all others were; EIO for data that differ
            from their checksum; EROFS when a transaction was aborted.
        UnsupportedError
            For what is not modelled: simple quotas, a v1 space cache.
        """
        return balance(self, Request.parse(data, metadata, system, force=force))

    @property
    def mount_options(self) -> str:
        """Mount options of btrfs as ``/proc/mounts`` shows them."""
        return ",".join(self.options.shown or self.parse_options("").shown)

    def _state(self) -> str:
        state = super()._state()
        return f"{state}, not committed" if self.in_transaction and state != "closed" else state

    def _has_uncommitted(self, subvolume: bytes | int, file: bytes | int | None) -> bool:
        # one that was deleted meanwhile has no tree
        with uncounted(), suppress(OSError):
            return is_there(self, subvolume, file)
        return False
