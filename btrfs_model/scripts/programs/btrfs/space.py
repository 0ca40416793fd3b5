# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs filesystem`` and ``btrfs property``."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from btrfs_model.mount.files.defrag import PROGS_THRESHOLD
from btrfs_model.mount.space.block_group import global_reserve
from btrfs_model.mount.space.level import UNLINK_METADATA_UNITS
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_DUP,
    BTRFS_BLOCK_GROUP_METADATA,
    BTRFS_BLOCK_GROUP_SYSTEM,
)
from btrfs_model.questions.usage.space import du
from btrfs_model.scripts.program import options, reason, say, size_of
from btrfs_model.scripts.programs.btrfs.common import (
    KINDS,
    UNITS,
    Command,
    checked_subvolume,
    counted,
    decoded,
    is_subvolume,
    on_mount,
    pretty,
)
from btrfs_model.scripts.programs.copies import sync_filesystem
from btrfs_model.scripts.programs.find.walk import walk
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_LABEL: Final = 255
"""Bytes of a label."""


def _filesystem_sync(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    counted("filesystem sync", arguments, 1, 1)
    mounted, _ = on_mount(computer, arguments[0])
    try:
        sync_filesystem(mounted, cyclic=False)
    except OSError as error:
        say(shell, f"ERROR: Could not sync filesystem: {reason(error)}\n")
        return 1
    return 0


def _df(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "bkmgthH", "", long=UNITS,
                           program_name="btrfs filesystem df")  # fmt: skip
    counted("filesystem df", paths, 1, 1)
    mounted, _ = on_mount(computer, paths[-1])
    fs = mounted.fs
    whole: dict[int, tuple[int, int]] = {}
    for group in fs.writer.groups():
        total, used = whole.get(group.flags, (0, 0))
        whole[group.flags] = total + group.length, used + group.used
    kinds = BTRFS_BLOCK_GROUP_DATA | BTRFS_BLOCK_GROUP_METADATA | BTRFS_BLOCK_GROUP_SYSTEM
    for kind in (BTRFS_BLOCK_GROUP_DATA, BTRFS_BLOCK_GROUP_SYSTEM, BTRFS_BLOCK_GROUP_METADATA,
                 BTRFS_BLOCK_GROUP_DATA | BTRFS_BLOCK_GROUP_METADATA):  # fmt: skip
        for flags, (total, used) in sorted(whole.items()):
            if flags & kinds == kind:
                told = "DUP" if flags & BTRFS_BLOCK_GROUP_DUP else "single"
                shell.write(f"{KINDS[kind]}, {told}: total={pretty(total, given)}, "
                            f"used={pretty(used, given)}\n")  # fmt: skip
    reserve = global_reserve(
        fs, fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA), UNLINK_METADATA_UNITS
    )
    shell.write(f"GlobalReserve, single: total={pretty(reserve, given)}, "
                f"used={pretty(0, given)}\n")  # fmt: skip
    return 0


def _du(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "shHbkmgt", "", long=("summarize", *UNITS),
                           program_name="btrfs filesystem du")  # fmt: skip
    counted("filesystem du", paths, 1, None)
    shell.write(f"{'Total':>10}  {'Exclusive':>10}  {'Set shared':>10}  Filename\n")
    status = 0
    for path in paths:
        try:
            mounted, inside = on_mount(computer, path)
            mounted.stat(inside)
        except OSError as error:
            say(shell, f"ERROR: cannot check space of '{path}': {reason(error)}\n")
            status = 1
            continue
        fs = mounted.fs
        fs.sync()
        table = du(fs, inside, files=True)
        if {"s", "summarize"} & set(given):
            table = table.tail(1)
        for row in table.itertuples():
            name = decoded(row.path)[len(inside) :].strip("/")
            told = posixpath.join(path.rstrip("/") or "/", name) if name else path
            shared = "-" if name else pretty(row.set_shared, given)
            total, alone = pretty(row.total, given), pretty(row.exclusive, given)
            shell.write(f"{total:>10}  {alone:>10}  {shared:>10}  {told}\n")
    return status


def _label(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    counted("filesystem label", arguments, 1, 2)
    path, *new = arguments
    whole = computer.absolute(path).rstrip("/")
    if new and computer.mounted_at(path) is not None and whole not in computer.mounts:
        say(shell, f"ERROR: device {path} is mounted, use mount point\n")
        return 255
    fs = _filesystem(computer, path)
    if not new:
        shell.write(fs.image.superblock.label + "\n")
        return 0
    if len(new[0].encode()) > _LABEL:
        say(shell, f"ERROR: label {new[0]} is too long (max {_LABEL})\n")
        return 255
    fs.set_label(new[0])
    return 0


def _filesystem(computer: Computer, path: str) -> WritableFilesystem:
    """Return the filesystem that is mounted at a path, or on a device."""
    mounted = computer.mounted_at(path)
    if mounted is not None:
        return mounted.fs
    found = computer.device(path).filesystem
    if found is None:
        raise UnknownError(f"{path}: nothing is on this device")
    return found


def _show(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "mdbkgt", "", long=("mounted", "all-devices", *UNITS),
                           program_name="btrfs filesystem show")  # fmt: skip
    wanted = [computer.absolute(one).rstrip("/") for one in paths]
    for device in computer.devices.values():
        mounted = next((one for one in computer.mounts.values()
                        if one.device is device), None)  # fmt: skip
        if device.filesystem is None or (wanted and device.path not in wanted and (
                mounted is None or mounted.where not in wanted)):  # fmt: skip
            continue
        computer.flush()
        fs = device.filesystem
        label = fs.image.superblock.label
        used = sum(group.used for group in fs.writer.groups())
        uuid = UUID(bytes=fs.image.superblock.fsid)
        shell.write(f"Label: {repr(label) if label else 'none'}  uuid: {uuid}\n"
                    f"\tTotal devices 1 FS bytes used {pretty(used, given)}\n")  # fmt: skip
        for row in fs.devices().itertuples():
            shell.write(f"\tdevid {row.devid:>4} size {pretty(row.size, given)} used "
                        f"{pretty(row.allocated, given)} path {device.path}\n\n")  # fmt: skip
    return 0


def _property_set(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words = options(arguments, "f", "t", program_name="btrfs property set")
    counted("property set", words, 3, None)
    if len(words) > 3:
        raise UnknownError(f"btrfs property set: {words[3]}: more than three words are not known")
    path, name, value = words
    mounted, inside = on_mount(computer, path)
    mounted.may_write(path)
    if name == "ro":
        if not checked_subvolume(computer, shell, path):
            return 1
        mounted.fs.set_read_only(inside, value == "true")
    elif name == "compression":
        mounted.fs.setxattr(inside, "btrfs.compression", value.encode())
    else:
        raise UnknownError(f"btrfs property set: {name}: this property is not known")
    del given, shell
    return 0


def _property_get(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words = options(arguments, "", "t", program_name="btrfs property get")
    counted("property get", words, 1, None)
    del given
    path, *names = words
    mounted, inside = on_mount(computer, path)
    fs = mounted.fs
    for name in names or ("ro", "compression"):
        if name == "ro":
            if is_subvolume(computer, path):
                told = "true" if fs.subvolume(inside).is_read_only else "false"
                shell.write(f"ro={told}\n")
            elif names:
                say(shell, "ERROR: object is not compatible with property: ro\n")
                return 1
        elif name == "compression":
            value: Any = fs.file(inside).xattrs().get(b"btrfs.compression")
            if value is not None:
                shell.write(f"compression={decoded(value)}\n")
        else:
            raise UnknownError(f"btrfs property get: {name}: this property is not known")
    return 0


def _defragment(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    # an algorithm is told in the same word: -czstd
    words = ["-czlib" if one == "-c" else one for one in arguments]
    given, paths = options(words, "vrf", "cslt",
                           program_name="btrfs filesystem defragment")  # fmt: skip
    counted("filesystem defragment", paths, 1, None)
    numbers = {one: size_of(given[one]) for one in "slt" if one in given}
    failures = 0
    for path in paths:
        seen = computer.stat(path)
        if seen is None:
            say(shell, f"ERROR: cannot open {path}: No such file or directory\n")
            failures += 1
            continue
        if seen.is_dir and "r" not in given:
            raise UnknownError("btrfs filesystem defragment: a directory needs -r here")
        for name, one, _ in walk(computer, path, seen, 0, 1 << 30, False):
            if not one.is_file or one.device != seen.device:
                continue
            if "v" in given:
                shell.write(name + "\n")
            mounted, inside = on_mount(computer, name)
            with computer.timed("defragment"):
                mounted.fs.defragment(
                    inside, numbers.get("s", 0), numbers.get("l", 0),
                    threshold=numbers.get("t", PROGS_THRESHOLD), compress=given.get("c", ""),
                )  # fmt: skip
                if "f" in given:
                    mounted.fs.sync_file_range(inside)
    if failures:
        say(shell, f"total {failures} failures\n")
    return int(bool(failures))


COMMANDS: Final[dict[str, Command]] = {
    "filesystem sync": _filesystem_sync, "filesystem df": _df, "filesystem du": _du,
    "filesystem label": _label, "filesystem show": _show, "property set": _property_set,
    "property get": _property_get, "filesystem defragment": _defragment,
}  # fmt: skip
