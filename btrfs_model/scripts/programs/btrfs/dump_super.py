# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs inspect-internal dump-super``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from btrfs_model.ondisk.chunks import decode_chunk
from btrfs_model.ondisk.constants import CsumType
from btrfs_model.ondisk.hashes import CSUM_NAMES, CSUM_SIZES, csum
from btrfs_model.ondisk.structs import (
    CHUNK_HEAD,
    DISK_KEY,
    STRIPE,
    SUPER_BLOCK,
    DevItem,
    RawSuperBlock,
    RootBackup,
)
from btrfs_model.ondisk.superblock import (
    COMPAT_RO_FLAGS,
    INCOMPAT_FLAGS,
    SUPER_FLAGS,
    SUPER_OFFSETS,
    SUPER_SIZE,
)
from btrfs_model.questions.dumptree.templates import block_group_flags
from btrfs_model.scripts.program import options, reason, say
from btrfs_model.scripts.programs.btrfs.common import Command, counted, image_on
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_METADATA_UUID: Final = 1 << 10
_WIDE: Final = 24
"""Columns of a field's name."""


def _dump_super(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "fFa", "is", long=("full", "all", "super="),
                           program_name="btrfs inspect-internal dump-super")  # fmt: skip
    counted("inspect-internal dump-super", paths, 1, None)
    if "F" in given:
        raise UnknownError("btrfs inspect-internal dump-super: -F is not known")
    if "i" in given:
        say(shell, "WARNING: option -i is deprecated, please use -s or --super\n")
    told = given.get("i", given.get("s", given.get("super")))
    if told is not None and told not in ("0", "1", "2"):
        raise UnknownError(f"btrfs inspect-internal dump-super: copy {told} is not known")
    chosen = SUPER_OFFSETS if {"a", "all"} & set(given) else (SUPER_OFFSETS[int(told or 0)],)
    for path in paths:
        if computer.stat(path) is None:
            say(shell, f"ERROR: cannot open {path}: {reason(FileNotFoundError(2, ''))}\n")
            return 1
        with image_on(computer, path) as image:
            if image is None:
                say(shell, f"ERROR: bad magic on superblock on {path} at {chosen[0]}\n")
                return 1
            buffer = image.buffer
            for offset in chosen:
                if offset + SUPER_SIZE > len(buffer):
                    continue
                block = bytes(buffer[offset : offset + SUPER_SIZE])
                text = _text(block, full=bool({"f", "full"} & set(given)))
                shell.write(f"superblock: bytenr={offset}, device={path}\n{'-' * 57}\n{text}\n")
    return 0


def _text(block: bytes, *, full: bool) -> str:
    raw = SUPER_BLOCK.unpack(block)
    size = CSUM_SIZES[raw.csum_type]
    match = "[match]" if csum(raw.csum_type, block[32:]) == raw.csum[:size] else "[DON'T MATCH]"
    label = raw.label.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    fields: dict[str, object] = {
        "csum_type": f"{raw.csum_type} ({CSUM_NAMES[CsumType(raw.csum_type)]})", "csum_size": size,
        "csum": f"0x{raw.csum[:size].hex()} {match}", "bytenr": raw.bytenr,
        "flags": _flags(raw.flags, SUPER_FLAGS),
        "magic": raw.magic.to_bytes(8, "little").decode("ascii", "replace") + " [match]",
        "fsid": UUID(bytes=raw.fsid), "metadata_uuid": UUID(bytes=_tree_fsid(raw)),
        "label": label, "generation": raw.generation, "root": raw.root,
        "sys_array_size": raw.sys_chunk_array_size,
        "chunk_root_generation": raw.chunk_root_generation, "root_level": raw.root_level,
        "chunk_root": raw.chunk_root, "chunk_root_level": raw.chunk_root_level,
        "log_root": raw.log_root, "log_root_transid (deprecated)": raw.unused_log_root_transid,
        "log_root_level": raw.log_root_level, "total_bytes": raw.total_bytes,
        "bytes_used": raw.bytes_used, "sectorsize": raw.sectorsize, "nodesize": raw.nodesize,
        "leafsize (deprecated)": raw.unused_leafsize, "stripesize": raw.stripesize,
        "root_dir": raw.root_dir_objectid, "num_devices": raw.num_devices,
        "compat_flags": _flags(raw.compat_flags, {}),
        "compat_ro_flags": _flags(raw.compat_ro_flags, COMPAT_RO_FLAGS),
        "incompat_flags": _flags(raw.incompat_flags, INCOMPAT_FLAGS),
        "cache_generation": raw.cache_generation, "uuid_tree_generation": raw.uuid_tree_generation,
        **_device(raw.dev_item, _tree_fsid(raw)),
    }  # fmt: skip
    text = "".join(_line(name, value) for name, value in fields.items())
    return text + (_system_chunks(raw) + _backups(raw.super_roots) if full else "")


def _line(name: str, value: object) -> str:
    tabs = max(1, -(-(_WIDE - len(name)) // 8))
    return f"{name}{chr(9) * tabs}{value}\n"


def _tree_fsid(raw: RawSuperBlock) -> bytes:
    return raw.metadata_uuid if raw.incompat_flags & _METADATA_UUID else raw.fsid


def _flags(value: int, names: dict[int, str]) -> str:
    known = [name for bit, name in names.items() if value & bit]
    return f"0x{value:x}" + (f"\n\t\t\t( {f' |{chr(10) + chr(9) * 3}  '.join(known)} )"
                             if known else "")  # fmt: skip


def _device(item: DevItem, fsid: bytes) -> dict[str, object]:
    match = "[match]" if item.fsid == fsid else "[DON'T MATCH]"
    first = {"uuid": UUID(bytes=item.uuid), "fsid": f"{UUID(bytes=item.fsid)} {match}"}
    names = ("type", "total_bytes", "bytes_used", "io_align", "io_width", "sector_size", "devid",
             "dev_group", "seek_speed", "bandwidth", "generation")  # fmt: skip
    found = {**first, **{name: getattr(item, name) for name in names}}
    return {f"dev_item.{name}": value for name, value in found.items()}


def _system_chunks(raw: RawSuperBlock) -> str:
    text = f"sys_chunk_array[{len(raw.sys_chunk_array)}]:\n"
    at = number = 0
    while at < raw.sys_chunk_array_size:
        key = DISK_KEY.unpack(raw.sys_chunk_array, at)
        head, stripes = decode_chunk(raw.sys_chunk_array, at + DISK_KEY.size)
        text += (
            f"\titem {number} key (FIRST_CHUNK_TREE CHUNK_ITEM {key.offset})\n"
            f"\t\tlength {head.length} owner {head.owner} stripe_len {head.stripe_len} "
            f"type {block_group_flags(head.type)}\n"
            f"\t\tio_align {head.io_align} io_width {head.io_width} "
            f"sector_size {head.sector_size}\n"
            f"\t\tnum_stripes {head.num_stripes} sub_stripes {head.sub_stripes}\n"
        )
        for place, stripe in enumerate(stripes):
            text += (f"\t\t\tstripe {place} devid {stripe.devid} offset {stripe.offset}\n"
                     f"\t\t\tdev_uuid {UUID(bytes=stripe.dev_uuid)}\n")  # fmt: skip
        at += DISK_KEY.size + CHUNK_HEAD.size + len(stripes) * STRIPE.size
        number += 1
    return text


def _backups(backups: tuple[RootBackup, ...]) -> str:
    text = f"backup_roots[{len(backups)}]:\n"
    for number, one in enumerate(backups):
        text += f"\tbackup {number}:\n"
        for tree in ("tree", "chunk", "extent", "fs", "dev", "csum"):
            address, generation, level = (getattr(one, f"{tree}_root{end}")
                                          for end in ("", "_gen", "_level"))  # fmt: skip
            # btrfs-progs leaves the word before it out here
            name = "csum_root:" if tree == "csum" else f"backup_{tree}_root:"
            tabs = "\t" if len(name) > 15 or tree == "csum" else "\t\t"
            text += f"\t\t{name}{tabs}{address}\tgen: {generation}\tlevel: {level}\n"
        for name in ("total_bytes", "bytes_used", "num_devices"):
            text += f"\t\tbackup_{name}:\t{getattr(one, name)}\n"
        text += "\n"
    return text


COMMANDS: Final[dict[str, Command]] = {"inspect-internal dump-super": _dump_super}
