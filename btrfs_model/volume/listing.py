# SPDX-License-Identifier: GPL-2.0-only
"""Everything in a subvolume as one table.

Each path comes with what ``stat``, ``listxattr`` and reading the file would give. The tree is
scanned once: its names (DIR_INDEX) are unpacked by a C kernel in one call, inodes are gathered into
one array. Python goes from directory to directory; files are rows of columns until a table of them
is asked for.
"""

from __future__ import annotations

import hashlib
import stat
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.native.items import entries, find_rows, gather, select
from btrfs_model.ondisk.items import file_extent
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.structs import INODE_ITEM, InodeItem
from btrfs_model.volume.data import FileExtent, FileReader
from btrfs_model.volume.tree import Item

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.native.text import FormWriter
    from btrfs_model.volume.checksums import DataChecksums
    from btrfs_model.volume.image import Image
    from btrfs_model.volume.tree import Tree

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
_FORMAT: Final = stat.S_IFMT(0xFFFF)
_NONE: Final = np.zeros(1, np.uint64)
_BOTH: Final = ("left", "right")

_DTYPES: Final = {"path": "object", "target": "object", "sha256": "object", "xattrs": "object"}


def to_fs_flags(flags: int) -> int:
    """Inode flags as ``FS_IOC_GETFLAGS`` shows them (``btrfs_inode_flags_to_fsflags()``)."""
    if flags & _NOCOMPRESS:
        flags &= ~_COMPRESS
    return sum(shown for bit, shown in FS_FLAGS.items() if flags & bit)


class _Source(Protocol):
    """What a listing asks of a filesystem."""

    image: Image

    @property
    def checksums(self) -> DataChecksums: ...


class _Listed(Protocol):
    """What a listing asks of a subvolume."""

    id: int
    tree: Tree

    @property
    def fs(self) -> _Source: ...

    @property
    def root_dir(self) -> int: ...


def listing(subvolume: _Listed, *, content: bool = True) -> pd.DataFrame:
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
    return Listing(subvolume).frame(content=content)


class Listing:
    """Every path of a subvolume, in columns.

    `subvolume`: what is listed.
    `inodes`: of each inode its INODE_ITEM; behind these, what entries of subvolumes show as.
    `prefixes`: paths of the directories in which there is something, each with a slash at its end
    unless it is the top.
    `structure`, `directory`, `name`, `name_size`: of each path the row of `inodes`, the directory
    that it is in, and its name there, by its place in the image.
    Raises CorruptImageError: as :func:`listing`.
    """

    def __init__(self, subvolume: _Listed) -> None:
        self.subvolume = subvolume
        self.image = subvolume.fs.image
        self._columns = subvolume.tree.scan()
        self._read: dict[int, bytes | str | None] = {}
        columns = self._of_type(ItemType.INODE_ITEM)
        short = np.flatnonzero(columns["size"] < INODE_ITEM.size)
        if len(short):
            self._fail(columns, int(short[0]), Code.BAD_ITEM_SIZE, INODE_ITEM.size)
        self._inos = columns["objectid"]
        self.inodes = gather(self.image, columns, INODE_ITEM.size)
        self._walk(self._entries(ItemType.DIR_INDEX))

    def _of_type(self, *types: int) -> Columns:
        return select(self._columns, np.isin(self._columns["type"], types))

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

    def _modes(self) -> npt.NDArray[np.uint32]:
        modes: npt.NDArray[np.uint32] = self.inodes.view(INODE_ITEM.dtype)["mode"][:, 0]
        return modes

    # -------------------------------------------------------------------------------- the walk --

    def _walk(self, names: npt.NDArray[np.void]) -> None:
        """Go through the directories from the top; `names`: all entries, by directory."""
        child, is_inode = names["child"], names["location_type"] == ItemType.INODE_ITEM
        inode = find_rows(self._inos, child)
        is_dir = is_inode & (inode >= 0)
        is_dir[is_dir] = self._modes()[inode[is_dir]] & _FORMAT == stat.S_IFDIR
        inner = np.flatnonzero(is_dir)
        # of each directory, the top being the last, the entries in it, and those that are `inner`
        tops = np.append(child[inner], np.uint64(self.subvolume.root_dir))
        first, last = (np.searchsorted(names["parent"], tops, side) for side in _BOTH)
        below = [np.searchsorted(inner, at).tolist() for at in (first, last)]
        inos, paths = tops.tolist(), self._names(names[inner])
        order: list[int] = []
        self.prefixes: list[bytes] = []
        stack, seen = [(len(inner), b"")], {self.subvolume.root_dir}
        while stack:
            number, prefix = stack.pop()
            order.append(number)
            self.prefixes.append(prefix)
            for inside in range(below[0][number], below[1][number]):
                # a directory has one name
                if inos[inside] in seen:
                    fault = Fault(Code.LOOP, self.subvolume.id, found=inos[inside])
                    raise CorruptImageError(self.image.path, fault)
                seen.add(inos[inside])
                stack.append((inside, prefix + paths[inside] + b"/"))
        counts = (last - first)[order]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(first[order], counts) + within
        structure = inode[rows]
        structure[~is_inode[rows]] = self._subvolumes(names[rows[~is_inode[rows]]])
        top = find_rows(self._inos, tops[-1:])
        self._refuse_missing(np.append(top, structure), np.append(tops[-1:], child[rows]))
        self._ino = np.append(tops[-1:], np.where(is_inode[rows], child[rows], EMPTY_SUBVOL_DIR))
        self._objectid = np.append(_NONE, np.where(is_inode[rows], 0, child[rows]))
        self.structure = np.append(top, structure).astype(np.uint32)
        self.directory = np.append([0], np.repeat(np.arange(len(order)), counts)).astype(np.uint32)
        self.name = np.append(_NONE, names["position"][rows])
        self.name_size = np.append([0], names["name_len"][rows]).astype(np.uint16)

    def _names(self, names: npt.NDArray[np.void]) -> list[bytes]:
        view = self.image.block_bytes
        places = zip(names["position"].tolist(), names["name_len"].tolist(), strict=True)
        return [bytes(view[at : at + size]) for at, size in places]

    def _refuse_missing(self, found: npt.NDArray[np.intp], ino: npt.NDArray[np.uint64]) -> None:
        missing = np.flatnonzero(found < 0)
        if len(missing):
            number = int(ino[missing[0]])
            fault = Fault(
                Code.NOT_FOUND, self.subvolume.id, found=number, wanted=ItemType.INODE_ITEM
            )
            raise CorruptImageError(self.image.path, fault)

    def _subvolumes(self, names: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
        """Make up what ``new_simple_dir()`` does, from the directory above; rows of `inodes`."""
        above = find_rows(self._inos, names["parent"])
        self._refuse_missing(above, names["parent"])
        raw = self.inodes.view(INODE_ITEM.dtype)[:, 0][above]
        made = np.zeros(len(raw), INODE_ITEM.dtype)
        made["mode"], made["nlink"] = stat.S_IFDIR | 0o755, 1
        for field in ("uid", "gid", "atime"):
            made[field] = raw[field]
        start = len(self.inodes)
        self.inodes = np.concatenate(
            [self.inodes, made.view(np.uint8).reshape(-1, INODE_ITEM.size)]
        )
        return start + np.arange(len(made))

    def path(self, row: int) -> bytes:
        """Return the path of a row; that of the top is empty."""
        at, size = int(self.name[row]), int(self.name_size[row])
        prefix: bytes = self.prefixes[self.directory[row]]
        return prefix + bytes(self.image.block_bytes[at : at + size])

    def first_paths(self) -> dict[int, bytes]:
        """Return a path of each inode: the first of its names in the order of the listing."""
        inodes, rows = np.unique(self._ino, return_index=True)
        return {
            ino: self.path(row) for ino, row in zip(inodes.tolist(), rows.tolist(), strict=True)
        }

    def write(self, writer: FormWriter, out: BinaryIO) -> None:
        """Write each row as text, by the part ``row`` of a form."""
        columns: Columns = {
            "structure": self.structure, "directory": self.directory,
            "name": self.name, "name_size": self.name_size,
        }  # fmt: skip
        with self.image.lease:
            writer.rows(
                self.inodes, self.prefixes, self.image.block_bytes, columns, out, self.image.path
            )

    # -------------------------------------------------------------------------------- the table --

    def frame(self, *, content: bool) -> pd.DataFrame:
        """Return the table of :func:`listing`."""
        import pandas as pd

        raw = self.inodes.view(INODE_ITEM.dtype)[:, 0][self.structure]
        mode, flags = raw["mode"].tolist(), raw["flags"].tolist()
        fs_flags = {of_one: to_fs_flags(of_one) for of_one in set(flags)}
        device = np.isin(raw["mode"] & _FORMAT, (stat.S_IFCHR, stat.S_IFBLK))
        inos, xattrs = self._ino.tolist(), self._xattrs()
        columns: dict[str, list[Any]] = {
            "path": [self.path(row).decode("utf-8", "surrogateescape") for row in range(len(raw))],
            "ino": inos,
            "mode": mode,
            **{name: raw[name].tolist() for name in ("nlink", "uid", "gid")},
            "rdev": np.where(device, raw["rdev"], 0).tolist(),
            "size": raw["size"].tolist(),
            **{name: self._times(raw[name]) for name in ("atime", "mtime", "ctime", "otime")},
            "generation": raw["generation"].tolist(),
            "flags": [fs_flags[of_one] for of_one in flags],
            "xattrs": [xattrs.get(ino, {}) for ino in inos],
            "target": [
                self._once(ino, self._target) if stat.S_ISLNK(of_one) else None
                for ino, of_one in zip(inos, mode, strict=True)
            ],
            "sha256": [
                self._once(ino, self._sha256) if content and stat.S_ISREG(of_one) else None
                for ino, of_one in zip(inos, mode, strict=True)
            ],
            "subvolume": self._objectid.tolist(),
        }
        # paths may be no UTF-8, so they stay Python's strings
        return pd.DataFrame(
            {name: pd.Series(column, dtype=_DTYPES.get(name)) for name, column in columns.items()}
        )

    @staticmethod
    def _times(times: npt.NDArray[np.void]) -> list[int]:
        seconds = times["sec"].astype(np.int64).tolist()
        rests = times["nsec"].tolist()
        return [second * 10**9 + rest for second, rest in zip(seconds, rests, strict=True)]

    def _xattrs(self) -> dict[int, dict[bytes, bytes]]:
        view = self.image.block_bytes
        xattrs: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        for row in self._entries(ItemType.XATTR_ITEM):
            at, name_len = int(row["position"]), int(row["name_len"])
            value = at + name_len
            name = bytes(view[at:value])
            xattrs[int(row["parent"])][name] = bytes(view[value : value + int(row["data_len"])])
        return xattrs

    # ------------------------------------------------------------------------------- contents --

    def _inode(self, ino: int) -> InodeItem:
        (row,) = find_rows(self._inos, np.array([ino], np.uint64))
        return INODE_ITEM.unpack(self.inodes[row].tobytes())

    @cached_property
    def _extents(self) -> tuple[Columns, dict[int, slice]]:
        """The EXTENT_DATA items and, by inode, where theirs are."""
        columns = self._of_type(ItemType.EXTENT_DATA)
        inos, starts = np.unique(columns["objectid"], return_index=True)
        ends = np.append(starts, len(columns["objectid"]))[1:]
        places = zip(inos.tolist(), starts.tolist(), ends.tolist(), strict=True)
        return columns, {ino: slice(start, end) for ino, start, end in places}

    def _file_extents(self, ino: int) -> list[FileExtent]:
        columns, places = self._extents
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
