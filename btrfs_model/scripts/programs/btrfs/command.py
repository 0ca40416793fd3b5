# SPDX-License-Identifier: GPL-2.0-only
"""The command ``btrfs``: its groups of commands, and the short forms of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from btrfs_model.base.nearest import did_you_mean
from btrfs_model.scripts.program import Program, UsageError, reason, say
from btrfs_model.scripts.programs.btrfs import (
    balance,
    check,
    devices,
    dump_super,
    inspect,
    quotas,
    resize,
    space,
    streams,
    subvolume_list,
    subvolumes,
)
from btrfs_model.scripts.programs.btrfs.common import Command
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell


_COMMANDS: Final[dict[str, Command]] = {
    **subvolumes.COMMANDS, **subvolume_list.COMMANDS, **streams.COMMANDS, **space.COMMANDS,
    **quotas.COMMANDS, **inspect.COMMANDS, **dump_super.COMMANDS, **check.COMMANDS,
    **devices.COMMANDS, **resize.COMMANDS, **balance.COMMANDS,
}  # fmt: skip
_QUIET: Final = {"subvolume create", "subvolume snapshot", "subvolume delete", "send", "receive"}


def _btrfs(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    words = list(arguments)
    quiet = False
    while words and words[0] in ("-q", "--quiet", "-v", "--verbose"):
        quiet = quiet or words.pop(0) in ("-q", "--quiet")
    for size in (2, 1):
        name = _whole(words[:size])
        run = _COMMANDS.get(name)
        if run is not None and len(words) >= size:
            rest = words[size:]
            try:
                return run(computer, shell, ["-q", *rest] if quiet and name in _QUIET else rest)
            except UsageError as error:
                say(shell, f"{error}\n")
                return 1
            except OSError as error:
                say(shell, f"ERROR: {name}: {reason(error)}\n")
                return 1
    told = " ".join(words[:2])
    if words[-1:] == ["--help"]:
        if not any(name.startswith(words[0]) for name in _COMMANDS):
            return 1
        shell.write("".join(f"btrfs {name}\n" for name in _COMMANDS if name.startswith(words[0])))
        return 0
    raise UnknownError(f"btrfs {told}: this command is not known{did_you_mean(told, _COMMANDS)}")


def _whole(words: list[str]) -> str:
    """Return the whole name of a command; each word may be cut where one command is meant."""
    told = " ".join(words)
    if told in _COMMANDS:
        return told
    meant = [one for one in _COMMANDS if len(one.split()) == len(words)
             and all(map(str.startswith, one.split(), words))]  # fmt: skip
    return meant[0] if len(meant) == 1 else told


PROGRAMS: Final[dict[str, Program]] = {"btrfs": _btrfs}
