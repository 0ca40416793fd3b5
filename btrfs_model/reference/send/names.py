# SPDX-License-Identifier: GPL-2.0-only
"""Inodes and names as the two trees have them, and who has taken whose name.

An inode is told by its number and generation: a number may be used again. Where it is in the stream
follows from whether the snapshot and its parent have it, and from ``send_progress``, the number up
to which inodes were sent.

Of two look-ups, ``get_...`` fails with ENOENT where there is nothing and ``find_...`` returns None.
"""

from __future__ import annotations

import errno
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import DirItem, dir_items, inode_names
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.structs import INODE_ITEM, InodeItem
from btrfs_model.patches import Patch
from btrfs_model.reference.send.context import (
    PATH_LIMIT,
    REFS,
    TOP,
    SendContext,
    alloc_path_for_send,
    decode_item,
    is_waiting_for_move,
    send_errno,
)
from btrfs_model.volume import ctree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from btrfs_model.volume.tree import Tree

_XATTR_NAME_LIMIT = 255
Name = tuple[int, bytes]
"""A directory and a name in it."""


class InodeState(Enum):
    """Whether the receiver has an inode."""

    NO_CHANGE = 0
    WILL_CREATE = 1
    DID_CREATE = 2
    WILL_DELETE = 3
    DID_DELETE = 4


_EXISTENT = (InodeState.NO_CHANGE, InodeState.DID_CREATE, InodeState.WILL_DELETE)


class FirstRef(NamedTuple):
    """The first name of an inode and the directory that it is in."""

    dir: int
    dir_gen: int
    name: bytes


class Overwritten(NamedTuple):
    """An inode whose name another one takes."""

    ino: int
    gen: int
    mode: int


def fs_path_add(sctx: SendContext, path: bytes, name: bytes) -> bytes:
    """Return a path with a name behind it; ENAMETOOLONG where the kernel's buffer ends."""
    path = path + b"/" + name if path else name
    if len(path) >= PATH_LIMIT:
        raise send_errno(sctx, errno.ENAMETOOLONG)
    return path


def check_depth(sctx: SendContext, depth: int, tree: Tree, ino: int) -> int:
    """Count a step upwards; directories that are each other's parents are an error."""
    if depth > PATH_LIMIT // 2:
        raise CorruptImageError(sctx.image.path, Fault(Code.LOOP, tree.objectid, found=ino))
    return depth + 1


# -------------------------------------------------------------------------------- inodes ----


def find_inode_info(sctx: SendContext, tree: Tree, ino: int) -> InodeItem | None:
    """Return an inode item, or None."""
    current().count("get_inode_info")
    path = alloc_path_for_send(sctx)
    if not ctree.search_slot(tree, (ino, ItemType.INODE_ITEM, 0), path):
        return None
    item: InodeItem = decode_item(sctx, path, tree, INODE_ITEM.unpack)
    return item


def get_inode_info(sctx: SendContext, tree: Tree, ino: int) -> InodeItem:
    """Return an inode item."""
    item = find_inode_info(sctx, tree, ino)
    if item is None:
        raise send_errno(sctx, errno.ENOENT)
    return item


def find_inode_gen(sctx: SendContext, tree: Tree, ino: int) -> int | None:
    """Return the generation of an inode, or None."""
    current().count("get_inode_gen")
    item = find_inode_info(sctx, tree, ino)
    return item.generation if item else None


def get_inode_gen(sctx: SendContext, tree: Tree, ino: int) -> int:
    """Return the generation of an inode."""
    current().count("get_inode_gen")
    return get_inode_info(sctx, tree, ino).generation


# --------------------------------------------------------------------------------- items ----


def btrfs_for_each_slot(tree: Tree, first: Key, path: ctree.Path) -> Iterator[Key]:
    """Iterate over the items from a key on; `path` follows."""
    ctree.search_slot(tree, first, path)
    while True:
        current().count("btrfs_get_next_valid_item")
        if path.slots[0] >= ctree.nritems(path.leaf) and not ctree.next_leaf(tree, path):
            return
        yield Key(*ctree.block_key(path.leaf, path.slots[0]))
        path.slots[0] += 1


def iterate_dir_item(sctx: SendContext, path: ctree.Path, tree: Tree) -> list[DirItem]:
    """Return the entries of a directory item or xattr item.

    ENAMETOOLONG for a name that no kernel would have stored.
    """
    entries: list[DirItem] = decode_item(sctx, path, tree, dir_items)
    for entry in entries:
        limit = _XATTR_NAME_LIMIT if entry.type == FileType.XATTR else PATH_LIMIT
        if len(entry.name) > limit:
            raise send_errno(sctx, errno.ENAMETOOLONG)
    return entries


def iterate_inode_ref(sctx: SendContext, path: ctree.Path, tree: Tree) -> list[Name]:
    """Return the names in an INODE_REF or INODE_EXTREF item, each with its directory."""
    key = ctree.block_key(path.leaf, path.slots[0])
    refs = decode_item(sctx, path, tree, partial(inode_names, key))
    return [(ref.parent_objectid, ref.name) for ref in refs]


def lookup_name(sctx: SendContext, tree: Tree, key: Key, name: bytes) -> DirItem | None:
    """Return the directory entry or xattr of that name in the item `key`, or None."""
    path = alloc_path_for_send(sctx)
    if not ctree.search_slot(tree, key, path):
        return None
    return next((e for e in iterate_dir_item(sctx, path, tree) if e.name == name), None)


# --------------------------------------------------------------------------------- names ----


def _lookup_dir_item(sctx: SendContext, tree: Tree, directory: int, name: bytes) -> Key | None:
    current().count("btrfs_lookup_dir_item")
    key = Key(directory, ItemType.DIR_ITEM, name_hash(name))
    entry = lookup_name(sctx, tree, key, name)
    return entry.location if entry else None


def gen_unique_name(sctx: SendContext, ino: int, gen: int) -> bytes:
    """Return a name for the top directory that nothing in either snapshot has."""
    trees = [sctx.send_root] + ([sctx.parent_root] if sctx.parent_root else [])
    index = 0
    while True:
        name = b"o%d-%d-%d" % (ino, gen, index)
        if not any(_lookup_dir_item(sctx, tree, TOP, name) for tree in trees):
            return name
        index += 1


def lookup_dir_item_inode(sctx: SendContext, tree: Tree, directory: int, name: bytes) -> int | None:
    """Return the inode that a name in a directory is of; None for a subvolume."""
    location = _lookup_dir_item(sctx, tree, directory, name)
    if location is None or location.type == ItemType.ROOT_ITEM:
        return None
    return location.objectid


def find_first_ref(sctx: SendContext, tree: Tree, ino: int) -> Name | None:
    """Return parent directory and name of an inode: the first in its first item; or None."""
    path = alloc_path_for_send(sctx)
    if not ctree.search_slot_for_read(tree, (ino, ItemType.INODE_REF, 0), path, find_higher=True):
        return None
    objectid, kind, _ = ctree.block_key(path.leaf, path.slots[0])
    if objectid != ino or kind not in REFS:
        return None
    return iterate_inode_ref(sctx, path, tree)[0]


def _get_first_name(sctx: SendContext, tree: Tree, ino: int) -> Name:
    """Return parent directory and first name (``get_first_ref()`` without the generation)."""
    current().count("get_first_ref")
    found = find_first_ref(sctx, tree, ino)
    if found is None:
        raise send_errno(sctx, errno.ENOENT)
    return found


def get_first_ref(sctx: SendContext, tree: Tree, ino: int) -> FirstRef:
    """Return the first name of an inode."""
    directory, name = _get_first_name(sctx, tree, ino)
    return FirstRef(directory, get_inode_gen(sctx, tree, directory), name)


def is_first_ref(sctx: SendContext, ino: int, directory: int, name: bytes) -> bool:
    """Whether that name is the first of an inode of the parent snapshot."""
    return _get_first_name(sctx, sctx.parent_tree, ino) == (directory, name)


def get_inode_path(sctx: SendContext, tree: Tree, ino: int) -> bytes:
    """Return the path of an inode in a subvolume that is not being sent, by first names."""
    path, depth = b"", 0
    while ino != TOP:
        depth = check_depth(sctx, depth, tree, ino)
        found = find_first_ref(sctx, tree, ino)
        if found is None:
            raise send_errno(sctx, errno.ENOENT)
        ino, name = found
        path = fs_path_add(sctx, name, path) if path else name
    return path


# -------------------------------------------------------------------------------- states ----


def _inode_state(
    sctx: SendContext, ino: int, gen: int
) -> tuple[InodeState, int | None, int | None]:
    """Return the state, and the generations that snapshot and parent have of that number."""
    current().count("get_cur_inode_state")
    left = _linked_gen(sctx, sctx.send_root, ino)
    right = _linked_gen(sctx, sctx.parent_root, ino) if sctx.parent_root else None
    processed = ino < sctx.send_progress
    if gen == left == right:
        state = InodeState.NO_CHANGE
    elif gen == left:
        state = InodeState.DID_CREATE if processed else InodeState.WILL_CREATE
    elif gen == right:
        state = InodeState.DID_DELETE if processed else InodeState.WILL_DELETE
    else:
        raise send_errno(sctx, errno.ENOENT)
    return state, left, right


def _linked_gen(sctx: SendContext, tree: Tree, ino: int) -> int | None:
    """Return the generation of an inode; of one without links where such count as absent, None."""
    item = find_inode_info(sctx, tree, ino)
    if item is None or (Patch.SEND_NLINK_ZERO in sctx and not item.nlink):
        return None
    return item.generation


def get_cur_inode_state(sctx: SendContext, ino: int, gen: int) -> InodeState:
    """Tell whether the receiver has an inode at this moment of the stream.

    ENOENT when neither snapshot has an inode of that number and generation.
    """
    return _inode_state(sctx, ino, gen)[0]


def is_inode_existent(sctx: SendContext, ino: int, gen: int) -> tuple[bool, int | None, int | None]:
    """Return whether the receiver has the inode, and its generation in snapshot and parent."""
    current().count("is_inode_existent")
    if ino == TOP:
        return True, None, None
    state, left, right = _inode_state(sctx, ino, gen)
    return state in _EXISTENT, left, right


# --------------------------------------------------------------------------- overwriting ----


def _is_same_dir(
    sctx: SendContext, tree: Tree, directory: int, dir_gen: int, gen: int | None
) -> bool:
    """Whether `tree` has the directory in that generation; `gen` is what was just found."""
    if directory == TOP:
        return True
    # without it the generation is searched once more
    if Patch.SEND_OVERWRITE_GEN_ONCE not in sctx:
        gen = find_inode_gen(sctx, tree, directory)
    return gen == dir_gen


def will_overwrite_ref(
    sctx: SendContext, directory: int, dir_gen: int, name: bytes
) -> Overwritten | None:
    """Return the inode, not sent yet, that has a name in the parent snapshot, if any."""
    current().count("will_overwrite_ref")
    tree = sctx.parent_root
    if tree is None:
        return None
    existent, _, gen = is_inode_existent(sctx, directory, dir_gen)
    # a directory that was deleted and made again holds nothing that could be overwritten
    if not existent or not _is_same_dir(sctx, tree, directory, dir_gen, gen):
        return None
    other = lookup_dir_item_inode(sctx, tree, directory, name)
    if other is None:
        return None
    # what was processed has left the name already
    if other <= sctx.send_progress and not is_waiting_for_move(sctx, other):
        return None
    item = get_inode_info(sctx, tree, other)
    return Overwritten(other, item.generation, item.mode)


def did_overwrite_ref(
    sctx: SendContext, directory: int, dir_gen: int, ino: int, ino_gen: int, name: bytes
) -> bool:
    """Whether a name of an inode was taken by one that was sent before."""
    current().count("did_overwrite_ref")
    tree = sctx.send_root
    if sctx.parent_root is None:
        return False
    existent, gen, _ = is_inode_existent(sctx, directory, dir_gen)
    if not existent or not _is_same_dir(sctx, tree, directory, dir_gen, gen):
        return False
    other = lookup_dir_item_inode(sctx, tree, directory, name)
    if other is None:
        return False
    other_gen = None
    # with it the generation is searched only where it decides
    if other == ino or Patch.SEND_OVERWRITE_GEN_LATE not in sctx:
        other_gen = get_inode_gen(sctx, tree, other)
    if (other, other_gen) == (ino, ino_gen):
        return False
    if other < sctx.send_progress:
        return True
    if ino == sctx.cur_ino or other != sctx.cur_ino:
        return False
    # the current inode may be the one because of which it got its orphan name
    if other_gen is None:
        other_gen = get_inode_gen(sctx, tree, other)
    return other_gen == sctx.cur_inode_gen


def did_overwrite_first_ref(sctx: SendContext, ino: int, gen: int) -> bool:
    """Whether the first name of an inode was taken by one that was sent before."""
    if sctx.parent_root is None:
        return False
    ref = get_first_ref(sctx, sctx.parent_root, ino)
    return did_overwrite_ref(sctx, ref.dir, ref.dir_gen, ino, gen, ref.name)
