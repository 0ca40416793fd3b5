# SPDX-License-Identifier: GPL-2.0-only
"""Devices and mounts: mkfs.btrfs, mount, umount, losetup, blockdev, dmesg."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.mount.options import NotFollowedError
from btrfs_model.scripts.program import Program, options, reason, say, size_of
from btrfs_model.scripts.programs.btrfs.mkfs import erase
from btrfs_model.scripts.programs.names import each
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell


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
        elif word in ("-B", "--bind"):
            chosen.append("bind")
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
        try:
            mounted.remount([one for one in chosen if one != "remount"])
        except OSError:
            say(shell, f"mount: {where}: mount point is busy.\n{_MORE}")
            return 32
        except ValueError as error:
            bad = f"mount: {where}: mount point not mounted or bad option.\n{_MORE}"
            return _bad_option(computer, shell, error, bad)
        return 0
    if len(words) != 2:
        raise UnknownError(f"mount {' '.join(words)}: say the device and where")
    if "bind" in chosen and set(chosen) != {"bind"}:
        raise UnknownError("mount --bind: other options with it are not known")
    try:
        if chosen == ["bind"]:
            computer.bind(*words)
            return 0
        computer.device(words[0])
        if computer.stat(where) is None and computer.place(computer.absolute(where)) is None:
            # the author's machine had it
            computer.tree.folders(computer.absolute(where))
        computer.mount(words[0], where, chosen)
    except OSError as error:
        if error.errno == errno.ENOENT and computer.stat(where) is None:
            say(shell, f"mount: {where}: mount point does not exist.\n{_MORE}")
        elif error.errno == errno.ENOENT and computer.stat(words[0]) is None:
            say(shell, f"mount: {where}: special device {words[0]} does not exist.\n"
                       f"{_MORE}")  # fmt: skip
        elif error.errno == errno.ENOENT:
            # no such subvolume
            say(shell, f"mount: {where}: mount(2) system call failed: {reason(error)}.\n{_MORE}")
        elif error.errno == errno.EINVAL:
            say(shell, _refused(words[0], where))
        elif error.errno == errno.EIO:
            say(shell, f"mount: {where}: can't read superblock on {words[0]}.\n{_MORE}")
        else:
            say(shell, f"mount: {where}: {reason(error)}.\n")
        return 32
    except ValueError as error:
        return _bad_option(computer, shell, error, _refused(words[0], where))
    except BtrfsModelError as error:
        raise UnknownError(f"mount {words[0]}: {error}") from error
    return 0


_MORE: Final = "       dmesg(1) may have more information after failed mount system call.\n"


def _refused(source: str, where: str) -> str:
    return (
        f"mount: {where}: wrong fs type, bad option, bad superblock on {source}, missing codepage "
        f"or helper program, or other error.\n{_MORE}"
    )


def _bad_option(computer: Computer, shell: Shell, error: ValueError, said: str) -> int:
    """Say what mount(8) does of an option that a kernel refuses."""
    if isinstance(error, NotFollowedError):
        raise UnknownError(f"mount: {error}") from error
    computer.message(f"BTRFS error: {error}".encode())
    say(shell, said)
    return 32


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


def _wipefs(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    _, paths = options(arguments, "aqf", long=("all", "force", "quiet"), program_name="wipefs")

    def wipe(path: str) -> None:
        erase(computer.device(path))

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
    if not arguments:
        raise UnknownError("mountpoint: say a path")
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
            computer.write(path)
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
    if not arguments or arguments[0] not in known:
        raise UnknownError(f"getconf {' '.join(arguments)}: this variable is not known")
    shell.write(f"{known[arguments[0]]}\n")
    return 0


def _not_modelled(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Refuse to go on: what stands for a program that the model does not have calls it."""
    del computer, shell
    raise UnknownError(f"{' '.join(arguments)}: this program is not known")


PROGRAMS: Final[dict[str, Program]] = {
    "mount": _mount, "umount": _umount, "losetup": _losetup,
    "blockdev": _blockdev, "wipefs": _wipefs, "dmesg": _dmesg, "mountpoint": _mountpoint,
    "findmnt": _findmnt, "fallocate": _fallocate, "hdparm": _hdparm,
    "power_failure": _power_failure, "power_cut": _crash,
    "not_modelled": _not_modelled, "getconf": _getconf,
}  # fmt: skip
