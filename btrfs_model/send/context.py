# SPDX-License-Identifier: GPL-2.0-only
"""What the parts of a send share: ``struct send_ctx`` of the kernel's send.c."""

from __future__ import annotations

import errno
import os
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from btrfs_model.backref.forest import Forest
from btrfs_model.btree.search import Path, Reada, payload_at, search_slot
from btrfs_model.counters import current
from btrfs_model.kernels import lib
from btrfs_model.ondisk.items import DirItem, dir_items
from btrfs_model.ondisk.keys import Key
from btrfs_model.ondisk.structs import INODE_ITEM, InodeItem, Payload, PayloadError
from btrfs_model.stream.writer import StreamWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from btrfs_model.btree import Tree
    from btrfs_model.send.ioctl import SendRequest

__all__ = ["LruCache", "RecordedRef", "SendContext"]

# the kernel's buffer for one command, by version of the stream
_BUFFER = {1: 65536, 2: 147456, 3: 147456}
_XATTR_NAME_LIMIT = 255
_PATH_LIMIT = 4096


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


class RecordedRef(NamedTuple):
    """A name of the current inode: the directory and the path when it was recorded."""

    dir: int
    dir_gen: int
    full_path: bytes


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
        self.forest = Forest.of(request.fs, [source.id for source in request.clone_roots])
        self.writer = StreamWriter(request.proto)
        self.max_size = _BUFFER[request.proto]
        self.commands: Counter[str] = Counter()
        # the item that the walk stands on
        self.path = Path()
        self.key = Key(0, 0, 0)
        self.cur_ino = 0
        self.cur_inode_gen = 0
        self.cur_inode = INODE_ITEM.unpack(bytes(INODE_ITEM.size))
        self.cur_inode_next_write_offset = 0
        self.cur_inode_path = b""
        self.cur_inode_needs_verity = False
        self.ignore_cur_inode = False
        self.send_progress = 0
        self.new_refs: list[RecordedRef] = []

    def __contains__(self, slug: str) -> bool:
        return slug in self.behaviour

    def search_path(self, reada: Reada = Reada.NONE) -> Path:
        """Return a path for a search by a helper (``alloc_path_for_send()``)."""
        return Path(
            reada=reada,
            restart="search-no-restart" not in self.behaviour,
            reada_missing="reada-always-cached" not in self.behaviour,
        )

    def fail(self, number: int) -> OSError:
        """Return the error that the kernel would give."""
        return OSError(number, os.strerror(number), self.image.path)

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
        if not search_slot(tree, (ino, lib.BTRFS_INODE_ITEM_KEY, 0), path):
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
            limit = _XATTR_NAME_LIMIT if entry.type == lib.BTRFS_FT_XATTR else _PATH_LIMIT
            if len(entry.name) > limit:
                raise self.fail(errno.ENAMETOOLONG)
        return entries

    def lookup_name(self, key: Key, name: bytes) -> DirItem | None:
        """Return the entry of that name in the item `key` of the snapshot."""
        path = self.search_path()
        if not search_slot(self.root, key, path):
            return None
        return next((e for e in self.dir_entries(path, self.root) if e.name == name), None)
