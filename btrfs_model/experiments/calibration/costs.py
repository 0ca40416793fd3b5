# SPDX-License-Identifier: GPL-2.0-only
"""Which unit costs a machine has: twelve for sends, FIEMAP, fsync and receivers together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from btrfs_model.cost.receiver import CALLS


@dataclass(frozen=True)
class Term:
    """A cost that is to be found.

    Attributes
    ----------
    name, unit, meaning : str
        As in the file of a machine.
    counts : mapping of str to float
        The quantities of work that it is paid for, each with a weight.
    waits : bool
        Whether a thread waits meanwhile; else the processor works.
    """

    name: str
    unit: str
    counts: Mapping[str, float]
    meaning: str
    waits: bool = False


# the items that change: four for an entry of a directory; data that are written have as many
_DEARER: Final = (
    "creat", "mkdir", "mknodat", "symlink", "rename", "link", "unlink", "rmdir", "pwrite64",
)  # fmt: skip
_CHEAP: Final = ("read", "openat", "close")

TERMS: Final = (
    Term("block", "ns",
         {"btrfs_search_slot": 1, "btrfs_search_old_slot": 1, "read_block_for_search": 1},
         "a tree block on the way of a search, looked up in memory and searched by bisection"),
    Term("copy", "ns", {"leaves_copied": 1},
         "the copy that each search of a send makes of its leaf: memory for it, and 16 KiB"),
    Term("item", "ns", {"btrfs_get_next_valid_item": 1, "btrfs_next_old_item": 1},
         "an item stepped over"),
    Term("byte", "ns", {"stream_bytes": 1}, "a byte of a stream, copied, with its checksum"),
    Term("read", "us", {"iterate_extent_inodes": 1, "blocks_read": 1, "send_extent_data": 0.1},
         "an extent of file data looked for elsewhere and read, or a tree block read; data that "
         "are inline take a tenth"),
    Term("walk", "ns", {"find_parent_nodes": 1},
         "a walk back from an extent to who refers to it, without its searches"),
    Term("extent", "ns", {"emit_fiemap_extent": 1}, "an extent looked at and reported by FIEMAP"),
    Term("log_inode", "us", {"btrfs_log_inode": 1, "log_items_copied": 0.05},
         "an inode found, locked and logged; an item copied into the log is a twentieth"),
    Term("log_leaf", "us", {"log_leaves_entered": 1},
         "another leaf come to while logging, of the log or of a directory, and an inode with it"),
    Term("log_block", "us", {"log_leaves_written": 1, "log_nodes_written": 1},
         "a block of the log, made and given to the device"),
    Term("call", "us", {**dict.fromkeys(CALLS, 1.0), **dict.fromkeys(_DEARER, 4.0),
                        **dict.fromkeys(_CHEAP, 0.05)},
         "a system call of a receiver that changes an inode; four for an entry or data"),
    Term("wait", "us", {"iterate_extent_inodes": 1, "btrfs_sync_log": 3, "blocks_read": 0.2,
                        "log_leaves_written": 0.4, "log_nodes_written": 0.4},
         "a thread waits until another one has read data from a device of memory; tree blocks are "
         "read ahead, a fifth; a sync of a log is three, each block of it a part of one",
         waits=True),
)  # fmt: skip
"""The costs, in the order of the file."""
