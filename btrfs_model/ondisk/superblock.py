# SPDX-License-Identifier: GPL-2.0-only
"""The superblock and its copies.

A device has a superblock of 4096 bytes at 64 KiB and copies of it at 64 MiB and 256 GiB, as far as
it is that large. Everything starts from there:

    offset  size  field
    0         32  checksum of the bytes 32 to 4095
    32        16  fsid
    48         8  address of this very copy
    64         8  magic, "_BHRfS_M"
    72         8  generation: number of the last commit
    80         8  logical address of the root tree
    88         8  logical address of the chunk tree
    96         8  logical address of the tree of log roots, 0 without one
    144        8  sector size, node size
    196        2  checksum type
    811     2048  chunk items of the SYSTEM chunks, each after its key

A commit writes all copies; the fsync of a file writes only the first one. So of copies with equal
generation the first is the newest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from mmap import mmap
from typing import Final

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault, NotBtrfsError, UnsupportedError
from btrfs_model.ondisk.chunks import Chunk, decode_chunk, parse_chunk_item
from btrfs_model.ondisk.hashes import CSUM_SIZES, csum
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.layout import Payload, PayloadError
from btrfs_model.ondisk.structs import (
    CHUNK_HEAD,
    DISK_KEY,
    STRIPE,
    SUPER_BLOCK,
    DevItem,
    RawSuperBlock,
    RootBackup,
)

SUPER_OFFSETS: Final = (64 << 10, 64 << 20, 256 << 30)
"""Bytes of the device at which the copies lie."""

SUPER_SIZE: Final = SUPER_BLOCK.size
MAGIC: Final = int.from_bytes(b"_BHRfS_M", "little")

INCOMPAT_FLAGS: Final = {
    1 << 0: "MIXED_BACKREF",
    1 << 1: "DEFAULT_SUBVOL",
    1 << 2: "MIXED_GROUPS",
    1 << 3: "COMPRESS_LZO",
    1 << 4: "COMPRESS_ZSTD",
    1 << 5: "BIG_METADATA",
    1 << 6: "EXTENDED_IREF",
    1 << 7: "RAID56",
    1 << 8: "SKINNY_METADATA",
    1 << 9: "NO_HOLES",
    1 << 10: "METADATA_UUID",
    1 << 11: "RAID1C34",
    1 << 12: "ZONED",
    1 << 13: "EXTENT_TREE_V2",
    1 << 14: "RAID_STRIPE_TREE",
    1 << 16: "SIMPLE_QUOTA",
    1 << 17: "REMAP_TREE",
}
"""Names of the features that a reader must know."""

SUPPORTED: Final = sum(
    bit
    for bit, name in INCOMPAT_FLAGS.items()
    if name not in {"ZONED", "EXTENT_TREE_V2", "REMAP_TREE"}
)

COMPAT_RO_FLAGS: Final = {
    1 << 0: "FREE_SPACE_TREE",
    1 << 1: "FREE_SPACE_TREE_VALID",
    1 << 2: "VERITY",
    1 << 3: "BLOCK_GROUP_TREE",
}
"""Names of the features that a writer must know and a reader need not."""

SUPER_FLAGS: Final = {
    1 << 0: "WRITTEN",
    1 << 1: "RELOC",
    1 << 2: "ERROR",
    1 << 32: "SEEDING",
    1 << 33: "METADUMP",
    1 << 34: "METADUMP_V2",
    1 << 35: "CHANGING_FSID",
    1 << 36: "CHANGING_FSID_V2",
    1 << 38: "CHANGING_BG_TREE",
    1 << 39: "CHANGING_DATA_CSUM",
    1 << 40: "CHANGING_META_CSUM",
}
"""Names of the bits of ``flags``."""

SUPPORTED_SUPER_FLAGS: Final = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 32 | 1 << 34
METADATA_UUID: Final = 1 << 10
_MAX_LEVEL: Final = 8
_MIN_SECTORSIZE: Final = 4096
_MAX_NODESIZE: Final = 65536
# of the fields in a superblock, where faults are reported
_AT: Final = {name: int(field[1]) for name, field in (SUPER_BLOCK.dtype.fields or {}).items()}


@dataclass(frozen=True, slots=True)
class SuperBlock:
    """A verified superblock.

    `offset`: byte of the image at which this copy lies.
    `copies`: bytes at which good copies of this filesystem's superblock lie, whatever their
    generation.
    `fsid`: what users know the filesystem by (16 bytes).
    `tree_fsid`: the fsid that tree blocks carry: `metadata_uuid` where that feature is on.
    `root`, `chunk_root`, `log_root`: logical addresses; `log_root` is 0 when there is no log.
    `sys_chunks`: SYSTEM chunks, by which the chunk tree is read.
    `backups`: roots at the last commits, in the order of the four cells.
    `label`: bytes that are not UTF-8 are escaped (surrogateescape).
    """

    offset: int
    copies: tuple[int, ...]
    fsid: bytes
    tree_fsid: bytes
    metadata_uuid: bytes
    flags: int
    generation: int
    root: int
    root_level: int
    chunk_root: int
    chunk_root_level: int
    chunk_root_generation: int
    log_root: int
    log_root_level: int
    total_bytes: int
    bytes_used: int
    num_devices: int
    stripesize: int
    sectorsize: int
    nodesize: int
    compat_flags: int
    compat_ro_flags: int
    incompat_flags: int
    csum_type: int
    dev_item: DevItem
    label: str
    cache_generation: int
    uuid_tree_generation: int
    sys_chunks: tuple[Chunk, ...]
    backups: tuple[RootBackup, ...]

    @property
    def csum_size(self) -> int:
        """Bytes of a checksum."""
        return CSUM_SIZES[self.csum_type]

    def has_incompat(self, name: str) -> bool:
        """Whether the feature `name` of :data:`INCOMPAT_FLAGS` is on."""
        return any(n == name and self.incompat_flags & bit for bit, n in INCOMPAT_FLAGS.items())

    def has_compat_ro(self, name: str) -> bool:
        """Whether the feature `name` of :data:`COMPAT_RO_FLAGS` is on."""
        return any(n == name and self.compat_ro_flags & bit for bit, n in COMPAT_RO_FLAGS.items())


def _names(flags: int, table: dict[int, str]) -> str:
    bits = [1 << bit for bit in range(flags.bit_length()) if flags >> bit & 1]
    return ", ".join(table.get(bit, f"bit {bit.bit_length() - 1}") for bit in bits)


def _fault(path: str | os.PathLike[str], code: int, offset: int, found: int, wanted: int = 0
           ) -> CorruptImageError:  # fmt: skip
    return CorruptImageError(path, Fault(code, offset=offset, found=found, wanted=wanted))


def _verify_copy(block: bytes, offset: int, path: str | os.PathLike[str]) -> RawSuperBlock:
    """Check of a copy what tells whether it is one: magic, address and checksum."""
    raw = SUPER_BLOCK.unpack(block)
    if raw.magic != MAGIC:
        raise _fault(path, Code.BAD_MAGIC, offset + _AT["magic"], raw.magic, MAGIC)
    if raw.bytenr != offset:
        raise _fault(path, Code.BAD_BYTENR, offset + _AT["bytenr"], raw.bytenr, offset)
    if raw.csum_type not in CSUM_SIZES:
        raise UnsupportedError(f"{os.fspath(path)}: checksum type {raw.csum_type} is not supported")
    computed = csum(raw.csum_type, block[32:])
    if raw.csum[: len(computed)] != computed:
        found, wanted = (int.from_bytes(c[:8], "little") for c in (raw.csum, computed))
        raise _fault(path, Code.BAD_CSUM, offset, found & (1 << 8 * len(computed)) - 1, wanted)
    return raw


def _check_supported(raw: RawSuperBlock, path: str | os.PathLike[str], *, any_flags: bool) -> None:
    name = os.fspath(path)
    if unsupported := raw.incompat_flags & ~SUPPORTED:
        raise UnsupportedError(
            f"{name}: incompatible features not supported: {_names(unsupported, INCOMPAT_FLAGS)}"
        )
    if not any_flags and (unsupported := raw.flags & ~SUPPORTED_SUPER_FLAGS):
        raise UnsupportedError(
            f"{name}: superblock flags not supported: {_names(unsupported, SUPER_FLAGS)}"
        )


def _is_power_of_2(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _check_values(raw: RawSuperBlock, offset: int, path: str | os.PathLike[str]) -> None:
    """Hold the fields to the rules of ``btrfs_validate_super()`` (Linux 6.12)."""
    sectorsize, nodesize = raw.sectorsize, raw.nodesize
    sane = {
        "sectorsize": _is_power_of_2(sectorsize) and _MIN_SECTORSIZE <= sectorsize <= _MAX_NODESIZE,
        "nodesize": _is_power_of_2(nodesize) and sectorsize <= nodesize <= _MAX_NODESIZE,
        "unused_leafsize": raw.unused_leafsize == nodesize,
        "root_level": raw.root_level < _MAX_LEVEL,
        "chunk_root_level": raw.chunk_root_level < _MAX_LEVEL,
        "log_root_level": raw.log_root_level < _MAX_LEVEL,
        "num_devices": raw.num_devices > 0,
        "sys_chunk_array_size": DISK_KEY.size + CHUNK_HEAD.size + STRIPE.size
        <= raw.sys_chunk_array_size
        <= len(raw.sys_chunk_array),
    }
    for field in ("root", "chunk_root", "log_root"):
        address = getattr(raw, field)
        aligned = sectorsize > 0 and address % sectorsize == 0
        sane[field] = aligned and (address > 0 or field == "log_root")
    for field, good in sane.items():
        if not good:
            raise _fault(path, Code.BAD_VALUE, offset + _AT[field], getattr(raw, field))
    if raw.dev_item.fsid != _tree_fsid(raw):
        raise _fault(path, Code.BAD_FSID, offset + _AT["dev_item"], 0)


def _tree_fsid(raw: RawSuperBlock) -> bytes:
    return raw.metadata_uuid if raw.incompat_flags & METADATA_UUID else raw.fsid


def _system_chunks(
    raw: RawSuperBlock, offset: int, path: str | os.PathLike[str]
) -> tuple[Chunk, ...]:
    """Parse ``sys_chunk_array``: keys, each with its chunk item."""
    array = memoryview(raw.sys_chunk_array)[: raw.sys_chunk_array_size]
    start = offset + _AT["sys_chunk_array"]
    chunks = []
    at = 0
    while at < len(array):
        try:
            key = DISK_KEY.unpack(array, at)
            if key.type != ItemType.CHUNK_ITEM:
                raise PayloadError.bad_value(key.type)
            head, _ = decode_chunk(array, at + DISK_KEY.size)
        except PayloadError as error:
            raise error.at(path, tree=3, offset=start + at) from None
        size = CHUNK_HEAD.size + head.num_stripes * STRIPE.size
        item = array[at + DISK_KEY.size : at + DISK_KEY.size + size]
        chunk = parse_chunk_item(key.offset, item, path, offset=start + at)
        if not chunk.type & 2:
            raise _fault(path, Code.BAD_VALUE, start + at, chunk.type)
        chunks.append(chunk)
        at += DISK_KEY.size + size
    return tuple(chunks)


def parse_superblock(
    block: bytes,
    offset: int,
    path: str | os.PathLike[str],
    copies: tuple[int, ...] = (),
    *,
    any_flags: bool = False,
) -> SuperBlock:
    """Parse and verify one copy.

    `block`: 4096 bytes.
    `offset`: byte of the image that they are from.
    `path`: the image, for errors.
    `copies`: where good copies lie.
    `any_flags`: whatever is in its flags, such as a conversion that did not end.
    Raises CorruptImageError: when magic, checksum or a field is wrong; it names the byte.
    Raises UnsupportedError: for a feature that the model does not handle.
    """
    raw = _verify_copy(block, offset, path)
    _check_supported(raw, path, any_flags=any_flags)
    _check_values(raw, offset, path)
    return SuperBlock(
        offset=offset,
        copies=copies or (offset,),
        tree_fsid=_tree_fsid(raw),
        sys_chunks=_system_chunks(raw, offset, path),
        backups=raw.super_roots,
        label=raw.label.split(b"\0", 1)[0].decode("utf-8", "surrogateescape"),
        **{field: getattr(raw, field) for field in _COPIED},
    )


def _what_it_is(buffer: Payload | mmap) -> str:
    """Say what a file without a superblock is."""
    for offset, magic, what in _OTHERS:
        if bytes(buffer[offset : offset + len(magic)]) == magic:
            return f"it looks like {what}"
    end = SUPER_OFFSETS[0] + SUPER_SIZE
    if len(buffer) < end:
        return f"it has {len(buffer)} bytes, its superblock would end at {end}"
    return f"there is no superblock at byte {SUPER_OFFSETS[0]}"


_OTHERS: Final = (
    (0, b"btrfs-stream\0", "a send stream"),
    (0, b"\x28\xb5\x2f\xfd", "data compressed by zstd"),
    (0, b"\x1f\x8b", "data compressed by gzip"),
    (0, b"\xfd7zXZ\0", "data compressed by xz"),
    (0, b"QFI\xfb", "a qcow2 image"),
    (0, b"XFSB", "an XFS filesystem"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 filesystem"),
)
"""Where other files begin with what."""

_COPIED: Final = [
    field
    for field in SuperBlock.__dataclass_fields__
    if field in RawSuperBlock._fields and field != "label"
]


def read_superblocks(
    buffer: Payload | mmap, path: str | os.PathLike[str], *, any_flags: bool = False
) -> SuperBlock:
    """Find the newest good superblock of an image.

    Copies beyond the end of the image or of the device are not looked at; nor do copies count that
    belong to another filesystem than the first (left over from one that was there before).

    `buffer`: the image (an mmap will do).
    `path`: its name, for errors.
    `any_flags`: as of :func:`parse_superblock`.
    Returns the copy with the highest generation, the first of equals.
    Raises NotBtrfsError: when there is no copy.
    Raises CorruptImageError: when no copy is good: what is wrong with the first.
    Raises UnsupportedError: when the newest needs a feature that the model does not handle.
    """
    size = len(buffer)
    good: list[tuple[int, bytes, RawSuperBlock]] = []
    first_error: Exception | None = None
    for offset in SUPER_OFFSETS:
        if offset + SUPER_SIZE > size:
            break
        block = bytes(buffer[offset : offset + SUPER_SIZE])
        if SUPER_BLOCK.unpack(block).magic != MAGIC:
            continue
        try:
            raw = _verify_copy(block, offset, path)
        except (CorruptImageError, UnsupportedError) as error:
            first_error = first_error or error
            continue
        if offset + SUPER_SIZE <= raw.dev_item.total_bytes and (
            not good or _tree_fsid(raw) == _tree_fsid(good[0][2])
        ):
            good.append((offset, block, raw))
    if not good:
        raise first_error or NotBtrfsError(path, _what_it_is(buffer))
    # max() keeps the first of equals
    offset, block, _ = max(good, key=lambda copy: copy[2].generation)
    copies = tuple(copy[0] for copy in good)
    return parse_superblock(block, offset, path, copies, any_flags=any_flags)
