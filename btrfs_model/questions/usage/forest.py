# SPDX-License-Identifier: GPL-2.0-only
r"""Which tree blocks are in which subvolumes.

Snapshots share blocks, so the subvolumes are a graph that is walked down once, level by level, and
each block is read once, however many subvolumes it is in::

    roots        256     257
                   \   /   \
    level 1         n1     n2          (child, parent) of each pointer
                   /  \   /  \
    leaves       l1    l2    l3

Questions go down this graph (which blocks does this root have; is a block in one subvolume only) or
up (which roots have this leaf), a level at a time and with all blocks of the level at once. A
pointer that does not lead one level down is an error of the block read, so no question goes round
in a circle, and each visits a block once.

Subvolumes that are deleted but not yet freed still refer to what they have left: they count as the
kernel's back references have them. So do trees of a relocation under way.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.keys import Key, ObjectId
from btrfs_model.ondisk.structs import HEADER, KEY_PTR
from btrfs_model.volume.ctree import block_key, nritems
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.roots import is_subvolume_id

MANY: Final = -1
"""Label of what has several."""
NOBODY: Final = np.iinfo(np.int64).max
"""Label of what has none."""

RELOCATION: Final = (ObjectId.TREE_RELOC, ObjectId.DATA_RELOC_TREE)
"""Trees of a balance under way: copies of subvolumes' blocks, and of data."""

Addresses = npt.NDArray[np.uint64]
Labels = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
"""Sets of bits, a row of words for each."""
Values = TypeVar("Values", Labels, Words)


class TreeRoot(NamedTuple):
    """The root of a tree that refers to file data.

    `id`: the tree's objectid.
    `bytenr`, `generation`, `level`: of the root block.
    `progress`: of a subvolume that is being freed: everything before is gone.
    `is_dead`: whether it is a deleted subvolume, which waits to be freed or is being freed.
    """

    id: int
    bytenr: int
    generation: int
    level: int
    progress: Key | None
    is_dead: bool

    @property
    def stays(self) -> bool:
        """Whether what it refers to is kept: not by the dead, and not by a relocation."""
        return not self.is_dead and self.id not in RELOCATION


class _Level(NamedTuple):
    """The blocks of a level, and the pointers that lead to them."""

    blocks: Addresses  # ascending
    child: Addresses
    parent: Addresses


class FileForest:
    """The blocks of all trees that refer to file data.

    `fs`: where they are.
    `roots` (list of TreeRoot): those of subvolumes, living and half freed, and of a relocation.
    `leaves` (numpy.ndarray): addresses of all leaves, ascending (uint64).
    Raises CorruptImageError: when a block cannot be read or is not what its parent says.
    """

    def __init__(self, fs: Filesystem) -> None:
        self._image = fs.image
        self.roots = list(_tree_roots(fs))
        height = 1 + max((root.level for root in self.roots), default=0)
        self._blocks: list[dict[int, int]] = [{} for _ in range(height)]
        self._pointers: list[list[tuple[int, int]]] = [[] for _ in range(height)]
        # what is needed until the order of keys is known: last keys of leaves, pointers of nodes
        self._last: dict[int, tuple[int, int, int]] = {}
        self._nodes: dict[int, tuple[npt.NDArray[np.void], int]] = {}
        self._walk([root for root in self.roots if root.progress is None])
        for root in self.roots:
            if root.progress is not None:
                self._walk([root])
        self._levels = [self._level(level) for level in range(height)]
        self._check_order()
        self.leaves = self._levels[0].blocks

    def _level(self, level: int) -> _Level:
        pairs = np.array(self._pointers[level], np.uint64).reshape(-1, 2)
        return _Level(np.array(sorted(self._blocks[level]), np.uint64), pairs[:, 0], pairs[:, 1])

    # ----------------------------------------------------------------------------- the walk --

    def _walk(self, roots: list[TreeRoot]) -> None:
        """Read all blocks of some trees that are not known yet."""
        wanted: list[list[tuple[int, int, int]]] = [[] for _ in self._blocks]
        for root in roots:
            wanted[root.level].append((root.bytenr, root.generation, root.id))
        # the way down to where the freeing of a tree has come
        cut = (roots[0].bytenr, roots[0].progress) if roots else (0, None)
        for level in range(len(wanted) - 1, -1, -1):
            # by address, so that blocks beside each other are copied beside each other
            for logical, generation, tree in sorted(wanted[level], key=itemgetter(0)):
                known = self._blocks[level].get(logical)
                if known == generation:
                    continue
                block = self._image.block(logical, level=level, generation=generation, tree=tree)
                self._blocks[level][logical] = generation
                count = nritems(block)
                if not level:
                    self._last[logical] = block_key(block, count - 1) if count else (0, 0, 0)
                    continue
                rows = np.frombuffer(block, KEY_PTR.dtype, count, HEADER.size)
                if cut[1] is not None and logical == cut[0]:
                    keys = [Key(*key) for key in rows["key"].tolist()]
                    rows = rows[max(sum(key <= cut[1] for key in keys) - 1, 0) :]
                    cut = (int(rows["blockptr"][0]), cut[1])
                self._nodes[logical] = rows, tree
                children = rows["blockptr"].tolist()
                self._pointers[level - 1] += [(child, logical) for child in children]
                generations = rows["generation"].tolist()
                wanted[level - 1] += zip(children, generations, [tree] * len(rows), strict=True)

    def _check_order(self) -> None:
        """See that all keys below a pointer come before the next pointer's, level by level."""
        dtype = KEY_PTR.dtype["key"]
        last = np.array([self._last[leaf] for leaf in self._levels[0].blocks.tolist()], dtype)
        for below, above in pairwise(self._levels):
            last_below, last = last, np.empty(len(above.blocks), dtype)
            for number, node in enumerate(above.blocks.tolist()):
                rows, tree = self._nodes[node]
                ends = last_below[np.searchsorted(below.blocks, rows["blockptr"])]
                late = np.flatnonzero(~_less(ends[:-1], rows["key"][1:]))
                if len(late):
                    slot = int(late[0])
                    child = int(rows["blockptr"][slot])
                    raise CorruptImageError(
                        self._image.path,
                        Fault(Code.BAD_LAST_KEY, tree, node, slot, found=child),
                    )
                last[number] = ends[-1]
        del self._last, self._nodes

    # ------------------------------------------------------------------------ questions down --

    def single(self, labels: Labels) -> list[Labels]:
        """Find the blocks all of whose roots have one label.

        `labels`: of each root (int64), not negative; :data:`NOBODY` for those that do not count.
        Returns for each level from the leaves up the label of each of its blocks, or :data:`MANY`,
        or :data:`NOBODY`.
        """
        return self._down(labels, single_label)

    def _down(
        self, values: Values, unite: Callable[[npt.NDArray[np.intp], Values, int], Values]
    ) -> list[Values]:
        """Carry a value of each root down to its blocks.

        `unite`: makes one of several; see :func:`single_label` and :func:`any_bit`.
        """
        found = [values[:0]] * len(self._levels)
        for level in range(len(self._levels) - 1, -1, -1):
            rows = [row for row, root in enumerate(self.roots) if root.level == level]
            arriving = np.array([self.roots[row].bytenr for row in rows], np.uint64)
            carried = values[rows]
            blocks, child, parent = self._levels[level]
            if len(child):
                above = found[level + 1][np.searchsorted(self._levels[level + 1].blocks, parent)]
                arriving = np.concatenate([arriving, child])
                carried = np.concatenate([carried, above])
            found[level] = unite(np.searchsorted(blocks, arriving), carried, len(blocks))
        return found

    def reached(self, ids: set[int]) -> list[npt.NDArray[np.bool_]]:
        """Say of each block, by level from the leaves up, whether one of some trees has it."""
        masks = [np.zeros(len(level.blocks), np.bool_) for level in self._levels]
        for root in self.roots:
            if root.id in ids:
                masks[root.level][np.searchsorted(self._levels[root.level].blocks, root.bytenr)] = (
                    True
                )
        for level in range(len(self._levels) - 2, -1, -1):
            blocks, child, parent = self._levels[level]
            inside = masks[level + 1][np.searchsorted(self._levels[level + 1].blocks, parent)]
            masks[level][np.searchsorted(blocks, child[inside])] = True
        return masks

    def bits(self, numbers: Labels, words: int) -> list[Words]:
        """Say which roots have each block, as a bit of each of them.

        `numbers`: the bit of each root, or -1 for those that do not count.
        `words`: how many words of 64 bits a block has.
        Returns for each level from the leaves up an array of shape (blocks, words).
        """
        bits = one_bit(np.maximum(numbers, 0), words)
        bits[numbers < 0] = 0
        return self._down(bits, any_bit)

    # -------------------------------------------------------------------------- questions up --

    def above(self, leaves: Addresses, number: int) -> list[npt.NDArray[np.bool_]]:
        """Say which blocks of a tree are on the way from its root to some of its leaves."""
        inside = self.reached({number})
        ways = [np.isin(self._levels[0].blocks, leaves) & inside[0]]
        for below, (level, upper) in enumerate(pairwise(self._levels)):
            on = ways[below][np.searchsorted(level.blocks, level.child)]
            way = np.zeros(len(upper.blocks), np.bool_)
            way[np.searchsorted(upper.blocks, level.parent[on])] = True
            ways.append(way & inside[below + 1])
        return ways

    def owners(self, leaves: Addresses) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Find the roots that have each of some leaves.

        Returns `leaf`, `root`: rows of `leaves` and of :attr:`roots`, a pair for each leaf of each
        root.
        """
        who, at = np.arange(len(leaves)), np.asarray(leaves, np.uint64)
        found: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]] = []
        for level, (_, child, parent) in enumerate(self._levels):
            rows = np.array([r for r, root in enumerate(self.roots) if root.level == level], int)
            bytenr = np.array([self.roots[row].bytenr for row in rows], np.uint64)
            left, right = join(at, bytenr)
            found.append((who[left], rows[right]))
            left, right = join(at, child)
            # a block twice below another one is damage; it is gone through once
            pairs = np.unique(np.stack([who[left].astype(np.uint64), parent[right]]), axis=1)
            who, at = pairs[0].astype(np.intp), pairs[1]
        leaf, root = (np.concatenate(part) for part in zip(*found, strict=True))
        return leaf, root


def _less(left: npt.NDArray[np.void], right: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Compare keys."""
    less = left["offset"] < right["offset"]
    for field in ("type", "objectid"):
        less = (left[field] < right[field]) | ((left[field] == right[field]) & less)
    return less


def single_label(group: npt.NDArray[np.intp], labels: Labels, count: int) -> Labels:
    """Return the label of each of `count` groups, :data:`MANY` where rows of it differ.

    Rows of :data:`NOBODY` do not count; a group that has no others is nobody's.
    """
    low = np.full(count, NOBODY)
    high = np.full(count, MANY)
    np.minimum.at(low, group, labels)
    counts = labels != NOBODY
    np.maximum.at(high, group[counts], labels[counts])
    return np.where((low == high) | (low == NOBODY), low, MANY)


def one_bit(numbers: Labels, words: int) -> Words:
    """Return sets of bits (shape (len(numbers), words)) that have one each."""
    bits = np.zeros((len(numbers), words), np.uint64)
    place = np.uint64(1) << (numbers % 64).astype(np.uint64)
    bits[np.arange(len(numbers)), numbers // 64] = place
    return bits


def any_bit(group: npt.NDArray[np.intp], bits: Words, count: int) -> Words:
    """Return the bits that any row of each of `count` groups has."""
    found = np.zeros((count, bits.shape[1]), np.uint64)
    if len(group):
        order = np.argsort(group, kind="stable")
        groups, starts = np.unique(group[order], return_index=True)
        found[groups] = np.bitwise_or.reduceat(bits[order], starts, axis=0)
    return found


def how_many_bits(bits: Words) -> npt.NDArray[np.int64]:
    """Count the bits of each row."""
    count: npt.NDArray[np.int64] = np.unpackbits(
        np.ascontiguousarray(bits).view(np.uint8), axis=1
    ).sum(axis=1, dtype=np.int64)
    return count


def join(
    left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the rows of each pair of equal values, in the order of `left`."""
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    first = np.searchsorted(ordered, left, "left")
    count = np.searchsorted(ordered, left, "right") - first
    rows = np.repeat(np.arange(len(left)), count)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, order[np.repeat(first, count) + within]


def _tree_roots(fs: Filesystem) -> list[TreeRoot]:
    found = []
    for root in fs.root_items:
        if not (is_subvolume_id(root.id) or root.id in RELOCATION):
            continue
        item = root.item
        place = item.bytenr, item.generation, item.level
        found.append(TreeRoot(root.id, *place, root.progress, root.is_dead))
    return found
