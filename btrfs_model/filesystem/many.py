# SPDX-License-Identifier: GPL-2.0-only
"""The same call on many names: what it does to the trees, without the calls.

The trees, the inodes and the clock end up as they would after one call for each name, in the order
given. What the calls change in the trees is put together as arrays and carried out by one kernel
(``bm_writer_apply()``). Where a directory hands something down to new files (an ACL, flags, a
property, a group), there is a call for each name after all.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.btree.apply import CHANGE
from btrfs_model.filesystem import acl
from btrfs_model.filesystem.dir_entries import NAME_LEN, fail
from btrfs_model.filesystem.live_inode import EMPTY_SUBVOL_DIR, InodeFields, InodeFlag, LiveInode
from btrfs_model.filesystem.lookup import Path, as_bytes, find, lookup, may_write
from btrfs_model.filesystem.xattrs import get_xattr
from btrfs_model.kernels import ffi, lib
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import DIR_ITEM, INODE_REF

if TYPE_CHECKING:
    from btrfs_model.filesystem.writable import WritableFilesystem

__all__ = ["create_files", "name_hashes"]

_CHUNK: Final = 2048
_INODE_SIZE: Final = 160
_HANDED_DOWN: Final = InodeFlag.NOCOMPRESS | InodeFlag.COMPRESS | InodeFlag.NODATACOW
_TICKS: Final = 4
"""Times that create() takes: of the inode, of the root item, of the directory, of the root item."""

_OWN, _DIRECTORY, _ROOT = 0, 2, 3
_U64: Final = np.dtype("<u8")


class _Names(NamedTuple):
    """Names as a matrix: a row each, filled up with zeros."""

    text: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.uint32]


def create_files(
    fs: WritableFilesystem, directory: Path, names: Sequence[Path], mode: int = 0o666
) -> npt.NDArray[np.uint64]:
    """Make empty files in a directory, as :meth:`create` does one after the other.

    Parameters
    ----------
    fs : WritableFilesystem
        The filesystem.
    directory : str or bytes
        Path of the directory.
    names : sequence of str or bytes
        Names in it, in the order of creation.
    mode : int
        Permissions before the umask.

    Returns
    -------
    numpy.ndarray
        Their inode numbers.

    Raises
    ------
    OSError
        ENOENT, ENOTDIR, EROFS ... of the directory; EEXIST for a name that is there or comes twice,
        EINVAL or ENAMETOOLONG for what is no name. Nothing is made then.
    """
    parent = find(fs, directory)
    if not parent.is_dir:
        raise fail(errno.ENOTDIR, directory)
    if parent.ino == EMPTY_SUBVOL_DIR:
        raise fail(errno.EACCES, directory)
    may_write(fs, parent, directory)
    raw = [as_bytes(name) for name in names]
    _check_names(fs, parent, raw)
    if _hands_down(fs, parent):
        start = as_bytes(directory) + b"/"
        return np.array([fs.create(start + name, mode).ino for name in raw], np.uint64)
    item = InodeFields(mode=stat.S_IFREG | mode & 0o7777 & ~fs.umask, uid=fs.uid, gid=fs.gid)
    inos = [np.zeros(0, np.uint64)]
    done = 0
    while done < len(raw):
        fs.start_transaction()
        count = min(_CHUNK, fs.delayed.calls_until_worker(1, parent))
        inos.append(_create(fs, parent, raw[done : done + count], item))
        fs.delayed.balance()
        done += count
    return np.concatenate(inos)


def _check_names(fs: WritableFilesystem, parent: LiveInode, names: list[bytes]) -> None:
    seen: set[bytes] = set()
    for name in names:
        if name in seen:
            raise fail(errno.EEXIST, name)
        seen.add(name)
        if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
            raise fail(errno.EINVAL, name)
        if len(name) > NAME_LEN:
            raise fail(errno.ENAMETOOLONG, name)
    if parent.item.size and names:
        text = _matrix(names)
        hashes = name_hashes(text.text[_used(text, 0, text.text.shape[1])], text.sizes)
        tree = fs.writer.tree(parent.root)
        for name, number in zip(names, hashes.tolist(), strict=True):
            taken = tree.get((parent.ino, ItemType.DIR_ITEM, number)) is not None
            if taken and lookup(fs, parent, name, name) is not None:
                raise fail(errno.EEXIST, name)


def _hands_down(fs: WritableFilesystem, parent: LiveInode) -> bool:
    """Whether new files get anything from their directory."""
    return bool(
        parent.item.flags & _HANDED_DOWN
        or parent.item.mode & stat.S_ISGID
        or parent.prop_compress
        or get_xattr(fs, parent, acl.DEFAULT) is not None
    )


def _create(
    fs: WritableFilesystem, parent: LiveInode, names: list[bytes], item: InodeFields
) -> npt.NDArray[np.uint64]:
    count, root = len(names), parent.root
    text = _matrix(names)
    start = fs.clock
    tick = fs.now() - start or fs.clock - start
    fs.clock = start + count * _TICKS * tick
    inos = fs.inodes.new_range(root, count)
    indexes = fs.inodes.next_indexes(parent, count)
    times = start + np.arange(count) * _TICKS * tick
    entries = _entries(fs, text, inos)
    refs = _refs(text, indexes)
    changes = _changes(parent, text, inos)
    changes["size"] = np.stack(
        [np.full(count, _INODE_SIZE), text.sizes + INODE_REF.size, text.sizes + DIR_ITEM.size], 1
    ).ravel()
    width = text.text.shape[1]
    rows = np.concatenate([_inode_items(fs, item, times), refs, entries], axis=1)
    used = np.concatenate(
        [np.ones((count, _INODE_SIZE), bool), _used(text, INODE_REF.size, width),
         _used(text, DIR_ITEM.size, width)], axis=1,
    )  # fmt: skip
    fs.writer.apply(root, changes, rows[used].tobytes())
    fs.inodes.remember_range(root, int(inos[0]), count, int(indexes[0]))
    payloads = entries[_used(text, DIR_ITEM.size, width)].tobytes()
    fs.delayed.insert_indexes(
        parent, int(indexes[0]), _cut(payloads, (text.sizes + DIR_ITEM.size).tolist())
    )
    parent.item.size += 2 * int(text.sizes.sum(dtype=np.int64))
    parent.item.sequence += count
    parent.item.mtime = parent.item.ctime = int(times[-1]) + _DIRECTORY * tick
    end, fs.clock = fs.clock, int(times[-1]) + _ROOT * tick
    fs.mark_inode_dirty(parent)
    assert fs.clock == end
    return inos


def _matrix(names: list[bytes]) -> _Names:
    sizes = np.fromiter(map(len, names), np.uint32, len(names))
    width = int(sizes.max())
    padded = b"".join(name.ljust(width, b"\0") for name in names)
    return _Names(np.frombuffer(padded, np.uint8).reshape(len(names), width), sizes)


def _used(names: _Names, head: int, width: int) -> npt.NDArray[np.bool_]:
    """Which bytes of rows of a head and a name are not filling."""
    return np.arange(head + width) < (head + names.sizes)[:, None]


def _bytes_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)


def _inode_items(
    fs: WritableFilesystem, item: InodeFields, times: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Inode items that differ in their times alone."""
    item.generation = item.transid = fs.transid
    rows = np.tile(np.frombuffer(item.pack(), np.uint8), (len(times), 1))
    stamp = np.zeros(len(times), np.dtype([("sec", "<u8"), ("nsec", "<u4")]))
    stamp["sec"], stamp["nsec"] = np.divmod(times + _OWN, 10**9)
    for at in range(_INODE_SIZE - 4 * 12, _INODE_SIZE, 12):
        rows[:, at : at + 12] = _bytes_of(stamp)
    return rows


def _refs(names: _Names, indexes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """INODE_REF payloads: index, size of the name, name."""
    head = np.zeros(len(indexes), np.dtype([("index", "<u8"), ("size", "<u2")]))
    head["index"], head["size"] = indexes, names.sizes
    return np.concatenate([_bytes_of(head), names.text], axis=1)


def _entries(
    fs: WritableFilesystem, names: _Names, inos: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint8]:
    """DIR_ITEM payloads of regular files."""
    head = np.zeros(
        len(inos),
        np.dtype([("ino", "<u8"), ("type", "u1"), ("offset", "<u8"), ("transid", "<u8"),
                  ("data", "<u2"), ("size", "<u2"), ("kind", "u1")]),
    )  # fmt: skip
    head["ino"], head["type"], head["transid"] = inos, int(ItemType.INODE_ITEM), fs.transid
    head["size"], head["kind"] = names.sizes, int(lib.BTRFS_FT_REG_FILE)
    return np.concatenate([_bytes_of(head), names.text], axis=1)


def _changes(parent: LiveInode, names: _Names, inos: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Return what each file inserts: inode item and name side by side, then the entry."""
    rows = np.zeros((len(inos), 3), CHANGE)
    rows["objectid"][:, 0] = rows["objectid"][:, 1] = inos
    rows["objectid"][:, 2] = parent.ino
    rows["type"] = (int(ItemType.INODE_ITEM), int(ItemType.INODE_REF), int(ItemType.DIR_ITEM))
    rows["offset"][:, 1] = parent.ino
    rows["offset"][:, 2] = name_hashes(
        names.text[_used(names, 0, names.text.shape[1])], names.sizes
    )
    rows["kind"] = (lib.BM_WRITER_INSERT, lib.BM_WRITER_INSERT, lib.BM_WRITER_INSERT_ENTRY)
    rows["more"][:, 0] = 1
    return rows.ravel()


def _cut(payloads: bytes, sizes: Iterable[int]) -> list[bytes]:
    cut, at = [], 0
    for size in sizes:
        cut.append(payloads[at : at + size])
        at += size
    return cut


def name_hashes(
    text: npt.NDArray[np.uint8], sizes: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint64]:
    """Return the hashes of names that follow each other."""
    hashes = np.empty(len(sizes), np.uint64)
    flat = np.ascontiguousarray(text)
    lib.bm_name_hashes(
        ffi.from_buffer("uint8_t[]", flat), ffi.from_buffer("uint32_t[]", sizes), len(sizes),
        ffi.from_buffer("uint64_t[]", hashes),
    )  # fmt: skip
    return hashes
