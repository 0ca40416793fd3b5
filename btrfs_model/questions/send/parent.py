# SPDX-License-Identifier: GPL-2.0-only
"""The parent that ``btrfs send -c`` picks, where it is not told."""

from __future__ import annotations

from collections.abc import Sequence

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.subvolume import Subvolume


def find_good_parent(fs: Filesystem, sent: Subvolume, sources: Sequence[Subvolume]) -> Subvolume:
    """Pick the parent among the clone sources, as ``btrfs send -c`` does.

    The subvolume that `sent` is a snapshot of, when it is among them. Else, of those that are
    snapshots of the same subvolume, the one with the nearest ctransid to that subvolume's.
    (btrfs-progs 6.2, ``find_good_parent()``)

    Raises
    ------
    BtrfsModelError
        When there is none.
    """
    by_uuid = {one.uuid: one for one in map(fs.subvolume, fs.subvolume_ids) if one.uuid}

    def origin(of: Subvolume) -> Subvolume | None:
        return by_uuid.get(of.parent_uuid) if of.parent_uuid else None

    wanted = origin(sent)
    if wanted is not None:
        siblings = [
            one for one in sources if (other := origin(one)) is not None and other.id == wanted.id
        ]
        for one in sources:
            if one.id == wanted.id:
                return one
        if siblings:
            return min(siblings, key=lambda one: abs(one.item.ctransid - wanted.item.ctransid))
    raise BtrfsModelError(f"{fs.path}: parent determination failed for {sent.id}")
