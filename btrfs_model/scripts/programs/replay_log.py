# SPDX-License-Identifier: GPL-2.0-only
"""replay-log of fstests: what dm-log-writes noted is looked through, or written to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.device_log import DISCARD, FLUSH, FUA, MARK, METADATA, SECTOR, Entry
from btrfs_model.scripts.program import Program, UsageError, options, say
from btrfs_model.shell import compile as compiler
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_FLAGS: Final = {FLUSH: "FLUSH", FUA: "FUA", DISCARD: "DISCARD", MARK: "MARK", METADATA: "METADATA"}
_CHECKS: Final = {"flush": FLUSH, "fua": FUA, "discard": DISCARD}


def _replay_log(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, _ = options(
        arguments, "v", "",
        long=("log=", "replay=", "limit=", "next-flush", "next-fua", "start-entry=", "start-mark=",
              "end-mark=", "find", "num-entries", "fsck=", "check=", "verbose"),
        program_name="replay-log",
    )  # fmt: skip
    if "log" not in given or ("fsck" in given) != ("check" in given):
        raise UsageError("replay-log: say --log, and --fsck with --check")
    log = computer.device(given["log"]).noted
    if log is None:
        say(shell, "Magic doesn't match\n")
        return 1
    first = _first(shell, log.entries, given)
    if first is None:
        return 1
    if "find" in given:
        for number, place, entry in _numbered(log.entries, first):
            if _is_last(entry, number - first + 1, given):
                shell.write(f"{number}@{place}\n")
                return 0
        say(shell, "Couldn't find entry\n")
        return 1
    if "num-entries" in given:
        shell.write(f"{len(log.entries)}\n")
        return 0
    if "replay" not in given:
        shell.write(f"Log version=1, sectorsize={SECTOR}, entries={len(log.entries)}\n")
        return 0
    device = computer.device(given["replay"])
    if any(one.device is device for one in computer.mounts.values()):
        raise UnknownError(f"replay-log: {given['replay']} is mounted, which is not known")
    told = 2 if arguments.count("-v") > 1 or "-vv" in arguments else int("v" in given)
    until = _until(shell, log.entries, first, given, told)
    if "fsck" not in given:
        device.replay(log.entries[first:until], log)
        return 0
    checks = _checks(given["check"])
    for number in range(first, until):
        device.replay([log.entries[number]], log)
        if checks(log.entries[number], number - first + 1) and _fsck(shell, given["fsck"]):
            say(shell, f"Fsck errored out on entry {number}\n")
            return 1
    return 0


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError("Invalid entry number") from None


def _first(shell: Shell, entries: list[Entry], given: dict[str, str]) -> int | None:
    """Return the entry to begin with; None where there is none, which is said."""
    if "start-mark" in given:
        for number, entry in enumerate(entries):
            if entry.flags & MARK and entry.mark == given["start-mark"]:
                return number + 1
        say(shell, "Couldn't find starting mark\n")
        return None
    first = _number(given.get("start-entry", "0"))
    if first < len(entries):
        return first
    say(shell, "Invalid entry number\n")
    return None


def _is_last(entry: Entry, count: int, given: dict[str, str]) -> bool:
    """Whether a search or a replay ends here, with so many entries."""
    wanted = (FLUSH if "next-flush" in given else 0) | (FUA if "next-fua" in given else 0)
    if count == _number(given.get("limit", "0")) or entry.flags & wanted:
        return True
    return bool(entry.flags & MARK) and entry.mark == given.get("end-mark")


def _numbered(entries: list[Entry], first: int) -> Iterator[tuple[int, int, Entry]]:
    """Go through entries from one on: its number, the sector of the log behind it, itself."""
    place = 1
    for number, entry in enumerate(entries):
        place += 1
        if not entry.flags & DISCARD:
            place += entry.size // SECTOR
        if number >= first:
            yield number, place, entry


def _until(
    shell: Shell, entries: list[Entry], first: int, given: dict[str, str], told: int
) -> int:  # fmt: skip
    """Return where a replay ends, and say what is replayed."""
    for number, place, entry in _numbered(entries, first):
        if told:
            names = "|".join(name for bit, name in _FLAGS.items() if entry.flags & bit) or "NONE"
            shell.write(
                f"replaying {number}@{place}: sector {entry.start // SECTOR}, size {entry.size}, "
                f"flags {entry.flags:#x}({names})\n"
            )
        if _is_last(entry, number - first + 1, given):
            return number + 1
    return len(entries)


def _checks(when: str) -> Callable[[Entry, int], bool]:
    """Return what says whether to check behind an entry, which is the so manieth."""
    if when in _CHECKS:
        return lambda entry, count: bool(entry.flags & _CHECKS[when])
    every = _number(when)
    if not every:
        raise UsageError("Invalid entry number")
    return lambda entry, count: count % every == 0


def _fsck(shell: Shell, command: str) -> int:
    """Run a command of the shell."""
    return compiler.subshell(shell.copy(), compiler.script(command))


PROGRAMS: Final[dict[str, Program]] = {"replay-log": _replay_log}
