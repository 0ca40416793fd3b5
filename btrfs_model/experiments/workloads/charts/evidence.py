# SPDX-License-Identifier: GPL-2.0-only
"""What the charts of the workloads show besides figures: a type for each chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from btrfs_model.ondisk.keys import ItemType

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Strips:
    """Of `send-truncate`: how many files, and the commands (name, bytes) for one, by side."""

    files: int
    strips: dict[str, list[tuple[str, int]]]


ABLATED: Final = {
    "btrfs_search_slot": "calls",
    "btrfs_get_next_valid_item": "calls",
    "get_inode_info": "calls",
    "__get_cur_name_and_parent": "calls",
    "send_cmd": "calls",
    "stream size": "bytes",
}
"""What the ablation of `send-utimes` looks at, with its unit: what patches of the series save."""


@dataclass(frozen=True, slots=True)
class Series:
    """Of `send-utimes`: the numbers of files; what is done more without each patch."""

    sizes: tuple[int, ...]
    ablation: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Readings:
    """Of `send-readahead`: how many files, from which devices; reads of the first, by side."""

    files: int
    devices: tuple[str, ...]
    tables: dict[str, pd.DataFrame]


@dataclass(frozen=True, slots=True)
class Walks:
    """Of `fiemap-shared`, by side: the walks for each extent of a call, and those of each call.

    An extent has the address of its leaf, and how many blocks and extents were walked back from.
    """

    extents: int
    walks: dict[str, list[tuple[int, int]]]
    along: dict[str, list[int]]


TYPES: Final = (
    ItemType.INODE_ITEM, ItemType.INODE_REF, ItemType.DIR_ITEM, ItemType.DIR_INDEX,
    ItemType.DIR_LOG_ITEM, ItemType.DIR_LOG_INDEX,
)  # fmt: skip
"""What is in the log of a directory."""


@dataclass(frozen=True, slots=True)
class Deletes:
    """Of `log-dir`: how many files are deleted of each number of them, the largest last."""

    deletes: dict[int, int]


Evidence = Strips | Series | Readings | Walks | Deletes
