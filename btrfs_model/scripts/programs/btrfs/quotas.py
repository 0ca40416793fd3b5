# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs quota`` and ``btrfs qgroup``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.scripts.program import options, say, size_of
from btrfs_model.scripts.programs.btrfs.common import (
    UNITS,
    Command,
    counted,
    decoded,
    on_mount,
    pretty,
    quotas_now,
)
from btrfs_model.shell.state import UnknownError
from btrfs_model.volume.quotas import LimitFlag, Qgroup, group_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell


def _quota(what: str) -> Command:
    def run(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        given, paths = options(arguments, "wsqW", long=("simple",),
                               program_name=f"btrfs quota {what}")  # fmt: skip
        if what == "rescan":
            counted("quota rescan", paths, 1, 1)
        elif len(paths) != 1:
            raise UnknownError(f"btrfs quota {what}: say one path")
        mounted, _ = on_mount(computer, paths[0])
        fs = mounted.fs
        if what == "enable":
            fs.quota_enable(bool({"s", "simple"} & set(given)))
            fs.sync()
        elif what == "disable":
            fs.quota_disable()
        elif "s" in given:
            shell.write("no rescan operation in progress\n")
        elif "W" not in given:
            fs.quota_rescan()
            shell.write("quota rescan started\n")
        return 0

    return run


def _qgroup(what: str) -> Command:
    def run(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        given, words = options(arguments, "ce", "", long=("no-rescan", "rescan"),
                               program_name=f"btrfs qgroup {what}")  # fmt: skip
        del shell
        least = {"create": 2, "destroy": 2, "assign": 3, "remove": 3, "limit": 2}[what]
        counted(f"qgroup {what}", words, least, 3 if what == "limit" else least)
        *rest, path = words
        mounted, _ = on_mount(computer, path)
        fs = mounted.fs
        if what == "create":
            fs.qgroup_create(rest[0])
        elif what == "destroy":
            fs.qgroup_destroy(rest[0])
        elif what == "assign":
            fs.qgroup_assign(rest[0], rest[1])
        elif what == "remove":
            fs.qgroup_remove(rest[0], rest[1])
        else:
            limit = None if rest[0] == "none" else size_of(rest[0])
            group = rest[1] if len(rest) > 1 else path
            if "/" not in group or not group.split("/")[0].isdigit():
                group = f"0/{fs.resolve(on_mount(computer, group)[1])[0]}"
            if "e" in given:
                fs.qgroup_limit(group, max_excl=limit)
            else:
                fs.qgroup_limit(group, max_rfer=limit)
        return 0

    return run


_WIDTHS: Final = {"Qgroupid": -9, "Referenced": 12, "Exclusive": 12, "Max referenced": 15,
                  "Max exclusive": 14, "Parent": -8, "Child": -5, "Path": 6}  # fmt: skip
"""Least widths of columns; those below 0 begin at the left."""
_ORDERS: Final[dict[str, Callable[[Qgroup], int]]] = {
    "qgroupid": lambda group: group.id, "rfer": lambda group: group.rfer,
    "excl": lambda group: group.excl, "max_rfer": lambda group: group.limits.max_rfer,
    "max_excl": lambda group: group.limits.max_excl,
}  # fmt: skip


def _show(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "pcreFf", "", long=(*UNITS, "sync", "sort="),
                           program_name="btrfs qgroup show")  # fmt: skip
    counted("qgroup show", paths, 1, 1)
    mounted, inside = on_mount(computer, paths[0])
    fs = mounted.fs
    if "sync" in given:
        fs.sync()
    quotas = quotas_now(fs)
    if quotas is None:
        say(shell, "ERROR: can't list qgroups: quotas not enabled\n")
        return 1
    groups = sorted(quotas.by_id.values(), key=lambda group: group.id)
    if {"F", "f"} & set(given):
        own = fs.subvolume(inside).id
        wanted = {own} if "f" in given else {own, *(one.id for one in _above(groups, own))}
        groups = [one for one in groups if one.id in wanted]
    for told in reversed(given.get("sort", "").split(",")):
        if told.lstrip("+-") not in _ORDERS and told:
            raise UnknownError(f"btrfs qgroup show: --sort={told}: this order is not known")
        if told:
            groups.sort(key=_ORDERS[told.lstrip("+-")], reverse=told.startswith("-"))
    rows = [_row(fs, one, given) for one in groups]
    widths = {name: max(abs(_WIDTHS[name]), *(len(row[name]) for row in rows))
              if name != "Path" else 0 for name in _columns(given)}  # fmt: skip
    for row in ({name: name for name in widths}, {name: "-" * len(name) for name in widths}):
        shell.write(_line({**row, "Path": "  " + row["Path"]}, widths) + " \n")
    for row in rows:
        shell.write(_line(row, widths) + "\n")
    return 0


def _above(groups: list[Qgroup], own: int) -> Iterator[Qgroup]:
    return next((one.upwards() for one in groups if one.id == own), iter(()))


def _columns(given: dict[str, str]) -> list[str]:
    asked = {"r": "Max referenced", "e": "Max exclusive", "p": "Parent", "c": "Child"}
    return ["Qgroupid", "Referenced", "Exclusive",
            *(name for letter, name in asked.items() if letter in given), "Path"]  # fmt: skip


def _line(row: dict[str, str], widths: dict[str, int]) -> str:
    return " ".join(row[name].ljust(width) if _WIDTHS[name] < 0 else row[name].rjust(width)
                    for name, width in widths.items())  # fmt: skip


def _path(fs: WritableFilesystem, group: Qgroup) -> str:
    if group.id == ObjectId.FS_TREE:
        return "<toplevel>"
    return decoded(fs.subvolume(group.id).path) if group.id in fs.subvolume_ids else "<stale>"


def _row(fs: WritableFilesystem, group: Qgroup, given: dict[str, str]) -> dict[str, str]:
    limits = group.limits
    if group.level:
        # btrfs-progs takes the groups that this one is in for its members
        above = [group_name(one.id) if one.level else _path(fs, one) for one in group.groups]
        count = len(above)
        path = f"{' '.join(above)}<{count} member qgroup{'s' if count != 1 else chr(0)}>"
    else:
        path = _path(fs, group)
    return {
        "Qgroupid": group_name(group.id),
        "Referenced": pretty(group.rfer, given), "Exclusive": pretty(group.excl, given),
        "Max referenced": pretty(limits.max_rfer, given) if limits.flags & LimitFlag.MAX_RFER
        else "none",
        "Max exclusive": pretty(limits.max_excl, given) if limits.flags & LimitFlag.MAX_EXCL
        else "none",
        "Parent": ",".join(group_name(one.id) for one in group.groups) or "-",
        "Child": ",".join(group_name(one.id) for one in group.members) or "-",
        "Path": "  " + path,
    }  # fmt: skip


COMMANDS: Final[dict[str, Command]] = {
    **{f"quota {one}": _quota(one) for one in ("enable", "disable", "rescan")},
    **{f"qgroup {one}": _qgroup(one) for one in ("create", "destroy", "assign", "remove", "limit")},
    "qgroup show": _show,
}  # fmt: skip
