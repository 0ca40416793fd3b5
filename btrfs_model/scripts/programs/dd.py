# SPDX-License-Identifier: GPL-2.0-only
"""dd of coreutils."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.mounted import MountedFile
from btrfs_model.scripts.program import Program, reason, say, size_of
from btrfs_model.scripts.programs.copies import cut, fsync
from btrfs_model.shell.state import UnknownError
from btrfs_model.shell.streams import Endless, Null, Pipe, Stream

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_OPERANDS: Final = ("if", "of", "bs", "count", "seek", "skip", "conv", "oflag", "iflag", "status",
                    "ibs", "obs")  # fmt: skip


def _dd(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    if arguments == ["--help"]:
        shell.write("usage: dd [operand=value] ...; status= is none, noxfer or progress\n")
        return 0
    given = dict(one.partition("=")[::2] for one in arguments)
    for name in given:
        if name not in _OPERANDS:
            raise UnknownError(f"dd: {name}=: this operand is not known")
    block, out = _blocks(given)
    if not block or not out:
        say(shell, "dd: invalid number: '0'\n")
        return 1
    flags = _flags(given)
    with ExitStack() as files:
        try:
            source = shell.files[0]
            if "if" in given:
                source = files.enter_context(computer.open(given["if"], "r"))
            if skip := size_of(given.get("skip", "0")):
                source.read(skip * block)
            seek = out * size_of(given.get("seek", "0"))
            target = shell.files[1]
            if "of" in given:
                target = files.enter_context(_output(computer, given["of"], flags, seek))
        except OSError as error:
            name = given.get("of", given.get("if", ""))
            if "if" in given and computer.stat(given["if"]) is None:
                name = given["if"]
            say(shell, f"dd: failed to open '{name}': {reason(error)}\n")
            return 1
        return _transfer(computer, shell, given, source, target)


def _transfer(
    computer: Computer, shell: Shell, given: dict[str, str], source: Stream, target: Stream
) -> int:
    """Copy, and say how much it was."""
    block, out = _blocks(given)
    flags = _flags(given)
    if source.endless and "count" not in given:
        if isinstance(target, Pipe):
            return target.hand_over(Endless("dd", partial(source.read, block)))
        if type(target) is Null:
            # it goes on for ever, and is refused
            source.read()
    read, done, refused = _copied(computer, given, source, target, block, flags)
    if refused is not None:
        say(shell, f"dd: error writing '{given.get('of', 'standard output')}': {reason(refused)}\n")
    if {"fsync", "fdatasync"} & flags and "of" in given:
        fsync(computer, computer.absolute(given["of"]))
    if given.get("status") != "none":
        for size, count, way in ((block, read, "in"), (out, done, "out")):
            say(shell, f"{count // size}+{int(count % size > 0)} records {way}\n")
        if given.get("status") != "noxfer":
            say(shell, f"{done} bytes{_human(done)} copied, 0 s, Infinity B/s\n")
    return int(refused is not None)


def _blocks(given: dict[str, str]) -> tuple[int, int]:
    """Return the bytes that are read and written at once."""
    block, out = (size_of(given.get("bs", given.get(one, "512"))) for one in ("ibs", "obs"))
    return block, out


def _flags(given: dict[str, str]) -> set[str]:
    return set(given.get("conv", "").split(",")) | set(given.get("oflag", "").split(","))


def _output(computer: Computer, path: str, flags: set[str], seek: int) -> Stream:
    """Open what is written to, from byte `seek` on."""
    mode = "r+" if "notrunc" in flags or seek else "w"
    if "append" in flags and mode == "r+":
        mode = "a"
    target = computer.open(path, mode)
    if seek and "notrunc" not in flags:
        cut(computer, computer.absolute(path), seek)
    target.at = seek  # type: ignore[attr-defined]
    if "direct" in flags and isinstance(target, MountedFile):
        target.direct = True
    return target


def _copied(
    computer: Computer, given: dict[str, str], source: Stream, target: Stream, block: int,
    flags: set[str],
) -> tuple[int, int, OSError | None]:  # fmt: skip
    """Copy block by block; return bytes read and written, and why it ended before."""
    most = size_of(given["count"]) * block if "count" in given else None
    read = done = 0
    while most is None or done < most:
        data = source.read(block)
        if not data:
            break
        read += len(data)
        before = getattr(target, "at", 0)
        try:
            target.write(data)
        except OSError as error:
            # a part of a block may fit
            return read, done + getattr(target, "at", 0) - before, error
        if {"sync", "dsync"} & flags and "of" in given:
            fsync(computer, computer.absolute(given["of"]))
        done += len(data)
        if len(data) < block:
            break
    return read, done, None


def _human(size: int) -> str:
    found = ""
    for base, units in ((1000, "kMGT"), (1024, "KMGT")):
        value, unit = float(size), ""
        for unit_ in units:
            if value < base:
                break
            value, unit = value / base, unit_
        if not unit:
            return found + ")" if found else ""
        text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
        found += f" ({text} {unit}B" if base == 1000 else f", {text} {unit}iB"
    return found + ")"


PROGRAMS: Final[dict[str, Program]] = {"dd": _dd}
