# SPDX-License-Identifier: GPL-2.0-only
"""The table of toggles: every kernel commit that the model can be taken back before.

A *toggle* is one commit, or the part of it that can be seen from outside. Code asks for one by its
member of :class:`Patch` and never for a version of the kernel; :mod:`btrfs_model.behaviour` says
which kernel has which.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

KERNEL: Final = "v6.18.44"
"""The kernel that is asked, and that mounts a filesystem, where none is named: the newest beside
which all tests put the model."""


class Asked(StrEnum):
    """Who asks for a toggle."""

    C = "C"
    PYTHON = "Python"
    """Python alone."""
    NOWHERE = "nowhere"
    """Nobody. It is the same with and without: no inode leaves memory here, no two calls run at
    once, and nothing is relocated."""


class Patch(StrEnum):
    """One commit as a switch; as a string it is its name, such as ``send-utimes-cache``.

    In the order in which the main line got them. A commit of another tree stands where its date is;
    what is in no release, or in a stable kernel alone, comes last.

    Attributes
    ----------
    commit : str
        First twelve digits of its id in the main line.
    release : str
        The release that it entered, e.g. ``"6.3"``; empty: in no release, because it depends on a
        build option or is what a stable kernel alone does.
    subject : str
        First line of its message.
    what : str
        What it changes, in one line.
    asked : Asked
        Who asks for it; in a row C does where nothing else stands.
    backports : tuple of str
        Stable releases that it entered, e.g. ``"6.1.76"``, of those that are known.
    """

    commit: str
    release: str
    subject: str
    what: str
    asked: Asked
    backports: tuple[str, ...]

    # calls ask for toggles all the time, and the hash of an Enum is Python
    __hash__ = str.__hash__

    def __new__(
        cls, slug: str, commit: str, release: str, subject: str, what: str, *more: Asked | str
    ) -> Self:
        """Make a member of a row of the table; `more` is who asks, and the backports."""
        patch = str.__new__(cls, slug)
        patch._value_ = slug
        patch.commit, patch.release, patch.subject, patch.what = commit, release, subject, what
        patch.asked = next((one for one in more if isinstance(one, Asked)), Asked.C)
        patch.backports = tuple(one for one in more if not isinstance(one, Asked))
        return patch

    @property
    def needs(self) -> tuple[Patch, ...]:
        """The toggles without which it has no meaning."""
        return _NEEDS.get(self, ())

    @property
    def needed_by(self) -> tuple[Patch, ...]:
        """The toggles that have no meaning without it, those further up too."""
        found = [patch for patch in Patch if self in patch.needs]
        return tuple(dict.fromkeys(one for up in found for one in (*up.needed_by, up)))

    # fmt: off
    SEND_SKIP_TRUNCATE = (
        "send-skip-truncate", "ffa7c4296e93", "4.17",
        "Btrfs: send, do not issue unnecessary truncate operations",
        "no TRUNCATE after a file whose writes already gave it its size; of what is preallocated "
        "behind the end no range is sent without data",
    )
    TRUNCATE_SAME_SIZE = (
        "truncate-same-size", "213e8c5520ed", "4.17",
        "Btrfs: skip writeback of last page when truncating file to same size",
        "the receiver does not write back the last page when truncating to the same size",
        Asked.PYTHON,
    )
    SEND_RMDIR_RESUME = (
        "send-rmdir-resume", "0f96f517dcaa", "4.18",
        "btrfs: incremental send, improve rmdir performance for large directory",
        "the entries of a directory that waits for its removal are looked at from where the last "
        "look ended",
    )
    SEND_NO_LINKS = (
        "send-no-links", "46b2f4590aab", "4.19",
        "Btrfs: fix send failure when root has deleted files still open",
        "of an inode without links only the removal of its old names is sent; before, the send "
        "fails",
    )
    SEND_NO_HOLE_BEHIND_EOF = (
        "send-no-hole-behind-eof", "22d3151c2c4c", "4.19",
        "Btrfs: send, fix incorrect file layout after hole punching beyond eof",
        "a hole that starts at the end of the file or behind it is not written",
    )
    SEND_CLONE_PARTS = (
        "send-clone-parts", "040ee6120cb6", "5.2",
        "Btrfs: send, improve clone range",
        "also a file that has only a part of an extent, or ends in it, is cloned from",
    )
    SEND_CLONE_EOF_BLOCK = (
        "send-clone-eof-block", "3c850b451109", "5.2",
        "Btrfs: incremental send, fix emission of invalid clone operations",
        "the last block of a clone source is written where it would come into the middle of a file",
    )
    SEND_HOLE_TO_EOF = (
        "send-hole-to-eof", "6b1f72e5b82a", "5.2",
        "Btrfs: incremental send, fix file corruption when no-holes feature is enabled",
        "a hole in front of what is preallocated behind the end of the file is written up to that "
        "end only",
        "4.14.124", "4.19.49", "5.1.8",
    )
    SEND_EXTENT_ALONE = (
        "send-extent-alone", "b4f9a1a87a48", "5.3",
        "Btrfs: fix incremental send failure after deduplication",
        "a file extent that differs where the inode does not is passed over; before, the send "
        "fails, unless the extent only lies elsewhere",
        "4.9.188", "4.14.137", "4.19.65", "5.2.7",
    )
    SEND_CLONE_REFS_64 = (
        "send-clone-refs-64", "fd0ddbe25095", "5.5",
        "Btrfs: send, skip backreference walking for extents with many references",
        "an extent with more than 64 references is not cloned",
        Asked.PYTHON, "4.9.207", "4.14.159", "4.19.90", "5.3.17", "5.4.4",
    )
    SEND_CLONE_SAME_FILE = (
        "send-clone-same-file", "11f2069c113e", "5.5",
        "Btrfs: send, allow clone operations within the same file",
        "an extent is cloned from an earlier place of the file that is sent",
        "5.4.71",
    )
    SEND_CLONE_SENT_PART = (
        "send-clone-sent-part", "9722b1014850", "5.6",
        "Btrfs: send, fix emission of invalid clone operations within the same file",
        "of the file that is sent, only what was sent whole is cloned",
        "5.4.71", "5.5.3",
    )
    SEND_CAPS_LAST = (
        "send-caps-last", "89efda52e6b6", "5.8",
        "btrfs: send: emit file capabilities after chown",
        "security.capability is sent after the owner, each time, and not among the other xattrs",
    )
    SEND_ORPHANIZE_FIRST = (
        "send-orphanize-first", "98272bb77bf4", "5.10",
        "btrfs: send, orphanize first all conflicting inodes when processing references",
        "all conflicting names are moved away before the first new name is made",
        "5.9.5",
    )
    SEND_RECOMPUTE_REF_PATH = (
        "send-recompute-ref-path", "9c2b4e034706", "5.10",
        "btrfs: send, recompute reference path after orphanization of a directory",
        "the path of an inode that is in the way is computed again before it is moved away, when "
        "a directory was moved away before",
        "5.9.5",
    )
    SEND_RMDIR_GENERATION = (
        "send-rmdir-generation", "0b3f407e6728", "5.11",
        "btrfs: send: fix wrong file path when there is an inode with a pending rmdir",
        "directories that wait for removal are told apart by generation too",
        "5.10.7",
    )
    SEND_CLONE_SELF_EOF = (
        "send-clone-self-eof", "518837e65068", "5.11",
        "btrfs: send: fix invalid clone operations when cloning from the same file and root",
        "a file that is cloned from itself is so up to where it reaches by then; the rest is "
        "written",
        "5.10.11",
    )
    LOG_PARENTS_UNCHECKED = (
        "log-parents-unchecked", "64d6b281ba4d", "5.12",
        "btrfs: remove unnecessary check_parent_dirs_for_sync()",
        "an fsync looks for no reason to commit in the directories above; only a directory that is "
        "logged whole and lost a name by a rename makes it commit",
        Asked.PYTHON,
    )
    SEND_READA = (
        "send-reada", "19358b154fce", "5.13",
        "btrfs: add btree read ahead for full send operations",
        "a full send reads leaves ahead (READA_FORWARD)",
    )
    SEND_READA_COMPARE = (
        "send-reada-compare", "2ce73c633573", "5.13",
        "btrfs: add btree read ahead for incremental send operations",
        "the comparison of two trees reads ahead children newer than the parent snapshot",
    )
    LOG_SUB_TRANS = (
        "log-sub-trans", "bc0939fcfab0", "5.13",
        "btrfs: fix race between marking inode needs to be logged and log syncing",
        "a changed inode is marked as in no log by its own numbers, not by those of the last log "
        "synced, so a sync at the same time cannot make it look logged",
        Asked.PYTHON, "5.10.62",
    )
    SEND_READA_ALWAYS = (
        "send-reada-always", "ace75066ced9", "5.13",
        "btrfs: improve btree readahead for full send operations",
        "a full send reads nodes and leaves ahead wherever they lie (READA_FORWARD_ALWAYS)",
    )
    SEND_UNLINK_PATH = (
        "send-unlink-path", "d8ac76cdd175", "5.14",
        "btrfs: send: fix invalid path for unlink operations after parent orphanization",
        "the path of another inode's link that is in the way is computed again before it is "
        "removed, when a directory was moved away before",
        "5.10.50",
    )
    PROP_EMPTY_RESETS = (
        "prop-empty-resets", "5548c8c6f55b", "5.14",
        "btrfs: props: change how empty value is interpreted",
        "an empty property btrfs.compression is as none; no and none, which were refused, "
        "forbid compression",
        Asked.PYTHON,
    )
    LOG_NEW_NAME_LOGGED = (
        "log-new-name-logged", "ecc64fab7d49", "5.14",
        "btrfs: fix lost inode on log replay after mix of fsync, rename and inode eviction",
        "an inode changed in this transaction, of which it is forgotten whether it was logged, "
        "counts as logged when it gets a new name",
        Asked.PYTHON, "5.10.57",
    )
    READA_ALWAYS_CACHED = (
        "reada-always-cached", "069a2e37789a", "5.15",
        "btrfs: continue readahead of siblings even if target node is in memory",
        "READA_FORWARD_ALWAYS reads siblings ahead even when the block itself is cached",
    )
    BATCH_DELAYED_ITEMS = (
        "batch-delayed-items", "506650dcb3a7", "5.15",
        "btrfs: improve the batch insertion of delayed items",
        "delayed directory items go into the tree in batches of up to a leaf",
    )
    LOG_BULK_INSERT = (
        "log-bulk-insert", "eb10d85ee77f", "5.16",
        "btrfs: insert items in batches when logging a directory when possible",
        "items of a directory go into the log in one insertion for each run of a leaf",
        Asked.PYTHON,
    )
    LOG_BULK_COPY = (
        "log-bulk-copy", "da1b811fcd4b", "5.16",
        "btrfs: use single bulk copy operations when logging directories",
        "items of a directory that go into the log together are copied with one call",
        Asked.PYTHON,
    )
    LZO_ANY_SIZE = (
        "lzo-any-size", "d4088803f511", "5.16",
        "btrfs: subpage: make lzo_compress_pages() compatible",
        "lzo data that did not become smaller are taken where they fit inline",
        Asked.PYTHON,
    )
    LOG_DIR_INDEX_ONLY = (
        "log-dir-index-only", "339d03542484", "5.17",
        "btrfs: only copy dir index keys when logging a directory",
        "DIR_ITEM keys are neither logged nor replayed",
        Asked.PYTHON,
    )
    LOG_REPLAY_INDEX_DELETES = (
        "log-replay-index-deletes", "ccae4a19c914", "5.17",
        "btrfs: remove no longer needed logic for replaying directory deletes",
        "a replay removes names by index alone",
        Asked.PYTHON,
    )
    FREE_SPACE_BY_SIZE = (
        "free-space-by-size", "59c7b566a3b6", "5.17",
        "btrfs: index free space entries on size",
        "an entry of free space takes more memory, so bitmaps come earlier; in mixed groups a "
        "mount fails that looks for an extent of a log in one",
        Asked.PYTHON,
    )
    SEND_RELOCATION = (
        "send-relocation", "d96b34248c2f", "5.17",
        "btrfs: make send work with concurrent block group relocation",
        "a send and a relocation may run at once: leaves are copied before use, and searches made "
        "again when blocks moved",
        Asked.NOWHERE, "5.16.15",
    )
    LOG_PREALLOC_FULL = (
        "log-prealloc-full", "d99478874355", "5.17",
        "btrfs: fix lost prealloc extents beyond eof after full fsync",
        "a full fsync logs what is allocated beyond the end of a file even where its leaf did not "
        "change in this transaction",
        Asked.PYTHON, "5.10.104", "5.16.13",
    )
    LOG_NO_BOUNDARY_KEYS = (
        "log-no-boundary-keys", "a450a4af7433", "5.18",
        "btrfs: don't log unnecessary boundary keys when logging directory",
        "keys at the edges of a logged range are not copied",
        Asked.PYTHON,
    )
    LOG_SKIP_OLD_DIR_ITEMS = (
        "log-skip-old-dir-items", "732d591a5d6c", "5.18",
        "btrfs: stop copying old dir items when logging a directory",
        "directory items of older transactions are not copied into the log",
        Asked.PYTHON,
    )
    LEAF_BALANCE_LAZY = (
        "leaf-balance-lazy", "7c4063d19efc", "5.18",
        "btrfs: avoid unnecessary COW of leaves when deleting items from a leaf",
        "after a deletion items are pushed only where a whole leaf can be emptied",
    )
    LOG_SYMLINKS_FULL = (
        "log-symlinks-full", "d0e64a981fd8", "5.18",
        "btrfs: always log symlinks in full mode",
        "a symbolic link that must exist is logged with its target",
        Asked.PYTHON, "5.10.115", "5.17.7",
    )
    SEARCH_NO_RESTART = (
        "search-no-restart", "4bb59055bcde", "5.19",
        "btrfs: avoid unnecessary btree search restarts when reading node",
        "a search that holds no locks goes on after a block had to be read",
    )
    SEND_STREAM_V2 = (
        "send-stream-v2", "d6815592806f", "6.0",
        "btrfs: send: enable support for stream v2 and compressed writes",
        "protocol 2: otimes, encoded writes, data of up to 128 KiB",
        Asked.PYTHON,
    )
    SEND_REFS_RBTREE = (
        "send-refs-rbtree", "3aa5bd367fa5", "6.0",
        "btrfs: send: fix sending link commands for existing file paths",
        "new and deleted names of an inode are kept in two sorted trees, and a name in both is "
        "dropped from both",
    )
    LOG_SEARCH_LAST_INDEX = (
        "log-search-last-index", "193df6245704", "6.1",
        "btrfs: search for last logged dir index if it's not cached in the inode",
        "the last logged index is searched in the log when it is not in memory",
        Asked.NOWHERE,
    )
    LOG_CONFLICT_LIST = (
        "log-conflict-list", "e09d94c9e448", "6.1",
        "btrfs: log conflicting inodes without holding log mutex of the initial inode",
        "inodes that had a name of the logged one are put on a list, at most 10, and logged after "
        "it; stands also for what else changed in the logs of files from 5.10 to 6.1",
        Asked.PYTHON,
    )
    LOG_DELAYED_ITEMS = (
        "log-delayed-items", "30b80f3ce0f9", "6.1",
        "btrfs: use delayed items when logging a directory",
        "delayed directory items are logged without being flushed first",
        Asked.PYTHON,
    )
    SEND_NLINK_ZERO = (
        "send-nlink-zero", "9ed0a72e5b35", "6.1",
        "btrfs: send: fix failures when processing inodes with no links",
        "an inode without links counts as absent",
    )
    FIEMAP_PATH_CACHE = (
        "fiemap-path-cache", "12a824dc67a6", "6.1",
        "btrfs: speedup checking for extent sharedness during fiemap",
        "sharedness of the blocks on the path is cached by level",
    )
    FIEMAP_NEW_EXTENTS = (
        "fiemap-new-extents", "b8f164e3e67f", "6.1",
        "btrfs: skip unnecessary extent buffer sharedness checks during fiemap",
        "blocks above an extent newer than the last snapshot of the subvolume are not walked",
    )
    FIEMAP_FILE_EXTENTS = (
        "fiemap-file-extents", "ac3c0d36a2a2", "6.1",
        "btrfs: make fiemap more efficient and accurate reporting extent sharedness",
        "FIEMAP walks file extent items instead of extent maps",
    )
    SEND_CLONE_SRC_EOF = (
        "send-clone-src-eof", "a11452a3709e", "6.1",
        "btrfs: send: avoid unaligned encoded writes when attempting to clone range",
        "what is left of a range behind the end of the clone source is written in one piece",
        "5.10.159",
    )
    ZSTD_1_5_2 = (
        "zstd-1-5-2", "2aa14b1ab2c4", "6.2",
        "zstd: import usptream v1.5.2",
        "zstd compresses as version 1.5.2 does",
        Asked.PYTHON,
    )
    FIEMAP_NO_ROOTS = (
        "fiemap-no-roots", "b629685803bc", "6.2",
        "btrfs: remove roots ulist when checking data extent sharedness",
        "roots are not collected where only sharedness is asked",
    )
    FIEMAP_PREV_EXTENTS = (
        "fiemap-prev-extents", "73e339e6ab74", "6.2",
        "btrfs: cache sharedness of the last few data extents during fiemap",
        "the last eight data extents answer from a ring",
    )
    FIEMAP_SKIP_SAME_LEAF = (
        "fiemap-skip-same-leaf", "877c14767f10", "6.2",
        "btrfs: avoid duplicated resolution of indirect backrefs during fiemap",
        "a further extent of the same leaf takes the answer for the path, and its reference is not "
        "resolved",
    )
    FIEMAP_SKIP_NEW_EXTENTS = (
        "fiemap-skip-new-extents", "6976201f188f", "6.2",
        "btrfs: avoid unnecessary resolution of indirect backrefs during fiemap",
        "for an extent newer than the last snapshot not even its leaf is searched",
    )
    SEND_CLONE_NO_BACKREFS = (
        "send-clone-no-backrefs", "22a3c0ac8ed0", "6.2",
        "btrfs: send: avoid unnecessary backref lookups when finding clone source",
        "no walk for an extent with one reference when there is no other clone root",
    )
    SEND_CLONE_LARGEST = (
        "send-clone-largest", "c7499a64dcf6", "6.2",
        "btrfs: send: optimize clone detection to increase extent sharing",
        "the clone source with the most bytes wins instead of the lowest inode",
    )
    SEND_BACKREF_CACHE = (
        "send-backref-cache", "66d04209e5a8", "6.2",
        "btrfs: send: cache leaf to roots mapping during backref walking",
        "the roots that reach a leaf are remembered for 128 leaves",
    )
    SEND_BACKREF_SKIP = (
        "send-backref-skip", "88ffb665c894", "6.2",
        "btrfs: send: skip unnecessary backref iterations",
        "the walk stops at a source that covers the whole extent",
    )
    SEND_SINGLE_EXTENT_SEARCH = (
        "send-single-extent-search", "f73853c7168a", "6.2",
        "btrfs: send: avoid double extent tree search when finding clone source",
        "the extent item is looked at during the walk and not searched before it",
    )
    SEND_SKIP_OWN_REF = (
        "send-skip-own-ref", "adf0241868bd", "6.2",
        "btrfs: send: skip resolution of our own backref when finding clone source",
        "the reference of the extent being sent is not resolved",
    )
    SEND_CLONE_REFS_1024 = (
        "send-clone-refs-1024", "e2a041657774", "6.2",
        "btrfs: send: bump the extent reference count limit for backref walking",
        "extents with up to 1024 references are cloned, instead of 64",
        Asked.PYTHON,
    )
    LOG_LAST_INDEX_ON_INSERT = (
        "log-last-index-on-insert", "6afaed53cc9a", "6.2",
        "btrfs: simplify update of last_dir_index_offset when logging a directory",
        "the last logged index is set where items are inserted, not once at the end",
        Asked.NOWHERE, "6.1.12",
    )
    ZLIB_FLUSH_BITS = (
        "zlib-flush-bits", "195c5ad9d179", "6.3",
        "lib/zlib: fix DFLTCC not flushing EOBS when creating raw streams",
        "zlib lets out whole bytes of the bits that it holds before it looks whether a page is "
        "full, where a flush is left out",
        Asked.PYTHON,
    )
    ALLOC_SIZE_CLASS = (
        "alloc-size-class", "52bb7a2166af", "6.3",
        "btrfs: introduce size class to block group allocator",
        "extents of up to 128 KiB, up to 8 MiB and larger ones have block groups of their own",
        Asked.PYTHON,
    )
    SEND_OVERWRITE_GEN_LATE = (
        "send-overwrite-gen-late", "cb689481947a", "6.3",
        "btrfs: send: avoid unnecessary generation search at did_overwrite_ref()",
        "the generation of the overwriting inode is searched only where it matters",
    )
    SEND_OVERWRITE_GEN_ONCE = (
        "send-overwrite-gen-once", "498581f33c9e", "6.3",
        "btrfs: send: avoid extra b+tree searches when checking reference overrides",
        "the generation of the directory is taken from the search that was made already",
    )
    SEND_RMDIR_ONE_DESCENT = (
        "send-rmdir-one-descent", "78cf1a954da5", "6.3",
        "btrfs: send: avoid unnecessary orphan dir rbtree search at can_rmdir()",
        "one descent less into the tree of orphan directories",
    )
    SEND_RMDIR_LAST_ENTRY = (
        "send-rmdir-last-entry", "474e4761f6e8", "6.3",
        "btrfs: send: reduce searches on parent root when checking if dir can be removed",
        "the last entry of a directory tells whether it can be removed yet",
    )
    SEND_WAITING_ONCE = (
        "send-waiting-once", "8c139e1d7806", "6.3",
        "btrfs: send: iterate waiting dir move rbtree only once when processing refs",
        "one descent less into the tree of waiting moves",
    )
    SEND_DIR_CREATED_CACHE = (
        "send-dir-created-cache", "e8a7f49d9bfc", "6.3",
        "btrfs: send: cache information about created directories",
        "64 directories are remembered as created",
    )
    SEND_NAME_CACHE_LRU = (
        "send-name-cache-lru", "c48545debfff", "6.3",
        "btrfs: send: use the lru cache to implement the name cache",
        "the name cache of 256 drops the least recently used name instead of 128 at once",
    )
    SEND_BACKREF_CACHE_17 = (
        "send-backref-cache-17", "ace79df8a44a", "6.3",
        "btrfs: send: update size of roots array for backref cache entries",
        "a cached leaf may have 17 roots instead of 12",
        Asked.PYTHON,
    )
    SEND_UTIMES_CACHE = (
        "send-utimes-cache", "3e49363be633", "6.3",
        "btrfs: send: cache utimes operations for directories if possible",
        "UTIMES of a directory is sent once, at the end or when 64 others came later",
    )
    FIEMAP_SHARED_LEAF = (
        "fiemap-shared-leaf", "e2fd83064a9b", "6.3",
        "btrfs: skip backref walking during fiemap if we know the leaf is shared",
        "no walk for an extent whose leaf is known to be shared",
    )
    FIEMAP_MULTIPLE_PATHS = (
        "fiemap-multiple-paths", "2280d425ba35", "6.3",
        "btrfs: ignore fiemap path cache when there are multiple paths for a node",
        "once any block on the way up has two parents the cache of the path is left alone, and "
        "filled afterwards for the levels below",
    )
    LOG_COMMIT_ERROR = (
        "log-commit-error", "5cce1780dc47", "6.3",
        "btrfs: use a negative value for BTRFS_LOG_FORCE_COMMIT",
        "a new name that cannot be logged, for a directory that moved had it, marks the log for a "
        "full commit; before, what is logged next is synced without it",
        Asked.PYTHON,
    )
    LOG_FIRST_INDEX = (
        "log-first-index", "fa4b8cb17380", "6.4",
        "btrfs: avoid iterating over all indexes when logging directory",
        "new names of a directory are logged from the first index logged in this transaction on, "
        "not from index 0",
        Asked.PYTHON,
    )
    LOG_NEW_DENTRIES = (
        "log-new-dentries", "5d3e4f1d5123", "6.4",
        "btrfs: use log root when iterating over index keys when logging directory",
        "the inodes of new names are found in the log tree, not in the subvolume",
        Asked.PYTHON,
    )
    SUBVOL_CREATE_NO_COMMIT = (
        "subvol-create-no-commit", "1b53e51a4a8f", "6.5",
        "btrfs: don't commit transaction for every subvol create",
        "a subvolume that is created is committed with what comes after it, not at once",
        Asked.PYTHON,
    )
    OPENDIR_LAST_INDEX = (
        "opendir-last-index", "9b378f6ad48c", "6.5",
        "btrfs: fix infinite directory reads",
        "opendir notes the last index then in use, and readdir stops there",
        Asked.PYTHON, "6.1.76", "6.4.12",
    )
    NOCOW_NO_INLINE = (
        "nocow-no-inline", "53ffb30a784d", "6.6",
        "btrfs: don't create inline extents in fallback_to_cow",
        "a file that is written in place gets no inline extent where it has to be written anew",
        Asked.PYTHON,
    )
    NOCOMPRESS_BEFORE_INLINE = (
        "nocompress-before-inline", "6a7167bf9c92", "6.6",
        "btrfs: further simplify the compress or not logic in compress_file_range",
        "data that a compressor does not make smaller marks its file as incompressible also where "
        "it becomes an inline extent",
        Asked.PYTHON,
    )
    FIEMAP_JOIN_NO_START = (
        "fiemap-join-no-start", "4490e803e1fe", "6.6",
        "btrfs: don't start transaction when joining with TRANS_JOIN_NOSTART",
        "a check for sharing does not start a transaction",
        "5.10.195", "6.1.54", "6.5.4",
    )
    QGROUP_RESCAN_NO_EMPTY_COMMIT = (
        "qgroup-rescan-no-empty-commit", "6705b48a50d7", "6.6",
        "btrfs: avoid start and commit empty transaction when starting qgroup rescan",
        "a rescan of quota groups commits the transaction that runs first, and starts none",
        Asked.PYTHON,
    )
    QGROUP_FLUSH_NO_EMPTY_COMMIT = (
        "qgroup-flush-no-empty-commit", "9c93c238c15f", "6.6",
        "btrfs: avoid start and commit empty transaction when flushing qgroups",
        "a call for which a limit has no room commits the transaction that runs, and starts none",
        Asked.PYTHON,
    )
    SIMPLE_QUOTAS = (
        "simple-quotas", "182940f4f4db", "6.7",
        "btrfs: qgroup: add new quota mode for simple quotas",
        "quotas may count extents for who allocated them; their state has the generation in which "
        "that was switched on",
        Asked.PYTHON,
    )
    MOUNT_API = (
        "mount-api", "ad21f15b0f79", "6.8",
        "btrfs: switch to the new mount API",
        "mount options inode_cache and recovery are refused; numbers in options go up to 2^32 - "
        "1",
        Asked.PYTHON,
    )
    SEND_TRAILING_HOLE = (
        "send-trailing-hole", "5897710b28ca", "6.8",
        "btrfs: send: don't issue unnecessary zero writes for trailing hole",
        "a hole at the end of a file that was a hole before is not sent",
        "6.1.81", "6.7.9",
    )
    QGROUP_INHERIT_CHECKED = (
        "qgroup-inherit-checked", "86211eea8ae1", "6.9",
        "btrfs: qgroup: validate btrfs_qgroup_inherit parameter",
        "a subvolume cannot be put into a quota group that there is not, or that is a subvolume's",
        Asked.PYTHON,
    )
    QGROUP_QUICK_INHERIT = (
        "qgroup-quick-inherit", "b20fe56cd285", "6.9",
        "btrfs: qgroup: allow quick inherit if snapshot is created and added to the same parent",
        "a snapshot that goes into the quota group that its source is in needs no rescan, if that "
        "group has all it has alone",
        Asked.PYTHON,
    )
    FIEMAP_NO_DEADLOCK = (
        "fiemap-no-deadlock", "978b63f7464a", "6.9",
        "btrfs: fix race when detecting delalloc ranges during fiemap",
        "up to a page of entries is gathered while the range is locked and copied out after that; "
        "when it is full the walk begins anew behind the last one",
    )
    QGROUP_ID_COLLISION = (
        "qgroup-id-collision", "2b8aa78cf127", "6.10",
        "btrfs: qgroup: fix qgroup id collision across mounts",
        "a mount leaves out the ids of subvolumes that are gone and still have quota groups",
        Asked.PYTHON, "6.9.5",
    )
    QGROUP_ENABLED_FIRST = (
        "qgroup-enabled-first", "34064fc3c9b5", "6.11",
        "btrfs: qgroup: do quick checks if quotas are enabled before starting ioctls",
        "calls on quota groups look for quotas before their arguments, and start no transaction "
        "where there are none",
        Asked.PYTHON,
    )
    QGROUP_REMOVE_GONE = (
        "qgroup-remove-gone", "a776bf5f3c23", "6.11",
        "btrfs: slightly loosen the requirement for qgroup removal",
        "the quota group of a subvolume that is gone can be deleted whatever it counts; quotas are "
        "inconsistent then",
        Asked.PYTHON,
    )
    QGROUP_AUTO_REMOVE = (
        "qgroup-auto-remove", "839d6ea4f86d", "6.11",
        "btrfs: automatically remove the subvolume qgroup",
        "the quota group of a subvolume is deleted once the subvolume is dropped, after a commit",
        Asked.PYTHON,
    )
    UMOUNT_NO_EMPTY_COMMIT = (
        "umount-no-empty-commit", "cab0d8623fb4", "6.11",
        "btrfs: avoid create and commit empty transaction when committing super",
        "the commit at unmount joins a transaction that runs, and starts none",
        Asked.PYTHON,
    )
    SEND_CLONE_UNALIGNED_TAIL = (
        "send-clone-unaligned-tail", "46a6e10a1ab1", "6.11",
        "btrfs: send: allow cloning non-aligned extent if it ends at i_size",
        "the unaligned last extent of a file can be cloned",
        "6.1.107", "6.10.7",
    )
    SEND_TRUNCATE_BEFORE_CLONE = (
        "send-truncate-before-clone", "fa630df665aa", "6.12",
        "btrfs: send: fix invalid clone operation for file that got its size decreased",
        "an existing file is truncated before its unaligned tail is cloned",
        "6.1.113", "6.11.3",
    )
    QGROUP_DROP_THRESHOLD = (
        "qgroup-drop-threshold", "5f9062a48db2", "6.12",
        "btrfs: qgroup: set a more sane default value for subtree drop threshold",
        "shared subtrees of four levels and more are not looked at when one of their trees is "
        "dropped; quotas are inconsistent then",
        Asked.PYTHON, "6.11.6",
    )
    WRITE_BY_PAGE = (
        "write-by-page", "c87c299776e4", "6.13",
        "btrfs: make buffered write to copy one page a time",
        "a write reserves room and quotas page by page; before, for up to 512 pages at once",
        Asked.PYTHON,
    )
    ZSTD_1_5_7 = (
        "zstd-1-5-7", "65d1f5507ed2", "6.15",
        "zstd: Import upstream v1.5.7",
        "zstd compresses as version 1.5.7 does",
        Asked.PYTHON,
    )
    ZSTD_NEGATIVE_LEVELS = (
        "zstd-negative-levels", "da798fa519df", "6.15",
        "btrfs: zstd: enable negative compression levels mount option",
        "levels of zstd from -15 on; others are raised to the least that there is",
        Asked.PYTHON,
    )
    SEND_CUR_INODE_PATH = (
        "send-cur-inode-path", "fc746acb7aa9", "6.15",
        "btrfs: send: keep the current inode's path cached",
        "the path of the inode being sent is computed once and kept until a command changes it",
        "6.12.44",
    )
    NOCOW_BEHIND_HOLE = (
        "nocow-behind-hole", "be3f1938d3e6", "6.15",
        "btrfs: fix COW handling in run_delalloc_nocow()",
        "what is written over a hole and the preallocated extent behind it goes into that extent; "
        "before, all of it into a new one",
        Asked.PYTHON, "6.6.90", "6.12.28", "6.14.6",
    )
    LOG_NO_LINKS = (
        "log-no-links", "5e85262e542d", "6.16",
        "btrfs: fix fsync of files with no hard links not persisting deletion",
        "fsync of an open file whose last name is gone logs it with its parents, so that a replay "
        "removes it; before it did nothing",
        Asked.PYTHON,
    )
    LOG_REPLAY_ERRNO = (
        "log-replay-errno", "5f61b961599a", "6.16",
        "btrfs: fix inode lookup error handling during log replay",
        "a replay of a log that relies on an inode that is not there ends with ENOENT; before, "
        "with EIO",
        Asked.PYTHON, "6.12.37",
    )
    COMPRESS_OPTION_EXACT = (
        "compress-option-exact", "3f093ccb95f3", "6.17",
        "btrfs: harden parsing of compression mount options",
        "after the name of an algorithm a mount option has nothing but a colon and a level",
        Asked.PYTHON,
    )
    LOG_OTIME = (
        "log-otime", "1ef94169db09", "6.17",
        "btrfs: populate otime when logging an inode item",
        "a logged inode has its time of creation; before, the field had what memory had, zeros "
        "here",
        "5.4.297", "5.10.241", "5.15.190", "6.1.149", "6.6.103", "6.12.43", "6.15.11", "6.16.2",
    )
    SEND_PUNCH_HOLE = (
        "send-punch-hole", "005b0a0c24e1", "6.17",
        "btrfs: send: use fallocate for hole punching with send stream v2",
        "protocol 2: holes are punched instead of written as zeros",
        "6.1.149", "6.12.44",
    )
    LOG_REPLAY_DIR_TIMES = (
        "log-replay-dir-times", "f022499f24e5", "6.17",
        "btrfs: do not set mtime/ctime to current time when unlinking for log replay",
        "a replay that removes a name leaves the times of the directory as logged",
        Asked.PYTHON,
    )
    COMPRESS_LZO_LEVEL = (
        "compress-lzo-level", "4e8beaef8f2d", "6.17",
        "btrfs: accept and ignore compression level for lzo",
        "compress=lzo stands for level 1, which files with another algorithm as their property "
        "use",
        Asked.PYTHON,
    )
    COMPRESS_LEVEL_CHECKED = (
        "compress-level-checked", "b98b20830057", "6.17",
        "btrfs: reject invalid compression level",
        "a level that is no number is refused, where it was the default",
        Asked.PYTHON,
    )
    SEND_CHECK_DIRS_UNIQUE = (
        "send-check-dirs-unique", "1fabe43b4e1a", "6.18",
        "btrfs: send: fix duplicated rmdir operations when using extrefs",
        "a parent directory is visited once for all names of an inode",
    )
    LOG_NEW_NAME_REFS = (
        "log-new-name-refs", "953902e4fb4c", "6.18",
        "btrfs: set inode flag BTRFS_INODE_COPY_EVERYTHING when logging new name",
        "after a rename, as after a new link, the next fsync copies the inode with all its names",
        Asked.PYTHON,
    )
    LOG_NEW_NAME_UNSYNCED = (
        "log-new-name-unsynced", "bfe3d755ef7c", "6.18",
        "btrfs: do not update last_log_commit when logging inode due to a new name",
        "a directory that is logged for a new name does not count as synced, so an fsync of it "
        "syncs the log",
        Asked.PYTHON, "6.1.159", "6.6.117", "6.12.59", "6.17.9",
    )
    LOG_MOVED_CONFLICTS = (
        "log-moved-conflicts", "266273eaf4d9", "6.19",
        "btrfs: don't log conflicting inode if it's a dir moved in the current transaction",
        "fsync commits when a moved directory had the name of what is logged",
        Asked.PYTHON, "6.1.160", "6.12.64", "6.18.3",
    )
    LOG_NEW_NAME_DENTRIES = (
        "log-new-name-dentries", "5630f7557de6", "6.19",
        "btrfs: do not skip logging new dentries when logging a new name",
        "a directory that is logged for a rename is so with the inodes of its new entries",
        Asked.PYTHON, "6.1.160", "6.12.64", "6.18.3",
    )
    LOG_OLD_CONFLICTS = (
        "log-old-conflicts", "7ba0b6461bc4", "6.19",
        "btrfs: always detect conflicting inodes when logging inode refs",
        "who had the name at the last commit is logged for inodes of older transactions too",
        Asked.PYTHON, "6.1.161", "6.12.66", "6.18.6",
    )
    SEND_INLINE_NOT_HOLE = (
        "send-inline-not-hole", "08b096c1372c", "6.19",
        "btrfs: send: check for inline extents in range_is_hole_in_parent()",
        "an inline extent of the parent is not taken for a hole",
        "6.1.167", "6.12.67", "6.18.7",
    )
    LOG_CONFLICT_DENTRIES = (
        "log-conflict-dentries", "9573a365ff9f", "7.0",
        "btrfs: log new dentries when logging parent dir of a conflicting inode",
        "a directory logged for a removed conflicting one is so with its new entries' inodes",
        Asked.PYTHON, "6.1.191", "6.12.78", "6.18.20", "6.19.10",
    )
    QGROUP_CALL_RESERVES = (
        "qgroup-call-reserves", "f9a4e3015db1", "7.0",
        "btrfs: reserve enough transaction items for qgroup ioctls",
        "calls on quota groups reserve room and quotas for what they change; before, they only "
        "join a transaction",
        Asked.PYTHON, "6.1.191", "6.12.81", "6.18.22",
    )
    LOG_EXISTS_SIZE = (
        "log-exists-size", "5254d4181add", "7.0",
        "btrfs: fix zero size inode with non-zero size after log replay",
        "an inode logged only because it must exist has the size of the last commit instead of 0, "
        "and keeps its generation",
        Asked.PYTHON, "6.1.191", "6.12.114", "6.18.24",
    )
    SNAPSHOT_NO_COW = (
        "snapshot-no-cow", "1fce8eec9f89", "7.1",
        "btrfs: avoid unnecessary root node COW during snapshotting",
        "the root of a subvolume is copied for its snapshot as it is, not COWed before",
    )
    SOCKET_XATTRS = (
        "socket-xattrs", "dc0876b9846d", "7.1",
        "xattr: support extended attributes on sockets",
        "a socket can have attributes of users (user.*)",
        Asked.PYTHON,
    )
    COMPRESS_WHOLE_BLOCKS = (
        "compress-whole-blocks", "6f706f34fc4c", "7.1",
        "btrfs: switch to btrfs_compress_bio() interface for compressed writes",
        "the last block of a file is compressed to its end; before, to the end of the file",
        Asked.PYTHON,
    )
    NOCOMPRESS_NOT_ONE_BLOCK = (
        "nocompress-not-one-block", "2e0e3716c7b6", "7.1",
        "btrfs: do not mark inode incompressible after inline attempt fails",
        "a file of one block that is not small enough for an inline extent when it is compressed "
        "is not marked as incompressible",
        Asked.PYTHON, "6.12.91", "6.18.30",
    )
    TRUNCATE_EMPTY = (
        "truncate-empty", "0e6a169c6487", "7.1",
        "btrfs: fix unnecessary flush on close when truncating zero-sized files",
        "an empty file that is truncated to nothing is not written back when it is closed next",
        Asked.PYTHON,
    )
    INLINE_FIRST = (
        "inline-first", "3eaf5f082c4c", "7.1",
        "btrfs: extract inlined creation into a dedicated delalloc helper",
        "a file of one block becomes an inline extent before anything else is tried, also where it "
        "is written in place; its block is compressed whole, and the file is never marked as "
        "incompressible for it",
        Asked.PYTHON,
    )
    LOG_RMDIR_MARK = (
        "log-rmdir-mark", "999757231c49", "7.1",
        "btrfs: fix missing last_unlink_trans update when removing a directory",
        "a removed directory is marked as unlinked in this transaction, so an fsync of one that is "
        "open commits",
        Asked.PYTHON, "6.1.176", "6.12.91", "6.18.30",
    )
    MERGE_HOLES = (
        "merge-holes", "022568f8d529", "7.2",
        "btrfs: optimize fill_holes() to merge a new hole with both adjacent items",
        "without no-holes, a hole between two holes becomes one item with both",
        Asked.PYTHON,
    )
    CHATTR_KEEPS_NODATASUM = (
        "chattr-keeps-nodatasum", "15f7c86215e8", "7.3",
        "btrfs: do not overwrite NODATASUM flag when removing NODATACOW flag",
        "mounted with nodatasum, an empty file keeps NODATASUM through a chattr that does not set "
        "NODATACOW; before, any such chattr takes it away",
        Asked.PYTHON, "6.12.113", "7.2.7",
    )
    LOG_RMDIR_COMMITS = (
        "log-rmdir-commits", "999757231c49", "",
        "btrfs: fix missing last_unlink_trans update when removing a directory",
        "only in 6.1 since 6.1.176, whose backport marks the directory too early: fsync of the "
        "directory above commits as well",
        Asked.PYTHON, "6.1.176",
    )
    SEND_VERITY = (
        "send-verity", "38622010a6de", "",
        "btrfs: send: add support for fs-verity",
        "protocol 3, only in kernels built for debugging: ENABLE_VERITY",
        Asked.PYTHON,
    )
    # fmt: on


_NEEDS: Final[dict[Patch, tuple[Patch, ...]]] = {
    Patch.SEND_CLONE_EOF_BLOCK: (Patch.SEND_CLONE_PARTS,),
    Patch.SEND_HOLE_TO_EOF: (Patch.SEND_NO_HOLE_BEHIND_EOF,),
    Patch.SEND_CLONE_REFS_1024: (Patch.SEND_CLONE_REFS_64,),
    Patch.SEND_CLONE_SENT_PART: (Patch.SEND_CLONE_SAME_FILE,),
    Patch.SEND_CLONE_SELF_EOF: (Patch.SEND_CLONE_SAME_FILE,),
    Patch.SEND_NLINK_ZERO: (Patch.SEND_NO_LINKS,),
    Patch.SEND_RMDIR_ONE_DESCENT: (Patch.SEND_RMDIR_RESUME,),
    Patch.SEND_RMDIR_LAST_ENTRY: (Patch.SEND_RMDIR_RESUME,),
    # hashes of names have gaps that say nothing, so what is between two keys means something of
    # indexes alone
    Patch.LOG_NO_BOUNDARY_KEYS: (Patch.LOG_DIR_INDEX_ONLY,),
    Patch.LOG_SKIP_OLD_DIR_ITEMS: (Patch.LOG_NO_BOUNDARY_KEYS,),
    # that is what waits: indexes of this transaction, which are logged outside of the lock
    Patch.LOG_DELAYED_ITEMS: (Patch.LOG_SKIP_OLD_DIR_ITEMS, Patch.LOG_CONFLICT_LIST),
    Patch.LOG_CONFLICT_LIST: (Patch.LOG_SYMLINKS_FULL,),
    Patch.LOG_COMMIT_ERROR: (Patch.LOG_CONFLICT_LIST,),
    Patch.LOG_FIRST_INDEX: (Patch.LOG_DELAYED_ITEMS,),
    Patch.LOG_NEW_DENTRIES: (Patch.LOG_FIRST_INDEX,),
    Patch.LOG_NO_LINKS: (Patch.LOG_CONFLICT_LIST,),
    Patch.LOG_NEW_NAME_REFS: (Patch.LOG_CONFLICT_LIST,),
    Patch.LOG_NEW_NAME_UNSYNCED: (Patch.LOG_CONFLICT_LIST,),
    Patch.LOG_OLD_CONFLICTS: (Patch.LOG_CONFLICT_LIST,),
    Patch.LOG_MOVED_CONFLICTS: (Patch.LOG_CONFLICT_LIST,),
    Patch.LOG_NEW_NAME_DENTRIES: (Patch.LOG_CONFLICT_LIST,),
    Patch.LOG_CONFLICT_DENTRIES: (Patch.LOG_CONFLICT_LIST,),
    Patch.LOG_EXISTS_SIZE: (Patch.LOG_CONFLICT_LIST,),
}
