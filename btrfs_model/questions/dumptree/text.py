# SPDX-License-Identifier: GPL-2.0-only
"""Trees as text, like ``btrfs inspect-internal dump-tree`` of btrfs-progs 6.2.

The text is the same to the byte, except for its first line (the version of btrfs-progs), which is
left out. On top there are filters by objectid and range of keys: then only items that pass are
shown, below the head of their leaf.

Where btrfs-progs goes on after a block that it cannot read, this stops with an error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import BinaryIO, Final

import numpy as np

from btrfs_model.base.printable import printable
from btrfs_model.native.text import Answer, FormWriter
from btrfs_model.ondisk.keys import Key, ObjectId
from btrfs_model.ondisk.structs import HEADER, ITEM, KEY_PTR
from btrfs_model.questions.dumptree import templates as words
from btrfs_model.questions.dumptree.filters import KeyRange, key_range
from btrfs_model.questions.dumptree.item_text import item_texts
from btrfs_model.questions.dumptree.templates import Parts, structure
from btrfs_model.questions.dumptree.trees import (
    TreeRoot,
    pointed_at,
    rooted_trees,
    select_trees,
)
from btrfs_model.volume.ctree import nritems
from btrfs_model.volume.image import Image
from btrfs_model.volume.tree import Tree

# What a tree is called above its dump; "file" when it is not here.
_TITLES: Final[dict[int, str]] = {
    ObjectId.ROOT_TREE: "root",
    ObjectId.EXTENT_TREE: "extent",
    ObjectId.CHUNK_TREE: "chunk",
    ObjectId.DEV_TREE: "device",
    ObjectId.FS_TREE: "fs",
    ObjectId.ROOT_TREE_DIR: "directory",
    ObjectId.CSUM_TREE: "checksum",
    ObjectId.QUOTA_TREE: "quota",
    ObjectId.UUID_TREE: "uuid",
    ObjectId.FREE_SPACE_TREE: "free space",
    ObjectId.BLOCK_GROUP_TREE: "block group",
    ObjectId.EXTENT_CSUM: "extent checksum",
    ObjectId.DATA_RELOC_TREE: "data reloc",
    ObjectId.TREE_RELOC: "reloc",
    ObjectId.TREE_LOG_FIXUP: "log fixup",
    ObjectId.TREE_LOG: "log",
    ObjectId.ORPHAN: "orphan",
    ObjectId.MULTIPLE: "multiple",
}

# Trees that are shown by name alone, without the key of a root item.
_NAMED: Final[dict[int, str]] = {
    ObjectId.ROOT_TREE: "root tree",
    ObjectId.CHUNK_TREE: "chunk tree",
    ObjectId.TREE_LOG: "log root tree",
    ObjectId.BLOCK_GROUP_TREE: "block group tree",
}


# a block's first lines; those of nodes have the level, and the checksum is as long as its kind
_HEAD: Final = """
{kind} {{bytenr}}{level} items {{nritems}} free space {{FREE_SPACE}} generation {{generation}} \
owner {{owner|objectid}}
{kind} {{bytenr}} flags 0x{{FLAGS:x}}({{FLAGS|header_flags}}) backref revision {{REVISION}}{csum}
fs uuid {{fsid|uuid}}
chunk uuid {{chunk_tree_uuid|uuid}}
"""
_ITEM: Final = "item {SLOT} {key|key} itemoff {offset} itemsize {size}"
_POINTER: Final = "{key|key} block {blockptr} gen {generation}"


def block_parts(csum_size: int, *, csum_headers: bool, csum_items: bool) -> Parts:
    """Return the steps for tree blocks: their heads, pointers and items, and payloads by type.

    `csum_size`: bytes of a checksum.
    `csum_headers`, `csum_items`: as for :func:`dump_tree_text`.
    """
    csum = f" csum 0x{{csum:{csum_size}}}" if csum_headers else ""
    leaf = _HEAD.format(kind="leaf", level="", csum=csum)
    node = _HEAD.format(kind="node", level=" level {level}", csum=csum)
    return {
        **item_texts(csum_items=csum_items),
        "leaf": structure(HEADER, leaf, indent=0),
        "node": structure(HEADER, node, indent=0),
        "item": structure(ITEM, _ITEM, indent=1),
        "pointer": structure(KEY_PTR, _POINTER, indent=1),
    }


class BlockText:
    """Writes the text of tree blocks.

    `image`: where they are.
    `out`: where it goes.
    `csum_headers`: show the checksums of blocks.
    `hide_names`, `escape_names`, `csum_items`: as for :func:`dump_tree_text`.
    """

    def __init__(
        self,
        image: Image,
        out: BinaryIO,
        *,
        csum_headers: bool = False,
        hide_names: bool = False,
        escape_names: bool = False,
        csum_items: bool = False,
    ) -> None:
        self.image, self._out = image, out
        csum_size = image.superblock.csum_size
        parts = block_parts(csum_size, csum_headers=csum_headers, csum_items=csum_items)
        answers: dict[str, Answer] = {**words.ANSWERS, "name_word": self._name}
        time.tzset()
        self._writer = FormWriter(
            parts, answers, words.PLAIN, sectorsize=image.sectorsize, csum_size=csum_size,
            hide_names=hide_names, escape_names=escape_names,
        )  # fmt: skip

    def _name(self, address: int, start: int, size: int) -> bytes:
        return printable(bytes(self.image.block(address)[start : start + size])).encode()

    def write(self, text: str) -> None:
        """Write text between blocks."""
        self.flush()
        self._out.write(text.encode("ascii"))

    def flush(self) -> None:
        """Write what is not written yet."""
        self._writer.flush(self._out)

    def block(self, tree: Tree, address: int, slots: Sequence[int] | None = None) -> None:
        """Write the block at the logical `address`; of a leaf all items or those in `slots`."""
        data = self.image.block(address, tree=tree.objectid)
        if slots is None:
            slots = range(nritems(data))
        self._writer.block(data, slots, self._out, self.image.path, tree.objectid)


class _Dump:
    """One run of a dump: which blocks are shown."""

    def __init__(self, blocks: BlockText, keys: KeyRange, *, depth_first: bool = False) -> None:
        self._blocks = blocks
        self._keys = keys
        self._depth_first = depth_first
        self.write = blocks.write

    def tree(self, title: str, tree: Tree) -> None:
        """Show a tree below its title; with a filter only if something passes."""
        if not self._keys.is_all:
            self._filtered(title, tree)
            return
        self.write(title)
        self.all_blocks(tree)

    def all_blocks(self, tree: Tree) -> None:
        """Show the blocks of a tree level by level from the root, or each before its children."""
        blocks = tree.root.blocks(0)
        if not self._depth_first:
            blocks = blocks[np.argsort(-blocks["level"], kind="stable")]
        for address in blocks["logical"].tolist():
            self._blocks.block(tree, address)

    def leaves(self, title: str, tree: Tree) -> None:
        """Show only the leaves of a tree."""
        self.write(title)
        blocks = tree.root.blocks(0)
        for address in blocks["logical"][blocks["level"] == 0].tolist():
            self._blocks.block(tree, address)

    def _filtered(self, title: str, tree: Tree) -> None:
        slots_of: dict[int, list[int]] = {}
        columns = tree.scan(*self._keys)
        for address, slot in zip(columns["block"].tolist(), columns["slot"].tolist(), strict=True):
            slots_of.setdefault(address, []).append(slot)
        if slots_of:
            self.write(title)
        for address, slots in slots_of.items():
            self._blocks.block(tree, address, slots)


def dump_tree_text(
    image: Image,
    out: BinaryIO,
    tree: int | None = None,
    *,
    min_key: Key | None = None,
    max_key: Key | None = None,
    objectid: int | None = None,
    extents: bool = False,
    devices: bool = False,
    uuids: bool = False,
    roots: bool = False,
    backups: bool = False,
    depth_first: bool = False,
    **shown: bool,
) -> None:
    """Write trees as text.

    `image`: the image.
    `out`: names come out as the bytes that they are.
    `tree`: id of the only tree to show.
    `min_key`, `max_key`: first and last key of the items to show.
    `objectid`: show only items of this objectid.
    `extents`, `devices`, `uuids`: show only the extent and device trees (leaves alone), the root,
    chunk and device trees, the uuid tree (``-e``, ``-d``, ``-u``).
    `roots`, `backups`: show where trees begin and nothing in them; `backups` adds the roots of the
    last commits (``-r``, ``-R``).
    `depth_first`: show each node before its children, not level by level.
    `**shown`: ``hide_names`` (HIDDEN instead of names and values of xattrs), ``escape_names`` (what
    is not printable in them is escaped, for a terminal; btrfs-progs 6.2 does not), ``csum_headers``
    and ``csum_items`` (the checksums of blocks, those in EXTENT_CSUM items).
    Raises CorruptImageError: for a broken block or item, after what comes before it was written.
    Raises SubvolumeNotFoundError: when there is no tree of that id.
    """
    blocks = BlockText(image, out, **shown)
    dump = _Dump(blocks, key_range(min_key, max_key, objectid), depth_first=depth_first)
    try:
        _dump(image, dump, tree, extents, devices, uuids, roots, backups)
    finally:
        blocks.flush()


def _dump(
    image: Image,
    dump: _Dump,
    tree: int | None,
    extents: bool,
    devices: bool,
    uuids: bool,
    roots: bool,
    backups: bool,
) -> None:
    """Show the trees that the options leave."""
    if tree in _NAMED:
        root = next(select_trees(image, tree))
        dump.tree(f"{_NAMED[root.key.objectid]}\n", root.tree)
        return
    if tree is None and not (extents or uuids):
        _named_trees(image, dump, roots=roots)
    some = extents or devices or uuids
    kept = _shown_trees(extents=extents, devices=devices, uuids=uuids) if some else None
    for root in rooted_trees(image) if tree is None else select_trees(image, tree):
        if kept is not None and root.key.objectid not in kept:
            continue
        if extents:
            dump.leaves(f"{_title(root)}\n", root.tree)
        elif roots:
            dump.write(f"{_title(root)} {root.tree.bytenr} level {root.tree.level}\n")
        else:
            dump.tree(f"{_title(root)} \n", root.tree)
    if some:
        return
    if backups:
        _root_backups(image, dump)
    _totals(image, dump)


def _named_trees(image: Image, dump: _Dump, *, roots: bool) -> None:
    """Show the trees that the superblock points at."""
    for root in pointed_at(image):
        name = _NAMED[root.key.objectid]
        if roots:
            dump.write(f"{name}: {root.tree.bytenr} level {root.tree.level}\n")
        else:
            dump.tree(f"{name}\n", root.tree)


def _shown_trees(*, extents: bool, devices: bool, uuids: bool) -> set[int]:
    """Return the trees that -e, -d and -u leave; together they leave less, not more."""
    shown: set[int] = {ObjectId.ROOT_TREE_DIR}
    if not devices and not uuids:
        shown.add(ObjectId.EXTENT_TREE)
    if not uuids:
        shown.add(ObjectId.DEV_TREE)
    if not extents and not devices:
        shown.add(ObjectId.UUID_TREE)
    return shown


def _title(root: TreeRoot) -> str:
    return f"{_TITLES.get(root.key.objectid, 'file')} tree {words.key(*root.key)}"


def _root_backups(image: Image, dump: _Dump) -> None:
    for slot, backup in enumerate(image.superblock.backups):
        dump.write(
            f"btrfs root backup slot {slot}\n"
            f"\ttree root gen {backup.tree_root_gen} block {backup.tree_root}\n"
            f"\t\textent root gen {backup.extent_root_gen} block {backup.extent_root}\n"
            f"\t\tchunk root gen {backup.chunk_root_gen} block {backup.chunk_root}\n"
            f"\t\tdevice root gen {backup.dev_root_gen} block {backup.dev_root}\n"
            f"\t\tcsum root gen {backup.csum_root_gen} block {backup.csum_root}\n"
            f"\t\tfs root gen {backup.fs_root_gen} block {backup.fs_root}\n"
            f"\t\t{backup.bytes_used} used {backup.total_bytes} total "
            f"{backup.num_devices} devices\n"
        )


def _totals(image: Image, dump: _Dump) -> None:
    sb = image.superblock
    dump.write(
        f"total bytes {sb.total_bytes}\nbytes used {sb.bytes_used}\nuuid {words.uuid(sb.fsid)}\n"
    )


def dump_blocks_text(
    image: Image,
    out: BinaryIO,
    addresses: Sequence[int],
    *,
    follow: bool = False,
    depth_first: bool = False,
    **shown: bool,
) -> None:
    """Write single tree blocks as text, by ascending address (``-b``).

    `image`: the image.
    `out`: names come out as the bytes that they are.
    `addresses`: logical addresses of the blocks; each is shown once.
    `follow`: show everything below them as well.
    `depth_first`, `**shown`: as for :func:`dump_tree_text`.
    Raises CorruptImageError: for a broken block or item.
    """
    blocks = BlockText(image, out, **shown)
    dump = _Dump(blocks, key_range(), depth_first=depth_first)
    try:
        for address in sorted(set(addresses)):
            header = HEADER.unpack(image.block(address))
            tree = Tree(image, header.owner, address, header.generation, header.level)
            if follow:
                dump.all_blocks(tree)
            else:
                blocks.block(tree, address)
    finally:
        blocks.flush()
