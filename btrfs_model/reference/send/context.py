# SPDX-License-Identifier: GPL-2.0-only
"""What the parts of a send share: ``struct send_ctx`` of the kernel's send.c."""

from __future__ import annotations

import errno
import os
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from btrfs_model.base.counters import current
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.items import DirItem, dir_items
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.layout import Payload, PayloadError
from btrfs_model.ondisk.structs import INODE_ITEM, InodeItem
from btrfs_model.patches import Patch
from btrfs_model.reference.compare import Change
from btrfs_model.reference.ctree import (
    Path,
    Reada,
    key_at,
    next_leaf,
    nritems,
    payload_at,
    search_slot,
)
from btrfs_model.reference.send.causes import CAUSES_BY_NAME
from btrfs_model.reference.send.explain import ROW, Item
from btrfs_model.stream.writer import StreamWriter
from btrfs_model.volume.forest import Forest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from btrfs_model.reference.send.request import SendRequest
    from btrfs_model.volume.tree import Tree

# the kernel's buffer for one command, by version of the stream
_BUFFER = {1: 65536, 2: 147456, 3: 147456}
_XATTR_NAME_LIMIT = 255
_PATH_LIMIT = 4096
# what stands for the item of a command that comes from none
_NO_ITEM = Item(Key(0, 0, 0), Change.NEW)


class Why(NamedTuple):
    """Why a command is sent: the rule, the inode that it is about, the item that differs."""

    cause: str
    ino: int
    item: Item


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


@dataclass
class RecordedRef:
    """A new or deleted name of the current inode.

    Attributes
    ----------
    dir, dir_gen : int
        The directory.
    name : bytes
        The name in it.
    full_path : bytes
        The path when it was recorded.
    item : Item
        The item that has the name.
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


class DirRef(NamedTuple):
    """A directory that a name was in, and the item that has the name."""

    dir: int
    dir_gen: int
    item: Item


@dataclass
class WaitingDirMove:
    """A directory whose rename has to wait for that of another one.

    Attributes
    ----------
    orphanized : bool
        It has its orphan name meanwhile.
    rmdir : (int, int) or None
        Inode and generation of a directory that may be removable once this one has left it.
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

    Attributes
    ----------
    gen : int
        Its generation.
    last_dir_index_offset : int
        The entry that was not gone yet.
    dir_high_seq_ino : int
        The highest inode seen in it (since v6.3).
    """

    gen: int
    last_dir_index_offset: int = 0
    dir_high_seq_ino: int = 0


class SendContext:
    """The state of one send.

    Parameters
    ----------
    request : SendRequest
        What to send, checked.
    """

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        self.fs = request.fs
        self.image = request.fs.image
        self.behaviour = request.behaviour
        self.root = request.snapshot.tree
        self.parent_root = request.parent.tree if request.parent else None
        opened = [*request.clone_roots, *([request.parent] if request.parent else [])]
        self.forest = Forest.of(request.fs, [subvolume.id for subvolume in opened])
        self.writer = StreamWriter(request.proto)
        self.max_size = _BUFFER[request.proto]
        self.commands: Counter[str] = Counter()
        self.why = Why("subvol-begin", 0, _NO_ITEM)
        self.explained: list[Why] = []
        # the item that the walk stands on, in the snapshot and in its parent
        self.path = Path()
        self.right_path = Path()
        self.key = Key(0, 0, 0)
        self.change = Change.NEW
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

    def __contains__(self, slug: str) -> bool:
        return slug in self.behaviour

    @property
    def parent_tree(self) -> Tree:
        """The tree of the parent snapshot, where it is known that there is one."""
        assert self.parent_root is not None
        return self.parent_root

    def search_path(self, reada: Reada = Reada.NONE) -> Path:
        """Return a path for a search by a helper (``alloc_path_for_send()``)."""
        return Path(
            reada=reada,
            restart=Patch.SEARCH_NO_RESTART not in self.behaviour,
            reada_missing=Patch.READA_ALWAYS_CACHED not in self.behaviour,
        )

    def fail(self, number: int) -> OSError:
        """Return the error that the kernel would give."""
        return OSError(number, os.strerror(number), self.image.path)

    # -------------------------------------------------------------------------- reasons -----

    def because(self, cause: str, ino: int | None = None, item: Item | None = None) -> None:
        """Send commands from here on by a rule, about an inode, because of an item.

        Without them, those are the current inode and its inode item.
        """
        ino = self.cur_ino if ino is None else ino
        if item is None:
            item = Item(Key(self.cur_ino, ItemType.INODE_ITEM, 0), self.inode_change)
        self.why = Why(cause, ino, item)

    def because_of_nothing(self, cause: str, ino: int) -> None:
        """Send a command that comes from no item."""
        self.why = Why(cause, ino, _NO_ITEM)

    def because_of_rule(self, cause: str) -> None:
        """Send commands from here on by another rule, for the same reason otherwise."""
        self.why = self.why._replace(cause=cause)

    def explained_rows(self) -> NDArray[Any]:
        """Return why each command was sent."""
        rows = np.zeros(len(self.explained), ROW)
        for row, (cause, ino, (key, change)) in zip(rows, self.explained, strict=True):
            row["inode"], row["cause"], row["change"] = ino, CAUSES_BY_NAME[cause], change
            row["objectid"], row["type"], row["offset"] = key
        return rows

    # --------------------------------------------------------------------------- stream -----

    def send_cmd(self, name: str, **attributes: Any) -> None:
        """Write a command to the stream.

        Raises
        ------
        OSError
            EOVERFLOW when it is larger than the kernel's buffer.
        """
        limit = self.max_size - sum(len(value) for value in attributes.values()
                                    if isinstance(value, bytes))  # fmt: skip
        if limit < 0:
            raise self.fail(errno.EOVERFLOW)
        command = self.writer.command(name, **attributes)
        if len(command) > self.max_size:
            raise self.fail(errno.EOVERFLOW)
        current().count("send_cmd")
        self.commands[name] += 1
        if self.request.explanation is not None:
            self.explained.append(self.why)
        self.request.write(command)

    # ----------------------------------------------------------------------------- items ----

    def decode(self, path: Path, tree: Tree, decode: Callable[[Payload], Any]) -> Any:
        """Decode the item that a path ends at; a broken one is an error that names its place."""
        leaf, slot = path.leaf, path.slots[0]
        try:
            return decode(payload_at(leaf, slot))
        except PayloadError as error:
            block = int.from_bytes(leaf[48:56], "little")
            raise error.at(self.image.path, tree=tree.objectid, block=block, slot=slot) from None

    def inode_item(self, tree: Tree, ino: int) -> InodeItem | None:
        """Search an inode item; None when there is none."""
        path = self.search_path()
        if not search_slot(tree, (ino, ItemType.INODE_ITEM, 0), path):
            return None
        item: InodeItem = self.decode(path, tree, INODE_ITEM.unpack)
        return item

    def dir_entries(self, path: Path, tree: Tree) -> list[DirItem]:
        """Return the entries of a directory item or xattr item.

        Raises
        ------
        OSError
            ENAMETOOLONG for a name that no kernel would have stored.
        """
        entries: list[DirItem] = self.decode(path, tree, dir_items)
        for entry in entries:
            limit = _XATTR_NAME_LIMIT if entry.type == FileType.XATTR else _PATH_LIMIT
            if len(entry.name) > limit:
                raise self.fail(errno.ENAMETOOLONG)
        return entries

    def lookup_name(self, tree: Tree, key: Key, name: bytes) -> DirItem | None:
        """Return the entry of that name in the item `key`."""
        path = self.search_path()
        if not search_slot(tree, key, path):
            return None
        return next((e for e in self.dir_entries(path, tree) if e.name == name), None)

    def for_each_slot(self, tree: Tree, first: Key, path: Path) -> Iterator[Key]:
        """Iterate over the items from a key on (``btrfs_for_each_slot()``); `path` follows."""
        search_slot(tree, first, path)
        while True:
            current().count("btrfs_get_next_valid_item")
            if path.slots[0] >= nritems(path.leaf) and not next_leaf(tree, path):
                return
            yield Key(*key_at(path.leaf, path.slots[0]))
            path.slots[0] += 1

    # ---------------------------------------------------------------------- waiting ---------

    def get_waiting_dir_move(self, ino: int) -> WaitingDirMove | None:
        """Return the rename of a directory that waits, if any."""
        current().count("get_waiting_dir_move")
        return self.waiting_dir_moves.get(ino)

    def is_waiting_for_move(self, ino: int) -> bool:
        """Whether the rename of a directory waits."""
        return self.get_waiting_dir_move(ino) is not None

    def _orphan_dir_key(self, ino: int, gen: int) -> tuple[int, int]:
        # without it the generation does not matter
        return ino, gen if Patch.SEND_RMDIR_GENERATION in self else 0

    def get_orphan_dir_info(self, ino: int, gen: int) -> OrphanDirInfo | None:
        """Return the removal of a directory that waits, if any."""
        current().count("get_orphan_dir_info")
        return self.orphan_dirs.get(self._orphan_dir_key(ino, gen))

    def add_orphan_dir_info(self, ino: int, gen: int) -> OrphanDirInfo:
        """Return the removal of a directory that waits; from now on there is one."""
        current().count("add_orphan_dir_info")
        info = self.orphan_dirs.setdefault(self._orphan_dir_key(ino, gen), OrphanDirInfo(gen))
        info.gen = gen
        return info

    def free_orphan_dir_info(self, ino: int, gen: int) -> None:
        """Forget that the removal of a directory waits."""
        self.orphan_dirs.pop(self._orphan_dir_key(ino, gen), None)
