# SPDX-License-Identifier: GPL-2.0-only
"""The state of one send, ``struct send_ctx``: where the walk is, and what waits.

Beside ``native/send/context.c`` and ``native/send/send.h``, and ``native/image/lru.c`` for the
caches.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from btrfs_model.base.counters import current
from btrfs_model.ondisk.keys import U64_MAX, ItemType, Key, ObjectId
from btrfs_model.ondisk.layout import Payload, PayloadError
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.patches import Patch
from btrfs_model.questions.send.causes import NO_ITEM, Item, Place, Why
from btrfs_model.stream.writer import StreamWriter
from btrfs_model.volume.compare import Change
from btrfs_model.volume.ctree import Path, Reada, bytenr_of, item_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from btrfs_model.base.errors import CorruptImageError
    from btrfs_model.questions.send.request import SendRequest
    from btrfs_model.volume.subvolume import Subvolume
    from btrfs_model.volume.tree import Tree

TOP = ObjectId.FIRST_FREE
"""The inode of the top directory; none below it is a file."""
REFS = (ItemType.INODE_REF, ItemType.INODE_EXTREF)
"""Items that hold names of an inode."""
PATH_LIMIT = 4096
"""``PATH_MAX``, with the terminating zero."""
NOT_DATA = 16384
"""The part of the command buffer that is not file data."""
# the kernel's buffer for one command, by version of the stream
_BUFFER = {1: 65536, 2: 147456, 3: 147456}


class LruCache(OrderedDict[tuple[int, int], Any]):
    """Entries by (key, generation), the most recently used last (``lru_cache.c``)."""

    def lookup(self, key: int, generation: int = 0) -> Any:
        """Return an entry, which becomes the most recently used; None when there is none."""
        entry = self.get((key, generation))
        if entry is not None:
            self.move_to_end((key, generation))
        return entry

    def store(self, key: int, generation: int, entry: Any, max_size: int = 0) -> None:
        """Add an entry; the oldest of a full cache has to go. One that is there stays."""
        if (key, generation) in self:
            return
        if max_size and len(self) == max_size:
            self.popitem(last=False)
        self[key, generation] = entry


class DirRef(NamedTuple):
    """A directory that a name was in, and the item that has the name."""

    dir: int
    dir_gen: int
    item: Item


@dataclass
class RecordedRef:
    """A new or deleted name of the current inode.

    `dir`, `dir_gen`: the directory.
    `name`: the name in it.
    `full_path`: the path when it was recorded.
    `item`: the item that has the name.
    """

    dir: int
    dir_gen: int
    name: bytes
    full_path: bytes
    item: Item

    @property
    def directory(self) -> DirRef:
        """The directory, and the item that has the name."""
        return DirRef(self.dir, self.dir_gen, self.item)


@dataclass
class WaitingDirMove:
    """A directory whose rename has to wait for that of another one.

    `orphanized`: it has its orphan name meanwhile.
    `rmdir`: inode and generation of a directory that may be removable once this one has left it.
    """

    orphanized: bool
    rmdir: tuple[int, int] | None = None


@dataclass(frozen=True)
class PendingDirMove:
    """What is to be done when the wait is over: update_refs are directories that changed."""

    ino: int
    gen: int
    item: Item
    update_refs: list[DirRef]


@dataclass
class OrphanDirInfo:
    """A deleted directory that still has entries, and how far they were looked at.

    `gen`: its generation.
    `last_dir_index_offset`: the entry that was not gone yet.
    `dir_high_seq_ino`: the highest inode seen in it (since v6.3).
    """

    gen: int
    last_dir_index_offset: int = 0
    dir_high_seq_ino: int = 0


@dataclass
class CloneRoot:
    """A subvolume that may be cloned from, and the place in it that the present extent is at."""

    source: Subvolume
    ino: int = U64_MAX
    offset: int = 0
    num_bytes: int = 0
    found_ref: bool = False

    @property
    def id(self) -> int:
        """The id of the subvolume."""
        return self.source.id


class SendContext:
    """The state of one send.

    `request`: what to send, checked.
    """

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        self.image = request.fs.image
        self.behaviour = request.behaviour
        self.limits = limits = request.limits
        assert limits.clone_refs is not None and limits.backref_cache_roots is not None
        self.clone_refs, self.backref_cache_roots = limits.clone_refs, limits.backref_cache_roots
        self.send_root = request.snapshot.tree
        self.parent_root = request.parent.tree if request.parent else None
        opened = [*request.clone_roots, *([request.parent] if request.parent else [])]
        self.forest = request.fs.forest([subvolume.id for subvolume in opened])
        self.csum_tree = request.fs.tree(ObjectId.CSUM_TREE)
        # by id, in the order in which the kernel sorts them
        self.clone_roots = {source.id: CloneRoot(source) for source in request.clone_roots}
        # the kernel does not mind that a root was given twice, or is the snapshot itself
        self.clone_roots_cnt = len(request.clone_roots)
        # the stream
        self.writer = StreamWriter(request.proto)
        self.send_max_size = _BUFFER[request.proto]
        self.commands: Counter[str] = Counter()
        self.why = Why("subvol-begin", 0, NO_ITEM)
        self.explained: list[Why] = []
        self.places: list[Place] = []
        # the item that the walk stands on, in the snapshot and in its parent
        self.left_path = Path()
        self.right_path = Path()
        self.cmp_key = Key(0, 0, 0)
        self.result = Change.NEW
        # of the item of the current inode
        self.inode_change = Change.NEW
        self.cur_ino = 0
        self.cur_inode_new = False
        self.cur_inode_new_gen = False
        self.cur_inode_deleted = False
        self.cur_inode_gen = 0
        self.cur_inode = INODE_ITEM.unpack(bytes(INODE_ITEM.size))
        self.cur_inode_next_write_offset = 0
        # end of the last file extent seen; None: not known
        self.cur_inode_last_extent: int | None = None
        self.cur_inode_path = b""
        self.cur_inode_needs_verity = False
        self.ignore_cur_inode = False
        self.send_progress = 0
        # names of the current inode by (directory, its generation, name), in the order of recording
        self.new_refs: dict[tuple[int, int, bytes], RecordedRef] = {}
        self.deleted_refs: dict[tuple[int, int, bytes], RecordedRef] = {}
        # renames that wait, by inode; what waits for an inode, by that; removals that wait
        self.waiting_dir_moves: dict[int, WaitingDirMove] = {}
        self.pending_dir_moves: dict[int, list[PendingDirMove]] = {}
        self.orphan_dirs: dict[tuple[int, int], OrphanDirInfo] = {}
        self.name_cache = LruCache()
        self.dir_created_cache = LruCache()
        self.dir_utimes_cache = LruCache()
        self.backref_cache = LruCache()
        # reading data: whether the current inode was read before, the extent whose mapping is in
        # memory, the csum item in which the last look-up ended (the range that it covers, and its
        # sums), the extent that was decompressed last
        self.cur_inode_open = False
        self.mapped = (0, 0)
        self.csums: tuple[int, int, Payload] = (0, 0, b"")
        self.plain: tuple[int, bytes] = (0, b"")

    def __contains__(self, slug: str) -> bool:
        return slug in self.behaviour

    @property
    def parent_tree(self) -> Tree:
        """The tree of the parent snapshot, where it is known that there is one."""
        assert self.parent_root is not None
        return self.parent_root


def alloc_path_for_send(sctx: SendContext, reada: Reada = Reada.NONE) -> Path:
    """Return a path for a search."""
    return Path(
        reada=reada,
        restart=Patch.SEARCH_NO_RESTART not in sctx.behaviour,
        reada_missing=Patch.READA_ALWAYS_CACHED not in sctx.behaviour,
    )


# -------------------------------------------------------------------------------- errors ----


def send_errno(sctx: SendContext, error: int) -> OSError:
    """Return the error that the kernel would give."""
    return OSError(error, os.strerror(error), sctx.image.path)


def send_bad_item(
    sctx: SendContext, path: Path, tree: Tree, error: PayloadError
) -> CorruptImageError:
    """Return the error for a broken item, with the place where a path ends."""
    block, slot = bytenr_of(path.leaf), path.slots[0]
    return error.at(sctx.image.path, tree=tree.objectid, block=block, slot=slot)


def decode_item(sctx: SendContext, path: Path, tree: Tree, decode: Callable[[Payload], Any]) -> Any:
    """Decode the item that a path ends at; a broken one is an error that names its place."""
    try:
        return decode(item_data(path.leaf, path.slots[0]))
    except PayloadError as error:
        raise send_bad_item(sctx, path, tree, error) from None


# ------------------------------------------------------------------------------- reasons ----


def walk_item(sctx: SendContext) -> Item:
    """Return the item that the walk stands on."""
    return Item(sctx.cmp_key, sctx.result)


def because(sctx: SendContext, cause: str, ino: int, item: Item) -> None:
    """Send commands from here on by a rule, about an inode, because of an item."""
    if sctx.request.explanation is not None:
        sctx.why = Why(cause, ino, item)


def because_inode(sctx: SendContext, cause: str) -> None:
    """Send commands from here on about the current inode, because of its inode item."""
    key = Key(sctx.cur_ino, ItemType.INODE_ITEM, 0)
    because(sctx, cause, sctx.cur_ino, Item(key, sctx.inode_change))


def because_of_rule(sctx: SendContext, cause: str) -> None:
    """Send commands from here on by another rule, for the same reason otherwise."""
    if sctx.request.explanation is not None:
        sctx.why = sctx.why._replace(cause=cause)


# ------------------------------------------------------------------------- what waits ----


def get_waiting_dir_move(sctx: SendContext, ino: int) -> WaitingDirMove | None:
    """Return the rename of a directory that waits, if any."""
    current().count("get_waiting_dir_move")
    return sctx.waiting_dir_moves.get(ino)


def is_waiting_for_move(sctx: SendContext, ino: int) -> bool:
    """Whether the rename of a directory waits."""
    return get_waiting_dir_move(sctx, ino) is not None


def _orphan_dir_key(sctx: SendContext, ino: int, gen: int) -> tuple[int, int]:
    # without it the generation does not matter
    return ino, gen if Patch.SEND_RMDIR_GENERATION in sctx else 0


def get_orphan_dir_info(sctx: SendContext, ino: int, gen: int) -> OrphanDirInfo | None:
    """Return the removal of a directory that waits, if any."""
    current().count("get_orphan_dir_info")
    return sctx.orphan_dirs.get(_orphan_dir_key(sctx, ino, gen))


def is_waiting_for_rm(sctx: SendContext, ino: int, gen: int) -> bool:
    """Whether the removal of a directory waits; meanwhile it has its orphan name."""
    return get_orphan_dir_info(sctx, ino, gen) is not None


def add_orphan_dir_info(sctx: SendContext, ino: int, gen: int) -> OrphanDirInfo:
    """Return the removal of a directory that waits; from now on there is one."""
    current().count("add_orphan_dir_info")
    key = _orphan_dir_key(sctx, ino, gen)
    info = sctx.orphan_dirs.setdefault(key, OrphanDirInfo(gen))
    info.gen = gen
    return info


def free_orphan_dir_info(sctx: SendContext, ino: int, gen: int) -> None:
    """Forget that the removal of a directory waits."""
    sctx.orphan_dirs.pop(_orphan_dir_key(sctx, ino, gen), None)
