# SPDX-License-Identifier: GPL-2.0-only
"""The tree blocks that a mount reads, with and without a block group tree.

Before there was a block group tree, the item of a block group stood in the extent tree, behind the
extents that are in it: so a mount reads a leaf for each block group, all over the device. A tree of
their own has hundreds of them to a leaf.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import CorruptImageError
from btrfs_model.cost.answer import Cold
from btrfs_model.native.image import READ
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import BLOCK_GROUP_ITEM
from btrfs_model.questions.reads.cold import reads_of_mount
from btrfs_model.questions.reads.walk import Reads, read_table
from btrfs_model.volume import ctree
from btrfs_model.volume.blocks import HEADER, ITEM, KEY_PTR, ReadBy, ReadCache
from btrfs_model.volume.filesystem import Filesystem, opening

if TYPE_CHECKING:
    from collections.abc import Callable


@checked
@opening
@exclusive
def mount_reads(
    fs: Filesystem, *, writable: bool = True, block_group_tree: bool | None = None
) -> Reads:
    """Return the reads of tree blocks by a mount of the top of a filesystem.

    Nothing is in memory. Superblocks are not among the reads, nor what the replay of a log reads,
    and a balance that goes on.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        An open filesystem, or the files it is in.
    writable : bool
        Whether the mount is.
    block_group_tree : bool, optional
        As if the filesystem had one, or had none; without it, as it is. One that is not there has
        full leaves, which lie behind the root of the extent tree one after the other: its number
        of blocks follows from that of block groups, the place of blocks is assumed.

    Returns
    -------
    Reads
        As of :func:`.reads`, without work; :meth:`.Reads.on` does them on a device.

    Raises
    ------
    CorruptImageError
        When the chunk tree cannot be read. What else is damaged is left out.

    Notes
    -----
    Source: ``open_ctree()`` (Linux 6.18).
    """
    has_one = ObjectId.BLOCK_GROUP_TREE in fs.trees
    wanted = has_one if block_group_tree is None else block_group_tree
    groups: Callable[[ReadCache], None] | None = None
    if wanted != has_one:
        groups = partial(_read_made_up if wanted else _read_extent_tree, fs)
    cache = reads_of_mount(fs, writable=writable, groups=groups)
    rows = np.array(cache.cache_reads(), dtype=READ)
    return Reads.made(read_table(fs.image, rows), Cold.of(fs.image, rows), dict)


def _read_extent_tree(fs: Filesystem, _: ReadCache) -> None:
    """Look where the items of block groups would be among those of extents."""
    tree = fs.tree(ObjectId.EXTENT_TREE)
    for chunk in fs.image.chunks:
        with suppress(CorruptImageError):
            key = (chunk.logical, int(ItemType.BLOCK_GROUP_ITEM), chunk.length)
            ctree.search_slot(tree, key, ctree.Path())


def _read_made_up(fs: Filesystem, cache: ReadCache) -> None:
    """Read the block group tree that there would be: its root, and each leaf."""
    extents, image = fs.tree(ObjectId.EXTENT_TREE), fs.image
    size, room = ITEM.size + BLOCK_GROUP_ITEM.size, image.nodesize - HEADER.size
    counts = [-(-len(image.chunks) // (room // size))]
    while counts[-1] > 1:
        counts.append(-(-counts[-1] // (room // KEY_PTR.size)))
    at = extents.bytenr
    for level, count in reversed(list(enumerate(counts))):
        for _ in range(count):
            while at in cache.held:
                at += image.nodesize
            cache.submit(at, 0, level, False, ReadBy.btrfs_search_slot)
