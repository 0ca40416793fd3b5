# SPDX-License-Identifier: GPL-2.0-only
"""Delayed items: changes of a directory's index and of inode items that reach the tree later.

A call inserts a DIR_ITEM at once, but the DIR_INDEX of the same entry, its removal, and the update
of an inode item wait in the *delayed node* of the inode. They are run when the transaction commits
(or a directory is fsynced, or too many wait): node by node in the order in which the nodes first
had something to do; of a node first the insertions, then the deletions, then the inode item. What
is inserted and deleted before that never reaches the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.ondisk.structs import HEADER, ITEM

BACKGROUND: Final = 128
"""So many waiting items start the worker (``BTRFS_DELAYED_BACKGROUND``)."""


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

    `root`, `ino` (int): subvolume and inode number.
    `inode_item` (bytes or None): the inode item to write.
    `delete_ref` (bool): whether its only INODE_REF goes with the update of the inode item.
    `nbytes` (int): bytes that the items to insert take in leaves, headers included.
    `in_runs` (int): how many of these items came as runs.
    `counted` (tuple): what the sums of :class:`DelayedItems` have of it.
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

    `nodesize`: bytes of a tree block.
    `nodes`, `prepared` (dict): all nodes by subvolume and inode number; those that the worker would
    take, first come first served.
    `begins` (int): so many waiting items start the worker the next time.
    `nbytes` (int): bytes that all items to insert take in leaves, headers included.
    `paths` (int): for how many paths of blocks there is room kept (``delayed_block_rsv``).
    """

    def __init__(self, nodesize: int) -> None:
        self.nodes: dict[tuple[int, int], DelayedNode] = {}
        self.prepared: dict[tuple[int, int], DelayedNode] = {}
        self._leaf = nodesize - HEADER.size
        self._items = self._deletions = self.nbytes = self.paths = 0
        self.begins = BACKGROUND

    def __len__(self) -> int:
        return self._items

    def node(self, root: int, ino: int) -> DelayedNode | None:
        """Return what waits for an inode, or None."""
        return self.nodes.get((root, ino))

    def _get_or_create(self, root: int, ino: int) -> DelayedNode:
        return self.nodes.get((root, ino)) or DelayedNode(root, ino)

    def queue(self, node: DelayedNode) -> None:
        """``btrfs_release_delayed_node()``: into the lists, or out of them."""
        key = (node.root, node.ino)
        self.account(node)
        if node.counted is _NOTHING:
            self.nodes.pop(key, None)
            self.prepared.pop(key, None)
        elif key not in self.nodes:
            self.nodes[key] = self.prepared[key] = node
        elif key in self.prepared:
            self.prepared[key] = self.prepared.pop(key)

    def account(self, node: DelayedNode, waits: _Waits | None = None) -> None:
        """Bring the sums up to date with what waits in a node, by default what it says."""
        waits = waits or node.waits(self._leaf)
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
        self.queue(node)

    def insert_indexes(
        self, directory: LiveInode, first: int, sizes: npt.NDArray[np.uint32], payloads: bytes
    ) -> None:
        """Add DIR_INDEX items with the next indexes; their payloads follow each other."""
        node = self._get_or_create(directory.root, directory.ino)
        node.add_run(first, sizes, payloads)
        self.queue(node)

    def delete_index(self, directory: LiveInode, *indexes: int) -> None:
        """Remove DIR_INDEX items (``btrfs_delete_delayed_dir_index()``)."""
        node = self._get_or_create(directory.root, directory.ino)
        for index in indexes:
            gone = node.insertions.pop(index, None)
            if gone is None:
                node.deletions.add(index)
            else:
                node.nbytes -= ITEM.size + len(gone)
            node.logged.discard(index)
        self.queue(node)

    def update_inode(self, inode: LiveInode) -> None:
        """Write the inode item as it is now (``btrfs_delayed_update_inode()``)."""
        key = inode.root, inode.ino
        node = self.nodes.get(key) or DelayedNode(*key)
        again = node.inode_item is not None
        node.inode_item = inode.item.pack()
        if not again:
            self.queue(node)
        elif key in self.prepared:
            self.prepared[key] = self.prepared.pop(key)

    def refresh_inode(self, inode: LiveInode) -> None:
        """Write the inode item, which waits already, as it is now."""
        node = self.nodes[inode.root, inode.ino]
        assert node.inode_item is not None
        node.inode_item = inode.item.pack()

    def move_last(self, root: int, ino: int) -> None:
        """Make a node the last that the worker would take."""
        self.prepared[root, ino] = self.prepared.pop((root, ino))

    def update_items(self, root: int, inos: Iterable[int], items: Iterable[bytes]) -> None:
        """Write inode items as they are given, of inodes of which nothing waits."""
        for ino, item in zip(inos, items, strict=True):
            node = self.nodes[root, ino] = self.prepared[root, ino] = DelayedNode(root, ino)
            node.inode_item, node.counted = item, _ITEM_ALONE
            self._items += 1
            self.paths += 1

    def release_alone(self, nodes: list[DelayedNode]) -> None:
        """Forget nodes whose inode items, and nothing else, were written."""
        for node in nodes:
            node.inode_item, node.counted = None, _NOTHING
            del self.nodes[node.root, node.ino]
            self.prepared.pop((node.root, node.ino), None)
        self._items -= len(nodes)
        self.paths -= len(nodes)

    @property
    def waiting_changes(self) -> int:
        """How many items change or go at most."""
        return len(self.nodes) + self._deletions

    def waits_for(self, root: int) -> list[int]:
        """Return the numbers of the inodes of a subvolume for which something waits."""
        return [ino for of, ino in self.nodes if of == root]

    def delete_inode_ref(self, inode: LiveInode) -> None:
        """Remove the only INODE_REF (``btrfs_delayed_delete_inode_ref()``)."""
        node = self._get_or_create(inode.root, inode.ino)
        node.delete_ref = True
        self.queue(node)

    def kill(self, root: int, ino: int) -> None:
        """Forget what waits for an inode (``btrfs_kill_delayed_inode_items()``)."""
        node = self.nodes.pop((root, ino), None)
        if node is not None:
            self.account(node, _NOTHING)
        self.prepared.pop((root, ino), None)

    def kill_all(self, root: int) -> None:
        """Forget what waits for a subvolume (``btrfs_kill_all_delayed_nodes()``)."""
        for key in [key for key in self.nodes if key[0] == root]:
            self.kill(*key)
