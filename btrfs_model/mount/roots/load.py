# SPDX-License-Identifier: GPL-2.0-only
"""What a mount does with an image before anything is changed in it.

The block groups, the free space in them and the trees are told to the writer. Free space is what
the extent tree leaves, whatever a free space tree or cache says.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault, UnsupportedError
from btrfs_model.mount.files.pages import BLOCKSIZE
from btrfs_model.mount.tree_writer import TreeWriter
from btrfs_model.native.writer import Feature
from btrfs_model.ondisk.chunks import Chunk
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA, BTRFS_STRIPE_LEN
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import BLOCK_GROUP_ITEM, DEV_REPLACE_ITEM, BlockGroupItem
from btrfs_model.ondisk.superblock import SUPER_OFFSETS, SuperBlock
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.roots import is_subvolume_id

# how many extents of a group tell its size class
_SAMPLES = 5
_SEEDING = 1 << 32
_ERROR = 1 << 2
# of a replacement: started, suspended
_REPLACING = (1, 4)
_NEEDED = (ObjectId.EXTENT_TREE, ObjectId.DEV_TREE, ObjectId.FS_TREE, ObjectId.CSUM_TREE,
           ObjectId.DATA_RELOC_TREE)  # fmt: skip


def check_writable(fs: Filesystem, *, replay: bool = False) -> None:
    """Refuse what can be read and not be written.

    `replay`: whether a log will be replayed.
    Raises UnsupportedError, which names what is in the way.
    Raises CorruptImageError: when two chunks share a place on the device: what is written to one
    destroys the other.
    """
    check_one_device(fs)
    _check_stripes(fs)
    sb = fs.image.superblock
    reasons = {
        "chunks are striped": any(chunk.width or chunk.copies > 2 for chunk in fs.image.chunks),
        "the raid-stripe-tree is not supported": sb.has_incompat("RAID_STRIPE_TREE"),
        "it has a log of fsyncs, which must be replayed first": bool(sb.log_root) and not replay,
        "it is a seed device": bool(sb.flags & _SEEDING),
        "its superblock says that it has errors": bool(sb.flags & _ERROR),
        f"its sectors have {sb.sectorsize} bytes, only {BLOCKSIZE} are supported": sb.sectorsize
        != BLOCKSIZE,
        "features that a writer must know are not supported": bool(sb.compat_ro_flags & ~0xF),
        "its free space tree is not valid": sb.has_compat_ro("FREE_SPACE_TREE")
        and not sb.has_compat_ro("FREE_SPACE_TREE_VALID"),
        "a relocation was interrupted": ObjectId.TREE_RELOC in fs.roots,
        "the replacement of a device was interrupted": _is_replacing(fs),
    }
    for reason, applies in reasons.items():
        if applies:
            raise UnsupportedError(f"{fs.path}: cannot be changed: {reason}")


def check_one_device(fs: Filesystem) -> None:
    """Refuse to change a filesystem of several devices."""
    if fs.image.has_several:
        raise UnsupportedError(f"{fs.path}: cannot be changed: it has several devices")


def _check_stripes(fs: Filesystem) -> None:
    """See that no two stripes overlap (``btrfs_verify_dev_extents()``)."""
    stripes = sorted(
        (start, start + chunk.length) for chunk in fs.image.chunks for start in chunk.stripes
    )
    for (_, end), (start, _) in pairwise(stripes):
        if start < end:
            fault = Fault(Code.BAD_VALUE, ObjectId.CHUNK_TREE, offset=start, found=start)
            raise CorruptImageError(fs.path, fault)


def _is_replacing(fs: Filesystem) -> bool:
    """Whether a device is being replaced: a kernel then mounts with the other device alone."""
    if ObjectId.DEV_TREE not in fs.roots:
        return False
    item = fs.tree(ObjectId.DEV_TREE).get((0, ItemType.DEV_REPLACE, 0))
    return item is not None and DEV_REPLACE_ITEM.unpack(item.data).replace_state in _REPLACING


def writer_features(sb: SuperBlock) -> Feature:
    """Return the features that the C writer asks for."""
    return Feature(
        Feature.SKINNY_METADATA * sb.has_incompat("SKINNY_METADATA")
        | Feature.NO_HOLES * sb.has_incompat("NO_HOLES")
        | Feature.FREE_SPACE_TREE * sb.has_compat_ro("FREE_SPACE_TREE")
        | Feature.BLOCK_GROUP_TREE * sb.has_compat_ro("BLOCK_GROUP_TREE")
    )


def add_trees(fs: Filesystem, writer: TreeWriter) -> None:
    """Make all trees of the last commit known to the writer, deleted subvolumes included.

    Raises CorruptImageError: when one is missing that each filesystem has (``btrfs_read_roots()``).
    """
    for needed in _NEEDED:
        if needed not in fs.roots:
            fault = Fault(Code.NOT_FOUND, ObjectId.ROOT_TREE, found=needed,
                          wanted=ItemType.ROOT_ITEM)  # fmt: skip
            raise CorruptImageError(fs.path, fault)
    for tree in (fs.root_tree, fs.chunk_tree):
        writer.set_tree(tree.objectid, bytenr=tree.bytenr, generation=tree.generation,
                        level=tree.level)  # fmt: skip
    for root in fs.root_items:
        item = root.item
        writer.set_tree(
            root.id, bytenr=item.bytenr, generation=item.generation, level=item.level,
            last_snapshot=item.last_snapshot, origin=root.key.offset, bytes_used=item.bytes_used,
            shareable=is_subvolume_id(root.id),
        )  # fmt: skip


def add_groups(fs: Filesystem, writer: TreeWriter) -> None:
    """Make block groups and free space known to the writer (``btrfs_read_block_groups()``).

    Raises CorruptImageError: for a block group without its chunk, or one whose item says another
    use than its extents.
    """
    groups = list(_block_groups(fs))
    for start, length, item in groups:
        writer.add_group(start, length, item.flags)
    columns = fs.tree(ObjectId.EXTENT_TREE).scan()
    extents = np.isin(columns["type"], [ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM])
    starts = columns["objectid"][extents]
    sized = columns["type"][extents] == ItemType.EXTENT_ITEM
    lengths = np.where(sized, columns["offset"][extents], fs.image.nodesize)
    writer.occupy(zip(starts.tolist(), lengths.tolist(), strict=True))
    for chunk in fs.image.chunks:
        writer.occupy(super_ranges(chunk), used=False)
    used = {group.start: group.used for group in writer.groups()}
    for start, _, item in groups:
        if used[start] != item.used:
            fault = Fault(
                Code.BAD_VALUE, group_tree(fs.image.superblock), found=item.used,
                wanted=used[start],
            )  # fmt: skip
            raise CorruptImageError(fs.path, fault)
        writer.set_commit_used(start, item.used)


def group_tree(sb: SuperBlock) -> int:
    """Return the id of the tree that has the block group items."""
    own = sb.has_compat_ro("BLOCK_GROUP_TREE")
    return int(ObjectId.BLOCK_GROUP_TREE if own else ObjectId.EXTENT_TREE)


def _block_groups(fs: Filesystem) -> Iterator[tuple[int, int, BlockGroupItem]]:
    """Start, length and item of each block group."""
    chunks = {(chunk.logical, chunk.length, chunk.type) for chunk in fs.image.chunks}
    tree = group_tree(fs.image.superblock)
    columns = fs.tree(tree).scan()
    for row in np.flatnonzero(columns["type"] == ItemType.BLOCK_GROUP_ITEM):
        start, length = int(columns["objectid"][row]), int(columns["offset"][row])
        at, size = int(columns["position"][row]), int(columns["size"][row])
        block, slot = int(columns["block"][row]), int(columns["slot"][row])
        try:
            item = BLOCK_GROUP_ITEM.unpack(fs.image.block_bytes[at : at + size])
        except PayloadError as error:
            raise error.at(fs.path, tree=tree, block=block, slot=slot) from None
        if (start, length, item.flags) not in chunks:
            raise CorruptImageError(fs.path, Fault(Code.BAD_VALUE, tree, block, slot, found=start))
        yield start, length, item


def load_size_classes(fs: Filesystem, writer: TreeWriter) -> None:
    """Look what extents the groups of data have (``load_block_group_size_class()``).

    The smallest of the extents found at five places of a group decides. A kernel looks when it
    first wants to know of the free space of a group, here that is at mount.
    """
    extents = fs.tree(ObjectId.EXTENT_TREE)
    for group in writer.groups():
        if not group.flags & BTRFS_BLOCK_GROUP_DATA:
            continue
        end, sizes = group.start + group.length, []
        for part in range(_SAMPLES):
            at = group.start + part * (group.length // _SAMPLES)
            items = extents.items(
                (at, ItemType.EXTENT_ITEM, 0), (end - 1, ItemType.EXTENT_ITEM, end)
            )
            found = next((i for i in items if i.key.type == ItemType.EXTENT_ITEM), None)
            if found is not None:
                sizes.append(found.key.offset)
        if sizes:
            writer.set_size_class(group.start, min(sizes))


def super_ranges(chunk: Chunk) -> list[tuple[int, int]]:
    """Return what the superblocks take of a chunk (``exclude_super_stripes()``).

    Of every stripe in which a superblock lies, the whole run of 64 KiB.
    """
    ranges = set()
    for offset in SUPER_OFFSETS:
        for stripe in chunk.stripes:
            if stripe <= offset < stripe + chunk.length:
                within = (offset - stripe) // BTRFS_STRIPE_LEN * BTRFS_STRIPE_LEN
                ranges.add((chunk.logical + within, min(BTRFS_STRIPE_LEN, chunk.length - within)))
    return sorted(ranges)
