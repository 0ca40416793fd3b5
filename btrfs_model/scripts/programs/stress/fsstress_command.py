# SPDX-License-Identifier: GPL-2.0-only
"""The command ``fsstress``: its options, the table of operations, and processes that take turns."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.scripts.program import Program, options, say
from btrfs_model.scripts.programs.stress import data, operations
from btrfs_model.scripts.programs.stress.fsstress import Process, Settings
from btrfs_model.shell import compile as compiler
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

Operation: TypeAlias = Callable[[Process, int], None]
_NEVER: Final = ("snapshot", "subvol_create", "subvol_delete")
"""They need libbtrfsutil."""
# name: frequency, whether it writes, the function; None where it is not known
_TABLE: Final[dict[str, tuple[int, bool, Operation | None]]] = {
    "afsync": (0, True, None),
    "aread": (1, False, partial(data.direct_read, how="aread")),
    "attr_remove": (0, True, None),
    "attr_set": (0, True, None),
    "awrite": (1, True, partial(data.direct_write, how="awrite")),
    "bulkstat": (1, False, operations.bulkstat),
    "bulkstat1": (1, False, operations.bulkstat1),
    "chown": (3, True, operations.chown),
    "clonerange": (4, True, data.clonerange),
    "copyrange": (4, True, data.copyrange),
    "creat": (4, True, operations.creat),
    "deduperange": (4, True, data.deduperange),
    "dread": (4, False, partial(data.direct_read, how="dread")),
    "dwrite": (4, True, partial(data.direct_write, how="dwrite")),
    "fallocate": (1, True, data.fallocate),
    "fdatasync": (1, True, operations.fdatasync),
    "fiemap": (1, True, data.fiemap),
    "fsync": (1, True, operations.fsync_),
    "getattr": (1, False, operations.getattr_),
    "getdents": (1, False, operations.getdents),
    "getfattr": (1, False, operations.getfattr),
    "link": (1, True, operations.link),
    "listfattr": (1, False, operations.listfattr),
    "mkdir": (2, True, operations.mkdir),
    "mknod": (2, True, operations.mknod),
    "mread": (2, False, partial(data.mapped, how="mread")),
    "mwrite": (2, True, partial(data.mapped, how="mwrite")),
    "punch": (1, True, partial(data.fallocate, mode=2)),
    "zero": (1, True, partial(data.fallocate, mode=16)),
    "collapse": (1, True, partial(data.fallocate, mode=8)),
    "insert": (1, True, partial(data.fallocate, mode=32)),
    "read": (1, False, data.read),
    "read_dontcache": (1, False, partial(data.read, how="read dontcache")),
    "readlink": (1, False, operations.readlink),
    "readv": (1, False, partial(data.read, how="readv")),
    "removefattr": (1, True, operations.removefattr),
    "rename": (2, True, operations.rename),
    "rnoreplace": (2, True, partial(operations.rename, flags=1)),
    "rexchange": (2, True, partial(operations.rename, flags=2)),
    "rwhiteout": (2, True, partial(operations.rename, flags=4)),
    "resvsp": (1, True, partial(data.reserve, how="resvsp")),
    "rmdir": (1, True, operations.rmdir),
    "setattr": (0, True, None),
    "setfattr": (2, True, operations.setfattr),
    "setxattr": (1, True, operations.setxattr),
    "snapshot": (1, True, None),
    "splice": (1, True, data.splice),
    "stat": (1, False, operations.stat_),
    "subvol_create": (1, True, None),
    "subvol_delete": (1, True, None),
    "symlink": (2, True, operations.symlink),
    "sync": (1, True, operations.sync),
    "truncate": (2, True, data.truncate),
    "unlink": (1, True, operations.unlink),
    "unresvsp": (1, True, partial(data.reserve, how="unresvsp")),
    "unshare": (1, True, partial(data.fallocate, mode=64)),
    "uring_read": (1, False, data.uring_read),
    "uring_write": (1, True, data.uring_write),
    "write": (4, True, data.write),
    "write_dontcache": (4, True, partial(data.write, how="write dontcache")),
    "writev": (4, True, partial(data.write, how="writev")),
    "exchangerange": (2, True, data.exchangerange),
}


def _fsstress(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    frequencies, rest = _frequencies(arguments)
    given, words = options(rest, "crvVH", "dlmnpsxX", program_name="fsstress")
    if words or "d" not in given or "H" in given:
        raise UnknownError("fsstress: say a directory (-d)")
    settings = Settings(
        int(given.get("n", "1"), 0), int(given.get("s", "0"), 0), "v" in given, "V" in given,
        "r" in given, int(given.get("m", "31"), 0),
    )  # fmt: skip
    loops, count = int(given.get("l", "1")), int(given.get("p", "1"))
    if loops < 1 or not 0 < settings.modulo <= 31:
        raise UnknownError("fsstress: -l 0 has no end, and -m is 31 at most")
    if not settings.seed:
        settings.seed = int(computer.clock() * 1e6) & 0x7FFFFFFF
        shell.write(f"seed = {settings.seed}\n")
    home = computer.absolute(given["d"]).rstrip("/")
    outer = computer.cwd, computer.umask
    computer.umask = 0
    try:
        processes = _processes(computer, shell, home, count, settings)
        for _ in range(loops):
            _loop(computer, shell, processes, _drawn(frequencies), given)
        computer.cwd = outer[0]
        place = computer.place(home)
        assert place is not None
        place[0].fs.unlink(place[0].inside(f"{place[1]}/fss1".lstrip("/")))
    finally:
        computer.cwd, computer.umask = outer
    return 0


def _frequencies(arguments: list[str]) -> tuple[dict[str, int], list[str]]:
    """Take the options that choose operations out, in their order."""
    found = {name: entry[0] for name, entry in _TABLE.items()}
    rest, words = [], list(arguments)
    while words:
        word = words.pop(0)
        if word in ("-z", "-w", "-R"):
            zeros = [name for name, entry in _TABLE.items()
                     if word == "-z" or entry[1] == (word == "-R")]  # fmt: skip
            found.update(dict.fromkeys(zeros, 0))
        elif word.startswith("-f"):
            for one in (word[2:] or words.pop(0)).split(","):
                name, equals, value = one.partition("=")
                if name not in found or not equals:
                    raise UnknownError(f"fsstress: -f {one}: say an operation and its frequency")
                found[name] = int(value)
        else:
            rest.append(word)
    return found | dict.fromkeys(_NEVER, 0), rest


def _drawn(frequencies: dict[str, int]) -> list[Operation]:
    """Return the operations, each as often as its frequency says."""
    drawn: list[Operation] = []
    for name, count in frequencies.items():
        run = _TABLE[name][2]
        if count and run is None:
            raise UnknownError(f"fsstress: {name}: this operation is not known")
        drawn += [run] * count if run is not None else []
    if not drawn:
        raise UnknownError("fsstress: there is no operation")
    return drawn


def _processes(
    computer: Computer, shell: Shell, home: str, count: int, settings: Settings
) -> list[Process]:
    """Make the directories of all processes."""
    place = computer.place(home)
    if place is None:
        raise UnknownError(f"fsstress: {home}: directories are on a mount")
    mounted, inside = place
    if computer.stat(home) is None:
        mounted.fs.mkdir(mounted.inside(inside))
    # the file of the program; its name has the number of the process
    mounted.fs.create(mounted.inside(f"{inside}/fss1".lstrip("/")))
    return [Process(mounted, posixpath.join(inside, f"p{number:x}"), number, settings, shell.write)
            for number in range(count)]  # fmt: skip


def _loop(
    computer: Computer, shell: Shell, processes: list[Process], drawn: list[Operation],
    given: dict[str, str],
) -> None:  # fmt: skip
    """Let all processes do their operations, one each in turn."""
    times = int(given.get("X", "1"))
    operations_ = processes[0].set.operations
    part = (operations_ + times) // (times + 1)
    for process in processes:
        if computer.stat(process.absolute("")) is None:
            process.fs.mkdir(process.mounted.inside(process.home))
        process.begin()
    for number in range(operations_):
        for process in processes:
            process.operation = number
            if "x" in given and number and not number % part:
                process.say(f"execute command {given['x']}")
                _execute(computer, shell, process.absolute(""), given["x"])
            run = drawn[process.draw() % len(drawn)]
            run(process, process.draw())
    for process in processes if "c" in given else ():
        folder, name = posixpath.split(process.absolute("").rstrip("/"))
        _execute(computer, shell, folder, f"rm -rf {name}")
        process.names.clear()


def _execute(computer: Computer, shell: Shell, folder: str, text: str) -> None:
    """Run a command in a directory, as system(3) does."""
    computer.cwd = folder.rstrip("/")
    status = compiler.subshell(shell.copy(), compiler.script(text))
    if status:
        say(shell, f"execute command failed with {status << 8}\n")


PROGRAMS: Final[dict[str, Program]] = {"fsstress": _fsstress}
