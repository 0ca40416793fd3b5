# SPDX-License-Identifier: GPL-2.0-only
"""Everything in a subvolume as one table.

Each path comes with what ``stat``, ``listxattr`` and reading the file would give. The tree is
scanned once: its names (DIR_INDEX) are unpacked by a C kernel in one call, inodes are gathered into
one array; only the contents of files go through Python file by file.
"""

from __future__ import annotations

import hashlib
import stat
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.native.items import entries, gather, select
from btrfs_model.ondisk.items import file_extent
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.structs import INODE_ITEM, InodeItem
from btrfs_model.volume.data import FileExtent, FileReader
from btrfs_model.volume.roots import timespec_ns
from btrfs_model.volume.tree import Item

if TYPE_CHECKING:
    from btrfs_model.volume.subvolume import Subvolume

Columns = dict[str, npt.NDArray[Any]]

EMPTY_SUBVOL_DIR: Final = 2
"""Inode number of the entry that stands for a subvolume of which this one is a snapshot."""

FS_FLAGS: Final = {
    1 << 1: 0x00800000,  # NODATACOW
    1 << 3: 0x00000400,  # NOCOMPRESS
    1 << 5: 0x00000008,  # SYNC
    1 << 6: 0x00000010,  # IMMUTABLE
    1 << 7: 0x00000020,  # APPEND
    1 << 8: 0x00000040,  # NODUMP
    1 << 9: 0x00000080,  # NOATIME
    1 << 10: 0x00010000,  # DIRSYNC
    1 << 11: 0x00000004,  # COMPRESS
    1 << 32: 0x00100000,  # RO_VERITY
}
"""Bits of an inode's flags and those that ``chattr`` and ``lsattr`` show for them."""

_NOCOMPRESS: Final = 1 << 3
_COMPRESS: Final = 1 << 11
_HOLE: Final = bytes(1 << 20)
_READ_STEP: Final = 64 << 20
_MANY_ZEROS: Final = 16 << 30
_BLOCK: Final = 4096


_DTYPES: Final = {"path": "object", "target": "object", "sha256": "object", "xattrs": "object"}


def to_fs_flags(flags: int) -> int:
    """Inode flags as ``FS_IOC_GETFLAGS`` shows them (``btrfs_inode_flags_to_fsflags()``)."""
    if flags & _NOCOMPRESS:
        flags &= ~_COMPRESS
    return sum(shown for bit, shown in FS_FLAGS.items() if flags & bit)


def listing(subvolume: Subvolume, *, content: bool = True) -> pd.DataFrame:
    """List every path of a subvolume, directories before what they hold.

    Parameters
    ----------
    subvolume : Subvolume
        What to list. Subvolumes inside it are not entered.
    content : bool
        Whether to read the files and give the sha256 of each.

    Returns
    -------
    pandas.DataFrame
        A row for each path: ``path`` (str, bytes that are not UTF-8 as surrogates; the top is
        empty), ``ino``, ``mode`` (type and permissions), ``nlink``, ``uid``, ``gid``, ``rdev``
        (major << 20 | minor), ``size``, ``atime``, ``mtime``, ``ctime``, ``otime`` (nanoseconds
        since 1970), ``generation``, ``flags`` (as ``lsattr`` shows them), ``xattrs`` (dict of bytes
        by bytes), ``target`` (bytes of a symbolic link, else None), ``sha256`` (hexadecimal, of
        regular files, else None), ``subvolume`` (id of the subvolume that the entry is, else 0).

        A time that does not fit into 64 bits makes its column one of Python's integers.

        Of a file with more than 16 GiB of holes, too many zeros to read, `sha256` starts with
        ``sparse:`` and is that of its content written otherwise: for each block of 4096 bytes
        that is not all zero its number (8 bytes, little-endian) and its bytes, zeros behind the end
        of the file, and at the end the size of the file (8 bytes). Files of the same content have
        the same, whatever their extents are.

        An entry of a subvolume shows as an empty directory with inode number 2, as the kernel
        shows it in a snapshot; its times but for `atime` are those of the look there, 0 here.

    Raises
    ------
    CorruptImageError
        When the tree or data are damaged.
    """
    return _Listing(subvolume, content).frame()


class _Listing:
    """The parts of a listing, by inode number."""

    def __init__(self, subvolume: Subvolume, content: bool) -> None:
        self.subvolume = subvolume
        self.image = subvolume.fs.image
        self.content = content
        self.columns = subvolume.tree.scan()
        self.inodes = self._inodes()
        self.children = self._children()
        self.xattrs = self._xattrs()
        self.extents = self._extent_rows()
        self._read: dict[int, bytes | str | None] = {}

    def _of_type(self, *types: int) -> Columns:
        return select(self.columns, np.isin(self.columns["type"], types))

    def _inodes(self) -> dict[int, InodeItem]:
        columns = self._of_type(ItemType.INODE_ITEM)
        short = np.flatnonzero(columns["size"] < INODE_ITEM.size)
        if len(short):
            self._fail(columns, int(short[0]), Code.BAD_ITEM_SIZE, INODE_ITEM.size)
        rows = gather(self.image, columns, INODE_ITEM.size)
        return {
            ino: INODE_ITEM.unpack(row)
            for ino, row in zip(columns["objectid"].tolist(), rows, strict=True)
        }

    def _fail(self, columns: Columns, row: int, code: int, wanted: int = 0) -> None:
        size = int(columns["size"][row])
        raise CorruptImageError(
            self.image.path,
            Fault(code, self.subvolume.id, int(columns["block"][row]), int(columns["slot"][row]),
                  found=size, wanted=wanted),
        )  # fmt: skip

    def _entries(self, *types: int) -> npt.NDArray[np.void]:
        columns = self._of_type(*types)
        rows, bad = entries(self.image, columns)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            self._fail(columns, first, int(bad[first]))
        return rows

    def _children(self) -> dict[int, list[tuple[bytes, int, int]]]:
        """By directory: name, inode and the kind of key of each entry."""
        rows = self._entries(ItemType.DIR_INDEX)
        view = self.image.block_bytes
        children = defaultdict(list)
        for parent, child, kind, at, size in zip(
            *(rows[name].tolist() for name in ("parent", "child", "location_type", "position",
                                               "name_len")),
            strict=True,
        ):  # fmt: skip
            children[parent].append((bytes(view[at : at + size]), child, kind))
        return children

    def _xattrs(self) -> dict[int, dict[bytes, bytes]]:
        view = self.image.block_bytes
        xattrs: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        for row in self._entries(ItemType.XATTR_ITEM):
            at, name_len = int(row["position"]), int(row["name_len"])
            value = at + name_len
            name = bytes(view[at:value])
            xattrs[int(row["parent"])][name] = bytes(view[value : value + int(row["data_len"])])
        return xattrs

    def _extent_rows(self) -> tuple[Columns, dict[int, slice]]:
        """Return the EXTENT_DATA items and, by inode, where theirs are."""
        columns = self._of_type(ItemType.EXTENT_DATA)
        inos, starts = np.unique(columns["objectid"], return_index=True)
        ends = np.append(starts, len(columns["objectid"]))[1:]
        places = zip(inos.tolist(), starts.tolist(), ends.tolist(), strict=True)
        return columns, {ino: slice(start, end) for ino, start, end in places}

    def _file_extents(self, ino: int) -> list[FileExtent]:
        columns, places = self.extents
        part = places.get(ino, slice(0, 0))
        extents = []
        for position, size, offset, block, slot in zip(
            *(columns[name][part].tolist() for name in ("position", "size", "offset", "block",
                                                        "slot")),
            strict=True,
        ):  # fmt: skip
            data = self.image.block_bytes[position : position + size]
            item = Item(Key(ino, ItemType.EXTENT_DATA, offset), data, block, slot)
            decoded = item.decode(file_extent, self.image.path, self.subvolume.id)
            extents.append(FileExtent.of(item, decoded, self.image, self.subvolume.id))
        return extents

    # -------------------------------------------------------------------------------- rows --

    def frame(self) -> pd.DataFrame:
        """Walk the directories from the top."""
        top = self.subvolume.root_dir
        rows = [self._row(b"", top, self._inode(top))]
        stack = [(b"", top)]
        seen = {top}
        while stack:
            path, directory = stack.pop()
            prefix = path + b"/" if path else b""
            for name, child, kind in self.children.get(directory, ()):
                if kind != ItemType.INODE_ITEM:
                    rows.append(self._subvolume_row(prefix + name, directory, child))
                    continue
                inode = self._inode(child)
                rows.append(self._row(prefix + name, child, inode))
                if stat.S_ISDIR(inode.mode):
                    # a directory has one name
                    if child in seen:
                        raise CorruptImageError(
                            self.image.path, Fault(Code.LOOP, self.subvolume.id, found=child)
                        )
                    seen.add(child)
                    stack.append((prefix + name, child))
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        # paths may be no UTF-8, so they stay Python's strings
        return pd.DataFrame(
            {name: pd.Series(column, dtype=_DTYPES.get(name)) for name, column in columns.items()}
        )

    def _inode(self, ino: int) -> InodeItem:
        inode = self.inodes.get(ino)
        if inode is None:
            raise CorruptImageError(
                self.image.path,
                Fault(Code.NOT_FOUND, self.subvolume.id, found=ino, wanted=ItemType.INODE_ITEM),
            )
        return inode

    def _row(self, path: bytes, ino: int, inode: InodeItem) -> dict[str, Any]:
        mode = inode.mode
        row = {
            "path": path.decode("utf-8", "surrogateescape"),
            "ino": ino,
            "mode": mode,
            "nlink": inode.nlink,
            "uid": inode.uid,
            "gid": inode.gid,
            "rdev": inode.rdev if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else 0,
            "size": inode.size,
        }
        for field in ("atime", "mtime", "ctime", "otime"):
            row[field] = timespec_ns(getattr(inode, field))
        return row | {
            "generation": inode.generation,
            "flags": to_fs_flags(inode.flags),
            "xattrs": self.xattrs.get(ino, {}),
            "target": self._once(ino, self._target) if stat.S_ISLNK(mode) else None,
            "sha256": (
                self._once(ino, self._sha256) if stat.S_ISREG(mode) and self.content else None
            ),
            "subvolume": 0,
        }

    def _subvolume_row(self, path: bytes, directory: int, objectid: int) -> dict[str, Any]:
        """Make up what ``new_simple_dir()`` does, from the directory above."""
        above = self._inode(directory)
        inode = INODE_ITEM.unpack(bytes(INODE_ITEM.size))._replace(
            mode=stat.S_IFDIR | 0o755, nlink=1, uid=above.uid, gid=above.gid, atime=above.atime
        )
        return self._row(path, EMPTY_SUBVOL_DIR, inode) | {"subvolume": objectid}

    def _once(self, ino: int, read: Any) -> Any:
        """Read a file once, however many names it has."""
        if ino not in self._read:
            self._read[ino] = read(ino)
        return self._read[ino]

    def _reader(self, ino: int) -> FileReader:
        return FileReader(self.image, self.subvolume.fs.checksums, self.subvolume.id, ino)

    def _target(self, ino: int) -> bytes:
        inode = self._inode(ino)
        return self._reader(ino).read(self._file_extents(ino), 0, inode.size, inode.flags)

    def _sha256(self, ino: int) -> str:
        size = self._inode(ino).size
        kept = [one for one in self._file_extents(ino) if not one.is_zero and one.start < size]
        if size - sum(min(one.end, size) - one.start for one in kept) > _MANY_ZEROS:
            return f"sparse:{self._sparse_sha256(ino, kept)}"
        digest = hashlib.sha256()
        at = 0
        for start, data in self._pieces(ino, kept):
            _add_zeros(digest, start - at)
            digest.update(data)
            at = start + len(data)
        _add_zeros(digest, size - at)
        return digest.hexdigest()

    def _sparse_sha256(self, ino: int, kept: list[FileExtent]) -> str:
        """Digest of what is not zero, and of where it is; see :func:`listing`."""
        digest = hashlib.sha256()
        for start, data in self._pieces(ino, kept):
            padded = bytes(data) + bytes(-len(data) % _BLOCK)
            blocks = np.frombuffer(padded, np.uint8).reshape(-1, _BLOCK)
            for row in np.flatnonzero(blocks.any(axis=1)).tolist():
                digest.update((start // _BLOCK + row).to_bytes(8, "little"))
                digest.update(blocks[row])
        digest.update(self._inode(ino).size.to_bytes(8, "little"))
        return digest.hexdigest()

    def _pieces(self, ino: int, kept: list[FileExtent]) -> Iterator[tuple[int, bytes | memoryview]]:
        """Read what some extents hold of a file, piece by piece: where it starts, the bytes."""
        inode, reader = self._inode(ino), self._reader(ino)
        for extent in kept:
            end = min(extent.end, inode.size)
            for low in range(extent.start, end, _READ_STEP):
                high = min(low + _READ_STEP, end)
                yield low, reader.extent_data(extent, low, high, inode.flags)


def _add_zeros(digest: Any, count: int) -> None:
    """Feed `count` zeros, of a hole, to a digest."""
    while count > 0:
        step = min(count, len(_HOLE))
        digest.update(_HOLE[:step])
        count -= step
