# SPDX-License-Identifier: GPL-2.0-only
"""Reading file data: from a file extent item to the bytes that WRITE carries.

Every sector is verified against the csum tree; where it is wrong and there is a second copy, that
one is used. The extent that was decompressed last is kept, because it is usually wanted in several
pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.constants import Compression, FileExtentType, InodeFlag
from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import Payload, PayloadError
from btrfs_model.reference.send.context import SendContext, alloc_path_for_send, decode_item
from btrfs_model.volume import ctree
from btrfs_model.volume.compression import decompress

if TYPE_CHECKING:
    from btrfs_model.volume.tree import Tree

# a compressed extent holds 128 KiB; what claims much more is broken
_MAX_PLAIN = 1 << 20
# items that are looked at for an acl when an inode is read
_MAX_SCANNED = 8


class Extent(NamedTuple):
    """A file extent item, as far as send looks at it.

    `start`, `end`: the range of the file; that of inline data ends with its sector.
    `type`, `compression`: ``enum btrfs_file_extent_type``, ``enum btrfs_compression``.
    `disk_bytenr`, `disk_num_bytes`, `offset`, `num_bytes`, `ram_bytes`: as in the item; only
    `ram_bytes` of inline data.
    `generation`: the transaction that wrote it.
    `inline`: inline data as stored.
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


def parse_file_extent(sctx: SendContext, path: ctree.Path, tree: Tree) -> Extent:
    """Take the file extent item apart that a path ends at.

    Raises CorruptImageError: when it is too short or holds what no kernel writes.
    """
    _, _, start = ctree.block_key(path.leaf, path.slots[0])

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

    extent: Extent = decode_item(sctx, path, tree, decode)
    return extent


# ------------------------------------------------------------------------- the page cache ----


def open_for_data(sctx: SendContext, extent: Extent) -> None:
    """Search what the kernel searches before data can be read through the page cache.

    The inode once (``btrfs_iget()``), the item of each extent (``btrfs_get_extent()``).
    """
    if not sctx.cur_inode_open:
        _open_inode(sctx)
        sctx.cur_inode_open = True
        sctx.mapped = (0, 0)
    if sctx.mapped[0] <= extent.start and extent.end <= sctx.mapped[1]:
        return
    sctx.mapped = (extent.start, extent.end)
    if extent.is_on_disk:
        # the read of an extent is one bio, for which the checksums are looked up once
        current().count("submit_bio")
        current().count("data_reads")
        sctx.csums = (0, 0, b"")
    current().count("btrfs_lookup_file_extent")
    key = (sctx.cur_ino, ItemType.EXTENT_DATA, extent.start)
    ctree.search_slot(sctx.send_root, key, alloc_path_for_send(sctx, ctree.Reada.FORWARD))


def _open_inode(sctx: SendContext) -> None:
    """Read the inode and look whether it may have acls or properties.

    Where the leaf ends before an item tells, the next leaf is looked at
    (``acls_after_inode_item()``, ``btrfs_load_inode_props()``).
    """
    path = alloc_path_for_send(sctx)
    ctree.search_slot(sctx.send_root, (sctx.cur_ino, ItemType.INODE_ITEM, 0), path)
    # the item behind the inode is taken for its name
    first = path.slots[0] + 2
    for scanned, slot in enumerate(range(first, ctree.nritems(path.leaf)), 1):
        ino, kind, _ = ctree.block_key(path.leaf, slot)
        if ino != sctx.cur_ino or kind >= ItemType.XATTR_ITEM or scanned == _MAX_SCANNED:
            return
    ctree.next_leaf(sctx.send_root, path)


# ------------------------------------------------------------------------------- reading ----


def read_extent_data(sctx: SendContext, extent: Extent, offset: int, size: int) -> bytes:
    """Return `size` bytes of the file from `offset` on, all inside `extent`."""
    at = offset - extent.start + extent.offset
    if not extent.is_inline and not extent.is_on_disk:
        return bytes(size)
    if extent.compression:
        data = _decompress(sctx, extent)
    elif extent.is_inline:
        data = extent.inline
    else:
        return _read_disk(sctx, extent.disk_bytenr + at, size)
    # what lies beyond the data of the last extent of a file reads as zeros
    return data[at : at + size].ljust(size, b"\0")


def read_raw_extent(sctx: SendContext, extent: Extent) -> bytes:
    """Return the bytes of an extent as they are on disk."""
    return _read_disk(sctx, extent.disk_bytenr, extent.disk_num_bytes)


def _decompress(sctx: SendContext, extent: Extent) -> bytes:
    if extent.disk_bytenr and sctx.plain[0] == extent.disk_bytenr:
        return sctx.plain[1]
    size = len(extent.inline) if extent.is_inline else extent.disk_num_bytes
    bad = CorruptImageError(
        sctx.image.path,
        Fault(Code.BAD_DATA, sctx.send_root.objectid, ctree.bytenr_of(sctx.left_path.leaf),
              sctx.left_path.slots[0], 0, size, extent.ram_bytes),
    )  # fmt: skip
    if max(extent.ram_bytes, size) > _MAX_PLAIN:
        raise bad
    packed = extent.inline if extent.is_inline else read_raw_extent(sctx, extent)
    try:
        plain = decompress(extent.compression, packed, extent.ram_bytes, sctx.image.sectorsize)
    except PayloadError:
        raise bad from None
    sctx.plain = (extent.disk_bytenr, plain)
    return plain


def _read_disk(sctx: SendContext, logical: int, size: int) -> bytes:
    sector = sctx.image.sectorsize
    first = logical // sector * sector
    end = logical + size
    data = b"".join(_verified_sector(sctx, at) for at in range(first, end, sector))
    return data[logical - first : end - first]


def _verified_sector(sctx: SendContext, logical: int) -> bytes:
    """Return a sector, of the first copy whose checksum is right."""
    image, tree = sctx.image, sctx.send_root.objectid
    chunk = image.chunk_at(logical)
    fault = Fault(Code.PAST_END, tree)
    # without a chunk the first copy says so
    for copy in range(chunk.copies if chunk else 1):
        physical = contiguous = 0
        try:
            if chunk is None or copy < chunk.placed:
                physical, contiguous = image.map(logical, copy)
            sector = image.data(logical, image.sectorsize, copy)
        except CorruptImageError as error:
            device, at = image.byte_of_device(physical)
            if contiguous:
                fault = Fault(fault.code, tree, 0, 0, at, fault.found, fault.wanted, device)
            elif error.fault.code != Code.UNMAPPED or not copy:
                fault = error.fault
            continue
        if sctx.cur_inode.flags & InodeFlag.NODATASUM:
            return bytes(sector)
        computed = csum(image.superblock.csum_type, sector)
        stored = _stored_csum(sctx, logical, len(computed))
        if stored == computed:
            return bytes(sector)
        # a sector without a checksum reads as an error too
        device, at = image.byte_of_device(physical)
        fault = Fault(
            Code.BAD_DATA_CSUM,
            tree,
            offset=at,
            found=int.from_bytes(stored[:8], "little"),
            wanted=int.from_bytes(computed[:8], "little"),
            device=device,
        )
    raise CorruptImageError(image.path, fault)


def _stored_csum(sctx: SendContext, logical: int, size: int) -> bytes:
    if not sctx.csums[0] <= logical < sctx.csums[1]:
        _find_csums(sctx, logical, size)
    start, end, sums = sctx.csums
    if not start <= logical < end:
        return b""
    at = (logical - start) // sctx.image.sectorsize * size
    return bytes(sums[at : at + size])


def _find_csums(sctx: SendContext, logical: int, size: int) -> None:
    """Look up the csum item that covers an address, if any."""
    sctx.csums = (0, 0, b"")
    path = alloc_path_for_send(sctx)
    kind = (ObjectId.EXTENT_CSUM, ItemType.EXTENT_CSUM)
    if not ctree.search_slot(sctx.csum_tree, (*kind, logical), path):
        if not path.slots[0]:
            return
        path.slots[0] -= 1
    *found, start = ctree.block_key(path.leaf, path.slots[0])
    if tuple(found) != kind:
        return
    sums = ctree.item_data(path.leaf, path.slots[0])
    sctx.csums = (start, start + len(sums) // size * sctx.image.sectorsize, sums)
