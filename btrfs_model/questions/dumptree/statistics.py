# SPDX-License-Identifier: GPL-2.0-only
"""The shape of trees: levels, nodes, leaves, items, how full they are and how much is shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd

from btrfs_model.base.arguments import checked
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.keys import objectid_name
from btrfs_model.volume.blocks import HEADER
from btrfs_model.volume.device.devices import Paths
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Block, Tree


@checked
def tree_stats(image: Image | Filesystem | Paths) -> pd.DataFrame:
    """Measure every tree of an image.

    Parameters
    ----------
    image : Image, Filesystem, str, os.PathLike or sequence of them
        What to measure, or the files it is in.

    Returns
    -------
    pandas.DataFrame
        A row for each tree, in the order of ids, logs last: ``tree`` (id), ``name``, ``levels``
        (1: just a leaf), ``nodes``, ``leaves``, ``items``, ``bytes`` (of all blocks), ``fill_mean``
        and ``fill_min`` (used part of the leaves, 0 to 1; headers of blocks do not count),
        ``node_fill_mean`` (the same of nodes, NaN where there are none), ``shared`` (blocks that
        are part of other trees too).

    Raises
    ------
    CorruptImageError
        When a tree cannot be read.
    """
    if isinstance(image, Filesystem):
        return _stats(image)
    if isinstance(image, Image):
        return _stats(Filesystem(image))
    with Filesystem.open(image) as fs:
        return _stats(fs)


def _all_trees(fs: Filesystem) -> Iterator[tuple[str, Tree]]:
    for objectid, tree in fs.trees.items():
        yield objectid_name(objectid), tree
    for subvolume, tree in fs.log_trees.items():
        yield f"log of {subvolume}", tree


@exclusive
def _stats(fs: Filesystem) -> pd.DataFrame:
    walks = [(name, tree, tree.blocks()) for name, tree in _all_trees(fs)]
    trees_of = Counter(block.logical for _, _, blocks in walks for block in blocks)
    rows = []
    for name, tree, blocks in walks:
        leaves = [block for block in blocks if not block.level]
        nodes = [block for block in blocks if block.level]
        fill = _fill(leaves, fs.image.nodesize)
        rows.append(
            {
                "tree": tree.objectid,
                "name": name,
                "levels": tree.level + 1,
                "nodes": len(nodes),
                "leaves": len(leaves),
                "items": sum(leaf.nritems for leaf in leaves),
                "bytes": len(blocks) * fs.image.nodesize,
                "fill_mean": fill.mean(),
                "fill_min": fill.min(),
                "node_fill_mean": _fill(nodes, fs.image.nodesize).mean() if nodes else np.nan,
                "shared": sum(trees_of[block.logical] > 1 for block in blocks),
            }
        )
    return pd.DataFrame(rows)


def _fill(blocks: list[Block], nodesize: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    used = np.array([block.used for block in blocks], np.float64)
    return used / (nodesize - HEADER.size)
