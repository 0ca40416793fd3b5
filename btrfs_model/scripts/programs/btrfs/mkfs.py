# SPDX-License-Identifier: GPL-2.0-only
"""mkfs.btrfs of btrfs-progs 6.2."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DUP, CsumType
from btrfs_model.ondisk.hashes import CSUM_NAMES
from btrfs_model.questions.dumptree.templates import uuid
from btrfs_model.scripts.program import Program, options, reason, say, size_of
from btrfs_model.scripts.programs.btrfs.common import KINDS, pretty
from btrfs_model.scripts.programs.btrfs.rootdir import copy_of
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer, Device
    from btrfs_model.shell.state import Shell

_FEATURES: Final = {
    "extref": "extref",
    "skinny-metadata": "skinny_metadata",
    "no-holes": "no_holes",
    "free-space-tree": "free_space_tree",
    "block-group-tree": "block_group_tree",
}


_INCOMPAT: Final = ("extref", "skinny_metadata", "no_holes")


def _mkfs(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """mkfs.btrfs: a filesystem as btrfs-progs 6.2 makes it."""
    given, paths = options(
        arguments, "fqKvM", "mdbLnsOURr",
        long=("force", "metadata=", "data=", "byte-count=", "label=", "nodesize=", "sectorsize=",
              "features=", "uuid=", "csum=", "checksum=", "nodiscard", "quiet", "mixed",
              "runtime-features=", "leafsize=", "rootdir="),
        program_name="mkfs.btrfs",
    )  # fmt: skip
    if "list-all" in _list(given):
        say(shell, "Filesystem features available:\n"
            + "".join(f"{one:<20}-\n" for one in [*_FEATURES, "quota"]))  # fmt: skip
        return 0
    if len(paths) != 1:
        raise UnknownError("mkfs.btrfs: several devices are not known" if paths else
                           "mkfs.btrfs: no device")  # fmt: skip
    if not {"q", "quiet"} & set(given):
        shell.write("btrfs-progs v6.2\n"
                    "See http://btrfs.wiki.kernel.org for more information.\n\n")  # fmt: skip
    try:
        device = computer.device(paths[0])
    except OSError as error:
        say(shell, f"ERROR: unable to open {paths[0]}: {reason(error)}\n")
        return 1
    if any(one.device is device for one in computer.mounts.values()):
        say(shell, f"ERROR: {paths[0]} is mounted\n")
        return 1
    if device.filesystem is not None and not {"f", "force"} & set(given):
        say(shell, f"ERROR: {paths[0]} appears to contain an existing filesystem (btrfs)\n"
                   f"ERROR: use the -f option to force overwrite of {paths[0]}\n")  # fmt: skip
        return 1
    source = given.get("r", given.get("rootdir"))
    if source is not None and not _is_folder(computer, shell, source, device):
        return 1
    chosen = _format(given)
    size = size_of(given.get("b", given.get("byte-count", str(device.size))))
    try:
        fill = None if source is None else copy_of(computer, source)
        fs = WritableFilesystem.mkfs(size, behaviour=computer.behaviour,
                                    device_size=device.size, fill=fill, **chosen)  # fmt: skip
    except ValueError as error:
        say(shell, f"ERROR: {error}\n")
        return 1
    except OSError as error:
        say(shell, f"ERROR: error while filling filesystem: {reason(error)}\n")
        erase(device)
        return 1
    if device.filesystem is not None:
        device.filesystem.close()
    device.filesystem, device.crashed = fs, None
    if "quota" in _list(given):
        fs.quota_enable()
        fs.sync()
    if device.log is not None:
        device.log.made(fs.memory)
    if not {"q", "quiet"} & set(given):
        shell.write(_told(fs, chosen, given, device))
    return 0


def _is_folder(computer: Computer, shell: Shell, path: str, device: Device) -> bool:
    """Whether ``--rootdir`` names a directory; say so where it does not."""
    seen = computer.stat(path)
    if seen is None:
        say(shell, f"ERROR: ftw subdir walk of {path} failed: No such file or directory\n")
    elif not seen.is_dir:
        say(shell, f"ERROR: chdir failed for {path}: Not a directory\n"
                   f"ERROR: unable to traverse directory {path}: 1\n"
                   "ERROR: error while filling filesystem: 1\n"
                   f"ERROR: device scan failed on '{device.path}': Invalid argument\n")  # fmt: skip
        erase(device)
    return seen is not None and seen.is_dir


def _list(given: dict[str, str]) -> list[str]:
    told = ",".join(given.get(one, "") for one in ("O", "features", "R", "runtime-features"))
    return [one for one in told.split(",") if one]


def _format(given: dict[str, str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for letter, name in (("m", "metadata"), ("d", "data")):
        value = given.get(letter, given.get(name))
        if value is None:
            continue
        if name == "metadata" and value.lower() in ("single", "dup"):
            chosen["metadata"] = value.lower()
        elif not (name == "data" and value.lower() == "single"):
            raise UnknownError(f"mkfs.btrfs: -{letter} {value}: this profile is not known")
    if "M" in given or "mixed" in given:
        raise UnknownError("mkfs.btrfs: mixed block groups are not known")
    for letter, name in (("n", "nodesize"), ("s", "sectorsize")):
        value = given.get(letter, given.get(name))
        if value is None:
            continue
        if name == "sectorsize":
            if size_of(value) != 4096:
                raise UnknownError(f"mkfs.btrfs: sectors of {value} bytes are not known")
        else:
            chosen["nodesize"] = size_of(value)
    if "L" in given or "label" in given:
        chosen["label"] = given.get("L", given.get("label"))
    if "U" in given or "uuid" in given:
        chosen["uuid"] = given.get("U", given.get("uuid"))
    if "csum" in given or "checksum" in given:
        chosen["csum"] = given.get("csum", given.get("checksum", "")).replace("xxhash64", "xxhash")
    for told in _list(given):
        name, on = told.removeprefix("^"), not told.startswith("^")
        if name == "quota":
            continue
        if name not in _FEATURES:
            raise UnknownError(f"mkfs.btrfs: -O {told}: this feature is not known")
        chosen[_FEATURES[name]] = on
    return chosen


def _told(
    fs: WritableFilesystem, chosen: dict[str, Any], given: dict[str, str], device: Device
) -> str:
    """Return what mkfs.btrfs says of a filesystem that it has made."""
    superblock = fs.image.superblock
    size = superblock.total_bytes
    quick = {"K", "nodiscard"} & set(given)
    trims = "" if quick else (
        f"Performing full device TRIM {device.path} ({pretty(device.size, {})}) ...\n")  # fmt: skip
    filled = "Making image is completed.\n" if {"r", "rootdir"} & set(given) else ""
    groups = ""
    # data, metadata, system
    for chunk in sorted(fs.image.chunks, key=lambda one: (1, 4, 2).index(one.type & 7)):
        kind = KINDS[chunk.type & ~BTRFS_BLOCK_GROUP_DUP]
        profile = "DUP" if chunk.type & BTRFS_BLOCK_GROUP_DUP else "single"
        groups += f"  {kind + ':':<18}{profile:<10}{pretty(chunk.length, {}):>15}\n"
    features = ", ".join(name for name, field in _FEATURES.items()
                         if field in _INCOMPAT and chosen.get(field, True))  # fmt: skip
    has_tree = bool(chosen.get("free_space_tree", True))
    runtime = ", ".join(["quota"] * ("quota" in _list(given)) + ["free-space-tree"] * has_tree)
    return (
        f"{trims}{filled}"
        f"Label:              {superblock.label or '(null)'}\n"
        f"UUID:               {uuid(superblock.fsid)}\n"
        f"Node size:          {fs.nodesize}\n"
        "Sector size:        4096\n"
        f"Filesystem size:    {pretty(size, {})}\n"
        f"Block group profiles:\n{groups}"
        "SSD detected:       no\n"
        "Zoned device:       no\n"
        f"Incompat features:  {features}\n"
        f"Runtime features:   {runtime}\n"
        f"Checksum:           {CSUM_NAMES[CsumType(superblock.csum_type)]}\n"
        "Number of devices:  1\n"
        "Devices:\n"
        "   ID        SIZE  PATH\n"
        f"    1  {pretty(size, {}):>10}  {device.path}\n\n"
    )


def erase(device: Device) -> None:
    """Leave nothing on a device."""
    if device.filesystem is not None:
        device.filesystem.close()
    device.filesystem = device.crashed = None


PROGRAMS: Final[dict[str, Program]] = {
    "mkfs.btrfs": _mkfs,
    "mkfs": lambda computer, shell, arguments: _mkfs(computer, shell, _without_type(arguments)),
}  # fmt: skip


def _without_type(arguments: list[str]) -> list[str]:
    text = " ".join(arguments)
    if not re.search(r"-t\s*btrfs", text):
        raise UnknownError(f"mkfs {text}: only -t btrfs is known")
    at = next(at for at, one in enumerate(arguments) if one.startswith("-t"))
    return arguments[:at] + arguments[at + (2 if arguments[at] == "-t" else 1) :]
