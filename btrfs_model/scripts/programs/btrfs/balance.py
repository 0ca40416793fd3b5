# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs balance``: its filters and what it says, as btrfs-progs 6.2 has them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.mount.relocation.balance import Request
from btrfs_model.mount.relocation.filters import ArgsFlag, Filters
from btrfs_model.scripts.program import reason, say
from btrfs_model.scripts.programs.btrfs.common import Command, counted, opened
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_WAIT: Final = 10
_WARNING: Final = """\
WARNING:

\tFull balance without filters requested. This operation is very
\tintense and takes potentially very long. It is recommended to
\tuse the balance filters to narrow down the scope of balance.
\tUse 'btrfs balance start --full-balance' option to skip this
\twarning. The operation will start in 10 seconds.
\tUse Ctrl-C to stop it.
"""
_WORDS: Final = {"-f": "force", "--force": "force", "--full-balance": "full", "-v": "verbose",
                 "--verbose": "verbose", "--background": "quiet", "--bg": "quiet",
                 "--enqueue": "", "-q": "quiet", "--quiet": "quiet"}  # fmt: skip
_KINDS: Final = {"d": "data", "m": "metadata", "s": "system"}


def _start(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words, paths = dict.fromkeys(_KINDS.values()), set(), []
    for word in arguments:
        if word in _WORDS:
            words.add(_WORDS[word])
        elif word[:1] == "-" and word[1:2] in _KINDS and word[:2] != "--":
            given[_KINDS[word[1]]] = word[2:].removeprefix("=")
        elif word[:1] == "-" and len(word) > 1:
            raise UnknownError(f"btrfs balance start: the option {word} is not known")
        else:
            paths.append(word)
    counted("balance start", paths, 1, 1)
    (path,) = paths
    try:
        for one in given.values():
            Filters.parse(one or "")
    except ValueError as error:
        say(shell, f"ERROR: {error}\n")
        return 1
    if given["system"] is not None and "force" not in words:
        say(shell, "ERROR: Refusing to explicitly operate on system chunks.\n"
                   "Pass --force if you really want to do that.\n")  # fmt: skip
        return 1
    seen = computer.stat(path)
    if seen is not None and not seen.is_dir:
        say(shell, f"ERROR: not a directory: {path}\n")
        return 1
    return _run(computer, shell, path, given, words)


def _run(
    computer: Computer, shell: Shell, path: str, given: dict[str, str | None], words: set[str]
) -> int:
    """Balance what is mounted at a path."""
    mounted = opened(computer, shell, path)
    if mounted is None:
        return 1
    request = Request.parse(*given.values(), force="force" in words)
    if "verbose" in words:
        _tell(shell, request)
    if not any(one is not None for one in given.values()) and not words & {"full", "quiet"}:
        shell.write(_WARNING + " ".join(str(left) for left in range(_WAIT, 0, -1)))
        computer.jobs.sleep(_WAIT)
        shell.write("\nStarting balance without any filters.\n")
    try:
        if mounted.is_read_only:
            raise OSError(errno.EROFS, "Read-only file system")
        moved = mounted.fs.balance(*given.values(), force=request.force)
    except UnsupportedError as error:
        raise UnknownError(f"btrfs balance start: {error}") from None
    except OSError as error:
        say(shell, f"ERROR: error during balancing '{path}': {reason(error)}\n"
                   "There may be more info in syslog - try dmesg | tail\n")  # fmt: skip
        return 1
    if "quiet" not in words:
        shell.write(f"Done, had to relocate {moved.completed} out of {moved.considered} chunks\n")
    return 0


def _tell(shell: Shell, request: Request) -> None:
    """Say what will be done (``dump_ioctl_balance_args()``)."""
    force = "on" if request.force else "off"
    named = {"DATA": request.data, "METADATA": request.metadata, "SYSTEM": request.system}
    flags = sum(request.kinds) | request.force << 3
    shell.write(f"Dumping filters: flags {flags:#x}, state 0x0, force is {force}\n")
    for name, filters in named.items():
        if filters is None:
            continue
        if filters.flags & ~(ArgsFlag.USAGE | ArgsFlag.LIMIT):
            raise UnknownError("btrfs balance start -v: only usage and limit are told")
        shown = [f"usage={filters.usage}"] * bool(filters.flags & ArgsFlag.USAGE)
        shown += [f"limit={filters.limit}"] * bool(filters.flags & ArgsFlag.LIMIT)
        told = ", ".join(["balancing", *shown])
        shell.write(f"  {name} (flags {int(filters.flags):#x}): {told}\n")


def _control(what: str) -> Command:
    """Of a balance that runs: none does when a command returns."""

    def run(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        words = [one for one in arguments if one not in ("-v", "--verbose")]
        if len(words) != 1:
            raise UnknownError(f"btrfs balance {what}: say one path")
        path = words[0]
        if opened(computer, shell, path) is None:
            return 1
        if what == "status":
            shell.write(f"No balance found on '{path}'\n")
            return 0
        why = "Not running" if what == "pause" else "Not in progress"
        say(shell, f"ERROR: balance {what} on '{path}' failed: {why}\n")
        return 2

    return run


COMMANDS: Final[dict[str, Command]] = {
    "balance start": _start,
    **{f"balance {one}": _control(one) for one in ("status", "pause", "cancel", "resume")},
}
