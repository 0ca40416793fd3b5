# SPDX-License-Identifier: GPL-2.0-only
"""Every structure of the on-disk format, declared once.

A structure is a :class:`~typing.NamedTuple` whose annotations say how each field lies on disk
(packed, little endian, in the order of declaration). From the annotations a :class:`Layout` makes

- ``layout.dtype``, a packed numpy dtype, to view thousands of payloads at once;
- ``layout.unpack(payload)``, the NamedTuple of one payload;
- ``layout.flat(payload)``, the plain tuple of its numbers, the fastest form of one payload.

The C kernels have the same structures in ``native/ondisk.h``; a test holds the two to the same
offsets and sizes. Field names are those of the kernel's ``include/uapi/linux/btrfs_tree.h``
(6.12), less the leading underscores.

A payload shorter than its structure is a :exc:`PayloadError`, which becomes the error that the user
sees once the place of the item is added (:meth:`PayloadError.at`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from btrfs_model.errors import CorruptImageError, Fault
from btrfs_model.kernels import lib

__all__ = [
    "BLOCK_GROUP_ITEM",
    "CHUNK",
    "DEV_EXTENT",
    "DEV_ITEM",
    "DEV_STATS_ITEM",
    "DIR_ITEM",
    "DIR_LOG_ITEM",
    "DISK_KEY",
    "EXTENT_DATA_REF",
    "EXTENT_INLINE_REF",
    "EXTENT_ITEM",
    "EXTENT_OWNER_REF",
    "FILE_EXTENT_ITEM",
    "FREE_SPACE_ENTRY",
    "FREE_SPACE_HEADER",
    "FREE_SPACE_INFO",
    "HEADER",
    "INODE_EXTREF",
    "INODE_ITEM",
    "INODE_REF",
    "ITEM",
    "KEY_PTR",
    "LAYOUTS",
    "ROOT_BACKUP",
    "ROOT_ITEM",
    "ROOT_REF",
    "SHARED_DATA_REF",
    "STRIPE",
    "SUPER_BLOCK",
    "TIMESPEC",
    "TREE_BLOCK_INFO",
    "VERITY_DESCRIPTOR_ITEM",
    "Layout",
    "Payload",
    "PayloadError",
]

Payload = bytes | bytearray | memoryview
"""What a payload may be given as."""

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
Uuid = Annotated[bytes, "16s"]
Csum = Annotated[bytes, "32s"]

T = TypeVar("T")


class PayloadError(ValueError):
    """A payload that does not hold what its type needs; the caller adds where it lies.

    Attributes
    ----------
    code : int
        One of ``enum bm_code``: ``BM_BAD_ITEM_SIZE`` or ``BM_BAD_VALUE``.
    found, wanted : int
        As in :class:`btrfs_model.errors.Fault`.
    """

    def __init__(self, code: int, found: int, wanted: int = 0) -> None:
        self.code = code
        self.found = found
        self.wanted = wanted
        super().__init__(f"fault {code}: found {found}, wanted {wanted}")

    @classmethod
    def too_short(cls, found: int, wanted: int) -> PayloadError:
        """Error for a payload of `found` bytes where at least `wanted` are needed."""
        return cls(lib.BM_BAD_ITEM_SIZE, found, wanted)

    @classmethod
    def bad_value(cls, found: int) -> PayloadError:
        """Error for a field that holds what no kernel writes."""
        return cls(lib.BM_BAD_VALUE, found)

    def at(
        self,
        path: str | os.PathLike[str],
        *,
        tree: int = 0,
        block: int = 0,
        slot: int = 0,
        offset: int = 0,
    ) -> CorruptImageError:
        """Return the error for the user: this one with its place in the image `path`."""
        fault = Fault(self.code, tree, block, slot, offset, self.found, self.wanted)
        return CorruptImageError(path, fault)


class Layout(Generic[T]):
    """How a structure lies on disk.

    Parameters
    ----------
    name : str
        The kernel's name of the structure, as in ``native/ondisk.h``.
    record : type
        The NamedTuple class that declares it.

    Attributes
    ----------
    dtype : numpy.dtype
        Packed and little endian; nested structures are nested dtypes.
    size : int
        In bytes.
    places : dict of str to slice
        Where each field stands in the tuple of :meth:`flat`; ``mtime.sec`` is a field of a field.
    """

    def __init__(self, name: str, record: Callable[..., T]) -> None:
        self.name = name
        self.record = record
        codes: list[str] = []
        fields: list[tuple[Any, ...]] = []
        # how to gather the flat numbers of a nested structure or array
        self._parts: list[tuple[int, int, Callable[[tuple[Any, ...]], Any] | None]] = []
        self._nested = False
        self.places: dict[str, slice] = {}
        at = 0
        for field, hint in get_type_hints(record, include_extras=True).items():
            code, numpy_type, gather = _field(hint)
            count = len(struct.unpack(f"<{code}", bytes(struct.calcsize(f"<{code}"))))
            codes.append(code)
            fields.append((field, *numpy_type))
            self._parts.append((at, at + count, gather))
            self.places[field] = slice(at, at + count)
            if hasattr(hint, "_fields"):
                nested = Layout("", hint).places
                self.places |= {
                    f"{field}.{part}": slice(at + place.start, at + place.stop)
                    for part, place in nested.items()
                }
            self._nested |= gather is not None
            at += count
        self.code = "".join(codes)
        self._struct = struct.Struct(f"<{self.code}")
        self.size = self._struct.size
        self.dtype = np.dtype(fields)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.size} bytes>"

    def flat(self, payload: Payload, offset: int = 0) -> tuple[Any, ...]:
        """Return the numbers of the structure at `offset`, nested structures flattened.

        Raises
        ------
        PayloadError
            When the payload ends before the structure.
        """
        try:
            return self._struct.unpack_from(payload, offset)
        except struct.error:
            raise PayloadError.too_short(len(payload), offset + self.size) from None

    def unpack(self, payload: Payload, offset: int = 0) -> T:
        """Return the structure at `offset` of `payload`.

        Raises
        ------
        PayloadError
            When the payload ends before the structure.
        """
        return self.gather(self.flat(payload, offset))

    def gather(self, flat: tuple[Any, ...]) -> T:
        """Make the record out of its flat numbers."""
        if not self._nested:
            return self.record(*flat)
        return self.record(
            *(
                flat[start] if gather is None else gather(flat[start:end])
                for start, end, gather in self._parts
            )
        )

    def view(self, payload: Payload, count: int = 1, offset: int = 0) -> np.ndarray[Any, Any]:
        """View `count` consecutive structures as a structured array, without copying.

        Raises
        ------
        PayloadError
            When the payload ends before them.
        """
        if len(payload) < offset + count * self.size:
            raise PayloadError.too_short(len(payload), offset + count * self.size)
        return np.frombuffer(payload, self.dtype, count, offset)


def _field(
    hint: Any,
) -> tuple[str, tuple[Any, ...], Callable[[tuple[Any, ...]], Any] | None]:
    """Struct code, numpy type and gatherer of a field from its annotation."""
    if get_origin(hint) is not Annotated:
        layout: Layout[Any] = Layout(hint.__name__, hint)
        return layout.code, (layout.dtype,), layout.gather
    base, what = get_args(hint)[:2]
    if get_origin(base) is tuple:
        return _array_field(get_args(base)[0], what)
    if what.endswith("s"):
        return what, ("u1", (int(what[:-1]),)), None
    return what, (np.dtype(f"<{what}"),), None


def _array_field(
    element: Any, count: int
) -> tuple[str, tuple[Any, ...], Callable[[tuple[Any, ...]], Any]]:
    code, numpy_type, gather = _field(element)

    def gather_all(flat: tuple[Any, ...]) -> tuple[Any, ...]:
        if gather is None:
            return flat
        step = len(flat) // count
        return tuple(gather(flat[at : at + step]) for at in range(0, len(flat), step))

    return code * count, (numpy_type[0], (count,)), gather_all


class DiskKey(NamedTuple):
    """A key: objectid, type, offset; compared in this order, without sign."""

    objectid: U64
    type: U8
    offset: U64


class Header(NamedTuple):
    """Head of a tree block. Its checksum covers byte 32 to the end of the block."""

    csum: Csum
    fsid: Uuid
    bytenr: U64
    flags: U64
    chunk_tree_uuid: Uuid
    generation: U64
    owner: U64
    nritems: U32
    level: U8


class Item(NamedTuple):
    """Item header of a leaf; `offset` counts from byte 101 of the block."""

    key: DiskKey
    offset: U32
    size: U32


class KeyPtr(NamedTuple):
    """Pointer of a node: the first key of the child, its logical address and its generation."""

    key: DiskKey
    blockptr: U64
    generation: U64


class DevItem(NamedTuple):
    """A device."""

    devid: U64
    total_bytes: U64
    bytes_used: U64
    io_align: U32
    io_width: U32
    sector_size: U32
    type: U64
    generation: U64
    start_offset: U64
    dev_group: U32
    seek_speed: U8
    bandwidth: U8
    uuid: Uuid
    fsid: Uuid


class RootBackup(NamedTuple):
    """Where the trees were at one of the last four commits."""

    tree_root: U64
    tree_root_gen: U64
    chunk_root: U64
    chunk_root_gen: U64
    extent_root: U64
    extent_root_gen: U64
    fs_root: U64
    fs_root_gen: U64
    dev_root: U64
    dev_root_gen: U64
    csum_root: U64
    csum_root_gen: U64
    total_bytes: U64
    bytes_used: U64
    num_devices: U64
    unused_64: Annotated[tuple[U64, ...], 4]
    tree_root_level: U8
    chunk_root_level: U8
    extent_root_level: U8
    fs_root_level: U8
    dev_root_level: U8
    csum_root_level: U8
    unused_8: Annotated[bytes, "10s"]


class RawSuperBlock(NamedTuple):
    """The superblock as it lies on disk; :mod:`btrfs_model.ondisk.superblock` makes sense of it."""

    csum: Csum
    fsid: Uuid
    bytenr: U64
    flags: U64
    magic: U64
    generation: U64
    root: U64
    chunk_root: U64
    log_root: U64
    unused_log_root_transid: U64
    total_bytes: U64
    bytes_used: U64
    root_dir_objectid: U64
    num_devices: U64
    sectorsize: U32
    nodesize: U32
    unused_leafsize: U32
    stripesize: U32
    sys_chunk_array_size: U32
    chunk_root_generation: U64
    compat_flags: U64
    compat_ro_flags: U64
    incompat_flags: U64
    csum_type: U16
    root_level: U8
    chunk_root_level: U8
    log_root_level: U8
    dev_item: DevItem
    label: Annotated[bytes, "256s"]
    cache_generation: U64
    uuid_tree_generation: U64
    metadata_uuid: Uuid
    nr_global_roots: U64
    reserved: Annotated[tuple[U64, ...], 27]
    sys_chunk_array: Annotated[bytes, "2048s"]
    super_roots: Annotated[tuple[RootBackup, ...], 4]
    padding: Annotated[bytes, "565s"]


class Stripe(NamedTuple):
    """One copy (or one column) of a chunk: where it lies on which device."""

    devid: U64
    offset: U64
    dev_uuid: Uuid


class ChunkHead(NamedTuple):
    """Head of a chunk item; `num_stripes` stripes follow (the C structure counts the first in)."""

    length: U64
    owner: U64
    stripe_len: U64
    type: U64
    io_align: U32
    io_width: U32
    sector_size: U32
    num_stripes: U16
    sub_stripes: U16


class RawChunk(NamedTuple):
    """A chunk item with one stripe, as the C structure has it."""

    length: U64
    owner: U64
    stripe_len: U64
    type: U64
    io_align: U32
    io_width: U32
    sector_size: U32
    num_stripes: U16
    sub_stripes: U16
    stripe: Stripe


class RawExtentItem(NamedTuple):
    """Head of an extent item; inline references follow."""

    refs: U64
    generation: U64
    flags: U64


class TreeBlockInfo(NamedTuple):
    """First key and level of a tree block, in an EXTENT_ITEM that is not skinny."""

    key: DiskKey
    level: U8


class ExtentDataRef(NamedTuple):
    """`count` file extents of the inode `objectid` in tree `root` use the extent."""

    root: U64
    objectid: U64
    offset: U64
    count: U32  # type: ignore[assignment]


class SharedDataRef(NamedTuple):
    """`count` file extents of one leaf use the extent."""

    count: U32  # type: ignore[assignment]


class RawInlineRef(NamedTuple):
    """Inline reference: the type and, but for EXTENT_DATA_REF, a tree or a parent block."""

    type: U8
    offset: U64


class ExtentOwnerRef(NamedTuple):
    """The subvolume that an extent is accounted to (simple quotas)."""

    root_id: U64


class DevExtent(NamedTuple):
    """A piece of a device that belongs to a chunk."""

    chunk_tree: U64
    chunk_objectid: U64
    chunk_offset: U64
    length: U64
    chunk_tree_uuid: Uuid


class RawInodeRef(NamedTuple):
    """Head of a name of an inode; the name follows."""

    index: U64  # type: ignore[assignment]
    name_len: U16


class RawInodeExtref(NamedTuple):
    """Head of a name of an inode in an extended reference; the name follows."""

    parent_objectid: U64
    index: U64  # type: ignore[assignment]
    name_len: U16


class Timespec(NamedTuple):
    """Seconds since 1970 (signed in fact, stored without sign) and nanoseconds."""

    sec: U64
    nsec: U32


class InodeItem(NamedTuple):
    """An inode."""

    generation: U64
    transid: U64
    size: U64
    nbytes: U64
    block_group: U64
    nlink: U32
    uid: U32
    gid: U32
    mode: U32
    rdev: U64
    flags: U64
    sequence: U64
    reserved: Annotated[tuple[U64, ...], 4]
    atime: Timespec
    ctime: Timespec
    mtime: Timespec
    otime: Timespec


class DirLogItem(NamedTuple):
    """In a log tree: the directory range [key.offset, end] is logged completely."""

    end: U64


class RawDirItem(NamedTuple):
    """Head of a directory entry or xattr; name and data follow."""

    location: DiskKey
    transid: U64
    data_len: U16
    name_len: U16
    type: U8


class RootItem(NamedTuple):
    """Root of a tree; before Linux 3.6 it ended after `level` (239 bytes)."""

    inode: InodeItem
    generation: U64
    root_dirid: U64
    bytenr: U64
    byte_limit: U64
    bytes_used: U64
    last_snapshot: U64
    flags: U64
    refs: U32
    drop_progress: DiskKey
    drop_level: U8
    level: U8
    generation_v2: U64
    uuid: Uuid
    parent_uuid: Uuid
    received_uuid: Uuid
    ctransid: U64
    otransid: U64
    stransid: U64
    rtransid: U64
    ctime: Timespec
    otime: Timespec
    stime: Timespec
    rtime: Timespec
    reserved: Annotated[tuple[U64, ...], 8]


class RawRootRef(NamedTuple):
    """Where a subvolume has its name; the name follows."""

    dirid: U64
    sequence: U64
    name_len: U16


class RawFileExtent(NamedTuple):
    """A file extent; inline data take the place of everything after `type`."""

    generation: U64
    ram_bytes: U64
    compression: U8
    encryption: U8
    other_encoding: U16
    type: U8
    disk_bytenr: U64
    disk_num_bytes: U64
    offset: U64
    num_bytes: U64


class FileExtentHead(NamedTuple):
    """What all file extents begin with."""

    generation: U64
    ram_bytes: U64
    compression: U8
    encryption: U8
    other_encoding: U16
    type: U8


class BlockGroupItem(NamedTuple):
    """How much of a block group is used."""

    used: U64
    chunk_objectid: U64
    flags: U64


class FreeSpaceInfo(NamedTuple):
    """Head of a block group in the free space tree."""

    extent_count: U32
    flags: U32


class FreeSpaceHeader(NamedTuple):
    """Head of a free space cache file (version 1)."""

    location: DiskKey
    generation: U64
    num_entries: U64
    num_bitmaps: U64


class FreeSpaceEntry(NamedTuple):
    """Entry of a free space cache file (version 1)."""

    offset: U64
    bytes: U64
    type: U8


class DevStatsItem(NamedTuple):
    """Errors of a device: write, read, flush, corruption, generation."""

    values: Annotated[tuple[U64, ...], 5]


class VerityDescriptorItem(NamedTuple):
    """Size of the fs-verity descriptor."""

    size: U64
    reserved: Annotated[tuple[U64, ...], 2]
    encryption: U8


class QgroupStatusItem(NamedTuple):
    """State of quotas; simple quotas append the generation they were enabled in."""

    version: U64
    generation: U64
    flags: U64
    rescan: U64


class QgroupInfoItem(NamedTuple):
    """What a quota group uses."""

    generation: U64
    rfer: U64
    rfer_cmpr: U64
    excl: U64
    excl_cmpr: U64


class QgroupLimitItem(NamedTuple):
    """What a quota group may use."""

    flags: U64
    max_rfer: U64
    max_excl: U64
    rsv_rfer: U64
    rsv_excl: U64


class DiskBalanceArgs(NamedTuple):
    """Filters of a balance for one kind of chunk.

    `usage` and `limit` are either one number of 64 bits or, as here, a range of two.
    """

    profiles: U64
    usage_min: U32
    usage_max: U32
    devid: U64
    pstart: U64
    pend: U64
    vstart: U64
    vend: U64
    target: U64
    flags: U64
    limit_min: U32
    limit_max: U32
    stripes_min: U32
    stripes_max: U32
    unused: Annotated[tuple[U64, ...], 6]


class BalanceItem(NamedTuple):
    """A balance that runs or is paused."""

    flags: U64
    data: DiskBalanceArgs
    meta: DiskBalanceArgs
    sys: DiskBalanceArgs
    unused: Annotated[tuple[U64, ...], 4]


class DevReplaceItem(NamedTuple):
    """State of the last device replacement."""

    src_devid: U64
    cursor_left: U64
    cursor_right: U64
    cont_reading_from_srcdev_mode: U64
    replace_state: U64
    time_started: U64
    time_stopped: U64
    num_write_errors: U64
    num_uncorrectable_read_errors: U64


class RaidStride(NamedTuple):
    """One copy of an extent in the raid stripe tree."""

    devid: U64
    physical: U64


DISK_KEY = Layout("btrfs_disk_key", DiskKey)
HEADER = Layout("btrfs_header", Header)
ITEM = Layout("btrfs_item", Item)
KEY_PTR = Layout("btrfs_key_ptr", KeyPtr)
DEV_ITEM = Layout("btrfs_dev_item", DevItem)
ROOT_BACKUP = Layout("btrfs_root_backup", RootBackup)
SUPER_BLOCK = Layout("btrfs_super_block", RawSuperBlock)
STRIPE = Layout("btrfs_stripe", Stripe)
CHUNK = Layout("btrfs_chunk", RawChunk)
EXTENT_ITEM = Layout("btrfs_extent_item", RawExtentItem)
TREE_BLOCK_INFO = Layout("btrfs_tree_block_info", TreeBlockInfo)
EXTENT_DATA_REF = Layout("btrfs_extent_data_ref", ExtentDataRef)
SHARED_DATA_REF = Layout("btrfs_shared_data_ref", SharedDataRef)
EXTENT_INLINE_REF = Layout("btrfs_extent_inline_ref", RawInlineRef)
EXTENT_OWNER_REF = Layout("btrfs_extent_owner_ref", ExtentOwnerRef)
DEV_EXTENT = Layout("btrfs_dev_extent", DevExtent)
INODE_REF = Layout("btrfs_inode_ref", RawInodeRef)
INODE_EXTREF = Layout("btrfs_inode_extref", RawInodeExtref)
TIMESPEC = Layout("btrfs_timespec", Timespec)
INODE_ITEM = Layout("btrfs_inode_item", InodeItem)
DIR_LOG_ITEM = Layout("btrfs_dir_log_item", DirLogItem)
DIR_ITEM = Layout("btrfs_dir_item", RawDirItem)
ROOT_ITEM = Layout("btrfs_root_item", RootItem)
ROOT_REF = Layout("btrfs_root_ref", RawRootRef)
FILE_EXTENT_ITEM = Layout("btrfs_file_extent_item", RawFileExtent)
BLOCK_GROUP_ITEM = Layout("btrfs_block_group_item", BlockGroupItem)
FREE_SPACE_INFO = Layout("btrfs_free_space_info", FreeSpaceInfo)
FREE_SPACE_HEADER = Layout("btrfs_free_space_header", FreeSpaceHeader)
FREE_SPACE_ENTRY = Layout("btrfs_free_space_entry", FreeSpaceEntry)
DEV_STATS_ITEM = Layout("btrfs_dev_stats_item", DevStatsItem)
VERITY_DESCRIPTOR_ITEM = Layout("btrfs_verity_descriptor_item", VerityDescriptorItem)
# Structures that no C kernel reads.
CHUNK_HEAD = Layout("btrfs_chunk (head)", ChunkHead)
FILE_EXTENT_HEAD = Layout("btrfs_file_extent_item (head)", FileExtentHead)
QGROUP_STATUS_ITEM = Layout("btrfs_qgroup_status_item", QgroupStatusItem)
QGROUP_INFO_ITEM = Layout("btrfs_qgroup_info_item", QgroupInfoItem)
QGROUP_LIMIT_ITEM = Layout("btrfs_qgroup_limit_item", QgroupLimitItem)
DISK_BALANCE_ARGS = Layout("btrfs_disk_balance_args", DiskBalanceArgs)
BALANCE_ITEM = Layout("btrfs_balance_item", BalanceItem)
DEV_REPLACE_ITEM = Layout("btrfs_dev_replace_item", DevReplaceItem)
RAID_STRIDE = Layout("btrfs_raid_stride", RaidStride)

LAYOUTS: dict[str, Layout[Any]] = {
    layout.name: layout for layout in list(globals().values()) if isinstance(layout, Layout)
}
"""All layouts by the kernel's name of the structure."""
