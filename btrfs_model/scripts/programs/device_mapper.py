# SPDX-License-Identifier: GPL-2.0-only
"""dmsetup: linear devices, thin volumes, those that lose what is written, or note it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.scripts.computer import Device
from btrfs_model.scripts.device_log import SECTOR, DeviceLog
from btrfs_model.scripts.files import fail
from btrfs_model.scripts.mounted import Fate
from btrfs_model.scripts.program import Program, options, reason, say
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_TARGETS: Final = {"error": "v1.7.0", "flakey": "v1.5.0", "linear": "v1.4.0",
                   "log-writes": "v1.1.0", "thin": "v1.23.0", "thin-pool": "v1.23.0"}  # fmt: skip
_Command: TypeAlias = "Callable[[Computer, str, dict[str, str]], None]"
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
    known: dict[str, _Command] = {
        "create": _create, "load": _load, "reload": _load, "suspend": _suspend, "resume": _resume,
        "remove": _remove, "table": _table, "info": _table,
        "message": partial(_message, words=names[2:]),
    }  # fmt: skip
    run = known.get(what)
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


def _words(table: str) -> list[str]:
    """Take a table of one line apart, and see that it begins at 0."""
    words = table.split()
    if len(words) < 4 or words[2] not in _TARGETS or words[0] != "0":
        raise UnknownError(f"dmsetup: {table}: this table is not known")
    if len(words) > 5 and words[2] in ("thin", "log-writes"):
        raise UnknownError(f"dmsetup: {table}: this table is not known")
    return words


def _backed(computer: Computer, table: str) -> tuple[Device, Fate]:
    """Return the device below a table, and what becomes of what is written."""
    words = _words(table)
    device, length = computer.device(words[3]), int(words[1]) * SECTOR
    if words[2] == "thin-pool":
        return Device(words[3], length), Fate.WRITTEN
    offset = int(words[4]) * SECTOR if words[2] == "linear" and len(words) > 4 else 0
    if words[2] == "thin":
        key = (computer.absolute(words[3]), int(words[4]), 0)
        if key not in computer.parts:
            raise fail(errno.ENODATA, words[4])
        computer.parts[key].size = length
        return computer.parts[key], Fate.WRITTEN
    if (offset, length) == (0, device.size):
        fails = words[2] == "error" or "error_writes" in words
        return device, (
            Fate.REFUSED if fails else Fate.LOST if "drop_writes" in words else Fate.WRITTEN
        )
    if words[2] != "linear":
        raise UnknownError(f"dmsetup: {table}: a part of a device is known for linear alone")
    key = (device.path, offset, length)
    return computer.parts.setdefault(key, Device(device.path, length)), Fate.WRITTEN


def _create(computer: Computer, name: str, given: dict[str, str]) -> None:
    table = given.get("table", "")
    device, fate = _backed(computer, table)
    path = f"/dev/mapper/{name}"
    if path in computer.mapped or (device.log and "log-writes" in table):
        raise fail(errno.EBUSY, path)
    computer.add_device(path, device.size)
    computer.devices[path] = device
    computer.mapped[path] = fate
    if "log-writes" in table.split():
        if any(one.device is device for one in computer.mounts.values()):
            raise fail(errno.EBUSY, path)
        device.log = DeviceLog(path, device.memory())
        computer.device(table.split()[4]).noted = device.log
    _settle(computer, path)


def _message(computer: Computer, name: str, given: dict[str, str], words: list[str]) -> None:
    """Tell a target something: a mark in a log of writes, a volume of a pool."""
    del given
    path = _known(computer, name)
    device, told = computer.devices[path], " ".join(words).split()
    computer.flush()
    if len(told) == 2 and told[0] == "mark" and device.log is not None:
        device.log.mark(told[1])
    elif len(told) == 2 and told[0] == "create_thin":
        computer.parts[path, int(told[1]), 0] = Device(f"{path} {told[1]}", 0)
    else:
        raise UnknownError(f"dmsetup message {' '.join(told)}: this message is not known")


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
    computer.mapped[path] = Fate.WRITTEN
    _settle(computer, path)
    device = computer.devices[path]
    if device.log is not None and device.log.name == path:
        device.log.end(device.filesystem.memory if device.filesystem else None)
        device.log = None
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
    device, fate = computer.devices[path], computer.mapped[path]
    mounted = next((one for one in computer.mounts.values() if one.device is device), None)
    if mounted is not None and fate is not device.fate:
        if device.fate is Fate.LOST:
            raise UnknownError(
                "dmsetup: writes were lost below a mounted filesystem, which is not known"
            )
        mounted.write_to(fate)
    device.fate = fate


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
