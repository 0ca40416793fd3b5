# SPDX-License-Identifier: GPL-2.0-only
"""System calls on the data of files: write, truncate, fallocate, clone, fsync.

What is written waits in memory, as in a kernel's page cache, until fsync, sync, a snapshot of its
subvolume or :meth:`FileCalls.flush_delalloc` writes it back: file by file in the order in which
they became dirty, each from its first byte to its last. A commit alone does not.

Where a kernel may differ: it writes back on its own after half a minute or when memory runs short,
several files at once and in any order; where explicit holes are divided, and what a block beside a
hole is taken for right after a mount, depends on the extent maps it has in memory; its lzo makes
other sizes than ours, its zlib now and then by a few bytes (:mod:`.files.compress`). Direct IO,
mmap and encoded writes are not modelled.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.bulk.clones import clone_files
from btrfs_model.mount.bulk.file_extents import write_file_extents
from btrfs_model.mount.bulk.new_files import fill_files, write_files
from btrfs_model.mount.calls.call_errors import about
from btrfs_model.mount.calls.names import NamespaceCalls
from btrfs_model.mount.delayed_inode import balance_delayed_items
from btrfs_model.mount.files.defrag import defragment
from btrfs_model.mount.files.elided import Elided, Told
from btrfs_model.mount.files.encoded import Encoded, encoded_write
from btrfs_model.mount.files.fallocate import fallocate, punch_hole, zero_range
from btrfs_model.mount.files.pages import MAX_SIZE
from btrfs_model.mount.files.reflink import clone_range, dedupe_range
from btrfs_model.mount.files.truncate import set_size
from btrfs_model.mount.files.write import buffered_write, check_nowait, read_live
from btrfs_model.mount.files.writeback import flush_delalloc, write_past_cache, writeback
from btrfs_model.mount.inode import iput
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.sync_log import sync_file
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.attr import may_change_data, remove_capability
from btrfs_model.mount.names.lookup import as_bytes, find, open_inode
from btrfs_model.mount.names.properties import COMPRESSION_PROPERTY
from btrfs_model.mount.names.xattr_checks import removexattr, setxattr
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.keys import U64_MAX, ObjectId
from btrfs_model.volume.checksums import DataChecksums

Path = str | bytes

_SYNC: Final = int(InodeFlag.SYNC)
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
_ZERO_RANGE: Final = 16
# some of the VFS are not of btrfs: FALLOC_FL_{COLLAPSE,INSERT,UNSHARE}_RANGE, _WRITE_ZEROES
_MODES: Final = frozenset((0, 1, 3, 8, 16, 17, 32, 64, 65, 128))


class FileCalls(NamespaceCalls):
    """Calls on file data.

    Every `path` leads from the top of the filesystem. Errors are OSError with the kernel's errno.
    """

    # -------------------------------------------------------------------------------- data ----

    @about("path")
    def write(self, path: Path, offset: int, data: bytes | Told) -> int:
        """Write into a file (pwrite(2)); returns the bytes written.

        Parameters
        ----------
        path : str or bytes
            A regular file.
        offset : int
            Where, bytes.
        data : bytes-like, Elided or Repeated
            What; :class:`~btrfs_model.mount.files.elided.Elided` data leave extents without bytes,
            :class:`~btrfs_model.mount.files.elided.Repeated` ones are one byte again and again.

        Raises
        ------
        OSError
            EISDIR, ESPIPE for a FIFO, ENXIO for sockets and devices, EINVAL, EROFS in a read-only
            subvolume, EPERM for a file that is immutable or append-only, or ENOSPC when there is
            no room.
        """
        length = data.length if isinstance(data, Told) else len(data)
        with self._changed(path, errno.ESPIPE) as inode:
            if offset < 0 or offset + length > MAX_SIZE:
                raise _error(errno.EINVAL, path)
            written = buffered_write(self, inode, offset, data)
            self._sync_if_asked(inode)
            return written

    @about("path")
    def write_direct(self, path: Path, offset: int, data: bytes) -> int:
        """Write as with O_DIRECT: nothing of it waits in the page cache; returns the bytes written.

        This is what Linux 6.15 and later do; before, data with checksums passed the page cache by,
        and were never compressed.

        Parameters
        ----------
        path, offset, data
            As of :meth:`write`.
        """
        with self._changed(path, errno.ESPIPE) as inode:
            writeback(self, inode, offset, offset + len(data))
            written = self.write(path, offset, data)
            if written:
                write_past_cache(self, inode, offset, offset + written)
            return written

    @about("path")
    def check_nowait(self, path: Path, offset: int, length: int, direct: bool = False) -> None:
        """See that a write would wait for nothing, as one with RWF_NOWAIT may not.

        Parameters
        ----------
        path : str or bytes
            A regular file.
        offset, length : int
            What would be written, bytes.
        direct : bool
            Whether with O_DIRECT.

        Raises
        ------
        OSError
            EAGAIN where it might wait.
        UnsupportedError
            Where that depends on clean pages, which the model does not know.
        """
        with self._changed(path, errno.ESPIPE) as inode:
            check_nowait(self, inode, offset, offset + length, direct=direct)

    @about("path")
    def encoded_write(self, path: Path, offset: int, encoded: Encoded) -> None:
        """Write compressed data as they are (BTRFS_IOC_ENCODED_WRITE)."""
        with self._changed(path) as inode:
            encoded_write(self, inode, offset, encoded)
            self._sync_if_asked(inode)

    @about("path")
    def read(self, path: Path, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file as it is now, with what waits for writeback (pread(2)).

        Parameters
        ----------
        path : str or bytes
            A regular file.
        offset, length : int
            The range, bytes; without a length to the end.

        Raises
        ------
        OSError
            EINVAL, EISDIR, ESPIPE for a FIFO, ENXIO for sockets and devices.
        """
        with self._opened(path) as inode:
            if offset < 0 or (length is not None and length < 0):
                raise _error(errno.EINVAL, path)
            _check_regular(inode, errno.ESPIPE, path)
            end = inode.pages.i_size if length is None else offset + length
            sums = DataChecksums(self.image, self.writer.tree(int(ObjectId.CSUM_TREE)))
            return read_live(self, inode, offset, end, sums)

    @about("path")
    def write_many(self, path: Path, offsets: Sequence[int], block: bytes | Elided) -> None:
        """Write the same whole blocks at many places, each written back before the next.

        As :meth:`write` and :meth:`flush_delalloc` for each offset in turn, in a fraction of the
        time; see :func:`~btrfs_model.mount.bulk.file_extents.write_file_extents`.
        """
        with self._changed(path) as inode:
            write_file_extents(self, inode, offsets, block)

    @about("directory")
    def write_files(
        self, directory: Path, names: Sequence[Path], data: bytes, mode: int = 0o666
    ) -> npt.NDArray[np.uint64]:
        """Make many files that hold the same; see :func:`.new_files.write_files`."""
        return write_files(self, directory, names, data, mode, self.create)

    @about("directory")
    def fill_files(self, directory: Path, inos: npt.NDArray[np.uint64], data: bytes) -> None:
        """Write to many empty files; see :func:`.new_files.fill_files`."""
        fill_files(self, directory, inos, data)

    @about("path")
    def truncate(self, path: Path, size: int) -> None:
        """Set the size of a file (truncate(2))."""
        if not 0 <= size <= MAX_SIZE:
            raise _error(errno.EINVAL, path)
        inode = self._regular(path, errno.EINVAL)
        may_change_data(self, inode, path)
        remove_capability(self, inode)
        set_size(self, inode, size)

    @about("path")
    def fallocate(self, path: Path, offset: int, length: int, keep_size: bool = False) -> None:
        """Preallocate a range (fallocate(2))."""
        with self._allocated(path, _KEEP_SIZE * keep_size, offset, length) as inode:
            fallocate(self, inode, offset, length, keep_size=keep_size)

    @about("path")
    def punch_hole(self, path: Path, offset: int, length: int) -> None:
        """Make a hole (FALLOC_FL_PUNCH_HOLE)."""
        with self._allocated(path, _PUNCH_HOLE | _KEEP_SIZE, offset, length) as inode:
            punch_hole(self, inode, offset, length)

    @about("path")
    def zero_range(self, path: Path, offset: int, length: int, keep_size: bool = False) -> None:
        """Make a range zeros (FALLOC_FL_ZERO_RANGE)."""
        with self._allocated(path, _ZERO_RANGE, offset, length) as inode:
            zero_range(self, inode, offset, length, keep_size=keep_size)

    @about("path")
    def vfs_fallocate(self, path: Path, mode: int, offset: int, length: int) -> None:
        """Do what fallocate(2) does in each of its modes (``vfs_fallocate()``).

        Parameters
        ----------
        path : str or bytes
            A regular file.
        mode : int
            ``FALLOC_FL_`` flags.
        offset, length : int
            The range, bytes.

        Raises
        ------
        OSError
            EOPNOTSUPP for a mode that btrfs does not have; ESPIPE for a FIFO; otherwise as
            :meth:`fallocate`.
        """
        keep_size = bool(mode & _KEEP_SIZE)
        if mode == _PUNCH_HOLE | _KEEP_SIZE:
            self.punch_hole(path, offset, length)
        elif mode & ~_KEEP_SIZE == _ZERO_RANGE:
            self.zero_range(path, offset, length, keep_size)
        elif mode & ~_KEEP_SIZE == 0:
            self.fallocate(path, offset, length, keep_size)
        else:
            with self._allocated(path, mode, offset, length):
                raise _error(errno.EOPNOTSUPP, path)

    @about("target")
    def clone_range(
        self, source: Path, target: Path, source_offset: int, target_offset: int, length: int
    ) -> None:
        """Share a range of a file with another (FICLONERANGE); length 0: to the end."""
        with self._opened(source) as from_inode, self._changed(target, None) as to_inode:
            clone_range(self, from_inode, to_inode, source_offset, target_offset, length)
            self._sync_if_asked(from_inode, to_inode)

    @about("directory")
    def clone_files(
        self, sources: Sequence[Path], directory: Path, names: Sequence[Path], mode: int = 0o666
    ) -> None:
        """Make many clones of files; see :func:`btrfs_model.mount.bulk.clones.clone_files`."""

        def clone(source: Path, target: Path) -> None:
            self.clone_range(source, target, 0, 0, 0)

        clone_files(self, sources, directory, names, mode, self.create, clone)

    @about("target")
    def dedupe_range(
        self, source: Path, target: Path, source_offset: int, target_offset: int, length: int
    ) -> bool:
        """Share a range with another file where both hold the same (FIDEDUPERANGE).

        Returns
        -------
        bool
            Whether they do; nothing changes where they differ.
        """
        with self._opened(source) as from_inode, self._opened(target) as to_inode:
            same = dedupe_range(self, from_inode, to_inode, source_offset, target_offset, length)
            if same:
                self._sync_if_asked(from_inode, to_inode)
            return same

    @about("path")
    def set_compression(self, path: Path, kind: str) -> None:
        """Set the property ``btrfs.compression``.

        Parameters
        ----------
        path : str or bytes
            A regular file.
        kind : str
            ``zlib``, ``lzo``, ``zstd``; ``none``: never compress; empty: as the mount says.

        Raises
        ------
        OSError
            EINVAL for another kind.

        """
        if kind not in {"", "none", "zlib", "lzo", "zstd"}:
            raise _error(errno.EINVAL, path)
        inode = self._inode(path)
        if kind:
            setxattr(self, path, COMPRESSION_PROPERTY, kind.encode(), 0, follow=True)
        elif inode.prop_compress or inode.item.flags & InodeFlag.NOCOMPRESS:
            removexattr(self, path, COMPRESSION_PROPERTY, follow=True)

    # --------------------------------------------------------------------------- writeback ----

    @about("path")
    def fsync(self, path: Path) -> str:
        """Make a file or directory last (fsync(2)), by a log where that is possible.

        Returns
        -------
        str
            ``log``, ``commit`` where the kernel commits too, ``none`` when nothing changed.
        """
        with self._opened(path) as inode:
            return self.fsync_inode(inode)

    @about("path")
    def fdatasync(self, path: Path) -> str:
        """Make the data of a file last (fdatasync(2)), which is what :meth:`fsync` does."""
        return self.fsync(path)

    @about("path")
    def sync_file_range(self, path: Path, offset: int = 0, length: int = 0) -> None:
        """Write data of a range back (sync_file_range(2)); no log and no commit is written.

        Parameters
        ----------
        path : str or bytes
            A regular file.
        offset, length : int
            The range, bytes; a length of 0 goes to the end of the file.
        """
        with self._opened(path) as inode:
            _check_regular(inode, errno.ESPIPE, path)
            writeback(self, inode, offset, offset + length if length else U64_MAX)

    @about("path")
    def defragment(
        self, path: Path, offset: int = 0, length: int = 0, *, threshold: int = 0,
        compress: str = "",
    ) -> None:  # fmt: skip
        """Have small extents of a file written anew together (BTRFS_IOC_DEFRAG_RANGE).

        What is to be written waits, as after a write.

        Parameters
        ----------
        path : str or bytes
            A regular file.
        offset, length : int
            The range, bytes; a length of 0 goes to the end of the file.
        threshold : int
            Extents of so many bytes stay; 0 is the kernel's 256 KiB.
        compress : str
            ``zlib``, ``lzo`` or ``zstd``: all extents are compressed, and written at once.

        Raises
        ------
        OSError
            EROFS in a read-only subvolume, EINVAL for what is no regular file, and for a range or
            an algorithm that there is not.
        """
        with self._changed(path, errno.EINVAL) as inode:
            if min(offset, length) < 0 or compress not in ("", "zlib", "lzo", "zstd"):
                raise _error(errno.EINVAL, path)
            end = offset + length if length else U64_MAX
            defragment(self, inode, offset, end, threshold, compress)

    @about("path")
    def open_file(self, path: Path, *, truncate: bool = False) -> bytes:
        """Open a file, until :meth:`close_file`; return a path that calls take for it.

        The path stands for the file whatever becomes of its names; a call on it does not close it.

        `truncate`: to nothing, as O_TRUNC does: the times change also where it is empty.
        """
        inode = open_inode(self, path, writes=truncate)
        if truncate:
            may_change_data(self, inode, path)
            _check_regular(inode, errno.EINVAL, path)
            remove_capability(self, inode)
            if not inode.i_size:
                inode.item.mtime = inode.item.ctime = self.now()
            set_size(self, inode, 0)
        inode.holders += 1
        told = b"//%d" % next(self.handles)
        self.opened[told] = inode
        return told

    @exclusive
    def close_file(self, path: bytes) -> None:
        """Close what :meth:`open_file` opened, by the path that stands for it."""
        self.release(self.opened.pop(path))

    @exclusive
    def release(self, inode: LiveInode) -> None:
        """Close an inode that ``hold()`` or ``tmpfile()`` opened."""
        _flush_on_close(self, inode)
        inode.holders -= 1
        if not inode.holders:
            self.opened = {path: one for path, one in self.opened.items() if one is not inode}
            if not inode.item.nlink:
                iput(self, inode)
                balance_delayed_items(self)

    def fsync_inode(self, inode: LiveInode) -> str:
        """Make an open inode last; see :meth:`fsync`.

        Raises
        ------
        OSError
            EINVAL for a FIFO.
        """
        if not inode.is_dir:
            _check_regular(inode, errno.EINVAL, self.path)
        wrote = stat.S_ISREG(inode.item.mode) and inode.pages.is_dirty
        if wrote:
            writeback(self, inode)
        how = sync_file(self, inode, wrote=wrote)
        if self.watcher is not None:
            self.watcher.synced(inode)
        return how

    def _sync_if_asked(self, *inodes: LiveInode) -> None:
        """Make files last that have attribute ``S``, and what shares with them (``IS_SYNC``)."""
        if any(inode.item.flags & _SYNC for inode in inodes):
            for inode in inodes:
                self.fsync_inode(inode)

    def flush_delalloc(self, inode: LiveInode | None = None, *, root: int | None = None) -> None:
        """Write data back: of one inode, of a subvolume, or of all."""
        if inode is not None:
            writeback(self, inode)
        else:
            flush_delalloc(self, root)

    # ------------------------------------------------------------------------------- paths ----

    def _inode(self, path: Path) -> LiveInode:
        return find(self, path)

    def _opened(self, path: Path) -> _Opened:
        """Open what can be read."""
        return _Opened(self, open_inode(self, path), path)

    def _changed(self, path: Path, otherwise: int | None = errno.EINVAL) -> _Opened:
        """Open what can be written to; `otherwise`: what the call ends in on a FIFO."""
        inode = open_inode(self, path, writes=True)
        may_change_data(self, inode, path)
        if otherwise is not None:
            _check_regular(inode, otherwise, path)
        return _Opened(self, inode, path)

    def _allocated(self, path: Path, mode: int, offset: int, length: int) -> _Opened:
        """Open a file for fallocate(2), which ``vfs_fallocate()`` of Linux 6.18 allows."""
        opened = self._changed(path, None)
        if offset < 0 or length <= 0:
            raise _error(errno.EINVAL, path)
        if mode not in _MODES:
            raise _error(errno.EOPNOTSUPP, path)
        _check_regular(opened.inode, errno.ESPIPE, path)
        return opened

    def _regular(self, path: Path, otherwise: int = errno.EINVAL) -> LiveInode:
        inode = self._inode(path)
        _check_regular(inode, otherwise, path)
        return inode


class _Opened:
    """An open file, closed at the end of a ``with`` block where the path is one of its names."""

    __slots__ = ("_fs", "_path", "inode")

    def __init__(self, fs: Mount, inode: LiveInode, path: Path) -> None:
        self._fs, self.inode, self._path = fs, inode, path

    def __enter__(self) -> LiveInode:
        return self.inode

    def __exit__(self, *_: object) -> None:
        if as_bytes(self._path) not in self._fs.opened:
            _flush_on_close(self._fs, self.inode)


def _flush_on_close(fs: Mount, inode: LiveInode) -> None:
    """``btrfs_release_file()``."""
    if stat.S_ISREG(inode.item.mode) and inode.pages.flush_on_close:
        inode.pages.flush_on_close = False
        writeback(fs, inode)


def _check_regular(inode: LiveInode, otherwise: int, path: Path) -> None:
    """See that an inode is a file: EISDIR for a directory, `otherwise` for the rest."""
    if inode.is_dir:
        raise _error(errno.EISDIR, path)
    if not stat.S_ISREG(inode.item.mode):
        raise _error(otherwise, path)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), path)
