# SPDX-License-Identifier: GPL-2.0-only
"""The table of toggles: every kernel commit that the model can be taken back before.

A *toggle* is one commit, or the part of it that can be seen from outside. A *behaviour* is a set of
toggles; a *preset* names the behaviour of a kernel. Code asks for a toggle by its name and never
for a version::

    >>> behaviour = Behaviour.parse("v6.12 - send-utimes-cache")
    >>> "send-utimes-cache" in behaviour
    False

A plain release (``v6.12``) has the toggles of all commits up to it. A stable kernel (``v6.12.101``)
has those backported to it as well.

An id in the table whose ``verified`` is false was not checked against a repository.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from btrfs_model.base.errors import (
    BehaviourWarning,
    BtrfsModelError,
    UnknownBehaviourError,
    UnknownNameError,
)
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.tables import html_table
from btrfs_model.kernels import lib

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PRESETS", "TOGGLES", "Behaviour", "Toggle", "table"]


@dataclass(frozen=True)
class Toggle:
    """One commit as a switch.

    Attributes
    ----------
    slug : str
        Its name here.
    commit : str
        First twelve digits of its id.
    title : str
        Its subject.
    release : str
        The release that it entered, e.g. ``"6.3"``; empty: in no release, because it depends on a
        build option.
    what : str
        What it changes, in one line.
    verified : bool
        Whether the id was checked against a repository.
    """

    slug: str
    commit: str
    title: str
    release: str
    what: str
    verified: bool = True

    @property
    def bit(self) -> int:
        """Its bit for the C kernels; 0 when they do not ask for it."""
        name = f"BM_TOGGLE_{self.slug.upper().replace('-', '_')}"
        return 1 << getattr(lib, name) if hasattr(lib, name) else 0

    @property
    def implemented(self) -> bool:
        """Whether the model has both sides of it yet."""
        return bool(self.bit) or self.slug in _PYTHON_ALONE


# Toggles that no C kernel asks for.
_PYTHON_ALONE = frozenset({
    "truncate-same-size", "log-bulk-insert", "log-dir-index-only", "log-replay-index-deletes",
    "log-no-boundary-keys", "log-skip-old-dir-items", "log-conflict-list", "log-first-index",
    "log-new-dentries", "log-rmdir", "log-rmdir-mark", "log-no-links", "log-exists-size",
    "log-delayed-items", "log-sub-trans", "log-new-name-logged", "log-parents-unchecked",
    "log-prealloc-full", "log-symlinks-full", "umount-no-empty-commit", "log-new-name-refs",
    "log-old-conflicts", "log-new-name-dentries", "log-conflict-dentries", "log-replay-dir-times",
    "log-moved-conflicts", "subvol-create-no-commit", "alloc-size-class",
    # the same with and without here: no inode leaves memory, and no two calls run at once
    "log-search-last-index", "log-last-index-on-insert",
})  # fmt: skip


def _toggle(slug: str, commit: str, release: str, title: str, what: str) -> Toggle:
    return Toggle(slug, commit.rstrip("?"), title, release, what, not commit.endswith("?"))


# In the order of the releases. A "?" behind an id: not verified.
_TABLE = (
    _toggle("send-skip-truncate", "ffa7c4296e93?", "4.17",
            "Btrfs: send, do not issue unnecessary truncate operations",
            "no TRUNCATE after a file whose writes already gave it its size"),
    _toggle("truncate-same-size", "213e8c552154?", "4.17",
            "Btrfs: skip writeback of last page when truncating file to same size",
            "the receiver does not write back the last page when truncating to the same size"),
    _toggle("send-orphanize-first", "98272bb77bf4?", "5.10",
            "btrfs: send: orphanize first all conflicting inodes when processing references",
            "all conflicting names are moved away before the first new name is made"),
    _toggle("send-recompute-ref-path", "9c2b4e034706?", "5.10",
            "btrfs: send: recompute reference path after orphanization of a directory",
            "paths are computed again after a directory on them was orphanized"),
    _toggle("send-rmdir-generation", "0b3f407e6728?", "5.11",
            "btrfs: send: fix wrong file path when there is an inode with a pending rmdir",
            "directories that wait for removal are told apart by generation too"),
    _toggle("log-sub-trans", "bc0939fcfab0?", "5.12",
            "btrfs: fix race between marking inode needs to be logged and log syncing",
            "an inode that changed is in no log, whatever the subvolume's log was synced to"),
    _toggle("log-parents-unchecked", "", "5.12",
            "btrfs: remove unnecessary check_parent_dirs_for_sync()",
            "only a directory that is logged whole has to be without renames away from it"),
    _toggle("send-unlink-path", "d8ac76cdd174?", "5.13",
            "btrfs: send: fix invalid path for unlink operations after parent orphanization",
            "the path of an unlink is computed again after an ancestor was orphanized"),
    _toggle("send-reada", "", "5.13",
            "btrfs: add btree read ahead for full send operations",
            "a full send reads leaves ahead (READA_FORWARD)"),
    _toggle("send-reada-always", "ace75066ced9", "5.13",
            "btrfs: improve btree readahead for full send operations",
            "a full send reads nodes and leaves ahead wherever they lie (READA_FORWARD_ALWAYS)"),
    _toggle("send-reada-compare", "2ce73c633573", "5.13",
            "btrfs: add btree read ahead for incremental send operations",
            "the comparison of two trees reads ahead children newer than the parent snapshot"),
    _toggle("log-new-name-logged", "ecc64fab7d49?", "5.14",
            "btrfs: fix lost inode on log replay after mix of fsync, rename and inode eviction",
            "a new name of an inode that was changed and never fsynced counts as one of the log"),
    _toggle("reada-always-cached", "069a2e37789a", "5.15",
            "btrfs: continue readahead of siblings even if target node is in memory",
            "READA_FORWARD_ALWAYS reads siblings ahead even when the block itself is cached"),
    _toggle("batch-delayed-items", "506650dcb3a7?", "5.15",
            "btrfs: improve the batch insertion of delayed items",
            "delayed directory items go into the tree in batches of up to a leaf"),
    _toggle("log-bulk-insert", "eb10d85ee77f?", "5.16",
            "btrfs: use single bulk copy operations when logging directories",
            "items of a directory are copied into the log a leaf at a time"),
    _toggle("log-prealloc-full", "d99478874355?", "5.17",
            "btrfs: fix lost prealloc extents beyond eof after full fsync",
            "a full fsync logs what is allocated beyond the end of a file apart"),
    _toggle("log-dir-index-only", "339d03542484", "5.17",
            "btrfs: only copy dir index keys when logging a directory",
            "DIR_ITEM keys are neither logged nor replayed"),
    _toggle("log-replay-index-deletes", "ccae4a19c914?", "5.17",
            "btrfs: remove no longer needed logic for replaying directory deletes",
            "replay of deletes goes without DIR_ITEM keys"),
    _toggle("send-relocation", "d96b34248c2f?", "5.17",
            "btrfs: make send work with concurrent block group relocation",
            "leaves are cloned and searches repeated after a relocation"),
    _toggle("search-no-restart", "4bb59055bcde", "5.18",
            "btrfs: avoid unnecessary btree search restarts when reading node",
            "a search that holds no locks goes on after a block had to be read"),
    _toggle("log-symlinks-full", "d0e64a981fd8?", "5.18",
            "btrfs: always log symlinks in full mode",
            "a symbolic link that must exist is logged with its target"),
    _toggle("log-skip-old-dir-items", "732d591a5d6c", "5.18",
            "btrfs: stop copying old dir items when logging a directory",
            "directory items of older transactions are not copied into the log"),
    _toggle("log-no-boundary-keys", "a450a4af7433", "5.18",
            "btrfs: don't log unnecessary boundary keys when logging directory",
            "keys at the edges of a logged range are not copied"),
    _toggle("leaf-balance-lazy", "7c4063d19efc", "5.18",
            "btrfs: avoid unnecessary COW of leaves when deleting items from a leaf",
            "after a deletion items are pushed only where a whole leaf can be emptied"),
    _toggle("send-stream-v2", "d6815592806d?", "6.0",
            "btrfs: send: enable support for stream v2 and compressed writes",
            "protocol 2: otimes, encoded writes, data of up to 128 KiB"),
    _toggle("send-refs-rbtree", "3aa5bd367fa5?", "6.0",
            "btrfs: send: fix sending link commands for existing file paths",
            "a name that appears as new and as deleted is dropped from both"),
    _toggle("send-nlink-zero", "9ed0a72e5b35?", "6.1",
            "btrfs: send: fix failures when processing inodes with no links",
            "an inode without links counts as absent"),
    _toggle("send-clone-src-eof", "a11452a3709e?", "6.1",
            "btrfs: send: avoid unaligned encoded writes when attempting to clone range",
            "at the end of the clone source the rest of a range is written in one piece"),
    _toggle("log-conflict-list", "e09d94c9e4af?", "6.1",
            "btrfs: log conflicting inodes without holding log mutex of the initial inode",
            "inodes that had a name are logged after the inode that has it, at most 10; stands "
            "also for what else changed in the logs of files from 5.10 to 6.1"),
    _toggle("log-delayed-items", "30b80f3ce0f9", "6.1",
            "btrfs: use delayed items when logging a directory",
            "delayed directory items are logged without being flushed first"),
    _toggle("log-search-last-index", "193df6245704", "6.1",
            "btrfs: search for last logged dir index if it's not cached in the inode",
            "the last logged index is looked up in the log when it is not in memory"),
    _toggle("fiemap-file-extents", "ac3c0d36a2a2?", "6.1",
            "btrfs: make fiemap more efficient and accurate reporting extent sharedness",
            "FIEMAP walks file extent items instead of extent maps"),
    _toggle("fiemap-path-cache", "12a824dc67a6?", "6.1",
            "btrfs: speedup checking for extent sharedness during fiemap",
            "sharedness of the blocks on the path is cached by level"),
    _toggle("fiemap-new-extents", "b8f164e3e67d?", "6.1",
            "btrfs: skip unnecessary extent buffer sharedness checks during fiemap",
            "an extent newer than the last snapshot is not looked for through tree blocks"),
    _toggle("fiemap-prev-extents", "73e339e6ab74", "6.2",
            "btrfs: cache sharedness of the last few data extents during fiemap",
            "the last eight data extents answer from a ring"),
    _toggle("fiemap-no-roots", "b629685803bc", "6.2",
            "btrfs: remove roots ulist when checking data extent sharedness",
            "roots are not collected where only sharedness is asked"),
    _toggle("fiemap-skip-new-extents", "206c1d32f381?", "6.2",
            "btrfs: avoid unnecessary resolution of indirect backrefs during fiemap",
            "references of an extent newer than the last snapshot are not resolved"),
    _toggle("fiemap-skip-same-leaf", "583f4ac56268?", "6.2",
            "btrfs: avoid duplicated resolution of indirect backrefs during fiemap",
            "references are not resolved for the next extent of the same leaf"),
    _toggle("fiemap-multiple-paths", "2280d425ba35?", "6.2",
            "btrfs: ignore fiemap path cache when there are multiple paths for a node",
            "the cache of the path is not used where any block of it has several parents"),
    _toggle("send-clone-no-backrefs", "22a3c0ac8ed0?", "6.2",
            "btrfs: send: avoid unnecessary backref lookups when finding clone source",
            "no walk for an extent with one reference when there is no other clone root"),
    _toggle("send-clone-largest", "c7499a64dcf6", "6.2",
            "btrfs: send: optimize clone detection to increase extent sharing",
            "the clone source with the most bytes wins instead of the lowest inode"),
    _toggle("send-backref-cache", "66d04209e5a8?", "6.2",
            "btrfs: send: cache leaf to roots mapping during backref walking",
            "the roots that reach a leaf are remembered for 128 leaves"),
    _toggle("send-backref-skip", "88ffb665c894?", "6.2",
            "btrfs: send: skip unnecessary backref iterations",
            "the walk stops at a source that covers the whole extent"),
    _toggle("send-single-extent-search", "f73853c716dd?", "6.2",
            "btrfs: send: avoid double extent tree search when finding clone source",
            "the extent item is looked at during the walk and not searched before it"),
    _toggle("send-skip-own-ref", "adf02418736d?", "6.2",
            "btrfs: send: skip resolution of our own backref when finding clone source",
            "the reference of the extent being sent is not resolved"),
    _toggle("send-clone-refs-1024", "344174a1b6b0?", "6.2",
            "btrfs: send: bump the extent reference count limit for backref walking",
            "extents with up to 1024 references are cloned, instead of 64"),
    _toggle("send-overwrite-gen-late", "cb689481947a", "6.3",
            "btrfs: send: avoid unnecessary generation search at did_overwrite_ref()",
            "the generation of the overwriting inode is searched only where it matters"),
    _toggle("send-overwrite-gen-once", "498581f33c9e", "6.3",
            "btrfs: send: avoid extra b+tree searches when checking reference overrides",
            "the generation of the directory is taken from the search that was made already"),
    _toggle("send-rmdir-one-descent", "78cf1a954da5", "6.3",
            "btrfs: send: avoid unnecessary orphan dir rbtree search at can_rmdir()",
            "one descent less into the tree of orphan directories"),
    _toggle("send-rmdir-last-entry", "474e4761f6e8", "6.3",
            "btrfs: send: reduce searches on parent root when checking if dir can be removed",
            "the last entry of a directory tells whether it can be removed yet"),
    _toggle("send-waiting-once", "8c139e1d7806", "6.3",
            "btrfs: send: iterate waiting dir move rbtree only once when processing refs",
            "one descent less into the tree of waiting moves"),
    _toggle("send-dir-created-cache", "e8a7f49d9bfc", "6.3",
            "btrfs: send: cache information about created directories",
            "64 directories are remembered as created"),
    _toggle("send-name-cache-lru", "c48545debfff", "6.3",
            "btrfs: send: use the lru cache to implement the name cache",
            "the name cache of 256 drops the least recently used name instead of 128 at once"),
    _toggle("send-backref-cache-17", "ace79df8a44a", "6.3",
            "btrfs: send: update size of roots array for backref cache entries",
            "a cached leaf may have 17 roots instead of 12"),
    _toggle("send-utimes-cache", "3e49363be633", "6.3",
            "btrfs: send: cache utimes operations for directories if possible",
            "UTIMES of a directory is sent once, at the end or when 64 others came later"),
    _toggle("fiemap-shared-leaf", "e2fd83064a9b", "6.3",
            "btrfs: skip backref walking during fiemap if we know the leaf is shared",
            "no walk for an extent whose leaf is known to be shared"),
    _toggle("alloc-size-class", "52bb7a2166af?", "6.3",
            "btrfs: introduce size class to block group allocator",
            "extents of up to 128 KiB, up to 8 MiB and larger ones have block groups of their own"),
    _toggle("log-last-index-on-insert", "6afaed53cc9a", "6.3",
            "btrfs: log: update the last dir index offset when inserting index items",
            "the last logged index is kept up to date while inserting"),
    _toggle("log-first-index", "fa4b8cb17380", "6.4",
            "btrfs: avoid iterating over all indexes when logging directory",
            "logging starts at the first index that may be new"),
    _toggle("log-new-dentries", "5d3e4f1d5123", "6.4",
            "btrfs: use log root when iterating over index keys when logging directory",
            "new names are found by iterating over the log instead of the subvolume"),
    _toggle("subvol-create-no-commit", "1b53e51a4a8f", "6.5",
            "btrfs: don't commit transaction for every subvol create",
            "a subvolume that is created is committed with what comes after it, not at once"),
    _toggle("opendir-last-index", "9b378f6ad48c?", "6.5",
            "btrfs: fix infinite directory reads",
            "opening a directory looks up its last entry"),
    _toggle("fiemap-join-no-start", "4490e803e1fe?", "6.6",
            "btrfs: don't start transaction when joining with TRANS_JOIN_NOSTART",
            "a check for sharing does not start a transaction"),
    _toggle("fiemap-no-deadlock", "978b63f7464a?", "6.8",
            "btrfs: fix race when detecting delalloc ranges during fiemap",
            "FIEMAP entries are gathered and copied out after unlocking"),
    _toggle("fiemap-buffer", "418b09027743?", "6.8",
            "btrfs: ensure fiemap doesn't race with writes when FIEMAP_FLAG_SYNC is given",
            "FIEMAP starts again at the last gathered entry"),
    _toggle("send-trailing-hole", "5897710b28ca", "6.8",
            "btrfs: send: don't issue unnecessary zero writes for trailing hole",
            "a hole at the end of a file that was a hole before is not sent"),
    _toggle("send-clone-unaligned-tail", "46a6e10a1ab1", "6.12",
            "btrfs: send: allow cloning non-aligned extent if it ends at i_size",
            "the unaligned last extent of a file can be cloned"),
    _toggle("send-truncate-before-clone", "fa630df665aa", "6.12",
            "btrfs: send: fix invalid clone operation for file that got its size decreased",
            "an existing file is truncated before its unaligned tail is cloned"),
    _toggle("log-rmdir", "", "6.12",
            "(the commit is not known; Linux 6.1.176 is without, 6.12.101 with it)",
            "fsync of a directory that lost a committed directory logs it instead of a commit"),
    _toggle("umount-no-empty-commit", "", "6.12",
            "btrfs: avoid create and commit empty transaction when committing super",
            "unmounting commits nothing where everything is committed; Linux 6.1.176 is without"),
    _toggle("send-cur-inode-path", "fc746acb7aa9?", "6.16",
            "btrfs: send: keep the current inode's path cached",
            "the path of the inode being sent is computed once"),
    _toggle("log-no-links", "0a32e4f0025a?", "6.16",
            "btrfs: fix log tree replay failure due to file with 0 links and extents",
            "fsync of a file without names logs it, so that they go from the last commit"),
    _toggle("log-replay-dir-times", "?", "6.17",
            "btrfs: do not set mtime/ctime to current time when unlinking for log replay",
            "a name that a replay takes from a directory does not change the directory's times"),
    _toggle("send-punch-hole", "005b0a0c24e1", "6.17",
            "btrfs: send: use fallocate for hole punching with send stream v2",
            "protocol 2: holes are punched instead of written as zeros"),
    _toggle("send-check-dirs-unique", "1fabe43b4e1a", "6.18",
            "btrfs: send: fix duplicated rmdir operations when using extrefs",
            "a parent directory is visited once for all names of an inode"),
    _toggle("log-new-name-refs", "953902e4fb4c", "6.18",
            "btrfs: set inode flag BTRFS_INODE_COPY_EVERYTHING when logging new name",
            "an inode that was renamed is logged with its names, as one with a new link is"),
    _toggle("send-inline-not-hole", "08b096c1372c", "6.19",
            "btrfs: send: check for inline extents in range_is_hole_in_parent()",
            "an inline extent of the parent is not taken for a hole"),
    _toggle("log-moved-conflicts", "266273eaf4d9?", "6.19",
            "btrfs: don't log conflicting inode if it's a dir moved in the current transaction",
            "fsync commits when a moved directory had the name of what is logged"),
    _toggle("log-new-name-dentries", "5630f7557de6", "6.19",
            "btrfs: do not skip logging new dentries when logging a new name",
            "a directory that is logged for a rename is so with the inodes of its new entries"),
    _toggle("log-old-conflicts", "7ba0b6461bc4", "6.19",
            "btrfs: always detect conflicting inodes when logging inode refs",
            "who had the name at the last commit is logged for inodes of older transactions too"),
    _toggle("log-conflict-dentries", "9573a365ff9f", "7.0",
            "btrfs: log new dentries when logging parent dir of a conflicting inode",
            "a directory logged for a removed conflicting one is so with its new entries' inodes"),
    _toggle("log-exists-size", "5254d4181add?", "7.0",
            "btrfs: fix zero size inode with non-zero size after log replay",
            "an inode logged because it must exist has the size of the last commit"),
    _toggle("log-rmdir-mark", "999757231c49?", "7.1",
            "btrfs: fix missing last_unlink_trans update when removing a directory",
            "fsync of a removed directory that is open commits; 6.1.176 marks it too early, so "
            "that the one above is not logged either: it is without log-rmdir"),
    _toggle("send-verity", "", "",
            "btrfs: send: add support for fs-verity",
            "protocol 3, only in kernels built for debugging: ENABLE_VERITY"),
)  # fmt: skip

TOGGLES: dict[str, Toggle] = {toggle.slug: toggle for toggle in _TABLE}
"""Toggles by slug, in the order of the releases that they entered."""

# What Debian's and the stable trees' kernels have beyond the release of their name.
_BACKPORTS: dict[str, tuple[str, ...]] = {
    "v5.10.46": ("send-rmdir-generation", "send-unlink-path"),
    "v5.10.223": (
        "log-sub-trans",
        "send-rmdir-generation",
        "send-unlink-path",
        "log-new-name-logged",
        "log-prealloc-full",
        "log-symlinks-full",
        "send-clone-src-eof",
        "fiemap-join-no-start",
    ),
    "v6.1.176": (
        "opendir-last-index",
        "fiemap-join-no-start",
        "send-trailing-hole",
        "send-clone-unaligned-tail",
        "send-truncate-before-clone",
        "send-punch-hole",
        "send-inline-not-hole",
        "log-moved-conflicts",
        "log-new-name-dentries",
        "log-old-conflicts",
        "log-conflict-dentries",
    ),
    "v6.12.101": (
        "send-cur-inode-path",
        "send-punch-hole",
        "send-inline-not-hole",
        "log-moved-conflicts",
        "log-new-name-dentries",
        "log-old-conflicts",
        "log-conflict-dentries",
    ),
    "v6.18.44": (
        "send-inline-not-hole",
        "log-moved-conflicts",
        "log-new-name-dentries",
        "log-old-conflicts",
        "log-conflict-dentries",
        "log-exists-size",
        "log-rmdir-mark",
    ),
}

PRESETS: tuple[str, ...] = (
    "v4.16", "v4.17", "v5.10", "v5.10.46", "v5.10.223", "v5.12", "v5.13", "v5.16", "v5.17", "v6.1",
    "v6.1.176", "v6.2", "v6.3", "v6.12", "v6.12.101", "v6.18", "v6.18.44",
)  # fmt: skip
"""Kernels by name: the releases around each commit, and those of which records exist."""


def _version(name: str) -> tuple[int, int]:
    major, minor = name.removeprefix("v").split(".")[:2]
    return int(major), int(minor)


@cache
def _preset(name: str) -> frozenset[str]:
    released = {
        toggle.slug
        for toggle in TOGGLES.values()
        if toggle.release and _version(toggle.release) <= _version(name)
    }
    return frozenset(released | set(_BACKPORTS.get(name, ())))


class Behaviour:
    """What a kernel does: a set of toggles.

    Parameters
    ----------
    slugs : iterable of str
        The toggles that are on.
    text : str
        How it was asked for; shown in reports.
    """

    def __init__(self, slugs: frozenset[str], text: str) -> None:
        self.slugs = slugs
        self.text = text

    @classmethod
    def parse(cls, text: str | Behaviour) -> Behaviour:
        """Read ``PRESET [+ TOGGLE | - TOGGLE]...``, e.g. ``v6.12 - send-utimes-cache``.

        Raises
        ------
        UnknownBehaviourError
            For a preset or toggle that is not in the table.
        BtrfsModelError
            For a toggle that the model knows of but does not have yet.

        Warns
        -----
        BehaviourWarning
            For a toggle that is added and was there already, or taken away and was not there.
        """
        if isinstance(text, Behaviour):
            return text
        # a slug has dashes in it, so an operator is a sign with white space around it
        name, *rest = re.split(r"\s+([+-])\s*", text.strip())
        if name not in PRESETS:
            raise UnknownBehaviourError(
                f"unknown kernel '{name}' in behaviour '{text}': one of {', '.join(PRESETS)}"
                f"{did_you_mean(name, PRESETS)}"
            )
        slugs = set(_preset(name))
        for sign, slug in zip(rest[::2], rest[1::2], strict=True):
            toggle = TOGGLES.get(slug)
            if toggle is None:
                raise UnknownBehaviourError(
                    f"unknown toggle '{slug}' in behaviour '{text}'{did_you_mean(slug, TOGGLES)}"
                )
            if not toggle.implemented:
                raise BtrfsModelError(
                    f"toggle '{slug}' of behaviour '{text}' is not in the model yet"
                )
            if (slug in slugs) == (sign == "+"):
                there = "already has" if sign == "+" else "does not have"
                warnings.warn(
                    f"behaviour '{text}': {name} {there} toggle '{slug}', '{sign} {slug}' changes "
                    "nothing",
                    BehaviourWarning,
                    stacklevel=2,
                )
            (slugs.add if sign == "+" else slugs.discard)(slug)
        return cls(frozenset(slugs), text.strip())

    def __contains__(self, slug: str) -> bool:
        if slug not in TOGGLES:
            raise UnknownNameError("toggle", slug, TOGGLES)
        return slug in self.slugs

    def __iter__(self) -> Iterator[str]:
        return (slug for slug in TOGGLES if slug in self.slugs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Behaviour) and self.slugs == other.slugs

    def __hash__(self) -> int:
        return hash(self.slugs)

    def __repr__(self) -> str:
        return f"Behaviour({self.text!r})"

    def _repr_html_(self) -> str:
        title = f"{self.text}: {len(self.slugs)} of {len(TOGGLES)} toggles"
        name, *_ = self.text.split(maxsplit=1) or [""]
        plain = _preset(name) if name in PRESETS else frozenset()
        changed = [TOGGLES[slug] for slug in TOGGLES if (slug in self.slugs) != (slug in plain)]
        rows = [("+" if one.slug in self.slugs else "-", one.slug, one.release, one.what)
                for one in changed]  # fmt: skip
        return html_table(title, ["", "toggle", "release", "what"], rows, len(rows))

    def __str__(self) -> str:
        return self.text

    @property
    def bits(self) -> int:
        """The toggles as bits for the C kernels: ``1 << enum bm_toggle``."""
        return sum(TOGGLES[slug].bit for slug in self.slugs)


def table() -> pd.DataFrame:
    """Return the table of toggles.

    Returns
    -------
    pandas.DataFrame
        A row for each toggle: slug, release, commit, verified, title, what, implemented.
    """
    import pandas as pd

    columns = ("slug", "release", "commit", "verified", "title", "what", "implemented")
    return pd.DataFrame(
        [[getattr(toggle, name) for name in columns] for toggle in TOGGLES.values()],
        columns=list(columns),
    )
