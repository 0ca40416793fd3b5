# SPDX-License-Identifier: GPL-2.0-only
"""What send makes of a file extent: WRITE, CLONE, ENCODED_WRITE or UPDATE_EXTENT.

A range is cloned item by item of its source, as far as these refer to the same data; the rest is
written.
"""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass

from btrfs_model.base.counters import current
from btrfs_model.ondisk.constants import Compression
from btrfs_model.ondisk.keys import U64_MAX, ItemType, Key
from btrfs_model.patches import Patch
from btrfs_model.questions.send.causes import Item
from btrfs_model.reference.send.clone import find_extent_clone, refuse_chosen_place
from btrfs_model.reference.send.command import (
    U32_MAX,
    send_cmd,
    send_truncate,
    send_update_extent,
    write_cmd,
)
from btrfs_model.reference.send.context import (
    NOT_DATA,
    CloneRoot,
    SendContext,
    alloc_path_for_send,
    because,
    because_of_rule,
    send_errno,
)
from btrfs_model.reference.send.data import (
    Extent,
    open_for_data,
    parse_file_extent,
    read_extent_data,
    read_raw_extent,
)
from btrfs_model.reference.send.hole import is_extent_unchanged, maybe_send_hole
from btrfs_model.reference.send.names import (
    btrfs_for_each_slot,
    get_inode_gen,
    get_inode_info,
    get_inode_path,
)
from btrfs_model.reference.send.paths import get_cur_inode_path, get_cur_path
from btrfs_model.volume.compare import Change
from btrfs_model.volume.ctree import block_key, next_leaf, nritems, search_slot

_PAGE = 4096
# the largest sector size that a receiver may have
_CLONE_ALIGN = 65536
# BTRFS_ENCODED_IO_COMPRESSION_*
_ENCODED: dict[int, int] = {Compression.ZLIB: 1, Compression.ZSTD: 2}
_ENCODED_LZO_4K = 3


def process_extent(sctx: SendContext) -> None:
    """Send the file extent item that ``left_path`` ends at."""
    current().count("process_extent")
    if stat.S_ISLNK(sctx.cur_inode.mode):
        return
    extent = parse_file_extent(sctx, sctx.left_path, sctx.send_root)
    if sctx.parent_root and not sctx.cur_inode_new:
        if is_extent_unchanged(sctx, extent):
            maybe_send_hole(sctx)
            return
    elif not extent.is_inline and not extent.is_on_disk:
        # new files simply have holes where nothing was written
        return
    send_write_or_clone(sctx, extent, find_extent_clone(sctx, extent))
    maybe_send_hole(sctx)


def process_all_extents(sctx: SendContext) -> None:
    """Send all extents of the current inode, which took the number of another one."""
    wanted = (sctx.cur_ino, ItemType.EXTENT_DATA)
    sctx.left_path = path = alloc_path_for_send(sctx)
    for key in btrfs_for_each_slot(sctx.send_root, Key(*wanted, 0), path):
        if key[:2] != wanted:
            break
        process_extent(sctx)


# ------------------------------------------------------------------------ clone or write ----


def send_write_or_clone(sctx: SendContext, extent: Extent, clone: CloneRoot | None) -> None:
    """Send the part of an extent that lies inside the file."""
    end = min(extent.end, sctx.cur_inode.size)
    if extent.start >= end:
        # without it such a range has a length below 0, of which no data are read
        if extent.start > end and Patch.SEND_SKIP_TRUNCATE not in sctx:
            because(sctx, _write_cause(extent), sctx.cur_ino, _extent_item(sctx))
            current().count("send_extent_data")
            if sctx.request.no_file_data:
                send_update_extent(sctx, extent.start, end - extent.start)
        return
    because(sctx, _write_cause(extent), sctx.cur_ino, _extent_item(sctx))
    if clone is not None and _can_clone(sctx, extent, end, clone):
        clone_range(sctx, extent, clone, end - extent.start)
    else:
        if clone is not None:
            because_of_rule(sctx, "write-unaligned")
            refuse_chosen_place(sctx, "end-unaligned")
        send_extent_data(sctx, extent, extent.start, end - extent.start)
    sctx.cur_inode_next_write_offset = end


def _extent_item(sctx: SendContext) -> Item:
    """Return the item being sent: of an inode that took a number, the walk is elsewhere."""
    key = Key(*block_key(sctx.left_path.leaf, sctx.left_path.slots[0]))
    return Item(key, Change.NEW if sctx.cur_inode_new_gen else sctx.result)


def _write_cause(extent: Extent) -> str:
    """Return why an extent is written that was found nowhere else."""
    if extent.is_inline:
        return "write-inline"
    return "write-no-source" if extent.is_on_disk else "write-unallocated"


def _can_clone(sctx: SendContext, extent: Extent, end: int, clone: CloneRoot) -> bool:
    """Whether the range up to `end` can be cloned."""
    if end % sctx.image.sectorsize == 0:
        return True
    if Patch.SEND_CLONE_UNALIGNED_TAIL not in sctx or end != sctx.cur_inode.size:
        return False
    # an unaligned end can only be cloned where it is the end of both files
    source = get_inode_info(sctx, clone.source.tree, clone.ino)
    if clone.offset + end - extent.start != source.size:
        return False
    # the file of the receiver may still be larger: there the clone would end before its end
    if sctx.parent_root and Patch.SEND_TRUNCATE_BEFORE_CLONE in sctx:
        because_of_rule(sctx, "clone-truncate")
        send_truncate(sctx, extent.start)
    return True


@dataclass
class _Target:
    """The range of the file being sent that is still to be cloned."""

    extent: Extent
    data_offset: int
    offset: int
    size: int

    def advance(self, clone: CloneRoot, size: int) -> None:
        """Go on behind `size` bytes that were sent, here and in the source."""
        self.offset += size
        self.size -= size
        clone.offset += size


def clone_range(sctx: SendContext, extent: Extent, clone: CloneRoot, size: int) -> None:
    """Walk the items of the source; clone where they refer to the same data, write the rest."""
    tree, kind = clone.source.tree, ItemType.EXTENT_DATA
    target = _Target(extent, extent.offset, extent.start, size)
    # the receiver might have inlined a first block that is not inline here
    if not clone.offset and size == sctx.image.sectorsize:
        because_of_rule(sctx, "write-first-sector")
        send_extent_data(sctx, extent, target.offset, size)
        return
    source_size = U64_MAX
    if Patch.SEND_CLONE_PARTS in sctx:
        source_size = get_inode_info(sctx, tree, clone.ino).size
    path = alloc_path_for_send(sctx)
    found = search_slot(tree, (clone.ino, kind, clone.offset), path)
    if not found and path.slots[0] > 0:
        before = block_key(path.leaf, path.slots[0] - 1)
        path.slots[0] -= before[:2] == (clone.ino, kind)
    more = True
    while more:
        if path.slots[0] >= nritems(path.leaf) and not next_leaf(tree, path):
            break
        if block_key(path.leaf, path.slots[0])[:2] != (clone.ino, kind):
            break
        source = parse_file_extent(sctx, path, tree)
        more = _clone_from_item(sctx, target, clone, source, source_size)
        path.slots[0] += 1
    if target.size:
        because_of_rule(sctx, "write-source-ends")
        send_extent_data(sctx, extent, target.offset, target.size)


def _clone_from_item(
    sctx: SendContext, target: _Target, clone: CloneRoot, source: Extent, source_size: int
) -> bool:
    """Clone or write what one item of the source covers; False: write the rest."""
    wanted = target.extent.disk_bytenr
    size = -(-source.ram_bytes // _PAGE) * _PAGE if source.is_inline else source.num_bytes
    if source.start + size <= clone.offset:
        return True
    if source.start > clone.offset:
        # a hole without an item
        hole = min(source.start - clone.offset, target.size)
        because_of_rule(sctx, "write-source-hole")
        send_extent_data(sctx, target.extent, target.offset, hole)
        target.advance(clone, hole)
        target.data_offset += hole
        if not target.size:
            return False
    if source.start >= clone.offset + target.size or source.start >= source_size:
        return False
    crossed = False
    if source.start + size > source_size:
        size = source_size - source.start
        crossed = Patch.SEND_CLONE_SRC_EOF in sctx
    data_offset = source.offset
    if source.disk_bytenr == wanted and Patch.SEND_CLONE_PARTS in sctx:
        clone.offset = source.start
        if data_offset < target.data_offset < data_offset + size:
            skip = target.data_offset - data_offset
            size -= skip
            data_offset += skip
            clone.offset += skip
    piece = min(size, target.size)
    if source.disk_bytenr == wanted and data_offset == target.data_offset:
        _clone_piece(sctx, target, clone, source_size, piece)
    elif crossed and piece < target.size:
        return False
    else:
        because_of_rule(sctx, "write-source-differs")
        send_extent_data(sctx, target.extent, target.offset, piece)
    target.advance(clone, piece)
    # a file that is cloned from itself: no further than it reaches by now
    is_itself = (clone.id, clone.ino) == (sctx.send_root.objectid, sctx.cur_ino)
    at_end = is_itself and clone.offset >= sctx.cur_inode_next_write_offset
    if at_end and Patch.SEND_CLONE_SELF_EOF in sctx:
        return False
    target.data_offset += piece
    return target.size > 0


def _clone_piece(
    sctx: SendContext, target: _Target, clone: CloneRoot, source_size: int, size: int
) -> None:
    source_end, aligned = clone.offset + size, size
    # the unaligned end of the source cannot be cloned into the middle of a file: clone what is
    # aligned for every receiver and write the rest
    if (
        source_end == source_size
        and source_end % _CLONE_ALIGN
        and target.offset + size < sctx.cur_inode.size
        and Patch.SEND_CLONE_EOF_BLOCK in sctx
    ):
        aligned = size // _CLONE_ALIGN * _CLONE_ALIGN
    if aligned:
        because_of_rule(sctx, "clone-source")
        send_clone(sctx, target.offset, aligned, clone)
    if aligned < size:
        because_of_rule(sctx, "write-source-tail")
        send_extent_data(sctx, target.extent, target.offset + aligned, size - aligned)


# ------------------------------------------------------------------------------ commands ----


def send_clone(sctx: SendContext, offset: int, size: int, clone: CloneRoot) -> None:
    """Send CLONE."""
    path, item = get_cur_inode_path(sctx), clone.source.item
    if clone.id == sctx.send_root.objectid:
        gen = get_inode_gen(sctx, sctx.send_root, clone.ino)
        source = get_cur_path(sctx, clone.ino, gen)
    else:
        source = get_inode_path(sctx, clone.source.tree, clone.ino)
    send_cmd(
        sctx,
        "clone",
        file_offset=offset,
        clone_len=size & U32_MAX,  # the kernel's argument is a u32
        path=path,
        clone_uuid=item.received_uuid if any(item.received_uuid) else item.uuid,
        clone_ctransid=item.ctransid,
        clone_path=source,
        clone_offset=clone.offset,
    )


def send_extent_data(sctx: SendContext, extent: Extent, offset: int, size: int) -> None:
    """Send a range of an extent as data."""
    current().count("send_extent_data")
    if sctx.request.no_file_data:
        send_update_extent(sctx, offset, size)
        return
    # a part of an extent may be smaller plain than the whole is compressed
    packed = len(extent.inline) if extent.is_inline else extent.disk_num_bytes
    if sctx.request.compressed and extent.compression and packed <= size:
        send_encoded_extent(sctx, extent, offset, size)
        return
    read_size = sctx.send_max_size - NOT_DATA
    for start in range(offset, offset + size, read_size):
        send_write(sctx, extent, start, min(read_size, offset + size - start))


def send_write(sctx: SendContext, extent: Extent, offset: int, size: int) -> None:
    """Send WRITE."""
    path = get_cur_inode_path(sctx)
    open_for_data(sctx, extent)
    data = read_extent_data(sctx, extent, offset, size)
    send_cmd(sctx, "write", path=path, file_offset=offset, data=data)


def send_encoded_extent(sctx: SendContext, extent: Extent, offset: int, size: int) -> None:
    """Send a compressed extent as it is (with ``send_encoded_inline_extent()``)."""
    lzo = _ENCODED_LZO_4K + (sctx.image.sectorsize // _PAGE).bit_length() - 1
    plain = extent.ram_bytes if extent.is_inline else extent.num_bytes
    encryption = {} if extent.is_inline else {"encryption": 0}
    path = get_cur_inode_path(sctx)
    if not extent.is_inline:
        # the kernel reads into whole pages of its buffer, behind the header of the command,
        # the path, four numbers of 64 bits, two of 32 and the type of the data
        head = 10 + (4 + len(path)) + 4 * (4 + 8) + 2 * (4 + 4) + 2
        if -(-head // _PAGE) * _PAGE + extent.disk_num_bytes > sctx.send_max_size:
            raise send_errno(sctx, errno.EOVERFLOW)
    # the kernel writes what it read into its pages itself
    write = send_cmd if extent.is_inline else write_cmd
    write(
        sctx,
        "encoded_write",
        path=path,
        file_offset=offset,
        unencoded_file_len=min(extent.start + plain - offset, size),
        unencoded_len=extent.ram_bytes,
        unencoded_offset=offset - extent.start + extent.offset,
        compression=_ENCODED.get(extent.compression, lzo),
        **encryption,
        data=extent.inline if extent.is_inline else read_raw_extent(sctx, extent),
    )
