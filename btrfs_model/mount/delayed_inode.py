# SPDX-License-Identifier: GPL-2.0-only
"""Delayed items reach the trees: at a commit, by the worker, for an fsync (``delayed-inode.c``).

What waits is :mod:`.delayed_node`.

Insertions go into the tree in batches of as much as fits an empty leaf (``btrfs_insert_delayed_
item()`` since Linux 5.15, ``batch-delayed-items``), which decides how leaves are split and filled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.mount.bulk.no_gc import no_gc
from btrfs_model.mount.delayed_node import BACKGROUND, DelayedNode
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.block_group import calls_that_fit
from btrfs_model.native.bulk import CHANGE, Kind, apply, delete_batches, insert_batches
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import HEADER, INODE_ITEM, ITEM
from btrfs_model.patches import Patch

if TYPE_CHECKING:
    import pandas as pd

WRITEBACK: Final = 512
"""So many make the caller wait for it (``BTRFS_DELAYED_WRITEBACK``)."""

_BATCH: Final = 16
_ENDLESS: Final = 1 << 30


@no_gc()
def run_delayed_items(fs: Mount, root: int | None = None) -> None:
    """Run all nodes, or those of a subvolume (``btrfs_run_delayed_items()``)."""
    nodes = [n for n in fs.delayed.nodes.values() if root is None or n.root == root]
    for part in _parts(fs, nodes):
        _run_nodes(fs, part)


def _run_nodes(fs: Mount, nodes: Iterable[DelayedNode]) -> None:
    for (root, alone), group in itertools.groupby(nodes, lambda n: (n.root, n.has_item_alone)):
        if alone:
            _update_items(fs, root, list(group))
            continue
        for node in group:
            run_node(fs, node)


def _parts(fs: Mount, nodes: list[DelayedNode]) -> Iterator[list[DelayedNode]]:
    """Divide nodes: what they copy may take another chunk for metadata on the way."""
    at = 0
    while at < len(nodes):
        end = at + calls_that_fit(fs)
        yield nodes[at:end]
        at = end


def run_delayed_items_nr(fs: Mount, most: int) -> None:
    """Run the first nodes (``btrfs_run_delayed_items_nr()``)."""
    _run_nodes(fs, list(itertools.islice(fs.delayed.nodes.values(), most)))


def _update_items(fs: Mount, root: int, nodes: list[DelayedNode]) -> None:
    """Run nodes of a subvolume of which each has an inode item and nothing else."""
    rows = np.zeros(len(nodes), CHANGE)
    rows["objectid"] = [node.ino for node in nodes]
    rows["type"], rows["size"] = int(ItemType.INODE_ITEM), INODE_ITEM.size
    rows["kind"] = Kind.UPDATE
    apply(fs.writer, root, rows, b"".join(node.inode_item or b"" for node in nodes))
    fs.delayed.release_alone(nodes)


def run_node(fs: Mount, node: DelayedNode) -> None:
    """Run a node (``__btrfs_commit_inode_delayed_items()``)."""
    _insert(fs, node)
    _delete(fs, node)
    node.logged.clear()
    run_inode(fs, node)


def run_inode(fs: Mount, node: DelayedNode) -> None:
    """Write the inode item of a node alone (``btrfs_commit_inode_delayed_inode()``)."""
    if node.inode_item is not None:
        writer = fs.writer
        writer.update(node.root, (node.ino, ItemType.INODE_ITEM, 0), 0, node.inode_item)
        node.inode_item = None
        if node.delete_ref:
            _delete_ref(fs, node)
    fs.delayed.queue(node)


def _delete_ref(fs: Mount, node: DelayedNode) -> None:
    first = (node.ino, ItemType.INODE_REF, 0)
    ref = fs.writer.tree(node.root).first(first)
    if ref is not None and ref.key[:2] in (
        (node.ino, ItemType.INODE_REF),
        (node.ino, ItemType.INODE_EXTREF),
    ):
        fs.writer.delete(node.root, ref.key)
    node.delete_ref = False


def _insert(fs: Mount, node: DelayedNode) -> None:
    columns = node.columns()
    if columns is not None:
        kind = int(ItemType.DIR_INDEX)
        insert_batches(fs.writer, node.root, node.ino, kind, *columns)
        node.forget_insertions()
        fs.delayed.account(node)


def batches(fs: Mount) -> pd.DataFrame:
    """Return the batches that waiting names would be inserted in; see the caller."""
    import pandas as pd

    if Patch.BATCH_DELAYED_ITEMS not in fs.behaviour:
        raise UnsupportedError(
            f"{fs.path}: {fs.behaviour} has not batch-delayed-items: the leaves decide the batches"
        )
    found = []
    for node in fs.delayed.nodes.values():
        columns = node.columns()
        sizes = [] if columns is None else (columns[1] + np.uint32(ITEM.size)).tolist()
        for items, size in _fill(sizes, fs.nodesize - HEADER.size):
            found.append((node.root, node.ino, items, size))
    return pd.DataFrame(found, columns=["subvolume", "inode", "items", "bytes"], dtype="int64")


def _fill(sizes: Iterable[int], room: int) -> Iterator[tuple[int, int]]:
    """Fill empty leaves with items, one after the other: how many, how many bytes."""
    items = used = 0
    for size in sizes:
        if items and used + size > room:
            yield items, used
            items = used = 0
        items, used = items + 1, used + size
    if items:
        yield items, used


def _delete(fs: Mount, node: DelayedNode) -> None:
    if not node.deletions:
        return
    kind, offsets = int(ItemType.DIR_INDEX), np.array(sorted(node.deletions), np.uint64)
    while len(offsets):
        most = calls_that_fit(fs)
        done = delete_batches(fs.writer, node.root, node.ino, kind, offsets, most)
        offsets = offsets[done:]
    node.deletions.clear()
    fs.delayed.account(node)


def calls_until_worker(fs: Mount, each: int, *directories: LiveInode) -> int:
    """How many calls, at least 1, may follow before nodes are run by :func:`balance_delayed_items`.

    `each`: items that a call adds.
    `*directories`: whose inode items the first of them adds, if they do not wait already.
    """
    if not fs.machine.asynchronous:
        return _ENDLESS
    nodes = [fs.delayed.node(inode.root, inode.ino) for inode in directories]
    added = sum(node is None or node.inode_item is None for node in nodes)
    return max(1, -(-(fs.delayed.begins - len(fs.delayed) - added) // each))


def balance_delayed_items(fs: Mount) -> None:
    """Run some nodes when too many items wait (``btrfs_balance_delayed_items()``)."""
    if not fs.machine.asynchronous or len(fs.delayed) < fs.delayed.begins:
        return
    machine = fs.machine
    machine.worked += 1
    fs.delayed.begins = BACKGROUND + machine.chance.randint(0, machine.lag)
    most = WRITEBACK if len(fs.delayed) >= WRITEBACK else _BATCH
    for _ in range(most):
        if len(fs.delayed) < BACKGROUND // 2 or not fs.delayed.prepared:
            return
        key = next(iter(fs.delayed.prepared))
        run_node(fs, fs.delayed.prepared.pop(key))
