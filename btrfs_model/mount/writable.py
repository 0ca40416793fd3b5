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
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn, Self

import numpy as np
import numpy.typing as npt

from btrfs_model.base.counters import uncounted
from btrfs_model.base.sizes import size as parse_size
from btrfs_model.behaviour import Behaviour
from btrfs_model.mount import load, transaction
from btrfs_model.mount.calls.files import FileCalls
from btrfs_model.mount.calls.names import NamespaceCalls
from btrfs_model.mount.calls.subvolumes import SubvolumeCalls
from btrfs_model.mount.inode_cache import highest_objectid
from btrfs_model.mount.mkfs.format import Identity, format_device
from btrfs_model.mount.mkfs.layout import Format
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import is_there
from btrfs_model.mount.options import MountOptions
from btrfs_model.mount.roots.live_root import LiveRoot
from btrfs_model.mount.space import block_group
from btrfs_model.mount.space.space_info import MetadataSpace
from btrfs_model.mount.trees.writer import TreeWriter
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import SUPER_BLOCK, RootItem
from btrfs_model.ondisk.superblock import SUPER_SIZE, read_superblocks
from btrfs_model.patches import Patch
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image
from btrfs_model.volume.memory import Memory
from btrfs_model.volume.roots import Root

_START: Final = 1_700_000_000 * 10**9
_TICK: Final = 10**6
_COMPRESSIONS: Final = (None, "zlib", "lzo", "zstd")
_INCOMPAT: Final = {"lzo": 1 << 3, "zstd": 1 << 4}
_BIG_METADATA: Final = 1 << 5
_PAGE: Final = 4096
_UNNAMED: Final = "<memory>"
_KERNEL: Final = "v6.18.44"


class WritableFilesystem(NamespaceCalls, SubvolumeCalls, FileCalls, Filesystem):
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
    behaviour : str or Behaviour
        The kernel that it is mounted by; see :attr:`behaviour`.
    replay : str or Behaviour, optional
        The kernel whose way of replaying a log is followed; without it a log is refused.

    Attributes
    ----------
    writer : TreeWriter
        The trees as the running transaction has them.
    raw_super : RawSuperBlock
        The superblock of the last commit, with what the next one will change already.
    committed_roots : dict
        Address of the root block of each tree, by id, as the last commit wrote it.
    clock : int
        The next time that :meth:`now` returns, nanoseconds since 1970.
    before_commit : list of callable
        Called in order when a commit starts, and again after its snapshots.
    pending_snapshots : list of callable
        The snapshots that the next commit takes.
    in_transaction : bool
        Whether a call started a transaction since the last commit.
    started : int
        How often a call started a transaction or joined it.
    aborted : bool
        Whether a change or a commit failed half-way, so that there is no commit any more
        (``btrfs_abort_transaction()``).
    committing : bool
        Whether a commit is just running.
    device_stats_written : bool
        Whether a commit since the mount wrote the error counts of the device.
    log_trees_enabled : bool
        Whether fsync writes a log; without, it commits (mount option ``notreelog``).
    space_info : MetadataSpace
        What calls reserve of the room for metadata.
    finish_order : callable, optional
        For a number of extents that are written back together, the order in which their items are
        made; without it each is finished before the next is begun. A kernel has several workers.
    """

    image: Image
    writer: TreeWriter
    nodesize: int
    sectorsize: int

    def __init__(
        self,
        memory: Memory,
        path: str = _UNNAMED,
        *,
        seed: int = 0,
        ssd: bool = False,
        compress: str | None = None,
        max_inline: int = 2048,
        behaviour: str | Behaviour = _KERNEL,
        replay: str | Behaviour | None = None,
    ) -> None:
        if compress not in _COMPRESSIONS:
            raise ValueError(f"compress {compress!r} is none of zlib, lzo, zstd")
        kernel = Behaviour.parse(behaviour)
        # nothing is uncommitted while the image is read
        self._live_roots: dict[int, LiveRoot] = {}
        self._asked_roots: set[int] = set()
        self.in_transaction = False
        self.started = 0
        super().__init__(Image(memory.buffer, path, checks_items=True))
        load.check_writable(self, replay=replay is not None)
        self.memory = memory
        self.seed = seed
        self.ssd = ssd
        self.compress = compress
        self.max_inline = max_inline
        self.nodesize = self.image.nodesize
        self.sectorsize = self.image.sectorsize
        sb = self.image.superblock
        self.raw_super = SUPER_BLOCK.unpack(self.image.view[sb.offset : sb.offset + SUPER_SIZE])
        self.add_compression(compress)
        if self.nodesize > _PAGE:
            self.add_incompat(_BIG_METADATA)
        self.writer = TreeWriter(
            self.image, memory.buffer, transid=sb.generation + 1,
            features=load.writer_features(sb), ssd=ssd,
        )  # fmt: skip
        load.add_groups(self, self.writer)
        load.add_trees(self, self.writer)
        block_group.load_size_classes(self)
        self.clock = int(os.environ.get("SOURCE_DATE_EPOCH", 0)) * 10**9 or _START
        self._random = random.Random(f"{seed} {sb.fsid.hex()} {sb.generation}")
        self.before_commit: list[Callable[[], None]] = []
        self.pending_snapshots: list[Callable[[], None]] = []
        self.committed_roots = transaction.committed_roots(self)
        self.committing = False
        self.device_stats_written = False
        self._next_root_id = highest_objectid(self, ObjectId.ROOT_TREE) + 1
        self.log_trees_enabled = True
        self.behaviour = kernel
        self.finish_order: Callable[[int], npt.NDArray[np.uint32]] | None = None
        self.space_info = MetadataSpace(self)
        self.start_namespace()
        self.before_commit.append(self.run_delayed_items)
        if replay is not None:
            from btrfs_model.questions.logreplay.replay import recover_log_trees

            recover_log_trees(self, Behaviour.parse(replay))

    # ------------------------------------------------------------------- from and to files --

    @classmethod
    def mkfs(
        cls,
        size: int | str,
        nodesize: int | str = 16384,
        *,
        seed: int = 0,
        ssd: bool = False,
        compress: str | None = None,
        max_inline: int = 2048,
        behaviour: str | Behaviour = _KERNEL,
        **options: Any,
    ) -> Self:
        """Make a fresh filesystem, as mkfs.btrfs of btrfs-progs 6.2 does, in memory.

        Parameters
        ----------
        size : int or str
            Of the device: bytes, or text such as ``"1G"`` (K, M, G, T). Only what is written takes
            memory.
        nodesize : int or str
            4096 to 65536, likewise.
        seed, ssd, compress, max_inline, behaviour
            See the class.
        **options
            ``csum``, ``label``, ``metadata`` and features, see
            :class:`~btrfs_model.mount.mkfs.layout.Format`.

        Raises
        ------
        ValueError
            For a size, nodesize or option that mkfs.btrfs refuses, and text that is no size.
        UnknownBehaviourError
            For a kernel or toggle that there is not.
        TypeError
            For an option that there is not.
        """
        kernel = Behaviour.parse(behaviour)
        layout = Format(parse_size(size), parse_size(nodesize), **options)
        layout.check()
        memory = Memory(layout.size)
        start = int(os.environ.get("SOURCE_DATE_EPOCH", 0)) or _START // 10**9
        choice = random.Random(f"mkfs {seed}")
        fsid, chunks, device, top = (_uuid(choice) for _ in range(4))
        format_device(memory.buffer, layout, Identity(fsid, chunks, device, top, start))
        return cls(memory, seed=seed, ssd=ssd, compress=compress, max_inline=max_inline,
                   behaviour=kernel)  # fmt: skip

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        seed: int = 0,
        ssd: bool = False,
        compress: str | None = None,
        max_inline: int = 2048,
        behaviour: str | Behaviour = _KERNEL,
        replay: str | Behaviour | None = None,
    ) -> Self:
        """Copy an image into memory, to go on with it; the file stays as it is.

        Parameters
        ----------
        path : str or os.PathLike
            File or block device.
        seed, ssd, compress, max_inline, behaviour, replay
            See the class; with `replay` the log of an image is replayed.

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
        kernel = Behaviour.parse(behaviour)
        with Image.open(path, checks_items=True) as image:
            # everything that can be refused is refused before the copy
            load.check_writable(Filesystem(image), replay=replay is not None)
            size = len(image.view)
        memory = Memory.copy_of(path, size)
        return cls(memory, os.fspath(path), seed=seed, ssd=ssd, compress=compress,
                   max_inline=max_inline, behaviour=kernel, replay=replay)  # fmt: skip

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

    def close(self) -> None:
        """Give the memory back, and with it what was not saved."""
        self.writer.close()
        super().close()

    # ----------------------------------------------------------------------- what is random --

    def now(self) -> int:
        """Return the time and let it go on: nanoseconds since 1970."""
        time = self.clock
        self.clock += _TICK
        return time

    def new_uuid(self) -> bytes:
        """Return a random uuid (``generate_random_guid()``)."""
        return _uuid(self._random)

    # ---------------------------------------------------------------------------- the roots --

    @property
    def aborted(self) -> bool:
        """Whether there is no commit any more; see the class."""
        return self.writer.aborted

    @aborted.setter
    def aborted(self, aborted: bool) -> None:
        self.writer.aborted = aborted

    @property
    def transid(self) -> int:
        """Number of the running transaction."""
        return self.writer.transid

    @property
    def generation(self) -> int:
        """Number of the transaction that was started last (``btrfs_get_fs_generation()``)."""
        return self.transid - (not self.in_transaction)

    def live_root(self, objectid: int) -> LiveRoot:
        """Return the root item of a tree, to be read and changed.

        Raises
        ------
        FileNotFoundError
            When there is no such tree.
        """
        found = self._live_roots.get(objectid)
        if found is None:
            key = (objectid, ItemType.ROOT_ITEM, 2**64 - 1)
            item = self.writer.tree(ObjectId.ROOT_TREE).last(key)
            if item is None or item.key[:2] != key[:2]:
                raise FileNotFoundError(f"{self.path}: there is no tree {objectid}")
            root = Root.of(item, self.path, ObjectId.ROOT_TREE)
            found = LiveRoot.of(objectid, item.key.offset, root.item)
            self._live_roots[objectid] = found
        self._asked_roots.add(objectid)
        return found

    def add_root(self, objectid: int, item: RootItem, offset: int = 0) -> LiveRoot:
        """Insert a root item (``btrfs_insert_root()``).

        Parameters
        ----------
        objectid : int
            The tree, which the writer has already.
        item : RootItem
            What it says.
        offset : int
            Of the key: 0, or for a snapshot the transaction.
        """
        live = LiveRoot.of(objectid, offset, item)
        self.writer.insert(ObjectId.ROOT_TREE, live.key, live.stored)
        self._live_roots[objectid] = live
        self._asked_roots.add(objectid)
        return live

    def forget_root(self, objectid: int) -> None:
        """Delete the root item of a tree that is gone (``btrfs_del_root()``)."""
        self.writer.delete(ObjectId.ROOT_TREE, self.live_root(objectid).key)
        del self._live_roots[objectid]
        self._asked_roots.discard(objectid)

    def live_roots(self) -> list[LiveRoot]:
        """Return the root items that were asked for since the last commit, ascending by id.

        Nobody keeps one longer, so no other can have changed.
        """
        return [self._live_roots[root] for root in sorted(self._asked_roots)]

    def forget_asked_roots(self) -> None:
        """Say that all root items are written."""
        self._asked_roots.clear()

    def next_root_id(self) -> int:
        """Return an id for a new subvolume (``btrfs_get_free_objectid()`` of the root tree)."""
        number = self._next_root_id
        self._next_root_id += 1
        return number

    # ----------------------------------------------------------------------- space, commits --

    def add_incompat(self, bits: int) -> None:
        """Switch incompatible features on; the next commit tells the superblock."""
        flags = self.raw_super.incompat_flags | bits
        self.raw_super = self.raw_super._replace(incompat_flags=flags)

    def add_compression(self, kind: str | None) -> None:
        """Say that there may be data compressed so, where that is a feature of its own."""
        self.add_incompat(_INCOMPAT.get(kind or "", 0))

    def ensure_data(self, nbytes: int) -> None:
        """Reserve room for data; see :func:`.block_group.ensure_data`.

        Raises
        ------
        OSError
            ENOSPC when there is none.
        """
        block_group.ensure_data(self, nbytes)

    def reserve_data(self, wanted: int, least: int, hint: int = 0) -> tuple[int, int]:
        """Reserve room for data; see :func:`.block_group.reserve_data`.

        Raises
        ------
        OSError
            ENOSPC when there is none.
        """
        return block_group.reserve_data(self, wanted, least, hint)

    def ensure_metadata(self, *, from_reserve: bool = False) -> None:
        """See that there is room for metadata; see :func:`.block_group.ensure_metadata`.

        Raises
        ------
        OSError
            ENOSPC when there is none.
        """
        block_group.ensure_metadata(self, from_reserve=from_reserve)

    @property
    def behaviour(self) -> Behaviour:
        """The kernel whose fsync it is, and whose delayed items and deletions lay leaves out."""
        return self._behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.writer.set_behaviour(behaviour)

    def start_transaction(
        self, items: int = 0, *, from_reserve: bool = False, calls: int = 1
    ) -> int:
        """Begin to change something (``btrfs_start_transaction()``).

        There is then something to commit, also where nothing comes of it.

        Parameters
        ----------
        items : int
            So many items at most are changed; 0 where it is not asked for room.
        from_reserve : bool
            What frees space may take from what is kept for commits
            (``btrfs_start_transaction_fallback_global_rsv()``).
        calls : int
            How many calls are to be made at once, each of which changes so many items.

        Returns
        -------
        int
            How many of the calls may be made before this is asked again, at least one.

        Raises
        ------
        OSError
            ENOSPC when there is no room for metadata.
        """
        self.ensure_metadata(from_reserve=from_reserve)
        if calls > 1:
            calls = min(calls, block_group.calls_that_fit(self))
        calls = self.space_info.start_transaction(items, steal=from_reserve, calls=calls)
        self.in_transaction = True
        self.started += 1
        return calls

    @exclusive
    def commit(self) -> bool:
        """End the transaction; what it changed is then in the image.

        Returns
        -------
        bool
            Whether there was anything to commit; where not, nothing is written.
        """
        return transaction.commit(self)

    @exclusive
    def sync(self) -> None:
        """Write back what waits, then commit (``btrfs_sync_fs()``)."""
        self.flush_delalloc()
        self.commit()

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
        mount = None if options is None else MountOptions.parse(options)
        if self.inodes.any_held():
            raise fail(errno.EBUSY, self.path)
        self.sync()
        if Patch.UMOUNT_NO_EMPTY_COMMIT not in self.behaviour:
            self.start_transaction()
            self.commit()
        self.inodes.forget_all()
        self.tree_logs.forget()
        self.space_info = MetadataSpace(self)
        if mount is not None:
            self._mount(mount)

    @exclusive
    def set_mount_options(self, options: str) -> None:
        """Mount with the options of mount(8), as far as they change what is written.

        Parameters
        ----------
        options : str
            ``compress``, ``compress-force``, ``max_inline``, ``ssd``; others that only name what is
            so anyway are ignored.

        Raises
        ------
        ValueError
            For an option that there is not, or that the model does not have.
        """
        self._mount(MountOptions.parse(options))

    def _mount(self, options: MountOptions) -> None:
        self.compress = options.compress
        self.compress_force = options.compress_force
        self.max_inline = options.max_inline
        self.log_trees_enabled = options.tree_log
        self.add_compression(options.compress)

    def _state(self) -> str:
        state = super()._state()
        return f"{state}, not committed" if self.in_transaction and state != "closed" else state

    def _has_uncommitted(self, subvolume: bytes | int, file: bytes | int | None) -> bool:
        # one that was deleted meanwhile has no tree
        with uncounted(), suppress(OSError):
            return is_there(self, subvolume, file)
        return False

    def reread(self) -> None:
        """Forget what was read of an earlier commit."""
        self.image.superblock = read_superblocks(self.image.view, self.path)
        self.forget()


def _uuid(choice: random.Random) -> bytes:
    """Return a random uuid of version 4."""
    raw = bytearray(choice.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)
