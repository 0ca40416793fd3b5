# SPDX-License-Identifier: GPL-2.0-only
"""What a mounted filesystem remembers for fsync: of each inode, each subvolume, and as a whole.

None of it is on disk; the names are those of ``struct btrfs_inode`` and ``struct btrfs_root``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LOG_ROOT_TREE: Final = 1 << 62
"""What the writer calls the tree of the logs; that of a subvolume has the subvolume's id added."""


def log_tree_id(root: int) -> int:
    """Return what the writer calls the log tree of a subvolume."""
    return LOG_ROOT_TREE + root


@dataclass(slots=True)
class InodeLog:
    """What is remembered of an inode.

    `logged_trans`: transaction in which it was logged last; 0: not known.
    `last_trans`: transaction in which its item changed last.
    `last_sub_trans`, `last_log_commit`: the subvolume's log transaction at that change, and the one
    known to hold it.
    `last_unlink_trans`: transaction in which names were taken from it, or from it as a directory.
    `last_reflink_trans`: transaction in which extents were cloned from or to it.
    `last_dir_index_offset`: highest index of a directory that is in the log; 0: not known.
    `first_dir_index_to_log`: where the names begin whose inodes are to be logged; 0: at the first.
    `full_sync`: ``BTRFS_INODE_NEEDS_FULL_SYNC``.
    `copy_everything`: ``BTRFS_INODE_COPY_EVERYTHING``.
    `no_xattrs`: ``BTRFS_INODE_NO_XATTRS``.
    `parent`: subvolume and inode number of the directory of the name by which it was found last, as
    the parent of its dentry; zeros: it is not known.
    `modified`: ranges of the file that changed since it was logged (``modified_extents``):
    transaction, start, end.
    """

    logged_trans: int = 0
    last_trans: int = 0
    last_sub_trans: int = 0
    last_log_commit: int = 0
    last_unlink_trans: int = 0
    last_reflink_trans: int = 0
    last_dir_index_offset: int = 0
    first_dir_index_to_log: int = 0
    full_sync: bool = False
    copy_everything: bool = False
    no_xattrs: bool = False
    parent: tuple[int, int] = (0, 0)
    modified: list[tuple[int, int, int]] = field(default_factory=list)


class Overridden(NamedTuple):
    """Who had a name at the last commit, as it was searched.

    `data`: the item with the names.
    `owner`: inode number and directory of the first that had one, maybe the inode itself.
    `work`: of the search.
    """

    data: bytes
    owner: tuple[int, int] | None
    work: Mapping[str, int]


@dataclass(slots=True)
class RootLog:
    """What is remembered of a subvolume's log, until another one begins.

    `log_transid`, `last_log_commit`: the transaction of the log, and the last that is synced.
    `overridden`: what was searched of names, by the key of the item that has them.
    """

    log_transid: int = 0
    last_log_commit: int = 0
    overridden: dict[tuple[int, int, int], Overridden] = field(default_factory=dict)


class TreeLogs:
    """The logs of a filesystem.

    `roots` (dict): what is remembered of each subvolume's log.
    `logs` (set of int): the subvolumes that have a log in the running transaction.
    `full_commit` (int): in this transaction no log can be synced (``last_trans_log_full_commit``).
    """

    def __init__(self) -> None:
        self.roots: dict[int, RootLog] = {}
        self.logs: set[int] = set()
        self.full_commit = 0

    def root(self, root: int) -> RootLog:
        """Return what is remembered of a subvolume's log."""
        found = self.roots.get(root)
        if found is None:
            found = self.roots[root] = RootLog()
        return found
