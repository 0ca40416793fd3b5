# SPDX-License-Identifier: GPL-2.0-only
"""Finding a clone source: a place that the receiver has already, with the same data as an extent.

The back references of the disk extent are walked. How far that search goes and which place wins has
changed often: each change is a toggle (``send-clone-*``, ``send-backref-*``), and both sides stand
here next to each other.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from btrfs_model.backref.walk import BackrefWalk
from btrfs_model.base.codes import EUCLEAN
from btrfs_model.base.counters import current
from btrfs_model.ondisk.constants import ExtentFlag
from btrfs_model.ondisk.keys import U64_MAX
from btrfs_model.patches import Patch
from btrfs_model.questions.send.causes import Place
from btrfs_model.reference.backref import iterate_extent_inodes
from btrfs_model.reference.logical import extent_from_logical
from btrfs_model.reference.send.context import CloneRoot, SendContext, send_errno
from btrfs_model.reference.send.names import get_inode_info
from btrfs_model.volume.blocks import HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from btrfs_model.ondisk.structs import RawExtentItem
    from btrfs_model.reference.send.data import Extent


@dataclass
class BackrefCtx:
    """The search of a clone source for one extent (``struct backref_ctx``).

    `sctx`: the send.
    `bytenr`, `pos`: the extent, and the byte of it that is sought.
    `cur_offset`: where it is in the file.
    `extent_len`: its length; the last extent of a file may reach beyond its end.
    `data_offset`: of a compressed extent, where in it the file begins.
    `backref_owner`, `backref_offset`: what its own reference says. The leaf may still belong to
    another subvolume.
    `found`: places found.
    `found_itself`: the walk came by the extent that is being sent.
    `too_many_refs`: the walk ended at an extent with more references than the kernel looks at.
    `places`: what was found where it could be cloned from.
    """

    sctx: SendContext
    bytenr: int
    pos: int
    cur_offset: int
    extent_len: int
    data_offset: int
    backref_owner: int
    backref_offset: int
    found: int = 0
    found_itself: bool = False
    too_many_refs: bool = False
    places: list[Place] = field(default_factory=list)

    def note_place(self, root: int, ino: int, offset: int, num_bytes: int) -> Place:
        """Write down a place; what was reported before is not a second one."""
        for place in self.places:
            if (place.root, place.ino, place.offset) == (root, ino, offset):
                return place
        command = len(self.sctx.explained)
        self.places.append(Place(command, self.bytenr, self.pos, root, ino, offset, num_bytes))
        return self.places[-1]

    def judge_places(self, chosen: CloneRoot | None) -> None:
        """Say of all places what became of them, now that one is chosen, or none."""
        for place in self.places:
            if place.verdict == "other-source" and chosen and place.root == chosen.id:
                is_it = (place.ino, place.offset) == (chosen.ino, chosen.offset)
                place.verdict = "chosen" if is_it else "other-place"
        if not self.places:
            none = "too-many-references" if self.too_many_refs else "not-a-source"
            self.note_place(0, 0, 0, 0).verdict = none
        if self.sctx.request.explanation is not None:
            self.sctx.places += self.places


def refuse_chosen_place(sctx: SendContext, verdict: str) -> None:
    """Say why the place that was chosen for the extent of the next command is not used."""
    for place in reversed(sctx.places):
        if place.command != len(sctx.explained):
            return
        if place.verdict == "chosen":
            place.verdict = verdict


# ---------------------------------------------------------- what is asked of the backref walk ----


def _is_sent(bctx: BackrefCtx, ino: int, offset: int) -> bool:
    """Whether a place of the snapshot that is sent comes before the extent being sent."""
    sctx = bctx.sctx
    if ino != sctx.cur_ino or Patch.SEND_CLONE_SAME_FILE not in sctx:
        return ino < sctx.cur_ino
    if Patch.SEND_CLONE_SENT_PART not in sctx:
        return offset < sctx.cur_inode_next_write_offset
    return offset + bctx.extent_len <= sctx.cur_inode_next_write_offset


def iterate_backrefs(bctx: BackrefCtx, ino: int, offset: int, num_bytes: int, root: int) -> int:
    """Take note of a place that refers to the extent; 1: none can be better."""
    sctx, clone = bctx.sctx, bctx.sctx.clone_roots.get(root)
    largest = Patch.SEND_CLONE_LARGEST in sctx
    if clone is None:
        return 0
    is_itself = (root, ino, offset) == (sctx.send_root.objectid, sctx.cur_ino, bctx.cur_offset)
    if is_itself:
        bctx.found_itself = True
        if largest:
            return 0
    if Patch.SEND_CLONE_PARTS not in sctx:
        reach = offset + bctx.data_offset + bctx.extent_len
        if reach > get_inode_info(sctx, clone.source.tree, ino).size:
            bctx.note_place(root, ino, offset, num_bytes).verdict = "file-too-short"
            return 0
    # the receiver must have the source already
    if root == sctx.send_root.objectid and not _is_sent(bctx, ino, offset):
        if not is_itself:
            bctx.note_place(root, ino, offset, num_bytes).verdict = "not-sent-yet"
        return 0
    bctx.note_place(root, ino, offset, num_bytes)
    bctx.found += 1
    clone.found_ref = True
    if not largest:
        # before v6.2 the reference of the lowest inode counts
        if ino < clone.ino:
            clone.ino, clone.offset = ino, offset
        elif ino == clone.ino and clone.offset > offset + bctx.extent_len:
            clone.offset = offset
    elif num_bytes > clone.num_bytes:
        clone.ino, clone.offset, clone.num_bytes = ino, offset, num_bytes
        if Patch.SEND_BACKREF_SKIP in sctx and num_bytes >= bctx.extent_len:
            return 1
    return 0


def _is_unshared(sctx: SendContext, refs: int) -> bool:
    """Whether only the extent being sent can refer to it."""
    return Patch.SEND_CLONE_NO_BACKREFS in sctx and refs == 1 and sctx.clone_roots_cnt == 1


def check_extent_item(bctx: BackrefCtx, bytenr: int, item: RawExtentItem) -> int:
    """Say of an extent item on the way whether to go on."""
    if bytenr == bctx.bytenr:
        if item.flags & ExtentFlag.TREE_BLOCK:
            return -EUCLEAN
        if _is_unshared(bctx.sctx, item.refs):
            return -errno.ENOENT
    if item.refs <= bctx.sctx.clone_refs:
        return 0
    bctx.too_many_refs = True
    return -errno.ENOENT


def skip_self_data_ref(bctx: BackrefCtx, root: int, ino: int, offset: int) -> bool:
    """Whether a reference is that of the extent being sent."""
    own = (bctx.backref_owner, bctx.sctx.cur_ino, bctx.backref_offset)
    return (root, ino, offset) == own


def lookup_backref_cache(sctx: SendContext, leaf: int) -> Sequence[int] | None:
    """Return the clone roots that reach a leaf, when they are known."""
    if not sctx.backref_cache:
        return None
    current().count("btrfs_lru_cache_lookup")
    roots: Sequence[int] | None = sctx.backref_cache.lookup(leaf)
    return roots


def store_backref_cache(sctx: SendContext, leaf: int, roots: list[int]) -> None:
    """Remember which of the roots that reach a leaf may be cloned from."""
    known = [root for root in roots if root in sctx.clone_roots]
    if len(known) <= sctx.backref_cache_roots:
        current().count("btrfs_lru_cache_store")
        sctx.backref_cache.store(leaf, 0, known, sctx.limits.backref_cache)


# ---------------------------------------------------------------------------- the search ----


def find_extent_clone(sctx: SendContext, extent: Extent) -> CloneRoot | None:
    """Find a place that the receiver has already and that refers to the same extent."""
    current().count("find_extent_clone")
    if extent.start >= sctx.cur_inode.size or extent.is_inline or not extent.disk_bytenr:
        return None
    for clone in sctx.clone_roots.values():
        clone.ino, clone.offset, clone.num_bytes, clone.found_ref = U64_MAX, 0, 0, False
    bctx = BackrefCtx(
        sctx,
        bytenr=extent.disk_bytenr,
        pos=0 if extent.compression else extent.offset,
        cur_offset=extent.start,
        extent_len=min(extent.num_bytes, sctx.cur_inode.size - extent.start),
        data_offset=extent.offset if extent.compression else 0,
        backref_owner=HEADER.unpack_from(sctx.left_path.leaf)[6],
        backref_offset=(extent.start - extent.offset) & U64_MAX,
    )
    single = Patch.SEND_SINGLE_EXTENT_SEARCH in sctx
    if not single and _extent_search_says_no(bctx):
        bctx.judge_places(None)
        return None
    own_only = Patch.SEND_SKIP_OWN_REF in sctx and sctx.clone_roots_cnt == 1
    cached = Patch.SEND_BACKREF_CACHE in sctx
    walk = BackrefWalk(
        forest=sctx.forest,
        bytenr=extent.disk_bytenr,
        extent_item_pos=bctx.pos,
        restart=Patch.SEARCH_NO_RESTART not in sctx,
        iterate_cached=Patch.SEND_BACKREF_SKIP in sctx,
        check_extent_item=partial(check_extent_item, bctx) if single else None,
        skip_data_ref=partial(skip_self_data_ref, bctx) if own_only else None,
        cache_lookup=partial(lookup_backref_cache, sctx) if cached else None,
        cache_store=partial(store_backref_cache, sctx) if cached else None,
        iterate=partial(iterate_backrefs, bctx),
    )
    iterate_extent_inodes(walk)
    # before v6.2 the walk had to come by; it cannot where our own reference is skipped
    if not (Patch.SEND_CLONE_LARGEST in sctx or own_only or bctx.found_itself):
        raise send_errno(sctx, errno.EIO)
    chosen = _choose_root(bctx) if bctx.found else None
    bctx.judge_places(chosen)
    return chosen


def _extent_search_says_no(bctx: BackrefCtx) -> bool:
    """Whether the extent is not to be cloned; before v6.2 its item is searched by itself."""
    sctx = bctx.sctx
    found = extent_from_logical(
        sctx.forest, bctx.bytenr, restart=Patch.SEARCH_NO_RESTART not in sctx
    )
    if found is None:
        return True
    if found.flags & ExtentFlag.TREE_BLOCK:
        raise send_errno(sctx, errno.EIO)
    bctx.too_many_refs = found.refs > sctx.clone_refs
    return bctx.too_many_refs or _is_unshared(sctx, found.refs)


def _choose_root(bctx: BackrefCtx) -> CloneRoot | None:
    """Return the best of the roots in which a reference was found."""
    sctx, best = bctx.sctx, None
    for clone in sctx.clone_roots.values():
        if not clone.found_ref:
            continue
        if Patch.SEND_CLONE_LARGEST not in sctx:
            if best is None or clone.id == sctx.send_root.objectid:
                best = clone
        elif best is None or clone.num_bytes > best.num_bytes:
            best = clone
            if clone.num_bytes >= bctx.extent_len:
                break
    return best
