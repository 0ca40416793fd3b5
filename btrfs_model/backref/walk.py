# SPDX-License-Identifier: GPL-2.0-only
"""What is asked of a walk of back references, and the extent that it begins at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from btrfs_model.ondisk import structs
    from btrfs_model.ondisk.keys import Key
    from btrfs_model.volume.forest import Forest


class Extent(NamedTuple):
    """The extent that holds an address.

    `key`: of its item: (address, EXTENT_ITEM, length) or (address, METADATA_ITEM, level).
    `flags`: ``BTRFS_EXTENT_FLAG_DATA`` or ``BTRFS_EXTENT_FLAG_TREE_BLOCK``.
    `refs`: its reference count.
    """

    key: Key
    flags: int
    refs: int


@dataclass(slots=True, kw_only=True)
class BackrefWalk:
    """What is asked of a walk: ``struct btrfs_backref_walk_ctx`` and its callbacks (6.12).

    `forest`: the trees.
    `bytenr`: logical address of the extent.
    `extent_item_pos`: only file extents that show this byte of the extent are reported; compressed
    ones always.
    `ignore_extent_item_pos`: report all of them.
    `restart`: whether a search starts again after it had to read a block: always before 5.19.
    `transaction`: whether the walk goes through a running transaction; then
    ``btrfs_search_old_slot()`` searches by itself, without ``btrfs_search_slot()``.
    `iterate_cached`: report a reference as soon as it is found in a leaf whose roots
    ``cache_lookup`` knows (``send-backref-skip``).
    `check_extent_item`: (bytenr, extent item) of each extent item on the way -> 0, or a negative
    errno; after -ENOENT the walk goes on as if nothing referred to this extent.
    `skip_data_ref`: (root, inode, offset) of a reference -> whether it is left out.
    `cache_lookup`: leaf -> the ids of the trees that reach it, or None when they are not known.
    `cache_store`: (leaf, ids) once they have been found.
    `iterate`: (inode, offset, num_bytes, root) -> 0, or anything greater to end the walk, or a
    negative errno.
    """

    forest: Forest
    bytenr: int
    extent_item_pos: int = 0
    ignore_extent_item_pos: bool = False
    restart: bool = False
    transaction: bool = False
    iterate_cached: bool = False
    check_extent_item: Callable[[int, structs.RawExtentItem], int] | None = None
    skip_data_ref: Callable[[int, int, int], bool] | None = None
    cache_lookup: Callable[[int], Sequence[int] | None] | None = None
    cache_store: Callable[[int, list[int]], None] | None = None
    iterate: Callable[[int, int, int, int], int] | None = None
