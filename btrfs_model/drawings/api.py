# SPDX-License-Identifier: GPL-2.0-only
"""What can be drawn."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, overload

from btrfs_model.base.arguments import checked
from btrfs_model.base.tables import plural
from btrfs_model.drawings.commands import draw_stream
from btrfs_model.drawings.forest import BETWEEN, MOST, Forest, NamedTree
from btrfs_model.drawings.frames import Frames, frames
from btrfs_model.drawings.leaf import draw_block
from btrfs_model.drawings.picture import Box, Drawing, Link
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.questions.send.ioctl import SendResult
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.roots import tree_name
from btrfs_model.volume.subvolume import Subvolume
from btrfs_model.volume.tree import Tree


@overload
def draw(what: Mapping[str, Drawing]) -> Frames: ...


@overload
def draw(
    what: Filesystem
    | Subvolume
    | Tree
    | Sequence[Subvolume | Tree]
    | memoryview
    | bytes
    | SendResult
    | str
    | os.PathLike[str],
    *,
    blocks: int = MOST,
) -> Drawing: ...


@checked
def draw(
    what: Filesystem
    | Subvolume
    | Tree
    | Mapping[str, Drawing]
    | Sequence[Subvolume | Tree]
    | memoryview
    | bytes
    | SendResult
    | str
    | os.PathLike[str],
    *,
    blocks: int = MOST,
) -> Drawing | Frames:
    """Draw what a filesystem is made of.

    Parameters
    ----------
    what : Filesystem, Subvolume, Tree, list, bytes, SendResult, dict, str or os.PathLike
        A filesystem, or the file it is in: the superblock, all trees and what leads to them. A
        subvolume or tree, or several, which may be a log tree of :attr:`Filesystem.log_trees`
        beside its subvolume: blocks that they share are drawn once, with an arrow from each that
        points at them. The bytes of a tree block (:meth:`Image.block
        <btrfs_model.volume.image.Image.block>`): how it is packed. A send with ``explain=True``:
        its commands beside the items that caused them. Drawings by their captions: steps, of which
        the chosen one is shown; boxes that the step before does not have are filled.
    blocks : int
        About so many boxes for tree blocks; what is more is folded, and not read.

    Returns
    -------
    Drawing or Frames
        The picture, or the steps; the same input gives the same bytes. A notebook shows them, and
        ``save(path)`` writes them: a picture as SVG, steps as a page of HTML.

    Raises
    ------
    CorruptImageError
        When a block cannot be read.
    BtrfsModelError
        For bytes that are no tree block, and a send without causes.
    ValueError
        For an empty list or dict, and less than one box.
    """
    if blocks < 1:
        raise ValueError(f"blocks is {blocks}, not 1 or more")
    if isinstance(what, Mapping):
        return frames(what)
    if isinstance(what, SendResult):
        return draw_stream(what)
    if isinstance(what, (bytes, bytearray, memoryview)):
        return draw_block(what)
    if isinstance(what, Filesystem):
        return _draw_filesystem(what, blocks)
    if isinstance(what, str | os.PathLike):
        with Filesystem.open(what) as fs:
            return _draw_filesystem(fs, blocks)
    tops = list(what) if isinstance(what, (list, tuple)) else [what]
    if not tops:
        raise ValueError("there is nothing to draw in an empty list")
    return _draw_trees([_named(top) for top in tops], blocks)


def _named(top: Any) -> NamedTree:
    if isinstance(top, Tree):
        return NamedTree(tree_name(top.objectid), top)
    name = f'"{top.path}"' if top.path else "the top"
    return NamedTree(f"{name} (subvolume {top.id})", top.tree)


def _draw_trees(trees: list[NamedTree], most: int) -> Drawing:
    forest = Forest(trees, most)
    shared = sum(len(node.owners) > 1 for node in forest.nodes)
    drawing = Drawing(
        ", ".join(name for name, _ in trees[:4]) + (" …" if len(trees) > 4 else ""),
        "A tree from its root at the left to its leaves at the right.",
    )
    if len(trees) > 1:
        drawing.description = (
            f"{plural(len(trees), 'tree')}. A block that several share stands once, in the "
            f"colour of text, with an arrow from each block that points at it: {shared} here."
        )
    forest.draw(drawing)
    return drawing


def _draw_filesystem(fs: Filesystem, most: int) -> Drawing:
    superblock = fs.image.superblock
    pointed = {"root tree": fs.root_tree, "chunk tree": fs.chunk_tree}
    if fs.log_root_tree is not None:
        pointed["tree of log roots"] = fs.log_root_tree
    rooted = [
        NamedTree(tree_name(objectid), tree)
        for objectid, tree in fs.trees.items()
        if tree not in pointed.values()
    ]
    logs = [NamedTree(f"log of {tree_name(number)}", tree) for number, tree in fs.log_trees.items()]
    drawing = Drawing(
        f"{plural(len(rooted), 'tree')} and what leads to them",
        "The superblock says where the root tree and the chunk tree are; the root tree has an item "
        "for each other tree.",
    )
    at = Box(
        f"superblock, generation {superblock.generation}",
        [f"{name} at {tree.bytenr:,}" for name, tree in pointed.items()],
    )
    # with the items that lead on
    tops = [NamedTree(name, tree) for name, tree in pointed.items()]
    first = Forest(tops, most // 4 + 1, rows=60)
    names = first.draw(drawing, at.width + BETWEEN)
    drawing.boxes.insert(0, at)
    drawing.links += [Link(at, name, name.colour, row) for row, name in enumerate(names)]
    right = max(box.x + box.width for box in drawing.boxes) + 2 * BETWEEN
    others = [*rooted, *logs]
    names = Forest(others, most, colours=len(tops)).draw(drawing, right)
    for (_, tree), name in zip(others, names, strict=True):
        number = next((n for n, log in fs.log_trees.items() if log is tree), None)
        wanted = ObjectId.TREE_LOG if number is not None else tree.objectid
        found = first.row_of(int(wanted), int(ItemType.ROOT_ITEM))
        if found:
            drawing.links.append(Link(found[0], name, name.colour, found[1]))
    return drawing
