# SPDX-License-Identifier: GPL-2.0-only
"""Tree blocks that move (``relocate_tree_blocks()``, Linux 6.18).

A block of a tree that cannot be shared is copied by a search that changes it. A block that several
subvolumes may have is copied in the tree of relocation of one of them; all that point at it in
others are pointed at the copy. The blocks above are copied on the way, and so pending themselves.
"""

from __future__ import annotations

from typing import Final

from btrfs_model.mount.mount import Mount
from btrfs_model.mount.relocation.backrefs import build, extent_of, slot_of
from btrfs_model.mount.relocation.control import Control, Node
from btrfs_model.mount.relocation.extents import replace_file_extents
from btrfs_model.mount.roots.reloc_root import RelocRoot, create_reloc_root
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import HEADER, Header
from btrfs_model.volume.ctree import RawKey, block_key, node_ptr
from btrfs_model.volume.roots import is_subvolume_id

_FULL_BACKREF: Final = 1 << 8


def header_of(fs: Mount, bytenr: int) -> Header:
    """Return the header of a tree block."""
    return HEADER.unpack(fs.image.block(bytenr)[: HEADER.size])


def relocate_tree_blocks(fs: Mount, control: Control, blocks: list[int]) -> None:
    """Move tree blocks; `blocks`: their addresses in the last commit."""
    for bytenr in blocks:
        key, extent, refs = extent_of(fs, bytenr)
        level = extent.level if extent.level is not None else key.offset
        first = block_key(fs.image.block(bytenr, level=level), 0)
        owner = refs[0].root if (
            extent.refs == 1 and not extent.flags & _FULL_BACKREF
            and refs[0].type == ItemType.TREE_BLOCK_REF
        ) else None  # fmt: skip
        if owner is not None and not is_subvolume_id(owner):
            _relocate_cowonly_block(fs, owner, first, level)
            continue
        node = build(fs, control, bytenr, level)
        if node is not None:
            _relocate_tree_block(fs, control, node, first)
    _finish_pending_nodes(fs, control)


def _relocate_cowonly_block(fs: Mount, tree: int, key: RawKey, level: int) -> None:
    """``relocate_cowonly_block()``: a search copies all from the root down to the block."""
    fs.writer.own_root(tree)
    state = fs.writer.tree_state(tree)
    bytenr = state.bytenr
    for _ in range(state.level, level, -1):
        slot = slot_of(fs.image.block(bytenr), key)
        bytenr = fs.writer.own_child(tree, bytenr, slot)


def _relocate_tree_block(fs: Mount, control: Control, node: Node, key: RawKey) -> None:
    """``relocate_tree_block()``."""
    if node.processed:
        return
    if node.upper:
        _do_relocation(fs, control, node, key, lowest=True)
    else:
        if isinstance(node.root, int):
            node.root = record_root(fs, node.root)
        control.mark_processed(node)
    if not node.level:
        control.nodes.pop(node.bytenr, None)


def record_root(fs: Mount, root: int) -> RelocRoot:
    """Return the tree of relocation of a subvolume (``btrfs_record_root_in_trans()``)."""
    fs.live_root(root).dirty = True
    reloc = fs.reloc_roots.by_root.get(root)
    return reloc if reloc is not None else create_reloc_root(fs, root)


def _select_reloc_root(fs: Mount, control: Control, node: Node) -> RelocRoot:
    """Return the tree in which a node is copied, and set the way to its root."""
    path = [node]
    while path[-1].upper:
        path.append(path[-1].upper[0])
    top = path[-1]
    if isinstance(top.root, int):
        top.root = record_root(fs, top.root)
        control.mark_processed(top)
    assert isinstance(top.root, RelocRoot)
    fs.live_root(top.root.root).dirty = True
    control.path.update((one.level, one) for one in path)
    return top.root


def _noting(fs: Mount, control: Control, reloc: RelocRoot, old: int, new: int, level: int) -> None:
    """Note that a block of a tree of relocation was copied (``btrfs_reloc_cow_block()``)."""
    if new == old:
        return
    first = header_of(fs, old).generation <= reloc.item.last_snapshot
    node = control.path[level]
    node.copy = new
    if not node.pending:
        control.pending.setdefault(level, []).append(node)
        node.pending = True
    if first:
        control.mark_processed(node)
        if not level:
            replace_file_extents(fs, control, new, parent=new)


def _search(fs: Mount, control: Control, reloc: RelocRoot, key: RawKey, level: int) -> int:
    """Return the block of a level on the way to a key, from the root on copied."""
    bytenr = fs.writer.tree_state(reloc.id).bytenr
    fs.writer.own_root(reloc.id)
    state = fs.writer.tree_state(reloc.id)
    _noting(fs, control, reloc, bytenr, state.bytenr, state.level)
    bytenr = state.bytenr
    for at in range(state.level, level, -1):
        bytenr = _own_child(fs, control, reloc, bytenr, slot_of(fs.image.block(bytenr), key), at)
    return bytenr


def _own_child(
    fs: Mount, control: Control, reloc: RelocRoot, parent: int, slot: int, level: int
) -> int:
    """Copy the child of a node at `level`."""
    old = node_ptr(fs.image.block(parent), slot)[0]
    new = fs.writer.own_child(reloc.id, parent, slot)
    _noting(fs, control, reloc, old, new, level - 1)
    return new


def _do_relocation(fs: Mount, control: Control, node: Node, key: RawKey, *, lowest: bool) -> None:
    """Copy a block, and let all that point at it point at the copy (``do_relocation()``)."""
    for upper in node.upper:
        reloc = _select_reloc_root(fs, control, upper)
        control.path[node.level] = node
        if upper.copy and not lowest:
            above = fs.image.block(upper.copy)
            if node_ptr(above, slot_of(above, key))[0] == node.copy:
                continue
        parent = _search(fs, control, reloc, key, upper.level)
        above = fs.image.block(parent)
        slot = slot_of(above, key)
        child = node_ptr(above, slot)[0]
        assert not lowest or child == node.bytenr
        if not lowest and child == node.copy:
            continue
        if not node.copy:
            _own_child(fs, control, reloc, parent, slot, upper.level)
            continue
        owner = header_of(fs, parent).owner
        fs.writer.point(reloc.id, parent, slot, node.copy, fs.transid)
        fs.writer.tree_ref(1, node.copy, parent, owner, node.level)
        fs.writer.drop_subtree(reloc.id, child, parent)
    if node.pending:
        control.pending[node.level].remove(node)
        node.pending = False
        node.copy = 0


def _finish_pending_nodes(fs: Mount, control: Control) -> None:
    """Tell those above of the copies, level by level (``finish_pending_nodes()``)."""
    for level in range(BTRFS_MAX_LEVEL):
        for node in list(control.pending.get(level, ())):
            key = block_key(fs.image.block(node.copy, level=level), 0)
            _do_relocation(fs, control, node, key, lowest=False)
