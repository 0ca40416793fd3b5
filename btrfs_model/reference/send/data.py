# SPDX-License-Identifier: GPL-2.0-only
"""Reading file data: from a file extent item to the bytes that WRITE carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from btrfs_model.base.codes import EUCLEAN, Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.constants import Compression, FileExtentType
from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import Payload, PayloadError
from btrfs_model.reference.ctree import Reada, key_at, next_leaf, nritems, payload_at, search_slot
from btrfs_model.volume.compression import decompress

if TYPE_CHECKING:
    from btrfs_model.reference.ctree import Path
    from btrfs_model.reference.send.context import SendContext
    from btrfs_model.volume.tree import Tree

_CSUM_OBJECTID = 2**64 - 10
_NODATASUM = 1
# a compressed extent holds 128 KiB; what claims much more is broken
_MAX_PLAIN = 1 << 20
# items that are looked at for an acl when an inode is read
_MAX_SCANNED = 8


class Extent(NamedTuple):
    """A file extent item, as far as send looks at it.

    Attributes
    ----------
    start, end : int
        The range of the file; that of inline data ends with its sector.
    type, compression : int
        ``enum btrfs_file_extent_type``, ``enum btrfs_compression``.
    disk_bytenr, disk_num_bytes, offset, num_bytes, ram_bytes : int
        As in the item; only `ram_bytes` of inline data.
    generation : int
        The transaction that wrote it.
    inline : bytes
        Inline data as stored.
    """

    start: int
    end: int
    type: int
    compression: int
    disk_bytenr: int
    disk_num_bytes: int
    offset: int
    num_bytes: int
    ram_bytes: int
    generation: int
    inline: bytes

    @property
    def is_inline(self) -> bool:
        """Whether the data is in the item itself."""
        return bool(self.type == FileExtentType.INLINE)

    @property
    def is_on_disk(self) -> bool:
        """Whether there is data on disk: not for a hole, nor where it was only preallocated."""
        return bool(self.type == FileExtentType.REG and self.disk_bytenr)


def parse_file_extent(sctx: SendContext, path: Path, tree: Tree) -> Extent:
    """Take the file extent item apart that a path ends at.

    Raises
    ------
    CorruptImageError
        When it is too short or holds what no kernel writes.
    """
    _, _, start = key_at(path.leaf, path.slots[0])

    def decode(payload: Payload) -> Extent:
        item = file_extent(payload)
        for value, limit in (
            (item.type, FileExtentType.PREALLOC),
            (item.compression, Compression.ZSTD),
        ):
            if value > limit:
                raise PayloadError.bad_value(value)
        if isinstance(item, InlineExtent):
            sector = sctx.image.sectorsize
            end = -(-(start + item.ram_bytes) // sector) * sector
            return Extent(start, end, item.type, item.compression, 0, 0, 0, 0, item.ram_bytes,
                          item.generation, item.data)  # fmt: skip
        # what a sum of 64 bits could overflow to, no kernel writes
        if max(start, item.offset) + item.num_bytes >> 64:
            raise PayloadError.bad_value(item.num_bytes)
        return Extent(start, start + item.num_bytes, item.type, item.compression,
                      item.disk_bytenr, item.disk_num_bytes, item.offset, item.num_bytes,
                      item.ram_bytes, item.generation, b"")  # fmt: skip

    extent: Extent = sctx.decode(path, tree, decode)
    return extent


class DataReader:
    """Reads file data for one send, verified against the csum tree.

    Parameters
    ----------
    sctx : SendContext
        The send.
    """

    def __init__(self, sctx: SendContext) -> None:
        self.sctx = sctx
        self.csum_tree = sctx.fs.tree(ObjectId.CSUM_TREE)
        self.open_inode_number = 0
        self.mapped = (0, 0)
        # the csum item in which the last look-up ended: the range that it covers, and its sums
        self.csums: tuple[int, int, Payload] = (0, 0, b"")
        self.plain: tuple[int, bytes] = (0, b"")

    def open_for_data(self, extent: Extent) -> None:
        """Search what the kernel searches before data can be read through the page cache.

        The inode once (``btrfs_iget()``), the item of each extent (``btrfs_get_extent()``).
        """
        sctx = self.sctx
        if self.open_inode_number != sctx.cur_ino:
            self._open_inode()
            self.open_inode_number = sctx.cur_ino
            self.mapped = (0, 0)
        if self.mapped[0] <= extent.start and extent.end <= self.mapped[1]:
            return
        self.mapped = (extent.start, extent.end)
        if extent.is_on_disk:
            # the read of an extent is one bio, for which the checksums are looked up once
            current().count("submit_bio")
            self.csums = (0, 0, b"")
        current().count("btrfs_lookup_file_extent")
        key = (sctx.cur_ino, ItemType.EXTENT_DATA, extent.start)
        search_slot(sctx.root, key, sctx.search_path(Reada.FORWARD))

    def _open_inode(self) -> None:
        """Read the inode and look whether it may have acls or properties.

        Where the leaf ends before an item tells, the next leaf is looked at
        (``acls_after_inode_item()``, ``btrfs_load_inode_props()``).
        """
        sctx, path = self.sctx, self.sctx.search_path()
        search_slot(sctx.root, (sctx.cur_ino, ItemType.INODE_ITEM, 0), path)
        # the item behind the inode is taken for its name
        first = path.slots[0] + 2
        for scanned, slot in enumerate(range(first, nritems(path.leaf)), 1):
            ino, kind, _ = key_at(path.leaf, slot)
            if ino != sctx.cur_ino or kind >= ItemType.XATTR_ITEM or scanned == _MAX_SCANNED:
                return
        next_leaf(sctx.root, path)

    def symlink_target(self, path: Path) -> bytes:
        """Return the target that the extent item of a symbolic link holds (``read_symlink()``)."""
        extent = parse_file_extent(self.sctx, path, self.sctx.root)
        if not extent.is_inline or extent.compression:
            raise self.sctx.fail(EUCLEAN)
        if extent.ram_bytes > len(extent.inline):
            block = int.from_bytes(path.leaf[48:56], "little")
            raise PayloadError.too_short(len(extent.inline), extent.ram_bytes).at(
                self.sctx.image.path,
                tree=self.sctx.root.objectid,
                block=block,
                slot=path.slots[0],
            )
        return extent.inline[: extent.ram_bytes]

    def read(self, extent: Extent, offset: int, size: int) -> bytes:
        """Return `size` bytes of the file from `offset` on, all inside `extent`."""
        at = offset - extent.start + extent.offset
        if not extent.is_inline and not extent.is_on_disk:
            return bytes(size)
        if extent.compression:
            data = self._decompress(extent)
        elif extent.is_inline:
            data = extent.inline
        else:
            return self._read_disk(extent.disk_bytenr + at, size)
        # what lies beyond the data of the last extent of a file reads as zeros
        return data[at : at + size].ljust(size, b"\0")

    def raw(self, extent: Extent) -> bytes:
        """Return the bytes of an extent as they are on disk."""
        return self._read_disk(extent.disk_bytenr, extent.disk_num_bytes)

    def _decompress(self, extent: Extent) -> bytes:
        if extent.disk_bytenr and self.plain[0] == extent.disk_bytenr:
            return self.plain[1]
        size = len(extent.inline) if extent.is_inline else extent.disk_num_bytes
        sctx = self.sctx
        block = int.from_bytes(sctx.path.leaf[48:56], "little")
        bad = CorruptImageError(
            sctx.image.path,
            Fault(Code.BAD_DATA, sctx.root.objectid, block, sctx.path.slots[0], 0, size,
                  extent.ram_bytes),
        )  # fmt: skip
        if max(extent.ram_bytes, size) > _MAX_PLAIN:
            raise bad
        packed = extent.inline if extent.is_inline else self.raw(extent)
        try:
            plain = decompress(extent.compression, packed, extent.ram_bytes, sctx.image.sectorsize)
        except PayloadError:
            raise bad from None
        self.plain = (extent.disk_bytenr, plain)
        return plain

    def _read_disk(self, logical: int, size: int) -> bytes:
        sector = self.sctx.image.sectorsize
        first = logical // sector * sector
        end = logical + size
        data = b"".join(self._verified_sector(at) for at in range(first, end, sector))
        return data[logical - first : end - first]

    def _verified_sector(self, logical: int) -> bytes:
        """Return a sector, of the first copy whose checksum is right."""
        image, tree = self.sctx.image, self.sctx.root.objectid
        image.map(logical)
        chunk = image.chunk_at(logical)
        assert chunk is not None
        fault = Fault(Code.PAST_END, tree)
        for copy in range(len(chunk.stripes)):
            physical, contiguous = image.map(logical, copy)
            if contiguous < image.sectorsize:
                fault = Fault(fault.code, tree, 0, 0, physical, fault.found, fault.wanted)
                continue
            sector = image.view[physical : physical + image.sectorsize]
            if self.sctx.cur_inode.flags & _NODATASUM:
                return bytes(sector)
            computed = csum(image.superblock.csum_type, sector)
            stored = self._stored_csum(logical, len(computed))
            if stored == computed:
                return bytes(sector)
            # a sector without a checksum reads as an error too
            fault = Fault(
                Code.BAD_DATA_CSUM,
                tree,
                offset=physical,
                found=int.from_bytes(stored[:8], "little"),
                wanted=int.from_bytes(computed[:8], "little"),
            )
        raise CorruptImageError(image.path, fault)

    def _stored_csum(self, logical: int, size: int) -> bytes:
        if not self.csums[0] <= logical < self.csums[1]:
            self._find_csums(logical, size)
        start, end, sums = self.csums
        if not start <= logical < end:
            return b""
        at = (logical - start) // self.sctx.image.sectorsize * size
        return bytes(sums[at : at + size])

    def _find_csums(self, logical: int, size: int) -> None:
        """Look up the csum item that covers an address, if any."""
        self.csums = (0, 0, b"")
        path = self.sctx.search_path()
        kind = (_CSUM_OBJECTID, ItemType.EXTENT_CSUM)
        if not search_slot(self.csum_tree, (*kind, logical), path):
            if not path.slots[0]:
                return
            path.slots[0] -= 1
        *found, start = key_at(path.leaf, path.slots[0])
        if tuple(found) != kind:
            return
        sums = payload_at(path.leaf, path.slots[0])
        self.csums = (start, start + len(sums) // size * self.sctx.image.sectorsize, sums)
