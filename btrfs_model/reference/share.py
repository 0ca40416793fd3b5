# SPDX-License-Identifier: GPL-2.0-only
"""Is a data extent of a file shared? Beside ``native/backref/share.c``.

``btrfs_is_data_extent_shared()`` of the kernel (6.12; ``btrfs_check_shared()`` before 6.1): a
backref walk that stops as soon as it has met a second file or a second tree::

    data extent   two references of its own (reflinks)          -> shared
    leaf          referred to from another tree (a snapshot)    -> shared
    node ...      the same, up to the root node, which has one tree

Neighbouring extents of a file have the path to the root in common, so its blocks are remembered by
level: one call of FIEMAP walks each path once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from btrfs_model.backref.walk import BackrefWalk
from btrfs_model.base.counters import current
from btrfs_model.behaviour import Behaviour
from btrfs_model.limits import Limits
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.patches import Patch
from btrfs_model.reference.backref import find_parent_nodes
from btrfs_model.reference.backref_prelim import PrelimRef
from btrfs_model.reference.backref_refs import SharedAnswerError, Walk
from btrfs_model.volume.forest import Forest

_MAX_LEVEL = int(BTRFS_MAX_LEVEL)


class _Entry(NamedTuple):
    bytenr: int = 0  # 0: none
    is_shared: bool = False


class ShareContext:
    """What one FIEMAP call remembers (``struct btrfs_backref_share_check_ctx``, 6.12).

    A result in the path cache holds until a snapshot is made or a subvolume is dropped, which does
    not happen to an image.

    `forest`: the trees.
    `root_id`, `inum`: the file.
    `last_snapshot`: generation of the last snapshot of the subvolume.
    `behaviour`: the kernel.
    `limits`: how much it remembers.
    `curr_leaf_bytenr` (int): the leaf of the file extent item that is looked at; 0 where that is
    not known.
    """

    def __init__(
        self,
        forest: Forest,
        root_id: int,
        inum: int,
        last_snapshot: int,
        behaviour: Behaviour,
        limits: Limits,
    ) -> None:
        self.forest = forest
        self.root_id = root_id
        self.inum = inum
        self.last_snapshot = last_snapshot
        self.behaviour = behaviour
        self.curr_leaf_bytenr = 0
        self.prev_leaf_bytenr = 0
        self.use_path_cache = True
        self._path = [_Entry()] * _MAX_LEVEL
        self._prev_extents = [_Entry()] * limits.fiemap_prev_extents
        self._prev_extents_slot = 0

    def is_data_extent_shared(self, bytenr: int, extent_gen: int) -> bool:
        """Tell whether the extent at `bytenr` is shared.

        `bytenr`: its logical address.
        `extent_gen`: generation of the file extent item.
        Raises CorruptImageError: when the trees contradict each other.
        """
        current().count("btrfs_is_data_extent_shared")
        if Patch.FIEMAP_PREV_EXTENTS in self.behaviour:
            for entry in self._prev_extents:
                if entry.bytenr == bytenr:
                    return entry.is_shared
        shared = self.check_extent(bytenr, extent_gen)
        self.prev_leaf_bytenr = self.curr_leaf_bytenr
        return shared

    def check_extent(self, bytenr: int, extent_gen: int) -> bool:
        """Tell it by the leaf or by a walk."""
        self.use_path_cache = True
        if Patch.FIEMAP_SHARED_LEAF in self.behaviour and self.lookup_backref_shared_cache(
            self.curr_leaf_bytenr, 0
        ):
            return True
        check = ShareCheck(self, bytenr, extent_gen)
        shared = check.walk_up()
        if not self.use_path_cache and Patch.FIEMAP_MULTIPLE_PATHS in self.behaviour:
            self.repair_path_cache(check.level - 1, shared)
        if check.self_ref_count > 1 and Patch.FIEMAP_PREV_EXTENTS in self.behaviour:
            self._prev_extents[self._prev_extents_slot] = _Entry(bytenr, shared)
            self._prev_extents_slot = (self._prev_extents_slot + 1) % len(self._prev_extents)
        return shared

    # ------------------------------------------------------------------------ path cache -----

    def lookup_backref_shared_cache(self, bytenr: int, level: int) -> bool | None:
        """Return what is known of a tree block."""
        if Patch.FIEMAP_PATH_CACHE not in self.behaviour:
            return None
        current().count("lookup_backref_shared_cache")
        # no address: the leaf is not known where extent maps are walked
        if not bytenr or not self.use_path_cache or level >= _MAX_LEVEL:
            return None
        if self._path[level].bytenr != bytenr:
            return None
        if self._path[level].is_shared:
            self.share_below(level)
        return self._path[level].is_shared

    def store_backref_shared_cache(self, bytenr: int, level: int, is_shared: bool) -> None:
        """Remember what was found of a tree block."""
        if Patch.FIEMAP_PATH_CACHE not in self.behaviour:
            return
        current().count("store_backref_shared_cache")
        if not self.use_path_cache or level >= _MAX_LEVEL:
            return
        self._path[level] = _Entry(bytenr, is_shared)
        if is_shared:
            self.share_below(level)

    def share_below(self, level: int) -> None:
        """Take what is below a shared block for shared."""
        self._path[:level] = [entry._replace(is_shared=True) for entry in self._path[:level]]

    def repair_path_cache(self, level: int, shared: bool) -> None:
        """There was more than one path: keep the answer where there was one still."""
        if level >= 0:
            self.use_path_cache = True
            self.store_backref_shared_cache(self._path[level].bytenr, level, shared)
        for above in range(max(level + 1, 0), _MAX_LEVEL):
            self._path[above] = self._path[above]._replace(bytenr=0)


class ShareCheck:
    """The check of one extent (``struct share_check``, 6.12): what its walk asks on the way.

    `context`: what the call remembers.
    `data_bytenr`, `data_extent_gen`: address of the extent, generation of the file extent item.
    `self_ref_count` (int): file extent items of the inode that are known to refer to the extent.
    `level` (int): of the path to which the walk has come; -1: the extent itself.
    `drops_wait` (bool): whether one that the extent tree has may be dropped already.
    """

    def __init__(self, context: ShareContext, data_bytenr: int, data_extent_gen: int) -> None:
        self.context = context
        self.data_bytenr = data_bytenr
        self.data_extent_gen = data_extent_gen
        self.self_ref_count = 0
        self.level = -1
        self.drops_wait = False
        self._share_count = 0

    def walk_up(self) -> bool:
        """Walk from the extent up, until a block is shared or there is none left."""
        context, on = self.context, self.context.behaviour
        ask = BackrefWalk(
            forest=context.forest,
            bytenr=self.data_bytenr,
            restart=Patch.SEARCH_NO_RESTART not in on,
            transaction=context.forest.is_running or Patch.FIEMAP_JOIN_NO_START not in on,
        )
        roots = Patch.FIEMAP_NO_ROOTS not in on
        walk = Walk(ask=ask, bytenr=self.data_bytenr, share=self, want_roots=roots)
        parents = iter(walk.refs)
        while True:
            before = len(walk.refs)
            try:
                with suppress(FileNotFoundError):
                    find_parent_nodes(walk)
            except SharedAnswerError as answer:
                if self.level >= 0:
                    context.store_backref_shared_cache(walk.bytenr, self.level, answer.shared)
                return answer.shared
            if self.level == -1 and Patch.FIEMAP_NEW_EXTENTS in on and self._is_new():
                return False
            several = Patch.FIEMAP_MULTIPLE_PATHS in on
            if len(walk.refs) - before > 1 and (self.level == -1 or several):
                context.use_path_cache = False
            if self.level >= 0:
                context.store_backref_shared_cache(walk.bytenr, self.level, False)
            parent = next(parents, None)
            if parent is None:
                return False
            walk.bytenr, walk.level = parent.val, parent.level
            if context.use_path_cache or not several:
                self.level += 1
                known = context.lookup_backref_shared_cache(walk.bytenr, self.level)
                if known is not None:
                    return known
            self._share_count = 0

    def _is_new(self) -> bool:
        """Newer than the last snapshot: no other tree can reach it through shared blocks."""
        return self.data_extent_gen > self.context.last_snapshot

    def update_share_count(self, old_count: int, ref: PrelimRef) -> None:
        """Count a reference to data, of which there were `old_count`.

        Raises SharedAnswerError: once there are two.
        """
        new_count = old_count + ref.count
        if old_count == 0 and new_count < 1:
            return
        if old_count > 0 and new_count < 1:
            self._share_count -= 1
        elif old_count < 1 and new_count > 0:
            self._share_count += 1
        if (ref.root_id, ref.wanted, ref.key[0]) == (
            self.context.root_id,
            self.data_bytenr,
            self.context.inum,
        ):
            self.self_ref_count += ref.count
        self.look_at_count()

    def look_at_count(self) -> None:
        """Say so once there are two references.

        Raises SharedAnswerError: when there are.
        """
        if self._share_count > 1:
            raise SharedAnswerError(True)

    def before_resolving(self, bytenr: int) -> None:
        """Give the answer that is known already when all references were read.

        Raises SharedAnswerError: when it is.
        """
        context, on = self.context, self.context.behaviour
        if bytenr != self.data_bytenr:
            return
        if Patch.FIEMAP_SKIP_NEW_EXTENTS in on and self._is_new():
            raise SharedAnswerError(False)
        # the same leaf as before, and the only file extent item: the path is known
        if (
            Patch.FIEMAP_SKIP_SAME_LEAF in on
            and context.curr_leaf_bytenr == context.prev_leaf_bytenr
            and self.self_ref_count == 1
        ):
            known = context.lookup_backref_shared_cache(context.curr_leaf_bytenr, 0)
            if known is not None:
                raise SharedAnswerError(known)
