# SPDX-License-Identifier: GPL-2.0-only
"""A tree whose blocks have several parents each: few blocks, and more ways through them than time.

Node ``i`` of a level points at blocks ``i``, ``i + 1``, ... of the level below, each with the key,
level and generation of its child, so that each pointer is right by itself::

    level 2          n0                         n0: 0 1 2
                   / | \\
    level 1      n0  n1  n2                     n0: 0 1 2    n1: 1 2    n2: 2
                 |\\ \\/ \\/|
    leaves       l0  l1  l2
"""

import struct
from pathlib import Path

from damage import Broken

import btrfs_model as bm
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.structs import ROOT_ITEM
from btrfs_model.volume.blocks import HEADER, ITEM, KEY_PTR


def dag(image: Path, width: int, top: int) -> None:
    """Make a filesystem whose tree 5 is such a tree.

    Parameters
    ----------
    image : Path
        To be written.
    width : int
        Blocks of each level below the root, at most 121.
    top : int
        Level of the root.
    """
    with bm.create(128 << 20, nodesize=4096) as fs:
        fs.create("f", 0o644)
        fs.save(image)
    broken = Broken(image)
    sound = broken.fs()
    (root,) = (item for item in sound.trees[1].items() if item.key[:2] == (5, ItemType.ROOT_ITEM))
    tree, generation = sound.tree(5), sound.image.superblock.generation
    head = broken.read(tree.bytenr, 0, HEADER.size)
    first = next(iter(tree.items()))
    group = next(chunk for chunk in sound.image.chunks if chunk.type & 4)

    def place(number: int, level: int) -> int:
        return group.logical + group.length // 2 + (level * width + number) * broken.nodesize

    def key(number: int) -> Key:
        return Key(first.key.objectid + number, int(ItemType.INODE_ITEM), 0)

    for level in range(top + 1):
        for number in range(width if level < top else 1):
            below = range(number, width) if level else range(1)
            block = bytearray(broken.nodesize)
            block[: HEADER.size] = head
            struct.pack_into("<Q", block, 48, place(number, level))
            struct.pack_into("<QQIB", block, 80, generation, 5, len(below), level)
            if level:
                for slot, child in enumerate(below):
                    KEY_PTR.pack_into(block, HEADER.size + slot * KEY_PTR.size, *key(child),
                                      place(child, level - 1), generation)  # fmt: skip
            else:
                size = len(first.data)
                ITEM.pack_into(block, HEADER.size, *key(number),
                               broken.nodesize - HEADER.size - size, size)  # fmt: skip
                block[-size:] = first.data
            broken.write(place(number, level), 0, bytes(block))
    for field, code, value in (
        ("generation", "<Q", generation),
        ("bytenr", "<Q", place(0, top)),
        ("level", "<B", top),
    ):
        at = int(ROOT_ITEM.dtype.fields[field][1])  # type: ignore[index]
        broken.write_item(root, at, struct.pack(code, value))
    changed = bytes(broken.map)  # before the file that it maps is written
    image.write_bytes(changed)
