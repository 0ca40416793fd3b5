# SPDX-License-Identifier: GPL-2.0-only
"""Which unit costs a machine has: twelve for sends, FIEMAP, fsync and receivers together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from btrfs_model.cost.pipe import PIPE_WAKES
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
    "creat", "mkdir", "mknodat", "symlink", "rename", "unlink", "rmdir", "pwrite64",
)  # fmt: skip
_CHEAP: Final = ("read", "openat", "close")

TERMS: Final = (
    Term("search", "ns",
         {"btrfs_search_slot": 1, "btrfs_search_old_slot": 1, "btrfs_search_forward": 1},
         "a search of a tree that is one block, in memory"),
    Term("level", "ns", {"read_block_for_search": 1},
         "a level that a search goes down, in memory"),
    Term("copy", "ns", {"leaves_copied": 1, "send_cmd": 0.4},
         "the copy that each search of a send makes of its leaf: memory for it, and 16 KiB; a "
         "command of a stream, made and written, takes two fifths of that"),
    Term("item", "ns",
         {"btrfs_get_next_valid_item": 1, "btrfs_next_old_item": 1, "log_entries_visited": 0.7,
          "log_items_copied": 6, "setup_items_for_insert": 6},
         "an item of a leaf, stepped over; an entry that a log only looks at is two thirds, an "
         "item that is copied into the log six, and so is each insertion"),
    Term("byte", "ns", {"stream_bytes": 1, PIPE_WAKES: 5000},
         "a byte of a stream, copied, with its checksum; a command that wakes the reader of a pipe "
         "takes as long as five thousand"),
    Term("read", "us", {"data_reads": 1, "blocks_read": 6},
         "an extent of file data read; a tree block is six"),
    Term("extent", "ns", {"emit_fiemap_extent": 1, "fiemap_process_hole": 0.2},
         "an extent looked at and reported by FIEMAP; a hole before it is a fifth"),
    Term("ref", "ns", {"prelim_ref_insert": 1},
         "a back reference put into the set of those of an extent"),
    Term("log_inode", "us", {"btrfs_log_inode": 1},
         "an inode logged, without its items: found, locked and looked at"),
    Term("log_leaf", "us", {"log_leaves_entered": 1, "log_leaves_uncached": 4},
         "another leaf come to while logging, of the log or of a directory, and an inode with it; "
         "four more where the processor's caches have forgotten them"),
    Term("call", "us", {**dict.fromkeys(CALLS, 1.0), **dict.fromkeys(_DEARER, 4.0),
                        "link": 3.0, "lsetxattr": 2.0, **dict.fromkeys(_CHEAP, 0.05),
                        "log_leaves_written": 1.25, "log_nodes_written": 1.25,
                        "btrfs_sync_log": 5.0},
         "a system call of a receiver that changes an inode; four for an entry or data, three for "
         "another name, two for a xattr; a block of the log, made and given to the device, one and "
         "a quarter; a sync of a log five"),
    Term("wait", "us",
         {"data_reads": 1, "blocks_awaited": 2.5, "btrfs_sync_log": 2,
          "log_leaves_written": 0.6, "log_nodes_written": 0.6, "pwrite64": 0.45},
         "a thread waits until another one has read data from a device of memory; for a tree block "
         "that nobody read ahead two and a half times as long, for a sync of a log twice, for each "
         "block of it and for data that a receiver writes half as long",
         waits=True),
)  # fmt: skip
"""The costs, in the order of the file."""
