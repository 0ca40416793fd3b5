# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs subvolume list``, ``show``, ``get-default`` and ``set-default``."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from btrfs_model.scripts.program import options, reason, say
from btrfs_model.scripts.programs.btrfs.common import (
    Command,
    checked_subvolume,
    counted,
    is_subvolume,
    on_mount,
    opened,
    pretty,
    quotas_now,
)
from btrfs_model.scripts.subvolumes import TOP, Row, path_of, subvolumes
from btrfs_model.shell.state import UnknownError
from btrfs_model.volume.quotas import LimitFlag

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.ondisk.structs import Timespec
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.scripts.mounted import Mounted
    from btrfs_model.shell.state import Shell

_READ_ONLY: Final = 1
_ORDERS: Final[dict[str, Callable[[Row, str], int | str]]] = {
    "rootid": lambda row, path: row.id, "gen": lambda row, path: row.item.generation,
    "ogen": lambda row, path: row.item.otransid, "path": lambda row, path: path,
}  # fmt: skip
_COLUMNS: Final[dict[str, tuple[str, Callable[[Row, str], object]]]] = {
    "ID": ("", lambda row, path: row.id),
    "gen": ("", lambda row, path: row.item.generation),
    "cgen": ("csC", lambda row, path: row.item.otransid),
    "parent": ("p", lambda row, path: row.parent),
    "top level": ("", lambda row, path: row.parent),
    "otime": ("s", lambda row, path: _time(row.item.otime)),
    "parent_uuid": ("q", lambda row, path: f"{_uuid(row.item.parent_uuid):<36}"),
    "received_uuid": ("R", lambda row, path: f"{_uuid(row.item.received_uuid):<36}"),
    "uuid": ("u", lambda row, path: f"{_uuid(row.item.uuid):<36}"),
    "path": ("", lambda row, path: path),
}  # fmt: skip
"""Columns in their order: the options that ask for each, none where it is always there."""


def _time(time: Timespec) -> str:
    return f"{datetime.datetime.fromtimestamp(time.sec, datetime.UTC):%Y-%m-%d %H:%M:%S}"


def _uuid(value: bytes) -> str:
    return str(UUID(bytes=value)) if any(value) else "-"


def _top_of(computer: Computer, mounted: Mounted, path: str) -> int:
    return mounted.fs.resolve(on_mount(computer, path)[1])[0]


# ------------------------------------------------------------------------------------ the list --


def _list(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "apcguqRtsro", "GC", long=("sort=",),
                           program_name="btrfs subvolume list")  # fmt: skip
    counted("subvolume list", paths, 1, 1)
    mounted = opened(computer, shell, paths[-1])
    if mounted is None:
        say(shell, f"ERROR: can't access '{paths[-1]}'\n")
        return 1
    top = _top_of(computer, mounted, paths[-1])
    known = subvolumes(mounted.fs)
    rows = [row for row in known.values() if row.parent and _is_asked_for(row, given, top)]
    paths_of = {row.id: _shown(known, row, given, top) for row in rows}
    for told in reversed(given.get("sort", "").split(",")):
        name = told.lstrip("+-")
        if name not in _ORDERS and told:
            raise UnknownError(f"btrfs subvolume list: --sort={told}: this order is not known")
        if told:
            values = {row.id: _ORDERS[name](row, paths_of[row.id]) for row in rows}
            rows = [known[one] for one in sorted(values, key=values.__getitem__,
                                                 reverse=told.startswith("-"))]  # fmt: skip
    asked = {name: show for name, (letters, show) in _COLUMNS.items()
             if not letters or set(letters) & set(given)}  # fmt: skip
    if "t" in given:
        shell.write("".join(f"{name}\t" for name in asked) + "\n")
        shell.write("".join("-" * len(name) + "\t" for name in asked) + "\n")
    for row in rows:
        cells = {name: show(row, paths_of[row.id]) for name, show in asked.items()}
        if "t" in given:
            ends = {"path": "", "top level": "\t\t"}
            line = "".join(f"{cell}{ends.get(name, chr(9))}" for name, cell in cells.items())
        else:
            line = " ".join(f"{name} {cell}" for name, cell in cells.items())
        shell.write(line + "\n")
    return 0


def _is_asked_for(row: Row, given: dict[str, str], top: int) -> bool:
    return (
        ("o" not in given or row.parent == top)
        and ("s" not in given or any(row.item.parent_uuid))
        and ("r" not in given or bool(row.item.flags & _READ_ONLY))
        and _is_near(row.item.generation, given.get("G"))
        and _is_near(row.item.otransid, given.get("C"))
    )


def _is_near(value: int, told: str | None) -> bool:
    if told is None:
        return True
    number = int(told.lstrip("+-"))
    return value >= number if told[0] == "+" else value <= number if told[0] == "-" else (
        value == number)  # fmt: skip


def _shown(known: dict[int, Row], row: Row, given: dict[str, str], top: int) -> str:
    if "a" in given and row.parent != top:
        return f"<FS_TREE>/{path_of(known, row.id)}"
    return path_of(known, row.id, TOP if {"a", "o"} & set(given) else top)


# --------------------------------------------------------------------------------- one of them --


def _show(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "hHbkmgt", "", program_name="btrfs subvolume show")
    counted("subvolume show", paths, 1, 1)
    path = paths[0]
    if computer.stat(path) is None:
        say(shell, f"ERROR: cannot find real path for '{path}': No such file or directory\n")
        return 1
    if not is_subvolume(computer, path):
        kind = "subvolume" if computer.place(computer.absolute(path)) else "filesystem"
        say(shell, f"ERROR: Not a Btrfs {kind}: Invalid argument\n")
        return 1
    mounted, _ = on_mount(computer, path)
    known = subvolumes(mounted.fs)
    row = known[_top_of(computer, mounted, path)]
    item = row.item
    shell.write((path_of(known, row.id) or "/") + "\n")
    for name, value in {
        "Name": row.name or "<FS_TREE>", "UUID": _uuid(item.uuid),
        "Parent UUID": _uuid(item.parent_uuid), "Received UUID": _uuid(item.received_uuid),
        "Creation time": _moment(item.otime), "Subvolume ID": row.id,
        "Generation": item.generation, "Gen at creation": item.otransid, "Parent ID": row.parent,
        "Top level ID": row.parent, "Flags": "readonly" if item.flags & _READ_ONLY else "-",
        # btrfs-progs shows what stands in its buffer where a subvolume was not received
        "Send transid": item.stransid,
        "Send time": _moment(item.stime if item.stime.sec else item.otime),
        "Receive transid": item.rtransid, "Receive time": _moment(item.rtime),
    }.items():  # fmt: skip
        label = f"{name}:"
        shell.write(f"\t{label}{' ' if len(label) > 16 else _TABS[len(label) // 8]}{value}\n")
    shell.write("\tSnapshot(s):\n")
    for one in _downwards(known, TOP):
        if any(item.uuid) and one.item.parent_uuid == item.uuid:
            shell.write(f"\t\t\t\t{path_of(known, one.id)}\n")
    _show_quota_group(shell, mounted.fs, row.id, given)
    return 0


_TABS: Final = (" \t\t\t", " \t\t", " \t")
"""What follows a label, by its length in tabs."""


def _moment(time: Timespec) -> str:
    return f"{_time(time)} +0000" if time.sec else "-"


def _downwards(known: dict[int, Row], top: int) -> list[Row]:
    """Return what is in a subvolume, each before what is in it."""
    inner = [row for row in known.values() if row.parent == top]
    return [one for row in inner for one in (row, *_downwards(known, row.id))]


def _show_quota_group(
    shell: Shell, fs: WritableFilesystem, number: int, given: dict[str, str]
) -> None:
    quotas = quotas_now(fs)
    group = quotas.by_id.get(number) if quotas is not None else None
    if group is None:
        return
    limits = group.limits
    shell.write(f"\tQuota group:\t\t0/{number}\n")
    for name, value, is_set in (
        ("Limit referenced", limits.max_rfer, bool(limits.flags & LimitFlag.MAX_RFER)),
        ("Limit exclusive", limits.max_excl, bool(limits.flags & LimitFlag.MAX_EXCL)),
        ("Usage referenced", group.rfer, True),
        ("Usage exclusive", group.excl, True),
    ):
        shell.write(f"\t  {name}:\t{pretty(value, given) if is_set else '-'}\n")


# ------------------------------------------------------------------------------ the default one --


def _get_default(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    counted("subvolume get-default", arguments, 1, 1)
    mounted = opened(computer, shell, arguments[0])
    if mounted is None:
        return 1
    number = mounted.fs.default_subvolume()
    if number == TOP:
        shell.write(f"ID {TOP} (FS_TREE)\n")
        return 0
    known = subvolumes(mounted.fs)
    row = known[number]
    shell.write(f"ID {number} gen {row.item.generation} top level {row.parent} "
                f"path {path_of(known, number)}\n")  # fmt: skip
    return 0


def _set_default(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    counted("subvolume set-default", arguments, 1, 2)
    path = arguments[-1]
    if len(arguments) == 2 and not re.fullmatch(r"\d+", arguments[0]):
        say(shell, f"ERROR: {arguments[0]} is not a valid numeric value\n")
        return 1
    if computer.stat(path) is None:
        say(shell, "ERROR: Could not open: No such file or directory\n")
        return 1
    if len(arguments) == 1 and not checked_subvolume(computer, shell, path):
        return 1
    try:
        mounted, _ = on_mount(computer, path)
        number = int(arguments[0]) if len(arguments) == 2 else _top_of(computer, mounted, path)
        mounted.may_write(path)
        mounted.fs.set_default_subvolume(number)
    except OSError as error:
        say(shell, f"ERROR: Could not set default subvolume: {reason(error)}\n")
        return 1
    return 0


COMMANDS: Final[dict[str, Command]] = {
    "subvolume list": _list, "subvolume show": _show, "subvolume get-default": _get_default,
    "subvolume set-default": _set_default,
}  # fmt: skip
