# SPDX-License-Identifier: GPL-2.0-only
"""Inodes in memory: what a kernel has between a system call and the tree.

A call changes the inode in memory. Its item in the tree follows when the delayed items of the inode
are run (:mod:`btrfs_model.mount.delayed_inode`), as it was when it was last marked dirty.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from btrfs_model.mount.files.pages import DirtyBytes, FilePages
from btrfs_model.mount.log.state import InodeLog
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import Payload
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.volume.tree import RawKey

ROOT_DIR: Final = int(ObjectId.FIRST_FREE)
"""Inode number of the top directory of each subvolume."""

EMPTY_SUBVOL_DIR: Final = 2
"""Inode number of a directory that stands for a subvolume that is not there.

A snapshot has the entries of the subvolumes in its source, but not these subvolumes.
"""

DIR_START_INDEX: Final = 2
"""First index of a directory; 0 and 1 are for "." and "..", which have no items."""

NS: Final = 10**9
"""Nanoseconds of a second."""

_UNKNOWN: Final = int(FileType.UNKNOWN)
_pack_inode_item = INODE_ITEM.struct.pack
_S_IFMT: Final = 0o170000
_FILE_TYPES: Final = {
    stat.S_IFREG: int(FileType.REG_FILE),
    stat.S_IFDIR: int(FileType.DIR),
    stat.S_IFCHR: int(FileType.CHRDEV),
    stat.S_IFBLK: int(FileType.BLKDEV),
    stat.S_IFIFO: int(FileType.FIFO),
    stat.S_IFSOCK: int(FileType.SOCK),
    stat.S_IFLNK: int(FileType.SYMLINK),
}


CAPABILITY: Final = b"security.capability"
"""The attribute that makes a file a privileged program."""

ACCESS: Final = b"system.posix_acl_access"
DEFAULT: Final = b"system.posix_acl_default"

NO_XATTRS: Final[Mapping[bytes, bytes | None]] = dict.fromkeys((CAPABILITY, ACCESS, DEFAULT))
"""What is known of the attributes of a new inode."""


def split_ns(time: int) -> tuple[int, int]:
    """Seconds (without sign, as on disk) and nanoseconds of a time in nanoseconds."""
    seconds, nanoseconds = divmod(time, NS)
    return seconds % 2**64, nanoseconds


def _join_ns(seconds: int, nanoseconds: int) -> int:
    return (seconds - 2**64 if seconds >> 63 else seconds) * NS + nanoseconds


def file_type(mode: int) -> int:
    """``enum btrfs_file_type`` of a mode (``btrfs_inode_type()``)."""
    return _FILE_TYPES.get(mode & _S_IFMT, _UNKNOWN)


@dataclass(slots=True)
class InodeFields:
    """The fields of an inode item, to be changed; times are nanoseconds since 1970."""

    generation: int = 0
    transid: int = 0
    size: int = 0
    nbytes: int = 0
    block_group: int = 0
    nlink: int = 1
    uid: int = 0
    gid: int = 0
    mode: int = 0
    rdev: int = 0
    flags: int = 0
    sequence: int = 0
    reserved: tuple[int, ...] = (0, 0, 0, 0)
    atime: int = 0
    ctime: int = 0
    mtime: int = 0
    otime: int = 0

    @classmethod
    def unpack(cls, payload: Payload) -> Self:
        """Read an INODE_ITEM.

        Raises PayloadError: when it is too short.
        """
        flat = INODE_ITEM.flat(payload)
        item = cls(*flat[:12])
        item.reserved = flat[12:16]
        item.atime, item.ctime, item.mtime, item.otime = (
            _join_ns(*flat[at : at + 2]) for at in range(16, 24, 2)
        )
        return item

    def pack(self) -> bytes:
        """Return the bytes of the INODE_ITEM (``fill_inode_item()``)."""
        # every change of an inode comes here
        atime, atime_ns = divmod(self.atime, NS)
        ctime, ctime_ns = divmod(self.ctime, NS)
        mtime, mtime_ns = divmod(self.mtime, NS)
        otime, otime_ns = divmod(self.otime, NS)
        # sizes of a damaged inode wrap around, as they do in a kernel
        return _pack_inode_item(
            self.generation, self.transid, self.size % 2**64, self.nbytes % 2**64,
            self.block_group, self.nlink,
            self.uid, self.gid, self.mode, self.rdev, self.flags, self.sequence, *self.reserved,
            atime % 2**64, atime_ns, ctime % 2**64, ctime_ns, mtime % 2**64, mtime_ns,
            otime % 2**64, otime_ns,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class LiveInode:
    """An inode in memory (``struct btrfs_inode``).

    `root`, `ino`: subvolume and inode number.
    `item`: what it is; whoever changes it calls :func:`.mark_inode_dirty`.
    `dir_index`: index of its only name in the directory, 0 when it has several or that is not
    known: an inode whose index is known gives up its INODE_REF with the update of its item.
    `index_cnt`: of a directory: the index of the next entry; None before it was looked up.
    `holders`: how many have it open; an inode without names goes when the last of them lets go.
    `prop_compress`: the property ``btrfs.compression``, empty for none.
    `defrag_compress`: by which defragmentation compresses, while it writes.
    `defragged`: ranges that wait to be written elsewhere (``EXTENT_DEFRAG``).
    `writeback_index`: where the last writeback of the whole file ended, bytes.
    `log`: what fsync has to know of it.
    `dirty`: where its filesystem counts what waits for writeback.
    `xattrs`: values of attributes that were looked up, None for one that it does not have (as
    ``i_acl`` and ``S_NOSEC``); a change of attributes begins it anew.
    `dentries`: of a directory: names that were looked up, and what has them; None: nothing has
    (a negative dentry). Whoever adds or removes a name calls :func:`.d_drop`.
    `hole_maps`: holes whose extent maps are in memory, ascending: a lookup there finds more than it
    asks for.
    """

    root: int
    ino: int
    item: InodeFields
    dir_index: int = 0
    index_cnt: int | None = None
    holders: int = 0
    prop_compress: bytes = b""
    log: InodeLog = field(default_factory=InodeLog, repr=False)
    dirty: DirtyBytes = field(default_factory=DirtyBytes, repr=False)
    xattrs: Mapping[bytes, bytes | None] = field(default_factory=dict, repr=False)
    dentries: dict[bytes, LiveInode | None] = field(default_factory=dict, repr=False)
    _pages: FilePages | None = field(default=None, repr=False)
    hole_maps: list[tuple[int, int]] = field(default_factory=list, repr=False)
    defrag_compress: str = ""
    defragged: list[tuple[int, int]] = field(default_factory=list, repr=False)
    writeback_index: int = 0

    @property
    def pages(self) -> FilePages:
        """Its dirty pages."""
        if self._pages is None:
            self._pages = FilePages(self.item.size, self.dirty, (self.root, self.ino))
        return self._pages

    @property
    def i_size(self) -> int:
        """The size that calls see (``i_size_read()``)."""
        return self.item.size if self._pages is None else self._pages.i_size

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.item.mode & _S_IFMT == stat.S_IFDIR

    @property
    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self.item.mode & _S_IFMT == stat.S_IFLNK

    @property
    def key(self) -> RawKey:
        """Key of its item."""
        return (self.ino, ItemType.INODE_ITEM, 0)


class NewRange(NamedTuple):
    """Inodes made at once.

    `first`, `many`: their numbers.
    `entry`: directory index of the first.
    `cloned`: transaction in which extents were cloned to them; 0: none.
    """

    first: int
    many: int
    entry: int
    cloned: int


class LiveSubvolume:
    """What is in memory of a subvolume.

    `next_ino` (int): the next inode's number; numbers are not used again while the filesystem is
    mounted.
    `inodes` (dict of int to LiveInode): by number.
    `walked` (dict of bytes to LiveInode): of the top of the filesystem: directories by their paths.
    `ranges` (list of NewRange): inodes made at once.
    """

    __slots__ = ("inodes", "next_ino", "ranges", "walked")

    def __init__(self, next_ino: int) -> None:
        self.next_ino = next_ino
        self.inodes: dict[int, LiveInode] = {}
        self.walked: dict[bytes, LiveInode] = {}
        self.ranges: list[NewRange] = []
