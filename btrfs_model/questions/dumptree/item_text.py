# SPDX-License-Identifier: GPL-2.0-only
"""Text of items, as ``btrfs inspect-internal dump-tree`` of btrfs-progs 6.2 shows them.

Types that 6.2 does not know (EXTENT_OWNER_REF) are shown as later releases do.
"""

from __future__ import annotations

from typing import Final

from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import ExtentFlag, FileExtentType
from btrfs_model.ondisk.items import OLD_ROOT_ITEM_SIZE
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.questions.dumptree.templates import (
    Parts,
    Steps,
    back,
    bad,
    lines,
    repeat,
    structure,
    times,
    when,
    when_same,
)

_INODE_REF: Final = "index {index} namelen {name_len} name: {name}"
_INODE_EXTREF: Final = "index {index} parent {parent_objectid} namelen {name_len} name: {name}"

# a directory entry, or an extended attribute, which alone has data
_DIR_ITEMS: Final = repeat([
    *structure(
        structs.DIR_ITEM,
        """
location {location|key} type {type|file_type}
transid {transid} data_len {data_len} name_len {name_len}
name: {name}
""",
    ),
    *when(structs.DIR_ITEM, "data_len", 0, [], lines(structs.DIR_ITEM, "data {data}")),
])  # fmt: skip

_INLINE: Final = lines(
    structs.FILE_EXTENT_HEAD,
    "inline extent data size {REST} ram_bytes {ram_bytes} "
    "compression {compression} ({compression|compression})",
)

_PREALLOC: Final = lines(
    structs.FILE_EXTENT_ITEM,
    """
prealloc data disk byte {disk_bytenr} nr {disk_num_bytes}
prealloc data offset {offset} nr {num_bytes}
""",
)

_REGULAR: Final = lines(
    structs.FILE_EXTENT_ITEM,
    """
extent data disk byte {disk_bytenr} nr {disk_num_bytes}
extent data offset {offset} nr {num_bytes} ram {ram_bytes}
extent compression {compression} ({compression|compression})
""",
)

_FILE_EXTENT: Final = [
    *structure(
        structs.FILE_EXTENT_HEAD, "generation {generation} type {type} ({type|file_extent_type})"
    ),
    *when(structs.FILE_EXTENT_HEAD, "type", FileExtentType.INLINE, _INLINE, [
        *back(structs.FILE_EXTENT_HEAD.size),
        *structure(structs.FILE_EXTENT_ITEM),
        *when(structs.FILE_EXTENT_ITEM, "type", FileExtentType.PREALLOC, _PREALLOC, _REGULAR),
    ]),
]  # fmt: skip

_ROOT_ITEM: Final = structure(
    structs.ROOT_ITEM,
    """
generation {generation} root_dirid {root_dirid} bytenr {bytenr} byte_limit {byte_limit} \
bytes_used {bytes_used}
last_snapshot {last_snapshot} flags 0x{flags:x}({flags|root_flags}) refs {refs}
drop_progress {drop_progress|key} drop_level {drop_level}
level {level} generation_v2 {generation_v2}
""",
    least=OLD_ROOT_ITEM_SIZE,
)

_ROOT_ITEM_V2: Final = lines(
    structs.ROOT_ITEM,
    """
uuid {uuid|uuid}
parent_uuid {parent_uuid|uuid}
received_uuid {received_uuid|uuid}
ctransid {ctransid} otransid {otransid} stransid {stransid} rtransid {rtransid}
ctime {ctime.sec}.{ctime.nsec} ({ctime.sec|time})
otime {otime.sec}.{otime.nsec} ({otime.sec|time})
stime {stime.sec}.{stime.nsec} ({stime.sec|time})
rtime {rtime.sec}.{rtime.nsec} ({rtime.sec|time})
""",
)

_FIXED: Final[Parts] = {
    ItemType.INODE_ITEM: structure(
        structs.INODE_ITEM,
        """
generation {generation} transid {transid} size {size} nbytes {nbytes}
block group {block_group} mode {mode:o} links {nlink} uid {uid} gid {gid} rdev {rdev}
sequence {sequence} flags 0x{flags:x}({flags|inode_flags})
atime {atime.sec}.{atime.nsec} ({atime.sec|time})
ctime {ctime.sec}.{ctime.nsec} ({ctime.sec|time})
mtime {mtime.sec}.{mtime.nsec} ({mtime.sec|time})
otime {otime.sec}.{otime.nsec} ({otime.sec|time})
""",
    ),
    ItemType.DIR_LOG_ITEM: structure(structs.DIR_LOG_ITEM, "dir log end {end}"),
    ItemType.DIR_LOG_INDEX: structure(structs.DIR_LOG_ITEM, "dir log end {end}"),
    ItemType.EXTENT_DATA_REF: structure(
        structs.EXTENT_DATA_REF,
        "extent data backref root {root|objectid} objectid {objectid} offset {offset} "
        "count {count}",
    ),
    ItemType.SHARED_DATA_REF: structure(
        structs.SHARED_DATA_REF, "shared data backref count {count}"
    ),
    ItemType.BLOCK_GROUP_ITEM: structure(
        structs.BLOCK_GROUP_ITEM,
        "block group used {used} chunk_objectid {chunk_objectid} flags {flags|block_group_flags}",
    ),
    ItemType.FREE_SPACE_INFO: structure(
        structs.FREE_SPACE_INFO, "free space info extent count {extent_count} flags {flags}"
    ),
    ItemType.DEV_ITEM: structure(
        structs.DEV_ITEM,
        """
devid {devid} total_bytes {total_bytes} bytes_used {bytes_used}
io_align {io_align} io_width {io_width} sector_size {sector_size} type {type}
generation {generation} start_offset {start_offset} dev_group {dev_group}
seek_speed {seek_speed} bandwidth {bandwidth}
uuid {uuid|uuid}
fsid {fsid|uuid}
""",
    ),
    ItemType.DEV_EXTENT: structure(
        structs.DEV_EXTENT,
        """
dev extent chunk_tree {chunk_tree}
chunk_objectid {chunk_objectid} chunk_offset {chunk_offset} length {length}
chunk_tree_uuid {chunk_tree_uuid|uuid}
""",
    ),
    ItemType.QGROUP_STATUS: structure(
        structs.QGROUP_STATUS_ITEM,
        "version {version} generation {generation} flags {flags|qgroup_flags} scan {rescan}",
    ),
    ItemType.QGROUP_INFO: structure(
        structs.QGROUP_INFO_ITEM,
        """
generation {generation}
referenced {rfer} referenced_compressed {rfer_cmpr}
exclusive {excl} exclusive_compressed {excl_cmpr}
""",
    ),
    ItemType.QGROUP_LIMIT: structure(
        structs.QGROUP_LIMIT_ITEM,
        """
flags {flags:x}
max_referenced {max_rfer|signed} max_exclusive {max_excl|signed}
rsv_referenced {rsv_rfer|signed} rsv_exclusive {rsv_excl|signed}
""",
    ),
}

# Items of which the type says it all.
_BARE: Final[dict[int, str]] = {
    ItemType.ORPHAN_ITEM: "orphan item",
    ItemType.TREE_BLOCK_REF: "tree block backref",
    ItemType.SHARED_BLOCK_REF: "shared block backref",
    ItemType.EXTENT_REF_V0: "extent ref v0 (deprecated)",
    ItemType.CSUM_ITEM: "csum item",
    ItemType.FREE_SPACE_EXTENT: "free space extent",
    ItemType.FREE_SPACE_BITMAP: "free space bitmap",
}

# the kernels before 3.6 left the fields after generation_v2 behind
_ROOT_ITEMS: Final = [
    *_ROOT_ITEM, *when_same(structs.ROOT_ITEM, "generation", "generation_v2", _ROOT_ITEM_V2)
]  # fmt: skip


def _inline_ref() -> Steps:
    """Make the steps for one inline reference of an extent, by its type."""
    head = structs.EXTENT_INLINE_REF
    kinds: dict[int, Steps] = {
        ItemType.TREE_BLOCK_REF: lines(head, "tree block backref root {offset|objectid}"),
        ItemType.SHARED_BLOCK_REF: lines(head, "shared block backref parent {offset}"),
        # the structure takes the place of the offset
        ItemType.EXTENT_DATA_REF: [
            *back(structs.EXTENT_OWNER_REF.size), *_FIXED[ItemType.EXTENT_DATA_REF]
        ],
        ItemType.SHARED_DATA_REF: [
            *lines(head, "shared data backref parent {offset} count ", end=""),
            *structure(structs.SHARED_DATA_REF),
            *lines(structs.SHARED_DATA_REF, "{count}", indent=0),
        ],
        ItemType.EXTENT_OWNER_REF: lines(head, "extent owner root {offset|objectid}"),
    }  # fmt: skip
    steps = bad(head, "type")
    for kind, shown in kinds.items():
        steps = when(head, "type", kind, shown, steps)
    return [*structure(head), *steps]


def _extent(block: Steps) -> Steps:
    """Make the steps for an extent; `block`: those for a tree block's place in its tree."""
    head = structure(structs.EXTENT_ITEM, "refs {refs} gen {generation} flags {flags|extent_flags}")
    return [*head, *block, *repeat(_inline_ref(), at_least_once=False)]


_TREE_BLOCK: Final = when(
    structs.EXTENT_ITEM, "flags", ExtentFlag.TREE_BLOCK,
    structure(structs.TREE_BLOCK_INFO, "tree block {key|key} level {level}"),
    mask=ExtentFlag.TREE_BLOCK,
)  # fmt: skip

_CHUNK: Final = [
    *structure(
        structs.CHUNK_HEAD,
        """
length {length} owner {owner} stripe_len {stripe_len} type {type|block_group_flags}
io_align {io_align} io_width {io_width} sector_size {sector_size}
num_stripes {num_stripes} sub_stripes {sub_stripes}
""",
    ),
    *when(structs.CHUNK_HEAD, "num_stripes", 0, bad(structs.CHUNK_HEAD, "num_stripes")),
    *times(structs.CHUNK_HEAD, "num_stripes", [
        *structure(structs.STRIPE),
        *lines(
            structs.STRIPE,
            "stripe {TURN} devid {devid} offset {offset}\ndev_uuid {dev_uuid|uuid}",
            indent=3,
        ),
    ]),
]  # fmt: skip

_FREE_SPACE_HEADER: Final = structure(
    structs.FREE_SPACE_HEADER,
    """
location {location|key}
cache generation {generation} entries {num_entries} bitmaps {num_bitmaps}
""",
)


def _shared_type(kind: str, objectid: int, known: Steps) -> Steps:
    """Make the steps for items of a type that several kinds share, told apart by the objectid."""
    return [
        *lines(None, f"{kind} item objectid {{KEY|key_objectid}} offset {{KEY.offset}}"),
        *when(None, "KEY.objectid", objectid, known,
              lines(None, f"unknown {kind} item objectid {{KEY.objectid}}")),
    ]  # fmt: skip


_DEV_STATS: Final = structure(
    structs.DEV_STATS_ITEM,
    """
device stats
write_errs {values.0} read_errs {values.1} flush_errs {values.2} corruption_errs {values.3} \
generation {values.4}
""",
)


def _balance() -> Steps:
    """Make the steps for the state of a balance."""
    text = "balance status flags {flags}\n"
    for part, title in (("data", "DATA"), ("meta", "METADATA"), ("sys", "SYSTEM")):
        text += f"""{title}
profiles {{{part}.profiles}} devid {{{part}.devid}} target {{{part}.target}} \
flags {{{part}.flags}}
usage_min {{{part}.usage_min}} usage_max {{{part}.usage_max}} pstart {{{part}.pstart}} \
pend {{{part}.pend}}
vstart {{{part}.vstart}} vend {{{part}.vend}} limit_min {{{part}.limit_min}} \
limit_max {{{part}.limit_max}}
stripes_min {{{part}.stripes_min}} stripes_max {{{part}.stripes_max}}
"""
    return structure(structs.BALANCE_ITEM, text)


_CSUMS: Final = lines(None, "range start {KEY.offset} end {END} length {LENGTH}")
_EACH_CSUM: Final = lines(None, "{REST|sums}", indent=0, end="")
_ROOT_REF: Final = "key dirid {dirid} sequence {sequence} name {name|string}"


def item_texts(*, csum_items: bool) -> Parts:
    """Return the steps for the items of each type; the others have no text.

    `csum_items`: show every checksum of EXTENT_CSUM items.
    """
    subvolume_ids = repeat(
        structure(structs.EXTENT_OWNER_REF, "subvol_id {root_id}"), at_least_once=False
    )
    bare: Parts = {kind: lines(None, text) for kind, text in _BARE.items()}
    return {
        **_FIXED,
        **bare,
        0: when(None, "KEY.objectid", ObjectId.FREE_SPACE, _FREE_SPACE_HEADER),
        ItemType.INODE_REF: repeat(structure(structs.INODE_REF, _INODE_REF)),
        ItemType.INODE_EXTREF: repeat(structure(structs.INODE_EXTREF, _INODE_EXTREF)),
        ItemType.XATTR_ITEM: _DIR_ITEMS,
        ItemType.DIR_ITEM: _DIR_ITEMS,
        ItemType.DIR_INDEX: _DIR_ITEMS,
        ItemType.EXTENT_DATA: _FILE_EXTENT,
        ItemType.EXTENT_CSUM: _CSUMS + (_EACH_CSUM if csum_items else []),
        ItemType.ROOT_ITEM: _ROOT_ITEMS,
        ItemType.ROOT_REF: structure(structs.ROOT_REF, f"root ref {_ROOT_REF}"),
        ItemType.ROOT_BACKREF: structure(structs.ROOT_REF, f"root backref {_ROOT_REF}"),
        ItemType.EXTENT_ITEM: _extent(_TREE_BLOCK),
        ItemType.METADATA_ITEM: _extent(lines(None, "tree block skinny level {KEY.offset}")),
        ItemType.CHUNK_ITEM: _CHUNK,
        ItemType.TEMPORARY_ITEM: _shared_type("temporary", ObjectId.BALANCE, _balance()),
        ItemType.PERSISTENT_ITEM: _shared_type("persistent", ObjectId.DEV_STATS, _DEV_STATS),
        ItemType.UUID_KEY_SUBVOL: subvolume_ids,
        ItemType.UUID_KEY_RECEIVED_SUBVOL: subvolume_ids,
        ItemType.STRING_ITEM: lines(None, "item data {REST|rest}"),
    }  # fmt: skip
