# SPDX-License-Identifier: GPL-2.0-only
"""Text of items, as ``btrfs inspect-internal dump-tree`` of btrfs-progs 6.2 shows them.

Types that 6.2 does not know (EXTENT_OWNER_REF) are shown as later releases do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from btrfs_model.base.printable import printable
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.chunks import decode_chunk
from btrfs_model.ondisk.constants import FileExtentType, FileType
from btrfs_model.ondisk.items import (
    ExtentRef,
    dir_items,
    extent_item,
    inode_extrefs,
    inode_refs,
    root_item,
    root_ref,
    subvolume_ids,
)
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.layout import Payload
from btrfs_model.questions.dumptree import templates as words
from btrfs_model.questions.dumptree.templates import Template

_NAME_LEN: Final = 255
_FIXED: Final[dict[int, Template]] = {
    ItemType.INODE_ITEM: Template(
        structs.INODE_ITEM,
        """
generation {generation} transid {transid} size {size} nbytes {nbytes}
block group {block_group} mode {mode:o} links {nlink} uid {uid} gid {gid} rdev {rdev}
sequence {sequence} flags 0x{flags:x}({flags|inode_flags})
atime {atime.sec}.{atime.nsec} ({atime.sec|timestamp})
ctime {ctime.sec}.{ctime.nsec} ({ctime.sec|timestamp})
mtime {mtime.sec}.{mtime.nsec} ({mtime.sec|timestamp})
otime {otime.sec}.{otime.nsec} ({otime.sec|timestamp})
""",
    ),
    ItemType.DIR_LOG_ITEM: Template(structs.DIR_LOG_ITEM, "dir log end {end}"),
    ItemType.DIR_LOG_INDEX: Template(structs.DIR_LOG_ITEM, "dir log end {end}"),
    ItemType.EXTENT_DATA_REF: Template(
        structs.EXTENT_DATA_REF,
        "extent data backref root {root|objectid} objectid {objectid} offset {offset} "
        "count {count}",
    ),
    ItemType.SHARED_DATA_REF: Template(
        structs.SHARED_DATA_REF, "shared data backref count {count}"
    ),
    ItemType.BLOCK_GROUP_ITEM: Template(
        structs.BLOCK_GROUP_ITEM,
        "block group used {used} chunk_objectid {chunk_objectid} flags {flags|block_group_flags}",
    ),
    ItemType.FREE_SPACE_INFO: Template(
        structs.FREE_SPACE_INFO, "free space info extent count {extent_count} flags {flags}"
    ),
    ItemType.DEV_ITEM: Template(
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
    ItemType.DEV_EXTENT: Template(
        structs.DEV_EXTENT,
        """
dev extent chunk_tree {chunk_tree}
chunk_objectid {chunk_objectid} chunk_offset {chunk_offset} length {length}
chunk_tree_uuid {chunk_tree_uuid|uuid}
""",
    ),
    ItemType.QGROUP_STATUS: Template(
        structs.QGROUP_STATUS_ITEM,
        "version {version} generation {generation} flags {flags|qgroup_flags} scan {rescan}",
    ),
    ItemType.QGROUP_INFO: Template(
        structs.QGROUP_INFO_ITEM,
        """
generation {generation}
referenced {rfer} referenced_compressed {rfer_cmpr}
exclusive {excl} exclusive_compressed {excl_cmpr}
""",
    ),
    ItemType.QGROUP_LIMIT: Template(
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
    ItemType.ORPHAN_ITEM: "\t\torphan item\n",
    ItemType.TREE_BLOCK_REF: "\t\ttree block backref\n",
    ItemType.SHARED_BLOCK_REF: "\t\tshared block backref\n",
    ItemType.EXTENT_REF_V0: "\t\textent ref v0 (deprecated)\n",
    ItemType.CSUM_ITEM: "\t\tcsum item\n",
    ItemType.FREE_SPACE_EXTENT: "\t\tfree space extent\n",
    ItemType.FREE_SPACE_BITMAP: "\t\tfree space bitmap\n",
}

_DIR_ITEM: Final = (
    "\t\tlocation {} type {}\n\t\ttransid {} data_len {} name_len {}\n\t\tname: {}\n"
).format
_FILE_TYPES: Final[dict[int, str]] = {
    FileType.REG_FILE: "FILE",
    FileType.DIR: "DIR",
    FileType.CHRDEV: "CHRDEV",
    FileType.BLKDEV: "BLKDEV",
    FileType.FIFO: "FIFO",
    FileType.SOCK: "SOCK",
    FileType.SYMLINK: "SYMLINK",
    FileType.XATTR: "XATTR",
}

_FILE_EXTENT: Final = Template(
    structs.FILE_EXTENT_HEAD, "generation {generation} type {type} ({type|file_extent_type})"
)
_INLINE: Final = ("\t\tinline extent data size {} ram_bytes {} compression {} ({})\n").format
_PREALLOC: Final = Template(
    structs.FILE_EXTENT_ITEM,
    """
prealloc data disk byte {disk_bytenr} nr {disk_num_bytes}
prealloc data offset {offset} nr {num_bytes}
""",
)
_REGULAR: Final = Template(
    structs.FILE_EXTENT_ITEM,
    """
extent data disk byte {disk_bytenr} nr {disk_num_bytes}
extent data offset {offset} nr {num_bytes} ram {ram_bytes}
extent compression {compression} ({compression|compression})
""",
)

_ROOT_ITEM: Final = Template(
    structs.ROOT_ITEM,
    """
generation {generation} root_dirid {root_dirid} bytenr {bytenr} byte_limit {byte_limit} \
bytes_used {bytes_used}
last_snapshot {last_snapshot} flags 0x{flags:x}({flags|root_flags}) refs {refs}
drop_progress {drop_progress|key} drop_level {drop_level}
level {level} generation_v2 {generation_v2}
""",
)
_ROOT_ITEM_V2: Final = Template(
    structs.ROOT_ITEM,
    """
uuid {uuid|uuid}
parent_uuid {parent_uuid|uuid}
received_uuid {received_uuid|uuid}
ctransid {ctransid} otransid {otransid} stransid {stransid} rtransid {rtransid}
ctime {ctime.sec}.{ctime.nsec} ({ctime.sec|timestamp})
otime {otime.sec}.{otime.nsec} ({otime.sec|timestamp})
stime {stime.sec}.{stime.nsec} ({stime.sec|timestamp})
rtime {rtime.sec}.{rtime.nsec} ({rtime.sec|timestamp})
""",
)

_REFS: Final[dict[int, Callable[[ExtentRef], str]]] = {
    ItemType.TREE_BLOCK_REF: lambda ref: (
        f"\t\ttree block backref root {words.objectid(ref.root or 0)}\n"
    ),
    ItemType.SHARED_BLOCK_REF: lambda ref: f"\t\tshared block backref parent {ref.parent}\n",
    ItemType.EXTENT_DATA_REF: lambda ref: (
        f"\t\textent data backref root {words.objectid(ref.root or 0)} objectid {ref.objectid} "
        f"offset {ref.offset} count {ref.count}\n"
    ),
    ItemType.SHARED_DATA_REF: lambda ref: (
        f"\t\tshared data backref parent {ref.parent} count {ref.count}\n"
    ),
    ItemType.EXTENT_OWNER_REF: lambda ref: (
        f"\t\textent owner root {words.objectid(ref.root or 0)}\n"
    ),
}

_CHUNK: Final = Template(
    structs.CHUNK_HEAD,
    """
length {length} owner {owner} stripe_len {stripe_len} type {type|block_group_flags}
io_align {io_align} io_width {io_width} sector_size {sector_size}
num_stripes {num_stripes} sub_stripes {sub_stripes}
""",
)

_BALANCE_ARGS: Final = Template(
    structs.DISK_BALANCE_ARGS,
    """
profiles {profiles} devid {devid} target {target} flags {flags}
usage_min {usage_min} usage_max {usage_max} pstart {pstart} pend {pend}
vstart {vstart} vend {vend} limit_min {limit_min} limit_max {limit_max}
stripes_min {stripes_min} stripes_max {stripes_max}
""",
)

_FREE_SPACE_HEADER: Final = Template(
    structs.FREE_SPACE_HEADER,
    """
location {location|key}
cache generation {generation} entries {num_entries} bitmaps {num_bitmaps}
""",
)

_DEV_STATS: Final = (
    "\t\tdevice stats\n\t\twrite_errs {} read_errs {} flush_errs {} corruption_errs {} "
    "generation {}\n"
).format


@dataclass(frozen=True, slots=True)
class ItemText:
    """Makes the text of items.

    `sectorsize`, `csum_size`: of the filesystem, in bytes.
    `hide_names`: show HIDDEN instead of names and values of xattrs.
    `escape_names`: escape what is not printable in names, values and strings.
    `csum_items`: show every checksum of EXTENT_CSUM items.
    """

    sectorsize: int
    csum_size: int
    hide_names: bool = False
    escape_names: bool = False
    csum_items: bool = False

    def __call__(self, key: Key, payload: Payload) -> str:
        """Return the lines that follow the header of an item; none for unknown types.

        Raises PayloadError: when the payload is too short for its type.
        """
        fixed = _FIXED.get(key.type)
        if fixed is not None:
            return fixed(payload)
        variable = _VARIABLE.get(key.type)
        if variable is not None:
            return variable(self, key, payload)
        return _BARE.get(key.type, "")

    def _name(self, name: bytes) -> str:
        return "HIDDEN" if self.hide_names else self._c_string(name, _NAME_LEN)

    def _c_string(self, data: bytes, limit: int | None = None) -> str:
        """Return what a C program prints of a name: up to a zero byte."""
        text = data[:limit].split(b"\0", 1)[0]
        return (printable(text).encode() if self.escape_names else text).decode("latin-1")

    def inode_ref(self, _: Key, payload: Payload) -> str:
        """INODE_REF."""
        return "".join(
            f"\t\tindex {ref.index} namelen {len(ref.name)} name: {self._name(ref.name)}\n"
            for ref in inode_refs(payload)
        )

    def inode_extref(self, _: Key, payload: Payload) -> str:
        """INODE_EXTREF."""
        return "".join(
            f"\t\tindex {ref.index} parent {ref.parent_objectid} namelen {len(ref.name)} "
            f"name: {self._name(ref.name)}\n"
            for ref in inode_extrefs(payload)
        )

    def dir_item(self, _: Key, payload: Payload) -> str:
        """DIR_ITEM, DIR_INDEX and XATTR_ITEM."""
        lines = []
        for location, transid, file_type, name, data in dir_items(payload):
            type_name = _FILE_TYPES.get(file_type) or f"DIR_ITEM.{file_type}"
            lines.append(
                _DIR_ITEM(
                    words.key(*location), type_name, transid, len(data), len(name), self._name(name)
                )
            )
            if data:
                lines.append(f"\t\tdata {self._name(data)}\n")
        return "".join(lines)

    def root_ref(self, key: Key, payload: Payload) -> str:
        """ROOT_REF and ROOT_BACKREF."""
        kind = "ref" if key.type == ItemType.ROOT_REF else "backref"
        dirid, sequence, name = root_ref(payload)
        shown = self._c_string(name)
        return f"\t\troot {kind} key dirid {dirid} sequence {sequence} name {shown}\n"

    def root_item(self, _: Key, payload: Payload) -> str:
        """ROOT_ITEM."""
        root = root_item(payload)
        flat = structs.ROOT_ITEM.flat(bytes(payload).ljust(structs.ROOT_ITEM.size, b"\0"))
        text = _ROOT_ITEM.of(flat)
        # a kernel before 3.6 would have left the fields after generation_v2 behind
        return text + _ROOT_ITEM_V2.of(flat) if root.generation == root.generation_v2 else text

    def file_extent(self, _: Key, payload: Payload) -> str:
        """EXTENT_DATA."""
        flat = structs.FILE_EXTENT_HEAD.flat(payload)
        _, ram_bytes, compression, _, _, extent_type = flat
        head = _FILE_EXTENT.of(flat)
        if extent_type == FileExtentType.INLINE:
            size = len(payload) - structs.FILE_EXTENT_HEAD.size
            return head + _INLINE(size, ram_bytes, compression, words.compression(compression))
        prealloc = extent_type == FileExtentType.PREALLOC
        return head + (_PREALLOC if prealloc else _REGULAR)(payload)

    def extent_csum(self, key: Key, payload: Payload) -> str:
        """EXTENT_CSUM."""
        count = len(payload) // self.csum_size
        size = count * self.sectorsize
        end = (key.offset + size) % 2**64
        text = f"\t\trange start {key.offset} end {end} length {size}\n"
        return (
            text + self._checksums(key.offset, bytes(payload), count) if self.csum_items else text
        )

    def _checksums(self, start: int, payload: bytes, count: int) -> str:
        """Return all checksums, as many a line as fill it."""
        words_ = [
            f"[{start + index * self.sectorsize}] "
            f"0x{payload[index * self.csum_size : (index + 1) * self.csum_size].hex()}"
            for index in range(count)
        ]
        step = max(1, 32 // self.csum_size // 2)
        lines = [" ".join(words_[at : at + step]) for at in range(0, count, step)]
        return "".join(f"\t\t{line}\n" for line in lines)

    def extent(self, key: Key, payload: Payload) -> str:
        """EXTENT_ITEM and METADATA_ITEM."""
        item = extent_item(key, payload)
        flags = words.extent_flags(item.flags)
        lines = [f"\t\trefs {item.refs} gen {item.generation} flags {flags}\n"]
        if item.key is not None:
            lines.append(f"\t\ttree block {words.key(*item.key)} level {item.level}\n")
        elif item.level is not None:
            lines.append(f"\t\ttree block skinny level {item.level}\n")
        lines += [_REFS[ref.type](ref) for ref in item.inline_refs]
        return "".join(lines)

    def chunk(self, _: Key, payload: Payload) -> str:
        """CHUNK_ITEM."""
        lines = [_CHUNK(payload)]
        for number, (devid, offset, dev_uuid) in enumerate(decode_chunk(payload)[1]):
            lines.append(
                f"\t\t\tstripe {number} devid {devid} offset {offset}\n"
                f"\t\t\tdev_uuid {words.uuid(dev_uuid)}\n"
            )
        return "".join(lines)

    def subvolume_ids(self, _: Key, payload: Payload) -> str:
        """UUID_KEY_SUBVOL and UUID_KEY_RECEIVED_SUBVOL."""
        return "".join(f"\t\tsubvol_id {number}\n" for number in subvolume_ids(payload))

    def string(self, _: Key, payload: Payload) -> str:
        """STRING_ITEM."""
        return f"\t\titem data {self._c_string(bytes(payload))}\n"

    def untyped(self, key: Key, payload: Payload) -> str:
        """Items of type 0: free space caches."""
        return _FREE_SPACE_HEADER(payload) if key.objectid == ObjectId.FREE_SPACE else ""

    def persistent(self, key: Key, payload: Payload) -> str:
        """PERSISTENT_ITEM: the errors of a device."""
        name = words.objectid(key.objectid, key.type)
        text = f"\t\tpersistent item objectid {name} offset {key.offset}\n"
        if key.objectid != ObjectId.DEV_STATS:
            return f"{text}\t\tunknown persistent item objectid {key.objectid}\n"
        return text + _DEV_STATS(*structs.DEV_STATS_ITEM.flat(payload))

    def temporary(self, key: Key, payload: Payload) -> str:
        """TEMPORARY_ITEM: a balance."""
        name = words.objectid(key.objectid, key.type)
        text = f"\t\ttemporary item objectid {name} offset {key.offset}\n"
        if key.objectid != ObjectId.BALANCE:
            return f"{text}\t\tunknown temporary item objectid {key.objectid}\n"
        flat = structs.BALANCE_ITEM.flat(payload)
        text += f"\t\tbalance status flags {flat[0]}\n"
        for part, title in (("data", "DATA"), ("meta", "METADATA"), ("sys", "SYSTEM")):
            args = flat[structs.BALANCE_ITEM.places[part]]
            text += f"\t\t{title}\n{_BALANCE_ARGS.of(args)}"
        return text


_VARIABLE: Final[dict[int, Callable[[ItemText, Key, Payload], str]]] = {
    0: ItemText.untyped,
    ItemType.INODE_REF: ItemText.inode_ref,
    ItemType.INODE_EXTREF: ItemText.inode_extref,
    ItemType.XATTR_ITEM: ItemText.dir_item,
    ItemType.DIR_ITEM: ItemText.dir_item,
    ItemType.DIR_INDEX: ItemText.dir_item,
    ItemType.EXTENT_DATA: ItemText.file_extent,
    ItemType.EXTENT_CSUM: ItemText.extent_csum,
    ItemType.ROOT_ITEM: ItemText.root_item,
    ItemType.ROOT_REF: ItemText.root_ref,
    ItemType.ROOT_BACKREF: ItemText.root_ref,
    ItemType.EXTENT_ITEM: ItemText.extent,
    ItemType.METADATA_ITEM: ItemText.extent,
    ItemType.CHUNK_ITEM: ItemText.chunk,
    ItemType.TEMPORARY_ITEM: ItemText.temporary,
    ItemType.PERSISTENT_ITEM: ItemText.persistent,
    ItemType.UUID_KEY_SUBVOL: ItemText.subvolume_ids,
    ItemType.UUID_KEY_RECEIVED_SUBVOL: ItemText.subvolume_ids,
    ItemType.STRING_ITEM: ItemText.string,
}
