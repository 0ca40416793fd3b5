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
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from btrfs_model.ondisk.layout import U8, U16, U32, U64, Csum, Layout, Uuid


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
    """Inline reference: the type and, except for EXTENT_DATA_REF, a tree or a parent block."""

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
