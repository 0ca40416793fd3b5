# SPDX-License-Identifier: GPL-2.0-only
"""Delayed items: changes of a directory's index and of inode items that reach the tree later.

A call inserts a DIR_ITEM at once, but the DIR_INDEX of the same entry, its removal, and the update
of an inode item wait in the *delayed node* of the inode. They are run when the transaction commits
(or a directory is fsynced, or too many wait): node by node in the order in which the nodes first
had something to do; of a node first the insertions, then the deletions, then the inode item. What
is inserted and deleted before that never reaches the tree.

Insertions go into the tree in batches of as much as fits an empty leaf (``btrfs_insert_delayed_
item()`` since Linux 5.15, ``batch-delayed-items``), which decides how leaves are split and filled.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.counters import current
from btrfs_model.mount.bulk.no_gc import no_gc
from btrfs_model.mount.space.block_group import calls_that_fit
from btrfs_model.native.bulk import CHANGE, Kind, apply, insert_batches
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import HEADER, INODE_ITEM, ITEM

if TYPE_CHECKING:
    from btrfs_model.mount.live_inode import LiveInode
    from btrfs_model.mount.writable import WritableFilesystem

BACKGROUND: Final = 128
"""So many waiting items start the worker (``BTRFS_DELAYED_BACKGROUND``)."""

WRITEBACK: Final = 512
"""So many make the caller wait for it (``BTRFS_DELAYED_WRITEBACK``)."""

_BATCH: Final = 16
_ENDLESS: Final = 1 << 30


class _Run(NamedTuple):
    """DIR_INDEX items with consecutive indexes; their payloads follow each other."""

    first: int
    sizes: npt.NDArray[np.uint32]
    payloads: bytes

    def items(self) -> Iterator[tuple[int, bytes]]:
        at = 0
        for index, size in enumerate(self.sizes.tolist(), self.first):
            yield index, self.payloads[at : at + size]
            at += size


class _Waits(NamedTuple):
    """How much waits in a node."""

    items: int
    nbytes: int
    deletions: int
    paths: int


_NOTHING: Final = _Waits(0, 0, 0, 0)
_ITEM_ALONE: Final = _Waits(1, 0, 0, 1)


class DelayedNode:
    """What waits for an inode (``struct btrfs_delayed_node``).

    Attributes
    ----------
    root, ino : int
        Subvolume and inode number.
    inode_item : bytes or None
        The inode item to write.
    delete_ref : bool
        Whether its only INODE_REF goes with the update of the inode item.
    nbytes : int
        Bytes that the items to insert take in leaves, headers included.
    in_runs : int
        How many of these items came as runs.
    counted : tuple
        What the sums of :class:`DelayedItems` have of it.
    """

    # most nodes have an inode item alone, and there may be a million of them
    __slots__ = (
        "_deletions",
        "_insertions",
        "_logged",
        "_runs",
        "counted",
        "delete_ref",
        "in_runs",
        "ino",
        "inode_item",
        "nbytes",
        "root",
    )  # fmt: skip

    def __init__(self, root: int, ino: int) -> None:
        self.root = root
        self.ino = ino
        self.inode_item: bytes | None = None
        self.delete_ref = False
        self.nbytes = self.in_runs = 0
        self.counted = _NOTHING
        self._insertions: dict[int, bytes] | None = None
        self._runs: list[_Run] | None = None
        self._deletions: set[int] | None = None
        self._logged: set[int] | None = None

    @property
    def insertions(self) -> dict[int, bytes]:
        """DIR_INDEX items to insert, by index."""
        if self._insertions is None:
            self._insertions = {}
        for run in self._runs or ():
            self._insertions.update(run.items())
        self._runs, self.in_runs = None, 0
        return self._insertions

    @property
    def deletions(self) -> set[int]:
        """Indexes of DIR_INDEX items to delete."""
        if self._deletions is None:
            self._deletions = set()
        return self._deletions

    @property
    def logged(self) -> set[int]:
        """Indexes whose insertion or deletion is in the log already."""
        if self._logged is None:
            self._logged = set()
        return self._logged

    def waits(self, leaf: int) -> _Waits:
        """Return how much waits.

        Room is kept for two paths for each leaf of `leaf` bytes that insertions fill
        (``index_item_leaves``), two for each deletion, one for the inode.
        """
        has_item = self.inode_item is not None
        if not (self._insertions or self._runs or self._deletions or self.delete_ref):
            return _ITEM_ALONE if has_item else _NOTHING
        deletions = len(self._deletions or ())
        return _Waits(
            len(self._insertions or ()) + self.in_runs + deletions + has_item + self.delete_ref,
            self.nbytes,
            deletions,
            2 * (-(-self.nbytes // leaf) + deletions) + has_item,
        )

    @property
    def has_item_alone(self) -> bool:
        """Whether there is an inode item and nothing else."""
        return self.counted is _ITEM_ALONE

    def add_run(self, first: int, sizes: npt.NDArray[np.uint32], payloads: bytes) -> None:
        """Add DIR_INDEX items with consecutive indexes, which are above all others."""
        run = _Run(first, sizes, payloads)
        self.nbytes += ITEM.size * len(run.sizes) + len(run.payloads)
        if self._insertions:
            self._insertions.update(run.items())
            return
        self._runs = self._runs or []
        self._runs.append(run)
        self.in_runs += len(sizes)

    def columns(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], bytes] | None:
        """Return what is to be inserted, ascending: indexes, sizes and payloads, or None."""
        if self._runs:
            runs = self._runs
            indexes = [run.first + np.arange(len(run.sizes), dtype=np.uint64) for run in runs]
            sizes = np.concatenate([run.sizes for run in runs])
            return np.concatenate(indexes), sizes, b"".join(run.payloads for run in runs)
        if not self._insertions:
            return None
        rows = sorted(self._insertions.items())
        sizes = np.array([len(payload) for _, payload in rows], np.uint32)
        joined = b"".join(payload for _, payload in rows)
        return np.array([index for index, _ in rows], np.uint64), sizes, joined

    def forget_insertions(self) -> None:
        """Nothing is to be inserted any more."""
        self._runs = self._insertions = None
        self.nbytes = self.in_runs = 0


class DelayedItems:
    """The delayed nodes of a filesystem, in the order in which they are run.

    Parameters
    ----------
    fs : WritableFilesystem
        Whose trees they are for.

    Attributes
    ----------
    asynchronous : bool
        Run nodes before the commit as well, where a kernel's worker would: once BACKGROUND items
        wait. When exactly the worker comes to it depends on the machine; by default it never does.
    lag : int
        So many further items at most, by chance, wait before the worker has begun: what calls add
        while it is woken on another CPU.
    nbytes : int
        Bytes that all items to insert take in leaves, headers included.
    paths : int
        For how many paths of blocks there is room kept (``delayed_block_rsv``).
    """

    def __init__(self, fs: WritableFilesystem) -> None:
        self._fs = fs
        self._nodes: dict[tuple[int, int], DelayedNode] = {}
        # those that the worker would take, first come first served
        self._prepared: dict[tuple[int, int], DelayedNode] = {}
        self._leaf = fs.nodesize - HEADER.size
        self._items = self._deletions = self.nbytes = self.paths = 0
        self.asynchronous = False
        self.lag = 0
        self._chance = random.Random(0)
        self._begins = BACKGROUND

    def __len__(self) -> int:
        return self._items

    def node(self, root: int, ino: int) -> DelayedNode | None:
        """Return what waits for an inode, or None."""
        return self._nodes.get((root, ino))

    def _get_or_create(self, root: int, ino: int) -> DelayedNode:
        return self._nodes.get((root, ino)) or DelayedNode(root, ino)

    def _queue(self, node: DelayedNode) -> None:
        """``btrfs_release_delayed_node()``: into the lists, or out of them."""
        key = (node.root, node.ino)
        self._account(node, node.waits(self._leaf))
        if node.counted is _NOTHING:
            self._nodes.pop(key, None)
            self._prepared.pop(key, None)
        elif key not in self._nodes:
            self._nodes[key] = self._prepared[key] = node
        elif key in self._prepared:
            self._prepared[key] = self._prepared.pop(key)

    def _account(self, node: DelayedNode, waits: _Waits) -> None:
        """Bring the sums up to date with what waits in a node."""
        if waits is not node.counted:
            before, node.counted = node.counted, waits
            self._items += waits.items - before.items
            self.nbytes += waits.nbytes - before.nbytes
            self._deletions += waits.deletions - before.deletions
            self.paths += waits.paths - before.paths

    # -------------------------------------------------------------------------- what waits --

    def insert_index(self, directory: LiveInode, index: int, payload: bytes) -> None:
        """Add a DIR_INDEX item (``btrfs_insert_delayed_dir_index()``)."""
        node = self._get_or_create(directory.root, directory.ino)
        node.insertions[index] = payload
        node.nbytes += ITEM.size + len(payload)
        self._queue(node)

    def insert_indexes(
        self, directory: LiveInode, first: int, sizes: npt.NDArray[np.uint32], payloads: bytes
    ) -> None:
        """Add DIR_INDEX items with the next indexes; their payloads follow each other."""
        node = self._get_or_create(directory.root, directory.ino)
        node.add_run(first, sizes, payloads)
        self._queue(node)

    def delete_index(self, directory: LiveInode, index: int) -> None:
        """Remove a DIR_INDEX item (``btrfs_delete_delayed_dir_index()``)."""
        node = self._get_or_create(directory.root, directory.ino)
        gone = node.insertions.pop(index, None)
        if gone is None:
            node.deletions.add(index)
        else:
            node.nbytes -= ITEM.size + len(gone)
        node.logged.discard(index)
        self._queue(node)

    def update_inode(self, inode: LiveInode) -> None:
        """Write the inode item as it is now (``btrfs_delayed_update_inode()``)."""
        node = self._get_or_create(inode.root, inode.ino)
        node.inode_item = inode.item.pack()
        self._queue(node)

    def update_items(self, root: int, inos: list[int], items: list[bytes]) -> None:
        """Write inode items as they are given."""
        for ino, item in zip(inos, items, strict=True):
            node = self._get_or_create(root, ino)
            node.inode_item = item
            self._queue(node)

    @property
    def waiting_changes(self) -> int:
        """How many items change or go at most."""
        return len(self._nodes) + self._deletions

    def waits_for(self, root: int) -> list[int]:
        """Return the numbers of the inodes of a subvolume for which something waits."""
        return [ino for of, ino in self._nodes if of == root]

    def delete_inode_ref(self, inode: LiveInode) -> None:
        """Remove the only INODE_REF (``btrfs_delayed_delete_inode_ref()``)."""
        node = self._get_or_create(inode.root, inode.ino)
        node.delete_ref = True
        self._queue(node)

    def kill(self, root: int, ino: int) -> None:
        """Forget what waits for an inode (``btrfs_kill_delayed_inode_items()``)."""
        node = self._nodes.pop((root, ino), None)
        if node is not None:
            self._account(node, _NOTHING)
        self._prepared.pop((root, ino), None)

    def kill_all(self, root: int) -> None:
        """Forget what waits for a subvolume (``btrfs_kill_all_delayed_nodes()``)."""
        for key in [key for key in self._nodes if key[0] == root]:
            self.kill(*key)

    # ----------------------------------------------------------------------------- running --

    @no_gc()
    def run(self, root: int | None = None) -> None:
        """Run all nodes, or those of a subvolume (``btrfs_run_delayed_items()``)."""
        nodes = [n for n in self._nodes.values() if root is None or n.root == root]
        for part in self._parts(nodes):
            for (of, alone), group in itertools.groupby(part, lambda n: (n.root, n.has_item_alone)):
                if alone:
                    self._update_items(of, list(group))
                    continue
                for node in group:
                    self.run_node(node)

    def _parts(self, nodes: list[DelayedNode]) -> Iterator[list[DelayedNode]]:
        """Divide nodes: what they copy may take another chunk for metadata on the way."""
        at = 0
        while at < len(nodes):
            end = at + calls_that_fit(self._fs)
            yield nodes[at:end]
            at = end

    def run_some(self, most: int) -> None:
        """Run the first nodes (``btrfs_run_delayed_items_nr()``)."""
        for node in list(itertools.islice(self._nodes.values(), most)):
            self.run_node(node)

    def _update_items(self, root: int, nodes: list[DelayedNode]) -> None:
        """Run nodes of a subvolume of which each has an inode item and nothing else."""
        rows = np.zeros(len(nodes), CHANGE)
        rows["objectid"] = [node.ino for node in nodes]
        rows["type"], rows["size"] = int(ItemType.INODE_ITEM), INODE_ITEM.size
        rows["kind"] = Kind.UPDATE
        apply(self._fs.writer, root, rows, b"".join(node.inode_item or b"" for node in nodes))
        for node in nodes:
            node.inode_item = None
            self._queue(node)

    def run_node(self, node: DelayedNode) -> None:
        """Run a node (``__btrfs_commit_inode_delayed_items()``)."""
        self._insert(node)
        self._delete(node)
        node.logged.clear()
        self.run_inode(node)

    def run_inode(self, node: DelayedNode) -> None:
        """Write the inode item of a node alone (``btrfs_commit_inode_delayed_inode()``)."""
        if node.inode_item is not None:
            writer = self._fs.writer
            writer.update(node.root, (node.ino, ItemType.INODE_ITEM, 0), 0, node.inode_item)
            node.inode_item = None
            if node.delete_ref:
                self._delete_ref(node)
        self._queue(node)

    def _delete_ref(self, node: DelayedNode) -> None:
        first = (node.ino, ItemType.INODE_REF, 0)
        ref = self._fs.writer.tree(node.root).first(first)
        if ref is not None and ref.key[:2] in (
            (node.ino, ItemType.INODE_REF),
            (node.ino, ItemType.INODE_EXTREF),
        ):
            self._fs.writer.delete(node.root, ref.key)
        node.delete_ref = False

    def _insert(self, node: DelayedNode) -> None:
        columns = node.columns()
        if columns is not None:
            kind = int(ItemType.DIR_INDEX)
            insert_batches(self._fs.writer, node.root, node.ino, kind, *columns)
            node.forget_insertions()
            self._account(node, node.waits(self._leaf))

    def _delete(self, node: DelayedNode) -> None:
        if not node.deletions:
            return
        fit = 0
        for first, last in self._runs(node):
            fit = fit - 1 if fit else calls_that_fit(self._fs)
            self._fs.writer.delete_range(
                node.root,
                (node.ino, ItemType.DIR_INDEX, first),
                (node.ino, ItemType.DIR_INDEX, last),
            )
        node.deletions.clear()
        self._account(node, node.waits(self._leaf))

    def _runs(self, node: DelayedNode) -> Iterator[tuple[int, int]]:
        """Group the deletions so that nothing that stays lies within a run."""
        lowest = (node.ino, ItemType.DIR_INDEX, min(node.deletions))
        highest = (node.ino, ItemType.DIR_INDEX, max(node.deletions))
        # a walk over the items starts with this one
        current().count("btrfs_search_slot_for_read")
        there = self._fs.writer.tree(node.root).scan(lowest, highest)["offset"]
        for goes, group in itertools.groupby(there.tolist(), node.deletions.__contains__):
            if goes:
                run = list(group)
                yield run[0], run[-1]

    def calls_until_worker(self, each: int, *directories: LiveInode) -> int:
        """How many calls may follow before :meth:`balance` has something to do, 1 at least.

        Parameters
        ----------
        each : int
            Items that a call adds.
        *directories : LiveInode
            Whose inode items the first of them adds, if they do not wait already.
        """
        if not self.asynchronous:
            return _ENDLESS
        nodes = [self.node(inode.root, inode.ino) for inode in directories]
        added = sum(node is None or node.inode_item is None for node in nodes)
        return max(1, -(-(self._begins - len(self) - added) // each))

    def balance(self) -> None:
        """Run some nodes when too many items wait (``btrfs_balance_delayed_items()``)."""
        if not self.asynchronous or len(self) < self._begins:
            return
        self._begins = BACKGROUND + self._chance.randint(0, self.lag)
        most = WRITEBACK if len(self) >= WRITEBACK else _BATCH
        for _ in range(most):
            if len(self) < BACKGROUND // 2 or not self._prepared:
                return
            key = next(iter(self._prepared))
            self.run_node(self._prepared.pop(key))
