# SPDX-License-Identifier: GPL-2.0-only
"""From paths to inodes, in a filesystem that is being changed.

Paths start at the top of the filesystem and lead through subvolumes and symbolic links; a link with
an absolute target starts there as well, as if the filesystem were the root of the process.
"""

from __future__ import annotations

import errno
import stat
from typing import Final, NamedTuple

from btrfs_model.mount.inode import iget, live_subvolume, open_directory
from btrfs_model.mount.live_inode import EMPTY_SUBVOL_DIR, ROOT_DIR, InodeFields, LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.dir_item import NAME_LEN, dir_item_key, fail, lookup_dir_item
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.items import InlineExtent, file_extent, root_ref
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.volume.subvolume import split_path

Path = str | bytes
"""A path, from the top of the filesystem."""

_TOP: Final = int(ObjectId.FS_TREE)
_MAX_LINKS: Final = 40
_IMMUTABLE, _APPEND = int(InodeFlag.IMMUTABLE), int(InodeFlag.APPEND)
_S_IFMT, _S_IFLNK = 0o170000, 0o120000
_STORED: Final = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_NO_FILES: Final = (stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK)
PATH_MAX: Final = 4096
"""Bytes of a path, the zero behind it included."""

RDONLY: Final = 1 << 0
"""``BTRFS_ROOT_SUBVOL_RDONLY`` in the flags of a root item."""


class Entry(NamedTuple):
    """The last name of a path and what it leads to.

    `directory`: where the name is or would be.
    `name`: the name; "", "." and ".." are no names of entries.
    `inode`: what has the name.
    `path`: the path, for errors.
    `slash`: whether slashes follow the name.
    """

    directory: LiveInode
    name: bytes
    inode: LiveInode | None
    path: Path
    slash: bool

    @property
    def is_name(self) -> bool:
        """Whether the path ends in a name that an entry can have."""
        return _is_name(self.name)


def as_bytes(path: Path) -> bytes:
    """Return a path or name as bytes."""
    return path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")


def find(fs: Mount, path: Path, *, follow: bool = True) -> LiveInode:
    """Return the inode that a path leads to, through a symbolic link at its end with `follow`.

    Raises OSError: ENOENT, ENOTDIR, ELOOP or ENAMETOOLONG.
    """
    raw = _checked(path)
    if raw in fs.opened:
        return fs.opened[raw]
    slash = raw.endswith(b"/")
    if not slash:
        head, _, name = raw.rpartition(b"/")
        directory = live_subvolume(fs, _TOP).walked.get(head)
        known = directory.dentries.get(name) if directory is not None else None
        if directory is not None and known is not None and not (follow and known.is_symlink):
            known.log.parent = directory.root, directory.ino
            return known
    walk = _Walk(fs, path)
    walk.through(raw.split(b"/"), follow=follow or slash)
    if slash and not walk.at.is_dir:
        raise fail(errno.ENOTDIR, path)
    return walk.at


def find_entry(fs: Mount, path: Path) -> Entry:
    """Return the last entry of a path, which need not exist.

    Raises OSError: as :func:`find`, for what comes before the last name; ENAMETOOLONG for the name.
    """
    return look_up(fs, find_parent(fs, path))


def _is_name(name: bytes) -> bool:
    """Whether a name is one that an entry can have."""
    return name not in (b"", b".", b"..")


def find_parent(fs: Mount, path: Path) -> Entry:
    """Return the last entry of a path without looking for its inode.

    Raises OSError: as :func:`find`, for what comes before the last name.
    """
    raw = _checked(path)
    head, _, name = raw.rstrip(b"/").rpartition(b"/")
    walked = live_subvolume(fs, _TOP).walked
    directory = walked.get(head)
    if directory is None:
        walk = _Walk(fs, path)
        walk.through(head.split(b"/"), follow=True)
        directory = walk.at
        if not directory.is_dir:
            raise fail(errno.ENOTDIR, path)
        if directory.ino != EMPTY_SUBVOL_DIR:
            walked[head] = directory
    return Entry(directory, name, None, path, raw.endswith(b"/"))


def look_up(fs: Mount, entry: Entry) -> Entry:
    """Return an entry with its inode.

    Raises OSError: ENAMETOOLONG.
    """
    directory, name, _, path, slash = entry
    if not _is_name(name):
        return entry
    return Entry(directory, name, lookup(fs, directory, name, path), path, slash)


def _checked(path: Path) -> bytes:
    raw = as_bytes(path)
    if b"\0" in raw:
        raise fail(errno.EINVAL, path)
    if len(raw) >= PATH_MAX:
        raise fail(errno.ENAMETOOLONG, path)
    return raw


class _Walk:
    """A walk through directories; remembers the way back for "..".

    `at` (LiveInode): where it is.
    """

    __slots__ = ("_fs", "_links", "_path", "_way", "at")

    def __init__(self, fs: Mount, path: Path) -> None:
        self._fs = fs
        self._path = path
        self._links = 0
        self._way: list[LiveInode] = []
        self.at = iget(fs, _TOP, ROOT_DIR)

    def through(self, names: list[bytes], *, follow: bool) -> None:
        """Go on through `names`; `follow` is for a symbolic link under the last of them."""
        todo, way = names[::-1], self._way
        while todo:
            name, at = todo.pop(), self.at
            # every call comes here, most of them to names that are known
            inode = at.dentries.get(name)
            if inode is None:
                if name in (b"", b"."):
                    continue
                if not at.is_dir:
                    raise fail(errno.ENOTDIR, self._path)
                if name == b"..":
                    self.at = way.pop() if way else at
                    continue
                inode = lookup(self._fs, at, name, self._path)
                if inode is None:
                    raise fail(errno.ENOENT, self._path)
            if inode.item.mode & _S_IFMT == _S_IFLNK and (follow or _names_more(todo)):
                todo += self._target(inode)
                continue
            inode.log.parent = at.root, at.ino
            way.append(at)
            self.at = inode

    def _target(self, link: LiveInode) -> list[bytes]:
        """Names in the target of a link, the last first."""
        self._links += 1
        if self._links > _MAX_LINKS:
            raise fail(errno.ELOOP, self._path)
        target = read_link(self._fs, link)
        if target.startswith(b"/"):
            self.at = self._way[0] if self._way else self.at
            self._way.clear()
        return target.split(b"/")[::-1]


def _names_more(todo: list[bytes]) -> bool:
    """Whether a name is left of a path."""
    return any(name not in (b"", b".") for name in todo)


def lookup(fs: Mount, directory: LiveInode, name: bytes, path: Path) -> LiveInode | None:
    """Return the inode of an entry of a directory, or None (``lookup_fast()``).

    Raises OSError: ENAMETOOLONG.
    """
    dentries = directory.dentries
    if name in dentries:
        return dentries[name]
    inode = _lookup_dentry(fs, directory, name, path)
    # what stands for a subvolume that is not here is made anew each time
    if inode is None or inode.ino != EMPTY_SUBVOL_DIR:
        dentries[name] = inode
    return inode


def _lookup_dentry(fs: Mount, directory: LiveInode, name: bytes, path: Path) -> LiveInode | None:
    """``btrfs_lookup_dentry()``."""
    if len(name) > NAME_LEN:
        raise fail(errno.ENAMETOOLONG, path)
    if directory.ino == EMPTY_SUBVOL_DIR:
        return None
    entry = lookup_dir_item(fs, directory.root, dir_item_key(directory.ino, name), name)
    if entry is None:
        return None
    if entry.location.type == ItemType.INODE_ITEM:
        return iget(fs, directory.root, entry.location.objectid)
    return _lookup_subvolume(fs, directory, name, entry.location)


def _lookup_subvolume(fs: Mount, directory: LiveInode, name: bytes, location: Key) -> LiveInode:
    """``fixup_tree_root_location()``, or ``new_simple_dir()`` where the subvolume is not here."""
    key = (directory.root, ItemType.ROOT_REF, location.objectid)
    payload = fs.writer.get(int(ObjectId.ROOT_TREE), key)
    if payload is not None:
        ref = root_ref(payload)
        if (ref.dirid, ref.name) == (directory.ino, name):
            return iget(fs, location.objectid, ROOT_DIR)
    mode = stat.S_IFDIR | 0o755
    return LiveInode(directory.root, EMPTY_SUBVOL_DIR, InodeFields(mode=mode))


def read_link(fs: Mount, link: LiveInode) -> bytes:
    """Return the target of a symbolic link.

    Raises OSError: EINVAL when it is none.
    """
    payload = fs.writer.get(link.root, (link.ino, ItemType.EXTENT_DATA, 0))
    extent = file_extent(payload) if payload is not None else None
    if not link.is_symlink or not isinstance(extent, InlineExtent):
        raise fail(errno.EINVAL, f"subvolume {link.root}, inode {link.ino}")
    # mkfs.btrfs leaves a zero byte behind it
    return extent.data[: link.item.size]


def is_there(fs: Mount, subvolume: bytes | int, file: bytes | int | None) -> bool:
    """Whether the running transaction has a subvolume or a file in it; nothing changes by it.

    `subvolume`: path from the top of the filesystem, or id.
    `file`: path in the subvolume, or inode number. Symbolic links are not followed.
    """
    living = {root.id for root in fs.live_roots() if root.refs}
    if isinstance(subvolume, int) and file is None:
        return subvolume in living
    root, ino = subvolume if isinstance(subvolume, int) else int(ObjectId.FS_TREE), ROOT_DIR
    if isinstance(file, int):
        return fs.writer.get(root, (file, ItemType.INODE_ITEM, 0)) is not None
    for name in split_path(subvolume if isinstance(subvolume, bytes) else file or b""):
        entry = lookup_dir_item(fs, root, dir_item_key(ino, name), name)
        if entry is None:
            return False
        ino = entry.location.objectid
        if entry.location.type != ItemType.INODE_ITEM:
            root, ino = ino, ROOT_DIR
            if root not in living or file is not None:
                return False
    return ino == ROOT_DIR or file is not None


# ------------------------------------------------------------------------------- may it be done --


def is_read_only(fs: Mount, root: int) -> bool:
    """Whether a subvolume is read-only (``btrfs_root_readonly()``)."""
    return bool(fs.live_root(root).flags & RDONLY)


def may_write(fs: Mount, inode: LiveInode, path: Path) -> None:
    """See that an inode may be written to by root (``inode_permission(MAY_WRITE)``).

    Raises OSError: EPERM for an immutable inode, EROFS in a read-only subvolume: not for fifos,
    sockets and devices, where to write changes nothing of the filesystem.
    """
    item = inode.item
    if item.flags & _IMMUTABLE:
        raise fail(errno.EPERM, path)
    if stat.S_IFMT(item.mode) in _STORED and is_read_only(fs, inode.root):
        raise fail(errno.EROFS, path)


def may_change_names(
    fs: Mount, directory: LiveInode, path: Path, *, of_subvolume: int = errno.EACCES
) -> None:
    """See that a directory can get and lose names.

    `path`: as which it was found.
    `of_subvolume`: errno for one that stands for a subvolume of which there is a snapshot.
    Raises OSError: that, ENOTDIR, and as :func:`may_write`.
    """
    if not directory.is_dir:
        raise fail(errno.ENOTDIR, path)
    if directory.ino == EMPTY_SUBVOL_DIR:
        raise fail(of_subvolume, path)
    may_write(fs, directory, path)


def open_inode(fs: Mount, path: Path, *, writes: bool = False) -> LiveInode:
    """Find an inode and do what open(2) does (``do_open()``).

    Sockets cannot be opened. Nor are device nodes: their drivers are no part of a filesystem.

    Raises OSError: ENXIO, EISDIR for a directory that is to be written to.
    """
    inode = find(fs, path)
    if inode.is_dir:
        if writes:
            raise fail(errno.EISDIR, path)
        open_directory(fs, inode)
    elif stat.S_IFMT(inode.item.mode) in _NO_FILES:
        raise fail(errno.ENXIO, path)
    return inode


def may_delete(fs: Mount, entry: Entry, victim: LiveInode, *, as_directory: bool) -> None:
    """See that an entry may be removed (``may_delete()``).

    Raises OSError: EROFS, EPERM, ENOTDIR or EISDIR.
    """
    may_write(fs, entry.directory, entry.path)
    if entry.directory.item.flags & _APPEND or victim.item.flags & (_APPEND | _IMMUTABLE):
        raise fail(errno.EPERM, entry.path)
    if as_directory and not victim.is_dir:
        raise fail(errno.ENOTDIR, entry.path)
    if not as_directory and victim.is_dir:
        raise fail(errno.EISDIR, entry.path)


def ancestors(fs: Mount, directory: LiveInode) -> list[LiveInode]:
    """Return a directory and those above it, up to the top of the filesystem."""
    found = [directory]
    while (directory.root, directory.ino) != (ObjectId.FS_TREE, ROOT_DIR):
        if directory.ino == ROOT_DIR:
            kind, tree = ItemType.ROOT_BACKREF, int(ObjectId.ROOT_TREE)
            item = fs.writer.tree(tree).first((directory.root, kind, 0))
            if item is None or item.key[:2] != (directory.root, kind):
                break
            directory = iget(fs, item.key.offset, root_ref(item.data).dirid)
        else:
            item = fs.writer.tree(directory.root).first((directory.ino, ItemType.INODE_REF, 0))
            if item is None or item.key[:2] != (directory.ino, ItemType.INODE_REF):
                break
            directory = iget(fs, directory.root, item.key.offset)
        found.append(directory)
    return found
