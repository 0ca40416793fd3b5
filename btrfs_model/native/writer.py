# SPDX-License-Identifier: GPL-2.0-only
"""``native/writer``: trees that change, item by item.

Blocks are copied on the first write of a transaction, full leaves give to their neighbours or are
split, poor ones are merged (``ctree.c``). What lies behind the trees (space, references, checksums)
is in :class:`.SpaceCalls`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from enum import IntFlag
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from btrfs_model.base.codes import Code
from btrfs_model.native.choice import twin
from btrfs_model.native.door import ffi, lib, new_fault, raise_fault
from btrfs_model.native.lease import own
from btrfs_model.native.space import SpaceCalls
from btrfs_model.native.tree import RawKey, Root, raw_key
from btrfs_model.ondisk.keys import MAX_KEY, MIN_KEY

if TYPE_CHECKING:
    from btrfs_model.native.image import Store


class Feature(IntFlag):
    """``enum bm_writer_feature``."""

    SKINNY_METADATA = lib.BM_WRITER_SKINNY_METADATA
    NO_HOLES = lib.BM_WRITER_NO_HOLES
    FREE_SPACE_TREE = lib.BM_WRITER_FREE_SPACE_TREE
    BLOCK_GROUP_TREE = lib.BM_WRITER_BLOCK_GROUP_TREE


class TreeState(NamedTuple):
    """What the writer knows of a tree (``struct bm_writer_tree``).

    `id`, `owner`: what the tree is called by; whose name stands in its blocks.
    `bytenr`, `generation`, `level`: its root block.
    `last_snapshot`, `bytes_used`: as in its root item.
    `origin`: of a snapshot, the transaction that made it.
    `shareable`, `force_cow`: a subvolume; a snapshot of it was taken in this transaction.
    `dirty`: it changed since the flag was cleared.
    """

    id: int
    owner: int
    bytenr: int
    generation: int
    level: int
    last_snapshot: int
    origin: int
    bytes_used: int
    shareable: bool
    force_cow: bool
    dirty: bool


_state_of = attrgetter(*TreeState._fields)


class Writer(SpaceCalls):
    """Trees of an image that are being changed (``struct bm_writer``).

    `store`: the image, whose buffer must be writable memory.
    `base`: that memory.
    `transid`: the transaction that runs.
    `csum_size`: bytes of a checksum.
    `args`: the rest of ``struct bm_writer_args``: ``features`` (:class:`Feature`), ``ssd`` (the
    mount option: metadata is allocated in clusters of 2 MiB instead of 64 KiB), ``fsid`` and
    ``chunk_tree_uuid`` (what stands in headers).
    `transid` (int): the transaction that runs; :meth:`set_transid` goes on with the next.
    `aborted` (bool): whether a change failed half-way, so that the transaction must not be
    committed.
    """

    def __init__(
        self,
        store: Store,
        base: Any,
        *,
        transid: int,
        csum_size: int,
        **args: int | bytes,
    ) -> None:
        super().__init__()
        self.csum_size = csum_size
        self.lease, self._store = store.lease, store
        self._base = ffi.from_buffer("uint8_t[]", base, require_writable=True)
        fault = new_fault()
        with self.lease as image:
            fields = {"image": image, "base": self._base, "transid": transid, **args}
            handle = lib.bm_writer_create(ffi.new("struct bm_writer_args *", fields), fault)
        if not handle:
            raise_fault(self.lease.path, fault)
        self._handle: ffi.CData | None = own(handle, lib.bm_writer_destroy, [self._base])
        self.aborted = False
        self.transid = transid

    def close(self) -> None:
        """Give the memory of the writer back; the image stays."""
        if self._handle is not None:
            self.lease.free(self._handle, self._base)
            self._handle = None

    def unwritten(self) -> Callable[[int], bool]:
        """Return what tells if the tree block at a byte of the image has yet to be written."""
        # it keeps the memory of the writer
        handle = self.handle
        return lambda physical: bool(lib.bm_writer_is_dirty(handle, physical))

    @property
    def handle(self) -> ffi.CData:
        """The same as a ``struct bm_writer`` for the C kernels, for the holder of the lease."""
        if self._handle is None:
            raise ValueError(f"{self.lease.path}: the writer is closed")
        return self._handle

    def set_transid(self, transid: int) -> None:
        """Go on with the next transaction, after :meth:`write_blocks` of this one."""
        with self.lease:
            lib.bm_writer_set_transid(self.handle, transid)
        self.transid = transid

    def set_toggles(self, bits: int) -> None:
        """Change trees as a kernel with these toggles does (bits of ``enum bm_toggle``)."""
        with self.lease:
            lib.bm_writer_set_behaviour(self.handle, bits)

    def set_ssd(self, ssd: bool) -> None:
        """Look for free space as with the mount option ``ssd``, or as without it."""
        with self.lease:
            lib.bm_writer_set_ssd(self.handle, ssd)

    # ------------------------------------------------------------------------------- trees --

    def set_tree(self, tree_id: int, **fields: int) -> None:
        """Make a tree known, or replace all that is known of it.

        `tree_id`: what it is called by; also its owner.
        `**fields`: of :class:`TreeState`; what is not given is 0.
        """
        names = {"id": tree_id % 2**64, "owner": tree_id % 2**64}
        self.run(lib.bm_writer_set_tree, ffi.new("struct bm_writer_tree *", names | fields))

    def change_tree(self, tree_id: int, **fields: int) -> None:
        """Change some fields of what is known of a tree."""
        self.set_tree(tree_id, **self.tree_state(tree_id)._asdict() | fields)

    def tree_state(self, tree_id: int) -> TreeState:
        """Return what is known of a tree."""
        raw = ffi.new("struct bm_writer_tree *")
        self._ask(lib.bm_writer_get_tree, tree_id % 2**64, raw)
        return TreeState._make(_state_of(raw))

    def tree_ids(self) -> list[int]:
        """Return the ids of all trees, ascending."""
        with self.lease:
            count = lib.bm_writer_tree_ids(self.handle, ffi.NULL, 0)
            ids = ffi.new("uint64_t[]", count)
            lib.bm_writer_tree_ids(self.handle, ids, count)
        return list(ids)

    def has_tree(self, tree_id: int) -> bool:
        """Whether the writer knows the tree."""
        raw = ffi.new("struct bm_writer_tree *")
        return bool(lib.bm_writer_get_tree(self.handle, tree_id % 2**64, raw, new_fault()) == 0)

    def changed_trees(self) -> list[int]:
        """Return the ids of the trees that changed or are gone since the last call of the next one.

        Ascending. Whoever looked for something to change in a tree has changed it.
        """
        count = lib.bm_writer_changed_trees(self.handle, ffi.NULL, 0)
        ids = ffi.new("uint64_t[]", count)
        lib.bm_writer_changed_trees(self.handle, ids, count)
        return sorted(set(ids))

    def clear_changed(self) -> None:
        """Count no tree as changed, as after a commit."""
        lib.bm_writer_clear_changed(self.handle)

    def new_tree(self, tree_id: int, *, owner: int | None = None, shareable: bool = False) -> None:
        """Make an empty leaf the root of a new tree (``btrfs_create_tree()``)."""
        name = (tree_id if owner is None else owner) % 2**64
        self.run(lib.bm_writer_new_tree, tree_id % 2**64, name, shareable)

    def copy_root(self, source: int, tree_id: int) -> None:
        """Make the new tree `tree_id` a snapshot of `source` (``btrfs_copy_root()``)."""
        self.run(lib.bm_writer_copy_root, source % 2**64, tree_id % 2**64)

    def reloc_root(self, source: int, tree_id: int, bytenr: int) -> None:
        """Make a copy of an old root block of `source` a tree of relocation.

        (``create_reloc_root()``.)
        """
        self.run(lib.bm_writer_reloc_root, source, tree_id, bytenr)

    def drop_subtree(self, tree_id: int, bytenr: int, parent: int) -> None:
        """Take what is below a child from a tree of relocation (``btrfs_drop_subtree()``)."""
        self.run(lib.bm_writer_drop_subtree, tree_id, bytenr, parent)

    def point(self, tree_id: int, node: int, slot: int, bytenr: int, generation: int) -> None:
        """Let a node, which may be written to, point at another child."""
        self.run(lib.bm_writer_point, tree_id, node, slot, bytenr, generation)

    def drop_tree(self, tree_id: int) -> None:
        """Drop every reference of a tree (``btrfs_drop_snapshot()``)."""
        self.run(lib.bm_writer_drop_tree, tree_id % 2**64)

    def root(self, tree_id: int) -> Root:
        """Return the root of a tree as it is now; valid until its next change."""
        root = ffi.new("struct bm_root *")
        self._ask(lib.bm_writer_root, tree_id % 2**64, root)
        return Root.of(self._store, root)

    # ------------------------------------------------------------------------------- items --

    @twin("reference.ctree_edit:get")
    def get(self, tree_id: int, key: RawKey) -> bytes | None:
        """Return a copy of an item's payload, or None."""
        data, fault = ffi.new("uint8_t *[1]"), new_fault()
        with self.lease:
            # asked very often
            size = lib.bm_writer_get(self.handle, tree_id % 2**64, raw_key(key), data, fault)
            if size < 0:
                raise_fault(self.lease.path, fault)
            return bytes(ffi.buffer(data[0], size)) if data[0] else None

    def insert(self, tree_id: int, key: RawKey, data: bytes) -> None:
        """Insert an item.

        Raises OSError: EEXIST when the key is there, EOVERFLOW when it cannot fit into a leaf.
        """
        self.insert_many(tree_id, [(key, data)])

    @twin("reference.ctree_edit:insert")
    def insert_many(self, tree_id: int, items: Sequence[tuple[RawKey, bytes]]) -> None:
        """Insert items side by side (``btrfs_insert_empty_items()``).

        Their keys ascend with no item between them, and together they fit into a leaf.

        Raises OSError: EEXIST when the first is there, EINVAL when others are in the way,
        EOVERFLOW.
        """
        self.run(lib.bm_writer_insert, tree_id % 2**64, *_batch(items))

    @twin("reference.ctree_edit:insert_each")
    def insert_each(self, tree_id: int, items: Sequence[tuple[RawKey, bytes]]) -> None:
        """Insert items one by one in the order given; an error leaves those before it in place."""
        self.run(lib.bm_writer_insert_each, tree_id % 2**64, *_batch(items))

    @twin("reference.ctree_edit:insert_extent")
    def insert_extent(
        self, tree_id: int, key: RawKey, data: bytes, last: RawKey | None = None
    ) -> None:
        """Delete the items from `key` to `last` and insert a file extent at `key`.

        ``btrfs_drop_extents()`` with ``replace_extent``: the search for what goes is not one for an
        insertion, and where the leaf has room there is no other; nodes are not split ahead then.
        """
        end = ffi.NULL if last is None else raw_key(last)
        self.run(lib.bm_writer_insert_extent, tree_id % 2**64, raw_key(key), end, data, len(data))

    @twin("reference.ctree_edit:update")
    def update(self, tree_id: int, key: RawKey, offset: int, data: bytes) -> None:
        """Overwrite bytes of a payload.

        Raises OSError: ENOENT without the item, EINVAL when the bytes go beyond its end.
        """
        self.run(lib.bm_writer_update, tree_id % 2**64, raw_key(key), offset, data, len(data))

    @twin("reference.ctree_edit:extend")
    def extend(self, tree_id: int, key: RawKey, data: bytes) -> None:
        """Append bytes to a payload (``btrfs_extend_item()``)."""
        self.run(lib.bm_writer_extend, tree_id % 2**64, raw_key(key), data, len(data))

    @twin("reference.ctree_edit:truncate")
    def truncate(self, tree_id: int, key: RawKey, size: int, *, from_end: bool = False) -> None:
        """Keep the first (`from_end`: the last) `size` bytes of a payload."""
        self.run(lib.bm_writer_truncate, tree_id % 2**64, raw_key(key), size, from_end)

    @twin("reference.ctree_edit:set_key")
    def set_key(self, tree_id: int, old: RawKey, new: RawKey) -> None:
        """Give an item another key that sorts between its neighbours, else EINVAL."""
        self.run(lib.bm_writer_set_key, tree_id % 2**64, raw_key(old), raw_key(new))

    @twin("reference.ctree_edit:duplicate")
    def duplicate(self, tree_id: int, old: RawKey, new: RawKey) -> None:
        """Insert a copy of an item right behind it (``btrfs_duplicate_item()``)."""
        self.run(lib.bm_writer_duplicate, tree_id % 2**64, raw_key(old), raw_key(new))

    @twin("reference.ctree_edit:insert_entry")
    def insert_entry(self, tree_id: int, key: RawKey, entry: bytes) -> None:
        """Add an entry to a DIR_ITEM, XATTR_ITEM or INODE_REF, which is made with its first one.

        Raises OSError: EEXIST when its name is there, EOVERFLOW when no leaf has room for all.
        """
        self.run(lib.bm_writer_insert_entry, tree_id % 2**64, raw_key(key), entry, len(entry))

    @twin("reference.ctree_edit:delete_entry")
    def delete_entry(self, tree_id: int, key: RawKey, name: bytes) -> int | None:
        """Remove the entry with a name, and the item with its last one; None: it is not there.

        Returns what an INODE_REF says of the entry, its index; else 0.
        """
        index = ffi.new("uint64_t *")
        absent = self.run(
            lib.bm_writer_delete_entry, tree_id % 2**64, raw_key(key), name, len(name), index
        )
        return None if absent else int(index[0])

    def delete(self, tree_id: int, key: RawKey) -> None:
        """Delete an item.

        Raises OSError: ENOENT without the item.
        """
        if not self.delete_range(tree_id, key, key):
            fault = new_fault()
            fault.code, fault.found = Code.ERRNO, errno.ENOENT
            self.fail(fault)

    @twin("reference.ctree_edit:delete")
    def delete_range(
        self,
        tree_id: int,
        first: RawKey = MIN_KEY,
        last: RawKey = MAX_KEY,
        *,
        backward: bool = False,
    ) -> int:
        """Delete the items with ``first <= key <= last``; returns how many.

        With `backward` the last leaf comes first, as where a file is truncated.
        """
        return self.run(
            lib.bm_writer_delete, tree_id % 2**64, raw_key(first), raw_key(last), backward
        )

    def write_blocks(self) -> int:
        """Checksum and write all changed blocks to all their copies; returns how many."""
        return self.run(lib.bm_writer_write_blocks)

    def write_log(self) -> None:
        """Write the blocks of all logs and of the tree of them (``btrfs_sync_log()``)."""
        self._ask(lib.bm_writer_write_log)

    # ------------------------------------------------------------- blocks for an editor --

    def own_root(self, tree_id: int) -> None:
        """Copy the root of a tree if it is older than the transaction."""
        self.run(lib.bm_writer_own_root, tree_id % 2**64)

    def own_child(self, tree_id: int, parent: int, slot: int) -> int:
        """Copy a child of the node `parent` if it is older; return its address."""
        bytenr = ffi.new("uint64_t *")
        self.run(lib.bm_writer_own_child, tree_id % 2**64, parent, slot, bytenr)
        return int(bytenr[0])

    def make_block(self, tree_id: int, level: int, first: RawKey, hint: int) -> int:
        """Allocate an empty block near `hint`; return its address."""
        bytenr = ffi.new("uint64_t *")
        self.run(lib.bm_writer_make_block, tree_id, level, raw_key(first), hint, bytenr)
        return int(bytenr[0])

    def drop_block(self, tree_id: int, bytenr: int) -> None:
        """Give a block back."""
        self.run(lib.bm_writer_drop_block, tree_id, bytenr)

    # ------------------------------------------------------------------------------------- --

    def run(self, function: Any, *args: Any) -> int:
        """Call a kernel that takes the writer first and a fault last."""
        fault = new_fault()
        with self.lease:
            ret: int = function(self.handle, *args, fault)
        if ret < 0:
            self.fail(fault)
        return ret

    def _ask(self, function: Any, *args: Any) -> int:
        """Call the same where no error leaves a change half done."""
        fault = new_fault()
        with self.lease:
            ret: int = function(self.handle, *args, fault)
        if ret < 0:
            raise_fault(self.lease.path, fault)
        return ret

    def fail(self, fault: ffi.CData) -> NoReturn:
        """Raise the error that a kernel which changes trees ended with.

        What is refused (EEXIST, ENOENT ...) is refused before anything is changed. Any other error
        leaves the change half done, and the transaction is aborted, as in the kernel.

        `fault` (struct bm_fault *): as filled by the kernel; ENOSPC has a tree where that needed a
        block.
        Raises OSError: always.
        """
        is_refusal = fault.code == Code.ERRNO and (fault.found != errno.ENOSPC or not fault.tree)
        self.aborted = self.aborted or not is_refusal
        raise_fault(self.lease.path, fault)


def _batch(items: Iterable[tuple[RawKey, bytes]]) -> tuple[Any, Any, int, bytes]:
    """Keys, sizes, count and joined payloads of items for a C kernel."""
    keys, sizes, data = [], [], []
    for (objectid, kind, offset), payload in items:
        keys.append((objectid, offset, kind))
        sizes.append(len(payload))
        data.append(payload)
    return (
        ffi.new("struct bm_key[]", keys),
        ffi.new("uint32_t[]", sizes),
        len(keys),
        b"".join(data),
    )
