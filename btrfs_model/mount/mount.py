# SPDX-License-Identifier: GPL-2.0-only
"""The state of a mounted filesystem (``struct btrfs_fs_info``).

:class:`Mount` is what the functions of this package work on; what they do to it is in their
modules. It knows none of them. Two calls lead up from where room is looked for to the rooms that
make some, and come with the mount: :class:`Hooks`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.delayed_node import DelayedItems
from btrfs_model.mount.files.pages import BLOCKSIZE, DirtyBytes
from btrfs_model.mount.live_inode import LiveInode, LiveSubvolume
from btrfs_model.mount.log.state import TreeLogs
from btrfs_model.mount.log.trace import Trace
from btrfs_model.mount.machine import Machine
from btrfs_model.mount.options import MountOptions
from btrfs_model.mount.roots import load
from btrfs_model.mount.roots.live_root import LiveRoot
from btrfs_model.mount.roots.reloc_root import RelocRoots
from btrfs_model.mount.space.reservations import Reservations
from btrfs_model.mount.tree_writer import TreeWriter
from btrfs_model.ondisk.constants import (
    BTRFS_FILE_EXTENT_INLINE_DATA_START,
    BTRFS_HEADER_SIZE,
    BTRFS_ITEM_SIZE,
)
from btrfs_model.ondisk.hashes import CSUM_SIZES
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import SUPER_BLOCK, RawSuperBlock, RootItem
from btrfs_model.ondisk.superblock import SUPER_SIZE
from btrfs_model.ondisk.superblock_write import write_superblocks
from btrfs_model.volume.device.memory import Memory
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.forest import Forest
from btrfs_model.volume.image import Image
from btrfs_model.volume.quotas import Quotas
from btrfs_model.volume.roots import Root

START: Final = 1_700_000_000 * 10**9
"""When the clock of a mount starts, unless ``SOURCE_DATE_EPOCH`` says it: ns since 1970."""

_TICK: Final = 10**6
_INCOMPAT: Final = {"lzo": 1 << 3, "zstd": 1 << 4}
_BIG_METADATA: Final = 1 << 5
# BTRFS_LAST_FREE_OBJECTID
_LAST_FREE: Final = 2**64 - 256


@dataclass(frozen=True, slots=True)
class Hooks:
    """What makes room: a commit, writeback of all files (or a subvolume's), and of some."""

    commit: Callable[[Mount], bool]
    flush_delalloc: Callable[..., None]
    writeback: Callable[[Mount, list[LiveInode]], None]


class Watcher(Protocol):
    """Who is told in which order a device is written."""

    def flush(self, memory: Memory) -> None:
        """All that is in the memory is on the device for good, except the superblock."""

    def superblock(self, memory: Memory) -> None:
        """So is the superblock."""

    def synced(self, inode: LiveInode | None) -> None:
        """Note that a call returns which makes an inode last, or, without one, all."""


class Mount(Filesystem):
    """A filesystem that is mounted, and what the running transaction knows of it.

    `memory`: the device.
    `path`: its name in errors.
    `hooks`: the calls that lead up.
    `seed`: whatever is random (uuids) follows from it.
    `ssd`: whether the device is no disk, for mounts that do not say it themselves.
    `options`: mount options.
    `behaviour`: the kernel that it is mounted by.
    `has_log`: whether a log may be there, which will be replayed.
    `writer` (TreeWriter): the trees as the running transaction has them.
    `raw_super` (RawSuperBlock): the superblock of the last commit, with what the next one will
    change already.
    `committed_roots` (dict): address, generation and level of the root block of each tree, by id,
    as the last commit wrote it.
    `transid` (int): number of the running transaction.
    `first_transid` (int): number of the first transaction since the mount.
    `clock` (int): the next time that :meth:`now` returns, nanoseconds since 1970.
    `machine` (Machine): what threads decide by chance.
    `live_subvolumes` (dict): the inodes in memory, by subvolume.
    `delayed` (DelayedItems): what reaches the trees with the next commit.
    `tree_logs` (TreeLogs): what fsync writes instead of a commit.
    `traces` (list of Trace): who is told what fsyncs decide.
    `watcher` (Watcher or None): who is told when the device is flushed.
    `reservations` (Reservations): what calls reserve of the room for metadata.
    `quotas` (Quotas): the quota groups.
    `reloc_roots` (RelocRoots): the trees of relocation.
    `freed_dev_extents` (list): what chunks had of the device that the running transaction removed:
    start, size. It is free after the commit.
    `restripe` (dict): the profile that a balance converts chunks to, by kind (DATA 1 ...).
    `device_end` (int or None): while it shrinks, where chunks have to end.
    `dirty_files` (dict): files with data that wait for writeback, in the order in which they became
    dirty, by subvolume and inode number.
    `opened` (dict): open files by a path that stands for each, whatever its names are; `handles`
    numbers these paths.
    `dirty_bytes` (DirtyBytes): how much waits for writeback.
    `pending_snapshots` (list of callable): the snapshots that the next commit takes.
    `in_transaction` (bool): whether a call started a transaction since the last commit.
    `started` (int): how often a call started a transaction or joined it.
    `committing` (bool): whether a commit is just running.
    `flushing` (bool): whether a commit has data written back, before it runs.
    `device_stats_written` (bool): whether a commit since the mount wrote the error counts of the
    device.
    `umask`, `uid`, `gid` (int): of the calling process.
    `inline_room` (int): bytes of a leaf that are left for inline data.
    `no_holes` (bool): whether holes have no items.
    `csum_type`, `csum_size` (int): ``enum btrfs_csum_type`` of the filesystem; bytes of a checksum.
    """

    def __init__(
        self,
        memory: Memory,
        path: str,
        hooks: Hooks,
        *,
        seed: int,
        ssd: bool,
        options: MountOptions,
        behaviour: Behaviour,
        has_log: bool,
    ) -> None:
        # nothing is uncommitted while the image is read
        self._live_roots: dict[int, LiveRoot] = {}
        self._asked_roots: set[int] = set()
        self.in_transaction = False
        self.started = 0
        super().__init__(Image(memory.buffer, path, checks_items=True))
        load.check_writable(self, replay=has_log)
        memory.lease = self.image.lease
        self.memory, self.hooks, self.seed, self.ssd = memory, hooks, seed, ssd
        self.nodesize, self.sectorsize = self.image.nodesize, self.image.sectorsize
        self.inline_room = (
            self.nodesize
            - BTRFS_HEADER_SIZE - BTRFS_ITEM_SIZE - BTRFS_FILE_EXTENT_INLINE_DATA_START
        )  # fmt: skip
        sb = self.image.superblock
        self.no_holes = sb.has_incompat("NO_HOLES")
        self.csum_type = int(sb.csum_type)
        self.csum_size = CSUM_SIZES[self.csum_type]
        self.raw_super: RawSuperBlock = SUPER_BLOCK.unpack(
            self.image.view[sb.offset : sb.offset + SUPER_SIZE]
        )
        if self.nodesize > BLOCKSIZE:
            self.add_incompat(_BIG_METADATA)
        self.writer = TreeWriter(
            self.image, memory.buffer, transid=sb.generation + 1,
            features=load.writer_features(sb), ssd=ssd,
        )  # fmt: skip
        self.set_options(options)
        self.transid = self.writer.transid
        load.add_groups(self, self.writer)
        load.add_trees(self, self.writer)
        load.load_size_classes(self, self.writer)
        self.first_transid = sb.generation + 1
        self.clock = int(os.environ.get("SOURCE_DATE_EPOCH", 0)) * 10**9 or START
        self._random = random.Random(f"{seed} {sb.fsid.hex()} {sb.generation}")
        self.committed_roots = {tree: self.root_place(tree) for tree in self.writer.tree_ids()}
        self.committing = self.flushing = self.device_stats_written = False
        self.init_root_id()
        self.behaviour = behaviour
        self.machine = Machine()
        self.live_subvolumes: dict[int, LiveSubvolume] = {}
        self.delayed = DelayedItems(self.nodesize)
        self.tree_logs = TreeLogs()
        self.traces: list[Trace] = []
        self.watcher: Watcher | None = None
        self.reservations = Reservations(self.writer)
        self.quotas = Quotas()
        self.reloc_roots = RelocRoots()
        self.freed_dev_extents: list[tuple[int, int]] = []
        self.restripe: dict[int, int] = {}
        self.device_end: int | None = None
        self.dirty_files: dict[tuple[int, int], LiveInode] = {}
        self.opened: dict[bytes, LiveInode] = {}
        self.handles = count(1)
        self.dirty_bytes = DirtyBytes()
        self.pending_snapshots: list[Callable[[], None]] = []
        self.umask = 0o022
        self.uid = self.gid = 0

    def close(self) -> None:
        """Give the memory back, and with it what was not saved."""
        self.writer.close()
        super().close()

    def now(self) -> int:
        """Return the time and let it go on: nanoseconds since 1970."""
        time = self.clock
        self.clock += _TICK
        return time

    def new_uuid(self) -> bytes:
        """Return a random uuid (``generate_random_guid()``)."""
        return random_uuid(self._random)

    # --------------------------------------------------------------------- the transaction --

    @property
    def aborted(self) -> bool:
        """Whether a change or a commit failed half-way, so that there is no commit any more.

        (``btrfs_abort_transaction()``.)
        """
        return self.writer.aborted

    @aborted.setter
    def aborted(self, aborted: bool) -> None:
        self.writer.aborted = aborted

    @property
    def generation(self) -> int:
        """Number of the transaction that was started last (``btrfs_get_fs_generation()``)."""
        return self.transid - (not self.in_transaction)

    def join_transaction(self) -> None:
        """Begin to change something without asking for room (``btrfs_join_transaction()``)."""
        self.in_transaction = True
        self.started += 1

    @property
    def behaviour(self) -> Behaviour:
        """The kernel release that this mount behaves as.

        It decides its fsync, its delayed items and its leaf layout after deletions.
        """
        return self._behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.writer.set_behaviour(behaviour)

    def reread(self) -> None:
        """Forget what was read of an earlier commit."""
        self.image.reread_superblock()
        self.forget()

    # ------------------------------------------------------------- superblock, block groups --

    def write_supers(self, raw: RawSuperBlock, most: int | None = None) -> None:
        """Write the superblock, behind all else (``write_all_supers()``).

        `raw`: what it says.
        `most`: how many copies are written, the first ones; all without it.
        """
        if self.watcher is not None:
            self.watcher.flush(self.memory)
        write_superblocks(self.memory.buffer, raw, most)
        if self.watcher is not None:
            self.watcher.superblock(self.memory)

    def add_incompat(self, bits: int) -> None:
        """Switch incompatible features on; the next commit tells the superblock."""
        flags = self.raw_super.incompat_flags | bits
        self.raw_super = self.raw_super._replace(incompat_flags=flags)

    def add_compression(self, kind: str | None) -> None:
        """Say that there may be data compressed so, where that is a feature of its own."""
        self.add_incompat(_INCOMPAT.get(kind or "", 0))

    def set_options(self, options: MountOptions) -> None:
        """Go on with other mount options."""
        self.options = options
        self.add_compression(options.compress)
        self.writer.set_ssd(self.ssd if options.ssd is None else options.ssd)

    def parse_options(self, text: str) -> MountOptions:
        """Read mount options, as the kernel that mounts this filesystem does.

        Raises ValueError: as :meth:`.MountOptions.parse`.
        """
        tree = self.image.superblock.has_compat_ro("FREE_SPACE_TREE")
        return MountOptions.parse(
            text, self.behaviour, free_space_tree=tree, sectorsize=self.sectorsize
        )

    # --------------------------------------------------------------------------- root items --

    def highest_objectid(self, tree: int) -> int:
        """Highest objectid in use, 255 for none (``btrfs_init_root_free_objectid()``)."""
        last = self.writer.tree(tree).last((_LAST_FREE, 255, U64_MAX))
        return max(ObjectId.FIRST_FREE - 1, last.key.objectid if last is not None else 0)

    def live_root(self, objectid: int) -> LiveRoot:
        """Return the root item of a tree, to be read and changed.

        Raises FileNotFoundError: when there is no such tree.
        """
        found = self._live_roots.get(objectid)
        if found is None:
            key = (objectid, ItemType.ROOT_ITEM, U64_MAX)
            item = self.writer.tree(ObjectId.ROOT_TREE).last(key)
            if item is None or item.key[:2] != key[:2]:
                raise FileNotFoundError(f"{self.path}: there is no tree {objectid}")
            root = Root.of(item, self.path, ObjectId.ROOT_TREE)
            found = LiveRoot.of(objectid, item.key.offset, root.item)
            self._live_roots[objectid] = found
        self._asked_roots.add(objectid)
        return found

    def add_root(self, objectid: int, item: RootItem, offset: int = 0) -> LiveRoot:
        """Insert the root item of a tree that the writer has already (``btrfs_insert_root()``).

        The offset of its key is 0, or for a snapshot the transaction.
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

    def root_place(self, tree: int) -> tuple[int, int, int]:
        """Return address, generation and level of the root block of a tree as it is now."""
        state = self.writer.tree_state(tree)
        return state.bytenr, state.generation, state.level

    def running_forest(self) -> Forest:
        """Return all trees for a backref walk through the running transaction."""
        trees = {tree: self.writer.tree(tree) for tree in self.writer.tree_ids()}
        return Forest(self.image, trees, trees, self.writer.list_refs())

    def init_root_id(self) -> None:
        """Look which id the next subvolume gets (``btrfs_init_root_free_objectid()``)."""
        self._next_root_id = self.highest_objectid(ObjectId.ROOT_TREE) + 1

    def skip_root_id(self, number: int) -> None:
        """Leave out the id of a subvolume that is gone, and of which there is a quota group."""
        if number > self._next_root_id:
            self._next_root_id = number + 1

    def next_root_id(self) -> int:
        """Return an id for a new subvolume (``btrfs_get_free_objectid()`` of the root tree)."""
        number = self._next_root_id
        self._next_root_id += 1
        return number


def random_uuid(choice: random.Random) -> bytes:
    """Return a random uuid of version 4."""
    raw = bytearray(choice.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)
