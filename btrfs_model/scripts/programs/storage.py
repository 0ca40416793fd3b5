# SPDX-License-Identifier: GPL-2.0-only
"""Devices and mounts: mkfs.btrfs, mount, umount, losetup, blockdev, dmesg."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.questions.dumptree.templates import uuid
from btrfs_model.scripts.program import Program, options, reason, say, size_of
from btrfs_model.scripts.programs.btrfs.rootdir import fill
from btrfs_model.scripts.programs.names import each
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
                   "ERROR: use the -f option to force overwrite\n")  # fmt: skip
        return 1
    source = given.get("r", given.get("rootdir"))
    if source is not None and not _is_folder(computer, shell, source, device):
        return 1
    chosen = _format(given)
    size = size_of(given.get("b", given.get("byte-count", str(device.size))))
    try:
        fs = WritableFilesystem.mkfs(size, behaviour=computer.behaviour, **chosen)
    except ValueError as error:
        say(shell, f"ERROR: {error}\n")
        return 1
    if device.filesystem is not None:
        device.filesystem.close()
    device.filesystem, device.crashed = fs, None
    if source is not None:
        try:
            fill(computer, fs, source)
        except OSError as error:
            say(shell, f"ERROR: error while filling filesystem: {reason(error)}\n")
            return 1
    if "quota" in _list(given):
        fs.quota_enable()
        fs.sync()
    if not {"q", "quiet"} & set(given):
        shell.write(_told(fs, chosen, size, "" if source is None else "Making image is "
                          "completed.\n"))  # fmt: skip
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
        _erase(device)
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


def _told(fs: WritableFilesystem, chosen: dict[str, Any], size: int, filled: str) -> str:
    return (
        "btrfs-progs v6.2\n"
        "See http://btrfs.wiki.kernel.org for more information.\n\n"
        f"{filled}Label:              {chosen.get('label') or '(null)'}\n"
        f"UUID:               {uuid(fs.image.superblock.fsid)}\n"
        f"Node size:          {fs.nodesize}\n"
        "Sector size:        4096\n"
        f"Filesystem size:    {size / (1 << 30):.2f}GiB\n"
    )


def _mount(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    if not arguments:
        shell.files[1].write(computer.read("/proc/mounts"))
        return 0
    words, chosen, at = [], [], 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word in ("-o", "-t", "-O", "--options", "--types", "--test-opts"):
            if at >= len(arguments):
                say(shell, f"mount: option requires an argument -- '{word[1:]}'\n")
                return 1
            if word in ("-o", "--options"):
                chosen += arguments[at].split(",")
            at += 1
        elif word.startswith("-o"):
            chosen += word[2:].split(",")
        elif word in ("-r", "--read-only"):
            chosen.append("ro")
        elif word in ("-w", "--rw", "-v", "--verbose", "-n"):
            continue
        elif word.startswith("-"):
            raise UnknownError(f"mount: {word}: this option is not known")
        else:
            words.append(word)
    return _mounted(computer, shell, words, [one for one in chosen if one])


def _mounted(computer: Computer, shell: Shell, words: list[str], chosen: list[str]) -> int:
    where = words[-1]
    if "remount" in chosen:
        mounted = computer.mounted_at(where)
        if mounted is None:
            say(shell, f"mount: {where}: mount point not mounted or bad option.\n")
            return 32
        mounted.remount([one for one in chosen if one != "remount"])
        return 0
    if len(words) != 2:
        raise UnknownError(f"mount {' '.join(words)}: say the device and where")
    try:
        computer.device(words[0])
        if computer.stat(where) is None and computer.place(computer.absolute(where)) is None:
            # the author's machine had it
            computer.tree.folders(computer.absolute(where))
        computer.mount(words[0], where, chosen)
    except OSError as error:
        if error.errno == errno.ENOENT and computer.stat(where) is None:
            say(shell, f"mount: {where}: mount point does not exist.\n")
        elif error.errno == errno.ENOENT and computer.stat(words[0]) is None:
            say(shell, f"mount: {where}: special device {words[0]} does not exist.\n")
        elif error.errno == errno.ENOENT:
            # no such subvolume
            say(shell, f"mount: {where}: mount(2) system call failed: {reason(error)}.\n{_MORE}")
        elif error.errno == errno.EINVAL:
            say(shell, _refused(words[0], where))
        else:
            say(shell, f"mount: {where}: {reason(error)}.\n")
        return 32
    except ValueError as error:
        computer.message(f"BTRFS error: {error}".encode())
        say(shell, _refused(words[0], where))
        return 32
    except BtrfsModelError as error:
        raise UnknownError(f"mount {words[0]}: {error}") from error
    return 0


_MORE: Final = "       dmesg(1) may have more information after failed mount system call.\n"


def _refused(source: str, where: str) -> str:
    return (
        f"mount: {where}: wrong fs type, bad option, bad superblock on {source}, missing codepage "
        f"or helper program, or other error.\n{_MORE}"
    )


def _umount(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    _, paths = options(arguments, "lfrvdnq", long=("lazy", "force"), program_name="umount")
    status = 0
    for path in paths:
        mounted = computer.mounted_at(path)
        if mounted is None:
            say(shell, f"umount: {path}: not mounted.\n")
            status = 32
            continue
        try:
            computer.unmount(mounted)
        except OSError:
            say(shell, f"umount: {path}: target is busy.\n")
            status = 32
    return status


def _losetup(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "fdDPL", long=("find", "show", "detach="),
                           program_name="losetup")  # fmt: skip
    if {"d", "D", "detach"} & set(given):
        return 0
    if not paths:
        shell.write(f"{_free_loop(computer)}\n")
        return 0
    path = paths[0] if paths[0].startswith("/dev/") else _free_loop(computer)
    device = computer.device(paths[-1])
    computer.add_device(path, device.size)
    computer.devices[path] = device
    if "show" in given:
        shell.write(path + "\n")
    return 0


def _free_loop(computer: Computer) -> str:
    return next(f"/dev/loop{number}" for number in range(256)
                if f"/dev/loop{number}" not in computer.devices)  # fmt: skip


def _blockdev(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    for word in arguments[:-1]:
        device = computer.device(arguments[-1])
        if word == "--getsize64":
            shell.write(f"{device.size}\n")
        elif word in ("--getsz", "--getsize"):
            shell.write(f"{device.size // 512}\n")
        elif word in ("--getss", "--getpbsz", "--getbsz"):
            shell.write("512\n")
        elif word not in ("--flushbufs", "--rereadpt", "--setra"):
            raise UnknownError(f"blockdev: {word}: this option is not known")
        computer.flush()
    return 0


def _erase(device: Device) -> None:
    if device.filesystem is not None:
        device.filesystem.close()
    device.filesystem = device.crashed = None


def _wipefs(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    _, paths = options(arguments, "aqf", long=("all", "force", "quiet"), program_name="wipefs")

    def wipe(path: str) -> None:
        _erase(computer.device(path))

    return each(computer, shell, paths, wipe, "wipefs: error: {}: probing initialization failed")


def _dmesg(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    if "-C" in arguments or "--clear" in arguments:
        computer.messages.clear()
        return 0
    for one in computer.messages:
        shell.write(one + "\n")
    if "-c" in arguments:
        computer.messages.clear()
    return 0


def _mountpoint(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    path = computer.absolute(arguments[-1]).rstrip("/")
    there = path in computer.mounts
    if "-q" not in arguments:
        shell.write(f"{arguments[-1]} is {'' if there else 'not '}a mountpoint\n")
    return 0 if there else 32


def _findmnt(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words = options(arguments, "rnuKAJlcvk", "otTSO",
                           long=("noheadings", "raw", "output=", "mountpoint=", "source="),
                           program_name="findmnt")  # fmt: skip
    columns = given.get("o", given.get("output", "TARGET,SOURCE,FSTYPE,OPTIONS")).upper().split(",")
    source = given.get("S", given.get("source"))
    target = given.get("mountpoint", words[-1] if words else None)
    rows = list(computer.mounts.values())
    if given.get("t", "btrfs") != "btrfs":
        rows = []
    if source is not None:
        rows = [one for one in rows if one.source == computer.absolute(source)]
    if "T" in given:
        place = computer.place(computer.absolute(given["T"]))
        rows = [one for one in rows if place is not None and one is place[0]]
    if target is not None:
        wanted = computer.absolute(target).rstrip("/")
        rows = [one for one in rows if wanted in (one.where, one.source)]
    for one in rows:
        known = {"TARGET": one.where, "SOURCE": one.source, "FSTYPE": "btrfs",
                 "OPTIONS": one.shown()}  # fmt: skip
        shell.write(" ".join(known.get(name, "") for name in columns) + "\n")
    return int(not rows)


def _fallocate(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "ncdpzixv", "ol",
                           long=("offset=", "length=", "keep-size", "punch-hole", "zero-range"),
                           program_name="fallocate")  # fmt: skip
    offset = size_of(given.get("o", given.get("offset", "0")))
    told = given.get("l", given.get("length"))
    if told is None:
        say(shell, "fallocate: required length was not specified\n")
        return 1
    mode = 1 if {"n", "keep-size"} & set(given) else 0
    if {"p", "punch-hole"} & set(given):
        mode = 3
    if {"z", "zero-range"} & set(given):
        mode |= 16
    if {"c", "i", "d", "x"} & set(given):
        raise UnknownError("fallocate: -c, -i, -d and -x are not known")

    def allocate(path: str) -> None:
        if computer.stat(path) is None:
            computer.open(path, "w")
        found = computer.place(path)
        if found is None:
            computer.add_device(path, offset + size_of(told))
            return
        mounted, inside = found
        mounted.may_write(path)
        with computer.timed("fallocate"):
            mounted.fs.vfs_fallocate(mounted.inside(inside), mode, offset, size_of(told))

    return each(computer, shell, paths, allocate, "fallocate: fallocate failed")


def _power_failure(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Lose what is not on the devices; what was mounted is mounted again, and its log replayed."""
    del shell, arguments
    before = [(one.source, one.where, list(one.options)) for one in computer.mounts.values()]
    computer.crash()
    for source, where, chosen in before:
        computer.mount(source, where, chosen)
    return 0


def _crash(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Lose what is not on the devices; nothing is mounted afterwards."""
    del shell, arguments
    computer.crash()
    return 0


def _hdparm(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del shell, arguments
    computer.flush()
    return 0


def _getconf(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del computer
    known = {"PAGE_SIZE": 4096, "PAGESIZE": 4096, "_NPROCESSORS_ONLN": 1, "LONG_BIT": 64}
    if arguments[0] not in known:
        raise UnknownError(f"getconf: {arguments[0]}: this variable is not known")
    shell.write(f"{known[arguments[0]]}\n")
    return 0


def _not_modelled(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Refuse to go on: what stands for a program that the model does not have calls it."""
    del computer, shell
    raise UnknownError(f"{' '.join(arguments)}: this program is not known")


PROGRAMS: Final[dict[str, Program]] = {
    "mkfs.btrfs": _mkfs, "mount": _mount, "umount": _umount, "losetup": _losetup,
    "blockdev": _blockdev, "wipefs": _wipefs, "dmesg": _dmesg, "mountpoint": _mountpoint,
    "findmnt": _findmnt, "fallocate": _fallocate, "hdparm": _hdparm,
    "power_failure": _power_failure, "power_cut": _crash,
    "not_modelled": _not_modelled, "getconf": _getconf,
    "mkfs": lambda computer, shell, arguments: _mkfs(computer, shell, _without_type(arguments)),
}  # fmt: skip


def _without_type(arguments: list[str]) -> list[str]:
    text = " ".join(arguments)
    if not re.search(r"-t\s*btrfs", text):
        raise UnknownError(f"mkfs {text}: only -t btrfs is known")
    at = next(at for at, one in enumerate(arguments) if one.startswith("-t"))
    return arguments[:at] + arguments[at + (2 if arguments[at] == "-t" else 1) :]
