# SPDX-License-Identifier: GPL-2.0-only
"""dmsetup: linear devices, and those that lose what is written (dm-flakey)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.files import fail
from btrfs_model.scripts.program import Program, options, reason, say
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer, Device
    from btrfs_model.shell.state import Shell

_TARGETS: Final = {"flakey": "v1.5.0", "linear": "v1.4.0"}
_LOADED: Final = {"btrfs", "loop", "brd", "null_blk"}
"""Modules that are there besides."""


def _dmsetup(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words = options(arguments, "f", "", long=("table=", "noflush", "nolockfs", "force",
                           "noudevsync", "retry", "deferred"), program_name="dmsetup")  # fmt: skip
    if not words:
        say(shell, "dmsetup: no command\n")
        return 1
    what, *names = words
    if what == "targets":
        shell.write("".join(f"{name:<16} {version}\n" for name, version in _TARGETS.items()))
        return 0
    run = {"create": _create, "load": _load, "reload": _load, "suspend": _suspend,
           "resume": _resume, "remove": _remove, "table": _table, "info": _table,
           }.get(what)  # fmt: skip
    if run is None:
        raise UnknownError(f"dmsetup {what}: this command is not known")
    try:
        if run is _load and "table" not in given:
            given["table"] = shell.files[0].read().decode().strip()
        run(computer, names[0] if names else "", given)
    except OSError as error:
        say(shell, f"device-mapper: {what} ioctl on {names[0]} failed: {reason(error)}\n")
        return 1
    return 0


def _backed(computer: Computer, table: str) -> tuple[Device, bool]:
    """Return the device below a table, and whether what is written is lost."""
    words = table.split()
    if len(words) < 4 or words[2] not in _TARGETS:
        raise UnknownError(f"dmsetup: {table}: this table is not known")
    if "error_writes" in words:
        raise UnknownError("dmsetup: error_writes: this feature is not known")
    return computer.device(words[3]), "drop_writes" in words


def _create(computer: Computer, name: str, given: dict[str, str]) -> None:
    device, drops = _backed(computer, given.get("table", ""))
    path = f"/dev/mapper/{name}"
    if path in computer.mapped:
        raise fail(errno.EBUSY, path)
    computer.add_device(path, device.size)
    computer.devices[path] = device
    computer.mapped[path] = drops
    _settle(computer, path)


def _load(computer: Computer, name: str, given: dict[str, str]) -> None:
    path = _known(computer, name)
    _, computer.mapped[path] = _backed(computer, given.get("table", ""))


def _suspend(computer: Computer, name: str, given: dict[str, str]) -> None:
    path = _known(computer, name)
    if "nolockfs" in given:
        return
    for one in computer.mounts.values():  # the filesystem is frozen: all is written
        if one.device is computer.devices[path]:
            one.fs.sync()


def _resume(computer: Computer, name: str, given: dict[str, str]) -> None:
    del given
    _settle(computer, _known(computer, name))


def _remove(computer: Computer, name: str, given: dict[str, str]) -> None:
    del given
    path = _known(computer, name)
    if computer.mounted_at(path) is not None:
        raise fail(errno.EBUSY, path)
    computer.mapped[path] = False
    _settle(computer, path)
    del computer.mapped[path], computer.devices[path]
    folder, last = computer.tree.parent(path)
    del folder.names[last]


def _table(computer: Computer, name: str, given: dict[str, str]) -> None:
    del given
    if name:
        _known(computer, name)


def _known(computer: Computer, name: str) -> str:
    path = name if name.startswith("/") else f"/dev/mapper/{name}"
    if path not in computer.mapped:
        raise fail(errno.ENXIO, path)
    return path


def _settle(computer: Computer, path: str) -> None:
    """Let what was loaded act."""
    device, drops = computer.devices[path], computer.mapped[path]
    if drops and not device.drops:
        for one in computer.mounts.values():
            if one.device is device:
                one.keep()
    elif device.drops and not drops and any(
        one.device is device for one in computer.mounts.values()
    ):  # fmt: skip
        raise UnknownError(
            "dmsetup: writes were lost below a mounted filesystem, which is not known"
        )
    device.drops = drops


def _modprobe(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del computer
    given, names = options(arguments, "rqv", program_name="modprobe")
    del given
    for name in names:
        if name not in _LOADED and name.removeprefix("dm-").replace("_", "-") not in _TARGETS:
            say(shell, f"modprobe: FATAL: Module {name} not found\n")
            return 1
    return 0


PROGRAMS: Final[dict[str, Program]] = {"dmsetup": _dmsetup, "modprobe": _modprobe}
