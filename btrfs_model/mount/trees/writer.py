# SPDX-License-Identifier: GPL-2.0-only
"""The trees of an image while they change: the Python face of ``struct bm_writer``.

A :class:`TreeWriter` edits trees item by item as the kernel does (``ctree.c``): blocks are copied
on the first write of a transaction, full leaves give to their neighbours or are split, poor ones
are merged. What lies behind the trees (space, references, checksums) is in :class:`SpaceCalls`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from btrfs_model.base.codes import Code
from btrfs_model.mount.trees.apply import apply
from btrfs_model.mount.trees.space import SpaceCalls
from btrfs_model.native.choice import use_python
from btrfs_model.native.door import ffi, lib
from btrfs_model.native.faults import new_fault, raise_fault
from btrfs_model.ondisk.structs import HEADER, ITEM
from btrfs_model.patches import Patch
from btrfs_model.reference import ctree_edit
from btrfs_model.reference.ctree import nritems
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import MAX_KEY, MIN_KEY, Tree

if TYPE_CHECKING:
    import numpy.typing as npt

    from btrfs_model.behaviour import Behaviour

RawKey = tuple[int, int, int]


class TreeState(NamedTuple):
    """What the writer knows of a tree.

    Attributes
    ----------
    id, owner : int
        What the tree is called by; whose name stands in its blocks.
    bytenr, generation, level : int
        Its root block.
    last_snapshot, bytes_used : int
        As in its root item.
    shareable, force_cow : bool
        A subvolume; a snapshot of it was taken in this transaction.
    dirty : bool
        It changed since the flag was cleared.
    """

    id: int
    owner: int
    bytenr: int
    generation: int
    level: int
    last_snapshot: int
    bytes_used: int
    shareable: bool
    force_cow: bool
    dirty: bool


class TreeWriter(SpaceCalls):
    """Trees of an image that are being changed.

    Parameters
    ----------
    image : Image
        Whose buffer must be writable memory.
    base : buffer
        That memory.
    transid : int
        The transaction that runs.
    features : int
        Bits of ``enum bm_writer_feature``.
    ssd : bool
        Mount option ``ssd``: metadata is allocated in clusters of 2 MiB instead of 64 KiB.

    Attributes
    ----------
    aborted : bool
        Whether a change failed half-way, so that the transaction must not be committed.
    """

    def __init__(
        self, image: Image, base: Any, *, transid: int, features: int, ssd: bool = False
    ) -> None:
        super().__init__()
        self.image = image
        self._base = ffi.from_buffer("uint8_t[]", base, require_writable=True)
        fault = new_fault()
        with image.lease as of_image:
            args = ffi.new(
                "struct bm_writer_args *",
                {
                    "image": of_image,
                    "base": self._base,
                    "transid": transid,
                    "features": features,
                    "ssd": ssd,
                    "fsid": image.superblock.tree_fsid,
                    "chunk_tree_uuid": chunk_tree_uuid(image),
                },
            )
            handle = lib.bm_writer_create(args, fault)
        if not handle:
            raise_fault(image.path, fault)
        self._handle: ffi.CData | None = ffi.gc(handle, lib.bm_writer_destroy)
        self.balances_lazily = True
        self.aborted = False
        # the image keeps the memory of its writer
        owned = self._handle
        image.is_unwritten = lambda physical: bool(lib.bm_writer_is_dirty(owned, physical))
        self._transid = transid

    def close(self) -> None:
        """Give the memory of the writer back; the image stays."""
        if self._handle is not None:
            self.image.is_unwritten = lambda physical: False
            self.image.lease.free(self._handle, self._base)
            self._handle = None

    @property
    def handle(self) -> ffi.CData:
        """The same as a ``struct bm_writer`` for the C kernels, for who holds the lease."""
        if self._handle is None:
            raise ValueError(f"{self.image.path}: the writer is closed")
        return self._handle

    @property
    def transid(self) -> int:
        """The transaction that runs."""
        return self._transid

    def set_transid(self, transid: int) -> None:
        """Go on with the next transaction, after :meth:`write_blocks` of this one."""
        with self.image.lease:
            lib.bm_writer_set_transid(self.handle, transid)
        self._transid = transid

    def set_behaviour(self, behaviour: Behaviour) -> None:
        """Change trees as a kernel does, where kernels differ."""
        with self.image.lease:
            lib.bm_writer_set_behaviour(self.handle, behaviour.bits)
        self.balances_lazily = Patch.LEAF_BALANCE_LAZY in behaviour

    # ------------------------------------------------------------------------------- trees --

    def set_tree(
        self,
        tree_id: int,
        *,
        bytenr: int,
        generation: int,
        level: int,
        owner: int | None = None,
        last_snapshot: int = 0,
        bytes_used: int = 0,
        shareable: bool = False,
        force_cow: bool = False,
        dirty: bool = False,
    ) -> None:
        """Make a tree known, or replace all that is known of it."""
        tree = ffi.new(
            "struct bm_writer_tree *",
            {
                "id": tree_id % 2**64,
                "owner": (tree_id if owner is None else owner) % 2**64,
                "bytenr": bytenr,
                "generation": generation,
                "level": level,
                "last_snapshot": last_snapshot,
                "bytes_used": bytes_used,
                "shareable": shareable,
                "force_cow": force_cow,
                "dirty": dirty,
            },
        )
        self.run(lib.bm_writer_set_tree, tree)

    def change_tree(self, tree_id: int, **fields: int) -> None:
        """Change some fields of what is known of a tree."""
        state = self.tree_state(tree_id)._asdict()
        del state["id"]
        self.set_tree(tree_id, **{**state, **fields})

    def tree_state(self, tree_id: int) -> TreeState:
        """Return what is known of a tree."""
        raw, fault = ffi.new("struct bm_writer_tree *"), new_fault()
        with self.image.lease:
            if lib.bm_writer_get_tree(self.handle, tree_id % 2**64, raw, fault) < 0:
                raise_fault(self.image.path, fault)
        return TreeState(
            raw.id,
            raw.owner,
            raw.bytenr,
            raw.generation,
            raw.level,
            raw.last_snapshot,
            raw.bytes_used,
            bool(raw.shareable),
            bool(raw.force_cow),
            bool(raw.dirty),
        )

    def tree_ids(self) -> list[int]:
        """Return the ids of all trees, ascending."""
        with self.image.lease:
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

    def forget_tree(self, tree_id: int) -> None:
        """Know nothing of a tree any more; its blocks stay."""
        with self.image.lease:
            lib.bm_writer_forget_tree(self.handle, tree_id % 2**64)

    def new_tree(self, tree_id: int, *, owner: int | None = None, shareable: bool = False) -> None:
        """Make an empty leaf the root of a new tree (``btrfs_create_tree()``)."""
        name = (tree_id if owner is None else owner) % 2**64
        self.run(lib.bm_writer_new_tree, tree_id % 2**64, name, shareable)

    def copy_root(self, source: int, tree_id: int) -> None:
        """Make the new tree `tree_id` a snapshot of `source` (``btrfs_copy_root()``)."""
        self.run(lib.bm_writer_copy_root, source % 2**64, tree_id % 2**64)

    def drop_tree(self, tree_id: int) -> None:
        """Drop every reference of a tree (``btrfs_drop_snapshot()``)."""
        self.run(lib.bm_writer_drop_tree, tree_id % 2**64)

    def tree(self, tree_id: int) -> Tree:
        """Return a tree for reading as it is now; valid until its next change."""
        root, fault = ffi.new("struct bm_root *"), new_fault()
        with self.image.lease:
            if lib.bm_writer_root(self.handle, tree_id % 2**64, root, fault) < 0:
                raise_fault(self.image.path, fault)
        return Tree.of(self.image, root)

    # ------------------------------------------------------------------------------- items --

    def get(self, tree_id: int, key: RawKey) -> bytes | None:
        """Return a copy of an item's payload, or None."""
        if use_python():
            item = self.tree(tree_id).get(key)
            return None if item is None else bytes(item.data)
        data, fault = ffi.new("uint8_t *[1]"), new_fault()
        with self.image.lease:
            size = lib.bm_writer_get(self.handle, tree_id % 2**64, raw_key(key), data, fault)
            if size < 0:
                raise_fault(self.image.path, fault)
            return bytes(ffi.buffer(data[0], size)) if data[0] else None

    def insert(self, tree_id: int, key: RawKey, data: bytes) -> None:
        """Insert an item.

        Raises
        ------
        OSError
            EEXIST when the key is there, EOVERFLOW when it cannot fit into a leaf.
        """
        self.insert_many(tree_id, [(key, data)])

    def leaf_free(self, tree_id: int, key: RawKey) -> int:
        """Return the free bytes of the leaf that holds an item (``btrfs_leaf_free_space()``)."""
        item = self.tree(tree_id).get(key)
        assert item is not None
        leaf = self.image.block(item.block, level=0)
        count = nritems(leaf)
        *_, lowest, _ = ITEM.flat(leaf, HEADER.size + (count - 1) * ITEM.size)
        return int(lowest) - count * ITEM.size

    def insert_many(self, tree_id: int, items: Sequence[tuple[RawKey, bytes]]) -> None:
        """Insert items side by side (``btrfs_insert_empty_items()``).

        Their keys ascend with no item between them, and together they fit into a leaf.

        Raises
        ------
        OSError
            EEXIST when the first is there, EINVAL when others are in the way, EOVERFLOW.
        """
        if use_python():
            return ctree_edit.insert(self, tree_id, items)
        self.run(lib.bm_writer_insert, tree_id % 2**64, *_batch(items))

    def insert_each(self, tree_id: int, items: Sequence[tuple[RawKey, bytes]]) -> None:
        """Insert items one by one in the order given; an error leaves those before it in place."""
        if use_python():
            return ctree_edit.insert_each(self, tree_id, items)
        self.run(lib.bm_writer_insert_each, tree_id % 2**64, *_batch(items))

    def insert_extent(
        self, tree_id: int, key: RawKey, data: bytes, last: RawKey | None = None
    ) -> None:
        """Delete the items from `key` to `last` and insert a file extent at `key`.

        ``btrfs_drop_extents()`` with ``replace_extent``: the search for what goes is not one for an
        insertion, and where the leaf has room there is no other; nodes are not split ahead then.
        """
        if use_python():
            return ctree_edit.insert_extent(self, tree_id, key, data, last)
        end = ffi.NULL if last is None else raw_key(last)
        self.run(lib.bm_writer_insert_extent, tree_id % 2**64, raw_key(key), end, data, len(data))

    def apply(self, tree_id: int, changes: npt.NDArray[Any], data: bytes) -> None:
        """Carry out many changes; see :func:`btrfs_model.mount.trees.apply.apply`."""
        apply(self, tree_id, changes, data)

    def update(self, tree_id: int, key: RawKey, offset: int, data: bytes) -> None:
        """Overwrite bytes of a payload.

        Raises
        ------
        OSError
            ENOENT without the item, EINVAL when the bytes go beyond its end.
        """
        if use_python():
            return ctree_edit.update(self, tree_id, key, offset, data)
        self.run(lib.bm_writer_update, tree_id % 2**64, raw_key(key), offset, data, len(data))

    def replace(self, tree_id: int, key: RawKey, data: bytes) -> None:
        """Give an item a new payload of any size: it grows or shrinks and is overwritten."""
        item = self.tree(tree_id).get(key)
        size = len(data) if item is None else len(item.data)
        if len(data) > size:
            self.extend(tree_id, key, bytes(len(data) - size))
        elif len(data) < size:
            self.truncate(tree_id, key, len(data))
        self.update(tree_id, key, 0, data)

    def extend(self, tree_id: int, key: RawKey, data: bytes) -> None:
        """Append bytes to a payload (``btrfs_extend_item()``)."""
        if use_python():
            return ctree_edit.extend(self, tree_id, key, data)
        self.run(lib.bm_writer_extend, tree_id % 2**64, raw_key(key), data, len(data))

    def truncate(self, tree_id: int, key: RawKey, size: int, *, from_end: bool = False) -> None:
        """Keep the first (`from_end`: the last) `size` bytes of a payload."""
        if use_python():
            return ctree_edit.truncate(self, tree_id, key, size, from_end=from_end)
        self.run(lib.bm_writer_truncate, tree_id % 2**64, raw_key(key), size, from_end)

    def set_key(self, tree_id: int, old: RawKey, new: RawKey) -> None:
        """Give an item another key that sorts between its neighbours, else EINVAL."""
        if use_python():
            return ctree_edit.set_key(self, tree_id, old, new)
        self.run(lib.bm_writer_set_key, tree_id % 2**64, raw_key(old), raw_key(new))

    def duplicate(self, tree_id: int, old: RawKey, new: RawKey) -> None:
        """Insert a copy of an item right behind it (``btrfs_duplicate_item()``)."""
        if use_python():
            return ctree_edit.duplicate(self, tree_id, old, new)
        self.run(lib.bm_writer_duplicate, tree_id % 2**64, raw_key(old), raw_key(new))

    def delete(self, tree_id: int, key: RawKey) -> None:
        """Delete an item.

        Raises
        ------
        OSError
            ENOENT without the item.
        """
        if not self.delete_range(tree_id, key, key):
            fault = new_fault()
            fault.code, fault.found = Code.ERRNO, errno.ENOENT
            self.fail(fault)

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
        if use_python():
            return ctree_edit.delete(self, tree_id, first, last, backward=backward)
        return self.run(
            lib.bm_writer_delete, tree_id % 2**64, raw_key(first), raw_key(last), backward
        )

    def write_blocks(self) -> int:
        """Checksum and write all changed blocks to all their copies; returns how many."""
        self.image.verified_by_twin.clear()
        return self.run(lib.bm_writer_write_blocks)

    def run(self, function: Any, *args: Any) -> int:
        """Call a kernel that takes the writer first and a fault last."""
        fault = new_fault()
        with self.image.lease:
            ret: int = function(self.handle, *args, fault)
        if ret < 0:
            self.fail(fault)
        return ret

    def fail(self, fault: ffi.CData) -> NoReturn:
        """Raise the error that a kernel which changes trees ended with.

        What is refused (EEXIST, ENOENT ...) is refused before anything is changed. Any other error
        leaves the change half done, and the transaction is aborted, as in the kernel.

        Parameters
        ----------
        fault : struct bm_fault *
            As filled by the kernel; ENOSPC has a tree where that needed a block.

        Raises
        ------
        OSError
            Always.
        """
        is_refusal = fault.code == Code.ERRNO and (fault.found != errno.ENOSPC or not fault.tree)
        self.aborted = self.aborted or not is_refusal
        raise_fault(self.image.path, fault)


def chunk_tree_uuid(image: Image) -> bytes:
    """Return the uuid of the chunk tree, which every header repeats."""
    superblock = image.superblock
    root = image.block(superblock.chunk_root, level=superblock.chunk_root_level)
    return bytes(root[64:80])


def raw_key(key: RawKey) -> ffi.CData:
    """Hand a key to a C kernel."""
    return ffi.new("struct bm_key *", (key[0], key[2], key[1]))


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
