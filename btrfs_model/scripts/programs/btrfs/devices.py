# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs device`` and ``btrfs filesystem usage``."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from btrfs_model.mount.space.block_group import global_reserve
from btrfs_model.mount.space.level import UNLINK_METADATA_UNITS
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DUP, BTRFS_BLOCK_GROUP_METADATA
from btrfs_model.scripts.program import options, say
from btrfs_model.scripts.programs.btrfs.common import KINDS, UNITS, Command, counted, opened, pretty
from btrfs_model.scripts.programs.statfs import BLOCK, statfs
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.scripts.mounted import Mounted
    from btrfs_model.shell.state import Shell

_ERRORS: Final = ("write_io_errs", "read_io_errs", "flush_io_errs", "corruption_errs",
                  "generation_errs")  # fmt: skip


# --------------------------------------------------------------------------------------- space --


class _Kind(NamedTuple):
    """Chunks of a kind: their name and profile, how often each byte is there, and bytes."""

    name: str
    copies: int
    total: int
    used: int

    @property
    def title(self) -> str:
        """Its name, as btrfs-progs writes it."""
        return f"{self.name},{'DUP' if self.copies > 1 else 'single'}"


def _kinds(fs: WritableFilesystem) -> list[_Kind]:
    """Return what chunks there are: data, metadata, system."""
    found: dict[int, _Kind] = {}
    for group in fs.writer.groups():
        copies = 2 if group.flags & BTRFS_BLOCK_GROUP_DUP else 1
        kind = group.flags & ~BTRFS_BLOCK_GROUP_DUP
        before = found.get(kind, _Kind(KINDS[kind], copies, 0, 0))
        found[kind] = before._replace(total=before.total + group.length,
                                      used=before.used + group.used)  # fmt: skip
    order = ("Data", "Metadata", "Data+Metadata", "System")
    return sorted(found.values(), key=lambda one: order.index(one.name))


def _unallocated(fs: WritableFilesystem, kinds: list[_Kind]) -> int:
    return fs.image.superblock.total_bytes - sum(one.total * one.copies for one in kinds)


def _usage(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "bhHkmgt", "", long=UNITS,
                           program_name="btrfs filesystem usage")  # fmt: skip
    counted("filesystem usage", paths, 1, None)
    status = 0
    for path in paths:
        mounted = opened(computer, shell, path)
        if mounted is None:
            status = 1
        else:
            shell.write(_overall(mounted, given) + _by_kind(mounted, given))
    return status


def _overall(mounted: Mounted, given: dict[str, str]) -> str:
    fs = mounted.fs
    kinds = _kinds(fs)
    data = next(one for one in kinds if one.name.startswith("Data"))
    metadata = next(one for one in kinds if "etadata" in one.name)
    unallocated = _unallocated(fs, kinds)
    free = data.total - data.used
    most = max(one.copies for one in kinds)
    reserve = global_reserve(
        fs, fs.writer.space_info(BTRFS_BLOCK_GROUP_METADATA), UNLINK_METADATA_UNITS
    )
    size = fs.image.superblock.total_bytes
    width = 10 if set(given) <= {"h", "human-readable", "iec"} else 18

    def line(name: str, value: str, rest: str = "") -> str:
        tabs = "\t" * (2 if len(name) > 10 else 3)
        return f"    {name}:{tabs}{value:>{width}}{rest}\n"

    def told(value: int) -> str:
        return pretty(value, given)

    return "Overall:\n" + "".join((
        line("Device size", told(size)),
        line("Device allocated", told(size - unallocated)),
        line("Device unallocated", told(unallocated)),
        line("Device missing", told(0)),
        line("Device slack", told(mounted.device.size - size)),
        line("Used", told(sum(one.used * one.copies for one in kinds))),
        line("Free (estimated)", told(free + unallocated // data.copies),
             f"\t(min: {told(free + unallocated // most)})"),
        line("Free (statfs, df)", told(statfs(fs).available * BLOCK)),
        line("Data ratio", f"{data.copies:.2f}"),
        line("Metadata ratio", f"{metadata.copies:.2f}"),
        line("Global reserve", told(reserve), f"\t(used: {told(0)})"),
        line("Multiple profiles", "no"),
    ))  # fmt: skip


def _by_kind(mounted: Mounted, given: dict[str, str]) -> str:
    fs = mounted.fs
    kinds = _kinds(fs)
    text = ""
    for one in kinds:
        share = 100 * one.used / one.total
        text += (f"\n{one.title}: Size:{pretty(one.total, given)}, Used:{pretty(one.used, given)} "
                 f"({share:.2f}%)\n   {mounted.source}\t"
                 f"{pretty(one.total * one.copies, given):>10}\n")  # fmt: skip
    left = pretty(_unallocated(fs, kinds), given)
    return text + f"\nUnallocated:\n   {mounted.source}\t{left:>10}\n"


def _device_usage(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "bhHkmgt", "", long=UNITS,
                           program_name="btrfs device usage")  # fmt: skip
    counted("device usage", paths, 1, None)
    status = 0
    for path in paths:
        mounted = opened(computer, shell, path)
        if mounted is None:
            status = 1
            continue
        fs = mounted.fs
        kinds = _kinds(fs)
        size = fs.image.superblock.total_bytes
        rows = {"Device size": mounted.device.size, "Device slack": mounted.device.size - size,
                **{one.title: one.total * one.copies for one in kinds},
                "Unallocated": _unallocated(fs, kinds)}  # fmt: skip
        shell.write(f"{mounted.source}, ID: 1\n")
        for name, value in rows.items():
            shell.write(f"   {name + ':':<22}{pretty(value, given):>10}\n")
        shell.write("\n")
    return status


# ------------------------------------------------------------------------------------- devices --


def _scan(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "ud", long=("forget", "all-devices"),
                           program_name="btrfs device scan")  # fmt: skip
    forgets = bool({"u", "forget"} & set(given))
    if not paths and not forgets:
        shell.write("Scanning for Btrfs filesystems\n")
    for path in paths:
        seen = computer.stat(path)
        if seen is None or not stat.S_ISBLK(seen.mode):
            say(shell, f"ERROR: not a block device: {path}\n")
            return 1
        if not forgets:
            shell.write(f"Scanning for btrfs filesystems on '{path}'\n")
        elif computer.mounted_at(path) is not None:
            say(shell, f"ERROR: cannot unregister device '{path}': Device or resource busy\n")
            return 1
    return 0


def _ready(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del shell
    counted("device ready", arguments, 1, 1)
    return int(computer.device(arguments[0]).filesystem is None)


def _stats(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Nothing here counts errors: a device has none."""
    _, paths = options(arguments, "zc", long=("check", "reset"), program_name="btrfs device stats")
    counted("device stats", paths, 1, 1)
    path = paths[0]
    mounted = computer.mounted_at(path)
    if mounted is None and computer.stat(path) is None:
        say(shell, f"ERROR: cannot check {path}: No such file or directory\n"
                   f"ERROR: '{path}' is not a mounted btrfs device\n")  # fmt: skip
        return 1
    mounted = mounted or opened(computer, shell, path)
    if mounted is None:
        return 1
    for name in _ERRORS:
        shell.write(f"[{mounted.source}].{name:<16} 0\n")
    return 0


def _several(name: str) -> Command:
    def run(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        del computer, shell, arguments
        raise UnknownError(f"btrfs {name}: filesystems of several devices are not known")

    return run


COMMANDS: Final[dict[str, Command]] = {
    **{name: _several(name) for name in ("device add", "device remove", "device delete",
                                         "replace start")},
    "filesystem usage": _usage, "device usage": _device_usage, "device scan": _scan,
    "device ready": _ready, "device stats": _stats,
}  # fmt: skip
