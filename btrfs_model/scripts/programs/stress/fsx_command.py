# SPDX-License-Identifier: GPL-2.0-only
"""The command ``fsx``: its options, its log, and what it says of the filesystem."""

from __future__ import annotations

import errno
import posixpath
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.files import fail
from btrfs_model.scripts.program import Program, UsageError, options, reason, say
from btrfs_model.scripts.programs.stress.fsx import Fsx, Settings
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell
    from btrfs_model.shell.streams import Stream

_SUFFIXES: Final = {"b": 512, "k": 1 << 10, "m": 1 << 20, "w": 4}
_OFF: Final = {"F": "falloc", "K": "keep", "H": "punch", "z": "zero", "C": "collapse",
               "I": "insert", "J": "clone", "B": "dedupe", "E": "copy", "0": "exchange",
               "u": "unshare", "R": "mapread", "W": "mapwrite",
               "a": "atomic"}  # fmt: skip
_NUMBERS: Final = {"S": "seed", "N": "numops", "c": "closeprob", "D": "debugstart",
                   "l": "maxfilelen", "o": "maxoplen", "p": "progressinterval", "r": "readbdy",
                   "t": "truncbdy", "w": "writebdy"}  # fmt: skip
_MODES: Final = (("unshare", "fallocate mode FALLOC_FL_UNSHARE_RANGE"),
                 ("collapse", "fallocate mode FALLOC_FL_COLLAPSE_RANGE"),
                 ("insert", "fallocate mode FALLOC_FL_INSERT_RANGE"),
                 ("exchange", "exchange range"), ("uncached", "dontcache IO"))  # fmt: skip
_BUFFER: Final = 4096


class _Log:
    """What is printed, and goes into a file by whole blocks."""

    def __init__(self, shell: Shell, stream: Stream, prefix: str) -> None:
        self.shell, self.stream, self.prefix, self.waits = shell, stream, prefix, bytearray()

    def __call__(self, text: str) -> None:
        self.shell.write(f"{self.prefix}{text}")
        self.waits += text.encode("utf-8", "surrogateescape")
        whole = len(self.waits) // _BUFFER * _BUFFER
        if whole:
            self.stream.write(bytes(self.waits[:whole]))
            del self.waits[:whole]

    def close(self) -> None:
        """Write what waits."""
        self.stream.write(bytes(self.waits))


def _number(text: str) -> int:
    number, suffix = (text[:-1], text[-1].lower()) if text[-1:].lower() in _SUFFIXES else (text, "")
    try:
        return int(number, 0) * _SUFFIXES.get(suffix, 1)
    except ValueError:
        raise UsageError(f"{text}: no number") from None


def _fsx(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "0adfknquxyABCEFHIJKLORUWXZz", "bcegijlmoprstwDNPS",
                           program_name="fsx")  # fmt: skip
    if len(paths) != 1 or {"A", "U"} <= set(given) or ("i" in given and "P" not in given):
        raise UnknownError("fsx: say one file; -A or -U; -P with -i")
    settings = _settings(computer, given)
    path = computer.absolute(paths[0])
    place = computer.place(path)
    if place is None:
        raise UnknownError(f"fsx: {paths[0]}: files are on a mount")
    prefix = f"{given['j']}: " if "j" in given else ""
    heads = _heads(settings, given)
    if computer.stat(path) is None and settings.lite:
        shell.write(f"{prefix}{paths[0]}: {reason(fail(errno.ENOENT, path))}\n")
        return 91
    computer.write(path, mode="r+" if settings.keeps or settings.lite else "w")
    logs = posixpath.join(given["P"], posixpath.basename(path)) if "P" in given else path
    computer.write(f"{logs}.fsxgood")
    with computer.open(f"{logs}.fsxlog", "w") as file:
        log = _Log(shell, file, prefix)
        shell.write("".join(f"{prefix}{line}" for line in heads))

        def mark(number: int, good: bytes) -> None:
            _mark(computer, shell, given, log, f"{logs}.mark{number}", good)

        fsx = Fsx(*place, settings, log, mark)
        fsx.begin()
        _tell_modes(shell, settings)
        fsx.run()
        log(f"All {fsx.calls} operations completed A-OK!\n")
        log.close()
    return 0


def _heads(settings: Settings, given: dict[str, str]) -> list[str]:
    """Return what is said of options, before there is a log."""
    if settings.quiet:
        return []
    told = []
    if "b" in given:
        told.append(f"Will begin at operation {settings.first + 1}\n")
    if "c" in given:
        told.append(f"Chance of close/open is 1 in {settings.closeprob}\n")
    if "W" in given:
        told.append("mapped writes DISABLED\n")
    return [*told, f"Seed set to {settings.seed}\n"]


def _settings(computer: Computer, given: dict[str, str]) -> Settings:
    """Return what options say."""
    settings = Settings()
    for letter, name in _NUMBERS.items():
        if letter in given:
            setattr(settings, name, _number(given[letter]))
    if settings.numops < 0:
        raise UnknownError("fsx: -N: say how many operations")
    least = min(settings.maxfilelen, settings.maxoplen, settings.readbdy, settings.writebdy,
                settings.truncbdy)  # fmt: skip
    if least <= 0 or settings.seed < 0 or "h" in given:
        raise UnknownError("fsx: a number is too small")
    settings.seed = settings.seed or int(computer.clock()) % 10_000
    settings.off = frozenset(name for letter, name in _OFF.items() if letter in given)
    settings.first = _number(given["b"]) - 1 if "b" in given else 0
    settings.filldata = ord(given["g"][0]) & 255 if given.get("g") else 0
    settings.pollutes = "e" in given and _number(given["e"]) == 1
    if "m" in given:
        start, _, end = given["m"].partition(":")
        settings.monitorstart, settings.monitorend = _number(start), _number(end or "0") or -1
    for letter, name in (("q", "quiet"), ("L", "lite"), ("i", "integrity"), ("k", "keeps"),
                         ("y", "syncs"), ("X", "checks"), ("Z", "direct")):  # fmt: skip
        setattr(settings, name, letter in given)
    settings.debug = bool({"d", "m"} & set(given))
    settings.randomoplen = "O" not in given
    return settings


def _tell_modes(shell: Shell, settings: Settings) -> None:
    """Say what btrfs does not have."""
    if settings.quiet:
        return
    for name, what in _MODES:
        direct = name == "uncached" and settings.direct
        if (
            name not in settings.off
            and not direct
            and not (settings.lite and what.startswith("fallocate"))
        ):
            say(shell, f"main: filesystem does not support {what}, disabling!\n")
    if "atomic" not in settings.off:
        say(shell, "main: IO Stack does not support atomic writes, disabling!\n" if settings.direct
            else "main: atomic writes need O_DIRECT (-Z), disabling!\n")  # fmt: skip


def _mark(
    computer: Computer, shell: Shell, given: dict[str, str], log: _Log, path: str, good: bytes
) -> None:
    """Mark the log of writes at an fsync, and keep what the file must be there."""
    name = posixpath.basename(path)
    command = computer.command("dmsetup")
    assert command is not None
    if command(shell, ["message", given["i"], "0", "mark", name]):
        raise UnknownError("fsx: -i: dmsetup has no such device")
    computer.put(computer.absolute(path), good)
    log(f"Dumped fsync buffer to {name}\n")


PROGRAMS: Final[dict[str, Program]] = {"fsx": _fsx}
