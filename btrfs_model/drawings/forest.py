# SPDX-License-Identifier: GPL-2.0-only
"""Trees as boxes: each block once, with an arrow from every block that points at it.

Blocks are read level by level. Where a level has more than there is room for, runs of neighbours
with the same parents become one box, and what is below them is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from btrfs_model.base.charts import COLOURS, is_narrow
from btrfs_model.drawings import labels
from btrfs_model.drawings.picture import GAP, INKS, Box, Drawing, Link, spread, stack
from btrfs_model.ondisk.keys import Key
from btrfs_model.volume import ctree
from btrfs_model.volume.blocks import HEADER
from btrfs_model.volume.roots import is_subvolume_id
from btrfs_model.volume.tree import Tree

MOST: Final = 200
"""Boxes of blocks in a drawing, more or less."""
_ROWS: Final = ((8, 12), (24, 5), (60, 2))  # up to so many blocks: rows of each
BETWEEN: Final = 44
"""Pixels between columns, for arrows."""
_STEP: Final = 18
"""Pixels that a block stands to the right of what points at it, on a narrow page."""


class NamedTree(NamedTuple):
    """A tree and what it is called."""

    name: str
    tree: Tree


class Entry(NamedTuple):
    """What is in a slot of a block; `child`: address of a block, and `generation`."""

    key: Key
    text: str
    child: int = 0
    generation: int = 0


@dataclass(eq=False)
class Node:
    """A tree block, or a run of `folded` of them.

    `parents`: who points at it, and the slot there; `owners`: numbers of the trees it is part of;
    `blocks`: the addresses that it stands for.
    """

    logical: int
    level: int
    first: Key
    generation: int
    parents: list[tuple[Node, int]] = field(default_factory=list)
    owners: set[int] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)
    folded: int = 0
    blocks: frozenset[int] = frozenset()
    box: Box = field(default_factory=lambda: Box(""))

    def __post_init__(self) -> None:
        self.blocks = self.blocks or frozenset([self.logical])

    @property
    def order(self) -> tuple[Key, int]:
        """How blocks of a level stand: by key, and those of the first tree first."""
        return self.first, min(self.owners)

    def row(self, slot: int) -> int:
        """Return the row of its box that stands for a slot."""
        shown = len(self.box.rows)
        return slot if shown == len(self.entries) else min(slot, shown - 1)


class Forest:
    """The blocks of trees that are to be drawn.

    `trees`: what is drawn, from the top.
    `most`: how many boxes, more or less.
    `colours`: so many trees of the drawing have their colours already.
    `rows`: of each block, at most; by how many blocks there are without it.
    """

    def __init__(
        self,
        trees: Sequence[NamedTree],
        most: int = MOST,
        *,
        colours: int = 0,
        rows: int | None = None,
    ) -> None:
        self.trees = trees
        self._colours = colours
        self.levels = self._read(most)
        if rows is None:
            rows = next((rows for count, rows in _ROWS if len(self.nodes) <= count), 1)
        for node in self.nodes:
            node.box = self._box(node, rows)

    @property
    def nodes(self) -> list[Node]:
        """All blocks, the highest first."""
        return [node for level in self.levels for node in level]

    def colour(self, number: int) -> str:
        """Return the colour of a tree."""
        return INKS[(number + self._colours) % len(INKS)]

    # ---------------------------------------------------------------------------- reading --

    def _read(self, most: int) -> list[list[Node]]:
        levels: list[list[Node]] = []
        below: dict[int, Node] = {}
        used = 0
        for level in range(max(tree.level for _, tree in self.trees), -1, -1):
            for number, (_, tree) in enumerate(self.trees):
                if tree.level == level:
                    fresh = Node(tree.bytenr, level, Key(0, 0, 0), tree.generation)
                    below.setdefault(tree.bytenr, fresh).owners.add(number)
            # what is below the leaves of nodes has less room, as there is more of it
            here = self._fold(list(below.values()), max(4, (most - used) // 8**level))
            below = {}
            for node in (node for node in here if not node.folded):
                self._open(node)
                for slot, entry in enumerate(node.entries if level else ()):
                    fresh = Node(entry.child, level - 1, entry.key, entry.generation)
                    child = below.setdefault(entry.child, fresh)
                    child.parents.append((node, slot))
                    child.owners |= node.owners
            used += len(here)
            levels.append(here)
        return levels

    def _open(self, node: Node) -> None:
        tree = self.trees[min(node.owners)].tree
        block = tree.image.block(
            node.logical, level=node.level, generation=node.generation, tree=tree.objectid
        )
        node.generation = HEADER.unpack_from(block)[5]
        for slot in range(ctree.nritems(block)):
            key = Key(*ctree.block_key(block, slot))
            if node.level:
                node.entries.append(Entry(key, f"→ {key}", *ctree.node_ptr(block, slot)))
            else:
                text = labels.item(key, ctree.item_data(block, slot))
                node.entries.append(Entry(key, text))
        if node.entries:
            node.first = node.entries[0].key

    def _fold(self, nodes: list[Node], room: int) -> list[Node]:
        """Leave the first and last of each run of neighbours with the same parents."""

        def place(node: Node) -> tuple[int, tuple[Key, int]]:
            # subvolumes may share blocks, and stand together
            first = min(node.owners)
            is_alone = not is_subvolume_id(self.trees[first].tree.objectid)
            return (first + 1 if is_alone else 0), node.order

        nodes = sorted(nodes, key=place)
        if len(nodes) <= room:
            return nodes
        runs = [
            list(run) for _, run in groupby(nodes, lambda node: [id(p) for p, _ in node.parents])
        ]
        most = room // (3 * len(runs))
        if not most:
            ends = room // 2
            return [*nodes[:ends], _one_for(nodes[ends:-ends]), *nodes[-ends:]]
        kept = []
        for run in runs:
            if len(run) <= 2 * most + 1:
                kept += run
            else:
                kept += [*run[:most], _one_for(run[most:-most]), *run[-most:]]
        return kept

    # ------------------------------------------------------------------------------ boxes --

    def _box(self, node: Node, most: int) -> Box:
        colour = COLOURS["ink"] if len(node.owners) > 1 else self.colour(min(node.owners))
        if node.folded:
            things = f"{node.folded:,} more {'nodes' if node.level else 'leaves'}"
            return Box(f"… {things}", [f"from {node.first}"], colour, is_fold=True)
        rows = [entry.text for entry in node.entries]
        thing = "items"
        if node.level:
            # arrows start from them
            thing, most = "pointers", 4 * most
        if len(rows) > most:
            more = len(rows) - most + 1
            last = f"… {more:,} more {thing}" if most > 1 else f"{more:,} {thing} from {node.first}"
            rows = [*rows[: most - 1], last]
        shared = f", in {len(node.owners)} trees" if len(node.owners) > 1 else ""
        block = f"{'node' if node.level else 'leaf'} {node.logical:,}, generation {node.generation}"
        return Box(block + shared, rows, colour, identity=block)

    # ---------------------------------------------------------------------------- drawing --

    def _groups(self) -> Iterator[set[int]]:
        """Yield the trees that share blocks, directly or by way of others."""
        left = set(range(len(self.trees)))
        while left:
            group, before = {min(left)}, set[int]()
            while group != before:
                before = set(group)
                group.update(*(node.owners for node in self.nodes if node.owners & before))
            yield group
            left -= group

    def draw(self, drawing: Drawing, x: float = 0, y: float = 0) -> list[Box]:
        """Add everything to a drawing; return the boxes with the names of the trees."""
        names = [Box(name, [], self.colour(number)) for number, (name, _) in enumerate(self.trees)]
        for group in self._groups():
            levels = [[node for node in level if node.owners & group] for level in self.levels]
            columns = [sorted(level, key=lambda node: node.order) for level in levels if level]
            roots = [(names[number], self.trees[number].tree.bytenr) for number in sorted(group)]
            y = (_outline if is_narrow() else _place)(roots, columns, x, y)
        drawing.boxes += [*names, *(node.box for node in self.nodes)]
        for node in self.nodes:
            for number in sorted(node.owners):
                if self.trees[number].tree.bytenr in node.blocks:
                    drawing.links.append(Link(names[number], node.box, self.colour(number)))
            for parent, slot in node.parents:
                link = Link(parent.box, node.box, parent.box.colour, parent.row(slot))
                drawing.links.append(link)
        return names

    def row_of(self, objectid: int, kind: int) -> tuple[Box, int] | None:
        """Return where the first item with that objectid and type is shown, or None."""
        for node in self.levels[-1]:
            for slot, entry in enumerate(node.entries):
                if entry.key[:2] == (objectid, kind):
                    return node.box, node.row(slot)
        return None


def _one_for(run: list[Node]) -> Node:
    """Return what stands for blocks that are not shown."""
    first = run[0]
    parents = dict(parent for node in reversed(run) for parent in node.parents)
    owners = {owner for node in run for owner in node.owners}
    blocks = frozenset(node.logical for node in run)
    pointers = list(parents.items())
    return Node(0, first.level, first.first, 0, pointers, owners, [], len(run), blocks)


def _place(roots: list[tuple[Box, int]], columns: list[list[Node]], x: float, y: float) -> float:
    """Put trees that share blocks at their places, names at the left; return where they end.

    `roots`: boxes with names, and the addresses of the roots.
    `columns`: blocks by level, the highest first.
    """
    stack([node.box for node in columns[-1]], 0, y)
    children: dict[int, list[Box]] = {}
    for node in (node for column in columns for node in column):
        for parent, _ in node.parents:
            children.setdefault(id(parent), []).append(node.box)
    for column in reversed(columns[:-1]):
        for node in column:
            if below := children.get(id(node)):
                node.box.y = below[0].y
        spread([node.box for node in column], y)
    nodes = [node for column in columns for node in column]
    places = {logical: node.box.y for node in nodes for logical in node.blocks}
    for name, bytenr in roots:
        name.y = places[bytenr]
    names = sorted((name for name, _ in roots), key=lambda name: name.y)
    spread(names, y)
    boxes = [names, *([node.box for node in column] for column in columns)]
    for stacked in boxes:
        for box in stacked:
            box.x = x
        x += max(box.width for box in stacked) + BETWEEN
    return max(box.y + box.height for stacked in boxes for box in stacked) + 2 * GAP


def _outline(roots: list[tuple[Box, int]], columns: list[list[Node]], x: float, y: float) -> float:
    """Put trees one below the other for a narrow page, each block below the first that has it.

    Arguments and result are those of :func:`_place`.
    """
    children: dict[int, list[Node]] = {}
    for node in (node for column in columns for node in column):
        children.setdefault(id(node.parents[0][0]) if node.parents else 0, []).append(node)
    for name, bytenr in roots:
        y = stack([name], x, y)
        tops = [node for node in children[0] if bytenr in node.blocks]
        waiting = [(x + _STEP, node) for node in tops]
        while waiting:
            left, node = waiting.pop(0)
            y = stack([node.box], left, y)
            waiting[:0] = [(left + _STEP, child) for child in children.get(id(node), ())]
    return y + GAP
